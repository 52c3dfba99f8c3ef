"""What a training run does, over time: its own numbers, and those of the machine beside them."""

from __future__ import annotations

from echoic.agents._lazy import lazily

_MODULES = {
    "collector": ("MetricsCollector",),
    "logger": ("MetricsLogger",),
    "metrics": ("PerformanceMetrics",),
    "monitor": ("PerformanceMonitor",),
    "system": ("SystemMonitor",),
}
__all__, __getattr__, __dir__ = lazily(__name__, _MODULES)
