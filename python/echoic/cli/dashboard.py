"""`echoic dashboard`: a running server in a browser.

What serves the page is imported when there is a page: it takes a third as long as the rest of the
command line, which every command would wait for.
"""

import signal
import threading
from typing import TYPE_CHECKING, Annotated

import typer

import echoic
from echoic.cli.ask import UNREACHABLE, reach, unreachable
from echoic.cli.console import fail, say
from echoic.cli.options import Address, Ca, Certificate, Key, ServerName, TokenFile
from echoic.cli.text import why

if TYPE_CHECKING:
    from echoic.views.web.items import Items
    from echoic.views.web.lookout import Lookout
    from echoic.views.web.server import WebServer

__all__ = ["dashboard"]


def dashboard(  # noqa: PLR0913 - one argument for each option
    address: Address = None,
    *,
    host: Annotated[
        str, typer.Option(help="Where the page is; others than this machine need --insecure.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="As above; 0 is any free one.")] = 0,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Let every machine that can reach --host see all data, without login.",
        ),
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two looks.")
    ] = 1.0,
    open_: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser here.")
    ] = False,
    token_file: TokenFile = None,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
    server_name: ServerName = None,
) -> None:
    """Show a running server in a browser: why something waits, rates, connections, items.

    Standard output gets one line, the page's address. Ctrl-C ends it. The server is looked at once
    per interval, however many browsers look at the page, and need not be there all the time.
    """
    from echoic.views.web.items import Items  # noqa: PLC0415 - see above
    from echoic.views.web.lookout import Lookout  # noqa: PLC0415

    address, options = reach(address, token_file, ca, certificate, key, server_name)
    try:
        watch = echoic.Watch(address, **options)
    except UNREACHABLE as error:
        fail(unreachable(address, error))
    # As Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Lookout(watch, interval) as lookout:
            items = Items(address, options)
            with open_page(lookout, items, host, port, insecure) as page:
                # The address last: a program that reads it may end this at once.
                say("Ctrl-C ends it")
                typer.echo(page.url)
                if open_:
                    import webbrowser  # noqa: PLC0415

                    webbrowser.open(page.url)
                threading.Event().wait()
    except KeyboardInterrupt:
        # The only way to end it, so no failure.
        return


def open_page(
    lookout: "Lookout", items: "Items", host: str, port: int, insecure: bool
) -> "WebServer":
    """Listen for browsers."""
    from echoic.views.web.server import WebServer  # noqa: PLC0415

    try:
        return WebServer(lookout, items, host=host, port=port, insecure=insecure)
    except OSError as error:
        fail(f"can't listen at {host}:{port}: {why(error)}")
    except ValueError as error:
        fail(
            f"{error}; forward a port with ssh -L, or give --insecure if everyone who can reach"
            " it may see the data"
        )
