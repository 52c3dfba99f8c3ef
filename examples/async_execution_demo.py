"""Agents that share a prompt, on one engine: watch them come, run, share, and go.

Run ``python examples/async_execution_demo.py``, from any folder; ``--model smollm2``
takes a real language model instead of one with random weights (see
``echoic.agents.backbones.smollm2``). Twelve agents have a conversation of three turns with an
environment. All have one system prompt, and each turn's prompt is all that came before. Eight run
at a time. After a while new weights come, in the middle of everything.

The table shows of each agent what the cache had of its latest prompt, and tokens as they are drawn,
with the version of the weights that drew them by their colour. At the end the same work is done
without the prefix cache, for comparison.

Left out, to stay readable: an environment that says something, and a learner that made the weights.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from echoic.agents.llm import (
    AsyncExecutionEngine,
    ExecutionConfig,
    SamplingParams,
    TinyConfig,
    TinyTransformer,
)
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

AGENTS, TURNS, SLOTS = 12, 3, 8
COLOURS = ("cyan", "yellow")


@dataclass
class Agent:
    """What is shown of one agent."""

    state: str = "waits"
    turn: int = 0
    prompt: int = 0
    reused: int = 0
    tokens: list[tuple[int, int]] = field(default_factory=list)


def load(name: str) -> tuple[Any, Any]:
    """The model, and how a token is shown."""
    if name == "smollm2":
        from echoic.agents.backbones import smollm2

        model, tokenizer = smollm2.load("cpu")
        return model, lambda token: tokenizer.decode([token]).replace("\n", " ")
    config = TinyConfig(vocab_size=512, dim=192, layers=4, heads=4, kv_heads=2, hidden=512)
    return TinyTransformer(config, device="cpu"), lambda token: f"{token} "


def show(engine: AsyncExecutionEngine, agents: list[Agent], spell: Any) -> Group:
    """Draw all agents and the engine's numbers."""
    table = Table("agent", "state", "turn", "prompt", "reused", "tokens", expand=True)
    for index, agent in enumerate(agents):
        text = Text(no_wrap=True, overflow="ellipsis")
        for token, version in agent.tokens[-14:]:
            text.append(spell(token), COLOURS[version % len(COLOURS)])
        numbers = (str(agent.turn), str(agent.prompt), str(agent.reused))
        table.add_row(str(index), agent.state, *numbers, text)
    metrics = engine.get_performance_metrics()
    cache = metrics["cache"]
    line = (
        f"version {metrics['version']}   active {metrics['active']}   "
        f"tokens reused {cache['reused_tokens']} of "
        f"{cache['reused_tokens'] + cache['computed_tokens']} ({cache['hit_rate']:.0%})   "
        f"pages free {cache['free']}, shared {cache['cache_size']}"
    )
    return Group(table, Text(line))


async def talk(engine: AsyncExecutionEngine, agent: Agent, system: list[int], seed: int) -> None:
    """One agent's conversation."""
    draw = random.Random(seed)
    history = list(system)
    for turn in range(TURNS):
        history += [draw.randrange(20, 500) for _ in range(12)]
        agent.state, agent.turn, agent.prompt = "waits", turn + 1, len(history)
        sampling = SamplingParams(max_new_tokens=10, temperature=0.8, seed=100 * seed + turn)
        name = await engine.submit_rollout(history, sampling=sampling)
        async for token in engine.stream(name):
            agent.state = "runs"
            agent.tokens.append((token.token, token.version))
        result = await engine.get_result(name)
        if not result.success:
            raise RuntimeError(result.error)
        agent.reused = result.reused_tokens
        history += result.tokens
    agent.state = "done"


async def play(
    model: Any, spell: Any, console: Console, *, reuse: bool, quick: bool
) -> dict[str, Any]:
    """Let all agents talk; returns the engine's numbers."""
    live, system = (False, 20) if quick else (True, 160)
    config = ExecutionConfig(
        max_concurrent_rollouts=SLOTS, token_budget=128, timeout=300.0, enable_prefix_cache=reuse
    )
    agents = [Agent() for _ in range(AGENTS)]
    prompt = [random.Random(0).randrange(20, 500) for _ in range(system)]
    async with AsyncExecutionEngine(config, model, "cpu", seed=0) as engine:
        start = time.perf_counter()
        talks = [
            asyncio.create_task(talk(engine, agent, prompt, seed))
            for seed, agent in enumerate(agents)
        ]
        with Live(console=console, auto_refresh=False, transient=True) as view:
            while not all(task.done() for task in talks):
                await asyncio.sleep(0.05)
                half = sum(agent.turn for agent in agents) >= AGENTS * TURNS // 2
                if engine.version == 0 and half:
                    # A learner's update: here a small step in a random direction.
                    await engine.update_weights(nudge)
                if live:
                    view.update(show(engine, agents, spell), refresh=True)
        await asyncio.gather(*talks)
        seconds = time.perf_counter() - start
        metrics = engine.get_performance_metrics()
        console.print(show(engine, agents, spell))
        tokens = metrics["prompt_tokens"] + metrics["generated_tokens"]
        return {**metrics, "seconds": seconds, "effective": tokens / seconds}


async def warm_up(model: Any) -> None:
    """Run a rollout, so that nothing that is timed is the first of its kind."""
    async with AsyncExecutionEngine(ExecutionConfig(timeout=300.0), model, "cpu") as engine:
        await engine.generate(list(range(20, 60)), SamplingParams(max_new_tokens=4))


def nudge(model: Any) -> None:
    """Change weights a little."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.add_(1e-3 * torch.randn(parameter.shape, generator=generator))


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the demonstration; returns the numbers of both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="tiny")
    parser.add_argument("--quick", action="store_true", help="no live view, short prompts")
    options = parser.parse_args(arguments)
    console = Console()
    model, spell = load(options.model)
    asyncio.run(warm_up(model))
    numbers = {}
    for reuse in (True, False):
        console.rule("with the prefix cache" if reuse else "the same work without it")
        numbers[reuse] = asyncio.run(play(model, spell, console, reuse=reuse, quick=options.quick))
    table = Table("", "seconds", "tokens computed", "tokens reused", "effective tokens/s")
    for reuse, row in numbers.items():
        cache = row["cache"]
        table.add_row(
            "shared" if reuse else "alone",
            f"{row['seconds']:.1f}",
            str(cache["computed_tokens"]),
            str(cache["reused_tokens"]),
            f"{row['effective']:.0f}",
        )
    console.print(table)
    return {"shared": numbers[True], "alone": numbers[False]}


if __name__ == "__main__":
    main()
