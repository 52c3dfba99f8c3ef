"""Data sets of LeRobot: both formats, what an episode's end means, images, and damaged folders."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.buffers import OfflineDataset
from echoic.errors import SpecError
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from pathlib import Path

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LENGTHS, BOTH = (4, 1, 3), {"obs", "next_obs"}
FEATURES: dict[str, Any] = {
    "observation.state": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
    "observation.speed": {"dtype": "int64", "shape": [1], "names": None},
    "action": {"dtype": "float32", "shape": [1], "names": ["motor"]},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    "next.done": {"dtype": "bool", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "note": {"dtype": "string", "shape": [1], "names": None},
}
# The first episode was done, and the others only end.
DONE = [3]


def columns() -> dict[str, Any]:
    frames = sum(LENGTHS)
    number = np.arange(frames)
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    return {
        "observation.state": np.stack([number, -number], 1).astype(np.float32),
        "observation.speed": number,
        "action": number.astype(np.float32),
        "next.reward": number.astype(np.float32),
        "next.done": np.isin(number, DONE),
        "episode_index": episode,
        "timestamp": np.concatenate([np.arange(n) / 10 for n in LENGTHS]).astype(np.float32),
        "note": ["text"] * frames,
    }


def table(values: dict[str, Any], rows: slice) -> Any:
    """Rows of columns as Arrow has them."""
    return pa.table(
        {k: list(v)[rows] if k == "note" else arrow(v[rows]) for k, v in values.items()}
    )


def arrow(values: Any) -> Any:
    return pa.array(values if np.ndim(values) == 1 else list(values))


def info(root: Path, version: str = "v3.0", **changes: Any) -> None:
    about = {"codebase_version": version, "fps": 10, "features": FEATURES, "chunks_size": 1000}
    (root / "meta").mkdir(exist_ok=True, parents=True)
    (root / "meta" / "info.json").write_text(json.dumps({**about, **changes}))


def folder(root: Path, values: dict[str, Any] | None = None) -> Path:
    """Write a data set of format 3 in two files, the second of which starts within an episode."""
    info(root)
    chunk = root / "data" / "chunk-000"
    chunk.mkdir(parents=True)
    values = values or columns()
    pq.write_table(table(values, slice(0, 6)), chunk / "file-000.parquet")
    pq.write_table(table(values, slice(6, None)), chunk / "file-001.parquet")
    return root


def steps_of(dataset: OfflineDataset) -> dict[int, Any]:
    """The steps by their action, which numbers them."""
    batch = dataset.sample(400, seed=0)
    return {
        int(action[0]): {name: batch[name][row] for name in batch.data if name not in BOTH}
        | {"state": batch["obs"]["state"][row], "next": batch["next_obs"]["state"][row]}
        for row, action in enumerate(batch["actions"])
    }


def check(dataset: OfflineDataset) -> None:
    # Frames 4 and 7 are the last of episodes that only end: what follows is unknown.
    steps = steps_of(dataset)
    assert sorted(steps) == [0, 1, 2, 3, 5, 6]
    assert (dataset.num_episodes, dataset.stats().last_episode_complete) == (2, True)
    for number, step in steps.items():
        assert step["rewards"] == number
        assert (step["terminated"], step["truncated"]) == (number == 3, number == 6)
        assert step["state"].tolist() == [number, -number]
        assert step["next"].tolist() == ([3, -3] if number == 3 else [number + 1, -number - 1])


def test_format_3_is_read_across_files(tmp_path: Path) -> None:
    dataset = OfflineDataset.from_lerobot(folder(tmp_path))
    check(dataset)
    batch = dataset.sample(4)
    assert sorted(batch["obs"]) == ["speed", "state"]
    # One element with a name is an array, and without one a number.
    assert (batch["actions"].shape, batch["obs"]["speed"].shape) == ((4, 1), (4,))


def test_format_2_is_read(tmp_path: Path) -> None:
    info(tmp_path, "v2.1")
    values, start = columns(), 0
    for number, length in enumerate(LENGTHS):
        chunk = tmp_path / "data" / "chunk-000"
        chunk.mkdir(parents=True, exist_ok=True)
        rows = slice(start, start := start + length)
        pq.write_table(table(values, rows), chunk / f"episode_{number:06d}.parquet")
    check(OfflineDataset.from_lerobot(tmp_path))


def test_a_cache_has_the_same_steps_mapped(tmp_path: Path) -> None:
    for _ in range(2):
        root = tmp_path / "data"
        dataset = OfflineDataset.from_lerobot(
            root if root.exists() else folder(root), cache_dir=tmp_path / "cache"
        )
        check(dataset)
        assert dataset.stats().memory_bytes == 0
    with pytest.raises(SpecError, match="expected a folder made from LeRobot's 3 files"):
        OfflineDataset.from_lerobot(root, cache_dir=tmp_path / "cache", extras=["timestamp"])


def test_files_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "data" / "chunk-1000").mkdir()
    chunk = tmp_path / "data" / "chunk-000"
    chunk.rename(tmp_path / "data" / "chunk-999")
    file = tmp_path / "data" / "chunk-999" / "file-001.parquet"
    file.rename(tmp_path / "data" / "chunk-1000" / "file-000.parquet")
    check(OfflineDataset.from_lerobot(tmp_path))


def test_truncations_are_not_terminations_and_extras_are_read(tmp_path: Path) -> None:
    values = columns()
    values["next.truncated"] = values["next.done"]
    folder(tmp_path, values)
    info(tmp_path, features={**FEATURES, "next.truncated": FEATURES["next.done"]})
    dataset = OfflineDataset.from_lerobot(tmp_path, extras=["episode_index"])
    steps = steps_of(dataset)
    assert sorted(steps) == [0, 1, 2, 5, 6]
    assert {n for n, step in steps.items() if step["truncated"]} == {2, 6}
    assert not any(step["terminated"] for step in steps.values())
    assert {n: step["episode_index"] for n, step in steps.items()} == {0: 0, 1: 0, 2: 0, 5: 2, 6: 2}


def test_rewards_are_zero_where_there_are_none(tmp_path: Path) -> None:
    folder(tmp_path)
    features = {name: form for name, form in FEATURES.items() if not name.startswith("next.")}
    info(tmp_path, features=features)
    dataset = OfflineDataset.from_lerobot(tmp_path)
    assert dataset.stats().max_return == 0
    assert sorted(steps_of(dataset)) == [0, 1, 2, 5, 6]


def with_images(root: Path, pixels: Any) -> Path:
    """A data set with an image in each frame."""
    image = pytest.importorskip("PIL.Image")

    def png(array: Any) -> dict[str, Any]:
        file = io.BytesIO()
        image.fromarray(array).save(file, "PNG")
        return {"bytes": file.getvalue(), "path": "/etc/passwd"}

    form = {"dtype": "image", "shape": [6, 5, 3], "names": ["height", "width", "channels"]}
    values = {**columns(), "observation.images.top": [png(array) for array in pixels]}
    info(root, features={**FEATURES, "observation.images.top": form})
    chunk = root / "data" / "chunk-000"
    chunk.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(values, slice(None)), chunk / "file-000.parquet")
    return root


def test_images_are_decoded_and_can_be_left_out(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (sum(LENGTHS), 6, 5, 3), np.uint8)
    dataset = OfflineDataset.from_lerobot(with_images(tmp_path, pixels))
    batch = dataset.sample(50, seed=0)
    numbers = batch["actions"][:, 0].astype(int)
    np.testing.assert_array_equal(batch["obs"]["images"]["top"], pixels[numbers])
    following = np.where(batch["terminated"], numbers, numbers + 1)
    np.testing.assert_array_equal(batch["next_obs"]["images"]["top"], pixels[following])
    assert "images" not in OfflineDataset.from_lerobot(tmp_path, images=()).sample(1)["obs"]
    with pytest.raises(SpecError, match=r"images: expected some of 'observation.images.top', got"):
        OfflineDataset.from_lerobot(tmp_path, images=["top"])


@pytest.mark.parametrize(
    ("shape", "message"), [((6, 6, 3), r"expected images of \(6, 5, 3\), got \(6, 6, 3\)")]
)
def test_images_of_other_sizes_are_refused(tmp_path: Path, shape: Any, message: str) -> None:
    pixels = np.zeros((sum(LENGTHS), *shape), np.uint8)
    with pytest.raises(SpecError, match=message):
        OfflineDataset.from_lerobot(with_images(tmp_path, pixels))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codebase_version": "v1.6"}, "expected format v3 or v2, got 'v1.6'"),
        ({"codebase_version": "v4.0"}, "expected format v3 or v2"),
        ({"fps": 0}, "expected a positive `fps`"),
        ({"fps": "fast"}, "expected `codebase_version`"),
        ({"fps": None}, "expected `codebase_version`"),
        ({"chunks_size": float("inf")}, "expected `codebase_version`"),
        ({"features": []}, "expected `codebase_version`"),
        ({"features": {"action": 1}}, "expected `codebase_version`"),
        ({"features": {"action": FEATURES["action"]}}, "expected features of `observation.`"),
        ({"features": {"observation.a": FEATURES["action"]}}, "expected features of `action`"),
        ({"features": {"observation/../a": FEATURES["action"]}}, "a name without slashes"),
        ({"features": {"action": {"dtype": "object", "shape": [1]}}}, "the dtype of numbers"),
        ({"features": {"action": {"dtype": "float32", "shape": [-1]}}}, "expected a shape"),
        ({"features": {"action": {"dtype": "float32", "shape": [1 << 50]}}}, "expected a shape"),
        ({"features": {**FEATURES, "action": {"dtype": "int8", "shape": [1]}}}, "expected int8"),
        (
            {"features": {**FEATURES, "action": {"dtype": "float32", "shape": [3]}}},
            r"file-000.parquet: `action`: expected float32\[3\] as the metadata say, got float32",
        ),
        (
            {"features": {**FEATURES, "observation.b": {"dtype": "int8", "shape": [1]}}},
            "file-000.parquet: expected the column `observation.b`",
        ),
        (
            {"features": {**FEATURES, "observation.state.a": FEATURES["observation.state"]}},
            "expected the column",
        ),
        (
            {"features": {**FEATURES, "observation.note": {"dtype": "image", "shape": [1, 2]}}},
            "expected images of height, width",
        ),
        ({"chunks_size": 0}, "chunks_size"),
    ],
)
def test_wrong_metadata_are_named(tmp_path: Path, changes: Any, message: str) -> None:
    folder(tmp_path)
    info(tmp_path, **changes)
    with pytest.raises(SpecError, match=message):
        OfflineDataset.from_lerobot(tmp_path)


def test_metadata_that_are_no_json_are_named(tmp_path: Path) -> None:
    folder(tmp_path)
    for text in ("", "{", "[" * 200_000, "[]", '"v3.0"'):
        (tmp_path / "meta" / "info.json").write_text(text)
        with pytest.raises(SpecError, match=r"info.json: expected `codebase_version`"):
            OfflineDataset.from_lerobot(tmp_path)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"info.json: expected the folder of a LeRobot"):
        OfflineDataset.from_lerobot(tmp_path)
    info(tmp_path)
    with pytest.raises(SpecError, match="data: expected Parquet files in folders of it"):
        OfflineDataset.from_lerobot(tmp_path)
    folder(tmp_path / "whole")
    info(tmp_path / "whole", total_frames=9)
    with pytest.raises(SpecError, match=r"data: expected 9 frames as meta/info.json says, got 8"):
        OfflineDataset.from_lerobot(tmp_path / "whole")
    info(tmp_path / "whole", total_frames=8)
    file = tmp_path / "whole" / "data" / "chunk-000" / "file-001.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(SpecError, match=r"file-001.parquet: expected an intact Parquet file"):
        OfflineDataset.from_lerobot(tmp_path / "whole")
    with pytest.raises(SpecError, match="extras: expected some of"):
        OfflineDataset.from_lerobot(tmp_path / "whole", extras=["goal"])


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_damaged_file_is_an_error_or_harmless(tmp_path_factory: Any, data: Any) -> None:
    root = folder(tmp_path_factory.mktemp("damaged"))
    names = ("meta/info.json", "data/chunk-000/file-000.parquet")
    file = root / data.draw(st.sampled_from(names))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    try:
        dataset = OfflineDataset.from_lerobot(root)
    except SpecError:
        return
    assert dataset.sample(8)["rewards"].shape == (8,)
