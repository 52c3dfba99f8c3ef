"""`echoic replay`: print the batches that a rollout table delivered again, from its journal."""

import itertools
import json
import zlib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from echoic.cli.console import fail
from echoic.cli.options import AsJson
from echoic.errors import EchoicError
from echoic.rollouts.history import Delivered, History

__all__ = ["replay"]

# The most groups of a batch that are named on a line for people.
NAMED = 8


def replay(
    directory: Annotated[Path, typer.Argument(help="The directory of a rollout table.")],
    *,
    at: Annotated[
        int | None,
        typer.Option(min=1, metavar="BATCH", help="Start after the batch of this number."),
    ] = None,
    most: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Print at most this many batches.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Repeat every decision of a rollout table from its journal, and print its batches.

    Each line has a checksum over all arrays of the batch, to compare two runs. A decision that
    differs from the journal is an error.
    """
    try:
        history = History(directory, None if at is None else ("batch", at))
        for delivered in itertools.islice(history, most):
            found = described(delivered)
            typer.echo(json.dumps(found) if as_json else line(found))
        if not as_json:
            stats = history.stats()
            names = ("submitted", "running", "accepted", "rejected", "filtered", "delivered")
            typer.echo(", ".join(f"{getattr(stats, name)} {name}" for name in names))
    except (EchoicError, OSError) as error:
        fail(str(error))


def described(delivered: Delivered) -> dict[str, Any]:
    """Return what is printed of a batch, by name."""
    batch = delivered.batch
    checksum = 0
    arrays = (batch.group_ids, batch.group_sizes, batch.index, batch.lengths, batch.versions)
    for array in (*arrays, *batch.fields.values(), *batch.columns.values()):
        checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), checksum)
    for text in (*batch.keys, *batch.sources):
        checksum = zlib.crc32(text.encode(), checksum)
    for item in range(len(batch)):
        for name, blob in sorted(batch.packed_blobs(item).items()):
            checksum = zlib.crc32(blob, zlib.crc32(name.encode(), checksum))
    number, rank, attempt = batch.lease
    return {
        "record": delivered.record,
        "seconds": round(delivered.time, 3),
        "batch": number,
        "rank": rank,
        "attempt": attempt,
        "target": batch.target,
        "groups": batch.group_ids.tolist(),
        "tokens": batch.tokens,
        "crc32": f"{checksum:08x}",
    }


def line(found: dict[str, Any]) -> str:
    """Return a line of text for people."""
    groups = found["groups"]
    named = ", ".join(map(str, groups[:NAMED])) + (", ..." if len(groups) > NAMED else "")
    again = f" (attempt {found['attempt']})" if found["attempt"] > 1 else ""
    return (
        f"batch {found['batch']} rank {found['rank']}{again} at {found['seconds']:.3f} s "
        f"for version {found['target']}: {len(groups)} groups [{named}], {found['tokens']} tokens, "
        f"crc32 {found['crc32']}"
    )
