"""Surprise replay at work: an agent whose plans change twice, and what it replays.

A walk through plans of 64 dimensions has three phases; each new one surprises until the mean of
plans has followed. Drawn into one picture: what is hot and what cold while experiences age, from
which phase batches come, as how many equally likely experiences a draw counts at each temperature,
and importance weights.

It leaves out an environment and a policy: plans, rewards and states are made up. Run it with
``python examples/prioritized_replay_demo.py --out replay.png``; it needs matplotlib.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from echoic.agents.replay import PrioritizedReplayBuffer, ReplayConfig

DIMS = 64
PHASES = 3
TEMPERATURES = (0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Result:
    """What the demo has seen."""

    # Hot and cold experiences after each update.
    hot: list[int]
    cold: list[int]
    # Which share of each batch is from the newest phase, and which share of the buffer is.
    newest_drawn: list[float]
    newest_there: list[float]
    # The effective sample size as a share of all experiences, by temperature.
    effective: dict[float, float]
    weights: np.ndarray[Any, Any]
    bytes_per_item: float


def simulate(updates: int = 300, seed: int = 0) -> Result:
    """Experiences of three phases, with an update of the learner after every 20."""
    rng = np.random.default_rng(seed)
    config = ReplayConfig(
        hot_buffer_size=4000,
        cold_buffer_size=1500,
        age_threshold=updates // 6,
        max_replay_age=updates,
        min_experiences=100,
        ema_decay=0.999,
        seed=seed,
    )
    buffer = PrioritizedReplayBuffer(config, DIMS)
    centres = rng.normal(size=(PHASES, DIMS))
    hot, cold, drawn, there = [], [], [], []
    counts = np.zeros(PHASES)
    weights = np.ones(1)
    for update in range(updates):
        phase = update * PHASES // updates
        plans = centres[phase] + 0.5 * rng.normal(size=(20, DIMS))
        states = rng.normal(size=(20, 4))
        rewards = (rng.random(20) < 0.05).astype(float)
        phases = np.full(20, phase)
        buffer.add_batch(
            states,
            plans,
            phases,
            rewards,
            states,
            np.zeros(20, bool),
            policy_versions=[update] * 20,
        )
        counts[phase] += 20
        if buffer.ready:
            batch = buffer.sample_columns(256)
            drawn.append(float((batch["action"] == phase).mean()))
            there.append(float(counts[phase] / counts.sum()))
            weights = batch["weight"]
        buffer.update_experience_ages()
        stats = buffer.get_buffer_statistics()
        hot.append(stats["hot_size"])
        cold.append(stats["cold_size"])
    effective = {
        temperature: buffer.effective_sample_size(temperature)["total"] / len(buffer)
        for temperature in TEMPERATURES
    }
    return Result(hot, cold, drawn, there, effective, weights, stats["bytes_per_item"])


def draw(result: Result, path: Path) -> None:
    """Puts it all into one picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    sizes, shares, effective, weights = figure.subplots(2, 2).flat
    sizes.stackplot(range(len(result.hot)), result.hot, result.cold, labels=["hot", "cold"])
    sizes.set(title="Experiences", xlabel="updates of the learner")
    sizes.legend(loc="upper left")
    shares.plot(result.newest_drawn, label="drawn")
    shares.plot(result.newest_there, label="added so far")
    shares.set(title="Share of the newest phase", xlabel="batches", ylim=(0, 1.05))
    shares.legend()
    effective.plot(list(result.effective), list(result.effective.values()), marker="o")
    effective.axhline(0.1, linestyle=":", color="gray")
    effective.set(title="Effective sample size / N", xlabel="temperature", ylim=(0, 1))
    weights.hist(result.weights, bins=30)
    weights.set(title="Importance weights of the last batch", xlabel="weight")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Runs the demo from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("prioritized_replay.png"))
    found = parser.parse_args()
    result = simulate(found.updates, found.seed)
    draw(result, found.out)
    print(
        f"{result.hot[-1]} hot and {result.cold[-1]} cold experiences, "
        f"{result.bytes_per_item:.0f} bytes each"
    )
    for temperature, share in result.effective.items():
        print(
            f"temperature {temperature:g}: a draw is as one of {100 * share:.0f} % of them, evenly"
        )
    print(f"{found.out} shows the rest")


if __name__ == "__main__":
    main()
