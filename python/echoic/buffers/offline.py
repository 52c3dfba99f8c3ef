"""Data sets that do not change: offline RL, imitation, and models of sequences."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _native, _trees
from echoic.buffers import _columns
from echoic.buffers._common import Drawn, seed_of
from echoic.buffers._sources.episodes import read_minari
from echoic.buffers._sources.folder import read_folder
from echoic.buffers._sources.hdf5 import read_hdf5
from echoic.buffers._sources.names import arrange, with_successors
from echoic.buffers._sources.npy import advise_random, read_npz
from echoic.buffers._sources.parquet import read_parquet
from echoic.errors import ReplayError, SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

__all__ = ["OfflineDataset", "OfflineStats"]

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
    obs_mean: Any
    obs_std: Any
    obs_dim: int | None = None
    act_dim: int | None = None


class OfflineDataset(_native.OfflineDataset, Drawn):
    """Steps of episodes, drawn at random one by one or in stretches.

    The steps are given in order, episode after episode. An episode ends with a step that is
    ``terminated`` or ``truncated``; steps behind the last such step are an episode too, which
    counts as one although its end is not there. Nothing can be added later, and all methods may be
    called from any thread.

    Observations, actions and extras are arrays with a row for each step, of any dtype that a
    :class:`~echoic.Table` can store, or trees of such arrays (dicts, tuples, ...). A flat array,
    not in a tree, has the elements of all rows: floats become rows of float32, other numbers stay
    what they are, and are scalars where there is one for each step.

    Arrays in memory are copied, small values of a step next to each other, so that drawing one
    reads one or two lines of memory; arrays that are mapped from a file (``numpy.memmap``) stay
    there. Observations of more than 512 bytes are stored once where ``next_obs`` only repeats
    those of the next step.

    Args:
        obs: Observations before each step.
        next_obs: Observations after each step. ``None`` if ``obs`` has them: then it has for each
            episode one row more than the episode has steps, the last being what the last step led
            to.
        actions: What was done.
        rewards: A number for each step: float32, or float64 if they are so and the observations
            are not flat.
        terminated: Whether the step led to a terminal state: booleans, or numbers that are 0 or 1.
        truncated: Whether the episode was cut off after the step.
        normalize: Give observations mean 0 and standard deviation 1, element by element, as
            :meth:`normalize_obs` does. An element that is always the same is only shifted. Leaves
            that are not float32 or float64 stay as they are, but there must be one that is.
        gamma: The discount of returns-to-go.
        seed: Of the buffer's own stream of random numbers; random when ``None``.
        copy: Copies arrays, or leaves them where they are: then nobody may change them, and drawing
            small steps takes a few times longer. ``None`` copies if no array is mapped from a file.
        extras: More columns, by name, that batches are to have.

    Raises:
        SpecError: Lengths or dtypes do not fit together; the message says which. A reward, or with
            ``normalize`` an observation, is not finite.
        ReplayError: ``gamma`` is out of range.
        MemoryError: The machine could not hold a copy.

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

        Stretches of episodes, for models of sequences:

        >>> windows = buffer.sample_trajectories(2, length=4, seed=1)
        >>> windows["obs"].shape
        (2, 4, 4)
        >>> windows["timesteps"][windows["mask"]], windows["returns_to_go"][windows["mask"]]
        (array([1, 2, 1, 2]), array([2., 1., 2., 1.], dtype=float32))
    """

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
        """Take the columns; see the class for the arguments."""
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
        return super().__new__(
            cls,
            data,
            step,
            window,
            normalize=normalize,
            gamma=gamma,
            copied=copy,
            seed=seed_of(seed),
        )

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
        they are terminated. Where there are no next observations, and just one observation for
        each step, they are those of the next step; steps of which the next observation is not
        known, since their episode was cut off, are left out.

        Args:
            path: The archive or folder. Nothing in it is executed: arrays of objects are refused.
            mmap: Leave arrays in the archive, which must not be compressed, and map them: for data
                larger than memory. Then the archive must stay as it is, and its checksums are not
                looked at. A folder is always mapped.
            names: What columns are called in the file, where they have none of the usual names:
                ``{"obs": "state"}``.
            extras: Names of more columns that batches are to have.
            options: Arguments of the class: ``normalize``, ``gamma``, ``seed``, ``copy``.

        Raises:
            SpecError: The file is damaged, is none, or does not have the columns.
        """
        source = Path(path)
        arrays = read_folder(source) if source.is_dir() else read_npz(source, mapped=mmap)
        return cls._of(arrays, names, extras, str(source), options)

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
        names as for :meth:`from_npz`. Files follow each other in the order given, those of a folder
        by name.

        Args:
            path: A file or folder, or several.
            cache_dir: A folder to which the columns are written as arrays, if it is not there, and
                from which they are then mapped: for data larger than memory. If it is there it is
                used, if it was made from these files as they are now.
            names: As for :meth:`from_npz`.
            extras: As for :meth:`from_npz`.
            options: Arguments of the class.

        Raises:
            SpecError: A file is damaged, has nulls, or does not have the columns.
        """
        given = [path] if isinstance(path, (str, os.PathLike)) else path
        paths = [Path(item) for item in given]
        arrays = read_parquet(paths, cache_dir, names, extras)
        return cls._of(arrays, names, extras, "the Parquet files", options)

    @classmethod
    def from_minari(
        cls, dataset: Any, *, cache_dir: str | os.PathLike[str] | None = None, **options: Any
    ) -> Self:
        """Read a data set of Minari.

        Args:
            dataset: A ``minari.MinariDataset``, or the name of a local one, or anything that has
                ``iterate_episodes()`` like one. Observations and actions may be trees.
            cache_dir: As for :meth:`from_parquet`.
            options: Arguments of the class.
        """
        arrays = read_minari(dataset, cache_dir)
        return cls._of(arrays, None, (), "the data set", options)

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
        """Read what was recorded of Gymnasium's environments, without the package that recorded it.

        Gymnasium has no format of its own for steps. This reads HDF5 files, with the h5py package:
        those of ``minari.DataCollector``, which have a group for each episode, or their folder; and
        flat ones, as of D4RL, with names as for :meth:`from_npz`. An ``.npz`` file is read as by
        :meth:`from_npz`.

        Args:
            path: The file or folder.
            cache_dir: As for :meth:`from_parquet`.
            names: As for :meth:`from_npz`, of flat files.
            extras: As for :meth:`from_npz`, of flat files.
            options: Arguments of the class.

        Raises:
            SpecError: The file is damaged, or has none of these forms.
        """
        source = Path(path)
        if source.suffix == ".npz":
            return cls.from_npz(source, names=names, extras=extras, **options)
        arrays = read_hdf5(source, cache_dir)
        return cls._of(arrays, names, extras, str(source), options)

    @classmethod
    def _of(
        cls,
        arrays: Mapping[str, Any],
        names: Mapping[str, str] | None,
        extras: Sequence[str],
        source: str,
        options: dict[str, Any],
    ) -> Self:
        """A data set of arrays by the names that their source gives them."""
        columns = with_successors(arrange(arrays, names, extras, source))
        buffer = cls(**columns, **options)
        # Only now: the columns were read in order.
        advise_random(dict(arrays))
        return buffer

    def stats(self) -> OfflineStats:
        """Return the data set's numbers."""
        mean, std, _ = self.moments()
        return OfflineStats(**self.numbers(), obs_mean=mean, obs_std=std)

    def normalize_obs(self, obs: Any) -> Any:
        """Observations as ``normalize=True`` has them in batches: to act with what was learned.

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
        """Show how much there is."""
        return f"OfflineDataset({len(self)} transitions, {self.num_episodes} episodes)"


def _episodes(data: dict[str, Any]) -> int:
    """How many episodes there are, by their ends."""
    ends = data["terminated"] | data["truncated"]
    return int(np.count_nonzero(ends)) + int(ends.size > 0 and not ends[-1])


def _examples(data: dict[str, Any], extras: Mapping[str, Any]) -> tuple[Any, Any]:
    """What one step of either kind of batch looks like."""
    example = _columns.example_of(data)
    more = {name: example[name] for name in ("terminated", "truncated", *extras)}
    step = {"obs": example["obs"], "next_obs": example["obs"], "actions": example["actions"]}
    window = {"obs": example["obs"], "actions": example["actions"], "rewards": example["rewards"]}
    known = {"returns_to_go": example["rewards"], "timesteps": np.int64(0), "mask": np.bool_(0)}
    return {**step, "rewards": example["rewards"], **more}, {**window, **known, **more}
