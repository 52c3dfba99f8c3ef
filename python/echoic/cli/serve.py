"""`echoic serve`: serve a stream, tables, or both from the command line.

The command consumes the stream's batches itself, so workers need no learner. It prints the
addresses to standard output once they are bound. After SIGTERM or Ctrl-C it accepts no new
connections, gives clients time to finish sending, consumes what came in, writes a last checkpoint
if checkpoints are configured, and prints a summary.
"""

import os
import queue
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import echoic
from echoic.cli import spec as specs
from echoic.cli.config import Config, ConfigError, Listen, listener, read, read_token
from echoic.cli.console import fail, say
from echoic.cli.options import SpecText, TokenFile, spec_of
from echoic.cli.sink import Consumer, Counter, Folder, Sink
from echoic.cli.status import choose_view
from echoic.cli.table_settings import TableSettings, make_table
from echoic.cli.text import duration, size, why
from echoic.views.reading import Reading, StreamReading
from echoic.views.reading import read as read_server

__all__ = ["run", "serve"]

# Seconds between two reports of the process's own CPU time and memory.
REPORT_EVERY = 2.0


def serve(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A .toml or .json file with these settings, and tables; options override it.",
        ),
    ] = None,
    spec: SpecText = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples that make a batch.  [default: 256]")
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(min=2, help="Samples that fit, in whole batches.  [default: 16 batches]"),
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
        typer.Option(metavar="DIR", help="Write each batch to an .npz file in this directory."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus at this address, with the token and --insecure of "
            "the first --address; port 0 is any free one.",
        ),
    ] = None,
    drain: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Time for clients to finish after SIGTERM or Ctrl-C.  [default: 5]",
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Time between two log lines, without a terminal.  [default: 5]",
        ),
    ] = None,
) -> None:
    """Serve a stream of samples, tables, or both.

    Configure tables with --config; clients insert into them and sample from them. Batches of a
    stream are counted and dropped, as load tests and smoke tests need; with --save each becomes a
    file. Standard output gets one line, `listening ADDRESS …`; a live status, or a log line per
    interval, goes to standard error. SIGTERM and Ctrl-C drain, write a last checkpoint if
    configured, and end with status 0.
    """
    try:
        settings = read(config) if config else Config()
    except ConfigError as error:
        fail(error, code=2)
    given: dict[str, Any] = {
        "spec": spec_of(spec) if spec is not None else None,
        "batch_size": batch_size,
        "capacity": capacity,
        "save": save,
        "metrics": metrics,
        "drain": drain,
        "interval": interval,
    }
    settings = replace(
        settings, **{name: value for name, value in given.items() if value is not None}
    )
    if not settings.spec and not settings.tables:
        fail("nothing to serve: give --spec or a --config with a spec or tables", code=2)
    if settings.save and not settings.spec:
        fail("--save needs a stream: give --spec", code=2)
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


@dataclass(frozen=True)
class Serving:
    """A listening server."""

    server: echoic.Server
    tables: tuple[echoic.Table, ...]
    loaded: tuple[int, ...]  # How many items each table had before the server listened.
    stream: echoic.Stream | None
    sink: Sink | None  # Consumes the stream's batches.

    def read(self) -> Reading:
        """Return the server's numbers now."""
        return read_server(self.server.stats())


def run(config: Config) -> None:
    """Serve until a signal, then drain."""
    with warnings.catch_warnings():
        # Warnings of the library are for the operator of the server, like all messages here.
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: say(f"echoic: {message}")
        serving = open_all(config)
        serve_until_signal(serving, config)


def serve_until_signal(serving: Serving, config: Config) -> None:
    """Serve, drain, and write a last checkpoint if configured."""
    server, sink = serving.server, serving.sink
    ended = Ending()
    stream = serving.stream
    consumer = Consumer(stream, sink, failed=ended.set) if stream is not None and sink else None
    with on_signals(ended.set):
        if consumer:
            consumer.start()
        report_process(server)
        typer.echo(" ".join(["listening", *server.addresses]))
        describe(serving, config)
        last = watch(serving, config, ended)
        # The consumer continues meanwhile, or what clients have begun might find no room.
        server.close(drain=0.0 if consumer and consumer.error else config.drain)
        if consumer:
            consumer.join()
        saved: Path | Exception | None = None
        if config.checkpoints:
            try:
                saved = server.checkpoint()
            except (echoic.EchoicError, OSError) as error:
                saved = error
    reading = serving.read()
    if consumer and consumer.error:
        lost = (reading.stream.samples if reading.stream else 0) - consumer.samples
        fail(f"could not save a batch: {why(consumer.error)}; {lost:,d} stored samples are lost")
    if isinstance(saved, Exception):
        fail(f"could not write the last checkpoint: {why(saved)}")
    summarise(consumer, reading, last, saved)


