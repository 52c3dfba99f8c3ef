"""The last numbers of a run, and what they say together. Of all there are at most so many."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents.monitoring.metrics import METRIC_NAMES, PerformanceMetrics, plain
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

__all__ = ["MetricsCollector"]

# Below this share of its spread in a window, a trend is none.
_STABLE = 0.5


class MetricsCollector:
    """Keeps the last numbers, at most ``max_history`` moments; threads may add at once."""

    def __init__(self, max_history: int = 10_000) -> None:
        if max_history < 1:
            raise ArgumentError(f"max_history must be at least 1, not {max_history}")
        self.max_history = max_history
        self._history: deque[PerformanceMetrics] = deque(maxlen=max_history)
        self._total = 0
        self._lock = threading.Lock()

    def collect_metrics(self, metrics: PerformanceMetrics) -> None:
        """Add the numbers of a moment."""
        with self._lock:
            self._history.append(metrics)
            self._total += 1

    @property
    def metrics_history(self) -> tuple[PerformanceMetrics, ...]:
        """Those that are kept, the newest last."""
        with self._lock:
            return tuple(self._history)

    def get_metric_summary(self, metric_name: str, window_size: int = 100) -> dict[str, float]:
        """Return mean, deviation, extremes, median and count of a number of late; {} of nothing.

        Moments in which it was not measured, and numbers that are none (NaN, infinite), are left
        out, and ``count`` tells.
        """
        values = self._values(metric_name, window_size)
        values = values[np.isfinite(values)]
        if not values.size:
            return {}
        return {
            "mean": float(values.mean()),
            "std": float(values.std()),
            "min": float(values.min()),
            "max": float(values.max()),
            "median": float(np.median(values)),
            "count": int(values.size),
        }

    def get_all_metrics_summary(self, window_size: int = 100) -> dict[str, dict[str, float]]:
        """Return the same of every number."""
        found = {name: self.get_metric_summary(name, window_size) for name in METRIC_NAMES}
        return {name: summary for name, summary in found.items() if summary}

    def get_trend_analysis(self, metric_name: str, window_size: int = 100) -> dict[str, Any]:
        """Return where a number goes: ``trend_slope`` (by moment), ``trend_direction``, values.

        The direction is ``"increasing"`` or ``"decreasing"`` if the line through the window rises
        or falls by more than half of what the values vary around it, and else ``"stable"``. It
        does not depend on the number's unit. {} before there is a whole window.
        """
        if window_size < 2:
            raise ArgumentError(f"window_size must be at least 2, not {window_size}")
        values = self._values(metric_name, window_size)
        if values.size < window_size or not np.isfinite(values).all():
            return {}
        at = np.arange(values.size) - (values.size - 1) / 2
        slope = float(at @ values / (at @ at))
        rest = values - values.mean() - slope * at
        rise = abs(slope) * (values.size - 1)
        # Rounding is no trend.
        least = max(2 * _STABLE * float(rest.std()), 1e-12 * float(np.abs(values).max()))
        direction = "stable" if rise <= least else "increasing" if slope > 0 else "decreasing"
        return {
            "trend_slope": slope,
            "trend_direction": direction,
            "recent_values": values.tolist(),
            "window_size": window_size,
        }

    def export_metrics(self, filepath: str | os.PathLike[str]) -> None:
        """Write all that is kept, and summaries, as JSON."""
        data = {
            "timestamp": time.time(),
            "total_metrics": self._total,
            "metrics_history": [
                {name: plain(getattr(one, name)) for name in one.measured}
                for one in self.metrics_history
            ],
            "metric_summaries": self.get_all_metrics_summary(),
        }
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1, allow_nan=False), encoding="utf-8")

    def _values(self, name: str, window: int) -> NDArray[np.float64]:
        if name not in METRIC_NAMES:
            raise ArgumentError(f"there is no metric {name!r}; there are {', '.join(METRIC_NAMES)}")
        if window < 1:
            raise ArgumentError(f"window_size must be at least 1, not {window}")
        with self._lock:
            # From the end of the deque: its middle is slow to reach.
            last = [one for one, _ in zip(reversed(self._history), range(window), strict=False)]
        known = [getattr(one, name) for one in reversed(last) if name in one.measured]
        return np.array(known, np.float64)
