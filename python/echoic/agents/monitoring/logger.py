"""The numbers of a run as lines of JSON, to be followed while it goes on."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic.agents.monitoring.metrics import PerformanceMetrics, plain
from echoic.errors import ClosedError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["MetricsLogger"]


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
