"""What a run says at its end, as a plugin of pytest: how long its parts and slowest tests took.

A part is a folder of `tests/`, the files of `tests/` itself, the documentation, or the docstrings.
Its time is the sum of what its tests and their fixtures took. With several processes of
pytest-xdist, the run is shorter than the sum.

`--skips N` fails a run in which another number of tests is skipped, so that a new skip is seen.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

SLOWEST = 20


def part_of(path: str) -> str:
    """Return the part of the suite that a file belongs to, given its path in the repository."""
    folders = path.split("/")[:-1]
    if folders[:1] == ["tests"]:
        return "/".join(folders[:2])
    return "docstrings" if folders[:1] == ["python"] else "docs"


class SuiteReport:
    """Collects how long each test took, of all processes of pytest-xdist."""

    def __init__(self, skips: int | None) -> None:
        self._skips = skips
        self._skipped = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._skipped += report.skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        # A test that fails as expected is reported as skipped too.
        self._skipped += report.skipped and not hasattr(report, "wasxfail")

    @property
    def _unexpected(self) -> bool:
        return self._skips is not None and self._skips != self._skipped

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._unexpected and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        parts: defaultdict[str, list[float]] = defaultdict(list)
        for test, seconds in self._seconds.items():
            parts[part_of(test.partition("::")[0])].append(seconds)
        if len(parts) > 1:
            terminalreporter.section("times")
            for part, each in sorted(parts.items(), key=lambda item: -sum(item[1])):
                terminalreporter.line(f"{sum(each):7.1f} s  {part} ({len(each)} tests)")
            terminalreporter.section(f"slowest {SLOWEST} tests")
            slowest = sorted(self._seconds.items(), key=lambda item: -item[1])
            for test, seconds in slowest[:SLOWEST]:
                terminalreporter.line(f"{seconds:7.1f} s  {test}")
        if self._unexpected:
            terminalreporter.section("skips", red=True)
            terminalreporter.line(
                f"{self._skipped} tests were skipped, --skips expects {self._skips}: "
                "CONTRIBUTING.md lists which tests may be skipped, and why",
                red=True,
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tiers").addoption(
        "--skips", type=int, metavar="N", help="fail unless exactly N tests are skipped"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Processes of pytest-xdist report to the one that started them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SuiteReport(config.getoption("skips")))
