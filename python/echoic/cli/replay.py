"""`echoic replay`: the batches that a rollout table delivered, once more."""

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

# So many groups of a batch are named on a line for people.
NAMED = 8


def replay(
    directory: Annotated[Path, typer.Argument(help="The directory of a rollout table.")],
    *,
    at: Annotated[
        int | None,
        typer.Option(min=1, metavar="BATCH", help="Begin behind the batch of this number."),
    ] = None,
    most: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Print at most so many batches.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take every decision of a rollout table again from its journal, and print its batches.

    Each line has a checksum over all arrays of the batch, so that two runs can be compared. A
    decision that comes out differently than the journal says is an error.
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
    """Return what there is to say of a batch."""
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
    """Return it for people."""
    groups = found["groups"]
    named = ", ".join(map(str, groups[:NAMED])) + (", ..." if len(groups) > NAMED else "")
    again = f" (attempt {found['attempt']})" if found["attempt"] > 1 else ""
    return (
        f"batch {found['batch']} rank {found['rank']}{again} at {found['seconds']:.3f} s "
        f"for version {found['target']}: {len(groups)} groups [{named}], {found['tokens']} tokens, "
        f"crc32 {found['crc32']}"
    )
