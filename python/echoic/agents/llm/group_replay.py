"""Surprise replay of a language model: groups of answers that are learned from more than once.

A group's score is ``surprise_weight · ‖τ − τ̄‖² + reward_weight · |r|``, as an experience's in
:class:`~echoic.agents.replay.PrioritizedReplayBuffer`, and so is the law of draws and importance
weights, with one tier. τ is the mean of the group's plans, or without plans the encoding of its
tokens that were not drawn; τ̄ is the moving mean of all τ; ``|r|`` is the mean over items. Scores
are always those of the current τ̄.

Invariant: there are at most ``max_experiences`` groups, of at most ``max_bytes`` in all. Of more
the one with the lowest score is removed, and of equal scores the oldest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents import checkpoint
from echoic.agents.environments.base import TextEncoder
from echoic.agents.kernels import priority_sample
from echoic.agents.llm.batch import OF_TOKENS, TokenBatch, offsets_of
from echoic.agents.replay import SurpriseCalculator
from echoic.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from echoic.agents.llm.soft_prefix import PlanPrefix
    from echoic.agents.replay import ReplayConfig

    Array = np.ndarray[Any, Any]

__all__ = ["GroupReplay"]

_KIND = "group replay"
_DIMS = 64


@dataclass(frozen=True)
class _Group:
    """A batch of one group, its plan, and the version of the learner that it was added at."""

    batch: TokenBatch
    plan: Array
    added: int

    @property
    def bytes(self) -> int:
        arrays = [*vars(self.batch).values(), *(self.batch.plans or ()), self.plan]
        return sum(one.nbytes for one in arrays if isinstance(one, np.ndarray))


class GroupReplay:
    """Groups that a token learner learned from.

    Args:
        config: Scores and the law of draws; ``max_experiences`` counts groups, ``max_replay_age``
            updates. Its tiers are not used.
        plans: The soft prefix whose plans are scored; None scores encodings of tokens.
        max_bytes: Most bytes of all groups.
        seed: Seed of the draws.

    >>> from echoic.agents.replay import ReplayConfig
    >>> batch = TokenBatch.from_items(
    ...     tokens=[[5, 1], [5, 3]], logprobs=[[0, -0.7], [0, -0.5]], mask=[[0, 1]] * 2,
    ...     rewards=[1.0, 0.0], group_sizes=[2],
    ... )
    >>> replay = GroupReplay(ReplayConfig(min_experiences=1))
    >>> replay.add(batch, version=3)
    >>> again = replay.sample(1, version=5)
    >>> again.lags.tolist(), again.importance.tolist()
    ([2, 2, 2, 2], [1.0, 1.0])
    """

    def __init__(
        self,
        config: ReplayConfig,
        *,
        plans: PlanPrefix | None = None,
        max_bytes: int = 256 << 20,
        seed: int = 0,
    ) -> None:
        if max_bytes < 1:
            raise ArgumentError(f"max_bytes must be at least 1, not {max_bytes}")
        self.config = config
        self._plans, self._max_bytes, self._seed, self._draws = plans, max_bytes, seed, 0
        dims = _DIMS if plans is None else plans.config.embedding_dim
        self._calculator = SurpriseCalculator(config, dims)
        self._groups: list[_Group] = []

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    @property
    def bytes(self) -> int:
        """Bytes of all groups."""
        return sum(group.bytes for group in self._groups)

    @property
    def scores(self) -> Array:
        """Scores by the current mean, that of the oldest group first."""
        plans = np.array([group.plan for group in self._groups]).reshape(len(self), -1)
        rewards = [np.abs(group.batch.rewards).mean() for group in self._groups]
        return np.asarray(self._calculator.compute_surprise_score(plans, rewards))

    def add(self, batch: TokenBatch, version: int) -> None:
        """Keep the groups of the batch that a version of the learner gets, within the bounds."""
        made = self._made(batch)
        self._expire(version)
        self._groups += [_Group(_part(batch, i), plan, version) for i, plan in enumerate(made)]
        # Scored before: a plan that has moved the mean looks less surprising.
        order = np.argsort(self.scores, kind="stable").tolist()
        self._calculator.update_ema_plan(made)
        excess = len(self) - self.config.max_experiences
        left, gone = self.bytes, set[int]()
        for index in order:
            if len(gone) >= excess and left <= self._max_bytes:
                break
            gone.add(index)
            left -= self._groups[index].bytes
        self._groups = [group for index, group in enumerate(self._groups) if index not in gone]

    def sample(self, count: int, version: int) -> TokenBatch | None:
        """Draw groups with replacement, at most as many as there are.

        Args:
            count: Number of groups.
            version: The learner's, by which tokens are old.

        Returns:
            A batch with importance weights; None below ``min_experiences``.
        """
        config = self.config
        self._expire(version)
        if len(self) < max(1, config.min_experiences):
            return None
        state = np.random.SeedSequence([self._seed, self._draws]).generate_state(1, np.uint64)
        self._draws += 1
        drawn, weights = priority_sample(
            self._logits(),
            count,
            temperature=config.temperature,
            importance_beta=config.importance_sampling_beta,
            seed=int(state[0]),
        )
        batches = []
        for index, weight in zip(drawn.tolist(), weights.tolist(), strict=True):
            group = self._groups[index]
            lags = group.batch.lags + version - group.added
            importance = np.full(len(group.batch), weight)
            batches.append(replace(group.batch, lags=lags, importance=importance))
        return join(batches)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the groups, the mean and the state of the draws to a file."""
        groups = [[vars(group.batch), group.plan, group.added] for group in self._groups]
        state = {"mean": self._calculator.tracker.state_dict(), "draws": self._draws}
        checkpoint.save(path, {**state, "groups": groups}, kind=_KIND)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file of :meth:`save`.

        Raises:
            CheckpointError: If it is damaged, or of plans of another size. Nothing was changed.
        """
        state = checkpoint.load(path, kind=_KIND)
        tracker, dims = self._calculator.tracker, self._calculator.latent_dim
        with checkpoint.all_or_nothing(tracker.load_state_dict, tracker.state_dict(), kind=_KIND):
            groups = [_Group(TokenBatch(**batch), *rest) for batch, *rest in state["groups"]]
            if any(group.plan.shape != (dims,) for group in groups):
                raise CheckpointError(f"{path} has other plans: expected {dims} numbers each")
            draws = int(state["draws"])
            tracker.load_state_dict(state["mean"])
        self._draws, self._groups = draws, groups

    def _expire(self, version: int) -> None:
        oldest = version - self.config.max_replay_age
        self._groups = [group for group in self._groups if group.added >= oldest]

    def _logits(self) -> Array:
        scores, config = self.scores, self.config
        if config.sampling_mode == "power":
            powers = np.log(np.maximum(scores, np.finfo(float).tiny))
            return np.asarray(config.priority_alpha * powers)
        if config.score_scale != "zscore":
            return scores
        spread = scores.std()
        standard = (scores - scores.mean()) / (spread if spread > 0 else 1.0)
        return np.asarray(standard.clip(-config.score_clip, config.score_clip))

    def _made(self, batch: TokenBatch) -> Array:
        """Return τ of each group."""
        if self._plans is not None:
            each = self._plans.means(batch)
        else:
            parts = map(slice, batch.offsets[:-1], batch.offsets[1:])
            given = (batch.tokens[part][~batch.mask[part]] for part in parts)
            text = TextEncoder(_DIMS)
            each = np.array([text(" ".join(map(str, tokens))) for tokens in given])
        sums = np.add.reduceat(each, batch.group_offsets[:-1])
        return np.asarray(sums / np.diff(batch.group_offsets)[:, None], np.float32)


def _part(batch: TokenBatch, group: int) -> TokenBatch:
    """Return a batch of one group of a batch."""
    first, end = batch.group_offsets[group : group + 2].tolist()
    begin, stop = batch.offsets[[first, end]].tolist()

    def cut(name: str) -> Any:
        column = getattr(batch, name)
        return None if column is None else column[begin:stop]

    return TokenBatch(
        **{name: cut(name) for name in OF_TOKENS},
        offsets=batch.offsets[first : end + 1] - begin,
        rewards=batch.rewards[first:end],
        group_offsets=np.array([0, end - first]),
        plans=None if batch.plans is None else batch.plans[first:end],
    )


def join(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Return batches as one; items without an importance weight have 1."""

    def joined(name: str) -> Any:
        columns = [getattr(batch, name) for batch in batches]
        absent = [column is None for column in columns]
        if any(absent) and not all(absent):
            raise ArgumentError(f"expected {name} in all batches or in none")
        return None if absent[0] else np.concatenate(columns)

    weights = [np.ones(len(one)) if one.importance is None else one.importance for one in batches]
    plans = [one.plans or (None,) * len(one) for one in batches]
    return TokenBatch(
        **{name: joined(name) for name in (*OF_TOKENS, "rewards")},
        offsets=offsets_of(np.concatenate([one.lengths for one in batches])),
        group_offsets=offsets_of(np.concatenate([np.diff(one.group_offsets) for one in batches])),
        plans=tuple(row for of in plans for row in of)
        if any(one.plans for one in batches)
        else None,
        importance=np.concatenate(weights),
    )
