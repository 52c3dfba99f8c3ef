"""The rows of a benchmark: one JSON object a line, added as episodes end, never changed.

A row is of one ``kind``: ``"episode"``, ``"training"`` (what a run measured while it was trained),
or ``"cell"`` (one that was skipped or failed, with the reason). The last row of an ``id`` counts:
what failed first may have gone well later. Every number of a report is computed from these.

# Invariants

1. One process writes at a time; another is told so.
2. A line is written at once and whole; if that fails it is taken back. What a crash of the process
   left of a last line is cut off. Nothing is forced to the disk: a loss of power may lose rows.
3. Numbers that are none, such as the cost of a model without a price, are null.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic.errors import ClosedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["Rows", "finite", "objects", "read_rows"]

ROWS = "rows.jsonl"


def read_rows(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Read the rows that count, by ``id``, in the order in which these came first.

    Args:
        path: Of the file, or of a benchmark's folder.
    """
    file = Path(path)
    if file.is_dir():
        file = file / ROWS
    if not file.exists():
        return {}
    return _parse(file.read_bytes())[0]


def _parse(content: bytes) -> tuple[dict[str, dict[str, Any]], int]:
    """The rows, and how many bytes are whole lines."""
    rows: dict[str, dict[str, Any]] = {}
    whole = content.rfind(b"\n") + 1
    for number, line in enumerate(content[:whole].splitlines(), 1):
        row = _row(line)
        if row is None:
            raise StorageError(f"line {number} of the rows is no row: {line[:80]!r}")
        rows[row["id"]] = row
    return rows, whole


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and {"id", "kind"} <= set(row) else None


def objects(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file that has one a line, without lines that a crash left half of."""
    with path.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if isinstance(told, dict):
                    yield told


def finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have, and Python's own numbers."""
    if isinstance(value, dict):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Rows:
    """The rows of a folder, to add to."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Open the rows of a folder; those that are there stay."""
        self.path = Path(folder) / ROWS
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = self.path.read_bytes()
            self._rows, whole = _parse(content)
            os.ftruncate(self._file, whole)
        except BlockingIOError:
            os.close(self._file)
            raise StorageError(f"another benchmark is writing to {self.path}") from None
        except BaseException:
            os.close(self._file)
            raise
        self._open = True

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        if not self._open:
            raise ClosedError(f"{self.path} is closed")
        told: dict[str, Any] = finite(dict(row))
        # Models say things that UTF-8 does not have, such as half of a pair of surrogates.
        line = json.dumps(told, allow_nan=False).encode("ascii") + b"\n"
        before = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except BaseException:
            os.ftruncate(self._file, before)
            raise
        self._rows[told["id"]] = told

    def get(self, id_: str) -> dict[str, Any] | None:
        """The row of an id that counts."""
        return self._rows.get(id_)

    @property
    def all(self) -> tuple[dict[str, Any], ...]:
        """All rows that count."""
        return tuple(self._rows.values())

    def close(self) -> None:
        """Let others write."""
        if self._open:
            self._open = False
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
