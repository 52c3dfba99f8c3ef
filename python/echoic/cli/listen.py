"""Addresses, and the listeners at them.

An address is `tcp://host:port`, `tls://host:port`, `unix:///path` or `shm://name`; port 0 is any
free port.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import echoic
from echoic.cli.config import ConfigError, Listen
from echoic.transports import Listener

__all__ = ["listener", "read_token"]

SCHEMES = ("tcp", "tls", "unix", "shm")


def listener(listen: Listen) -> Listener:
    """Return the listener of an entry of the configuration.

    Raises:
        ConfigError: The address can't be read, or an option does not go with it.
    """
    scheme, separator, _ = listen.address.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ConfigError(
            f"`{listen.address}` is no address; there are tcp://host:port, tls://host:port, "
            "unix:///path and shm://name"
        )
    tls = None
    if scheme in ("tcp", "tls"):
        host_and_port(listen.address)
    if scheme == "tls":
        certificate, key = identity(listen)
        tls = echoic.Tls(certificate=certificate, key=key, ca=listen.client_ca)
    return Listener(listen.address, tls=tls, insecure=listen.insecure, **common(listen))


def common(listen: Listen) -> dict[str, Any]:
    """Return the options that are given."""
    options = {
        "token": read_token(listen.token_file),
        "max_connections": listen.max_connections,
        "heartbeat": listen.heartbeat,
        "threads": listen.threads,
    }
    return {name: value for name, value in options.items() if value is not None}


def identity(listen: Listen) -> tuple[Path, Path]:
    """The server's certificate and its key."""
    if listen.certificate is None or listen.key is None:
        raise ConfigError(f"{listen.address} needs a certificate and its key")
    return listen.certificate, listen.key


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of a network address; the host of an IPv6 one stands in brackets."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"`{address}` is no address: {error}") from None
    if not host or port is None or parts.path:
        raise ConfigError(f"`{address}` must have the form {parts.scheme}://host:port")
    return host, port


def read_token(path: Path | None) -> bytes | None:
    """The secret in a file, without the line end that editors add.

    Raises:
        ConfigError: The file can't be read, or is empty.
    """
    if path is None:
        return None
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"can't read the token file {path}: {error.strerror}") from None
    if not token:
        raise ConfigError(f"the token file {path} is empty")
    return token
