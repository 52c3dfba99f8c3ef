"""Backbones by name, and whether they can be used here.

A name needs a key or a server from the environment, read when it is used: keys are never in a
setting, a file or a message. A name without its key or server is *skipped*, with the reason;
nothing is used in its place.

``NAME_MODEL`` and ``NAME_BASE_URL`` in the environment (``GPT_4O_MODEL``, ``LLAMA_4_BASE_URL``)
point a name at another model or server: vendors have withdrawn some of these versions. If the price
of such a model is not known, its cost is ``nan``, which reports show as a dash.

>>> from echoic.agents.backbones import backbone_names
>>> "gpt-4o" in backbone_names()
True
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from echoic.agents.backbones.prices import price_of
from echoic.agents.backbones.smollm2 import available
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from echoic.agents.backbones.base import Backbone
    from echoic.agents.backbones.prices import Price

__all__ = [
    "backbone_names",
    "backbone_status",
    "backbone_target",
    "make_backbone",
    "register_backbone",
]

READY = "ready"
UNPRICED = "ready: no price, so costs are not known"


@dataclass(frozen=True)
class _Hosted:
    """A known name.

    Attributes:
        form: The wire format.
        model: Its name at the vendor's.
        key: Environment variable of the key; a server of the user may need none.
        url: Root of the API; None if the user serves it.
        settings: More arguments of the constructor.
    """

    form: str
    model: str
    key: str
    url: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """The model of a name, its server and price if known, and whether the environment set them."""

    model: str
    url: str | None = None
    price: Price | None = None
    moved: bool = False


# Open weights have no vendor: the user serves them, at a price that only the user knows.
_OURS = {
    "gpt-4o": _Hosted("openai", "gpt-4o", "OPENAI_API_KEY", "https://api.openai.com/v1"),
    "claude-3.5-sonnet": _Hosted(
        "anthropic", "claude-3-5-sonnet-20241022", "ANTHROPIC_API_KEY", "https://api.anthropic.com"
    ),
    "gemini-1.5-pro": _Hosted(
        "gemini",
        "gemini-1.5-pro",
        "GEMINI_API_KEY",
        "https://generativelanguage.googleapis.com/v1beta",
    ),
    "deepseek-r1": _Hosted(
        "openai",
        "deepseek-reasoner",
        "DEEPSEEK_API_KEY",
        "https://api.deepseek.com/v1",
        {"seed_field": None},
    ),
    "llama-4": _Hosted(
        "openai", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "LLAMA_4_API_KEY", None
    ),
    "qwen-7b": _Hosted("openai", "Qwen/Qwen2.5-7B-Instruct", "QWEN_7B_API_KEY", None),
}
_SMOLLM2 = "smollm2"


@dataclass(frozen=True)
class _User:
    make: Callable[..., Backbone]
    status: Callable[[], str | None]


_USERS: dict[str, _User] = {}


def register_backbone(
    name: str,
    make: Callable[..., Backbone],
    *,
    status: Callable[[], str | None] = lambda: None,
) -> None:
    """Register a backbone under a name, replacing any earlier one.

    Args:
        name: The name.
        make: Gets the settings of :func:`make_backbone` and returns the backbone.
        status: Returns why it can't be used, or None if it can.
    """
    if not name or not callable(make) or not callable(status):
        raise ArgumentError("a backbone needs a name, and functions for make and status")
    _USERS[name] = _User(make, status)


def backbone_names() -> tuple[str, ...]:
    """Return all names, in alphabetical order."""
    return tuple(sorted({*_OURS, *_USERS, _SMOLLM2}))


def backbone_status(name: str) -> str:
    """Return ``"ready"``, or ``"skipped: "`` and the reason, such as ``"no key OPENAI_API_KEY"``.

    Without a known price it is ``"ready: no price, so costs are not known"``. The environment and
    installed packages are checked; no request is sent.
    """
    reason = _reason(name)
    if reason is not None:
        return f"skipped: {reason}"
    hosted = name in _OURS and name not in _USERS
    return UNPRICED if hosted and _target(name).price is None else READY


def make_backbone(name: str, /, **settings: Any) -> Backbone:
    """Make a backbone by its name.

    Args:
        name: One of :func:`backbone_names`.
        **settings: For its constructor, such as ``http`` or ``price``.

    Raises:
        BackboneError: If it can't be used here; :func:`backbone_status` returns the reason.
        ArgumentError: If the name is unknown.
    """
    reason = _reason(name)
    if reason is not None:
        raise BackboneError(f"{name} is skipped: {reason}")
    if name in _USERS:
        return _USERS[name].make(**settings)
    if name == _SMOLLM2:
        from echoic.agents.backbones.local import LocalBackbone

        return LocalBackbone.smollm2(**settings)
    entry = _OURS[name]
    target = _target(name)
    chosen = {**entry.settings, "name": name, "price": target.price, **settings}
    made: Backbone = _class_of(entry.form)(target.model, key=_key(entry), url=target.url, **chosen)
    return made


def backbone_target(name: str) -> Target:
    """Return the model and server of a name, which the environment may set.

    A registered name, or one without a server, is its own model.
    """
    return _target(name) if name in _OURS and name not in _USERS else Target(name)


def _target(name: str) -> Target:
    entry = _OURS[name]
    model = _variable(name, "MODEL") or entry.model
    url = _variable(name, "BASE_URL") or entry.url
    moved = (model, url) != (entry.model, entry.url)
    # A vendor's price holds only there, and that of another model may be unknown.
    price = None
    if url == entry.url:
        with contextlib.suppress(ArgumentError):
            price = price_of(model)
    return Target(model, url, price, moved=moved)


def _key(entry: _Hosted) -> str | None:
    """Return the key without white space, such as the line end of a file."""
    return os.environ.get(entry.key, "").strip() or None


def _class_of(form: str) -> Any:
    from echoic.agents.backbones import hosted

    return {
        "anthropic": hosted.AnthropicBackbone,
        "gemini": hosted.GeminiBackbone,
        "openai": hosted.OpenAIBackbone,
    }[form]


def _reason(name: str) -> str | None:
    """Return why a name can't be used; None if it can."""
    if name in _USERS:
        return _USERS[name].status()
    if name == _SMOLLM2:
        return available()
    if name not in _OURS:
        known = ", ".join(backbone_names())
        raise ArgumentError(f"there is no backbone {name!r}; there are {known}")
    if importlib.util.find_spec("httpx") is None:
        return "httpx is not installed"
    entry = _OURS[name]
    server = _variable(name, "BASE_URL")
    if entry.url is None and server is None:
        return f"no server {_prefix(name)}_BASE_URL"
    # A server of the user may need no key; vendors' formats other than OpenAI's always do.
    if (server is None or entry.form != "openai") and _key(entry) is None:
        return f"no key {entry.key}"
    return None


def _prefix(name: str) -> str:
    """Return a name as the start of an environment variable: ``GPT_4O`` for ``gpt-4o``."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _variable(name: str, what: str) -> str | None:
    return os.environ.get(f"{_prefix(name)}_{what}") or None
