"""Certificates for measuring TLS, made on the spot and gone afterwards."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

from benchmarks.timing import UnavailableError


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
