"""Asynchronous GRPO on two CPU cores: a tiny transformer learns to write three digits backwards.

Run ``learn FOLDER UPDATES`` and, twice, ``work FOLDER SEED``. Kill any, and start it again.
"""

import json
import sys
from contextlib import suppress
from operator import eq
from pathlib import Path

import echoic.rl
import numpy as np
import torch
from echoic.agents.llm import GRPOConfig, GRPOLearner, TinyConfig, TinyTransformer

SEP, END = 6, 7  # Tokens are six digits and these.
COLUMNS, FIELDS = {"tokens": "int32", "logprobs": "float32", "mask": "uint8"}, {"reward": "float32"}


def policy() -> TinyTransformer:
    """Make a transformer with two layers."""
    torch.set_num_threads(1)
    return TinyTransformer(TinyConfig(vocab_size=8, dim=48, hidden=96), device="cpu")


@torch.no_grad()
def answer(model: TinyTransformer, prompt: list[int]) -> tuple[list[list[int]], list[list[float]]]:
    """Draw eight answers of six tokens, and their log-probabilities."""
    tokens, logprobs = torch.tensor([prompt] * 8), []
    for _ in range(6):
        following = model(tokens)[:, -1].log_softmax(-1)
        drawn = torch.multinomial(following.exp(), 1)
        logprobs.append(following.gather(1, drawn))
        tokens = torch.cat([tokens, drawn], 1)
    return tokens[:, len(prompt) :].tolist(), torch.cat(logprobs, 1).tolist()


def work(folder: Path, seed: int) -> None:
    """Answer prompts for as long as the learner wants answers."""
    model, random, at = policy(), np.random.default_rng(seed), f"unix://{folder}/run.sock"
    prompts = iter(lambda: [*random.integers(6, size=3).tolist(), SEP], None)
    with suppress(echoic.errors.ClosedError), echoic.rl.join(at, timeout=60) as worker:
        for group in worker.groups(prompts):
            with group:
                worker.load(model)  # Newer weights, if there are any.
                prompt, none = group.prompt, [0] * len(group.prompt)
                right = [*prompt[-2::-1], END]
                for item, drawn, logprobs in zip(group, *answer(model, prompt), strict=True):
                    n = min([*drawn, END].index(END) + 1, len(drawn))
                    made = {"logprobs": none + logprobs[:n], "mask": none + [1] * n}
                    item.write(tokens=prompt + drawn[:n], **made)
                    item.done(reward=sum(map(eq, drawn[:n], right)) / max(n, len(right)))


def learn(folder: Path, updates: int) -> None:
    """Learn from groups of answers; go on from what was saved, if there is something."""
    learner = GRPOLearner(policy(), GRPOConfig(learning_rate=3e-3), device="cpu")
    where = {"listen": f"unix://{folder}/run.sock", "dir": folder / "rollouts"}
    how = {"group": 8, "batch": 16, "max_lag": 2}
    with echoic.rl.Run(COLUMNS, FIELDS, **where, **how) as run:
        if (saved := folder / "learner.ckpt").exists():
            learner.load(saved)
            run.restore(learner.updates)
        run.publish(learner.policy, learner.updates)
        while learner.updates < updates:
            with run.sample(lease=60) as batch:  # Acknowledged at the end: after it is saved.
                learner.update(batch)
                row = {"version": learner.updates, "reward": float(batch["reward"].mean())}
                row |= {"lag": int(batch.lag_oldest.max()), "groups": batch.group_ids.tolist()}
                with (folder / "curve.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
                learner.save(saved)
            run.publish(learner.policy, learner.updates)
        run.close(restart=False)  # The run is over: workers need not wait for another learner.


if __name__ == "__main__":
    {"learn": learn, "work": work}[sys.argv[1]](Path(sys.argv[2]).resolve(), int(sys.argv[3]))
