"""Surprise replay of a language model: groups of answers that are learned from more than once.

A group's score is ``surprise_weight · ‖τ − τ̄‖² + reward_weight · |r|``, as an experience's in
:class:`~echoic.agents.replay.PrioritizedReplayBuffer`, and so is the law of draws and importance
weights, with one tier. τ is the mean of the group's plans, or without plans the encoding of its
tokens that were not drawn; τ̄ is the moving mean of all τ; ``|r|`` is the mean over items. Scores
are always those of the current τ̄. Of more than ``max_experiences`` groups the one with the lowest
score is removed, and of equal scores the oldest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents import checkpoint
from echoic.agents.environments.base import TextEncoder
from echoic.agents.kernels import priority_sample
from echoic.agents.llm.batch import TokenBatch, join
from echoic.agents.replay import SurpriseCalculator
from echoic.errors import CheckpointError

if TYPE_CHECKING:
    import os

    from echoic.agents.llm.soft_prefix import PlanPrefix
    from echoic.agents.replay import ReplayConfig

    Array = np.ndarray[Any, Any]

__all__ = ["GroupReplay"]

_KIND = "group replay"
_DIMS = 64


class GroupReplay:
    """Groups that a token learner learned from.

    Args:
        config: Scores and the law of draws; ``max_experiences`` counts groups, ``max_replay_age``
            updates. Its tiers are not used.
        plans: The soft prefix whose plans are scored; None scores encodings of tokens.

    >>> from echoic.agents.replay import ReplayConfig
    >>> batch = TokenBatch.from_items(
    ...     tokens=[[5, 1], [5, 3]], logprobs=[[0, -0.7], [0, -0.5]], mask=[[0, 1]] * 2,
    ...     rewards=[1.0, 0.0], group_sizes=[2],
    ... )
    >>> replay = GroupReplay(ReplayConfig(min_experiences=1))
    >>> replay.add(batch, version=3)
    >>> again = replay.sample(1, version=5)
    >>> again.tokens.tolist(), again.importance.tolist()
    ([5, 1, 5, 3], [1.0, 1.0])
    """

    def __init__(
        self, config: ReplayConfig, *, plans: PlanPrefix | None = None, seed: int = 0
    ) -> None:
        self.config = config
        self._prefix, self._seed, self._draws = plans, seed, 0
        dims = _DIMS if plans is None else plans.config.embedding_dim
        self._calculator = SurpriseCalculator(config, dims)
        # All groups, that of the oldest first.
        nothing: Any = {name: [] for name in ("tokens", "logprobs", "mask", "rewards")}
        self._batch = TokenBatch.from_items(**nothing, group_sizes=[])
        # The plan of each, and the version of the learner that it was added at.
        self._plans = np.zeros((0, dims), np.float32)
        self._added = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._added)

    @property
    def scores(self) -> Array:
        """Scores by the current mean, that of the oldest group first."""
        rewards = _means(np.abs(self._batch.rewards), self._batch)
        return np.asarray(self._calculator.compute_surprise_score(self._plans, rewards))

    def add(self, batch: TokenBatch, version: int) -> None:
        """Keep the groups of the batch that a version of the learner gets, within the bound."""
        plans = self._plans_of(batch)
        self._expire(version)
        self._batch = join([self._batch, batch])
        self._plans = np.concatenate([self._plans, plans])
        self._added = np.concatenate([self._added, np.full(len(plans), version)])
        # Scored before: a plan that has moved the mean looks less surprising.
        order = np.argsort(self.scores, kind="stable")
        self._calculator.update_ema_plan(plans)
        self._keep(np.sort(order[max(0, len(self) - self.config.max_experiences) :]))

    def sample(self, count: int, version: int) -> TokenBatch | None:
        """Draw groups with replacement, at most as many as there are, for a learner's version.

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
        batch = self._batch.take(drawn)
        return replace(batch, importance=np.repeat(weights, batch.group_sizes))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the groups, the mean and the state of the draws to a file."""
        state = {
            "batch": vars(self._batch),
            "plans": self._plans,
            "added": self._added,
            "mean": self._calculator.tracker.state_dict(),
            "draws": self._draws,
        }
        checkpoint.save(path, state, kind=_KIND)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file of :meth:`save`.

        Raises:
            CheckpointError: If it is damaged, or of plans of another size. Nothing was changed.
        """
        state = checkpoint.load(path, kind=_KIND)
        tracker = self._calculator.tracker
        with checkpoint.all_or_nothing(tracker.load_state_dict, tracker.state_dict(), kind=_KIND):
            batch = TokenBatch(**state["batch"])
            plans, draws = state["plans"], int(state["draws"])
            added = np.asarray(state["added"], np.int64)
            groups = len(batch.group_sizes)
            if (plans.shape, added.shape) != ((groups, self._calculator.latent_dim), (groups,)):
                raise CheckpointError(f"{path} has plans of another size, or not one for a group")
            tracker.load_state_dict(state["mean"])
        self._batch, self._plans, self._added, self._draws = batch, plans, added, draws

    def _expire(self, version: int) -> None:
        self._keep(np.flatnonzero(self._added >= version - self.config.max_replay_age))

    def _keep(self, groups: Array) -> None:
        if len(groups) < len(self):
            self._batch = self._batch.take(groups)
            self._plans, self._added = self._plans[groups], self._added[groups]

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

    def _plans_of(self, batch: TokenBatch) -> Array:
        """Return τ of each group."""
        if self._prefix is not None:
            each = self._prefix.means(batch)
        else:
            parts = map(slice, batch.offsets[:-1], batch.offsets[1:])
            given = (batch.tokens[part][~batch.mask[part]] for part in parts)
            text = TextEncoder(_DIMS)
            each = np.array([text(" ".join(map(str, tokens))) for tokens in given])
        return _means(each, batch).astype(np.float32)


def _means(of_items: Array, batch: TokenBatch) -> Array:
    """Return the mean of each group."""
    sizes = batch.group_sizes
    parts = np.split(of_items, np.cumsum(sizes)[:-1]) if len(sizes) else []
    return np.array([part.mean(0) for part in parts])
