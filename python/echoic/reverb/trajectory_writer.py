"""Write items that refer to any steps of any columns."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.reverb import _nest, errors, pybind
from echoic.reverb._engine.values import positive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

__all__ = ["TrajectoryColumn", "TrajectoryWriter"]


class WriterBase:
    """Flushes and episodes of writers of trajectories."""

    _writer: pybind.TrajectoryWriter | pybind.StructuredWriter

    def __del__(self) -> None:
        if hasattr(self, "_writer"):
            self._writer.Close()

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Wait until all but ``block_until_num_items`` items are in their tables.

        Args:
            block_until_num_items: How many may still be unacknowledged.
            timeout_ms: How long to wait; ``None`` waits for ever. Items are delivered even after a
                timeout.

        Raises:
            ValueError: If ``block_until_num_items`` is negative.
            DeadlineExceededError: If it took longer.
        """
        if block_until_num_items < 0:
            raise ValueError(f"block_until_num_items must be >= 0, got {block_until_num_items}")
        limit = -1 if timeout_ms is None else timeout_ms
        try:
            self._writer.Flush(block_until_num_items, limit)
        except RuntimeError as error:
            raise _in_time(error, "Flush", timeout_ms) from error

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Make the items of the end, wait until all are in their tables, start another episode.

        Args:
            clear_buffers: Whether later items can no longer refer to steps of this one.
            timeout_ms: How long to wait; ``None`` waits for ever. Items are delivered even after a
                timeout.

        Raises:
            DeadlineExceededError: If it took longer. The episode of a :class:`TrajectoryWriter`
                continues.
        """
        try:
            self._writer.EndEpisode(clear_buffers, timeout_ms)
        except RuntimeError as error:
            raise _in_time(error, "End episode", timeout_ms) from error
        if clear_buffers:
            self._end()

    def _end(self) -> None:
        """Forget the steps of the episode."""


def _in_time(error: RuntimeError, call: str, timeout_ms: int | None) -> Exception:
    """Convert the error of a call that may have timed out."""
    if "Timeout exceeded" not in str(error) or timeout_ms is None:
        return error
    limit = dt.timedelta(milliseconds=timeout_ms)
    return errors.DeadlineExceededError(
        f"{call} call did not complete within provided timeout of {limit}"
    )


def with_path(error: ValueError, name: Callable[[int], str]) -> ValueError:
    """Return an error that names a column as a program knows it, given how to name a number."""
    text, count = re.subn(r"(?<= for column )\d+", lambda found: name(int(found[0])), str(error))
    return ValueError(text) if count == 1 else error


class TrajectoryWriter(WriterBase):
    """Append steps, and make items of them that share their bytes.

    ``client.trajectory_writer`` makes one. Steps may differ in which leaves they have: the leaves
    of all steps together make the columns of :attr:`history`, and a step that lacks one has
    ``None`` there. Use a writer in one thread.

    Examples:
        >>> import numpy as np
        >>> import echoic.reverb as reverb
        >>> server = reverb.Server(tables=[reverb.Table.queue("q", max_size=10)])
        >>> client = server.localhost_client()
        >>> with client.trajectory_writer(num_keep_alive_refs=2) as writer:
        ...     for step in range(3):
        ...         writer.append({"obs": np.full(2, step), "reward": float(step)})
        ...     obs, reward = writer.history["obs"], writer.history["reward"]
        ...     writer.create_item("q", 1.0, {"obs": obs[-2:], "reward": reward[-1]})
        >>> next(client.sample("q", emit_timesteps=False)).data
        [array([[1, 1],
               [2, 2]]), array(2.)]
        >>> server.stop()
    """

    _writer: pybind.TrajectoryWriter

    def __init__(self, internal_writer: pybind.TrajectoryWriter) -> None:
        self._writer = internal_writer
        # All leaves so far: a nest like the steps, whose leaves are numbers of columns.
        self._structure: Any = None
        self._history: Any = None
        self._columns: list[_ColumnHistory] = []
        # Columns of leaves right below the root, by key: most steps have no others.
        self._column_of_key: dict[Any, int] = {}
        self._column_of_path: dict[_nest.Path, int] = {}
        # Settings of columns that do not exist yet.
        self._settings: dict[_nest.Path, Any] = {}
        self._step_is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, errors.ReverbError):
            self.flush()

    @property
    def history(self) -> Any:
        """The columns, nested as the steps: index one to refer to steps of it.

        Indices count from the first step of the episode, negative ones from the newest.

        Raises:
            RuntimeError: If nothing was appended yet.
        """
        if not self._columns:
            raise RuntimeError(
                "history cannot be accessed before `append` is called at least once."
            )
        return _copied(self._history)

    @property
    def episode_steps(self) -> int:
        """How many steps of this episode are complete."""
        return self._writer.episode_steps

    def configure(
        self,
        path: tuple[int | str, ...],
        *,
        num_keep_alive_refs: int,
        max_chunk_length: int | None,
    ) -> None:
        """Set the options of one column.

        Args:
            path: Its keys, field names and positions in a step. It need not exist yet.
            num_keep_alive_refs: How many of its latest values items may refer to.
            max_chunk_length: How many values are stored together; ``None`` chooses by measuring.

        Raises:
            ValueError: If a number is not positive, or more are stored together than are kept.
        """
        positive(num_keep_alive_refs=num_keep_alive_refs)
        options: Any
        if max_chunk_length is None:
            options = pybind.AutoTunedChunkerOptions(num_keep_alive_refs, 1.0)
        elif 1 <= max_chunk_length <= num_keep_alive_refs:
            options = pybind.ConstantChunkerOptions(max_chunk_length, num_keep_alive_refs)
        else:
            raise ValueError(
                f"max_chunk_length ({max_chunk_length}) must be None or a positive integer <= "
                f"num_keep_alive_refs ({num_keep_alive_refs})"
            )
        if path in self._column_of_path:
            self._writer.ConfigureChunker(self._column_of_path[path], options)
        else:
            self._settings[path] = options

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Append a step, or a part of one.

        Args:
            data: Any nest of values. Leaves that earlier steps did not have become columns, which
                are ``None`` in those steps.
            partial_step: Whether the step continues: the next append adds other leaves to it.

        Raises:
            ValueError: If a leaf has another dtype or shape than before, or was given twice in one
                step.
        """
        values = self._by_column(data)
        if self._step_is_open:
            self._check_open_step(values)
        try:
            append = self._writer.AppendPartial if partial_step else self._writer.Append
            cells = append(values)
        except ValueError as error:
            raise with_path(error, lambda number: str(self._columns[number].path())) from error
        for column, cell in zip(self._columns, cells, strict=False):
            if not self._step_is_open:
                column.append(cell)
            elif cell is not None:
                column.set_last(cell)
        self._step_is_open = partial_step

    def _by_column(self, data: Any) -> list[Any]:
        """Return the value of each column in a step."""
        values: list[Any] = [None] * len(self._columns)
        if type(data) is dict:
            numbers = self._column_of_key
            for key, value in data.items():
                number = numbers.get(key)
                if number is None or _nest.is_nested(value):
                    break
                values[number] = value
            else:
                return values
        leaves = _nest.flatten_with_path(data)
        columns = self._column_of_path
        if not all(path in columns for path, _ in leaves):
            shape = _nest.map_leaves(lambda _: None, data)
            self._grow(shape if self._structure is None else _union(self._structure, shape))
        values = [None] * len(self._columns)
        for path, value in leaves:
            values[columns[path]] = value
        return values

    def _check_open_step(self, values: list[Any]) -> None:
        for column, value in zip(self._columns, values, strict=True):
            if value is not None and not column.can_set_last:
                raise ValueError(
                    f"Field {column.path()} has already been set in the active step by previous "
                    "(partial) append call and thus must be omitted or set to None but got: "
                    f"{value}"
                )

    def create_item(self, table: str, priority: float, trajectory: Any) -> None:
        """Make an item of steps of the history. It never waits; :meth:`flush` does.

        Args:
            table: The table's name.
            priority: At least 0.
            trajectory: Any nest of :class:`TrajectoryColumn`.

        Raises:
            TypeError: If a leaf is not a column.
            ValueError: If a step is gone, or the item does not match the table's signature.
        """
        columns = _nest.flatten(trajectory)
        if not all(isinstance(column, TrajectoryColumn) for column in columns):
            raise TypeError(
                f"All leaves of `trajectory` must be `TrajectoryColumn` but got {trajectory}"
            )
        self._writer.CreateItem(
            table,
            priority,
            [column._cells for column in columns],
            [column.is_squeezed for column in columns],
        )

    def close(self) -> None:
        """Close; items that were not flushed may be lost."""
        self._writer.Close()

    def _end(self) -> None:
        for column in self._columns:
            column.reset()

    def _grow(self, structure: Any) -> None:
        """Make columns of the leaves of a structure that have none."""
        length = len(self._columns[0]) if self._columns else 0
        numbers = []
        for path, _ in _nest.flatten_with_path(structure):
            number = self._column_of_path.get(path)
            if number is None:
                number = self._column_of_path[path] = len(self._columns)
                if path in self._settings:
                    self._writer.ConfigureChunker(number, self._settings[path])
                kept = self._writer.max_num_keep_alive_refs
                self._columns.append(_ColumnHistory(path, kept, length))
            numbers.append(number)
        self._structure = _nest.unflatten_as(structure, numbers)
        self._history = _nest.map_leaves(lambda number: self._columns[number], self._structure)
        self._column_of_key = {
            path[0]: number for path, number in self._column_of_path.items() if len(path) == 1
        }


