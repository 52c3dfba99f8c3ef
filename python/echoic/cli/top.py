"""`echoic top`: watch a server in a terminal."""

import json
import sys
import time
from typing import Annotated, Any

import typer

import echoic
from echoic.cli.ask import UNREACHABLE, connects, reach, unreachable
from echoic.cli.console import fail
from echoic.cli.options import Address, Timeout
from echoic.views.history import History
from echoic.views.monitor import Monitor
from echoic.views.plain import as_data, as_text

__all__ = ["top"]


@connects
def top(
    address: Address = None,
    *,
    interval: Annotated[
        float, typer.Option(min=0.05, metavar="SECONDS", help="Time between two requests.")
    ] = 1.0,
    once: Annotated[
        bool,
        typer.Option("--once", help="Print one reading as text, problems first, and exit."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one reading as a JSON object and exit.")
    ] = False,
    timeout: Timeout = 5.0,
    options: dict[str, Any],
) -> None:
    """Watch a server: its stream, tables and connections, and why calls wait.

    With --once or --json it asks twice, --interval apart, to have rates. The status is 0 even if
    something is stuck, and 1 if no server answers or it refuses.
    """
    address, options = reach(address, options)
    connection = echoic.connect(address, **options)
    try:
        connection.server_stats(timeout)
        history = ask_twice(connection, interval) if once or as_json else None
    except UNREACHABLE as error:
        fail(unreachable(address, error))
    with connection:
        if history is None:
            show(connection, interval)
        elif as_json:
            typer.echo(json.dumps(as_data(address, history)))
        else:
            typer.echo(as_text(address, history))


def ask_twice(connection: echoic.Connection, interval: float) -> History:
    """Take two readings, which give rates."""
    monitor = Monitor(connection)
    monitor.ask()
    time.sleep(interval)
    monitor.ask()
    return monitor.history


def show(connection: echoic.Connection, interval: float) -> None:
    """Show the server until q is pressed."""
    try:
        from echoic.views.terminal import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        fail(
            "`echoic top` needs textual. Get it with: pip install 'echoic[cli]'; `--once` does not"
            " need it"
        )
    # Textual draws on standard error.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        fail("`echoic top` needs a terminal; `--once` and `--json` do not")
    app = Top(connection, interval)
    app.run()
    if app.return_code:
        raise typer.Exit(app.return_code)
