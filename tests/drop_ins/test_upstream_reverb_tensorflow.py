"""Reverb's own tests of TensorFlow, run on `echoic.reverb`: set ECHOIC_UPSTREAM_REVERB.

They were counted with 0.14.0, where TensorFlow is 2.15: `make tensorflow` runs them so.
"""

from __future__ import annotations

import importlib.util
import shutil
from typing import TYPE_CHECKING

import pytest
import upstream

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1900),
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None,
        reason="no TensorFlow: make tensorflow has it",
    ),
]

CODE = "a call of Python in a graph can't choose the code of its error: here it is UnknownError"

GRAPH = ["timestep_dataset_test.py", "trajectory_dataset_test.py", "tf_client_test.py"]
IN_GRAPHS = {
    "tf_client_test.SampleOpTest::test_forwards_server_error": CODE,
    "tf_client_test.SampleOpTest::test_dtype_mismatch_result_in_error_raised": CODE,
    "timestep_dataset_test.TimestepDatasetTest::test_session_is_closed_while_op_pending": (
        "an iterator that fetches ahead ends when its session is closed"
    ),
    "timestep_dataset_test.TimestepDatasetTest::test_distribution_strategy": (
        "passes alone: the graphs of datasets that were made before have set up the devices"
    ),
}
EAGER = [
    "pattern_dataset_test.py",
    "timestep_dataset_eager_test.py",
    "trajectory_dataset_eager_test.py",
]


@pytest.mark.parametrize(
    ("names", "expected", "passed", "prelude"),
    [
        (GRAPH, IN_GRAPHS, 64, "import tensorflow\ntensorflow.compat.v1.disable_eager_execution()"),
        (EAGER, {}, 15, ""),
    ],
    ids=["graph", "eager"],
)
def test_upstreams_tests_pass(
    tmp_path: Path, names: list[str], expected: dict[str, str], passed: int, prelude: str
) -> None:
    root = upstream.checkout("REVERB")
    # Beside them the package's other files would be taken for `reverb`.
    tests = tmp_path / "tests"
    tests.mkdir()
    files = [shutil.copy(root / "reverb" / name, tests) for name in names]
    upstream.run(
        files,
        tmp_path,
        drop_in="echoic.reverb",
        expected=expected,
        passed=passed,
        path=[tests],
        prelude=prelude,
        separately=True,
        timeout=900,
    )
