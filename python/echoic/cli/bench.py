"""`echoic bench`: measure the throughput and the latency of a server."""

import json
import signal
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from echoic.cli import spec as specs
from echoic.cli.ask import ask, connects, reach
from echoic.cli.console import INTERRUPTED, fail
from echoic.cli.load import Load, LoadError, Result, run
from echoic.cli.options import Address, AsJson, SpecText, spec_of
from echoic.cli.spec import Field
from echoic.cli.text import amount, duration, size

__all__ = ["Report", "bench", "report"]


@connects
def bench(
    address: Address = None,
    *,
    seconds: Annotated[float, typer.Option(min=0.1, help="For how long to send.")] = 10.0,
    clients: Annotated[int, typer.Option(min=1, help="Processes, each with a client.")] = 1,
    batch: Annotated[
        int, typer.Option(min=1, help="Samples per call: 1 is `add`, more is `extend`.")
    ] = 1,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Samples/s of all clients together.  [default: unlimited]"),
    ] = None,
    spec: SpecText = None,
    as_json: AsJson = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001, metavar="SECONDS", help="A client without progress for this long fails."
        ),
    ] = 10.0,
    options: dict[str, Any],
) -> None:
    """Put load on a server and print what it took.

    Random samples are sent, which the server's learner gets like any others: use a separate server,
    such as `echoic serve`. The server says what samples look like; --spec sets it instead. Every
    client measures ten flushes a second: a flush returns when the server has stored all that was
    sent. The status is 1 if a client fails.
    """
    address, options = reach(address, options)
    fields = spec_of(spec) if spec is not None else spec_at(address, options, timeout)
    load = Load(address, fields, options, seconds, clients, batch, rate, timeout)
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("sending"),
        BarColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        # Without a terminal only the result is printed.
        disable=not console.is_terminal,
    )
    # Or the clients would continue alone.
    terminate = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with progress:
            results = run(load, Watch(progress, load))
    except LoadError as error:
        fail(error)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, terminate)
    found = report(load, results)
    if as_json:
        typer.echo(json.dumps({"address": address, "spec": specs.text(fields), **asdict(found)}))
    else:
        show(load, found)


class Watch:
    """Show the count of samples as a progress bar."""

    def __init__(self, progress: Progress, load: Load) -> None:
        self._progress = progress
        self._nbytes = load.nbytes
        self._task = progress.add_task("", total=load.seconds, rate="")
        self._since: float | None = None
        self._before = (0.0, 0)

    def __call__(self, samples: int) -> None:
        """Show how far it is."""
        if not samples:
            # The clients are starting; the time of sending begins later.
            return
        now = self._progress.get_time()
        if self._since is None:
            self._since = now
        then, before = self._before
        per_second = (samples - before) / max(now - then, 1e-9) if then else 0.0
        self._before = (now, samples)
        self._progress.update(
            self._task,
            completed=now - self._since,
            rate=f"{amount(per_second)} samples/s  {size(per_second * self._nbytes)}/s",
        )


@dataclass(frozen=True)
class Report:
    """What all clients measured together."""

    clients: int  # The number of clients.
    batch: int  # Samples per call.
    samples: int  # Samples sent, and stored by the server.
    seconds: float  # From the common start to the last acknowledgement.
    samples_per_second: float  # The server's rate.
    megabytes_per_second: float  # The same, in 10^6 bytes of samples.
    cpu_seconds_per_million: float  # Processor time of the clients, for a million samples.
    flushes: int  # The number of flushes measured.
    flush_p50: float | None  # The median time of a flush, in seconds.
    flush_p99: float | None  # The 99th percentile of the time of a flush, in seconds.
    writes: int  # System calls that sent samples.
    reconnects: int  # How many times clients reconnected.
    blocked_time: float  # Seconds for which clients waited for room, in total.


def spec_at(address: str, options: dict[str, Any], timeout: float) -> tuple[Field, ...]:
    """Ask a server what its samples look like."""
    answer = ask(address, options, count=1, timeout=timeout)
    if answer.spec is None:
        fail(f"{address} answers, but it has no stream to send samples to, only tables")
    return answer.spec


def report(load: Load, results: list[Result]) -> Report:
    """Add up what the clients measured."""
    samples = sum(result.samples for result in results)
    seconds = max(result.seconds for result in results)
    flushes = [flush for result in results for flush in result.flushes]
    p50, p99 = np.quantile(flushes, (0.5, 0.99)).tolist() if flushes else (None, None)

    def total(name: str) -> Any:
        return sum(result.stats[name] for result in results)

    return Report(
        clients=load.clients,
        batch=load.batch,
        samples=samples,
        seconds=seconds,
        samples_per_second=samples / seconds,
        megabytes_per_second=samples * load.nbytes / seconds / 1e6,
        cpu_seconds_per_million=sum(result.cpu for result in results) / max(samples, 1) * 1e6,
        flushes=len(flushes),
        flush_p50=p50,
        flush_p99=p99,
        writes=int(total("writes")),
        reconnects=int(total("reconnects")),
        blocked_time=total("blocked_time"),
    )


def show(load: Load, found: Report) -> None:
    """Print a report for a person."""
    call = "add" if found.batch == 1 else f"extend of {found.batch:,d}"
    typer.echo(f"{load.address}: {found.clients} x {call}, samples of {size(load.nbytes)}")
    lines = [
        ("stored", f"{found.samples:,d} samples in {duration(found.seconds)}"),
        ("rate", f"{found.samples_per_second:,.0f} samples/s"),
        ("", f"{found.megabytes_per_second:,.1f} MB/s"),
        ("clients' CPU", f"{found.cpu_seconds_per_million:.3g} s per million samples"),
        ("waited for room", duration(found.blocked_time)),
        ("reconnects", str(found.reconnects)),
    ]
    # Shared memory needs no system calls for samples.
    if found.writes:
        lines.append(("system calls", f"{found.samples / found.writes:,.1f} samples each"))
    if found.flush_p50 is not None and found.flush_p99 is not None:
        trips = f"p50 {duration(found.flush_p50)}, p99 {duration(found.flush_p99)}"
        lines.append((f"{found.flushes:,d} flushes", trips))
    for name, value in lines:
        typer.echo(f"  {name:16} {value}")
