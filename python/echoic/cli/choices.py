"""Read selectors and limiters from configuration files.

Both have one notation: the name alone, `"uniform"`; the name with its first argument,
`{prioritized = 0.6}`; or with all arguments by name, `{hot_cold = {age_threshold = 4}}`. Names and
arguments are those of `echoic.selectors` and `echoic.limiters`. Tables check the ranges of numbers.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from echoic import limiters, selectors
from echoic.cli.convert import ConfigError, Convert, count, number, positive, values

__all__ = ["limiter", "selector"]

T = TypeVar("T")


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


def named(module: Any, base: type) -> dict[str, Callable[..., Any]]:
    """Return the selectors or limiters of a module by the names that files have for them."""
    classes = (getattr(module, name) for name in module.__all__)
    return {snake(kind.__name__): kind for kind in classes if kind is not base}


def snake(name: str) -> str:
    """Convert `HotCold` to `hot_cold`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


SELECTORS: dict[str, Callable[..., selectors.Selector]] = named(selectors, selectors.Selector)
LIMITERS: dict[str, Callable[..., limiters.Limiter]] = {
    **named(limiters, limiters.Limiter),
    "rate_limiter": rate_limiter,
}
ARGUMENTS: dict[str, Convert] = {
    "age_threshold": count,
    "error_buffer": error_buffer,
    "min_size": positive,
    "capacity": positive,
    **dict.fromkeys(
        ("exponent", "hot_fraction", "samples_per_insert", "min_diff", "max_diff"), number
    ),
}


def selector(value: object, name: str) -> selectors.Selector:
    """Convert a selector."""
    return choose(value, name, "selector", SELECTORS)


def limiter(value: object, name: str) -> limiters.Limiter:
    """Convert a limiter."""
    return choose(value, name, "limiter", LIMITERS)


def choose(value: object, name: str, what: str, kinds: Mapping[str, Callable[..., T]]) -> T:
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
    make = kinds[chosen]
    known = inspect.signature(make).parameters
    needed = [argument for argument, one in known.items() if one.default is one.empty]
    key = name if isinstance(value, str) else f"{name}.{chosen}"
    if known and set(needed) <= {first := next(iter(known))} and not isinstance(given, Mapping):
        return make(ARGUMENTS[first](given, key))
    if not known and given != {}:
        raise ConfigError(f"`{key}` takes no arguments: give its name alone")
    arguments = values(given, key, {argument: ARGUMENTS[argument] for argument in known})
    for argument in needed:
        if argument not in arguments:
            raise ConfigError(f"`{key}` needs {argument}")
    return make(**arguments)
