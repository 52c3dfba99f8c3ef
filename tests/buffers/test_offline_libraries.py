"""Other libraries judge: they read what was written, and what they wrote is read, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from echoic.buffers import OfflineDataset
from echoic.errors import SpecError
from episodic import all_same, data_sets, same
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.nightly

LENGTHS = (5, 1, 4)
STEPS = sum(LENGTHS)


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"no {name.split('.', maxsplit=1)[0]} here")


def frames_of(seed: int, rows: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (rows, *shape), np.uint8)


def dataset(*, images: bool = False) -> OfflineDataset:
    """Three episodes, of which the second is truncated."""
    rng = np.random.default_rng(0)
    rows = STEPS + len(LENGTHS)
    obs = {
        "state": rng.normal(size=(rows, 3)).astype(np.float32),
        "deep": {"matrix": rng.normal(size=(rows, 2, 3)), "count": rng.integers(0, 99, rows)},
    }
    if images:
        obs["images"] = {
            "top": frames_of(1, rows, (40, 33, 3)),
            "side": frames_of(2, rows, (40, 40, 1)),
        }
    last = np.cumsum(LENGTHS) - 1
    terminated, truncated = np.zeros((2, STEPS), bool)
    terminated[last[[0, 2]]] = True
    truncated[last[1]] = True
    actions = rng.normal(size=(STEPS, 2)).astype(np.float32)
    extras = {"goal": rng.integers(0, 9, (STEPS, 2)).astype(np.int16)}
    rewards = rng.normal(size=STEPS).astype(np.float32)
    return OfflineDataset(obs, None, actions, rewards, terminated, truncated, extras=extras)


# Hugging Face's datasets.


def columns() -> dict[str, Any]:
    number = np.arange(20)
    return {
        "observations": {
            "state": np.stack([number, -number], 1).astype(np.float32),
            "matrix": np.arange(20 * 6).reshape(20, 2, 3),
        },
        "actions": number,
        "rewards": number.astype(np.float32),
        "terminals": number % 5 == 4,
        "goal": number * 2,
    }


def rows_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"observations": {k: v[row].tolist() for k, v in columns["observations"].items()}}
        | {name: columns[name][row].item() for name in columns if name != "observations"}
        for row in range(20)
    ]


def hugging_face() -> Any:
    datasets = library("datasets")
    features = datasets.Features(
        {
            "observations": {
                "state": datasets.Sequence(datasets.Value("float32"), length=2),
                "matrix": datasets.Array2D((2, 3), "int64"),
            },
            "actions": datasets.Value("int64"),
            "rewards": datasets.Value("float32"),
            "terminals": datasets.Value("bool"),
            "goal": datasets.Value("int64"),
            "text": datasets.Value("string"),
        }
    )
    rows = [{**row, "text": "?"} for row in rows_of(columns())]
    return datasets.Dataset.from_list(rows, features=features)


def check_columns(read: OfflineDataset, *, state: Any = np.float32) -> None:
    assert (len(read), read.num_episodes) == (20, 4)
    batch = read.sample(100, seed=0)
    number = batch["actions"]
    assert batch["obs"]["state"].dtype == state
    np.testing.assert_array_equal(batch["obs"]["state"], np.stack([number, -number], 1))
    np.testing.assert_array_equal(
        batch["obs"]["matrix"], columns()["observations"]["matrix"][number]
    )
    np.testing.assert_array_equal(batch["terminated"], number % 5 == 4)
    np.testing.assert_array_equal(batch["goal"], number * 2)
    following = np.where(batch["terminated"], number, number + 1)
    np.testing.assert_array_equal(batch["next_obs"]["state"][:, 0], following)


def test_a_data_set_of_hugging_face_is_read(tmp_path: Path) -> None:
    made = hugging_face()
    check_columns(OfflineDataset.from_huggingface(made, extras=["goal"]))
    backwards = made.select(range(19, -1, -1)).select(range(19, -1, -1))
    check_columns(OfflineDataset.from_huggingface(backwards, extras=["goal"]))
    made.save_to_disk(tmp_path / "saved", num_shards=3)
    for _ in range(2):
        read = OfflineDataset.from_huggingface(
            tmp_path / "saved", extras=["goal"], cache_dir=tmp_path / "cache"
        )
        check_columns(read)
        assert read.stats().memory_bytes == 0


def test_a_stream_of_hugging_face_is_read(tmp_path: Path) -> None:
    datasets = library("datasets")
    stream = hugging_face().to_iterable_dataset(num_shards=2)
    check_columns(OfflineDataset.from_huggingface(stream, extras=["goal"]))
    # A generator does not say which dtypes its rows have.
    stream = datasets.IterableDataset.from_generator(lambda: iter(rows_of(columns())))
    read = OfflineDataset.from_huggingface(stream, extras=["goal"], cache_dir=tmp_path / "cache")
    check_columns(read, state=np.float64)


def test_images_of_hugging_face_are_decoded() -> None:
    datasets, image = library("datasets"), library("PIL.Image")
    pixels = frames_of(0, 4, (8, 9, 3))
    values = {
        "obs": [image.fromarray(row) for row in pixels],
        "actions": [0, 1, 2, 3],
        "rewards": [0.0] * 4,
        "terminated": [False, False, False, True],
    }
    made = datasets.Dataset.from_dict(values).cast_column("obs", datasets.Image())
    batch = OfflineDataset.from_huggingface(made).sample(20, seed=0)
    np.testing.assert_array_equal(batch["obs"], pixels[batch["actions"]])


def test_wrong_data_sets_of_hugging_face_are_named(tmp_path: Path) -> None:
    datasets = library("datasets")
    made = hugging_face()
    both = datasets.DatasetDict({"train": made, "test": made})
    with pytest.raises(SpecError, match="expected one split, got 'train', 'test'"):
        OfflineDataset.from_huggingface(both)
    with pytest.raises(SpecError, match="expected a data set of the datasets package, got int"):
        OfflineDataset.from_huggingface(1)
    with pytest.raises(SpecError, match="expected the extra `text2`"):
        OfflineDataset.from_huggingface(made, extras=["text2"])
    with pytest.raises(SpecError, match="`text`: expected numbers"):
        OfflineDataset.from_huggingface(made, extras=["text"])
    with pytest.raises(FileNotFoundError):
        OfflineDataset.from_huggingface(tmp_path / "none")
    both.save_to_disk(tmp_path / "both")
    with pytest.raises(SpecError, match="expected one split, got several"):
        OfflineDataset.from_huggingface(tmp_path / "both")


@pytest.mark.parametrize("file", ["../other/data-00000-of-00001.arrow", "/etc/passwd", 1, None])
def test_a_saved_data_set_names_no_file_elsewhere(tmp_path: Path, file: Any) -> None:
    hugging_face().save_to_disk(tmp_path / "saved")
    hugging_face().save_to_disk(tmp_path / "other")
    state = tmp_path / "saved" / "state.json"
    about = json.loads(state.read_text())
    about["_data_files"] = [{"filename": file}]
    state.write_text(json.dumps(about))
    with pytest.raises(SpecError, match="expected names of files in the folder, got"):
        OfflineDataset.from_huggingface(tmp_path / "saved")


def test_a_damaged_saved_data_set_is_refused(tmp_path: Path) -> None:
    hugging_face().save_to_disk(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.arrow")
    whole = file.read_bytes()
    for content in (b"", whole[:100], whole[:-200], bytes(len(whole))):
        file.write_bytes(content)
        with pytest.raises(SpecError, match="expected"):
            OfflineDataset.from_huggingface(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text("{")
    with pytest.raises(SpecError, match=r"state.json: expected the list of files"):
        OfflineDataset.from_huggingface(tmp_path / "saved")


def damaged(data: Any, file: Path) -> None:
    """Change a few bytes of a file."""
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_arrow_file_is_an_error_or_harmless(tmp_path_factory: Any, data: Any) -> None:
    folder = tmp_path_factory.mktemp("damaged") / "saved"
    hugging_face().save_to_disk(folder)
    (file,) = folder.glob("*.arrow")
    damaged(data, file)
    try:
        read = OfflineDataset.from_huggingface(folder, extras=["goal"])
    except SpecError:
        return
    assert read.sample(8)["rewards"].shape == (8,)


# Videos of LeRobot.

VIDEO = {"dtype": "video", "shape": [32, 48, 3], "names": ["height", "width", "channels"]}


def write_video(path: Path, frames: Any, rate: int = 10) -> None:
    """Write frames without loss."""
    av = library("av")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="mp4") as file:
        stream = file.add_stream("libx264rgb", rate=rate, options={"crf": "0", "g": "2"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "rgb24"
        for pixels in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)


def with_videos(root: Path, version: str = "v3.0") -> dict[str, Any]:
    """Write a data set of two cameras, one with a file for all episodes, and return the frames."""
    pa, pq = library("pyarrow"), library("pyarrow.parquet")
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    starts = np.cumsum([0, *LENGTHS])
    times = np.concatenate([np.arange(length) / 10 for length in LENGTHS])
    scalar = {"shape": [1], "names": None}
    form = {
        "observation.images.a": VIDEO,
        "observation.images.b": VIDEO,
        "action": {"dtype": "int64", **scalar},
        "next.done": {"dtype": "bool", **scalar},
    }
    pixels = {camera: frames_of(seed, STEPS, (32, 48, 3)) for seed, camera in enumerate("ab")}
    about = {"codebase_version": version, "fps": 10, "features": form, "chunks_size": 2}
    (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps(about))
    (root / "data" / "chunk-000").mkdir(parents=True)
    table = pa.table(
        {
            "action": np.arange(STEPS),
            "next.done": np.isin(np.arange(STEPS), starts[1:] - 1),
            "episode_index": episode,
            "timestamp": times.astype(np.float32),
        }
    )
    pq.write_table(table, root / "data" / "chunk-000" / "file-000.parquet")
    rows = {"episode_index": np.arange(len(LENGTHS))}
    for camera, frames in pixels.items():
        key = f"observation.images.{camera}"
        alone = camera == "b" or version != "v3.0"
        for number, start in enumerate(starts[:-1]):
            part = frames[start : start + LENGTHS[number]]
            name = f"{key}/chunk-000/file-{number:03d}.mp4"
            if version != "v3.0":
                name = f"chunk-{number // 2:03d}/{key}/episode_{number:06d}.mp4"
            if alone:
                write_video(root / "videos" / name, part)
        if not alone:
            write_video(root / "videos" / key / "chunk-000" / "file-000.mp4", frames)
        rows[f"videos/{key}/chunk_index"] = np.zeros(len(LENGTHS), np.int64)
        rows[f"videos/{key}/file_index"] = np.arange(len(LENGTHS)) * alone
        rows[f"videos/{key}/from_timestamp"] = starts[:-1] / 10 * (not alone)
    pq.write_table(pa.table(rows), root / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    return pixels


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("block_bytes", [1, 1 << 26])
def test_frames_of_videos_are_those_that_were_recorded(
    tmp_path: Path, version: str, block_bytes: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr("echoic.buffers._sources.lerobot._BLOCK_BYTES", block_bytes)
    pixels = with_videos(tmp_path / "data", version)
    read = OfflineDataset.from_lerobot(tmp_path / "data", cache_dir=tmp_path / "cache")
    assert (len(read), read.stats().memory_bytes) == (STEPS, 0)
    batch = read.sample(60, seed=0)
    for camera, frames in pixels.items():
        np.testing.assert_array_equal(batch["obs"]["images"][camera], frames[batch["actions"]])
    one = OfflineDataset.from_lerobot(tmp_path / "data", images=["observation.images.b"])
    assert list(one.sample(1)["obs"]["images"]) == ["b"]


def test_damaged_and_hostile_videos_are_named(tmp_path: Path) -> None:
    with_videos(tmp_path)
    video = tmp_path / "videos" / "observation.images.b" / "chunk-000" / "file-002.mp4"
    whole = video.read_bytes()
    playlist = f"#EXTM3U\n#EXTINF:1,\n{video.with_name('file-000.mp4')}\n#EXT-X-ENDLIST\n"
    for content in (b"", whole[:50], whole[: len(whole) // 2], playlist.encode(), bytes(9999)):
        video.write_bytes(content)
        with pytest.raises(SpecError, match=r"file-002.mp4: expected"):
            OfflineDataset.from_lerobot(tmp_path)
    write_video(video, frames_of(0, 4, (16, 16, 3)))
    with pytest.raises(SpecError, match=r"file-002.mp4: expected frames of \(32, 48\), got \(16"):
        OfflineDataset.from_lerobot(tmp_path)
    write_video(video, frames_of(0, 2, (32, 48, 3)))
    with pytest.raises(SpecError, match=r"expected a frame at 0.2000 s, got one at 0.1000 s"):
        OfflineDataset.from_lerobot(tmp_path)
    video.unlink()
    with pytest.raises(SpecError, match=r"file-002.mp4: expected this video"):
        OfflineDataset.from_lerobot(tmp_path)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_video_is_an_error_or_harmless(tmp_path_factory: Any, data: Any) -> None:
    root = tmp_path_factory.mktemp("damaged")
    with_videos(root)
    damaged(data, root / "videos" / "observation.images.a" / "chunk-000" / "file-000.mp4")
    try:
        read = OfflineDataset.from_lerobot(root)
    except SpecError:
        return
    assert read.sample(8)["obs"]["images"]["a"].shape == (8, 32, 48, 3)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("file_index", [-1, 7, 1 << 40], "expected this video"),
        ("chunk_index", ["../..", "a", "b"], "expected numbers"),
        ("chunk_index", [0.5, 1.0, 1.0], "expected a number in each row"),
        ("from_timestamp", [float("nan")] * 3, "expected a frame at nan s"),
        ("from_timestamp", [1e300] * 3, "expected a frame at"),
        ("from_timestamp", [-5.0] * 3, "expected a frame at"),
    ],
)
def test_hostile_places_of_videos_are_refused(
    tmp_path: Path, column: str, values: Any, message: str
) -> None:
    pa, pq = library("pyarrow"), library("pyarrow.parquet")
    with_videos(tmp_path)
    file = tmp_path / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    rows = pq.read_table(file).to_pydict()
    pq.write_table(pa.table({**rows, f"videos/observation.images.a/{column}": values}), file)
    with pytest.raises(SpecError, match=message):
        OfflineDataset.from_lerobot(tmp_path)


# LeRobot's own reader and writer.


def lerobot() -> Any:
    return library("lerobot.datasets.lerobot_dataset").LeRobotDataset


@pytest.mark.filterwarnings("ignore")
def test_lerobot_reads_what_was_written(tmp_path: Path) -> None:
    own = lerobot()
    made = dataset(images=True)
    made.to_lerobot(tmp_path / "data", fps=10, task="sort")
    read = own("local/data", root=tmp_path / "data")
    assert (read.num_episodes, read.num_frames, read.fps) == (len(LENGTHS), STEPS, 10)
    start = 0
    # LeRobot makes tensors of float32; what it has loaded is exact.
    matrices = read.hf_dataset.with_format("arrow")[:]["observation.deep.matrix"].to_pylist()
    for number, episode in enumerate(made.episodes()):
        for row in range(len(episode["rewards"])):
            frame = read[start + row]
            assert (frame["task"], frame["episode_index"].item()) == ("sort", number)
            assert frame["timestamp"].item() == np.float32(row / 10)
            obs = episode["obs"]
            same(frame["observation.state"], obs["state"][row])
            same(np.array(matrices[start + row]), obs["deep"]["matrix"][row])
            same(frame["observation.deep.count"], obs["deep"]["count"][row])
            same(frame["action"], episode["actions"][row])
            same(frame["next.reward"], episode["rewards"][row])
            same(frame["next.terminated"], episode["terminated"][row])
            same(frame["next.truncated"], episode["truncated"][row])
            same(frame["goal"], episode["goal"][row].astype(np.int64))
            for camera, pixels in obs["images"].items():
                found = (frame[f"observation.images.{camera}"] * 255).round()
                same(found.permute(1, 2, 0).numpy().astype(np.uint8), pixels[row])
        start += len(episode["rewards"])
    states = np.concatenate([episode["obs"]["state"][:-1] for episode in made.episodes()])
    mean = read.meta.stats["observation.state"]["mean"]
    np.testing.assert_allclose(mean, states.mean(0), rtol=1e-4)


@given(given=data_sets())
@settings(max_examples=15, deadline=None)
@pytest.mark.filterwarnings("ignore")
def test_lerobot_reads_any_episodes(tmp_path_factory: Any, given: Any) -> None:
    own = lerobot()
    dataset, episodes = given
    path = tmp_path_factory.mktemp("lerobot") / "data"
    dataset.to_lerobot(path, fps=10)
    loaded = own("local/data", root=path).hf_dataset.with_format("arrow")[:]
    for name in {path for episode in episodes for path in episode["obs"]}:
        expected = np.concatenate([episode["obs"][name][:-1] for episode in episodes])
        column = loaded[f"observation.{name}"]
        if expected.ndim == 4 and expected.dtype == np.uint8 and expected.shape[3] in {1, 3}:
            continue  # images, which the test above compares
        found = np.array(column.to_pylist(), expected.dtype)
        same(found.reshape(expected.shape), expected)


@pytest.mark.filterwarnings("ignore")
def test_what_lerobot_wrote_is_read(tmp_path: Path) -> None:
    own = lerobot()
    names = ["height", "width", "channels"]
    features = {
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        "observation.images.film": {"dtype": "video", "shape": (64, 96, 3), "names": names},
        "observation.images.still": {"dtype": "image", "shape": (10, 12, 3), "names": names},
        "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }
    writer = own.create("local/data", 10, features, tmp_path / "data")
    rng = np.random.default_rng(0)
    smooth = np.linspace(0, 255, 64 * 96 * 3).reshape(64, 96, 3)
    for length in LENGTHS:
        for row in range(length):
            writer.add_frame(
                {
                    "observation.state": rng.normal(size=2).astype(np.float32),
                    "observation.images.film": (smooth * rng.uniform()).astype(np.uint8),
                    "observation.images.still": frames_of(row, 1, (10, 12, 3))[0],
                    "action": rng.normal(size=2).astype(np.float32),
                    "next.reward": rng.normal(size=1).astype(np.float32),
                    "next.done": np.array([row == length - 1]),
                    "task": "sort",
                }
            )
        writer.save_episode()
    writer.finalize()
    theirs = own("local/data", root=tmp_path / "data", video_backend="pyav")
    ours = OfflineDataset.from_lerobot(
        tmp_path / "data", cache_dir=tmp_path / "cache", extras=["index"]
    )
    assert (len(ours), ours.num_episodes) == (STEPS, len(LENGTHS))
    for number, episode in enumerate(ours.episodes()):
        assert len(episode["rewards"]) == LENGTHS[number]
        for row, index in enumerate(episode["index"]):
            frame, obs = theirs[int(index)], episode["obs"]
            same(frame["observation.state"], obs["state"][row])
            same(frame["action"], episode["actions"][row])
            same(frame["next.reward"], episode["rewards"][row])
            same(frame["next.done"], episode["terminated"][row])
            for camera in ("film", "still"):
                found = (frame[f"observation.images.{camera}"] * 255).round()
                pixels = found.permute(1, 2, 0).numpy().astype(np.uint8)
                same(pixels, obs["images"][camera][row])


# Minari.


def test_minari_reads_what_was_written(tmp_path: Path, monkeypatch: Any) -> None:
    minari = library("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr("echoic.buffers._writers.minari._PENDING_BYTES", 100)
    made = dataset(images=True)
    with pytest.warns(UserWarning, match="None"):
        returned = made.to_minari("echoic/test-v0", author="somebody")
    read = minari.load_dataset("echoic/test-v0")
    assert (read.total_episodes, read.total_steps) == (len(LENGTHS), STEPS)
    assert returned.id == read.id == "echoic/test-v0"
    for theirs, ours in zip(read.iterate_episodes(), made.episodes(), strict=True):
        same(theirs.observations, ours["obs"])
        same(theirs.actions, ours["actions"])
        same(theirs.rewards, ours["rewards"])
        same(theirs.terminations, ours["terminated"])
        same(theirs.truncations, ours["truncated"])
    expected = [
        {name: tree for name, tree in episode.items() if name != "goal"}
        for episode in made.episodes()
    ]
    all_same(OfflineDataset.from_minari("echoic/test-v0").episodes(), expected)


@given(given=data_sets())
@settings(max_examples=40, deadline=None)
@pytest.mark.filterwarnings("ignore")
def test_any_episodes_come_back_from_minari(tmp_path_factory: Any, given: Any) -> None:
    minari = library("minari")
    dataset, episodes = given
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("minari")))
        theirs = dataset.to_minari("echoic/test-v0")
        kept = [{name: tree for name, tree in one.items() if name != "x"} for one in episodes]
        all_same(OfflineDataset.from_minari(theirs).episodes(), kept)
        for one, other in zip(minari.load_dataset("echoic/test-v0"), kept, strict=True):
            same(one.observations, other["obs"])
            same(one.actions, other["actions"])


# TensorFlow Datasets.


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_a_folder_of_tensorflow_datasets_is_read(tmp_path: Path, file_format: str) -> None:
    tfds = library("tensorflow_datasets")
    library("tensorflow")
    steps = {
        "observation": {
            "state": tfds.features.Tensor(shape=(3,), dtype=np.float32),
            "image": tfds.features.Image(shape=(8, 9, 3)),
            "text": tfds.features.Text(),
        },
        "action": tfds.features.Tensor(shape=(2,), dtype=np.int64),
        "reward": tfds.features.Scalar(dtype=np.float32),
        "discount": tfds.features.Scalar(dtype=np.float32),
        **{
            name: tfds.features.Scalar(dtype=np.bool_)
            for name in ("is_first", "is_last", "is_terminal")
        },
    }
    episodes = []
    for number, length in enumerate(LENGTHS):
        rng, last = np.random.default_rng(number), np.arange(length + 1) == length
        episodes.append(
            {
                "observation": {
                    "state": rng.normal(size=(length + 1, 3)).astype(np.float32),
                    "image": frames_of(number, length + 1, (8, 9, 3)),
                },
                "action": rng.integers(-(1 << 62), 1 << 62, (length + 1, 2)),
                "reward": rng.normal(size=length + 1).astype(np.float32),
                "discount": np.ones(length + 1, np.float32),
                "is_first": np.arange(length + 1) == 0,
                "is_last": last,
                "is_terminal": last & (number != 1),
            }
        )

    class Recorded(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict({"steps": tfds.features.Dataset(steps)}),
            )

        def _split_generators(self, _: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self, *_: Any) -> Any:
            for number, episode in enumerate(episodes):
                rows = [
                    {name: values[row] for name, values in episode.items() if name != "observation"}
                    | {
                        "observation": {k: v[row] for k, v in episode["observation"].items()}
                        | {"text": "go"}
                    }
                    for row in range(len(episode["reward"]))
                ]
                yield number, {"steps": rows}

    builder = Recorded(data_dir=tmp_path, file_format=file_format)
    builder.download_and_prepare()
    read = OfflineDataset.from_rlds(
        builder.data_path, cache_dir=tmp_path / "cache", extras=["discount"]
    )
    assert (len(read), read.num_episodes, read.stats().memory_bytes) == (STEPS, len(LENGTHS), 0)
    found = {episode["rewards"].tobytes(): episode for episode in read.episodes()}
    for number, episode in enumerate(episodes):
        ours = found[episode["reward"][:-1].tobytes()]
        same(ours["obs"], episode["observation"])
        same(ours["actions"], episode["action"][:-1])
        assert (bool(ours["terminated"][-1]), bool(ours["truncated"][-1])) == (
            number != 1,
            number == 1,
        )
    # What the library itself loads is an iterable of episodes.
    is_array = file_format == "array_record"
    loaded = builder.as_data_source("train") if is_array else builder.as_dataset("train")
    again = OfflineDataset.from_rlds(loaded)
    assert {episode["rewards"].tobytes() for episode in again.episodes()} == set(found)
    for file in builder.data_path.glob(f"*{file_format}*"):
        Path(file).write_bytes(b"damaged" * 99)
    with pytest.raises(SpecError, match="expected"):
        OfflineDataset.from_rlds(builder.data_path)
