"""Where servers are, as the environment of a process says.

Launchers know where they start servers, and programs should not. Whoever connects without an
address asks here:

- ``ECHOIC_ADDRESSES``: addresses, with commas or spaces between them.
- ``ECHOIC_ADDRESSES_FILE``: a file of such, instead. It is read again every few seconds, so whoever
  moves or adds a server writes the file anew.
- ``ECHOIC_TOKEN_FILE``: the secret that the servers ask for.
- ``ECHOIC_CA_FILE``, ``ECHOIC_CERTIFICATE_FILE`` and ``ECHOIC_KEY_FILE``: PEM files, for
  ``tls://``.

An address is written as everywhere; ``host:port`` alone is ``tcp://host:port``. The word
``draining`` after one means that no inserts go there any more, and ``removed`` in the place of one
that there is none. An argument that is given goes before its variable, and with an address no
variable counts: a secret is for the servers that it was named with.

# Limitations

A name is one server. That of a headless service, which stands for the numbers of many pods, is not
taken apart: numbers come in no order, and a shard's place is part of its items' keys. So each pod
is named.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from echoic.errors import ArgumentError, DisconnectedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.sharded.places import Named

__all__ = ["AddressFile", "address_for", "addresses", "options_for", "read_token"]

_ADDRESSES = "ECHOIC_ADDRESSES"
_FILE = "ECHOIC_ADDRESSES_FILE"
_TOKEN = "ECHOIC_TOKEN_FILE"  # noqa: S105 - the name of a variable
_DRAINING, _REMOVED = "draining", "removed"
_PAPERS = {
    "ca": "ECHOIC_CA_FILE",
    "certificate": "ECHOIC_CERTIFICATE_FILE",
    "key": "ECHOIC_KEY_FILE",
}

# No list of servers is longer than this, and no secret.
_MOST_BYTES = 1 << 16
# How often it is looked whether a file is there by now.
_LOOK = 0.05

_O = TypeVar("_O", bound="Mapping[str, Any]")


@dataclass(frozen=True)
class AddressFile:
    """A file that says where servers are; calling it reads it.

    Whoever writes it writes another file first and renames that, so that nobody reads half of it.
    """

    path: Path

    def __call__(self) -> list[Named]:
        """Return what it says of each server now, as a :class:`~echoic.ShardedClient` takes it.

        Raises:
            ArgumentError: It can't be read, or has none.
        """
        return _split(_read(self.path, _FILE).decode(errors="replace"), f"the file {self.path}")

    def wait(self, patience: float) -> AddressFile:
        """Return the file once it has addresses: who starts the servers may not be done yet.

        Raises:
            DisconnectedError: It has none for so long.
        """
        until = time.monotonic() + patience
        while True:
            try:
                self()
            except ArgumentError as error:  # noqa: PERF203 - it is asked again
                if time.monotonic() >= until:
                    raise DisconnectedError(f"{error}, for {patience:g} s") from None
                time.sleep(_LOOK)
            else:
                return self


def addresses(connect_timeout: float = 10.0) -> list[Named] | AddressFile:
    """Return what the environment says of each server, or the file that does.

    Args:
        connect_timeout: For how many seconds to wait for a file that is not there yet.

    Raises:
        ArgumentError: It names none, or does so twice.
        DisconnectedError: The file that it names has none in time.
    """
    listed, file = os.environ.get(_ADDRESSES), os.environ.get(_FILE)
    if listed and file:
        raise ArgumentError(f"{_ADDRESSES} and {_FILE} are both set; expected one of them")
    if listed:
        return _split(listed, _ADDRESSES)
    if file:
        return AddressFile(Path(file)).wait(connect_timeout)
    raise ArgumentError(
        f"expected an address, or one in the environment; neither {_ADDRESSES} nor {_FILE} is set"
    )


def address_for(purpose: str, connect_timeout: float = 10.0) -> str:
    """Return the address of what is on one server.

    Args:
        purpose: What for, as a message says it.
        connect_timeout: As of :func:`addresses`.

    Raises:
        ArgumentError: The environment names no server, or more than one.
        DisconnectedError: The file that it names has none in time.
    """
    found = addresses(connect_timeout)
    named = found() if isinstance(found, AddressFile) else found
    several = [one if isinstance(one, str) else one[0] for one in named if one is not None]
    if len(several) > 1:
        raise ArgumentError(
            f"{purpose} needs one server, and the environment names {len(several)}: "
            f"give the address of one of {', '.join(several)}"
        )
    return several[0]


def options_for(options: _O) -> _O:
    """Return options of a connection with what the environment says where they say nothing.

    Raises:
        ArgumentError: The token's file can't be read, or is empty.
    """
    added: dict[str, Any] = {
        name: os.environ[variable] for name, variable in _PAPERS.items() if os.environ.get(variable)
    }
    token = os.environ.get(_TOKEN)
    if token and options.get("token") is None:
        added["token"] = read_token(Path(token), _TOKEN)
    given = {
        name: value for name, value in options.items() if value is not None or name not in added
    }
    return {**added, **given}  # type: ignore[return-value]


def read_token(path: Path, who: str) -> bytes:
    """Return the secret in a file, without the line end that editors add.

    Args:
        path: The file.
        who: Names it, as a message says it.

    Raises:
        ArgumentError: It can't be read, or is empty.
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
