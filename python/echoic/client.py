"""The client: what a rollout worker in another process pushes to."""

from __future__ import annotations

import atexit
import contextlib
import time
import weakref
from typing import TYPE_CHECKING, Any, overload

from echoic import _native
from echoic.errors import EchoicError
from echoic.links import LinkOptions, link_options
from echoic.rendezvous import address_for, addresses, options_for
from echoic.sharded import ShardedClient
from echoic.table_client import TableClient, connect_again

if TYPE_CHECKING:
    import os

    from typing_extensions import Self, Unpack

    from echoic.sharded.places import Where

__all__ = ["Client", "connect"]

# How long a script that ends without closing its clients waits for what they still have to deliver.
_EXIT_TIMEOUT = 5.0
# How long the end of a `with` block waits when an exception ended it.
_ERROR_TIMEOUT = 1.0

_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client(_native.Client):
    """Sends samples to a server in another process, each exactly once.

    ``add`` copies a sample into a bounded window and returns; a thread in the background carries
    the window's samples to the server, many per system call, and keeps each until the server has
    stored it. When the connection breaks, the client comes back by itself and goes on where the
    server says. One client may be used from many threads. :func:`connect` makes one.

    Args:
        address: ``tcp://host:port``, ``tls://host:port``, ``unix:///path`` or ``shm://name``.
        example: A sample as all others will be, like the server's.
        token: The secret that the server asks for.
        window_bytes: How many bytes of samples may wait for the server; then ``add`` waits.
        linger: How many seconds a sample may wait for others to share a system call with.
        deadline: For how many seconds to try to come back to a server that is gone; for ever when
            ``None``.
        max_retry: How often to try; without limit when ``None``.
        connect_timeout: For how many seconds to try to reach the server at first.
        producer: 16 bytes that say who this is, for a worker that keeps its identity when it is
            restarted; random when ``None``.
        ca: The authority that the server's certificate must be from, a PEM file (``tls://``).
        certificate: This client's certificate, a PEM file, for servers that ask for one.
        key: The private key of the certificate, a PEM file.
        server_name: The name in the server's certificate, when it is not that of the host.
        name: What people who look at the server's connections know this client by, at most 128
            bytes of UTF-8 without control characters; host and process id, ``"host:pid"``, when
            ``None``.

    Raises:
        SpecError: The server's samples are of another kind; the message says what differs.
        RefusedError: The server does not let this client in, and why.
        DisconnectedError: Nobody answered within ``connect_timeout``.
    """

    _options: dict[str, Any]

    def __new__(
        cls,
        address: str,
        example: Any,
        *,
        token: str | bytes | None = None,
        window_bytes: int = 4 << 20,
        linger: float = 0.0002,
        deadline: float | None = 60.0,
        max_retry: int | None = None,
        connect_timeout: float = 10.0,
        producer: bytes | None = None,
        ca: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        server_name: str | None = None,
        name: str | None = None,
    ) -> Self:
        """Connect; see the class for the arguments."""
        options = _options(
            token=token,
            window_bytes=window_bytes,
            linger=linger,
            deadline=deadline,
            max_retry=max_retry,
            connect_timeout=connect_timeout,
            producer=producer,
            ca=ca,
            certificate=certificate,
            key=key,
            server_name=server_name,
            name=name,
        )
        self = super().__new__(cls, address, example, options)
        # A copy is another producer: two with one identity would take each other's place.
        self._options = {**options, "producer": None}
        _open_clients.add(self)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as address, example and options: the copy connects anew, as another producer."""
        return _connect_again, (self.address, self._example(), self._options)

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Deliver what is left and close; after an exception, not for long."""
        if kind is None:
            self.close()
            return
        # The exception matters more than what it leaves undelivered, which stays with the client.
        with contextlib.suppress(EchoicError):
            self.close(_ERROR_TIMEOUT)


@overload
def connect(address: str | None = None, example: None = None, **options: Any) -> TableClient: ...
@overload
def connect(address: str | None, example: Any, **options: Any) -> Client: ...
@overload
def connect(*, example: Any, **options: Any) -> Client: ...
@overload
def connect(address: Where, **options: Any) -> ShardedClient: ...
def connect(
    address: str | Where | None = None,
    example: Any = None,
    **options: Any,
) -> Client | TableClient:
    """Connect to a server at any kind of address.

    With an example, to its stream; without one, to its tables. With several addresses, to the
    tables that lie on all these servers together.

    Args:
        address: ``tcp://host:port``, ``tls://host:port``, ``unix:///path`` or ``shm://name``; a
            list of such, or a function that returns one, for a :class:`~echoic.ShardedClient`.
            Without one, the environment says where the servers are, and what they ask for:
            ``ECHOIC_ADDRESSES`` and what else :mod:`echoic.rendezvous` reads.
        example: A sample as all others of the stream will be, like the server's.
        **options: Those of :class:`Client`; of several servers also ``seed`` and ``refresh``, see
            :class:`~echoic.ShardedClient`.

    Examples:
        >>> import numpy as np
        >>> from echoic import Server, Stream, connect
        >>> example = {"obs": np.zeros(4, np.float32)}
        >>> stream = Stream(example, batch_size=2)
        >>> with Server(stream, listen="shm://learner"):
        ...     with connect("shm://learner", example) as client:
        ...         client.extend({"obs": np.ones((2, 4), np.float32)})
        ...     print(stream.sample()["obs"].sum())
        8.0

        >>> from echoic import Table
        >>> table = Table("replay", example, capacity=100)
        >>> with Server(table, listen="tcp://127.0.0.1:0") as server:
        ...     with connect(server.address) as client:
        ...         client.add({"obs": np.ones(4, np.float32)}, {"replay": 1.0})
        ...         client.flush()
        ...         print(client.sample("replay", 2).data["obs"].sum())
        8.0
    """
    if address is None:
        options = options_for(options)
        patience = options.get("connect_timeout", 10.0)
        if example is not None:
            return Client(address_for("a stream", patience), example, **options)
        found = addresses(patience)
        # Of a file also when it names one server, which may move.
        [one, *others] = found if isinstance(found, list) else [None]
        address = one if isinstance(one, str) and not others else found
    if not isinstance(address, str):
        if example is not None:
            raise ValueError("a stream is on one server: several addresses are for tables")
        sharded = {name: options.pop(name) for name in ("seed", "refresh") if name in options}
        deadline = options.get("deadline", 60.0)
        return ShardedClient(address, _options(**options), deadline=deadline, **sharded)
    if example is None:
        return connect_again(address, _options(**options))
    return Client(address, example, **options)


def _options(
    *,
    window_bytes: int = 4 << 20,
    linger: float = 0.0002,
    producer: bytes | None = None,
    **link: Unpack[LinkOptions],
) -> dict[str, Any]:
    """Return the options of a connection that sends, as the native core takes them."""
    return {
        "window_bytes": window_bytes,
        "linger": linger,
        "producer": producer,
        **link_options(**link),
    }


def _connect_again(address: str, example: Any, options: dict[str, Any]) -> Client:
    return Client(address, example, **options)


@atexit.register
def _deliver_at_exit() -> None:
    """Give clients that nobody closed a moment to deliver what they have, all of them together."""
    deadline = time.monotonic() + _EXIT_TIMEOUT
    for client in list(_open_clients):
        # There is nobody left to tell.
        with contextlib.suppress(EchoicError):
            client.close(max(0.0, deadline - time.monotonic()))
