"""How fast surprise replay is, what an experience costs, and as how many it draws.

Three things, on this machine. *Speed*: batched adds, while the buffer fills and when every add lets
another go, and draws from a full one. *Bytes* for each experience. *Effective sample sizes* over
temperatures, of random plans behind a layer norm and of rewards that are rare and large. Each row
of the file is one measurement; a run that was cut off goes on where it stopped. Adds are also told
for each second of the processor, since a machine that is shared gives only some of its time.
"""

from __future__ import annotations

import itertools
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from echoic.agents.replay import PrioritizedReplayBuffer, ReplayConfig

from experiments import _seeds
from experiments._seeds import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAME = "surprise_replay"
BATCH = 256
TEMPERATURES = (0.1, 0.25, 0.5, 1.0, 2.0)
SEEDS = range(3)


def normed(rng: np.random.Generator, rows: int, dims: int) -> np.ndarray[Any, Any]:
    """Plans as a layer norm leaves them."""
    plans = rng.standard_normal((rows, dims), dtype=np.float32)
    plans -= plans.mean(-1, keepdims=True)
    plans /= plans.std(-1, keepdims=True)
    return plans


def blocks(rows: int, dims: int, width: int, seed: int) -> Callable[[], Iterator[tuple[Any, ...]]]:
    """Batches of experiences, made before the clock runs."""
    rng = np.random.default_rng(seed)
    size = min(rows, 20_000)
    plans, states = normed(rng, size, dims), rng.standard_normal((size, width), dtype=np.float32)
    rewards = rng.standard_normal(size, dtype=np.float32)
    actions, dones = rng.integers(0, 4, size), np.zeros(size, bool)
    batch = (states, plans, actions, rewards, states, dones)
    return lambda: itertools.repeat(batch, rows // size)


def speed(items: int, dims: int, width: int, seed: int) -> dict[str, float]:
    """Adds and draws of a buffer of so many experiences."""
    buffer = PrioritizedReplayBuffer(
        ReplayConfig(seed=seed, hot_buffer_size=items, max_experiences=items), dims
    )
    make = blocks(items, dims, width, seed)

    def add() -> tuple[float, float]:
        begin, busy = time.perf_counter(), time.process_time()
        for batch in make():
            buffer.add_batch(*batch)
        return items / (time.perf_counter() - begin), items / (time.process_time() - busy)

    filling, filling_busy = add()
    if len(buffer) != items:
        raise AssertionError(f"expected {items} experiences, got {len(buffer)}")
    buffer.sample_columns(BATCH)
    full, full_busy = add()
    stats = buffer.get_buffer_statistics()

    def typical(draw: Callable[[], Any]) -> tuple[float, float]:
        times = []
        for _ in range(300):
            begin = time.perf_counter()
            draw()
            times.append(time.perf_counter() - begin)
        times.sort()
        return statistics.median(times) * 1e3, times[int(0.99 * len(times))] * 1e3

    columns, columns_tail = typical(lambda: buffer.sample_columns(BATCH))
    objects, objects_tail = typical(lambda: buffer.sample_batch(BATCH))
    begin = time.perf_counter()
    buffer.sample_columns(BATCH, 0.9)
    other = (time.perf_counter() - begin) * 1e3
    begin = time.perf_counter()
    buffer.update_experience_ages()
    aged = (time.perf_counter() - begin) * 1e3
    return {
        "adds_per_s_filling": filling,
        "adds_per_s_full": full,
        "adds_per_cpu_s_filling": filling_busy,
        "adds_per_cpu_s_full": full_busy,
        "sample_columns_ms": columns,
        "sample_columns_p99_ms": columns_tail,
        "sample_batch_ms": objects,
        "sample_batch_p99_ms": objects_tail,
        "new_temperature_ms": other,
        "update_ms": aged,
        "row_bytes": stats["row_bytes"],
        "bytes_per_item": stats["bytes_per_item"],
    }


def sizes(items: int, rewards: str, scale: Any, seed: int) -> dict[str, float]:
    """Effective sample sizes as shares of all, by temperature, within a stratum of random plans."""
    rng = np.random.default_rng(seed)
    buffer = PrioritizedReplayBuffer(ReplayConfig(seed=seed, score_scale=scale))
    numbers = {
        "none": np.zeros(items),
        "normal": rng.standard_normal(items),
        "rare": (rng.random(items) < 0.01) * 100.0,
    }[rewards]
    state = np.zeros((items, 4), np.float32)
    flags = np.zeros(items, bool)
    buffer.add_batch(state, normed(rng, items, 512), np.zeros(items, int), numbers, state, flags)
    return {f"ess_at_{t:g}": buffer.effective_sample_size(t)["hot"] / items for t in TEMPERATURES}


def run(out: Path, quick: bool) -> None:
    """Measures what is not in ``out/surprise_replay.jsonl`` yet, and prints all of it."""
    items = 20_000 if quick else 1_000_000
    jobs: list[tuple[dict[str, Any], Callable[[], dict[str, float]]]] = []
    for (dims, width), seed in itertools.product([(16, 8), (512, 64)], SEEDS):
        count = min(items, 200_000) if dims > 16 else items
        job = {"table": "speed", "items": count, "dims": dims, "state": width, "seed": seed}
        jobs.append((job, partial(speed, count, dims, width, seed)))
    many = 1000 if quick else 10_000
    for scale, rewards, seed in itertools.product(
        ("zscore", "mean", "sum"), ("none", "normal", "rare"), SEEDS
    ):
        job = {"table": "sizes", "items": many, "rewards": rewards, "scale": scale, "seed": seed}
        jobs.append((job, partial(sizes, many, rewards, scale, seed)))
    keys = ("table", "items", "dims", "state", "rewards", "scale", "seed")
    rows = Rows(out / f"{NAME}.jsonl", keys)
    for job, measure in jobs:
        if not rows.has(**job):
            rows.add({**job, **measure()})
    show([row for job, _ in jobs for row in rows.of(**job)])


def show(rows: list[dict[str, Any]]) -> None:
    """Prints medians over seeds."""
    for name, keys in (("speed", ("items", "dims", "state")), ("sizes", ("scale", "rewards"))):
        own = [row for row in rows if row["table"] == name]
        numbers = [key for key in own[0] if key not in {"table", "seed", "items", *keys}]
        lines = []
        for group in sorted({tuple(row[key] for key in keys) for row in own}, key=str):
            members = [row for row in own if tuple(row[key] for key in keys) == group]
            medians = {key: statistics.median(row[key] for row in members) for key in numbers}
            lines.append({**dict(zip(keys, map(str, group), strict=True)), **medians})
        _seeds.show(name, lines)
