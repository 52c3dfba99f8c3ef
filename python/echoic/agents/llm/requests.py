"""Requests, tokens and results of rollouts, and how callers wait for them.

A :class:`RolloutEngine` belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import math
import numbers
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from echoic.agents import _checks
from echoic.errors import ArgumentError, ClosedError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from typing_extensions import Self

__all__ = ["RolloutEngine", "RolloutRequest", "RolloutResult", "RolloutToken", "SamplingParams"]


@dataclass(frozen=True)
class SamplingParams:
    """How a rollout draws its tokens, and when it ends.

    Attributes:
        max_new_tokens: Most tokens that are drawn.
        temperature: Logits are divided by it; 0 takes the likeliest token.
        top_p: Only the likeliest tokens that together have this probability are drawn.
        stop: The rollout ends after one of these tokens, which is part of it.
        seed: Seed of its random numbers; None takes one from the engine's.
        forced: Tokens that are taken first instead of drawn, to get the log-probabilities of a
            given answer. ``stop`` does not apply to them.
    """

    max_new_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[int, ...] = ()
    seed: int | None = None
    forced: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _checks.whole(self, "max_new_tokens")
        _checks.number(self, "temperature", least=0)
        _checks.number(self, "top_p", above=0, most=1)
        object.__setattr__(self, "stop", tuple(int(token) for token in self.stop))
        object.__setattr__(self, "forced", tuple(int(token) for token in self.forced))
        if len(self.forced) > self.max_new_tokens:
            raise ArgumentError(
                f"{len(self.forced)} tokens are forced, and max_new_tokens is {self.max_new_tokens}"
            )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0


@dataclass
class RolloutRequest:
    """A request for a rollout: its name, and the arguments of ``submit_rollout``.

    ``timestamp`` is when it was submitted, in seconds of ``time.monotonic``.
    """

    request_id: str
    state_sequence: Any
    priority: float = 1.0
    timestamp: float = 0.0
    callback: Callable[[RolloutResult], None] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    timeout: float = 30.0
    return_kv: bool = False
    embeddings: Mapping[int, Any] = field(default_factory=dict)


class RolloutToken(NamedTuple):
    """A token, the logarithm of its probability, and the version of the weights that drew it."""

    token: int
    logprob: float
    version: int


@dataclass
class RolloutResult:
    """The result of a rollout.

    Attributes:
        success: Whether it ended by itself.
        kv_cache: With ``return_kv`` a copy of keys and values, [2 * layers, tokens, kv_heads,
            head_dim], of all tokens but the last drawn one.
        execution_time: Seconds from admission to the end.
        tokens: Ids of those drawn; for a policy over vectors one, the action.
        logprobs: Of each token under ``softmax(logits / temperature)``, before ``top_p``.
        versions: For each token the version of the weights that drew it.
        finish_reason: One of stop, length, cancelled, timeout, error and shutdown.
        reused_tokens: Number of ``prompt_tokens`` in the cache when it was first admitted; None if
            a server does not report it.
        queue_time: Seconds from submission to admission.
        text: Text of a server's answer; local engines return tokens only.
    """

    request_id: str
    success: bool
    kv_cache: Any = None
    execution_time: float = 0.0
    tokens_generated: int = 0
    error: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str = ""
    prompt_tokens: int = 0
    reused_tokens: int | None = 0
    queue_time: float = 0.0
    text: str = ""

    def add(self, drawn: Sequence[RolloutToken]) -> None:
        """Set the tokens that were drawn."""
        self.tokens_generated = len(drawn)
        self.tokens = [token.token for token in drawn]
        self.logprobs = [token.logprob for token in drawn]
        self.versions = [token.version for token in drawn]


def check_reward(metadata: Mapping[str, Any]) -> None:
    """Raise an ``ArgumentError`` if ``reward`` is not a finite number, which a tracker needs."""
    reward = metadata.get("reward", 0.0)
    if not isinstance(reward, numbers.Real) or not math.isfinite(reward):
        raise ArgumentError(f"a reward in metadata must be a finite number, not {reward!r}")


class Handle:
    """One rollout that can be awaited, until its result has been taken or dropped."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.tokens: list[RolloutToken] = []
        self.result: RolloutResult | None = None
        self.settled = asyncio.Event()
        self.changed = asyncio.Event()

    def notify(self) -> None:
        """Wake the readers of the tokens."""
        self.changed.set()
        self.changed = asyncio.Event()


