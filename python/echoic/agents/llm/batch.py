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

from dataclasses import dataclass, replace
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
_OF_TOKENS: dict[str, Any] = {
    "tokens": np.int64,
    "logprobs": np.float32,
    "mask": np.bool_,
    "lags": np.int64,
    "token_rewards": np.float64,
}
_OF_ITEMS: dict[str, Any] = {"rewards": np.float64, "importance": np.float64}
_OFFSETS: dict[str, Any] = {"offsets": np.int64, "group_offsets": np.int64}


@dataclass(frozen=True, eq=False, repr=False)
class TokenBatch:
    """Items of tokens in groups, with log-probabilities and rewards.

    >>> batch = TokenBatch.from_items(
    ...     tokens=[[5, 1, 2], [5, 3]],
    ...     logprobs=[[0.0, -0.7, -1.2], [0.0, -0.5]],
    ...     mask=[[0, 1, 1], [0, 1]],
    ...     rewards=[1.0, 0.0],
    ...     group_sizes=[2],
    ... )
    >>> len(batch), batch.lengths.tolist(), int(batch.mask.sum())
    (2, [3, 2], 3)
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
    #: Reward at each token, (tokens,); ``None``: an item's is at its end.
    token_rewards: Array | None = None
    #: What the soft prefixes of each item were made of: ``TurnPlans.rows``, or ``None``.
    plans: tuple[Array | None, ...] | None = None
    #: How much each item counts, (items,); ``None``: 1.
    importance: Array | None = None

    def __post_init__(self) -> None:
        """Cast arrays to the dtypes that a learner needs, and check that they fit each other."""
        for name, dtype in (_OF_TOKENS | _OF_ITEMS | _OFFSETS).items():
            if (given := getattr(self, name)) is not None:
                array = np.array(given, dtype)
                if array.ndim != 1:
                    raise ArgumentError(f"{name} has one axis, got the shape {array.shape}")
                object.__setattr__(self, name, array)
        for name in _OFFSETS:
            offsets = getattr(self, name)
            if len(offsets) == 0 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
                raise ArgumentError(
                    f"{name} begin with 0 and never fall, got {offsets[:8].tolist()}…"
                )
        if self.group_offsets[-1] != len(self):
            raise ArgumentError(
                f"group_offsets end at {self.group_offsets[-1]}, but there are {len(self)} items"
            )
        for name in (*_OF_TOKENS, *_OF_ITEMS, "plans"):
            size = self.offsets[-1] if name in _OF_TOKENS else len(self)
            if (array := getattr(self, name)) is not None and len(array) != size:
                raise ArgumentError(
                    f"expected {size} values of {name}, as offsets say, got {len(array)}"
                )
        self.mask[self.offsets[:-1][self.lengths > 0]] = False
        if (self.tokens < 0).any():
            raise ArgumentError(f"token numbers are at least 0, got {self.tokens.min()}")
        drawn = self.logprobs[self.mask]
        if not np.isfinite(drawn).all():
            raise ArgumentError("logprobs of tokens in the mask must be finite numbers")
        if drawn.max(initial=0) > _ROUNDING:
            raise ArgumentError(
                f"logprobs are logarithms of probabilities, at most 0; got {drawn.max():g}"
            )
        for rewards in (self.rewards, self.token_rewards):
            if rewards is not None and not np.isfinite(rewards).all():
                raise ArgumentError("rewards must be finite numbers")

    @classmethod
    def from_rollouts(cls, batch: RolloutBatch) -> TokenBatch:
        """Take a batch of a rollout table, of any form; its versions say how old each token is.

        Its columns are ``tokens``, ``logprobs``, ``mask`` and, if tokens have rewards, ``rewards``:
        an item's is then their sum. Without them the field ``reward`` is the item's.
        """
        shift = np.repeat(batch.starts - batch.offsets[:-1], batch.lengths)
        cells = np.arange(batch.tokens) + shift
        columns = {name: one.reshape(-1)[cells] for name, one in batch.columns.items()}
        each = columns.get("rewards")
        plans: tuple[Any, ...] = tuple(batch.blobs(i).get("plans") for i in range(len(batch)))
        return cls(
            **{name: columns[name] for name in ("tokens", "logprobs", "mask")},
            offsets=batch.offsets,
            rewards=batch["reward"] if each is None else _sums(each, batch.lengths),
            group_offsets=offsets_of(batch.group_sizes),
            token_rewards=each,
            lags=batch.target - batch.versions.reshape(-1)[cells],
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
        plans: Sequence[Array | None] | None = None,
    ) -> TokenBatch:
        """Put items together, each with a value for each of its tokens.

        Arguments are as the attributes, in lists with an element for each item. ``logprobs`` may be
        anything at a prompt, and ``rewards`` are given or else ``token_rewards``. ``group_sizes``
        says how many items each group has, in their order.
        """
        if (rewards is None) == (token_rewards is None):
            raise ArgumentError("expected either rewards or token_rewards")
        lengths = [np.size(item) for item in tokens]
        columns = {"tokens": tokens, "logprobs": logprobs, "mask": mask}
        if token_rewards is not None:
            columns["token_rewards"] = token_rewards
        for name, items in columns.items():
            if (sizes := [np.size(item) for item in items]) != lengths:
                raise ArgumentError(
                    f"expected a value of {name} for each token, {lengths} in the items, "
                    f"got {sizes}"
                )
        flat: dict[str, Any] = {
            name: np.concatenate([np.zeros(0, np.int8), *map(np.ravel, items)])
            for name, items in columns.items()
        }
        if rewards is None:
            rewards = _sums(flat["token_rewards"], lengths)
        return cls(
            **flat,
            offsets=offsets_of(lengths),
            rewards=np.asarray(rewards),
            group_offsets=offsets_of(group_sizes),
            lags=np.zeros(sum(lengths), np.int64),
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
        earned = self.token_rewards
        if earned is None:
            earned = np.zeros(len(self.tokens))
            earned[self.offsets[1:][self.lengths > 0] - 1] = self.rewards[self.lengths > 0]
        counts = self.count(self.mask)
        # At or before each token; for those before the first of an item, that one.
        first = np.cumsum(counts) - counts
        place = np.maximum(np.cumsum(self.mask) - 1, first[self.items])
        has_drawn = (counts > 0)[self.items]
        return np.bincount(place[has_drawn], earned[has_drawn], int(counts.sum()))

    def take(self, groups: Array) -> TokenBatch:
        """Return a batch of some groups, which may be there several times."""
        items = _numbers(self.group_offsets, groups)
        tokens = _numbers(self.offsets, items)
        given = {name: one for name, one in vars(self).items() if isinstance(one, np.ndarray)}
        return replace(
            self,
            **{name: given[name][tokens] for name in given.keys() & _OF_TOKENS},
            **{name: given[name][items] for name in given.keys() & _OF_ITEMS},
            offsets=offsets_of(self.lengths[items]),
            group_offsets=offsets_of(np.diff(self.group_offsets)[groups]),
            plans=None if self.plans is None else tuple(self.plans[item] for item in items),
        )


def join(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Return batches as one; items without an importance weight have 1."""
    columns = {name: [getattr(one, name) for one in batches] for name in (*_OF_TOKENS, "rewards")}
    weights = [np.ones(len(one)) if one.importance is None else one.importance for one in batches]
    joined: Any = {
        name: None if each[0] is None else np.concatenate(each) for name, each in columns.items()
    }
    return TokenBatch(
        **joined,
        offsets=offsets_of(np.concatenate([one.lengths for one in batches])),
        group_offsets=offsets_of(np.concatenate([np.diff(one.group_offsets) for one in batches])),
        plans=tuple(rows for one in batches for rows in one.plans or (None,) * len(one)),
        importance=np.concatenate(weights),
    )


def offsets_of(sizes: ArrayLike) -> Array:
    """Return where each of consecutive parts begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


def _sums(values: Array, lengths: Any) -> Array:
    return np.bincount(np.repeat(np.arange(len(lengths)), lengths), values, len(lengths))


def _numbers(offsets: Array, parts: Array) -> Array:
    """Return the numbers of all that is in some of consecutive parts."""
    found = (np.arange(offsets[part], offsets[part + 1]) for part in parts)
    return np.concatenate([np.zeros(0, np.int64), *found])
