"""Save and restore the contents of a buffer, in memory or in a file.

A file is an ``.npz`` archive of plain arrays: one for each leaf of the transitions, the state of
the random draws, and a description in JSON. Nothing in it is pickled, and everything is checked
before it is used.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic._progress import each, working
from echoic.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic import _native

FORMAT = 1
ABOUT = "about"
OPTIONAL = ("weights", "largest", "envs", "ends")


class StateMethods:
    """Methods of buffers whose contents can be saved, by ``_leaves``, ``_state`` and ``_load``."""

    def state_dict(self: Any) -> dict[str, Any]:
        """Return a copy of the contents: arrays by path, numbers and strings.

        Calls of ``add`` may wait for the copy; those of a ``ReplayBuffer`` wait when they get a
        sixteenth of the capacity ahead of it.
        """
        return state_of(self)

    def load_state_dict(self: Any, state: Mapping[str, Any]) -> None:
        """Replace the contents by those of another buffer with the same fields.

        Random draws continue as those of the other buffer would have, if it is of this class. If
        there are more rows than ``capacity``, the last ones are kept. After an error nothing is
        changed.

        Raises:
            ReplayError: If ``state`` is not a buffer's state, or has other fields.
        """
        load(self, state)

    def save(self: Any, path: str | os.PathLike[str]) -> None:
        """Write :meth:`state_dict` to a file, which appears complete or not at all.

        It is an ``.npz`` archive of plain arrays, which numpy reads without pickle.
        """
        save(self, path)

    def load(self: Any, path: str | os.PathLike[str]) -> None:
        """Replace the contents by those of a file, as :meth:`load_state_dict` does.

        Raises:
            ReplayError: If the file is not a saved buffer, or has other fields.
            FileNotFoundError: If there is no such file.
        """
        load(self, read(path))


def state_of(buffer: _native.ReplayBuffer) -> dict[str, Any]:
    """Return the contents of a buffer, as arrays, numbers and strings."""
    state = buffer._state()
    rows = dict(zip((path for path, _, _ in buffer._leaves()), state.pop("rows"), strict=True))
    leaves = [[path, dtype, list(shape)] for path, dtype, shape in buffer._leaves()]
    return {"format": FORMAT, "leaves": leaves, "rows": rows, **state}


def load(buffer: _native.ReplayBuffer, state: Mapping[str, Any]) -> None:
    """Replace the contents of a buffer; if anything is wrong, change nothing."""
    missing = {"format", "leaves", "rows", "rng", "first"} - state.keys()
    if missing:
        raise ReplayError(
            f"expected the state of a buffer, got one without {', '.join(sorted(missing))}"
        )
    if state["format"] != FORMAT:
        raise ReplayError(f"expected a state of format {FORMAT}, got format {state['format']}")
    own = [(path, dtype, tuple(shape)) for path, dtype, shape in buffer._leaves()]
    found = [(path, dtype, tuple(shape)) for path, dtype, shape in state["leaves"]]
    if sorted(own) != sorted(found):
        raise ReplayError(
            "the state is of other transitions: "
            f"expected {_text(own, found)}, got {_text(found, own)}"
        )
    rows = state["rows"]
    absent = [path for path, _, _ in own if path not in rows]
    if absent:
        raise ReplayError(f"expected rows of `{absent[0]}` in the state, got {sorted(rows)}")
    buffer._load(
        [np.ascontiguousarray(rows[path]) for path, _, _ in own],
        np.asarray(state["rng"], np.uint64),
        int(state["first"]),
        **{name: state[name] for name in OPTIONAL if name in state},
    )


def _text(leaves: list[tuple[str, str, tuple[int, ...]]], others: list[Any]) -> str:
    """List the leaves that are not in ``others``."""
    odd = [leaf for leaf in leaves if leaf not in others]
    return (
        ", ".join(f"{path}: {dtype}{list(shape)}" for path, dtype, shape in odd) or "nothing more"
    )


def save(buffer: _native.ReplayBuffer, path: str | os.PathLike[str]) -> None:
    """Write the contents of a buffer to a file, which appears complete or not at all."""
    with working(f"saving {path}"):
        state = state_of(buffer)
        about = {key: state[key] for key in ("format", "leaves")}
        arrays = {f"rows/{name}": array for name, array in state["rows"].items()}
        arrays |= {
            name: np.asarray(state[name]) for name in ("rng", "first", *OPTIONAL) if name in state
        }
        write(path, about, arrays)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state in a file that :func:`save` wrote."""
    try:
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            about = json.loads(bytes(file[ABOUT]))
            state: dict[str, Any] = {"format": about["format"], "leaves": about["leaves"]}
            names = [name for name in file if name.startswith("rows/")]
            with working(f"loading {path}"):
                state["rows"] = {
                    name.removeprefix("rows/"): file[name] for name in each(names, len(names))
                }
            for name in ("rng", "first", *OPTIONAL):
                if name in file:
                    state[name] = file[name]
            state["first"] = int(state["first"])
            if "largest" in state:
                state["largest"] = float(state["largest"])
    except FileNotFoundError:
        raise
    except Exception as error:  # each part of a damaged archive can fail in its own way
        raise ReplayError(f"{path} is not a saved buffer: {error}") from error
    return state


def write(
    path: str | os.PathLike[str],
    about: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray[Any, Any]],
) -> None:
    """Write arrays to an ``.npz`` archive, with a description in JSON."""
    described = np.frombuffer(json.dumps(about).encode(), np.uint8)
    path = Path(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("wb") as file:
            np.savez(file, allow_pickle=False, **{**arrays, ABOUT: described})
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
