"""Certificates for ``tls://`` addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

__all__ = ["Tls"]


@dataclass(frozen=True, kw_only=True)
class Tls:
    """The files of one side of a ``tls://`` connection, in PEM format.

    Args:
        certificate: This side's certificate, followed by those that signed it. A server needs one;
            a client needs one if the server requires it.
        key: The private key of the certificate.
        ca: The authority that must have signed the other side's certificate. A server without it
            accepts clients without certificates.
        server_name: For clients: the name in the server's certificate, if it is not the host's.
    """

    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    ca: str | os.PathLike[str] | None = None
    server_name: str | None = None
