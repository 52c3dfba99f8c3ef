"""Echoic's local buffers, primitives and collectors, with the defaults of all that is not asked."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.engine import Echoic
from benchmarks.local.engine import ALPHA, BETA, Case, Engine, Plan
from benchmarks.local.items import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.payload import Array, Tree


class EchoicLocal(Engine, Echoic):
    """The project itself."""

    name = "echoic"

    def store(self, plan: Plan) -> Buffer:
        """Make a buffer, to which transitions are pushed in rlox's form if it can hold them."""
        # Imported here: a peer's environment runs the workloads without Echoic.
        from echoic import buffers, rlox

        if plan.prioritized:
            buffer = rlox.PrioritizedReplayBuffer(plan.capacity, 4, 1, ALPHA, BETA)
            sample = buffers.PrioritizedReplayBuffer.sample

            def by_priority(size: int) -> Tree:
                batch = sample(buffer, size, beta=BETA)
                return {**batch.data, "weights": batch.weights, "indices": batch.keys}

            return Buffer(buffer, plan, by_priority)
        if plan.hot:
            folder = tempfile.TemporaryDirectory()
            buffer = buffers.MmapReplayBuffer(
                Rows(plan.kind).example,
                plan.capacity,
                Path(folder.name) / "cold.bin",
                hot_capacity=plan.hot,
            )
            return Buffer(buffer, plan, buffer.sample, [buffer.close, folder.cleanup])
        if plan.length > 1:
            buffer = buffers.ReplayBuffer(Rows(plan.kind).example, plan.capacity, episodes=True)
            return Buffer(buffer, plan, partial(buffer.sample_sequences, length=plan.length))
        if plan.kind == "small":
            buffer = rlox.ReplayBuffer(plan.capacity, 4, 1)
            return Buffer(buffer, plan, partial(buffers.ReplayBuffer.sample, buffer))
        buffer = buffers.ReplayBuffer(Rows(plan.kind).example, plan.capacity)
        return Buffer(buffer, plan, buffer.sample)

    def call(self, case: Case) -> Callable[[], Any]:
        """Call the function of this name."""
        from echoic import primitives

        if not case.time_major:
            return partial(getattr(primitives, case.function), *case.arguments)
        # Arrays of two dimensions say themselves how many steps there are.
        rewards, values, dones, last, _, gamma, lam = case.arguments
        arguments = rewards, values, dones, last, gamma, lam
        return partial(primitives.compute_gae, *arguments, time_axis=0)

    def outputs(self, case: Case, result: Any) -> tuple[Any, ...]:
        """Take what fills the rows of a packing out of them."""
        if case.function != "pack_sequences":
            return super().outputs(case, result)
        packed, masks, positions = result
        return tuple(
            [row[mask] for row, mask in zip(each, masks, strict=True)]
            for each in (packed, positions)
        )

    def collector(self, *, envs: int, steps: int, hidden: int) -> Collector:
        """Start a collector."""
        from echoic import collectors

        return Collector(
            collectors.CandleCollector(
                env_id="CartPole-v1",
                n_envs=envs,
                obs_dim=4,
                n_actions=2,
                n_steps=steps,
                hidden=hidden,
                seed=20,
            ),
            (steps, envs),
        )

    def environments(self, count: int) -> Environments:
        """Make native environments that begin anew in the same step."""
        from echoic import collectors

        return Environments(collectors.VectorEnv("CartPole-v1", count, autoreset_mode="SameStep"))


class Buffer:
    """A replay buffer."""

    indices = "indices"
    actions = "actions"

    def __init__(
        self,
        buffer: Any,
        plan: Plan,
        sample: Callable[..., Any],
        closing: Sequence[Callable[[], Any]] = (),
    ) -> None:
        """Wrap a buffer of the project; ``closing`` is what has to be called in the end."""
        self._buffer = buffer
        self._sample = sample
        self._closing = closing
        self._plan = plan
        self.push = getattr(buffer, "push", None)
        self.update = getattr(buffer, "update_priorities", None)

    def extend(self, columns: Tree) -> None:
        """Store all rows."""
        self._buffer.extend(columns)

    def draws(self, size: int) -> Callable[[], Tree]:
        """Draw from the buffer's own stream."""
        return partial(self._sample, size)

    def columns(self, drawn: Any) -> Tree:
        """Return what was drawn: the names are the ones that were stored."""
        return getattr(drawn, "data", drawn)

    def __len__(self) -> int:
        """How many transitions are stored."""
        return len(self._buffer)

    def close(self) -> None:
        """Forget the buffer."""
        for call in self._closing:
            call()
        self._buffer = self._sample = self.push = self.update = None


class Collector:
    """A collector."""

    def __init__(self, collector: Any, shape: tuple[int, int]) -> None:
        """Wrap a collector of the project."""
        self._shape = shape
        self.recv = collector.recv
        self.close = collector.close

    def columns(self, batch: Tree) -> Tree:
        """Fold the columns."""
        return fold(batch, self._shape)


class Environments:
    """Native environments."""

    def __init__(self, environments: Any) -> None:
        """Wrap a vector of environments."""
        self._environments = environments
        self.step = environments.step
        self.close = environments.close

    def reset(self) -> Array:
        """Begin."""
        obs: Array = self._environments.reset(seed=20)[0]
        return obs

    def outcome(self, result: Any) -> tuple[Array, Array]:
        """Return what Gymnasium's `step` gives."""
        obs, _, terminated, truncated, _ = result
        return np.asarray(obs), np.asarray(terminated) | np.asarray(truncated)


def fold(batch: Tree, shape: tuple[int, int]) -> Tree:
    """Give every column of a rollout the axes time and environment, whether or not it is flat."""
    return {
        name: np.asarray(column).reshape(*shape, *((4,) if name == "observations" else ()))
        for name, column in batch.items()
        if name in _ROLLOUT
    }


_ROLLOUT = (
    "observations",
    "actions",
    "rewards",
    "dones",
    "log_probs",
    "values",
    "advantages",
    "returns",
)

ENGINE = EchoicLocal()
