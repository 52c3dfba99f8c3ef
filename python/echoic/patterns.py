"""Make items from steps by patterns, which are set once and evaluated at every step.

A pattern is a tree like the items. Its leaves name the steps of a column that they consist of:
``{"obs": column("obs")[-2:], "reward": column("reward")[-1]}``. A :class:`Config` adds the table,
the priority and the conditions under which an item is made.

Examples:
    >>> import numpy as np
    >>> from echoic import Server, Table, connect
    >>> from echoic import patterns
    >>> config = patterns.Config(
    ...     {"obs": patterns.column("obs")[-3:], "reward": patterns.column("reward")[-1]},
    ...     table="steps",
    ...     conditions=[patterns.step_index() % 2 == 0],
    ... )
    >>> server = Server(Table.queue("steps", capacity=100))
    >>> with server, connect(server).structured_writer([config]) as writer:
    ...     for step in range(7):
    ...         writer.append({"obs": np.full(2, step), "reward": step / 10})
    ...     writer.end_episode()
    ...     batch = connect(server).table("steps").sample(3)
    >>> batch.data["reward"]
    array([0.2, 0.4, 0.6])
    >>> batch.data["obs"].shape
    (3, 3, 2)
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, SupportsFloat, SupportsIndex, TypeAlias

from echoic import _native
from echoic._writing import Writes
from echoic.errors import TrajectoryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

    from echoic.trajectory_writer import ChunkLength, Encoding

__all__ = [
    "Column",
    "ColumnSteps",
    "Condition",
    "Config",
    "Last",
    "Max",
    "Mean",
    "Mixed",
    "Priority",
    "StructuredWriter",
    "Term",
    "column",
    "data",
    "end_of_episode",
    "step_index",
    "steps_since_applied",
]


class ColumnSteps:
    """Steps of a column, counted from the newest: a leaf of a pattern. Index a :func:`column`."""

    __slots__ = ("_column", "_slice", "_start")

    def __init__(self, column: str, start: int, slice_: tuple[int, int] | None) -> None:
        self._column = column
        self._start = start
        self._slice = slice_

    def _settings(self) -> tuple[str, int, tuple[int, int] | None]:
        """Return the path and the numbers that the native core expects."""
        return self._column, self._start, self._slice

    def __repr__(self) -> str:
        if self._slice is None:
            return f"column({self._column!r})[{self._start}]"
        stop, step = self._slice
        end, every = (stop or ""), (f":{step}" if step > 1 else "")
        return f"column({self._column!r})[{self._start}:{end}{every}]"


class Column:
    """A column of the writer; index or slice it to name the steps that a pattern takes."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __getitem__(self, index: SupportsIndex | slice) -> ColumnSteps:
        """Take steps, counted from the newest, which is -1, as in a list of the steps so far.

        ``column[-1]`` is one step and has no axis of time. ``column[-3:]``, ``column[-3:-1]`` and
        ``column[-7::2]`` have one.

        Raises:
            TrajectoryError: If the slice is empty, has no start, or reaches into the future.
        """
        if not isinstance(index, slice):
            try:
                start = operator.index(index)
            except TypeError:
                raise TypeError(
                    f"{self!r}: expected an index or a slice, got a {type(index).__name__}"
                ) from None
            if start >= 0:
                self._refuse(f"[{start}]", "an index is negative: steps count from the newest, -1")
            return ColumnSteps(self._path, start, None)
        shown = ":".join("" if part is None else str(part) for part in _parts(index))
        if index.start is None:
            self._refuse(f"[{shown}]", "a slice needs a start, or it would grow with the episode")
        start = operator.index(index.start)
        stop = None if index.stop is None else operator.index(index.stop)
        step = 1 if index.step is None else operator.index(index.step)
        if start >= 0 or (stop is not None and stop >= 0):
            self._refuse(
                f"[{shown}]", "start and stop are negative: steps count from the newest, -1"
            )
        if step < 1:
            self._refuse(f"[{shown}]", "steps are in the order of time: use a step of at least 1")
        if stop is not None and stop <= start:
            self._refuse(f"[{shown}]", "the slice is empty")
        return ColumnSteps(self._path, start, (stop or 0, step))

    def _refuse(self, index: str, why: str) -> NoReturn:
        raise TrajectoryError(f"{self!r}{index}: {why}")

    def __iter__(self) -> NoReturn:
        """Raise an error: the steps do not exist yet."""
        raise TypeError(f"{self!r} can't be iterated over: its steps do not exist yet")

    def __repr__(self) -> str:
        return f"column({self._path!r})"


def _parts(index: slice) -> tuple[Any, ...]:
    every = () if index.step is None else (index.step,)
    return (index.start, index.stop, *every)


