"""Token learners in several processes: they learn what one process learns from the whole batch."""

from __future__ import annotations

import itertools
import multiprocessing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tiers
from echoic.errors import ArgumentError
from echoic.rollouts import RolloutTable

torch = pytest.importorskip("torch")

from echoic.agents.llm import (
    GRPOConfig,
    GRPOLearner,
    LoRAConfig,
    PPOTokenConfig,
    PPOTokenLearner,
    TokenBatch,
)
from torch import nn

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 2
HOW: Any = ("ddp", "fsdp")
WORDS = 13
COMMON: dict[str, Any] = {"learning_rate": 1e-4, "max_tokens": 12, "kl_coef": 0.1}
LEARNERS: dict[str, tuple[Any, Any]] = {
    "grpo": (
        GRPOLearner,
        GRPOConfig(**COMMON, aggregation="sequence_mean", checkpointing=True, chunk=3),
    ),
    "ppo": (PPOTokenLearner, PPOTokenConfig(**COMMON, max_grad_norm=1e-2)),
    "bfloat16": (PPOTokenLearner, PPOTokenConfig(**COMMON)),
    # In the nightly tier: peft takes seconds to import.
    "lora": (PPOTokenLearner, PPOTokenConfig(**COMMON, lora=LoRAConfig(2, targets=("linear",)))),
}


class Block(nn.Module):
    """What precedes a token, and a layer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * size, size)

    def forward(self, x: Any) -> Any:
        count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        return x + torch.tanh(self.linear(torch.cat([x, x.cumsum(1) / count], -1)))


class Model(nn.Module):
    """A causal model that is imported in no time. Its sizes are odd, as shards may not be."""

    _no_split_modules = ("Block",)

    def __init__(self, size: int = 7) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, size)
        nn.init.normal_(self.embed.weight, std=0.3)
        self.blocks = nn.ModuleList(Block(size) for _ in range(2))
        self.head = nn.Linear(size, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def shares(ranks: int) -> list[TokenBatch]:
    """What each rank of a learner gets of a batch of four groups."""
    columns = {"tokens": "int32", "logprobs": "float32", "mask": "uint8", "rewards": "float32"}
    random = np.random.default_rng(0)
    with RolloutTable("t", columns, group_size=3, batch_groups=4, max_lag=0) as table:
        for group in range(4):
            reservation = table.reserve()
            for item in range(3):
                length = 3 + 2 * group + item
                drawn = np.arange(length) % 5 > 0
                values = {
                    "tokens": random.integers(0, WORDS, length).astype(np.int32),
                    "logprobs": np.where(drawn, -2.5, 0).astype(np.float32),
                    "mask": drawn.astype(np.uint8),
                    "rewards": (random.normal(size=length) * drawn).astype(np.float32),
                }
                reservation.add(values, versions=0)
        return [
            TokenBatch.from_rollouts(table.sample(rank=rank, ranks=ranks, lease=60))
            for rank in range(ranks)
        ]


def learned(name: str, how: str | None, batches: list[TokenBatch]) -> tuple[Any, Any]:
    """A learner that has learned from batches, and its last metrics."""
    learner_class, config = LEARNERS[name]
    model = Model()
    if name == "bfloat16":
        model = model.to(torch.bfloat16)
    learner = learner_class(model, replace(config, distributed=how), device="cpu")
    metrics: dict[str, float] = {}
    for batch in batches:
        metrics = learner.update(batch)
    return learner, metrics


def nothing(batch: TokenBatch) -> TokenBatch:
    return batch.take(np.zeros(0, np.int64))


def work(rank: int, folder: str, names: list[str]) -> dict[str, Any]:
    """Be a rank: learn from its share, then from a batch of which the last rank has nothing."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/ranks",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    try:
        share = shares(RANKS)[rank]
        second = shares(1)[0] if rank == 0 else nothing(share)
        found = {}
        for name, how in itertools.product(names, HOW):
            learner, metrics = learned(name, how, [share, second])
            learner.save(f"{folder}/{name}-{how}.ckpt")
            weight = learner.policy.get_output_embeddings().weight
            rows = len(weight.to_local() if how == "fsdp" else weight)
            found[f"{name}-{how}"] = (learner.weights(), metrics, rows)
        return found
    finally:
        torch.distributed.destroy_process_group()


def test_ranks_learn_what_one_process_learns_from_the_whole_batch(tmp_path: Path) -> None:
    names = [name for name in LEARNERS if name != "lora" or tiers.full]
    # The other rank; this process is the first one.
    spawn = multiprocessing.get_context("spawn")
    other = spawn.Process(target=work, args=(1, str(tmp_path), names))
    other.start()
    theirs = work(0, str(tmp_path), names)
    other.join(60)
    assert other.exitcode == 0
    whole = shares(1)[0]
    for name in names:
        alone, metrics = learned(name, None, [whole, whole])
        expected = {name: one.clone() for name, one in alone.weights().items()}
        start = learned(name, None, [])[0].weights()
        next_expected = alone.update(whole)
        assert any((start[one] - expected[one]).abs().max() > 1e-4 for one in expected)
        for how in HOW:
            weights, found, kept = theirs[f"{name}-{how}"]
            assert weights.keys() == expected.keys()
            assert all((weights[one] - expected[one]).abs().max() < 1e-6 for one in expected)
            # The number of micro-batches is that of a rank; all else is of the whole batch.
            counted = {"micro_batches": metrics["micro_batches"]}
            assert {**found, **counted} == pytest.approx(metrics, rel=1e-3, abs=1e-6)
            assert found["micro_batches"] > 1
            assert kept == {"ddp": WORDS, "fsdp": (WORDS + 1) // RANKS}[how]
            # One process goes on from the file of two.
            again, _ = learned(name, None, [])
            again.load(tmp_path / f"{name}-{how}.ckpt")
            assert again.update(whole) == pytest.approx(next_expected, rel=1e-3, abs=1e-6)


def test_ranks_need_a_process_group() -> None:
    with pytest.raises(ArgumentError, match="init_process_group"):
        GRPOLearner(Model(), GRPOConfig(distributed="ddp"), device="cpu")
