"""Rewards that are learned from preferences between segments.

Christiano et al., "Deep Reinforcement Learning from Human Preferences" (2017). A segment is what an
actor did between two updates. Of two, that which the environment paid more is preferred, in place
of a person; the sums of a network's rewards along each explain with which probability (Bradley and
Terry). The policy never sees the environment's rewards.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from echoic.agents.training.config import TrainingConfig
    from echoic.agents.training.ppo import Batch

__all__ = ["PreferenceReward"]

# Segments that are remembered, width of the network, and pairs compared in a step of learning.
_MEMORY, _WIDTH, _PAIRS = 4096, 64, 256
# Steps of learning for each batch: a small task has few batches.
_STEPS = 20


class PreferenceReward:
    """A network of rewards, learned from preferences between segments.

    Rewards are scaled to mean 0 and deviation 1 over the segments in memory. Whether a step ended
    its episode is an input of the network: a person would see that too.

    Attributes:
        answers: Number of preferences that were given.
        accuracy: Share of the latest ones that was predicted before learning from them; NaN first.
    """

    def __init__(self, config: TrainingConfig, *, seed: int = 0) -> None:
        self._config = config
        self._rng = np.random.default_rng(seed)
        wide = 2 * config.state_dim + config.action_dim + 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._network = nn.Sequential(nn.Linear(wide, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1))
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=1e-3)
        self._memory: deque[tuple[Any, float]] = deque(maxlen=_MEMORY)
        self.answers, self.accuracy = 0, float("nan")

    def relabel(self, batch: Batch) -> None:
        """Learn from comparisons, then replace the rewards of a batch."""
        acted = functional.one_hot(batch.actions, self._config.action_dim)
        seen = torch.cat([batch.states, batch.next_states, acted, batch.dones[..., None]], dim=-1)
        paid = (batch.rewards * batch.valid).sum(dim=0).tolist()
        self._memory.extend(zip(seen.unbind(dim=1), paid, strict=True))
        for step in range(_STEPS):
            accuracy = self._learn()
            if step == 0 and accuracy is not None:
                self.accuracy = accuracy
        with torch.no_grad():
            known = self._network(torch.stack([one for one, _ in self._memory][-512:]))
            worth = self._network(seen).squeeze(-1)
            batch.rewards = (worth - known.mean()) / (known.std(correction=0) + 1e-6)

    def state_dict(self) -> dict[str, Any]:
        """Return network, optimizer, memory and generator."""
        return {
            "network": self._network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "memory": [[seen, paid] for seen, paid in self._memory],
            "rng": self._rng.bit_generator.state,
            "answers": self.answers,
            "accuracy": self.accuracy,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self._network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._memory.clear()
        self._memory.extend((seen, paid) for seen, paid in state["memory"])
        self._rng.bit_generator.state = state["rng"]
        self.answers, self.accuracy = state["answers"], state["accuracy"]

    def _learn(self) -> float | None:
        """Take one step along the likelihood of some preferences; return which were predicted."""
        drawn: Any = self._rng.integers(0, len(self._memory), (_PAIRS, 2))
        paid = np.array([worth for _, worth in self._memory])[drawn]
        answered = paid[:, 0] != paid[:, 1]
        if not answered.any():
            return None
        self.answers += int(answered.sum())
        first, second = (
            self._network(torch.stack([self._memory[i][0] for i in side])).sum(dim=(1, 2))
            for side in drawn[answered].T
        )
        wanted = torch.from_numpy(np.diff(paid[answered])[:, 0] > 0)
        loss = functional.binary_cross_entropy_with_logits(second - first, wanted.float())
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return float(((second > first) == wanted).float().mean())
