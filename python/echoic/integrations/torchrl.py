"""Replay buffers of torchrl over local buffers and tables.

:class:`TensorDictReplayBuffer` has torchrl's methods, transforms and prefetching. The store draws:
torchrl's samplers and writers, which need places in a storage, are not used.

Importing this module imports torchrl.
"""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torchrl.data
from tensordict import TensorDict, TensorDictBase
from tensordict.nn.utils import _set_dispatch_td_nn_modules
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.utils import pin_memory_output
from torchrl.data.replay_buffers.writers import Writer

from echoic import _trees
from echoic.buffers import PrioritizedReplayBuffer, ReplayBuffer, _columns
from echoic.errors import DtypeError, ReplayError, SpecError
from echoic.table_methods import TableMethods

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from echoic.sharded import ShardedTable
    from echoic.table import Table

__all__ = ["TensorDictReplayBuffer"]

_CPU = torch.device("cpu")
# What torchrl adds to priorities, so that each transition can be drawn.
_EPS = 1e-8
_ENDS = ("terminated", "truncated")
# The fields of a transition, and their keys in TensorDicts.
_KEYS: dict[str, tuple[str, ...]] = {
    "obs": ("observation",),
    "actions": ("action",),
    "rewards": ("next", "reward"),
    "terminated": ("next", "terminated"),
    "truncated": ("next", "truncated"),
    "next_obs": ("next", "observation"),
}
_SAVED_BY_ITS_SERVER = "a table is saved by its server, with checkpoint(), not by this buffer"


