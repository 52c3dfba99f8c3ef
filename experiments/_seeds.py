"""What studies over several seeds share: rows that are kept, and intervals of their means."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Rows:
    """The rows of a study, each appended to a file as soon as it is known.

    Args:
        path: The file, which may have rows of an earlier run.
        keys: The fields that tell rows apart.
    """

    def __init__(self, path: Path, keys: Iterable[str]) -> None:
        self._path = path
        self._keys = tuple(keys)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        # A run that was stopped may have left half a line.
        lines = text.split("\n")[:-1]
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        if text and not text.endswith("\n"):
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def has(self, **key: Any) -> bool:
        """Whether there is a row with these keys."""
        return any(all(row[name] == key[name] for name in self._keys) for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def of(self, **fields: Any) -> list[dict[str, Any]]:
        """The rows with these fields."""
        return [row for row in self.rows if all(row[name] == fields[name] for name in fields)]


def interval(values: list[float], *, draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean, by drawing seeds with replacement."""
    rng = np.random.default_rng(seed)
    means = rng.choice(np.asarray(values, float), (draws, len(values))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
