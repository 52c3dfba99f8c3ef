"""What the machine does: processors, memory, and the accelerator where torch knows one.

torch is only asked if somebody else has imported it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from typing import Any

import numpy as np
import psutil

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
