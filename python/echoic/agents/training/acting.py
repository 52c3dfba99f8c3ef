"""The networks that act: an encoder of plans and a policy, without what only learning needs.

Actors have copies of their own, on the CPU, filled from publications: a learner changes its
networks while they act.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.episodes import Decision
from echoic.agents.latent_planning.encoder import TrajectoryEncoder
from echoic.agents.latent_planning.policy import PolicyNetwork
from echoic.agents.latent_planning.windows import PlanWindows
from echoic.agents.learners.actor_critic import masked
from echoic.agents.training.segments import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.agents.training.config import TrainingConfig

__all__ = ["Acted", "ActingNetworks", "TrainedPolicy", "allowed_of", "published"]

HIDDEN = 64


@dataclass(frozen=True)
class Acted:
    """What was done, all as tensors with a row for each actor.

    Attributes:
        actions: ``(n,)``.
        log_probs: ``(n,)``, of the policy that acted.
        plans: ``(n, plan_dim)``, acted on.
        noise: ``(n, plan_dim)``, of the plans, in standard deviations.
    """

    actions: Any
    log_probs: Any
    plans: Any
    noise: Any


class ActingNetworks:
    """Acts on windows of states.

    Args:
        config: The settings of the run.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        plans = config.planning_config
        self.encoder: Any = None
        hidden, alpha = (plans.hidden_dim, plans.soft_prefix_alpha)
        if config.use_plans:
            self.encoder = TrajectoryEncoder(config.state_dim, plans, "cpu")
        else:
            alpha = 0.5
        self.policy = PolicyNetwork(
            config.state_dim, config.action_dim, config.plan_dim, hidden, alpha, "cpu"
        )

    def load(self, tree: dict[str, Any]) -> None:
        """Become what was :func:`published`."""
        for name, module in (("encoder", self.encoder), ("policy", self.policy)):
            if module is not None:
                # A publication is read-only, and is copied from.
                state = {key: torch.from_numpy(array.copy()) for key, array in tree[name].items()}
                module.load_state_dict(state)

    @torch.no_grad()
    def act(
        self,
        windows: Any,
        masks: Any,
        allowed: Any,
        generator: Any,
        *,
        greedy: bool = False,
    ) -> Acted:
        """Draw a plan and an action for each window.

        Args:
            windows: ``(n, places, state_dim)``.
            masks: ``(n, places)``, which of them hold a state.
            allowed: ``(n, action_dim)``, which actions there are.
            generator: Of all that is drawn.
            greedy: Take the likeliest of both instead.
        """
        most = self.config.execution_config.max_concurrent_rollouts
        parts = [
            self._act(w, m, a, generator, greedy)
            for w, m, a in zip(
                windows.split(most), masks.split(most), allowed.split(most), strict=True
            )
        ]
        return Acted(
            *(
                torch.cat([getattr(part, name) for part in parts])
                for name in ("actions", "log_probs", "plans", "noise")
            )
        )

    def _act(self, windows: Any, masks: Any, allowed: Any, generator: Any, greedy: bool) -> Acted:
        noise = torch.zeros(len(windows), self.config.plan_dim)
        plans = noise
        if self.encoder is not None:
            posterior = self.encoder.posterior(windows, masks)
            if not greedy:
                noise = torch.randn(noise.shape, generator=generator)
            plans = posterior.at(noise)
        log_probs = masked(self.policy(windows[:, -1], plans), allowed)
        if greedy:
            actions = log_probs.argmax(dim=-1)
        else:
            actions = torch.multinomial(log_probs.exp(), 1, generator=generator).squeeze(-1)
        chosen = log_probs.gather(-1, actions[:, None]).squeeze(-1)
        return Acted(actions, chosen, plans, noise)


def published(networks: Any) -> dict[str, Any]:
    """The tree of arrays that actors need of a learner's networks."""
    tree = {"policy": _arrays(networks.policy)}
    if networks.planner is not None:
        tree["encoder"] = _arrays(networks.planner.encoder)
    return tree


def _arrays(module: Any) -> dict[str, Any]:
    return {name: one.detach().cpu().numpy() for name, one in module.state_dict().items()}


class TrainedPolicy:
    """Acts as trained networks do, in one episode after the other.

    Args:
        networks: What acts; several policies may share them.
        greedy: Whether the likeliest plan and action are taken, or drawn.
    """

    def __init__(self, networks: ActingNetworks, *, greedy: bool = False) -> None:
        self._networks = networks
        self._greedy = greedy
        self.begin("", 0)

    def begin(self, instructions: str, seed: int) -> None:
        """An episode begins; what the task is, such a policy knows from training."""
        del instructions
        config = self._networks.config
        size = config.planning_config.state_window_size if config.use_plans else 0
        self._windows = PlanWindows(1, config.state_dim, size, device="cpu")
        self._generator = torch.Generator().manual_seed(seed)
        self._starts = np.ones(1, bool)

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """The index of a command. It uses no tokens of a language model, and costs nothing."""
        config = self._networks.config
        state = np.asarray(observation["vector"], np.float32)[None]
        window, mask = shown(*self._windows.push(state, self._starts), config)
        self._starts = np.zeros(1, bool)
        allowed = torch.from_numpy(allowed_of(info, masked=config.mask_commands))[None]
        acted = self._networks.act(window, mask, allowed, self._generator, greedy=self._greedy)
        return Decision(int(acted.actions[0]))


def allowed_of(info: Mapping[str, Any], *, masked: bool) -> Any:
    """Which actions there are: those listed; all where none is, or nothing is to be masked."""
    mask = np.asarray(info["command_mask"], bool)
    return mask if masked and mask.any() else np.ones_like(mask)
