"""Where a hunt's server is: in this process, or in others that can be killed and started again.

Processes are forked by a *launcher*, a process without threads that is itself forked before there
are any. They talk with this process over a socket in the combination's folder, and end with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import traceback
import warnings
from multiprocessing.connection import Client as Dial
from multiprocessing.connection import Connection, Listener, Pipe
from typing import TYPE_CHECKING, Any, NoReturn

import echoic
import numpy as np
from hunt_plan import NAME, Plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from echoic.limiters import Limiter


def make_server(
    plan: Plan, folder: Path, address: str | None = None
) -> tuple[echoic.Server, echoic.Stream | None]:
    """Make the server of a plan, and its stream; what it had in this folder is there again."""
    if plan.target == "stream":
        stream = echoic.Stream(plan.example(), batch_size=plan.batch, capacity=plan.capacity)
        return echoic.Server(stream, listen=address).start(), stream
    table = plan.table()
    checkpointer = None
    if plan.checkpoints != "none":
        every = 0.2 if plan.checkpoints == "every" else None
        checkpointer = echoic.Checkpointer(folder / "checkpoints", keep=3, every=every)
    journal = folder / "journal" if plan.durability != "none" else None
    with warnings.catch_warnings():
        # A kill may cut off the journal.
        warnings.simplefilter("ignore", echoic.errors.JournalWarning)
        server = echoic.Server(table, listen=address, checkpointer=checkpointer, journal=journal)
    return server.start(), None


def content(table: echoic.Table) -> dict[str, np.ndarray]:
    """Return everything that is in a table."""
    items = table.items()
    if not len(items.keys):
        return {"key": items.keys}
    data = table.get(items.keys).data
    return {"key": items.keys, "at": data["at"], "filling": data["filling"]}


def take_rest(stream: echoic.Stream) -> list[dict[str, np.ndarray]]:
    """Take what is left in a stream that is closed."""
    rest = [dict(sample.data) for sample in stream.batches()]
    remainder = stream.rest(timeout=5)
    return rest if remainder is None else [*rest, dict(remainder.data)]


class Local:
    """The server is in this process."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.server, self.stream = make_server(plan, folder)
        self.table = echoic.connect(self.server).table(NAME) if plan.target == "table" else None

    def client(self) -> Any:
        """Return what users of this process have."""
        return self.stream if self.table is None else echoic.connect(self.server)

    def set_limiter(self, limiter: Limiter) -> None:
        """Replace the table's limiter."""
        assert self.table is not None
        self.table.set_limiter(limiter)

    def close_table(self) -> None:
        """Close what calls wait for."""
        if self.table is None:
            self.server.close()
        else:
            self.table.close()

    def content(self) -> dict[str, np.ndarray]:
        """Return what the table has."""
        assert self.table is not None
        return content(self.table)

    def rest(self) -> list[dict[str, np.ndarray]]:
        """Return what is left of the stream."""
        assert self.stream is not None
        return take_rest(self.stream)

    def checkpoint(self) -> None:
        """Write a checkpoint."""
        self.server.checkpoint()

    def close(self) -> None:
        """Close the server."""
        self.server.close()


class Launcher:
    """Forks processes on request, from a process that has no threads."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "control")
        self._listener = Listener(self._path)
        theirs, self._requests = Pipe()
        if os.fork() == 0:
            self._listener.close()
            self._requests.close()
            _launch(theirs, self._path)
        theirs.close()

    def start(self, main: Callable[..., None], *arguments: Any) -> Process:
        """Run a function in a new process; it is given a connection to this one first."""
        self._requests.send((main, arguments))
        return Process(self._listener.accept())

    def close(self) -> None:
        """End the process that forks."""
        self._requests.close()
        self._listener.close()


class Process:
    """A process that was launched."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.pid: int = connection.recv()

    def receive(self) -> Any:
        """Wait for what it says; raises here what went wrong there."""
        failed, value = self._connection.recv()
        if failed:
            raise RuntimeError(f"process {self.pid} failed:\n{value}")
        return value

    def ask(self, *question: Any) -> Any:
        """Have it do something, and wait for the answer."""
        self._connection.send(question)
        return self.receive()

    def kill(self) -> None:
        """End it as `kill -9` does."""
        os.kill(self.pid, signal.SIGKILL)
        # Until it is gone, with all its descriptors.
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self._connection.recv()
        self._connection.close()


