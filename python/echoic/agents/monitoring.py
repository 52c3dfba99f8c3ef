"""What a training run does over time: its own numbers, and those of the machine beside them."""

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
    from types import TracebackType

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
    """Notes by which names it was made: a default of 0 is no measurement."""

    _given: set[str]

    def __new__(cls, *args: Any, **named: Any) -> Self:
        self = super().__new__(cls)
        self._given = {*METRIC_NAMES[: len(args)], *named}
        return self


@dataclass
class PerformanceMetrics(_Given):
    """The numbers of a moment. What was not measured is 0, and not in :attr:`measured`.

    Attributes:
        timestamp: In seconds, of :func:`time.time`.
        step: Steps of the environment so far.
        episode: Episodes so far.
        policy_loss: Of the last update.
        value_loss: As above.
        kl_divergence: As above.
        entropy_loss: As above.
        total_reward: Of an episode.
        episode_length: Its steps.
        success_rate: The share of episodes that succeeded.
        cpu_usage: Percent of all processors.
        memory_usage: Percent of the machine's memory.
        gpu_usage: Percent of the time that the accelerator computed.
        gpu_memory: Percent of its memory.
        kv_cache_hit_rate: The share of tokens that the cache had.
        tokens_per_second: Read and written.
        replay_buffer_size: Experiences in the replay.
        hot_buffer_hit_rate: The share of samples from its hot part.
        cold_buffer_hit_rate: The same of its cold part.
        bandwidth_efficiency: What the tracker calls ``eta_bw``.
        rollout_bandwidth_cost: What rollouts cost beyond what was reused.
        rollout_time: Seconds of acting.
        training_time: Seconds of learning.
        total_time: Seconds since monitoring began.
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
        """The names of what was given, or set to more than 0 since, in the order of the fields."""
        return tuple(
            name for name in METRIC_NAMES if name in self._given or getattr(self, name) != 0
        )


METRIC_NAMES = tuple(field.name for field in fields(PerformanceMetrics))


def plain(value: Any) -> float | None:
    """A number of Python, whatever it was of; None for what JSON does not have."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


class MetricsLogger:
    """Adds a line to a file for each moment; threads may do so at once."""

    def __init__(self, log_file: str | os.PathLike[str]) -> None:
        self.log_file = Path(log_file)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        # A line is there for readers when it is written.
        self._file = self.log_file.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()

    def log_metrics(self, metrics: PerformanceMetrics | Mapping[str, Any]) -> None:
        """Add a line: all numbers that were measured, or those of a mapping."""
        if isinstance(metrics, PerformanceMetrics):
            metrics = {name: getattr(metrics, name) for name in metrics.measured}
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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


NAMES = ("cpu_usage", "memory_usage", "gpu_usage", "gpu_memory")
_LONGEST = 1000


