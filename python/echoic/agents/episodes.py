"""One episode: what a policy is, what it costs, and what is written down of it.

Everything that acts, a prompted model or a trained network, is a :class:`Policy`; everything that
is measured is an :class:`Episode`, from one function, :func:`run_episode`. Tokens and money are
what a backend told, never an estimate.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Decision", "Episode", "Policy", "Turn", "Usage", "run_episode"]


@dataclass(frozen=True)
class Usage:
    """What some calls of a model used.

    Attributes:
        tokens_in: Tokens of the prompts, those from a cache included.
        tokens_cached: How many of them came from a cache.
        tokens_out: Tokens that the model said.
        cost: In US dollars.
        requests: How many calls these were.
    """

    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    requests: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Usage)))


@dataclass(frozen=True)
class Decision:
    """What a policy wants done: a command or the index of one, why, and what deciding used."""

    action: str | int
    thought: str = ""
    usage: Usage = field(default_factory=Usage)


class Policy(Protocol):
    """Something that acts in one episode at a time."""

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


async def run_episode(  # noqa: PLR0913 - all but the first three have defaults
    environment: Any,
    policy: Policy,
    seed: int,
    *,
    max_steps: int = 1000,
    timeout: float = 300.0,
    keep_turns: bool = False,
) -> Episode:
    """Let a policy act until the episode ends or a limit is met.

    An error of the environment or the policy is written down, not raised: one bad episode must not
    end a benchmark. Cancelling is passed on. After a time-out the environment may still be within a
    step; it is the caller's to close.
    """
    episode = Episode(seed)
    began = time.monotonic()
    play = asyncio.create_task(_play(environment, policy, episode, max_steps, keep_turns))
    try:
        done, _ = await asyncio.wait({play}, timeout=timeout)
    finally:
        play.cancel()
    if not done:
        episode.ended, episode.error = "timeout", f"took longer than {timeout:g} s"
    elif error := play.exception():
        episode.ended, episode.error = "error", f"{type(error).__name__}: {error}"
    episode.seconds = time.monotonic() - began
    return episode


async def _play(
    environment: Any, policy: Policy, episode: Episode, max_steps: int, keep_turns: bool
) -> None:
    observation, info = await asyncio.to_thread(environment.reset, seed=episode.seed)
    policy.begin(environment.instructions, episode.seed)
    episode.ended = "steps"
    for _ in range(max_steps):
        decision = await policy.act(observation, info)
        episode.usage += decision.usage
        shown, commands = observation["text"], info["commands"]
        observation, reward, terminated, truncated, info = await asyncio.to_thread(
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
