"""Write items that consist of any steps of any columns."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echoic import Steps
from echoic.errors import (
    ClosedError,
    EchoicError,
    SpecError,
    TableNotFoundError,
    TrajectoryError,
    WaitTimeoutError,
)
from echoic.reverb import _signature
from echoic.reverb._engine import values
from echoic.reverb._engine.errors import as_reverb, gone, not_found
from echoic.reverb._engine.values import array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from echoic import Connection
    from echoic import StructuredWriter as StructuredWriter_
    from echoic import TrajectoryWriter as TrajectoryWriter_
    from echoic.trajectory_writer import ChunkLength

__all__ = [
    "AutoTunedChunkerOptions",
    "ChunkerOptions",
    "ConstantChunkerOptions",
    "TrajectoryWriter",
]

# Seconds that a writer may take to send its items when no call waits for them.
_GRACE = 0.05

# Seconds between two checks, in a call that waits, whether the writer was closed.
_TICK = 0.2

_CLOSED = "TrajectoryWriter::Close has been called."


@dataclass
class ChunkerOptions:
    """Base of the options of a column; ``None`` chooses the length of chunks by measuring."""

    max_chunk_length: int | None
    num_keep_alive_refs: int


class ConstantChunkerOptions(ChunkerOptions):
    """Store a fixed number of steps of a column together."""


class AutoTunedChunkerOptions(ChunkerOptions):
    """Choose the number of steps of a column that are stored together by measuring."""

    def __init__(self, num_keep_alive_refs: int, throughput_weight: float = 1.0) -> None:
        super().__init__(None, num_keep_alive_refs)
        self.throughput_weight = throughput_weight


def _length(options: ChunkerOptions) -> ChunkLength:
    # Programs written for Reverb expect their first items in the table without a flush.
    return "prompt" if options.max_chunk_length is None else options.max_chunk_length


class AnyWriter:
    """Closing and errors of all writers."""

    _tables: Connection
    _native: TrajectoryWriter_ | StructuredWriter_
    # The error that ended the writer, if any.
    _broken: RuntimeError | None = None

    def _check(self) -> None:
        if self._broken is not None:
            raise RuntimeError(*self._broken.args)

    def _unacknowledged(self) -> int:
        """Return the number of items that are not acknowledged."""
        link = self._tables._link
        return self._native.pending + (0 if link is None else link.pending)

    def _timed_out(self) -> RuntimeError:
        waiting = self._native.pending
        return RuntimeError(
            f"Timeout exceeded with {waiting} items waiting to be written and "
            f"{self._unacknowledged() - waiting} items awaiting confirmation."
        )

    def Append(self, data: list[Any]) -> Any:
        """Append a step, given as the value of each column or ``None``; return cells, if any."""
        return self._append(data, partial=False)

    def AppendPartial(self, data: list[Any]) -> Any:
        """Append a part of a step, which later calls complete."""
        return self._append(data, partial=True)

    def _append(self, data: list[Any], *, partial: bool) -> Any:
        raise NotImplementedError

    def Flush(self, ignore_last_num_items: int = 0, timeout_ms: int = -1) -> None:
        """Wait until all but ``ignore_last_num_items`` items are in their tables."""
        self._flush(ignore_last_num_items, timeout_ms / 1000 if timeout_ms > 0 else None)

    def _flush(self, left: int, timeout: float | None) -> None:
        """Wait, and check at intervals whether another thread has closed the writer."""
        self._check()
        if left > 0 and self._unacknowledged() <= left:
            # A flush would end a chunk early.
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._check()
            rest = _TICK if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                with as_reverb():
                    self._native.flush(left, min(rest, _TICK))
            except WaitTimeoutError as error:
                if deadline is not None and rest <= _TICK:
                    raise self._timed_out() from error
            else:
                return

    def Close(self) -> None:
        """Close; items that were not flushed may be lost."""
        self._broken = RuntimeError(_CLOSED)
        self._native.close()
        with contextlib.suppress(EchoicError):
            self._tables.close(_GRACE)


def wrong_column(
    index: int, expected: _signature.Column | None, got: _signature.Column
) -> ValueError | None:
    """Return the error of a column's value, or ``None``."""
    if expected is None or expected == got:
        return None
    if expected[0].kind == got[0].kind == "S":
        return ValueError(
            f"Text too long provided for column {index}. Got up to {got[0].itemsize} bytes but the "
            f"column, as wide as its first text, has {expected[0].itemsize}."
        )
    if expected[0] != got[0]:
        return ValueError(
            f"Tensor of wrong dtype provided for column {index}. Got "
            f"{_signature.dtype_name(got[0])} but expected {_signature.dtype_name(expected[0])}."
        )
    return ValueError(
        f"Tensor of incompatible shape provided for column {index}. Got "
        f"{_signature.shape_text(got[1])} which is incompatible with "
        f"{_signature.shape_text(expected[1])}."
    )


