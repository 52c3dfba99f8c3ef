"""The listeners of a configuration, and the files that they read."""

from pathlib import Path
from typing import Any

import echoic
from echoic import rendezvous
from echoic.cli.config import ConfigError, Listen
from echoic.errors import ArgumentError
from echoic.transports import Listener

__all__ = ["listener", "read_token"]


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
    options: dict[str, Any] = {
        "token": read_token(listen.token_file),
        "max_connections": listen.max_connections,
        "heartbeat": listen.heartbeat,
        "threads": listen.threads,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return Listener(listen.address, tls=tls, insecure=listen.insecure, **given)


def read_token(path: Path | None) -> bytes | None:
    """The secret in a file, without the line end that editors add.

    Raises:
        ConfigError: The file can't be read, or is empty.
    """
    try:
        return None if path is None else rendezvous.read_token(path, "the token")
    except ArgumentError as error:
        raise ConfigError(str(error)) from None
