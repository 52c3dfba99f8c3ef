"""Evaluation of a policy, on seeds that training never sees, several episodes side by side."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.latent_planning.windows import PlanWindows
from echoic.agents.training.acting import allowed_of
from echoic.agents.training.actors import HELD_OUT, checked_environment, close_environment
from echoic.agents.training.segments import shown

if TYPE_CHECKING:
    from echoic.agents.training.acting import ActingNetworks
    from echoic.agents.training.config import TrainingConfig

__all__ = ["Evaluated", "Evaluator"]

_log = logging.getLogger("echoic.agents.training")
_SIDE_BY_SIDE = 16


@dataclass
class Evaluated:
    """What the episodes came to, by their seeds in order."""

    rewards: list[float] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    #: Episodes whose environment broke: they are in none of the lists.
    broken: int = 0

    @property
    def success_rate(self) -> float:
        """The share of successes."""
        return float(np.mean(self.successes))


class Evaluator:
    """Plays the same held-out episodes whenever it is asked to.

    Args:
        config: The settings of the run.
        seed: Of what is drawn while acting.
    """

    def __init__(self, config: TrainingConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        count = min(_SIDE_BY_SIDE, config.evaluation_episodes)
        self._environments: list[Any] = []
        try:
            for _ in range(count):
                self._environments.append(checked_environment(config))
        except BaseException:
            self.close()
            raise

    def play(self, networks: ActingNetworks) -> Evaluated:
        """Play all episodes."""
        generator = torch.Generator().manual_seed(self._seed)
        found = Evaluated()
        for first in range(0, self._config.evaluation_episodes, len(self._environments)):
            count = min(len(self._environments), self._config.evaluation_episodes - first)
            self._play(
                networks, generator, range(HELD_OUT + first, HELD_OUT + first + count), found
            )
        return found

    def close(self) -> None:
        """Close the environments."""
        for environment in self._environments:
            close_environment(environment)

    def _play(self, networks: Any, generator: Any, seeds: range, found: Evaluated) -> None:
        """Play one episode in each of the first environments; who is ready waits for the others."""
        config = self._config
        size = config.planning_config.state_window_size if config.use_plans else 0
        environments = self._environments[: len(seeds)]
        windows = PlanWindows(len(seeds), config.state_dim, size, device="cpu")
        rewards, steps = np.zeros(len(seeds)), np.zeros(len(seeds), int)
        success, over, broken = (np.zeros(len(seeds), bool) for _ in range(3))
        starts = np.ones(len(seeds), bool)
        # Who broke at once has nothing to show, and is over.
        states = np.zeros((len(seeds), config.state_dim), np.float32)
        allowed = np.ones((len(seeds), config.action_dim), bool)

        def broke(i: int, error: Exception) -> None:
            _log.warning("the environment of an evaluation broke: %s", repr(error))
            over[i] = broken[i] = True
            close_environment(self._environments[i])
            self._environments[i] = checked_environment(config)

        def show(i: int, seen: Any, info: Any) -> None:
            states[i], allowed[i] = seen["vector"], allowed_of(info, masked=config.mask_commands)

        for i, seed in enumerate(seeds):
            try:
                show(i, *environments[i].reset(seed=seed))
            except Exception as error:
                broke(i, error)
        while not over.all():
            acted = networks.act(
                *shown(*windows.push(states, starts), config),
                torch.from_numpy(allowed),
                generator,
                greedy=config.evaluation_greedy,
            )
            starts[:] = False
            for i, action in enumerate(acted.actions.tolist()):
                if over[i]:
                    continue
                try:
                    seen, reward, done, cut, info = environments[i].step(action)
                    show(i, seen, info)
                except Exception as error:  # whatever an environment raises
                    broke(i, error)
                    continue
                rewards[i] += float(reward)
                steps[i] += 1
                success[i] = bool(done and info["success"])
                over[i] = done or cut or steps[i] >= config.max_episode_steps
        found.rewards += rewards[~broken].tolist()
        found.successes += success[~broken].tolist()
        found.steps += steps[~broken].tolist()
        found.broken += int(broken.sum())
