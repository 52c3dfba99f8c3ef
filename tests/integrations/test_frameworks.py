"""The adapters with the libraries that they are for: ``make frameworks`` runs this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.errors import RolloutError
from echoic.integrations.trl import to_trl
from echoic.integrations.verifiers import add_rollout, to_columns

if TYPE_CHECKING:
    from pathlib import Path

    from echoic.rollouts import RolloutBatch, RolloutTable

# What these libraries warn of is theirs.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]


def test_trl_trains_on_batches_of_a_table(batch: RolloutBatch, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    given = to_trl(batch)

    class Trainer(trl.GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return dict(given)

    torch.manual_seed(0)
    words = {f"w{i}": i for i in range(100)} | {"<pad>": 100, "<eos>": 101}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    config = LlamaConfig(
        vocab_size=102,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        num_generations=2,
        max_steps=2,
        learning_rate=1e-2,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        beta=0.0,
    )
    trainer = Trainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "w11 w12"}, {"prompt": "w13"}] * 4),
        processing_class=tokenizer,
    )
    done = trainer.train()
    assert done.global_step == 2
    assert np.isfinite(done.training_loss)
    assert any(not torch.equal(before[n], p) for n, p in model.named_parameters())


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
