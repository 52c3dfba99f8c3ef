"""The demo finishes, counts right and learns; its processes end with it, and its gradient is right.

No test here looks at a speed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from echoic import demo
from echoic.demo import EPISODES, Adam, Array, Learner, Network, Options, Progress
from matplotlib.image import imread

ROOT = Path(__file__).resolve().parent.parent
STEPS_PER_BATCH = demo.ENVS * demo.STEPS
# An untrained policy holds the pole for about 22 steps.
UNTRAINED = 22
INTERRUPTED = 130


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "echoic", "demo", *arguments]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def assert_is_a_picture(path: Path) -> None:
    pixels = imread(path)
    assert min(pixels.shape[:2]) >= 400
    # One number for a pixel: to sort rows takes seconds.
    colors = (pixels[:, :, :3] * 255).astype(np.int64) @ [1 << 16, 1 << 8, 1]
    assert len(np.unique(colors)) > 50


# A whole run.


def test_policy_is_learned(tmp_path: Path) -> None:
    target = 5 * UNTRAINED
    progress, learner = demo.train(Options(steps=100_000, target=target, out=tmp_path))
    assert progress.reached
    assert progress.steps == len(progress.rows) * STEPS_PER_BATCH <= 100_000
    assert np.mean(progress.returns[:50]) < 2 * UNTRAINED
    assert np.mean(progress.returns[-EPISODES:]) >= target
    assert np.mean(learner.evaluate(20, seed=0)) >= target
    assert json.loads((tmp_path / "cartpole.json").read_text()) == progress.rows


def test_missed_target_is_exit_status_1_and_no_terminal_gets_plain_lines(tmp_path: Path) -> None:
    done = run_demo("--steps", "1", "--workers", "1", "--out", str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert "Missed the target of 400 after 1,024 steps" in done.stdout
    assert re.search(r"^ *\d+\.\d s +1,024 steps ", done.stdout, re.MULTILINE)
    assert re.search(r"echoic top (shm|unix)://", done.stdout)
    assert "\x1b" not in done.stdout


def test_reached_target_is_exit_status_0_and_the_last_line_names_the_plot(tmp_path: Path) -> None:
    out = tmp_path / "made" / "on the way"
    done = run_demo("--target", "8", "--workers", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "Reached the target of 8" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert str(out / "cartpole.png") in last
    assert float(last.split()[-1]) >= 8
    assert_is_a_picture(out / "cartpole.png")


def endless(tmp_path: Path) -> subprocess.Popen[str]:
    """A run that has begun to learn."""
    options = ("--workers", "2", "--target", "1000", "--steps", "10000000", "--out", str(tmp_path))
    process = subprocess.Popen(
        command(*options),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    assert any(" steps/s " in line for line in iter(process.stdout.readline, ""))
    return process


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_an_interrupt_or_the_learner(
    end: signal.Signals, tmp_path: Path
) -> None:
    with endless(tmp_path) as process:
        try:
            # Ctrl-C goes to all processes of a terminal's group.
            os.killpg(process.pid, end)
            # Both pipes have an end only when every process that could write to them is gone.
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    if end == signal.SIGINT:
        assert process.returncode == INTERRUPTED
        assert errors == "echoic: interrupted; all workers have stopped\n"
    else:
        assert (process.returncode, errors) == (-end, "")


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_a_killed_worker_is_replaced_and_the_run_goes_on(tmp_path: Path) -> None:
    with endless(tmp_path) as process:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            os.kill(int(children.split()[0]), signal.SIGKILL)
            assert process.stderr
            told = next(line for line in process.stderr if "was replaced" in line)
            assert "was killed by SIGKILL" in told
            assert process.stdout
            assert [process.stdout.readline() for _ in range(2)][-1].count(" steps/s ") == 1
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)
    assert process.returncode == INTERRUPTED


def test_worker_process_imports_nothing_for_the_eye() -> None:
    script = "import sys, echoic.demo as _; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & {"matplotlib", "rich", "typer"}


@pytest.mark.parametrize("option", ["--workers", "--steps"])
def test_zero_is_refused(option: str) -> None:
    done = run_demo(option, "0")
    assert done.returncode == 2
    assert option in done.stderr


def test_score_needs_enough_episodes_and_forgets_old_ones() -> None:
    progress, lag = Progress(Options(target=300.0)), np.zeros(1)

    def add(returns: list[float]) -> None:
        progress.add({"episode_returns": np.array([*returns, np.nan], np.float32)}, lag)

    add([500.0] * (EPISODES - 1))
    assert (progress.mean_return, progress.reached) == (500, False)
    add([500.0] * 51 + [100.0] * 50)
    assert (progress.mean_return, progress.reached) == (300, True)


# The mathematics.


def test_gradient_of_the_loss_agrees_with_differences() -> None:
    rng = np.random.default_rng(3)
    params = rng.normal(size=demo.ACTOR.size + demo.CRITIC.size) * 0.3
    n = 40
    data: dict[str, Array] = {
        "obs": rng.normal(size=(n, demo.OBSERVATION)),
        "actions": rng.integers(demo.ACTIONS, size=n),
        "log_probs": np.log(rng.uniform(0.1, 0.9, size=n)),
        "advantages": rng.normal(size=n),
        "targets": rng.normal(size=n),
    }
    for clip in (demo.CLIP, 1e9):
        _, gradient = demo.ppo_loss(params, data, clip)
        assert np.abs(gradient).max() > 0.01
        for _ in range(20):
            step = rng.normal(size=params.shape) * 1e-6
            higher, lower = (demo.ppo_loss(params + s, data, clip)[0] for s in (step, -step))
            assert (higher - lower) / 2 == pytest.approx(gradient @ step, rel=1e-3, abs=1e-9)
    # The data has steps beyond the clip, or clipping would not be tested.
    assert not np.allclose(gradient, demo.ppo_loss(params, data)[1])


def test_adam_finds_the_lowest_point() -> None:
    lowest = np.array([1.0, -2.0, 0.5], np.float32)
    params = np.zeros(3, np.float32)
    adam = Adam(3, learning_rate=0.05)
    adam.step(params, params - lowest)
    # The first step is as long as the rate, whatever the gradient's size.
    np.testing.assert_allclose(params, 0.05 * np.sign(lowest), rtol=1e-3)
    for _ in range(1000):
        adam.step(params, params - lowest)
    np.testing.assert_allclose(params, lowest, atol=1e-2)


def test_workers_act_with_the_probabilities_that_they_state() -> None:
    rng = np.random.default_rng(6)
    params = rng.normal(size=demo.ACTOR.size + demo.CRITIC.size) * 0.3
    obs = np.repeat(rng.normal(size=(1, demo.OBSERVATION)), 20_000, axis=0)
    actions, extras = demo.act(params, obs, rng)
    stated = np.exp([extras["log_probs"][actions == action][0] for action in (0, 1)])
    assert stated.sum() == pytest.approx(1)
    assert np.mean(actions == 1) == pytest.approx(stated[1], abs=0.015)


def test_last_layer_of_a_new_network_is_scaled() -> None:
    network = Network((4, 64, 2))
    (_, bias), (last, _) = network.layers(network.initial(np.random.default_rng(5), 0.01))
    assert np.abs(last).max() < 0.01
    assert not bias.any()


def test_evaluation_plays_whole_episodes_and_repeats_with_its_seed() -> None:
    learner = Learner(seed=1)
    returns = learner.evaluate(episodes=3, seed=11)
    assert len(returns) == 3
    assert all(1 <= value <= 500 for value in returns)
    assert learner.evaluate(episodes=3, seed=11) == returns
