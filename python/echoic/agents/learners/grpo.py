"""GRPO: an answer is good if it earned more than the others to the same prompt did on average.

After Shao et al., "DeepSeekMath" (2024, arXiv:2402.03300), with what came after it as settings: the
asymmetric clip and the mean over all tokens of DAPO (Yu et al. 2025, arXiv:2503.14476), the fixed
length and the missing deviation of Dr. GRPO (Liu et al. 2025, arXiv:2503.20783), ratios of whole
sequences of GSPO (Zheng et al. 2025, arXiv:2507.18071).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from echoic.agents.learners.tokens import TokenLearner, TokenLearnerConfig
from echoic.errors import ArgumentError
from echoic.primitives import compute_batch_group_advantages

if TYPE_CHECKING:
    import torch

    Array = np.ndarray[Any, Any]

__all__ = ["GRPOConfig", "GRPOLearner"]


@dataclass(frozen=True)
class GRPOConfig(TokenLearnerConfig):
    """How GRPO learns."""

    #: Whose standard deviation advantages are divided by.
    scale: Literal["group", "batch", "none"] = "group"
    #: 1 reduces the count by one for a variance, as TRL does.
    ddof: Literal[0, 1] = 0

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        if self.scale not in {"group", "batch", "none"}:
            raise ArgumentError(f'scale is "group", "batch" or "none", got {self.scale!r}')
        if self.ddof not in {0, 1}:
            raise ArgumentError(f"ddof is 0 or 1, got {self.ddof}")


class GRPOLearner(TokenLearner):
    """A token policy that learns by GRPO.

    >>> import torch
    >>> from echoic.agents.learners import GRPOConfig, GRPOLearner, TokenBatch
    >>> # The logits of what follows each of eight tokens.
    >>> bigrams = torch.nn.Embedding.from_pretrained(torch.zeros(8, 8), freeze=False)
    >>> learner = GRPOLearner(bigrams, GRPOConfig(learning_rate=0.1), device="cpu")
    >>> guess = -2.0794  # log(1 / 8): all tokens are alike at first.
    >>> batch = TokenBatch.from_items(
    ...     tokens=[[1, 5], [1, 3]], logprobs=[[0, guess]] * 2, mask=[[0, 1]] * 2,
    ...     rewards=[1.0, 0.0], group_sizes=[2],
    ... )
    >>> metrics = learner.update(batch)
    >>> metrics["tokens"], round(metrics["ratio_mean"], 3), metrics["clip_fraction"]
    (2, 1.0, 0.0)
    >>> liked, disliked = learner.policy.weight[1, [5, 3]].tolist()
    >>> round(liked, 3), round(disliked, 3)
    (0.1, -0.1)
    """

    def __init__(
        self,
        policy: Any,
        config: GRPOConfig | None = None,
        *,
        reference: Any = None,
        device: str | torch.device = "auto",
    ) -> None:
        super().__init__(policy, config or GRPOConfig(), reference=reference, device=device)
        self.config: GRPOConfig

    def advantages(self, rewards: Array, group_offsets: Array) -> Array:
        """Return ``(r − mean of the group) / deviation``, by ``echoic.primitives``."""
        return np.asarray(
            compute_batch_group_advantages(
                rewards, offsets=group_offsets, scale=self.config.scale, ddof=self.config.ddof
            )
        )
