"""Sample data sets that do not change, for offline RL, imitation and models of sequences."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _native, _trees
from echoic._progress import working
from echoic.buffers import _columns
from echoic.buffers._common import Drawn, seed_of
from echoic.buffers._sources.arrays import advise_random, read_folder, read_npz
from echoic.buffers._sources.huggingface import read_huggingface
from echoic.buffers._sources.lerobot import read_lerobot
from echoic.buffers._sources.names import arrange, with_successors
from echoic.buffers._sources.parquet import read_parquet
from echoic.buffers._sources.recordings import read_hdf5, read_minari
from echoic.buffers._sources.replay import read_buffer
from echoic.buffers._sources.rlds import read_rlds
from echoic.buffers._writers.lerobot import write_lerobot
from echoic.buffers._writers.minari import write_minari
from echoic.errors import ReplayError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Self

__all__ = ["OfflineDataset", "OfflineStats"]

_BLOCK_BYTES = 1 << 25
_OWN_NAMES = (
    *("obs", "next_obs", "actions", "rewards", "terminated", "truncated"),
    *("returns_to_go", "timesteps", "mask"),
)


@dataclass(frozen=True, kw_only=True)
class OfflineStats:
    """Numbers of a data set.

    Attributes:
        size: Transitions in the data set.
        episodes: Episodes, with one at the end that has no end.
        last_episode_complete: Whether the last step is terminated or truncated.
        mean_return: Mean of the undiscounted returns of the episodes.
        std_return: Their standard deviation.
        min_return: The lowest return.
        max_return: The highest return.
        mean_episode_length: Mean number of steps of an episode.
        min_episode_length: Steps of the shortest episode.
        max_episode_length: Steps of the longest episode.
        memory_bytes: Bytes that the data set holds in memory.
        seed: Seed of the data set's own draws.
        obs_mean: Mean of the observations as they were given: float64, in the tree of an
            observation, with ``None`` for leaves that are not floats.
        obs_std: Standard deviation of the observations, like ``obs_mean``.
        obs_dim: Elements of an observation; ``None`` if it is not one array.
        act_dim: Elements of an action; ``None`` if it is not one array.
    """

    size: int
    episodes: int
    last_episode_complete: bool
    mean_return: float
    std_return: float
    min_return: float
    max_return: float
    mean_episode_length: float
    min_episode_length: int
    max_episode_length: int
    memory_bytes: int
    seed: int
    obs_mean: Any
    obs_std: Any
    obs_dim: int | None = None
    act_dim: int | None = None


class OfflineDataset(_native.OfflineDataset, Drawn):
    """Sample single steps or sequences of steps from the episodes of a fixed data set.

    The steps are given in order, episode after episode. An episode ends with a step that is
    ``terminated`` or ``truncated``; steps after the last such step count as an episode too.
    Nothing can be added later, and all methods may be called from any thread.

    Observations, actions and extras are arrays with a row for each step, of any dtype that a
    :class:`~echoic.Table` can store, or trees of such arrays (dicts, tuples, ...). A flat array,
    not in a tree, has the elements of all rows: floats become rows of float32, other numbers keep
    their dtype, and are scalars if there is one for each step.

    Arrays in memory are copied, small values of a step next to each other, so that sampling one
    reads one or two cache lines. Arrays that are mapped from a file (``numpy.memmap``) are not
    copied. Observations of more than 512 bytes are stored once if ``next_obs`` only repeats those
    of the next step.

    Args:
        obs: Observations before each step.
        next_obs: Observations after each step. ``None`` if ``obs`` has one row more than steps for
            each episode: the observation after its last step.
        actions: The action of each step.
        rewards: A number for each step: float32, or float64 if they are float64 and the
            observations are not flat.
        terminated: Whether the step led to a terminal state: booleans, or numbers that are 0 or 1.
        truncated: Whether the episode was cut off after the step.
        normalize: Whether to give observations mean 0 and standard deviation 1, element by
            element, as :meth:`normalize_obs` does. Constant elements are only shifted. Only
            float32 and float64 leaves are normalized, and at least one is required.
        gamma: The discount of returns-to-go, from 0 to 1. Default: 1.
        seed: Seed of the buffer's own draws; random when ``None``.
        copy: Whether to copy arrays. If not, they must not be changed, and sampling small steps
            takes a few times longer. ``None`` copies if no array is mapped from a file.
        extras: More columns for batches, by name.

    Raises:
        SpecError: If lengths or dtypes do not match; the message says which. If a reward, or with
            ``normalize`` an observation, is not finite.
        ReplayError: If ``gamma`` is out of range.
        MemoryError: If there is not enough memory for a copy.

    Examples:
        >>> import numpy as np
        >>> from echoic import buffers
        >>> obs = np.arange(24, dtype=np.float32)  # 6 steps, of 4 elements
        >>> rewards = np.ones(6, np.float32)
        >>> terminated = np.array([0, 0, 1, 0, 0, 0], bool)
        >>> truncated = np.array([0, 0, 0, 0, 0, 1], bool)
        >>> buffer = buffers.OfflineDataset(
        ...     obs, obs + 4, np.zeros(6, np.int64), rewards, terminated, truncated
        ... )
        >>> batch = buffer.sample(256, seed=42)
        >>> batch["obs"].shape, batch["actions"].dtype
        ((256, 4), dtype('int64'))
        >>> buffer.num_episodes, buffer.stats().mean_return
        (2, 3.0)

        Sequences of steps of one episode:

        >>> windows = buffer.sample_trajectories(2, length=4, seed=1)
        >>> windows["obs"].shape
        (2, 4, 4)
        >>> windows["timesteps"][windows["mask"]], windows["returns_to_go"][windows["mask"]]
        (array([1, 2, 1, 2]), array([2., 1., 2., 1.], dtype=float32))
    """

    _seed: int

    def __new__(
        cls,
        obs: Any,
        next_obs: Any,
        actions: Any,
        rewards: Any,
        terminated: Any,
        truncated: Any,
        normalize: bool = False,
        *,
        gamma: float = 1.0,
        seed: int | None = None,
        copy: bool | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Self:
        if not 0.0 <= gamma <= 1.0:
            raise ReplayError(f"gamma: expected a number from 0 to 1, got {gamma}")
        leaves = _trees.tree_leaves(obs)
        flat = len(leaves) == 1 and np.ndim(leaves[0]) == 1
        rewards = _columns.scalars("rewards", rewards, None, single=flat)
        steps = len(rewards)
        data: dict[str, Any] = {"rewards": rewards}
        for name, values in (("terminated", terminated), ("truncated", truncated)):
            data[name] = _columns.flags(name, values, steps)
        if next_obs is None:
            data["obs"] = _columns.per_step("obs", obs, steps + _episodes(data))
        else:
            data["obs"] = _columns.per_step("obs", obs, steps)
            data["next_obs"] = _columns.per_step("next_obs", next_obs, steps)
            _columns.same_form(data["obs"], data["next_obs"], ("obs", "next_obs"))
        data["actions"] = _columns.per_step("actions", actions, steps)
        for name, tree in (extras or {}).items():
            if name in _OWN_NAMES:
                raise SpecError(f"extras: `{name}` is the name of another column")
            data[name] = _columns.per_step(name, tree, steps)
        if normalize:
            dtypes = [leaf.dtype for leaf in _trees.tree_leaves(data["obs"])]
            if not {np.dtype("float32"), np.dtype("float64")}.intersection(dtypes):
                got = ", ".join(map(str, dtypes))
                text = f"normalize: expected observations of float32 or float64, got {got}"
                raise SpecError(f"{text}; scale others in the model")
        step, window = _examples(data, extras or {})
        if copy is None:
            copy = not _columns.is_mapped(data)
        seed = seed_of(seed)
        self = super().__new__(
            cls,
            data,
            step,
            window,
            normalize=normalize,
            gamma=gamma,
            copied=copy,
            seed=seed,
        )
        self._seed = seed
        return self

    @classmethod
    def from_npz(
        cls,
        path: str | os.PathLike[str],
        *,
        mmap: bool = False,
        names: Mapping[str, str] | None = None,
        extras: Sequence[str] = (),
        **options: Any,
    ) -> Self:
        """Read a data set from an ``.npz`` archive, or from a folder of ``.npy`` files.

        Columns have the names of this class, of Minari (``observations``, ``terminations``,
        ``truncations``) or of D4RL (``next_observations``, ``terminals``, ``timeouts``). Names
        with slashes, such as ``obs/position``, are trees. Without ``truncated`` episodes end where
        they are terminated. Without next observations, and with one observation for each step,
        they are the observations of the next step; the last step of an episode that was cut off is
        dropped, since its next observation is unknown.

        Args:
            path: The archive or folder. Nothing in it is executed: arrays of objects are refused.
            mmap: Whether to map the arrays of an uncompressed archive instead of reading them, for
                data larger than memory. The archive must then not be changed, and its checksums
                are not verified. A folder is always mapped. Default: ``False``.
            names: Names of columns in the file that differ from the usual ones:
                ``{"obs": "state"}``.
            extras: Names of more columns for batches.
            options: Arguments of the class: ``normalize``, ``gamma``, ``seed``, ``copy``.

        Raises:
            SpecError: If the file is damaged, is not an archive, or does not have the columns.
        """
        source = Path(path)

        def read() -> dict[str, Any]:
            return read_folder(source) if source.is_dir() else read_npz(source, mapped=mmap)

        return cls._of(read, names, extras, str(source), options)

    @classmethod
    def from_parquet(
        cls,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        names: Mapping[str, str] | None = None,
        extras: Sequence[str] = (),
        **options: Any,
    ) -> Self:
        """Read a data set from Parquet files, with the ``parquet`` extra.

        A row is a step. Columns are numbers, lists of one length (also of lists), or tensors, with
        names as for :meth:`from_npz`. Files are read in the given order, those of a folder by name.

        Args:
            path: A file or folder, or several.
            cache_dir: Folder for the columns as mapped arrays, for data larger than memory. It is
                written if it does not exist, and used again if it was made from the same files.
            names: As for :meth:`from_npz`.
            extras: As for :meth:`from_npz`.
            options: Arguments of the class.

        Raises:
            SpecError: If a file is damaged, has nulls, or does not have the columns, or if
                ``cache_dir`` was made from other files.
        """
        given = [path] if isinstance(path, (str, os.PathLike)) else path
        paths = [Path(item) for item in given]
        read = partial(read_parquet, paths, cache_dir, names, extras)
        return cls._of(read, names, extras, "the Parquet files", options)

    @classmethod
    def from_minari(
        cls, dataset: Any, *, cache_dir: str | os.PathLike[str] | None = None, **options: Any
    ) -> Self:
        """Read a data set of Minari.

        Args:
            dataset: A ``minari.MinariDataset``, or the name of a local one, or anything that has
                ``iterate_episodes()`` like one. Observations and actions may be trees.
            cache_dir: As for :meth:`from_parquet`. A data set with the same name, episodes and
                number of steps is not noticed to be another.
            options: Arguments of the class.
        """
        read = partial(read_minari, dataset, cache_dir)
        return cls._of(read, None, (), "the data set", options)

    @classmethod
    def from_gymnasium_recording(
        cls,
        path: str | os.PathLike[str],
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        names: Mapping[str, str] | None = None,
        extras: Sequence[str] = (),
        **options: Any,
    ) -> Self:
        """Read a recording of a Gymnasium environment, without the package that recorded it.

        Gymnasium has no file format for steps. This reads HDF5 files, with the h5py package: those
        of ``minari.DataCollector``, which have a group for each episode, or their folder; and flat
        ones, as of D4RL, with names as for :meth:`from_npz`. An ``.npz`` file is read as by
        :meth:`from_npz`.

        Args:
            path: The file or folder.
            cache_dir: As for :meth:`from_parquet`.
            names: As for :meth:`from_npz`, of flat files.
            extras: As for :meth:`from_npz`, of flat files.
            options: Arguments of the class.

        Raises:
            SpecError: If the file is damaged or has another form.
        """
        source = Path(path)
        if source.suffix == ".npz":
            return cls.from_npz(source, names=names, extras=extras, **options)
        read = partial(read_hdf5, source, cache_dir)
        return cls._of(read, names, extras, str(source), options)

    @classmethod
    def from_lerobot(
        cls,
        path: str | os.PathLike[str],
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        images: Sequence[str] | None = None,
        extras: Sequence[str] = (),
        **options: Any,
    ) -> Self:
        """Read a data set of LeRobot from a local folder: format 3 or 2, with the ``data`` extra.

        Observations are a dict: ``observation.images.top`` is ``obs["images"]["top"]``. Images and
        frames of videos are decoded once, to bytes: height, width, channels. Text is left out.

        Rewards are ``next.reward``, or 0. A step is terminated where ``next.done`` is set, unless
        ``next.truncated`` is; an episode whose last frame is not terminated is truncated there.
        Most data sets of robots say only that an episode ended, not why. The format has no
        observation after an episode's last action, so the last step of a truncated one is dropped.

        Args:
            path: The data set's folder, with ``meta`` and ``data`` in it.
            cache_dir: As for :meth:`from_parquet`. Decoded videos are large: use it.
            images: Names of the images and videos to read, such as ``"observation.images.top"``.
                Default: all. ``()`` reads none.
            extras: Names of more features for batches, such as ``"task_index"``.
            options: Arguments of the class.

        Raises:
            SpecError: If a file is missing or damaged, or does not have what the metadata say.
            FileNotFoundError: If the folder has no ``meta/info.json``.
        """
        read = partial(read_lerobot, Path(path), cache_dir, images, extras)
        return cls._of(read, None, extras, str(path), options)

    @classmethod
    def from_huggingface(
        cls,
        dataset: Any,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        names: Mapping[str, str] | None = None,
        extras: Sequence[str] = (),
        **options: Any,
    ) -> Self:
        """Read a data set of Hugging Face's ``datasets``, with the ``data`` extra.

        A row is a step. Columns are numbers, arrays, images, or dicts of them, with names as for
        :meth:`from_npz`.

        Args:
            dataset: A ``datasets.Dataset`` or ``IterableDataset``, or the folder that a
                ``Dataset`` was saved to.
            cache_dir: As for :meth:`from_parquet`. A stream is read once to write it; another
                stream is not noticed.
            names: As for :meth:`from_npz`.
            extras: As for :meth:`from_npz`.
            options: Arguments of the class.

        Raises:
            SpecError: If the data set has nulls, or does not have the columns, or its folder is
                damaged, or if ``cache_dir`` was made from another.
        """
        read = partial(read_huggingface, dataset, cache_dir, names, extras)
        return cls._of(read, names, extras, "the data set", options)

    @classmethod
    def from_rlds(
        cls,
        source: str | os.PathLike[str] | Iterable[Any],
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        extras: Sequence[str] = (),
        **options: Any,
    ) -> Self:
        """Read episodes of RLDS.

        An episode is a dict whose ``steps`` are an iterable of dicts, or a dict of arrays, with
        ``observation``, ``action``, ``reward`` and ``is_terminal``. The last step of an episode has
        the last observation; its action and reward mean nothing in RLDS and are not read. The
        episode is terminated if ``is_terminal`` is set there, else truncated. Rewards are 0 if
        there are none. Text is left out.

        Args:
            source: Episodes, such as ``tfds.load(name, split="train")``; or the folder of a version
                that TensorFlow Datasets wrote, of which the split ``train`` is read. This needs the
                package ``tensorflow-datasets``, and TensorFlow unless its files are ArrayRecord.
            cache_dir: As for :meth:`from_parquet`. One that was made from other episodes is only
                noticed if ``source`` is a folder.
            extras: Names of more fields of steps for batches, such as ``"discount"``.
            options: Arguments of the class.

        Raises:
            SpecError: If the episodes or the folder have another form, or a file is damaged.
        """
        read = partial(read_rlds, source, cache_dir, extras)
        return cls._of(read, None, extras, "the episodes", options)

    @classmethod
    def from_buffer(cls, buffer: Any, **options: Any) -> Self:
        """Copy the episodes of a replay buffer, to sample or to write them.

        Steps are in the order in which each environment added them. More fields than this class
        has become extras.

        Args:
            buffer: A :class:`~echoic.ReplayBuffer` or :class:`~echoic.PrioritizedReplayBuffer`.
                With ``episodes=True`` it knows which environment a step is of; otherwise all
                steps are those of one.
            options: Arguments of the class.

        Raises:
            SpecError: If a transition has no ``obs``, ``actions``, ``rewards`` or ``terminated``.
        """
        arrays, extras = read_buffer(buffer)
        return cls._of(lambda: arrays, None, extras, "the buffer", options)

    @classmethod
    def _of(
        cls,
        read: Callable[[], Mapping[str, Any]],
        names: Mapping[str, str] | None,
        extras: Sequence[str],
        source: str,
        options: dict[str, Any],
    ) -> Self:
        """Make a data set of arrays with the names of their source."""
        with working(f"reading {source}"):
            arrays = read()
            columns = with_successors(arrange(arrays, names, extras, source))
            buffer = cls(**columns, **options)
        # After the columns were read in order.
        advise_random(dict(arrays))
        return buffer

    def episodes(self) -> Iterator[dict[str, Any]]:
        """Yield the episodes in order, each as a dict of arrays.

        ``obs`` has a row more than there are steps: the observation after the last one.
        ``actions``, ``rewards``, ``terminated``, ``truncated`` and extras have a row for each step.

        Raises:
            SpecError: If ``next_obs`` of a step is not ``obs`` of the next one in the episode.
        """
        size = len(self)
        row_bytes = sum(leaf.nbytes for leaf in _trees.tree_leaves(self._steps(0, 1)))
        rows = max(1, _BLOCK_BYTES // row_bytes)
        parts: list[dict[str, Any]] = []
        for start in range(0, size, rows):
            block = self._steps(start, min(rows, size - start))
            begin = 0
            for last in np.flatnonzero(block["terminated"] | block["truncated"]).tolist():
                yield _episode([*parts, _slice(block, begin, last + 1)])
                parts, begin = [], last + 1
            if begin < len(block["rewards"]):
                parts.append(_slice(block, begin, len(block["rewards"])))
        if parts:
            yield _episode(parts)

    def to_minari(self, dataset_id: str, **about: Any) -> Any:
        """Write the episodes as a new local data set of Minari, with the ``data`` extra.

        Arrays are stored without loss, images too. Extras are left out, and with ``normalize``
        observations are written as they are sampled.

        Args:
            dataset_id: Its name and version, such as ``"cartpole/mine-v0"``. Minari stores it in
                its own folder, or in the one that ``MINARI_DATASETS_PATH`` names.
            about: What ``minari.create_dataset_from_buffers`` takes: ``env``, ``author``,
                ``description``, ... Without ``env``, spaces are unbounded boxes unless given as
                ``observation_space`` and ``action_space``.

        Returns:
            The ``minari.MinariDataset``.

        Raises:
            SpecError: As of :meth:`episodes`.
        """
        with working(f"writing {dataset_id}"):
            return write_minari(dataset_id, self.episodes(), self.num_episodes, **about)

    def to_lerobot(self, path: str | os.PathLike[str], *, fps: float, task: str = "") -> None:
        """Write the episodes as a new data set of LeRobot, format 3, with the ``data`` extra.

        A frame is a step: ``observation.…``, ``action``, ``next.reward``, ``next.done`` (either
        flag), ``next.terminated``, ``next.truncated`` and extras. Images (bytes: height, width, 1,
        3 or 4 channels) are PNG, without loss. The format has no place for the observation after
        the last step of an episode, which is left out. With ``normalize``, observations are
        written as they are sampled.

        Args:
            path: A folder that does not exist.
            fps: Steps per second, for the time of each frame.
            task: What the episodes do, in words.

        Raises:
            SpecError: As of :meth:`episodes`, or if LeRobot can't store an array or its name.
            ArgumentError: If ``fps`` is not positive and finite.
            FileExistsError: If the folder exists.
        """
        with working(f"writing {path}"):
            write_lerobot(path, self.episodes(), self.num_episodes, fps=fps, task=task)

    def stats(self) -> OfflineStats:
        """Return the data set's numbers."""
        mean, std, _ = self.moments()
        return OfflineStats(**self.numbers(), seed=self._seed, obs_mean=mean, obs_std=std)

    def normalize_obs(self, obs: Any) -> Any:
        """Normalize observations as ``normalize=True`` does, for a policy that was trained on them.

        Args:
            obs: A tree like an observation, with any axes in front.
        """
        mean, _, scale = self.moments()

        def apply(leaf: Any, mean: Any, scale: Any) -> Any:
            if mean is None:
                return leaf
            array = np.asarray(leaf)
            return ((array.astype(np.float64) - mean) * scale).astype(array.dtype)

        return _trees.tree_map(apply, obs, mean, scale, none_is_leaf=True)

    def __repr__(self) -> str:
        return f"OfflineDataset({len(self)} transitions, {self.num_episodes} episodes)"


