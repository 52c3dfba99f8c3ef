"""A worker of the test with TRL's trainer: `python trl_worker.py ADDRESS FOLDER TARGET SEED`.

It has the model of the trainer's folder with the weights that are published, draws answers to
prompts of three tokens, and rewards the share of TARGET in an answer. It ends when the run does.
"""

from __future__ import annotations

import itertools
import sys
import time
from contextlib import suppress
from pathlib import Path

import echoic.rl
import numpy as np
import torch
from echoic.errors import ClosedError, DisconnectedError
from transformers import AutoModelForCausalLM

PROMPT, ANSWER = 3, 6


@torch.no_grad()
def draw(model: torch.nn.Module, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences that begin with prompts, and the log-probabilities of their tokens."""
    tokens, found = prompt, torch.zeros(prompt.shape)
    for _ in range(ANSWER):
        logprobs = model(input_ids=tokens).logits[:, -1].float().log_softmax(-1)
        drawn = torch.multinomial(logprobs.exp(), 1)
        tokens = torch.cat([tokens, drawn], 1)
        found = torch.cat([found, logprobs.gather(1, drawn)], 1)
    return tokens, found


def main(address: str, folder: str, target: int, seed: int) -> None:
    """Make groups until the run is closed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    while not (path := Path(folder, "rollouts")).exists():
        time.sleep(0.1)
    path = path.with_name("model")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    weights = dict(model.named_parameters())
    mask = np.array([0] * PROMPT + [1] * ANSWER, np.uint8)
    prompts = itertools.cycle(torch.randint(8, 30, (256, PROMPT)))
    with echoic.rl.join(address, name=f"worker-{seed}", reconnect=300) as worker:
        for group in worker.groups(prompts, key=lambda prompt: str(prompt.tolist())):
            with group:
                worker.load(weights)
                drawn, logprobs = draw(model, group.prompt.expand(len(group.items), -1))
                rewards = (drawn[:, PROMPT:] == target).float().mean(1)
                for item, *columns, reward in zip(group, drawn, logprobs, rewards, strict=True):
                    tokens, found = (column.numpy() for column in columns)
                    item.write(tokens=tokens.astype(np.int32), logprobs=found, mask=mask)
                    item.done(reward=float(reward))


if __name__ == "__main__":
    address, folder, *numbers = sys.argv[1:]
    with suppress(ClosedError, DisconnectedError):
        main(address, folder, *map(int, numbers))
