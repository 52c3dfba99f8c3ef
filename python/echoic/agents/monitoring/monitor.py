"""One place for the numbers of a run: kept, told to whoever asked, and shown with the server's."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic.agents.monitoring.collector import MetricsCollector
from echoic.agents.monitoring.metrics import METRIC_NAMES, PerformanceMetrics, plain
from echoic.agents.monitoring.system import NAMES, SystemMonitor

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    import echoic

__all__ = ["PerformanceMonitor"]

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
