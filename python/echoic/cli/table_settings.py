"""Read the settings of each table from a configuration.

`tables` reads the list and rejects settings that exclude each other. The ranges of numbers are
checked when `make_tables` makes a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from echoic import limiters, selectors
from echoic.cli import spec as specs
from echoic.cli.choices import limiter, selector
from echoic.cli.convert import (
    ConfigError,
    Convert,
    each,
    one_of,
    positive,
    seed,
    spec,
    string,
)
from echoic.cli.spec import ANY, Field

__all__ = ["TableSettings", "tables"]


@dataclass(frozen=True)
class TableSettings:
    """The settings of a table; see `echoic.Table`.

    Attributes:
        api: The module whose clients have all functions of the table.
        spec: The fields of an item, if known; `trajectories` for items that share steps, and
            `signature` for tables of `echoic.reverb`. At most one of the three is set.
    """

    name: str
    capacity: int
    api: Literal["echoic", "reverb"] = "echoic"
    sampler: selectors.Selector = selectors.Uniform()  # noqa: RUF009 - immutable
    remover: selectors.Selector = selectors.Fifo()  # noqa: RUF009 - immutable
    limiter: limiters.Limiter = limiters.MinSize()  # noqa: RUF009 - immutable
    max_times_sampled: int | None = None
    seed: int | None = None
    durability: Literal["none", "async", "sync"] = "none"
    spec: tuple[Field, ...] = ()
    trajectories: tuple[Field, ...] = ()
    signature: tuple[Field, ...] = ()

    @property
    def form(self) -> str:
        """The fields of an item, as text."""
        return specs.text(self.spec or self.trajectories or self.signature) or "items of any form"


def signature(value: object, name: str) -> tuple[Field, ...]:
    """Convert the signature of a table of Reverb: any axis may be of any length."""
    return spec(value, name, any_length=True)


def trajectories(value: object, name: str) -> tuple[Field, ...]:
    """Convert a spec of which only the first axis, that of steps, may be of any length."""
    fields = spec(value, name, any_length=True)
    for field in fields:
        if ANY in field.shape[1:]:
            raise ConfigError(
                f"`{name}`: `{field.path}`: only the first axis may be of any length, not those of"
                f" {field.form}"
            )
    return fields


KEYS: dict[str, Convert] = {
    "name": string,
    "capacity": positive,
    "kind": one_of("queue", "stack"),
    "api": one_of("echoic", "reverb"),
    "sampler": selector,
    "remover": selector,
    "limiter": limiter,
    "max_times_sampled": positive,
    "seed": seed,
    "durability": one_of("none", "async", "sync"),
    "spec": spec,
    "trajectories": trajectories,
    "signature": signature,
}
# Settings that a queue or a stack fixes.
DECIDED = ("sampler", "remover", "limiter", "max_times_sampled", "seed")
# Selectors that Reverb has, too.
REVERB_SELECTORS = (
    selectors.Uniform,
    selectors.Prioritized,
    selectors.Fifo,
    selectors.Lifo,
    selectors.MinHeap,
    selectors.MaxHeap,
)


def tables(value: object, name: str) -> tuple[TableSettings, ...]:
    """Convert the tables of a file."""
    found: list[TableSettings] = []
    for index, given in enumerate(each(value, name, KEYS, "name", "capacity")):
        where = f"{name}[{index}]"
        if given["name"] in {one.name for one in found}:
            raise ConfigError(f"`{where}.name`: another table is named `{given['name']}`")
        check(given, where)
        found.append(TableSettings(**with_kind(given)))
    return tuple(found)


def check(given: Mapping[str, Any], where: str) -> None:
    """Reject settings that exclude each other."""
    kind = given.get("kind")
    for key in DECIDED:
        if kind is not None and key in given:
            raise ConfigError(f'`{where}.{key}` can\'t be set with kind = "{kind}", which fixes it')
    if given.get("api") != "reverb":
        if "signature" in given:
            raise ConfigError(f'`{where}.signature` needs api = "reverb"; other tables have a spec')
        if "spec" in given and "trajectories" in given:
            raise ConfigError(f"`{where}` has a spec and trajectories; give one of them")
        return
    for key in ("spec", "trajectories"):
        if key in given:
            raise ConfigError(
                f'`{where}.{key}` can\'t be set with api = "reverb"; give a signature'
            )
    for key in ("sampler", "remover"):
        if not isinstance(given.get(key, selectors.Fifo()), REVERB_SELECTORS):
            raise ConfigError(
                f"`{where}.{key}`: Reverb has no such selector; with api = "
                '"reverb" use uniform, prioritized, fifo, lifo, min_heap or max_heap'
            )


def with_kind(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with those that a queue or a stack fixes."""
    settings = dict(given)
    kind = settings.pop("kind", None)
    if kind is None:
        return settings
    order: selectors.Selector = selectors.Fifo() if kind == "queue" else selectors.Lifo()
    limit = limiters.Queue if kind == "queue" else limiters.Stack
    return {
        **settings,
        "sampler": order,
        "remover": order,
        "limiter": limit(settings["capacity"]),
        "max_times_sampled": 1,
    }
