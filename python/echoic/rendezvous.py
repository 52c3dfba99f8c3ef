"""Read the addresses of servers from environment variables.

Launchers know where they start servers; programs should not have to. ``connect`` without an address
reads these variables:

- ``ECHOIC_ADDRESSES``: addresses, with commas or spaces between them.
- ``ECHOIC_ADDRESSES_FILE``: a file of addresses, instead. It is read again every few seconds:
  rewrite it to move or add a server.
- ``ECHOIC_TOKEN_FILE``: a file with the secret that the servers require.
- ``ECHOIC_CA_FILE``, ``ECHOIC_CERTIFICATE_FILE`` and ``ECHOIC_KEY_FILE``: PEM files, for
  ``tls://``.

An address is written as everywhere; ``host:port`` alone means ``tcp://host:port``. The word
``draining`` after an address means that the server gets no more inserts; ``removed`` in place of an
address means that its server is gone. An argument overrides its variable. If an address is given as
an argument, all variables are ignored: a secret belongs to the servers that it was set with.

# Limitations

A name is one server. The name of a headless service, which resolves to the addresses of many pods,
is not expanded: those come in no order, and a shard's position is part of its items' keys. Name
each pod instead.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from echoic.errors import ArgumentError, DisconnectedError
from echoic.tls import Tls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from echoic.sharded.places import Named

__all__ = ["AddressFile", "address_for", "addresses", "only_address", "read_token", "secrets_for"]

_ADDRESSES = "ECHOIC_ADDRESSES"
_FILE = "ECHOIC_ADDRESSES_FILE"
_TOKEN = "ECHOIC_TOKEN_FILE"
_DRAINING, _REMOVED = "draining", "removed"
_TLS_FILES = {
    "ca": "ECHOIC_CA_FILE",
    "certificate": "ECHOIC_CERTIFICATE_FILE",
    "key": "ECHOIC_KEY_FILE",
}

# The longest list of addresses, or secret, that is read.
_MOST_BYTES = 1 << 16
# Seconds between two checks whether the file exists.
_LOOK = 0.05


@dataclass(frozen=True)
class AddressFile:
    """A file with the addresses of servers; calling it reads the file.

    Replace the file with a rename, so that no reader sees half of it.
    """

    path: Path

    def __call__(self) -> list[Named]:
        """Return what the file says of each server, as :func:`echoic.connect` takes it.

        Raises:
            ArgumentError: If the file can't be read, or names no server.
        """
        return _split(_read(self.path, _FILE).decode(errors="replace"), f"the file {self.path}")

    def wait(self, patience: float) -> AddressFile:
        """Wait until the file has addresses, and return it: the launcher may still be at work.

        Raises:
            DisconnectedError: If it has none after ``patience`` seconds.
        """
        until = time.monotonic() + patience
        while True:
            try:
                self()
            except ArgumentError as error:
                if time.monotonic() >= until:
                    raise DisconnectedError(f"{error}, for {patience:g} s") from None
                time.sleep(_LOOK)
            else:
                return self


def addresses(timeout: float = 10.0) -> list[Named] | AddressFile:
    """Return the servers that the environment names, or the file that lists them.

    Args:
        timeout: Seconds to wait for a file that does not exist yet.

    Raises:
        ArgumentError: If no variable names servers, or both do.
        DisconnectedError: If the file has no addresses in time.
    """
    listed, file = os.environ.get(_ADDRESSES), os.environ.get(_FILE)
    if listed and file:
        raise ArgumentError(f"{_ADDRESSES} and {_FILE} are both set; expected one of them")
    if listed:
        return _split(listed, _ADDRESSES)
    if file:
        return AddressFile(Path(file)).wait(timeout)
    raise ArgumentError(
        f"expected an address, or one in the environment; neither {_ADDRESSES} nor {_FILE} is set"
    )


def only_address(purpose: str, found: Iterable[Named]) -> str:
    """Return the address of the one server.

    Args:
        purpose: What the address is for, as error messages should say it.
        found: What is known of each server.

    Raises:
        ArgumentError: If there are several servers.
    """
    several = [one if isinstance(one, str) else one[0] for one in found if one]
    if len(several) != 1:
        raise ArgumentError(
            f"{purpose} needs one server, and there are {len(several)}: "
            f"give the address of one of {', '.join(several)}"
        )
    return several[0]


def address_for(purpose: str, timeout: float = 10.0) -> str:
    """Return the address of the one server that the environment names.

    Args:
        purpose: What the address is for, as error messages should say it.
        timeout: As of :func:`addresses`.

    Raises:
        ArgumentError: If the environment names no server, or more than one.
        DisconnectedError: If the file has no addresses in time.
    """
    found = addresses(timeout)
    return only_address(purpose, found() if isinstance(found, AddressFile) else found)


def secrets_for(
    token: str | bytes | None, tls: Tls | None
) -> tuple[str | bytes | None, Tls | None]:
    """Return the token and the files for TLS, those that are ``None`` from the environment.

    Raises:
        ArgumentError: If the token's file can't be read, or is empty.
    """
    file = os.environ.get(_TOKEN)
    if file and token is None:
        token = read_token(Path(file), _TOKEN)
    added = {
        name: os.environ[variable]
        for name, variable in _TLS_FILES.items()
        if os.environ.get(variable) and getattr(tls, name, None) is None
    }
    return token, replace(tls or Tls(), **added) if added else tls


def read_token(path: Path, who: str) -> bytes:
    """Return the secret in a file, without the line end that editors add.

    Args:
        path: The file.
        who: What error messages call the setting.

    Raises:
        ArgumentError: If the file can't be read, or is empty.
    """
    token = _read(path, who).strip()
    if not token:
        raise ArgumentError(f"{who}: the file {path} is empty")
    return token


def _read(path: Path, who: str) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ArgumentError(f"{who}: can't read {path}: {error.strerror}") from None
    if len(text) > _MOST_BYTES:
        raise ArgumentError(f"{who}: expected at most {_MOST_BYTES} bytes in {path}, got more")
    return text


def _split(text: str, who: str) -> list[Named]:
    named: list[Named] = []
    for word in filter(None, re.split(r"[,\s]+", text)):
        if word == _REMOVED:
            named.append(None)
        elif word == _DRAINING:
            before = named[-1] if named else None
            if not isinstance(before, str):
                raise ArgumentError(f"{who}: expected an address before {_DRAINING!r}")
            named[-1] = (before, _DRAINING)
        else:
            named.append(word if "://" in word else f"tcp://{word}")
    if not any(named):
        raise ArgumentError(f"{who} names no server")
    return named
