"""Stable-Baselines3's own tests of off-policy algorithms, run on our buffers.

Set ECHOIC_UPSTREAM_STABLE_BASELINES3 to its unpacked source package, which has the tests. They were
counted with 2.9.2.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "drop_ins"))

import upstream

pytest.importorskip("stable_baselines3", reason="no stable_baselines3 here")

pytestmark = pytest.mark.nightly

FILES = ("test_buffers", "test_her", "test_n_step_replay", "test_run", "test_save_load")

EXPECTED = {
    f"test_n_step_replay::test_nstep_no_terminations[{n}]": (
        "writes into the array of dones to end an episode at a terminal state"
    )
    for n in (3, 5)
}


@pytest.mark.timeout(3600)
def test_upstreams_tests_pass(tmp_path: Path) -> None:
    root = upstream.checkout("STABLE_BASELINES3")
    upstream.run(
        [root / "tests" / f"{name}.py" for name in FILES],
        tmp_path,
        drop_in="stable_baselines3_names",
        expected=EXPECTED,
        passed=300,
        path=[Path(__file__).parent],
        timeout=3500,
    )
