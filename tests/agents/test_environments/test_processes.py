"""Environments in processes of their own: the same from outside, whatever happens within."""

import os
import signal
import subprocess
import sys
import time
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
from echoic.agents.environments.processes import as_json, from_json
from echoic.errors import ArgumentError, ClosedError
from gymnasium.utils.env_checker import check_env

HERE = str(Path(__file__).parent)
ROOMS = {"num_rooms": 4, "state_encoding_dim": 64}


@pytest.fixture
def misbehaving(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    made = []

    def make(**options):
        options = {"imports": ["misbehaving"], "timeout": 20.0, **options}
        one = EnvironmentProcess("misbehaving", **options)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


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


def test_a_hanging_worker_is_killed_and_replaced(misbehaving):
    environment = misbehaving(timeout=0.5)
    environment.reset(seed=1)
    pid, began = environment.worker_pid, time.monotonic()
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
    environment.reset(seed=1)
    assert environment.replacements == 1
    assert environment.step("win")[2]


def test_a_dead_worker_is_an_error_that_says_how_it_died(misbehaving):
    environment = misbehaving()
    environment.reset(seed=1)
    with pytest.raises(
        EnvironmentProcessError, match=r"was killed by SIGKILL(?s:.*)the last words"
    ):
        environment.step("die")
    environment.reset()
    with pytest.raises(EnvironmentProcessError, match="ended with code 3"):
        environment.step("leave")
    environment.reset()
    os.kill(environment.worker_pid, signal.SIGKILL)
    with pytest.raises(EnvironmentProcessError, match="killed by SIGKILL"):
        environment.step("wait")
    assert environment.reset()[1]["valid"]


def test_one_that_took_anothers_place_does_not_repeat_its_episodes(misbehaving):
    environment = misbehaving(settings={"seed": 3})
    texts = [environment.reset()[0]["text"]]
    for _ in range(2):
        pid = environment.worker_pid
        os.kill(pid, signal.SIGKILL)
        assert is_gone(pid)
        texts.append(environment.reset()[0]["text"])
    assert len(set(texts)) == 3


def test_what_is_printed_and_raised_in_a_worker_ends_nothing(misbehaving):
    environment = misbehaving()
    environment.reset(seed=1)
    assert environment.step("print")[0]["text"] == "Fine."
    with pytest.raises(EnvironmentProcessError, match="ZeroDivisionError: not by zero"):
        environment.step("raise")
    assert environment.step("wait")[0]["text"] == "Fine."
    assert environment.replacements == 0
    environment.step("win")
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.step("wait")
    environment.reset()
    with pytest.raises(ArgumentError, match="not float"):
        environment.step(0.5)


def test_errors_of_settings_come_from_the_environment():
    with pytest.raises(ArgumentError, match="has no setting 'rooms'"):
        EnvironmentProcess("rooms", {"rooms": 3})
    for seconds in (0, float("inf"), float("nan")):
        with pytest.raises(ArgumentError, match="timeout"):
            EnvironmentProcess("rooms", timeout=seconds)


def test_close_kills_the_worker_and_what_it_started(misbehaving):
    environment = misbehaving()
    environment.reset(seed=1)
    child = environment.step("have children")[-1]["child"]
    pid = environment.worker_pid
    environment.close()
    environment.close()
    assert is_gone(pid)
    assert is_gone(child)
    with pytest.raises(ClosedError):
        environment.reset()


SCRIPT = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from echoic.agents.environments import EnvironmentProcess
environment = EnvironmentProcess("misbehaving", timeout=1.0, imports=["misbehaving"])
environment.reset(seed=1)
print(environment.worker_pid, flush=True)
if sys.argv[2] == "killed":
    environment._worker.send("step", 1.0, action="hold the interpreter")
    os.kill(os.getpid(), signal.SIGKILL)
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


def test_arrays_come_through_as_they_are():
    for array in (
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.array([True, False]),
        np.zeros((0, 2)),
    ):
        back = from_json(as_json(array))
        np.testing.assert_array_equal(back, array)
        assert back.dtype == array.dtype.newbyteorder("=")
        assert back.flags.writeable
    with pytest.raises(TypeError, match="an environment returned a set, which is no JSON"):
        as_json({1})


def test_sizes_are_those_of_what_was_made(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    with EnvironmentProcess("narrow", imports=["misbehaving"]) as environment:
        assert (environment.get_state_dim(), environment.get_action_space_size()) == (3, 3)
        observation, info = environment.reset(seed=1)
        assert environment.observation_space["vector"].shape == observation["vector"].shape == (3,)
        assert environment.observation_space["vector"].high.tolist() == [9.0] * 3
        assert environment.action_space.n == len(info["command_mask"]) == 3
        assert environment.step(1)[2]


def test_what_is_no_json_is_refused_and_leaves_no_question_open(misbehaving):
    environment = misbehaving()
    environment.reset(seed=1)
    pid = environment.worker_pid
    with pytest.raises(ArgumentError, match="no JSON"):
        environment.reset(options={"x": object()})
    assert environment.step("wait")[0]["text"] == "Fine."
    assert environment.worker_pid == pid
    with pytest.raises(ArgumentError, match="no JSON"):
        misbehaving(settings={"seed": object()})
