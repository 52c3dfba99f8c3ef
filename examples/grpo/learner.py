"""Learns from groups of answers as they become complete, and publishes what it has learned.

It shows a consumer's side. ``sample`` waits for a batch in which no token is older than the table
allows, as a lease: if the learner dies with it, the batch is not lost. Answers were made by several
versions of the policy, even within one answer, so each token's probability is compared with the one
that it had when it was drawn (``logprobs``), and what is too far from it does not count (the clip).
The other way go the weights, by a `WeightStore`, and the version, which lets workers go on.

GRPO after Shao et al., "DeepSeekMath" (2024), with the asymmetric clip and the mean over all tokens
of Yu et al., "DAPO" (2025); without a reference policy.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from examples.grpo import curve, task
from examples.grpo.curve import Point
from examples.grpo.model import Policy
from examples.grpo.table import inputs

if TYPE_CHECKING:
    from pathlib import Path

    from echoic.rollouts import RolloutBatch, RolloutTable
    from echoic.weights import WeightStore

    from examples.grpo.settings import Settings

# Prompts of an evaluation; no worker ever sees their seed.
EVALUATED, EVALUATION_SEED = 128, 1 << 40
LEASE = 60.0
POLICY = "learner.pt"


class Learner:
    """A policy, its optimizer, and how often it was updated."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.policy = Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=settings.rate)
        self.version = 0

    def update(self, batch: RolloutBatch) -> float:
        """Learn from a batch; return the share of tokens that were clipped."""
        found = {name: torch.from_numpy(array) for name, array in inputs(batch).items()}
        tokens, mask, advantages = found["tokens"], found["mask"], found["advantages"]
        following = self.policy(tokens[:, :-1])
        logprobs = following.gather(-1, tokens[:, 1:, None])[..., 0]
        ratio = (logprobs - found["logprobs"][:, 1:]).exp()
        below, above = self.settings.clip
        clipped = ratio.clamp(1 - below, 1 + above)
        gains = torch.minimum(ratio * advantages, clipped * advantages)
        loss = -(gains * mask).sum() / mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        self.version += 1
        out = (clipped * advantages < ratio * advantages).float() * mask
        return float(out.sum() / mask.sum())

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
        state = {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "version": self.version,
        }
        torch.save(state, folder / "learner.new")
        (folder / "learner.new").replace(folder / POLICY)

    def load(self, folder: Path) -> None:
        """Go on from what was saved."""
        state = torch.load(folder / POLICY)
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.version = state["version"]


def learn(learner: Learner, table: RolloutTable, weights: WeightStore) -> None:
    """Take batches, and publish a version for each, until there are enough."""
    settings = learner.settings
    weights.publish(learner.policy.state_dict(), learner.version)
    while learner.version < settings.versions:
        # At the end of the block the batch is used up; after an error it would be given back.
        with table.sample(lease=LEASE, form="padded") as batch:
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
    info: dict[str, Any] = table.info()
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
        counts={name: int(info[name]) for name in names},
    )
