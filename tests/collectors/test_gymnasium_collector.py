"""Rollouts made by worker processes: what is in them, and what becomes of workers that fail."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.collectors.gymnasium import GymnasiumCollector
from echoic.errors import ClosedError, CollectorError, CollectorWarning, SpecError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers come by shared memory")

PATIENCE = 60.0


def counting(limit: int = 5, *, fail_at: int = -1, sleep: float = 0.0, tree: bool = False) -> Any:
    """A function that makes environments which count steps: odd episodes end by truncation.

    The class is made here so that workers get it by value, and import no module of tests.
    """

    def make() -> Any:
        import time

        import numpy as np

        class Space:
            def seed(self, seed: int) -> None:
                self.rng = np.random.default_rng(seed)

            def sample(self) -> Any:
                return self.rng.integers(0, 9)

        class Counting:
            action_space = Space()

            def __init__(self) -> None:
                self.episode, self.total = -1, 0

            def seen(self) -> Any:
                obs = np.array([self.episode, self.step_count, self.first], np.float32)
                return {"a": obs, "b": (np.uint8(self.step_count), obs)} if tree else obs

            def reset(self, seed: int | None = None) -> Any:
                if seed is not None:
                    self.first = seed % 1000
                self.episode += 1
                self.step_count = 0
                return self.seen(), {}

            def step(self, action: Any) -> Any:
                assert type(action) is int
                if self.total == fail_at:
                    raise ZeroDivisionError("the pole broke")
                time.sleep(sleep)
                self.total += 1
                self.step_count += 1
                over = self.step_count == limit
                odd = self.episode % 2 == 1
                return self.seen(), float(action), over and not odd, over and odd, {}

        return Counting()

    return make


def told(weights: Any, observations: Any, rng: Any) -> Any:
    """A policy that does what the weights say, and says what it saw."""
    import numpy as np

    actions = np.full(len(observations), weights, np.int64)
    return actions, {"values": observations[:, 1] * 2, "noise": rng.random(len(observations))}


told.__module__ = "__main__"  # sent by value


def receive(collector: GymnasiumCollector, count: int) -> list[dict[str, Any]]:
    return [collector.recv(PATIENCE) for _ in range(count)]


@pytest.fixture
def collect() -> Any:
    """Make collectors that are closed after the test, and whose workers are gone then."""
    made: list[GymnasiumCollector] = []

    def make(*arguments: Any, **options: Any) -> GymnasiumCollector:
        collector = GymnasiumCollector(*arguments, **{"timeout": PATIENCE, **options})
        made.append(collector)
        return collector

    yield make
    for collector in made:
        workers = list(collector._workers)
        collector.close()
        assert all(worker.process.poll() is not None for worker in workers)
        assert not collector._folder.exists()


def test_rollouts_have_every_step_with_what_it_led_to(collect: Callable[..., Any]) -> None:
    collector = collect(counting(), 4, 7, told, num_workers=2, weights=3, seed=1)
    batches = receive(collector, 3)
    for batch in batches:
        assert {
            name: (values.shape, values.dtype.name)
            for name, values in batch.items()
            if name != "version"
        } == {
            "observations": ((7, 4, 3), "float32"),
            "next_observations": ((7, 4, 3), "float32"),
            "last_observations": ((4, 3), "float32"),
            "actions": ((7, 4), "int64"),
            "rewards": ((7, 4), "float32"),
            "terminated": ((7, 4), "bool"),
            "truncated": ((7, 4), "bool"),
            "dones": ((7, 4), "float32"),
            "episode_starts": ((7, 4), "bool"),
            "episode_returns": ((7, 4), "float32"),
            "versions": ((4,), "int64"),
            "values": ((7, 4), "float32"),
            "noise": ((7, 4), "float64"),
        }
    whole = {
        name: np.concatenate([batch[name] for batch in batches])
        for name in batches[0]
        if name not in {"version", "versions", "last_observations"}
    }
    # An environment's steps go on from rollout to rollout: 5 to an episode.
    number = np.arange(21)[:, None]
    obs, following = whole["observations"], whole["next_observations"]
    np.testing.assert_array_equal(obs[..., 0], np.broadcast_to(number // 5, (21, 4)))
    np.testing.assert_array_equal(obs[..., 1], np.broadcast_to(number % 5, (21, 4)))
    assert len(set(obs[0, :, 2])) == 4, "each environment has a seed of its own"
    # Also at the end of an episode, of whichever kind.
    np.testing.assert_array_equal(following, obs + np.array([0, 1, 0]))
    over = np.broadcast_to(number % 5 == 4, (21, 4))
    odd = np.broadcast_to(number // 5 % 2 == 1, (21, 4))
    np.testing.assert_array_equal(whole["terminated"], over & ~odd)
    np.testing.assert_array_equal(whole["truncated"], over & odd)
    np.testing.assert_array_equal(whole["dones"], over)
    np.testing.assert_array_equal(
        whole["episode_starts"], np.broadcast_to(number % 5 == 0, (21, 4))
    )
    np.testing.assert_array_equal(whole["rewards"], np.full((21, 4), 3))
    np.testing.assert_array_equal(whole["episode_returns"], np.where(over, 15, np.nan))
    np.testing.assert_array_equal(whole["values"], obs[..., 1] * 2)
    np.testing.assert_array_equal(batches[0]["last_observations"], batches[1]["observations"][0])


def test_a_seed_decides_all_that_is_random(collect: Callable[..., Any]) -> None:
    options = {"num_workers": 1, "weights": 0}
    first = collect(counting(), 2, 4, told, **options)
    one, same, other = (
        collector.recv(PATIENCE)
        for collector in (
            first,
            *(collect(counting(), 2, 4, told, seed=seed, **options) for seed in (first.seed, 6)),
        )
    )
    for name, values in one.items():
        np.testing.assert_array_equal(values, same[name], name)
    assert not np.array_equal(one["noise"], other["noise"])
    assert not np.array_equal(one["observations"], other["observations"])


def test_weights_are_used_for_rollouts_that_are_begun_later(collect: Callable[..., Any]) -> None:
    ahead = collect(counting(), 2, 3, told, num_workers=2, weights=1, capacity=2)
    assert ahead.recv(PATIENCE)["version"] == 0
    assert ahead.sync_weights(8) == 1
    versions = []
    while len(versions) < 5:
        batch = ahead.recv(PATIENCE)
        versions.append(batch["version"])
        np.testing.assert_array_equal(batch["actions"], np.full((3, 2), [1, 8][batch["version"]]))
    # Those that were asked for ahead come first.
    assert versions == sorted(versions)
    assert versions[0] == 0
    assert versions[-1] == 1
    version = ahead.sync_weights(7)
    fresh = ahead.recv(PATIENCE, min_version=version)
    assert (fresh["version"], set(fresh["actions"].ravel())) == (2, {7})
    with pytest.raises(SpecError, match="min_version: expected at most 2, got 3"):
        ahead.recv(PATIENCE, min_version=3)


def test_without_capacity_every_rollout_has_the_newest_weights(collect: Callable[..., Any]) -> None:
    collector = collect(counting(), 1, 3, told, weights=0, capacity=0)
    for number in range(1, 5):
        assert collector.sync_weights(number) == number
        batch = collector.recv(PATIENCE)
        assert (batch["version"], set(batch["actions"].ravel())) == (number, {number})
    # Weights that nobody needs any more are gone.
    assert len(list(collector._folder.glob("weights-*"))) <= 2
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        collector.sync_weights(lambda: 0)
    assert collector.version == 4
    assert collector.recv(PATIENCE)["version"] == 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_the_workers_to_its_parent(collect: Callable[..., Any]) -> None:
    collector = collect(counting(), 1, 3, told, weights=0)
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            collector.close()
            collector.recv(1.0)
        except ClosedError:
            outcome = 0
        finally:
            os._exit(outcome)
    assert os.waitpid(child, 0)[1] == 0
    assert collector.recv(PATIENCE)["version"] == 0


def test_trees_of_observations_and_random_actions(collect: Callable[..., Any]) -> None:
    collector = collect(counting(tree=True), 2, 6, num_workers=1, seed=3, next_observations=False)
    batch = collector.recv(PATIENCE)
    assert "next_observations" not in batch
    assert batch["observations"]["b"][0].dtype == np.uint8
    np.testing.assert_array_equal(batch["observations"]["b"][0], batch["observations"]["a"][..., 1])
    assert batch["last_observations"]["b"][1].shape == (2, 3)
    assert len(set(batch["actions"].ravel())) > 2
    np.testing.assert_array_equal(batch["rewards"], batch["actions"])


def test_a_named_environment_of_gymnasium(collect: Callable[..., Any]) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    batch = collect("CartPole-v1", 1, 60, seed=0).recv(PATIENCE)
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset()
    for step in range(60):
        env.state = tuple(batch["observations"][step, 0].astype(np.float64))
        env.steps_beyond_terminated = None
        obs, _, terminated, _, _ = env.step(int(batch["actions"][step, 0]))
        np.testing.assert_allclose(batch["next_observations"][step, 0], obs, atol=1e-5)
        assert batch["terminated"][step, 0] == terminated
    assert batch["terminated"].any()


def test_a_killed_worker_is_replaced_and_told_of(collect: Callable[..., Any]) -> None:
    collector = collect(counting(), 4, 5, told, num_workers=2, weights=1, seed=2, max_restarts=1)
    before = collector.recv(PATIENCE)
    os.kill(collector._workers[1].process.pid, signal.SIGKILL)
    with pytest.warns(CollectorWarning, match="worker 1 was killed by SIGKILL and was replaced"):
        batches = receive(collector, 5)
    last = batches[-1]
    # The others went on, and those of the worker started anew, as other ones than before.
    np.testing.assert_array_equal(last["observations"][0, :2, 0], [5, 5])
    assert (last["observations"][0, 2:, 0] < 5).all()
    np.testing.assert_array_equal(last["observations"][0, :2, 2], before["observations"][0, :2, 2])
    assert not np.array_equal(last["observations"][0, 2:, 2], before["observations"][0, 2:, 2])
    os.kill(collector._workers[0].process.pid, signal.SIGKILL)
    with pytest.raises(CollectorError, match="worker 0 was killed by SIGKILL, and no worker may"):
        receive(collector, 5)
    with pytest.raises(CollectorError, match="no worker may"):
        collector.recv(PATIENCE)


def test_a_failing_environment_is_raised_with_its_traceback(collect: Callable[..., Any]) -> None:
    collector = collect(counting(fail_at=8), 1, 5, told, weights=1)
    with pytest.raises(CollectorError, match=r"(?s)worker 0 failed:.*ZeroDivisionError: the pole"):
        receive(collector, 3)
    with pytest.raises(ClosedError):
        collector.sync_weights(2)


def test_what_can_not_start_says_why() -> None:
    def broken() -> Any:
        raise LookupError("no such game")

    def short(weights: Any, observations: Any, rng: Any) -> Any:
        return observations[:1, 0]

    short.__module__ = "__main__"
    with pytest.raises(CollectorError, match=r"(?s)worker 0 failed:.*LookupError: no such game"):
        GymnasiumCollector(broken, 1, 4, timeout=PATIENCE)
    text = r"the policy's actions: expected 2 rows, one for each environment, got shape \(1,\)"
    with pytest.raises(CollectorError, match=text):
        GymnasiumCollector(counting(), 2, 4, short, num_workers=1, timeout=PATIENCE)
    with pytest.raises(WaitTimeoutError, match=r"1 of 1 workers have not started after 0\.0 s"):
        GymnasiumCollector(counting(), 2, 4, num_workers=1, timeout=0.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_envs": 0}, "num_envs: expected at least 1, got 0"),
        ({"num_steps": 0}, "num_steps: expected at least 1, got 0"),
        ({"num_workers": 0}, "num_workers: expected at least 1, got 0"),
        ({"num_workers": 3}, "num_workers: expected a divisor of the 4 environments, got 3"),
        ({"capacity": -1}, "capacity: expected at least 0, got -1"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, int], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        GymnasiumCollector(counting(), **{"num_envs": 4, "num_steps": 4, **options})


def test_closing_wakes_waiting_calls_and_ends_a_worker_that_hangs(
    collect: Callable[..., Any], background: Any
) -> None:
    collector = collect(counting(sleep=100.0), 1, 5, told, weights=1)
    with pytest.raises(WaitTimeoutError, match="timed out: 1 of 1 workers") as late:
        collector.recv(0.05)
    assert late.value.reason == "EMPTY"
    waiting = background.start_and_let_block(collector.recv)
    began = time.monotonic()
    collector.close()
    with pytest.raises(ClosedError, match="the collector is closed"):
        waiting()
    assert time.monotonic() - began < 20
    collector.close()
    with pytest.raises(ClosedError, match="the collector is closed"):
        collector.recv()


def test_workers_end_with_their_collector(run_script: Callable[..., Any]) -> None:
    done = run_script(
        "import os, signal\n"
        "from echoic.collectors.gymnasium import GymnasiumCollector\n"
        "collector = GymnasiumCollector('CartPole-v1', 2, 4, num_workers=2)\n"
        "print(*[worker.process.pid for worker in collector._workers], collector._folder)\n"
        "import sys; sys.stdout.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    *pids, folder = done.stdout.split()
    assert len(pids) == 2, done.stderr
    deadline = time.monotonic() + PATIENCE
    while any(Path(path).exists() for path in (folder, *[f"/proc/{pid}" for pid in pids])):
        assert time.monotonic() < deadline, "a worker, or its files, outlived its collector"
        time.sleep(0.02)
