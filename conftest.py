"""Runs the examples of README, guides, docstrings and stub, and chooses the tier of tests.

All tests have one BLAS thread, and a folder for the sockets of `shm://` that no other process uses.
"""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from sybil import Example, Sybil
from sybil.document import PythonDocStringDocument
from sybil.evaluators.python import pad
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection

pytest_plugins = ["tiers", "suite_report", "skips", "shared_ray"]

# Matrices are small here, and their threads spin while they wait for each other: beside workers, or
# on a machine that does other things, learning took eight times as long with two. It is read when
# numpy is imported, which nothing has done yet, and processes that tests start inherit it.
for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Pages and tests name their servers as a reader would. Those of another process, of this run or of
# another one, have the same names in a folder of their own.
runtime = tempfile.mkdtemp("", "echoic-run-")
os.environ["XDG_RUNTIME_DIR"] = runtime


def begin(names: dict[str, Any]) -> None:
    """Have the temporary folders of a page or a docstring in one that goes with it."""
    # What a page leaves open may write to it even while it is removed.
    names["_folder"] = tempfile.TemporaryDirectory("", "echoic-page-", ignore_cleanup_errors=True)
    names["_tempdir"], tempfile.tempdir = tempfile.tempdir, names["_folder"].name


def end(names: dict[str, Any]) -> None:
    """Remove them."""
    tempfile.tempdir = names["_tempdir"]
    names["_folder"].cleanup()


# Blocks of these pages are what a new reader pastes first.
ALONE = ["README.md", "docs/start.md"]

# What a block may take on a busy machine.
PATIENCE = 120.0


def run_alone(example: Example) -> None:
    """Run a block as a program of its own.

    One that begins with `# learner.py` goes on beside the block after it, and must end after that.
    """
    names = example.namespace
    folder = names["_folder"].name
    # Where addresses of shared memory have their sockets: other runs use the same addresses.
    settings = {**os.environ, "XDG_RUNTIME_DIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
    source = pad(example.parsed, example.line + example.parsed.line_offset)
    file = Path(folder, f"block-{example.line}.py")
    file.write_text(source, encoding="utf-8")
    program = subprocess.Popen(
        [sys.executable, file],
        cwd=folder,
        env=settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    beside = names.setdefault("_beside", [])
    beside.append(program)
    if example.parsed.startswith("# learner.py"):
        return
    while beside:
        # The last one first: a learner ends when its workers have brought all.
        _, said = beside[-1].communicate(timeout=PATIENCE)
        if beside.pop().returncode:
            raise AssertionError(said)


def end_alone(names: dict[str, Any]) -> None:
    """End what a block that failed has left running, and remove its files."""
    for program in names.get("_beside", []):
        program.kill()
        program.communicate()
    end(names)


alone = Sybil(
    parsers=[CodeBlockParser("python", run_alone)], patterns=ALONE, setup=begin, teardown=end_alone
)
# The blocks of other pages share their names, as a reader would expect.
pages = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["docs/*.md", "docs/*/*.md", "docs/*/*/*.md"],
    excludes=ALONE,
    setup=begin,
    teardown=end,
)
docstrings = Sybil(
    parsers=[DocTestParser()],
    patterns=["*.py", "*.pyi"],
    path="python/echoic",
    document_types={".py": PythonDocStringDocument, ".pyi": PythonDocStringDocument},
    setup=begin,
    teardown=end,
)

pytest_collect_file = SybilCollection((alone, pages, docstrings)).pytest()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Collect no garbage while tests are collected: there is none, and to look takes a fifth."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave what is there by now out of garbage collections.

    The tests and all that they import are 700,000 objects, which stay as long as the process.
    Hundreds of tests and measurements ask for a collection, which took half a second each.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Remove the sockets of this process."""
    shutil.rmtree(runtime, ignore_errors=True)


def pytest_sessionfinish() -> None:
    """Let collections see all again: extensions look for what was leaked when the process ends."""
    gc.unfreeze()