class Ending:
    """An event that a signal handler may set.

    `threading.Event` would deadlock: a waiting thread holds its lock for moments, and a handler
    that runs in that thread at such a moment would wait for the lock forever.
    """

    def __init__(self) -> None:
        self._set: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Wake the thread that waits."""
        self._set.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait at most this long; return whether the event was set."""
        try:
            self._set.get(timeout=seconds)
        except queue.Empty:
            return False
        return True


def open_all(config: Config) -> Serving:
    """Make the server with its tables and sink, and listen."""
    stream, sink = None, None
    try:
        tables = tuple(map(make_table, config.tables))
        if config.spec:
            stream = echoic.Stream(
                specs.example(config.spec),
                batch_size=config.batch_size,
                capacity=config.capacity or 16 * config.batch_size,
            )
            paths = (leaf.path for leaf in stream.spec.leaves)
            sink = Folder(config.save, paths) if config.save else Counter()
        server = echoic.Server(
            *tables,
            *([] if stream is None else [stream]),
            listen=[listener(listen) for listen in config.listen],
            checkpointer=config.checkpoints,
            journal=config.journal,
        )
    except (ConfigError, echoic.EchoicError, ValueError, OSError, MemoryError) as error:
        fail(why(error))
    loaded = tuple(map(len, tables))
    try:
        server.start()
        if config.metrics is not None:
            # With the secret of the first address.
            first = config.listen[0]
            token = read_token(first.token_file)
            url = server.serve_metrics(config.metrics, token=token, insecure=first.insecure)
            say(f"metrics are at {url}")
    except ValueError as error:
        # The message has the names of Python's arguments.
        names = " (here: --token-file, --insecure)" if "insecure=" in str(error) else ""
        fail(f"{error}{names}")
    except OSError as error:
        fail(why(error))
    return Serving(server, tables, loaded, stream, sink)


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


def describe(serving: Serving, config: Config) -> None:
    """Print what is served, and what is saved."""
    if config.spec:
        use = f"saved in {config.save}" if config.save else "counted and dropped"
        say(f"{specs.text(config.spec)}: batches of {config.batch_size:,d} are {use}")
    for settings, loaded in zip(config.tables, serving.loaded, strict=True):
        say(described(settings, loaded))
    if checkpoints := config.checkpoints:
        when = "at the end" if checkpoints.every is None else f"every {duration(checkpoints.every)}"
        say(f"checkpoints are written to {checkpoints.path} {when}; {checkpoints.keep} are kept")


def described(settings: TableSettings, loaded: int) -> str:
    """Describe a table."""
    text = f"table {settings.name}: {settings.form}; at most {settings.capacity:,d} items"
    if settings.api == "reverb":
        text += ", for echoic.reverb"
    if settings.durability != "none":
        text += f", journalled ({settings.durability})"
    return f"{text}; {loaded:,d} were restored" if loaded else text


def watch(serving: Serving, config: Config, ended: Ending) -> Reading:
    """Show the server until `ended` is set; return the last reading."""
    details = [escape(address) for address in serving.server.addresses]
    # The stream starts empty; tables may have items of a checkpoint.
    stream = StreamReading() if serving.sink else None
    start = Reading(0.0, stream=stream, tables=serving.read().tables)
    view = choose_view(Console(stderr=True), "echoic serve", details, config.interval, start)
    reported = time.monotonic()
    with view:
        while not ended.wait(view.interval):
            if time.monotonic() >= reported + REPORT_EVERY:
                reported = time.monotonic()
                report_process(serving.server)
            view.update(serving.read())
        last = serving.read()
        view.update(last)
    return last


def report_process(server: echoic.Server) -> None:
    """Set the gauges of the process that views show: CPU time in seconds, and memory in bytes."""
    server.set_gauge("process_cpu_seconds_total", time.process_time())
    # On Linux only.
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        server.set_gauge("process_resident_memory_bytes", pages * os.sysconf("SC_PAGE_SIZE"))


def summarise(
    consumer: Consumer | None,
    reading: Reading,
    last: Reading,
    saved: Path | None,
) -> None:
    """Print the counts of the whole run."""
    for table in reading.tables:
        say(
            f"table {table.name}: {table.items:,d} items after {table.inserts:,d} inserts,"
            f" {table.samples:,d} samples and {table.deletions:,d} deletions"
        )
    if saved is not None:
        say(f"the last checkpoint is {saved}")
    refused = sum(reading.server.refused.values())
    if consumer is None or reading.stream is None or last.stream is None:
        say(f"ended after {duration(reading.age)}: {refused:,d} connections refused")
        return
    drained = reading.stream.samples - last.stream.samples
    rest = consumer.samples - consumer.batches * consumer.batch_size
    say(
        f"ended after {duration(reading.age)}: {consumer.samples:,d} samples"
        f" ({size(reading.stream.bytes)}) in {consumer.batches:,d} batches"
        f" and {rest:,d} in no batch; {drained:,d} came while draining;"
        f" {reading.server.accepted:,d} connections, {refused:,d} refused"
    )
