"""Read the configuration of `echoic serve` from a TOML or JSON file.

`read` makes a `Config` from a file. Errors name unknown keys with the allowed ones, and values of
the wrong kind with what was expected. Paths in a file are relative to its folder.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from echoic import Checkpointer
from echoic.cli.convert import (
    ConfigError,
    Convert,
    boolean,
    each,
    interval,
    period,
    positive,
    seconds,
    spec,
    string,
    values,
)
from echoic.cli.spec import Field
from echoic.cli.table_settings import TableSettings, tables

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Config", "ConfigError", "Listen", "read"]


@dataclass(frozen=True)
class Listen:
    """An address to listen at, with the settings of its transport.

    `None` is the transport's default. TLS needs a certificate with its key.
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
    """A whole server: its stream if it has a spec, its tables, and its addresses.

    `save` is for the stream and `journal` for the tables; `checkpoints` have the tables and unread
    stream samples. `metrics` is the HTTP address for Prometheus, which has the token and `insecure`
    of the first address.
    """

    spec: tuple[Field, ...] = ()
    batch_size: int = 256
    capacity: int | None = None
    listen: tuple[Listen, ...] = (Listen(),)
    save: Path | None = None
    drain: float = 5.0
    interval: float = 5.0
    tables: tuple[TableSettings, ...] = ()
    checkpoints: Checkpointer | None = None
    journal: Path | None = None
    metrics: str | None = None


def read(path: Path) -> Config:
    """Read a configuration file whose name ends in .toml or .json.

    Raises:
        ConfigError: If it can't be read, or a key or value in it is wrong.
    """
    try:
        table = load(path)
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        return Reader(path.parent).read(table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def load(path: Path) -> object:
    """Parse a file."""
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text(encoding="utf-8"))
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    raise ConfigError(f"the name of a configuration must end in .toml or .json, got {path.name}")


class Reader:
    """Converts each key of a file; relative paths start at the file's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config: dict[str, Convert] = {
            "spec": spec,
            "batch_size": positive,
            "capacity": positive,
            "listen": self._listens,
            "save": self._path,
            "drain": seconds,
            "interval": interval,
            "tables": tables,
            "checkpoints": self._checkpoints,
            "journal": self._path,
            "metrics": string,
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
        self.checkpoints: dict[str, Convert] = {
            "path": self._path,
            "keep": positive,
            "every": period,
            "load": boolean,
        }

    def read(self, table: object) -> Config:
        """Convert a whole file."""
        config = Config(**values(table, "", self.config))
        for index, one in enumerate(config.tables):
            if one.durability != "none" and config.journal is None:
                raise ConfigError(
                    f"`tables[{index}].durability` needs a `journal` to be written to"
                )
        return config

    def _path(self, value: object, name: str) -> Path:
        return self._folder / Path(string(value, name)).expanduser()

    def _listens(self, value: object, name: str) -> tuple[Listen, ...]:
        return tuple(Listen(**options) for options in each(value, name, self.listen, "address"))

    def _checkpoints(self, value: object, name: str) -> Checkpointer:
        options = values(value, name, self.checkpoints)
        if "path" not in options:
            raise ConfigError(f"`{name}` has no path")
        return Checkpointer(**options)
