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

# Ends an episode at a terminal state by writing into the array of dones, of which ours is a copy.
NOT_RUN = "test_nstep_no_terminations"


@pytest.mark.timeout(3600)
def test_upstreams_tests_pass(tmp_path: Path) -> None:
    root = upstream.checkout("STABLE_BASELINES3")
    upstream.run(
        [root / "tests" / f"{name}.py" for name in FILES],
        tmp_path,
        drop_in="stable_baselines3_names",
        expected={},
        passed=200,
        path=[Path(__file__).parent],
        options=["-k", f"not {NOT_RUN}"],
        timeout=3500,
    )
