"""Language models that answer, their names and their prices; the same here and at a vendor's.

A name needs a key or a server from the environment, read when it is used: keys are never in a
setting, a file or a message. A name without its key or server is *skipped*, with the reason;
nothing is used in its place.

Invariant: the :class:`~echoic.agents.episodes.Usage` of an answer is what the backend counted. A
server that does not count is an error, since the cost would be a guess.
"""

from __future__ import annotations

import importlib.util
import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from echoic.agents import _checks
from echoic.agents.backbones import smollm2
from echoic.agents.episodes import Usage
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

__all__ = [
    "PRICES",
    "Backbone",
    "Completion",
    "Message",
    "Price",
    "Sampling",
    "Scores",
    "backbone_names",
    "backbone_status",
    "backbone_target",
    "make_backbone",
    "register_backbone",
]


@dataclass(frozen=True)
class Message:
    """One message of a chat; ``role`` is ``"system"``, ``"user"`` or ``"assistant"``."""

    role: str
    text: str

    def __post_init__(self) -> None:
        _checks.one_of(self, "role", ("system", "user", "assistant"))


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn, and what ends it: the answer stops before any text of ``stop``.

    Temperature 0 takes the likeliest tokens. A ``seed`` is for backends that take one.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    stop: Sequence[str] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        _checks.whole(self, "max_tokens")
        _checks.number(self, "temperature", least=0)
        if isinstance(self.stop, str) or not all(isinstance(one, str) and one for one in self.stop):
            raise ArgumentError("stop must be a sequence of texts, none of them empty")


@dataclass(frozen=True)
class Completion:
    """An answer without the stop text that ended it, and the backend's counts.

    ``finish`` is ``"stop"``, ``"length"``, or ``"filtered"`` if a vendor withheld the answer.
    """

    text: str
    usage: Usage = field(default_factory=Usage)
    finish: str = "stop"


@dataclass(frozen=True)
class Scores:
    """For each given answer, its end included, the log-probability and the number of tokens.

    In ``usage`` they are in ``tokens_in``.
    """

    log_probs: tuple[float, ...]
    tokens: tuple[int, ...]
    usage: Usage


