"""A trainer of the test with TRL: `python trl_trainer.py ADDRESS FOLDER STEPS`.

It trains a tiny model of FOLDER, which it makes if there is none, on the CPU; it goes on from the
last checkpoint there, and writes a line of JSON for each step to FOLDER/log.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import echoic.rl
import torch
from datasets import Dataset
from echoic.integrations.trl import COLUMNS, FIELDS, AsyncGRPORollouts, run_settings
from tokenizers import Tokenizer, models
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.async_grpo.packing import TREE_ATTENTION


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


class Log(TrainerCallback):
    """Writes what TRL logs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({**logs, "step": state.global_step}) + "\n")


def last_step(folder: Path) -> int:
    """Return the step of the last whole checkpoint; 0 without one."""
    found = folder.glob("out/checkpoint-*/trainer_state.json")
    return max((int(path.parent.name.partition("-")[2]) for path in found), default=0)


def main(address: str, folder: Path, steps: int) -> None:
    """Train, from the last checkpoint on."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = {f"w{i}": i for i in range(30)} | {"<pad>": 30, "<eos>": 31}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    model = folder / "model"
    if not model.exists():
        shape = LlamaConfig(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        LlamaForCausalLM(shape).save_pretrained(model)
    config = AsyncGRPOConfig(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_steps=steps,
        max_staleness=2,
        token_budget=0,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="steps",
        save_steps=1,
        save_total_limit=3,
        disable_tqdm=True,
    )
    done = last_step(folder)
    run = echoic.rl.Run(
        COLUMNS, FIELDS, listen=address, dir=folder / "rollouts", **run_settings(config)
    )
    rollouts = AsyncGRPORollouts(run, version=done)
    # TRL asks for the name of the GPU.
    torch.cuda.get_device_name = lambda *_: "CPU"
    trainer = AsyncGRPOTrainer(
        model=str(model),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "w1"}] * 256),
        processing_class=tokenizer,
        rollout_worker=rollouts,
        weight_transfer=rollouts,
        callbacks=[Log(folder / "log")],
    )
    AttentionInterface.register(TREE_ATTENTION, attend)
    trainer.train(resume_from_checkpoint=str(folder / f"out/checkpoint-{done}") if done else None)
    stats = run.stats()
    counts = {name: getattr(stats, name) for name in ("version", "acked", "overdue")}
    (folder / "end").write_text(json.dumps(counts))
    run.close(restart=False)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