def _copied(history: Any) -> Any:
    """Copy a nest, so that programs may change it."""
    if type(history) is _ColumnHistory:
        return history
    if type(history) is dict:
        return {
            key: child if type(child) is _ColumnHistory else _copied(child)
            for key, child in history.items()
        }
    return _nest.map_leaves(lambda column: column, history)


def _union(a: Any, b: Any) -> Any:
    """Return a structure with the leaves of both."""
    if a is None or isinstance(a, int):
        return a
    if hasattr(a, "_fields"):
        return type(a)(**_union(a._asdict(), b._asdict()))
    if isinstance(a, (list, tuple)):
        pairs = itertools.zip_longest(a, b)
        return type(a)(_union(*(pair if pair[0] is not None else pair[::-1])) for pair in pairs)
    merged = {key: _union(a[key], b[key]) if key in a and key in b else a[key] for key in a}
    merged.update((key, value) for key, value in b.items() if key not in merged)
    return type(a)(merged)


class _ColumnHistory:
    """The kept steps of one column, ``None`` where one has no value."""

    def __init__(self, path: _nest.Path, buffer_size: int, history_padding: int = 0) -> None:
        self._path = path
        self._buffer_size = buffer_size
        self._cells: list[Any] = [None] * min(buffer_size, history_padding)
        # How many steps came before the kept ones.
        self._dropped = history_padding - len(self._cells)

    def path(self) -> _nest.Path:
        return self._path

    def append(self, cell: Any) -> None:
        self._cells.append(cell)
        if len(self._cells) > self._buffer_size:
            del self._cells[0]
            self._dropped += 1

    def reset(self) -> None:
        self._cells = []
        self._dropped = 0

    def set_last(self, cell: Any) -> None:
        if not self._cells:
            raise RuntimeError("set_last called on empty history column")
        if self._cells[-1] is not None:
            raise RuntimeError("set_last called on already set cell")
        self._cells[-1] = cell

    @property
    def can_set_last(self) -> bool:
        return bool(self._cells) and self._cells[-1] is None

    def __len__(self) -> int:
        return self._dropped + len(self._cells)

    def __iter__(self) -> Iterator[Any]:
        yield from itertools.repeat(None, self._dropped)
        yield from self._cells

    def _one(self, index: int) -> Any:
        """Return the step at an index; ``None`` if it is gone."""
        if -len(self._cells) <= index < 0:
            return self._cells[index]
        at = index if index >= 0 else index + len(self)
        if index >= len(self):
            raise IndexError("list index out of range")
        return self._cells[at - self._dropped] if at >= self._dropped else None

    def _many(self, index: slice) -> list[Any]:
        """Return the steps of a slice; ``None`` for those that are gone, or before the first."""
        first = index.start
        if (
            first is not None
            and 0 < -first <= len(self._cells)
            and index.stop is index.step is None
        ):
            return self._cells[first:]
        length = len(self)
        start, stop, step = index.indices(length)
        if step != 1:
            return [self._one(at) for at in range(start, stop, step)]
        before = 0
        if index.start is not None and index.start < -length:
            # Counted from the newest, the first ones are before the start of the episode.
            before = -index.start - length
        gone = max(0, min(stop, self._dropped) - start)
        kept = slice(max(0, start - self._dropped), max(0, stop - self._dropped))
        return [None] * (before + gone) + self._cells[kept]

    def __getitem__(self, index: int | slice | list[int]) -> TrajectoryColumn:
        path = (*self._path, index)
        if isinstance(index, slice):
            return TrajectoryColumn(self._many(index), path=path)
        if isinstance(index, (int, np.integer)):
            return TrajectoryColumn([self._one(int(index))], squeeze=True, path=path)
        if isinstance(index, list):
            return TrajectoryColumn([self._one(one) for one in index], path=path)
        raise TypeError(f"_ColumnHistory indices must be integers or slices, not {type(index)}")

    def __str__(self) -> str:
        name = f"{type(self).__module__}.{type(self).__name__}"
        return f"{name}(path={self._path}, refs={self._cells})"


