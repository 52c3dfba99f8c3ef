"""The suite of limits: each probe by itself, as a reference for all other numbers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, TypedDict

from benchmarks import probes
from benchmarks.limits.program import limit
from benchmarks.payload import Pool, small
from benchmarks.workload import Session, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

# Larger than the caches of one core, smaller than a quick run minds.
_TARGET_BYTES = 64 << 20
_RING_BYTES = 1 << 20
_FRAME = 28_224


def workloads(quick: bool) -> list[Workload]:
    """List all probes; ``quick`` ones take a tenth of the time."""
    seconds = 0.03 if quick else 0.3
    rows, frames = (100_000, 2000) if quick else (1_000_000, 20_000)
    probe = partial(_probe, seconds=seconds)
    return [
        Workload(
            name="empty_call",
            kind="limits",
            what="a call of an empty function of the native module",
            unit="us",
            better="lower",
            session=partial(
                probes.empty_calls, pool=Pool.of_samples(small(), 61), calls=int(seconds * 5e6)
            ),
        ),
        *(
            probe(
                f"copy_{name}",
                f"memory copy of {size} bytes{hot} round {_TARGET_BYTES >> 20} MiB",
                "GB/s",
                ("copy", size, sources, max(2, _TARGET_BYTES // size)),
            )
            for name, size, hot, sources in (
                ("4k_hot", 4096, " from a hot source", 1),
                ("28k_hot", _FRAME, " from a hot source", 1),
                ("28k", _FRAME, "", _TARGET_BYTES // _FRAME),
                ("1m", 1 << 20, "", 64),
                ("32m", 32 << 20, "", 2),
            )
        ),
        *(
            probe(
                f"gather_{size}",
                f"256 random rows of {size} bytes from {count}, fetched ahead",
                "us",
                ("gather", size, count, 256),
            )
            for size, count in ((16, rows), (48, rows), (_FRAME, frames))
        ),
        *(
            probe(
                f"{transport}_{size}",
                f"{size} bytes a call over {words}, to another process",
                "GB/s",
                ("socket", transport, size),
            )
            for transport, words in (("tcp", "loopback TCP"), ("unix", "a Unix socket"))
            for size in (20, _FRAME, 256 << 10)
        ),
        *(
            probe(
                f"ring_{size}",
                f"messages of {size} bytes through a ring in memory that two processes share",
                "GB/s",
                ("ring", max(_RING_BYTES, 8 * size), size),
            )
            for size in (20, _FRAME, 256 << 10)
        ),
        *(
            probe(
                f"wake_{transport}",
                f"there and back between two {who} that sleep meanwhile, the median",
                "us",
                ("wake", transport),
            )
            for transport, who in (
                ("thread", "threads"),
                ("unix", "processes at a Unix socket"),
                ("tcp", "processes at a TCP socket"),
            )
        ),
    ]


def _probe(
    name: str,
    what: str,
    unit: Literal["us", "GB/s"],
    arguments: tuple[str | int, ...],
    *,
    seconds: float,
) -> Workload:
    return Workload(
        name=name,
        kind="limits",
        what=what,
        unit=unit,
        better="lower" if unit == "us" else "higher",
        session=limit(*arguments, seconds),
        parameters={"probe": " ".join(map(str, arguments)), "seconds": seconds},
    )


class Fields(TypedDict):
    """What other suites show beside their bounds: fields of a `Workload`."""

    limit_name: str
    limit: Session


def copies(
    nbytes: int,
    *,
    sources: int,
    targets: int,
    seconds: float,
    convert: Callable[[float], float] = float,
) -> Fields:
    """Copies of so many bytes: GB/s, converted."""
    return Fields(
        limit_name="memory copy of the same bytes round memory of the same size, in Rust",
        limit=limit("copy", nbytes, sources, max(2, targets), seconds, convert=convert),
    )


def gathers(
    row_bytes: int,
    *,
    rows: int,
    batch: int,
    seconds: float,
    convert: Callable[[float], float] = float,
) -> Fields:
    """Gathers of so many rows: µs a batch, converted."""
    return Fields(
        limit_name="gather of the same rows, fetched ahead, in Rust",
        limit=limit("gather", row_bytes, rows, batch, seconds, convert=convert),
    )


def transport(
    kind: str, *, ring_bytes: int = 0, seconds: float, convert: Callable[[float], float] = float
) -> Fields:
    """Bytes to another process in messages of 256 KiB, without TLS: GB/s, converted."""
    if kind == "shm":
        return Fields(
            limit_name="256 KiB a message through a ring in shared memory, in Rust",
            limit=limit("ring", max(ring_bytes, 1 << 20), 256 << 10, seconds, convert=convert),
        )
    kind, words = ("unix", "a Unix socket") if kind == "unix" else ("tcp", "loopback TCP")
    return Fields(
        limit_name=f"256 KiB a call over {words}, in Rust",
        limit=limit("socket", kind, 256 << 10, seconds, convert=convert),
    )
