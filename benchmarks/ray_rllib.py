"""What a driver of RLlib does with its replay buffer: Echoic's beside RLlib's own, in CPU time.

Run it by itself: ``python -m benchmarks.ray_rllib``. Both get the same episodes, and what is drawn
is looked at. Rounds of the two take turns, and the median of each is printed with the least and the
most, and with how many rounds there were. CPU time is the driver's, so a server's work would not be
in it: the table is in the process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from echoic.integrations.ray import EchoicEpisodeReplayBuffer
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 4
LENGTH = 100
# What a driver adds at once: four environments, eight steps each.
PIECES, PIECE = 4, 8
# So often that an episode has to go in each round, when there is no room.
ADDS = 4
# In so many rounds of whole episodes the buffers are filled.
FILLS = 10
DRAW: dict[str, Any] = {"n_step": 1, "gamma": 0.99, "beta": 0.4, "sample_episodes": True}


def episodes(count: int, length: int) -> list[SingleAgentEpisode]:
    """Make episodes, each observation of which is the number of its step."""
    spaces = gymnasium.spaces.Box(0, 1e6, (WIDTH,), np.float32), gymnasium.spaces.Discrete(2)
    return [
        SingleAgentEpisode(
            observations=[np.full(WIDTH, step, np.float32) for step in range(length + 1)],
            observation_space=spaces[0],
            actions=[np.int64(step % 2) for step in range(length)],
            action_space=spaces[1],
            rewards=[float(step) for step in range(length)],
            terminated=True,
            len_lookback_buffer=0,
        ).to_numpy()
        for _ in range(count)
    ]


def check(drawn: list[SingleAgentEpisode], count: int) -> None:
    """Look whether what was drawn are steps that were added."""
    if len(drawn) != count:
        raise AssertionError(f"expected {count} steps, got {len(drawn)}")
    for one in drawn:
        first, last = one.get_observations(slice(0, 2))
        step = one.get_rewards(0)
        if not (first == step).all() or not (last == step + 1).all():
            raise AssertionError("a step came that nobody added")


def cost(work: Callable[[], object]) -> float:
    """Return how many milliseconds of CPU time something takes."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def draw(buffer: Any, count: int, random: np.random.Generator) -> float:
    """Return the cost of a draw and of the priorities that come back."""
    drawn: list[SingleAgentEpisode] = []
    took = cost(lambda: drawn.extend(buffer.sample(num_items=count, **DRAW)))
    check(drawn, count)
    priorities = random.random(count)
    return took + cost(lambda: buffer.update_priorities(priorities))


def main() -> None:
    """Measure, and print a line for each piece of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--capacity", type=int, default=50_000)
    chosen = parser.parse_args()
    buffers = {
        "echoic": EchoicEpisodeReplayBuffer(chosen.capacity, alpha=0.6, seed=1),
        "rllib": PrioritizedEpisodeReplayBuffer(chosen.capacity, alpha=0.6),
    }
    found: dict[str, dict[str, list[float]]] = {}

    def note(work: str, name: str, took: float) -> None:
        found.setdefault(work, {}).setdefault(name, []).append(took)

    whole = episodes(chosen.capacity // LENGTH // FILLS, LENGTH)
    for _ in range(FILLS):
        for name, buffer in buffers.items():
            steps = len(whole) * LENGTH / 1000
            note(
                "1,000 steps of whole episodes added",
                name,
                cost(lambda buffer=buffer: buffer.add(_renamed(whole))) / steps,
            )
    random = np.random.default_rng(2)
    for buffer in buffers.values():
        # The first draw imports.
        draw(buffer, 32, random)
    for _ in range(chosen.rounds):
        for count in (32, 256):
            for name, buffer in buffers.items():
                note(f"{count} steps drawn, priorities back", name, draw(buffer, count, random))
        pieces = [episodes(PIECES, PIECE) for _ in range(ADDS)]
        for name, buffer in buffers.items():
            took = cost(lambda buffer=buffer, pieces=pieces: [buffer.add(one) for one in pieces])
            note(f"{PIECES} pieces of {PIECE} steps added, full", name, took / ADDS)
    print(f"CPU ms: median (least to most), {chosen.capacity:,} steps")
    for work, both in found.items():
        ours, theirs = both["echoic"], both["rllib"]
        times = statistics.median(theirs) / statistics.median(ours)
        rounds = f"{len(ours):3} rounds"
        print(f"{work:38} {rounds}  echoic {_told(ours)}  rllib {_told(theirs)}  {times:5.1f} x")


def _renamed(whole: list[SingleAgentEpisode]) -> list[SingleAgentEpisode]:
    """Give episodes other names, so that they are others."""
    for one in whole:
        one.id_ = str(time.perf_counter_ns())
    return whole


def _told(values: list[float]) -> str:
    return f"{statistics.median(values):7.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
