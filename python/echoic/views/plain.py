"""Format a reading as plain text for people, or as data for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from echoic._json import finite
from echoic.cli.text import duration
from echoic.views.problems import find_problems

if TYPE_CHECKING:
    from echoic.views.history import History
    from echoic.views.reading import Reading

__all__ = ["as_data", "as_text"]

_LABEL = 22


def as_data(address: str, history: History) -> dict[str, Any]:
    """Return the newest reading, its rates and its problems as dicts, lists and numbers.

    Keys do not change between releases; new ones may be added.
    """
    reading = latest(history)

    def things(key: str) -> list[dict[str, Any]]:
        return [{**asdict(one), "rates": history.rates(one)} for one in getattr(reading, key)]

    stream = reading.stream
    found = {
        "address": address,
        "release": reading.release,
        "age": reading.age,
        "problems": [asdict(problem) for problem in find_problems(history)],
        "server": {**asdict(reading.server), "rates": history.rates(reading.server)},
        "stream": stream and {**asdict(stream), "rates": history.rates(stream)},
        "tables": things("tables"),
        "rollouts": things("rollouts"),
        "connections": [
            {
                **asdict(one.connection),
                "rates": {name: getattr(one, name) for name in ("samples", "bytes", "blocked")},
            }
            for one in history.clients()
        ],
        "gauges": reading.gauges,
    }
    data: dict[str, Any] = finite(found)
    return data


def as_text(address: str, history: History) -> str:
    """Return the newest reading as lines, problems first."""
    reading = latest(history)
    lines = [f"{address}: echoic {reading.release}, up {duration(reading.age)}", ""]
    problems = find_problems(history)
    for problem in problems:
        lines += [
            f"{problem.level.upper()}: {problem.subject} ({problem.reason})",
            f"  {problem.text}",
            f"  what helps: {problem.advice}",
        ]
    lines += [] if problems else ["nothing is stuck"]
    lines.append("")
    for thing in reading.things.values():
        lines.append(f"{thing.title}: {thing.state[1]}" if thing.sides else thing.title)
        for label, value, note in thing.lines(history.rates(thing)):
            lines.append(f"  {label:<{_LABEL}}{value}{f'  ({note})' if note else ''}")
        for source in getattr(thing, "sources", ()):
            lines.append(f"  {_cells(source.cells())}")
    lines += [_cells(client.cells()) for client in history.clients()]
    if reading.gauges:
        lines.append("reported by the program")
        lines += [f"  {name}: {value:g}" for name, value in reading.gauges.items()]
    return "\n".join(lines)


def _cells(cells: dict[str, str]) -> str:
    """Join the cells that are not empty, each behind the name of its column."""
    return ", ".join(f"{name} {value}" for name, value in cells.items() if value)


def latest(history: History) -> Reading:
    """Return the newest reading.

    Raises:
        ValueError: If there is no reading yet.
    """
    if history.last is None:
        raise ValueError("the history has no reading yet")
    return history.last
