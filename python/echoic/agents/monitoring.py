"""Monitoring of a training run: its own numbers over time, and the machine's beside them."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from echoic.agents import _checks
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Self

    import echoic

__all__ = [
    "MetricsCollector",
    "MetricsLogger",
    "PerformanceMetrics",
    "PerformanceMonitor",
    "SystemMonitor",
]

_SHOWN = ("total_reward", "success_rate", "policy_loss", "tokens_per_second", "cpu_usage")
_log = logging.getLogger("echoic.agents.monitoring")


# The default of a number: an object of its own, so that it is no measured 0.
_UNMEASURED = float("0")


@dataclass
class PerformanceMetrics:
    """The numbers of a moment. What was not measured is 0, and not in :attr:`measured`.

    Times are in seconds, usages in percent, rates shares from 0 to 1. ``timestamp`` is that of
    :func:`time.time`; ``step`` and ``episode`` count from the beginning; losses are of the last
    update; ``total_reward`` and ``episode_length`` are of an episode; the ``cpu``, ``memory`` and
    ``gpu`` numbers are of the whole machine; ``bandwidth_efficiency`` is the tracker's ``eta_bw``.
    """

    timestamp: float
    step: int
    episode: int
    policy_loss: float = _UNMEASURED
    value_loss: float = _UNMEASURED
    kl_divergence: float = _UNMEASURED
    entropy_loss: float = _UNMEASURED
    total_reward: float = _UNMEASURED
    episode_length: float = _UNMEASURED
    success_rate: float = _UNMEASURED
    cpu_usage: float = _UNMEASURED
    memory_usage: float = _UNMEASURED
    gpu_usage: float = _UNMEASURED
    gpu_memory: float = _UNMEASURED
    kv_cache_hit_rate: float = _UNMEASURED
    tokens_per_second: float = _UNMEASURED
    replay_buffer_size: float = _UNMEASURED
    hot_buffer_hit_rate: float = _UNMEASURED
    cold_buffer_hit_rate: float = _UNMEASURED
    bandwidth_efficiency: float = _UNMEASURED
    rollout_bandwidth_cost: float = _UNMEASURED
    rollout_time: float = _UNMEASURED
    training_time: float = _UNMEASURED
    total_time: float = _UNMEASURED

    @property
    def measured(self) -> dict[str, float]:
        """The numbers that were given, or set since, in the order of the fields."""
        numbers = ((name, getattr(self, name)) for name in _NAMES)
        return {name: one for name, one in numbers if one is not _UNMEASURED}


_NAMES = tuple(field.name for field in fields(PerformanceMetrics))


def _plain(metrics: PerformanceMetrics) -> dict[str, float | None]:
    """Return the measured numbers as JSON has them: None for what is not finite."""
    numbers = metrics.measured.items()
    return {name: float(one) if math.isfinite(one) else None for name, one in numbers}


def _write(filepath: str | os.PathLike[str], data: dict[str, Any]) -> None:
    path = Path(filepath)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1, allow_nan=False), encoding="utf-8")


class MetricsLogger:
    """Appends a line of JSON to a file for each moment."""

    def __init__(self, log_file: str | os.PathLike[str]) -> None:
        self.log_file = Path(log_file)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)

    def log_metrics(self, metrics: PerformanceMetrics) -> None:
        """Add a line of all numbers that were measured."""
        line = json.dumps(_plain(metrics)) + "\n"
        with self.log_file.open("a", encoding="utf-8") as file:
            file.write(line)


class MetricsCollector:
    """Keeps the numbers of the last ``max_history`` moments; safe for threads."""

    def __init__(self, max_history: int = 10_000) -> None:
        self.max_history = max_history
        _checks.whole(self, "max_history")
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
        """The kept moments, the newest last."""
        with self._lock:
            return tuple(self._history)

    def get_metric_summary(self, metric_name: str, window_size: int = 100) -> dict[str, float]:
        """Summarize a number over a window: mean, deviation, extremes, median and count.

        Moments without it, and values that are not finite, are left out; {} if none remain.
        """
        values = self._values(metric_name, window_size)
        values = values[np.isfinite(values)]
        if not values.size:
            return {}
        found = {name: float(getattr(values, name)()) for name in ("mean", "std", "min", "max")}
        return {**found, "median": float(np.median(values)), "count": int(values.size)}

    def get_all_metrics_summary(self, window_size: int = 100) -> dict[str, dict[str, float]]:
        """Summarize every number."""
        found = {name: self.get_metric_summary(name, window_size) for name in _NAMES}
        return {name: summary for name, summary in found.items() if summary}

    def get_trend_analysis(self, metric_name: str, window_size: int = 100) -> dict[str, Any]:
        """Fit a line through a window: ``trend_slope`` per moment, ``trend_direction``, values.

        The direction is ``"increasing"`` or ``"decreasing"`` if the line rises or falls by more
        than the deviation of the values around it, and else ``"stable"``. It does not depend on
        the number's unit. {} before there is a whole window.
        """
        values = self._values(metric_name, window_size, least=2)
        if values.size < window_size or not np.isfinite(values).all():
            return {}
        at = np.arange(values.size) - (values.size - 1) / 2
        slope = float(at @ values / (at @ at))
        rest = values - values.mean() - slope * at
        # Rounding is no trend.
        least = max(float(rest.std()), 1e-12 * float(np.abs(values).max()))
        direction = "increasing" if slope > 0 else "decreasing"
        return {
            "trend_slope": slope,
            "trend_direction": direction if abs(slope) * (values.size - 1) > least else "stable",
            "recent_values": values.tolist(),
            "window_size": window_size,
        }

    def export_metrics(self, filepath: str | os.PathLike[str]) -> None:
        """Write the kept moments and their summaries as JSON."""
        data = {
            "timestamp": time.time(),
            "total_metrics": self._total,
            "metrics_history": [_plain(one) for one in self.metrics_history],
            "metric_summaries": self.get_all_metrics_summary(),
        }
        _write(filepath, data)

    def _values(self, name: str, window: int, least: int = 1) -> NDArray[np.float64]:
        if name not in _NAMES:
            raise ArgumentError(f"there is no metric {name!r}; there are {', '.join(_NAMES)}")
        if window < least:
            raise ArgumentError(f"window_size must be at least {least}, not {window}")
        last = (one.measured for one in self.metrics_history[-window:])
        return np.array([one[name] for one in last if name in one], np.float64)


class SystemMonitor:
    """Reads the machine's usage in percent, at most every ``monitoring_interval`` seconds."""

    def __init__(self, monitoring_interval: float = 1.0) -> None:
        self.monitoring_interval = monitoring_interval
        _checks.number(self, "monitoring_interval", above=0)
        self._read_at = -math.inf
        self._last: dict[str, float] = {}
        # Its first call only begins to measure.
        psutil.cpu_percent()

    def get_current_metrics(self) -> dict[str, float]:
        """Return the last reading; the numbers of an accelerator are 0 without one."""
        if time.monotonic() - self._read_at >= self.monitoring_interval:
            self._last, self._read_at = _read(), time.monotonic()
        return dict(self._last)


