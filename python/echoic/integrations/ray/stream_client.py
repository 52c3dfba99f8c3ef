"""Send samples from workers on a Ray cluster to a stream, which is found by its name.

It holds one link at a time, an :class:`~echoic.remote_stream.RemoteStream`, which reconnects by
itself to a server that was restarted at its address. Calls check now and then whether there is a
connection. If not, the registry is asked for the address; if that changed, what was not
acknowledged is sent there. A thread asks and connects, so that a call keeps its timeout; a call
starts it, and it ends with the answer. So pending samples move with the next call.

# Invariants

1. A sample is sent to another server only after the connection to the last one was given up, and
   then only if that one has not acknowledged it.
2. Samples of one thread arrive in order, those that are sent to another server first.
3. No thread that holds the lock waits longer than :data:`_LOOK`, except in ``close``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError

from echoic import _trees
from echoic._links import Delivers, link_options
from echoic.errors import (
    ArgumentError,
    ClosedError,
    DisconnectedError,
    EchoicError,
    RefusedError,
    SpecError,
    WaitTimeoutError,
)
from echoic.integrations.ray.addresses import nearest
from echoic.integrations.ray.stream_registry import find_registry
from echoic.integrations.ray.stream_server import check_name
from echoic.remote_stream import RemoteStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.integrations.ray.stream_registry import Place

__all__ = ["StreamClient"]

# Seconds between two checks for a connection, and the longest single wait of a call.
_LOOK = 0.5
# Seconds between two requests to the registry while there is no connection.
_PAUSE = 0.2
# Seconds that the registry may take to answer: Ray may be restarting it.
_PATIENCE = 15.0
# Seconds that a server may take to accept a client before the registry is asked again.
_CONNECT = 3.0
# Seconds that the end of a `with` block waits if an exception ended it.
_ERROR_TIMEOUT = 1.0


class StreamClient(Delivers):
    """Send samples to a stream of a Ray cluster, wherever its learner is.

    It can be given to any task or actor: only the name is sent. It connects when it is first used,
    to the nearest address: shared memory on the learner's machine, TCP otherwise. Each sample that
    is sent is stored once for as long as the server lives. When Ray restarts the learner, on
    whatever node, the client continues there with what was not acknowledged. Several threads may
    use one client.

    Args:
        name: The stream's name.
        namespace: Ray's namespace of the stream; that of this process if ``None``.
        rank: Which of several servers to use. ``None``: the one with the fewest clients, and
            another if that has left, or is away for ``move_after`` seconds.
        transport: ``"nearest"``, the default, or ``"tcp"`` to use no shared memory.
        reconnect: Seconds that calls try to reconnect to a server that is away; ``None`` tries for
            ever.
        timeout: Seconds that the first call waits for the stream to be there.
        move_after: Seconds without a report after which a server counts as gone, if there are
            others.
        **options: ``window_bytes`` and ``linger``, as of :func:`echoic.connect`.

    Raises:
        DisconnectedError: On use, if there is no stream of this name, or its server was away for
            too long.

    Examples:
        In a task or an actor::

            with StreamClient("rollouts") as client:
                client.extend(samples)
    """

    def __init__(
        self,
        name: str = "stream",
        namespace: str | None = None,
        *,
        rank: int | None = None,
        transport: Literal["nearest", "tcp"] = "nearest",
        reconnect: float | None = 60.0,
        timeout: float = 60.0,
        move_after: float = 30.0,
        **options: Any,
    ) -> None:
        check_name(name)
        if transport not in {"nearest", "tcp"}:
            raise ArgumentError(f"transport must be 'nearest' or 'tcp', got {transport!r}")
        unknown = set(options) - {"window_bytes", "linger"}
        if unknown:
            raise TypeError(f"expected window_bytes or linger, got {sorted(unknown)}")
        link_options(**options)  # Report a wrong one here, not at the first use.
        #: The stream's name.
        self.name = name
        self._namespace = namespace
        self._rank = rank
        self._given = {
            "rank": rank,
            "transport": transport,
            "reconnect": reconnect,
            "timeout": timeout,
            "move_after": move_after,
            **options,
        }
        self._options = options
        # Guards all attributes below.
        self._lock = threading.RLock()
        self._link: RemoteStream | None = None
        # The server of the connection.
        self._place: Place | None = None
        # What earlier servers have not acknowledged and the present one has not been sent.
        self._left: Any = None
        self._moves = -1
        self._next_look = 0.0
        # Since when there is no connection, and why.
        self._away: float | None = None
        self._trouble: Exception | None = None
        # The thread that looks for the server, and the error that the next call raises.
        self._search: threading.Thread | None = None
        self._fault: Exception | None = None
        self._found = threading.Event()
        self._closing = False
        self._closed = False

    def add(self, x: Any, *, timeout: float | None = None) -> None:
        """Send one sample; see ``RemoteStream.add``.

        Raises:
            SpecError: If the sample does not fit. Nothing of it is sent.
            WaitTimeoutError: If there was no room in time; ``reason`` says why.
            ClosedError: If the client is closed.
            DisconnectedError: If there was no server for ``reconnect`` seconds.
        """
        self._check_open()
        self._carry(lambda link, patience: link.add(x, timeout=patience), timeout)

    def extend(self, xs: Any, *, timeout: float | None = None) -> None:
        """Send many samples, given as leaves with a leading axis.

        Raises:
            SpecError: If a leaf does not fit. Nothing is sent.
            WaitTimeoutError: If not all samples had room in time; ``stored`` says how many had.
            ClosedError: If the client is closed.
            DisconnectedError: If there was no server for ``reconnect`` seconds; ``stored`` says how
                many samples the client has taken, which it still delivers.
        """
        self._check_open()
        batch = _Batch(xs)
        try:
            self._carry(batch.send, timeout)
        except (WaitTimeoutError, ClosedError, DisconnectedError) as error:
            error.stored = batch.taken
            raise

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was sent before is stored in a server's ring.

        Raises:
            WaitTimeoutError: If they were not stored in time. They are still delivered.
            DisconnectedError: If there was no server for ``reconnect`` seconds.
        """
        self._check_open()
        self._deliver(timeout)

    def _deliver(self, timeout: float | None) -> None:
        # In shared memory nothing is pending.
        if self._pending():
            self._carry(lambda link, patience: link.flush(patience), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Accept no more samples, deliver those that are left, and close.

        May be called again after it timed out.

        Raises:
            WaitTimeoutError: If not everything was delivered in time.
            DisconnectedError: If there was no server for ``reconnect`` seconds; :meth:`undelivered`
                returns what is left.
        """
        self._closing = True
        if self._closed:
            return
        try:
            self._deliver(timeout)
        except DisconnectedError:
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        with self._lock:
            link = self._link
            if link is not None:
                if not self._pending():
                    with contextlib.suppress(EchoicError):
                        link.close(_ERROR_TIMEOUT)
                _give_up(link)
                self._keep_left(link)
            self._closed = True

    def undelivered(self) -> Any:
        """Return what could not be delivered, once the client is closed.

        Returns:
            A tree like the example with a leading axis, or ``None`` if everything was delivered.
        """
        with self._lock:
            if not self._closed:
                raise ClosedError("undelivered() is for a closed client: call close() first")
            return self._left

    def _carry(self, act: Callable[[RemoteStream, float], None], timeout: float | None) -> None:
        """Call a function with a connection, and again with another one if it is lost."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            link = self._connected(until)
            try:
                act(link, _slice(until))
            except WaitTimeoutError:
                if _is_over(until):
                    raise
            except (ClosedError, DisconnectedError, RefusedError) as error:
                self._lose(link, error)
            except SpecError as error:
                # Either the sample does not fit, or the server's spec has changed.
                if not link.closed:
                    raise
                self._lose(link, error)
            else:
                return

    def _connected(self, until: float | None) -> RemoteStream:
        """Return a connection that has got everything that was sent before."""
        link = self._link
        if link is not None and time.monotonic() < self._next_look:
            return link
        while True:
            found = None
            if self._lock.acquire(timeout=_slice(until)):
                try:
                    found = self._usable(until)
                finally:
                    self._lock.release()
            if found is not None:
                return found
            if _is_over(until):
                error = WaitTimeoutError(
                    f"timed out: the stream {self.name!r} is away or accepts nothing: "
                    f"{self._trouble or 'its server does not answer'}"
                )
                error.reason = getattr(self._trouble, "reason", "") or "AWAY"
                raise error
            if self._link is None:
                self._found.wait(min(_PAUSE, _slice(until)))

    def _usable(self, until: float | None) -> RemoteStream | None:
        """Return the connection, if it has accepted what the last one had left."""
        if self._closed:
            raise ClosedError(f"the client of the stream {self.name!r} is closed")
        self._look()
        self._check_patience()
        link = self._link
        if link is None or not self._give_left(link, until):
            return None
        self._next_look = time.monotonic() + _LOOK
        return link

    def _look(self) -> None:
        """Start a thread that looks for the server while there is no connection."""
        link = self._link
        if link is not None and link.stats().connected:
            # Results of an earlier search are out of date.
            self._away = self._trouble = self._fault = None
            return
        if self._away is None:
            self._away = time.monotonic()
        if self._search is not None and self._search.is_alive():
            return
        fault, self._fault = self._fault, None
        if fault is not None:
            self._away = None
            raise fault
        self._found.clear()
        self._search = threading.Thread(
            target=self._find, name=f"echoic-stream-{self.name}", daemon=True
        )
        self._search.start()

    def _find(self) -> None:
        """Find the server, and connect if its address has changed."""
        try:
            place = self._ask()
            link = self._link
            if place is None or (link is not None and link.stats().connected):
                return
            before = None if link is None or link.closed else self._place
            # At its old address the connection is restored by itself.
            if before is None or place.addresses != before.addresses:
                self._move(place)
        except Exception as error:  # the next call raises it
            self._fault = error

    def _ask(self) -> Place | None:
        """Ask the registry for the server; ``None`` if it is not known."""
        if not ray.is_initialized():
            raise DisconnectedError(
                f"the stream {self.name!r} is found through Ray, to which this process is not "
                "connected: call ray.init(address=...) first"
            )
        wanted, chosen = self._given["rank"], self._rank
        try:
            registry = find_registry(self.name, self._namespace)
            place: Place | None = ray.get(registry.find.remote(chosen), timeout=_PATIENCE)
            if wanted is None and chosen is not None and self._is_gone(place):
                other: Place | None = ray.get(registry.find.remote(None), timeout=_PATIENCE)
                place = place if other is None or self._is_gone(other) else other
        except ValueError:
            self._trouble = LookupError("Ray has no stream of this name")
            return None
        except (RayError, GetTimeoutError) as error:
            self._trouble = error
            return None
        if place is None:
            self._trouble = LookupError("no server has reported its address")
        return place

    def _is_gone(self, place: Place | None) -> bool:
        return place is None or place.silent > self._given["move_after"]

    def _move(self, place: Place) -> None:
        """Connect to a server, and keep for it what the last one has not acknowledged."""
        link = self._link
        if link is not None:
            _give_up(link)
            with self._lock:
                self._keep_left(link)
        is_near = self._given["transport"] == "nearest"
        address = nearest(place.addresses, place.token) if is_near else place.addresses.tcp
        try:
            # It is given up when the registry has another address, and not before.
            options = link_options(
                token=place.token, timeout=_CONNECT, reconnect=None, **self._options
            )
            link = RemoteStream(address, ray.cloudpickle.loads(place.example), options)
        except (DisconnectedError, RefusedError, SpecError) as error:
            # If its spec has changed, the registry has a new one soon.
            self._trouble = error
            return
        with self._lock:
            if self._closed:
                _give_up(link)
                return
            # Before other threads see the connection: it gets the remaining samples first.
            self._next_look = 0.0
            self._link, self._place, self._rank = link, place, place.rank
            self._moves += 1
            self._away = self._trouble = None
        self._found.set()

    def _keep_left(self, link: RemoteStream) -> None:
        """Keep what a connection that was given up has not delivered."""
        if self._link is link:
            self._left = _joined(link.undelivered(), self._left)
            self._link = None

    def _give_left(self, link: RemoteStream, until: float | None) -> bool:
        """Send what the last connection had left; return whether all was accepted."""
        if self._left is None:
            return True
        batch = _Batch(self._left)
        try:
            batch.send(link, _slice(until))
        except (WaitTimeoutError, ClosedError, DisconnectedError, RefusedError) as error:
            self._trouble = error
            self._left = batch.left
            return False
        except SpecError as error:
            # The remaining samples will never fit, and new ones must not wait for them.
            self._left = batch.left
            self._closing = True
            self._end()
            failure = DisconnectedError(
                f"the stream {self.name!r} has samples of another kind since its learner was made "
                f"again, and {_count(batch.left)} earlier ones are not delivered: {error}"
            )
            failure.undelivered = self._pending()
            raise failure from error
        self._left = None
        return True

    def _lose(self, link: RemoteStream, error: Exception) -> None:
        """Note that a connection has ended."""
        with self._lock:
            if self._link is link:
                self._trouble = error
                self._next_look = 0.0

    def _check_patience(self) -> None:
        """Raise an error if there was no server for too long."""
        if self._away is None:
            return
        first = self._moves < 0
        patience = self._given["timeout" if first else "reconnect"]
        if patience is None or time.monotonic() - self._away < patience:
            return
        where = "" if self._namespace is None else f" in namespace {self._namespace!r}"
        error = DisconnectedError(
            f"expected the stream {self.name!r}{where} of Ray to be there within {patience} s: "
            f"{self._trouble or 'its server does not answer'}"
        )
        error.undelivered = self._pending()
        # The next call may try for the same time again.
        self._away = None
        raise error

    def _pending(self) -> int:
        # Read together: another thread may give up the one and keep the other meanwhile.
        link, left = self._link, self._left
        waiting = 0 if link is None else int(link.stats().pending)
        return waiting + (0 if left is None else _count(left))

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError(f"the client of the stream {self.name!r} is closed")

    @property
    def rank(self) -> int | None:
        """Which of several servers it sends to; ``None`` until that is decided."""
        return self._rank

    @property
    def closed(self) -> bool:
        """Whether it accepts no more samples."""
        return self._closing

    @property
    def is_connected(self) -> bool:
        """Whether it has an open connection."""
        link = self._link
        return link is not None and bool(link.stats().connected)

    @property
    def addresses(self) -> list[str]:
        """The addresses of its server, if it has one."""
        link = self._link
        return [] if link is None else [link.address]

    def stats(self) -> dict[str, float]:
        """Return the numbers of the present connection, as ``RemoteStream.stats`` has them.

        ``moves`` is how many times the server changed its address, ``undelivered`` how many samples
        are not acknowledged. Before the client is used there are no others.
        """
        with self._lock:
            numbers = {} if self._link is None else self._link.stats().as_dict()
            more = {"moves": float(max(self._moves, 0)), "undelivered": float(self._pending())}
            return {**numbers, **more}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name and the options: the copy finds the stream again where it is used."""
        return partial(StreamClient, self.name, self._namespace, **self._given), ()

    def __repr__(self) -> str:
        return f"StreamClient({self.name!r}, namespace={self._namespace!r})"


class _Batch:
    """Samples, some of which may have been taken."""

    def __init__(self, tree: Any) -> None:
        self.left = tree
        self.taken = 0

    def send(self, link: RemoteStream, patience: float) -> None:
        """Send the rest."""
        try:
            link.extend(self.left, timeout=patience)
        except EchoicError as error:
            taken = getattr(error, "stored", 0)
            if taken:
                self.taken += taken
                self.left = _trees.tree_map(lambda leaf: leaf[taken:], self.left)
            raise


def _give_up(link: RemoteStream) -> None:
    """Close a connection without delivering what it has."""
    link._give_up()
    # It waits at most for an attempt to connect.
    with contextlib.suppress(EchoicError):
        link.close()


def _slice(until: float | None) -> float:
    """Return how long to wait at once."""
    return _LOOK if until is None else min(_LOOK, max(0.0, until - time.monotonic()))


def _is_over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


def _count(tree: Any) -> int:
    return len(_trees.tree_leaves(tree)[0])


def _joined(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return _trees.tree_map(lambda one, other: np.concatenate([one, other]), first, second)
