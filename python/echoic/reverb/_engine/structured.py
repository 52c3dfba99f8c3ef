"""Write items by patterns, given as Reverb's messages.

Patterns and conditions are converted to settings of our structured writer. A pattern whose
conditions can never hold together is dropped: ours rejects it, Reverb never applies it. Values that
conditions compare are appended as a column of their own, since Reverb's conditions hold for whole
numbers and truth values only.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import patterns as engine
from echoic.errors import ClosedError, TrajectoryError, WaitTimeoutError
from echoic.reverb import _signature
from echoic.reverb._engine.errors import as_reverb, gone, not_found
from echoic.reverb._engine.trajectory import AnyWriter, wrong_column
from echoic.reverb._engine.values import array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from echoic import Connection
    from echoic.reverb.cc.patterns_pb2 import Condition, PatternNode, StructuredWriterConfig

__all__ = ["Columns", "StructuredWriter", "engine_config", "history_length", "validate"]

_log = logging.getLogger(__name__)


def validate(config: StructuredWriterConfig) -> None:
    """Check a pattern.

    Raises:
        ValueError: If it is malformed; the message says how.
    """
    if not config.flat:
        raise ValueError("`flat` must not be empty.")
    if not config.table:
        raise ValueError("`table` must not be empty.")
    priority = config.priority.constant_fn.value
    if math.isnan(priority):
        raise ValueError("`priority` must not be nan.")
    if priority < 0:
        raise ValueError(f"`priority` must be >= 0 but got {priority:g}.")
    for node in config.flat:
        _validate_node(node)
    for condition in config.conditions:
        _validate_condition(condition)


def _validate_node(node: PatternNode) -> None:
    start = node.start if node.HasField("start") else None
    stop = node.stop if node.HasField("stop") else None
    if node.flat_source_index < 0:
        raise ValueError(f"`flat_source_index` must be >= 0 but got {node.flat_source_index}.")
    if start is None and stop is None:
        raise ValueError("At least one of `start` and `stop` must be specified.")
    if start is not None and start >= 0:
        raise ValueError(f"`start` must be < 0 but got {start}.")
    if stop is not None and stop > 0:
        raise ValueError(f"`stop` must be <= 0 but got {stop}.")
    if start is not None and stop is not None and start >= stop:
        raise ValueError(f"`stop` ({stop}) must be > `start` ({start}) when both are specified.")
    if start is None and stop == 0:
        raise ValueError(f"`stop` must be < 0 when `start` isn't set but got {stop}.")
    if node.HasField("step"):
        if start is None:
            raise ValueError("`step` must only be set when `start` is set.")
        if node.step <= 0:
            raise ValueError(f"`step` must be > 0 but got {node.step}.")


def _validate_condition(condition: Condition) -> None:
    if condition.WhichOneof("left") is None:
        raise ValueError("Conditions must specify a value for `left`.")
    if condition.flat_source_index < 0:
        raise ValueError(f"flat_source_index must be >= 0 but got {condition.flat_source_index}.")
    if condition.WhichOneof("cmp") == "mod_eq":
        if condition.mod_eq.mod <= 0:
            raise ValueError(f"`mod_eq.mod` must be > 0 but got {condition.mod_eq.mod}.")
        if condition.mod_eq.eq < 0:
            raise ValueError(f"`mod_eq.eq` must be >= 0 but got {condition.mod_eq.eq}.")
    if condition.WhichOneof("cmp") is None:
        raise ValueError("Conditions must specify a value for `cmp`.")
    if condition.is_end_episode and (condition.eq != 1 or condition.inverse):
        raise ValueError("Condition must use `eq=1` when using `is_end_episode`.")


def history_length(config: StructuredWriterConfig) -> int:
    """Return how many of the last steps a pattern needs."""
    ages = (node.start if node.HasField("start") else node.stop for node in config.flat)
    return max(-int(age) for age in ages)


def _steps(node: PatternNode) -> engine.ColumnSteps:
    column = engine.column(str(node.flat_source_index))
    if not node.HasField("start"):
        return column[node.stop]
    return column[node.start : node.stop or None : node.step or 1]


def _compared(number: int) -> str:
    """Return the name of the column with the values that conditions on a column compare."""
    return f"compared {number}"


def _term(condition: Condition) -> engine.Term:
    left = condition.WhichOneof("left")
    if left == "flat_source_index":
        return engine.data(_compared(condition.flat_source_index))
    return engine.steps_since_applied() if left == "steps_since_applied" else engine.step_index()


def _condition(condition: Condition) -> engine.Condition:
    if condition.is_end_episode:
        return engine.end_of_episode()
    term = _term(condition)
    cmp = condition.WhichOneof("cmp")
    if cmp == "ge":
        least = int(condition.ge)
        return term < least if condition.inverse else term >= least
    value = int(condition.eq)
    if cmp == "mod_eq":
        term, value = term % int(condition.mod_eq.mod), int(condition.mod_eq.eq)
    return term != value if condition.inverse else term == value


def _holds(condition: Condition, number: int) -> bool:
    """Return whether a condition holds for a number."""
    cmp = condition.WhichOneof("cmp")
    if cmp == "mod_eq":
        holds = number % condition.mod_eq.mod == condition.mod_eq.eq
    else:
        holds = number >= condition.ge if cmp == "ge" else number == condition.eq
    return bool(holds != condition.inverse)


def _of_buffer(condition: Condition, least: int, most: int) -> list[engine.Condition]:
    """Convert a condition on the number of buffered steps, which is at most ``most``."""
    lengths = range(least, most + 1)
    holds = [length for length in lengths if _holds(condition, length)]
    if len(holds) == len(lengths):
        return []
    if not holds:
        raise TrajectoryError(f"at most {most} steps are kept, of which {condition!r} never holds")
    first, last = holds[0], holds[-1]
    if len(holds) != last - first + 1 or (first > least and last < most and first != last):
        raise ValueError(f"conditions on the buffer's length compare it once, got {condition!r}")
    # With n steps the last index is n - 1. If no more are buffered, the length stays the same.
    upper = [] if last == most else [engine.step_index() <= last - 1]
    return [engine.step_index() >= first - 1, *upper]


def _priority(config: StructuredWriterConfig) -> float | engine.Priority:
    kind = config.priority.WhichOneof("priority_fn")
    if kind is None:
        raise ValueError("The Priority function is undefined: set constant_fn or td_error.")
    if kind == "constant_fn":
        return float(config.priority.constant_fn.value)
    error = config.priority.td_error
    for index, node in enumerate(config.flat):
        if node.flat_source_index == error.flat_source_index:
            return engine.Mixed(str(index), eta=error.max_priority_weight, absolute=True)
    raise ValueError(
        f"the TD error is column {error.flat_source_index} of the steps, of which the pattern has "
        "nothing"
    )


def engine_config(
    config: StructuredWriterConfig, table: str, kept: int = 0
) -> engine.Config | None:
    """Convert a pattern for our writer; ``None`` if its conditions never hold together.

    Args:
        config: The pattern.
        table: The table of its items.
        kept: How many steps the writer buffers, if more than this pattern needs.
    """
    pattern = tuple(_steps(node) for node in config.flat)
    length = history_length(config)
    try:
        conditions: list[engine.Condition] = []
        for condition in config.conditions:
            if condition.WhichOneof("left") == "buffer_length":
                conditions += _of_buffer(condition, length, max(length, kept))
            else:
                conditions.append(_condition(condition))
        priority = _priority(config)
        return engine.Config(pattern, table=table, priority=priority, conditions=conditions)
    except TrajectoryError as error:
        _log.warning("a pattern for table %r does nothing: %s", table, error)
        return None


class Columns:
    """The columns that patterns need, and the dtype and shape of their values."""

    def __init__(self, configs: Sequence[StructuredWriterConfig]) -> None:
        nodes = [node for config in configs for node in config.flat]
        conditions = [condition for config in configs for condition in config.conditions]
        self._stored = {node.flat_source_index for node in nodes}
        self._compared = {
            condition.flat_source_index
            for condition in conditions
            if condition.WhichOneof("left") == "flat_source_index"
        }
        self._errors = {
            config.priority.td_error.flat_source_index
            for config in configs
            if config.priority.WhichOneof("priority_fn") == "td_error"
        }
        self._names = {index: str(index) for index in self._stored}
        self._known: dict[int, _signature.Column] = {}

    def of_step(self, data: Sequence[Any]) -> tuple[dict[str, Any], set[int]]:
        """Return what to append for a step, and which of its values are not ``None``.

        Raises:
            ValueError: If a value has another dtype or shape than before.
            TypeError: If a table can't hold a value.
        """
        step: dict[str, Any] = {}
        given = set()
        found: dict[int, _signature.Column] = {}
        for index, leaf in enumerate(data):
            if leaf is None:
                continue
            given.add(index)
            value = array(leaf)
            stored, compared = index in self._stored, index in self._compared
            if index in self._errors:
                _check_error(value)
            if stored or compared:
                got: _signature.Column = (value.dtype, value.shape)
                expected = self._known.get(index)
                if expected is None:
                    found[index] = got
                elif expected != got:
                    wrong = wrong_column(index, expected, got)
                    if wrong is not None:
                        raise wrong
            if stored:
                step[self._names[index]] = value
            if compared and value.size == 1 and value.dtype.kind in "biu":
                step[_compared(index)] = value.reshape(()).astype(np.int64)
        self._known.update(found)
        return step, given


def _check_error(value: Any) -> None:
    if value.size != 1:
        raise ValueError(f"TD Error expects a scalar tensor, got one of shape {list(value.shape)}.")
    if value.dtype.name not in ("float32", "float64", "int32", "int64"):
        raise ValueError(
            "TD Error expects a double/float/int tensor, got one of "
            f"{_signature.dtype_name(value.dtype)}."
        )
    if value.dtype.kind == "f" and math.isnan(float(value.reshape(()))):
        raise ValueError("`priority` must not be nan.")


class StructuredWriter(AnyWriter):
    """A structured writer: see the module.

    Args:
        tables: A connection that is used by this writer only.
        configs: Patterns.
    """

    def __init__(self, tables: Connection, configs: Sequence[StructuredWriterConfig]) -> None:
        for position, config in enumerate(configs):
            try:
                validate(config)
            except ValueError as error:
                raise ValueError(f"Invalid configuration at position {position}: {error}") from None
        known = tables.tables
        # Reverb raises this when the first item reaches the server.
        self._missing = next((c.table for c in configs if c.table not in known), None)
        kept = max(history_length(config) for config in configs)
        settings = [engine_config(c, c.table, kept) for c in configs if c.table in known]
        self._tables = tables
        useful = [setting for setting in settings if setting is not None]
        # Our writer needs a pattern: one of a column that no step has makes no items.
        idle = engine.Config(engine.column("none")[-1], table=next(iter(known)))
        self._native = tables.structured_writer(
            useful or [idle], chunk_length="prompt", encoding="auto"
        )
        self._columns = Columns(configs)
        # Columns that the current step has.
        self._open: set[int] = set()
        self.step_is_open = False

    def _append(self, data: Sequence[Any], *, partial: bool) -> None:
        self._check()
        step, given = self._columns.of_step(data)
        if twice := given & self._open:
            raise RuntimeError(
                f"A value for column {min(twice)} was provided by multiple Append/AppendPartial "
                "calls in the same step."
            )
        try:
            self._native.append(step, partial, 0)
        except WaitTimeoutError:
            # The step was appended. A flush waits for tables; an append never does.
            pass
        except ClosedError as error:
            raise gone(error) from error
        self._open = self._open | given if partial else set()
        self.step_is_open = partial

    def _flush(self, left: int, timeout: float | None) -> None:
        super()._flush(left, timeout)
        self._check_tables()

    def EndEpisode(self, clear_buffers: bool, timeout_ms: int | None = None) -> None:
        """Make the items of the end, wait for their tables, and start another episode."""
        self._check()
        self._open = set()
        self.step_is_open = False
        try:
            with as_reverb():
                self._native.end_episode(
                    clear_buffers, None if timeout_ms is None else max(0, timeout_ms) / 1000
                )
        except WaitTimeoutError as error:
            raise self._timed_out() from error
        self._check_tables()

    def _check_tables(self) -> None:
        if self._missing is not None:
            self._broken = not_found(self._missing)
            raise self._broken
