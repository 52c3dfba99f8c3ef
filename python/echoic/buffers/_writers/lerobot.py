"""Write a data set of LeRobot, format 3: Parquet files, with images in them as PNG."""

from __future__ import annotations

import io
import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic._progress import each
from echoic.buffers._packages import package
from echoic.buffers._sources import arrow
from echoic.errors import ArgumentError, SpecError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from typing_extensions import Self

__all__ = ["write_lerobot"]

_FILE_BYTES, _CHUNK_FILES = 100 << 20, 1000
_COUNTED = ("frame_index", "episode_index", "index", "task_index")
_SIGNALS = ("next.reward", "next.done", "next.terminated", "next.truncated")


def write_lerobot(
    path: str | os.PathLike[str],
    episodes: Iterable[dict[str, Any]],
    total: int,
    *,
    fps: float,
    task: str,
) -> None:
    """Write the episodes to a new folder, which appears complete or not at all."""
    folder = Path(path)
    if not 0 < fps < math.inf:
        raise ArgumentError(f"fps: expected a positive number, got {fps}")
    if folder.exists():
        raise FileExistsError(f"{folder}: expected a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with _Writer(unfinished, fps, task) as writer:
            for episode in each(episodes, total):
                writer.add(episode)
        writer.finish()
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


class _Writer:
    """Writes frames to Parquet files of a limited size, and what is known about them."""

    def __init__(self, root: Path, fps: float, task: str) -> None:
        self._pa = arrow.imported()
        self._root, self._fps, self._task = root, fps, task
        self._features: dict[str, dict[str, Any]] = {}
        self._stats: dict[str, _Moments] = {}
        self._episodes: list[dict[str, Any]] = []
        self._frames = self._file = 0
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, episode: dict[str, Any]) -> None:
        """Write an episode."""
        pq = arrow.imported("parquet")
        steps, number = len(episode["rewards"]), len(self._episodes)
        columns = _columns(episode)
        columns["timestamp"] = (np.arange(steps) / self._fps).astype(np.float32)
        counts = (np.arange(steps), number, self._frames + np.arange(steps), 0)
        for name, values in zip(_COUNTED, counts, strict=True):
            columns[name] = np.broadcast_to(np.asarray(values, np.int64), steps)
        arrays = {}
        for name, values in columns.items():
            if number == 0:
                self._features[name] = _feature(name, values)
                self._stats[name] = _Moments()
            self._stats[name].add(values, self._features[name])
            arrays[name] = _arrow(self._pa, values, self._features[name])
        table = self._pa.table(arrays)
        path = self._path("data")
        if self._writer is not None and path.stat().st_size + table.nbytes > _FILE_BYTES:
            self._writer.close()
            self._writer, self._file = None, self._file + 1
            path = self._path("data")
        if self._writer is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, table.schema)
        self._writer.write_table(table)
        self._episodes.append(
            {
                "episode_index": number,
                "tasks": [self._task],
                "length": steps,
                "dataset_from_index": self._frames,
                "dataset_to_index": self._frames + steps,
                "data/chunk_index": self._file // _CHUNK_FILES,
                "data/file_index": self._file % _CHUNK_FILES,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )
        self._frames += steps

    def finish(self) -> None:
        """Write the metadata."""
        pq = arrow.imported("parquet")
        meta = self._root / "meta"
        (meta / "episodes" / "chunk-000").mkdir(parents=True)
        episodes = self._pa.Table.from_pylist(self._episodes)
        pq.write_table(episodes, meta / "episodes" / "chunk-000" / "file-000.parquet")
        pq.write_table(_tasks(self._pa, self._task), meta / "tasks.parquet")
        stats = {name: self._stats[name].numbers(form) for name, form in self._features.items()}
        (meta / "stats.json").write_text(json.dumps(stats, indent=1), "utf-8")
        info = {
            "codebase_version": "v3.0",
            "robot_type": None,
            "total_episodes": len(self._episodes),
            "total_frames": self._frames,
            "total_tasks": 1,
            "chunks_size": _CHUNK_FILES,
            "data_files_size_in_mb": _FILE_BYTES >> 20,
            "video_files_size_in_mb": 200,
            "fps": self._fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": None,
            "features": self._features,
        }
        (meta / "info.json").write_text(json.dumps(info, indent=1), "utf-8")

    def _path(self, folder: str) -> Path:
        chunk, file = divmod(self._file, _CHUNK_FILES)
        return self._root / folder / f"chunk-{chunk:03d}" / f"file-{file:03d}.parquet"


def _columns(episode: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns of an episode under LeRobot's names."""
    steps = len(episode["rewards"])
    columns: dict[str, np.ndarray[Any, Any]] = {}
    own = {"rewards", "terminated", "truncated"}
    for name, tree in episode.items():
        if name in own:
            continue
        start = {"obs": "observation", "actions": "action"}.get(name, name)
        paths, leaves, _ = _trees.tree_flatten_with_path(tree)
        for path, leaf in zip(paths, leaves, strict=True):
            key = ".".join([start, *map(str, path)])
            if key == "observation":
                key += ".image" if _is_image(leaf) else ".state"
            if key in columns or key in {*_COUNTED, *_SIGNALS, "timestamp"}:
                raise SpecError(f"`{key}`: expected names that LeRobot does not use otherwise")
            columns[key] = leaf[:steps]
    terminated, truncated = episode["terminated"], episode["truncated"]
    signals = (episode["rewards"], terminated | truncated, terminated, truncated)
    return {**columns, **dict(zip(_SIGNALS, signals, strict=True))}


def _is_image(values: np.ndarray[Any, Any]) -> bool:
    return values.dtype == np.uint8 and values.ndim == 4 and values.shape[3] in {1, 3, 4}


def _feature(name: str, values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Describe a column as LeRobot does."""
    shape = values.shape[1:]
    if "/" in name:
        raise SpecError(f"`{name}`: LeRobot allows no slash in the name of a feature")
    if values.dtype.kind not in "biuf" or len(shape) > 5 or 0 in shape:
        text = "expected numbers with at most 5 axes and some elements"
        raise SpecError(f"`{name}`: {text}, got {values.dtype}{list(shape)}")
    if _is_image(values):
        return {"dtype": "image", "shape": shape, "names": ["height", "width", "channels"]}
    # LeRobot stores one element as a number. A name says that it is an array.
    names = ["0"] if shape == (1,) else None
    return {"dtype": str(values.dtype), "shape": shape or (1,), "names": names}


def _arrow(pa: Any, values: np.ndarray[Any, Any], feature: dict[str, Any]) -> Any:
    """Return a column as LeRobot stores it."""
    if feature["dtype"] == "image":
        paths = pa.nulls(len(values), pa.string())
        return pa.StructArray.from_arrays([pa.array(map(_png, values)), paths], ["bytes", "path"])
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    shape = feature["shape"]
    if len(shape) == 1:
        return array if shape == (1,) else pa.FixedSizeListArray.from_arrays(array, shape[0])
    for axis in range(len(shape) - 1, -1, -1):
        lists = len(values) * math.prod(shape[:axis])
        offsets = np.arange(lists + 1, dtype=np.int32) * shape[axis]
        array = pa.ListArray.from_arrays(pa.array(offsets), array)
    return array


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    image_of = package("PIL.Image", "writing images")
    file = io.BytesIO()
    gray = pixels.shape[2] == 1
    image_of.fromarray(pixels[:, :, 0] if gray else pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _tasks(pa: Any, task: str) -> Any:
    """Return the table of tasks, which pandas reads with the task as index."""
    index = "__index_level_0__"
    kinds = {"task_index": "int64", index: "unicode"}
    columns = [
        {
            "name": None if name == index else name,
            "field_name": name,
            "pandas_type": kind,
            "numpy_type": "object" if name == index else kind,
            "metadata": None,
        }
        for name, kind in kinds.items()
    ]
    about = {"index_columns": [index], "column_indexes": [], "columns": columns}
    table = pa.table({"task_index": pa.array([0], pa.int64()), index: [task]})
    return table.replace_schema_metadata({"pandas": json.dumps(about)})


class _Moments:
    """Mean, standard deviation and limits of a column; of images by channel, from 0 to 1."""

    def __init__(self) -> None:
        self._count = self._frames = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0
        self._low: Any = np.inf
        self._high: Any = -np.inf

    def add(self, values: np.ndarray[Any, Any], feature: dict[str, Any]) -> None:
        self._frames += len(values)
        if feature["dtype"] == "image":
            for pixels in values:
                self._add(pixels.reshape(-1, pixels.shape[2]) / 255)
        else:
            self._add(values.reshape(len(values), *feature["shape"]).astype(np.float64))

    def _add(self, rows: np.ndarray[Any, Any]) -> None:
        count, known = len(rows), self._count
        self._count += count
        with np.errstate(invalid="ignore", over="ignore"):
            delta = rows.mean(0) - self._mean
            self._squares += rows.var(0) * count + delta**2 * (known * count / self._count)
            self._mean += delta * (count / self._count)
        self._low = np.minimum(self._low, rows.min(0))
        self._high = np.maximum(self._high, rows.max(0))

    def numbers(self, feature: dict[str, Any]) -> dict[str, Any]:
        shape = (-1, 1, 1) if feature["dtype"] == "image" else feature["shape"]
        std = np.sqrt(self._squares / self._count)
        known = {"min": self._low, "max": self._high, "mean": self._mean, "std": std}
        numbers = {name: value.reshape(shape).tolist() for name, value in known.items()}
        return {**numbers, "count": [self._frames]}
