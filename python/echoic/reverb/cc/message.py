"""Records that behave like protocol buffer messages, as far as programs written for Reverb need.

A field that was not set reads as its default. Fields of a ``oneof`` exclude each other, and report
whether they were set; a message inside a message is created when one of its fields is set.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Field", "Message"]


@dataclass(frozen=True)
class Field:
    """A field of a message.

    Attributes:
        default: Its value when it was not set; its type is the field's.
        group: The name of its ``oneof``, of whose fields at most one is set.
        kind: The class, if the field is a message.
        many: Whether it is a list.
    """

    default: Any = None
    group: str = ""
    kind: type[Message] | None = None
    many: bool = False

    @property
    def has_presence(self) -> bool:
        """Whether the field reports if it was set."""
        return bool(self.group) or (self.kind is not None and not self.many)


class Message:
    """Base of messages. Subclasses name their fields in ``FIELDS``."""

    FIELDS: ClassVar[dict[str, Field]] = {}
    _values: dict[str, Any]
    # If it was read but not set: the message and the field that it is set in later.
    _parent: tuple[Message, str] | None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        """Set fields; ``None`` leaves one unset."""
        object.__setattr__(self, "_values", {})
        object.__setattr__(self, "_parent", None)
        for name, value in values.items():
            if self._field(name).many:
                self._values[name] = [self._checked(name, one) for one in value or ()]
            elif value is not None:
                self._set(name, copy.deepcopy(self._checked(name, value)))

    def _field(self, name: str) -> Field:
        try:
            return self.FIELDS[name]
        except KeyError:
            raise ValueError(
                f"{type(self).__name__} has no field {name!r}; it has {', '.join(self.FIELDS)}"
            ) from None

    def _checked(self, name: str, value: Any) -> Any:
        field = self.FIELDS[name]
        expected = type(field.default) if field.kind is None else field.kind
        if expected is float and isinstance(value, (int, float)):
            return float(value)
        if expected in (int, bool) and hasattr(value, "__index__"):
            return expected(value.__index__())
        if expected is object or isinstance(value, expected):
            return value
        raise TypeError(
            f"field {name!r} of {type(self).__name__} is a {expected.__name__}, "
            f"got {value!r} of type {type(value).__name__}"
        )

    def _set(self, name: str, value: Any) -> None:
        group = self.FIELDS[name].group
        if group:
            for other, field in self.FIELDS.items():
                if field.group == group:
                    self._values.pop(other, None)
        self._values[name] = value
        if self._parent is not None:
            parent, place = self._parent
            object.__setattr__(self, "_parent", None)
            parent._set(place, self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            field = self.FIELDS[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}") from None
        if name in self._values:
            return self._values[name]
        if field.many:
            return self._values.setdefault(name, [])
        if field.kind is None:
            return field.default
        child = field.kind()
        object.__setattr__(child, "_parent", (self, name))
        return child

    def __setattr__(self, name: str, value: Any) -> None:
        field = self.FIELDS.get(name)
        if field is None or field.many or field.kind is not None:
            raise AttributeError(
                f"{name!r} can't be assigned to; the fields of a {type(self).__name__} that can "
                f"are {[name for name, field in self.FIELDS.items() if field.kind is None]}"
            )
        self._set(name, self._checked(name, value))

    def HasField(self, name: str) -> bool:
        """Return whether a field was set."""
        if not self._field(name).has_presence:
            raise ValueError(f"{type(self).__name__}.{name} does not report whether it was set")
        return name in self._values

    def WhichOneof(self, group: str) -> str | None:
        """Return which field of a group was set."""
        names = [name for name, field in self.FIELDS.items() if field.group == group]
        if not names:
            raise ValueError(f"{type(self).__name__} has no group {group!r}")
        return next((name for name in names if name in self._values), None)

    def ClearField(self, name: str) -> None:
        """Unset a field."""
        self._field(name)
        self._values.pop(name, None)

    def CopyFrom(self, other: Self) -> None:
        """Copy the fields of another message."""
        object.__setattr__(self, "_values", copy.deepcopy(other._values))

    def __deepcopy__(self, memo: dict[int, Any]) -> Message:
        return _restore(type(self), copy.deepcopy(self._values, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self._values)

    def _plain(self) -> dict[str, Any]:
        """Return the fields that were set to something else than their defaults."""
        return {
            name: value
            for name, value in self._values.items()
            if self.FIELDS[name].has_presence
            or (value if self.FIELDS[name].many else value != self.FIELDS[name].default)
        }

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self._plain() == other._plain()

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        lines = []
        for name, field in self.FIELDS.items():
            if name not in (plain := self._plain()):
                continue
            for value in plain[name] if field.many else [plain[name]]:
                if isinstance(value, Message):
                    lines += [f"{name} {{", *(f"  {line}" for line in value._lines()), "}"]
                elif isinstance(value, bool):
                    lines.append(f"{name}: {str(value).lower()}")
                elif isinstance(value, str):
                    lines.append(f'{name}: "{value}"')
                else:
                    lines.append(f"{name}: {value}")
        return lines


def _restore(kind: type[Message], values: dict[str, Any]) -> Message:
    restored = kind()
    object.__setattr__(restored, "_values", values)
    return restored
