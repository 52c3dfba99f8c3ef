"""TF-Agents' own tests of its replay on Reverb, run on `echoic.reverb`.

Set ECHOIC_UPSTREAM_TF_AGENTS to its unpacked wheel, which has the tests. They were counted with
0.19.0 and TensorFlow 2.15, in an environment that `make drop-ins` makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import upstream

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly

MODULES = ("reverb_replay_buffer", "reverb_utils", "rlds_to_reverb")


@pytest.mark.timeout(1200)
def test_its_replay_buffers_pass_all_of_their_tests(tmp_path: Path) -> None:
    root = upstream.checkout("TF_AGENTS")
    upstream.run(
        [root / "tf_agents" / "replay_buffers" / f"{module}_test.py" for module in MODULES],
        tmp_path,
        drop_in="echoic.reverb",
        expected={},
        passed=92,
        path=[root],
        timeout=1100,
    )
