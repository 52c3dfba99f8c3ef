"""Episodes: what a policy is, what it costs, and its record.

Everything that acts, a prompted model or a trained network, is a :class:`Policy`; everything that
is measured is an :class:`Episode`, from :func:`run_episode`. Tokens and money are a backend's own
counts, never estimates.

An environment is called in its own daemon thread, an :class:`EnvironmentThread`, and not in shared
threads: one that hangs takes no thread from other episodes, and does not keep the program from
ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import queue
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from echoic.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "Decision",
    "EnvironmentThread",
    "Episode",
    "Policy",
    "Turn",
    "Usage",
    "run_episode",
    "used_by",
]

T = TypeVar("T")

# Seconds that a policy has to stop after it was cancelled.
_PATIENCE = 1.0


@dataclass(frozen=True)
class Usage:
    """Tokens and costs of some calls of a model.

    Attributes:
        tokens_in: Tokens of the prompts, those from a cache included.
        tokens_cached: Number of these from a cache; None if a backend did not report it, which is
            not 0, and in a sum if one part is not known.
        tokens_out: Tokens of the answers.
        cost: US dollars.
        requests: Number of calls.
    """

    tokens_in: int = 0
    tokens_cached: int | None = 0
    tokens_out: int = 0
    cost: float = 0.0
    requests: int = 0

    def __add__(self, other: Usage) -> Usage:
        known = self.tokens_cached is not None and other.tokens_cached is not None
        return Usage(
            self.tokens_in + other.tokens_in,
            (self.tokens_cached or 0) + (other.tokens_cached or 0) if known else None,
            self.tokens_out + other.tokens_out,
            self.cost + other.cost,
            self.requests + other.requests,
        )


def used_by(error: BaseException) -> Usage:
    """Return the usage of a call that failed with this error, as far as the backend reported it."""
    usage = getattr(error, "usage", None)
    return usage if isinstance(usage, Usage) else Usage()


@dataclass(frozen=True)
class Decision:
    """A policy's action (a command or its index), the reason, and the usage of deciding."""

    action: str | int
    thought: str = ""
    usage: Usage = field(default_factory=Usage)


class Policy(Protocol):
    """Acts in one episode at a time.

    A policy may have an attribute ``spent``, a :class:`Usage`: all since ``begin``, counted as each
    answer comes. It then replaces the sum of the decisions' usage in an episode, and includes
    decisions that failed or came too late.
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
    """The record of an episode.

    Attributes:
        reward: Sum of the rewards.
        score: The environment's own score at the end; ``success`` is its own signal.
        seconds: Wall-clock time, the environment's included.
        ended: ``"terminated"``, ``"truncated"`` by the environment, ``"steps"`` or ``"timeout"``
            by the limits of :func:`run_episode`, or ``"error"``.
        turns: The steps, if they are kept.
    """

    seed: int
    reward: float = 0.0
    score: float = 0.0
    success: bool = False
    steps: int = 0
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    ended: str = "error"
    error: str | None = None
    turns: list[Turn] = field(default_factory=list)


class EnvironmentThread:
    """A daemon thread that calls functions of one environment, which may block, in order.

    After a timeout, close the thread and make another: a running call can't be stopped, and later
    ones would wait for it.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed = False
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call a function in the thread; return or raise its result.

        Raises:
            ClosedError: If the thread is closed.
        """
        if self._closed:
            raise ClosedError("the thread of this environment is closed")
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        context = contextvars.copy_context()
        self._calls.put((answer, functools.partial(context.run, function, *args, **named)))
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
            except BaseException as error:  # raised by the caller
                answer.set_exception(_for_future(error))


def _for_future(error: BaseException) -> BaseException:
    """Return an error that a future can hold, and that ends no loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


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
    a benchmark. Cancelling is passed on. After a timeout the environment may still be in a step;
    the caller closes it.

    Args:
        environment: The environment.
        policy: The policy.
        seed: Seed of both.
        max_steps: Most steps of the episode.
        timeout: Most seconds of the episode.
        keep_turns: Whether to record each step.
        thread: Thread that calls the environment, closed by the caller; by default one for this
            episode.
    """
    caller = EnvironmentThread() if thread is None else thread
    episode, began, begun, over = Episode(seed), time.monotonic(), False, False

    async def play() -> None:
        nonlocal begun
        observation, info = await caller.call(environment.reset, seed=seed)
        policy.begin(environment.instructions, seed)
        begun = True
        episode.ended = "steps"
        for _ in range(max_steps):
            decision = await policy.act(observation, info)
            if over:
                # Later steps are not recorded.
                return
            episode.usage += decision.usage
            shown, commands, action = observation["text"], info["commands"], decision.action
            observation, reward, terminated, truncated, info = await caller.call(
                environment.step, action
            )
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
        seconds = time.monotonic() - began
    finally:
        over = True
        if thread is None:
            caller.close()
        if not playing.done():
            # Its error is retrieved, so that it is not logged.
            playing.add_done_callback(lambda task: task.cancelled() or task.exception())
            playing.cancel()
            await asyncio.wait({playing}, timeout=_PATIENCE)
    # Before its `begin`, a policy still counts the episode before.
    spent = getattr(policy, "spent", None) if begun else None
    usage = spent if isinstance(spent, Usage) else episode.usage
    final = replace(episode, seconds=seconds, usage=usage)
    if not done:
        final.ended, final.error = "timeout", f"took longer than {timeout:g} s"
    elif playing.cancelled():
        final.ended, final.error = "error", "CancelledError: the policy cancelled itself"
    elif error := playing.exception():
        final.ended, final.error = "error", f"{type(error).__name__}: {error}"
    return final
