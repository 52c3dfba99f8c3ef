"""Buffers of Tianshou 2 that keep observations and actions in Echoic's replay buffers.

They are subclasses of Tianshou's, so collectors, algorithms and trainers take them. What Tianshou
reads as whole columns (rewards, ends of episodes, ``info``, ``policy``) stays in its own ``Batch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from tianshou import data
from tianshou.data.batch import Batch, alloc_by_keys_diff, create_value
from tianshou.data.utils.converter import to_hdf5

from echoic.buffers import ReplayBuffer as Store
from echoic.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import KeysView

    from numpy.typing import NDArray

    from echoic import Table

__all__ = [
    "PrioritizedReplayBuffer",
    "PrioritizedVectorReplayBuffer",
    "ReplayBuffer",
    "TableReplayBuffer",
    "VectorReplayBuffer",
]

# The keys whose values are in stores, if they are numbers.
_STORED = ("obs", "act", "obs_next")
# The fields of a table.
_FIELDS = {"obs", "actions", "rewards", "terminated", "truncated", "next_obs"}
# The attributes that Tianshou's buffers do not have.
_OWN = ("_stores", "_fields", "_written", "_positions")


class ReplayBuffer(data.ReplayBuffer):
    """Replace ``tianshou.data.ReplayBuffer``: the same arguments, indices and draws.

    ``buffer.obs``, ``buffer.act`` and ``buffer.obs_next`` are copies that cannot be written to.
    Observations and actions that are not arrays of numbers, such as strings or tensors, are kept as
    Tianshou keeps them.

    Raises:
        SpecError: If an observation or action has not the shape and dtype of the first one.
    """

    # What Tianshou's buffers have.
    stack_num: int
    _meta: Any
    _size: int
    _insertion_idx: int

    # For each sub-buffer one with its last transitions; made with the first one.
    _stores: list[Store]
    # The keys whose values are in the stores.
    _fields: KeysView[str] = {}.keys()
    # How many transitions each store was given, and the number among them of the one at each index.
    _written: list[int]
    _positions: NDArray[np.int64]

    def add(
        self, batch: Any, buffer_ids: Any = None
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Add a transition, and return what Tianshou's ``add`` does.

        Raises:
            ValueError: If a key is missing, or ``buffer_ids`` is not ``[0]``.
            SpecError: If a value has not the form of the first one. Nothing is stored then.
        """
        many = buffer_ids is not None
        if many and (len(buffer_ids) != 1 or buffer_ids[0] != 0 or len(batch) != 1):
            raise ValueError(
                "a buffer of one environment takes buffer_ids=[0] and a batch of 1 row, or no "
                f"buffer_ids; got buffer_ids={buffer_ids!r} and {len(batch)} rows"
            )
        values = self._prepared(dict(batch.__dict__), many)
        positions = self._put_rows(values, (0,), many)
        reward, done = values["rew"], values["done"]
        state = self._update_state_pre_add(*((reward[0], done[0]) if many else (reward, done)))
        index, returns, length, start = (np.array([number]) for number in state)
        self._positions[index] = positions
        self._put_columns(index, values, many)
        return index, returns, length, start

    def sample_indices(self, batch_size: int | None) -> NDArray[Any]:
        """Draw indices: the same as Tianshou's with this seed."""
        if batch_size and batch_size > 0 and self._size and not self._sample_avail:
            # What `choice` does, without its checks.
            indices = self._random_state.randint(0, self._size, batch_size)
        else:
            indices = super().sample_indices(batch_size)
        return np.asarray(indices)

    def get(
        self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None
    ) -> Any:
        """Return the values of one key, stacked as Tianshou's ``get`` does."""
        if key not in self._fields:
            return super().get(index, key, default_value, stack_num)
        return self._rows(np.asarray(index)[()], stack_num or self.stack_num)[key]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            everything = index == slice(None)
            index = self.sample_indices(0) if everything else self._indices[: len(self)][index]
        columns = self._meta.__dict__
        if "done" not in columns:
            # What numpy expects of an empty sequence.
            raise KeyError("obs")
        index = np.asarray(index)[()]
        rows = self._rows(index, self.stack_num) if self._fields else {}
        batch = Batch()
        to = batch.__dict__
        to["obs"] = rows["obs"] if "obs" in rows else self.get(index, "obs")
        if "act" not in rows:
            to["act"] = columns["act"][index]
        elif self.stack_num == 1:
            to["act"] = rows["act"]
        else:
            newest = (*[slice(None)] * index.ndim, -1)
            to["act"] = _map(lambda actions: actions[newest], rows["act"])
        for key in ("rew", "terminated", "truncated", "done"):
            to[key] = columns[key][index]
        if not self._save_obs_next:
            to["obs_next"] = self.get(self.next(index), "obs", Batch())
        elif "obs_next" in rows:
            to["obs_next"] = rows["obs_next"]
        else:
            to["obs_next"] = self.get(index, "obs_next", Batch())
        for key in ("info", "policy"):
            if self.stack_num == 1:
                to[key] = _row(columns[key], index) if key in columns else Batch()
            else:
                to[key] = self.get(index, key, Batch())
        for key in columns.keys() - to.keys():
            to[key] = columns[key][index]
        return batch

    def __getattr__(self, key: str) -> Any:
        return self._column(key) if key in self._fields else super().__getattr__(key)

    def reset(self, keep_statistics: bool = False) -> None:
        """Remove all transitions."""
        super().reset(keep_statistics)
        if self._fields:
            self._positions.fill(-1)
            for store in self._stores:
                store.clear()
        if isinstance(self, data.PrioritizedReplayBuffer):
            # Tianshou's goes on to draw what was removed.
            self.weight[self._indices] = 0.0

    def update(self, buffer: data.ReplayBuffer) -> NDArray[Any]:
        """Add all transitions of another buffer, and return where they are."""
        if len(buffer) == 0 or self.maxsize == 0:
            return np.array([], int)
        stack_num, buffer.stack_num = buffer.stack_num, 1
        rows = buffer[buffer.sample_indices(0)]
        buffer.stack_num = stack_num
        return self._append(rows)

    def dropnull(self) -> None:
        """Remove transitions with NaN."""
        stack_num, self.stack_num = self.stack_num, 1
        rows = self[:].dropnull()
        self.stack_num = stack_num
        self.reset(keep_statistics=True)
        self._append(rows)

    def set_array_at_key(
        self, seq: NDArray[Any], key: str, index: Any = None, default_value: float | None = None
    ) -> None:
        """Set the values of a key, which is not that of observations or actions.

        Raises:
            ReplayError: If the key is ``obs``, ``act`` or ``obs_next``.
        """
        if key in self._fields:
            raise ReplayError(
                f"`{key}` is in Echoic's replay buffer and cannot be changed; give the new values "
                "another key"
            )
        super().set_array_at_key(seq, key, index, default_value)

    def set_batch(self, batch: Any) -> None:
        """Replace the values of all transitions by those of a batch with ``maxsize`` rows."""
        super().set_batch(batch)
        self._move_rows()

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Write the buffer to a file, which Tianshou's own buffers can load too."""
        with h5py.File(path, "w") as file:
            to_hdf5(self.__getstate__(), file, compression=compression)

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in _OWN}
        columns = {key: self._column(key) for key in self._fields}
        state["_meta"] = _batch({**columns, **self._meta.__dict__})
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._move_rows()

    def _prepared(self, values: dict[str, Any], many: bool) -> dict[str, Any]:
        """Return the values to be stored."""
        missing = {"obs", "act", "rew", "terminated", "truncated"} - values.keys()
        if missing:
            raise ValueError(f"expected a batch with {', '.join(sorted(missing))} too")
        values["done"] = np.logical_or(values["terminated"], values["truncated"])
        if not self._save_obs_next:
            values.pop("obs_next", None)
        if self._save_only_last_obs:
            last = (slice(None), -1) if many else -1
            for key in ("obs", "obs_next"):
                if key in values:
                    values[key] = values[key][last]
        return values

    def _put_rows(self, values: dict[str, Any], owners: Any, many: bool) -> list[int]:
        """Move observations and actions of each owner into its store, and return their positions.

        Without ``many``, values have no axis of rows.
        """
        if "done" not in self._meta.__dict__:
            self._make_stores({key: values[key] for key in _STORED if key in values}, many)
        if not self._fields:
            return [-1] * len(owners)
        missing = self._fields - values.keys()
        if missing:
            raise ValueError(f"expected `{missing.pop()}`, which the first transition had too")
        rows = {key: _plain(values.pop(key)) for key in self._fields}
        # Found before one is stored, so that a wrong id or too few rows change nothing.
        found = [
            (self._stores[owner], _row(rows, at) if many else rows)
            for at, owner in enumerate(owners)
        ]
        positions = []
        for owner, (store, row) in zip(owners, found, strict=True):
            store.add(row)
            positions.append(self._written[owner])
            self._written[owner] += 1
        return positions

    def _put_columns(self, index: NDArray[Any], values: dict[str, Any], many: bool) -> None:
        """Put everything else where Tianshou has it."""
        if _assign(self._meta, index, values):
            return
        rows = Batch(values)
        try:
            self._meta[index] = rows
        except ValueError:
            # Some keys are new.
            rows.rew = rows.rew.astype(float)
            for key in ("terminated", "truncated", "done"):
                rows[key] = rows[key].astype(bool)
            if self._meta.__dict__:
                alloc_by_keys_diff(self._meta, rows, self.maxsize, not many)
            else:
                self._meta = create_value(rows, self.maxsize, not many)
            self._share_columns()
            self._meta[index] = rows

    def _append(self, rows: Any) -> NDArray[Any]:
        """Add rows that are no steps of a running episode, and return where they are."""
        values = dict(rows.__dict__)
        values.pop("weight", None)
        if not self._save_obs_next:
            values.pop("obs_next", None)
        indices = np.empty(len(rows), int)
        for row in range(len(rows)):
            one = _row(values, row)
            positions = self._put_rows(one, (0,), many=False)
            indices[row] = self.last_index[0] = self._insertion_idx
            self._insertion_idx = (self._insertion_idx + 1) % self.maxsize
            self._size = min(self._size + 1, self.maxsize)
            self._positions[indices[row]] = positions[0]
            self._put_columns(indices[row : row + 1], one, many=False)
        if isinstance(self, data.PrioritizedReplayBuffer):
            self.init_weight(indices)
        return indices

    def _make_stores(self, values: dict[str, Any], many: bool) -> None:
        values = {key: value for key, value in values.items() if _is_numbers(value)}
        self._fields = dict.fromkeys(values).keys()
        example = _plain(_row(values, 0) if many else values)
        sizes = np.diff(self.subbuffer_edges).tolist() if values else []
        self._stores = [Store(example, size, seed=0) for size in sizes]
        self._written = [0] * len(sizes)
        self._positions = np.full(self.maxsize, -1)

    def _move_rows(self) -> None:
        """Move observations and actions from Tianshou's columns into new stores."""
        columns = dict(self._meta.__dict__)
        if not columns.keys().isdisjoint(_STORED):
            self._make_stores({key: columns[key] for key in _STORED if key in columns}, many=True)
            rows = {key: _plain(columns.pop(key)) for key in self._fields}
            self._meta = _batch(columns)
            edges = self.subbuffer_edges.tolist()
            for owner, (store, start) in enumerate(zip(self._stores, edges, strict=False)):
                size = edges[owner + 1] - start
                # The oldest first, since they are removed first.
                order = start + np.roll(np.arange(size), -self._next_index(owner))
                store.extend(_row(rows, order))
                self._positions[order] = np.arange(size)
                self._written[owner] = size
        self._share_columns()

    def _next_index(self, owner: int) -> int:
        """Return where the next transition of a sub-buffer goes."""
        return int(self._insertion_idx)

    def _share_columns(self) -> None:
        """Give sub-buffers their parts of the columns."""

    def _rows(self, index: NDArray[Any], stack_num: int) -> dict[str, Any]:
        """Return what the stores have at these indices, with an axis for a stack above 1."""
        if index.dtype == bool:
            index = np.flatnonzero(index)
        if stack_num > 1:
            steps = [index]
            for _ in range(stack_num - 1):
                steps.append(self.prev(steps[-1]))
            index = np.stack(steps[::-1], axis=-1)
        flat = index.reshape(-1)
        positions = self._positions[flat]
        if len(self._stores) == 1:
            owners = np.zeros(len(flat), int)
        else:
            owners = np.searchsorted(self.subbuffer_edges, flat % self.maxsize, side="right") - 1
        try:
            rows = Store._rows(self._stores, owners, positions)
        except ReplayError:
            where = flat[np.argmin(positions)]
            raise IndexError(f"no transition has been added at index {where}") from None
        if index.ndim == 1:
            return {key: _batch(value) for key, value in rows.items()}
        return {
            key: _map(lambda array: array.reshape(index.shape + array.shape[1:])[()], value)
            for key, value in rows.items()
        }

    def _column(self, key: str) -> Any:
        """Return a copy with a row for each index, zeros where there is no transition."""
        written = np.flatnonzero(self._positions >= 0)

        def whole(values: NDArray[Any]) -> NDArray[Any]:
            column = np.zeros((self.maxsize, *values.shape[1:]), values.dtype)
            column[written] = values
            column.flags.writeable = False
            return column

        return _map(whole, self._rows(written, 1)[key])


