"""`echoic ping`: check that a server answers, what it expects and how fast it answers."""

import json
from typing import Annotated, Any

import numpy as np
import typer

import echoic
from echoic.cli import spec as specs
from echoic.cli.ask import UNREACHABLE, Answer, ask, connects, reach, unreachable
from echoic.cli.console import fail
from echoic.cli.options import Address, AsJson, SpecText, Timeout, spec_of
from echoic.cli.text import duration, size

__all__ = ["ping"]


@connects
def ping(
    address: Address = None,
    *,
    count: Annotated[int, typer.Option(min=1, help="How many round trips to measure.")] = 10,
    spec: SpecText = None,
    as_json: AsJson = False,
    timeout: Timeout = 5.0,
    options: dict[str, Any],
) -> None:
    """Check that a server answers; print what samples it takes and the round-trip times.

    No sample is sent. With --spec the server is also asked whether it would accept a client with
    these samples. The status is 1 if no server answers, or if the client is refused.
    """
    wanted = spec_of(spec) if spec is not None else None
    address, options = reach(address, options)
    answer = ask(address, options, count, timeout)
    if not as_json:
        show(address, answer)
    if wanted is not None:
        try:
            tree = specs.example(wanted)
            echoic.connect(address, timeout=timeout, **options).stream(tree).close(timeout)
        except UNREACHABLE as error:
            fail(unreachable(address, error))
        if not as_json:
            typer.echo("a client with this spec is accepted")
    if as_json:
        found = {
            "address": address,
            "release": answer.release,
            "protocol": answer.protocol,
            "spec": specs.text(answer.spec) if answer.spec is not None else None,
            "tables": answer.tables,
            "round_trips": answer.round_trips,
        }
        typer.echo(json.dumps(found))


def show(address: str, answer: Answer) -> None:
    """Print a server's answer."""
    typer.echo(f"{address} answers: echoic {answer.release}, protocol {answer.protocol}")
    if answer.spec is not None:
        total = sum(field.nbytes for field in answer.spec)
        typer.echo(f"samples of {size(total)}: {specs.text(answer.spec)}")
    else:
        typer.echo(f"tables, and no stream: {', '.join(answer.tables)}")
    shortest, median, p99, longest = np.quantile(answer.round_trips, (0, 0.5, 0.99, 1))
    typer.echo(
        f"round trips: {len(answer.round_trips)}, shortest {duration(shortest)},"
        f" median {duration(median)}, p99 {duration(p99)}, longest {duration(longest)}"
    )
