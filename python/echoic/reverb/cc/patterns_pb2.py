"""Messages that configure a structured writer: see :mod:`echoic.reverb.structured_writer`."""

from __future__ import annotations

from typing import Any

from echoic.reverb.cc.message import Field, Message, message, number, repeated

__all__ = ["Condition", "PatternNode", "Priority", "Structure", "StructuredWriterConfig"]


class PatternNode(Message):
    """Steps of a column, counted from the newest, as a slice of a list."""

    FIELDS = {
        "flat_source_index": number(0),
        "start": number(0, "start_or_none"),
        "stop": number(0, "stop_or_none"),
        "step": number(0, "step_or_none"),
    }


class _ModuloEq(Message):
    FIELDS = {"mod": number(0), "eq": number(0)}


class Condition(Message):
    """A condition for applying a pattern."""

    ModuloEq = _ModuloEq
    FIELDS = {
        "step_index": number(False, "left"),
        "steps_since_applied": number(False, "left"),
        "buffer_length": number(False, "left"),
        "is_end_episode": number(False, "left"),
        "flat_source_index": number(0, "left"),
        "eq": number(0, "cmp"),
        "ge": number(0, "cmp"),
        "mod_eq": message(_ModuloEq, "cmp"),
        "inverse": number(False),
    }


class _ConstantPriorityFn(Message):
    FIELDS = {"value": number(0.0)}


class _TDError(Message):
    FIELDS = {"max_priority_weight": number(0.0), "flat_source_index": number(0)}


class Priority(Message):
    """The priority of items: a number, or computed from their errors."""

    ConstantPriorityFn = _ConstantPriorityFn
    TDError = _TDError
    FIELDS = {
        "constant_fn": message(_ConstantPriorityFn, "priority_fn"),
        "td_error": message(_TDError, "priority_fn"),
    }


class Structure(Message):
    """A nested structure whose leaves are ``None``."""

    FIELDS = {"nest": Field()}

    def _checked(self, name: str, value: Any) -> Any:
        return value


class StructuredWriterConfig(Message):
    """A pattern, the table that its items go to, their priority and the conditions."""

    FIELDS = {
        "flat": repeated(PatternNode),
        "pattern_structure": message(Structure),
        "table": number(""),
        "priority": message(Priority),
        "conditions": repeated(Condition),
    }
