"""Groups of token sequences that a learner learns from, as flat arrays.

An *item* is a prompt with what followed it, in one or in several turns; a *group* is the items that
answer the same prompt. Items lie one after the other without anything between them, and those of a
group follow each other.
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
_OF_TOKENS: dict[str, Any] = {
    "tokens": np.int64,
    "logprobs": np.float32,
    "mask": np.bool_,
    "lags": np.int64,
    "token_rewards": np.float64,
}
_OF_ITEMS: dict[str, Any] = {"lengths": np.int64, "rewards": np.float64, "importance": np.float64}
_ARRAYS: dict[str, Any] = {**_OF_TOKENS, **_OF_ITEMS, "group_sizes": np.int64}


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
    #: Log-probabilities under the policy that drew each token, (tokens,), finite in the mask.
    logprobs: Array
    #: Tokens that the policy drew: not those of prompts and tools, nor an item's first, which
    #: nothing could have predicted, (tokens,).
    mask: Array
    #: How many tokens each item has, (items,).
    lengths: Array
    #: Reward of each item, (items,): the sum of its turns' rewards.
    rewards: Array
    #: How many items each group has, (groups,).
    group_sizes: Array
    #: How many versions each token's policy was behind the one that learns, (tokens,); default: 0.
    lags: Any = None
    #: Reward at each token, (tokens,); ``None``: an item's is at its end.
    token_rewards: Array | None = None
    #: How much each item counts, (items,); by default 1.
    importance: Any = None
    #: What the soft prefixes of each item were made of: ``TurnPlans.rows``, or None.
    plans: Any = None

    def __post_init__(self) -> None:
        """Cast arrays to the dtypes that a learner needs, and check that they fit each other."""
        for name, dtype in _ARRAYS.items():
            if (given := getattr(self, name)) is not None:
                array = np.array(given, dtype)
                if array.ndim != 1:
                    raise ArgumentError(f"{name} has one axis, got the shape {array.shape}")
                object.__setattr__(self, name, array)
        if (self.lengths < 0).any() or (self.group_sizes < 0).any():
            raise ArgumentError("lengths and group_sizes are at least 0")
        size, count = int(self.lengths.sum()), len(self)
        defaults = {
            "lags": np.zeros(size, np.int64),
            "importance": np.ones(count),
            "plans": (None,) * count,
        }
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        for name in (*_OF_TOKENS, *_OF_ITEMS, "plans"):
            expected = size if name in _OF_TOKENS else count
            if (given := getattr(self, name)) is not None and len(given) != expected:
                raise ArgumentError(
                    f"expected {expected} values of {name}, as lengths say, got {len(given)}"
                )
        if self.group_sizes.sum() != count:
            raise ArgumentError(
                f"group_sizes add up to {self.group_sizes.sum()}, but there are {count} items"
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
        return cls(
            **{name: columns[name] for name in ("tokens", "logprobs", "mask")},
            lengths=batch.lengths,
            rewards=batch["reward"] if each is None else _sums(each, batch.lengths),
            group_sizes=batch.group_sizes,
            lags=batch.target - batch.versions.reshape(-1)[cells],
            token_rewards=each,
            plans=tuple(batch.blobs(item).get("plans") for item in range(len(batch))),
        )

    @classmethod
    def from_items(
        cls,
        *,
        tokens: Sequence[ArrayLike],
        logprobs: Sequence[ArrayLike],
        mask: Sequence[ArrayLike],
        group_sizes: Any,
        rewards: Any = None,
        token_rewards: Sequence[ArrayLike] | None = None,
        plans: Sequence[Array | None] | None = None,
    ) -> TokenBatch:
        """Put items together, each with a value for each of its tokens.

        Arguments are as the attributes, in lists with an element for each item. ``logprobs`` may be
        anything at a prompt, and ``rewards`` are given or else ``token_rewards``.
        """
        if (rewards is None) == (token_rewards is None):
            raise ArgumentError("expected either rewards or token_rewards")
        lengths = [np.size(item) for item in tokens]
        given = {"tokens": tokens, "logprobs": logprobs, "mask": mask}
        if token_rewards is not None:
            given["token_rewards"] = token_rewards
        flat: dict[str, Any] = {}
        for name, items in given.items():
            if (sizes := [np.size(item) for item in items]) != lengths:
                raise ArgumentError(
                    f"expected a value of {name} for each token, {lengths} in the items, "
                    f"got {sizes}"
                )
            flat[name] = np.concatenate([np.zeros(0, np.int8), *map(np.ravel, items)])
        if rewards is None:
            rewards = _sums(flat["token_rewards"], lengths)
        how: Any = {"group_sizes": group_sizes, "rewards": rewards, "plans": plans}
        return cls(**flat, lengths=np.array(lengths, np.int64), **how)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.lengths)

    @property
    def offsets(self) -> Array:
        """Where each item begins, and where the last one ends, (items + 1,)."""
        return offsets_of(self.lengths)

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
        items = _numbers(self.group_sizes, groups)
        tokens = _numbers(self.lengths, items)
        places = {**dict.fromkeys(_OF_TOKENS, tokens), **dict.fromkeys(_OF_ITEMS, items)}
        places["group_sizes"] = groups
        columns: Any = {
            name: None if (column := getattr(self, name)) is None else column[place]
            for name, place in places.items()
        }
        return TokenBatch(**columns, plans=tuple(self.plans[item] for item in items))


def join(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Return batches as one."""
    columns = {name: [getattr(one, name) for one in batches] for name in _ARRAYS}
    joined: Any = {
        name: None if each[0] is None else np.concatenate(each) for name, each in columns.items()
    }
    return TokenBatch(**joined, plans=tuple(rows for one in batches for rows in one.plans))


def offsets_of(sizes: ArrayLike) -> Array:
    """Return where each of consecutive parts begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


def _sums(values: Array, lengths: Any) -> Array:
    return np.bincount(np.repeat(np.arange(len(lengths)), lengths), values, len(lengths))


def _numbers(sizes: Array, parts: Array) -> Array:
    """Return the numbers of all that is in some of consecutive parts."""
    offsets = offsets_of(sizes)
    found = (np.arange(offsets[part], offsets[part + 1]) for part in parts)
    return np.concatenate([np.zeros(0, np.int64), *found])
