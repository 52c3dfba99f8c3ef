"""The rows of a benchmark: one JSON object a line, added as episodes end, never changed.

The ``kind`` of a row is ``"episode"``, ``"training"`` (measurements of a training), or ``"cell"``
(one that was skipped, failed or is not applicable, with the reason). The last row of an ``id``
counts: a cell that failed may have succeeded later. Every number of a report comes from these.
Numbers that JSON does not have, such as the cost of a model without a price, are null.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic._json import finite
from echoic.errors import StorageError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from typing_extensions import Self

__all__ = ["Rows", "read_rows"]


def read_rows(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Read the rows that count, by ``id``, in the order of their first appearance.

    A partial last line, of a benchmark that was killed, is left out.

    Args:
        path: The file, or a benchmark's folder.

    Raises:
        StorageError: If a line is no row.
    """
    file = Path(path)
    file = file / "rows.jsonl" if file.is_dir() else file
    rows: dict[str, dict[str, Any]] = {}
    content = file.read_bytes() if file.exists() else b""
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        row: Any = None
        with contextlib.suppress(ValueError):
            row = json.loads(line)
        if not isinstance(row, dict) or not {"id", "kind"} <= set(row):
            raise StorageError(f"line {number} of {file} is no row: {line[:80]!r}")
        rows[row["id"]] = row
    return rows


class Rows:
    """The rows of a folder, opened by one process to add more; those that are there stay.

    Raises:
        StorageError: If another process has opened them, or a line is no row.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder) / "rows.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._rows = read_rows(path)
            self._file.seek(0)
            self._file.truncate(self._file.read().rfind(b"\n") + 1)
        except BaseException as error:
            self._file.close()
            if isinstance(error, BlockingIOError):
                raise StorageError(f"another benchmark is writing to {path}") from None
            raise

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row, whole or not at all. A loss of power may lose it."""
        data: dict[str, Any] = finite(dict(row))
        # Answers of models may not be UTF-8, such as half of a pair of surrogates.
        line = json.dumps(data, allow_nan=False).encode("ascii") + b"\n"
        before = self._file.seek(0, 2)
        try:
            while line:
                line = line[self._file.write(line) :]
        except BaseException:
            self._file.truncate(before)
            raise
        self._rows[data["id"]] = data

    def get(self, id_: str) -> dict[str, Any] | None:
        """Return the row of an id that counts."""
        return self._rows.get(id_)

    @property
    def all(self) -> tuple[dict[str, Any], ...]:
        """All rows that count."""
        return tuple(self._rows.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