class SystemMonitor:
    """Looks at the machine every ``monitoring_interval`` seconds, from a thread of its own.

    All four numbers are in percent; those of an accelerator are 0 where there is none.
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
        """Whether it looks."""
        return self._thread is not None

    def start_monitoring(self) -> None:
        """Begin to look; one that does goes on."""
        with self._lock:
            if self._thread is not None:
                return
            # One for each thread: clearing that of a thread that was just told to end would keep
            # it alive.
            self._end = threading.Event()
            self._thread = threading.Thread(
                target=self._look, args=(self._end,), name="echoic-system-monitor", daemon=True
            )
            self._thread.start()

    def stop_monitoring(self) -> None:
        """Look no longer; its thread has ended when this returns."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._end.set()
        if thread is not None:
            thread.join()

    def get_current_metrics(self) -> dict[str, float]:
        """Return what was seen last; it looks now if it never did."""
        if not self._history:
            self._history.append(self._read())
        return dict(self._history[-1])

    def get_metrics_summary(self, window_size: int = 100) -> dict[str, dict[str, float]]:
        """Return mean, deviation, extremes and the last of each number, of late."""
        seen = list(self._history)[-window_size:]
        found = {}
        for name in NAMES if seen else ():
            values = np.array([one[name] for one in seen])
            found[name] = {
                "mean": float(values.mean()),
                "std": float(values.std()),
                "min": float(values.min()),
                "max": float(values.max()),
                "current": float(values[-1]),
            }
        return found

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
    # Asking must not be what starts it.
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        return 0.0, 0.0
    # The driver's library has errors of its own, and needs a package of its maker.
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

    Its thread, that of the system monitor, runs between :meth:`start_monitoring` and
    :meth:`stop_monitoring`, or within ``with``.

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
        """Prepare a monitor.

        Args:
            metrics_collector: What keeps the numbers.
            system_monitor: What looks at the machine.
            log_interval: Seconds between two lines of the log.
            server: A server in this process that shows the latest numbers with its own: to
                Prometheus, ``echoic top``, the dashboard and ``Connection.server_stats``.
        """
        self.metrics_collector = metrics_collector or MetricsCollector()
        self.system_monitor = system_monitor or SystemMonitor()
        self.log_interval = log_interval
        self._server = server
        self._began = time.monotonic()
        self._logged = self._began
        self._callbacks: list[Callable[[PerformanceMetrics], None]] = []
        self._lock = threading.Lock()

    def start_monitoring(self) -> None:
        """Begin to look at the machine, and to count time."""
        self._began = self._logged = time.monotonic()
        self.system_monitor.start_monitoring()

    def stop_monitoring(self) -> None:
        """End; the thread has ended when this returns, and the server shows nothing more of it."""
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
            training_metrics: Numbers by the names of :class:`PerformanceMetrics`; others are left
                out.
            echo_rl_metrics: As above; of a name that both have, this one counts.
        """
        told = {**training_metrics, **(echo_rl_metrics or {})}
        known = {}
        for name in METRIC_NAMES:
            # A number that there is not must not end a training run.
            if name not in _GIVEN and (number := _number(told.get(name))) is not None:
                known[name] = number
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
            _log.info("step %d, episode %d: %s", step, episode, _short(metrics))
        for callback in callbacks:
            _call(callback, metrics)

    def add_performance_callback(self, callback: Callable[[PerformanceMetrics], None]) -> None:
        """Call something with the numbers of each moment; its errors are logged."""
        with self._lock:
            self._callbacks.append(callback)

    def get_performance_report(self) -> dict[str, Any]:
        """Return the latest numbers, summaries and trends, ready for JSON."""
        history = self.metrics_collector.metrics_history
        latest = history[-1] if history else None
        window = min(len(history), 100)
        trends = {}
        for name in METRIC_NAMES if window > 1 else ():
            trend = self.metrics_collector.get_trend_analysis(name, window)
            if trend:
                trends[name] = {
                    key: trend[key] for key in ("trend_slope", "trend_direction", "window_size")
                }
        return {
            "total_time": time.monotonic() - self._began,
            "moments": len(history),
            "latest": (
                {
                    name: plain(getattr(latest, name))
                    for name in METRIC_NAMES
                    if name in latest.measured
                }
                if latest
                else {}
            ),
            "metrics": self.metrics_collector.get_all_metrics_summary(),
            "system": self.system_monitor.get_metrics_summary(),
            "trends": trends,
        }

    def export_performance_data(self, filepath: str | os.PathLike[str]) -> None:
        """Write the report as JSON."""
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.get_performance_report(), indent=1, allow_nan=False)
        path.write_text(text, encoding="utf-8")

    def __enter__(self) -> Self:
        self.start_monitoring()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_monitoring()


def _call(callback: Callable[[PerformanceMetrics], None], metrics: PerformanceMetrics) -> None:
    try:
        callback(metrics)
    except Exception:  # a picture that can't be drawn must not end a training run
        _log.warning("a callback of the monitor failed", exc_info=True)


def _short(metrics: PerformanceMetrics) -> str:
    shown = (name for name in _SHOWN if name in metrics.measured)
    return ", ".join(f"{name} {getattr(metrics, name):.4g}" for name in shown)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
