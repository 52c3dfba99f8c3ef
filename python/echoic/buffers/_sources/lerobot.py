"""Read data sets of LeRobot from a folder: format 3, and format 2 with a file for each episode.

A row is a frame: an observation, and the action that was taken there. Numbers and images are in
Parquet files, videos in MP4 files with the frames of one or several episodes. Files are found under
the names that the format gives them; names of files in the metadata are not used.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic._progress import each
from echoic.buffers._sources import arrow, images
from echoic.buffers._sources.arrays import collect
from echoic.buffers._sources.names import with_last
from echoic.errors import SpecError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

__all__ = ["read_lerobot"]

_ROWS, _BLOCK_BYTES = 16_384, 1 << 26
_INTACT = "an intact Parquet file"
# What reading values of any JSON raises.
_WRONG_JSON = (
    *(OSError, ValueError, ArithmeticError, LookupError),
    *(TypeError, AttributeError, RecursionError),
)
_SIGNALS = ("next.reward", "next.done", "next.terminated", "next.truncated")
_COLUMNS = {name: name for name in ("obs", "rewards", "terminated", "truncated")}


@dataclass(frozen=True)
class _Feature:
    """What a frame has: its name, its column here, and the form of its values.

    Images have the shape height, width, channels. A number has no axes.
    """

    name: str
    column: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_visual(self) -> bool:
        return self.dtype in {"image", "video"}


def read_lerobot(
    root: Path,
    cache_dir: str | os.PathLike[str] | None,
    cameras: Sequence[str] | None,
    extras: Sequence[str],
) -> dict[str, Any]:
    """Return the arrays of a data set, with an observation after the last step of each episode."""
    pq = arrow.imported("parquet")
    info = _info(root)
    features = _features(root, info, cameras, extras)
    files = _parquet_files(root / "data")
    frame_bytes = sum(math.prod(feature.shape) for feature in features if feature.is_visual)
    rows = max(1, min(_ROWS, _BLOCK_BYTES // max(frame_bytes, 1)))
    videos = [feature for feature in features if feature.dtype == "video"]
    stored = [feature for feature in features if feature.dtype != "video"]
    columns = [feature.name for feature in stored] + (["timestamp"] if videos else [])

    def batches() -> Iterator[tuple[Path, Any]]:
        for file in files:
            with arrow.intact(str(file), _INTACT), pq.ParquetFile(file) as parquet:
                for name in columns:
                    if name not in parquet.schema_arrow.names:
                        raise SpecError(f"{file}: expected the column `{name}`")
                for batch in parquet.iter_batches(rows, columns=sorted(set(columns))):
                    yield file, batch

    def blocks() -> Iterator[dict[str, Any]]:
        episodes = np.concatenate([_column(pq, file, "episode_index") for file in files])
        if info["frames"] not in {None, len(episodes)}:
            text = f"expected {info['frames']} frames as meta/info.json says, got {len(episodes)}"
            raise SpecError(f"{root / 'data'}: {text}: is a file missing?")
        ends = np.append(episodes[1:] != episodes[:-1], True)
        first = 0
        with _Videos(pq, root, info, videos) as opened:
            for file, batch in each(batches(), -(-len(episodes) // rows)):
                at = slice(first, first + len(batch))
                first = at.stop
                block = {feature.column: _values(batch, feature, file) for feature in stored}
                if videos:
                    block |= opened.read(episodes[at], _times(batch, file))
                yield _with_signals(block, ends[at])

    made_of = ", ".join(feature.name for feature in features)
    folders = (root / name for name in ("meta", "data", "videos"))
    stats = [file.stat() for folder in folders for file in folder.rglob("*.*") if file.is_file()]
    size, changed = sum(s.st_size for s in stats), max(s.st_mtime_ns for s in stats)
    source = f"LeRobot's {len(stats)} files of {size} bytes, changed at {changed}: {made_of}"
    return collect(lambda: with_last(blocks(), _COLUMNS), cache_dir, source)


def _info(root: Path) -> dict[str, Any]:
    """Read what a data set says about itself, and check the parts that are used."""
    path = root / "meta" / "info.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected the folder of a LeRobot data set")
    try:
        info = json.loads(path.read_text("utf-8"))
        version, rate = str(info["codebase_version"]), float(info["fps"])
        features = {
            str(name): (str(form["dtype"]), tuple(map(int, form["shape"])), form.get("names"))
            for name, form in info["features"].items()
        }
        chunks = int(info.get("chunks_size", 1000))
        frames = None if info.get("total_frames") is None else int(info["total_frames"])
    except _WRONG_JSON as error:
        text = "expected `codebase_version`, `fps` and `features` with `dtype` and `shape`"
        raise SpecError(f"{path}: {text}: {error}") from error
    if not version.startswith(("v3.", "v2.")):
        raise SpecError(f"{path}: expected format v3 or v2, got {version!r}")
    if not (0 < rate < math.inf and chunks > 0):
        text = f"got {rate} and {chunks}"
        raise SpecError(f"{path}: expected a positive `fps` and `chunks_size`, {text}")
    for name, (dtype, shape, _) in features.items():
        if re.search(r"[/\\\0]", name) or name in {".", ".."}:
            raise SpecError(f"{path}: expected a name without slashes, got {name[:40]!r}")
        if min(shape, default=1) < 1 or math.prod(shape) > 1 << 40:
            raise SpecError(f"{path}: `{name}`: expected a shape, got {shape}")
        if dtype not in {"image", "video", "string"} and not _is_number(dtype):
            raise SpecError(f"{path}: `{name}`: expected the dtype of numbers, got {dtype[:40]!r}")
    known = {"fps": rate, "features": features, "chunks": chunks, "frames": frames}
    return {"v3": version.startswith("v3."), **known}


def _is_number(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:
        return False


def _features(
    root: Path,
    info: Mapping[str, Any],
    cameras: Sequence[str] | None,
    extras: Sequence[str],
) -> list[_Feature]:
    """Return the features to read. Text is left out, and cameras that were not asked for."""
    there = info["features"]
    visual = [name for name, (dtype, *_) in there.items() if dtype in {"image", "video"}]
    for what, wanted, known in (("images", cameras or (), visual), ("extras", extras, there)):
        for name in wanted:
            if name not in known:
                listed = ", ".join(map(repr, known)) or "none"
                raise SpecError(f"{root}: {what}: expected some of {listed}, got {name!r}")
    features = []
    for name, (dtype, form, axes) in there.items():
        column = _column_of(name, extras)
        unwanted = cameras is not None and name in visual and name not in {*cameras, *extras}
        if column is None or unwanted or dtype == "string":
            continue
        shape = form
        if name in visual:
            shape = _height_width_channels(f"{root}: `{name}`", form, axes)
        elif shape == (1,) and (not axes or name in _SIGNALS):
            # What has one element is stored as a number, and is one if the element has no name.
            shape = ()
        features.append(_Feature(name, column, dtype, shape))
    columns = {feature.column.split("/")[0] for feature in features}
    for column, name in (("obs", "observation."), ("actions", "action")):
        if column not in columns:
            listed = ", ".join(map(repr, there))
            raise SpecError(f"{root}: expected features of `{name}`, got {listed}")
    return features


def _column_of(name: str, extras: Sequence[str]) -> str | None:
    for prefix, column in (("observation", "obs"), ("action", "actions")):
        if name == prefix or name.startswith(f"{prefix}."):
            return column + name[len(prefix) :].replace(".", "/")
    return name if name in _SIGNALS or name in extras else None


def _height_width_channels(name: str, shape: tuple[int, ...], axes: Any) -> tuple[int, ...]:
    counts = (1, 3, 4)
    if len(shape) == 3:
        first = isinstance(axes, list) and str(axes[:1]).startswith("['channel")
        if shape[2] in counts and not first:
            return shape
        if shape[0] in counts:
            return (*shape[1:], shape[0])
    raise SpecError(f"{name}: expected images of height, width and 1, 3 or 4 channels, got {shape}")


def _parquet_files(folder: Path) -> list[Path]:
    """Return the files in the order of their numbers."""

    def numbers(file: Path) -> list[int]:
        return [int(digits) for part in file.parts[-2:] for digits in re.findall(r"\d{1,18}", part)]

    files = sorted(folder.glob("*/*.parquet"), key=numbers)
    if not files:
        raise SpecError(f"{folder}: expected Parquet files in folders of it, got none")
    return files


def _column(pq: Any, file: Path, name: str) -> np.ndarray[Any, Any]:
    """Return a column of a file: an index, or else numbers of any kind."""
    with arrow.intact(str(file), _INTACT), pq.ParquetFile(file) as parquet:
        if name not in parquet.schema_arrow.names:
            raise SpecError(f"{file}: expected the column `{name}`")
        column = parquet.read([name]).column(name).combine_chunks()
    values = arrow.rows_of(f"{file}: `{name}`", column)
    if values.ndim != 1 or (name.endswith("index") and values.dtype.kind not in "iu"):
        got = f"{values.dtype}{list(values.shape[1:])}"
        raise SpecError(f"{file}: `{name}`: expected a number in each row, got {got}")
    return values


def _values(batch: Any, feature: _Feature, file: Path) -> np.ndarray[Any, Any]:
    """Return the values of a feature in the form that the metadata say."""
    name, column = f"{file}: `{feature.name}`", batch.column(feature.name)
    if feature.dtype == "image":
        return arrow.images_of(name, column, feature.shape)
    values = arrow.rows_of(name, column)
    shape, dtype = (len(batch), *feature.shape), np.dtype(feature.dtype)
    if values.size != math.prod(shape) or not np.can_cast(values.dtype, dtype, "same_kind"):
        expected, got = f"{dtype}{list(feature.shape)}", f"{values.dtype}{list(values.shape[1:])}"
        raise SpecError(f"{name}: expected {expected} as the metadata say, got {got}")
    return values.reshape(shape).astype(dtype, copy=False)


def _times(batch: Any, file: Path) -> np.ndarray[Any, Any]:
    """Return the seconds since the start of the episode."""
    return _values(batch, _Feature("timestamp", "", "float64", ()), file)


def _with_signals(block: dict[str, Any], ends: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Add rewards and flags.

    ``next.done`` says that an episode ended, not why. It is termination unless ``next.truncated``
    says otherwise. An episode whose last frame is not terminated is truncated there.
    """
    reward, done, terminated, truncated = (block.pop(name, None) for name in _SIGNALS)
    none = np.zeros(len(ends), np.bool_)
    truncated = none if truncated is None else truncated != 0
    if terminated is None:
        terminated = none if done is None else (done != 0) & ~truncated
    terminated = terminated != 0
    rewards = np.zeros(len(ends), np.float32) if reward is None else reward
    flags = {"terminated": terminated, "truncated": truncated | (ends & ~terminated)}
    return {**block, "rewards": rewards, **flags}


