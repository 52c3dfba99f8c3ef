"""What a training run does, over time: its own numbers, and those of the machine beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.monitoring.collector import (
        MetricsCollector,
    )
    from echoic.agents.monitoring.metrics import (
        MetricsLogger,
        PerformanceMetrics,
    )
    from echoic.agents.monitoring.monitor import (
        PerformanceMonitor,
    )
    from echoic.agents.monitoring.system import (
        SystemMonitor,
    )

__all__ = [
    "MetricsCollector",
    "MetricsLogger",
    "PerformanceMetrics",
    "PerformanceMonitor",
    "SystemMonitor",
]

_MODULES = {
    "collector": ("MetricsCollector",),
    "metrics": ("MetricsLogger", "PerformanceMetrics"),
    "monitor": ("PerformanceMonitor",),
    "system": ("SystemMonitor",),
}
_, __getattr__, __dir__ = lazily(__name__, _MODULES)
