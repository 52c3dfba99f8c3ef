"""What sharing keys and values saves on a fixed workload: tokens, matrix products, time.

The workload is a conversation of an agent with its environment, in tokens drawn from a seed: a
system prompt of 200 tokens that all rollouts share, then ten turns of 40 tokens of observation and
8 generated ones. Turn i's prompt is all that came before it. Four rollouts go on side by side.

The same engine runs it with its prefix cache and without. Compared are

- tokens reused, of all that were needed (prompts, and generated tokens that were fed back);
- floating-point operations of matrix products, counted by ``torch.utils.flop_counter`` while they
  happen, in a pass of its own since counting takes time;
- effective tokens per second: prompts and generated tokens by the time. Seconds are the process's
  own on one core; seconds on the wall stand beside them.

Tokens drawn are greedy, so both ways have to say the same: a row has ``same_tokens``.

A second table compares the engine with batched ``generate`` of transformers, with SmolLM2-135M.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import torch
from echoic.agents.bandwidth import BandwidthEfficiencyTracker
from echoic.agents.llm import (
    Batcher,
    ExecutionConfig,
    RolloutRequest,
    SamplingParams,
    TinyConfig,
    TinyTransformer,
)
from echoic.agents.llm.batcher import Rollout
from torch.utils.flop_counter import FlopCounterMode

from experiments._seeds import Rows, show

if TYPE_CHECKING:
    from pathlib import Path

SYSTEM, OBSERVATION, ACTION = 200, 40, 8
# Layers and width of the model that the small measurements are made with.
MIDDLE = TinyConfig(vocab_size=512, dim=256, layers=4, heads=4, kv_heads=4, hidden=768)


def converse(
    model: Any, *, turns: int, rollouts: int, reuse: bool, seed: int
) -> tuple[Batcher, list[list[int]]]:
    """Run the workload; returns the batcher with its counts, and what each rollout drew."""
    draw = random.Random(seed)
    batcher = _batcher(model, reuse)
    system = [draw.randrange(model.vocab_size) for _ in range(SYSTEM)]
    histories = [list(system) for _ in range(rollouts)]
    drawn: list[list[int]] = [[] for _ in range(rollouts)]
    sampling = SamplingParams(max_new_tokens=ACTION, temperature=0.0)
    for turn in range(turns):
        for index, history in enumerate(histories):
            history += [draw.randrange(model.vocab_size) for _ in range(OBSERVATION)]
            request = RolloutRequest(
                f"{turn}-{index}",
                history,
                timestamp=time.monotonic(),
                sampling=sampling,
                timeout=1e6,
            )
            batcher.submit(Rollout(request, tuple(history), seed=0))
        while batcher.busy:
            for rollout in batcher.step():
                if rollout.result is not None:
                    if not rollout.result.success:
                        raise RuntimeError(rollout.result.error)
                    index = int(rollout.request_id.split("-")[1])
                    histories[index] += rollout.result.tokens
                    drawn[index] += rollout.result.tokens
    return batcher, drawn


def count(model: Any, **sizes: Any) -> dict[str, Any]:
    """Tokens and floating-point operations of the workload, with and without the prefix cache."""
    row: dict[str, Any] = {}
    said = []
    for name, reuse in (("shared", True), ("alone", False)):
        with FlopCounterMode(display=False) as counter:
            batcher, drawn = converse(model, reuse=reuse, **sizes)
        said.append(drawn)
        row[f"{name}_flops"] = int(counter.get_total_flops())
        row[f"{name}_reused"] = batcher.cache.reused_tokens
        row[f"{name}_computed"] = batcher.cache.computed_tokens
        row[f"{name}_b_eff"] = batcher.tracker.snapshot().total_effective_rollout_cost
        row["tokens"] = batcher.counts["prompt_tokens"] + batcher.counts["generated_tokens"]
    row["reuse"] = row["shared_reused"] / (row["shared_reused"] + row["shared_computed"])
    row["fewer_flops"] = row["alone_flops"] / row["shared_flops"]
    row["same_tokens"] = said[0] == said[1]
    return row


def clock(model: Any, **sizes: Any) -> dict[str, Any]:
    """Seconds of the workload, with and without the prefix cache."""
    row: dict[str, Any] = {}
    converse(model, reuse=True, **{**sizes, "turns": 1})  # Warms up.
    for name, reuse in (("shared", True), ("alone", False)):
        wall, own = time.perf_counter(), time.process_time()
        batcher, _ = converse(model, reuse=reuse, **sizes)
        row[f"{name}_wall"] = time.perf_counter() - wall
        row[f"{name}_seconds"] = own = time.process_time() - own
        tokens = batcher.counts["prompt_tokens"] + batcher.counts["generated_tokens"]
        row[f"{name}_tokens_per_second"] = tokens / own
    row["faster"] = row["alone_seconds"] / row["shared_seconds"]
    row["faster_wall"] = row["alone_wall"] / row["shared_wall"]
    return row


def against_generate(
    model: Any, *, prompts: int, shared: int, own: int, new: int
) -> dict[str, Any]:
    """Seconds of prompts of ``shared + own`` tokens, by the engine and by ``generate``."""
    draw = random.Random(0)
    stem = [draw.randrange(100, 20_000) for _ in range(shared)]
    given = [stem + [draw.randrange(100, 20_000) for _ in range(own)] for _ in range(prompts)]

    def library(given: list[list[int]], new: int) -> list[list[int]]:
        model.model.set_attn_implementation("sdpa")
        ids = torch.tensor(given)
        lengths = {"max_new_tokens": new, "min_new_tokens": new}
        mask = torch.ones_like(ids)
        made = model.model.generate(ids, attention_mask=mask, do_sample=False, **lengths)
        return made[:, ids.shape[1] :].tolist()

    def engine(given: list[list[int]], new: int) -> list[list[int]]:
        batcher = _batcher(type(model)(model.model), True)
        sampling = SamplingParams(max_new_tokens=new, temperature=0.0)
        for index, tokens in enumerate(given):
            request = RolloutRequest(str(index), tokens, sampling=sampling, timeout=1e9)
            batcher.submit(Rollout(request, tuple(tokens), seed=0))
        drawn: dict[int, list[int]] = {}
        while batcher.busy:
            for rollout in batcher.step():
                if rollout.result is not None:
                    drawn[int(rollout.request_id)] = rollout.result.tokens
        return [drawn[index] for index in range(len(given))]

    row: dict[str, Any] = {}
    said = []
    for name, way in (("generate", library), ("engine", engine)):
        way([tokens[:8] for tokens in given[:2]], 2)  # Warms up.
        wall, own_seconds = time.perf_counter(), time.process_time()
        said.append(way(given, new))
        row[f"{name}_wall"] = time.perf_counter() - wall
        row[f"{name}_seconds"] = time.process_time() - own_seconds
    row["faster"] = row["generate_seconds"] / row["engine_seconds"]
    return {**row, "same_tokens": said[0] == said[1]}


def run(out: Path, quick: bool) -> None:
    """Measure all sizes that are not in ``out`` yet."""
    rows = Rows(out / "kv_sharing.jsonl", ("model", "turns", "rollouts", "seed"))
    torch.set_num_threads(1)
    workloads = [(10, 4), (10, 1), (5, 1), (20, 4)]
    # The first seed of everything comes first, so that a run that is stopped has a whole picture.
    plan = []
    for seed in range(1 if quick else 3):
        plan += [
            ("4 layers of 256", turns, rollouts, seed)
            for turns, rollouts in ([(5, 1)] if quick else workloads)
        ]
        if seed == 0 and not quick:
            plan.append(("SmolLM2-135M", 10, 1, seed))
    for name, turns, rollouts, seed in plan:
        sizes = {"turns": turns, "rollouts": rollouts, "seed": seed}
        if rows.has(model=name, **sizes):
            continue
        model = _model(name)
        if isinstance(model, str):
            print(f"{name} is left out: {model}")
            continue
        row = {"model": name, **sizes, **count(model, **sizes), **clock(model, **sizes)}
        rows.add({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    columns = (
        *("model", "turns", "rollouts", "seed", "reuse", "fewer_flops", "faster"),
        *("shared_tokens_per_second", "alone_tokens_per_second", "same_tokens"),
    )
    lines = [{column: str(row[column]) for column in columns} for row in rows.rows]
    show("The same work with a shared prefix cache, and without", lines)
    model = "quick runs do not" if quick else _model("SmolLM2-135M")
    if isinstance(model, str):
        print(f"generate is left out: {model}")
        return
    rows = Rows(out / "kv_generate.jsonl", ("prompts", "shared", "own", "new"))
    for prompts, shared, own in ((8, 0, 60), (8, 200, 10), (32, 200, 10)):
        sizes = {"prompts": prompts, "shared": shared, "own": own, "new": 64}
        if not rows.has(**sizes):
            row = {**sizes, **against_generate(model, **sizes)}
            rows.add({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    columns = ("prompts", "shared", "own", "new", "generate_seconds", "engine_seconds", "faster")
    lines = [{name: str(row[name]) for name in (*columns, "same_tokens")} for row in rows.rows]
    show("The engine, and batched generate of transformers", lines)


def _batcher(model: Any, reuse: bool) -> Batcher:
    config = ExecutionConfig(enable_prefix_cache=reuse, timeout=1e6)
    return Batcher(model, config, BandwidthEfficiencyTracker())


def _model(name: str) -> Any:
    """The model of this name, or why there is none."""
    if name != "SmolLM2-135M":
        return TinyTransformer(MIDDLE, device="cpu")
    try:
        from echoic.agents.backbones import smollm2
        from echoic.agents.llm.transformers import TransformersModel
    except ImportError as error:
        return str(error)
    return smollm2.available() or TransformersModel(smollm2.load("cpu")[0])
