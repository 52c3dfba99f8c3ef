"""What a worker does beside its program: it reserves groups, and keeps reservations alive."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from echoic.errors import EchoicError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from echoic.rl.group import Call
    from echoic.rl.worker import Given, Worker

__all__ = ["Renewer", "Reserver", "SendQueue", "in_thread"]

Value = TypeVar("Value")

# Seconds after which reservations that were taken ahead are given back, if none was used since.
_IDLE = 0.05
# How many groups are reserved at once.
_MOST = 1024
# Seconds that closing waits for what the renewer still does.
_END = 5.0
# Seconds between two looks whether there is room to send.
_FIRST_LOOK, _LAST_LOOK = 0.001, 0.02
# Seconds for which one look sends at most, so that other tasks have their turn.
_TURN = 0.005


async def in_thread(
    function: Callable[[], Value], discard: Callable[[Value], object] = lambda _: None
) -> Value:
    """Run a function in a thread of its own, since those of the loop may all be in use.

    Args:
        function: The function.
        discard: Called with the result if the task was cancelled.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Value] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.cancelled():
            if error is None:
                threading.Thread(target=discard, args=(value,), daemon=True).start()
        elif error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = function()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            # The loop was closed.
            if error is None:
                discard(value)  # type: ignore[arg-type]

    threading.Thread(target=run, name="echoic-rl-call", daemon=True).start()
    return await future


class Ask:
    """A task that waits for reservations, one for each key at most."""

    __slots__ = ("future", "given", "keys", "kind", "loop")

    def __init__(self, keys: Sequence[str], source: str, resumes: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[Given]] = self.loop.create_future()
        # What it has in common with others that are asked for with it.
        self.keys, self.kind = keys, (source, resumes)
        self.given: list[Given] = []


