"""rlox's own tests of buffers and primitives, run on `echoic.rlox`.

Set ECHOIC_UPSTREAM_RLOX to a checkout of its repository: its packages have no tests. They were
counted with 1.2.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import upstream

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly

FILES = (
    *("tests/python/test_bench_buffer_ops.py", "tests/python/test_bench_gae.py"),
    *("tests/python/test_bench_llm.py", "experiments/test_correctness_buffer.py"),
    *("experiments/test_correctness_gae.py", "experiments/test_correctness_llm_ops.py"),
)
# Reports of single files have no module in front of these names.
TIMED = (
    *(f"TestBenchBufferPush::test_rlox_push_throughput_{name}" for name in ("cartpole", "atari")),
    *(f"TestBenchBufferSample::test_rlox_sample_latency[{n}]" for n in (32, 64, 256, 1024)),
    "TestBenchZeroCopy::test_zero_copy_faster_than_explicit_copy",
    *(f"TestBenchGAEComputation::test_rlox_gae_speed[{2**n}]" for n in (7, 9, 11, 13, 15)),
    "TestBenchGAEComputation::test_rlox_gae_batched_across_envs",
    "TestGAENumpyBaseline::test_numpy_gae_profiling[128]",
    *(
        f"TestBenchGRPOAdvantages::test_rlox_grpo_vs_numpy[{size}]"
        for size in ("16-4", "64-8", "256-16")
    ),
    *(f"TestBenchTokenKL::test_rlox_token_kl_vs_numpy[{size}]" for size in (128, 512, 2048, 8192)),
)


@pytest.mark.timeout(900)
def test_upstreams_tests_pass(tmp_path: Path) -> None:
    root = upstream.checkout("RLOX")
    upstream.run(
        [root / file for file in FILES],
        tmp_path,
        drop_in="echoic.rlox",
        expected={},
        unsteady=dict.fromkeys(TIMED, "compares times"),
        passed=83,
        timeout=800,
    )
