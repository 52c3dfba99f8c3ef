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
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from echoic.agents import _checks
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
]

_log = logging.getLogger("echoic.agents.monitoring")
_SYSTEM = ("cpu_usage", "memory_usage", "gpu_usage", "gpu_memory")
_SHOWN = ("total_reward", "success_rate", "policy_loss", "tokens_per_second", "cpu_usage")


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


def _plain(metrics: PerformanceMetrics | Mapping[str, Any]) -> dict[str, float | None]:
    """Return the measured numbers as JSON has them: None for what is not finite."""
    if isinstance(metrics, PerformanceMetrics):
        metrics = {name: getattr(metrics, name) for name in metrics.measured}
    numbers = {name: math.nan if one is None else float(one) for name, one in metrics.items()}
    return {name: one if math.isfinite(one) else None for name, one in numbers.items()}


def _summary(values: NDArray[np.float64], **more: float) -> dict[str, float]:
    named = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
    return {**{name: float(value) for name, value in named.items()}, **more}


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
        line = json.dumps(_plain(metrics))
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
        return _summary(values, median=float(np.median(values)), count=int(values.size))

    def get_all_metrics_summary(self, window_size: int = 100) -> dict[str, dict[str, float]]:
        """Summarize every number."""
        found = {name: self.get_metric_summary(name, window_size) for name in METRIC_NAMES}
        return {name: summary for name, summary in found.items() if summary}

    def get_trend_analysis(self, metric_name: str, window_size: int = 100) -> dict[str, Any]:
        """Fit a line through a window: ``trend_slope`` per moment, ``trend_direction``, values.

        The direction is ``"increasing"`` or ``"decreasing"`` if the line rises or falls by more
        than the deviation of the values around it, and else ``"stable"``. It does not depend on
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
        # Rounding is no trend.
        least = max(float(rest.std()), 1e-12 * float(np.abs(values).max()))
        is_stable = abs(slope) * (values.size - 1) <= least
        return {
            "trend_slope": slope,
            "trend_direction": (
                "stable" if is_stable else "increasing" if slope > 0 else "decreasing"
            ),
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

    def _values(self, name: str, window: int) -> NDArray[np.float64]:
        if name not in METRIC_NAMES:
            raise ArgumentError(f"there is no metric {name!r}; there are {', '.join(METRIC_NAMES)}")
        if window < 1:
            raise ArgumentError(f"window_size must be at least 1, not {window}")
        with self._lock:
            # From the end of the deque: its middle is slow to reach.
            last = list(islice(reversed(self._history), window))[::-1]
        return np.array([getattr(one, name) for one in last if name in one.measured], np.float64)


class SystemMonitor:
    """Reads the machine's usage every ``monitoring_interval`` seconds, in a thread of its own.

    All four numbers are in percent; those of an accelerator are 0 without one.
    """

    def __init__(self, monitoring_interval: float = 1.0) -> None:
        self.monitoring_interval = monitoring_interval
        _checks.number(self, "monitoring_interval", above=0)
        self._history: deque[dict[str, float]] = deque(maxlen=1000)
        self._running: tuple[threading.Thread, threading.Event] | None = None
        self._lock = threading.Lock()

    @property
    def monitoring_active(self) -> bool:
        """Whether the thread runs."""
        return self._running is not None

    def start_monitoring(self) -> None:
        """Start the thread, if it does not run."""
        with self._lock:
            if self._running is None:
                end = threading.Event()
                name = "echoic-system-monitor"
                thread = threading.Thread(target=self._look, args=(end,), name=name, daemon=True)
                self._running = thread, end
                thread.start()

    def stop_monitoring(self) -> None:
        """Stop the thread, and wait for its end."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running[1].set()
            running[0].join()

    def get_current_metrics(self) -> dict[str, float]:
        """Return the last reading; read now if there is none."""
        if not self._history:
            self._history.append(_read())
        return dict(self._history[-1])

    def get_metrics_summary(self, window_size: int = 100) -> dict[str, dict[str, float]]:
        """Summarize each number over a window: mean, deviation, extremes and the last."""
        seen = list(self._history)[-window_size:]
        columns = {name: np.array([one[name] for one in seen]) for name in _SYSTEM if seen}
        return {name: _summary(each, current=float(each[-1])) for name, each in columns.items()}

    def _look(self, end: threading.Event) -> None:
        self._history.append(_read())
        while not end.wait(self.monitoring_interval):
            self._history.append(_read())


def _read() -> dict[str, float]:
    """Return the machine's usage in percent."""
    usage = memory = 0.0
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    # Reading must not initialize it.
    if cuda is not None and cuda.is_available() and cuda.is_initialized():
        # The driver's library raises its own errors, and needs a package of its vendor.
        with contextlib.suppress(Exception):
            free, total = cuda.mem_get_info()
            memory = 100.0 * (1 - free / total)
            usage = float(cuda.utilization())
    numbers = psutil.cpu_percent(), psutil.virtual_memory().percent, usage, memory
    return dict(zip(_SYSTEM, numbers, strict=True))


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
        """Start the system monitor, and count time from now."""
        self._began = self._logged = time.monotonic()
        self.system_monitor.start_monitoring()

    def stop_monitoring(self) -> None:
        """Stop the system monitor, and remove the numbers from the server."""
        self.system_monitor.stop_monitoring()
        self._show(dict.fromkeys(METRIC_NAMES))

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
        now = time.monotonic()
        known: dict[str, Any] = {}
        for name, value in {**training_metrics, **(echo_rl_metrics or {})}.items():
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                if name in METRIC_NAMES:
                    known[name] = float(value)
        known |= self.system_monitor.get_current_metrics()
        known |= {"timestamp": time.time(), "step": int(step), "episode": int(episode)}
        metrics = PerformanceMetrics(**{**known, "total_time": now - self._began})
        self.metrics_collector.collect_metrics(metrics)
        numbers = {name: float(getattr(metrics, name)) for name in metrics.measured}
        self._show(numbers)
        if now - self._logged >= self.log_interval:
            self._logged = now
            text = ", ".join(f"{name} {numbers[name]:.4g}" for name in _SHOWN if name in numbers)
            _log.info("step %d, episode %d: %s", step, episode, text)
        for callback in tuple(self._callbacks):
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
        trends = {}
        for name in METRIC_NAMES if window > 1 else ():
            trend = collector.get_trend_analysis(name, window)
            if trend:
                del trend["recent_values"]
                trends[name] = trend
        return {
            "total_time": time.monotonic() - self._began,
            "moments": len(history),
            "latest": _plain(history[-1]) if history else {},
            "metrics": collector.get_all_metrics_summary(),
            "system": self.system_monitor.get_metrics_summary(),
            "trends": trends,
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
