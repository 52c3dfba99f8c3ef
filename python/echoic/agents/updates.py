"""What all learners share: PPO's clipped gain, one step of an optimizer, and float32 copies.

A number of bfloat16 has 8 significant bits: a step of 1e-6 on a weight of 0.02 is far below half of
its last one, so it is rounded away, however many follow. :class:`MasterWeights` keeps a float32
copy of each such parameter. The optimizer steps on the copies, and the parameters are the copies,
rounded.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from echoic.agents.devices import shard, whole
from echoic.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor
    from torch.nn import Parameter

__all__ = ["MasterWeights", "clipped_gain", "step"]

_HALVES = (torch.bfloat16, torch.float16)


def clipped_gain(
    ratio: Tensor, advantages: Tensor, low: float | None, high: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return PPO's gain ``min(ρ·A, clip(ρ, 1 − low, 1 + high)·A)``, and where the clip took over.

    Without ``low`` or ``high`` there is no bound on that side.

    Returns:
        The gain, where it was bounded from below (ρ too small, A < 0), and from above (A > 0).
    """
    gain = ratio * advantages
    bounds = 1 - (math.inf if low is None else low), 1 + (math.inf if high is None else high)
    bounded = ratio.clamp(*bounds) * advantages
    is_clipped = bounded < gain
    return (
        torch.minimum(gain, bounded),
        is_clipped & (advantages < 0),
        is_clipped & (advantages > 0),
    )


def step(optimizer: Any, parameters: Iterable[Any], longest: float) -> float:
    """Clip the gradient to a length, take a step, and return the length before clipping.

    Raises:
        FloatingPointError: If the gradient is not finite. No step was taken: one NaN would spoil
            every parameter, and the optimizer's averages for good.
    """
    norm = float(whole(torch.nn.utils.clip_grad_norm_(list(parameters), longest)))
    if not math.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        raise FloatingPointError(
            f"the length of the gradient is {norm}; the step was not taken. Check the states, "
            "rewards and log-probabilities of the batch, and the learning rate"
        )
    optimizer.step()
    return norm


class MasterWeights:
    """Float32 copies of those parameters that have 16 bits.

    After :meth:`give` each such parameter is its copy, rounded. Parameters of other dtypes are
    their own copies.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    >>> masters = MasterWeights([weight])
    >>> optimizer = torch.optim.SGD(masters.parameters, lr=0.001)
    >>> for _ in range(10):
    ...     weight.sum().backward()
    ...     masters.take_gradients()
    ...     optimizer.step()
    ...     masters.give()
    ...     optimizer.zero_grad()
    >>> weight.item()  # one step is less than the half of 1/256 that would change a 1
    0.98828125
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        #: The parameters for an optimizer.
        self.parameters: list[Tensor] = []
        self._pairs: list[tuple[Parameter, Tensor]] = []
        for one in parameters:
            if one.dtype not in _HALVES:
                self.parameters.append(one)
                continue
            copy = one.detach().to(torch.float32).requires_grad_()
            self.parameters.append(copy)
            self._pairs.append((one, copy))

    def take_gradients(self) -> None:
        """Add the gradients of the parameters to those of the copies, and clear the former.

        After each micro-batch: a sum of many has more digits than 16 bits can hold.
        """
        for one, copy in self._pairs:
            if one.grad is None:
                continue
            gradient = one.grad.to(torch.float32)
            copy.grad = gradient if copy.grad is None else copy.grad.add_(gradient)
            one.grad = None

    @torch.no_grad()
    def follow(self) -> None:
        """Take over values that were written to the parameters since, before a step."""
        for one, copy in self._pairs:
            copy.copy_(torch.where(copy.to(one.dtype) == one, copy, one.to(copy.dtype)))

    @torch.no_grad()
    def give(self) -> None:
        """Write the copies to the parameters."""
        for one, copy in self._pairs:
            one.copy_(copy)

    def state(self) -> list[Tensor]:
        """Return the copies, for a checkpoint."""
        return [copy.detach() for _, copy in self._pairs]

    def check(self, state: Sequence[Tensor]) -> None:
        """Raise a ``CheckpointError`` if a state is of other parameters."""
        mine, theirs = ([tuple(one.shape) for one in of] for of in (self.state(), state))
        if mine != theirs:
            raise CheckpointError(
                f"the checkpoint doesn't fit: master weights of shapes {mine[:4]} are expected, "
                f"and are of {theirs[:4]}"
            )

    @torch.no_grad()
    def load(self, state: Sequence[Tensor]) -> None:
        """Continue from saved copies."""
        for (_, copy), saved in zip(self._pairs, state, strict=True):
            copy.copy_(shard(saved, copy))
