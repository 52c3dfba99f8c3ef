"""Tasks that a language model learns: prompts, and what to do with one.

A task's prompts have numbers. The same number is the same prompt on every machine, and no prompt of
:meth:`Task.held_out` is one of :meth:`Task.prompt`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from echoic.agents.environments.base import environment_names
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from echoic.agents.llm.conversation import Answer, Conversation

__all__ = ["Outcome", "PromptTask", "Task", "make_task", "register_task", "task_names"]


@dataclass(frozen=True)
class Outcome:
    """How a conversation went.

    Attributes:
        reward: Sum of the rewards of its turns.
        success: Whether the task was done.
        details: Numbers to report, such as turns and invalid answers.
    """

    reward: float
    success: bool
    details: Mapping[str, float] = field(default_factory=dict)


class Task(ABC):
    """Prompts, and how a conversation about one goes."""

    #: Its name in reports, with where its data comes from.
    name: str = "task"

    @abstractmethod
    def prompt(self, index: int) -> Any:
        """Return a prompt of training; indices have no end."""

    @abstractmethod
    def held_out(self, index: int) -> Any:
        """Return a prompt that is never one of training; indices have no end.

        Raises:
            ArgumentError: If the task has none.
        """

    @abstractmethod
    async def run(self, prompt: Any, talk: Conversation) -> Outcome:
        """Hold a conversation about a prompt, and add rewards to its turns.

        Raises:
            CollectorError: If the engine or the task failed; the conversation is not learned from.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what the task holds."""


class PromptTask(Task):
    """One answer to a prompt, scored by a function.

    Args:
        prompts: Of training: texts, chats (lists of ``{"role": ..., "content": ...}``), or lists of
            token ids.
        reward: Returns the reward of an :class:`Answer`, or an :class:`Outcome`; may be async. A
            reward of 1 and more is a success.
        held_out: Prompts of evaluation.
        name: Its name in reports.
    """

    def __init__(
        self,
        prompts: Sequence[Any],
        reward: Callable[[Answer], float | Outcome | Awaitable[float | Outcome]],
        *,
        held_out: Sequence[Any] = (),
        name: str = "prompts",
    ) -> None:
        self.name = name
        self._prompts, self._held_out = list(prompts), list(held_out)
        self._reward = reward
        if not self._prompts:
            raise ArgumentError("expected at least one prompt, got none")
        for place, prompt in enumerate((*self._prompts, *self._held_out)):
            if not prompt:
                raise ArgumentError(f"expected at least one token, got none in prompt {place}")
        if both := [one for one in self._held_out if one in self._prompts]:
            raise ArgumentError(f"a held-out prompt is one of training: {both[0]!r}")

    def prompt(self, index: int) -> Any:
        """Return a prompt; after the last one they begin again."""
        return self._prompts[index % len(self._prompts)]

    def held_out(self, index: int) -> Any:
        """Return a held-out prompt; after the last one they begin again."""
        if not self._held_out:
            raise ArgumentError(f"the task {self.name!r} has no held-out prompts")
        return self._held_out[index % len(self._held_out)]

    async def run(self, prompt: Any, talk: Conversation) -> Outcome:
        """Ask for an answer and score it."""
        begin(talk, prompt)
        answer = await talk.answer()
        found = self._reward(answer._replace(prompt=prompt))
        if inspect.isawaitable(found):
            found = await found
        if not isinstance(found, Outcome):
            found = Outcome(float(found), float(found) >= 1)
        talk.reward(found.reward)
        return found


def begin(talk: Conversation, prompt: Any) -> None:
    """Put a prompt into a conversation: a text as it is, a chat by the template, or ids."""
    if isinstance(prompt, str):
        if talk.tokenizer is None:
            raise ArgumentError(f"a prompt of text needs a tokenizer: {prompt!r}")
        talk.extend(talk.tokenizer.encode(prompt))
    elif all(isinstance(one, int) for one in prompt):
        talk.extend(prompt)
    else:
        for message in prompt:
            fields = {name: one for name, one in message.items() if name not in ("role", "content")}
            talk.say(message["role"], message["content"], **fields)


_OURS: dict[str, Callable[..., Task]] = {}
_USERS: dict[str, Callable[..., Task]] = {}


def register_task(name: str, make: Callable[..., Task]) -> None:
    """Register a task under a name; the latest of a name counts. ``make`` gets the settings."""
    if not name or not callable(make):
        raise ArgumentError("a task needs a name and a function that makes it")
    _USERS[name] = make


def task_names() -> tuple[str, ...]:
    """Return all names, in alphabetical order."""
    return tuple(sorted({*_OURS, *_USERS, *environment_names()}))


def make_task(name: str, **settings: Any) -> Task:
    """Make the task of a name, with these settings.

    Raises:
        ArgumentError: If the name or a setting is unknown; the message lists the known ones.
    """
    make = _USERS.get(name) or _OURS.get(name)
    if make is None:
        raise ArgumentError(f"there is no task {name!r}; there are {', '.join(task_names())}")
    return make(**settings)
