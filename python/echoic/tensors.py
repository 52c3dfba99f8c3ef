"""Convert batches to tensors of PyTorch and arrays of JAX, which are imported only then."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from echoic._staging import staging_of
from echoic.batches import Batches
from echoic.errors import DtypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from echoic._native import Batch
    from echoic._staging import Copy

__all__ = [
    "DeviceBatches",
    "bfloat16_array",
    "iterate",
    "tensors_on",
    "to_jax",
    "to_torch",
    "torch_device",
]


def _imported(name: str, title: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        text = f"this batch is to become one of {title}, which is not installed: pip install {name}"
        raise ImportError(text, name=name) from error


def torch_device(device: Any) -> Any:
    """Return a ``torch.device``, the CPU for ``None``."""
    return _imported("torch", "PyTorch").device("cpu" if device is None else device)


def to_torch(batch: Batch, device: Any = None) -> Batch:
    """Return a batch with tensors on a device; see :meth:`echoic.Batch.as_torch`."""
    return _converted(batch, tensors_on(device))


def tensors_on(device: Any = None) -> Callable[[Sequence[Any]], list[Any]]:
    """Return the function that makes tensors on a device of arrays."""
    device = torch_device(device)
    if device.type == "cpu":
        return lambda arrays: [one if one.is_cpu else one.cpu() for one in _tensors(arrays)]
    if device.type != "cuda":
        return lambda arrays: [one.to(device) for one in _tensors(arrays)]
    staging = staging_of(device)

    def tensors(arrays: Sequence[Any]) -> list[Any]:
        found = _tensors(arrays)
        if any(tensor.is_cuda for tensor in found):
            return [tensor.to(device) for tensor in found]
        return staging.join(staging.copy(found))

    return tensors


def _tensors(arrays: Sequence[Any]) -> list[Any]:
    """Return tensors that share the memory of arrays; those that are tensors stay as they are."""
    torch = _imported("torch", "PyTorch")
    found = []
    for array in arrays:
        if getattr(array.dtype, "char", None) == "E":
            # bfloat16: numpy has it from another package, whose arrays torch does not read.
            found.append(torch.from_numpy(array.view("int16")).view(torch.bfloat16))
        else:
            found.append(torch.as_tensor(array))
    return found


def bfloat16_array(tensor: Any) -> Any:
    """Return a bfloat16 tensor of the CPU as an array, which shares its memory.

    Raises:
        DtypeError: If ml_dtypes, which has the dtype for numpy, is not installed.
    """
    try:
        from ml_dtypes import bfloat16
    except ImportError as error:
        raise DtypeError(
            "expected a tensor of a dtype that numpy knows, got torch.bfloat16: install "
            "ml_dtypes, or convert it"
        ) from error
    torch = _imported("torch", "PyTorch")
    return tensor.contiguous().view(torch.int16).numpy().view(bfloat16)


def to_jax(batch: Batch, device: Any = None) -> Batch:
    """Return a batch with arrays of JAX on a device; see :meth:`echoic.Batch.as_jax`."""
    jax = _imported("jax", "JAX")
    return _converted(batch, lambda arrays: jax.device_put(arrays, device), keys=False)


def _converted(
    batch: Batch, convert: Callable[[Sequence[Any]], list[Any]], *, keys: bool = True
) -> Batch:
    """Return a batch with other arrays, which are converted all at once."""
    import optree

    from echoic.ragged import Ragged

    parts: Any = (batch.data, batch.keys if keys else None, batch.weights)
    leaves: list[Any]
    leaves, form = optree.tree_flatten(parts)
    arrays: list[Any] = []
    for leaf in leaves:
        arrays += (leaf.values, leaf.offsets) if isinstance(leaf, Ragged) else (leaf,)
    found = iter(convert(arrays))
    leaves = [
        Ragged(next(found), next(found)) if isinstance(leaf, Ragged) else next(found)
        for leaf in leaves
    ]
    data, new_keys, weights = form.unflatten(leaves)
    return batch._with(data, new_keys if keys else batch.keys, weights)


def iterate(sample: Callable[[float | None], Batch], device: Any) -> Iterator[Batch]:
    """Yield batches of a stream or buffer on a device.

    While one is used, a thread draws and copies the next one, unless the device is the CPU, where
    nothing is copied.
    """
    device = torch_device(device)
    with DeviceBatches(sample, device, prefetch=int(device.type != "cpu")) as batches:
        yield from batches


class DeviceBatches(Batches):
    """Batches that threads copy to a device before they are taken.

    No thread waits for a copy to a GPU, unless eight blocks of page-locked memory are under way:
    what the caller starts on the GPU with a batch waits there.
    """

    def __init__(
        self, sample: Callable[[float | None], Batch], device: Any, **options: Any
    ) -> None:
        """Take a function that samples a batch within a timeout; see :class:`Batches`."""
        device = torch_device(device)
        # Here, since the current device is that of a thread.
        self._staging = staging_of(device) if device.type == "cuda" else None
        convert = self._started if self._staging else lambda batch: to_torch(batch, device)
        super().__init__(lambda timeout: convert(sample(timeout)), **options)

    def _started(self, batch: Batch) -> Any:
        """Start to copy a batch; return it and its copies."""
        copies: list[Copy] = []

        def tensors(arrays: Sequence[Any]) -> list[Any]:
            assert self._staging is not None
            copies.append(self._staging.copy(_tensors(arrays)))
            return copies[0].tensors

        return _converted(batch, tensors), copies[0]

    def __next__(self) -> Batch:
        """Return the next batch; see :class:`Batches`."""
        fetched: Any = super().__next__()
        if self._staging is None:
            batch: Batch = fetched
        else:
            batch, copy = fetched
            self._staging.join(copy)
        return batch
