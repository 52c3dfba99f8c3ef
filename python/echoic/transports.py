"""Listeners with settings of their own, and the protocol of a transport of your own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from echoic.tls import Tls

if TYPE_CHECKING:
    from echoic import _native

__all__ = ["Listener", "Transport"]


@runtime_checkable
class Transport(Protocol):
    """An object that makes a server reachable, for ``Server(listen=...)``."""

    def open(self, server: _native.Server) -> str:
        """Let clients reach ``server``; returns the address that they connect to."""
        ...


def secret(token: str | bytes | None) -> bytes | None:
    """Return a token as bytes."""
    return token.encode() if isinstance(token, str) else token


@dataclass(frozen=True)
class Listener:
    """An address with settings of its own, where a server has several.

    Args:
        address: The address to listen at, as in ``Server(listen=...)``.
        token: As in :class:`~echoic.Server`, like all others.

    Examples:
        >>> from echoic import Server, Table
        >>> from echoic.transports import Listener
        >>> local = Listener("tcp://127.0.0.1:0")
        >>> public = Listener("tcp://0.0.0.0:0", token="a secret of several words")
        >>> with Server(Table("replay", capacity=10), listen=[local, public]) as server:
        ...     len(server.addresses)
        2
    """

    address: str
    token: str | bytes | None = field(default=None, kw_only=True, repr=False)
    tls: Tls | None = field(default=None, kw_only=True)
    insecure: bool = field(default=False, kw_only=True)
    max_connections: int = field(default=4096, kw_only=True)
    heartbeat: float = field(default=5.0, kw_only=True)
    threads: int | None = field(default=None, kw_only=True)

    def open(self, server: _native.Server) -> str:
        """Listen; returns the address that clients connect to."""
        tls = self.tls or Tls()
        return server.open_listener(
            self.address,
            token=secret(self.token),
            insecure=self.insecure,
            max_connections=self.max_connections,
            heartbeat=self.heartbeat,
            threads=self.threads,
            certificate=tls.certificate,
            key=tls.key,
            client_ca=tls.ca,
        )
