"""Parameters of 16 bits that learn by copies of 32.

A number of bfloat16 has 8 significant bits: a step of 1e-6 on a weight of 0.02 is far below half of
its last one, so it is rounded away, however many follow. :class:`MasterWeights` keeps a float32
copy of each such parameter. The optimizer steps on the copies, and the parameters are the copies,
rounded.

Invariants:

1. After :meth:`~MasterWeights.give` each parameter is its copy, rounded to the parameter's dtype.
2. Parameters of other dtypes are their own copies: nothing is added for them, and nothing changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from echoic.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor
    from torch.nn import Parameter

__all__ = ["MasterWeights"]

_HALVES = (torch.bfloat16, torch.float16)


class MasterWeights:
    """Float32 copies of those parameters that have 16 bits.

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
        """Copy what has 16 bits."""
        #: What an optimizer is to step on.
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
        """Take over what somebody else has written to the parameters, before a step."""
        for one, copy in self._pairs:
            torch.where(copy.to(one.dtype) == one, copy, one.to(copy.dtype), out=copy.data)

    @torch.no_grad()
    def give(self) -> None:
        """Write the copies to the parameters."""
        for one, copy in self._pairs:
            one.copy_(copy)

    def state(self) -> list[Tensor]:
        """Return the copies, for a checkpoint."""
        return [copy.detach() for _, copy in self._pairs]

    def check(self, state: Sequence[Tensor]) -> None:
        """Compare a state with the parameters.

        Raises:
            CheckpointError: It is of other ones.
        """
        mine, theirs = ([tuple(one.shape) for one in of] for of in (self.state(), state))
        if mine != theirs:
            raise CheckpointError(
                f"the checkpoint doesn't fit: master weights of shapes {mine[:4]} are expected, "
                f"and are of {theirs[:4]}"
            )

    @torch.no_grad()
    def load(self, state: Sequence[Tensor] | None) -> None:
        """Go on from copies that were saved, or without any from the parameters as they are."""
        for place, (one, copy) in enumerate(self._pairs):
            copy.copy_(one if state is None else state[place])
