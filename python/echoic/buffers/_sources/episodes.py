"""Read data sets of the Minari package, or with episodes like its, as blocks of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic._progress import each
from echoic.buffers._sources.folder import collect
from echoic.errors import SpecError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

__all__ = ["blocks_of", "read_minari"]


def blocks_of(episodes: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield a block of rows for each episode, given as its name and columns.

    ``observations`` have one row more than there are steps. If neither flag is set at its last
    step, the episode was truncated there.
    """
    for name, columns in episodes:
        flags = [np.asarray(columns[key], np.bool_) for key in ("terminations", "truncations")]
        rewards = np.asarray(columns["rewards"])
        steps = len(rewards)
        if steps == 0:
            continue
        terminated, truncated = flags[0], flags[1].copy()
        for key, values in (("terminations", terminated), ("truncations", truncated)):
            if values.shape != (steps,):
                raise SpecError(f"{name}: `{key}`: expected {steps} rows, got {values.shape}")
        truncated[-1] |= not terminated[-1]
        ends = np.flatnonzero(terminated | truncated)
        starts = np.concatenate([[0], ends[:-1] + 1])
        # A flag before the end splits the episode: the next one begins with the observation that
        # the first one ended with.
        rows = np.concatenate([np.arange(a, b + 2) for a, b in zip(starts, ends, strict=True)])
        block = {"rewards": rewards, "terminations": terminated, "truncations": truncated}
        for key, count in (("observations", steps + 1), ("actions", steps)):
            paths, leaves, _ = _trees.tree_flatten_with_path(columns[key])
            for path, leaf in zip(paths, leaves, strict=True):
                array = np.asarray(leaf)
                where = "/".join([key, *map(str, path)])
                if array.ndim == 0 or len(array) != count:
                    got = array.shape
                    raise SpecError(f"{name}: `{where}`: expected {count} rows, got shape {got}")
                block[where] = array[rows] if key == "observations" else array
        yield block


def read_minari(dataset: Any, cache_dir: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return the arrays of a data set, or of the local one with this name."""
    if isinstance(dataset, str):
        import minari

        dataset = minari.load_dataset(dataset)

    def episodes() -> Iterator[tuple[str, dict[str, Any]]]:
        total = getattr(dataset, "total_episodes", None)
        for number, episode in enumerate(each(dataset.iterate_episodes(), total)):
            keys = ("observations", "actions", "rewards", "terminations", "truncations")
            yield f"episode {number}", {key: getattr(episode, key) for key in keys}

    name = getattr(getattr(dataset, "spec", None), "dataset_id", type(dataset).__name__)
    source = f"Minari's {name} of {getattr(dataset, 'total_steps', '?')} steps"
    return collect(lambda: blocks_of(episodes()), cache_dir, source)
