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

from echoic.errors import ArgumentError, ClosedError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Self

    import echoic

__all__ = [
    "METRIC_NAMES",
    "MetricsCollector",
    "MetricsLogger",
    "PerformanceMetrics",
    "PerformanceMonitor",
    "SystemMonitor",
    "plain",
]


class _Given:
    """Records the names that were given: a default of 0 is no measurement."""

    _given: set[str]

    def __new__(cls, *args: Any, **named: Any) -> Self:
        self = super().__new__(cls)
        self._given = {*METRIC_NAMES[: len(args)], *named}
        return self


@dataclass
class PerformanceMetrics(_Given):
    """The numbers of a moment. What was not measured is 0, and not in :attr:`measured`.

    Times are in seconds, usages in percent, rates shares from 0 to 1. ``timestamp`` is that of
    :func:`time.time`; ``step`` and ``episode`` count from the beginning; losses are of the last
    update; ``total_reward`` and ``episode_length`` are of an episode; the ``cpu``, ``memory`` and
    ``gpu`` numbers are of the whole machine; ``bandwidth_efficiency`` is the tracker's ``eta_bw``.
    """

    timestamp: float
    step: int
    episode: int
    policy_loss: float = 0.0
    value_loss: float = 0.0
    kl_divergence: float = 0.0
    entropy_loss: float = 0.0
    total_reward: float = 0.0
    episode_length: float = 0.0
    success_rate: float = 0.0
    cpu_usage: float = 0.0
    memory_usage: float = 0.0
    gpu_usage: float = 0.0
    gpu_memory: float = 0.0
    kv_cache_hit_rate: float = 0.0
    tokens_per_second: float = 0.0
    replay_buffer_size: float = 0.0
    hot_buffer_hit_rate: float = 0.0
    cold_buffer_hit_rate: float = 0.0
    bandwidth_efficiency: float = 0.0
    rollout_bandwidth_cost: float = 0.0
    rollout_time: float = 0.0
    training_time: float = 0.0
    total_time: float = 0.0

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the numbers that were given, or set since, in the order of the fields."""
        return tuple(
            name for name in METRIC_NAMES if name in self._given or getattr(self, name) != 0
        )


METRIC_NAMES = tuple(field.name for field in fields(PerformanceMetrics))


def plain(value: Any) -> float | None:
    """Convert to a number of Python; None for what JSON does not have."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _measured(metrics: PerformanceMetrics) -> dict[str, float | None]:
    return {name: plain(getattr(metrics, name)) for name in metrics.measured}


def _summary(values: NDArray[np.float64]) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
    }


def _write(filepath: str | os.PathLike[str], data: dict[str, Any]) -> None:
    path = Path(filepath)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1, allow_nan=False), encoding="utf-8")


class MetricsLogger:
    """Appends a line of JSON to a file for each moment; safe for threads."""

    def __init__(self, log_file: str | os.PathLike[str]) -> None:
        self.log_file = Path(log_file)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        # Readers see a line as soon as it is written.
        self._file = self.log_file.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()

    def log_metrics(self, metrics: PerformanceMetrics | Mapping[str, Any]) -> None:
        """Add a line: all numbers that were measured, or those of a mapping."""
        if isinstance(metrics, PerformanceMetrics):
            metrics = _measured(metrics)
        line = json.dumps({name: plain(value) for name, value in metrics.items()})
        with self._lock:
            if self._file.closed:
                raise ClosedError(f"{self.log_file} is closed")
            self._file.write(line + "\n")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Share of the spread in a window below which a trend is stable.
_STABLE = 0.5


