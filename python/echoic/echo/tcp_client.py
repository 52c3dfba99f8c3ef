"""A client that sends samples over TCP."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import optree

from echoic._links import deadline_in, link_options
from echoic.errors import DisconnectedError, SpecError, WaitTimeoutError
from echoic.errors import DisconnectedError as ConnectionClosedError
from echoic.remote_stream import RemoteStream

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ConnectionClosedError", "TcpClient"]

# Clients that still deliver samples after their `close()` has returned.
_delivering: set[TcpClient] = set()


class _ProtocolError(DisconnectedError, ValueError):
    """The peer speaks another protocol."""


class _UnreachableError(DisconnectedError, ConnectionRefusedError):
    """No server could be reached."""


class _Closed:
    """Whether a client is closed, with the methods of an event."""

    def __init__(self, client: TcpClient) -> None:
        self._client = client

    def is_set(self) -> bool:
        return self._client.closed

    def wait(self, timeout: float | None = None) -> bool:
        deadline = deadline_in(timeout)
        while not self.is_set() and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.005)
        return self.is_set()


class TcpClient(RemoteStream):
    """Sends samples to a server at a host and port.

    Args:
        host: Name or number of the server's host.
        port: Where the server listens.
        data_sample: A sample as all others will be, like the server's.
        max_inflight_msgs: Samples that may be on their way before :meth:`send` waits, and at most
            4 MiB of them. Echo's 32 is slower for small samples, which travel many at once.
        **options: Those of :func:`echoic.connect`, with other defaults. ``reconnect`` is 0: as in
            echo, a connection that breaks ends the client. ``linger`` is 0. ``token`` is what the
            environment variable ``ECHOIC_ECHO_TOKEN`` has.

    Raises:
        ValueError: If the server has other samples, or the peer is no server of Echoic.
        ConnectionRefusedError: If no server is there within ``timeout`` seconds, by default 10.
    """

    def __new__(
        cls,
        host: str,
        port: int,
        data_sample: Any,
        max_inflight_msgs: int = 1024,
        **options: Any,
    ) -> Self:
        """Connect."""
        one = sum(np.asarray(leaf).nbytes for leaf in optree.tree_leaves(data_sample))
        defaults = {
            "reconnect": 0.0,
            "linger": 0.0,
            "token": os.environ.get("ECHOIC_ECHO_TOKEN"),
            "window_bytes": min(max_inflight_msgs * max(1, one), 4 << 20),
        }
        host = f"[{host}]" if ":" in host else host
        address = f"tcp://{host}:{port}"
        try:
            return super().__new__(
                cls, address, data_sample, link_options(**{**defaults, **options})
            )
        except SpecError as error:
            raise SpecError(f"Server spec mismatch: {error}") from error
        except DisconnectedError as error:
            if "the server sent nonsense" in str(error):
                raise _ProtocolError(f"unexpected magic bytes: {error}") from error
            raise _UnreachableError(str(error)) from error

    send = RemoteStream.add
    send_batch = RemoteStream.extend
    wait = RemoteStream.flush

    def close(self, timeout: float | None = 1.0) -> None:
        """Take no more samples, and deliver those that are left.

        Returns after ``timeout`` seconds at the latest; what is left then is delivered in the
        background, as long as the process and the connection live. Closing again changes nothing.
        """
        try:
            with contextlib.suppress(DisconnectedError):
                super().close(timeout)
            _delivering.discard(self)
        except WaitTimeoutError:
            _delivering.add(self)
        # In the place of the native method, which raises what is no ConnectionError.
        vars(self).update(send=self._refuse, send_batch=self._refuse)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConnectionClosedError(f"the client of {self.address} is closed")

    _closed = property(_Closed)
    _in_flight_count = property(lambda self: int(self.stats().pending))
