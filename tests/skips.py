"""Which tests may be skipped, as a plugin of pytest: `--check-skips` fails a run with other skips.

A test is skipped where the machine lacks what it needs and `make` cannot install. `MAY_BE_SKIPPED`
has each reason and how many tests of the fast tier give it at most. So a test that is skipped for
another reason is seen, and one more that is skipped for a reason that is listed.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

MAY_BE_SKIPPED = {
    # Programs that `make programs` installs, where it may.
    "chromium and chromedriver are not installed": 7,
    "no bubblewrap": 36,
    "network namespaces need|no TUN device|no network namespace": 6,
    "certificates are made by openssl": 1,
    # Files that no package has: set ECHOIC_CRUXEVAL or ECHOIC_PAGES.
    "no file of CRUXEval here": 3,
    "no pages at": 1,
    # Sources of other libraries, for the nightly tier: set ECHOIC_UPSTREAM_ECHO and others.
    "no checkout of its sources": 16,
    # Environments of their own: `make adapters`, `make parity`.
    "no (datasets|av|minari|lerobot|tensorflow_datasets) here": 29,
    "no (stable_baselines3|torchrl|tianshou|wandb|mlflow) here": 7,
    "no jax here": 1,
    # An environment of its own: `make tensorflow`.
    "no TensorFlow": 41,
    "there is TensorFlow": 1,
    # NumPy 1, which works too.
    "numpy 2 has such strings": 1,
    # A GPU.
    "no CUDA": 21,
    # Other systems than Linux.
    "reads /proc|threads in /proc": 4,
    "no fork|nothing forks": 9,
    "needs a signal of our own|a signal is sent": 4,
    "workers come by shared memory": 17,
}


class Skips:
    """Counts the skipped tests of a run, of all processes of pytest-xdist."""

    def __init__(self) -> None:
        # A test or a file, and why it was skipped.
        self._reasons: list[tuple[str, str]] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._add(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # What fails as expected is reported as skipped too.
        if not hasattr(report, "wasxfail"):
            self._add(report)

    def _add(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.skipped:
            assert isinstance(report.longrepr, tuple)
            self._reasons.append((report.nodeid, report.longrepr[2].removeprefix("Skipped: ")))

    def _unknown(self) -> list[str]:
        """Describe the skips that are not listed, and those that are more than listed."""
        found: Counter[str] = Counter()
        unknown: list[str] = []
        for test, reason in self._reasons:
            pattern = next((one for one in MAY_BE_SKIPPED if re.search(one, reason)), None)
            if pattern is None:
                unknown.append(f"{test}: {reason}")
            else:
                found[pattern] += 1
        for pattern, count in found.items():
            if count > MAY_BE_SKIPPED[pattern]:
                most = MAY_BE_SKIPPED[pattern]
                unknown.append(f"{count} tests, at most {most} are listed: {pattern}")
        return unknown

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._unknown() and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if unknown := self._unknown():
            terminalreporter.section("skips that tests/skips.py does not list", red=True)
            for line in unknown:
                terminalreporter.line(line, red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tiers").addoption(
        "--check-skips", action="store_true", help="fail when a skip is not in tests/skips.py"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Processes of pytest-xdist report to the one that started them.
    if config.option.check_skips and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips())
