"""`echoic serve`: a server of a stream, of tables, or of both, that needs no program around it.

It takes the stream's batches itself, so workers are never held up by a missing learner; tables are
for their clients. The life of one: the addresses go to standard output as soon as they are bound;
SIGTERM or Ctrl-C ends the intake, clients get a while to finish what they are sending, all that
came in is consumed, a last checkpoint is made if there are any, and a summary ends it.
"""

import queue
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import echoic
from echoic.cli import spec as specs
from echoic.cli.config import Config, ConfigError, Listen, read
from echoic.cli.console import fail, say
from echoic.cli.doors import listener, read_token
from echoic.cli.make_tables import make_table
from echoic.cli.options import SpecText, TokenFile, spec_of
from echoic.cli.sink import Consumer, Counter, Folder, Sink
from echoic.cli.status import choose_view
from echoic.cli.table_settings import TableSettings
from echoic.cli.text import duration, size, why
from echoic.views.reading import Reading, StreamReading
from echoic.views.reading import read as read_server

__all__ = ["run", "serve"]


def serve(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A .toml or .json file with all of this, and tables; options given here win.",
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
        typer.Option(metavar="DIR", help="Write each batch there as an uncompressed .npz file."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Answer Prometheus and its like there, by the rules of the first --address; "
            "port 0 is any free one.",
        ),
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
    """Serve a stream of samples, or tables, or both, without a program around it.

    Tables are told by a --config; clients insert into them and sample from them. Batches of a
    stream are counted and dropped, which is what load tests and smoke tests need; with --save
    each becomes a file. Standard output gets one line, `listening ADDRESS …`; a live status, or a
    log line per interval, goes to standard error. SIGTERM and Ctrl-C drain, make a last checkpoint
    if there are any, and end with status 0.
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
        fail("there is nothing to serve: give --spec or a --config with a spec or tables", code=2)
    if settings.save and not settings.spec:
        fail("save is for batches of a stream, and there is none: give a spec", code=2)
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
    """A server and what is done with it.

    Attributes:
        server: Which listens.
        tables: Its tables.
        stream: Its stream, if it has one.
        sink: Where its batches go, if it has a stream.
    """

    server: echoic.Server
    tables: tuple[echoic.Table, ...]
    stream: echoic.Stream | None
    sink: Sink | None

    def look(self) -> Reading:
        """The numbers of this moment."""
        return read_server(self.server.stats())


def run(config: Config) -> None:
    """Serve until a signal, then drain."""
    with warnings.catch_warnings():
        # What the library warns of concerns who runs the server, as everything told here does.
        warnings.simplefilter("always")
        warnings.showwarning = tell
        serving = open_all(config)
        serve_until_signal(serving, config)


def tell(message: Warning | str, *_: object, **__: object) -> None:
    """Say what was warned of."""
    say(f"echoic: {message}")


def serve_until_signal(serving: Serving, config: Config) -> None:
    """Serve, drain, and save what there is to be saved."""
    server, sink = serving.server, serving.sink
    ended = Ending()
    stream = serving.stream
    consumer = Consumer(stream, sink, failed=ended.tell) if stream is not None and sink else None
    with on_signals(ended.tell):
        if consumer:
            consumer.start()
        typer.echo(" ".join(["listening", *server.addresses]))
        describe(serving, config)
        last = watch(serving, config, ended)
        # The consumer goes on meanwhile, or there might be no room for what clients have begun.
        server.close(drain=0.0 if consumer and consumer.error else config.drain)
        if consumer:
            consumer.join()
        saved = last_checkpoint(server) if config.checkpoints else None
    reading = serving.look()
    if consumer and consumer.error:
        lost = (reading.stream.samples if reading.stream else 0) - consumer.samples
        fail(f"could not save a batch: {why(consumer.error)}; {lost:,d} stored samples are lost")
    if isinstance(saved, Exception):
        fail(f"could not make the last checkpoint: {why(saved)}")
    summarise(consumer, reading, last, saved)


class Ending:
    """That the end is wanted, which a signal's handler may tell whoever waits for it.

    An event would not do: its lock is held for moments while somebody waits, and a handler that
    runs in the thread that waits, in such a moment, would wait for that lock for ever.
    """

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()

    def tell(self) -> None:
        """Say that the end is wanted."""
        self._told.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for that, for so long; whether it was said."""
        try:
            self._told.get(timeout=seconds)
        except queue.Empty:
            return False
        return True


def last_checkpoint(server: echoic.Server) -> Path | Exception:
    """Save a server that was closed; what went wrong is told when all else is done."""
    try:
        return server.checkpoint()
    except (echoic.EchoicError, OSError) as error:
        return error


def open_all(config: Config) -> Serving:
    """The server, listening, with what goes with it."""
    try:
        tables = tuple(map(make_table, config.tables))
        stream = open_stream(config) if config.spec else None
        server = echoic.Server(
            *tables,
            *([] if stream is None else [stream]),
            listen=[listener(listen) for listen in config.listen],
            checkpointer=config.checkpoints,
            journal=config.journal,
        )
        sink = None if stream is None else open_sink(stream, config)
    except (ConfigError, echoic.EchoicError, ValueError, OSError, MemoryError) as error:
        fail(why(error))
    try:
        server.start()
        url = open_metrics(server, config)
    except ValueError as error:
        # The text has the names of Python's arguments.
        names = " (here: --token-file, --insecure)" if "insecure=" in str(error) else ""
        fail(f"{error}{names}")
    except OSError as error:
        fail(why(error))
    if url:
        say(f"numbers are at {url}")
    return Serving(server, tables, stream, sink)


def open_stream(config: Config) -> echoic.Stream:
    """Return the stream that the configuration describes."""
    capacity = config.capacity or 16 * config.batch_size
    example = specs.example(config.spec)
    return echoic.Stream(example, batch_size=config.batch_size, capacity=capacity)


def open_metrics(server: echoic.Server, config: Config) -> str | None:
    """Where numbers can be read, if anywhere."""
    if config.metrics is None:
        return None
    first = config.listen[0]
    token = read_token(first.token_file)
    return server.serve_metrics(config.metrics, token=token, insecure=first.insecure)


def open_sink(stream: echoic.Stream, config: Config) -> Sink:
    """Where the batches go."""
    paths = (leaf.path for leaf in stream.spec.leaves)
    return Folder(config.save, paths) if config.save else Counter()


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
    """Say what is served and what becomes of it."""
    if config.spec:
        fate = f"saved in {config.save}" if config.save else "counted and dropped"
        say(f"{specs.text(config.spec)}: batches of {config.batch_size:,d} are {fate}")
    for settings, table in zip(config.tables, serving.tables, strict=True):
        say(described(settings, len(table)))
    if checkpoints := config.checkpoints:
        when = "at the end" if checkpoints.every is None else f"every {duration(checkpoints.every)}"
        say(f"checkpoints are made in {checkpoints.path} {when}; {checkpoints.keep} are kept")


def described(settings: TableSettings, loaded: int) -> str:
    """What a table is."""
    text = f"table {settings.name}: {settings.form}; at most {settings.capacity:,d} items"
    if settings.api == "reverb":
        text += ", for echoic.reverb"
    if settings.durability != "none":
        text += f", journalled ({settings.durability})"
    return f"{text}; {loaded:,d} are there again" if loaded else text


def watch(serving: Serving, config: Config, ended: Ending) -> Reading:
    """Show what happens until the end is wanted; returns the last reading."""
    details = [escape(address) for address in serving.server.addresses]
    # Nothing of the stream was there before; of tables there may be what a checkpoint had.
    stream = StreamReading() if serving.sink else None
    start = Reading(0.0, stream=stream, tables=serving.look().tables)
    view = choose_view(Console(stderr=True), "echoic serve", details, config.interval, start)
    with view:
        while not ended.wait(view.interval):
            view.update(serving.look())
        last = serving.look()
        view.update(last)
    return last


def summarise(
    consumer: Consumer | None,
    reading: Reading,
    last: Reading,
    saved: Path | None,
) -> None:
    """Say what came of it all."""
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
        f" and {rest:,d} that fill none; {drained:,d} came while draining;"
        f" {reading.server.accepted:,d} connections, {refused:,d} refused"
    )
