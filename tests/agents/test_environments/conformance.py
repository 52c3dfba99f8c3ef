"""What holds for every environment; each has a test file that asks for it."""

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from echoic.agents.episodes import Decision, Episode, run_episode
from gymnasium.utils.env_checker import check_env


class Expert:
    """Does what the environment's own solver says."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def begin(self, instructions: str, seed: int) -> None:
        pass

    async def act(self, observation: Any, info: Any) -> Decision:
        command = self._environment.expert()
        assert command is not None, "the solver gave up"
        return Decision(command)


class Chance:
    """Does any of what is listed, or says any of some words where nothing is."""

    def __init__(self, words: tuple[str, ...] = ("look",)) -> None:
        self._words = words

    def begin(self, instructions: str, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    async def act(self, observation: Any, info: Any) -> Decision:
        known = info["commands"] or self._words
        return Decision(str(self._rng.choice(np.array(known, object))))


def play(environment: Any, policy: Any, seed: int, steps: int = 200) -> Episode:
    episode = asyncio.run(
        run_episode(environment, policy, seed, max_steps=steps, keep_turns=True, timeout=60)
    )
    assert episode.error is None, episode.error
    return episode


def is_gymnasium(make: Callable[..., Any]) -> None:
    """Gymnasium's own checks, with both kinds of actions."""
    for action_format in ("text", "discrete"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Not able to test alternative render.*")
            check_env(make(action_format=action_format))


def is_solved(make: Callable[..., Any], seeds: range, steps: int = 200) -> None:
    """The solver reaches success on every seed, and success is what the environment says."""
    environment = make()
    for seed in seeds:
        episode = play(environment, Expert(environment), seed, steps)
        assert episode.success, f"seed {seed}: {episode.turns[-3:]}"
        assert episode.ended == "terminated"
        assert 0 <= episode.score <= 1
    environment.close()


def is_hard_for_chance(
    make: Callable[..., Any],
    seeds: range,
    steps: int = 50,
    most: float = 0.1,
    words: tuple[str, ...] = ("look",),
) -> None:
    environment = make()
    won = [play(environment, Chance(words), seed, steps).success for seed in seeds]
    assert np.mean(won) < most
    environment.close()


def is_deterministic(make: Callable[..., Any], seed: int = 7, steps: int = 20) -> None:
    """The same seed and commands show, pay and end the same; another seed is another episode."""
    one, other = make(), make()
    words = ("look",)
    first = play(one, Chance(words), seed, steps)
    again = play(other, Chance(words), seed, steps)
    assert first.turns == again.turns
    assert (first.reward, first.score, first.ended) == (again.reward, again.score, again.ended)
    starts = {one.reset(seed=s)[0]["text"] for s in range(8)}
    assert len(starts) > 1
    a, b = one.reset(seed=seed), other.reset(seed=seed)
    np.testing.assert_array_equal(a[0]["vector"], b[0]["vector"])
    assert a[1]["commands"] == b[1]["commands"]
    one.close()
    other.close()


def is_patient(make: Callable[..., Any], seed: int = 3) -> None:
    """What makes no sense costs a step, earns nothing and ends nothing."""
    environment = make()
    _, info = environment.reset(seed=seed)
    score = info["score"]
    for nonsense in ("", "xyzzy 17 !", "\x00\N{SNOWMAN}", 10**6, -1):
        _, reward, terminated, truncated, info = environment.step(nonsense)
        assert (reward, terminated, truncated) == (0.0, False, False), nonsense
        assert info["valid"] is False
        assert info["success"] is False
        assert info["score"] == score
    if info["commands"]:
        text = environment.state.observation
        assert not text.startswith("Nothing happens: Nothing")
    environment.close()


def cannot_be_farmed(make: Callable[..., Any], seeds: range, most: float, steps: int = 200) -> None:
    """Nobody earns more than a solved task by going on and on."""
    environment = make()
    for seed in seeds:
        assert play(environment, Chance(), seed, steps).reward <= most + 1e-6
    environment.close()


def index_is_command(make: Callable[..., Any], seed: int = 5) -> None:
    """An index does what its command does."""
    one, other = make(), make()
    _, info = one.reset(seed=seed)
    other.reset(seed=seed)
    for index, command in enumerate(info["commands"][:4]):
        one.reset(seed=seed)
        other.reset(seed=seed)
        by_index, by_text = one.step(index), other.step(command)
        assert by_index[0]["text"] == by_text[0]["text"]
        assert by_index[1:4] == by_text[1:4]
    assert 0 < info["command_mask"].sum() <= len(info["commands"])
    one.close()
    other.close()