AnyHandle = TypeVar("AnyHandle", bound=Handle)


class RolloutEngine(ABC, Generic[AnyHandle]):
    """Keeps rollouts until their results are taken, and bounds how many wait.

    At most ``queue_size`` rollouts wait to be admitted; further submissions wait. A result is kept
    until it is taken, or ``max_results`` later ones have ended.
    """

    def __init__(self, queue_size: int, max_results: int = 10_000) -> None:
        self._handles: dict[str, AnyHandle] = {}
        self._queue_size = queue_size
        self._max_results = max_results
        self._ended: deque[str] = deque()
        # Rollouts that are not admitted, and places for more.
        self._waiting = 0
        self._room = asyncio.Semaphore(queue_size)
        self._closed = False

    @abstractmethod
    async def submit_rollout(self, *request: Any, **options: Any) -> str:
        """Submit a rollout; return its name as soon as there is room for it to wait."""

    @abstractmethod
    def cancel(self, request_id: str) -> bool:
        """Cancel a rollout; return whether it had not ended. False if there is none."""

    @abstractmethod
    async def aclose(self) -> None:
        """End all rollouts and release everything."""

    async def get_result(self, request_id: str, timeout: float | None = None) -> RolloutResult:
        """Wait for a rollout's result and take it. A failed rollout has a result that says why.

        The rollout goes on if ``timeout`` seconds of waiting here have passed.

        Raises:
            WaitTimeoutError: If it has not ended in time.
            ArgumentError: If there is no such rollout, or its result was taken or dropped.
        """
        handle = self._handle(request_id)
        try:
            await asyncio.wait_for(handle.settled.wait(), timeout)
        except asyncio.TimeoutError:
            raise WaitTimeoutError(
                f"rollout {request_id} has not ended within {timeout:g} s; it goes on"
            ) from None
        self._handles.pop(request_id, None)
        assert handle.result is not None
        return handle.result

    async def stream(self, request_id: str) -> AsyncIterator[RolloutToken]:
        """Yield the tokens of a rollout as they are drawn, from the first one.

        Several readers may stream the same rollout, and stop at any time. The result can still be
        taken.
        """
        handle = self._handle(request_id)
        sent = 0
        while True:
            over = handle.result is not None
            for token in handle.tokens[sent:]:
                sent += 1
                yield token
            if over:
                return
            # Tokens that came while a reader was busy are yielded first.
            if sent == len(handle.tokens) and handle.result is None:
                await handle.changed.wait()

    async def generate(
        self,
        state_sequence: Any,
        sampling: SamplingParams | None = None,
        priority: float = 1.0,
        **options: Any,
    ) -> RolloutResult:
        """Submit a rollout and wait for its result. Cancelling this cancels the rollout.

        ``options`` are further arguments of ``submit_rollout``.
        """
        name = await self.submit_rollout(state_sequence, priority, sampling=sampling, **options)
        try:
            return await self.get_result(name)
        except asyncio.CancelledError:
            self.cancel(name)
            self._handles.pop(name, None)
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
        """Hand out the result of a rollout that has ended."""
        handle.result = result
        handle.settled.set()
        handle.notify()
        self._ended.append(handle.request_id)
        while len(self._ended) > self._max_results:
            self._handles.pop(self._ended.popleft(), None)

    async def _take_room(self, limit: float) -> None:
        """Wait until one more rollout may wait, in the order of arrival, and count it."""
        try:
            # Without waiting, nothing else comes between.
            free = not self._room.locked()
            await (self._room.acquire() if free else asyncio.wait_for(self._room.acquire(), limit))
        except asyncio.TimeoutError:
            raise WaitTimeoutError(
                f"{self._waiting} rollouts wait already, and after {limit:g} s there was no room "
                "for another one"
            ) from None
        if self._closed:
            self._room.release()
            raise ClosedError("the engine was shut down")
        self._waiting += 1

    def _make_room(self) -> None:
        """Let another submission in: a rollout does not wait any longer, or all are refused."""
        self._room.release()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine was shut down")
