"""What was trained, as a policy of episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.episodes import Decision
from echoic.agents.latent_planning.windows import PlanWindows
from echoic.agents.training.segments import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.agents.training.acting import ActingNetworks

__all__ = ["TrainedPolicy", "allowed_of"]


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
