"""Runs another library's own tests on the drop-in that has its names.

The tests are not ours and not in this repository. A checkout, or an unpacked source package, is
named by an environment variable: ECHOIC_UPSTREAM_ECHO for `id-echo`, and so on. Without it the test
is skipped. What upstream's tests import is ours: every process of the run, those that tests start
too, has the alias of the drop-in installed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import echoic
import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["checkout", "run"]


def checkout(library: str) -> Path:
    """Return the folder that ECHOIC_UPSTREAM_<library> names, or skip the test."""
    variable = f"ECHOIC_UPSTREAM_{library}"
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"no checkout of its sources: set {variable}")
    return Path(folder).absolute()


def run(
    files: Sequence[Path],
    tmp_path: Path,
    *,
    drop_in: str,
    expected: Mapping[str, str],
    unsteady: Mapping[str, str] | None = None,
    passed: int,
    path: Sequence[Path] = (),
    prelude: str = "",
    options: Sequence[str] = (),
    separately: bool = False,
    timeout: float = 1800.0,
    not_run: Collection[str] = (),
) -> None:
    """Run test files of upstream, and compare which tests fail with which are expected to.

    A test is named as in the report of a run: `test_tcp.TestPort::test_port`, so the module as
    pytest imports it without the folders before it, the class, and the function with its case.

    Args:
        files: Files or folders with tests.
        tmp_path: An empty folder.
        drop_in: Our module, like ``"echoic.echo"``; its ``install()`` is called first.
        expected: Each test that fails, and why. A test that is named here and passes is an error.
        unsteady: Each test that passes or fails, as the machine's load has it, and why.
        passed: How many tests pass at least.
        path: Folders from which the tests import.
        prelude: Python source that runs first in every process, after the alias is installed.
        options: More arguments of pytest.
        separately: Run each of the files in a process of its own.
        timeout: Seconds for each process.
        not_run: Tests that are left out, since they would never end.
    """
    site = tmp_path / "site"
    site.mkdir()
    # Every Python process imports this module at its start.
    (site / "sitecustomize.py").write_text(f"import {drop_in}\n{drop_in}.install()\n{prelude}\n")
    ours = Path(echoic.__file__).parents[1]
    folders = [site, ours, *path, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    outcomes: dict[str, str] = {}
    output = ""
    for number, part in enumerate([[one] for one in files] if separately else [files]):
        report = tmp_path / f"report-{number}.xml"
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:sybil"]
            + [f"--junit-xml={report}", f"--basetemp={tmp_path / f'base-{number}'}"]
            + [f"--rootdir={tmp_path}", "-c", os.devnull]
            + [word for one in not_run for word in ("--deselect", one)]
            + [*options, *map(str, part)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as running:
            try:
                said, _ = running.communicate(timeout=timeout)
            finally:
                # Programs that tests have started, too.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
        output += said
        assert report.exists(), f"pytest ended with {running.returncode}:\n{said[-8000:]}"
        outcomes.update(_outcomes(report))
    counts = Counter(outcomes.values())
    sys.stdout.write(f"{drop_in}, upstream's tests: {dict(counts)} of {len(outcomes)}\n")
    failed = {name for name, outcome in outcomes.items() if outcome in ("failure", "error")}
    failed -= set(unsteady or ())
    problems = [f"fails, which is new: {name}" for name in sorted(failed - set(expected))]
    problems += [f"passes unexpectedly: {name}" for name in sorted(set(expected) - failed)]
    if counts["passed"] < passed:
        problems.append(f"only {counts['passed']} tests pass, expected at least {passed}")
    assert not problems, "\n".join([output[-20_000:], *problems])


def _outcomes(report: Path) -> dict[str, str]:
    """Return what became of each test of a report: passed, skipped, failure or error."""
    outcomes: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        # The folders before a module differ with the place of the checkout.
        where = case.get("classname", "").split(".")
        first = next((at for at, part in enumerate(where) if "test" in part.lower()), 0)
        while first + 1 < len(where) and where[first] in ("test", "tests"):
            first += 1
        name = "::".join(filter(None, [".".join(where[first:]), case.get("name", "")]))
        found = {child.tag for child in case} & {"failure", "error", "skipped"}
        # A test that failed and then could not be ended has both.
        outcome = next((one for one in ("failure", "error", "skipped") if one in found), "passed")
        outcomes[name] = outcome
    return outcomes
