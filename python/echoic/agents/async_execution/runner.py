"""What happens between two ticks, whatever the model: orders, limits of time, ends.

A runner belongs to one thread. Others give it orders (:meth:`Runner.submit`, :meth:`Runner.cancel`,
:meth:`Runner.update_weights`), which only append to a queue; the runner carries them out when its
next tick begins. What a tick brought is returned by it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

from echoic.agents.async_execution.rollouts import Progress, Rollout, RolloutResult
from echoic.agents.async_execution.scheduler import LatencyScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from echoic.agents.async_execution.config import ExecutionConfig
    from echoic.agents.bandwidth import BandwidthEfficiencyTracker

__all__ = ["Runner"]


class Runner(ABC):
    """Carries out rollouts tick by tick.

    Args:
        config: Bounds and weights.
        tracker: Is told of every rollout's measured tokens.
        clock: Seconds; the clock of the requests' ``timestamp``.
    """

    def __init__(
        self,
        config: ExecutionConfig,
        tracker: BandwidthEfficiencyTracker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.tracker = tracker
        self.clock = clock
        self.version = 0
        self.scheduler = LatencyScheduler(config, clock=clock)
        self.rollouts: dict[str, Rollout] = {}
        self.counts: dict[str, int] = {
            "submitted": 0,
            "completed": 0,
            "failed": 0,
            "cancelled": 0,
            "timed_out": 0,
            "ticks": 0,
            "forwards": 0,
            "forward_tokens": 0,
            "prompt_tokens": 0,
            "generated_tokens": 0,
            "updates": 0,
        }
        self.busy_seconds = 0.0
        # Made at the end of a tick, for other threads to read.
        self.snapshot: dict[str, Any] = {"queue": self.scheduler.get_queue_stats(), "active": 0}
        self._orders: deque[Callable[[], None]] = deque()
        self._progress: dict[str, Progress] = {}

    @property
    def busy(self) -> bool:
        """Whether a tick would have something to do."""
        return bool(self._orders or self.rollouts)

    # Any thread.

    def submit(self, rollout: Rollout) -> None:
        """Let ``rollout`` wait for its turn."""
        self._orders.append(lambda: self._enter(rollout))

    def cancel(self, request_id: str, reason: str = "cancelled") -> None:
        """End a rollout, if it has not ended."""
        self._orders.append(lambda: self._stop(request_id, reason))

    def update_weights(
        self,
        weights: Mapping[str, Any] | Callable[[Any], None],
        version: int,
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Take new weights before the next tick; ``done`` is told how it went."""
        self._orders.append(lambda: self._update(weights, version, done))

    # The thread of the runner.

    def step(self) -> list[Progress]:
        """Carry out orders and one tick; returns what that brought."""
        began = time.perf_counter()
        self.counts["ticks"] += 1
        while self._orders:
            self._orders.popleft()()
        now = self.clock()
        late = [name for name, rollout in self.rollouts.items() if rollout.deadline <= now]
        for name in late:
            self._stop(name, "timeout")
        if self.rollouts:
            self._tick()
        self.busy_seconds += time.perf_counter() - began
        self.snapshot = {
            "queue": self.scheduler.get_queue_stats(),
            "active": len(self.rollouts),
        }
        brought = list(self._progress.values())
        self._progress = {}
        return brought

    @abstractmethod
    def _tick(self) -> None:
        """Bring rollouts forward."""

    @abstractmethod
    def _release(self, rollout: Rollout, *, keep: bool) -> None:
        """Take ``rollout`` out of what runs. ``keep`` says that what it computed is sound."""

    @abstractmethod
    def _load(self, weights: Mapping[str, Any] | Callable[[Any], None], version: int) -> None:
        """Take new weights; a failure must leave the old ones in use."""

    def _reusable(self, rollout: Rollout) -> int:
        """How many tokens of a new rollout are cached."""
        del rollout
        return 0

    def _note(self, name: str) -> Progress:
        return self._progress.setdefault(name, Progress(name))

    def _enter(self, rollout: Rollout) -> None:
        self.counts["submitted"] += 1
        self.rollouts[rollout.request.request_id] = rollout
        self.scheduler.add_request(rollout.request, len(rollout.tokens), self._reusable(rollout))

    def _stop(self, name: str, reason: str) -> None:
        rollout = self.rollouts.get(name)
        if rollout is None:
            return
        if reason == "timeout":
            self.counts["timed_out"] += 1
            error = f"not done after {rollout.request.timeout:g} seconds"
        else:
            self.counts["cancelled"] += 1
            error = reason
        self._end(rollout, reason, error)

    def _end(self, rollout: Rollout, reason: str, error: str | None = None) -> RolloutResult:
        name = rollout.request.request_id
        result = rollout.result(self.clock(), reason, error)
        if rollout.request.return_kv and error is None:
            result.kv_cache = self._copy(rollout)
        self.scheduler.remove(name)
        self._release(rollout, keep=error is None)
        del self.rollouts[name]
        self._note(name).result = result
        return result

    def _copy(self, rollout: Rollout) -> Any:
        """Copy keys and values of a rollout; None where there are none."""
        del rollout

    def _update(
        self,
        weights: Mapping[str, Any] | Callable[[Any], None],
        version: int,
        done: Callable[[BaseException | None], None],
    ) -> None:
        try:
            self._load(weights, version)
        except Exception as error:  # the caller of update_weights raises it
            done(error)
            return
        self.version = version
        self.counts["updates"] += 1
        done(None)
