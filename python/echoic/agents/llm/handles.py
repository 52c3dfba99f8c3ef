"""The caller's side of rollouts: stream, await and bound them, whatever runs them.

All of it belongs to one event loop. A handle exists from submission until its result has been
taken, or dropped as the oldest of more than ``max_results``.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from echoic.errors import ArgumentError, ClosedError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from typing_extensions import Self

    from echoic.agents.llm.requests import (
        RolloutResult,
        RolloutToken,
        SamplingParams,
    )

__all__ = ["Handle", "RolloutEngine"]


class Handle:
    """One rollout as its caller sees it."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.result: asyncio.Future[RolloutResult] = asyncio.get_running_loop().create_future()
        self.tokens: list[RolloutToken] = []
        self._changed: asyncio.Event | None = None

    def notify(self) -> None:
        """Wake the readers of the tokens."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def change(self) -> None:
        """Wait for tokens or the result."""
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()


AnyHandle = TypeVar("AnyHandle", bound=Handle)


class RolloutEngine(ABC, Generic[AnyHandle]):
    """What engines for local models and for servers have in common.

    Args:
        queue_size: Most rollouts that wait to be admitted; further submissions wait.
        max_results: A result is kept until it is taken, or this many later ones have ended.
    """

    def __init__(self, queue_size: int, max_results: int) -> None:
        self._handles: dict[str, AnyHandle] = {}
        self._queue_size = queue_size
        self._max_results = max_results
        self._ended: deque[str] = deque()
        # Rollouts that are not admitted, and submissions that wait for room.
        self._waiting = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @abstractmethod
    async def submit_rollout(
        self,
        state_sequence: Any,
        priority: float = 1.0,
        metadata: Mapping[str, Any] | None = None,
        *,
        sampling: SamplingParams | None = None,
        timeout: float | None = None,
    ) -> str:
        """Submit a rollout; return its name as soon as there is room for it to wait."""

    @abstractmethod
    def cancel(self, request_id: str) -> bool:
        """Cancel a rollout; return whether it had not ended. False if there is none."""

    @abstractmethod
    async def aclose(self) -> None:
        """End all rollouts and release everything."""

    async def get_result(self, request_id: str, timeout: float | None = None) -> RolloutResult:
        """Wait for a rollout's result and take it. A failed rollout has a result that says why.

        Args:
            request_id: Name returned by ``submit_rollout``.
            timeout: Seconds to wait here; the rollout goes on after them. None waits for its end.

        Raises:
            WaitTimeoutError: If it has not ended in time.
            ArgumentError: If there is no such rollout, or its result was taken or dropped.
        """
        handle = self._handle(request_id)
        done, _ = await asyncio.wait({handle.result}, timeout=timeout)
        if not done:
            raise WaitTimeoutError(
                f"rollout {request_id} has not ended within {timeout:g} s; it goes on"
            )
        self._handles.pop(request_id, None)
        return handle.result.result()

    async def stream(self, request_id: str) -> AsyncIterator[RolloutToken]:
        """Yield the tokens of a rollout as they are drawn, from the first one.

        Several readers may stream the same rollout, and stop at any time. The result can still be
        taken. Ids are -1 where a server sends only text.
        """
        handle = self._handle(request_id)
        sent = 0
        while True:
            over = handle.result.done()
            while sent < len(handle.tokens):
                sent += 1
                yield handle.tokens[sent - 1]
            if over:
                return
            # Tokens that came while a reader was busy are yielded first.
            if sent == len(handle.tokens) and not handle.result.done():
                await handle.change()

    async def generate(
        self,
        state_sequence: Any,
        sampling: SamplingParams | None = None,
        priority: float = 1.0,
        *,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> RolloutResult:
        """Submit a rollout and wait for its result. Cancelling this cancels the rollout.

        ``options`` are further arguments of ``submit_rollout``.
        """
        name = await self.submit_rollout(
            state_sequence, priority, metadata, sampling=sampling, timeout=timeout, **options
        )
        handle = self._handles[name]
        try:
            return await self.get_result(name)
        except asyncio.CancelledError:
            self.cancel(name)
            # The result will not be taken.
            handle.result.add_done_callback(lambda _: self._handles.pop(name, None))
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _handle(self, request_id: str) -> AnyHandle:
        if request_id not in self._handles:
            raise ArgumentError(
                f"there is no rollout {request_id!r}, or its result was taken, or dropped as one "
                f"of more than {self._max_results}"
            )
        return self._handles[request_id]

    def _settle(self, handle: AnyHandle, result: RolloutResult) -> None:
        """Set the result of a rollout that has ended."""
        handle.result.set_result(result)
        self._ended.append(handle.request_id)
        while len(self._ended) > self._max_results:
            self._handles.pop(self._ended.popleft(), None)
        handle.notify()

    async def _take_room(self, limit: float) -> None:
        """Wait until one more rollout may wait, in the order of arrival, and count it."""
        if self._waiting < self._queue_size and not self._room:
            self._waiting += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(place)
        try:
            await asyncio.wait_for(place, limit)
        except (asyncio.TimeoutError, asyncio.CancelledError) as error:
            with contextlib.suppress(ValueError):
                self._room.remove(place)
            if place.done() and not place.cancelled():
                # It was given at the last moment, and goes to another submission.
                self._leave_room()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise WaitTimeoutError(
                f"{self._waiting} rollouts wait already, and after {limit:g} s there was no room "
                "for another one"
            ) from None
        if self._closed:
            self._waiting -= 1
            raise ClosedError("the engine was shut down")

    def _leave_room(self) -> None:
        """Count one rollout less that waits."""
        self._waiting -= 1
        self._make_room()

    def _make_room(self, *, for_all: bool = False) -> None:
        """Let submissions in for which there is room."""
        while self._room and (for_all or self._waiting < self._queue_size):
            place = self._room.popleft()
            if not place.done():
                # Counted here, so that no other submission comes first.
                self._waiting += 1
                place.set_result(None)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine was shut down")
