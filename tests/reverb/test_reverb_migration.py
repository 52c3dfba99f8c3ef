"""The program that is timed on both sides, on ours: it checks what it samples by itself."""

import json
import pathlib
import subprocess
import sys

import pytest
from reverb_under_test import UPSTREAM

PROGRAM = pathlib.Path(__file__).parents[2] / "benchmarks" / "migration" / "program.py"


@pytest.mark.skipif(UPSTREAM, reason="the benchmark runs it on upstream")
@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_it_gives_a_rate_for_each_workload(place):
    command = [sys.executable, str(PROGRAM), "echoic.reverb", place, "40"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.stderr == ""
    rates = json.loads(ran.stdout)
    assert len(rates) == 7
    assert all(rate > 0 for rate in rates.values())
