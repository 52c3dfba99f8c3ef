"""The networks that act: an encoder of plans and a policy, without what only learning needs.

Actors have their own copies on the CPU, loaded from publications: a learner changes its networks
while they act.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.episodes import Decision
from echoic.agents.plans import PolicyNetwork, TrajectoryEncoder
from echoic.agents.training.ppo import masked
from echoic.agents.training.segments import windows_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.agents.training.config import TrainingConfig
    from echoic.agents.training.learner import VectorLearner

__all__ = ["ActingNetworks", "TrainedPolicy", "allowed_of", "published"]


class ActingNetworks:
    """Acts on windows of states, with the sizes of a run's settings."""

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        plans, encoder = config.planning_config, None
        if config.use_plans:
            encoder = TrajectoryEncoder(config.state_dim, plans, "cpu")
        self.encoder: Any = encoder
        alpha = plans.soft_prefix_alpha if config.use_plans else 0.5
        sizes = (config.state_dim, config.action_dim, config.plan_dim, plans.hidden_dim)
        self.policy = PolicyNetwork(*sizes, alpha, "cpu")

    def load(self, tree: dict[str, Any]) -> None:
        """Load what :func:`published` returned."""
        for name, arrays in tree.items():
            # A publication is read-only, and is copied from.
            state = {key: torch.from_numpy(array.copy()) for key, array in arrays.items()}
            getattr(self, name).load_state_dict(state)

    @torch.no_grad()
    def act(
        self, windows: Any, masks: Any, allowed: Any, generator: Any, *, greedy: bool = False
    ) -> tuple[Any, ...]:
        """Draw a plan and an action for each window.

        Args:
            windows: ``(n, places, state_dim)``.
            masks: ``(n, places)``, which of them hold a state.
            allowed: ``(n, action_dim)``, which actions there are.
            generator: Generator of all that is drawn.
            greedy: Take the likeliest of both instead.

        Returns:
            Actions ``(n,)``, their log-probabilities, the plans acted on, and the plans' noise.
        """
        most = self.config.execution_config.max_concurrent_rollouts
        split = zip(windows.split(most), masks.split(most), allowed.split(most), strict=True)
        parts = [self._act(*one, generator, greedy) for one in split]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def _act(
        self, windows: Any, masks: Any, allowed: Any, generator: Any, greedy: bool
    ) -> tuple[Any, ...]:
        plans = noise = torch.zeros(len(windows), self.config.plan_dim)
        if self.encoder is not None:
            if not greedy:
                noise = torch.randn(noise.shape, generator=generator)
            plans = self.encoder.posterior(windows, masks).at(noise)
        log_probs = masked(self.policy(windows[:, -1], plans), allowed)
        if greedy:
            actions = log_probs.argmax(dim=-1)
        else:
            actions = torch.multinomial(log_probs.exp(), 1, generator=generator).squeeze(-1)
        chosen = log_probs.gather(-1, actions[:, None]).squeeze(-1)
        return actions, chosen, plans, noise


def published(learner: VectorLearner) -> dict[str, Any]:
    """Return the arrays of a learner's networks that actors need, as a tree."""
    modules: dict[str, Any] = {"policy": learner.policy_network}
    if learner.planner is not None:
        modules["encoder"] = learner.planner.encoder
    return {
        part: {name: one.detach().cpu().numpy() for name, one in module.state_dict().items()}
        for part, module in modules.items()
    }


class TrainedPolicy:
    """Acts with trained networks, in one episode after the other.

    Args:
        networks: Networks that act; several policies may share them.
        greedy: Whether to take the likeliest plan and action instead of drawing them.
    """

    def __init__(self, networks: ActingNetworks, *, greedy: bool = False) -> None:
        self._networks = networks
        self._greedy = greedy
        self.begin("", 0)

    def begin(self, instructions: str, seed: int) -> None:
        """Start an episode. The instructions are not used: the policy was trained for the task."""
        del instructions
        self._windows = windows_for(self._networks.config, 1)
        self._generator = torch.Generator().manual_seed(seed)
        self._starts = np.ones(1, bool)

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Return the index of a command. Uses no tokens of a language model, and costs nothing."""
        state = np.asarray(observation["vector"], np.float32)[None]
        seen = self._windows.push(state, self._starts)
        self._starts = np.zeros(1, bool)
        mask = allowed_of(info, masked=self._networks.config.mask_commands)
        allowed = torch.from_numpy(mask)[None]
        actions, *_ = self._networks.act(*seen, allowed, self._generator, greedy=self._greedy)
        return Decision(int(actions[0]))


def allowed_of(info: Mapping[str, Any], *, masked: bool) -> Any:
    """Return which actions there are: those listed, or all if none is or ``masked`` is False."""
    mask = np.asarray(info["command_mask"], bool)
    return mask if masked and mask.any() else np.ones_like(mask)