def _read() -> dict[str, float]:
    usage = memory = 0.0
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    # Reading must not initialize it.
    if cuda is not None and cuda.is_available() and cuda.is_initialized():
        # The driver's library raises its own errors, and needs a package of its vendor.
        with contextlib.suppress(Exception):
            free, total = cuda.mem_get_info()
            memory = 100.0 * (1 - free / total)
            usage = float(cuda.utilization())
    return {
        "cpu_usage": psutil.cpu_percent(),
        "memory_usage": psutil.virtual_memory().percent,
        "gpu_usage": usage,
        "gpu_memory": memory,
    }


class PerformanceMonitor:
    """Joins a run's numbers with the machine's, from :meth:`start_monitoring` on or in ``with``.

    A line of the log has some of them every ``log_interval`` seconds. A ``server`` of this process
    shows the latest ones with its own: to Prometheus, ``echoic top`` and the dashboard.

    >>> from echoic.agents.monitoring import PerformanceMonitor
    >>> with PerformanceMonitor() as monitor:
    ...     monitor.log_metrics(100, 5, {"success_rate": 0.4}, {"tokens_per_second": 900.0})
    >>> monitor.get_performance_report()["latest"]["success_rate"]
    0.4
    """

    def __init__(
        self,
        metrics_collector: MetricsCollector | None = None,
        system_monitor: SystemMonitor | None = None,
        log_interval: float = 10.0,
        *,
        server: echoic.Server | None = None,
    ) -> None:
        self.metrics_collector = metrics_collector or MetricsCollector()
        self.system_monitor = system_monitor or SystemMonitor()
        self.log_interval = log_interval
        self._server = server
        self._began = self._logged = time.monotonic()
        self._callbacks: list[Callable[[PerformanceMetrics], None]] = []

    def start_monitoring(self) -> None:
        """Count time from now."""
        self._began = self._logged = time.monotonic()

    def stop_monitoring(self) -> None:
        """Remove the numbers from the server."""
        self._show(dict.fromkeys(_NAMES))

    def log_metrics(
        self,
        step: int,
        episode: int,
        training_metrics: Mapping[str, Any],
        echo_rl_metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Add the numbers of a moment: ``step`` and ``episode`` count from the beginning.

        They have the names of :class:`PerformanceMetrics`; other names, and values that are no
        numbers, are left out. ``echo_rl_metrics`` override ``training_metrics``.
        """
        now = time.monotonic()
        known: dict[str, Any] = {}
        for name, value in {**training_metrics, **(echo_rl_metrics or {})}.items():
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                if name in _NAMES:
                    known[name] = float(value)
        known |= self.system_monitor.get_current_metrics()
        known |= {"timestamp": time.time(), "total_time": now - self._began}
        metrics = PerformanceMetrics(**{**known, "step": int(step), "episode": int(episode)})
        self.metrics_collector.collect_metrics(metrics)
        self._show(metrics.measured)
        if now - self._logged >= self.log_interval:
            self._logged = now
            shown = (f"{name} {known[name]:.4g}" for name in _SHOWN if name in known)
            _log.info("step %d, episode %d: %s", step, episode, ", ".join(shown))
        for callback in self._callbacks:
            try:
                callback(metrics)
            except Exception:  # a picture that can't be drawn must not end a training run
                _log.warning("a callback of the monitor failed", exc_info=True)

    def add_performance_callback(self, callback: Callable[[PerformanceMetrics], None]) -> None:
        """Call a function with the numbers of each moment; its errors are logged."""
        self._callbacks.append(callback)

    def get_performance_report(self) -> dict[str, Any]:
        """Return the latest numbers, summaries and trends, ready for JSON."""
        collector, history = self.metrics_collector, self.metrics_collector.metrics_history
        window = min(len(history), 100)
        names = _NAMES if window > 1 else ()
        trends = {name: collector.get_trend_analysis(name, window) for name in names}
        return {
            "total_time": time.monotonic() - self._began,
            "moments": len(history),
            "latest": _plain(history[-1]) if history else {},
            "metrics": collector.get_all_metrics_summary(),
            "trends": {name: trend for name, trend in trends.items() if trend},
        }

    def export_performance_data(self, filepath: str | os.PathLike[str]) -> None:
        """Write the report as JSON."""
        _write(filepath, self.get_performance_report())

    def _show(self, numbers: Mapping[str, float | None]) -> None:
        if self._server is not None and not self._server.closed:
            for name, number in numbers.items():
                self._server.set_gauge(name, number)

    def __enter__(self) -> Self:
        self.start_monitoring()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_monitoring()
