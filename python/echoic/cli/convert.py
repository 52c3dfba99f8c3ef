"""Convert values of configuration files, or raise an error that says what is expected.

A converter gets the value and the name of its key, such as `listen[0].address`, and raises a
`ConfigError` that has both. `values` applies a converter to each key of a table, and rejects
unknown keys; `converters_of` finds those of a dataclass in the annotations of its fields.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from echoic.cli.spec import Field, SpecTextError, from_table, parse

__all__ = [
    "ConfigError",
    "Convert",
    "boolean",
    "converters_of",
    "count",
    "each",
    "interval",
    "number",
    "one_of",
    "period",
    "positive",
    "seconds",
    "seed",
    "spec",
    "string",
    "values",
]

# The longest time to wait or drain; infinity is not allowed either.
HOUR = 3600
# The longest time between two checkpoints.
WEEK = 7 * 24 * HOUR
SHORTEST_INTERVAL = 0.1


class ConfigError(ValueError):
    """A configuration that can't be used; the message names the key."""


Convert: TypeAlias = Callable[[Any, str], Any]


def converters_of(kind: type, kinds: Mapping[Any, Convert] | None = None) -> dict[str, Convert]:
    """Return the converter of each field of a dataclass.

    It is the one in an `Annotated`, that of the words of a `Literal`, or that of the type.
    """
    known: dict[Any, Convert] = {str: string, bool: boolean, **(kinds or {})}

    def convert(hint: Any) -> Convert:
        if get_origin(hint) in {Union, UnionType}:
            (hint,) = (one for one in get_args(hint) if one is not NoneType)
        if get_origin(hint) is Literal:
            return one_of(*get_args(hint))
        found: Convert = hint.__metadata__[0] if hasattr(hint, "__metadata__") else known[hint]
        return found

    hints = get_type_hints(kind, include_extras=True)
    return {field.name: convert(hints[field.name]) for field in fields(kind)}


def values(table: object, where: str, converters: Mapping[str, Convert]) -> dict[str, Any]:
    """Convert a table key by key."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where or 'the file'} must be a table, not {table!r}")
    found = {}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        if key not in converters:
            raise ConfigError(f"unknown key `{name}`; allowed are {', '.join(converters)}")
        found[key] = converters[key](value, name)
    return found


def each(
    value: object, name: str, converters: Mapping[str, Convert], *needed: str
) -> list[dict[str, Any]]:
    """Convert each of a list of tables, which must have the needed keys."""
    if not isinstance(value, list) or not value:
        wanted = " and ".join(f"{'an' if key[0] in 'aeiou' else 'a'} {key}" for key in needed)
        raise ConfigError(f"`{name}` must be a list of tables with {wanted}")
    found = []
    for index, table in enumerate(value):
        one = values(table, f"{name}[{index}]", converters)
        for key in needed:
            if key not in one:
                raise ConfigError(f"`{name}[{index}]` has no {key}")
        found.append(one)
    return found


def spec(value: object, name: str, *, any_length: bool = False) -> tuple[Field, ...]:
    """Convert a spec, given as tables or as text; `any_length` allows axes of any length."""
    try:
        if isinstance(value, str):
            return parse(value, any_length=any_length)
        if isinstance(value, Mapping):
            return from_table(value, any_length=any_length)
    except SpecTextError as error:
        raise ConfigError(f"`{name}`: {error}") from None
    raise ConfigError(f"`{name}` must be a table or text, not {value!r}")


def string(value: object, name: str) -> str:
    """Convert text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"`{name}` must be text, not {value!r}")
    return value


def one_of(*words: str) -> Convert:
    """Return a converter that accepts one of these words."""

    def convert(value: object, name: str) -> str:
        if not isinstance(value, str) or value not in words:
            listed = ", ".join(f'"{word}"' for word in words[:-1])
            raise ConfigError(f'`{name}` must be {listed} or "{words[-1]}", not {value!r}')
        return value

    return convert


def boolean(value: object, name: str) -> bool:
    """Convert true or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"`{name}` must be true or false, not {value!r}")
    return value


def whole(least: int, most: int | None = None) -> Convert:
    """Return a converter of whole numbers in a range."""

    def convert(value: object, name: str) -> int:
        if type(value) is not int or value < least or (most is not None and value > most):
            end = "on" if most is None else f"to {most}"
            raise ConfigError(f"`{name}` must be a whole number from {least} {end}, not {value!r}")
        return value

    return convert


positive, count, seed = whole(1), whole(0), whole(0, 2**64 - 1)


def number(value: object, name: str) -> float:
    """Convert a number, which may be infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"`{name}` must be a number, not {value!r}")
    try:
        found = float(value)
    except OverflowError:
        raise ConfigError(f"`{name}` must be a number that fits into 64 bits") from None
    if math.isnan(found):
        raise ConfigError(f"`{name}` must be a number, not {value!r}")
    return found


def seconds(value: object, name: str, most: int = HOUR) -> float:
    """Convert a number of seconds that is not negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise ConfigError(f"`{name}` must be a number of seconds from 0 to {most}, not {value!r}")
    return float(value)


def interval(value: object, name: str, most: int = HOUR) -> float:
    """Convert a number of seconds between two lines."""
    if (found := seconds(value, name, most)) < SHORTEST_INTERVAL:
        raise ConfigError(f"`{name}` must be at least {SHORTEST_INTERVAL} seconds, not {value!r}")
    return found


def period(value: object, name: str) -> float:
    """Convert a number of seconds between two checkpoints."""
    return interval(value, name, WEEK)
