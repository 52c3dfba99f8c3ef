"""Read the addresses of shards, from a list or a function that returns one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Named: TypeAlias = str | tuple[str, str] | None
    Where: TypeAlias = list[str] | list[Named] | tuple[str, ...] | Callable[[], Iterable[Named]]

__all__ = ["MAX_SHARDS", "Place", "read_places"]

# A shard's number is part of the keys of items, and has this many values.
MAX_SHARDS = 256
# Stands beside the address of a shard that gets no more inserts.
_DRAINING = "draining"


@dataclass(frozen=True)
class Place:
    """The address of one shard.

    Attributes:
        address: Empty if the shard was removed for good.
        draining: Whether no inserts go there any more.
    """

    address: str | None
    draining: bool = False


def read_places(named: Iterable[Named]) -> list[Place]:
    """Read the addresses of the shards, in the order of their numbers.

    Args:
        named: For each its address; ``(address, "draining")`` if it gets no more inserts; ``""`` or
            ``None`` if it was removed.

    Raises:
        ValueError: If an entry has another form, an address is there twice, or there are too many.
    """
    named = list(named)
    places = [_read(one) for one in named]
    addresses = [place.address for place in places if place.address is not None]
    if not addresses:
        raise ValueError(f"expected addresses of servers, got {named!r}")
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"expected each shard once, got {addresses}")
    if len(places) > MAX_SHARDS:
        raise ValueError(f"expected at most {MAX_SHARDS} shards, got {len(places)}")
    return places


def _read(named: Named) -> Place:
    if named is None or isinstance(named, str):
        return Place(named or None)
    if (
        isinstance(named, tuple)
        and len(named) == len(("address", _DRAINING))
        and isinstance(named[0], str)
        and named[0]
        and named[1] == _DRAINING
    ):
        return Place(named[0], draining=True)
    raise ValueError(
        f"expected addresses of servers, each a str, None or (str, {_DRAINING!r}), got {named!r}"
    )
