"""The shared part of environments, by the smallest one there can be, and wrappers around some."""

import itertools
import re
import zlib

import gymnasium
import numpy as np
import pytest
from conformance import (
    cannot_be_farmed,
    index_is_command,
    is_deterministic,
    is_gymnasium,
    is_patient,
    is_solved,
)
from echoic.agents.environments import (
    EchoRLEnvironment,
    EnvironmentConfig,
    Outcome,
    TextEncoder,
    base,
    environment_names,
    make_environment,
    register_environment,
)
from echoic.errors import ArgumentError, ClosedError


class Guess(EchoRLEnvironment):
    instructions = "Say the number that I think of."

    def _start(self, options):
        self._number = int(self.np_random.integers(50))
        return f"Something below {50 + self._number}."

    def _apply(self, command):
        if not command.isdigit():
            return None
        right = int(command) == self._number
        return Outcome("Yes." if right else "No.", float(right), right, float(right))

    def _commands(self):
        return [str(i) for i in range(50)]

    def expert(self):
        return str(self._number)


def make(**settings):
    return Guess(EnvironmentConfig(action_space_size=50, timeout_penalty=0.0, **settings))


def test_it_conforms():
    is_gymnasium(make)
    is_solved(make, range(5))
    is_deterministic(make)
    is_patient(make)
    cannot_be_farmed(make, range(3), most=1.0)
    index_is_command(make)


def test_steps_are_limited_and_a_cut_off_episode_is_no_success():
    config = EnvironmentConfig(max_steps=2, timeout_penalty=-0.5, reward_scale=2.0)
    environment = Guess(config)
    environment.reset(seed=1)
    wrong = str(int(environment.expert()) + 1)
    assert environment.step(wrong)[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = environment.step(wrong)
    assert (reward, terminated, truncated, info["success"]) == (-1.0, False, True, False)
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.step(wrong)
    environment.reset()
    assert environment.step(environment.expert())[1] == 2.0
    assert environment.get_statistics() == {
        "episodes": 2,
        "success_rate": 0.5,
        "average_reward": 0.5,
        "average_steps": 1.5,
    }


def test_the_seed_of_the_settings_is_that_of_the_first_episode():
    one, other = (Guess(EnvironmentConfig(seed=4)) for _ in range(2))
    for _ in range(3):
        assert one.reset()[0]["text"] == other.reset()[0]["text"]
    assert one.reset(seed=4)[0]["text"] == Guess(EnvironmentConfig()).reset(seed=4)[0]["text"]


def test_what_is_no_action_is_refused():
    environment = make()
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.step("1")
    environment.reset(seed=0)
    with pytest.raises(ArgumentError, match="text or an index of a listed command, not float"):
        environment.step(0.5)
    environment.step(np.int64(3))
    environment.step(np.array(3))
    environment.close()
    with pytest.raises(ClosedError):
        environment.reset()


def test_nonsense_shows_what_was_seen_once():
    environment = make()
    seen = environment.reset(seed=0)[0]["text"]
    for _ in range(3):
        text = environment.step("what?")[0]["text"]
    assert text == f"Nothing happens: 'what?' is no command here.\n{seen}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": 0}, "max_steps must be at least 1, not 0"),
        ({"success_threshold": 0.0}, "above 0 and at most 1, not 0.0"),
        ({"reward_scale": float("nan")}, "reward_scale must be a finite number, not nan"),
        ({"action_format": "voice"}, "one of text, discrete, not 'voice'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ArgumentError, match=message):
        EnvironmentConfig(**settings)


def test_names_are_looked_up_and_can_be_added(monkeypatch):
    monkeypatch.setattr("echoic.agents.environments.base._USERS", {})
    assert {"minigrid", "alfworld", "webshop", "cruxeval", "arc"} <= set(environment_names())
    register_environment("guess", make)
    assert isinstance(make_environment("guess", max_steps=3), Guess)
    with pytest.raises(ArgumentError, match="there is no environment 'gues'; there are alfworld"):
        make_environment("gues")


def test_texts_alike_have_vectors_alike():
    encoder = TextEncoder(512)
    one, near, far = (
        encoder(text)
        for text in ("go to desk 1", "go to desk 2", "your cart holds a red lamp of 12 dollars")
    )
    assert one.dtype == np.float32
    assert float(one @ one) == pytest.approx(1.0)
    assert float(one @ near) > 0.4 > abs(float(one @ far))
    assert not encoder("").any()
    with pytest.raises(ArgumentError):
        TextEncoder(0)


def test_settings_are_numbers_that_end():
    for value in (float("nan"), float("inf"), 0):
        with pytest.raises(ArgumentError, match=r"max_steps must be .*at least 1, not"):
            EnvironmentConfig(max_steps=value)


@pytest.mark.parametrize("name", ["rooms", "game24", "cruxeval"])
def test_the_expert_is_asked_within_an_episode(name):
    environment = make_environment(name)
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.expert()
    environment.reset(seed=0)
    assert environment.expert()


def test_half_a_character_has_a_vector_too():
    assert TextEncoder(8)("\ud800 x").any()


@pytest.mark.parametrize(
    "text",
    [
        "You hold a key. There is a door. You hold a key.",
        "one: two\nthree. four!  five? ",
        "a" * 300 + ". short. " + "b c " * 100,
        "word " * 5000 + "end",
        ". . .",
        "caf\u00e9. \ud800 x",
    ],
)
def test_a_vector_is_that_of_words_and_pairs_wherever_it_comes_from(text):
    words = re.findall(r"[a-z]+|\d|[^\sa-z\d]", text.lower())[:4096]
    features = words + [f"{a} {b}" for a, b in itertools.pairwise(words)]
    wanted = np.zeros(64)
    for one in features:
        number = zlib.crc32(one.encode("utf-8", "surrogatepass"))
        wanted[(number >> 1) % 64] += 1 if number & 1 else -1
    encoder = TextEncoder(64)
    first = encoder(text)
    np.testing.assert_array_equal(first, (wanted / np.linalg.norm(wanted)).astype(np.float32))
    # A vector is the caller's own, also where it was kept.
    first[:] = 9
    np.testing.assert_array_equal(encoder(text), (wanted / np.linalg.norm(wanted)).astype("f4"))


def test_what_is_kept_is_bounded():
    encoder = TextEncoder(4)
    for number in range(base.MOST_KEPT + 10):
        encoder(f"{number}")
    assert base._kept.cache_info().currsize == base.MOST_KEPT
    before = base._kept.cache_info().misses
    encoder("x" * base.LARGEST_KEPT)
    TextEncoder(base.LARGEST_KEPT // 4)("x")
    assert base._kept.cache_info().misses == before
