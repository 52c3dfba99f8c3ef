"""How token policies learn from old answers: which objective bears how much lag.

A small transformer turns digits round (``_digits``). Each batch is drawn by the
policy of ``lag`` updates ago. ``blind`` takes the draws for the policy's own, as learners do that
record no log-probabilities; the others compare each token with the probability it was drawn with.
A row for each seed: the mean reward of greedy answers in the end, and over the whole run.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from echoic.agents.llm import (
    GRPOConfig,
    GRPOLearner,
    RLOOConfig,
    RLOOLearner,
    TokenBatch,
    TokenLearner,
)

from experiments import _digits as task
from experiments._digits import Policy
from experiments._seeds import Rows, show

if TYPE_CHECKING:
    from pathlib import Path

NAME = "token_learners"
RATE = 3e-3
GROUPS, ANSWERS = 16, 8
EVALUATED, EVALUATION_SEED = 128, 1 << 40
ARMS: dict[str, tuple[type[Any], Any]] = {
    "grpo": (GRPOLearner, GRPOConfig(learning_rate=RATE)),
    "grpo, blind": (GRPOLearner, GRPOConfig(learning_rate=RATE)),
    "grpo, decoupled": (GRPOLearner, GRPOConfig(learning_rate=RATE, proximal="start")),
    "rloo": (RLOOLearner, RLOOConfig(learning_rate=RATE)),
    "rloo, by token": (
        RLOOLearner,
        RLOOConfig(learning_rate=RATE, ratio_level="token", aggregation="token_mean"),
    ),
}
BLIND = "grpo, blind"


def run(out: Path, quick: bool) -> None:
    """Run what is not there yet, and print a table of all."""
    rows = Rows(out / f"{NAME}.jsonl", ("arm", "lag", "seed", "updates"))
    updates, seeds, lags = (5, 1, (0, 4)) if quick else (100, 5, (0, 4, 16))
    torch.set_num_threads(1)
    for seed in range(seeds):
        for lag in lags:
            for arm in ARMS:
                if not rows.has(arm=arm, lag=lag, seed=seed, updates=updates):
                    rows.add(learn(arm, lag, seed, updates))
    show("Token policies and lag", summary(rows.of(updates=updates)))


def learn(arm: str, lag: int, seed: int, updates: int) -> dict[str, Any]:
    """One run of an arm; its row."""
    torch.manual_seed(seed)
    policy = Policy().eval()
    learner_class, config = ARMS[arm]
    learner: TokenLearner = learner_class(policy, config, device="cpu")
    rng = torch.Generator().manual_seed(seed)
    past = deque([copy.deepcopy(policy.state_dict())], maxlen=lag + 1)
    actor = Policy().eval()
    scores, metrics, begin = [], {}, time.perf_counter()
    for update in range(updates):
        actor.load_state_dict(past[0])
        batch = draw(actor, seed, update, rng)
        if arm == BLIND:
            batch = dataclasses.replace(batch, logprobs=draws_as_own(policy, batch))
        metrics = learner.update(batch)
        past.append(copy.deepcopy(policy.state_dict()))
        if (update + 1) % 5 == 0:
            scores.append(score(policy))
    return {
        "arm": arm,
        "lag": lag,
        "seed": seed,
        "updates": updates,
        "score": float(np.mean(scores[-3:])),
        "over_the_run": float(np.mean(scores)),
        "seconds": time.perf_counter() - begin,
        **{name: metrics[name] for name in ("clip_fraction", "effective_samples", "ratio_max")},
    }


def draw(actor: Policy, seed: int, update: int, rng: torch.Generator | None) -> TokenBatch:
    """A batch of answers; the likeliest ones without a generator."""
    groups = EVALUATED if rng is None else GROUPS
    answers = 1 if rng is None else ANSWERS
    prompts = [
        task.prompt(seed, update * groups + group)
        for group in range(groups)
        for _ in range(answers)
    ]
    lengths = np.array([len(prompt) for prompt in prompts])
    rows = np.zeros((len(prompts), task.CONTEXT), np.int64)
    said = np.zeros(rows.shape, np.float32)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    everyone = np.arange(len(rows))
    for step in range(task.MOST):
        rows[everyone, lengths + step], said[everyone, lengths + step] = actor.draw(
            rows, lengths + step, rng
        )
    ends, rewards = [], []
    for row, start, prompt in zip(rows, lengths, prompts, strict=True):
        answer = row[start : start + task.MOST].tolist()
        if task.END in answer:
            answer = answer[: answer.index(task.END) + 1]
        ends.append(start + len(answer))
        rewards.append(task.reward(prompt, answer))
    return TokenBatch.from_items(
        tokens=[row[:end] for row, end in zip(rows, ends, strict=True)],
        logprobs=[row[:end] for row, end in zip(said, ends, strict=True)],
        mask=[np.arange(end) >= start for start, end in zip(lengths, ends, strict=True)],
        rewards=rewards,
        group_sizes=[answers] * groups,
    )


@torch.no_grad()
def draws_as_own(policy: Policy, batch: TokenBatch) -> np.ndarray[Any, Any]:
    """What the policy itself says of the tokens, whoever drew them."""
    found = np.zeros_like(batch.logprobs)
    for item in range(len(batch)):
        cells = slice(batch.offsets[item], batch.offsets[item + 1])
        ids = torch.from_numpy(batch.tokens[cells])
        following = policy(ids[None])[0, :-1].gather(-1, ids[1:, None])[:, 0]
        found[cells][1:] = following.numpy()
    return found


def score(policy: Policy) -> float:
    """The mean reward of greedy answers to prompts that nobody learns from."""
    return float(draw(policy, EVALUATION_SEED, 0, None).rewards.mean())


def summary(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Means and standard deviations over seeds."""
    lines = []
    for arm, lag in sorted({(row["arm"], row["lag"]) for row in rows}):
        own = [row for row in rows if (row["arm"], row["lag"]) == (arm, lag)]
        line = {"arm": arm, "lag": str(lag), "seeds": str(len(own))}
        for name in ("score", "over_the_run", "clip_fraction", "effective_samples"):
            values = [row[name] for row in own]
            line[name] = f"{np.mean(values):.3f} ± {np.std(values):.3f}"
        lines.append(line)
    return lines