class TrajectoryWriter(AnyWriter):
    """A trajectory writer: see the module. A cell is an :class:`echoic.Steps` of one step.

    Args:
        tables: A connection that is used by this writer only.
        options: How many of the latest cells of a column new items may refer to, and how many are
            stored together.
        signatures: The signatures to check items against; ``None`` checks nothing.
    """

    _native: TrajectoryWriter_

    def __init__(
        self,
        tables: Connection,
        options: ChunkerOptions,
        signatures: Mapping[str, Sequence[_signature.Column] | None] | None,
    ) -> None:
        self._tables = tables
        self._signatures = signatures
        self._native = tables.trajectory_writer(
            options.num_keep_alive_refs, chunk_length=_length(options), encoding="auto"
        )
        self.max_num_keep_alive_refs = options.num_keep_alive_refs
        # Forms that were found to match the signatures.
        self._allowed: set[Any] = set()

    @property
    def episode_steps(self) -> int:
        """How many steps of this episode are complete."""
        return self._native.episode_steps

    def _append(self, data: list[Any], *, partial: bool) -> list[Steps | None]:
        self._check()
        if any(isinstance(value, bytes) for value in data):
            # The column's width would be that of these bytes, and later ones may be longer.
            data = [array(value) if isinstance(value, bytes) else value for value in data]
        try:
            return self._native.append_columns(data, partial)
        except ClosedError as error:
            raise gone(error) from error
        except TrajectoryError as error:
            raise RuntimeError(
                "Append/AppendPartial called with data containing column that was present in "
                "previous AppendPartial call."
            ) from error
        except SpecError:
            # Text must be encoded; anything else is unchanged, and raises the error again.
            arrays = [None if value is None else array(value) for value in data]
        try:
            return self._native.append_columns(arrays, partial)
        except SpecError as error:
            history = self._native.history
            for index, value in enumerate(arrays):
                known = history.get(str(index))
                if value is not None and known is not None:
                    expected = (known.dtype, known.shape)
                    wrong = wrong_column(index, expected, (value.dtype, value.shape))
                    if wrong is not None:
                        raise wrong from error
            raise ValueError(str(error)) from error

    def CreateItem(
        self,
        table: str,
        priority: float,
        trajectory: Sequence[Sequence[Steps]],
        squeeze: Sequence[bool],
    ) -> None:
        """Make an item of the cells of each column; it is sent when its table allows it."""
        if not any(trajectory):
            raise ValueError("trajectory must not be empty.")
        self._check()
        values.name(table)
        number = values.priority(priority)
        columns = []
        for index, (cells, squeezed) in enumerate(zip(trajectory, squeeze, strict=True)):
            try:
                columns.append(Steps.join(cells, squeezed))  # type: ignore[arg-type]
            except ValueError as error:
                raise ValueError(f"Error in column {index}: {_clash(cells, squeezed)}") from error
        if self._signatures is not None:
            self._check_signature(table, columns)
        try:
            self._native.create_item(table, number, tuple(columns))
        except TableNotFoundError:
            # Reverb raises this when the item reaches the server, and the writer ends.
            self._broken = not_found(table)
        except ClosedError as error:
            raise gone(error) from error
        except TrajectoryError as error:
            for index, column in enumerate(columns):
                if column.expired:
                    raise ValueError(
                        f"Error in column {index}: Column contains expired CellRef."
                    ) from error
            raise

    def _check_signature(self, table: str, columns: Sequence[Steps]) -> None:
        signatures = self._signatures or {}
        if table not in signatures:
            raise ValueError(
                f"Unable to create item in table '{table}' since the table could not be found."
            )
        expected = signatures[table]
        if expected is None:
            return
        got = tuple((column.dtype, column.shape) for column in columns)
        if (table, got) in self._allowed:
            return
        check_trajectory(table, expected, got)
        if len(self._allowed) >= 1024:
            self._allowed.clear()
        self._allowed.add((table, got))

    def EndEpisode(self, clear_buffers: bool, timeout_ms: int | None = None) -> None:
        """Wait until all items are in their tables, and start another episode."""
        # After a timeout the episode continues.
        self._flush(0, None if timeout_ms is None else max(0, timeout_ms) / 1000)
        with as_reverb():
            self._native.end_episode(clear_buffers)

    def ConfigureChunker(self, column: int, options: ChunkerOptions) -> None:
        """Set the options of one column."""
        self._native.configure(str(column), options.num_keep_alive_refs, _length(options))
        self.max_num_keep_alive_refs = max(
            self.max_num_keep_alive_refs, options.num_keep_alive_refs
        )


