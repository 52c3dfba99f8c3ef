"""A process that is a server, or clients of one: ``python -m benchmarks.scaling_model.program``.

[`Process`] is its parent's end. Each answer has what the threads used meanwhile, and when it began
and ended on the clock of the machine.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.child import Child, Message, answer_requests
from benchmarks.content import ContentError
from benchmarks.usage import resident_bytes, spent, thread_seconds, work_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.payload import Array

TABLE = "items"
_MOST_CONNECTIONS = 60_000
# Numbers of items wrap here: so many differ.
_NUMBERS = 61
# How many batches are fetched ahead: so many that nobody sleeps between two requests, since to
# fall asleep and be woken costs more than a request does.
_AHEAD = 8


class Process(Child):
    """The process, seen from its parent."""

    def __init__(self) -> None:
        """Start it."""
        super().__init__([sys.executable, "-m", "benchmarks.scaling_model.program"])

    def do(self, what: str, **arguments: Any) -> Message:
        """Have it do something, and wait for the answer."""
        return self.ask({"do": what, **arguments})

    def begin(self, what: str, **arguments: Any) -> None:
        """Have it begin something; `hear` waits for the answer."""
        self.tell({"do": what, **arguments})


def example(nbytes: int) -> dict[str, Array]:
    """Return a sample of so many bytes: a number, and bytes that follow from it."""
    return {"number": np.zeros(1, np.int64), "words": np.zeros(max(nbytes - 8, 4) // 4, np.int32)}


@functools.cache
def samples(nbytes: int) -> list[dict[str, Array]]:
    """Return samples that are sent in turn; what is in them follows from their numbers."""
    made = []
    for number in range(_NUMBERS):
        tree = example(nbytes)
        tree["number"][:] = number
        tree["words"][:] = number * 7 + 1
        made.append(tree)
    return made


def check(data: dict[str, Array]) -> None:
    """Look at a batch: every row must be what was sent with its number.

    Raises:
        ContentError: it is not.
    """
    numbers = np.asarray(data["number"]).reshape(-1)
    words = np.asarray(data["words"]).reshape(len(numbers), -1)
    # The ends of rows tell of a wrong place; all bytes of large ones would cost as much as they do.
    ends = words[:, [0, -1]]
    if not ((ends == (numbers * 7 + 1)[:, None]).all() and (numbers < _NUMBERS).all()):
        raise ContentError("a row that is not what was sent with its number")


class Parts:
    """What the process has: a server, clients, and what they are asked for."""

    def __init__(self) -> None:
        """Have nothing yet."""
        self._stack = contextlib.ExitStack()
        self._server: Any = None
        self._stream: Any = None
        self._clients: list[Any] = []
        # Of the first client, by how long batches are.
        self._takes: dict[int, Iterator[Any]] = {}

    def answer(self, request: Message) -> Message:
        """Do what the parent asks for."""
        # The looks themselves are in what is used: some dozen microseconds.
        before, started = thread_seconds(), time.monotonic()
        reply: Message = getattr(self, request.pop("do"))(**request) or {}
        finished = time.monotonic()
        now = thread_seconds()
        used = {"used": spent(before, now), "threads": now}
        return {**reply, **used, "started": started, "finished": finished}

    def now(self) -> None:
        """Do nothing; the answer has what the threads have used so far."""

    def serve_stream(self, transport: str, nbytes: int, batch: int, buffers: int) -> Message:
        """Open a server of a stream."""
        import echoic

        shm = f"shm://echoic-model-{os.getpid()}"
        self._stream = echoic.Stream(example(nbytes), batch_size=batch, capacity=batch * buffers)
        server = echoic.Server(
            self._stream,
            listen="tcp://127.0.0.1:0" if transport == "tcp" else shm,
            max_connections=_MOST_CONNECTIONS,
        )
        self._server = self._stack.enter_context(server)
        return {"address": self._server.address}

    def serve_table(self, nbytes: int, capacity: int, folder: str | None = None) -> Message:
        """Open a server with a table, which has checkpoints if there is a folder for them."""
        import echoic

        table = echoic.Table(TABLE, example(nbytes), capacity=capacity)
        self._server = self._stack.enter_context(
            echoic.Server(
                table,
                listen="tcp://127.0.0.1:0",
                max_connections=_MOST_CONNECTIONS,
                checkpointer=None if folder is None else echoic.Checkpointer(folder, keep=1),
            )
        )
        return {"address": self._server.address}

    def serve_weights(self) -> Message:
        """Open a server of weights."""
        import echoic
        from echoic.weights import WeightStore

        self._weights = WeightStore()
        self._server = self._stack.enter_context(
            echoic.Server(self._weights, listen="tcp://127.0.0.1:0")
        )
        return {"address": self._server.address}

    def fill(self, nbytes: int, rows: int) -> None:
        """Insert rows into the server's own table."""
        columns = {
            name: np.stack([tree[name] for tree in samples(nbytes)]) for name in example(nbytes)
        }
        import echoic

        table = echoic.connect(self._server).table(TABLE)
        for first in range(0, rows, _NUMBERS):
            count = min(_NUMBERS, rows - first)
            some = {name: column[:count] for name, column in columns.items()}
            table.extend(some, np.ones(count))

    def take(self, batches: int) -> None:
        """Take batches of the stream, and look at the ends of rows of some."""
        for number in range(batches):
            batch = self._stream.sample().data
            if number % 64 == 0:
                check(batch)

    def connect(self, address: str, nbytes: int | None, count: int = 1) -> None:
        """Connect clients: of the stream with samples of so many bytes, or of the tables."""
        import echoic

        for _ in range(count):
            if nbytes is None:
                client: Any = echoic.connect(address)
                client.table(TABLE)
            else:
                client = echoic.connect(address).stream(example(nbytes))
            self._clients.append(client)

    def disconnect(self) -> None:
        """Close all clients."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._takes.clear()

    def send(self, nbytes: int, calls: int) -> None:
        """Send samples through all clients in turn, as many through each, until they are stored."""
        trees = itertools.cycle(samples(nbytes))
        for client in self._clients:
            send = client.add
            for tree in itertools.islice(trees, calls):
                send(tree)
        for client in self._clients:
            client.flush()

    def insert(self, nbytes: int, calls: int) -> None:
        """Insert items through all clients in turn, as many through each, until they are stored."""
        trees = itertools.cycle(samples(nbytes))
        for client in self._clients:
            insert = client.table(TABLE).add
            for tree in itertools.islice(trees, calls):
                insert(tree)
        for client in self._clients:
            client.flush()

    def sample(self, batch: int, batches: int) -> None:
        """Take batches of the first client's table, fetched ahead."""
        # What was fetched ahead would be dropped with it, so it is made once.
        if batch not in self._takes:
            sampler = self._clients[0].table(TABLE).batches(batch, prefetch=_AHEAD)
            self._takes[batch] = iter(sampler)
        take = self._takes[batch]
        for number, drawn in enumerate(itertools.islice(take, batches)):
            if number % 64 == 0:
                check(drawn.data)

    def subscribe(self, address: str, count: int) -> None:
        """Follow the weights of a server, several times."""
        import echoic

        self._followers = [
            self._stack.enter_context(echoic.connect(address).weights()).subscribe()
            for _ in range(count)
        ]

    def publish(self, nbytes: int, version: int) -> None:
        """Publish weights that differ from those before in all chunks."""
        self._weights.publish({"w": np.full(nbytes // 4, version, np.float32)}, version)

    def follow(self, version: int) -> None:
        """Wait until all followers have a version."""
        for follower in self._followers:
            while (follower.version or 0) < version:
                follower.wait(timeout=30)

    def wire(self) -> Message:
        """Tell what all connections have received and stored."""
        known = self._server.connections()
        told = {name: sum(one[name] for one in known) for name in ("bytes", "samples")}
        return {**told, "connections": len(known)}

    def checkpoint(self) -> None:
        """Write a checkpoint."""
        self._server.checkpoint()

    def work(self) -> None:
        """Do a fixed amount of work."""
        work_seconds()

    def resident(self) -> Message:
        """Tell the memory that this process has now."""
        return {"resident": resident_bytes()}

    def rest(self, seconds: float) -> None:
        """Do nothing for a while: what the threads use meanwhile is what idling costs."""
        time.sleep(seconds)

    def close(self) -> None:
        """Close everything."""
        self.disconnect()
        self._stack.close()


def main() -> None:
    """Answer until the parent closes the pipe."""
    parts = Parts()
    call: Callable[[Message], Message] = parts.answer
    answer_requests(call)
    parts.close()


if __name__ == "__main__":
    main()
