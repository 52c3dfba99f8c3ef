"""Runners: what happens between two ticks for any model, and the ticks of policies over vectors.

A runner belongs to one thread. Other threads give it orders (:meth:`Runner.submit`,
:meth:`Runner.cancel`, :meth:`Runner.update_weights`), which only append to a queue; the runner
executes them when its next tick starts. :meth:`Runner.step` returns the progress of a tick.

A policy over vectors, such as :class:`echoic.agents.PolicyNetwork`, maps a state and a plan to an
action. A rollout of it is one decision: ``state_sequence`` is [rows, state_dim], the action is that
for the last row, and the plan is ``metadata["plan"]``, or zeros. Such a policy has no keys and
values to share: ``reused_tokens`` is 0 and ``kv_cache`` is None.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from echoic.agents.llm.model import check_weights
from echoic.agents.llm.requests import Progress, Rollout, RolloutResult
from echoic.agents.llm.scheduler import LatencyScheduler
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from echoic.agents.bandwidth import BandwidthEfficiencyTracker
    from echoic.agents.llm.config import ExecutionConfig
    from echoic.agents.llm.requests import RolloutRequest

__all__ = ["PolicyRunner", "Runner", "read_states"]


class Runner(ABC):
    """Carries out rollouts tick by tick.

    Args:
        config: Bounds and weights.
        tracker: Records every rollout's measured tokens.
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
        self.counts = dict.fromkeys(
            (
                *("submitted", "completed", "failed", "cancelled", "timed_out", "ticks"),
                *("forwards", "forward_tokens", "prompt_tokens", "generated_tokens", "updates"),
            ),
            0,
        )
        self.busy_seconds = 0.0
        # Made at the end of a tick, for other threads to read.
        self.snapshot: dict[str, Any] = {"queue": self.scheduler.get_queue_stats(), "active": 0}
        self._orders: deque[Callable[[], None]] = deque()
        self._progress: dict[str, Progress] = {}

    @property
    def busy(self) -> bool:
        """Whether a tick would have something to do."""
        return bool(self._orders or self.rollouts)

    def submit(self, rollout: Rollout) -> None:
        """Queue a rollout."""
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
        """Load new weights before the next tick; ``done`` gets the error, or None."""
        self._orders.append(lambda: self._update(weights, version, done))

    # The thread of the runner.

    def step(self) -> list[Progress]:
        """Execute orders and one tick; return the progress of rollouts."""
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
        progress = list(self._progress.values())
        self._progress = {}
        return progress

    @abstractmethod
    def _tick(self) -> None:
        """Advance rollouts."""

    @abstractmethod
    def _release(self, rollout: Rollout, *, keep: bool) -> None:
        """Remove a rollout. With ``keep``, its keys and values may be cached."""

    @abstractmethod
    def _load(self, weights: Mapping[str, Any] | Callable[[Any], None], version: int) -> None:
        """Load new weights; on an error the old ones stay in use."""

    def _reusable(self, rollout: Rollout) -> int:
        """Return how many tokens of a new rollout are cached."""
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
        """Copy keys and values of a rollout; None without any."""
        del rollout

    def _update(
        self,
        weights: Mapping[str, Any] | Callable[[Any], None],
        version: int,
        done: Callable[[BaseException | None], None],
    ) -> None:
        try:
            self._load(weights, version)
        except Exception as error:  # update_weights raises it
            done(error)
            return
        self.version = version
        self.counts["updates"] += 1
        done(None)


def read_states(sequence: Any) -> Any:
    """Read [rows, state_dim] as a tensor of floats.

    Raises:
        ArgumentError: If it has another shape, or no row.
    """
    states = torch.as_tensor(sequence).detach()
    if states.ndim != 2 or states.shape[0] == 0:
        raise ArgumentError(
            "a policy over vectors takes [rows, state_dim] with at least one row; got shape "
            f"{tuple(states.shape)}"
        )
    return states.float()


class PolicyRunner(Runner):
    """Runs decisions of a policy that has ``sample_action(state, plan)``.

    Args:
        policy: Takes [batch, state_dim] and [batch, latent_dim]; returns actions and their
            log-probabilities, a row each.
        device: Where states and plans are put.
        arguments: Those of :class:`Runner`.
    """

    def __init__(self, policy: Any, device: Any, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.policy = policy
        self.device = device

    def plan(self, request: RolloutRequest) -> Any:
        """Return the plan of a request, [latent_dim].

        Raises:
            ArgumentError: If it has no plan, and the policy no ``latent_dim``.
        """
        given = request.metadata.get("plan")
        if given is not None:
            return torch.as_tensor(given).detach().float().reshape(-1)
        width = getattr(self.policy, "latent_dim", None)
        if width is None:
            raise ArgumentError(
                "this policy has no latent_dim, so that a rollout of it needs "
                'metadata={"plan": ...}'
            )
        return torch.zeros(int(width))

    def _tick(self) -> None:
        chosen: list[Rollout] = []
        while len(chosen) < self.config.max_concurrent_rollouts:
            request = self.scheduler.get_next_request()
            if request is None:
                break
            rollout = self.rollouts[request.request_id]
            rollout.admitted = self.clock()
            self.counts["prompt_tokens"] += rollout.prompt
            self._note(request.request_id).admitted = True
            chosen.append(rollout)
        # Policies take one shape at a time.
        groups: dict[tuple[int, int], list[tuple[Rollout, Any, Any]]] = {}
        for rollout in chosen:
            state = rollout.request.state_sequence[-1]
            plan = self.plan(rollout.request)
            groups.setdefault((len(state), len(plan)), []).append((rollout, state, plan))
        for group in groups.values():
            self._decide(group)

    def _decide(self, group: list[tuple[Rollout, Any, Any]]) -> None:
        self.counts["forwards"] += 1
        self.counts["forward_tokens"] += len(group)
        try:
            with torch.no_grad():
                actions, logprobs = self.policy.sample_action(
                    torch.stack([state for _, state, _ in group]).to(self.device),
                    torch.stack([plan for _, _, plan in group]).to(self.device),
                )
            actions = torch.as_tensor(actions).cpu()
            logprobs = torch.as_tensor(logprobs).double().cpu().reshape(-1)
            if len(actions) != len(group) or len(logprobs) != len(group):
                raise ArgumentError(
                    f"sample_action was given {len(group)} states, and returned {len(actions)} "
                    f"actions and {len(logprobs)} log-probabilities"
                )
        except Exception as error:  # the result of these rollouts; others go on
            for rollout, _, _ in group:
                self.counts["failed"] += 1
                self._end(rollout, "error", f"{type(error).__name__}: {error}")
            return
        for (rollout, _, _), action, logprob in zip(group, actions, logprobs, strict=True):
            self.counts["completed"] += 1
            self.counts["generated_tokens"] += 1
            result = self._end(rollout, "action")
            result.action = action.item() if action.numel() == 1 else action
            result.tokens_generated = 1
            result.logprobs = [float(logprob)]
            result.versions = [self.version]
            reward = float(rollout.request.metadata.get("reward", 0.0))
            self.tracker.record_rollout_step(reward, rollout.prompt, 0)

    def _release(self, rollout: Rollout, *, keep: bool) -> None:
        del rollout, keep

    def _load(self, weights: Mapping[str, Any] | Callable[[Any], None], version: int) -> None:
        del version
        check_weights(self.policy, weights)
