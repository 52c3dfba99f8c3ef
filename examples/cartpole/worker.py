"""A worker: plays CartPole with the latest policy and sends rollouts, until told to stop.

It knows neither the server nor the learner: it has a function that sends a tree and a
source of weights. `Crew` runs workers in threads; another crew could run them in
processes, with the `send` of a client.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import echoic
import gymnasium

from examples.cartpole import rollout
from examples.cartpole.policy import Actor, ActorCritic

if TYPE_CHECKING:
    from examples.cartpole.weights import WeightsSource

ENVIRONMENT = "CartPole-v1"

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
    trajectory = echoic.TrajectoryAccumulator(rollout.EXAMPLE)
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


class Crew:
    """Workers in threads of this process, for as long as its `with` block runs.

    The block ends by closing the server, which is what stops the workers. A worker that
    fails closes it too, so that nobody waits for samples that will not come; its error
    is raised at the end of the block.
    """

    def __init__(
        self,
        size: int,
        model: ActorCritic,
        weights: WeightsSource,
        server: echoic.Server,
        seed: int,
    ) -> None:
        self._size = size
        self._model = model
        self._weights = weights
        self._server = server
        self._seed = seed
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="worker")
        self._working: list[Future[int]] = []
        #: Rollouts that the server took from all workers; known after the block.
        self.sent = 0

    def __enter__(self) -> None:
        for number in range(self._size):
            working = self._pool.submit(
                work,
                number,
                self._model,
                self._weights,
                self._server.submit,
                self._seed,
            )
            working.add_done_callback(lambda _: self._server.close())
            self._working.append(working)

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._pool.shutdown()
        self.sent = sum(working.result() for working in self._working)
