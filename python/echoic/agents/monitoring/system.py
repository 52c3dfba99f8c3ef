"""What the machine does: processors, memory, and the accelerator where torch knows one.

Processors and memory are read from ``/proc``; where there is none, they are of this process alone.
torch is only asked if somebody else has imported it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from echoic.errors import ArgumentError

__all__ = ["SystemMonitor"]

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
        self._processors = _Processors()
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
            "cpu_usage": self._processors.percent(),
            "memory_usage": _memory(),
            "gpu_usage": gpu_usage,
            "gpu_memory": gpu_memory,
        }


class _Processors:
    """How busy all processors were since the last look, or since the start."""

    def __init__(self) -> None:
        self._before = self._times()

    def percent(self) -> float:
        busy, total = self._times()
        before_busy, before_total = self._before
        if total > before_total:
            self._before = (busy, total)
            return min(max(100.0 * (busy - before_busy) / (total - before_total), 0.0), 100.0)
        return 0.0

    @staticmethod
    def _times() -> tuple[float, float]:
        try:
            with Path("/proc/stat").open(encoding="ascii") as lines:
                times = [float(word) for word in lines.readline().split()[1:9]]
        except (OSError, ValueError):
            return time.process_time(), time.monotonic() * (os.cpu_count() or 1)
        # The fourth is idle, the fifth waits for a disk.
        return sum(times) - times[3] - times[4], sum(times)


def _memory() -> float:
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            told = dict(line.split(":", 1) for line in lines)
        total, free = (float(told[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError):
        total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / 1024
        free = total - float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return min(max(100.0 * (1 - free / total), 0.0), 100.0)


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
