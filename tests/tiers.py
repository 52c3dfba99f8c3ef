"""Which tests run, and at which size: the tiers of CONTRIBUTING.md, as a plugin of pytest.

`@pytest.mark.nightly` puts a test, or with `pytestmark` a module, into the nightly tier. All other
tests are in the fast tier. `--tier` chooses:

- `fast`, the default: tests of the fast tier.
- `check`: those, and one part of the nightly tier. Each file belongs to one of `PARTS` parts by a
  hash of its path, and the date chooses the part, so a week of daily runs plays them all.
- `all`: every test, at full size.

A test that does the same more often or for longer with `--tier all` says so with `size(3, 100)`.
Ask for sizes in test modules and fixtures: when conftest.py files are imported, the tier is not
known yet. Pass them to processes that a test starts, which do not know the tier either.

A family of cases that take long and differ little is `rotating("a", "b", "c")`: the date chooses
the one that the fast tier has, and the nightly tier has the others. `@turn(0, of=3)` does the same
for whole tests. The head of the report says which part of seven that was; `--part` repeats it.
"""

from __future__ import annotations

import time
import zlib
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

# One for each day of a week.
PARTS = 7

# Whether every test runs, at full size.
full = False
# The part that the date or `--part` has chosen.
part = 0


def size(fast: T, at_full_size: T) -> T:
    """Return the first value, or with `--tier all` the second one."""
    return at_full_size if full else fast


def rotating(*cases: Any) -> list[Any]:
    """Return cases for `parametrize`: that of today is in the fast tier, the others are nightly.

    A case is a value or a `pytest.param`.
    """
    made = [case if hasattr(case, "marks") else pytest.param(case) for case in cases]
    today = part % len(cases)
    return [
        one if index == today else one._replace(marks=[*one.marks, pytest.mark.nightly])
        for index, one in enumerate(made)
    ]


def turn(place: int, of: int) -> Any:
    """Mark a test that takes turns with others: nightly but on one of so many days."""
    return (lambda test: test) if part % of == place else pytest.mark.nightly


def part_of(path: str) -> int:
    """Return the part of the nightly tier that has a file, given its path in the repository."""
    return zlib.crc32(path.encode()) % PARTS


def part_of_today() -> int:
    """Return the part that the date chooses, which is the same everywhere at a time."""
    return int(time.time()) // 86400 % PARTS


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption(
        "--tier",
        choices=("fast", "check", "all"),
        default="fast",
        help="fast (default): no nightly ones; check: one part of them too; all: all, at full size",
    )
    group.addoption(
        "--part",
        type=int,
        choices=range(PARTS),
        help="the part of rotating cases, and with --tier check of the nightly tests; "
        "the date chooses it otherwise",
    )


def pytest_configure(config: pytest.Config) -> None:
    global full, part
    config.addinivalue_line("markers", "nightly: left out unless --tier has it")
    full = config.option.tier == "all"
    if config.option.part is None:
        # Processes of pytest-xdist are given it, so a run that passes midnight has one part.
        config.option.part = part_of_today()
    part = config.option.part


def pytest_report_header(config: pytest.Config) -> str:
    tier, part = config.option.tier, config.option.part
    if tier == "check":
        return (
            f"tier: check, with part {part} of {PARTS} of the nightly tests. "
            f"Run that part again: --tier check --part {part} -m nightly"
        )
    if tier == "fast":
        return (
            f"tier: fast, with the rotating cases of --part {part}. "
            "Nightly tests are left out, named ones too: --tier all runs them"
        )
    return "tier: all, at full size"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier, part = config.option.tier, config.option.part
    if tier == "all":
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        nightly = item.get_closest_marker("nightly") is not None
        runs = not nightly or (tier == "check" and part_of(item.nodeid.partition("::")[0]) == part)
        (kept if runs else left_out).append(item)
    if left_out:
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)
