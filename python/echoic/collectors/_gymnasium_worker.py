"""The worker process of :class:`~echoic.collectors.GymnasiumCollector`, which steps environments.

Over one connection it sends an example of a step, receives the address to which it sends rollouts,
and makes a rollout for each request. When the connection ends, the process ends.
"""

from __future__ import annotations

import pickle
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echoic import _trees
from echoic.connection import connect
from echoic.errors import ClosedError, DisconnectedError
from echoic.workers import orphaned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

__all__ = ["Envs", "Form", "Request", "Setup", "by_value", "run"]

# Seconds from the end of the connection until the death of the collector can be detected.
_PATIENCE = 0.05


_NAMES = {
    *("observations", "next_observations", "last_observations", "actions", "rewards", "dones"),
    *("terminated", "truncated", "episode_starts", "episode_returns", "version", "versions"),
}


def by_value(thing: Any) -> bytes:
    """Pickle a function, with its code if cloudpickle is installed."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(thing)
    dumped: bytes = cloudpickle.dumps(thing)
    return dumped


class Setup(NamedTuple):
    """The arguments of a worker process."""

    # Pickled by value, so that functions of a script or a notebook can be used.
    env: bytes
    policy: bytes
    num_steps: int
    seeds: Sequence[int]
    next_observations: bool
    worker: int
    generation: int


class Form(NamedTuple):
    """An example of each part of one environment's step."""

    observation: Any
    action: Any
    extras: dict[str, Any]

    def rollout(self, num_steps: int, num_envs: int, *, following: bool) -> dict[str, Any]:
        """Make an empty rollout: arrays with an axis of steps and one of environments."""

        def steps(tree: Any, *axes: int) -> Any:
            return _trees.tree_map(lambda leaf: np.zeros((*axes, *leaf.shape), leaf.dtype), tree)

        both, numbers = (
            (num_steps, num_envs),
            {"rewards": np.float32, "episode_returns": np.float32},
        )
        flags = dict.fromkeys(("terminated", "truncated", "episode_starts"), np.bool_)
        origin = dict.fromkeys(("worker", "generation", "version"), np.int64(0))
        return {
            "observations": steps(self.observation, *both),
            **({"next_observations": steps(self.observation, *both)} if following else {}),
            "last_observations": steps(self.observation, num_envs),
            "actions": steps(self.action, *both),
            "extras": steps(self.extras, *both),
            **{name: np.zeros(both, dtype) for name, dtype in {**numbers, **flags}.items()},
            **origin,
        }


class Request(NamedTuple):
    """A request for a rollout with the weights of a file."""

    version: int
    weights: str | None


