"""Plans for token policies: a few virtual embeddings, placed where cached keys stay right.

A causal model reads a plan as `m` embeddings `P = W_p τ`. In front of the tokens they would change
the keys and values of everything behind them with every new plan, and a cache of the shared context
would be worthless. Behind the shared context they change only what comes after: the context's keys
and values are the same for every plan, episode and worker, and are computed once.

A sequence is therefore `[context][plan][what is written on this plan]`.

Invariants:

1. The context has positions `0..n-1` with every plan and with none.
2. Rows of a cache behind the context belong to one plan. With another plan they are cut off (or the
   plan is kept for a whole segment); they must not get into a cache that is keyed by token ids
   alone, because embeddings have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from echoic.errors import ArgumentError

__all__ = ["PlanEmbeddings", "PlannedInputs"]


@dataclass(frozen=True)
class PlannedInputs:
    """What a causal model is given in place of token ids.

    Attributes:
        inputs_embeds: ``(B, length, model_dim)``.
        position_ids: ``(B, length)``.
        plan: Which places hold the plan.
        shareable: How many places at the front are the same for every plan.
    """

    inputs_embeds: Any
    position_ids: Any
    plan: slice
    shareable: int


class PlanEmbeddings(nn.Module):
    """Makes `m` embeddings of a plan.

    Args:
        latent_dim: Numbers of a plan.
        model_dim: The width of the model's embeddings.
        num_tokens: How many embeddings a plan becomes (m).
        scale: The standard deviation of their numbers; that of the model's own embeddings is a
            good one, see :meth:`for_model`.

    >>> PlanEmbeddings(latent_dim=8, model_dim=32, num_tokens=2)(torch.zeros(5, 8)).shape
    torch.Size([5, 2, 32])
    """

    def __init__(
        self, latent_dim: int, model_dim: int, num_tokens: int = 4, scale: float = 0.02
    ) -> None:
        super().__init__()
        if min(latent_dim, model_dim, num_tokens) < 1 or not scale > 0.0:
            raise ArgumentError(
                "latent_dim, model_dim and num_tokens must be at least 1 and scale above 0, got "
                f"{latent_dim}, {model_dim}, {num_tokens} and {scale!r}"
            )
        self.num_tokens = num_tokens
        self.project = nn.Linear(latent_dim, num_tokens * model_dim)
        # Embeddings far larger than a model's own are out of what it was trained on.
        self.norm = nn.LayerNorm(model_dim)
        nn.init.constant_(self.norm.weight, scale)

    @classmethod
    def for_model(cls, model: Any, latent_dim: int, num_tokens: int = 4) -> PlanEmbeddings:
        """Embeddings as wide and as large as those of a causal model of transformers."""
        weight = model.get_input_embeddings().weight
        made = cls(latent_dim, weight.shape[1], num_tokens, float(weight.detach().float().std()))
        made.to(weight.device, weight.dtype)
        return made

    def forward(self, latent_plan: Any) -> Any:
        """``(B, num_tokens, model_dim)`` of plans ``(B, latent_dim)``, of any precision."""
        rows = self.project(latent_plan.to(self.project.weight.dtype))
        return self.norm(rows.view(*rows.shape[:-1], self.num_tokens, -1))

    def build(
        self, model: Any, context_ids: Any, latent_plan: Any, written_ids: Any = None
    ) -> PlannedInputs:
        """Inputs for a context that is not in a cache yet: ``[context][plan][written]``.

        Args:
            model: A causal model of transformers, or whatever has ``get_input_embeddings()``.
            context_ids: ``(B, n)``, the shared context.
            latent_plan: ``(B, latent_dim)``. Gradients reach it.
            written_ids: ``(B, w)``, what was written on this plan, if anything.
        """
        embed = model.get_input_embeddings()
        shared = context_ids.shape[1]
        behind = self.extend(model, shared, latent_plan, written_ids)
        context = embed(context_ids)
        positions = torch.arange(shared, device=context.device).expand(len(context_ids), -1)
        return PlannedInputs(
            torch.cat([context, behind.inputs_embeds], dim=1),
            torch.cat([positions, behind.position_ids], dim=1),
            slice(shared, shared + self.num_tokens),
            shared,
        )

    def extend(
        self, model: Any, cached: int, latent_plan: Any, written_ids: Any = None
    ) -> PlannedInputs:
        """Inputs for a context of which a cache holds ``cached`` places: ``[plan][written]``."""
        parts = [self(latent_plan)]
        if written_ids is not None:
            parts.append(model.get_input_embeddings()(written_ids).to(parts[0].dtype))
        embeds = torch.cat(parts, dim=1)
        positions = torch.arange(cached, cached + embeds.shape[1], device=embeds.device)
        return PlannedInputs(
            embeds, positions.expand(len(embeds), -1), slice(0, self.num_tokens), 0
        )
