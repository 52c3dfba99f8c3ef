"""Addresses, and the transports that listen at them.

An address is `tcp://host:port`, `tls://host:port`, `unix:///path` or `shm://name`; port 0 is any
free port.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import echoic
from echoic.cli.config import ConfigError, Listen

__all__ = ["read_token", "transport"]

SCHEMES = ("tcp", "tls", "unix", "shm")


def transport(listen: Listen) -> Any:
    """The transport that listens as told.

    Raises:
        ConfigError: The address can't be read, or an option does not go with it.
    """
    scheme, separator, rest = listen.address.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ConfigError(
            f"`{listen.address}` is no address; there are tcp://host:port, tls://host:port, "
            "unix:///path and shm://name"
        )
    options = common(listen)
    try:
        if scheme == "tcp":
            host, port = host_and_port(listen.address)
            return echoic.TcpTransport(port, host, insecure=listen.insecure, **options)
        if scheme == "tls":
            host, port = host_and_port(listen.address)
            certificate, key = identity(listen)
            return echoic.TlsTransport(
                port,
                host,
                certificate=certificate,
                key=key,
                client_ca=listen.client_ca,
                insecure=listen.insecure,
                **options,
            )
        if scheme == "unix":
            return echoic.UnixTransport(rest, **options)
        return echoic.ShmTransport(rest, **options)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{listen.address}: {error}") from error


def common(listen: Listen) -> dict[str, Any]:
    """The options of every transport, where there is something to say."""
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