class _Videos:
    """The videos of each camera, of which one is open at a time."""

    def __init__(
        self, pq: Any, root: Path, info: Mapping[str, Any], features: Sequence[_Feature]
    ) -> None:
        self._root, self._info = root, info
        self._places: dict[str, dict[int, tuple[int, int, float]]] = {}
        self._open: dict[str, images.Video] = {}
        self._features = features
        if features and info["v3"]:
            files = _parquet_files(root / "meta" / "episodes")
            for feature in features:
                parts = ("chunk_index", "file_index", "from_timestamp")
                names = ["episode_index", *(f"videos/{feature.name}/{part}" for part in parts)]
                episodes, chunks, numbers, starts = (
                    np.concatenate([_column(pq, file, name) for file in files]).tolist()
                    for name in names
                )
                places = zip(chunks, numbers, starts, strict=True)
                self._places[feature.name] = dict(zip(episodes, places, strict=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for video in self._open.values():
            video.close()

    def read(self, episodes: np.ndarray[Any, Any], times: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Return the frames of all cameras at these times of these episodes."""
        frames = {}
        for feature in self._features:
            rows = np.empty((len(times), *feature.shape), np.uint8)
            for row, (episode, time) in enumerate(zip(episodes.tolist(), times, strict=True)):
                path, start = self._place(feature.name, episode)
                video = self._open.get(feature.name)
                if video is None or video.path != path:
                    if video is not None:
                        video.close()
                    # Half a frame: times are rounded to the video's and to float32.
                    tolerance = 0.5 / self._info["fps"]
                    video = images.Video(path, feature.shape, tolerance)
                    self._open[feature.name] = video
                video.read(start + float(time), rows[row])
            frames[feature.column] = rows
        return frames

    def _place(self, camera: str, episode: int) -> tuple[Path, float]:
        """Return the file with the frames of an episode, and when they start."""
        folder = self._root / "videos"
        if not self._info["v3"]:
            chunk = f"chunk-{episode // self._info['chunks']:03d}"
            return folder / chunk / camera / f"episode_{episode:06d}.mp4", 0.0
        place = self._places[camera].get(episode)
        if place is None:
            where = self._root / "meta" / "episodes"
            raise SpecError(f"{where}: expected the videos of episode {episode}, got none")
        number, file, start = place
        return folder / camera / f"chunk-{number:03d}" / f"file-{file:03d}.mp4", start
