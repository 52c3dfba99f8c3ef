"""Ways for other processes to reach a server. Give one or several to :class:`~echoic.Server`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import os

    from echoic import _native

__all__ = ["ShmTransport", "TcpTransport", "TlsTransport", "Transport", "UnixTransport"]


@runtime_checkable
class Transport(Protocol):
    """What :class:`~echoic.Server` opens when it starts."""

    def open(self, server: _native.Server) -> str:
        """Let clients push to ``server``; returns the address that they connect to."""
        ...


def secret(token: str | bytes | None) -> bytes | None:
    """Return a token as bytes."""
    return token.encode() if isinstance(token, str) else token


@dataclass(frozen=True)
class _Door:
    """The settings that all transports share.

    Args:
        token: A secret that clients must have. It is proven without being sent.
        max_connections: How many clients may be connected; the next is told so.
        heartbeat: After how many seconds of silence each side says that it is there. A side that is
            silent for three times as long is taken for dead.
        threads: How many event loops serve the connections: half the cores, at most 4, when
            ``None``.
    """

    token: str | bytes | None = field(default=None, kw_only=True, repr=False)
    max_connections: int = field(default=4096, kw_only=True)
    heartbeat: float = field(default=5.0, kw_only=True)
    threads: int | None = field(default=None, kw_only=True)

    def _open(self, server: _native.Server, address: str, **settings: Any) -> str:
        files = {"certificate": None, "key": None, "client_ca": None}
        return server.open_listener(
            address,
            token=secret(self.token),
            max_connections=self.max_connections,
            heartbeat=self.heartbeat,
            threads=self.threads,
            **{"insecure": False, **files, **settings},
        )


def _network(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@dataclass(frozen=True)
class TcpTransport(_Door):
    """Plain TCP.

    Args:
        port: Where to listen; 0 to have a free port chosen.
        host: Name or number of the interface. One that other machines can reach needs a ``token``.
        insecure: Allow such an interface without a token. Then everyone who can reach it may push
            samples.
        token: A secret that clients must have. It is proven without being sent.
        max_connections: How many clients may be connected; the next is told so.
        heartbeat: After how many seconds of silence each side says that it is there.
        threads: How many event loops serve the connections.

    Examples:
        >>> import numpy as np
        >>> from echoic import Server, TcpTransport, connect
        >>> example = {"reward": np.float32(0)}
        >>> with Server(example, batch_size=2, transport=TcpTransport(port=0)) as server:
        ...     with connect(server.addresses[0]).stream(example) as stream:
        ...         stream.add({"reward": np.float32(1)})
        ...         stream.add({"reward": np.float32(2)})
        ...     print(server.sample()["reward"])
        [1. 2.]
    """

    port: int
    host: str = "127.0.0.1"
    insecure: bool = field(default=False, kw_only=True)

    def open(self, server: _native.Server) -> str:
        """Listen."""
        address = _network("tcp", self.host, self.port)
        return self._open(server, address, insecure=self.insecure)


@dataclass(frozen=True)
class TlsTransport(_Door):
    """TCP, encrypted and with a certificate.

    Args:
        port: Where to listen; 0 to have a free port chosen.
        host: Name or number of the interface.
        certificate: The server's certificate and those that vouch for it, a PEM file.
        key: The private key of the certificate, a PEM file.
        client_ca: The authority whose certificates clients must have, a PEM file; clients need none
            when ``None``.
        insecure: Allow an interface that other machines can reach without a token, because you
            check certificates, or trust everyone there.
        token: A secret that clients must have.
        max_connections: How many clients may be connected; the next is told so.
        heartbeat: After how many seconds of silence each side says that it is there.
        threads: How many event loops serve the connections.
    """

    port: int
    host: str = "127.0.0.1"
    certificate: str | os.PathLike[str] = field(kw_only=True)
    key: str | os.PathLike[str] = field(kw_only=True)
    client_ca: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    insecure: bool = field(default=False, kw_only=True)

    def open(self, server: _native.Server) -> str:
        """Listen."""
        address = _network("tls", self.host, self.port)
        return self._open(
            server,
            address,
            insecure=self.insecure,
            certificate=self.certificate,
            key=self.key,
            client_ca=self.client_ca,
        )


@dataclass(frozen=True)
class UnixTransport(_Door):
    """A socket file that only this user's processes can open.

    Args:
        path: The socket's file; it is made with mode 0600, and removed at the end.
        token: A secret that clients must have.
        max_connections: How many clients may be connected; the next is told so.
        heartbeat: After how many seconds of silence each side says that it is there.
        threads: How many event loops serve the connections.
    """

    path: str | os.PathLike[str]

    def open(self, server: _native.Server) -> str:
        """Listen."""
        return self._open(server, f"unix://{Path(self.path).absolute()}")


@dataclass(frozen=True)
class ShmTransport(_Door):
    """The ring's own memory, for this user's processes on the same machine.

    Clients write their samples straight into the place where the learner reads them.

    Args:
        name: What clients connect to, as ``shm://name``: letters, digits, ``-``, ``_`` and ``.``.
        token: A secret that clients must have.
        max_connections: How many clients may be connected; the next is told so.
        heartbeat: After how many seconds of silence each side says that it is there.
        threads: How many event loops serve the connections.
    """

    name: str

    def open(self, server: _native.Server) -> str:
        """Listen."""
        return self._open(server, f"shm://{self.name}")
