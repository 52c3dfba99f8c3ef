"""Which method is better, and how sure that is: a benchmark, its statistics, its report."""

from __future__ import annotations

from echoic.agents.evaluation.benchmark import EchoRLBenchmark, read_rows
from echoic.agents.evaluation.config import BenchmarkConfig
from echoic.agents.evaluation.results import BenchmarkResult, TaskResult

__all__ = ["BenchmarkConfig", "BenchmarkResult", "EchoRLBenchmark", "TaskResult", "read_rows"]
