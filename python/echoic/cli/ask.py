"""Reach a server: the options of a connection, its address, and its description of itself."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import echoic
from echoic import _native
from echoic._links import link_options
from echoic.cli.config import ConfigError, read_token
from echoic.cli.console import fail
from echoic.cli.options import TokenFile
from echoic.cli.spec import Field
from echoic.cli.text import why
from echoic.rendezvous import address_for, secrets_for

__all__ = ["UNREACHABLE", "Answer", "ask", "connects", "reach", "unreachable"]

# Errors of an address, of the network or of the server; the text of each says what is wrong.
UNREACHABLE = (echoic.EchoicError, OSError, ValueError)


@dataclass(frozen=True)
class Answer:
    """A server's description of itself."""

    release: str
    protocol: int
    spec: tuple[Field, ...] | None
    tables: tuple[str, ...]
    round_trips: list[float]


def client_options(
    *,
    token_file: TokenFile = None,
    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For tls://: the authority of the server's certificate."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For tls://: the client's certificate.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For tls://: the key of that certificate.")
    ] = None,
    server_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="For tls://: the name in the server's certificate."),
    ] = None,
) -> dict[str, Any]:
    """Return the options for `echoic.connect`, without those that were not given."""
    try:
        token = read_token(token_file)
    except ConfigError as error:
        fail(error)
    tls = echoic.Tls(certificate=certificate, key=key, ca=ca, server_name=server_name)
    return {"token": token, "tls": None if tls == echoic.Tls() else tls}


def connects(command: Callable[..., None]) -> Callable[..., None]:
    """Add the parameters of `client_options` to a command, which gets its result as `options`."""
    given = inspect.signature(client_options).parameters
    own = inspect.signature(command).parameters

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        options = client_options(**{name: arguments.pop(name) for name in given})
        command(**arguments, options=options)

    every = [*own.values(), *given.values()]
    kept = [one for one in every if one.name != "options"]
    run.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in kept}
    return run


def reach(address: str | None, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a server's address and options, those that were not given from the environment."""
    if address is not None:
        return address, options
    try:
        # Report a missing file at once, instead of waiting for it.
        address = address_for("this command", 0.0)
        token, tls = secrets_for(**options)
    except (echoic.errors.ArgumentError, echoic.errors.DisconnectedError) as error:
        fail(error, code=2)
    return address, {"token": token, "tls": tls}


def ask(address: str, options: Mapping[str, Any], count: int, timeout: float) -> Answer:
    """Connect, ask and measure round trips; end the command if no server answers."""
    try:
        answer = _native.ping(address, link_options(**options), timeout, count)
    except UNREACHABLE as error:
        fail(unreachable(address, error))
    return Answer(
        release=answer["server_version"],
        protocol=answer["protocol"],
        spec=None
        if answer["spec"] is None
        else tuple(Field(path, dtype, tuple(shape)) for path, dtype, shape in answer["spec"]),
        tables=tuple(answer["tables"]),
        round_trips=answer["rtt"],
    )


def unreachable(address: str, error: Exception) -> str:
    """Return why a server can't be used, and what may help."""
    reason = why(error).removeprefix(f"{address}: ")
    if isinstance(error, echoic.errors.RefusedError):
        advice = "; give the server's --token-file" if error.code == "AUTH" else ""
        return f"{address} answers, but {reason}{advice}"
    if isinstance(error, echoic.errors.SpecError):
        return f"{address} answers, but {reason}"
    if isinstance(error, OSError):
        return f"no server answers at {address}: {reason}"
    return reason
