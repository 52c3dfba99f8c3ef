"""Which method is better, and how sure that is: a benchmark, its statistics, its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.evaluation.benchmark import *
    from echoic.agents.evaluation.config import *
    from echoic.agents.evaluation.results import *
    from echoic.agents.evaluation.rows import *
    from echoic.agents.evaluation.statistics import *

_MODULES = {
    "benchmark": "EchoRLBenchmark",
    "config": "BenchmarkConfig",
    "results": "BenchmarkResult Comparison TaskResult",
    "rows": "Rows read_rows",
    "statistics": (
        "bootstrap_interval holm interquartile_mean permutation_test steps_to_threshold"
    ),
}
__all__, __getattr__, __dir__ = lazily(__name__, _MODULES)
