"""Episodes of RLDS: what the last step means, both forms of steps, and wrong episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.buffers import OfflineDataset
from echoic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LENGTHS = (5, 1, 3)


def episode(number: int, length: int, *, terminal: bool) -> dict[str, Any]:
    """An episode of ``length`` observations, whose last action and reward mean nothing."""
    rows = np.arange(length)
    is_last = rows == length - 1
    return {
        "steps": {
            "observation": {
                "state": (100 * number + rows).astype(np.float32)[:, None],
                "text": [b"go"] * length,
            },
            "action": np.where(is_last, -1, 100 * number + rows),
            "reward": np.where(is_last, np.nan, rows).astype(np.float32),
            "discount": np.full(length, 0.5, np.float32),
            "is_first": rows == 0,
            "is_last": is_last,
            "is_terminal": is_last & terminal,
        }
    }


def episodes(*, one_by_one: bool) -> Iterator[dict[str, Any]]:
    for number, length in enumerate(LENGTHS):
        made = episode(number, length, terminal=number == 0)
        if one_by_one:
            steps = made["steps"]
            observation = steps.pop("observation")
            made["steps"] = (
                {name: values[row] for name, values in steps.items()}
                | {"observation": {name: values[row] for name, values in observation.items()}}
                for row in range(length)
            )
        yield made


@pytest.mark.parametrize("one_by_one", [False, True])
def test_the_last_step_is_only_an_observation(one_by_one: bool) -> None:
    dataset = OfflineDataset.from_rlds(episodes(one_by_one=one_by_one), extras=["discount"])
    batch = dataset.sample(200, seed=0)
    assert sorted(set(batch["actions"].tolist())) == [0, 1, 2, 3, 200, 201]
    assert (len(dataset), dataset.num_episodes) == (6, 2)
    state, following = batch["obs"]["state"][:, 0], batch["next_obs"]["state"][:, 0]
    np.testing.assert_array_equal(state, batch["actions"])
    np.testing.assert_array_equal(following, batch["actions"] + 1)
    np.testing.assert_array_equal(batch["rewards"], batch["actions"] % 100)
    np.testing.assert_array_equal(batch["terminated"], batch["actions"] == 3)
    np.testing.assert_array_equal(batch["truncated"], batch["actions"] == 201)
    assert set(batch["discount"].ravel().tolist()) == {0.5}
    # Text is no array of numbers.
    assert list(batch["obs"]) == ["state"]


def test_a_cache_is_written_and_used(tmp_path: Path) -> None:
    for source in (episodes(one_by_one=False), (_ for _ in ())):
        dataset = OfflineDataset.from_rlds(source, cache_dir=tmp_path / "cache")
        assert (len(dataset), dataset.stats().memory_bytes) == (6, 0)


def test_rewards_are_zero_where_there_are_none() -> None:
    made = episode(0, 4, terminal=True)
    del made["steps"]["reward"], made["steps"]["is_terminal"]
    dataset = OfflineDataset.from_rlds([made])
    assert dataset.stats().max_return == 0
    assert dataset.sample(9)["truncated"].any()


def wrong(**changes: Any) -> list[dict[str, Any]]:
    steps = episode(0, 4, terminal=True)["steps"]
    return [{"steps": {k: v for k, v in {**steps, **changes}.items() if v is not None}}]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([1], "episode 0: expected a dict with `steps`, got int"),
        ([{"a": 1}], r"expected a dict with `steps`, got \['a'\]"),
        ([{"steps": [1]}], "expected steps that are dicts"),
        ([{"steps": [{"a": 1}, {"b": 1}]}], "dicts with the same fields"),
        ([{"steps": [{"a": [1]}, {"a": [1, 2]}]}], "expected steps of one form"),
        (wrong(action=None), "expected `action` in its steps"),
        (wrong(action=np.zeros(3)), r"expected as many rows of each, got \[3, 4\]"),
        (wrong(action=1), "`action`: expected a row for each step, got a number"),
        (wrong(observation=np.array(["a"] * 4)), "expected `obs`"),
        ([], "expected `obs`"),
    ],
)
def test_wrong_episodes_are_named(source: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        OfflineDataset.from_rlds(source)


def test_a_folder_without_a_builder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"expected a folder with a dataset_info.json"):
        OfflineDataset.from_rlds(tmp_path)
