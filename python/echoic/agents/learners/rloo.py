"""RLOO: REINFORCE, with the mean of the other answers to the same prompt as the baseline.

After Kool et al., "Buy 4 REINFORCE samples, get a baseline for free!" (2019), and Ahmadian et al.,
"Back to Basics" (2024, arXiv:2402.14740). A whole answer is one action, and the divergence from the
reference is taken from what it earned. As an answer has no part in its own baseline, the gradient
is unbiased; with the mean of the group it would be too small by ``1 / k``, for k answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from echoic.agents.learners.tokens import TokenLearner, TokenLearnerConfig
from echoic.primitives import compute_batch_group_advantages

if TYPE_CHECKING:
    import torch

    from echoic.agents.learners.token_loss import Aggregation, KlKind, RatioLevel

    Array = np.ndarray[Any, Any]

__all__ = ["RLOOConfig", "RLOOLearner"]


@dataclass(frozen=True)
class RLOOConfig(TokenLearnerConfig):
    """How RLOO learns. On policy these defaults are REINFORCE, sequence by sequence."""

    # The gradient of a ratio at 1 is that of the sum of an item's log-probabilities.
    ratio_level: RatioLevel = "sequence"
    aggregation: Aggregation = "sequence_mean"
    # In a reward k1 has no bias, nor has its gradient.
    kl_kind: KlKind = "k1"
    kl_place: Literal["loss", "reward"] = "reward"


class RLOOLearner(TokenLearner):
    """A token policy that learns by RLOO. A group of one item has nothing to be compared with.

    >>> import numpy as np
    >>> from torch import nn
    >>> from echoic.agents.learners import RLOOLearner
    >>> bigrams = nn.Embedding(8, 8)  # The logits of what follows each of eight tokens.
    >>> learner = RLOOLearner(bigrams, device="cpu")
    >>> learner.advantages(np.array([0.0, 0.0, 3.0, 1.0]), np.array([0, 3, 4]))
    array([-1.5, -1.5,  3. ,  0. ])
    """

    def __init__(
        self,
        policy: Any,
        config: RLOOConfig | None = None,
        *,
        reference: Any = None,
        device: str | torch.device = "auto",
    ) -> None:
        super().__init__(policy, config or RLOOConfig(), reference=reference, device=device)

    def advantages(self, rewards: Array, group_offsets: Array) -> Array:
        """Return ``r − mean of the others``, by ``echoic.primitives``."""
        return np.asarray(
            compute_batch_group_advantages(
                rewards, offsets=group_offsets, baseline="leave_one_out", scale="none"
            )
        )
