"""The buffers, primitives and collector of rlox under their names and in their call forms.

``import echoic.rlox as rlox``, or ``python -m echoic.rlox PROGRAM`` for a program that is not
changed. The guide "From rlox" says what differs. Most errors are a ``RuntimeError``, as there.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echoic import _dropin, _native, buffers, collectors, primitives
from echoic.buffers._common import seed_of
from echoic.errors import WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

__version__ = "1.2.0"
_NAMES = {"indices": "keys", "weights": "flat"}

__all__ = ["DPOPair", "ExperienceTable", "HERBuffer", "MmapReplayBuffer", "OfflineDatasetBuffer"]
__all__ += ["PrioritizedReplayBuffer", "ReplayBuffer", "SequenceReplayBuffer", "VarLenStore"]
__all__ += ["CandleCollector", "RunningStats", "RunningStatsVec", "compute_gae", "pack_sequences"]
__all__ += ["compute_gae_batched", "compute_gae_batched_f32", "compute_vtrace", "py_sample_mixed"]
__all__ += ["compute_batch_group_advantages", "compute_group_advantages", "compute_token_kl"]
__all__ += ["compute_batch_token_kl", "compute_batch_token_kl_f32", "compute_token_kl_f32"]
__all__ += ["compute_batch_token_kl_schulman", "compute_batch_token_kl_schulman_f32"]
__all__ += ["compute_token_kl_schulman", "compute_token_kl_schulman_f32", "install", "use_rlox_k3"]


def __getattr__(name: str) -> Any:
    has = "rlox's buffers, primitives and collector: see the guide 'From rlox'"
    raise AttributeError(f"echoic.rlox has no {name!r}, only {has}", name=name)


def install() -> None:
    """Make ``import rlox`` import this module in this process, like ``python -m echoic.rlox``."""
    _dropin.install("rlox")


def _rlox_errors(function: Any) -> Any:
    """Raise rlox's ``RuntimeError`` where Echoic raises a ``ValueError``; take rlox's names."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **{_NAMES.get(name, name): named[name] for name in named})
        except ValueError as error:
            raise RuntimeError(str(error)) from error

    return call