class Envs:
    """Environments that are stepped one after the other, and their current observations."""

    def __init__(self, setup: Setup) -> None:
        make: Any = pickle.loads(setup.env)
        if isinstance(make, str):
            import gymnasium

            name = make
            make = lambda: gymnasium.make(name)  # noqa: E731
        self.policy: Callable[..., Any] | None = pickle.loads(setup.policy)
        self.rng = np.random.default_rng([setup.generation, *setup.seeds])
        self.envs = [make() for _ in setup.seeds]
        first = []
        for env, seed in zip(self.envs, setup.seeds, strict=True):
            env.action_space.seed(seed)
            first.append(env.reset(seed=seed)[0])
        # The current observations, leaf by leaf.
        self.tree = _trees.tree_structure(first[0])
        self.plain = _trees.treespec_is_leaf(self.tree)
        leaves = zip(*[_trees.tree_leaves(obs) for obs in first], strict=True)
        self.obs = [np.stack([np.asarray(leaf) for leaf in column]) for column in leaves]
        self.starts = np.ones(len(self.envs), np.bool_)
        self.returns = np.zeros(len(self.envs))

    def act(self, weights: Any) -> tuple[Any, dict[str, Any]]:
        """Return the policy's action in each environment, and its extras."""
        if self.policy is None:
            return self._drawn(), {}
        # Copied, since the policy may keep them.
        obs = [leaf.copy() for leaf in self.obs]
        acted = self.policy(weights, obs[0] if self.plain else self.tree.unflatten(obs), self.rng)
        actions, extras = acted if isinstance(acted, tuple) else (acted, {})
        named = {name: np.asarray(values) for name, values in extras.items()}
        actions = np.asarray(actions)
        for name, values in (("actions", actions), *named.items()):
            if values.shape[:1] != self.starts.shape:
                text = f"expected {len(self.starts)} rows, one for each environment"
                raise ValueError(f"the policy's {name}: {text}, got shape {values.shape}")
        return actions, named

    def _drawn(self) -> Any:
        """Draw actions from the action space."""
        return np.stack([np.asarray(env.action_space.sample()) for env in self.envs])

    def form(self, weights: Any) -> Form:
        """Return an example of a step, by calling the policy once with another generator."""
        rng, self.rng = self.rng, np.random.default_rng(0)
        actions, extras = self.act(weights)
        self.rng = rng
        taken = _NAMES.intersection(extras)
        if taken:
            raise ValueError(f"the policy returned `{min(taken)}`, which is another column's name")
        example = {name: np.zeros_like(values[0]) for name, values in extras.items()}
        observation = self.tree.unflatten([np.zeros_like(leaf[0]) for leaf in self.obs])
        return Form(observation, np.zeros_like(actions[0]), example)

    def roll(self, rollout: dict[str, Any], weights: Any, check: Callable[[], None]) -> None:
        """Write steps into the arrays of the rollout; call ``check``, which may raise, at each."""
        after: Any = rollout.get("next_observations")
        following = _trees.tree_leaves(after)
        seen = _trees.tree_leaves(rollout["observations"])
        rollout["episode_returns"].fill(np.nan)
        for step in range(len(rollout["rewards"])):
            check()
            rollout["episode_starts"][step] = self.starts
            _put(seen, step, self.obs)
            actions, extras = self.act(weights)
            rollout["actions"][step] = actions
            for name, values in extras.items():
                rollout["extras"][name][step] = values
            first = self._step(rollout, step, actions)
            _put(following, step, self.obs)
            for index, obs in first:
                self._place(index, obs)
        _put(_trees.tree_leaves(rollout["last_observations"]), ..., self.obs)

    def _step(self, rollout: dict[str, Any], step: int, actions: Any) -> list[tuple[int, Any]]:
        """Step all environments; return the first observations of those that were reset."""
        first = []
        rewards, returns = rollout["rewards"][step], self.returns
        # Spaces of single numbers take Python numbers.
        each = actions.tolist() if actions.ndim == 1 else actions
        for index, env in enumerate(self.envs):
            obs, reward, terminated, truncated, _ = env.step(each[index])
            self._place(index, obs)
            rewards[index] = reward
            returns[index] += reward
            over = bool(terminated or truncated)
            rollout["terminated"][step, index] = terminated
            rollout["truncated"][step, index] = truncated
            self.starts[index] = over
            if over:
                rollout["episode_returns"][step, index] = returns[index]
                returns[index] = 0.0
                first.append((index, env.reset()[0]))
        return first

    def _place(self, index: int, obs: Any) -> None:
        if self.plain:
            self.obs[0][index] = obs
        else:
            _put(self.obs, index, self.tree.flatten_up_to(obs))


def _put(arrays: Sequence[Any], at: Any, values: Sequence[Any]) -> None:
    """Write a value into each array, if there are arrays."""
    if arrays:
        for array, value in zip(arrays, values, strict=True):
            array[at] = value


def run(connection: Connection, setup: Setup, folder: Path) -> None:
    """Make a rollout for each request of the collector, until the connection ends."""
    try:
        _work(connection, setup)
    except EOFError:
        return
    finally:
        try:
            # The death of the collector may send this signal now.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        finally:
            # Connections of a killed process are closed shortly before its children are orphans.
            time.sleep(_PATIENCE)
            if orphaned():
                shutil.rmtree(folder, ignore_errors=True)


def _load(path: str) -> Any:
    return pickle.loads(Path(path).read_bytes())


def _work(connection: Connection, setup: Setup) -> None:
    envs = Envs(setup)
    request: Request = connection.recv()
    version, weights = request.version, None if request.weights is None else _load(request.weights)
    form = envs.form(weights)
    connection.send(form)
    address = connection.recv()
    size = (setup.num_steps, len(setup.seeds))
    rollout = form.rollout(*size, following=setup.next_observations)
    stream = connect(address, reconnect=1.0).stream(rollout)
    rollout["worker"] = np.int64(setup.worker)
    rollout["generation"] = np.int64(setup.generation)
    while True:
        request = connection.recv()
        if request.version != version:
            version, weights = request.version, _load(str(request.weights))
        envs.roll(rollout, weights, lambda: None)
        rollout["version"] = np.int64(version)
        try:
            stream.add(rollout)
            stream.flush()
        except (ClosedError, DisconnectedError):
            return
