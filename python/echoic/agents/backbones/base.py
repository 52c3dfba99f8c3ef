"""What a backbone is: a language model that answers, and says what that used.

One interface for a model on this machine and for one at a vendor's. They can't do the same things:
:class:`Capabilities` says which, and what a backbone can't do raises
:class:`~echoic.errors.BackboneError`; nothing is emulated in silence. :func:`with_plan`
gives a plan in words.

Invariant: the :class:`~echoic.agents.episodes.Usage` of an answer is what the backend counted. A
server that does not count is an error, since what it cost would be a guess.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echoic.agents.episodes import Usage
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

__all__ = [
    "Backbone",
    "Capabilities",
    "Completion",
    "Message",
    "Sampling",
    "Scores",
    "check_messages",
    "with_plan",
]

ROLES = ("system", "user", "assistant")
FINISHES = ("stop", "length", "filtered")


@dataclass(frozen=True)
class Message:
    """One message of a chat; ``role`` is ``"system"``, ``"user"`` or ``"assistant"``."""

    role: str
    text: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ArgumentError(f"a role is one of {', '.join(ROLES)}, not {self.role!r}")


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn, and what ends it; one that makes no sense can't be made.

    Attributes:
        max_tokens: The answer ends after so many.
        temperature: 0 takes the likeliest tokens.
        stop: The answer ends before any of these texts.
        seed: Of what is drawn, where ``capabilities.seed``; elsewhere it has no effect.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    stop: Sequence[str] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ArgumentError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if not 0 <= self.temperature < math.inf:
            raise ArgumentError(f"temperature is finite and not below 0, not {self.temperature}")
        if isinstance(self.stop, str) or not all(isinstance(one, str) and one for one in self.stop):
            raise ArgumentError("stop is a sequence of texts, none of them empty")


@dataclass(frozen=True)
class Completion:
    """An answer.

    Attributes:
        text: Without the stop text that ended it.
        tokens: Their ids, where the backend tells them.
        log_probs: Of each token under the distribution that it was drawn from, where the backend
            tells them.
        usage: What the backend counted.
        finish: ``"stop"``, ``"length"``, or ``"filtered"`` if a vendor withheld the answer.
    """

    text: str
    tokens: tuple[int, ...] | None = None
    log_probs: tuple[float, ...] | None = None
    usage: Usage = dataclasses.field(default_factory=Usage)
    finish: str = "stop"


@dataclass(frozen=True)
class Scores:
    """What a model makes of answers that it is given.

    Attributes:
        log_probs: The logarithm of the probability of each answer as a whole, its end included.
        tokens: How many tokens each has, its end included.
        usage: What the backend counted. Answers are read, not said: they are in ``tokens_in``.
    """

    log_probs: tuple[float, ...]
    tokens: tuple[int, ...]
    usage: Usage


@dataclass(frozen=True)
class Capabilities:
    """What a backbone can do beside chatting.

    Attributes:
        complete: Go on with a bare text.
        log_probs: Tell log-probabilities of what it said.
        tokens: Tell the ids of what it said.
        seed: Say the same again for the same seed.
        kv: Keys and values of prefixes are ours: shared between requests, and emptied when weights
            change. Elsewhere there is at most a count of cached tokens.
        gradients: Its weights are here and can be trained.
        score: Tell how likely given answers are.
    """

    complete: bool = False
    log_probs: bool = False
    tokens: bool = False
    seed: bool = False
    kv: bool = False
    gradients: bool = False
    score: bool = False


class Backbone(ABC):
    """A language model, used by many tasks of one event loop at a time.

    Those who use it call :meth:`chat` and :meth:`complete`, which check what they are given. One
    kind of model is a subclass with :meth:`answer`, and with :meth:`go_on` if it takes bare texts.

    :meth:`aclose` comes before the loop's end; in another loop it can be used again, where it is at
    a vendor's.
    """

    #: For reports.
    name: str
    capabilities: Capabilities

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> Completion:
        """Answer a chat.

        Args:
            messages: At most one of the system, which comes first; then those of the user and the
                assistant. The last one is the user's.
            max_tokens: The answer ends after so many.
            temperature: 0 takes the likeliest tokens.
            stop: The answer ends before any of these texts.
            seed: Of what is drawn, where ``capabilities.seed``; elsewhere it has no effect.

        Raises:
            ArgumentError: No backend would take that; nothing was sent.
            BackboneError: There was no answer, for the reason it names.
        """
        check_messages(messages)
        return await self.answer(messages, Sampling(max_tokens, temperature, stop, seed))

    async def complete(
        self,
        prompt: str,
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> Completion:
        """Go on with a text; like :meth:`chat` otherwise."""
        self.needs("complete")
        return await self.go_on(prompt, Sampling(max_tokens, temperature, stop, seed))

    @abstractmethod
    async def answer(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """What :meth:`chat` gives, of messages that are in order."""

    async def go_on(self, prompt: str, sampling: Sampling) -> Completion:
        """What :meth:`complete` gives; of a backend with ``capabilities.complete``."""
        raise NotImplementedError

    async def score(
        self, messages: Sequence[Message], answers: Sequence[str], *, begin: str = ""
    ) -> Scores:
        """Tell how likely each of some answers to a chat is, its end included.

        Args:
            messages: As those of :meth:`chat`.
            answers: What might be said next.
            begin: What the assistant has said already.

        Raises:
            BackboneError: The backend can't, or failed.
        """
        del messages, answers, begin
        self.needs("score")
        raise NotImplementedError

    def needs(self, capability: str) -> None:
        """Raise a BackboneError if it lacks a capability, by the field's name."""
        if not getattr(self.capabilities, capability):
            raise BackboneError(f"{self.name} has no {capability}: this backend can't do that")

    async def aclose(self) -> None:  # noqa: B027 - some hold nothing
        """Give back connections and memory. What is under way fails."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse a chat that no backend would take, before anything is sent."""
    if not messages:
        raise ArgumentError("a chat has at least one message")
    if any(message.role == "system" for message in messages[1:]):
        raise ArgumentError("a message of the system comes first, and there is one at most")
    if messages[-1].role != "user":
        raise ArgumentError(f"the last message is the user's, not the {messages[-1].role}'s")


def with_plan(messages: Sequence[Message], plan: str) -> list[Message]:
    r"""Say a plan in words, for a backbone that takes no vectors.

    It stands at the end of the last message, behind all that requests have in common: a plan that
    changes must not make a server forget what it has computed.

    >>> with_plan([Message("user", "A door.")], "find the key")[-1].text
    'A door.\n\nPlan: find the key'
    """
    if not messages:
        raise ArgumentError("a chat has at least one message")
    if not plan.strip():
        return list(messages)
    last = messages[-1]
    return [*messages[:-1], Message(last.role, f"{last.text}\n\nPlan: {plan.strip()}")]


def earliest(text: str, stop: Sequence[str]) -> int | None:
    """Where the first of these texts begins, if one of them is there."""
    places = [place for one in stop if (place := text.find(one)) >= 0]
    return min(places, default=None)


def whole(number: Any, what: str) -> int:
    """A count that a server told.

    Raises:
        BackboneError: It is none.
    """
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise BackboneError(f"the server told {number!r} as {what}, which is no count")
    # JSON has numbers that are infinite here.
    if not 0 <= number < math.inf or number != int(number):
        raise BackboneError(f"the server told {number!r} as {what}, which is no count")
    return int(number)
