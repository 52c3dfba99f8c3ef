"""Data sets of the Minari package, or whatever has episodes like one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic.buffers._sources.episodes import blocks_of
from echoic.buffers._sources.folder import collect
from echoic.buffers._sources.progress import shown

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["read_minari"]


def read_minari(dataset: Any, cache_dir: str | os.PathLike[str] | None) -> dict[str, Any]:
    """The arrays of a data set, or of the local one of this name."""
    if isinstance(dataset, str):
        import minari  # noqa: PLC0415 - only who reads such data needs it

        dataset = minari.load_dataset(dataset)

    def episodes() -> Iterator[tuple[str, dict[str, Any]]]:
        total = getattr(dataset, "total_episodes", None)
        for number, episode in enumerate(shown(dataset.iterate_episodes(), total, "episodes")):
            keys = ("observations", "actions", "rewards", "terminations", "truncations")
            yield f"episode {number}", {key: getattr(episode, key) for key in keys}

    name = getattr(getattr(dataset, "spec", None), "dataset_id", type(dataset).__name__)
    source = f"Minari's {name} of {getattr(dataset, 'total_steps', '?')} steps"
    return collect(lambda: blocks_of(episodes()), cache_dir, source)
