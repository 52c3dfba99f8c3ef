"""What prompted methods share: reading settings, showing commands, and reading answers.

Answers of models are read leniently, and never replaced: what can't be read as a command is said to
be none, and no method acts at random or by a default in its place.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, TypeVar

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["clip", "lines", "matching", "read_settings", "restricted", "show_commands"]

_Config = TypeVar("_Config")
# Signs before an item of a list, or around a command, that models put there.
_BULLET = re.compile(r"^\s*(?:[-*•>]+|\(?\d{1,3}[.):])\s+")
_AROUND = "\"'`*“”"


def read_settings(kind: type[_Config], settings: Mapping[str, Any]) -> _Config:
    """Make a config of settings by name."""
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ArgumentError(f"{kind.__name__} has no {unknown[0]!r}; it has {', '.join(known)}")
    return kind(**settings)


def restricted(info: Mapping[str, Any]) -> bool:
    """Whether the listed commands are all there are: some are, and they did not fill the list."""
    return bool(info["commands"]) and not bool(info["command_mask"].all())


def show_commands(commands: Sequence[str]) -> str:
    """The commands as a model sees them."""
    return "Commands:\n" + "\n".join(f"- {command}" for command in commands)


def clip(text: str, limit: int) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[...]\n{text[len(text) - half :]}"


def bare(text: str) -> str:
    """A command without what is put around it: quotes, stars, a fence of code.

    >>> bare('**"go north"**')
    'go north'
    """
    text = text.strip()
    fenced = re.fullmatch(r"```\w*\n?(.*?)\n?```", text, re.DOTALL)
    if fenced:
        text = fenced[1]
    while len(text) > 1 and text[0] in _AROUND and text[-1] in _AROUND:
        text = text[1:-1].strip()
    return text.strip()


def lines(text: str, most: int) -> list[str]:
    r"""The first different items of a list, without bullets and numbers.

    >>> lines("1. go north\n2. go north\n- wait", 5)
    ['go north', 'wait']
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        item = bare(_BULLET.sub("", line))
        if item:
            found.setdefault(_plain(item), item)
        if len(found) == most:
            break
    return list(found.values())


def matching(said: str, commands: Sequence[str]) -> str | None:
    """The listed command that was said, also within more words; None if none or several were.

    >>> matching("Go  North.", ["go north", "go south"])
    'go north'
    >>> matching("north or south", ["north", "south"]) is None
    True
    """
    plain = _plain(bare(said))
    by_plain = {_plain(command): command for command in commands}
    if plain in by_plain:
        return by_plain[plain]
    within = [
        one for one in by_plain if one and re.search(rf"(?<!\w){re.escape(one)}(?!\w)", plain)
    ]
    # "take key" is said by whoever says "take key from box", if that is a command too.
    longest = max(within, key=len, default=None)
    if longest is None or any(one not in longest for one in within):
        return None
    return by_plain[longest]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!")
