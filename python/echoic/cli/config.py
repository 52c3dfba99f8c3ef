"""Read the configuration of `echoic serve` from a TOML or JSON file.

`read` makes a `Config` from a file. Errors name unknown keys with the allowed ones, and values of
the wrong kind with what was expected. Paths in a file are relative to its folder.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import echoic
from echoic import Checkpointer, rendezvous
from echoic.cli import convert as to
from echoic.cli import table_settings
from echoic.cli.convert import ConfigError, Convert
from echoic.cli.spec import Field
from echoic.cli.table_settings import TableSettings
from echoic.errors import ArgumentError
from echoic.transports import Listener

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Config", "ConfigError", "Listen", "listener", "read", "read_token"]


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
    max_connections: Annotated[int, to.positive] | None = None
    heartbeat: Annotated[float, to.seconds] | None = None
    threads: Annotated[int, to.positive] | None = None


@dataclass(frozen=True)
class Config:
    """A whole server: its stream if it has a spec, its tables, and its addresses.

    `save` is for the stream and `journal` for the tables; `checkpoints` have the tables and unread
    stream samples. `metrics` is the HTTP address for Prometheus, which has the token and `insecure`
    of the first address.
    """

    spec: Annotated[tuple[Field, ...], to.spec] = ()
    batch_size: Annotated[int, to.positive] = 256
    capacity: Annotated[int, to.positive] | None = None
    listen: tuple[Listen, ...] = (Listen(),)
    save: Path | None = None
    drain: Annotated[float, to.seconds] = 5.0
    interval: Annotated[float, to.interval] = 5.0
    tables: Annotated[tuple[TableSettings, ...], table_settings.tables] = ()
    checkpoints: Checkpointer | None = None
    journal: Path | None = None
    metrics: str | None = None


def read(path: Path) -> Config:
    """Read a configuration file whose name ends in .toml or .json.

    Raises:
        ConfigError: If it can't be read, or a key or value in it is wrong.
    """
    try:
        return convert(load(path), path.parent)
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def load(path: Path) -> object:
    """Parse a file."""
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text(encoding="utf-8"))
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    raise ConfigError(f"the name of a configuration must end in .toml or .json, got {path.name}")


def convert(table: object, folder: Path) -> Config:
    """Convert a whole file; relative paths start at its folder."""

    def path(value: object, name: str) -> Path:
        return folder / Path(to.string(value, name)).expanduser()

    def listen(value: object, name: str) -> tuple[Listen, ...]:
        known = to.converters_of(Listen, {Path: path})
        return tuple(Listen(**options) for options in to.each(value, name, known, "address"))

    def checkpoints(value: object, name: str) -> Checkpointer:
        known: dict[str, Convert] = {"path": path, "keep": to.positive}
        options = to.values(value, name, {**known, "every": to.period, "load": to.boolean})
        if "path" not in options:
            raise ConfigError(f"`{name}` has no path")
        return Checkpointer(**options)

    kinds: dict[Any, Convert] = {Path: path, tuple[Listen, ...]: listen, Checkpointer: checkpoints}
    config = Config(**to.values(table, "", to.converters_of(Config, kinds)))
    for index, one in enumerate(config.tables):
        if one.durability != "none" and config.journal is None:
            raise ConfigError(f"`tables[{index}].durability` needs a `journal` to be written to")
    return config


def listener(listen: Listen) -> Listener:
    """Return the listener of an entry of the configuration; opening it checks its address.

    Raises:
        ConfigError: An option is missing, or its file can't be read.
    """
    tls = None
    if listen.address.startswith("tls://"):
        if listen.certificate is None or listen.key is None:
            raise ConfigError(f"{listen.address} needs a certificate and its key")
        tls = echoic.Tls(certificate=listen.certificate, key=listen.key, ca=listen.client_ca)
    names = ("max_connections", "heartbeat", "threads")
    options: dict[str, Any] = {name: getattr(listen, name) for name in names}
    given = {name: value for name, value in options.items() if value is not None}
    token = read_token(listen.token_file)
    return Listener(listen.address, token=token, tls=tls, insecure=listen.insecure, **given)


def read_token(path: Path | None) -> bytes | None:
    """Return the secret in a file, without the line end that editors add.

    Raises:
        ConfigError: The file can't be read, or is empty.
    """
    try:
        return None if path is None else rendezvous.read_token(path, "the token")
    except ArgumentError as error:
        raise ConfigError(str(error)) from None