@dataclass(frozen=True)
class Condition:
    """A condition for applying a pattern; compare a :class:`Term` to get one."""

    term: str
    path: str
    modulo: int | None
    test: str
    value: int | float

    def __bool__(self) -> NoReturn:
        """Raise an error: ``and``, ``or`` and chained comparisons would lose a part."""
        raise TypeError(
            f"`{self}` is evaluated at each step and has no truth value here; "
            "give several conditions as a list, all of which must hold"
        )

    def __str__(self) -> str:
        if self.term == "end_of_episode":
            return "end_of_episode()"
        modulo = "" if self.modulo is None else f" % {self.modulo}"
        path = repr(self.path) if self.term == "data" else ""
        return f"{self.term}({path}){modulo} {self.test} {self.value}"


class Term:
    """A number that changes with each step. Compare it to a constant to get a condition.

    ``%`` with a positive int takes its remainder first, which is never negative.
    """

    __slots__ = ("_modulo", "_name", "_path")
    __hash__ = None  # type: ignore[assignment]
    # `numpy.float64(1) < term` is left to the term.
    __array_ufunc__ = None

    def __init__(self, name: str, path: str = "", modulo: int | None = None) -> None:
        """Name the term; use the functions of this module instead."""
        self._name = name
        self._path = path
        self._modulo = modulo

    def __mod__(self, divisor: SupportsIndex) -> Term:
        modulo = operator.index(divisor)
        if self._modulo is not None or not 1 <= modulo < 1 << 32:
            raise TrajectoryError(
                f"expected one remainder, of a division by at least 1, got {modulo}"
            )
        return Term(self._name, self._path, modulo)

    def _compare(self, test: str, value: SupportsIndex | SupportsFloat) -> Condition:
        number = operator.index(value) if isinstance(value, SupportsIndex) else float(value)
        return Condition(self._name, self._path, self._modulo, test, number)

    def __eq__(self, value: SupportsFloat) -> Condition:  # type: ignore[override]
        return self._compare("==", value)

    def __ne__(self, value: SupportsFloat) -> Condition:  # type: ignore[override]
        return self._compare("!=", value)

    def __lt__(self, value: SupportsFloat) -> Condition:
        return self._compare("<", value)

    def __le__(self, value: SupportsFloat) -> Condition:
        return self._compare("<=", value)

    def __gt__(self, value: SupportsFloat) -> Condition:
        return self._compare(">", value)

    def __ge__(self, value: SupportsFloat) -> Condition:
        return self._compare(">=", value)


@dataclass(frozen=True)
class Priority:
    """A priority computed from the steps in one leaf of an item.

    Args:
        leaf: Path of the pattern's leaf: keys joined by ``/``. Its steps must be single numbers.
        absolute: Whether to drop their signs, as is usual for errors of a value function.
    """

    leaf: str
    absolute: bool = field(default=False, kw_only=True)

    def _settings(self) -> tuple[str, str, bool, float]:
        """Return the name and the numbers that the native core expects."""
        return type(self).__name__.lower(), self.leaf, self.absolute, 0.0


@dataclass(frozen=True)
class Max(Priority):
    """The largest number of the leaf's steps."""


@dataclass(frozen=True)
class Mean(Priority):
    """The mean of the leaf's steps."""


@dataclass(frozen=True)
class Last(Priority):
    """The number of the leaf's last step."""


@dataclass(frozen=True)
class Mixed(Priority):
    """``eta * max + (1 - eta) * mean`` of the leaf's steps.

    This is the priority of sequences in Kapturowski et al., "Recurrent Experience Replay in
    Distributed Reinforcement Learning" (2019).

    Args:
        leaf: Path of the pattern's leaf: keys joined by ``/``. Its steps must be single numbers.
        absolute: Whether to drop their signs, as is usual for errors of a value function.
        eta: The weight of the maximum, from 0 to 1.
    """

    eta: float = field(default=0.9, kw_only=True)

    def _settings(self) -> tuple[str, str, bool, float]:
        """Return the name and the numbers that the native core expects."""
        return "mixed", self.leaf, self.absolute, float(self.eta)


