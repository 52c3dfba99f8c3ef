"""Normalize returns to one scale, as targets of a value function.

Mean and standard deviation are floats, and arrays are only added to and multiplied with them, so
values may be of any library and on any device, and gradients flow through.
"""

from __future__ import annotations

import math
import threading
from typing import Any

from echoic._native import RunningStats
from echoic.errors import ArgumentError

__all__ = ["ValueNormalizer"]


class ValueNormalizer:
    """Normalize returns by running statistics, and denormalize the outputs of a value function.

    The function is trained on ``normalize(returns)``, and ``denormalize(outputs)`` are its values.
    When statistics change, so do the values, unless :meth:`rescale` also changes the last layer
    (PopArt, van Hasselt et al. 2016, arXiv:1602.07714).

    Safe to use from several threads; can be pickled and copied.

    Args:
        decay: ``None`` gives all returns the same weight. A number between 0 and 1 multiplies the
            weight of earlier returns with each update (0.99999 in MAPPO, arXiv:2103.01955); the
            bias towards the first update is corrected as in Adam.
        min_std: Lower bound of the standard deviation. Default: 1e-4.

    Raises:
        ArgumentError: If an argument is out of range.

    Examples:
        >>> from echoic.primitives import ValueNormalizer
        >>> normalizer = ValueNormalizer()
        >>> normalizer.update([90.0, 110.0])
        >>> normalizer.normalize(120.0), normalizer.denormalize(-1.0)
        (2.0, 90.0)
    """

    def __init__(self, decay: float | None = None, min_std: float = 1e-4) -> None:
        if decay is not None and not 0 < decay < 1:
            raise ArgumentError(f"`decay` must be None or between 0 and 1, got {decay}")
        if not (min_std > 0 and math.isfinite(min_std)):
            raise ArgumentError(f"`min_std` must be a finite number above 0, got {min_std}")
        self._decay, self._min_std = decay, min_std
        self._lock = threading.Lock()
        self._stats = RunningStats()
        # With decay: the sum of the updates' weights, the mean, and weighted squares of differences
        # from it.
        self._weight = self._mean = self._squares = 0.0

    def update(self, returns: Any) -> None:
        """Update the statistics with returns, in an array of any shape.

        Raises:
            ArgumentError: If one of them is not finite. Nothing is changed.
            DtypeError: If they are not real numbers, or not on the CPU.
        """
        if self._decay is None:
            self._stats.batch_update(returns)
            return
        batch = RunningStats()
        batch.batch_update(returns)
        if not batch.count():
            return
        own = 1 - self._decay
        with self._lock:
            before = self._decay * self._weight
            self._weight = before + own
            difference, part = batch.mean() - self._mean, own / self._weight
            self._mean += difference * part
            self._squares = self._decay * self._squares + own * batch.var()
            self._squares += difference * difference * before * part

    @property
    def mean(self) -> float:
        """The mean of the returns; 0 before the first update."""
        return self._moments()[0]

    @property
    def std(self) -> float:
        """The standard deviation of the returns, at least ``min_std``; 1 before the first."""
        return self._moments()[1]

    def normalize(self, values: Any) -> Any:
        """Return ``(values - mean) / std``, of a number or any array."""
        mean, std = self._moments()
        return (values - mean) / std

    def denormalize(self, values: Any) -> Any:
        """Return ``values * std + mean``: the inverse of :meth:`normalize`."""
        mean, std = self._moments()
        return values * std + mean

    def rescale(self, returns: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
        """Update the statistics, and adapt the last layer so that its values stay the same.

        Args:
            returns: As for :meth:`update`.
            weight: Weight of the last layer, a number or any array.
            bias: Bias of the last layer.

        Returns:
            The new weight and bias, with the same ``denormalize(x @ weight + bias)``.

        Examples:
            >>> normalizer = ValueNormalizer()
            >>> normalizer.update([-1.0, 1.0])
            >>> normalizer.rescale([-5.0, 5.0, -1.0, 1.0], 4.0, 1.0)
            (1.3333333333333333, 0.3333333333333333)
        """
        mean, std = self._moments()
        self.update(returns)
        new_mean, new_std = self._moments()
        return weight * (std / new_std), (bias * std + (mean - new_mean)) / new_std

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics, for :meth:`load_state_dict`."""
        with self._lock:
            sums = {"weight": self._weight, "mean": self._mean, "squares": self._squares}
        return {"stats": self._stats.state_dict(), **sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the statistics; the arguments of the constructor are not changed.

        Raises:
            ArgumentError: If a part is missing or invalid. Nothing is changed.
        """
        try:
            sums = [float(state[name]) for name in ("weight", "mean", "squares")]
            stats = state["stats"]
        except KeyError as error:
            raise ArgumentError(f"`state` has no {error}") from None
        if not all(map(math.isfinite, sums)):
            raise ArgumentError(f"`state` has sums that are not finite: {sums}")
        with self._lock:
            self._stats.load_state_dict(stats)
            self._weight, self._mean, self._squares = sums

    def _moments(self) -> tuple[float, float]:
        """Return the mean and the standard deviation."""
        if self._decay is None:
            # Both from one state, since another thread may update them in between.
            state = self._stats.state_dict()
            count, mean = state["count"], float(state["mean"])
            if not count:
                return 0.0, 1.0
            variance = float(state["squares"]) / count
        else:
            with self._lock:
                weight, mean, squares = self._weight, self._mean, self._squares
            if not weight:
                return 0.0, 1.0
            variance = squares / weight
        return mean, max(math.sqrt(variance), self._min_std)

    def __getstate__(self) -> dict[str, Any]:
        return {"decay": self._decay, "min_std": self._min_std, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["decay"], state["min_std"])  # type: ignore[misc]
        self.load_state_dict(state["state"])
