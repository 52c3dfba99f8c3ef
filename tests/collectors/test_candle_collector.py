"""The collector: what it collects, and that nothing makes it hang."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from echoic.collectors import CandleCollector, VectorEnv, parameter_shapes, split_weights
from echoic.errors import ClosedError, SpecError, WaitTimeoutError
from polling import until

# The environments with their dimensions.
ENVS = [
    ("CartPole-v1", 4, 2),
    ("Pendulum-v1", 3, 1),
    ("MountainCar-v0", 2, 3),
    ("Acrobot-v1", 6, 3),
]
# Such a rollout takes many seconds, so whoever waits for it does wait.
ENDLESS = {"n_steps": 1 << 18, "n_envs": 1, "hidden": 256}


def start(env_id: str = "CartPole-v1", n_steps: int = 32, **rest: Any) -> CandleCollector:
    obs_dim, n_actions = next(dims for name, *dims in ENVS if name == env_id)
    settings = {"n_envs": 3, "hidden": 16, "seed": 5, **rest}
    return CandleCollector(
        env_id=env_id, obs_dim=obs_dim, n_actions=n_actions, n_steps=n_steps, **settings
    )


def network(weights: dict[str, np.ndarray], name: str, observations: np.ndarray) -> np.ndarray:
    """Evaluate a network in double precision."""
    now = observations.astype(np.float64)
    for layer in (0, 2, 4):
        weight, bias = weights[f"{name}.{layer}.weight"], weights[f"{name}.{layer}.bias"]
        now = now @ weight.T.astype(np.float64) + bias
        now = np.tanh(now) if layer < 4 else now
    return now


def oracle(
    collector: CandleCollector, dims: tuple[int, int, int], observations: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    parts = split_weights(collector.get_weights(), *dims, continuous=collector.continuous)
    outputs = network(parts, "actor", observations)
    values = network(parts, "critic", observations)[..., 0]
    return outputs, values, parts.get("log_std", np.zeros(0))


def randomised(collector: CandleCollector) -> np.ndarray:
    """Return weights that are large enough to tell any two of them apart."""
    rng = np.random.default_rng(1)
    weights = collector.get_weights()
    return (weights + rng.normal(0, 0.3, weights.shape)).astype(np.float32)


def test_the_seeds_form_gives_the_keys_that_it_says() -> None:
    collector = CandleCollector(
        env_id="CartPole-v1", n_envs=16, obs_dim=4, n_actions=2, n_steps=128, hidden=64, seed=42
    )
    batch = collector.recv()
    numbers = ["rewards", "dones", "log_probs", "values", "advantages", "returns"]
    for name in numbers:
        assert (batch[name].shape, batch[name].dtype) == ((128, 16), np.float32), name
    for name in ("terminated", "truncated"):
        assert (batch[name].shape, batch[name].dtype) == ((128, 16), np.bool_), name
    assert (batch["observations"].shape, batch["observations"].dtype) == ((128, 16, 4), np.float32)
    assert (batch["actions"].shape, batch["actions"].dtype) == ((128, 16), np.int64)
    assert batch["last_values"].shape == (16,)
    assert (batch["n_steps"], batch["n_envs"], batch["version"]) == (128, 16, 0)
    weights = collector.get_weights()
    assert (weights.shape, weights.dtype) == ((9155,), np.float32)
    collector.sync_weights(weights)
    collector.close()


@pytest.mark.parametrize(("env_id", "obs_dim", "n_actions"), ENVS)
def test_policy_and_probabilities_agree_with_double_precision(
    env_id: str, obs_dim: int, n_actions: int
) -> None:
    with start(env_id, n_steps=300) as collector:
        version = collector.sync_weights(randomised(collector))
        batch = collector.recv(min_version=version)
        dims = (obs_dim, n_actions, 16)
        outputs, values, log_std = oracle(collector, dims, batch["observations"])
        if collector.continuous:
            distance = (batch["actions"] - outputs) / np.exp(log_std)
            log_probs = (-0.5 * distance**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(-1)
        else:
            log_probs = outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))
            log_probs = np.take_along_axis(log_probs, batch["actions"][..., None], -1)[..., 0]
        np.testing.assert_allclose(batch["values"], values, rtol=0, atol=1e-5)
        np.testing.assert_allclose(batch["log_probs"], log_probs, rtol=0, atol=1e-5)
        rows = batch["observations"].reshape(-1, obs_dim)
        got, got_values = collector.evaluate(rows)
        np.testing.assert_allclose(got, outputs.reshape(-1, n_actions), rtol=0, atol=1e-5)
        np.testing.assert_array_equal(got_values, batch["values"].ravel())
        one, one_value = collector.evaluate(rows[7])
        np.testing.assert_array_equal(one, got[7])
        assert one_value == got_values[7]


@pytest.mark.parametrize(("env_id", "obs_dim", "n_actions"), ENVS)
def test_rollouts_are_what_the_environments_do_without_a_gap(
    env_id: str, obs_dim: int, n_actions: int
) -> None:
    envs = VectorEnv(env_id, 3, autoreset_mode="SameStep")
    observations, _ = envs.reset(seed=5)
    returns: list[float] = []
    running = np.zeros(3)
    with start(env_id, n_steps=150) as collector:
        for _ in range(4):
            batch = collector.recv()
            assert batch["observations"].shape[2] == obs_dim
            ended = []
            for step in range(150):
                np.testing.assert_array_equal(batch["observations"][step], observations)
                observations, *results, _ = envs.step(batch["actions"][step])
                rewards, terminated, truncated = results
                np.testing.assert_array_equal(batch["rewards"][step], rewards.astype(np.float32))
                np.testing.assert_array_equal(batch["terminated"][step], terminated)
                np.testing.assert_array_equal(batch["truncated"][step], truncated)
                np.testing.assert_array_equal(batch["dones"][step], terminated | truncated)
                running += rewards
                ended.extend(running[terminated | truncated])
                running[terminated | truncated] = 0
            np.testing.assert_allclose(batch["episode_returns"], ended, rtol=1e-6)
            assert len(batch["episode_lengths"]) == len(ended)
            returns.extend(ended)
            assert n_actions > 1 or np.unique(batch["actions"]).size > 100
    assert returns


@pytest.mark.parametrize(("env_id", "obs_dim", "n_actions"), ENVS)
def test_advantages_bootstrap_through_truncation_and_not_through_termination(
    env_id: str, obs_dim: int, n_actions: int
) -> None:
    gamma, lam, steps = 0.9, 0.8, 520
    envs = VectorEnv(env_id, 3, autoreset_mode="SameStep")
    envs.reset(seed=5)
    with start(env_id, n_steps=steps, gamma=gamma, lam=lam, capacity=0) as collector:
        collector.sync_weights(randomised(collector))
        batch = collector.recv()
        values, ends = batch["values"].astype(np.float64), np.zeros((steps, 3, obs_dim))
        for step in range(steps):
            *_, infos = envs.step(batch["actions"][step])
            for env in np.flatnonzero(infos.get("_final_obs", np.zeros(3))):
                ends[step, env] = infos["final_obs"][env]
        _, end_values, _ = oracle(collector, (obs_dim, n_actions, 16), ends)
    following = np.concatenate([values[1:], batch["last_values"][None]])
    following = np.where(batch["truncated"], end_values, following)
    following = np.where(batch["terminated"], 0.0, following)
    deltas = batch["rewards"] + gamma * following - values
    expected, later = np.zeros((steps, 3)), np.zeros(3)
    for step in reversed(range(steps)):
        later = deltas[step] + gamma * lam * (1 - batch["dones"][step]) * later
        expected[step] = later
    np.testing.assert_allclose(batch["advantages"], expected, rtol=1e-5, atol=2e-4)
    np.testing.assert_allclose(batch["returns"], expected + values, rtol=1e-5, atol=2e-4)
    assert batch["terminated"].any() or batch["truncated"].any()
    if env_id in {"Pendulum-v1", "MountainCar-v0"}:
        # What ignoring truncation would give is far away.
        assert (np.abs(end_values[batch["truncated"]]) > 1e-2).any()


def test_a_seed_tells_weights_and_rollouts() -> None:
    with start(seed=1) as one, start(seed=1) as same, start(seed=2) as other:
        np.testing.assert_array_equal(one.get_weights(), same.get_weights())
        assert not np.array_equal(one.get_weights(), other.get_weights())
        for _ in range(3):
            first, second = one.recv(), same.recv()
            for key, value in first.items():
                np.testing.assert_array_equal(value, second[key])
            assert not np.array_equal(first["observations"], other.recv()["observations"])


def test_first_weights_are_as_documented() -> None:
    with start("Pendulum-v1") as collector:
        parts = split_weights(collector.get_weights(), 3, 1, 16, continuous=True)
    assert list(parts) == list(parameter_shapes(3, 1, 16, continuous=True))
    for name, part in parts.items():
        if name.endswith("bias") or name == "log_std":
            assert (part == 0).all(), name
            continue
        gain = {"actor.4.weight": 0.01, "critic.4.weight": 1.0}.get(name, np.sqrt(2))
        small = part if part.shape[0] <= part.shape[1] else part.T
        np.testing.assert_allclose(small @ small.T, gain**2 * np.eye(len(small)), atol=1e-5)


def test_first_actions_are_about_equally_likely_and_weights_can_make_them_sure() -> None:
    with start(n_steps=2000, capacity=0) as collector:
        # Six standard deviations of 6000 draws are 0.039.
        assert abs(collector.recv()["actions"].mean() - 0.5) < 0.045
        weights = collector.get_weights()
        split_weights(weights, 4, 2, 16)["actor.4.bias"][:] = [0, 50]
        collector.sync_weights(weights)
        assert (collector.recv()["actions"] == 1).all()


def test_new_weights_count_from_the_next_rollout() -> None:
    with start(capacity=2) as collector:
        assert collector.recv()["version"] == 0
        zeros = np.zeros_like(collector.get_weights())
        assert collector.sync_weights(zeros) == 1
        np.testing.assert_array_equal(collector.get_weights(), zeros)
        versions = [collector.recv()["version"] for _ in range(6)]
        assert versions == sorted(versions)
        assert versions[-1] == 1
        assert collector.sync_weights(zeros + 0.5) == 2
        fresh = collector.recv(min_version=2)
        assert fresh["version"] == 2
        assert (fresh["values"] != 0).all()
        with pytest.raises(SpecError, match=r"version.*at most 2.*3"):
            collector.recv(min_version=3)


def test_with_no_room_for_more_every_rollout_has_the_latest_weights() -> None:
    with start(capacity=0) as collector:
        for version in range(1, 5):
            collector.sync_weights(collector.get_weights())
            assert collector.recv()["version"] == version


def test_flat_rollouts_have_the_same_rows() -> None:
    with start() as one, start() as other, start("Pendulum-v1") as pendulum:
        rows, flat = one.recv(), other.recv(flat=True)
        np.testing.assert_array_equal(flat["observations"], rows["observations"].reshape(-1, 4))
        np.testing.assert_array_equal(flat["actions"], rows["actions"].ravel())
        np.testing.assert_array_equal(flat["advantages"], rows["advantages"].ravel())
        assert pendulum.recv(flat=True)["actions"].shape == (96, 1)


def test_what_was_received_stays_as_it_is() -> None:
    collector = start()
    batch = collector.recv()
    copies = {key: np.copy(value) for key, value in batch.items()}
    for _ in range(20):
        collector.recv()
    collector.close()
    del collector
    for key, value in batch.items():
        np.testing.assert_array_equal(value, copies[key])
        if isinstance(value, np.ndarray):
            value[...] = 0


def test_memory_is_used_again_when_nobody_has_it() -> None:
    with start(capacity=0) as collector:
        batch = collector.recv()
        first = batch["observations"].ctypes.data
        kept = batch["rewards"]
        del batch
        assert collector.recv()["observations"].ctypes.data != first
        assert (kept == 1).all()
        addresses = {collector.recv()["observations"].ctypes.data for _ in range(9)}
        assert len(addresses) == 1


def test_a_collector_that_nobody_takes_from_waits_with_its_rollouts() -> None:
    with start(n_steps=1, capacity=2) as collector, start(n_steps=1, capacity=0) as other:
        held = []
        until(lambda: (batch := collector.try_recv()) is not None and not held.append(batch))
        time.sleep(0.05)
        # Whatever waited is what comes, in order.
        rollouts = [*held, *(collector.recv() for _ in range(5))]
        expected = [other.recv() for _ in rollouts]
        for got, rollout in zip(rollouts, expected, strict=True):
            np.testing.assert_array_equal(got["observations"], rollout["observations"])


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_stop_never_hangs_and_ends_everything(capacity: int) -> None:
    collector = start(n_steps=1, capacity=capacity)
    time.sleep(0.01)
    assert not collector.closed
    collector.close()
    collector.close()
    assert collector.closed
    for call in (
        collector.recv,
        collector.try_recv,
        lambda: collector.recv(0),
        lambda: collector.sync_weights(collector.get_weights()),
    ):
        with pytest.raises(ClosedError, match="stopped"):
            call()
    assert collector.get_weights().shape == (parameters(4, 2, 16),)


def parameters(*dims: int) -> int:
    return sum(int(np.prod(shape)) for shape in parameter_shapes(*dims).values())


def test_stop_wakes_every_thread_that_waits(background: Any) -> None:
    collector = start(**ENDLESS)
    waiting = [background.start_and_let_block(collector.recv) for _ in range(3)]
    stopping = [background.start(collector.close) for _ in range(2)]
    for stopped in stopping:
        stopped()
    for received in waiting:
        with pytest.raises(ClosedError, match="stopped"):
            received()


def test_leaving_the_block_stops_it_whatever_was_raised() -> None:
    with pytest.raises(KeyError), start() as collector:
        raise KeyError
    assert collector.closed


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_collector_that_is_dropped_ends_its_thread() -> None:
    def threads() -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Threads"))

    before = threads()
    collectors = [start(**ENDLESS) for _ in range(2)]
    assert threads() == before + 2
    del collectors
    until(lambda: threads() == before)


def test_a_wait_ends_at_its_deadline() -> None:
    with start(**ENDLESS) as collector:
        with pytest.raises(WaitTimeoutError, match="no rollout") as raised:
            collector.recv(0.01)
        assert raised.value.reason == "EMPTY"
        assert collector.try_recv() is None
        with pytest.raises(ValueError, match="-1"):
            collector.recv(-1)


def test_ctrl_c_ends_a_wait() -> None:
    with start(**ENDLESS) as collector:
        timer = threading.Timer(0.05, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            collector.recv()
        timer.join()
        assert not collector.closed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"obs_dim": 5}, "obs_dim=4 and n_actions=2, got obs_dim=5 and n_actions=2"),
        ({"n_actions": 3}, "obs_dim=4 and n_actions=2, got obs_dim=4 and n_actions=3"),
        ({"env_id": "Pong-v5"}, "`Pong-v5`.*CartPole-v1"),
        ({"n_envs": 0}, "n_envs.*0"),
        ({"n_steps": 0}, "n_steps.*0"),
        ({"hidden": 0}, "hidden.*0"),
        ({"n_envs": -1}, "n_envs.*-1"),
        ({"seed": -1}, "seed.*-1"),
        ({"gamma": 1.5}, "gamma.*1.5"),
        ({"lam": float("nan")}, "lam.*NaN"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_sides(wrong: dict[str, Any], message: str) -> None:
    settings = {
        "env_id": "CartPole-v1",
        "n_envs": 2,
        "obs_dim": 4,
        "n_actions": 2,
        "n_steps": 8,
        "hidden": 8,
    }
    with pytest.raises(SpecError, match=message):
        CandleCollector(**{**settings, **wrong})


def test_more_than_any_memory_is_an_error() -> None:
    for wrong in ({"n_steps": 2**62}, {"hidden": 2**40}):
        with pytest.raises(MemoryError):
            start(**wrong)


def test_wrong_weights_leave_the_old_ones() -> None:
    with start() as collector:
        before = collector.get_weights()
        count = parameters(4, 2, 16)
        wrong = {
            f"expected {count} elements, got {count - 1}": before[1:],
            "element 3 is NaN": np.where(np.arange(count) == 3, np.nan, before),
            "element 0 is inf": before.astype(np.float64) + 1e39,
            "flat array": before[None],
            "real numbers": before.astype(complex),
        }
        for message, weights in wrong.items():
            with pytest.raises(SpecError, match=message):
                collector.sync_weights(weights)
        np.testing.assert_array_equal(collector.get_weights(), before)
        assert collector.recv()["version"] == 0
        # Any real dtype and any memory order will do.
        assert collector.sync_weights(np.repeat(before.astype(np.float64), 2)[::2]) == 1
        np.testing.assert_array_equal(collector.get_weights(), before)


def test_weights_that_overflow_end_the_collector_and_not_the_wait() -> None:
    with start("Pendulum-v1", capacity=0) as collector:
        huge = np.full_like(collector.get_weights(), np.finfo(np.float32).max)
        collector.sync_weights(huge)
        with pytest.raises(ClosedError, match="expected a number, got NaN"):
            collector.recv()
        assert collector.closed


def test_observations_to_evaluate_must_fit() -> None:
    with start() as collector:
        with pytest.raises(SpecError, match="rows of 4, got rows of 3"):
            collector.evaluate(np.zeros((2, 3)))
        with pytest.raises(SpecError, match="shape"):
            collector.evaluate(np.zeros((2, 2, 4)))
        outputs, values = collector.evaluate(np.zeros((0, 4)))
        assert (outputs.shape, values.shape) == ((0, 2), (0,))


def test_threads_may_share_it(background: Any) -> None:
    with start(n_steps=4) as collector:

        def work() -> int:
            for _ in range(50):
                collector.recv()
                collector.sync_weights(collector.get_weights())
            return collector.evaluate(np.zeros((5, 4)))[1].size

        results = [background.start(work) for _ in range(4)]
        assert [result() for result in results] == [5] * 4
        assert collector.sync_weights(collector.get_weights()) == 201


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_is_told_and_can_leave(run_script: Any) -> None:
    done = run_script(
        "import os, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from echoic.errors import ClosedError\n"
        "from echoic.collectors import CandleCollector\n"
        "collector = CandleCollector('CartPole-v1', 2, 4, 2, 1)\n"
        "batch = collector.recv()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        collector.recv()\n"
        "    except ClosedError as error:\n"
        "        print('fork' in str(error), flush=True)\n"
        "    del batch, collector\n"
        "    sys.exit(0)\n"
        "print(os.waitpid(child, 0)[1], collector.recv()['version'])\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n0 0\n", "")


def test_a_process_may_end_while_it_runs(run_script: Any) -> None:
    done = run_script(
        "from echoic.collectors import CandleCollector\n"
        "collector = CandleCollector('CartPole-v1', 2, 4, 2, 64)\n"
        "print(collector.recv()['version'])\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
