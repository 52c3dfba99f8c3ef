"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from echoic.cli.spec import Field, SpecTextError, parse

__all__ = [
    "Address",
    "AsJson",
    "Imports",
    "Settings",
    "SpecText",
    "Timeout",
    "TokenFile",
    "spec_of",
]

Address: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        help="tcp://host:port, tls://host:port, unix:///path or shm://name.  "
        "[default: $ECHOIC_ADDRESSES]"
    ),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object.")
]
SpecText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC", help="Fields of a sample: path=dtype[shape],… with / for nested dicts."
    ),
]
TokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file with the secret that server and clients share."),
]
Timeout: TypeAlias = Annotated[
    float, typer.Option(min=0.001, metavar="SECONDS", help="Time to wait for the server.")
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--setting", metavar="NAME=VALUE", help="A setting of the training, as JSON."),
]
Imports: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="A module that registers your names."),
]


def spec_of(source: str) -> tuple[Field, ...]:
    """Read `--spec`."""
    try:
        return parse(source)
    except SpecTextError as error:
        raise typer.BadParameter(str(error), param_hint="--spec") from None
