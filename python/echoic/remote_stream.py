"""The stream of a server in another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echoic import _native
from echoic._links import Delivers, open_links

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RemoteStream", "RemoteStreamStats"]


@dataclass(frozen=True)
class RemoteStreamStats:
    """The numbers of this end of a stream that a server in another process has.

    Attributes:
        samples_sent: Samples that were added.
        samples_acked: Those that the server has stored.
        pending: Those that it has not stored yet.
        window: Samples that may be pending.
        bytes_per_sample: Bytes of one sample.
        bytes_sent: Bytes sent.
        writes: System calls that sent them.
        reconnects: How often the link was restored.
        blocked_sends: Calls that waited for room.
        blocked_time: Seconds for which they waited.
        connected: Whether the server is connected now.
    """

    samples_sent: int
    samples_acked: int
    pending: int
    window: int
    bytes_per_sample: int
    bytes_sent: int
    writes: int
    reconnects: int
    blocked_sends: int
    blocked_time: float
    connected: bool

    def as_dict(self) -> dict[str, float]:
        """Return the numbers by name."""
        return dict(vars(self))


class RemoteStream(_native.RemoteStream, Delivers):
    """Sends samples to the stream of a server in another process, each exactly once.

    ``connect(address).stream(example)`` returns one. ``add`` copies a sample into a bounded window
    and returns; a thread in the background sends the window's samples to the server, many per
    system call, and keeps each until the server has stored it. When the connection breaks, it is
    restored, and continues where the server says. Several threads may use one.

    ``add``, ``extend``, ``flush`` and ``close`` are those of :class:`~echoic.Stream`. Batches are
    taken in the server's process, whose stream has the numbers of both ends.
    """

    _options: dict[str, Any]

    def __new__(
        cls, address: str, example: Any, options: dict[str, Any], producer: bytes | None = None
    ) -> Self:
        """Connect, with options as the native core takes them."""
        self = super().__new__(cls, address, example, {**options, "producer": producer})
        self._options = options
        open_links.add(self)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as address, example and options: the copy connects again, as another producer."""
        kind = type(self)
        return RemoteStream.__new__, (kind, self.address, self._example(), self._options)

    def __repr__(self) -> str:
        """Return where the server is, and whether the stream is closed."""
        return f"RemoteStream({self.address}{', closed' if self.closed else ''})"
