"""One episode: what a policy is, what it costs, and what is written down of it.

Everything that acts, a prompted model or a trained network, is a :class:`Policy`; everything that
is measured is an :class:`Episode`, from one function, :func:`run_episode`. Tokens and money are
what a backend told, never an estimate.

An environment is called in a daemon thread of its own, an :class:`EnvironmentThread`, and not in
the threads that a loop shares: one that hangs takes no thread from other episodes, and does not
keep the program from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
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

# Seconds that a policy is given to stop in when it is told to.
_PATIENCE = 1.0


@dataclass(frozen=True)
class Usage:
    """What some calls of a model used.

    Attributes:
        tokens_in: Tokens of the prompts, those from a cache included.
        tokens_cached: How many of them came from a cache; None where a backend did not tell, which
            is not 0, and of a sum if one part is not known.
        tokens_out: Tokens that the model said.
        cost: In US dollars.
        requests: How many calls these were.
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
    """What a call used that failed with this error, where the backend told."""
    usage = getattr(error, "usage", None)
    return usage if isinstance(usage, Usage) else Usage()


@dataclass(frozen=True)
class Decision:
    """What a policy wants done: a command or the index of one, why, and what deciding used."""

    action: str | int
    thought: str = ""
    usage: Usage = field(default_factory=Usage)


class Policy(Protocol):
    """Something that acts in one episode at a time.

    A policy may have an attribute ``spent``, a :class:`Usage`: all that it used since ``begin``,
    counted as each answer comes. It is then what an episode used, instead of the sum of the
    decisions' usage, and what a decision used that failed or came too late is not lost.
    """

    def begin(self, instructions: str, seed: int) -> None:
        """An episode begins. The seed is the only source of its randomness."""

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Decide on what an environment shows."""


@dataclass(frozen=True)
class Turn:
    """One step of an episode, for whoever reads it later."""

    observation: str
    action: str
    thought: str
    reward: float


@dataclass
class Episode:
    """What is written down of an episode.

    Attributes:
        seed: Of the environment and of the policy.
        reward: What it earned in all.
        score: The environment's own score at the end.
        success: The environment's own signal.
        steps: How many.
        seconds: On the wall clock, the environment's time included.
        usage: Tokens and money.
        ended: ``"terminated"``, ``"truncated"`` by the environment, ``"steps"`` or ``"timeout"``
            by the limits here, or ``"error"``.
        error: What went wrong, if something did.
        turns: The steps themselves, where they are kept.
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
    """A daemon thread that calls what may block, one call after another, for one environment.

    Who stops waiting for a call, by a time-out, closes the thread and makes another: a call that
    has begun can't be stopped, and later ones would wait behind it.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call a function in the thread; what it returns or raises.

        Raises:
            ClosedError: The thread was closed before.
        """
        if self._closed:
            raise ClosedError("the thread of this environment is closed")
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        answer: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            if answer.cancelled():
                return
            try:
                came = context.run(function, *args, **named)
            except BaseException as error:  # it is told to whoever asked
                tell(answer.set_exception, _tellable(error))
            else:
                tell(answer.set_result, came)

        def tell(put: Callable[[Any], None], what: Any) -> None:
            # The loop may be gone.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(told, put, what)

        def told(put: Callable[[Any], None], what: Any) -> None:
            # Nobody may be waiting any more.
            if not answer.done():
                put(what)

        self._calls.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="environment", daemon=True)
            self._thread.start()
        return await answer

    def close(self) -> None:
        """End the thread, after a call that it may be in; does not wait for it."""
        self._closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            work()


def _tellable(error: BaseException) -> BaseException:
    """What a future may hold, and what ends no loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    told = RuntimeError(f"{type(error).__name__}: {error}")
    told.__cause__ = error
    return told


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
    """Let a policy act until the episode ends or a limit is met.

    An error of the environment or the policy is written down, not raised: one bad episode must not
    end a benchmark. Cancelling is passed on. After a time-out the environment may still be within a
    step; it is the caller's to close.

    Args:
        environment: What is played.
        policy: What acts.
        seed: Of both.
        max_steps: After so many the episode ends.
        timeout: Seconds after which it ends.
        keep_turns: Whether to write down each step.
        thread: What calls the environment, and stays the caller's to close; by default one that is
            made for this episode.
    """
    caller = EnvironmentThread() if thread is None else thread
    game = _Game(environment, policy, Episode(seed), caller)
    began = time.monotonic()
    play = asyncio.create_task(game.play(max_steps, keep_turns))
    try:
        done, _ = await asyncio.wait({play}, timeout=timeout)
        seconds = time.monotonic() - began
    finally:
        # What comes after this is not written down any more.
        game.over = True
        if thread is None:
            caller.close()
        if not play.done():
            play.add_done_callback(_forget)
            play.cancel()
            await asyncio.wait({play}, timeout=_PATIENCE)
    episode = replace(game.episode, seconds=seconds, usage=game.usage())
    if not done:
        episode.ended, episode.error = "timeout", f"took longer than {timeout:g} s"
    elif play.cancelled():
        episode.ended, episode.error = "error", "CancelledError: the policy cancelled itself"
    elif error := play.exception():
        episode.ended, episode.error = "error", f"{type(error).__name__}: {error}"
    return episode


def _forget(play: asyncio.Task[None]) -> None:
    """Nobody asks how an episode went on that took too long."""
    if not play.cancelled():
        play.exception()


class _Game:
    """An episode while it is played."""

    def __init__(
        self, environment: Any, policy: Policy, episode: Episode, thread: EnvironmentThread
    ) -> None:
        self.episode = episode
        self.over = False
        self._environment = environment
        self._policy = policy
        self._thread = thread
        self._begun = False

    def usage(self) -> Usage:
        """What was used so far, by the policy's own count if it has one."""
        # Before its `begin`, a policy still tells of the episode before.
        spent = getattr(self._policy, "spent", None) if self._begun else None
        return spent if isinstance(spent, Usage) else self.episode.usage

    async def play(self, max_steps: int, keep_turns: bool) -> None:
        environment, policy, episode = self._environment, self._policy, self.episode
        observation, info = await self._thread.call(environment.reset, seed=episode.seed)
        policy.begin(environment.instructions, episode.seed)
        self._begun = True
        episode.ended = "steps"
        for _ in range(max_steps):
            decision = await policy.act(observation, info)
            if self.over:
                return
            episode.usage += decision.usage
            shown, commands = observation["text"], info["commands"]
            observation, reward, terminated, truncated, info = await self._thread.call(
                environment.step, decision.action
            )
            episode.steps += 1
            episode.reward += float(reward)
            episode.score, episode.success = float(info["score"]), bool(info["success"])
            if keep_turns:
                said = decision.action
                if not isinstance(said, str):
                    said = commands[said] if 0 <= said < len(commands) else f"#{said}"
                episode.turns.append(Turn(shown, said, decision.thought, float(reward)))
            if terminated or truncated:
                episode.ended = "terminated" if terminated else "truncated"
                return
