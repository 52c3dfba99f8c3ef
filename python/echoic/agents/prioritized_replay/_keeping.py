"""A buffer in a file: an ``.npz`` archive of plain arrays, which numpy reads without pickle."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.buffers._keeping import ABOUT, write
from echoic.errors import ReplayError

if TYPE_CHECKING:
    import os

    from echoic import _native
    from echoic.agents.prioritized_replay.replay import PrioritizedReplayBuffer

FORMAT = 1
# What scores in the file were computed with.
RULES = (
    *("surprise_weight", "reward_weight", "ema_decay", "score_scale", "score_clip"),
    *("sampling_mode", "priority_alpha"),
)


def save(buffer: PrioritizedReplayBuffer, path: str | os.PathLike[str]) -> None:
    """Writes everything to a file, which appears whole or not at all."""
    rows = buffer._store.rows
    config = dataclasses.asdict(buffer.config)
    about: dict[str, Any] = {
        "format": FORMAT,
        "latent_dim": buffer.latent_dim,
        "rules": {name: config[name] for name in RULES},
        "leaves": None,
        "seed": buffer._store.seed,
    }
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    if rows is None:
        calculator = buffer.surprise_calculator
        arrays["mean"] = calculator.get_ema_plan()
        arrays["mean_count"] = np.asarray(calculator.get_statistics()["count"])
    else:
        leaves = rows.leaves()
        about["leaves"] = [[name, dtype, list(shape)] for name, dtype, shape in leaves]
        state = rows.state()
        columns = zip(leaves, state.pop("rows"), strict=True)
        arrays |= {f"rows/{name}": array for (name, _, _), array in columns}
        arrays |= {name: np.asarray(value) for name, value in state.items()}
    write(path, about, arrays)


def load(buffer: PrioritizedReplayBuffer, path: str | os.PathLike[str]) -> None:
    """Replaces everything by what a file has."""
    about, arrays = _read(path)
    config = dataclasses.asdict(buffer.config)
    if about["latent_dim"] != buffer.latent_dim:
        got, expected = about["latent_dim"], buffer.latent_dim
        raise ReplayError(f"{path} has plans of {got} dimensions, and the buffer of {expected}")
    for name in RULES:
        if about["rules"][name] != config[name]:
            got, expected = about["rules"][name], config[name]
            raise ReplayError(f"{path} was made with {name}={got!r}, and the buffer {expected!r}")
    store = buffer._store
    if about["leaves"] is None:
        # Files of earlier versions do not say how draws begin.
        store.reset(about.get("seed", store.seed))
        if buffer._moves:
            ema = {"decay": buffer.config.ema_decay, "count": int(arrays["mean_count"])}
            buffer.surprise_calculator.tracker.load_state_dict({**ema, "ema": arrays["mean"]})
    else:
        leaves = [(name, dtype, tuple(shape)) for name, dtype, shape in about["leaves"]]
        with store.beginning:
            rows = store.rows
            if rows is None:
                example = {name: np.zeros(shape, dtype) for name, dtype, shape in leaves}
                store.begin(example, lambda made: _fill(made, path, leaves, arrays))
        if rows is not None:
            _fill(rows, path, leaves, arrays)


def _fill(
    rows: _native.SurpriseReplay,
    path: str | os.PathLike[str],
    leaves: list[tuple[str, str, tuple[int, ...]]],
    arrays: dict[str, Any],
) -> None:
    """Has a native buffer become what the arrays say."""
    own = [(name, dtype, tuple(shape)) for name, dtype, shape in rows.leaves()]
    if sorted(own) != sorted(leaves):
        odd = [leaf for leaf in leaves if leaf not in own]
        raise ReplayError(f"{path} has other experiences: {odd}, and the buffer has {own}")
    try:
        state = {name: array for name, array in arrays.items() if "/" not in name}
        state["mean_count"] = int(arrays["mean_count"])
        columns = [np.ascontiguousarray(arrays[f"rows/{name}"]) for name, _, _ in own]
        rows.load({**state, "rows": columns})
    except (KeyError, TypeError) as error:
        raise ReplayError(f"{path} is not a buffer that was saved: {error}") from error


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file}
        about = json.loads(bytes(arrays.pop(ABOUT)))
        missing = {"format", "latent_dim", "rules", "leaves"} - about.keys()
        if missing or set(RULES) - about["rules"].keys():
            raise ValueError("it does not say what it has")
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged archive fails in as many ways as it has parts
        raise ReplayError(f"{path} is not a buffer that was saved: {error}") from error
    if about["format"] != FORMAT:
        raise ReplayError(f"{path} has format {about['format']}, and this reads format {FORMAT}")
    return about, arrays
