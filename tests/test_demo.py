"""The demo finishes, counts right and learns, through every door; its processes end with it.

Its mathematics agrees with differences.

No test here looks at a speed.
"""

from __future__ import annotations

import copy
import io
import itertools
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic.demo import ppo, rollout
from echoic.demo.__main__ import (
    BATCHES,
    EVALUATION_EPISODES,
    INTERRUPTED,
    ROLLOUTS_PER_BATCH,
    Options,
    Outcome,
    train,
)
from echoic.demo.crew import DOORS, SPAWN, ProcessCrew, ThreadCrew, transport_of
from echoic.demo.learner import Lesson, evaluate
from echoic.demo.policy import Actor, ActorCritic, Array, Network
from echoic.demo.progress import EPISODES, Flow, Progress, Traffic
from echoic.demo.view import CONNECTIONS, LiveView, duration, sparkline
from echoic.demo.weights import SharedWeights, Version, WeightsBlock
from matplotlib.image import imread
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

ROOT = Path(__file__).resolve().parent.parent
STEPS_PER_BATCH = ROLLOUTS_PER_BATCH * rollout.LENGTH
# An untrained policy holds the pole for about 22 steps.
UNTRAINED = 22


def demo(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "echoic", "demo", *arguments]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        demo(*arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_counts_agree(outcome: Outcome) -> None:
    info = outcome.info
    delivered = info.delivered_total * ROLLOUTS_PER_BATCH
    assert outcome.progress.steps == delivered * rollout.LENGTH
    assert len(outcome.progress.ticks) == info.delivered_total
    assert outcome.sent == info.inserted_total == delivered + info.store_size
    assert info.store_size <= BATCHES * ROLLOUTS_PER_BATCH
    assert (info.refused, info.aborted, info.batches_held) == (0, 0, 0)
    assert outcome.lost == []


def assert_is_a_picture(path: Path) -> None:
    pixels = imread(path)
    assert pixels.shape[0] >= 400
    assert pixels.shape[1] >= 400
    # One number for a pixel: to sort rows takes seconds.
    colors = (pixels[:, :, :3] * 255).astype(np.int64) @ [1 << 16, 1 << 8, 1]
    assert len(np.unique(colors)) > 50


# A whole run.


@pytest.mark.parametrize("door", DOORS)
def test_run_stops_at_its_step_budget_and_its_counts_agree(door: str, tmp_path: Path) -> None:
    outcome = train(Options(door=door, workers=3, steps=3 * STEPS_PER_BATCH, out=tmp_path))
    kind = outcome.address.split(":")[0] if outcome.address else "none"
    assert kind == door
    assert outcome.progress.steps == 3 * STEPS_PER_BATCH
    assert not outcome.reached
    assert len(outcome.evaluation) == EVALUATION_EPISODES
    assert_counts_agree(outcome)
    assert_is_a_picture(outcome.plot)


@pytest.mark.parametrize("door", ["shm", pytest.param("none", marks=pytest.mark.nightly)])
def test_policy_is_learned(door: str, tmp_path: Path) -> None:
    target = 5 * UNTRAINED
    outcome = train(Options(door=door, steps=100_000, target=target, out=tmp_path))
    assert outcome.reached
    assert np.mean(outcome.progress.returns[:50]) < 2 * UNTRAINED
    assert np.mean(outcome.progress.returns[-EPISODES:]) >= target
    assert np.mean(outcome.evaluation) >= target
    assert_counts_agree(outcome)


def test_missed_target_is_exit_status_1_and_no_terminal_gets_plain_lines(tmp_path: Path) -> None:
    done = run_demo("--steps", "1", "--workers", "1", "--out", str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert "Missed the target of 400" in done.stdout
    assert re.search(r"^ *\d+\.\d s +1,024 steps ", done.stdout, re.MULTILINE)
    assert "\x1b" not in done.stdout


def test_reached_target_is_exit_status_0_and_the_last_line_names_the_plot(
    tmp_path: Path,
) -> None:
    out = tmp_path / "made" / "on the way"
    done = run_demo("--target", "8", "--workers", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "Reached the target of 8" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert str(out / "cartpole.png") in last
    assert float(last.split()[-1]) >= 8
    assert_is_a_picture(out / "cartpole.png")


@pytest.mark.parametrize(
    ("door", "end"),
    [
        ("shm", signal.SIGINT),
        ("shm", signal.SIGKILL),
        *(
            pytest.param(door, end, marks=pytest.mark.nightly)
            for door, end in [
                ("unix", signal.SIGINT),
                ("tcp", signal.SIGINT),
                ("none", signal.SIGINT),
                ("tcp", signal.SIGKILL),
            ]
        ),
    ],
)
def test_no_process_outlives_an_interrupt_or_the_learner(
    door: str, end: signal.Signals, tmp_path: Path
) -> None:
    options = ("--door", door, "--workers", "2", "--target", "1000", "--steps", "10000000")
    options += ("--out", str(tmp_path))
    with subprocess.Popen(
        demo(*options),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout
            lines = iter(process.stdout.readline, "")
            assert any(" steps/s " in line for line in lines)  # The first batch is learned from.
            if end == signal.SIGINT:  # Ctrl-C goes to all processes of a terminal.
                os.killpg(process.pid, end)
            else:
                process.send_signal(end)
            # Both pipes have an end only when every process that could write to them is gone.
            output, errors = process.communicate(timeout=20)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert errors == ""
    if end == signal.SIGINT:
        assert process.returncode == INTERRUPTED
        assert "all workers have stopped" in output
    else:
        assert process.returncode == -end


def test_worker_process_imports_nothing_for_the_eye() -> None:
    script = "import sys, echoic.demo.worker as _; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.split())
    assert "echoic" in modules
    assert not modules & {"matplotlib", "rich", "echoic.demo.learner"}


@pytest.mark.parametrize("option", ["--workers", "--steps"])
def test_zero_is_refused(option: str) -> None:
    done = run_demo(option, "0")
    assert done.returncode == 2
    assert "0 is not a positive number" in done.stderr


# The workers, and what they send.


def small_model() -> tuple[ActorCritic, Array]:
    model = ActorCritic(rollout.OBSERVATION, rollout.ACTIONS, hidden=8)
    return model, model.initial(np.random.default_rng(1))


def test_rollouts_of_a_worker_follow_each_other_without_a_gap() -> None:
    model, params = small_model()
    server = echoic.Server(rollout.EXAMPLE, batch_size=10, capacity=20)
    with server, ThreadCrew(1, model, SharedWeights(params), server, seed=0):
        batch = server.sample(timeout=60).data
    steps = {name: leaf.reshape(-1, *leaf.shape[2:]) for name, leaf in batch["step"].items()}
    over = steps["terminated"] | steps["truncated"]
    assert over.sum() > 5
    going_on = ~over[:-1]
    np.testing.assert_array_equal(steps["next_obs"][:-1][going_on], steps["obs"][1:][going_on])
    np.testing.assert_array_equal(~np.isnan(steps["episode_return"]), over)
    # A step is worth 1, so that a return is the distance between two ends.
    ends = [-1, *np.flatnonzero(over)]
    assert steps["episode_return"][over].tolist() == [b - a for a, b in itertools.pairwise(ends)]


def test_log_prob_is_that_of_the_version_that_acted() -> None:
    model, params = small_model()
    server = echoic.Server(rollout.EXAMPLE, batch_size=4, capacity=8)
    with server, ThreadCrew(2, model, SharedWeights(params), server, seed=0):
        batch = server.sample(timeout=60).data
    assert set(batch["worker"]) <= {0, 1}
    assert batch["version"].tolist() == [0] * 4
    obs = batch["step"]["obs"].reshape(-1, rollout.OBSERVATION)
    action = batch["step"]["action"].reshape(-1)
    logits = model.actor.forward(model.split(params)[0], obs)[-1]
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        batch["step"]["log_prob"].reshape(-1),
        np.log(probs[np.arange(len(action)), action]),
        rtol=1e-4,
    )


class BrokenWeights:
    def latest(self) -> Version:
        raise LookupError("no weights today")


def test_failure_of_a_worker_ends_the_run_and_is_raised() -> None:
    model, _ = small_model()
    server = echoic.Server(rollout.EXAMPLE, batch_size=4, capacity=8)
    with (
        pytest.raises(LookupError, match="no weights today"),
        server,
        ThreadCrew(2, model, BrokenWeights(), server, seed=0),
    ):
        assert list(server.batches()) == []


def rollouts_by_worker(server: echoic.Server) -> Iterator[int]:
    for sample in server.batches():
        yield from sample.data["worker"].tolist()


def kill_when_it_has_sent(workers: Iterator[int], number: int) -> None:
    assert number in workers
    children = {child.name: child for child in multiprocessing.active_children()}
    children[f"worker {number}"].kill()


@pytest.mark.parametrize(
    "door", ["shm", *(pytest.param(door, marks=pytest.mark.nightly) for door in ("unix", "tcp"))]
)
def test_killed_worker_does_not_stop_the_others(door: str) -> None:
    model, params = small_model()
    with transport_of(door) as transport:
        server = echoic.Server(rollout.EXAMPLE, 2, capacity=4, transport=transport)
        crew = ProcessCrew(3, model, WeightsBlock(params, SPAWN), server, seed=0)
        with server, crew:
            workers = rollouts_by_worker(server)
            kill_when_it_has_sent(workers, 1)
            others = [number for number in itertools.islice(workers, 300) if number != 1]
    # All that the killed one had on its way is far less.
    assert len(others) > 250
    assert set(others) == {0, 2}
    assert crew.lost == ["worker 1: ended with status -9"]


def test_run_ends_with_an_error_when_the_last_worker_is_killed() -> None:
    model, params = small_model()
    with transport_of("unix") as transport:
        server = echoic.Server(rollout.EXAMPLE, 2, capacity=4, transport=transport)
        crew = ProcessCrew(1, model, WeightsBlock(params, SPAWN), server, seed=0)
        workers = rollouts_by_worker(server)

        def run() -> None:
            with server, crew:
                kill_when_it_has_sent(workers, 0)
                assert set(workers) <= {0}

        with pytest.raises(RuntimeError, match=r"^worker 0: ended with status -9$"):
            run()


def test_run_ends_with_an_error_when_a_worker_process_fails(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model, _ = small_model()
    with transport_of("unix") as transport:
        server = echoic.Server(rollout.EXAMPLE, 2, capacity=4, transport=transport)
        crew = ProcessCrew(2, model, BrokenWeights(), server, seed=0)
        with pytest.raises(RuntimeError, match="its own error is above"), server, crew:
            assert list(server.batches()) == []
    assert "LookupError: no weights today" in capfd.readouterr().err


def test_worker_that_is_not_let_in_says_why() -> None:
    model, params = small_model()
    with transport_of("unix") as transport:
        assert transport is not None
        server = echoic.Server(np.int64(0), 2, transport=replace(transport, token="a secret"))
        crew = ProcessCrew(1, model, WeightsBlock(params, SPAWN), server, seed=0)
        with pytest.raises(RuntimeError, match="token"), server, crew:
            assert list(server.batches()) == []


# The weights.


def kinds_of_weights(params: Array) -> list[SharedWeights | WeightsBlock]:
    return [SharedWeights(params), WeightsBlock(params, SPAWN)]


@pytest.mark.parametrize("kind", [0, 1])
def test_published_version_does_not_change_with_the_learner(kind: int) -> None:
    params = np.zeros(3, np.float32)
    weights = kinds_of_weights(params)[kind]
    params += 1
    weights.publish(params)
    params += 1
    number, published = weights.latest()
    assert number == 1
    assert published.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        published[0] = 5


def as_in_another_process(weights: WeightsBlock) -> WeightsBlock:
    """The memory is shared, and what was read from it is not."""
    return copy.copy(weights)


def test_reader_of_the_block_gets_the_latest_version() -> None:
    params = np.zeros(3, np.float32)
    weights = WeightsBlock(params, SPAWN)
    reader = as_in_another_process(weights)
    assert reader.latest() is weights.latest()
    for _ in range(3):
        params += 1
        weights.publish(params)
    number, found = reader.latest()
    assert (number, found.tolist()) == (3, [3, 3, 3])
    assert reader.latest().params is found


def test_block_that_is_half_written_leaves_its_reader_the_version_that_it_has() -> None:
    params = np.ones(3, np.float32)
    weights = WeightsBlock(params, SPAWN)
    reader = as_in_another_process(weights)
    weights.publish(params)
    weights._block[-1] ^= 1
    assert reader.latest().number == 0
    weights._block[-1] ^= 1
    assert reader.latest().number == 1


def read_versions(weights: WeightsBlock, reports: Connection, count: int) -> None:
    seen = {0}
    while len(seen) < count:
        number, params = weights.latest()
        if set(params.tolist()) != {number}:
            break
        seen.add(number)
    reports.send(len(seen))


def test_reader_in_another_process_never_sees_a_mixture_of_versions() -> None:
    params = np.zeros(2_000, np.float32)
    weights = WeightsBlock(params, SPAWN)
    reports, reporter = SPAWN.Pipe(duplex=False)
    reader = SPAWN.Process(target=read_versions, args=(weights, reporter, 50))
    reader.start()
    with reports:
        while not reports.poll():
            params += 1
            weights.publish(params)
        assert reports.recv() == 50
    reader.join()


# The mathematics.


def differences(loss: Callable[[Array], float], params: Array) -> Array:
    """The gradient of `loss` at `params` by central differences."""
    gradient = np.empty_like(params)
    for i in range(len(params)):
        step = np.zeros_like(params)
        step[i] = 1e-6
        gradient[i] = (loss(params + step) - loss(params - step)) / 2e-6
    return gradient


def test_gradient_of_a_network_agrees_with_differences() -> None:
    rng = np.random.default_rng(2)
    network = Network((3, 6, 5, 2))
    params = rng.normal(size=network.size)
    inputs = rng.normal(size=(7, 3))
    weights = rng.normal(size=(7, 2))

    def loss(at: Array) -> float:
        return float((network.forward(at, inputs)[-1] * weights).sum())

    gradient = network.backward(params, network.forward(params, inputs), weights)
    np.testing.assert_allclose(gradient, differences(loss, params), atol=1e-7)


@pytest.mark.parametrize(
    ("clip", "bonus", "value_weight"),
    [(0.2, 0.0, 0.0), (1e9, 0.0, 0.0), (0.2, 0.7, 0.0), (0.2, 0.01, 0.5)],
    ids=["clipped", "unclipped", "entropy", "all"],
)
def test_gradient_of_the_loss_agrees_with_differences(
    clip: float, bonus: float, value_weight: float
) -> None:
    rng = np.random.default_rng(3)
    model = ActorCritic(4, 3, hidden=5)
    params = rng.normal(size=model.size)
    n = 40
    data = ppo.Transitions(
        obs=rng.normal(size=(n, 4)),
        action=rng.integers(3, size=n),
        log_prob=np.log(rng.uniform(0.1, 0.9, size=n)),
        advantage=rng.normal(size=n),
        value_target=rng.normal(size=n),
    )
    settings = replace(ppo.Settings(), clip=clip, entropy_bonus=bonus, value_weight=value_weight)

    def loss(at: Array) -> float:
        return ppo.loss_and_gradient(model, at, data, settings)[0]

    _, gradient = ppo.loss_and_gradient(model, params, data, settings)
    assert np.abs(gradient).max() > 0.01
    np.testing.assert_allclose(gradient, differences(loss, params), atol=1e-7)
    free = ppo.loss_and_gradient(model, params, data, replace(settings, clip=1e9))[1]
    # The data has steps beyond the clip, or clipping would not be tested.
    assert np.allclose(gradient, free) == (clip == 1e9)


def test_advantages_agree_with_their_definition_as_a_sum() -> None:
    rng = np.random.default_rng(4)
    shape = (3, 12)
    reward, value, next_value = rng.normal(size=(3, *shape))
    terminated = rng.random(shape) < 0.15
    truncated = (rng.random(shape) < 0.15) & ~terminated
    step = {"reward": reward, "terminated": terminated, "truncated": truncated}
    settings = replace(ppo.Settings(), discount=0.9, trace=0.8)
    found = ppo.advantages(step, value, next_value, settings)

    for row in range(shape[0]):
        for start in range(shape[1]):
            expected, factor = 0.0, 1.0
            for t in range(start, shape[1]):
                bootstrap = 0.0 if terminated[row, t] else 0.9 * next_value[row, t]
                expected += factor * (reward[row, t] + bootstrap - value[row, t])
                factor *= 0.9 * 0.8
                if terminated[row, t] or truncated[row, t]:
                    break
            assert found[row, start] == pytest.approx(expected)


def test_time_limit_still_expects_the_value_of_where_it_led() -> None:
    one = np.ones((1, 1))
    yes, no = one.astype(bool), ~one.astype(bool)
    cut_step = {"reward": one, "terminated": no, "truncated": yes}
    fallen_step = {"reward": one, "terminated": yes, "truncated": no}
    settings = replace(ppo.Settings(), discount=0.5)
    cut = ppo.advantages(cut_step, 3 * one, 8 * one, settings)
    fallen = ppo.advantages(fallen_step, 3 * one, 8 * one, settings)
    assert cut.item() == 1 + 0.5 * 8 - 3
    assert fallen.item() == 1 - 3


def test_adam_finds_the_lowest_point() -> None:
    lowest = np.array([1.0, -2.0, 0.5], np.float32)
    params = np.zeros(3, np.float32)
    adam = ppo.Adam(3, learning_rate=0.05)
    adam.step(params, params - lowest)
    # The first step is as long as the rate, whatever the gradient's size.
    np.testing.assert_allclose(params, 0.05 * np.sign(lowest), rtol=1e-3)
    for _ in range(1000):
        adam.step(params, params - lowest)
    np.testing.assert_allclose(params, lowest, atol=1e-2)


def test_initial_weights_are_orthogonal() -> None:
    network = Network((4, 8, 2))
    params = network.initial(np.random.default_rng(5), last_gain=0.5)
    (wide, bias), (tall, _) = network.layers(params)
    np.testing.assert_allclose(wide @ wide.T, 2 * np.eye(4), atol=1e-5)
    np.testing.assert_allclose(tall.T @ tall, 0.25 * np.eye(2), atol=1e-5)
    assert not bias.any()


def test_actor_samples_with_the_probabilities_that_it_states() -> None:
    model = ActorCritic(4, 3, hidden=8)
    rng = np.random.default_rng(6)
    actor = Actor(model, rng.normal(size=model.size))
    obs = rng.normal(size=4) * 0.1
    draws = random.Random(7)
    samples = [actor.sample(obs, draws) for _ in range(20_000)]
    stated = {action: np.exp(log_prob) for action, log_prob in samples}
    assert sum(stated.values()) == pytest.approx(1)
    for action, prob in stated.items():
        share = sum(taken == action for taken, _ in samples) / len(samples)
        assert share == pytest.approx(prob, abs=0.015)
    assert actor.greedy(obs) == max(stated, key=lambda action: stated[action])


def test_evaluation_plays_whole_episodes_and_repeats_with_its_seed() -> None:
    model, params = small_model()
    returns = evaluate(model, params, episodes=3, seed=11)
    assert len(returns) == 3
    assert all(1 <= value <= 500 for value in returns)
    assert evaluate(model, params, episodes=3, seed=11) == returns


# What the person sees.


def progress_of(*lessons: tuple[float, Lesson]) -> Progress:
    times = iter([0.0, *(seconds for seconds, _ in lessons)])
    progress = Progress(clock=lambda: next(times))
    for _, lesson in lessons:
        progress.add(lesson)
    return progress


def test_score_needs_enough_episodes_and_forgets_old_ones() -> None:
    few = progress_of((1.0, Lesson(64, [500.0] * (EPISODES - 1), [0])))
    assert few.mean_return == 500
    assert not few.reached(400)
    fell = progress_of(
        (1.0, Lesson(64, [500.0] * EPISODES, [0])),
        (2.0, Lesson(64, [100.0] * (EPISODES // 2), [0])),
    )
    assert fell.mean_return == 300
    assert fell.reached(300)
    assert not fell.reached(301)


def test_rate_looks_at_the_last_second_only() -> None:
    progress = progress_of(*((seconds, Lesson(100, [], [0])) for seconds in (0.5, 1.0, 1.5, 2.0)))
    assert progress.rate(0.0) == 0
    assert progress.rate(0.5) == 200
    assert progress.rate(2.0) == 200
    slower = progress_of(*((seconds, Lesson(100, [], [0])) for seconds in (1.0, 11.0)))
    assert slower.rate(11.0) == 10


def test_live_view_shows_training_and_transport() -> None:
    server = echoic.Server({"x": np.float32(0)}, batch_size=2, capacity=4)
    for _ in range(3):
        server.add({"x": 1.0})
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    progress = progress_of((2.0, Lesson(1234, [40.0, 60.0], [1, 4])))
    view = LiveView(console, budget=5000, target=400)
    flows = [
        Flow("shm://pole", f"process {number}", 1000.0 + number, 0.25)
        for number in range(CONNECTIONS + 2)
    ]
    with view:
        view.update(progress, server.info, flows)
    shown = screen.getvalue()
    for text in (
        "50.0 of 400",
        "1,234 of 5,000",
        "617 steps/s",
        "2.5 versions",
        "4 versions",
        "3 of 4",
        "submit to available",
        "process 7",
        "1,007 steps/s",
        "25%",
        "and 2 more",
        "to shm://pole",
    ):
        assert text in shown
    assert "process 8" not in shown


def test_live_view_of_threads_shows_no_connections() -> None:
    server = echoic.Server({"x": np.float32(0)}, batch_size=2, capacity=4)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    view = LiveView(console, budget=5000, target=400)
    with view:
        view.update(progress_of((2.0, Lesson(1234, [], [1]))), server.info, [])
    assert "blocked pushes" in screen.getvalue()
    assert "Connections" not in screen.getvalue()


def connection(number: int, age: float, samples: int, blocked_time: float) -> dict[str, Any]:
    return {
        "id": number,
        "address": "tcp://localhost:1",
        "peer": f"peer {number}",
        "age": age,
        "samples": samples,
        "blocked_time": blocked_time,
    }


def flow(number: int, rollouts_per_second: float, blocked: float) -> Flow:
    rate = rollouts_per_second * rollout.LENGTH
    return Flow("tcp://localhost:1", f"peer {number}", rate, blocked)


def test_traffic_is_that_of_the_last_looks() -> None:
    looks = iter(
        [
            [connection(1, 0.5, 10, 0.1)],
            [connection(2, 0.25, 5, 0.0), connection(1, 1.5, 30, 0.6)],
            [connection(2, 4.25, 25, 60.0)],
        ]
    )
    times = iter([0.0, 0.4, 1.0, 1.4, 2.0, 6.0])
    traffic = Traffic(lambda: next(looks), clock=lambda: next(times))
    assert traffic.flows() == []
    # A connection that is new counts from its own beginning.
    first = [flow(1, 20.0, 0.2)]
    assert traffic.flows() == first
    assert traffic.flows() == first
    assert traffic.flows() == [flow(1, 20.0, 0.5), flow(2, 20.0, 0.0)]
    # The first look did not have this one yet. It has waited longer than it was looked at.
    assert traffic.flows() == [flow(2, 25 / 4.25, 1.0)]


def test_traffic_forgets_what_was_long_ago() -> None:
    samples = itertools.chain([1000], itertools.count(2000, 3))
    times = itertools.count()
    traffic = Traffic(
        lambda: [connection(1, 100.0, next(samples), 0.0)], clock=lambda: float(next(times))
    )
    flows = [traffic.flows() for _ in range(Traffic.LOOKS + 2)]
    assert flows[Traffic.LOOKS - 1] != [flow(1, 3.0, 0.0)]
    assert flows[-1] == [flow(1, 3.0, 0.0)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.5 s"), (0.0125, "12.5 ms"), (3.2e-6, "3.2 µs"), (4e-8, "40 ns")],
)
def test_duration_has_a_fitting_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sparkline_goes_from_nothing_to_the_highest_return() -> None:
    assert sparkline([float("nan"), 0.0, 250.0, 500.0], 10) == "▁▅█"


def test_sparkline_of_many_values_ends_with_the_latest() -> None:
    assert sparkline([0.0] * 30 + [500.0] * 10, 4) == "▁▁▁█"
