"""What a running server reports: its metrics and connections.

``connection.server_stats()`` and ``server.stats()`` return it.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from echoic import _native
from echoic._links import deadline_in, left_until
from echoic.errors import DisconnectedError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Family", "Number", "Observation", "Peer"]


@dataclass(frozen=True)
class Number:
    """A number of a server.

    Attributes:
        labels: What the number is about, by kind: ``{"table": "replay"}``.
        value: The number itself.
        suffix: ``"_sum"``, ``"_count"`` or ``"_bucket"`` of a summary or histogram, else empty.
    """

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(frozen=True)
class Family:
    """Numbers with one meaning, one for each thing measured.

    Attributes:
        help: What they mean.
        kind: How they change: ``"counter"``, ``"gauge"``, ``"summary"`` or ``"histogram"``.
        numbers: One for each set of labels.
    """

    help: str
    kind: str
    numbers: tuple[Number, ...]


@dataclass(frozen=True)
class Peer:
    """A connection as it was at one moment.

    Attributes:
        address: The server's address that the client connected to.
        id: The connection's number on the server.
        peer: The address of the client.
        purpose: ``"push"``, ``"insert"``, ``"ask"``, ``"watch"`` or ``"probe"``; empty until the
            client has said.
        age: Seconds since it was opened.
        samples: Stored.
        bytes: Received.
        receive_calls: System calls that received them.
        duplicates: Samples that came twice and were dropped.
        blocked_time: Seconds for which its samples waited for room.
        blocked_by: What it waits for now, such as ``"CAPACITY"``; empty if nothing.
        name: The client's name, ``"host:pid"`` by default; empty until the client has sent it. It
            is not verified: any client may use any name.
    """

    address: str
    id: int
    peer: str
    purpose: str
    age: float
    samples: int
    bytes: int
    receive_calls: int
    duplicates: int
    blocked_time: float
    blocked_by: str
    name: str = ""


@dataclass(frozen=True)
class Observation:
    """The state of a server at one moment.

    Attributes:
        release: The release of Echoic that it runs.
        incarnation: A number that changes when the server is restarted.
        age: Seconds since it was started.
        families: All numbers by name, without Prometheus's prefix ``echoic_``.
        connections: The open connections, at most 4096.
    """

    release: str
    incarnation: int
    age: float
    families: Mapping[str, Family]
    connections: tuple[Peer, ...]

    def value(self, name: str, **labels: str) -> float | None:
        """Return the number with this name and these labels, or ``None``.

        If several match, return the first.
        """
        family = self.families.get(name)
        for number in family.numbers if family else ():
            if not number.suffix and labels.items() <= number.labels.items():
                return number.value
        return None

    def values(self, name: str, by: str, **labels: str) -> dict[str, float]:
        """Return the numbers of this name and these labels by the value of another label."""
        family = self.families.get(name)
        return {
            number.labels[by]: number.value
            for number in (family.numbers if family else ())
            if by in number.labels and labels.items() <= number.labels.items()
        }


class ServerWatch:
    """Reads the state of one server, over a link of its own that it opens when it is needed."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        """Store the address, and the options as the native core takes them."""
        self.address, self._options = address, options
        self._lock = threading.Lock()
        self._watcher: _native.Watcher | None = None

    def stats(self, timeout: float) -> Observation:
        """Return the server's state now; see ``Connection.server_stats``."""
        until = deadline_in(timeout)
        # One call has the link at a time; another one beside it opens its own, without a wait.
        with self._lock:
            watcher, self._watcher = self._watcher, None
        if watcher is not None:
            # A lost link is noticed only when it is used.
            with contextlib.suppress(DisconnectedError):
                return self._look(watcher, until)
        return self._look(_native.Watcher(self.address, self._options, left_until(until)), until)

    def _look(self, watcher: _native.Watcher, until: float) -> Observation:
        seen = watcher.look(left_until(until))
        self._watcher = watcher
        return observation(watcher.release, *seen)


def stats_of(watches: list[ServerWatch], timeout: float) -> dict[str, Observation]:
    """Return the states of the servers that answer; raise the first error if none does."""
    if len(watches) == 1:
        return {watches[0].address: watches[0].stats(timeout)}
    answers: SimpleQueue[tuple[str, Observation | Exception]] = SimpleQueue()

    def ask(watch: ServerWatch) -> None:
        try:
            answers.put((watch.address, watch.stats(timeout)))
        except Exception as error:
            answers.put((watch.address, error))

    for watch in watches:
        # Daemons, since neither Ctrl-C nor the end of the process should wait for the timeout.
        threading.Thread(target=ask, args=(watch,), daemon=True).start()
    found = dict(answers.get() for _ in watches)
    seen = {address: one for address, one in found.items() if isinstance(one, Observation)}
    if not seen:
        raise next(one for one in found.values() if isinstance(one, Exception))
    return {one.address: seen[one.address] for one in watches if one.address in seen}


def observation(
    release: str,
    incarnation: int,
    age: float,
    families: list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]],
    connections: list[dict[str, Any]],
) -> Observation:
    """Build an :class:`Observation` from the native values."""
    named = {}
    for name, meaning, kind, values in families:
        numbers = tuple(Number(labels, value, suffix) for suffix, labels, value in values)
        named[name.removeprefix("echoic_")] = Family(meaning, kind, numbers)
    return Observation(release, incarnation, age, named, tuple(Peer(**one) for one in connections))
