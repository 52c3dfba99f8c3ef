"""HTML of stores and connections, which a notebook shows in place of their ``repr``.

Each function reads the numbers of one object once, or twice where rates need it, and never waits
longer than a second: what a server does not answer in time is shown as missing. Rates are those
since the object was last shown, or those of a fifth of a second.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.cli.text import amount, duration, size
from echoic.ragged import Ragged
from echoic.views.history import History
from echoic.views.problems import find_problems
from echoic.views.reading import (
    Line,
    Reading,
    RolloutReading,
    Side,
    SourceReading,
    StreamReading,
    TableReading,
    Waits,
    count,
    read,
)
from echoic.views.web.items import leaves_by_path, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from echoic._native import StreamStats
    from echoic.rollouts.stats import RolloutStats
    from echoic.table_stats import TableStats
    from echoic.views.problems import Problem
    from echoic.views.reading import Thing

__all__ = [
    "batch_html",
    "buffer_html",
    "card",
    "connection_html",
    "rollouts_html",
    "server_html",
    "stream_html",
    "table_html",
    "weights_html",
]

# Seconds to wait for numbers, and between the two readings of an object that is shown first.
_PATIENCE = 1.0
_FIRST = 0.2
_MOST_ROWS = 100
_COLOURS = {"good": "#2a8a4a", "slow": "#b07a00", "stuck": "#d0333a", "note": "#777"}
_LEFT = "text-align:left"

# The last reading of each object that was shown.
_shown: weakref.WeakKeyDictionary[Any, Reading] = weakref.WeakKeyDictionary()


def card(
    title: str,
    rows: Iterable[Sequence[str]],
    *,
    state: tuple[str, str] | None = None,
    fill: float | None = None,
    notes: Iterable[str] = (),
) -> str:
    """Return HTML: a title, what is noteworthy, and a row of cells for each number.

    Args:
        title: The first line.
        rows: The cells of each row; the first is a label. All text is escaped.
        state: A level (``"good"``, ``"slow"``, ``"stuck"`` or ``"note"``) and its words.
        fill: A share from 0 to 1, drawn as a bar.
        notes: Paragraphs between title and rows.

    Examples:
        >>> "&lt;b&gt;" in card("<b>", [("items", "3", "of 10")])
        True
    """
    parts = [f"<strong>{escape(title)}</strong>"]
    if state is not None:
        level, words = state
        parts.append(f' <span style="color:{_COLOURS[level]}">{escape(words)}</span>')
    parts += [f"<p>{escape(note)}</p>" for note in notes]
    if fill is not None:
        parts.append(f'<br><progress max="1" value="{fill:.4f}" style="width:20em"></progress>')
    every = list(rows)
    lines = [_row(cells) for cells in every[:_MOST_ROWS]]
    if every[_MOST_ROWS:]:
        lines.append(_row([f"and {len(every) - _MOST_ROWS:,d} more"]))
    return f"<div>{''.join(parts)}<table><tbody>{''.join(lines)}</tbody></table></div>"


def _row(cells: Sequence[str]) -> str:
    label, *values = (escape(cell) for cell in cells)
    more = "".join(f'<td style="{_LEFT}">{value}</td>' for value in values)
    return f'<tr><th style="{_LEFT}">{label}</th>{more}</tr>'


def _shows(title: str, make: Callable[[], str]) -> str:
    """Return what `make` returns in time, in a thread of its own, or a card that says why not."""
    answer: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            answer.put(make())
        except Exception as error:  # shown instead; a notebook would hide it
            answer.put(error)

    threading.Thread(target=run, name="echoic-html", daemon=True).start()
    try:
        found = answer.get(timeout=_PATIENCE)
    except queue.Empty:
        found = TimeoutError(f"no answer within {duration(_PATIENCE)}")
    if isinstance(found, str):
        return found
    return card(title, [], state=("stuck", f"no numbers: {str(found) or type(found).__name__}"))


def _history(store: Any, read_now: Callable[[], Reading]) -> History:
    """Return two readings of a store: that of when it was last shown, and that of now."""
    before = now = read_now()
    # Some native classes have no weak references.
    with contextlib.suppress(TypeError):
        before = _shown.get(store, now)
    if now.age - before.age < _FIRST:
        time.sleep(_FIRST)
        now = read_now()
    history = History()
    history.add(before)
    history.add(now)
    with contextlib.suppress(TypeError):
        _shown[store] = now
    return history


def _span(history: History) -> str:
    before, now = history.readings
    return f"Rates are those of the last {duration(now.age - before.age)}."


def _words(problem: Problem) -> str:
    return f"{problem.level.upper()} ({problem.reason}): {problem.text}. → {problem.advice}"


def _store_html(store: Any, title: str, convert: Callable[[], Thing], more: Sequence[Line]) -> str:
    """Show a store whose numbers are those of one thing."""

    def now() -> Reading:
        one, age = convert(), time.monotonic()
        if isinstance(one, StreamReading):
            return Reading(age, stream=one)
        if isinstance(one, TableReading):
            return Reading(age, tables=(one,))
        assert isinstance(one, RolloutReading)
        return Reading(age, rollouts=(one,))

    history = _history(store, now)
    assert history.last is not None
    # The first thing is the server, of which nothing is known here.
    _, thing = history.last.things.values()
    problems = [one for one in find_problems(history) if one.subject == thing.title]
    lines = [*thing.lines(history.rates(thing)), *more]
    sources = [one.cells() for one in getattr(thing, "sources", ())]
    named = [(f"source {cells.pop('source')}", *_filled(cells)) for cells in sources]
    return card(
        title,
        [*lines, *named],
        state=thing.state,
        fill=getattr(thing, "fill", None),
        notes=[*map(_words, problems), _span(history)],
    )


def _filled(cells: Mapping[str, str]) -> list[str]:
    return [", ".join(f"{name} {value}" for name, value in cells.items() if value)]


# Tables.


def table_html(table: Any) -> str:
    """Show a table: of this process, of a server, or of several servers."""
    place = getattr(table, "address", "")
    kind = type(table).__name__
    title = f"{kind} {table.name!r}{f' at {place}' if place else ''}"

    def make() -> str:
        spec = table.spec
        first = table.stats()
        leaves = () if spec is None else spec.leaves
        words = ", ".join(f"{one.path} {one.dtype}{list(one.shape)}".strip() for one in leaves)
        more: list[Line] = [("item", words or "of any form", "")]
        if first.sampler is not None:
            more.append(("sampler", first.sampler, f"remover {first.remover}"))
        for number, one in enumerate(first.shards or ()):
            items = "away" if one is None else f"{one.size:,d} items"
            more.append((f"shard {number}", items, ""))
        return _store_html(table, title, lambda: table_reading(table.stats()), more)

    return _shows(title, make)


def table_reading(stats: TableStats) -> TableReading:
    """Return the numbers of a table as the views show them; histograms stay empty."""
    every = [_reasons(one) for one in stats.shards or (stats,) if one is not None]
    # That of the first shard that has one.
    insert, sample = (next(filter(None, (one[side] for one in every)), "") for side in (0, 1))
    bound = any(map(math.isfinite, (stats.min_diff, stats.max_diff)))
    return TableReading(
        name=stats.name,
        items=stats.size,
        capacity=stats.capacity,
        inserts=stats.inserts,
        samples=stats.samples,
        deletions=stats.deletions,
        ratio=stats.samples / max(stats.inserts, 1),
        target_ratio=stats.samples_per_insert if bound else None,
        min_items=stats.min_size,
        paused=stats.paused,
        version=stats.version,
        row_bytes=stats.memory_bytes,
        insert=_side(stats, "add", insert),
        sample=_side(stats, "sample", sample),
    )


def _side(stats: TableStats, side: str, reason: str) -> Side:
    names = ("calls_waiting", "wait_seconds", "calls_limited")
    waiting, seconds, limited = (getattr(stats, f"{side}_{name}") for name in names)
    return Side(waiting, seconds, reason, limited)


def _reasons(stats: TableStats) -> tuple[str, str]:
    """Return why an insert and a sample of one item would have to wait, or a waiting call does."""
    if stats.paused:
        return "PAUSED", "PAUSED"
    diff = stats.inserts * stats.samples_per_insert - stats.samples
    insert = sample = ""
    if stats.size >= stats.min_size and diff + stats.samples_per_insert > stats.max_diff:
        insert = "RATIO"
    elif stats.add_calls_waiting:
        insert = "LEASED" if stats.journal_records is None else "CAPACITY"
    if stats.size < max(stats.min_size, 1):
        sample = "MIN_SIZE"
    elif diff - 1 < stats.min_diff or stats.sample_calls_waiting:
        # A waiting call may want more items than one.
        sample = "RATIO" if math.isfinite(stats.min_diff) else "MIN_SIZE"
    return insert, sample


def rollouts_html(table: Any) -> str:
    """Show a rollout table of this process or of a server."""
    title = f"RolloutTable {table.name!r}"

    def make() -> str:
        settings = table.settings
        columns = {**settings["columns"], **settings["fields"]}
        words = ", ".join(f"{name}: {np.dtype(dtype)}" for name, dtype in columns.items())
        more = [("columns and fields", words, "")]
        return _store_html(table, title, lambda: rollout_reading(table.stats(), settings), more)

    return _shows(title, make)


def rollout_reading(stats: RolloutStats, settings: Mapping[str, Any]) -> RolloutReading:
    """Return the numbers of a rollout table as the views show them."""
    sources = []
    for name, one in stats.sources.items():
        waits = stats.source_waits.get(name)
        counts = (one.submitted, one.running, one.accepted, one.rejected, one.filtered, one.tokens)
        times = (waits.waiting, waits.oldest, waits.passed, waits.starving) if waits else ()
        sources.append(SourceReading(name, *counts, *times))
    sides = {"producers": stats.producer_waits, "consumers": stats.consumer_waits}
    known = {
        **settings,
        **vars(stats),
        **{
            side: {why: Waits(one.waiting, one.seconds) for why, one in waits.items()}
            for side, waits in sides.items()
        },
        "ready": stats.queued,
        "depth": stats.pipeline_depth,
        "sources": tuple(sources),
    }
    names = {one.name for one in fields(RolloutReading)}
    return RolloutReading(**{name: value for name, value in known.items() if name in names})


# Streams and servers.


def stream_html(stream: Any) -> str:
    """Show a stream, by its ``stats()``."""
    title = type(stream).__name__
    return _shows(
        title,
        lambda: _store_html(stream, title, lambda: stream_reading(stream.stats()), []),
    )


def stream_reading(stats: StreamStats) -> StreamReading:
    """Return the numbers of a stream as the views show them."""

    def quantiles(found: Any) -> dict[str, float]:
        return {"0.5": found.p50, "0.9": found.p90, "0.99": found.p99}

    return StreamReading(
        samples=stats.inserted_total,
        bytes=stats.inserted_total * stats.bytes_per_sample,
        stored=stats.store_size,
        capacity=stats.capacity,
        batch_size=stats.batch_size,
        ready=stats.batches_ready,
        held=stats.batches_held,
        free=stats.batches_free,
        delivered=stats.delivered_total,
        oldest_hold=stats.oldest_hold,
        blocked_seconds=stats.blocked_time,
        starved_seconds=stats.sample_wait_time,
        memory=stats.memory_bytes,
        submit_latency=quantiles(stats.submit_to_available),
        copy_latency=quantiles(stats.copy_time),
        hold_latency=quantiles(stats.hold_time),
    )


def server_html(server: Any) -> str:
    """Show a server: its addresses, what is stuck, and a row for each of its stores."""
    title = f"Server at {', '.join(server.addresses) or 'no address'}"

    def make() -> str:
        history = _history(server, lambda: read(server.stats()))
        assert history.last is not None
        own, *stores = history.last.things.values()
        rows: list[Sequence[str]] = []
        for one in stores:
            rates = history.rates(one)
            _, value, note = one.lines(rates)[0]
            come, go = (amount(rates[name]) for name in one.FLOW)
            rows.append((one.title, f"{value} {note}", f"{come}/s in, {go}/s out; {one.state[1]}"))
        rows += own.lines(history.rates(own))
        rows += [(name, f"{value:.6g}", "") for name, value in history.last.gauges.items()]
        notes = [f"{one.subject}: {_words(one)}" for one in find_problems(history)]
        return card(title, rows, notes=[*notes, _span(history)])

    return _shows(title, make)


def connection_html(connection: Any) -> str:
    """Show a connection: its addresses and the counts of this end, which need no request."""
    title = repr(connection)

    def make() -> str:
        stats = connection.stats()
        return card(title, _rows(stats), state=_connected(connection, stats.connected))

    return _shows(title, make)


def _connected(connection: Any, links: int) -> tuple[str, str]:
    """Return whether a connection has links, as a level and its words."""
    if connection._closed:
        return "note", "closed"
    if connection._server is not None:
        return "good", "in this process"
    if not connection._is_opened:
        return "note", "no service was used yet"
    return ("good", "connected") if links else ("stuck", "not connected")


def weights_html(store: Any) -> str:
    """Show the weights that a learner publishes."""
    title = type(store).__name__

    def make() -> str:
        numbers = store.metrics()
        version = numbers.get("version")
        words = "nothing is published" if version is None else f"version {version:,d}"
        return card(title, _rows(numbers), state=("note" if version is None else "good", words))

    return _shows(title, make)


# Local buffers and batches.


def buffer_html(buffer: Any) -> str:
    """Show a local buffer by its ``stats()``."""
    title = type(buffer).__name__

    capacity = getattr(buffer, "capacity", None)

    def make() -> str:
        fill = len(buffer) / capacity if capacity else None
        return card(title, _rows(buffer.stats()), fill=fill)

    return _shows(title, make)


def batch_html(batch: Any) -> str:
    """Show a batch of any store: each leaf with dtype, shape, memory and range of values."""
    data = {**batch.columns, **batch.fields} if hasattr(batch, "columns") else batch.data
    leaves = leaves_by_path(data)
    rows: list[Sequence[str]] = [("field", "dtype", "shape", "bytes", "values")]
    rows += [(path or "(the item itself)", *_leaf(leaf)) for path, leaf in leaves.items()]
    for name in ("keys", "weights"):
        found = getattr(batch, name, None)
        # Keys of rollouts are texts.
        if isinstance(found, np.ndarray):
            rows.append((name, *_leaf(found)))
    total = sum(_values(leaf).nbytes for leaf in leaves.values())
    return card(f"{type(batch).__name__} of {count(len(batch), 'item')}, {size(total)}", rows)


def _values(leaf: Any) -> Any:
    return leaf.values if isinstance(leaf, Ragged) else leaf


def _leaf(leaf: Any) -> tuple[str, str, str, str]:
    """Return dtype, shape, memory and range of values of a leaf."""
    values = _values(leaf)
    shape = str(list(values.shape))
    if isinstance(leaf, Ragged):
        shape = f"{len(leaf)} of different lengths, {shape} together"
    words = []
    if not isinstance(values, np.ndarray):
        words.append(f"on {values.device}")
    elif values.size:
        found = summary(values)
        words += [f"{name} {found[name]}" for name in ("min", "mean", "max") if name in found]
        if "not_finite" in found:
            words.append(f"{found['not_finite']:,d} are NaN or infinite")
    return str(values.dtype), shape, size(values.nbytes), ", ".join(words)


def _rows(stats: Any) -> list[tuple[str, str]]:
    """Return a row for each number of a snapshot that is not None."""
    if is_dataclass(stats):
        stats = {one.name: getattr(stats, one.name) for one in fields(stats)}
    elif not isinstance(stats, Mapping):
        stats = stats.as_dict()
    return [
        (name.replace("_", " ").removeprefix("n "), _value(name, value))
        for name, value in stats.items()
        if value is not None
    ]


def _value(name: str, value: Any) -> str:
    """Write a number in the unit that its name says."""
    if name == "seed" or isinstance(value, bool) or not isinstance(value, (int, float)):
        return np.array2string(value, threshold=8) if isinstance(value, np.ndarray) else str(value)
    if "bytes" in name:
        return size(value)
    if name.endswith(("_time", "_seconds")):
        return duration(value)
    return f"{value:,d}" if isinstance(value, int) else f"{value:,.6g}"
