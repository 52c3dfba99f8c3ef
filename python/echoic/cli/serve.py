"""`echoic serve`: a stream server that needs no program around it.

It takes the batches itself, so workers are never held up by a missing learner. The life of one:
the addresses go to standard output as soon as they are bound; SIGTERM or Ctrl-C ends the intake,
clients get a while to finish what they are sending, all that came in is consumed, and a summary
ends it.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import echoic
from echoic.cli import spec as specs
from echoic.cli.config import Config, ConfigError, Listen, read
from echoic.cli.console import fail, say
from echoic.cli.doors import transport
from echoic.cli.options import SpecText, TokenFile, spec_of
from echoic.cli.sink import Consumer, Counter, Folder, Sink
from echoic.cli.status import Reading, choose_view
from echoic.cli.status import read as look
from echoic.cli.text import duration, size, why

__all__ = ["run", "serve"]


def serve(  # noqa: PLR0913 - one argument for each option
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A .toml or .json file with all of this; options given here win."
        ),
    ] = None,
    spec: SpecText = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples that make a batch.  [default: 256]")
    ] = None,
    buffers: Annotated[
        int | None, typer.Option(min=2, help="Batches that fit into the ring.  [default: 16]")
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where to listen: tcp://host:port, tls://host:port, unix:///path or shm://name. "
            "May be given more than once; port 0 is any free one.  "
            "[default: tcp://127.0.0.1:0]",
        ),
    ] = None,
    token_file: TokenFile = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without a token.")
    ] = False,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For tls://: the server's certificate.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For tls://: the certificate's key.")
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For tls://: the authority that clients must show."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write each batch there as an uncompressed .npz file."),
    ] = None,
    drain: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long clients may take to finish after SIGTERM or Ctrl-C.  [default: 5]",
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Time between two log lines, where there is no terminal.  [default: 5]",
        ),
    ] = None,
) -> None:
    """Serve a stream of samples, without a program around it.

    Batches are counted and dropped, which is what load tests and smoke tests need; with --save
    each becomes a file. Standard output gets one line, `listening ADDRESS …`; a live status, or a
    log line per interval, goes to standard error. SIGTERM and Ctrl-C drain and end with status 0.
    """
    try:
        settings = read(config) if config else Config()
    except ConfigError as error:
        fail(error, code=2)
    given: dict[str, Any] = {
        "spec": spec_of(spec) if spec is not None else None,
        "batch_size": batch_size,
        "buffers": buffers,
        "save": save,
        "drain": drain,
        "interval": interval,
    }
    settings = replace(
        settings, **{name: value for name, value in given.items() if value is not None}
    )
    if not settings.spec:
        fail("nothing says what samples look like: give --spec or a --config with a spec", code=2)
    options: dict[str, Any] = {
        "token_file": token_file,
        "insecure": insecure or None,
        "certificate": certificate,
        "key": key,
        "client_ca": client_ca,
    }
    options = {name: value for name, value in options.items() if value is not None}
    listen = tuple(Listen(each) for each in address) if address else settings.listen
    run(replace(settings, listen=tuple(replace(each, **options) for each in listen)))


def run(config: Config) -> None:
    """Serve until a signal, then drain."""
    server, sink = open_all(config)
    ended = threading.Event()
    consumer = Consumer(server, sink, failed=ended.set)
    since = time.monotonic()
    with on_signals(ended.set):
        consumer.start()
        typer.echo(" ".join(["listening", *server.addresses]))
        describe(config)
        last = watch(server, config, ended, since)
        # The consumer goes on meanwhile, or there might be no room for what clients have begun.
        server.close(drain=0.0 if consumer.error else config.drain)
        consumer.join()
    reading = look(server, time.monotonic() - since)
    if consumer.error:
        lost = reading.samples - consumer.samples
        fail(f"could not save a batch: {why(consumer.error)}; {lost:,d} stored samples are lost")
    summarise(server, consumer, reading, last)


def open_all(config: Config) -> tuple[echoic.Server, Sink]:
    """The server, listening, and where its batches go."""
    try:
        server = echoic.Server(
            specs.example(config.spec),
            batch_size=config.batch_size,
            num_buffers=config.buffers,
            transport=[transport(listen) for listen in config.listen],
        )
        paths = (leaf.path for leaf in server.spec.leaves)
        sink = Folder(config.save, paths) if config.save else Counter()
    except (ConfigError, echoic.SpecError, OSError, MemoryError) as error:
        fail(why(error))
    try:
        server.start()
    except ValueError as error:
        # The text has the names of Python's arguments.
        names = " (here: --token-file, --insecure)" if "insecure=" in str(error) else ""
        fail(f"{error}{names}")
    except OSError as error:
        fail(why(error))
    return server, sink


@contextmanager
def on_signals(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` at the first SIGTERM or SIGINT; the second one ends at once."""
    kinds = (signal.SIGTERM, signal.SIGINT)

    def handle(_kind: int, _frame: object) -> None:
        for each in kinds:
            signal.signal(each, signal.SIG_DFL)
        end()

    before = {kind: signal.signal(kind, handle) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def describe(config: Config) -> None:
    """Say what is served and what becomes of it."""
    fate = f"saved in {config.save}" if config.save else "counted and dropped"
    say(f"{specs.text(config.spec)}: batches of {config.batch_size:,d} are {fate}")


def watch(server: echoic.Server, config: Config, ended: threading.Event, since: float) -> Reading:
    """Show what happens until the end is wanted; returns the last reading."""
    details = [escape(address) for address in server.addresses]
    view = choose_view(Console(stderr=True), "echoic serve", details, config.interval)
    with view:
        while not ended.wait(view.interval):
            view.update(look(server, time.monotonic() - since))
        last = look(server, time.monotonic() - since)
        view.update(last)
    return last


def summarise(server: echoic.Server, consumer: Consumer, reading: Reading, last: Reading) -> None:
    """Say what came of it all."""
    drained = reading.samples - last.samples
    rest = consumer.samples - consumer.batches * server.batch_size
    say(
        f"ended after {duration(reading.seconds)}: {consumer.samples:,d} samples"
        f" ({size(reading.bytes)}) in {consumer.batches:,d} batches"
        f" and {rest:,d} that fill none; {drained:,d} came while draining;"
        f" {reading.accepted:,d} connections, {sum(reading.refused.values()):,d} refused"
    )