def _as_rlox(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch with flags of uint8, and actions of one number without an axis."""
    changed = {name: batch[name].view(np.uint8) for name in ("terminated", "truncated")}
    if batch["actions"].shape[1:] == (1,):
        changed["actions"] = batch["actions"][:, 0]
    return {**batch, **changed}


@_rlox_errors
def _push_batch(
    self: Any, obs: Any, next_obs: Any, actions: Any, rewards: Any, terminated: Any, truncated: Any
) -> None:
    """Add many transitions to a buffer, as flat arrays."""
    count, (width, act) = np.size(rewards), self._widths
    self.extend(
        {
            "obs": np.reshape(obs, (count, width)),
            "actions": np.reshape(actions, (count, act)),
            "rewards": np.reshape(rewards, count),
            "terminated": np.not_equal(terminated, 0),
            "truncated": np.not_equal(truncated, 0),
            "next_obs": np.reshape(next_obs, (count, width)),
        }
    )
    if self._columns:
        self._place(count)


class _Vectors(_native.ReplayBuffer):
    _episodes = False
    _widths: tuple[int, int]

    def __new__(cls, capacity: int, obs_dim: int, act_dim: int) -> Self:
        seed, episodes = seed_of(None), cls._episodes
        self = super().__new__(cls, capacity, obs_dim, act_dim, seed=seed, episodes=episodes)
        self._widths = (obs_dim, act_dim)
        return self

    @_rlox_errors
    def sample(self, batch_size: int, seed: int | None = None) -> Any:
        return _as_rlox(super().sample(batch_size, seed=seed).data)


class ReplayBuffer(_Vectors):
    """The last transitions of float32 vectors, drawn evenly: :class:`echoic.ReplayBuffer`."""

    push: Any = _native.ReplayBuffer._push
    push_batch = _push_batch
    # Columns, and the place in them of each transition: a seed draws the same from both buffers.
    _columns: tuple[tuple[str, Any], ...] = ()
    _places: Any
    _placed = 0

    @_rlox_errors
    def sample(self, batch_size: int, seed: int | None = None) -> Any:
        seed = seed_of(seed)
        places = self._columns and self._places.sample(batch_size, seed=seed)["place"]
        return self._with_columns(super().sample(batch_size, seed), places)

    @_rlox_errors
    def sample_recent(self, batch_size: int, window_size: int, seed: int | None = None) -> Any:
        """Draw from the ``window_size`` newest transitions; copies the buffer each time."""
        ages = np.random.default_rng(seed).integers(min(window_size, len(self)), size=batch_size)
        stored = zip(self._leaves(), self._state()["rows"], strict=True)
        batch = _as_rlox({leaf[0]: rows[len(rows) - 1 - ages] for leaf, rows in stored})
        return self._with_columns(batch, (self._placed - 1 - ages) % self.capacity)

    def register_column(self, name: str, dim: int) -> int:
        """Add a column of ``dim`` floats and return its number; ``push`` takes longer then."""
        column = np.zeros((self.capacity, dim)[: 1 + (dim != 1)], np.float32)
        self._columns += ((name, column),)
        if len(self._columns) == 1:
            self._places = _native.ReplayBuffer(self.capacity, example={"place": 0}, seed=0)
            self._place(len(self))
            self.push = self._push_placed
        return len(self._columns) - 1

    @_rlox_errors
    def push_extra(self, handle: int, values: Any) -> None:
        """Set the values of a column, by its number, for the newest transition."""
        if not (0 <= handle < len(self._columns) and self._placed):
            raise RuntimeError(f"no column has the number {handle}, or there is no transition")
        column = self._columns[handle][1]
        column[(self._placed - 1) % self.capacity] = np.reshape(values, column.shape[1:])

    def _push_placed(self, *args: Any, **named: Any) -> None:
        self._push(*args, **named)
        self._place(1)

    def _place(self, count: int) -> None:
        places = np.arange(self._placed, self._placed + count) % self.capacity
        self._places.extend({"place": places})
        for _, column in self._columns:
            column[places] = 0
        self._placed += count

    def _with_columns(self, batch: dict[str, Any], places: Any) -> dict[str, Any]:
        return batch | {name: column[places] for name, column in self._columns}


class PrioritizedReplayBuffer(_native.PrioritizedReplayBuffer):
    """The same, drawn by priority: :class:`echoic.PrioritizedReplayBuffer`."""

    push = _native.PrioritizedReplayBuffer._push
    beta: float
    update_priorities = _rlox_errors(_native.PrioritizedReplayBuffer.update_priorities)

    def __new__(
        cls, capacity: int, obs_dim: int, act_dim: int, alpha: float = 0.6, beta: float = 0.4
    ) -> Self:
        self = super().__new__(cls, capacity, obs_dim, act_dim, alpha=alpha, seed=seed_of(None))
        self.beta = beta
        return self

    def set_beta(self, beta: float) -> None:
        self.beta = beta

    @_rlox_errors
    def sample(self, batch_size: int, seed: int | None = None) -> Any:
        batch = super().sample(batch_size, beta=self.beta, seed=seed)
        columns = {"weights": batch.weights, "indices": batch.keys.view(np.uint64)}
        return {**_as_rlox(batch.data), **columns}


class MmapReplayBuffer(_native.MmapReplayBuffer):
    """The newest in memory, all in a file: :class:`echoic.MmapReplayBuffer`."""

    push, push_batch, _columns = _native.MmapReplayBuffer._push, _push_batch, ()
    _widths: tuple[int, int]

    def __new__(
        cls, hot_capacity: int, total_capacity: int, obs_dim: int, act_dim: int, cold_path: Any
    ) -> Self:
        sizes = hot_capacity, total_capacity, obs_dim, act_dim
        self = super().__new__(cls, cold_path, *sizes, seed=seed_of(None), keep=False)
        self._widths = (obs_dim, act_dim)
        return self

    @_rlox_errors
    def sample(self, batch_size: int, seed: int | None = None) -> Any:
        return _as_rlox(super().sample(batch_size, seed=seed).data)


class OfflineDatasetBuffer(buffers.OfflineDataset):
    """Steps of episodes that do not change: :class:`echoic.OfflineDataset`."""

    __new__ = _rlox_errors(buffers.OfflineDataset.__new__)

    @_rlox_errors
    def sample(self, batch_size: int, seed: int | None = None) -> Any:
        batch = _as_rlox(super().sample(batch_size, seed=seed).data)
        del batch["truncated"]
        return {**batch, "terminated": batch["terminated"].astype(np.float32)}

    @_rlox_errors
    def sample_trajectories(self, batch_size: int, seq_len: int, seed: int | None = None) -> Any:
        data = super().sample_trajectories(batch_size, seq_len, seed=seed).data
        batch = {name: data[name] for name in ("obs", "actions", "rewards", "returns_to_go")}
        batch["timesteps"] = data["timesteps"].astype(np.uint32)
        return {**batch, "mask": data["mask"].view(np.uint8)}

    def n_episodes(self) -> int:
        return self.num_episodes

    def stats(self) -> Any:
        stats = super().stats()
        return {"n_transitions": stats.size, "n_episodes": stats.episodes, **vars(stats)}


@_rlox_errors
def py_sample_mixed(
    buffer_a: Any, buffer_b: Any, ratio: float, batch_size: int, seed: int | None = None
) -> Any:
    """Draw a share of ``ratio`` from the first buffer, rounded up, and the rest from the second."""
    if not 0 <= ratio <= 1:
        raise ValueError(f"`ratio`: expected a number from 0 to 1, got {ratio}")
    first = math.ceil(batch_size * ratio)
    counts = ((buffer_a, first), (buffer_b, batch_size - first))
    parts = [buffer.sample(count, seed) for buffer, count in counts if count]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class ExperienceTable:
    """The observations and rewards of all transitions since the last ``clear``."""

    def __init__(self, obs_dim: int, act_dim: int) -> None:
        self._sizes = (obs_dim, act_dim, obs_dim)
        self.clear()

    def __len__(self) -> int:
        return len(self._rewards)

    def push(
        self,
        obs: Any,
        action: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        next_obs: Any = None,
    ) -> None:
        """Add one transition, of which nothing else can be read, as in rlox."""
        row = np.ascontiguousarray(obs, np.float32)
        sizes = (row.size, len(action), row.size if next_obs is None else len(next_obs))
        if sizes != self._sizes:
            raise RuntimeError(f"`obs`, `action`, `next_obs`: expected {self._sizes}, got {sizes}")
        self._obs.append(row.tobytes())
        self._rewards.append(reward)

    def observations(self) -> Any:
        return np.frombuffer(bytearray().join(self._obs), np.float32).reshape(-1, self._sizes[0])

    def rewards(self) -> Any:
        return np.array(self._rewards, np.float32)

    def clear(self) -> None:
        self._obs, self._rewards = list[bytes](), array("f")


class VarLenStore:
    """Sequences of tokens, of any lengths, as uint32."""

    def __init__(self) -> None:
        self._sequences: list[Any] = []

    def push(self, seq: Any) -> None:
        self._sequences.append(np.array(seq, np.uint32).ravel())

    def num_sequences(self) -> int:
        return len(self._sequences)

    def total_elements(self) -> int:
        return sum(map(len, self._sequences))

    def get(self, index: int) -> Any:
        if not 0 <= index < len(self._sequences):
            raise RuntimeError(f"no sequence {index}: there are {len(self._sequences)}")
        return self._sequences[index].copy()


class DPOPair(NamedTuple):
    """A prompt, and the tokens of a better and of a worse answer."""

    prompt_tokens: Any
    chosen_tokens: Any
    rejected_tokens: Any

    def chosen_len(self) -> int:
        return len(self.chosen_tokens)

    def rejected_len(self) -> int:
        return len(self.rejected_tokens)


class SequenceReplayBuffer(_Vectors):
    """The last transitions, and sequences of steps of one episode."""

    _episodes, _ended = True, True

    def push(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, terminated: Any, truncated: Any
    ) -> None:
        self._push(obs, action, reward, terminated, truncated, next_obs)
        self._ended = terminated or truncated

    def num_complete_episodes(self) -> int:
        return (self.num_episodes or 0) - (not self._ended)

    @_rlox_errors
    def sample_sequences(self, batch_size: int, seq_len: int, seed: int | None = None) -> Any:
        # Windows end with their episodes: those that are shorter are left out.
        for more in (4, 32, 256):
            batch, lengths = self._sample_windows(batch_size * more, seq_len, seed, None)
            whole = np.flatnonzero(np.equal(lengths, seq_len))[:batch_size]
            if len(whole) == batch_size:
                return _as_rlox({name: column[whole] for name, column in batch.items()})
        raise RuntimeError(f"no episode, or too small a share of them, has {seq_len} steps")


class HERBuffer(SequenceReplayBuffer):
    """The last transitions, drawn also with goals that were reached, for which 0 or -1 is paid."""

    _goals: Any

    def __new__(
        cls,
        capacity: int,
        obs_dim: int,
        act_dim: int,
        goal_dim: int,
        achieved_goal_start: int,
        desired_goal_start: int,
        strategy: str = "future",
        k: int = 4,
        goal_tolerance: float = 0.05,
    ) -> Self:
        if strategy not in ("final", "future", "episode"):
            raise ValueError(f"`strategy`: expected final, future or episode, got {strategy!r}")
        self = super().__new__(cls, capacity, obs_dim, act_dim)
        goals = [slice(at, at + goal_dim) for at in (achieved_goal_start, desired_goal_start)]
        self._goals = (strategy, goal_tolerance, *goals)
        return self

    @_rlox_errors
    def sample(self, batch_size: int, her_ratio: float = 0.8, seed: int | None = None) -> Any:
        strategy, tolerance, achieved, desired = self._goals
        both, marks = self._sample_goals(batch_size, seed, strategy, her_ratio)
        batch, changed = {name: rows[0] for name, rows in both.items()}, np.array(marks)
        goals = both["next_obs"][1][changed, achieved]
        distances = np.square(batch["next_obs"][changed, achieved] - goals).sum(1)
        batch["rewards"][changed] = np.where(distances < tolerance**2, 0, -1)
        batch["obs"][changed, desired] = batch["next_obs"][changed, desired] = goals
        return _as_rlox(batch)


class CandleCollector(collectors.CandleCollector):
    """Rollouts of a native thread, flat: :class:`echoic.collectors.CandleCollector`."""

    def __init__(
        self,
        env_id: str,
        n_envs: int,
        obs_dim: int,
        n_actions: int,
        n_steps: int,
        hidden: int = 64,
        lr: float = 2.5e-4,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        seed: int = 42,
        capacity: int = 2,
    ) -> None:
        sizes = n_envs, obs_dim, n_actions, n_steps, hidden, seed
        super().__init__(env_id, *sizes, gamma=gamma, lam=gae_lambda, capacity=capacity)
        self._capacity, self._waiting = capacity, deque[dict[str, Any]]()
        self._sizes = {"obs_dim": obs_dim, "n_steps": n_steps, "n_envs": n_envs}

    def recv(self, timeout: float | None = None, **named: Any) -> Any:
        named["flat"] = True
        batch = self._waiting.popleft() if self._waiting else super().recv(timeout, **named)
        names = ("rewards", "dones", "log_probs", "values", "advantages", "returns")
        doubles = {name: batch[name].astype(np.float64) for name in names}
        rows = {name: batch[name].astype("f4").ravel() for name in ("observations", "actions")}
        width = rows["actions"].size // len(doubles["rewards"])
        return {**rows, **doubles, **self._sizes, "act_dim": width}

    def __len__(self) -> int:
        with contextlib.suppress(WaitTimeoutError):
            while len(self._waiting) < self._capacity:
                self._waiting.append(super().recv(0, flat=True))
        return len(self._waiting)

    sync_weights = _rlox_errors(collectors.CandleCollector.sync_weights)
    stop = collectors.CandleCollector.close


RunningStats, RunningStatsVec = primitives.RunningStats, primitives.RunningStatsVec
compute_gae, compute_vtrace = primitives.compute_gae, _rlox_errors(primitives.compute_vtrace)
compute_group_advantages = primitives.compute_group_advantages
compute_batch_group_advantages = primitives.compute_batch_group_advantages


def _gae(gae: Any) -> Any:
    def compute(rewards: Any, values: Any, dones: Any, last_values: Any, *a: Any, **k: Any) -> Any:
        return gae(rewards, values, dones, last_values, *a, **k)

    return compute


compute_gae_batched = _gae(primitives.compute_gae_batched)
compute_gae_batched_f32 = _gae(primitives.compute_gae_batched_f32)
_use = {"k3": os.environ.get("ECHOIC_RLOX_K3") == "1"}


def use_rlox_k3(use: bool = True) -> None:
    """Give ``compute_token_kl_schulman`` and its relatives rlox's numbers, bit by bit, or ours.

    The environment variable ``ECHOIC_RLOX_K3=1`` does so for a program that is not changed.
    """
    _use["k3"] = use


def _batch_kl(k3: bool, dtype: Any) -> Any:
    def compute(log_probs_policy: Any, log_probs_ref: Any, seq_len: int) -> Any:
        given = (log_probs_policy, log_probs_ref)
        p, q = (np.asarray(one, dtype).reshape(-1, seq_len) for one in given)
        if not k3:
            return primitives.compute_categorical_kl(p, q)
        sums = primitives.compute_batch_token_kl_schulman(p.ravel(), q.ravel(), seq_len)
        if _use["k3"]:
            powers = [math.exp(one) if one < 709 else math.inf for one in (p - q).ravel().tolist()]
            terms = np.array(powers, dtype).reshape(p.shape) - (p - q) - dtype(1)
            sums = np.cumsum(terms, axis=1)[:, -1]
        return sums

    return compute


def _kl(batch: Any) -> Any:
    @_rlox_errors
    def compute(log_probs_policy: Any, log_probs_ref: Any) -> float:
        return float(batch(log_probs_policy, log_probs_ref, len(log_probs_policy) or 1).sum())

    return compute


compute_batch_token_kl = _batch_kl(k3=False, dtype=np.float64)
compute_batch_token_kl_f32 = _batch_kl(k3=False, dtype=np.float32)
compute_batch_token_kl_schulman = _batch_kl(k3=True, dtype=np.float64)
compute_batch_token_kl_schulman_f32 = _batch_kl(k3=True, dtype=np.float32)
compute_token_kl = _kl(compute_batch_token_kl)
compute_token_kl_f32 = _kl(compute_batch_token_kl_f32)
compute_token_kl_schulman = _kl(compute_batch_token_kl_schulman)
compute_token_kl_schulman_f32 = _kl(compute_batch_token_kl_schulman_f32)


@_rlox_errors
def pack_sequences(sequences: Any, max_length: int) -> Any:
    """Return a dict for each row of whole sequences, the longest first.

    For lengths in place of sequences: ``packed``, ``masks`` and ``positions`` of all rows.
    """
    if len(sequences) and np.ndim(sequences[0]) == 0:
        return primitives.pack_sequences(sequences, max_length)
    lengths = [len(one) for one in sequences]
    rows, starts = map(np.asarray, primitives.plan_packing(lengths, max_length))
    order, packed = np.lexsort((starts, rows)), []
    for row in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1) if lengths else ():
        tokens = np.concatenate([np.asarray(sequences[at], np.uint32) for at in row])
        positions = np.concatenate([np.arange(lengths[at], dtype=np.uint32) for at in row])
        packed.append({"input_ids": tokens, "attention_mask": np.ones_like(tokens)})
        packed[-1] |= {"position_ids": positions, "sequence_starts": starts[row].astype(np.uint64)}
    return packed


if __name__ == "__main__":
    _dropin.run_program("rlox")
