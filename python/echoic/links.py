"""What every connection to a server is told, whatever it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from echoic.transports import secret

if TYPE_CHECKING:
    import os

__all__ = ["LinkOptions", "link_options"]


class LinkOptions(TypedDict, total=False):
    """How a server is reached, and for how long one comes back to it."""

    #: What the server asks for.
    token: str | bytes | None
    #: For how many seconds to try to come back to a server that is gone, 60 at first; ``None`` for
    #: ever.
    deadline: float | None
    #: How often to try; without limit, when ``None``.
    max_retry: int | None
    #: For how many seconds to try to reach the server at first: 10, if it is not told.
    connect_timeout: float
    #: For ``tls://``: the certificate of the authority of the server's, a PEM file.
    ca: str | os.PathLike[str] | None
    #: For ``tls://``: this client's certificate, a PEM file, if the server asks for one.
    certificate: str | os.PathLike[str] | None
    #: Its private key, a PEM file.
    key: str | os.PathLike[str] | None
    #: The name in the server's certificate, when it is not that of the host.
    server_name: str | None
    #: What people who look at the server's connections know this client by: at most 128 bytes of
    #: UTF-8 without control characters. Host and process id, ``"host:pid"``, when ``None``.
    name: str | None


def link_options(  # noqa: PLR0913 - one argument for each option
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
    """Return the options of a connection, all of them, as the native core takes them."""
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