class VectorReplayBuffer(ReplayBuffer, data.VectorReplayBuffer):
    """Replace ``tianshou.data.VectorReplayBuffer``, as :class:`ReplayBuffer` replaces its own."""

    def add(
        self, batch: Any, buffer_ids: Any = None
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Add a transition for each of these environments, or for all.

        Raises:
            ValueError: If a key is missing.
            SpecError: If a value has not the form of the first one.
        """
        given = batch.__dict__
        values = {key: given[key] for key in self._reserved_keys if key in given}
        values = self._prepared(values, many=True)
        owners = range(self.buffer_num) if buffer_ids is None else buffer_ids
        positions = self._put_rows(values, owners, many=True)
        rewards, dones = values["rew"], values["done"]
        states = []
        for at, owner in enumerate(owners):
            states.append(self._advance(owner, rewards[at], dones[at]))
        indices, returns, lengths, starts = map(np.array, zip(*states, strict=True))
        self._positions[indices] = positions
        self._put_columns(indices, values, many=True)
        return indices, returns, lengths, starts

    def sample_indices(self, batch_size: int | None) -> NDArray[Any]:
        """Draw indices: the same as Tianshou's with this seed, grouped by environment."""
        if not batch_size or batch_size < 0 or self._sample_avail or not self._lengths.any():
            return np.asarray(super(ReplayBuffer, self).sample_indices(batch_size))
        # What `choice` does with these probabilities, without its checks.
        edges = (self._lengths / self._lengths.sum()).cumsum()
        draws = self._random_state.random_sample(batch_size)
        owners = (edges / edges[-1]).searchsorted(draws, side="right")
        counts = np.bincount(owners, minlength=self.buffer_num).tolist()
        return np.concatenate(
            [
                buffer._random_state.randint(0, buffer._size, count) + offset
                for buffer, count, offset in zip(self.buffers, counts, self._offset, strict=True)
                if count
            ]
        )

    def _advance(self, owner: int, reward: Any, done: Any) -> tuple[Any, Any, int, Any]:
        """Count a step of an environment, as `_update_state_pre_add` of its buffer does.

        Attributes are set in its dict, since each assignment to the buffer is checked.
        """
        buffer, offset = self.buffers[owner].__dict__, self._offset[owner]
        index, start = buffer["_insertion_idx"], buffer["_ep_start_idx"]
        size = buffer["maxsize"]
        buffer["last_index"][0] = index
        following = buffer["_insertion_idx"] = (index + 1) % size
        self._lengths[owner] = buffer["_size"] = min(buffer["_size"] + 1, size)
        self.last_index[owner] = index + offset
        total, length = buffer["_ep_return"] + reward, buffer["_ep_len"] + 1
        if done:
            buffer["_ep_return"], buffer["_ep_len"], buffer["_ep_start_idx"] = 0.0, 0, following
        else:
            buffer["_ep_return"], buffer["_ep_len"] = total, length
            total, length = np.zeros_like(total) if np.ndim(total) else 0.0, 0
        return index + offset, total, length, start + offset

    def update(self, buffer: data.ReplayBuffer) -> NDArray[Any]:
        """Refuse, as Tianshou does: the transitions would belong to no environment."""
        raise NotImplementedError("a buffer of several environments cannot be updated")

    def dropnull(self) -> None:
        """Refuse: the rows that are left would belong to no environment."""
        raise NotImplementedError(
            "transitions of several environments cannot be dropped; see buffer.isnull()"
        )

    def _next_index(self, owner: int) -> int:
        return int(self.buffers[owner]._insertion_idx)

    def _share_columns(self) -> None:
        if self._meta.__dict__:
            self._set_batch_for_children()


class PrioritizedReplayBuffer(data.PrioritizedReplayBuffer, ReplayBuffer):
    """Replace ``tianshou.data.PrioritizedReplayBuffer``. Priorities are in Tianshou's own tree."""


class PrioritizedVectorReplayBuffer(data.PrioritizedVectorReplayBuffer, VectorReplayBuffer):
    """Replace ``tianshou.data.PrioritizedVectorReplayBuffer``, as the others do."""


class TableReplayBuffer(data.ReplayBuffer):
    """Sample from a table that other processes write to, for algorithms with 1-step returns.

    A table does not say which transitions follow each other, so n-step returns and stacked
    observations are refused. Indices are those of the rows of the last batch.

    Args:
        table: A table of any connection with the fields of :meth:`echoic.Table.from_spaces`.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table.capacity)
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def sample(self, batch_size: int | None) -> tuple[Any, NDArray[Any]]:
        """Sample this many transitions; wait while the table's limiter says so.

        Raises:
            ReplayError: If ``batch_size`` is ``None`` or less than 1.
        """
        if batch_size is None or batch_size < 1:
            raise ReplayError(
                f"expected a batch_size of at least 1, got {batch_size}: a table does not give "
                "all of its transitions at once, as on-policy algorithms need them"
            )
        rows = self._table.sample(batch_size).data
        if missing := _FIELDS - rows.keys():
            raise ReplayError(
                f"the table has no {', '.join(sorted(missing))}: make it with Table.from_spaces"
            )
        terminated, truncated = rows["terminated"], rows["truncated"]
        values = {
            "obs": rows["obs"],
            "act": rows["actions"],
            "rew": rows["rewards"].astype(float),
            "terminated": terminated,
            "truncated": truncated,
            "done": terminated | truncated,
            "obs_next": rows["next_obs"],
            "info": {},
            "policy": {},
        }
        self._meta = _batch(values)
        return _batch(values), np.arange(batch_size)

    def add(self, batch: Any, buffer_ids: Any = None) -> Any:
        """Refuse: a collector needs a buffer of its own."""
        raise ReplayError(
            "a TableReplayBuffer only samples; add transitions with the table's own methods, and "
            "give collectors a VectorReplayBuffer"
        )

    def unfinished_index(self) -> NDArray[Any]:
        """Return nothing, since no episode goes on in a batch."""
        return np.array([], int)

    def next(self, index: Any) -> NDArray[Any]:
        """Refuse: a table does not know which transition follows."""
        raise ReplayError(
            "a table does not say which transition follows another; use n_step_return_horizon=1, "
            "or a VectorReplayBuffer"
        )

    def prev(self, index: Any) -> NDArray[Any]:
        """Refuse, as :meth:`next` does."""
        return self.next(index)


def _is_numbers(tree: Any) -> bool:
    """Return whether a store can have these values."""
    if tree.__class__ is Batch:
        return bool(tree.__dict__) and all(map(_is_numbers, tree.__dict__.values()))
    return isinstance(tree, np.ndarray | np.generic) and tree.dtype.kind in "biuf"


def _plain(tree: Any) -> Any:
    """Return a tree of dicts for one of batches."""
    if tree.__class__ is Batch:
        tree = tree.__dict__
    if tree.__class__ is dict:
        return {key: _plain(value) for key, value in tree.items()}
    return tree


def _row(tree: Any, at: Any) -> Any:
    """Return the row, or the rows, at these places of all arrays."""
    if tree.__class__ is dict:
        return {
            key: value[at] if value.__class__ is np.ndarray else _row(value, at)
            for key, value in tree.items()
        }
    if tree.__class__ is Batch:
        return _batch({key: _row(value, at) for key, value in tree.__dict__.items()})
    return None if tree is None else tree[at]


def _map(function: Any, tree: Any) -> Any:
    """Return a batch for a tree, with the results for its arrays."""
    tree = _plain(tree)
    if tree.__class__ is dict:
        return _batch({key: _map(function, value) for key, value in tree.items()})
    return function(tree)


def _batch(tree: Any) -> Any:
    """Return a batch for a dict, without a copy."""
    if tree.__class__ is not dict:
        return tree
    batch = Batch()
    batch.__dict__.update((key, _batch(value)) for key, value in tree.items())
    return batch


def _assign(columns: Any, index: NDArray[Any], values: dict[str, Any]) -> bool:
    """Put values into columns; not if their keys differ."""
    own = columns.__dict__
    if own.keys() != values.keys():
        return False
    for key, value in values.items():
        column = own[key]
        if column.__class__ is not Batch:
            if value.__class__ is Batch:
                return False
            column[index] = value
        elif value.__class__ is not Batch or not _assign(column, index, value.__dict__):
            return False
    return True
