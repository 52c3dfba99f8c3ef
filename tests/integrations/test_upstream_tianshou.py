"""Tianshou's own tests of its buffers, run on `echoic.integrations.tianshou`.

Set ECHOIC_UPSTREAM_TIANSHOU to a checkout of its repository: its packages have no tests. They were
counted with those of 2.0.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import echoic
import pytest

pytest.importorskip("tianshou", reason="no tianshou here")

pytestmark = pytest.mark.nightly

# What the names of `tianshou.data` are while the tests run.
REPLACED = """
import tianshou.data
from echoic.integrations import tianshou as ours

for name in ours.__all__:
    if hasattr(tianshou.data, name):
        setattr(tianshou.data, name, getattr(ours, name))
"""

# Of buffers that stay Tianshou's: hindsight replay, a main buffer with cached ones, and the tree.
NOT_OURS = (
    *("test_herreplaybuffer", "test_cachedbuffer", "test_multibuf_stack", "test_segtree"),
    # Has a case of a cached buffer; that of vectors is in our own tests.
    "test_multibuf_hdf5",
    # Ends with a cached buffer.
    "test_update",
)


@pytest.mark.timeout(900)
def test_tianshous_tests_of_its_buffers_pass(tmp_path: Path) -> None:
    folder = os.environ.get("ECHOIC_UPSTREAM_TIANSHOU")
    if not folder:
        pytest.skip("no checkout of its sources: set ECHOIC_UPSTREAM_TIANSHOU")
    (tmp_path / "replaced.py").write_text(REPLACED)
    ours = Path(echoic.__file__).parents[1]
    paths = map(str, (tmp_path, ours, Path(folder).absolute()))
    tests = Path(folder).absolute() / "test" / "base" / "test_buffer.py"
    options = ("-q", "-p", "replaced", "-p", "no:cacheprovider", "-p", "no:sybil", "-c", os.devnull)
    chosen = " and ".join(f"not {name}" for name in NOT_OURS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", tests, "-k", chosen],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "12 passed" in done.stdout, done.stdout[-2000:]