@dataclass(frozen=True, eq=False)
class Config:
    """Which items to make, and when to make them.

    Args:
        pattern: A tree like the items; its leaves are steps of columns.
        table: The name of the table that the items go to.
        priority: A number, or how to compute it from a leaf of the item.
        conditions: All must hold. Without any, an item is made at each step once all steps of the
            pattern exist. With :func:`end_of_episode` an item is made when the episode ends,
            otherwise when a step is appended.

    Raises:
        TrajectoryError: If the conditions can never hold together.

    Examples:
        >>> from echoic import patterns
        >>> tail = patterns.Config(
        ...     {"obs": patterns.column("obs")[-5:], "td": patterns.column("td")[-5:]},
        ...     table="tails",
        ...     priority=patterns.Mixed("td", eta=0.9, absolute=True),
        ...     conditions=[patterns.end_of_episode()],
        ... )
    """

    pattern: Any
    table: str = field(kw_only=True)
    priority: float | Priority = field(default=1.0, kw_only=True)
    conditions: Sequence[Condition] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        """Check that the conditions are valid and can hold together."""
        if isinstance(self.conditions, (Condition, str)):
            raise TypeError(f"conditions: expected a list of conditions, got {self.conditions}")
        for condition in self.conditions:
            if not isinstance(condition, Condition):
                raise TypeError(f"expected a condition, got {condition!r}")
        _satisfiable(self.conditions)

    def _settings(self) -> tuple[Any, str, tuple[str, str, bool, float], list[tuple[Any, ...]]]:
        """Return the settings as the native core expects them."""
        if isinstance(self.priority, Priority):
            priority = self.priority._settings()
        else:
            priority = ("constant", "", False, float(self.priority))
        conditions = [(c.term, c.path, c.modulo, c.test, c.value) for c in self.conditions]
        return self.pattern, self.table, priority, conditions


# The end of a range, and whether it is excluded: 1 for an excluded lower end, -1 for an excluded
# upper one. A range has a number in it exactly if its lower end is at most its upper end.
_End: TypeAlias = "tuple[int | float, int]"


def _satisfiable(conditions: Iterable[Condition]) -> None:
    """Raise an error if no number satisfies all conditions on one term."""
    ranges: dict[tuple[str, str, int | None], tuple[_End, _End]] = {}
    for condition in conditions:
        key = (condition.term, condition.path, condition.modulo)
        low, high = _range(condition)
        before = ranges.get(key, (low, high))
        low, high = ranges[key] = max(low, before[0]), min(high, before[1])
        if not low <= high:
            same = [str(c) for c in conditions if (c.term, c.path, c.modulo) == key]
            raise TrajectoryError(f"no step has {' and '.join(same)}: the pattern would do nothing")


def _range(condition: Condition) -> tuple[_End, _End]:
    """Return the range of numbers for which a condition may hold."""
    test, value = condition.test, condition.value
    counts = condition.term != "data"
    least: _End = ({"step_index": 0, "steps_since_applied": 1}.get(condition.term, -math.inf), 0)
    most: _End = (math.inf, 0)
    if condition.modulo is not None:
        least = (0, 0)
        most = (condition.modulo - 1, 0) if counts else (condition.modulo, -1)
    if test in ("!=", ""):
        return least, most
    if math.isnan(value):
        return (math.inf, 1), most
    low, high = (value, int(test == ">")), (value, -int(test == "<"))
    if counts and math.isfinite(value):
        # Between whole numbers.
        low = (math.floor(value) + 1 if test == ">" else math.ceil(value), 0)
        high = (math.ceil(value) - 1 if test == "<" else math.floor(value), 0)
    if test in (">", ">=", "=="):
        least = max(least, low)
    if test in ("<", "<=", "=="):
        most = min(most, high)
    return least, most


def column(path: str) -> Column:
    """Name a column of the writer by its path: keys of the steps' tree joined by ``/``."""
    return Column(path)


def step_index() -> Term:
    """Return the newest step's index in its episode, from 0."""
    return Term("step_index")


def steps_since_applied() -> Term:
    """Return the number of steps since the pattern was last applied, the newest included.

    If it never was, count from the writer's creation. The end of an episode does not reset it.
    """
    return Term("steps_since_applied")


def data(path: str) -> Term:
    """Return the newest step's value in a column, which must be one number.

    Without a value the condition does not hold.
    """
    return Term("data", path)


def end_of_episode() -> Condition:
    """Hold at the end of an episode only."""
    return Condition("end_of_episode", "", None, "", 0)


class StructuredWriter(Writes, _native.StructuredWriter):
    """Append steps, and make items of them by patterns.

    ``client.structured_writer`` makes one. As with a :class:`~echoic.TrajectoryWriter`, each step
    is stored once, however many items have it; columns that no pattern names are not stored. Use a
    writer in one thread.

    Args:
        tables: The tables that items may go to.
        configs: Which items to make; at each step they are evaluated in this order.
        chunk_length: How many steps a chunk has at most: see :class:`~echoic.TrajectoryWriter`.
        encoding: How chunks are stored: see there.

    Raises:
        TrajectoryError: If a pattern is malformed.
        PriorityError: If a priority is not a finite number >= 0.
        SpecError: If a pattern does not match its table's spec.
        TableNotFoundError: If a config names a table that is not in ``tables``.
    """

    def __new__(
        cls,
        tables: Sequence[_native.Table],
        configs: Iterable[Config],
        chunk_length: ChunkLength | None = None,
        encoding: Encoding = "none",
    ) -> Self:
        settings = [config._settings() for config in configs]
        return super().__new__(cls, list(tables), settings, chunk_length, encoding)

    def __repr__(self) -> str:
        return f"StructuredWriter(pending={self.pending})"
