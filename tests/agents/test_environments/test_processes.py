"""Environments in processes of their own: the same from outside, whatever happens within."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from conformance import Expert, play
from echoic.agents.environments import (
    EnvironmentProcess,
    EnvironmentProcessError,
    make_environment,
)
from echoic.errors import ArgumentError, ClosedError
from gymnasium.utils.env_checker import check_env

HERE = str(Path(__file__).parent)
ROOMS = {"num_rooms": 4, "state_encoding_dim": 64}


def is_gone(pid):
    """Whether a process ends within a moment; one that nobody has waited for counts as ended."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_it_is_the_same_environment_as_without_a_process():
    here = make_environment("rooms", **ROOMS)
    with EnvironmentProcess("rooms", ROOMS) as there:
        assert there.instructions == here.instructions
        assert there.observation_space == here.observation_space
        for seed in (5, None):
            (seen, info), (expected, told) = there.reset(seed=seed), here.reset(seed=seed)
            for _ in range(12):
                assert seen["text"] == expected["text"]
                assert seen["vector"].dtype == np.float32
                np.testing.assert_array_equal(seen["vector"], expected["vector"])
                np.testing.assert_array_equal(info.pop("command_mask"), told.pop("command_mask"))
                assert info == told
                command = here.expert()
                assert there.expert() == command
                seen, *one, info = there.step(command)
                expected, *other, told = here.step(command)
                assert one == other
                if one[1]:
                    break
        assert there.get_statistics() == here.get_statistics()
        assert there.render() == here.render()
        assert play(there, Expert(there), 3).success
        with pytest.warns(UserWarning, match="alternative render"):
            check_env(there)


def test_whatever_a_worker_does_ends_its_episode_at_most(monkeypatch):
    """One environment, whose workers hang, die, print, raise, and are given no JSON."""
    monkeypatch.syspath_prepend(HERE)
    settings = {"seed": 3}
    environment = EnvironmentProcess("misbehaving", settings, timeout=0.5, imports=["misbehaving"])
    texts = [environment.reset()[0]["text"]]
    pid, began = environment._worker.pid, time.monotonic()
    with pytest.raises(
        EnvironmentProcessError, match=r"was killed: an answer took longer than 0.5 s"
    ):
        environment.step("hang")
    # It would have hung for ten minutes.
    assert time.monotonic() - began < 60
    assert is_gone(pid)
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.step("wait")
    environment.timeout = 20.0
    for command, ending in (
        ("die", r"was killed by SIGKILL(?s:.*)the last words"),
        ("leave", "ended with code 3"),
    ):
        texts.append(environment.reset()[0]["text"])
        with pytest.raises(EnvironmentProcessError, match=ending):
            environment.step(command)
    texts.append(environment.reset()[0]["text"])
    os.kill(environment._worker.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentProcessError, match="killed by SIGKILL"):
        environment.step("wait")
    texts.append(environment.reset()[0]["text"])
    assert environment.replacements == 4
    assert len(set(texts)) == 5, "a replacement does not repeat the episodes before it"

    pid = environment._worker.pid
    assert environment.step("print")[0]["text"] == "Fine."
    with pytest.raises(EnvironmentProcessError, match="ZeroDivisionError: not by zero"):
        environment.step("raise")
    with pytest.raises(EnvironmentProcessError, match="'set' object has no attribute 'tolist'"):
        environment.step("answer no JSON")
    with pytest.raises(ArgumentError, match="no JSON"):
        environment.reset(options={"x": object()})
    with pytest.raises(ArgumentError, match="not float"):
        environment.step(0.5)
    assert environment.step("wait")[0]["text"] == "Fine."
    assert environment.step("win")[2]
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.step("wait")
    environment.reset(seed=1)
    assert environment._worker.pid == pid

    child = environment.step("have children")[-1]["child"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(environment.step, "hang")
        time.sleep(0.1)
        environment.close()
        # The wait would have taken 20 seconds.
        with pytest.raises(EnvironmentProcessError, match="is closed"):
            waiting.result(timeout=10)
    environment.close()
    assert is_gone(pid)
    assert is_gone(child)
    with pytest.raises(ClosedError):
        environment.reset()


def test_errors_of_settings_come_from_the_environment():
    with pytest.raises(ArgumentError, match="has no setting 'rooms'"):
        EnvironmentProcess("rooms", {"rooms": 3})
    with pytest.raises(ArgumentError, match="no JSON"):
        EnvironmentProcess("rooms", {"seed": object()})
    for seconds in (0, float("inf"), float("nan")):
        with pytest.raises(ArgumentError, match="timeout"):
            EnvironmentProcess("rooms", timeout=seconds)


SCRIPT = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
from echoic.agents.environments import EnvironmentProcess
environment = EnvironmentProcess("misbehaving", timeout=0.5, imports=["misbehaving"])
environment.reset(seed=1)
print(environment._worker.pid, flush=True)
if sys.argv[2] == "killed":
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    environment.step("hold the interpreter")
"""


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_no_worker_outlives_the_process_that_started_it(how):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, HERE, how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (0 if how == "ended" else -signal.SIGKILL), done.stderr
    assert is_gone(int(done.stdout))


def test_sizes_are_those_of_what_was_made(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    with EnvironmentProcess("narrow", imports=["misbehaving"]) as environment:
        assert (environment.get_state_dim(), environment.get_action_space_size()) == (3, 3)
        observation, info = environment.reset(seed=1)
        assert environment.observation_space["vector"].shape == observation["vector"].shape == (3,)
        assert environment.observation_space["vector"].high.tolist() == [9.0] * 3
        assert environment.action_space.n == len(info["command_mask"]) == 3
        assert environment.step(1)[2]
