"""A buffer that moves its own settings."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from echoic.agents.prioritized_replay.replay import PrioritizedReplayBuffer
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from echoic.agents.prioritized_replay.config import ReplayConfig
    from echoic.agents.prioritized_replay.surprise import SurpriseCalculator

__all__ = ["AdaptiveReplayBuffer"]

TEMPERATURES = (0.1, 2.0)
HOT_RATIOS = (0.5, 0.9)


class AdaptiveReplayBuffer(PrioritizedReplayBuffer):
    """Draws more sharply while things get better, and more widely while they get worse.

    The last ``window`` performances are compared with as many before them. If they are better, the
    temperature falls by 5 % and the share of hot experiences rises by 0.01; if they are worse, the
    other way
    round: by a factor of 1.05, and by 0.01. Temperatures stay from 0.1 to 2, shares from 0.5 to
        0.9. It looks
    once for each ``window`` performances, since every new temperature has all weights computed
    anew.

    Args:
        config: The settings: temperature and share begin as they are there, within the bounds.
        latent_dim: As in :class:`PrioritizedReplayBuffer`.
        window: How many performances are compared with as many before them.
        surprise_calculator: As in :class:`PrioritizedReplayBuffer`.
        update_ema: As in :class:`PrioritizedReplayBuffer`.

    >>> from echoic.agents.prioritized_replay import ReplayConfig
    >>> buffer = AdaptiveReplayBuffer(ReplayConfig(), latent_dim=8, window=2)
    >>> for performance in (0.0, 0.0, 1.0, 1.0):
    ...     buffer.update_performance(performance)
    >>> round(buffer.temperature, 3), round(buffer.hot_ratio, 3)
    (0.95, 0.71)
    """

    def __init__(
        self,
        config: ReplayConfig,
        latent_dim: int = 512,
        *,
        window: int = 10,
        surprise_calculator: SurpriseCalculator | None = None,
        update_ema: bool = True,
    ) -> None:
        super().__init__(
            config, latent_dim, surprise_calculator=surprise_calculator, update_ema=update_ema
        )
        if window < 1:
            raise ArgumentError(f"window must be at least 1, got {window}")
        self.window = window
        self.temperature = _within(config.temperature, TEMPERATURES)
        self.hot_ratio = _within(config.hot_sample_ratio, HOT_RATIOS)
        self._performances: deque[float] = deque(maxlen=2 * window)
        self._since = 0

    def _settings(self) -> tuple[float, float]:
        return self.temperature, self.hot_ratio

    def update_performance(self, performance: float) -> None:
        """Takes in a performance, such as the return of an episode, and adapts if it is time."""
        performance = float(performance)
        if not math.isfinite(performance):
            raise ArgumentError(f"performance must be a finite number, got {performance}")
        self._performances.append(performance)
        self._since += 1
        if len(self._performances) < 2 * self.window or self._since < self.window:
            return
        self._since = 0
        before = sum(islice(self._performances, self.window)) / self.window
        now = sum(islice(self._performances, self.window, None)) / self.window
        if now == before:
            return
        better = now > before
        self.temperature = _within(self.temperature * (0.95 if better else 1.05), TEMPERATURES)
        self.hot_ratio = _within(self.hot_ratio + (0.01 if better else -0.01), HOT_RATIOS)

    def _adapted(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "hot_ratio": self.hot_ratio,
            "performances": list(self._performances),
            "since": self._since,
        }

    def _adapt(self, adapted: dict[str, Any]) -> None:
        self.temperature = _within(float(adapted["temperature"]), TEMPERATURES)
        self.hot_ratio = _within(float(adapted["hot_ratio"]), HOT_RATIOS)
        self._performances = deque(map(float, adapted["performances"]), maxlen=2 * self.window)
        self._since = int(adapted["since"])


def _within(value: float, bounds: tuple[float, float]) -> float:
    least, most = bounds
    return min(max(value, least), most)
