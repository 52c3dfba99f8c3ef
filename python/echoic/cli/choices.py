"""Read selectors and limiters from configuration files.

Both have one notation: the name alone, `"uniform"`; the name with its first argument,
`{prioritized = 0.6}`; or with all arguments by name, `{hot_cold = {age_threshold = 4}}`. Names and
arguments are those of `echoic.selectors` and `echoic.limiters`. Tables check the ranges of numbers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echoic import limiters, selectors
from echoic.cli.convert import ConfigError, Convert, count, number, positive, values

__all__ = ["limiter", "selector"]


@dataclass(frozen=True)
class Kind:
    """A selector or limiter that can be chosen.

    Attributes:
        make: Makes it from its arguments.
        arguments: The converter of each argument.
        needed: The arguments without a default.
        first: The argument that may be given without its name.
    """

    make: Any
    arguments: Mapping[str, Convert]
    needed: tuple[str, ...] = ()
    first: str | None = None


def error_buffer(value: object, name: str) -> float | tuple[float, float]:
    """Convert a distance, or a list of the least and the most."""
    if not isinstance(value, list):
        return number(value, name)
    if len(value) != 2:
        raise ConfigError(f"`{name}` must be a number or a list of two, not {value!r}")
    return number(value[0], f"{name}[0]"), number(value[1], f"{name}[1]")


def rate_limiter(
    samples_per_insert: float,
    min_size: int = 1,
    min_diff: float = -math.inf,
    max_diff: float = math.inf,
) -> limiters.Limiter:
    """Make a limiter from four numbers; JSON has no infinity for a missing bound."""
    return limiters.RateLimiter(min_size, samples_per_insert, min_diff, max_diff)


SELECTORS = {
    "uniform": Kind(selectors.Uniform, {}),
    "prioritized": Kind(selectors.Prioritized, {"exponent": number}, first="exponent"),
    "fifo": Kind(selectors.Fifo, {}),
    "lifo": Kind(selectors.Lifo, {}),
    "min_heap": Kind(selectors.MinHeap, {}),
    "max_heap": Kind(selectors.MaxHeap, {}),
    "epoch": Kind(selectors.Epoch, {}),
    "hot_cold": Kind(
        selectors.HotCold,
        {"age_threshold": count, "hot_fraction": number, "exponent": number},
        needed=("age_threshold",),
        first="age_threshold",
    ),
}
LIMITERS = {
    "min_size": Kind(limiters.MinSize, {"min_size": positive}, first="min_size"),
    "sample_to_insert_ratio": Kind(
        limiters.SampleToInsertRatio,
        {"samples_per_insert": number, "min_size": positive, "error_buffer": error_buffer},
        needed=("samples_per_insert", "min_size", "error_buffer"),
    ),
    "queue": Kind(limiters.Queue, {"size": positive}, needed=("size",), first="size"),
    "stack": Kind(limiters.Stack, {"size": positive}, needed=("size",), first="size"),
    "rate_limiter": Kind(
        rate_limiter,
        {
            "samples_per_insert": number,
            "min_size": positive,
            "min_diff": number,
            "max_diff": number,
        },
        needed=("samples_per_insert",),
    ),
}


def selector(value: object, name: str) -> selectors.Selector:
    """Convert a selector."""
    made: selectors.Selector = choose(value, name, "selector", SELECTORS)
    return made


def limiter(value: object, name: str) -> limiters.Limiter:
    """Convert a limiter."""
    made: limiters.Limiter = choose(value, name, "limiter", LIMITERS)
    return made


def choose(value: object, name: str, what: str, kinds: Mapping[str, Kind]) -> Any:
    """Make the selector or limiter that a value names."""
    given: object = {}
    if isinstance(value, str):
        chosen = value
    elif isinstance(value, Mapping) and len(value) == 1:
        ((chosen, given),) = value.items()
    else:
        raise ConfigError(
            f"`{name}` must be the name of a {what}, or a table with that name as its only key,"
            f" not {value!r}"
        )
    if chosen not in kinds:
        raise ConfigError(f"`{name}`: unknown {what} `{chosen}`; known are {', '.join(kinds)}")
    kind = kinds[chosen]
    key = name if isinstance(value, str) else f"{name}.{chosen}"
    if kind.first is not None and not isinstance(given, Mapping):
        return kind.make(kind.arguments[kind.first](given, key))
    if not kind.arguments and given != {}:
        raise ConfigError(f"`{key}` takes no arguments: give its name alone")
    arguments = values(given, key, kind.arguments)
    for argument in kind.needed:
        if argument not in arguments:
            raise ConfigError(f"`{key}` needs {argument}")
    return kind.make(**arguments)
