"""Episodes: what a policy is, what it costs, and its record.

Tokens and money are a backend's own counts, never estimates. An environment is called in its own
daemon thread and not in shared threads: one that hangs takes no thread from other episodes, and
does not keep the program from ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import queue
import threading
import time
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from echoic.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

__all__ = ["Decision", "EnvironmentThread", "Episode", "Policy", "Usage", "all_of", "run_episode"]

T = TypeVar("T")

# Seconds that a policy has to stop after it was cancelled.
_PATIENCE = 1.0


@dataclass(frozen=True)
class Usage:
    """Tokens and costs of some calls of a model."""

    tokens_in: int = 0  # of the prompts, those from a cache included
    # None if a backend did not report it, which is not 0, and in a sum if one part is not known.
    tokens_cached: int | None = 0
    tokens_out: int = 0
    cost: float = 0.0  # US dollars
    requests: int = 0

    def __add__(self, other: Usage) -> Usage:
        pairs = zip(astuple(self), astuple(other), strict=True)
        sums: list[Any] = [None if None in pair else sum(pair) for pair in pairs]
        return Usage(*sums)


@dataclass(frozen=True)
class Decision:
    """A policy's action (a command or its index), the reason, and the usage of deciding."""

    action: str | int
    thought: str = ""
    usage: Usage = field(default_factory=Usage)


class Policy(Protocol):
    """Acts in one episode at a time.

    A policy may have an attribute ``spent``, its :class:`Usage` since ``begin``, also of decisions
    that failed or came too late: it then replaces the sum of the decisions' usage.
    """

    def begin(self, instructions: str, seed: int) -> None:
        """Start an episode. The seed is the only source of its randomness."""

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Decide on an action for an observation."""


@dataclass(frozen=True)
class Turn:
    """One step of an episode, for its record."""

    observation: str
    action: str
    thought: str
    reward: float


@dataclass
class Episode:
    """The record of an episode."""

    seed: int
    reward: float = 0.0  # the sum
    score: float = 0.0  # the environment's own, at the end
    success: bool = False  # the environment's own signal
    steps: int = 0
    seconds: float = 0.0  # on the clock, the environment's included
    usage: Usage = field(default_factory=Usage)
    #: ``"terminated"`` or ``"truncated"`` by the environment, ``"steps"`` or ``"timeout"`` by the
    #: limits of :func:`run_episode`, or ``"error"``.
    ended: str = "error"
    error: str | None = None
    turns: list[Turn] = field(default_factory=list)  # if they are kept


class EnvironmentThread:
    """A daemon thread that calls functions of one environment, which may block, in order."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed = False
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call a function in the thread; return or raise its result."""
        if self._closed:
            raise ClosedError("the thread of this environment is closed")
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._calls.put((answer, functools.partial(function, *args, **named)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="environment", daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """End the thread after the current call, without waiting for it."""
        self._closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            answer, function = call
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(function())
            except BaseException as error:  # raised by the caller, unless a future can't hold it
                can_hold = isinstance(error, Exception) and not isinstance(error, StopIteration)
                other = RuntimeError(f"{type(error).__name__}: {error}")
                answer.set_exception(error if can_hold else other)


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all results, in order. If one fails, the others are stopped first."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_episode(
    environment: Any,
    policy: Policy,
    seed: int,
    *,
    max_steps: int = 1000,
    timeout: float = 300.0,
    keep_turns: bool = False,
    thread: EnvironmentThread | None = None,
) -> Episode:
    """Run an episode until its end or a limit.

    An error of the environment or the policy is recorded, not raised: one bad episode must not end
    a benchmark. Cancelling is passed on. After a timeout, of seconds, the environment may still be
    in a step. Environment and ``thread``, which calls it, are closed by the caller.
    """
    caller = EnvironmentThread() if thread is None else thread
    episode, began = Episode(seed), time.monotonic()

    async def play() -> None:
        observation, info = await caller.call(environment.reset, seed=seed)
        policy.begin(environment.instructions, seed)
        episode.ended = "steps"
        for _ in range(max_steps):
            decision = await policy.act(observation, info)
            episode.usage += decision.usage
            shown, commands, action = observation["text"], info["commands"], decision.action
            stepped = await caller.call(environment.step, action)
            observation, reward, terminated, truncated, info = stepped
            episode.steps += 1
            episode.reward += float(reward)
            episode.score, episode.success = float(info["score"]), bool(info["success"])
            if keep_turns:
                if not isinstance(action, str):
                    action = commands[action] if 0 <= action < len(commands) else f"#{action}"
                episode.turns.append(Turn(shown, action, decision.thought, float(reward)))
            if terminated or truncated:
                episode.ended = "terminated" if terminated else "truncated"
                return

    playing = asyncio.create_task(play())
    try:
        done, _ = await asyncio.wait({playing}, timeout=timeout)
        # What comes after a timeout is not recorded.
        final = replace(episode, seconds=time.monotonic() - began, turns=episode.turns.copy())
    finally:
        if thread is None:
            caller.close()
        if not playing.done():
            # Its error is retrieved, so that it is not logged.
            playing.add_done_callback(lambda task: task.cancelled() or task.exception())
            playing.cancel()
            await asyncio.wait({playing}, timeout=_PATIENCE)
    # Before its `begin`, a policy still counts the episode before.
    spent = getattr(policy, "spent", None) if final.ended != "error" else None
    final.usage = spent if isinstance(spent, Usage) else final.usage
    if not done:
        final.ended, final.error = "timeout", f"took longer than {timeout:g} s"
    elif playing.cancelled():
        final.ended, final.error = "error", "CancelledError: the policy cancelled itself"
    elif error := playing.exception():
        final.ended, final.error = "error", f"{type(error).__name__}: {error}"
    return final
