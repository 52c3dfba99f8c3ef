"""A process with clients: ``python -m benchmarks.net.client MODULE``, with an engine's module.

[`ClientProcess`] is its parent's end. What the process is asked for:

- ``connect`` to an address with some ``connections``, that send a ``load``;
- ``send``: so many turns, in each of which every connection sends a ``burst`` of calls;
- ``pace``: send so many samples with the time in them, so many a second;
- ``disconnect``; and ``peak``, the most memory it had.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import payload
from benchmarks.child import Child, Message, answer_requests
from benchmarks.content import Crowd
from benchmarks.payload import Pool
from benchmarks.timing import UnavailableError
from benchmarks.usage import cpu_seconds, peak_mib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from benchmarks.net.engine import Learner, NetEngine, Sender
    from benchmarks.payload import Tree


@dataclass(frozen=True)
class Load:
    """A kind of sample, and how many of them a call sends.

    ``kind`` is the name of a function of `benchmarks.payload` that makes an example.
    """

    kind: str
    entries: int
    rows: int = 1

    @property
    def example(self) -> Tree:
        """An example sample."""
        example: Tree = getattr(payload, self.kind)()
        return example

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return payload.sample_bytes(self.example)

    def pool(self, client: int = 0) -> Pool:
        """Return the samples that a client sends in turn."""
        if self.kind == "numbered":
            return Crowd.pool(client)
        # Stamps are made when a sample is sent; what is known before is the rest.
        example = {name: leaf for name, leaf in self.example.items() if name != "sent"}
        if self.rows == 1:
            return Pool.of_samples(example, self.entries)
        return Pool.of_blocks(example, self.entries, self.rows)


class ClientProcess(Child):
    """The process, seen from the server's."""

    def __init__(self, engine: NetEngine, server: Learner) -> None:
        """Start it. When it fails, the server ends: its consumer would wait for ever."""
        module = type(engine).__module__
        command = [sys.executable, "-m", "benchmarks.net.client", module]
        super().__init__(command, server.close)
        self._address = server.address

    def connect(self, load: Load, *, connections: int = 1, first: int = 0) -> None:
        """Connect; the clients are numbered from ``first`` on."""
        self.ask(
            {
                "do": "connect",
                "address": self._address,
                "load": asdict(load),
                "connections": connections,
                "first": first,
            }
        )

    def send(self, calls: int, *, turns: int = 1) -> None:
        """Begin to send: in every turn, each connection makes so many calls."""
        self.tell({"do": "send", "turns": turns, "burst": calls})

    def pace(self, samples: int, rate: float | None) -> None:
        """Begin to send samples with the time in them, evenly, or as fast as it goes."""
        self.tell({"do": "pace", "samples": samples, "rate": rate})

    def disconnect(self) -> None:
        """Close all connections."""
        self.ask({"do": "disconnect"})

    def peak_mib(self) -> float:
        """Ask for the most memory that it had."""
        peak: float = self.ask({"do": "peak"})["peak"]
        return peak


class Clients:
    """The connections of the process, as the process has them."""

    def __init__(self, engine: NetEngine) -> None:
        """Have none yet."""
        self._engine = engine
        self._senders: list[Sender] = []
        self._lanes: list[tuple[Callable[[Tree], Any], Iterator[Tree]]] = []

    def answer(self, request: Message) -> Message | None:
        """Do what the parent asks for."""
        reply: Message | None = getattr(self, request.pop("do"))(**request)
        return reply

    def connect(self, address: str, load: Message, connections: int, first: int) -> None:
        """Connect, and prepare what is sent."""
        kind = Load(**load)
        for client in range(first, first + connections):
            sender = self._engine.connect(address, kind.example)
            self._senders.append(sender)
            call = sender.add if kind.rows == 1 else sender.extend
            if call is None:
                raise UnavailableError("it has no call that sends many samples")
            trees = kind.pool(client).entries
            if kind.kind == "stamped":
                trees = tuple({**tree, "sent": np.zeros(1, np.int64)} for tree in trees)
            self._lanes.append((call, itertools.cycle(trees)))

    def send(self, turns: int, burst: int) -> Message:
        """Send, and wait until everything has arrived."""
        cpu = cpu_seconds()
        started = time.monotonic_ns()
        for _ in range(turns):
            for send, trees in self._lanes:
                for tree in itertools.islice(trees, burst):
                    send(tree)
        return self._finish(started, cpu)

    def pace(self, samples: int, rate: float | None) -> Message:
        """Send when it is time, with the time in every sample.

        A client that is early sleeps; what has become due meanwhile is then sent at once, as the
        samples of several environments would be.
        """
        ((send, trees),) = self._lanes
        interval = 1e9 / rate if rate else 0.0
        now = time.monotonic_ns
        cpu = cpu_seconds()
        started = now()
        for index, tree in enumerate(itertools.islice(trees, samples)):
            stamp = now()
            early = started + index * interval - stamp
            if early > 0:
                time.sleep(early / 1e9)
                stamp = now()
            tree["sent"][0] = stamp
            send(tree)
        return self._finish(started, cpu)

    def disconnect(self) -> None:
        """Close all connections."""
        for sender in self._senders:
            sender.close()
        self._senders.clear()
        self._lanes.clear()

    def peak(self) -> Message:
        """Tell the most memory that this process had."""
        return {"peak": peak_mib()}

    def _finish(self, started: int, cpu: float) -> Message:
        for sender in self._senders:
            sender.flush()
        return {"started": started, "cpu": cpu_seconds() - cpu}


if __name__ == "__main__":
    answer_requests(Clients(importlib.import_module(sys.argv[1]).ENGINE).answer)
