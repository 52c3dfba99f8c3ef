"""What a training run does, over time: its own numbers, and those of the machine beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.monitoring.collector import *
    from echoic.agents.monitoring.metrics import *
    from echoic.agents.monitoring.monitor import *
    from echoic.agents.monitoring.system import *

_MODULES = {
    "collector": "MetricsCollector",
    "metrics": "MetricsLogger PerformanceMetrics",
    "monitor": "PerformanceMonitor",
    "system": "SystemMonitor",
}
__all__, __getattr__, __dir__ = lazily(__name__, _MODULES)
