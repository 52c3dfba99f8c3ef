"""The interface of backbones: language models that answer, and report what that used.

It is the same for a local model and for one at a vendor's.

Invariant: the :class:`~echoic.agents.episodes.Usage` of an answer is what the backend counted. A
server that does not count is an error, since the cost would be a guess.
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

__all__ = ["Backbone", "Completion", "Message", "Sampling", "Scores", "check_messages"]

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Message:
    """One message of a chat; ``role`` is ``"system"``, ``"user"`` or ``"assistant"``."""

    role: str
    text: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ArgumentError(f"a role must be one of {', '.join(ROLES)}, not {self.role!r}")


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn, and what ends it.

    Attributes:
        max_tokens: Most tokens of the answer.
        temperature: 0 takes the likeliest tokens.
        stop: The answer ends before any of these texts.
        seed: Seed of the draw, where the backend takes one.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    stop: Sequence[str] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ArgumentError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if not 0 <= self.temperature < math.inf:
            raise ArgumentError(
                f"temperature must be finite and not below 0, not {self.temperature}"
            )
        if isinstance(self.stop, str) or not all(isinstance(one, str) and one for one in self.stop):
            raise ArgumentError("stop must be a sequence of texts, none of them empty")


@dataclass(frozen=True)
class Completion:
    """An answer.

    Attributes:
        text: The answer without the stop text that ended it.
        usage: The backend's counts.
        finish: ``"stop"``, ``"length"``, or ``"filtered"`` if a vendor withheld the answer.
    """

    text: str
    usage: Usage = dataclasses.field(default_factory=Usage)
    finish: str = "stop"


@dataclass(frozen=True)
class Scores:
    """The likelihood of given answers.

    Attributes:
        log_probs: The logarithm of the probability of each whole answer, its end included.
        tokens: Number of tokens of each, its end included.
        usage: The backend's counts; the answers are in ``tokens_in``.
    """

    log_probs: tuple[float, ...]
    tokens: tuple[int, ...]
    usage: Usage


class Backbone(ABC):
    """A language model, used by many tasks of one event loop at a time.

    Callers use :meth:`chat`, which checks its arguments; a subclass has :meth:`answer`. Call
    :meth:`aclose` before the loop's end. A hosted backbone can be used again in another loop.
    """

    #: For reports.
    name: str
    #: Whether it has :meth:`score`.
    can_score: bool = False

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
            messages: At most one of the system, which is the first; then those of the user and the
                assistant. The last one is the user's.
            max_tokens: See :class:`Sampling` for this and the arguments below.
            temperature: 0 takes the likeliest tokens.
            stop: The answer ends before any of these texts.
            seed: Seed of the draw.

        Raises:
            ArgumentError: If an argument is not valid. Nothing was sent.
            BackboneError: If there was no answer, with the reason.
        """
        check_messages(messages)
        return await self.answer(messages, Sampling(max_tokens, temperature, stop, seed))

    @abstractmethod
    async def answer(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer a chat whose messages were checked."""

    async def score(
        self, messages: Sequence[Message], answers: Sequence[str], *, begin: str = ""
    ) -> Scores:
        """Return the likelihood of each of some answers to a chat, their ends included.

        Args:
            messages: As those of :meth:`chat`.
            answers: Possible answers.
            begin: Text that the assistant's answer starts with.

        Raises:
            BackboneError: If the backend failed, or can't do that.
        """
        del messages, answers, begin
        raise BackboneError(f"{self.name} can't score answers: only local models can")

    async def aclose(self) -> None:  # noqa: B027 - some hold nothing
        """Release connections and memory. Requests under way fail."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def check_messages(messages: Sequence[Message]) -> None:
    """Check the messages of a chat before anything is sent."""
    if not messages:
        raise ArgumentError("a chat needs at least one message")
    if any(message.role == "system" for message in messages[1:]):
        raise ArgumentError("only the first message may be of the system")
    if messages[-1].role != "user":
        raise ArgumentError(f"the last message must be the user's, not the {messages[-1].role}'s")


def earliest(text: str, stop: Sequence[str]) -> int | None:
    """Return where the first of these texts starts, or None without any."""
    places = [place for one in stop if (place := text.find(one)) >= 0]
    return min(places, default=None)


def whole(number: Any, what: str) -> int:
    """Return a count that a server reported.

    Raises:
        BackboneError: If it is not a whole number >= 0.
    """
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    # JSON numbers may be infinite here.
    if not is_number or not 0 <= number < math.inf or number != int(number):
        raise BackboneError(f"expected a whole number as {what} of the server, got {number!r}")
    return int(number)
