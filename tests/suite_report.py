"""What a run says at its end, as a plugin of pytest: how long its sections and slowest tests took.

A section is a folder of `tests/`, the files of `tests/` itself, the documentation, or the
docstrings. Its time is the sum of what its tests and their fixtures took. With several processes
of pytest-xdist, the run is shorter than the sum.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SLOWEST = 20


def section_of(path: str) -> str:
    """Return the section of the suite that a file belongs to, given its path in the repository."""
    folders = path.split("/")[:-1]
    if folders[:1] == ["tests"]:
        return "/".join(folders[:2])
    return "docstrings" if folders[:1] == ["python"] else "docs"


class SuiteReport:
    """Collects how long each test took, of all processes of pytest-xdist."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        sections: defaultdict[str, list[float]] = defaultdict(list)
        for test, seconds in self._seconds.items():
            sections[section_of(test.partition("::")[0])].append(seconds)
        if len(sections) < 2:
            return
        terminalreporter.section("times")
        for section, each in sorted(sections.items(), key=lambda item: -sum(item[1])):
            terminalreporter.line(f"{sum(each):7.1f} s  {section} ({len(each)} tests)")
        terminalreporter.section(f"slowest {SLOWEST} tests")
        slowest = sorted(self._seconds.items(), key=lambda item: -item[1])
        for test, seconds in slowest[:SLOWEST]:
            terminalreporter.line(f"{seconds:7.1f} s  {test}")


def pytest_configure(config: pytest.Config) -> None:
    # Processes of pytest-xdist report to the one that started them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SuiteReport())