class TensorDictReplayBuffer(torchrl.data.TensorDictReplayBuffer):
    """A replay buffer of torchrl that keeps its transitions in a buffer or table of Echoic.

    A buffer that is made of a number stores all entries of the first TensorDict, nested ones too,
    as torchrl's storages do. So does a buffer or table whose fields are a TensorDict's keys.

    If it has a field ``obs`` and none ``next``, transitions have the form of all libraries:
    ``obs``, ``actions``, ``rewards``, ``terminated``, ``truncated`` and ``next_obs`` are the
    entries ``"observation"``, ``"action"``, ``("next", "reward")``, ``("next", "terminated")``,
    ``("next", "truncated")`` and ``("next", "observation")``. Observations that are dicts are the
    entries of their names. Other fields are entries of the same name; entries without a field are
    not stored. Samples have ``("next", "done")`` too.

    A table, and a buffer with priorities, give ``"index"`` and ``"priority_weight"``, but not for
    slices. ``add`` and ``extend`` return ``None``, since a store names its items when they are
    drawn.

    Args:
        storage: Number of transitions that fit, a buffer, a table, or a function that returns a
            table, which copies in other processes call again.
        alpha: Exponent of priorities: 0 samples uniformly. Only with a number, for which it makes a
            buffer with priorities.
        beta: Exponent of the importance weights. ``buffer.sampler.beta`` changes it. Default: 1.
        slice_len: Sample slices of this many consecutive steps of one episode, one behind the
            other, from a buffer with ``episodes=True``. ``("next", "truncated")`` is true at the
            end of each slice, and ``("collector", "mask")`` is false behind episodes that are
            shorter.
        options: More arguments of torchrl's class, but those that need a storage with places.

    Raises:
        ReplayError: If ``alpha`` or ``slice_len`` is given and the store can't have it.
        TypeError: If ``storage`` is not one of these, or an option needs places.
    """

    def __init__(
        self,
        storage: int
        | ReplayBuffer
        | PrioritizedReplayBuffer
        | Table
        | ShardedTable
        | Callable[[], Any],
        *,
        alpha: float | None = None,
        beta: float = 1.0,
        slice_len: int | None = None,
        **options: Any,
    ) -> None:
        for name in ("sample_unit", "dim_extend", "checkpointer"):
            if options.get(name):
                raise TypeError(f"{name} needs a storage with places: Echoic's stores have none")
        super().__init__(
            storage=_Storage(storage, alpha, slice_len),
            sampler=_Sampler(beta),
            writer=_Writer(),
            collate_fn=_unchanged,
            **options,
        )

    def add(self, data: TensorDictBase) -> None:
        """Add one transition, with the priority in its ``priority_key`` if it has that."""
        self._init()
        if len(self._transform):
            with _set_dispatch_td_nn_modules(True):
                data = self._transform.inv(data)
        if data is not None:
            has_priorities = self._storage.has_priorities
            priority = data.get(self.priority_key, None) if has_priorities else None
            self._storage.add(data, None if priority is None else float(priority.max()) + _EPS)
            self._writer.count += 1

    def extend(self, tensordicts: TensorDictBase, *, update_priority: bool | None = None) -> None:
        """Add many transitions, with the priorities in their ``priority_key`` if they have that.

        Args:
            tensordicts: A TensorDict with a transition in each row.
            update_priority: ``False`` ignores ``priority_key``.

        Raises:
            SpecError: If an entry is missing, or does not fit. Nothing is added.
        """
        self._init()
        if len(self._transform):
            tensordicts = self._transform.inv(tensordicts)
        if tensordicts is not None:
            found = None
            if self._storage.has_priorities and update_priority is not False:
                found = tensordicts.get(self.priority_key, None)
            self._storage.extend(tensordicts, None if found is None else _priorities(found))
            self._writer.count += len(tensordicts)

    def sample(
        self, batch_size: int | None = None, return_info: bool = False, **options: Any
    ) -> Any:
        """Draw a batch; see torchrl's method.

        Raises:
            ReplayError: If the buffer is empty.
        """
        n = self._batch_size
        if n is None or batch_size not in (None, n) or return_info or options or self._prefetch:
            return super().sample(batch_size, return_info, **options)
        # What torchrl does around a draw takes as long as the draw.
        self._init()
        return self._sample(n)[0]

    # The stores may be used by several threads, and a table's limiter may let `sample` wait for
    # `extend`, so torchrl's lock around both is not taken.
    @pin_memory_output
    def _sample(self, batch_size: int) -> tuple[TensorDictBase, dict[str, Any]]:
        data, info = self._storage.sample(batch_size, self._sampler.beta)
        if len(self._transform):
            with _set_dispatch_td_nn_modules(True):
                data = self._transform(data)
        return data, info

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of a sample to its ``priority_key``; without that, do nothing."""
        priority, index = data.get(self.priority_key, None), data.get("index", None)
        if priority is not None and index is not None and self._storage.has_priorities:
            self._storage.update(index, priority)

    def _refuse(self, *_args: Any, **_options: Any) -> Any:
        raise TypeError("transitions of Echoic's stores can't be changed: extend the buffer")

    # Torchrl's would change a copy.
    __setitem__ = set_ = set_at_ = update_ = _refuse


class _Storage(Storage):
    """A store of Echoic, and what its transitions are as TensorDicts."""

    def __init__(self, storage: Any, alpha: float | None, slice_len: int | None) -> None:
        self._connect: Any = storage if callable(storage) else None
        made: Any = storage() if callable(storage) else storage
        is_number = isinstance(made, int)
        self.is_table = isinstance(made, TableMethods)
        local = is_number or isinstance(made, (ReplayBuffer, PrioritizedReplayBuffer))
        if not self.is_table and (self._connect is not None or not local):
            raise TypeError(
                "storage: expected a number of transitions, a ReplayBuffer, a "
                "PrioritizedReplayBuffer, a table or a function that returns a table, got a "
                f"{type(storage).__name__}"
                + (f" that returns a {type(made).__name__}" if self._connect else "")
            )
        if alpha is not None and not is_number:
            raise ReplayError(
                f"alpha={alpha}: a {type(made).__name__} has its own; set alpha where it is made"
            )
        if slice_len is not None and getattr(made, "num_episodes", None) is None:
            raise ReplayError(
                f"slice_len={slice_len}: expected a buffer with episodes=True, got {made!r}"
            )
        store: Any = None if is_number else made
        super().__init__(made if is_number else store.capacity)
        self._alpha = alpha
        self._slice_len = slice_len
        self._making = threading.Lock()
        self.store: Any = None
        self.has_priorities = (
            alpha is not None or self.is_table or isinstance(made, PrioritizedReplayBuffer)
        )
        # Of a store with the form of all libraries.
        self._leaves: list[_Leaf] | None = None
        # Axes that a transition has in a TensorDict; known for those that were added here.
        self._axes: tuple[int, ...] = ()
        if store is not None:
            self._use(store)

    def _use(self, store: Any) -> None:
        if self.is_table:
            spec = store.spec
            leaves = [] if spec is None else [(leaf.path, leaf.shape) for leaf in spec.leaves]
        else:
            leaves = [(path, shape) for path, _, shape in store._leaves()]
        found = [_Leaf(path, shape) for path, shape in leaves]
        fields = {leaf.path[0] for leaf in found}
        self._leaves = found if "obs" in fields and "next" not in fields else None
        self.store = store

    def _store_like(self, example: Mapping[str, Any]) -> Any:
        """Return the store, which is made by the first transition if there is none."""
        with self._making:
            if self.store is None:
                # So that `torch.manual_seed` makes draws repeatable, as those of torchrl are.
                seed = int(torch.randint(2**63 - 1, (), generator=self._rng))
                self.store = (
                    ReplayBuffer(example, self.max_size, seed=seed)
                    if self._alpha is None
                    else PrioritizedReplayBuffer(
                        example, self.max_size, alpha=self._alpha, seed=seed
                    )
                )
        return self.store

    def add(self, data: TensorDictBase, priority: float | None) -> None:
        """Add one transition."""
        tree = self._tree(data)
        store = self._store_like(tree) if self.store is None else self.store
        self._axes = tuple(data.batch_size)
        if priority is None:
            store.add(tree)
        else:
            store.add(tree, priority=priority)

    def extend(self, data: TensorDictBase, priorities: Any) -> None:
        """Add many transitions."""
        tree = self._tree(data)
        if self.store is None:
            self._store_like(_columns.example_of(tree))
        store = self.store
        self._axes = tuple(data.batch_size[1:])
        if priorities is None:
            store.extend(tree)
        else:
            store.extend(tree, priorities=priorities)

    def sample(self, n: int, beta: float) -> tuple[TensorDict, dict[str, Any]]:
        """Draw transitions, and what torchrl adds to them."""
        if self.store is None:
            raise ReplayError("the buffer is empty: there is nothing to sample")
        if self._slice_len is not None:
            return self._slices(n, self._slice_len), {}
        if not self.has_priorities:
            return self._tensordict(self.store.sample(n).data, n, {}), {}
        batch = self.store.sample(n, beta=beta)
        info = {
            # Keys of tables have 64 bits without a sign, which torch can hardly index.
            "index": torch.from_numpy(batch.keys.view(np.int64)),
            "priority_weight": torch.from_numpy(batch.weights.astype(np.float32, copy=False)),
        }
        if self._axes:
            ones = (1,) * len(self._axes)
            info = {
                name: value.view(n, *ones).expand(n, *self._axes) for name, value in info.items()
            }
        return self._tensordict(batch.data, n, info), info

    def _slices(self, n: int, length: int) -> TensorDict:
        if n % length:
            raise ReplayError(
                f"expected a batch size that slices of {length} steps divide, got {n}"
            )
        data = dict(self.store.sample_sequences(n // length, length).data)
        mask, _ = data.pop("mask"), data.pop("learn")
        if "truncated" in data:
            data["truncated"][np.arange(len(mask)), mask.sum(1) - 1] = True
        flat = _trees.tree_map(lambda leaf: leaf.reshape(n, *leaf.shape[2:]), data)
        found = self._tensordict(flat, n, {})
        found["collector", "mask"] = torch.from_numpy(mask.reshape(n))
        return found

    def update(self, index: Any, priority: Any) -> None:
        """Set priorities of transitions that were drawn."""
        keys, priorities = _rows(index)[:, 0].astype(np.int64), _priorities(priority)
        if len(priorities) == 1:
            priorities = priorities.repeat(len(keys))
        if self.is_table:
            self.store.update_priorities(keys.view(np.uint64), priorities, wait=False)
        else:
            self.store.update_priorities(keys, priorities)

    def _tree(self, data: TensorDictBase) -> dict[str, Any]:
        """Return the arrays of a TensorDict, in the store's form."""
        if not isinstance(data, TensorDictBase):
            raise SpecError(f"expected a TensorDict, got a {type(data).__name__}")
        if self._leaves is None:
            return _arrays(data, ())
        tree: dict[str, Any] = {}
        for leaf in self._leaves:
            value = data.get(leaf.key, None)
            if not isinstance(value, torch.Tensor):
                raise SpecError(
                    f"field `{'/'.join(leaf.path)}`: expected a tensor at {leaf.key} of the "
                    f"TensorDict, got {'nothing' if value is None else type(value).__name__}; "
                    f"its keys are {sorted(map(str, data.keys(True, True)))}"
                )
            array = _array(value, leaf.key)
            if leaf.is_flag and array.shape[data.ndim :] == (1,):
                array = array[..., 0]
            _put(tree, leaf.path, array)
        return tree

    def _tensordict(self, data: Any, n: int, info: dict[str, Any]) -> TensorDict:
        """Return what was drawn as a TensorDict, which shares the memory."""
        if self._leaves is None:
            tree = _tensors(data)
        else:
            tree = {}
            for leaf in self._leaves:
                array = data
                for name in leaf.path:
                    array = array[name]
                _put(tree, leaf.key, torch.from_numpy(array[:, None] if leaf.is_flag else array))
            ends = [tree["next"][name] for name in _ENDS if name in tree.get("next", ())]
            if ends:
                tree["next"]["done"] = ends[0] | ends[-1]
        # Of trees of tensors with one row for each transition, so there is nothing to check. The
        # constructor takes longer than the draw.
        tree.update(info)
        return TensorDict._new_unsafe(tree, torch.Size((n, *self._axes)), _CPU)

    def __len__(self) -> int:
        return 0 if self.store is None else len(self.store)

    def get(self, index: Any) -> TensorDictBase:
        """Return transitions by their places; all are copied, from the oldest to the newest."""
        if self.store is None:
            raise ReplayError("the buffer is empty: there is nothing to read")
        if self.is_table:
            data = self.store.get(self.store.items().keys).data
        else:
            data = {}
            for path, rows in self.store.state_dict()["rows"].items():
                _put(data, tuple(path.split("/")), rows)
        return self._tensordict(data, len(self), {})[index]

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Raise: the buffer gives data to its storage."""
        raise TypeError("call extend of the buffer")

    def contains(self, item: Any) -> Any:
        """Return which places have a transition."""
        return torch.as_tensor(item) < len(self)

    def _empty(self) -> None:
        if self.store is not None:
            self.store.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the contents of a local buffer; a table has its server's checkpoints."""
        if self.store is None or self.is_table:
            return {}
        arrays: dict[str, Any] = _trees.tree_map(
            lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf,
            self.store.state_dict(),
        )
        return {**arrays, "axes": list(self._axes)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the contents of a local buffer."""
        if self.is_table:
            return
        if not state_dict:
            self._empty()
            return
        state = _trees.tree_map(
            lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf, state_dict
        )
        example: dict[str, Any] = {}
        for path, dtype, shape in state["leaves"]:
            _put(example, tuple(path.split("/")), np.zeros(shape, dtype))
        self._store_like(example).load_state_dict(state)
        self._axes = tuple(state["axes"])

    def dumps(self, path: str | Path) -> None:
        """Write a local buffer to a file."""
        if self.is_table:
            raise ReplayError(_SAVED_BY_ITS_SERVER)
        torch.save(self.state_dict(), Path(path).with_suffix(".pt"))

    def loads(self, path: str | Path) -> None:
        """Read a local buffer from a file that :meth:`dumps` wrote."""
        if self.is_table:
            raise ReplayError(_SAVED_BY_ITS_SERVER)
        self.load_state_dict(torch.load(Path(path).with_suffix(".pt"), weights_only=True))

    def __getstate__(self) -> dict[str, Any]:
        if self._connect is None:
            raise TypeError(
                "a buffer can't be copied to another process with the store in it: make it with a "
                "function that returns a table of a connection, "
                'such as functools.partial(echoic.connect(address).table, "replay")'
            )
        return {**super().__getstate__(), "store": None, "_making": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._making = threading.Lock()
        self._use(self._connect())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store!r})"


class _Numbers:
    """Keep a state of numbers in a file."""

    def dumps(self: Any, path: str | Path) -> None:
        """Write the state to a file."""
        Path(path).write_text(json.dumps(self.state_dict()))

    def loads(self: Any, path: str | Path) -> None:
        """Read the state from a file."""
        self.load_state_dict(json.loads(Path(path).read_text()))


class _Sampler(_Numbers, Sampler):
    """Has the exponent of the weights; the store draws."""

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def sample(self, storage: Any, batch_size: int) -> Any:
        """Raise: the buffer asks its storage."""
        raise TypeError("a store of Echoic draws and reads in one step: call sample of the buffer")

    def can_sample(self, storage: Any, batch_size: int) -> bool:
        """Return whether a sample would not wait."""
        if storage.is_table:
            found: bool = storage.store.can_sample(batch_size)
            return found
        return len(storage) > 0

    def update_priority(self, index: Any, priority: Any, *, storage: Any = None) -> None:
        """Set priorities in the store, if it has some."""
        if storage.has_priorities:
            storage.update(index, priority)
        else:
            super().update_priority(index, priority, storage=storage)

    def state_dict(self) -> dict[str, Any]:
        """Return the exponent."""
        return {"beta": self.beta}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the exponent."""
        self.beta = state_dict["beta"]

    def _empty(self) -> None:
        pass


class _Writer(_Numbers, Writer):
    """Counts what is added; the buffer gives it to its storage."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @property
    def _write_count(self) -> int:
        storage: Any = self._storage
        return storage.store.stats().inserts if storage.is_table else self.count

    def add(self, data: Any) -> Any:
        """Raise: the buffer gives data to its storage."""
        raise TypeError("call add of the buffer")

    def extend(self, data: Any) -> Any:
        """Raise: the buffer gives data to its storage."""
        raise TypeError("call extend of the buffer")

    def state_dict(self) -> dict[str, Any]:
        """Return the count."""
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the count."""
        self.count = state_dict["count"]

    def _empty(self, empty_write_count: bool = True) -> None:
        if empty_write_count:
            self.count = 0


class _Leaf:
    """A leaf of a store with the form of all libraries, and its key in TensorDicts."""

    def __init__(self, path: str, shape: tuple[int, ...]) -> None:
        self.path = tuple(path.split("/"))
        field, *names = self.path
        below = field in ("obs", "next_obs") and names
        key = _KEYS[field][:-1] if below else _KEYS.get(field, (field,))
        self.key = (*key, *names)
        # torchrl keeps an axis of 1 behind rewards and ends.
        self.is_flag = field in ("rewards", *_ENDS) and not shape


def _arrays(data: TensorDictBase, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the tensors of a TensorDict as arrays, which share memory on the CPU."""
    tree: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, torch.Tensor):
            tree[key] = _array(value, (*path, key))
        elif isinstance(value, TensorDictBase):
            tree[key] = _arrays(value, (*path, key))
        else:
            name = "/".join((*path, key))
            raise SpecError(f"`{name}`: expected a tensor, got a {type(value).__name__}")
    return tree


def _array(tensor: Any, key: tuple[str, ...]) -> Any:
    """Return a tensor as an array, also one of a GPU or with a gradient."""
    try:
        return tensor.numpy(force=True)
    except TypeError as error:
        raise DtypeError(
            f"`{'/'.join(key)}`: expected a dtype that numpy has, got {tensor.dtype}; convert it"
        ) from error


def _tensors(tree: dict[str, Any]) -> dict[str, Any]:
    """Return arrays as tensors, which share memory."""
    return {
        key: _tensors(value) if isinstance(value, dict) else torch.from_numpy(value)
        for key, value in tree.items()
    }


def _put(tree: dict[str, Any], path: tuple[str, ...], leaf: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = leaf


def _rows(values: Any) -> Any:
    """Return an array with a row for each transition."""
    array = np.atleast_1d(torch.as_tensor(values).numpy(force=True))
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _priorities(values: Any) -> Any:
    """Return a priority for each transition: its largest, as torchrl's default is."""
    return _rows(values).max(1).astype(np.float64) + _EPS


def _unchanged(data: Any) -> Any:
    return data
