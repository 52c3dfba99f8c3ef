"""GRPO and RLOO: token policies that learn by comparing the answers to the same prompt.

GRPO, after Shao et al., "DeepSeekMath" (2024, arXiv:2402.03300): an answer is good if it earned
more than the others on average. Later variants are settings: the asymmetric clip and the
mean over all tokens of DAPO (arXiv:2503.14476), the fixed length and the missing deviation of Dr.
GRPO (arXiv:2503.20783), ratios of whole sequences of GSPO (arXiv:2507.18071).

RLOO, after Kool et al., "Buy 4 REINFORCE samples, get a baseline for free!" (2019), and Ahmadian
et al. (2024, arXiv:2402.14740): REINFORCE, with the mean of the *other* answers as the baseline. A
whole answer is one action, and the divergence from the reference is taken from what it earned. As
an answer has no part in its own baseline, the gradient is unbiased; with the mean of the group it
would be too small by ``1 / k``, for k answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from echoic.agents import _checks
from echoic.agents.learners.tokens import TokenLearner, TokenLearnerConfig
from echoic.primitives import compute_batch_group_advantages

if TYPE_CHECKING:
    import torch

    from echoic.agents.learners.token_loss import Aggregation, KlKind, RatioLevel

    Array = np.ndarray[Any, Any]

__all__ = ["GRPOConfig", "GRPOLearner", "RLOOConfig", "RLOOLearner"]


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
        _checks.one_of(self, "scale", ("group", "batch", "none"))
        _checks.one_of(self, "ddof", (0, 1))


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
