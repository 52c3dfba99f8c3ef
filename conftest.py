"""Runs the examples of README, guides, docstrings and stub, and gives all tests one BLAS thread."""

import gc
import os
import tempfile
from typing import Any

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

# Matrices are small here, and their threads spin while they wait for each other: beside workers, or
# on a machine that does other things, learning took eight times as long with two. It is read when
# numpy is imported, which nothing has done yet, and processes that tests start inherit it.
for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")


def begin(names: dict[str, Any]) -> None:
    """Have the temporary folders of a page or a docstring in one that goes with it."""
    # What a page leaves open may write to it even while it is removed.
    names["_folder"] = tempfile.TemporaryDirectory("", "echoic-page-", ignore_cleanup_errors=True)
    names["_tempdir"], tempfile.tempdir = tempfile.tempdir, names["_folder"].name


def end(names: dict[str, Any]) -> None:
    """Remove them."""
    tempfile.tempdir = names["_tempdir"]
    names["_folder"].cleanup()


# The blocks of a page share their names, as a reader would expect.
pages = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/*/*.md", "docs/*/*/*.md"],
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

pytest_collect_file = (pages + docstrings).pytest()


def pytest_collection_finish() -> None:
    """Leave what is there by now out of garbage collections.

    The tests and all that they import are 700,000 objects, which stay as long as the process.
    Hundreds of tests and measurements ask for a collection, which took half a second each.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let collections see all again: extensions look for what was leaked when the process ends."""
    gc.unfreeze()