class MetricsCollector:
    """Keeps the numbers of the last ``max_history`` moments; safe for threads."""

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
        return {**_summary(values), "median": float(np.median(values)), "count": int(values.size)}

    def get_all_metrics_summary(self, window_size: int = 100) -> dict[str, dict[str, float]]:
        """Summarize every number."""
        found = {name: self.get_metric_summary(name, window_size) for name in METRIC_NAMES}
        return {name: summary for name, summary in found.items() if summary}

    def get_trend_analysis(self, metric_name: str, window_size: int = 100) -> dict[str, Any]:
        """Fit a line through a window: ``trend_slope`` per moment, ``trend_direction``, values.

        The direction is ``"increasing"`` or ``"decreasing"`` if the line rises or falls by more
        than half of what the values vary around it, and else ``"stable"``. It does not depend on
        the number's unit. {} before there is a whole window.
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
        """Write the kept moments and their summaries as JSON."""
        data = {
            "timestamp": time.time(),
            "total_metrics": self._total,
            "metrics_history": [_measured(one) for one in self.metrics_history],
            "metric_summaries": self.get_all_metrics_summary(),
        }
        _write(filepath, data)

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


NAMES = ("cpu_usage", "memory_usage", "gpu_usage", "gpu_memory")
_LONGEST = 1000


class SystemMonitor:
    """Reads the machine's usage every ``monitoring_interval`` seconds, in a thread of its own.

    All four numbers are in percent; those of an accelerator are 0 without one.
    """

    def __init__(self, monitoring_interval: float = 1.0) -> None:
        if not monitoring_interval > 0:
            raise ArgumentError(f"monitoring_interval must be above 0, not {monitoring_interval}")
        self.monitoring_interval = monitoring_interval
        self._history: deque[dict[str, float]] = deque(maxlen=_LONGEST)
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self._lock = threading.Lock()

    @property
    def monitoring_active(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    def start_monitoring(self) -> None:
        """Start the thread, if it does not run."""
        with self._lock:
            if self._thread is not None:
                return
            # One for each thread: clearing that of a thread that is about to end would keep it
            # alive.
            self._end = threading.Event()
            self._thread = threading.Thread(
                target=self._look, args=(self._end,), name="echoic-system-monitor", daemon=True
            )
            self._thread.start()

    def stop_monitoring(self) -> None:
        """Stop the thread, and wait for its end."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._end.set()
        if thread is not None:
            thread.join()

    def get_current_metrics(self) -> dict[str, float]:
        """Return the last reading; read now if there is none."""
        if not self._history:
            self._history.append(self._read())
        return dict(self._history[-1])

    def get_metrics_summary(self, window_size: int = 100) -> dict[str, dict[str, float]]:
        """Summarize each number over a window: mean, deviation, extremes and the last."""
        seen = list(self._history)[-window_size:]
        columns = {name: np.array([one[name] for one in seen]) for name in NAMES if seen}
        return {
            name: {**_summary(values), "current": float(values[-1])}
            for name, values in columns.items()
        }

    def _look(self, end: threading.Event) -> None:
        while True:
            self._history.append(self._read())
            if end.wait(self.monitoring_interval):
                return

    def _read(self) -> dict[str, float]:
        gpu_usage, gpu_memory = _accelerator()
        return {
            "cpu_usage": psutil.cpu_percent(),
            "memory_usage": psutil.virtual_memory().percent,
            "gpu_usage": gpu_usage,
            "gpu_memory": gpu_memory,
        }


def _accelerator() -> tuple[float, float]:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    # Reading must not initialize it.
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        return 0.0, 0.0
    # The driver's library raises its own errors, and needs a package of its vendor.
    usage = memory = 0.0
    with contextlib.suppress(Exception):
        free, total = cuda.mem_get_info()
        memory = 100.0 * (1 - free / total)
    with contextlib.suppress(Exception):
        usage = float(cuda.utilization())
    return usage, memory


_log = logging.getLogger("echoic.agents.monitoring")
_GIVEN = {"timestamp", "step", "episode", "total_time", *NAMES}
_SHOWN = ("total_reward", "success_rate", "policy_loss", "tokens_per_second", "cpu_usage")


