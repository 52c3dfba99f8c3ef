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
    "token_rewards": np.float64,
}
_OF_ITEMS: dict[str, Any] = {"lengths": np.int64, "importance": np.float64}
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
    #: Reward at each token, (tokens,).
    token_rewards: Array
    #: How many tokens each item has, (items,).
    lengths: Array
    #: How many items each group has, (groups,).
    group_sizes: Array
    #: How much each item counts, (items,).
    importance: Array
    #: What the soft prefixes of each item were made of: ``TurnPlans.rows``, or None.
    plans: tuple[Any, ...]

    def __post_init__(self) -> None:
        """Cast arrays to the dtypes that a learner needs, and check that they fit each other."""
        for name, dtype in _ARRAYS.items():
            array = np.array(getattr(self, name), dtype)
            if array.ndim != 1:
                raise ArgumentError(f"{name} has one axis, got the shape {array.shape}")
            object.__setattr__(self, name, array)
        if (self.lengths < 0).any() or (self.group_sizes < 0).any():
            raise ArgumentError("lengths and group_sizes are at least 0")
        for name in (*_OF_TOKENS, *_OF_ITEMS, "plans"):
            expected = self.lengths.sum() if name in _OF_TOKENS else len(self)
            if (found := len(getattr(self, name))) != expected:
                raise ArgumentError(
                    f"expected {expected} values of {name}, as lengths say, got {found}"
                )
        if (total := self.group_sizes.sum()) != len(self):
            raise ArgumentError(f"group_sizes add up to {total}, but there are {len(self)} items")
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
        if not np.isfinite(self.token_rewards).all():
            raise ArgumentError("rewards must be finite numbers")

    @classmethod
    def from_rollouts(cls, batch: RolloutBatch) -> TokenBatch:
        """Take a batch of a rollout table, of any form.

        Its columns are ``tokens``, ``logprobs``, ``mask`` and, if tokens have rewards, ``rewards``.
        Without them the field ``reward`` is the item's.
        """
        shift = np.repeat(batch.starts - batch.offsets[:-1], batch.lengths)
        cells = np.arange(batch.tokens) + shift
        columns = {name: one.reshape(-1)[cells] for name, one in batch.columns.items()}
        each = columns.get("rewards")
        return cls(
            **{name: columns[name] for name in ("tokens", "logprobs", "mask")},
            token_rewards=_at_ends(batch["reward"], batch.lengths) if each is None else each,
            lengths=batch.lengths,
            group_sizes=batch.group_sizes,
            importance=np.ones(len(batch)),
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
        anything at a prompt. ``rewards``, one for each item, are given or else ``token_rewards``.
        """
        if (rewards is None) == (token_rewards is None):
            raise ArgumentError("expected either rewards or token_rewards")
        lengths = np.array([np.size(item) for item in tokens], np.int64)
        flat: dict[str, Any] = {}
        for name, items in {
            "tokens": tokens,
            "logprobs": logprobs,
            "mask": mask,
            "token_rewards": token_rewards,
        }.items():
            if items is None:
                flat[name] = _at_ends(rewards, lengths)
                continue
            if (sizes := [np.size(item) for item in items]) != lengths.tolist():
                raise ArgumentError(
                    f"expected a value of {name} for each token, {lengths.tolist()} in the items, "
                    f"got {sizes}"
                )
            flat[name] = np.concatenate([np.zeros(0, np.int8), *map(np.ravel, items)])
        return cls(
            **flat,
            lengths=lengths,
            group_sizes=group_sizes,
            importance=np.ones(len(lengths)),
            plans=(None,) * len(lengths) if plans is None else tuple(plans),
        )

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

    @property
    def rewards(self) -> Array:
        """Reward of each item, (items,)."""
        return np.bincount(self.items, self.token_rewards, len(self))

    @property
    def drawn(self) -> Array:
        """How many tokens of each item the policy drew, (items,)."""
        return np.bincount(self.items[self.mask], minlength=len(self))

    def drawn_rewards(self) -> Array:
        """Return the reward of each drawn token, with what its item earned until the next one."""
        counts = self.drawn
        # At or before each token; for those before the first of an item, that one.
        first = np.cumsum(counts) - counts
        place = np.maximum(np.cumsum(self.mask) - 1, first[self.items])
        has_drawn = (counts > 0)[self.items]
        return np.bincount(place[has_drawn], self.token_rewards[has_drawn], sum(counts))

    def take(self, groups: Array) -> TokenBatch:
        """Return a batch of some groups, which may be there several times."""
        items = _numbers(self.group_sizes, groups)
        tokens = _numbers(self.lengths, items)
        places = {**dict.fromkeys(_OF_TOKENS, tokens), **dict.fromkeys(_OF_ITEMS, items)}
        places["group_sizes"] = groups
        columns: Any = {name: getattr(self, name)[place] for name, place in places.items()}
        return TokenBatch(**columns, plans=tuple(self.plans[item] for item in items))


def join(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Return batches as one."""
    joined: Any = {
        name: np.concatenate([getattr(one, name) for one in batches]) for name in _ARRAYS
    }
    return TokenBatch(**joined, plans=tuple(rows for one in batches for rows in one.plans))


def offsets_of(sizes: ArrayLike) -> Array:
    """Return where each of consecutive parts begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


def _at_ends(rewards: Any, lengths: Array) -> Array:
    """Return items' rewards at their last tokens."""
    found = np.zeros(lengths.sum())
    if len(rewards) != len(lengths):
        raise ArgumentError(f"expected {len(lengths)} values of rewards, got {len(rewards)}")
    has_tokens = lengths > 0
    found[np.cumsum(lengths)[has_tokens] - 1] = np.asarray(rewards)[has_tokens]
    return found


def _numbers(sizes: Array, parts: Array) -> Array:
    """Return the numbers of all that is in some of consecutive parts."""
    offsets = offsets_of(sizes)
    found = (np.arange(offsets[part], offsets[part + 1]) for part in parts)
    return np.concatenate([np.zeros(0, np.int64), *found])
