"""Settings of plans: sizes, bounds of their noise, and the weight of their changes."""

from __future__ import annotations

from dataclasses import dataclass

from echoic.agents import _checks
from echoic.errors import ArgumentError

__all__ = ["PlanningConfig"]


@dataclass(frozen=True)
class PlanningConfig:
    """Settings of an encoder of plans, of the policy that uses them, and of their learning.

    Attributes:
        embedding_dim: Numbers of a plan.
        state_window_size: States before the current one that the encoder sees (k).
        kl_weight: Weight of a plan's change from one step to the next, in the loss. See
            :class:`~echoic.agents.plans.PlanDivergence` for its unit.
        ema_decay: Decay of the mean plan and of the running scale of the divergence.
        soft_prefix_alpha: The state's share of the policy's input; the plan has the rest.
        lipschitz_constant: How far the mean of a plan may move when the encoder's pooled features
            move by one, kept by a projection after each update; infinity: no bound.
        noise_std: Initial standard deviation of a plan, the middle of the allowed range.
        learning_rate: Of the encoder, and of the planner's own optimizer.
        max_grad_norm: Length that a gradient is clipped to.
        discount_gamma: Discount of the planner's returns, used without advantages.
        num_layers: Layers of the encoder's transformer.
        encoder_dim: Its width; ``None``: ``embedding_dim``. A task of vectors needs less.
        num_heads: Heads of its attention; they divide its width.
        feedforward_factor: Width of a block's inner layer, relative to the encoder's.
        hidden_dim: Width of the policy.
        std_range: Factor by which a standard deviation may differ from ``noise_std``, up and down.
        free_bits: Divergence per dimension, in nats, that costs nothing.
        kl_warmup_updates: Updates in which ``kl_weight`` grows from 0 to its value.
        clip_epsilon: How far a ratio of probabilities may move in the planner's own updates.

    >>> PlanningConfig(embedding_dim=30, num_heads=8)
    Traceback (most recent call last):
    echoic.errors.ArgumentError: num_heads must divide the width: got 8 heads for 30 dimensions
    """

    embedding_dim: int = 512
    state_window_size: int = 8
    kl_weight: float = 0.1
    ema_decay: float = 0.99
    soft_prefix_alpha: float = 0.5
    lipschitz_constant: float = 1.0
    noise_std: float = 0.01
    learning_rate: float = 3e-4
    max_grad_norm: float = 1.0
    discount_gamma: float = 1.0
    num_layers: int = 6
    encoder_dim: int | None = None
    num_heads: int = 8
    feedforward_factor: int = 4
    hidden_dim: int = 512
    std_range: float = 10.0
    free_bits: float = 0.5
    kl_warmup_updates: int = 100
    clip_epsilon: float = 0.2

    def __post_init__(self) -> None:
        _checks.whole(self, "embedding_dim", "num_layers", "num_heads", "feedforward_factor")
        _checks.whole(self, "hidden_dim")
        if self.encoder_dim is not None:
            _checks.whole(self, "encoder_dim")
        _checks.whole(self, "state_window_size", "kl_warmup_updates", least=0)
        _checks.number(self, "kl_weight", "free_bits", least=0)
        _checks.number(self, "noise_std", "learning_rate", "max_grad_norm", "clip_epsilon", above=0)
        _checks.number(self, "ema_decay", "discount_gamma", "soft_prefix_alpha", least=0, most=1)
        _checks.number(self, "std_range", least=1)
        _checks.number(self, "lipschitz_constant", above=0, finite=False)
        if self.width % self.num_heads:
            raise ArgumentError(
                f"num_heads must divide the width: got {self.num_heads} heads for "
                f"{self.width} dimensions"
            )

    @property
    def width(self) -> int:
        """Width of the encoder."""
        return self.encoder_dim or self.embedding_dim
