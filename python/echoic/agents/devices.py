"""Where tensors are: the device, and the processes that learn together."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed as dist

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Ranks", "put", "resolve", "shard", "whole"]


def resolve(device: str | torch.device) -> torch.device:
    """Return the device to use: ``"auto"`` is CUDA if available; missing CUDA becomes the CPU.

    >>> resolve("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    asked = torch.device(device)
    if asked.type == "cuda" and not torch.cuda.is_available():
        warnings.warn(
            f"expected CUDA for device {str(asked)!r}, but torch finds none; the CPU is used "
            'instead. Set device="cpu" to silence this',
            UserWarning,
            stacklevel=3,
        )
        return torch.device("cpu")
    return asked


def put(array: Array, dtype: Any, device: torch.device) -> Tensor:
    """Copy an array to a device. To CUDA it goes by pinned memory, without a wait for the copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(array, dtype))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Ranks:
    """The processes of ``torch.distributed`` that learn together, or just this one.

    With ``"ddp"`` every rank has the whole model, and the float32 gradients of all are added up
    once before a step: ``DistributedDataParallel`` would do that in the parameters' 16 bits. With
    ``"fsdp"`` each rank has a shard of every parameter (``fully_shard``). None is one process.
    """

    def __init__(self, kind: str | None, device: torch.device) -> None:
        if kind is not None and not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError(
                f"distributed={kind!r} needs the process group of torch.distributed: start the "
                "ranks with torchrun and call init_process_group() first"
            )
        self._kind, self._device = kind, device
        self.rank: int = 0 if kind is None else dist.get_rank()
        #: By what a rank's loss is multiplied, so that the sum over ranks is the gradient: shards
        #: get the mean.
        self.factor: int = dist.get_world_size() if kind == "fsdp" else 1

    def reduce(self, values: Tensor, *, largest: bool = False) -> Tensor:
        """Replace values by their sums, or their largest ones, over the ranks."""
        if self._kind is not None:
            dist.all_reduce(values, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
        return values

    def sum(self, *values: float) -> list[float]:
        """Return sums over the ranks."""
        total = torch.tensor(values, dtype=torch.float64, device=self._device)
        return [float(one) for one in self.reduce(total).tolist()]

    def most(self, value: int) -> int:
        """Return the largest value of any rank, when all have asked."""
        return int(self.reduce(torch.tensor([value], device=self._device), largest=True))

    def place(self, module: Any, layers: Sequence[Any] = ()) -> None:
        """Give ``module`` the parameters of rank 0, and shard it: ``layers``, and the rest."""
        if self._kind is None:
            return
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, 0)
        if self._kind == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

            mesh = init_device_mesh(self._device.type, (self.factor,))
            policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
            for one in (*layers, module):
                fully_shard(one, mesh=mesh, mp_policy=policy)

    def add_up(self, parameters: Iterable[Tensor]) -> None:
        """Add up the gradients of all ranks, where each has whole ones."""
        if self._kind == "ddp":
            for one in parameters:
                one.grad = torch.zeros_like(one) if one.grad is None else one.grad
                dist.all_reduce(one.grad)


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
