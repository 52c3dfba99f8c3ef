"""Targets of a value function at one scale, whatever the returns are.

Mean and standard deviation are floats here, and arrays are only added to and multiplied with them,
so values may be of any library and on any device, and gradients pass.
"""

from __future__ import annotations

import math
import threading
from typing import Any

from echoic._native import RunningStats
from echoic.errors import ArgumentError

__all__ = ["ValueNormalizer"]


class ValueNormalizer:
    """Returns as targets of a value function, and its outputs as values.

    The function learns ``normalize(returns)`` by running statistics, and ``denormalize(outputs)``
    are values. When statistics change, so do the values; :meth:`rescale` changes the last layer
    such that they do not (PopArt, van Hasselt et al. 2016, arXiv:1602.07714).

    Safe to use from several threads; can be pickled and copied.

    Args:
        decay: ``None``: every return counts the same, for ever. Between 0 and 1: with each update,
            what was there before keeps this part of its weight (0.99999 in MAPPO,
            arXiv:2103.01955), and the bias towards the first update is taken out as in Adam.
        min_std: The smallest standard deviation that is divided by.

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
        """Take in returns, in an array of any shape.

        Raises:
            ArgumentError: One of them is not finite. Nothing was taken in.
            DtypeError: Not real numbers, or not on the CPU.
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
        """The mean of the returns; 0 before the first."""
        return self._moments()[0]

    @property
    def std(self) -> float:
        """Their standard deviation, at least ``min_std``; 1 before the first."""
        return self._moments()[1]

    def normalize(self, values: Any) -> Any:
        """``(values - mean) / std``, of a number or any array that can be calculated with."""
        mean, std = self._moments()
        return (values - mean) / std

    def denormalize(self, values: Any) -> Any:
        """``values * std + mean``: the opposite of :meth:`normalize`."""
        mean, std = self._moments()
        return values * std + mean

    def rescale(self, returns: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
        """Take in returns, and give the last layer whose values are what they were.

        Args:
            returns: As for :meth:`update`.
            weight: Of the last layer, an array that can be calculated with.
            bias: Of the last layer.

        Returns:
            The new weight and bias, for ``denormalize(x @ weight + bias)`` to stay the same.

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
        """What :meth:`load_state_dict` takes."""
        with self._lock:
            sums = {"weight": self._weight, "mean": self._mean, "squares": self._squares}
        return {"stats": self._stats.state_dict(), **sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what :meth:`state_dict` was taken from; the arguments of the constructor stay.

        Raises:
            ArgumentError: A part is missing, or can't be. Nothing changes then.
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
        """Mean and standard deviation to normalise with."""
        if self._decay is None:
            # One look at both, which another thread can't part.
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
