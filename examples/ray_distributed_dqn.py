"""DQN on a Ray cluster that loses a shard and a worker while it learns, and learns anyway.

Run ``python -m examples.ray_distributed_dqn`` from the root of the project, with Ray, torch and
Gymnasium installed. It starts Ray on this machine by itself. A `ReplayCluster` holds the
transitions on two shards, `Collectors` play CartPole in two workers, and this process learns and
publishes weights. When it has learned for a while it kills a shard's process, and later a worker's,
and says what can be seen of that: Ray restarts both, the shard has all its items again, and the
target is reached. The exit status is 0 only then.

Left out, to stay readable: more machines (`ray.init(address=...)` in place of the one here, and a
directory that all of them see), priorities, frames. What a limiter does is in `dqn`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import gymnasium
import numpy as np
import ray
import torch
from echoic import limiters, selectors
from echoic.integrations.ray import Collectors, ReplayCluster
from echoic.weights import WeightStore
from rich.console import Console
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = 195.0
MOST_UPDATES = 20_000
EPISODES = 20
BATCH = 128
# Each transition is learned from so often on average: a batch for each 8 steps.
SAMPLES_PER_INSERT = 16.0
MIN_SIZE = 500
DISCOUNT = 0.99
# Makes returns of about 1, which a new network can reach in a few steps of Adam.
REWARD_SCALE = 0.02
FOLLOW = 0.01
LAST_EPSILON, EPSILON_UPDATES = 0.05, 1_000
PUBLISH_EVERY, LOOK_EVERY = 25, 250
KILL_SHARD_AFTER, KILL_WORKER_AFTER = 500, 1_000

STEP = {
    "observations": np.zeros(4, np.float32),
    "actions": np.int64(0),
    "rewards": np.float32(0),
    "next_observations": np.zeros(4, np.float32),
    "terminated": np.bool_(False),
    "truncated": np.bool_(False),
}


def make_tables() -> list[echoic.Table]:
    """Make the tables of one shard; with a journal, so that what is acknowledged is kept."""
    # Workers may be far ahead. A restarted shard has its items and counts samples from 0: with
    # less room it would take nothing new, and workers would wait for it, and the others for them.
    limiter = limiters.SampleToInsertRatio(
        SAMPLES_PER_INSERT, min_size=MIN_SIZE, error_buffer=(-5_000.0, 80_000.0)
    )
    return [
        echoic.Table(
            "replay",
            STEP,
            sampler=selectors.Uniform(),
            remover=selectors.Fifo(),
            limiter=limiter,
            capacity=100_000,
            durability="async",
        )
    ]


def act(weights: Any, observations: Any, rng: np.random.Generator) -> Any:
    """Act in a worker: the best action, or now and then any."""
    values = observations
    for weight, bias in weights["layers"][:-1]:
        values = np.maximum(values @ weight.T + bias, 0.0)
    weight, bias = weights["layers"][-1]
    best = (values @ weight.T + bias).argmax(axis=1)
    explores = rng.random(len(best)) < weights["epsilon"]
    return np.where(explores, rng.integers(0, 2, len(best)), best)


class Learner:
    """A network of action values, its target network, and the step from a batch to better ones."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.network, self.target = self._made(), self._made()
        self.target.load_state_dict(self.network.state_dict())
        self._adam = torch.optim.Adam(self.network.parameters(), 1e-3)
        self.updates = 0

    @staticmethod
    def _made() -> Any:
        return nn.Sequential(
            nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    def learn(self, data: Any) -> None:
        """Take one step of double Q-learning."""
        batch = {name: torch.from_numpy(np.array(column)) for name, column in data.items()}
        with torch.no_grad():
            best = self.network(batch["next_observations"]).argmax(1, keepdim=True)
            following = self.target(batch["next_observations"]).gather(1, best).squeeze(1)
            discount = DISCOUNT * (~batch["terminated"]).float()
            aim = REWARD_SCALE * batch["rewards"] + discount * following
        values = self.network(batch["observations"]).gather(1, batch["actions"][:, None])
        loss = nn.functional.mse_loss(values.squeeze(1), aim)
        self._adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 10.0)
        self._adam.step()
        with torch.no_grad():
            pairs = zip(self.target.parameters(), self.network.parameters(), strict=True)
            for old, new in pairs:
                old.lerp_(new, FOLLOW)
        self.updates += 1

    def weights(self) -> dict[str, Any]:
        """Return what workers act by."""
        layers = [one for one in self.network if isinstance(one, nn.Linear)]
        share = max(LAST_EPSILON, 1.0 - self.updates / EPSILON_UPDATES)
        return {
            "layers": [
                (one.weight.detach().numpy().copy(), one.bias.detach().numpy().copy())
                for one in layers
            ],
            "epsilon": np.float32(share),
        }

    def evaluate(self) -> float:
        """Play whole episodes without exploring; their mean return."""
        weights = {**self.weights(), "epsilon": np.float32(0)}
        env, rng, total = gymnasium.make("CartPole-v1"), np.random.default_rng(0), 0.0
        for episode in range(EPISODES):
            seen, over = env.reset(seed=episode)[0], False
            while not over:
                seen, reward, fell, late, _ = env.step(int(act(weights, seen[None], rng)[0]))
                total += float(reward)
                over = fell or late
        env.close()
        return total / EPISODES


