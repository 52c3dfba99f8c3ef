"""Workers on Ray play and insert, keep a table's pace, take weights, and come back when killed."""

from __future__ import annotations

import os
import signal
import time

import echoic
import numpy as np
import pytest

pytest.importorskip("ray")
pytest.importorskip("gymnasium")
import gymnasium
from echoic.collectors import VectorEnv
from echoic.collectors._gymnasium_worker import Form
from echoic.errors import ArgumentError, ClosedError, CollectorError
from echoic.integrations.ray import Collectors, ReplayCluster, agent_environment
from echoic.integrations.ray.envs import VectorSteps, segments
from echoic.weights import WeightStore

pytestmark = [
    # Starting Ray on a busy machine takes long.
    pytest.mark.timeout(300),
    # Ray leaves files and sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

PATIENCE = 60.0
STEP = {
    "observations": np.zeros(4, np.float32),
    "actions": np.int64(0),
    "rewards": np.float32(0),
    "next_observations": np.zeros(4, np.float32),
    "terminated": np.bool_(False),
    "truncated": np.bool_(False),
}


@pytest.fixture
def served(ray_nodes):
    """A server of this process, with a table of steps, a queue, and weights."""
    store = WeightStore()
    tables = [
        echoic.Table("steps", STEP, capacity=100_000),
        echoic.Table.queue("queue", STEP, capacity=256),
    ]
    with echoic.Server(*tables, store, listen="tcp://127.0.0.1:0") as server:
        yield server, store


def wait_until(true, collectors=None):
    """Wait for something that has to come about."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        if collectors is not None:
            collectors.check()
        time.sleep(0.05)


def make_tables():
    return [echoic.Table("steps", STEP, capacity=100_000)]


def test_workers_fill_the_tables_of_a_cluster_and_one_that_is_killed_comes_back(ray_nodes):
    with (
        ReplayCluster(make_tables, 2, name="filled", resources={"num_cpus": 0.5}) as replay,
        replay.client() as client,
        Collectors(
            "CartPole-v1",
            None,
            replay.client(),
            "steps",
            envs_per_worker=2,
            num_steps=64,
            seed=1,
        ) as crew,
    ):
        wait_until(lambda: client.table("steps").stats().size >= 1000, crew)
        near = [["shm", "shm"]] * 2
        wait_until(lambda: [one.get("transports") for one in crew.stats()["workers"]] == near, crew)
        told = crew.stats()["workers"]
        os.kill(told[0]["pid"], signal.SIGKILL)
        wait_until(lambda: crew.restarts == 1, crew)
        was = told[0]["pid"]
        wait_until(lambda: crew.stats()["workers"][0]["there"], crew)
        wait_until(lambda: crew.stats()["workers"][0]["items"] >= 256, crew)
        stats = crew.stats()
        assert stats["workers"][0]["pid"] != was
        assert stats["restarts"] == 1
        assert stats["episodes"] > 0
        # CartPole under random actions.
        assert 10 < stats["mean_return"] < 60
        batch = client.table("steps").sample(512).data
        # A step of CartPole moves the cart by 0.02 of its speed.
        moved = batch["observations"][:, 0] + 0.02 * batch["observations"][:, 1]
        np.testing.assert_allclose(batch["next_observations"][:, 0], moved, atol=1e-5)
        held = client.table("steps").stats()
        assert all(shard.size > 0 for shard in held.shards)


def test_workers_wait_for_a_queue_that_is_full_and_go_on_when_it_is_not(served):
    server, _ = served
    with Collectors(
        "CartPole-v1",
        None,
        server.address,
        "queue",
        native=True,
        envs_per_worker=4,
        num_workers=1,
        num_steps=16,
        resources={"num_cpus": 0.5},
    ) as crew:
        queue = echoic.connect(server).table("queue")
        wait_until(lambda: len(queue) == 256, crew)
        steps = crew.stats()["steps"]
        assert steps <= 256
        for _ in range(8):
            queue.sample(64)
        wait_until(lambda: crew.stats()["steps"] >= 512, crew)
        began = time.monotonic()
        crew.close(PATIENCE)
    # One that waits for the table ends too.
    assert time.monotonic() - began < PATIENCE


def act_by_weights(weights, observations, rng):
    return np.full(len(observations), int(weights["action"]), np.int64)


def test_workers_wait_for_weights_and_take_the_latest(served):
    server, store = served
    address = server.address
    with Collectors(
        "CartPole-v1",
        act_by_weights,
        address,
        "steps",
        num_workers=1,
        num_steps=8,
        weights=address,
        resources={"num_cpus": 0.5},
    ) as crew:
        steps = echoic.connect(server).table("steps")
        wait_until(lambda: crew.stats()["workers"][0]["transports"], crew)
        assert len(steps) == 0
        store.publish({"action": np.int64(0)}, version=3)
        wait_until(lambda: len(steps) >= 8, crew)
        store.publish({"action": np.int64(1)}, version=4)
        wait_until(lambda: crew.stats()["workers"][0]["version"] == 4, crew)
    batch = steps.sample(len(steps))
    assert set(batch.info.versions.tolist()) == {3, 4}
    np.testing.assert_array_equal(batch.data["actions"], batch.info.versions - 3)


def make_agents_tables():
    seen = {"vector": np.zeros(32, np.float32), "mask": np.zeros(20, np.bool_)}
    step = STEP | {"observations": seen, "next_observations": seen}
    return [echoic.Table("steps", step, capacity=10_000)]


def act_first_or_last(weights, observations, rng):
    """The first command that does something, or the last, by the weights."""
    masks = observations["mask"]
    first, last = masks.argmax(1), masks.shape[1] - 1 - masks[:, ::-1].argmax(1)
    return last if weights["last"] else first


@pytest.mark.nightly
def test_agents_act_in_text_by_the_weights_of_their_cluster(ray_nodes):
    with (
        ReplayCluster(
            make_agents_tables, 1, name="agents", resources={"num_cpus": 0.5}, weights=True
        ) as replay,
        replay.client() as client,
        client.weights() as weights,
        Collectors(
            agent_environment("rooms", state_encoding_dim=32, action_space_size=20),
            act_first_or_last,
            replay.client(),
            "steps",
            num_workers=1,
            num_steps=8,
            weights=True,
            resources={"num_cpus": 0.5},
        ) as crew,
    ):
        for version in (1, 2):
            weights.publish({"last": np.bool_(version == 2)}, version=version)
            wait_until(lambda v=version: crew.stats()["workers"][0].get("version") == v, crew)
        wait_until(lambda: client.table("steps").stats().size >= 64, crew)
        batch = client.table("steps").sample(64)
    masks, actions = batch.data["observations"]["mask"], batch.data["actions"]
    assert masks[np.arange(64), actions].all()
    last = 19 - masks[:, ::-1].argmax(1)
    expected = np.where(batch.info.versions == 2, last, masks.argmax(1))
    np.testing.assert_array_equal(actions, expected)


class Breaking(gymnasium.Wrapper):
    def step(self, action):
        raise RuntimeError("the joint is stuck")


def test_an_error_of_an_environment_is_told_with_its_traceback(served):
    server, _ = served
    with Collectors(
        lambda: Breaking(gymnasium.make("CartPole-v1")),
        None,
        server.address,
        "steps",
        num_workers=1,
        resources={"num_cpus": 0.5},
    ) as crew:
        with pytest.raises(CollectorError, match=r"worker 0 failed:(.|\n)*the joint is stuck"):
            wait_until(lambda: False, crew)
        assert crew.restarts == 0
    with pytest.raises(ClosedError, match="closed"):
        crew.check()


def test_arguments_that_make_no_sense_are_told_before_anything_is_started(ray_nodes):
    with pytest.raises(ArgumentError, match="num_steps must be at least 1, got 0"):
        Collectors("CartPole-v1", None, "tcp://localhost:1", "steps", num_steps=0)
    with pytest.raises(ArgumentError, match="a str has none"):
        Collectors("CartPole-v1", None, "tcp://localhost:1", "steps", weights=True)
    with pytest.raises(ArgumentError, match="env: expected the name of a native one, got function"):
        Collectors(make_tables, None, "tcp://localhost:1", "steps", native=True)


def test_what_follows_the_end_of_an_episode_is_not_taken_for_where_it_ended():
    envs = VectorEnv("CartPole-v1", 3, autoreset_mode="SameStep")
    made = VectorSteps(envs, None, [1, 2, 3])
    form = made.form(None)
    assert isinstance(form, Form)
    rollout = form.rollout(200, 3, following=True)
    made.roll(rollout, None, lambda: None)
    ended = rollout["terminated"]
    assert ended.sum() > 10
    # The pole has fallen, or the cart has left.
    after = rollout["next_observations"][ended]
    assert ((np.abs(after[:, 2]) > 0.2095) | (np.abs(after[:, 0]) > 2.4)).all()
    # The next episode begins near the middle, in the row after.
    starts = rollout["observations"][1:][ended[:-1]]
    assert (np.abs(starts) <= 0.05).all()
    assert rollout["episode_starts"][1:][ended[:-1]].all()
    # An episode's return is how many steps it had, for each earns one.
    lengths = np.diff(np.flatnonzero(np.append(rollout["episode_starts"][:, 0], True)))
    returns = rollout["episode_returns"][:, 0]
    complete = returns[~np.isnan(returns)]
    np.testing.assert_array_equal(complete, lengths[: len(complete)])
    items = segments(rollout)
    assert items["observations"].shape == (3, 200, 4)
    np.testing.assert_array_equal(items["last_observations"], rollout["last_observations"])
    envs.close()
