"""What the network workloads need: of a system that moves samples between processes, and of TLS."""

from __future__ import annotations

import importlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.timing import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Tree


@dataclass(frozen=True)
class Learner:
    """A server that listens: where, and its calls themselves, for nothing to come between."""

    address: str
    sample: Callable[[], Any]
    close: Callable[[], Any]


@dataclass(frozen=True)
class Sender:
    """A connected client: the calls themselves, for nothing to come between."""

    add: Callable[[Tree], Any]
    extend: Callable[[Tree], Any] | None
    flush: Callable[[], Any]
    close: Callable[[], Any]


class NetEngine(Protocol):
    """Opens servers and connects to them."""

    def listen(
        self, example: Tree, *, transport: str, batch_size: int, num_buffers: int
    ) -> Learner:
        """Open a server that listens at a transport: ``tcp``, ``unix``, ``tls`` or ``shm``."""
        ...

    def connect(self, address: str, example: Tree) -> Sender:
        """Connect to a server of the same engine."""
        ...


class Papers:
    """A certificate for ``localhost`` with its key, and the authority that it is from."""

    def __init__(self) -> None:
        """Make them, in files of a temporary folder.

        Raises:
            UnavailableError: the package that makes certificates is not installed.
        """
        try:
            trustme = importlib.import_module("trustme")
        except ImportError as error:
            raise UnavailableError(f"TLS needs a certificate: {error}") from error
        authority = trustme.CA()
        issued = authority.issue_cert("localhost")
        self._folder = tempfile.TemporaryDirectory()
        self.authority = Path(self._folder.name) / "authority.pem"
        self.certificate = Path(self._folder.name) / "server.pem"
        authority.cert_pem.write_to_path(self.authority)
        issued.private_key_and_cert_chain_pem.write_to_path(self.certificate)

    def close(self) -> None:
        """Remove the files."""
        self._folder.cleanup()
