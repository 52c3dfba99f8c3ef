"""Read the settings of each table from a configuration, and make the tables.

`tables` reads the list and rejects settings that exclude each other. The ranges of numbers are
checked when `make_table` makes a table. A table with `api = "reverb"` is made by `echoic.reverb`,
so that its clients get the signature and settings that Reverb would send.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Annotated, Any, Literal

import echoic
from echoic import limiters, selectors
from echoic.cli import choices
from echoic.cli import convert as to
from echoic.cli import spec as specs
from echoic.cli.convert import ConfigError, Convert
from echoic.cli.spec import ANY, Field

__all__ = ["TableSettings", "make_table", "tables"]


def to_signature(value: object, name: str) -> tuple[Field, ...]:
    """Convert the signature of a table of Reverb: any axis may be of any length."""
    return to.spec(value, name, any_length=True)


def to_trajectories(value: object, name: str) -> tuple[Field, ...]:
    """Convert a spec of which only the first axis, that of steps, may be of any length."""
    fields = to.spec(value, name, any_length=True)
    for field in fields:
        if ANY in field.shape[1:]:
            raise ConfigError(
                f"`{name}`: `{field.path}`: only the first axis may be of any length, not those of"
                f" {field.form}"
            )
    return fields


@dataclass(frozen=True)
class TableSettings:
    """The settings of a table; see `echoic.Table`.

    Attributes:
        api: The module whose clients have all functions of the table.
        spec: The fields of an item, if known; `trajectories` for items that share steps, and
            `signature` for tables of `echoic.reverb`. At most one of the three is set.
    """

    name: str
    capacity: Annotated[int, to.positive]
    api: Literal["echoic", "reverb"] = "echoic"
    sampler: selectors.Selector = selectors.Uniform()  # noqa: RUF009 - immutable
    remover: selectors.Selector = selectors.Fifo()  # noqa: RUF009 - immutable
    limiter: limiters.Limiter = limiters.MinSize()  # noqa: RUF009 - immutable
    max_times_sampled: Annotated[int, to.positive] | None = None
    seed: Annotated[int, to.seed] | None = None
    durability: Literal["none", "async", "sync"] = "none"
    spec: Annotated[tuple[Field, ...], to.spec] = ()
    trajectories: Annotated[tuple[Field, ...], to_trajectories] = ()
    signature: Annotated[tuple[Field, ...], to_signature] = ()

    @property
    def form(self) -> str:
        """The fields of an item, as text."""
        return specs.text(self.spec or self.trajectories or self.signature) or "items of any form"


KINDS = {selectors.Selector: choices.selector, limiters.Limiter: choices.limiter}
KEYS: dict[str, Convert] = {
    "name": to.string,
    "capacity": to.positive,
    "kind": to.one_of("queue", "stack"),
    **to.converters_of(TableSettings, KINDS),
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
    for index, given in enumerate(to.each(value, name, KEYS, "name", "capacity")):
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


def make_table(settings: TableSettings) -> echoic.Table:
    """Make a table.

    Raises:
        ConfigError: If its settings can't be used.
        MemoryError: If there is not enough memory for its capacity.
    """
    try:
        return of_reverb(settings) if settings.api == "reverb" else of_echoic(settings)
    except OverflowError:
        raise ConfigError(f"table `{settings.name}`: a number does not fit into 64 bits") from None
    except (echoic.EchoicError, ValueError) as error:
        raise ConfigError(f"table `{settings.name}`: {error}") from error


def of_echoic(settings: TableSettings) -> echoic.Table:
    """Make a table for `echoic.connect`."""
    return echoic.Table(
        settings.name,
        specs.example(settings.spec) if settings.spec else None,
        trajectories=specs.example(settings.trajectories, steps) if settings.trajectories else None,
        **common(settings),
        limiter=settings.limiter,
        capacity=settings.capacity,
        max_times_sampled=settings.max_times_sampled,
    )


def common(settings: TableSettings) -> dict[str, Any]:
    """Return the arguments of tables of both kinds."""
    return {
        "sampler": settings.sampler,
        "remover": settings.remover,
        "seed": settings.seed,
        "durability": settings.durability,
    }


def steps(field: Field) -> Any:
    """Return the example of a leaf of trajectories."""
    if field.shape[:1] == (ANY,):
        return echoic.AnyLength(Field(field.path, field.dtype, field.shape[1:]).zeros())
    return field.zeros()


def of_reverb(settings: TableSettings) -> echoic.Table:
    """Make a table for `echoic.reverb`."""
    from echoic import reverb

    made: echoic.Table = reverb.Table(
        name=settings.name,
        sampler=in_reverb(reverb.selectors, settings.sampler),
        remover=in_reverb(reverb.selectors, settings.remover),
        max_size=settings.capacity,
        rate_limiter=in_reverb(reverb.rate_limiters, settings.limiter),
        max_times_sampled=settings.max_times_sampled or 0,
        signature=specs.example(settings.signature, tensor_spec) if settings.signature else None,
    ).internal_table.table
    if settings.seed is None and settings.durability == "none":
        return made
    # Reverb has no such settings.
    info = made.stats()
    return echoic.Table(
        made.name,
        **common(settings),
        limiter=limiters.RateLimiter(
            info.min_size, info.samples_per_insert, info.min_diff, info.max_diff
        ),
        capacity=info.capacity,
        max_times_sampled=info.max_times_sampled,
        metadata=made.metadata,
    )


def in_reverb(module: Any, chosen: Any) -> Any:
    """Return Reverb's selector or limiter for one of ours: both use the same names."""
    arguments = astuple(chosen)
    if isinstance(chosen, limiters.RateLimiter):
        min_size, ratio, *bounds = arguments
        arguments = (ratio, min_size, *bounds)
    return getattr(module, type(chosen).__name__)(*arguments)


def tensor_spec(field: Field) -> Any:
    """Return a leaf of a signature."""
    from echoic import reverb

    shape = tuple(None if axis == ANY else axis for axis in field.shape)
    return reverb.TensorSpec(shape, specs.numpy_dtype(field.dtype))
