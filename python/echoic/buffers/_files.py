"""Arrays in a file that appears whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

ABOUT = "about"


def write(
    path: str | os.PathLike[str],
    about: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray[Any, Any]],
) -> None:
    """Writes arrays to an ``.npz`` archive, and beside them a description in JSON."""
    told = np.frombuffer(json.dumps(about).encode(), np.uint8)
    path = Path(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("wb") as file:
            np.savez(file, allow_pickle=False, **{**arrays, ABOUT: told})
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
