"""A process that collects transitions of CartPole with torchrl into a table of a server."""

from __future__ import annotations

import sys

import echoic
from echoic.integrations.torchrl import TensorDictReplayBuffer
from torchrl.collectors import Collector
from torchrl.envs.libs.gym import GymEnv


def main(address: str, frames: int) -> None:
    """Collect, and wait until all transitions are in the table."""
    with echoic.connect(address) as connection:
        buffer = TensorDictReplayBuffer(connection.table("replay"))
        env = GymEnv("CartPole-v1", categorical_action_encoding=True)
        collector = Collector(
            env, None, frames_per_batch=50, total_frames=frames, replay_buffer=buffer
        )
        for _ in collector:
            pass
        collector.shutdown()
        connection.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
