"""rlox's native module as an engine of one process: buffers, primitives, collector.

Its Python package cannot be imported without torch, which is gigabytes and none of it used here, so
the module is loaded by itself. All its buffers store float32.
"""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.local.engine import ALPHA, BETA, Case, Engine, Plan
from benchmarks.local.items import Rows
from benchmarks.local.ours import fold
from benchmarks.timing import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Array, Tree


class Rlox(Engine):
    """The peer."""

    name = "rlox"

    def store(self, plan: Plan) -> Buffer:
        """Make a buffer; images are floats in it."""
        native = _native()
        sizes = [plan.capacity, Rows(plan.kind).example["obs"].size, 1]
        if plan.prioritized:
            return Prioritized(native.PrioritizedReplayBuffer(*sizes, ALPHA, BETA), plan)
        if plan.hot:
            folder = tempfile.TemporaryDirectory()
            path = str(Path(folder.name) / "cold.bin")
            return Mapped(native.MmapReplayBuffer(plan.hot, *sizes, path), plan, folder)
        if plan.length > 1:
            return Sequences(native.SequenceReplayBuffer(*sizes), plan)
        return Buffer(native.ReplayBuffer(*sizes), plan)

    def call(self, case: Case) -> Callable[[], Any]:
        """Call the function of this name."""
        function = getattr(_native(), case.function)
        if not case.time_major:
            return partial(function, *case.arguments)
        rewards, values, dones, *rest = case.arguments

        def turned() -> tuple[Array, ...]:
            # It has one layout, so whoever has the other turns it, there and back.
            flat = (each.T.reshape(-1) for each in (rewards, values, dones))
            results = function(*flat, *rest)
            return tuple(np.ascontiguousarray(e.reshape(rewards.shape[::-1]).T) for e in results)

        return turned

    def outputs(self, case: Case, result: Any) -> tuple[Any, ...]:
        """Take tokens and positions out of the bins of a packing."""
        if case.function == "pack_sequences":
            return tuple([b[name] for b in result] for name in ("input_ids", "position_ids"))
        return super().outputs(case, result)

    def oracle(self, function: str) -> Callable[..., tuple[Array, ...]]:
        """Say what it computes by the names of two estimators, which is not what they are."""
        return _DIVERGENCES.get(function) or super().oracle(function)

    def collector(self, *, envs: int, steps: int, hidden: int) -> Collector:
        """Start its collector."""
        return Collector(
            _native().CandleCollector("CartPole-v1", envs, 4, 2, steps, hidden, seed=20),
            (steps, envs),
        )

    def environments(self, count: int) -> Environments:
        """Make its environments."""
        return Environments(_native().VecEnv(count, 20))


class Buffer:
    """A replay buffer, whose every draw is told its seed."""

    indices = "indices"
    actions = "actions"
    # How it wants booleans.
    _flags: type = np.uint8

    def __init__(self, buffer: Any, plan: Plan) -> None:
        """Wrap a buffer."""
        self._buffer = buffer
        self._plan = plan
        self._example = Rows(plan.kind).example
        self._seeds = itertools.count()
        self.push = buffer.push if plan.kind != "image" else self._push_image
        self.update = getattr(buffer, "update_priorities", None)

    def extend(self, columns: Tree) -> None:
        """Store all rows; it takes flat observations and no other type."""
        obs, following = (
            np.asarray(columns[name], np.float32).reshape(len(columns["rewards"]), -1)
            for name in ("obs", "next_obs")
        )
        self._buffer.push_batch(
            obs.reshape(-1),
            following.reshape(-1),
            np.asarray(columns["actions"], np.float32).reshape(-1),
            columns["rewards"],
            columns["terminated"].astype(self._flags),
            columns["truncated"].astype(self._flags),
        )

    def draws(self, size: int) -> Callable[[], Tree]:
        """Draw with one seed after the other."""
        return map(self._buffer.sample, itertools.repeat(size), self._seeds).__next__

    def columns(self, drawn: Tree) -> Tree:
        """Return what was drawn in the types that were stored."""
        return {
            name: np.asarray(column).astype(self._example[name].dtype, copy=False)
            if name in self._example
            else column
            for name, column in drawn.items()
        }

    def __len__(self) -> int:
        """How many transitions are stored."""
        return len(self._buffer)

    def close(self) -> None:
        """Forget the buffer."""
        self._buffer = self.push = self.update = None

    def _push_image(self, obs: Array, action: Array, *rest: Any) -> None:
        *between, following = rest
        obs, action, following = (
            each.reshape(-1).astype(np.float32) for each in (obs, action, following)
        )
        self._buffer.push(obs, action, *between, following)