class Reserver:
    """The one thread of a worker that waits for reservations, for all of its tasks."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._condition = threading.Condition(threading.Lock())
        self._asks: list[Ask] = []
        self._thread: threading.Thread | None = None
        self._closed: EchoicError | None = None

    async def reserve(self, keys: Sequence[str], source: str, resumes: bool) -> Sequence[Given]:
        """Wait until the first key can be reserved; return reservations for the first keys."""
        self._worker._raise()
        ask = Ask(keys, source, resumes)
        with self._condition:
            if self._closed is not None:
                raise self._closed
            self._asks.append(ask)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="echoic-rl-reserve", daemon=True
                )
                self._thread.start()
            self._condition.notify()
        try:
            return await ask.future
        except asyncio.CancelledError:
            # It may have been given between the result and this task's turn.
            future = ask.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self._worker._discard(future.result())
            raise

    def close(self, error: EchoicError) -> None:
        """Have all tasks that wait, and will wait, raise the error."""
        with self._condition:
            self._closed = error
            asks, self._asks = self._asks, []
            self._condition.notify()
        self._fail(asks, error)

    def _run(self) -> None:
        worker = self._worker
        while True:
            with self._condition:
                # They stay until they have something, so that a close finds them.
                self._asks = [ask for ask in self._asks if not ask.future.done()]
                while not self._asks and self._closed is None:
                    self._condition.wait()
                if self._closed is not None:
                    return
                kind = self._asks[0].kind
                asks = [ask for ask in self._asks if ask.kind == kind]
            # The first key of each, then what may be reserved ahead.
            wanted = [(ask, ask.keys[0]) for ask in asks]
            wanted += [(ask, key) for ask in asks for key in ask.keys[1:]]
            del wanted[_MOST:]
            try:
                given = worker._reserve([key for _, key in wanted], *kind)
            except BaseException as error:
                with self._condition:
                    self._asks = [ask for ask in self._asks if ask not in asks]
                self._fail(asks, error)
                continue
            by_loop: dict[asyncio.AbstractEventLoop, list[Ask]] = {}
            with self._condition:
                if self._closed is not None:
                    worker._discard(given)
                    return
                for (ask, _), one in zip(wanted, given, strict=False):
                    if not ask.given:
                        by_loop.setdefault(ask.loop, []).append(ask)
                    ask.given.append(one)
                self._asks = [ask for ask in self._asks if not ask.given]
            for loop, some in by_loop.items():
                try:
                    loop.call_soon_threadsafe(self._deliver, some)
                except RuntimeError:
                    # The loop was closed.
                    worker._discard([one for ask in some for one in ask.given])

    def _deliver(self, asks: Sequence[Ask]) -> None:
        """Give tasks of the running loop what was reserved for them."""
        for ask in asks:
            if ask.future.done():
                self._worker._discard(ask.given)
            else:
                ask.future.set_result(ask.given)

    def _fail(self, asks: Sequence[Ask], error: BaseException) -> None:
        def fail(ask: Ask) -> None:
            if not ask.future.done():
                ask.future.set_exception(error)

        for ask in asks:
            with contextlib.suppress(RuntimeError):
                ask.loop.call_soon_threadsafe(fail, ask)


class Renewer:
    """A thread that renews reservations, and gives back those that are not used."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        # Reentrant, since an iterator that is collected meanwhile gives reservations back.
        self._condition = threading.Condition()
        self._jobs: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = self._is_busy = False
        # Whether it looks after reservations that were taken ahead.
        self._is_watching = False

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._condition:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._run, name="echoic-rl-renew", daemon=True
                )
                self._thread.start()

    def watch(self) -> None:
        """Look after reservations that were taken ahead."""
        if not self._is_watching:
            with self._condition:
                self._is_watching = True
                self._condition.notify()

    def do(self, job: Callable[[], object]) -> None:
        """Run a function in the thread; its errors are dropped."""
        self.start()
        with self._condition:
            if not self._is_closed:
                self._jobs.append(job)
                self._condition.notify()
                return
        with contextlib.suppress(EchoicError):
            job()

    def drain(self, timeout: float | None) -> None:
        """Wait until the functions so far have run.

        Raises:
            WaitTimeoutError: If they have not in time.
        """
        if self._jobs or self._is_busy:
            done = threading.Event()
            self.do(done.set)
            if not done.wait(timeout):
                raise WaitTimeoutError("timed out: calls for items of others are being sent")

    def close(self) -> None:
        """End the thread when its jobs are done, and wait for it."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END)

    def _run(self) -> None:
        worker, renewed = self._worker, time.monotonic()
        while True:
            with self._condition:
                if not self._jobs and not self._is_closed:
                    self._condition.wait(_IDLE if self._is_watching else worker._renew_every)
                jobs = list(self._jobs)
                self._is_busy = bool(jobs)
                self._jobs.clear()
                if self._is_closed and not jobs:
                    return
            for job in jobs:
                with contextlib.suppress(Exception):
                    job()
            self._is_busy = False
            if self._is_watching:
                # First, so that an iteration that begins meanwhile sets it again.
                self._is_watching = False
                if worker._give_back_idle():
                    self._is_watching = True
            now = time.monotonic()
            if now - renewed >= worker._renew_every:
                renewed = now
                with contextlib.suppress(Exception):
                    worker._renew()


class SendQueue:
    """What tasks of one loop can't send yet, in its order: a call that finds no room would wait."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._calls: deque[tuple[Call, asyncio.Future[None] | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._wait = _FIRST_LOOK
        # Set when nothing is left.
        self._empty: asyncio.Future[None] | None = None

    def post(self, calls: Sequence[Call], *, is_awaited: bool) -> asyncio.Future[None] | None:
        """Send calls; return a future if they have to wait for room."""
        calls = deque(calls)
        worker = self._worker
        if not self._calls:
            while calls and worker._has_room(calls[0][2]):
                worker._send(calls.popleft())
        if not calls:
            return None
        future: asyncio.Future[None] | None = self._loop.create_future() if is_awaited else None
        last = calls.pop()
        self._calls.extend((call, None) for call in calls)
        self._calls.append((last, future))
        if self._timer is None:
            self._timer = self._loop.call_later(self._wait, self._look)
        return future

    def _look(self) -> None:
        """Send what there is room for."""
        self._timer = None
        worker, sent = self._worker, False
        end = self._loop.time() + _TURN
        # Large groups take a while to copy.
        while self._calls and self._loop.time() < end and worker._has_room(self._calls[0][0][2]):
            call, future = self._calls.popleft()
            sent = True
            try:
                worker._send(call)
            except Exception as error:
                if future is not None and not future.done():
                    future.set_exception(error)
                else:
                    worker._failed(call[0], error)
            else:
                if future is not None and not future.done():
                    future.set_result(None)
        self._wait = _FIRST_LOOK if sent else min(2 * self._wait, _LAST_LOOK)
        if self._calls:
            self._timer = self._loop.call_later(self._wait, self._look)
        elif self._empty is not None:
            self._empty.set_result(None)
            self._empty = None

    async def empty(self) -> None:
        """Wait until everything was sent."""
        if self._calls:
            self._empty = self._empty or self._loop.create_future()
            await asyncio.shield(self._empty)
