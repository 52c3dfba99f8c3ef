"""What all learners share: PPO's clipped gain, one step of an optimizer, and float32 copies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from echoic.agents.devices import whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.nn import Parameter

__all__ = ["MasterWeights", "clipped_gain", "step"]


def clipped_gain(
    ratio: Tensor, advantages: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Return PPO's gain ``min(ρ·A, clip(ρ, 1 − low, 1 + high)·A)``, and where it was clipped."""
    gain = ratio * advantages
    bounded = ratio.clamp(1 - low, 1 + high) * advantages
    return gain.minimum(bounded), bounded < gain


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
    """Float32 copies of those parameters that have 16 bits; others are their own copies.

    A number of bfloat16 has 8 significant bits: a step of 1e-6 on a weight of 0.02 is far below
    half of its last one, so it is rounded away, however many follow. The optimizer steps on the
    copies, and the parameters are the copies, rounded.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        #: The parameters for an optimizer.
        self.parameters: list[Tensor] = []
        self._pairs: list[tuple[Parameter, Tensor]] = []
        for one in parameters:
            copy: Tensor = one
            if one.dtype in {torch.bfloat16, torch.float16}:
                copy = one.detach().to(torch.float32).requires_grad_()
                self._pairs.append((one, copy))
            self.parameters.append(copy)

    def take_gradients(self) -> None:
        """Add the gradients of the parameters to those of the copies, and clear the former.

        After each micro-batch: a sum of many has more digits than 16 bits can hold.
        """
        for one, copy in self._pairs:
            if one.grad is not None:
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

    @property
    def copies(self) -> dict[str, Tensor]:
        """The copies by their numbers, for a checkpoint."""
        return {str(number): copy.detach() for number, (_, copy) in enumerate(self._pairs)}
