"""Groups of token sequences that a learner learns from, as flat arrays.

An *item* is a prompt with what followed it, in one or in several turns; a *group* is the items that
answer the same prompt. Items lie one after the other without anything between them, and those of a
group follow each other.

Invariants:

1. Every array of tokens has ``offsets[-1]`` values, every array of items ``len(offsets) - 1``.
2. ``mask`` is never set at the start of an item: nothing before it could have predicted it.
3. Where ``mask`` is set, ``logprobs`` is finite, and that of the policy that drew the token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from echoic.rollouts import RolloutBatch

    Array = np.ndarray[Any, Any]

__all__ = ["TokenBatch"]

# A probability rounds to a little more than 1; one that was given for its logarithm is far above.
_ROUNDING = 1e-3


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Items of tokens in groups, with log-probabilities and rewards.

    >>> batch = TokenBatch.from_items(
    ...     tokens=[[5, 1, 2], [5, 3]],
    ...     logprobs=[[0.0, -0.7, -1.2], [0.0, -0.5]],
    ...     mask=[[0, 1, 1], [0, 1]],
    ...     rewards=[1.0, 0.0],
    ...     group_sizes=[2],
    ... )
    >>> batch
    TokenBatch(groups=1, items=2, tokens=5, made=3)
    """

    #: Token numbers, (tokens,).
    tokens: Array
    #: Log-probabilities under the policy that drew each token, (tokens,).
    logprobs: Array
    #: Tokens that the policy drew: not those of prompts and tools, (tokens,).
    mask: Array
    #: Where each item begins, and where the last one ends, (items + 1,).
    offsets: Array
    #: Reward of each item, (items,).
    rewards: Array
    #: The first item of each group, and the end of the last one, (groups + 1,).
    group_offsets: Array
    #: How many versions each token's policy was behind the one that learns, (tokens,).
    lags: Array

    def __post_init__(self) -> None:
        """Cast arrays to the dtypes that a learner needs, and check that they fit each other."""
        dtypes = {
            "tokens": np.int64,
            "logprobs": np.float32,
            "mask": np.bool_,
            "offsets": np.int64,
            "rewards": np.float64,
            "group_offsets": np.int64,
            "lags": np.int64,
        }
        for name, dtype in dtypes.items():
            array = np.asarray(getattr(self, name))
            if array.ndim != 1:
                raise ArgumentError(f"{name} has one axis, got the shape {array.shape}")
            object.__setattr__(self, name, np.array(array, dtype))
        _check_offsets("offsets", self.offsets)
        _check_offsets("group_offsets", self.group_offsets)
        sizes = {
            **dict.fromkeys(("tokens", "logprobs", "mask", "lags"), int(self.offsets[-1])),
            "rewards": len(self),
        }
        for name, size in sizes.items():
            if len(getattr(self, name)) != size:
                raise ArgumentError(
                    f"expected {size} values of {name}, as offsets say, got "
                    f"{len(getattr(self, name))}"
                )
        if self.group_offsets[-1] != len(self):
            raise ArgumentError(
                f"group_offsets end at {self.group_offsets[-1]}, but there are {len(self)} items"
            )
        self.mask[self.offsets[:-1][self.lengths > 0]] = False
        self._check_values()

    def _check_values(self) -> None:
        if (self.tokens < 0).any():
            raise ArgumentError(f"token numbers are at least 0, got {self.tokens.min()}")
        drawn = self.logprobs[self.mask]
        if not np.isfinite(drawn).all():
            raise ArgumentError("logprobs of tokens in the mask must be finite numbers")
        if len(drawn) and drawn.max() > _ROUNDING:
            raise ArgumentError(
                f"logprobs are logarithms of probabilities, at most 0; got {drawn.max():g}"
            )
        if not np.isfinite(self.rewards).all():
            raise ArgumentError("rewards must be finite numbers")

    @classmethod
    def from_rollouts(
        cls,
        batch: RolloutBatch,
        *,
        tokens: str = "tokens",
        logprobs: str = "logprobs",
        mask: str = "mask",
        reward: str = "reward",
    ) -> TokenBatch:
        """Take a batch of a rollout table, of any form; its versions say how old each token is.

        Args:
            batch: What ``RolloutTable.sample`` returned.
            tokens: The column of token numbers.
            logprobs: The column of log-probabilities under the policy that drew the tokens.
            mask: The column that is not zero where the policy drew a token.
            reward: The field of rewards.
        """
        shift = np.repeat(batch.starts - batch.offsets[:-1], batch.lengths)
        cells = np.arange(batch.tokens) + shift

        def flat(array: Array) -> Array:
            found: Array = array.reshape(-1)[cells]
            return found

        return cls(
            tokens=flat(batch[tokens]),
            logprobs=flat(batch[logprobs]),
            mask=flat(batch[mask]) != 0,
            offsets=batch.offsets,
            rewards=batch[reward],
            group_offsets=_offsets(batch.group_sizes),
            lags=batch.target - flat(batch.versions),
        )

    @classmethod
    def from_items(
        cls,
        *,
        tokens: Sequence[ArrayLike],
        logprobs: Sequence[ArrayLike],
        mask: Sequence[ArrayLike],
        rewards: ArrayLike,
        group_sizes: ArrayLike,
        lags: Sequence[ArrayLike] | None = None,
    ) -> TokenBatch:
        """Put items together, each with a value for each of its tokens.

        Args:
            tokens: The token numbers of each item, its prompt included.
            logprobs: Log-probabilities under the policy that drew them; anything for a prompt.
            mask: Not zero where the policy drew the token.
            rewards: What each item earned.
            group_sizes: How many items each group has, in their order.
            lags: By how many versions each token's policy was behind; none by default.
        """
        lengths = [len(np.atleast_1d(item)) for item in tokens]
        if lags is None:
            lags = [np.zeros(length, np.int64) for length in lengths]
        columns = {"tokens": tokens, "logprobs": logprobs, "mask": mask, "lags": lags}
        found: dict[str, Any] = {}
        for name, items in columns.items():
            arrays = [np.atleast_1d(np.asarray(item)) for item in items]
            if [len(array) for array in arrays] != lengths:
                raise ArgumentError(
                    f"expected a value of {name} for each token, {lengths} in the items, got "
                    f"{[len(array) for array in arrays]}"
                )
            found[name] = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        found["mask"] = found["mask"] != 0
        return cls(
            **found,
            offsets=_offsets(lengths),
            rewards=np.asarray(rewards),
            group_offsets=_offsets(group_sizes),
        )

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Array:
        """How many tokens each item has."""
        return np.diff(self.offsets)

    @property
    def items(self) -> Array:
        """The item of each token, (tokens,)."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def count(self, mask: Array) -> Array:
        """How many tokens of a mask each item has, (items,)."""
        return np.bincount(self.items[mask], minlength=len(self))

    def __repr__(self) -> str:
        """Return the sizes as text."""
        return (
            f"TokenBatch(groups={len(self.group_offsets) - 1}, items={len(self)}, "
            f"tokens={len(self.tokens)}, made={int(self.mask.sum())})"
        )


def _offsets(sizes: ArrayLike) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


def _check_offsets(name: str, offsets: Array) -> None:
    if len(offsets) == 0 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise ArgumentError(f"{name} begin with 0 and never fall, got {offsets[:8].tolist()}…")
