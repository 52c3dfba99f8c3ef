"""Rollouts of policies over vectors: one decision each, many in one call.

A policy over vectors, as :class:`echoic.agents.PolicyNetwork` is, maps a state and a plan to an
action. A rollout of it is one decision: ``state_sequence`` is [rows, state_dim], the action is that
for the last row, and the plan is ``metadata["plan"]``, or zeros. The policy is really called, with
all that wait as one batch.

Such a policy looks at one state at a time. There are no keys and values of earlier rows to share,
so none are pretended: ``reused_tokens`` is 0 and ``kv_cache`` is None. A model that is causal over
rows would be a :class:`~echoic.agents.async_execution.CausalModel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from echoic.agents.async_execution.model import check_weights
from echoic.agents.async_execution.runner import Runner
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from echoic.agents.async_execution.rollouts import Rollout, RolloutRequest

__all__ = ["PolicyRunner", "read_states"]


def read_states(sequence: Any) -> Any:
    """Read [rows, state_dim] as a tensor of floats.

    Raises:
        ArgumentError: It has another shape, or no row.
    """
    states = torch.as_tensor(sequence).detach()
    if states.ndim != 2 or states.shape[0] == 0:
        raise ArgumentError(
            "a policy over vectors takes [rows, state_dim] with a row at least; got shape "
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
        """The plan of a request, [latent_dim].

        Raises:
            ArgumentError: It has none, and the policy does not say of what length one of zeros is.
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
        # Policies take one shape at a time; rollouts of one engine rarely have two.
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
        except Exception as error:  # it is the rollouts' result, and others go on
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