class TrajectoryColumn:
    """Some steps of a column: a leaf of an item's trajectory.

    Args:
        data_references: Steps of the history.
        squeeze: Whether this is one step without an axis of time.
        path: The column's path, for messages.

    Raises:
        ValueError: If a step is gone or never existed, or if it is to be squeezed and has not
            exactly one step.
    """

    def __init__(
        self,
        data_references: Sequence[pybind.WeakCellRef],
        *,
        squeeze: bool = False,
        path: tuple[Any, ...] | None = None,
    ) -> None:
        if squeeze and len(data_references) != 1:
            raise ValueError(
                "Columns must contain exactly one data reference when squeeze set, got "
                f"{len(data_references)}"
            )
        if None in data_references:
            raise ValueError(
                "TrajectoryColumns cannot contain any None data references: TrajectoryColumn at "
                f"path {path} got {data_references}."
            )
        self._cells = tuple(data_references)
        self.is_squeezed = squeeze

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[pybind.WeakCellRef]:
        return iter(self._cells)

    def __getitem__(self, index: int | slice | list[int]) -> TrajectoryColumn:
        if isinstance(index, (int, np.integer)):
            return TrajectoryColumn([self._cells[index]], squeeze=True)
        if isinstance(index, slice):
            return TrajectoryColumn(self._cells[index])
        if isinstance(index, list):
            return TrajectoryColumn([self._cells[one] for one in index])
        raise TypeError(f"TrajectoryColumn indices must be integers or slices, not {type(index)}")

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape in an item."""
        shape = tuple(self._first().shape)
        return shape if self.is_squeezed else (len(self._cells), *shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return self._first().dtype

    def _first(self) -> pybind.WeakCellRef:
        if self._cells[0].expired:
            raise RuntimeError("Cannot access data from expired WeakCellRef")
        return self._cells[0]

    def numpy(self) -> np.ndarray[Any, Any]:
        """Copy the values.

        Raises:
            RuntimeError: If a step is gone.
        """
        if any(cell.expired for cell in self._cells):
            raise RuntimeError(
                "Cannot convert TrajectoryColumn with expired data references to numpy array."
            )
        if self.is_squeezed:
            return self._cells[0].numpy()
        return np.stack([cell.numpy() for cell in self._cells])
