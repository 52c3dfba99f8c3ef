"""How a learner got on: a line of JSON for each version, which outlives its process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FILE = "curve.jsonl"


@dataclass(frozen=True)
class Point:
    """Where the learner was at a version."""

    version: int
    #: Since 1970, as runs are taken up again by other processes.
    time: float
    #: The mean reward of greedy answers to prompts that are not learned from, if it was measured.
    score: float | None
    #: The mean reward of the batch: of groups whose answers differ.
    reward: float
    #: How old the oldest tokens of groups were, on average and at most.
    lag: float
    max_lag: int
    #: The share of answers that more than one version has made.
    mixed: float
    #: The share of tokens that the clip took out.
    clipped: float
    #: What the table has counted.
    counts: dict[str, int]


def add(folder: Path, point: Point) -> None:
    """Append a point."""
    with (folder / FILE).open("a") as file:
        file.write(json.dumps(asdict(point)) + "\n")


def read(folder: Path) -> list[Point]:
    """Return the points of a run; of a version that was made twice, the last one."""
    if not (folder / FILE).exists():
        return []
    points: dict[int, Point] = {}
    for line in (folder / FILE).read_text().splitlines():
        try:
            found = Point(**json.loads(line))
        except ValueError:
            continue  # Whoever wrote it was killed in the middle.
        # What was learned after the checkpoint that a run went on from is gone.
        points = {version: kept for version, kept in points.items() if version < found.version}
        points[found.version] = found
    return list(points.values())
