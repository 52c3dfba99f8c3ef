"""What a configuration says of each table.

`tables` reads the list of them and refuses settings that do not go together; whether numbers make
sense is found out when a table is made, by `make_tables`.
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
    count,
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
    """A table; see `echoic.Table` for what each setting means.

    Attributes:
        api: Whose clients fully understand the table.
        spec: What items look like, if it is known; with `trajectories` for items that share steps
            and with `signature` for those of `echoic.reverb`. Only one of the three is there.
    """

    name: str
    capacity: int
    api: Literal["echoic", "reverb"] = "echoic"
    sampler: selectors.Selector = selectors.Uniform()  # noqa: RUF009 - immutable
    remover: selectors.Selector = selectors.Fifo()  # noqa: RUF009 - immutable
    limiter: limiters.Limiter = limiters.MinSize()  # noqa: RUF009 - immutable
    max_times_sampled: int = 0
    seed: int | None = None
    durability: Literal["none", "async", "sync"] = "none"
    spec: tuple[Field, ...] = ()
    trajectories: tuple[Field, ...] = ()
    signature: tuple[Field, ...] = ()

    @property
    def form(self) -> str:
        """What items look like."""
        return specs.text(self.spec or self.trajectories or self.signature) or "items of any form"


def signature(value: object, name: str) -> tuple[Field, ...]:
    """What items look like to Reverb: any axis may be of any length."""
    return spec(value, name, any_length=True)


def trajectories(value: object, name: str) -> tuple[Field, ...]:
    """What items look like: of axes only the first, that of steps, may be of any length."""
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
    "max_times_sampled": count,
    "seed": seed,
    "durability": one_of("none", "async", "sync"),
    "spec": spec,
    "trajectories": trajectories,
    "signature": signature,
}
# What a queue or a stack has decided.
DECIDED = ("sampler", "remover", "limiter", "max_times_sampled", "seed")
# The selectors that Reverb has too.
REVERB_SELECTORS = (
    selectors.Uniform,
    selectors.Prioritized,
    selectors.Fifo,
    selectors.Lifo,
    selectors.MinHeap,
    selectors.MaxHeap,
)


def tables(value: object, name: str) -> tuple[TableSettings, ...]:
    """The tables of a file."""
    found: list[TableSettings] = []
    for index, given in enumerate(each(value, name, KEYS, "name", "capacity")):
        where = f"{name}[{index}]"
        if given["name"] in {one.name for one in found}:
            raise ConfigError(f"`{where}.name`: there is a table `{given['name']}` before")
        check(given, where)
        found.append(TableSettings(**with_kind(given)))
    return tuple(found)


def check(given: Mapping[str, Any], where: str) -> None:
    """Refuse settings that do not go together."""
    kind = given.get("kind")
    for key in DECIDED:
        if kind is not None and key in given:
            raise ConfigError(f'`{where}.{key}` does not go with kind = "{kind}", which decides it')
    if given.get("api") != "reverb":
        if "signature" in given:
            raise ConfigError(
                f'`{where}.signature` is for tables with api = "reverb"; others have a spec'
            )
        if "spec" in given and "trajectories" in given:
            raise ConfigError(f"`{where}` has a spec and trajectories; it can have one of them")
        return
    for key in ("spec", "trajectories"):
        if key in given:
            raise ConfigError(
                f'`{where}.{key}` does not go with api = "reverb"; such tables have a signature'
            )
    for key in ("sampler", "remover"):
        if not isinstance(given.get(key, selectors.Fifo()), REVERB_SELECTORS):
            raise ConfigError(
                f"`{where}.{key}`: Reverb has no such selector; with api = "
                '"reverb" there are uniform, prioritized, fifo, lifo, min_heap, max_heap'
            )


def with_kind(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what a queue or a stack means."""
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
