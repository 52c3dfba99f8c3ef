"""The example of a cluster learns while a shard and a worker are killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

for needed in ("ray", "torch", "gymnasium", "rich"):
    pytest.importorskip(needed)

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_run_that_loses_a_shard_and_a_worker_reaches_its_target():
    # A busy machine is given time to start Ray.
    environment = os.environ | {"RAY_agent_register_timeout_ms": "120000", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "examples.ray_distributed_dqn", "--target", "100"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("is killed; it held", "Shard 1 is back", "Worker 0 is back", "Reached the target"):
        assert said in done.stdout
