"""A buffer whose transitions are tensors on one device."""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _native, _trees, tensors
from echoic.buffers._common import BufferStats, Common, seed_of
from echoic.buffers._keeping import StateMethods
from echoic.buffers.replay import ReplayBuffer
from echoic.errors import ReplayError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["DeviceReplayBuffer"]

# How many added transitions may wait on the host, and how many bytes.
_ROWS = 1024
_BYTES = 1 << 20


class DeviceReplayBuffer(StateMethods, Common):
    """Keep the last transitions on a device, such as a GPU, and sample them there uniformly.

    A batch has tensors of PyTorch on the device, to which nothing is copied when it is drawn. Added
    transitions wait on the host and go to the device in blocks, at the latest before the next
    sample. All methods may be called from several threads, and on any CUDA streams.

    Args:
        example: One transition, as a dict; see :class:`ReplayBuffer`.
        capacity: Number of transitions that fit. The oldest is removed when another is added. All
            of the memory is allocated at once.
        device: A ``torch.device`` or its name. The CPU when ``None``.
        seed: Seed of the buffer's own draws; random when ``None``. The draws of a seed differ
            between kinds of devices.

    Raises:
        ImportError: If PyTorch is not installed.
        MemoryError: If the device has too little memory.

    >>> import numpy as np
    >>> obs = np.zeros(4, np.float32)
    >>> buffer = DeviceReplayBuffer({"obs": obs, "rewards": 0.0}, 1000, device="cpu")
    >>> buffer.add({"obs": obs, "rewards": 1.0})
    >>> batch = buffer.sample(256, seed=42)
    >>> batch["obs"].shape, batch["rewards"].dtype, len(buffer)
    (torch.Size([256, 4]), torch.float64, 1)
    """

    def __init__(
        self,
        example: Mapping[str, Any],
        capacity: int,
        *,
        device: Any = None,
        seed: int | None = None,
    ) -> None:
        self._device = tensors.torch_device(device)
        self._convert = tensors.tensors_on(self._device)
        import torch

        self._torch: Any = torch
        # Checks the arguments; has no rows, but their dtypes and shapes.
        empty = ReplayBuffer(example, min(capacity, 1))
        rows = tensors.tensors_on()(empty._state()["rows"])
        row_bytes: int = sum(row.element_size() * math.prod(row.shape[1:]) for row in rows)
        self._example = example
        self._leaf_forms = empty._leaves()
        paths, _, self._form = _trees.tree_flatten_with_path(example)
        known = [path for path, _, _ in self._leaf_forms]
        # Where the leaves of a tree are among the columns.
        self._order = [known.index("/".join(map(str, path))) for path in paths]
        self._dtypes = [row.dtype for row in rows]
        try:
            self._columns = [
                torch.empty(
                    (capacity, *row.shape[1:]), dtype=_indexable(row.dtype), device=self._device
                )
                for row in rows
            ]
        except RuntimeError as error:
            text = f"{capacity} transitions of {row_bytes} bytes do not fit on {self._device}"
            raise MemoryError(f"{text}: {error}") from error
        # With its index, since the current device is that of a thread.
        self._device = self._columns[0].device
        self._capacity = capacity
        self._nbytes = capacity * row_bytes
        # Checks and casts what is added, and keeps it until it is moved.
        self._waiting = ReplayBuffer(
            example, min(capacity, _ROWS, max(1, _BYTES // max(1, row_bytes)))
        )
        # Number of transitions that were moved to the device since it was empty.
        self._moved = 0
        self._seed = seed_of(seed)
        self._generator = torch.Generator(self._device).manual_seed(self._seed)
        # The CUDA stream that used the columns last: at first, the one that has their memory.
        self._stream = self._current_stream()
        # Guards all that changes.
        self._lock = threading.Lock()

    def add(self, x: Mapping[str, Any]) -> None:
        """Add one transition.

        Raises:
            SpecError: If a value does not fit its field. Nothing is stored then.
        """
        with self._lock:
            if len(self._waiting) == self._waiting.capacity:
                self._move()
            self._waiting.add(x)  # type: ignore[arg-type]

    def extend(self, xs: Mapping[str, Any]) -> None:
        """Add many transitions.

        Args:
            xs: A dict with the fields of the example, whose leaves have a leading axis of one
                length: arrays, or only tensors of PyTorch of any device, which are not copied to
                the host.

        Raises:
            SpecError: If a value does not fit its field. Nothing is stored then.
        """
        leaves = self._leaves_of(xs)
        if all(isinstance(leaf, self._torch.Tensor) for leaf in leaves):
            columns = self._checked(leaves)
            with self._lock:
                self._move()
                self._store(columns, len(columns[0]))
            return
        shape = np.shape(leaves[0])
        count = shape[0] if shape else 0
        with self._lock:
            if count > self._waiting.capacity - len(self._waiting):
                # One that all of them fit into: either all are stored or, after an error, nothing.
                many = ReplayBuffer(self._example, min(count, self._capacity))
                many.extend(xs)  # type: ignore[arg-type]
                self._move()
                self._store(self._convert(many._state()["rows"]), count)
            else:
                self._waiting.extend(xs)  # type: ignore[arg-type]

    def sample(self, n: int, *, seed: int | None = None, device: Any = None) -> _native.Batch:
        """Draw transitions evenly, with replacement, each field as one tensor.

        Args:
            n: Number of transitions; may be more than there are.
            seed: Seed of this draw; ``None`` continues the buffer's own random numbers.
            device: Where the batch is copied, as for other buffers; the buffer's own when ``None``.

        Raises:
            ReplayError: If the buffer is empty, ``n`` below 1, or the seed out of range.
        """
        if n < 1:
            raise ReplayError(f"n must be at least 1, got {n}")
        generator = self._generator
        if seed is not None:
            if not (isinstance(seed, int) and 0 <= seed < 1 << 64):
                raise ReplayError(f"seed must be an integer from 0 to 2**64 - 1, got {seed!r}")
            generator = self._torch.Generator(self._device).manual_seed(seed)
        with self._lock, self._in_order():
            self._move()
            size = min(self._moved, self._capacity)
            if not size:
                raise ReplayError("the buffer is empty: there is nothing to sample")
            rows = self._torch.randint(size, (n,), generator=generator, device=self._device)
            found = [column.index_select(0, rows) for column in self._columns]
        leaves = [found[at].view(self._dtypes[at]) for at in self._order]
        weights = self._torch.ones(n, device=self._device)
        batch = _native.Batch._of({}, n)._with(self._form.unflatten(leaves), None, weights)
        return batch if device is None else batch.as_torch(device)

    def batches(self, n: int, *, device: Any = None, **options: Any) -> Iterator[_native.Batch]:
        """Yield batches of ``n`` transitions without end; arguments as of :meth:`sample`."""
        while True:
            yield self.sample(n, device=device, **options)

    def clear(self) -> None:
        """Remove all transitions."""
        with self._lock:
            self._waiting.clear()
            self._moved = 0

    @property
    def device(self) -> Any:
        """The ``torch.device`` that has the transitions."""
        return self._device

    @property
    def capacity(self) -> int:
        """Number of transitions that fit."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory that hold transitions."""
        return self._nbytes

    def stats(self) -> BufferStats:
        """Return the buffer's statistics."""
        return BufferStats(len(self), self._capacity, self._nbytes, self._seed)

    def __len__(self) -> int:
        """Return the number of transitions."""
        with self._lock:
            return min(self._moved + len(self._waiting), self._capacity)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(size={len(self)}, capacity={self._capacity}, device={str(self._device)!r})"

    @contextlib.contextmanager
    def _in_order(self) -> Iterator[None]:
        """Let the current CUDA stream wait for the one that used the columns before it."""
        stream = self._current_stream()
        if stream != self._stream:
            stream.wait_stream(self._stream)
            for column in self._columns:
                column.record_stream(stream)
            self._stream = stream
        yield

    def _current_stream(self) -> Any:
        is_cuda = self._device.type == "cuda"
        return self._torch.cuda.current_stream(self._device) if is_cuda else None

    def _move(self) -> None:
        """Move the transitions that wait to the device."""
        if count := len(self._waiting):
            # They wait on if the device has too little memory.
            self._store(self._convert(self._waiting._state()["rows"]), count)
            self._waiting.clear()

    def _store(self, rows: list[Any], count: int) -> None:
        """Write tensors of the device with a row for each of the last of ``count`` transitions."""
        rows = [row[-self._capacity :] for row in rows]
        kept = len(rows[0])
        # Where a transition is depends only on how many came before it.
        start = (self._moved + count - kept) % self._capacity
        first = min(kept, self._capacity - start)
        with self._in_order():
            for column, row in zip(self._columns, rows, strict=True):
                values = row.view(column.dtype)
                column[start : start + first].copy_(values[:first])
                column[: kept - first].copy_(values[first:])
        self._moved += count

    def _leaves_of(self, xs: Any) -> list[Any]:
        """Return what a tree has in the places of the example's leaves."""
        try:
            leaves: list[Any] = self._form.flatten_up_to(xs)
        except (TypeError, ValueError) as error:
            # Names the mistake, if it sees one.
            ReplayBuffer(self._example, 1).extend(xs)
            raise SpecError(f"expected the structure of the example: {error}") from error
        return leaves

    def _checked(self, leaves: list[Any]) -> list[Any]:
        """Return tensors of the device in the order of the columns."""
        found: list[Any] = [None] * len(leaves)
        count = len(leaves[0]) if leaves[0].ndim else 0
        for at, leaf in zip(self._order, leaves, strict=True):
            column, dtype = self._columns[at], self._dtypes[at]
            same = leaf.dtype == dtype or (leaf.is_floating_point() and dtype.is_floating_point)
            if not same or leaf.shape != (count, *column.shape[1:]):
                expected = f"{dtype}{[count, *column.shape[1:]]}"
                path = self._leaf_forms[at][0]
                raise SpecError(
                    f"`{path}`: expected {expected}, got {leaf.dtype}{list(leaf.shape)}"
                )
            # Waits for tensors of another device, which may change, or be read, when this returns.
            found[at] = leaf.detach().to(self._device, dtype)
        return found

    def _leaves(self) -> list[tuple[str, str, list[int]]]:
        return self._leaf_forms

    def _state(self) -> dict[str, Any]:
        with self._lock, self._in_order():
            self._move()
            size = min(self._moved, self._capacity)
            start = self._moved - size
            at = start % self._capacity
            rows = []
            for column, dtype in zip(self._columns, self._dtypes, strict=True):
                # The oldest first.
                row = self._torch.cat([column[at:size].cpu(), column[:at].cpu()]).view(dtype)
                is_half = dtype == self._torch.bfloat16
                rows.append(tensors.bfloat16_array(row) if is_half else row.numpy())
            rng = self._generator.get_state().numpy().astype(np.uint64)
        return {"rows": rows, "rng": rng, "first": start}

    def _load(self, rows: list[Any], rng: Any, first: int, **_: Any) -> None:
        # Checks everything, and keeps the last rows.
        size = max(1, min(len(rows[0]), self._capacity))
        checked = ReplayBuffer(self._example, size)
        checked._load(rows, np.ones(4, np.uint64), first)
        with self._lock:
            self._waiting.clear()
            # A full one has its rows where they were, so that draws continue.
            self._moved = first if len(checked) == self._capacity else 0
            if len(checked):
                self._store(self._convert(checked._state()["rows"]), len(checked))
            state = self._generator.get_state()
            if rng.shape == state.shape:
                self._generator.set_state(self._torch.from_numpy(rng.astype(np.uint8)))
            else:
                # Of a buffer on another kind of device, or of a `ReplayBuffer`.
                entropy = np.random.SeedSequence(rng.tolist())
                self._generator.manual_seed(int(entropy.generate_state(1, np.uint64)[0]))


def _indexable(dtype: Any) -> Any:
    """Return a dtype of the same width that ``index_select`` takes, which not all unsigned are."""
    import torch

    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
    return signed.get(dtype, dtype)
