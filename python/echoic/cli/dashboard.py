"""`echoic dashboard`: show running servers in a browser.

The page's server is imported by the command itself: importing it takes a third as long as the rest
of the command line, for which every command would wait.
"""

import signal
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

import echoic
from echoic.cli.ask import UNREACHABLE, connects, reach, unreachable
from echoic.cli.console import fail, say
from echoic.cli.text import why

if TYPE_CHECKING:
    from echoic.views.monitor import Monitor
    from echoic.views.web.server import WebServer

__all__ = ["dashboard"]


@connects
def dashboard(
    addresses: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ADDRESS]...",
            help="Of each server: tcp://host:port, tls://host:port, unix:///path or shm://name."
            "  [default: $ECHOIC_ADDRESSES]",
        ),
    ] = None,
    *,
    host: Annotated[
        str, typer.Option(help="Host of the page; any but this machine's needs --insecure.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0 is any free one.")] = 0,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Show all data, without login, to every machine that can reach --host.",
        ),
    ] = False,
    interval: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="Time between two requests to a server."),
    ] = 1.0,
    open_: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser here.")
    ] = False,
    options: dict[str, Any],
) -> None:
    """Show running servers in a browser: why calls wait, rates, connections, items.

    Standard output gets one line, the page's address. Ctrl-C ends the command. A server is asked
    once per interval, however many browsers show the page, and may go away and come back.
    """
    from echoic.views.history import History
    from echoic.views.monitor import Monitor
    from echoic.views.web.state import LENGTHS

    # As Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            monitors = []
            every: list[str | None] = [*(addresses or [])] or [None]
            for one in every:
                address, options = reach(one, options)
                connection = echoic.connect(address, **options)
                try:
                    connection.server_stats()
                except UNREACHABLE as error:
                    fail(unreachable(address, error))
                monitor = Monitor(connection, interval, History(*LENGTHS))
                monitors.append(stack.enter_context(monitor))
            page = stack.enter_context(open_page(monitors, options, host, port, insecure))
            # The address last: a program that reads it may end this command at once.
            say("press Ctrl-C to stop")
            typer.echo(page.url)
            if open_:
                import webbrowser

                webbrowser.open(page.url)
            threading.Event().wait()
    except KeyboardInterrupt:
        # The usual way to end the command, so not a failure.
        return


def open_page(
    monitors: "list[Monitor]", options: dict[str, Any], host: str, port: int, insecure: bool
) -> "WebServer":
    """Listen for browsers."""
    from echoic.views.web.server import WebServer

    try:
        return WebServer(monitors, options, host=host, port=port, insecure=insecure)
    except OSError as error:
        fail(f"can't listen at {host}:{port}: {why(error)}")
    except ValueError as error:
        fail(
            f"{error}; forward a port with ssh -L, or give --insecure if every machine that can"
            " reach it may see the data"
        )
