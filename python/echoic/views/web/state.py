"""The content of the page as JSON: an overview of all servers, and one of them in full.

Numbers are formatted here, so that the page shows the same as the terminal; only charts have
numbers.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from echoic._json import finite
from echoic.cli.text import age, amount, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from echoic.views.history import History, Point
    from echoic.views.monitor import Monitor
    from echoic.views.problems import Problem
    from echoic.views.reading import Thing

__all__ = ["LENGTHS", "state"]

#: The length of the page's history: readings, and means of ten older ones.
LENGTHS = (600, 1200)
# The points of a chart, the most things that have charts, and the most connections shown.
_POINTS, _CHARTED, _CONNECTIONS = 240, 50, 200
_HEAD = ["server", "state", "up", "release", "connections", "in/s", "out/s"]
_HEAD += ["answer p50", "p99", "data", "process", "CPU"]


def state(monitors: Sequence[Monitor], chosen: int, seconds: float) -> dict[str, Any]:
    """Return a row for each server, and all of the chosen one with its last seconds."""
    monitor = monitors[chosen]
    found: dict[str, Any] = {"interval": monitor.interval, "chosen": chosen}
    rows = []
    for one in monitors:
        with one.lock:
            problems = one.problems()
            rows.append(_overview(one, problems))
            if one is monitor:
                found |= _in_full(one, problems, seconds)
    return {"overview": {"head": _HEAD, "rows": rows}, **finite(found)}


def _overview(monitor: Monitor, problems: list[Problem]) -> dict[str, Any]:
    """Return the row of a server."""
    reading, history = monitor.history.last, monitor.history
    level: str = problems[0].level if problems else "note"
    if level == "note":
        level = "asking" if reading is None else "live"
    cells = []
    if reading is not None:
        answers = sorted(history.series(reading.server, "answer", 300)) or [reading.server.answer]
        flows = [(history.rates(one), one.FLOW) for one in reading.things.values() if one.FLOW]
        come, go = (sum(rates[names[side]] for rates, names in flows) for side in (0, 1))
        values = {label: value for label, value, _ in _lines(reading.server, history)}
        percentiles = (answers[len(answers) // 2], answers[len(answers) * 99 // 100])
        cells = [age(reading.age), reading.release, values["connections"], amount(come), amount(go)]
        cells += map(duration, percentiles)
        cells += (values[name] for name in ("memory of data", "memory of process", "CPU"))
    return {"address": monitor.address, "level": level, "cells": cells}


def _in_full(monitor: Monitor, problems: list[Problem], seconds: float) -> dict[str, Any]:
    reading, history = monitor.history.last, monitor.history
    found: dict[str, Any] = {
        "problems": [asdict(problem) for problem in problems],
        "ages": [],
        "things": [],
        "connections": _rows([]),
        "connections_more": 0,
    }
    if reading is None:
        return found
    past = history.past(seconds, _POINTS)
    # The server itself is the last: its stream and tables matter more.
    server, *things = reading.things.values()
    clients = history.clients()
    return found | {
        "ages": [reading.age - point.age for point in past],
        "things": [
            *(_thing(one, history, past) for one in things[:_CHARTED]),
            *(_thing(one, history, []) for one in things[_CHARTED:]),
            *([_gauges(reading.gauges)] if reading.gauges else []),
            _thing(server, history, past),
        ],
        "connections": _rows([one.cells() for one in clients[:_CONNECTIONS]]),
        "connections_more": len(clients[_CONNECTIONS:]),
    }


def _gauges(gauges: dict[str, float]) -> dict[str, Any]:
    lines = [(name, f"{value:.6g}", "") for name, value in gauges.items()]
    return {**_card("gauges", "Reported by the program"), "lines": lines}


def _card(kind: str, title: str) -> dict[str, Any]:
    """Return an empty card: every card has these keys."""
    found = {"kind": kind, "name": "", "title": title, "state": None, "fill": None}
    return {**found, "lines": [], "charts": [], "bars": [], "sources": _rows([])}


def _rows(every: list[dict[str, str]]) -> dict[str, Any]:
    """Return a table of cells, given by the names of their columns."""
    return {"head": list(every[0]) if every else [], "rows": [list(one.values()) for one in every]}


def _thing(thing: Thing, history: History, past: list[Point]) -> dict[str, Any]:
    return {
        **_card(thing.KIND, thing.name or thing.title),
        "name": thing.name,
        "state": thing.state if thing.sides else None,
        "fill": getattr(thing, "fill", None),
        "lines": _lines(thing, history),
        "charts": _charts(thing, past) if past else [],
        "bars": thing.bars(),
        "sources": _rows([source.cells() for source in getattr(thing, "sources", ())]),
    }


def _lines(thing: Thing, history: History) -> list[tuple[str, str, str]]:
    return thing.lines(history.rates(thing))


def _charts(thing: Thing, past: list[Point]) -> list[dict[str, Any]]:
    places = {name: at for at, name in enumerate(thing.series())}
    every = [point.values.get(thing.key) for point in past]
    return [
        {
            "title": chart.title,
            "lines": [
                {"name": label, "values": [one and one[places[name]] for one in every]}
                for label, name in chart.lines.items()
            ],
            "target": getattr(thing, chart.target) if chart.target else None,
            "top": getattr(thing, chart.top) if chart.top else None,
        }
        for chart in thing.CHARTS
    ]
