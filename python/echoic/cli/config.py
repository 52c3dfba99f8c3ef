"""What `echoic serve` can be told, and how a TOML or JSON file tells it.

`read` makes a `Config` of a file. It knows every key by name: an unknown one is refused together
with the allowed ones, and a value of the wrong kind by what was expected. Paths in a file are
relative to its folder.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from echoic.cli.spec import Field, SpecTextError, from_table, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Config", "ConfigError", "Listen", "read"]


class ConfigError(ValueError):
    """A configuration that can't be used; the message names the key."""


@dataclass(frozen=True)
class Listen:
    """One address to listen at, with what its transport takes.

    `None` leaves a choice to the transport. TLS needs a certificate with its key.
    """

    address: str = "tcp://127.0.0.1:0"
    token_file: Path | None = None
    insecure: bool = False
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    max_connections: int | None = None
    heartbeat: float | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Config:
    """A whole server: what samples look like, where they come in and where they go."""

    spec: tuple[Field, ...] = ()
    batch_size: int = 256
    buffers: int = 16
    listen: tuple[Listen, ...] = (Listen(),)
    save: Path | None = None
    drain: float = 5.0
    interval: float = 5.0


def read(path: Path) -> Config:
    """Read a configuration file; its ending says whether it is TOML or JSON.

    Raises:
        ConfigError: It can't be read or used, and why.
    """
    try:
        table = load(path)
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        return Config(**values(table, "", Reader(path.parent).config))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def load(path: Path) -> object:
    """The tables of a file."""
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text(encoding="utf-8"))
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    raise ConfigError(f"neither .toml nor .json ends the name {path.name}")


# No setting makes sense beyond, nor does infinity.
HOUR = 3600
SHORTEST_INTERVAL = 0.1

# Turns a value of a file into one of the dataclass, or raises; it is told the name of the key.
Convert: TypeAlias = Callable[[Any, str], Any]


def values(table: object, where: str, converters: Mapping[str, Convert]) -> dict[str, Any]:
    """Convert a table key by key."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where or 'the file'} must be a table, not {table!r}")
    found = {}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        if key not in converters:
            raise ConfigError(f"unknown key `{name}`; allowed are {', '.join(converters)}")
        found[key] = converters[key](value, name)
    return found


class Reader:
    """What each key takes, for a file in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config: dict[str, Convert] = {
            "spec": spec,
            "batch_size": positive,
            "buffers": positive,
            "listen": self._listens,
            "save": self._path,
            "drain": seconds,
            "interval": interval,
        }
        self.listen: dict[str, Convert] = {
            "address": string,
            "token_file": self._path,
            "insecure": boolean,
            "certificate": self._path,
            "key": self._path,
            "client_ca": self._path,
            "max_connections": positive,
            "heartbeat": seconds,
            "threads": positive,
        }

    def _path(self, value: object, name: str) -> Path:
        return self._folder / Path(string(value, name)).expanduser()

    def _listens(self, value: object, name: str) -> tuple[Listen, ...]:
        if not isinstance(value, list) or not value:
            raise ConfigError(f"`{name}` must be a list of tables with an address")
        found = []
        for index, table in enumerate(value):
            options = values(table, f"{name}[{index}]", self.listen)
            if "address" not in options:
                raise ConfigError(f"`{name}[{index}]` has no address")
            found.append(Listen(**options))
        return tuple(found)


def spec(value: object, name: str) -> tuple[Field, ...]:
    """A spec, as nested tables or as text."""
    try:
        if isinstance(value, str):
            return parse(value)
        if isinstance(value, Mapping):
            return from_table(value)
    except SpecTextError as error:
        raise ConfigError(f"`{name}`: {error}") from None
    raise ConfigError(f"`{name}` must be a table or text, not {value!r}")


def string(value: object, name: str) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"`{name}` must be text, not {value!r}")
    return value


def boolean(value: object, name: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"`{name}` must be true or false, not {value!r}")
    return value


def positive(value: object, name: str) -> int:
    """A whole number from 1 on."""
    if type(value) is not int or value < 1:
        raise ConfigError(f"`{name}` must be a whole number from 1 on, not {value!r}")
    return value


def seconds(value: object, name: str) -> float:
    """A number of seconds that is not negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= HOUR:
        raise ConfigError(f"`{name}` must be a number of seconds from 0 to {HOUR}, not {value!r}")
    return float(value)


def interval(value: object, name: str) -> float:
    """A number of seconds between two lines."""
    if (found := seconds(value, name)) < SHORTEST_INTERVAL:
        raise ConfigError(f"`{name}` must be at least {SHORTEST_INTERVAL} seconds, not {value!r}")
    return found