class Backbone(ABC):
    """A language model, used by many tasks of one event loop at a time.

    Callers use :meth:`chat`, which checks its arguments, and :meth:`aclose` before the loop's end;
    a subclass has :meth:`answer`.
    """

    #: For reports.
    name: str
    #: Whether it has :meth:`score`.
    can_score: bool = False

    async def chat(self, messages: Sequence[Message], **sampling: Any) -> Completion:
        """Answer a chat, with fields of :class:`Sampling`.

        At most the first message is of the system, and the last one is the user's.

        Raises:
            BackboneError: If there was no answer, with the reason.
        """
        check_messages(messages)
        return await self.answer(messages, Sampling(**sampling))

    @abstractmethod
    async def answer(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer a chat whose messages were checked."""

    async def score(
        self, messages: Sequence[Message], answers: Sequence[str], *, begin: str = ""
    ) -> Scores:
        """Return the likelihood of each of some answers to a chat, after the text ``begin``.

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


# Prices.


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens, and the month of the price, such as ``"2025-08"``.

    Tokens of a prompt that are read from a cache, or written to it, cost ``input`` by default. Not
    modelled: batches, prices that depend on the length of the prompt, storage of caches, taxes.
    """

    input: float
    cached: float | None = None
    out: float = 0.0
    written: float | None = None
    date: str = ""

    def __post_init__(self) -> None:
        given = [name for name, value in vars(self).items() if value is not None and name != "date"]
        _checks.number(self, *given, least=0)


#: The vendors' list prices by their names of models; some have been withdrawn since.
PRICES = {
    "gpt-4o": Price(2.50, 1.25, 10.00, date="2025-08"),
    "gpt-4o-mini": Price(0.15, 0.075, 0.60, date="2025-08"),
    "claude-3-5-sonnet-20241022": Price(3.00, 0.30, 15.00, written=3.75, date="2025-08"),
    "gemini-1.5-pro": Price(1.25, 0.3125, 5.00, date="2025-08"),
    "deepseek-reasoner": Price(0.55, 0.14, 2.19, date="2025-08"),
}


# Names.


class _Hosted(NamedTuple):
    """A known name: its model there, the variable of its key, and its server unless a user's."""

    model: str
    key: str
    url: str | None
    protocol: str = "openai"
    rename: Mapping[str, str | None] = {}


# Open weights have no vendor: the user serves them, at a price that only the user knows.
_HOSTED = {
    "gpt-4o": _Hosted("gpt-4o", "OPENAI_API_KEY", "https://api.openai.com/v1"),
    "claude-3.5-sonnet": _Hosted(
        "claude-3-5-sonnet-20241022",
        "ANTHROPIC_API_KEY",
        "https://api.anthropic.com",
        "anthropic",
    ),
    "gemini-1.5-pro": _Hosted(
        "gemini-1.5-pro",
        "GEMINI_API_KEY",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        rename={"seed": None},
    ),
    "deepseek-r1": _Hosted(
        "deepseek-reasoner",
        "DEEPSEEK_API_KEY",
        "https://api.deepseek.com/v1",
        rename={"seed": None},
    ),
    "llama-4": _Hosted("meta-llama/Llama-4-Scout-17B-16E-Instruct", "LLAMA_4_API_KEY", None),
    "qwen-7b": _Hosted("Qwen/Qwen2.5-7B-Instruct", "QWEN_7B_API_KEY", None),
}


def _smollm2(**settings: Any) -> Backbone:
    from echoic.agents.backbones.local import LocalBackbone

    return LocalBackbone.smollm2(**settings)


# What makes a name's backbone, and why it can't be used here.
_MADE: dict[str, tuple[Callable[..., Backbone], Callable[[], str | None]]] = {
    "smollm2": (_smollm2, smollm2.available)
}


class Target(NamedTuple):
    """The model of a name, its server and price if known, and whether the environment set them."""

    model: str
    url: str | None = None
    price: Price | None = None
    moved: bool = False


def register_backbone(
    name: str,
    make: Callable[..., Backbone],
    *,
    status: Callable[[], str | None] = lambda: None,
) -> None:
    """Register a backbone under a name, replacing any earlier one.

    ``make`` gets the settings of :func:`make_backbone`. ``status`` returns why the backbone can't
    be used, or None if it can.
    """
    if not name or not callable(make) or not callable(status):
        raise ArgumentError("a backbone needs a name, and functions for make and status")
    _MADE[name] = (make, status)


def backbone_names() -> tuple[str, ...]:
    """Return all names, in alphabetical order."""
    return tuple(sorted({*_HOSTED, *_MADE}))


def backbone_status(name: str) -> str:
    """Return ``"ready"``, with a note if there is no price, or ``"skipped: "`` with the reason.

    The environment and installed packages are checked; no request is sent.
    """
    if (reason := _reason(name)) is not None:
        return f"skipped: {reason}"
    if name in _MADE or backbone_target(name).price is not None:
        return "ready"
    return "ready: no price, so costs are not known"


def make_backbone(name: str, /, **settings: Any) -> Backbone:
    """Make a backbone by its name, with settings of its constructor, such as ``http``.

    Raises:
        BackboneError: If it can't be used here; :func:`backbone_status` returns the reason.
    """
    if (reason := _reason(name)) is not None:
        raise BackboneError(f"{name} is skipped: {reason}")
    if name in _MADE:
        return _MADE[name][0](**settings)
    from echoic.agents.backbones.hosted import HostedBackbone

    known, target = _HOSTED[name], backbone_target(name)
    chosen = {"url": target.url, "price": target.price, "rename": known.rename, **settings}
    return HostedBackbone(target.model, known.protocol, key=_key(known), **{"name": name, **chosen})


def backbone_target(name: str) -> Target:
    """Return the model and server of a name; one that is registered, or unknown, is its own."""
    if name in _MADE or name not in _HOSTED:
        return Target(name)
    known = _HOSTED[name]
    model = os.environ.get(_variable(name, "MODEL")) or known.model
    url = os.environ.get(_variable(name, "BASE_URL")) or known.url
    # A vendor's price holds only there, and that of another model may be unknown.
    price = PRICES.get(model) if url == known.url else None
    return Target(model, url, price, (model, url) != (known.model, known.url))


def _reason(name: str) -> str | None:
    """Return why a name can't be used; None if it can."""
    if name in _MADE:
        return _MADE[name][1]()
    if name not in _HOSTED:
        names = ", ".join(backbone_names())
        raise ArgumentError(f"there is no backbone {name!r}; there are {names}")
    if importlib.util.find_spec("httpx") is None:
        return "httpx is not installed"
    known, target = _HOSTED[name], backbone_target(name)
    if target.url is None:
        return f"no server {_variable(name, 'BASE_URL')}"
    # A server of the user may need no key, unless it speaks Anthropic's protocol.
    if (target.url == known.url or known.protocol != "openai") and _key(known) is None:
        return f"no key {known.key}"
    return None


def _key(entry: _Hosted) -> str | None:
    """Return the key without white space, such as the line end of a file."""
    return os.environ.get(entry.key, "").strip() or None


def _variable(name: str, what: str) -> str:
    """Return the name of a variable of the environment: ``GPT_4O_MODEL``."""
    return f"{re.sub(r'[^A-Z0-9]', '_', name.upper())}_{what}"