def _launch(requests: Connection, path: str) -> NoReturn:
    """Fork for each request, until the other end is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        try:
            main, arguments = requests.recv()
        except EOFError:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            connection = Dial(path)
            connection.send(os.getpid())
            try:
                main(connection, *arguments)
            except EOFError:
                # Whoever started it is gone.
                pass
            except BaseException:  # said, since nobody sees it raised
                with contextlib.suppress(OSError):
                    connection.send((True, traceback.format_exc()))
            os._exit(0)


def serve(connection: Connection, plan: Plan, folder: Path, address: str) -> None:
    """Be a server, until the other end of the connection is gone."""
    with (folder / f"stacks-{os.getpid()}").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        server, stream = make_server(plan, folder, address)
        table = echoic.connect(server).table(NAME) if plan.target == "table" else None
        taker = Taker(stream) if stream is not None else None
        connection.send((False, server.address))
        while True:
            question, *rest = connection.recv()
            answer: Any = None
            if question == "content":
                answer = content(table)
            elif question == "limit":
                table.set_limiter(*rest)
            elif question == "checkpoint":
                server.checkpoint()
            elif question == "close table":
                if table is None:
                    server.close()
                else:
                    table.close()
            elif question == "close":
                server.close()
                answer = None if taker is None else taker.finish()
            connection.send((False, answer))


class Taker:
    """Takes all batches of a stream, in a thread."""

    def __init__(self, stream: echoic.Stream) -> None:
        self._stream = stream
        self._batches: list[dict[str, np.ndarray]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for sample in self._stream.batches():
            self._batches.append({name: leaf.copy() for name, leaf in sample.data.items()})

    def finish(self) -> list[dict[str, np.ndarray]]:
        """Return all that was taken, and what is left, once the server is closed."""
        self._thread.join()
        return self._batches + take_rest(self._stream)


class Remote:
    """The server is another process, or several."""

    table = None

    def __init__(self, plan: Plan, folder: Path, launcher: Launcher) -> None:
        self._plan, self._launcher = plan, launcher
        count = 2 if plan.reach == "sharded" else 1
        self._folders = [folder / f"server-{number}" for number in range(count)]
        for one in self._folders:
            one.mkdir()
        shm = plan.reach == "shm"
        first = f"shm://hunt-{plan.seed}" if shm else "tcp://127.0.0.1:0"
        self._servers: list[Process] = []
        self.addresses = [first] * count
        for number in range(count):
            self._servers.append(self._start(number))

    def _start(self, number: int) -> Process:
        where = self.addresses[number]
        process = self._launcher.start(serve, self._plan, self._folders[number], where)
        self.addresses[number] = process.receive()
        return process

    def client(self, address: str | None = None) -> Any:
        """Connect to the server of an address, or to all of them together."""
        if self._plan.target == "stream":
            return echoic.connect(self.addresses[0], timeout=30).stream(self._plan.example())
        everywhere = self.addresses if len(self.addresses) > 1 else self.addresses[0]
        return echoic.connect(address or everywhere, timeout=30)

    def restart(self) -> None:
        """Kill the server, and start it again at the same address with the same files."""
        self._servers[0].kill()
        self._servers[0] = self._start(0)

    def set_limiter(self, limiter: Limiter) -> None:
        """Replace the table's limiter."""
        for server in self._servers:
            server.ask("limit", limiter)

    def close_table(self) -> None:
        """Close what calls wait for."""
        for server in self._servers:
            server.ask("close table")

    def checkpoint(self) -> None:
        """Write a checkpoint."""
        for server in self._servers:
            server.ask("checkpoint")

    def content(self) -> dict[str, np.ndarray]:
        """Return what the table has, on all servers."""
        parts = [server.ask("content") for server in self._servers]
        parts = [part for part in parts if len(part["key"])]
        if not parts:
            return {"key": np.zeros(0)}
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def rest(self) -> list[dict[str, np.ndarray]]:
        """Return what the server took of its stream, all of it."""
        return self._servers[0].ask("close")

    def dump(self) -> None:
        """Have the servers say where their threads are, in their folders."""
        for server in self._servers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGUSR1)

    def close(self) -> None:
        """Close the servers."""
        for server in self._servers:
            if self._plan.target == "table":
                server.ask("close")
            server.kill()
