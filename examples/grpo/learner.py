"""Learns from groups of answers as they become complete, and publishes what it has learned.

It shows a consumer's side. ``sample`` waits for a batch in which no token is older than the table
allows, as a lease: if the learner dies with it, the batch is not lost. Answers were made by several
versions of the policy, even within one answer, so each token's probability is compared with the one
that it had when it was drawn (``logprobs``), and what is too far from it does not count (the clip).
That is ``GRPOLearner``'s matter; here is what is around it. The other way go the weights, by a
`WeightStore`, and the version, which lets workers go on.

GRPO after Shao et al., "DeepSeekMath" (2024), with the asymmetric clip and the mean over all tokens
of Yu et al., "DAPO" (2025); without a reference policy.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from echoic.agents.learners import GRPOConfig, GRPOLearner

from examples.grpo import curve, task
from examples.grpo.curve import Point
from examples.grpo.model import Policy

if TYPE_CHECKING:
    from pathlib import Path

    from echoic.rollouts import RolloutBatch, RolloutTable
    from echoic.weights import WeightStore

    from examples.grpo.settings import Settings

# Prompts of an evaluation; no worker ever sees their seed.
EVALUATED, EVALUATION_SEED = 128, 1 << 40
LEASE = 60.0
POLICY = "learner.ckpt"


class Learner:
    """A policy, how it learns, and how good it is."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.policy = Policy()
        low, high = settings.clip
        config = GRPOConfig(learning_rate=settings.rate, clip_low=low, clip_high=high)
        self.grpo = GRPOLearner(self.policy, config, device="cpu")

    @property
    def version(self) -> int:
        """How often the policy was updated."""
        return self.grpo.updates

    def update(self, batch: RolloutBatch) -> float:
        """Learn from a batch; return the share of tokens that were clipped."""
        return self.grpo.update(batch)["clip_fraction"]

    def evaluate(self) -> float:
        """Return the mean reward of greedy answers."""
        prompts = [task.prompt(EVALUATION_SEED, number) for number in range(EVALUATED)]
        lengths = np.array([len(prompt) for prompt in prompts])
        rows = np.zeros((EVALUATED, task.CONTEXT), np.int64)
        for row, prompt in zip(rows, prompts, strict=True):
            row[: len(prompt)] = prompt
        everyone = np.arange(EVALUATED)
        for _ in range(task.MOST):
            best, _ = self.policy.draw(rows, lengths, None)
            rows[everyone, lengths] = best
            lengths += 1
        return float(np.mean([self._reward(p, r) for p, r in zip(prompts, rows, strict=True)]))

    @staticmethod
    def _reward(prompt: list[int], row: np.ndarray) -> float:
        answer = row[len(prompt) : len(prompt) + task.MOST].tolist()
        if task.END in answer:
            answer = answer[: answer.index(task.END) + 1]
        return task.reward(prompt, answer)

    def save(self, folder: Path) -> None:
        """Write everything that is needed to go on, all or nothing."""
        self.grpo.save(folder / POLICY)

    def load(self, folder: Path) -> None:
        """Go on from what was saved."""
        self.grpo.load(folder / POLICY)


def learn(learner: Learner, table: RolloutTable, weights: WeightStore) -> None:
    """Take batches, and publish a version for each, until there are enough."""
    settings = learner.settings
    weights.publish(learner.policy.state_dict(), learner.version)
    while learner.version < settings.versions:
        # At the end of the block the batch is used up; after an error it would be given back.
        with table.sample(lease=LEASE) as batch:
            clipped = learner.update(batch)
        weights.publish(learner.policy.state_dict(), learner.version)
        table.publish_version(learner.version)
        curve.add(settings.folder, point(learner, batch, table, clipped))
        if learner.version % settings.save_every == 0:
            learner.save(settings.folder)


def point(learner: Learner, batch: RolloutBatch, table: RolloutTable, clipped: float) -> Point:
    """Say where the learner is."""
    version, settings = learner.version, learner.settings
    is_looked_at = version % settings.evaluate_every == 0 or version == settings.versions
    stats = table.stats()
    names = ("submitted", "accepted", "filtered", "rejected", "stale", "expired", "resumed")
    return Point(
        version=version,
        time=time.time(),
        score=learner.evaluate() if is_looked_at else None,
        reward=float(batch["reward"].mean()),
        lag=float(batch.lag_oldest.mean()),
        max_lag=int(batch.lag_oldest.max()),
        mixed=float((batch.item_lag_oldest > batch.item_lag_newest).mean()),
        clipped=clipped,
        counts={name: getattr(stats, name) for name in names},
    )