class Mapped(Buffer):
    """A replay buffer of which most is in a file."""

    _flags = np.float32

    def __init__(self, buffer: Any, plan: Plan, folder: Any) -> None:
        """Wrap a buffer whose file is in a folder of its own."""
        super().__init__(buffer, plan)
        self._folder = folder

    def close(self) -> None:
        """Close the file and take its folder away."""
        self._buffer.close()
        self._folder.cleanup()
        super().close()


class Prioritized(Buffer):
    """A prioritized replay buffer, which takes one transition a call."""

    def extend(self, columns: Tree) -> None:
        """Push all rows."""
        for row in zip(
            columns["obs"],
            columns["actions"],
            columns["rewards"].tolist(),
            columns["terminated"].tolist(),
            columns["truncated"].tolist(),
            columns["next_obs"],
            strict=True,
        ):
            self._buffer.push(*row, priority=1.0)


class Sequences(Buffer):
    """A buffer of sequences, which takes one transition a call."""

    def extend(self, columns: Tree) -> None:
        """Push all rows."""
        for row in zip(
            columns["obs"],
            columns["next_obs"],
            columns["actions"],
            columns["rewards"].tolist(),
            columns["terminated"].tolist(),
            columns["truncated"].tolist(),
            strict=True,
        ):
            self._buffer.push(*row)

    def draws(self, size: int) -> Callable[[], Tree]:
        """Draw windows, with one seed after the other."""
        sample, length = self._buffer.sample_sequences, self._plan.length
        return map(sample, *map(itertools.repeat, (size, length)), self._seeds).__next__


class Collector:
    """Its collector."""

    def __init__(self, collector: Any, shape: tuple[int, int]) -> None:
        """Wrap one."""
        self._shape = shape
        self._collector = collector
        self.recv = collector.recv

    def columns(self, batch: Tree) -> Tree:
        """Fold the columns."""
        return fold(batch, self._shape)

    def close(self) -> None:
        """Stop it, which would wait for ever while it waits for room for a rollout."""
        while self._collector.try_recv() is not None:
            pass
        self._collector.stop()


class Environments:
    """Its environments."""

    def __init__(self, environments: Any) -> None:
        """Wrap a vector of them."""
        self._environments = environments
        self.step = environments.step_all

    def reset(self) -> Array:
        """Begin."""
        obs: Array = self._environments.reset_all()
        return obs

    def outcome(self, result: Tree) -> tuple[Array, Array]:
        """Take them out of the dict."""
        return result["obs"], (result["terminated"] | result["truncated"]).astype(bool)

    def close(self) -> None:
        """Nothing is open."""


def _over_vocabulary(log_p: Array, log_q: Array, seq_len: int) -> tuple[Array]:
    """The sum that is a divergence over a whole vocabulary, of sampled tokens alone."""
    return ((np.exp(log_p) * (log_p - log_q)).reshape(-1, seq_len).sum(1),)


def _reversed(log_p: Array, log_q: Array, seq_len: int) -> tuple[Array]:
    """Schulman's estimator with the ratio upside down."""
    ratio = log_p - log_q
    return ((np.exp(ratio) - 1 - ratio).reshape(-1, seq_len).sum(1),)


_DIVERGENCES: dict[str, Callable[..., tuple[Array, ...]]] = {
    "compute_batch_token_kl": _over_vocabulary,
    "compute_batch_token_kl_schulman": _reversed,
}


def _native() -> Any:
    """Load the native module without the package around it."""
    package = importlib.util.find_spec("rlox")
    folders = [] if package is None else list(package.submodule_search_locations or ())
    for folder in folders:
        for path in Path(folder).glob("_rlox_core*"):
            if path.suffix == ".pyi":
                continue
            found = importlib.util.spec_from_file_location("_rlox_core", path)
            if found is not None and found.loader is not None:
                module = importlib.util.module_from_spec(found)
                found.loader.exec_module(module)
                return module
    raise UnavailableError("the native module of rlox is not installed")


ENGINE = Rlox()
