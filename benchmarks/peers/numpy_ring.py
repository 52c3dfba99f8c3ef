"""Plain numpy as an engine of one process: what a careful user writes without any library.

Columns in a ring, gathers with drawn indices, recursions over time that take all sequences at once,
and CartPole with a small network.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.local import oracles
from benchmarks.local.calls import GAMMA, LAMBDA
from benchmarks.local.cartpole import CartPoles
from benchmarks.local.engine import ALPHA, BETA, Case, Engine, Plan
from benchmarks.local.items import NAMES, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Array, Tree


class Numpy(Engine):
    """The peer."""

    name = "numpy"

    def store(self, plan: Plan) -> Ring:
        """Make a ring of columns."""
        return Prioritized(plan) if plan.prioritized else Ring(plan)

    def call(self, case: Case) -> Callable[[], Any]:
        """Call the function of this name."""
        functions: dict[str, Callable[..., Any]] = {
            "compute_gae": gae,
            "compute_gae_batched_f32": gae_batched,
            "compute_batch_token_kl": oracles.token_kl,
            "compute_batch_token_kl_schulman": token_kl_schulman,
            "compute_batch_group_advantages": oracles.group_advantages,
            "compute_vtrace": vtrace,
            "pack_sequences": pack,
        }
        if case.function not in functions:
            raise self.missing(case.function)
        return partial(functions[case.function], *case.arguments)

    def collector(self, *, envs: int, steps: int, hidden: int) -> Collector:
        """Play with a network of this size."""
        return Collector(envs, steps, hidden)

    def environments(self, count: int) -> Environments:
        """Step many at once."""
        return Environments(count)


class Ring:
    """An array for each column."""

    indices = "indices"
    actions = "actions"

    def __init__(self, plan: Plan) -> None:
        """Allocate it."""
        self._folder = tempfile.TemporaryDirectory() if plan.hot else None
        self._columns = {
            name: self._column(name, (plan.capacity, *leaf.shape), leaf.dtype)
            for name, leaf in Rows(plan.kind).example.items()
        }
        self._arrays = tuple(self._columns[name] for name in NAMES)
        self._capacity = plan.capacity
        self._length = plan.length
        self._firsts: Array | None = None
        self._next = self._size = 0
        self._rng = np.random.default_rng(20)

    def push(self, *transition: Any) -> None:
        """Store one."""
        at = self._next
        for array, value in zip(self._arrays, transition, strict=True):
            array[at] = value
        self._moved(1)

    def extend(self, columns: Tree) -> None:
        """Store many, in two pieces at the ring's end."""
        rows, at = len(columns["rewards"]), self._next
        fit = min(rows, self._capacity - at)
        for name, array in self._columns.items():
            array[at : at + fit] = columns[name][:fit]
            array[: rows - fit] = columns[name][fit:]
        self._moved(rows)

    def draws(self, size: int) -> Callable[[], Tree]:
        """Draw uniformly."""
        return partial(self.sample, size)

    def sample(self, size: int) -> Tree:
        """Gather each column."""
        if self._length == 1:
            return self._rows(self._rng.integers(0, self._size, size))
        if self._firsts is None:
            # Where a window can begin, as long as nothing is stored.
            ended = np.cumsum(self._columns["terminated"][: self._size])
            whole = (
                np.append(0, ended)[: self._size - self._length + 1] == ended[self._length - 2 : -1]
            )
            self._firsts = np.flatnonzero(whole)
        firsts = self._firsts[self._rng.integers(0, len(self._firsts), size)]
        return self._rows(firsts[:, None] + np.arange(self._length))

    def columns(self, drawn: Tree) -> Tree:
        """Return what was drawn."""
        return drawn

    def __len__(self) -> int:
        """How many transitions are stored."""
        return self._size

    def close(self) -> None:
        """Forget the columns."""
        self._columns, self._arrays = {}, ()
        if self._folder is not None:
            self._folder.cleanup()

    def update(self, indices: Array, priorities: Array) -> None:
        """Do nothing: all are alike."""

    def _column(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Allocate a column, or map a file for it."""
        if self._folder is None:
            return np.zeros(shape, dtype)
        path = Path(self._folder.name) / name
        return np.lib.format.open_memmap(path, "w+", dtype, shape)

    def _rows(self, index: Array) -> Tree:
        return {name: array[index] for name, array in self._columns.items()}

    def _moved(self, rows: int) -> None:
        self._firsts = None
        self._next = (self._next + rows) % self._capacity
        self._size = min(self._capacity, self._size + rows)


class Prioritized(Ring):
    """A ring with a binary tree of sums, which is descended for all draws at once."""

    def __init__(self, plan: Plan) -> None:
        """Allocate it."""
        super().__init__(plan)
        self._depth = (plan.capacity - 1).bit_length()
        self._leaves = 1 << self._depth
        self._sums = np.zeros(2 * self._leaves)

    def extend(self, columns: Tree) -> None:
        """Store many, with priority 1."""
        rows = len(columns["rewards"])
        index = (self._next + np.arange(rows)) % self._capacity
        super().extend(columns)
        self.update(index, np.ones(rows))

    def push(self, *transition: Any) -> None:
        """Store one, with priority 1."""
        index = np.array([self._next])
        super().push(*transition)
        self.update(index, np.ones(1))

    def sample(self, size: int) -> Tree:
        """Draw by priority."""
        sums = self._sums
        rest, node = self._rng.random(size) * sums[1], np.ones(size, np.int64)
        for _ in range(self._depth):
            node *= 2
            left = sums[node]
            right = rest >= left
            rest -= left * right
            node += right
        index = np.minimum(node - self._leaves, self._size - 1)
        weights = (sums[index + self._leaves] * self._size / sums[1]) ** -BETA
        return {**self._rows(index), "weights": weights / weights.max(), "indices": index}

    def update(self, indices: Array, priorities: Array) -> None:
        """Set the leaves, and add up what is above them."""
        sums, node = self._sums, indices + self._leaves
        sums[node] = priorities**ALPHA
        for _ in range(self._depth):
            node //= 2
            sums[node] = sums[2 * node] + sums[2 * node + 1]


class Collector:
    """Plays when it is asked for a rollout."""

    def __init__(self, envs: int, steps: int, hidden: int) -> None:
        """Make random networks."""
        self._rng = np.random.default_rng(20)
        self._shape = (steps, envs)
        self._games = CartPoles(envs, 20)
        self._obs = self._games.reset()
        self._actor, self._critic = (
            [
                self._rng.normal(0, 0.3, size).astype(np.float32)
                for size in ((4, hidden), (hidden, hidden), (hidden, out))
            ]
            for out in (2, 1)
        )

    def recv(self) -> Tree:
        """Play a rollout and compute its advantages."""
        steps, envs = self._shape
        batch: Tree = {
            name: np.empty(self._shape, np.float32)
            for name in ("rewards", "dones", "log_probs", "values")
        }
        batch["observations"] = np.empty((steps, envs, 4), np.float32)
        batch["actions"] = np.empty(self._shape, np.int64)
        rows = np.arange(envs)
        for t in range(steps):
            logits = _network(self._obs, self._actor)
            logits -= logits.max(1, keepdims=True)
            log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
            actions = (self._rng.random(envs) > np.exp(log_probs[:, 0])).astype(np.int64)
            batch["observations"][t] = self._obs
            batch["actions"][t] = actions
            batch["log_probs"][t] = log_probs[rows, actions]
            batch["values"][t] = _network(self._obs, self._critic)[:, 0]
            self._obs, batch["rewards"][t], terminated, truncated = self._games.step(actions)
            batch["dones"][t] = terminated | truncated
        last = _network(self._obs, self._critic)[:, 0]
        batch["advantages"], batch["returns"] = gae(
            batch["rewards"], batch["values"], batch["dones"], last, GAMMA, LAMBDA
        )
        return batch

    def columns(self, batch: Tree) -> Tree:
        """Return a rollout as it is."""
        return batch

    def close(self) -> None:
        """Nothing is open."""


class Environments:
    """CartPoles."""

    def __init__(self, count: int) -> None:
        """Make them."""
        self._games = CartPoles(count, 20)
        self.reset = self._games.reset
        self.step = self._games.step

    def outcome(self, result: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        """Take them out of the tuple."""
        obs, _, terminated, truncated = result
        return obs, terminated | truncated

    def close(self) -> None:
        """Nothing is open."""


def gae(
    rewards: Array, values: Array, dones: Array, last: Any, gamma: float, lam: float
) -> tuple[Array, Array]:
    """Advantages along the first axis, in the dtype of the rewards."""
    if rewards.ndim == 1:
        return _gae_of_one(rewards, values, dones, last, gamma, lam)
    goes_on = 1 - dones
    following = np.concatenate([values[1:], np.asarray(last, values.dtype)[None]])
    advantages = rewards + gamma * following * goes_on - values
    goes_on *= gamma * lam
    for t in reversed(range(len(rewards) - 1)):
        advantages[t] += goes_on[t] * advantages[t + 1]
    return advantages, advantages + values


def _gae_of_one(
    rewards: Array, values: Array, dones: Array, last: float, gamma: float, lam: float
) -> tuple[Array, Array]:
    """Go over Python's own numbers, which are quicker one by one than numpy's are."""
    goes_on = 1 - dones
    deltas = rewards + gamma * np.append(values[1:], last) * goes_on - values
    advantages, advantage = [], 0.0
    for delta, factor in zip(
        deltas[::-1].tolist(), (gamma * lam * goes_on)[::-1].tolist(), strict=True
    ):
        advantage = delta + factor * advantage
        advantages.append(advantage)
    result = np.array(advantages[::-1], rewards.dtype)
    return result, result + values


def gae_batched(
    rewards: Array,
    values: Array,
    dones: Array,
    last: Array,
    n_steps: int,
    gamma: float,
    lam: float,
) -> tuple[Array, ...]:
    """Take all sequences at once; those one after the other are turned before and after."""
    if rewards.ndim == 2:
        return gae(rewards, values, dones, last, gamma, lam)
    rewards, values, dones = (
        np.ascontiguousarray(each.reshape(-1, n_steps).T) for each in (rewards, values, dones)
    )
    results = gae(rewards, values, dones, last, gamma, lam)
    return tuple(each.T.reshape(-1) for each in results)


def vtrace(
    log_rhos: Array,
    rewards: Array,
    values: Array,
    dones: Array,
    bootstrap: float,
    gamma: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Array, ...]:
    """Compute in the arguments' dtype what goes at once, and the recursion one by one."""
    ratios = np.exp(log_rhos)
    rhos, discounts = np.minimum(rho_bar, ratios), gamma * (1 - dones)
    following = np.append(values[1:], np.float32(bootstrap))
    deltas = rhos * (rewards + discounts * following - values)
    factors = discounts * np.minimum(c_bar, ratios)
    ahead, sums = 0.0, []
    for delta, factor in zip(deltas[::-1].tolist(), factors[::-1].tolist(), strict=True):
        ahead = delta + factor * ahead
        sums.append(ahead)
    targets = values + np.array(sums[::-1], values.dtype)
    following = np.append(targets[1:], np.float32(bootstrap))
    return targets, rhos * (rewards + discounts * following - values)


def token_kl_schulman(log_p: Array, log_q: Array, seq_len: int) -> Array:
    """Sum Schulman's k3 per sequence, with what numpy computes fastest."""
    ratio = log_q - log_p
    total: Array = (np.exp(ratio) - 1 - ratio).reshape(-1, seq_len).sum(1)
    return total


def pack(sequences: list[Array], size: int) -> tuple[list[Array], list[Array]]:
    """Put the longest first wherever they first fit."""
    lengths = np.array([len(each) for each in sequences])
    room = np.full(len(sequences), size)
    bins: dict[int, list[int]] = {}
    for i in np.argsort(-lengths, kind="stable").tolist():
        fits = int((room >= lengths[i]).argmax())
        room[fits] -= lengths[i]
        bins.setdefault(fits, []).append(i)
    tokens = [np.concatenate([sequences[i] for i in each]) for each in bins.values()]
    positions = [
        np.concatenate([np.arange(lengths[i], dtype=np.uint32) for i in each])
        for each in bins.values()
    ]
    return tokens, positions


def _network(obs: Array, layers: list[Array]) -> Array:
    first, second, third = layers
    outputs: Array = np.tanh(np.tanh(obs @ first) @ second) @ third
    return outputs


ENGINE = Numpy()
