"""Options that every connection to a server takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from echoic.transports import secret

if TYPE_CHECKING:
    import os

__all__ = ["LinkOptions", "link_options"]


class LinkOptions(TypedDict, total=False):
    """How to reach a server, and how long to try to reconnect."""

    #: The secret that the server requires.
    token: str | bytes | None
    #: For how many seconds to try to reconnect when the server is gone: 60 by default. ``None``
    #: means for ever.
    deadline: float | None
    #: How often to try to reconnect; ``None`` means without limit.
    max_retry: int | None
    #: For how many seconds to try the first connection: 10 by default.
    connect_timeout: float
    #: For ``tls://``: the authority that signed the server's certificate, a PEM file.
    ca: str | os.PathLike[str] | None
    #: For ``tls://``: this client's certificate, a PEM file, if the server requires one.
    certificate: str | os.PathLike[str] | None
    #: Its private key, a PEM file.
    key: str | os.PathLike[str] | None
    #: The name in the server's certificate, if it is not the host's.
    server_name: str | None
    #: What the server's list of connections calls this client: at most 128 bytes of UTF-8 without
    #: control characters. Host and process id, ``"host:pid"``, if ``None``.
    name: str | None


def link_options(
    *,
    token: str | bytes | None = None,
    deadline: float | None = 60.0,
    max_retry: int | None = None,
    connect_timeout: float = 10.0,
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    server_name: str | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Return all options of a connection, as the native core takes them."""
    return {
        "token": secret(token),
        "deadline": deadline,
        "max_retry": max_retry,
        "connect_timeout": connect_timeout,
        "ca": ca,
        "certificate": certificate,
        "key": key,
        "server_name": server_name,
        "name": name,
    }