class PerformanceMonitor:
    """Joins a run's numbers with the machine's.

    The system monitor's thread runs between :meth:`start_monitoring` and :meth:`stop_monitoring`,
    or within ``with``.

    Args:
        metrics_collector: Keeps the numbers.
        system_monitor: Reads the machine's usage.
        log_interval: Seconds between two lines of the log.
        server: A server in this process that shows the latest numbers with its own: to
            Prometheus, ``echoic top``, the dashboard and ``Connection.server_stats``.

    Example:
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
        self._began = time.monotonic()
        self._logged = self._began
        self._callbacks: list[Callable[[PerformanceMetrics], None]] = []
        self._lock = threading.Lock()

    def start_monitoring(self) -> None:
        """Start the system monitor, and count time from now."""
        self._began = self._logged = time.monotonic()
        self.system_monitor.start_monitoring()

    def stop_monitoring(self) -> None:
        """Stop the system monitor, and remove the numbers from the server."""
        self.system_monitor.stop_monitoring()
        if self._server is not None and not self._server.closed:
            for name in METRIC_NAMES:
                self._server.set_gauge(name, None)

    def log_metrics(
        self,
        step: int,
        episode: int,
        training_metrics: Mapping[str, Any],
        echo_rl_metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Add the numbers of a moment.

        Args:
            step: Steps of the environment so far.
            episode: Episodes so far.
            training_metrics: Numbers by the names of :class:`PerformanceMetrics`; other names, and
                values that are no numbers, are left out.
            echo_rl_metrics: More of them, which override the former.
        """
        given = {**training_metrics, **(echo_rl_metrics or {})}
        numbers = {name: _number(given.get(name)) for name in METRIC_NAMES if name not in _GIVEN}
        known = {name: number for name, number in numbers.items() if number is not None}
        seen = self.system_monitor.get_current_metrics()
        now = time.monotonic()
        metrics = PerformanceMetrics(
            timestamp=time.time(),
            step=int(step),
            episode=int(episode),
            total_time=now - self._began,
            **seen,
            **known,
        )
        self.metrics_collector.collect_metrics(metrics)
        if self._server is not None and not self._server.closed:
            for name in metrics.measured:
                self._server.set_gauge(name, float(getattr(metrics, name)))
        with self._lock:
            due = now - self._logged >= self.log_interval
            if due:
                self._logged = now
            callbacks = tuple(self._callbacks)
        if due:
            shown = (name for name in _SHOWN if name in metrics.measured)
            text = ", ".join(f"{name} {getattr(metrics, name):.4g}" for name in shown)
            _log.info("step %d, episode %d: %s", step, episode, text)
        for callback in callbacks:
            try:
                callback(metrics)
            except Exception:  # a picture that can't be drawn must not end a training run
                _log.warning("a callback of the monitor failed", exc_info=True)

    def add_performance_callback(self, callback: Callable[[PerformanceMetrics], None]) -> None:
        """Call a function with the numbers of each moment; its errors are logged."""
        with self._lock:
            self._callbacks.append(callback)

    def get_performance_report(self) -> dict[str, Any]:
        """Return the latest numbers, summaries and trends, ready for JSON."""
        collector = self.metrics_collector
        history = collector.metrics_history
        window = min(len(history), 100)
        kept = ("trend_slope", "trend_direction", "window_size")
        found = (
            {name: collector.get_trend_analysis(name, window) for name in METRIC_NAMES}
            if window > 1
            else {}
        )
        return {
            "total_time": time.monotonic() - self._began,
            "moments": len(history),
            "latest": _measured(history[-1]) if history else {},
            "metrics": collector.get_all_metrics_summary(),
            "system": self.system_monitor.get_metrics_summary(),
            "trends": {
                name: {key: trend[key] for key in kept} for name, trend in found.items() if trend
            },
        }

    def export_performance_data(self, filepath: str | os.PathLike[str]) -> None:
        """Write the report as JSON."""
        _write(filepath, self.get_performance_report())

    def __enter__(self) -> Self:
        self.start_monitoring()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_monitoring()


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
