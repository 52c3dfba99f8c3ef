"""The stream of a server in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic import _native
from echoic._links import Delivers, open_links

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RemoteStream"]


class RemoteStream(_native.RemoteStream, Delivers):
    """Sends samples to the stream of a server in another process, each exactly once.

    ``connect(address).stream(example)`` returns one. ``add`` copies a sample into a bounded window
    and returns; a thread in the background sends the window's samples to the server, many per
    system call, and keeps each until the server has stored it. When the connection breaks, it is
    restored, and continues where the server says. Several threads may use one.
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
