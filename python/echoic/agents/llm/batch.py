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
    #: Reward of each item, (items,): the sum of its turns' rewards.
    rewards: Array
    #: The first item of each group, and the end of the last one, (groups + 1,).
    group_offsets: Array
    #: How many versions each token's policy was behind the one that learns, (tokens,).
    lags: Array
    #: Reward at each token, (tokens,); ``None``: an item's is at the last token that was drawn.
    token_rewards: Array | None = None
    #: What the soft prefixes of each item were made of: ``TurnPlans.rows``, or ``None``.
    plans: tuple[Array | None, ...] | None = None
    #: How much each item counts, (items,); ``None``: 1.
    importance: Array | None = None

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
        per_token = ["tokens", "logprobs", "mask", "lags"]
        if self.token_rewards is not None:
            dtypes["token_rewards"] = np.float64
            per_token.append("token_rewards")
        if self.importance is not None:
            dtypes["importance"] = np.float64
        for name, dtype in dtypes.items():
            array = np.asarray(getattr(self, name))
            if array.ndim != 1:
                raise ArgumentError(f"{name} has one axis, got the shape {array.shape}")
            object.__setattr__(self, name, np.array(array, dtype))
        _check_offsets("offsets", self.offsets)
        _check_offsets("group_offsets", self.group_offsets)
        sizes = {**dict.fromkeys(per_token, int(self.offsets[-1])), "rewards": len(self)}
        for name in ("plans", "importance"):
            if getattr(self, name) is not None:
                sizes[name] = len(self)
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
        for rewards in (self.rewards, self.token_rewards):
            if rewards is not None and not np.isfinite(rewards).all():
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
        rewards: str = "rewards",
    ) -> TokenBatch:
        """Take a batch of a rollout table, of any form; its versions say how old each token is.

        Args:
            batch: What ``RolloutTable.sample`` returned.
            tokens: The column of token numbers.
            logprobs: The column of log-probabilities under the policy that drew the tokens.
            mask: The column that is not zero where the policy drew a token.
            reward: The field of rewards, of a batch without rewards of tokens.
            rewards: The column of rewards of tokens, if there is one. An item's is their sum.
        """
        shift = np.repeat(batch.starts - batch.offsets[:-1], batch.lengths)
        cells = np.arange(batch.tokens) + shift

        def flat(array: Array) -> Array:
            found: Array = array.reshape(-1)[cells]
            return found

        each = flat(batch[rewards]) if rewards in batch.columns else None
        plans: tuple[Any, ...] = tuple(batch.blobs(i).get("plans") for i in range(len(batch)))
        return cls(
            tokens=flat(batch[tokens]),
            logprobs=flat(batch[logprobs]),
            mask=flat(batch[mask]) != 0,
            offsets=batch.offsets,
            rewards=batch[reward] if each is None else _sums(each, batch.lengths),
            group_offsets=offsets_of(batch.group_sizes),
            lags=batch.target - flat(batch.versions),
            token_rewards=each,
            plans=None if all(one is None for one in plans) else plans,
        )

    @classmethod
    def from_items(
        cls,
        *,
        tokens: Sequence[ArrayLike],
        logprobs: Sequence[ArrayLike],
        mask: Sequence[ArrayLike],
        group_sizes: ArrayLike,
        rewards: ArrayLike | None = None,
        token_rewards: Sequence[ArrayLike] | None = None,
        lags: Sequence[ArrayLike] | None = None,
        plans: Sequence[Array | None] | None = None,
    ) -> TokenBatch:
        """Put items together, each with a value for each of its tokens.

        Args:
            tokens: The token numbers of each item, its prompt included.
            logprobs: Log-probabilities under the policy that drew them; anything for a prompt.
            mask: Not zero where the policy drew the token.
            group_sizes: How many items each group has, in their order.
            rewards: What each item earned; or else
            token_rewards: what each of its tokens earned.
            lags: By how many versions each token's policy was behind; none by default.
            plans: What the soft prefixes of each item were made of.
        """
        if (rewards is None) == (token_rewards is None):
            raise ArgumentError("expected either rewards or token_rewards")
        lengths = [len(np.atleast_1d(item)) for item in tokens]
        if lags is None:
            lags = [np.zeros(length, np.int64) for length in lengths]
        columns = {"tokens": tokens, "logprobs": logprobs, "mask": mask, "lags": lags}
        if token_rewards is not None:
            columns["token_rewards"] = token_rewards
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
        if rewards is None:
            rewards = _sums(found["token_rewards"], np.asarray(lengths))
        return cls(
            **found,
            offsets=offsets_of(lengths),
            rewards=np.asarray(rewards),
            group_offsets=offsets_of(group_sizes),
            plans=None if plans is None else tuple(plans),
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

    def drawn_rewards(self) -> Array:
        """Return the reward of each drawn token, with what its item earned until the next one."""
        counts = self.count(self.mask)
        ends = np.cumsum(counts)
        if self.token_rewards is None:
            earned = np.zeros(int(counts.sum()))
            earned[ends[counts > 0] - 1] = self.rewards[counts > 0]
            return earned
        # The drawn token at or before each token; before the first of an item, that one.
        place = np.maximum(np.cumsum(self.mask) - 1, (ends - counts)[self.items])
        has_drawn = (counts > 0)[self.items]
        return np.bincount(place[has_drawn], self.token_rewards[has_drawn], int(counts.sum()))

    def __repr__(self) -> str:
        """Return the sizes as text."""
        return (
            f"TokenBatch(groups={len(self.group_offsets) - 1}, items={len(self)}, "
            f"tokens={len(self.tokens)}, made={int(self.mask.sum())})"
        )


def offsets_of(sizes: ArrayLike) -> Array:
    """Return where each of consecutive parts begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


def _sums(values: Array, lengths: Array) -> Array:
    return np.bincount(np.repeat(np.arange(len(lengths)), lengths), values, len(lengths))


def _check_offsets(name: str, offsets: Array) -> None:
    if len(offsets) == 0 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise ArgumentError(f"{name} begin with 0 and never fall, got {offsets[:8].tolist()}…")
