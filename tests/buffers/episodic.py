"""Data sets of random episodes, and what they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from echoic.buffers import OfflineDataset
from hypothesis import strategies as st

DTYPES = ("bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64")
SHAPES = ((), (1,), (3,), (2, 3), (1, 2, 2), (6, 5, 3), (6, 5, 1))


def values(seed: int, rows: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Random bytes as an array: any number that the dtype has, except NaN."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, (rows, *shape)).astype(bool)
    if dtype.startswith("float"):
        return (rng.normal(size=(rows, *shape)) * 100).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, (rows, *shape), dtype, endpoint=True)


def made(
    lengths: list[int], kinds: dict[str, tuple[str, tuple[int, ...]]], ends: list[bool]
) -> tuple[OfflineDataset, list[dict[str, Any]]]:
    """A data set of episodes, and the episodes."""
    steps, last = sum(lengths), np.cumsum(lengths) - 1
    columns = {
        name: values(number, steps + (len(lengths) if name != "actions" else 0), *kind)
        for number, (name, kind) in enumerate(kinds.items())
    }
    actions = columns.pop("actions")
    rewards = values(77, steps, "float32", ())
    terminated, truncated = np.zeros((2, steps), bool)
    terminated[last] = ends
    truncated[last] = ~np.array(ends)
    dataset = OfflineDataset(
        columns, None, {"a": actions}, rewards, terminated, truncated, extras={"x": {"y": actions}}
    )
    starts = np.append(0, last + 1)
    episodes = [
        {
            "obs": {
                name: leaf[starts[n] + n : starts[n + 1] + n + 1] for name, leaf in columns.items()
            },
            "actions": {"a": actions[starts[n] : starts[n + 1]]},
            "rewards": rewards[starts[n] : starts[n + 1]],
            "terminated": terminated[starts[n] : starts[n + 1]],
            "truncated": truncated[starts[n] : starts[n + 1]],
            "x": {"y": actions[starts[n] : starts[n + 1]]},
        }
        for n in range(len(lengths))
    ]
    return dataset, episodes


def same(left: Any, right: Any, path: str = "") -> None:
    """Both have the same structure, dtypes, shapes and bytes."""
    if isinstance(right, dict):
        assert sorted(left) == sorted(right), path
        for name in right:
            same(left[name], right[name], f"{path}/{name}")
    else:
        left = np.asarray(left)
        assert (left.dtype, left.shape) == (right.dtype, right.shape), path
        assert left.tobytes() == right.tobytes(), path


def all_same(left: Any, right: Any) -> None:
    for one, other in zip(left, right, strict=True):
        same(one, other)


@st.composite
def data_sets(draw: Any) -> Any:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    kind = st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES))
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
    kinds = {name: draw(kind) for name in [*names, "actions"]}
    ends = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    return made(lengths, kinds, ends)
