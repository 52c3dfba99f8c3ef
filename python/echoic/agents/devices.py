"""Where tensors are: the device, and the processes that learn together.

Importing this module imports torch.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import distributed as dist

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Distributed", "Ranks", "put", "resolve"]

Distributed = Literal["ddp", "fsdp"]


def resolve(device: str | torch.device) -> torch.device:
    """Return the device to use: ``"auto"`` is CUDA if available; missing CUDA becomes the CPU.

    >>> resolve("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    asked = torch.device(device)
    if asked.type == "cuda" and not torch.cuda.is_available():
        _warn(str(asked))
        return torch.device("cpu")
    return asked


@functools.cache
def _warn(device: str) -> None:
    """Warn once per process."""
    warnings.warn(
        f"expected CUDA for device {device!r}, but torch finds none; the CPU is used instead. "
        'Set device="cpu" to silence this',
        UserWarning,
        stacklevel=4,
    )


def put(array: Array, dtype: Any, device: torch.device) -> Tensor:
    """Copy an array to a device. To CUDA it goes by pinned memory, without a wait for the copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(array, dtype))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Ranks:
    """The processes of ``torch.distributed``'s default group that learn together, or just this one.

    With ``"ddp"`` every rank has the whole model, and the gradients of all ranks are added up once
    before a step. ``DistributedDataParallel`` would add them up in 16 bits, and once for every
    micro-batch. With ``"fsdp"`` each rank has a shard of every parameter (``fully_shard``).

    Args:
        kind: ``"ddp"``, ``"fsdp"``, or ``None`` for one process.
        device: The device of this rank.

    Raises:
        ArgumentError: If there is no process group.
    """

    def __init__(self, kind: Distributed | None, device: torch.device) -> None:
        if kind is not None and not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError(
                f"distributed={kind!r} needs the process group of torch.distributed: start the "
                "ranks with torchrun and call init_process_group() first"
            )
        self._kind = kind
        self._device = device
        self.size = 1 if kind is None else dist.get_world_size()
        self.rank = 0 if kind is None else dist.get_rank()
        #: By what a rank's loss is multiplied, so that the sum over ranks is the gradient: shards
        #: get the mean.
        self.factor = self.size if kind == "fsdp" else 1

    def sum(self, *values: float) -> list[float]:
        """Return sums over the ranks."""
        return self.reduce(torch.tensor(values, dtype=torch.float64, device=self._device)).tolist()

    def reduce(self, values: Tensor, *, largest: bool = False) -> Tensor:
        """Replace values by their sums, or their largest ones, over the ranks."""
        if self._kind is not None:
            dist.all_reduce(values, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
        return values

    def most(self, value: int) -> int:
        """Return the largest value of any rank."""
        return int(self.reduce(torch.tensor([value], device=self._device), largest=True))

    def gather(self, values: Array) -> tuple[Array, slice]:
        """Return the values of all ranks one after the other, and where this rank's are."""
        if self._kind is None:
            return values, slice(0, len(values))
        counts = torch.zeros(self.size, dtype=torch.int64, device=self._device)
        counts[self.rank] = len(values)
        ends = self.reduce(counts).cumsum(0).tolist()
        own = slice(ends[self.rank] - len(values), ends[self.rank])
        everyone = torch.zeros(ends[-1], dtype=torch.float64, device=self._device)
        everyone[own] = put(values, np.float64, self._device)
        return self.reduce(everyone).cpu().numpy().astype(values.dtype), own

    def place(self, module: Any, layers: Sequence[Any] = ()) -> None:
        """Give ``module`` the parameters of rank 0, or shard it: ``layers`` each, then the rest."""
        if self._kind is None:
            return
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, 0)
        if self._kind == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

            mesh = init_device_mesh(self._device.type, (self.size,))
            policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
            for one in (*layers, module):
                fully_shard(one, mesh=mesh, mp_policy=policy)

    def add_up(self, parameters: Iterable[Tensor]) -> None:
        """Add the gradients of all ranks up, where each has whole ones."""
        if self._kind != "ddp":
            return
        waits = []
        for one in parameters:
            one.grad = torch.zeros_like(one) if one.grad is None else one.grad
            waits.append(dist.all_reduce(one.grad, async_op=True))
        for wait in waits:
            wait.wait()

    def barrier(self) -> None:
        """Wait for the other ranks."""
        self.most(0)


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor. Of a sharded one every rank must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of a whole tensor, if ``like`` is sharded."""
    if not hasattr(like, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    tensor = tensor.to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
