"""Which method is better, and how sure that is: a benchmark, its statistics, its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.evaluation.benchmark import (
        EchoRLBenchmark,
    )
    from echoic.agents.evaluation.config import (
        BenchmarkConfig,
    )
    from echoic.agents.evaluation.results import (
        BenchmarkResult,
        Comparison,
        TaskResult,
    )
    from echoic.agents.evaluation.rows import (
        Rows,
        read_rows,
    )
    from echoic.agents.evaluation.statistics import (
        bootstrap_interval,
        holm,
        interquartile_mean,
        permutation_test,
        steps_to_threshold,
        wilcoxon_test,
    )

__all__ = [
    "BenchmarkConfig",
    "BenchmarkResult",
    "Comparison",
    "EchoRLBenchmark",
    "Rows",
    "TaskResult",
    "bootstrap_interval",
    "holm",
    "interquartile_mean",
    "permutation_test",
    "read_rows",
    "steps_to_threshold",
    "wilcoxon_test",
]

_MODULES = {
    "benchmark": ("EchoRLBenchmark",),
    "config": ("BenchmarkConfig",),
    "results": (
        "BenchmarkResult",
        "Comparison",
        "TaskResult",
    ),
    "rows": (
        "Rows",
        "read_rows",
    ),
    "statistics": (
        "bootstrap_interval",
        "holm",
        "interquartile_mean",
        "permutation_test",
        "steps_to_threshold",
        "wilcoxon_test",
    ),
}
_, __getattr__, __dir__ = lazily(__name__, _MODULES)
