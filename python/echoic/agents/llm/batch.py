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
OF_TOKENS: dict[str, Any] = {
    "tokens": np.int64,
    "logprobs": np.float32,
    "mask": np.bool_,
    "lags": np.int64,
    "token_rewards": np.float64,
}
_OTHERS: dict[str, Any] = {
    "offsets": np.int64,
    "rewards": np.float64,
    "group_offsets": np.int64,
    "importance": np.float64,
}


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
        for name, dtype in (OF_TOKENS | _OTHERS).items():
            if (given := getattr(self, name)) is not None:
                array = np.array(given, dtype)
                if array.ndim != 1:
                    raise ArgumentError(f"{name} has one axis, got the shape {array.shape}")
                object.__setattr__(self, name, array)
        ends = {name: _end(name, getattr(self, name)) for name in ("offsets", "group_offsets")}
        of_items = ("rewards", "importance", "plans")
        for name in (*OF_TOKENS, *of_items):
            size = len(self) if name in of_items else ends["offsets"]
            if (array := getattr(self, name)) is not None and len(array) != size:
                raise ArgumentError(
                    f"expected {size} values of {name}, as offsets say, got {len(array)}"
                )
        if ends["group_offsets"] != len(self):
            raise ArgumentError(
                f"group_offsets end at {ends['group_offsets']}, but there are {len(self)} items"
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
            tokens=columns["tokens"],
            logprobs=columns["logprobs"],
            mask=columns["mask"] != 0,
            offsets=batch.offsets,
            rewards=batch["reward"] if each is None else _sums(each, batch.lengths),
            group_offsets=offsets_of(batch.group_sizes),
            lags=batch.target - batch.versions.reshape(-1)[cells],
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

        Arguments are as the attributes, in lists with an element for each item. ``logprobs`` may be
        anything at a prompt, and ``rewards`` are given or else ``token_rewards``. ``group_sizes``
        says how many items each group has, in their order. No lags are lags of 0.
        """
        if (rewards is None) == (token_rewards is None):
            raise ArgumentError("expected either rewards or token_rewards")
        lengths = np.array([len(np.atleast_1d(item)) for item in tokens], np.int64)
        if lags is None:
            lags = [np.zeros(length, np.int64) for length in lengths]
        columns = {"tokens": tokens, "logprobs": logprobs, "mask": mask, "lags": lags}
        found: dict[str, Any] = {}
        for name, items in (columns | {"token_rewards": token_rewards}).items():
            if items is None:
                continue
            arrays = [np.atleast_1d(np.asarray(item)) for item in items]
            if (sizes := [len(array) for array in arrays]) != lengths.tolist():
                raise ArgumentError(
                    f"expected a value of {name} for each token, {lengths.tolist()} in the items, "
                    f"got {sizes}"
                )
            found[name] = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        found["mask"] = found["mask"] != 0
        found["rewards"] = _sums(found["token_rewards"], lengths) if rewards is None else rewards
        return cls(
            **found,
            offsets=offsets_of(lengths),
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
        last = np.cumsum(counts)
        has_drawn = counts > 0
        if self.token_rewards is None:
            earned, place = self.rewards[has_drawn], last[has_drawn] - 1
        else:
            # At or before each token; for those before the first of an item, that one.
            place = np.maximum(np.cumsum(self.mask) - 1, (last - counts)[self.items])
            earned, place = (one[has_drawn[self.items]] for one in (self.token_rewards, place))
        return np.bincount(place, earned, int(counts.sum()))

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


def _end(name: str, offsets: Array) -> int:
    if len(offsets) == 0 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise ArgumentError(f"{name} begin with 0 and never fall, got {offsets[:8].tolist()}…")
    return int(offsets[-1])
