"""The plugins that choose tests by tier, list skips, and say how long a run took."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tiers

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., tuple[int, str]]

FILE = "tests/folder/test_some.py"
PART = str(tiers.part_of(FILE))
OTHER = str((tiers.part_of(FILE) + 1) % tiers.PARTS)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run pytest with the plugins on files that are given as sources."""

    def run(sources: dict[str, str], *options: str) -> tuple[int, str]:
        (tmp_path / "pytest.ini").touch()
        for name, source in sources.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        plugins = [
            word for name in ("xdist", "tiers", "skips", "suite_report") for word in ("-p", name)
        ]
        settings = {"PYTHONPATH": str(Path(__file__).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-v", *plugins, *options],
            cwd=tmp_path,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.returncode, ran.stdout

    return run


@pytest.mark.parametrize(
    ("options", "nightly", "size"),
    [
        ([f"{FILE}::test_nightly", FILE], False, "fast"),
        (["--tier", "check", "--part", OTHER], False, "fast"),
        (["--tier", "check", "--part", PART], True, "fast"),
        (["--tier", "all", "-n", "2"], True, "full"),
    ],
)
def test_a_nightly_test_runs_with_its_part_and_with_all(
    run: Run, options: list[str], nightly: bool, size: str
) -> None:
    source = f"""
import pytest, tiers

@pytest.mark.nightly
def test_nightly():
    assert tiers.size("fast", "full") == {size!r}

def test_fast():
    assert tiers.size("fast", "full") == {size!r}

@pytest.mark.parametrize("case", tiers.rotating("a", "b"))
def test_in_turn(case):
    assert {nightly} or case == "ab"[tiers.part % 2]

@tiers.turn(0, of=2)
def test_first():
    assert {nightly} or tiers.part % 2 == 0

@tiers.turn(1, of=2)
def test_second():
    assert {nightly} or tiers.part % 2 == 1
"""
    code, output = run({FILE: source}, *options)
    assert code == 0, output
    assert "::test_fast" in output
    assert f"{6 if nightly else 3} passed" in output


def test_a_skip_that_is_not_listed_fails_the_run_which_says_how_long_it_took(run: Run) -> None:
    listed = "import pytest\ndef test_page(): pytest.skip('no pages at /somewhere')\n"
    sources = {
        "tests/test_listed.py": listed,
        FILE: "import time\ndef test_short(): pass\ndef test_long(): time.sleep(0.2)",
    }
    code, output = run(sources, "--check-skips")
    assert code == 0, output
    assert "tests/folder (2 tests)" in output
    assert "tests (1 tests)" in output
    _, _, slowest = output.partition("slowest")
    assert slowest.index("test_long") < slowest.index("test_short")

    sources = {
        "tests/test_more.py": listed,
        "tests/test_other.py": "import pytest\ndef test_other(): pytest.skip('for no reason')\n",
        # A file that is skipped is reported by both processes.
        "tests/test_whole.py": "import pytest\npytest.importorskip('no_package')",
        "tests/test_fails.py": "import pytest\n@pytest.mark.xfail\ndef test_fails(): assert 0",
    }
    code, output = run(sources, "--check-skips", "-n", "2")
    assert code == 1, output
    _, _, found = output.partition("skips that tests/skips.py does not list")
    unlisted, _, _ = found.partition("short test summary")
    assert "2 tests, at most 1 are listed: no pages at" in unlisted
    assert "tests/test_other.py::test_other: for no reason" in unlisted
    assert unlisted.count("tests/test_whole.py: could not import 'no_package'") == 1
    assert "::test_fails:" not in unlisted
