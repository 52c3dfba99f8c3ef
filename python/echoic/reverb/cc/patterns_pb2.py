"""Messages that configure a structured writer: see :mod:`echoic.reverb.structured_writer`."""

from __future__ import annotations

from typing import Any

from echoic.reverb.cc.message import Field, Message

__all__ = ["Condition", "PatternNode", "Priority", "Structure", "StructuredWriterConfig"]


class PatternNode(Message):
    """Steps of a column, counted from the newest, as a slice of a list."""

    FIELDS = {
        "flat_source_index": Field(0),
        "start": Field(0, "start_or_none"),
        "stop": Field(0, "stop_or_none"),
        "step": Field(0, "step_or_none"),
    }


class Condition(Message):
    """A condition for applying a pattern."""

    class ModuloEq(Message):
        """The remainder ``eq`` of a division by ``mod``."""

        FIELDS = {"mod": Field(0), "eq": Field(0)}

    FIELDS = {
        "step_index": Field(False, "left"),
        "steps_since_applied": Field(False, "left"),
        "buffer_length": Field(False, "left"),
        "is_end_episode": Field(False, "left"),
        "flat_source_index": Field(0, "left"),
        "eq": Field(0, "cmp"),
        "ge": Field(0, "cmp"),
        "mod_eq": Field(kind=ModuloEq, group="cmp"),
        "inverse": Field(False),
    }


class Priority(Message):
    """The priority of items: a number, or computed from their errors."""

    class ConstantPriorityFn(Message):
        """One priority for all items."""

        FIELDS = {"value": Field(0.0)}

    class TDError(Message):
        """The maximum and the mean of the errors in a column of steps."""

        FIELDS = {"max_priority_weight": Field(0.0), "flat_source_index": Field(0)}

    FIELDS = {
        "constant_fn": Field(kind=ConstantPriorityFn, group="priority_fn"),
        "td_error": Field(kind=TDError, group="priority_fn"),
    }


class Structure(Message):
    """A nested structure whose leaves are ``None``."""

    FIELDS = {"nest": Field()}

    def _checked(self, name: str, value: Any) -> Any:
        return value


class StructuredWriterConfig(Message):
    """A pattern, the table that its items go to, their priority and the conditions."""

    FIELDS = {
        "flat": Field(kind=PatternNode, many=True),
        "pattern_structure": Field(kind=Structure),
        "table": Field(""),
        "priority": Field(kind=Priority),
        "conditions": Field(kind=Condition, many=True),
    }