def _slice(tree: Any, begin: int, end: int) -> Any:
    return _trees.tree_map(lambda leaf: leaf[begin:end], tree)


def _episode(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the parts of an episode, with the observation after its last step."""
    whole = _trees.tree_map(lambda *leaves: np.concatenate(leaves), *parts)
    obs, next_obs = whole["obs"], whole.pop("next_obs")
    paths, leaves, _ = _trees.tree_flatten_with_path(obs)
    for path, one, other in zip(paths, leaves, _trees.tree_leaves(next_obs), strict=True):
        if one[1:].tobytes() != other[:-1].tobytes():
            where = "/".join(map(str, ("next_obs", *path)))
            text = "expected the observation of the next step of the episode, got another one"
            raise SpecError(f"`{where}`: {text}: such steps are no episodes that can be written")
    last = _trees.tree_map(lambda one, other: np.concatenate([one, other[-1:]]), obs, next_obs)
    return {**whole, "obs": last}


def _episodes(data: dict[str, Any]) -> int:
    """Count the episodes by their ends."""
    ends = data["terminated"] | data["truncated"]
    return int(np.count_nonzero(ends)) + int(ends.size > 0 and not ends[-1])


def _examples(data: dict[str, Any], extras: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return examples of a step and of a step of a sequence."""
    example = _columns.example_of(data)
    more = {name: example[name] for name in ("terminated", "truncated", *extras)}
    step = {"obs": example["obs"], "next_obs": example["obs"], "actions": example["actions"]}
    window = {"obs": example["obs"], "actions": example["actions"], "rewards": example["rewards"]}
    known = {"returns_to_go": example["rewards"], "timesteps": np.int64(0), "mask": np.bool_(0)}
    return {**step, "rewards": example["rewards"], **more}, {**window, **known, **more}
