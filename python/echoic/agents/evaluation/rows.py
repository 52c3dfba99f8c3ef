"""The rows of a benchmark: one JSON object a line, added as episodes end, never changed.

The ``kind`` of a row is ``"episode"``, ``"training"`` (measurements of a training), or ``"cell"``
(one that was skipped, failed or is not applicable, with the reason). The last row of an ``id``
counts: a cell that failed may have succeeded later. Every number of a report comes from these.

# Invariants

1. One process writes at a time; another gets an error.
2. A line is written at once and whole; if that fails it is removed. A partial last line of a crash
   is cut off. Nothing is forced to the disk: a loss of power may lose rows.
3. Numbers that JSON does not have, such as the cost of a model without a price, are null.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic._json import finite
from echoic.errors import ClosedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

__all__ = ["Rows", "objects", "read_rows"]

ROWS = "rows.jsonl"


def read_rows(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Read the rows that count, by ``id``, in the order of their first appearance.

    Args:
        path: The file, or a benchmark's folder.
    """
    file = Path(path)
    if file.is_dir():
        file = file / ROWS
    return _parse(file.read_bytes())[0] if file.exists() else {}


def _parse(content: bytes) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the rows, and the number of bytes in whole lines."""
    rows: dict[str, dict[str, Any]] = {}
    whole = content.rfind(b"\n") + 1
    for number, line in enumerate(content[:whole].splitlines(), 1):
        row: Any = None
        with contextlib.suppress(ValueError):
            row = json.loads(line)
        if not isinstance(row, dict) or not {"id", "kind"} <= set(row):
            raise StorageError(f"line {number} of the rows is no row: {line[:80]!r}")
        rows[row["id"]] = row
    return rows, whole


def objects(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over a file of one object a line, without partial lines of a crash."""
    with path.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                one = json.loads(line)
                if isinstance(one, dict):
                    yield one


class Rows:
    """The rows of a folder, opened to add more; those that are there stay.

    Raises:
        StorageError: If another process has opened them, or a line is no row.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / ROWS
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._rows, whole = _parse(self.path.read_bytes())
            os.ftruncate(self._file, whole)
        except BaseException as error:
            os.close(self._file)
            if isinstance(error, BlockingIOError):
                raise StorageError(f"another benchmark is writing to {self.path}") from None
            raise
        self._open = True

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        if not self._open:
            raise ClosedError(f"{self.path} is closed")
        data: dict[str, Any] = finite(dict(row))
        # Answers of models may not be UTF-8, such as half of a pair of surrogates.
        line = json.dumps(data, allow_nan=False).encode("ascii") + b"\n"
        before = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except BaseException:
            os.ftruncate(self._file, before)
            raise
        self._rows[data["id"]] = data

    def get(self, id_: str) -> dict[str, Any] | None:
        """Return the row of an id that counts."""
        return self._rows.get(id_)

    @property
    def all(self) -> tuple[dict[str, Any], ...]:
        """All rows that count."""
        return tuple(self._rows.values())

    def close(self) -> None:
        """Let other processes write."""
        if self._open:
            self._open = False
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
