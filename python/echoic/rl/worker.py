"""The side of a run that makes rollouts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from echoic.connection import Connection, connect
from echoic.errors import (
    ClosedError,
    EchoicError,
    GroupNotFoundError,
    RolloutError,
    WaitTimeoutError,
)
from echoic.rl.background import Renewer, Reserver, SendQueue, in_thread
from echoic.rl.batches import Batches
from echoic.rl.group import Group, Item, parse_handle
from echoic.rl.groups import Groups, key_of
from echoic.rl.modules import load_tree

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from echoic._native import RolloutCall
    from echoic._native import RolloutTable as NativeTable
    from echoic.rl.group import Call
    from echoic.rl.run import Run
    from echoic.rollouts import RolloutStats, RolloutTable
    from echoic.server import Server
    from echoic.weights import Subscription

__all__ = ["Given", "Worker", "join"]

# A reservation as the core returns it: group, attempt, key, version and seconds to live. For a
# group that another worker began, a pair: that, and the index, segments and tokens of each item
# that has some, whether it is done, and its columns.
Given: TypeAlias = "tuple[Any, ...]"

# Calls of a connection, and their bytes, that may be without an answer; the next would wait.
_MOST_CALLS, _MOST_BYTES = 32, 64 << 20
# Seconds of one wait where a close does not end it.
_SLICE = 0.25
# Seconds that the end of a block waits when an exception ended it.
_ERROR_TIMEOUT = 1.0
# The most seconds for which a close lets calls that wait return what they get.
_GRACE = 0.05
# Seconds of a lease of batches.
_LEASE = 600.0

# What is known of a group that was given up, or left to others.
_ENDED = frozenset({"rejected", "expired"})

_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def join(
    address: str | Run | Server,
    *,
    name: str | None = None,
    token: str | bytes | None = None,
    partial: bool = False,
    table: str | None = None,
    **connection: Any,
) -> Worker:
    """Join a run as a worker, or as a rank of its learner.

    The worker connects when its block begins, or when it is first used.

    Args:
        address: :attr:`Run.address`; or a :class:`Run` or :class:`~echoic.Server` of this process.
        name: The name of the worker in batches and statistics; ``"host:pid"`` when ``None``.
        token: The secret of the run.
        partial: Whether tokens are sent as they are written, so that another worker with
            ``partial=True`` goes on with the groups of one that died. The table needs
            ``on_expiry="suspend"``.
        table: The name of the run, if a server has several.
        **connection: Other arguments of :func:`echoic.connect`.

    Examples:
        >>> import numpy as np
        >>> import echoic.rl
        >>> run = echoic.rl.Run({"tokens": "int32"}, {"reward": "float32"}, group=2, batch=1)
        >>> with echoic.rl.join(run) as worker:
        ...     for group in worker.groups(["6 * 7"]):
        ...         with group:
        ...             for item in group:
        ...                 item.write(tokens=np.array([4, 2], np.int32))
        ...                 item.done(reward=1.0)
        >>> batch = run.sample()
        >>> batch["tokens"], batch.keys
        (array([4, 2, 4, 2], dtype=int32), ['6 * 7'])
        >>> run.close()
    """
    server: Any = getattr(address, "server", address)
    name = name or f"{socket.gethostname()}:{os.getpid()}"
    link = connect(server, token=token, name=name, **connection)
    return Worker(link, name=name, partial=partial, table=table)


class Worker:
    """A process that makes groups for a run; :func:`join` returns one.

    A worker may be used by several threads, and by the tasks of asyncio loops. A forked child joins
    again; groups of before the fork raise :class:`~echoic.errors.ClosedError` there.
    """

    def __init__(
        self, connection: Connection, *, name: str, partial: bool, table: str | None
    ) -> None:
        self.name = name
        self._connection = connection
        self._partial = partial
        self._named = table
        self._joined: RolloutTable | None = None
        self._native: NativeTable = None  # type: ignore[assignment] # set by `_connected`
        self._version: int | None = None
        self._loaded: int | None = None
        self._subscription: Subscription | None = None
        self._size = self._token_bytes = 0
        # Of the columns.
        self._names: frozenset[str] = frozenset()
        self._renew_every = 20.0
        self._begin()
        _workers.add(self)

    def _begin(self) -> None:
        """Forget what is on its way, and threads."""
        self._lock = threading.RLock()
        self._is_closed = False
        self._open: set[Group] = set()
        # What gives back each group that an iteration returned and whose block has not begun.
        self._unused: dict[tuple[int, int], Callable[[NativeTable, list[tuple[int, int]]], None]]
        self._unused = {}
        # Calls without an answer, in their order, and the bytes of their tokens.
        self._pending: deque[tuple[RolloutCall, Group, int]] = deque()
        self._pending_bytes = 0
        self._errors: deque[Exception] = deque()
        # Held while answers are processed, so that none is waited for.
        self._collecting = threading.Lock()
        # Those that may have reservations.
        self._iterations: set[weakref.ref[Groups]] = set()
        self._send_queues: dict[asyncio.AbstractEventLoop, SendQueue] = {}
        self._reserver = Reserver(self)
        self._renewer = Renewer(self)
        # The highest version of a reservation, and an entry for each call that waits for some.
        self._reserved = 0
        self._waits: list[None] = []

    # Its connection.

    def _connected(self) -> RolloutTable:
        """Return the table; connect first, if that was not done yet.

        Raises:
            ClosedError: If the worker is closed.
        """
        table = self._joined
        if table is not None and not self._is_closed:
            return table
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"{self!r} is closed")
            if self._joined is None:
                table = self._connection.rollouts(self._named)
                settings = table.settings
                if self._partial and settings["on_expiry"] != "suspend":
                    raise RolloutError(
                        "partial=True needs a run with on_expiry='suspend', so that groups of a "
                        f"worker that died stay; {table.name!r} has {settings['on_expiry']!r}"
                    )
                self._size = settings["group_size"] + settings["redundancy"]
                self._names = frozenset(settings["columns"])
                kinds = settings["columns"].values()
                self._token_bytes = sum(np.dtype(kind).itemsize for kind in kinds)
                self._renew_every = settings["reservation_ttl"] / 3
                self._native = table._native
                self._joined = table
            return self._joined

    @property
    def table(self) -> RolloutTable:
        """The table of the run."""
        return self._connected()

    # Groups.

    def groups(
        self,
        prompts: Iterable[Any] | AsyncIterable[Any],
        *,
        key: Callable[[Any], str] | None = None,
        source: str | None = None,
    ) -> Groups:
        """Iterate over a group for each prompt, with ``for`` or ``async for``.

        Each waits until the learner can use one more group. While groups are used up within
        milliseconds, reservations are taken ahead, and given back when the loop ends or pauses.
        For that, prompts of a list or another collection are read ahead; those of an iterator are
        not, which is slower.

        Args:
            prompts: An iterable or an async iterable of anything.
            key: A function that returns the name of a prompt's group in batches. Without it, a text
                of at most 255 bytes is the name itself, and others have none.
            source: The name of the producer in batches and statistics; :attr:`name` when ``None``.

        With ``partial=True`` the groups of workers that died come first. Their prompt is their key,
        and their items have the tokens that were written.

        Raises:
            ClosedError: If the run or the worker is closed.
            DisconnectedError: If the server was away for longer than ``reconnect`` seconds.
        """
        self._connected()
        return Groups(self, prompts, key, self.name if source is None else source)

    def group(
        self, prompt: Any = None, *, key: str | None = None, source: str | None = None
    ) -> Group:
        """Return one group, which is reserved at the beginning of its block.

        With ``partial=True`` too, this is a new group. Only :meth:`groups` goes on with those of
        workers that died, which take up room until then.

        Args:
            prompt: Anything.
            key: The name of the group in batches; as for :meth:`groups` when ``None``.
            source: As for :meth:`groups`.
        """
        name = key_of(prompt, None if key is None else lambda _: key)
        return Group(self, prompt, name, self.name if source is None else source)

    def item(self, handle: str) -> Item:
        """Return an item of any process by its :attr:`Item.handle`.

        What is written to it is sent at once, and not waited for; see :meth:`flush`. A handle
        belongs to one reservation: when that has expired, nothing is changed, and the status of
        the item's group is ``"dropped"``. Only one process at a time may write tokens of an item:
        of two, the second is refused.

        Raises:
            ValueError: If the text is no handle.
            EchoicError: If something was refused that was sent before; see :meth:`flush`.
        """
        hold, index = parse_handle(handle)
        self._raise()
        self._connected()
        group = Group(self, None, "", "")
        group._table, group._hold = self._native, hold
        group._is_sent = group._at_once = True
        group._loop = _running_loop()
        group._is_ours = False
        group.version = self.version
        item = Item(group, index)
        item._segments = None
        return item

    def _reserve(self, keys: Sequence[str], source: str, resumes: bool) -> Sequence[Given]:
        """Wait for reservations for the first of some keys, or for a group to go on with."""
        self._connected()
        native, version = self._native, self._version
        timeout = _SLICE if resumes or self._connection._server is not None else None
        given: Sequence[Given] = ()
        self._waits.append(None)
        try:
            while not given and not self._is_closed:
                with contextlib.suppress(WaitTimeoutError):
                    if resumes:
                        given = [native.resume_reservation(source, None, 0)]
                with contextlib.suppress(WaitTimeoutError):
                    if not given:
                        given = native.reserve(len(keys), source, keys, version, None, timeout)
                        self._reserved = max(self._reserved, given[0][3])
            if self._is_closed:
                if given:
                    self._discard(given)
                raise ClosedError(f"{self!r} is closed")
        finally:
            self._waits.pop()
        self._renewer.start()
        return given

    def _discard(self, given: Sequence[Given]) -> None:
        """Give back reservations that are not used."""
        if begun := [one[0][:2] for one in given if len(one) == 2]:
            self._suspend(self._native, begun)
        if unused := [one[:2] for one in given if len(one) == 5]:
            self._give_back(self._native, unused)

    def _give_back(self, table: NativeTable, holds: Sequence[tuple[int, int]]) -> None:
        self._renewer.do(lambda: table.fail(holds))

    def _suspend(self, table: NativeTable, holds: Sequence[tuple[int, int]]) -> None:
        self._renewer.do(lambda: table.suspend(holds))

    def _watch(self, groups: Groups) -> None:
        """Give reservations of an iteration back when they are not used soon."""
        self._iterations.add(weakref.ref(groups))
        self._renewer.watch()

    def _give_back_idle(self) -> bool:
        """Give back reservations that were not used since the last call; whether some are left."""
        for found in list(self._iterations):
            groups = found()
            if groups is None or groups._is_idle():
                self._iterations.discard(found)
        return bool(self._iterations)

    def _renew(self) -> None:
        """Renew the reservations of all groups whose blocks run."""
        by_table: dict[NativeTable, list[tuple[int, int]]] = {}
        for group in list(self._open):
            by_table.setdefault(group._table, []).append(group._hold)
        for table, holds in by_table.items():
            table.renew(holds)

    # What is sent.

    def _post(self, calls: Sequence[Call], loop: asyncio.AbstractEventLoop | None) -> None:
        """Send calls; wait for room, unless they are those of a loop."""
        if loop is None:
            for call in calls:
                self._send(call)
        elif any(not group._is_ours for group, _, _ in calls):
            # Such a call waits for an answer first, which says how far the item is.
            for call in calls:
                self._renewer.do(partial(self._try, call[0], partial(self._send, call)))
        elif loop is _running_loop():
            self._send_queue().post(calls, is_awaited=False)
        else:
            # Of a thread that works for a task, such as one of `asyncio.to_thread`.
            post = partial(self._post, calls, loop)
            loop.call_soon_threadsafe(self._try, calls[0][0], post)

    async def _post_later(self, calls: Sequence[Call]) -> None:
        """Send calls, without holding up the loop."""
        queue = self._send_queue()
        future = queue.post(calls, is_awaited=True)
        if future is not None:
            await future
        elif not calls:
            # Of a group whose tokens were posted when they were written.
            await queue.empty()

    def _send_queue(self) -> SendQueue:
        loop = asyncio.get_running_loop()
        found = self._send_queues.get(loop)
        if found is None:
            # Other threads have loops too.
            with self._lock:
                queues = self._send_queues.items()
                self._send_queues = {one: box for one, box in queues if not one.is_closed()}
                found = self._send_queues[loop] = SendQueue(self)
        return found

    def _send(self, call: Call) -> None:
        """Send something of a group; it waits if there is no room."""
        group, send, size = call
        try:
            answer = send()
        except GroupNotFoundError:
            # The server was restarted without a directory.
            group._word = "expired"
            return
        if isinstance(answer, str):
            group._word = answer
            return
        # Its error is raised by `flush`, not by a call for another group.
        answer.forget()
        self._pending.append((answer, group, size))
        self._pending_bytes += size
        if len(self._pending) >= _MOST_CALLS // 2:
            self._collect()

    def _try(self, group: Group, send: Callable[[], object]) -> None:
        """Send something of a group; keep its error."""
        try:
            send()
        except Exception as error:
            self._failed(group, error)

    def _has_room(self, size: int) -> bool:
        """Whether a call of this many bytes would not wait."""
        pending = self._pending
        if not pending:
            return True
        if len(pending) < _MOST_CALLS // 2 and size + self._pending_bytes <= _MOST_BYTES:
            return True
        self._collect()
        return not pending or (
            len(pending) < _MOST_CALLS and size + self._pending_bytes <= _MOST_BYTES
        )

    def _collect(self, *, wait: bool = False) -> None:
        """Process the answers that have arrived, unless another thread does."""
        pending = self._pending
        if not pending or not self._collecting.acquire(blocking=wait):
            return
        try:
            while pending and pending[0][0].is_ready:
                call, group, size = pending.popleft()
                # Other threads add to it, so that the sum may be wrong by some calls.
                self._pending_bytes = self._pending_bytes - size if pending else 0
                self._note(call, group)
        finally:
            self._collecting.release()

    def _note(self, call: RolloutCall, group: Group) -> None:
        """Take note of an answer."""
        try:
            word = call.wait()
        except GroupNotFoundError:
            word = "expired"
        except EchoicError as error:
            self._failed(group, error)
            return
        # The answer to a call from before the group was given up does not open it again.
        if group._word not in _ENDED:
            group._word = word

    def _failed(self, group: Group, error: Exception) -> None:
        """Keep the error of a call that was not waited for."""
        if group._is_ours and group._word != "rejected":
            group._word = "rejected"
            self._give_back(group._table, [group._hold])
        self._errors.append(error)

    def _raise(self) -> None:
        """Raise the first error of a call that was not waited for."""
        if self._errors:
            raise self._errors.popleft()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the run has everything that was sent.

        Args:
            timeout: Seconds to wait; ``None`` waits forever.

        Raises:
            WaitTimeoutError: If it was not in time.
            EchoicError: If something was refused; a note names its group, which was given up. Each
                call raises one such error, and so does the next group or :meth:`item`.
        """
        self._renewer.drain(timeout)
        if self._native is not None and self._pending:
            self._native.flush(timeout)
        self._collect(wait=True)
        self._raise()

    async def aflush(self) -> None:
        """Wait as :meth:`flush` does, without holding up the loop."""
        await self._send_queue().empty()
        await in_thread(self.flush)

    def close(self, timeout: float | None = None) -> None:
        """Send what is on its way, give reservations back, and end the connection.

        Calls that wait raise :class:`~echoic.errors.ClosedError`. Groups whose blocks still run, or
        have not begun, are given up.

        Args:
            timeout: Seconds to wait for answers; ``None`` waits for as long as the server can be
                reached.

        Raises:
            EchoicError: If something that was sent was refused.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._reserver.close(ClosedError(f"{self!r} is closed"))
        for found in list(self._iterations):
            if (groups := found()) is not None:
                groups._end()
        while self._unused:
            hold, give_back = self._unused.popitem()
            give_back(self._native, [hold])
        for group in list(self._open):
            group._end(GeneratorExit)
        self._renewer.close()
        # What was given back may be granted to a call of this worker that waits, which returns it.
        end = time.monotonic() + _GRACE
        while self._waits and time.monotonic() < end:
            time.sleep(_GRACE / 50)
        try:
            self.flush(timeout)
        finally:
            if self._subscription is not None:
                self._subscription.close()
            self._connection.close(timeout)

    async def aclose(self, timeout: float | None = None) -> None:
        """Close the worker as :meth:`close` does, without holding up the loop."""
        if not self._is_closed:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._send_queue().empty(), timeout)
        await in_thread(lambda: self.close(timeout))

    # Weights.

    @property
    def weights(self) -> Subscription:
        """The subscription to the run's weights: ``latest()``, ``wait()``."""
        with self._lock:
            if self._subscription is None:
                self._connected()
                self._subscription = self._connection.weights().subscribe()
            return self._subscription

    @property
    def version(self) -> int:
        """The version of the weights that were loaded last, and so of tokens written from now on.

        Before the first :meth:`load`, tokens get the version of their group's reservation, and this
        is that of the last one.
        """
        return self._reserved if self._version is None else self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version

    def load(self, model: Any = None) -> bool:
        """Copy the latest weights into a model, and take their version.

        The first call waits for weights that are on their way to this process; later ones never
        wait.

        Args:
            model: A module of PyTorch, or a tree of tensors or arrays like the one that was
                published. ``None`` takes the version alone: ``weights.latest()`` has the tree.

        Returns:
            Whether they are newer than those that were loaded before.

        Raises:
            SpecError: If names or shapes differ; nothing was copied.
        """
        weights = self.weights
        found = weights.latest()
        if found is None and self._loaded is None and self._has_weights():
            found = weights.wait()
        if found is None or found.version == self._loaded:
            return False
        if model is not None and found.tree is not None:
            load_tree(model, found.tree)
        self._loaded = self._version = found.version
        return True

    def _has_weights(self) -> bool:
        """Whether the run has weights: after version 0 it has, or will publish them first."""
        if self._connection._server is not None:
            return False
        stats = self._connection.server_stats()
        return self._reserved > 0 or any(seen.value("weights_bytes") for seen in stats.values())

    # Others.

    def batches(self, **how: Any) -> Batches:
        """Iterate over batches as a rank of the learner; see :meth:`Run.batches`."""
        ranks = how.pop("world", 1)
        return Batches(self._connected, **{"lease": _LEASE, **how}, ranks=ranks)

    def stats(self) -> RolloutStats:
        """Return a snapshot of the numbers of the run."""
        return self._connected().stats()

    def __enter__(self) -> Self:
        self._connected()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the worker; after an exception without waiting for long."""
        if kind is None:
            self.close()
        else:
            # The exception that ended the block must not be replaced by another.
            with contextlib.suppress(EchoicError):
                self.close(_ERROR_TIMEOUT)

    async def __aenter__(self) -> Self:
        await in_thread(self._connected)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the worker; after an exception without waiting for long."""
        if kind is None:
            await self.aclose()
        else:
            with contextlib.suppress(EchoicError):
                await self.aclose(_ERROR_TIMEOUT)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the run is: the copy joins it as another worker."""
        return _joined, (self._connection, self.name, self._partial, self._named)

    def __repr__(self) -> str:
        return f"Worker({self.name!r}, {self._connection._named()})"


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop of this thread, if one runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _joined(connection: Connection, name: str, partial: bool, table: str | None) -> Worker:
    return Worker(connection, name=name, partial=partial, table=table)


def _join_in_child() -> None:
    """Forget what is the parent's."""
    for worker in list(_workers):
        if worker._connection._server is None:
            for found in list(worker._iterations):
                if (groups := found()) is not None:
                    groups._given.clear()
            worker._joined = worker._subscription = None
        worker._begin()


os.register_at_fork(after_in_child=_join_in_child)
