"""Make the tables of a configuration.

A table with `api = "reverb"` is made by `echoic.reverb`, so that its clients get the signature and
settings that Reverb would send.
"""

from dataclasses import astuple
from typing import Any

import echoic
from echoic import limiters
from echoic.cli import spec as specs
from echoic.cli.convert import ConfigError
from echoic.cli.spec import ANY, Field
from echoic.cli.table_settings import TableSettings

__all__ = ["make_table"]


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
