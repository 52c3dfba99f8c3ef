"""How much a plan changed in one step, as a cost of the size of the policy's loss.

The plain cost is `D_KL[q(τ_t | s_1..t) || q(τ_{t-1} | s_1..t-1)]`, a sum over dimensions in units
of a variance that is small: of a new planner of default size, on random states, 5,700 nats, or 575
in the loss at the default weight, beside a policy's loss of about 1. The cheapest answer to that is
a plan that says nothing. A maze that needs its plans was solved all the same, with the plain cost
as with this one and with none (the guide's table); the guards are against what is so large, not
against a failure that was seen here. :class:`PlanDivergence` keeps the idea and adds three guards:

1. a mean over dimensions, of which `free_bits` nats each cost nothing;
2. division by a running scale of that mean, so that a cost of 1 is "as much as lately";
3. a weight that grows from 0 over the first updates, when the policy says nothing yet about what a
   plan is for.

The scale never falls below 1: a plan that hardly changes any more is not pressed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from echoic.agents.latent_planning.config import PlanningConfig
    from echoic.agents.latent_planning.encoder import PlanPosterior

__all__ = ["PlanDivergence", "gaussian_kl"]


def gaussian_kl(current: PlanPosterior, previous: PlanPosterior) -> Any:
    """``D_KL[current || previous]`` of each dimension, in nats.

    ``log(σ'/σ) + (σ² + (μ - μ')²) / (2 σ'²) - 1/2``, with a prime for ``previous``.
    """
    gap = current.mean - previous.mean
    spread = (2.0 * (current.log_std - previous.log_std)).exp()
    scaled = gap.square() * (-2.0 * previous.log_std).exp()
    return previous.log_std - current.log_std + 0.5 * (spread + scaled - 1.0)


class PlanDivergence(nn.Module):
    """The cost of a plan's changes, and what it needs to know of the past.

    Args:
        config: ``kl_weight``, ``free_bits``, ``kl_warmup_updates`` and ``ema_decay``.
    """

    def __init__(self, config: PlanningConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        # Of how many updates the divergence is known: the scale is of these.
        self.register_buffer("samples", torch.zeros((), dtype=torch.int64))

    @property
    def weight(self) -> float:
        """``kl_weight``, or what of it the warm-up allows by now."""
        warmup = self.config.kl_warmup_updates
        share = 1.0 if warmup == 0 else min(1.0, int(self.updates) / warmup)
        return self.config.kl_weight * share

    def forward(
        self, current: PlanPosterior, previous: PlanPosterior, pairs: Any
    ) -> tuple[Any, Any]:
        """The cost, to be multiplied by :attr:`weight`, and the mean divergence behind it.

        Args:
            current: Of the states up to now, ``(B, embedding_dim)``. Gradients reach it.
            previous: Of the states up to the step before. No gradient reaches it: a plan follows
                the one before, which is not pulled after what came later.
            pairs: ``(B,)``, where both are of one episode; other rows cost nothing.

        Returns:
            The cost; and the divergence per dimension in nats, a mean over pairs, with no gradient:
            NaN without a pair.
        """
        each = gaussian_kl(current, previous.detach())
        weight = pairs.to(each.dtype)
        count = weight.sum()
        cost = ((each - self.config.free_bits).clamp(min=0.0).mean(dim=-1) * weight).sum()
        cost /= count.clamp(min=1.0)
        # Without a pair this is 0 / 0: nothing was measured, which is not "nothing has changed".
        plain = (each.detach().mean(dim=-1) * weight).sum() / count
        return cost / self.scale.clamp(min=1.0).to(each.dtype), plain

    @torch.no_grad()
    def advance(self, plain: Any) -> None:
        """Note that an update was made, with this mean divergence; NaN leaves the scale alone."""
        value = torch.as_tensor(plain, dtype=self.scale.dtype, device=self.scale.device)
        if bool(torch.isfinite(value)):
            # The first sample is the scale itself; later ones move it.
            decay = 0.0 if int(self.samples) == 0 else self.config.ema_decay
            self.scale.copy_(decay * self.scale + (1.0 - decay) * value)
            self.samples.add_(1)
        self.updates.add_(1)
