"""The adapters with the libraries that they are for: ``make frameworks`` runs this."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.errors import RolloutError
from echoic.integrations.trl import COLUMNS, FIELDS, AsyncGRPORollouts, Sample, run_settings
from echoic.integrations.verifiers import add_rollout, to_columns
from echoic.integrations.verl import to_verl
from echoic.primitives import compute_batch_group_advantages
from echoic.rl import Run
from rollout_answers import REWARDS

if TYPE_CHECKING:
    from echoic.rollouts import RolloutBatch, RolloutTable

# What these libraries warn of is theirs.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]


def test_verl_computes_our_advantages_from_a_batch(batch: RolloutBatch) -> None:
    pytest.importorskip("verl")
    from verl import DataProto
    from verl.trainer.ppo import core_algos

    tensors, others = to_verl(batch)
    proto = DataProto.from_dict(tensors=tensors, non_tensors=others)
    assert len(proto) == len(REWARDS)
    found, _ = core_algos.compute_grpo_outcome_advantage(
        proto.batch["rm_scores"], proto.batch["response_mask"], proto.non_tensor_batch["uid"]
    )
    expected = compute_batch_group_advantages(batch["reward"], offsets=np.array([0, 2, 4]))
    mask = tensors["response_mask"].bool().numpy()
    made = found.numpy() * mask
    # Its deviation is that of a sample, ours that of a population: of two, they differ by this.
    scale = np.sqrt(2)
    np.testing.assert_allclose(made, (expected[:, None] / scale) * mask, atol=1e-4)
    halves = proto.chunk(2)
    assert [len(half) for half in halves] == [2, 2]


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    *,
    tree_kv_index: Any,
    tree_cu_seqlens_q: Any,
    tree_cu_seqlens_k: Any,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Any, None]:
    """Attend as TRL's kernel for GPUs: each segment of queries to its own keys, causally."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    (query,), (key,), (value,) = query, key, value
    shared = query.shape[0] // key.shape[0]
    key = key[:, tree_kv_index].repeat_interleave(shared, 0)
    value = value[:, tree_kv_index].repeat_interleave(shared, 0)
    found = []
    for segment in range(len(tree_cu_seqlens_q) - 1):
        asks = slice(*tree_cu_seqlens_q[segment : segment + 2])
        sees = slice(*tree_cu_seqlens_k[segment : segment + 2])
        shape = (asks.stop - asks.start, sees.stop - sees.start)
        seen = torch.ones(shape, dtype=torch.bool).tril(shape[1] - shape[0])
        found.append(
            scaled_dot_product_attention(
                query[:, asks], key[:, sees], value[:, sees], attn_mask=seen, scale=scaling
            )
        )
    return torch.cat(found, 1).transpose(0, 1).unsqueeze(0), None


def test_trl_trains_on_groups_of_workers_that_load_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import (
        AttentionInterface,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        TrainerCallback,
    )
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
    from trl.experimental.async_grpo.packing import TREE_ATTENTION

    ours = {field.name for field in dataclasses.fields(Sample)}
    assert {field.name for field in dataclasses.fields(RolloutSample)} == ours - {"blobs"}

    torch.manual_seed(0)
    words = {f"w{i}": i for i in range(30)} | {"<pad>": 30, "<eos>": 31}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    folder = str(tmp_path / "model")
    model = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(model).save_pretrained(folder)
    config = AsyncGRPOConfig(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_steps=24,
        max_staleness=2,
        token_budget=0,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    run = Run(COLUMNS, FIELDS, listen="tcp://127.0.0.1:0", **run_settings(config))
    rollouts = AsyncGRPORollouts(run)
    # TRL asks for the name of the GPU.
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "CPU")
    trainer = AsyncGRPOTrainer(
        model=folder,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "w1"}] * 256),
        processing_class=tokenizer,
        rollout_worker=rollouts,
        weight_transfer=rollouts,
    )
    AttentionInterface.register(TREE_ATTENTION, attend)
    program = [sys.executable, str(Path(__file__).with_name("trl_worker.py"))]
    workers = [subprocess.Popen([*program, run.address, folder, "7", str(seed)]) for seed in (1, 2)]

    class Killer(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 8:
                workers[0].kill()

    trainer.add_callback(Killer())
    try:
        trainer.train()
        stats = run.stats()
    finally:
        run.close()
        ends = [worker.wait(60) for worker in workers]
    assert ends == [-9, 0]
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(log) == 24
    # Weights, tokens and log-probabilities meet: at first the trainer's policy is the workers'.
    assert log[0]["ratio"] == pytest.approx(1, abs=1e-4)
    assert max(entry["kl"] for entry in log) < 0.2
    assert np.mean([entry["reward"] for entry in log[:3]]) < 0.1
    assert np.mean([entry["reward"] for entry in log[-3:]]) > 0.5
    assert max(entry["echoic/lag_oldest_max"] for entry in log) == 2
    assert not any("sample/dropped_stale_total" in entry for entry in log)
    # What was fetched ahead of the last step is in the table again.
    assert (stats.version, stats.acked, stats.overdue) == (24, 24 * 8, 0)


def test_a_trace_of_verifiers_is_a_sequence(table: RolloutTable) -> None:
    pytest.importorskip("verifiers.v1")
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.task import TaskData
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask
    from verifiers.v1.types import AssistantMessage, UserMessage

    def node(parent: int | None, tokens: list[int], drawn: int, message: Any) -> MessageNode:
        return MessageNode(
            parent=parent,
            message=message,
            sampled=bool(drawn),
            token_ids=tokens,
            mask=[False] * (len(tokens) - drawn) + [True] * drawn,
            logprobs=[-token / 8 for token in tokens[len(tokens) - drawn :]] if drawn else [],
        )

    asked, said = UserMessage(content="?"), AssistantMessage(content="!")
    trace = Trace(
        task=TraceTask(type="Task", data=TaskData(prompt="?")),
        agent=AgentInfo(config=AgentConfig()),
        nodes=[
            node(None, [1, 2], 0, asked),
            node(0, [90, 3, 4], 2, said),
            node(1, [91], 0, asked),
            node(2, [90, 5], 1, said),
        ],
        ok=True,
    )
    found = to_columns(trace)
    assert found["tokens"].tolist() == [1, 2, 90, 3, 4, 91, 90, 5]
    assert found["mask"].tolist() == [0, 0, 0, 1, 1, 0, 0, 1]
    assert found["logprobs"].tolist() == [0, 0, 0, -3 / 8, -4 / 8, 0, 0, -5 / 8]
    reservation = table.reserve()
    with pytest.raises(RolloutError, match="no reward"):
        add_rollout(reservation, trace, {"prompt": 0})
    trace.record_reward("right", 0.5)
    add_rollout(reservation, trace, {"prompt": 0}, messages=True)
    add_rollout(reservation, trace, {"prompt": 0})
    assert table.sample(1)["reward"].tolist() == [0.5, 0.5]
    trace.nodes.append(node(0, [90, 9], 1, said))
    with pytest.raises(RolloutError, match="2 branches to learn from"):
        to_columns(trace)
    assert to_columns(trace.branches[1])["tokens"].tolist() == [1, 2, 90, 9]