def check_trajectory(
    table: str, expected: Sequence[_signature.Column], got: Sequence[_signature.Column]
) -> None:
    """Raise an error if a trajectory does not match the table's signature."""
    start = (
        f"Unable to create item in table '{table}' since the provided trajectory is inconsistent "
        "with the table signature."
    )
    end = (
        f"\n\nThe table signature is:\n\t{_signature.columns_text(expected)}"
        f"\n\nThe provided trajectory signature is:\n\t{_signature.columns_text(got)}.\n"
    )
    if len(expected) != len(got):
        raise ValueError(
            f"{start} The trajectory has {len(got)} columns but the table signature has "
            f"{len(expected)} columns.{end}"
        )
    for index, (column, (dtype, shape)) in enumerate(zip(expected, got, strict=True)):
        if not _signature.fits(column, dtype, shape):  # type: ignore[arg-type]
            raise ValueError(
                f"{start} The table expects column {index} to be a "
                f"{_signature.dtype_name(column[0])} {_signature.shape_text(column[1])} tensor but "
                f"got a {_signature.dtype_name(dtype)} {_signature.shape_text(shape)} tensor.{end}"
            )


def _clash(cells: Sequence[Steps], squeezed: bool) -> str:
    """Return why cells can't be a column."""
    if not cells:
        return "TrajectoryColumn must contain at least one row."
    if squeezed and len(cells) != 1:
        return (
            "TrajectoryColumn must contain exactly one row when squeeze is set but got "
            f"{len(cells)}."
        )
    first = cells[0]
    for index, cell in enumerate(cells):
        if cell.dtype != first.dtype:
            return (
                f"Column references tensors with different dtypes: "
                f"{_signature.dtype_name(first.dtype)} (index 0) != "
                f"{_signature.dtype_name(cell.dtype)} (index {index})."
            )
        if cell.shape != first.shape:
            return (
                f"Column references tensors with incompatible shapes: "
                f"{_signature.shape_text(first.shape)} (index 0) not compatible with "
                f"{_signature.shape_text(cell.shape)} (index {index})."
            )
    return "Column references data of another writer."