class Show:
    """What is killed, when, and what can be seen of it."""

    def __init__(self, cluster: ReplayCluster, client: Any, collectors: Collectors) -> None:
        self._cluster, self._client, self._collectors = cluster, client, collectors
        self._console = Console(soft_wrap=True, highlight=False)
        self._began = time.monotonic()
        self._awaited: dict[str, tuple[float, Callable[[], str | None]]] = {}
        self._done: set[str] = set()
        self.ok = True

    def say(self, text: str, style: str = "") -> None:
        """Print a line with the seconds that have passed."""
        self._console.print(f"{time.monotonic() - self._began:6.1f} s  {text}", style=style)

    def once(self, what: str, kill: Callable[[], Callable[[], str | None]]) -> None:
        """Kill something, the first time that this is called for it."""
        if what not in self._done:
            self._done.add(what)
            self._awaited[what] = time.monotonic(), kill()

    def look(self) -> None:
        """Say so when what was killed is there again."""
        for what, (since, is_back) in list(self._awaited.items()):
            news = is_back()
            if news is not None:
                del self._awaited[what]
                self.say(f"{news}, after {time.monotonic() - since:.1f} s.", "bold green")

    @property
    def over(self) -> bool:
        """Whether both were killed and both are back."""
        return len(self._done) == 2 and not self._awaited

    def kill_shard(self) -> Callable[[], str | None]:
        """Kill the process of shard 1 as it is, and return a check whether it is back."""
        pid = self._cluster.processes()[1]["pid"]
        held = self._client.table("replay").stats().shards[1].size
        os.kill(pid, signal.SIGKILL)
        self.say(f"Shard 1 (process {pid}) is killed; it held {held:,d} items.", "bold red")

        def is_back() -> str | None:
            shard = self._client.table("replay").stats().shards[1]
            if shard is None or not self._client.shards_there[1]:
                return None
            again = self._cluster.processes()[1]["pid"]
            if again == pid:
                return None
            self.ok = self.ok and shard.size >= held
            return f"Shard 1 is back as process {again} with {shard.size:,d} items"

        return is_back

    def kill_worker(self) -> Callable[[], str | None]:
        """Kill the process of worker 0 as it is, and return a check whether it is back."""
        pid = self._collectors.stats()["workers"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        self.say(f"Worker 0 (process {pid}) is killed, in the middle of a rollout.", "bold red")

        def is_back() -> str | None:
            stats = self._collectors.stats()["workers"][0]
            if not stats["there"] or stats["pid"] == pid or not stats["items"]:
                return None
            items = f"{stats['items']:,d} items"
            return f"Worker 0 is back as process {stats['pid']} and has inserted {items}"

        return is_back


def train(options: argparse.Namespace, directory: str) -> bool:
    """Learn until the target is reached and both victims are back."""
    learner, store = Learner(options.seed), WeightStore()
    host, token = ray.util.get_node_ip_address(), os.urandom(16).hex()
    small = {"num_cpus": 0.5}
    with (
        echoic.Server(store, listen=f"tcp://{host}:0", token=token) as server,
        ReplayCluster(make_tables, 2, resources=small, directory=directory) as cluster,
        cluster.client() as client,
        Collectors(
            "CartPole-v1",
            act,
            cluster.client(),
            "replay",
            num_workers=2,
            envs_per_worker=4,
            num_steps=16,
            weights=server.address,
            resources=small,
            seed=options.seed,
            token=token,
        ) as collectors,
    ):
        show = Show(cluster, client, collectors)
        show.say(f"{cluster} at {', '.join(cluster.addresses)}; {collectors}; weights at {host}.")
        store.publish(learner.weights(), version=0)
        best = 0.0
        while learner.updates < options.updates:
            learner.learn(client.table("replay").sample(BATCH, timeout=60.0).data)
            if learner.updates % PUBLISH_EVERY == 0:
                store.publish(learner.weights(), version=learner.updates)
                collectors.check()
                show.look()
            if learner.updates >= KILL_SHARD_AFTER:
                show.once("shard", show.kill_shard)
            if learner.updates >= KILL_WORKER_AFTER:
                show.once("worker", show.kill_worker)
            if learner.updates % LOOK_EVERY == 0:
                best = learner.evaluate()
                stats = collectors.stats()
                shards = client.table("replay").stats().shards
                sizes = " + ".join("away" if one is None else f"{one.size:,d}" for one in shards)
                show.say(
                    f"{learner.updates:6,d} updates  {stats['steps']:7,d} steps  items {sizes}  "
                    f"return {best:5.1f} of {options.target:g}"
                )
                if best >= options.target and show.over:
                    break
        reached = best >= options.target and show.over and show.ok
        show.say(
            f"{'Reached' if reached else 'Missed'} the target of {options.target:g}: {EPISODES} "
            f"episodes without exploring have a mean return of {best:.1f} after "
            f"{learner.updates:,d} updates; {collectors.restarts} worker was restarted.",
            "bold",
        )
    return reached


def main() -> int:
    """Start Ray, learn, and end it."""
    parser = argparse.ArgumentParser(
        description="Learn CartPole by DQN on a Ray cluster while parts of it are killed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of the networks and the games")
    parser.add_argument("--target", type=float, default=TARGET, help="mean return to stop at")
    parser.add_argument("--updates", type=int, default=MOST_UPDATES, help="to make at most")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Shards and workers find `echoic` and this module where this process does.
    paths = dict.fromkeys(str(Path(path).resolve()) for path in (".", *sys.path))
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    # A Ray of its own, whatever else runs on this machine.
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory(prefix="echoic-dqn-") as directory:
            return 0 if train(options, directory) else 1
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
