"""Watch a running server from elsewhere: its metrics and connections.

Between two looks it costs the server nothing. It needs neither an example nor tables.
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
class Connection:
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
        life: A number that changes when the server is restarted.
        age: Seconds since it was started.
        families: All numbers by name, without Prometheus's prefix ``echoic_``.
        connections: The open connections, at most 4096.
    """

    release: str
    life: int
    age: float
    families: Mapping[str, Family]
    connections: tuple[Connection, ...]

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


class Watch:
    """Watch a server at any kind of address.

    Use a watch in one thread at a time. If the connection was lost, the next look connects again.

    Args:
        address: ``tcp://host:port``, ``tls://host:port``, ``unix:///path`` or ``shm://name``.
        token: The secret that the server requires.
        timeout: How many seconds a look may take.
        ca: The authority that signed the server's certificate, a PEM file (``tls://``).
        certificate: This client's certificate, a PEM file, for servers that require one.
        key: The private key of the certificate, a PEM file.
        server_name: The name in the server's certificate, if it is not the host's.
        name: What the server's list of connections calls this one; host and process id if
            ``None``.

    Raises:
        RefusedError: If the server refuses the connection.
        DisconnectedError: If no server answers in time.

    Examples:
        >>> from echoic import Server, Table, Watch
        >>> table = Table("replay", 0.0, capacity=10)
        >>> with Server(table, listen="tcp://127.0.0.1:0") as server:
        ...     table.add(1.5)
        ...     with Watch(server.address) as watch:
        ...         seen = watch.stats()
        >>> seen.value("table_items", table="replay")
        1.0
        >>> seen.families["table_items"].help
        'Items in the table.'
    """

    def __init__(
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

    def stats(self) -> Observation:
        """Return the server's state now.

        Raises:
            RefusedError: If the server refuses the connection.
            DisconnectedError: If it does not answer in time. The next call connects again.
            ClosedError: If the watch is closed.
        """
        if self._closed:
            raise ClosedError("the watch is closed")
        until = time.monotonic() + self._timeout
        # A lost connection is noticed only when it is used.
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
        """Close the connection."""
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
    """Build an :class:`Observation` from the native values."""
    named = {}
    for name, meaning, kind, values in families:
        numbers = tuple(Number(labels, value, suffix) for suffix, labels, value in values)
        named[name.removeprefix("echoic_")] = Family(meaning, kind, numbers)
    return Observation(release, life, age, named, tuple(Connection(**one) for one in connections))
