"""A worker: plays CartPole with the latest policy and sends rollouts, until told to stop.

It knows neither the server nor the learner: it has a function that sends a tree and a
source of weights. `crew` runs `work` in threads, with the `add` of the server, and
`work_in_process` in processes, with the `add` of a client. A process imports this module
and what it imports; what only the learner needs is not among that, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium

import echoic
from echoic.demo import rollout
from echoic.demo.policy import Actor, ActorCritic
from echoic.echo import TrajectoryAccumulator

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from echoic.demo.weights import WeightsSource

ENVIRONMENT = "CartPole-v1"
# The smallest window there is, room for two rollouts: more would let a worker run further ahead.
WINDOW_BYTES = 1
# How many seconds a worker looks for a learner, at first and when the connection is lost. The
# learner's end is the workers' end, be it done or killed, so this is also how long they outlive it.
CONNECT_TIMEOUT = 3.0
DEADLINE = 0.5

Send = Callable[[Any], object]


def work(number: int, model: ActorCritic, weights: WeightsSource, send: Send, seed: int) -> int:
    """Play and send until `send` raises `ClosedError`; return how many it took.

    While the store is full, `send` waits. That is all the flow control there is: the
    workers never run further ahead of the learner than the store is large.
    """
    rng = random.Random(f"worker {number} of {seed}")  # noqa: S311 - a game has no secrets
    env = gymnasium.make(ENVIRONMENT)
    obs, _ = env.reset(seed=rng.getrandbits(31))
    episode_return = 0.0
    sent = 0
    trajectory = TrajectoryAccumulator(rollout.EXAMPLE)
    try:
        while True:
            version = weights.latest()
            actor = Actor(model, version.params)
            trajectory.add("version", version.number)
            trajectory.add("worker", number)
            for _ in range(rollout.LENGTH):
                action, log_prob = actor.sample(obs, rng)
                next_obs, reward, terminated, truncated, _ = env.step(action)
                episode_return += float(reward)
                over = terminated or truncated
                trajectory.add(
                    "step",
                    {
                        "obs": obs,
                        "action": action,
                        "log_prob": log_prob,
                        "reward": float(reward),
                        "next_obs": next_obs,
                        "terminated": terminated,
                        "truncated": truncated,
                        "episode_return": episode_return if over else math.nan,
                    },
                )
                obs = next_obs
                if over:
                    obs, _ = env.reset()
                    episode_return = 0.0
            send(trajectory.build())
            sent += 1
    except echoic.ClosedError:
        return sent
    finally:
        env.close()


def work_in_process(  # noqa: PLR0913, PLR0917 - all that passes from one process to the other
    number: int,
    model: ActorCritic,
    weights: WeightsSource,
    address: str,
    seed: int,
    last_words: Connection,
) -> None:
    """Work through a connection of its own, until there is no learner at its other end.

    Its last words are how many rollouts the server acknowledged, and why it ended.
    """
    delivered, why = 0, ""
    try:
        client = echoic.connect(
            address,
            rollout.EXAMPLE,
            window_bytes=WINDOW_BYTES,
            connect_timeout=CONNECT_TIMEOUT,
            deadline=DEADLINE,
        )
        try:
            work(number, model, weights, client.add, seed)
        finally:
            delivered = int(client.stats()["samples_acked"])
    except (echoic.DisconnectedError, echoic.RefusedError) as error:
        # Every run ends so. Whether it is too early, the crew knows.
        why = str(error)
    # A learner that was killed listens no more.
    with contextlib.suppress(BrokenPipeError):
        last_words.send((delivered, why))
