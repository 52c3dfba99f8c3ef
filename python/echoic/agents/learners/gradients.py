"""One step of an optimizer, which is made along a gradient that is a number, or not at all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["step"]


def step(optimizer: Any, parameters: Iterable[Any], longest: float) -> float:
    """Cut the gradient to a length, take the step, and return how long it was.

    Raises:
        FloatingPointError: The gradient is no number. The step was not made: one NaN would spoil
            every parameter, and the optimizer's averages for good.
    """
    norm = float(torch.nn.utils.clip_grad_norm_(list(parameters), longest))
    if not math.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        raise FloatingPointError(
            f"the length of the gradient is {norm}; the step was not made. Look at the states, "
            "rewards and log-probabilities of the batch, and at the learning rate"
        )
    optimizer.step()
    return norm
