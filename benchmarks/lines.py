"""The results of a suite in a file of JSON lines, one for each workload.

A file is written anew, as a whole, whenever a workload is done, so that a run can be stopped at any
time. What is there already is told apart by what it was measured on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.machine import machine, versions

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from benchmarks.workload import Workload

Record = dict[str, Any]


class Lines:
    """The lines of one file, in the order of its suite's workloads."""

    def __init__(self, path: Path, order: Sequence[str]) -> None:
        """Read what is there, if anything is."""
        self._path = path
        self._order = order
        self.records = {record["workload"]: record for record in read(path)}

    def put(self, record: Record) -> None:
        """Write the line of a workload, in place of one that it may have."""
        self.records[record["workload"]] = record
        known = [self.records[name] for name in self._order if name in self.records]
        # Of a workload that is no more.
        others = [record for name, record in self.records.items() if name not in self._order]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(record) + "\n" for record in [*known, *others]))
        partial.replace(self._path)

    def has(self, workload: Workload, *, quick: bool, rounds: int, peers: Collection[str]) -> bool:
        """Whether this very measurement is there: of this build, on this machine, with these."""
        record = self.records.get(workload.name)
        if record is None:
            return False
        here = machine()
        return (
            record["quick"] == quick
            and record["repeats"] == rounds
            and record["versions"] == versions()
            and all(record["machine"][key] == here[key] for key in ("cpu", "cores"))
            and record["what"] == workload.what
            # As they are when they have been in a file.
            and record["parameters"] == json.loads(json.dumps(workload.parameters))
            and record["peers"].keys() >= set(peers)
            # What could not be installed then may be installed now.
            and not any(
                "does not install" in record["peers"][peer].get("unavailable", "") for peer in peers
            )
        )


def read(path: Path) -> list[Record]:
    """Return the records of a file; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
