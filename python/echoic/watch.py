"""Watching a server from elsewhere: all its numbers and connections, whenever somebody looks.

It costs the server nothing between two looks, and needs neither an example nor tables.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echoic import _native
from echoic.errors import ClosedError, DisconnectedError
from echoic.transports import secret

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from typing_extensions import Self

__all__ = ["Connection", "Family", "Number", "Observation", "Watch"]


@dataclass(frozen=True)
class Number:
    """A number of a server.

    Attributes:
        labels: Of what it is, by kind of thing: ``{"table": "replay"}``.
        value: The number itself.
        suffix: Of a summary or histogram, ``"_sum"``, ``"_count"`` or ``"_bucket"``.
    """

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(frozen=True)
class Family:
    """Numbers of one meaning.

    Attributes:
        help: What they mean.
        kind: How they change: ``"counter"``, ``"gauge"``, ``"summary"`` or ``"histogram"``.
        numbers: One for each thing that they are about.
    """

    help: str
    kind: str
    numbers: tuple[Number, ...]


@dataclass(frozen=True)
class Connection:
    """A connection as it was at one moment.

    Attributes:
        address: The address of the server that it came to.
        id: Its number there.
        peer: Who is at the other end.
        purpose: What for: ``"push"``, ``"insert"``, ``"ask"``, ``"watch"`` or ``"probe"``;
            nothing before it has said so.
        age: For how many seconds it has stood.
        samples: Stored.
        bytes: Received.
        receive_calls: System calls that received them.
        duplicates: Samples that came twice and were dropped.
        blocked_time: Seconds for which its samples waited for room.
        blocked_by: What it waits for now, such as ``"CAPACITY"``, or nothing.
        name: What the client calls itself, ``"host:pid"`` unless it was given another name; nothing
            before it has said so. Any client may use any name.
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
    """A server at one moment.

    Attributes:
        release: Which release of Echoic it runs.
        life: Another number after the server was started anew.
        age: For how many seconds it has been there.
        families: All numbers by name, without the ``echoic_`` that Prometheus sees before it.
        connections: Those that stand, at most 4096.
    """

    release: str
    life: int
    age: float
    families: Mapping[str, Family]
    connections: tuple[Connection, ...]

    def value(self, name: str, **labels: str) -> float | None:
        """Return the number of this name and these labels, if there is one.

        Of several, which further labels tell apart, it is the first.
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


class Watch:
    """Looks at a server at any kind of address.

    One watch may be used by one thread at a time. When the connection is lost, the next look
    connects anew.

    Args:
        address: ``tcp://host:port``, ``tls://host:port``, ``unix:///path`` or ``shm://name``.
        token: The secret that the server asks for.
        timeout: How many seconds a look may take.
        ca: The authority that the server's certificate must be from, a PEM file (``tls://``).
        certificate: This client's certificate, a PEM file, for servers that ask for one.
        key: The private key of the certificate, a PEM file.
        server_name: The name in the server's certificate, when it is not that of the host.
        name: What it is called in the server's list of connections; host and process id when
            ``None``.

    Raises:
        RefusedError: The server does not let us in, and why.
        DisconnectedError: Nobody answered in time.

    Examples:
        >>> from echoic import Server, Table, TcpTransport, Watch
        >>> table = Table("replay", 0.0, capacity=10)
        >>> with Server(tables=[table], transport=TcpTransport(port=0)) as server:
        ...     table.add(1.5)
        ...     with Watch(server.addresses[0]) as watch:
        ...         seen = watch.look()
        >>> seen.value("table_items", table="replay")
        1.0
        >>> seen.families["table_items"].help
        'Items in the table.'
    """

    def __init__(  # noqa: PLR0913 - one argument for each option
        self,
        address: str,
        *,
        token: str | bytes | None = None,
        timeout: float = 5.0,
        ca: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        server_name: str | None = None,
        name: str | None = None,
    ) -> None:
        """Connect; see the class for the arguments."""
        self.address = address
        self._timeout = timeout
        self._options: dict[str, Any] = {
            "token": secret(token),
            "ca": ca,
            "certificate": certificate,
            "key": key,
            "server_name": server_name,
            "name": name,
        }
        self._closed = False
        self._watcher: _native.Watcher | None = self._connect(timeout)

    def _connect(self, timeout: float) -> _native.Watcher:
        return _native.Watcher(self.address, self._options, timeout)

    def look(self) -> Observation:
        """Look at the server as it is now.

        Raises:
            RefusedError: It does not let us in any more.
            DisconnectedError: It did not answer in time. Looking again connects anew.
            ClosedError: The watch is closed.
        """
        if self._closed:
            raise ClosedError("the watch is closed")
        until = time.monotonic() + self._timeout
        # A connection that was lost since the last look tells so only when it is used.
        watcher, fresh = self._watcher, self._watcher is None
        watcher = watcher or self._connect(self._timeout)
        self._watcher = None
        try:
            seen = watcher.look(max(until - time.monotonic(), 0.0))
        except DisconnectedError:
            left = until - time.monotonic()
            if fresh or left <= 0:
                raise
            watcher = self._connect(left)
            seen = watcher.look(max(until - time.monotonic(), 0.0))
        self._watcher = watcher
        return observation(watcher.release, *seen)

    def close(self) -> None:
        """End the connection."""
        self._closed, self._watcher = True, None

    def __enter__(self) -> Self:
        """Return the watch."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def observation(
    release: str,
    life: int,
    age: float,
    families: list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]],
    connections: list[dict[str, Any]],
) -> Observation:
    """Make of what came what people use."""
    named = {}
    for name, meaning, kind, values in families:
        numbers = tuple(Number(labels, value, suffix) for suffix, labels, value in values)
        named[name.removeprefix("echoic_")] = Family(meaning, kind, numbers)
    return Observation(release, life, age, named, tuple(Connection(**one) for one in connections))
