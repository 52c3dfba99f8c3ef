"""Convert batches to tensors of PyTorch and arrays of JAX, which are imported only then."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from echoic.batches import Batches
from echoic.errors import DtypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from echoic._native import Batch

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
    tensor = tensors_on(device)
    return _converted(batch, tensor, tensor)


def tensors_on(device: Any = None) -> Callable[[Any], Any]:
    """Return the function that makes a tensor on a device of an array."""
    import numpy as np

    device = torch_device(device)
    torch = _imported("torch", "PyTorch")

    def tensor(array: Any) -> Any:
        if getattr(array.dtype, "name", None) == "bfloat16":
            # numpy has it from another package, whose arrays torch does not read.
            found = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            found = torch.as_tensor(array)
        if device.type == "cuda" and found.device.type == "cpu":
            # Torch keeps the page-locked memory until the copy is complete.
            found = found.pin_memory()
        return found.to(device, non_blocking=True)

    return tensor


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
    torch = sys.modules["torch"]
    return tensor.contiguous().view(torch.int16).numpy().view(bfloat16)


def to_jax(batch: Batch) -> Batch:
    """Return a batch with arrays of JAX; see :meth:`echoic.Batch.as_jax`."""
    jax = _imported("jax", "JAX")
    return _converted(batch, jax.numpy.asarray, lambda keys: keys)


def _converted(batch: Batch, array: Callable[[Any], Any], key_array: Callable[[Any], Any]) -> Batch:
    import optree

    from echoic.ragged import Ragged

    def leaf(value: Any) -> Any:
        if isinstance(value, Ragged):
            return Ragged(array(value.values), array(value.offsets))
        return array(value)

    keys, weights = batch.keys, batch.weights
    return batch._with(
        optree.tree_map(leaf, batch.data),
        None if keys is None else key_array(keys),
        None if weights is None else array(weights),
    )


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

    Copies to a CUDA device have a stream of their own, so that they run beside the work of others.
    """

    def __init__(
        self, sample: Callable[[float | None], Batch], device: Any, **options: Any
    ) -> None:
        """Take a function that samples a batch within a timeout; see :class:`Batches`."""
        self._device = torch_device(device)
        self._stream: Any = None
        if self._device.type == "cuda":
            self._stream = _imported("torch", "PyTorch").cuda.Stream(self._device)
        super().__init__(lambda timeout: self._copied(sample(timeout)), **options)

    def _copied(self, batch: Batch) -> Batch:
        if self._stream is None:
            return to_torch(batch, self._device)
        with _imported("torch", "PyTorch").cuda.stream(self._stream):
            copy = to_torch(batch, self._device)
        self._stream.synchronize()
        return copy

    def __next__(self) -> Batch:
        """Return the next batch, whose copies are complete; see :class:`Batches`."""
        batch = super().__next__()
        if self._stream is not None:
            # So that their memory is not used again before the work that reads them is done.
            torch = _imported("torch", "PyTorch")
            reader = torch.cuda.current_stream(self._stream.device)
            _converted(batch, *[lambda tensor: tensor.record_stream(reader)] * 2)
        return batch
