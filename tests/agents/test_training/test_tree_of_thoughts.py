"""Tree of Thoughts: nodes counted, beams, judges and both kinds of tasks, by written answers."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest
from echoic.agents.baselines import Cell, method_of
from echoic.agents.environments import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.agents.episodes import run_episode
from echoic.errors import ArgumentError, BackboneError
from standins import COLORS, Scripted, Signs

if TYPE_CHECKING:
    from echoic.agents.backbones import Message


class Puzzle(EchoRLEnvironment):
    """One answer, of any text: the steps of a way, of which one digit each is right."""

    instructions = "Find the way of three digits."

    def _start(self, options: Any) -> str:
        return "Start."

    def _apply(self, command: str) -> Outcome | None:
        right = command == "2 1 3"
        return Outcome("So.", float(right), True, float(right))


RIGHT = ("2", "1", "3")


def steps_of(text: str) -> list[str]:
    """The numbered steps that a question shows."""
    return re.findall(r"^\d+\. (.*)$", text, re.MULTILINE)


def solver(chat: list[Message]) -> str:
    """Proposes as many digits as it is asked for, and judges a way by how long it is right."""
    text = chat[-1].text
    if asked := re.search(r"Propose (\d+)", text):
        return "\n".join(f"{i + 1}. {i + 1}" for i in range(int(asked[1])))
    if "How good" in text:
        pairs = zip(steps_of(text), RIGHT, strict=False)
        return f"{1 + 3 * sum(1 for _ in itertools.takewhile(lambda p: p[0] == p[1], pairs))}/10"
    return " ".join(steps_of(text))


def play(backbone: Any, environment: Any, *, steps: int = 10, **settings: Any) -> Any:
    policy = method_of("tot", Cell("x", backbone=backbone, settings=settings)).policy()
    episode = asyncio.run(run_episode(environment, policy, 1, max_steps=steps, keep_turns=True))
    assert episode.error is None, episode.error
    return episode, policy


@pytest.mark.parametrize(("b", "d"), [(1, 1), (3, 1), (2, 3), (3, 3), (5, 2)])
def test_full_expansion_has_b_to_the_d_leaves(b, d):
    backbone = Scripted(solver)
    episode, policy = play(backbone, Puzzle(EnvironmentConfig()), breadth=b, depth=d, beam=100)
    assert policy.leaves == b**d
    assert policy.nodes == sum(b**level for level in range(1, d + 1))
    proposals = sum("Propose" in chat[-1].text for chat in backbone.chats)
    assert proposals == sum(b**level for level in range(d))
    assert episode.usage.requests == len(backbone.chats)
    assert episode.usage.tokens_in == sum(len(chat[-1].text) for chat in backbone.chats)
    assert episode.success == (b >= 3 and d == 3)


def test_a_beam_keeps_the_best_of_each_level():
    backbone = Scripted(solver)
    episode, policy = play(backbone, Puzzle(EnvironmentConfig()), breadth=3, depth=3, beam=1)
    assert episode.success
    assert (policy.nodes, policy.leaves, policy.unread) == (9, 3, 0)
    assert episode.turns[0].thought == "2 -> 1 -> 3"


def test_nodes_are_those_that_were_made():
    """A model that repeats itself makes fewer."""

    def reply(chat: list[Message]) -> str:
        return "2\n2.\n- 2" if "Propose" in chat[-1].text else solver(chat)

    _, policy = play(Scripted(reply), Puzzle(EnvironmentConfig()), breadth=3, depth=3)
    assert (policy.nodes, policy.leaves) == (3, 1)


def test_judgements_that_cannot_be_read_are_the_lowest_and_counted():
    def reply(chat: list[Message]) -> str:
        text = chat[-1].text
        if "How good" in text:
            return "7" if steps_of(text) == ["3"] else "excellent!"
        return solver(chat)

    episode, policy = play(Scripted(reply), Puzzle(EnvironmentConfig()), breadth=3, depth=1)
    assert policy.unread == 2
    assert episode.turns[0].thought == "3"
    unsure = Scripted(lambda chat: "12 or so" if "How good" in chat[-1].text else solver(chat))
    episode, policy = play(unsure, Puzzle(EnvironmentConfig()), breadth=3, depth=1)
    assert policy.unread == 3
    assert episode.turns[0].thought == "1"  # Among equals the first.


def house(chat: list[Message]) -> str:
    """Reads the sign of the present hall, and rates a plan by whether it begins right."""
    text = chat[-1].text
    right = text.rpartition("says: open the ")[2].split(" ")[0]
    if "Propose" in text:
        return "\n".join(f"* open {color} door" for color in COLORS)
    if "How good" in text:
        return "9" if steps_of(text)[0] == f"open {right} door" else "2"
    return f"open {right} door"


def test_where_commands_are_listed_the_first_of_the_best_plan_is_done():
    backbone = Scripted(house)
    episode, policy = play(backbone, Signs(3), breadth=4, depth=2)
    assert episode.success
    assert episode.steps == 3
    # Only four of the six colors are doors of a hall; deeper steps are imagined and may be any.
    assert policy.nodes == 3 * (4 + 4 * 4)
    assert policy.leaves == 3 * 16
    assert episode.turns[0].thought.startswith(episode.turns[0].action + " -> ")
    assert "Then you did: open" in backbone.chats[-1][-1].text


def test_the_environment_is_not_asked_what_would_happen():
    class Counting(Signs):
        asked = 0

        def _apply(self, command: str) -> Any:
            self.asked += 1
            return super()._apply(command)

    environment = Counting(2)
    episode, _ = play(Scripted(house), environment, breadth=3, depth=3)
    assert environment.asked == episode.steps


def test_who_proposes_nothing_is_asked_for_an_answer_once():
    def reply(chat: list[Message]) -> str:
        return "no idea" if "Propose" in chat[-1].text else house(chat)

    backbone = Scripted(reply)
    episode, policy = play(backbone, Signs(1))
    assert episode.success
    assert (policy.nodes, len(backbone.chats)) == (0, 2)
    assert "one of the commands, word for word" in backbone.chats[-1][-1].text


def test_history_is_bounded(monkeypatch):
    monkeypatch.setattr("echoic.agents.baselines.prompted._HISTORY", 2)
    backbone = Scripted(house)
    episode, _ = play(backbone, Signs(6), breadth=4, depth=1)
    assert episode.success
    assert max(chat[-1].text.count("Then you did") for chat in backbone.chats) <= 2


def test_one_failure_stops_the_search():
    def reply(chat: list[Message]) -> str:
        if "How good" in chat[-1].text:
            raise BackboneError("gone")
        return solver(chat)

    policy = method_of("tot", Cell("x", backbone=Scripted(reply))).policy()
    episode = asyncio.run(run_episode(Puzzle(EnvironmentConfig()), policy, 1))
    assert episode.error == "BackboneError: gone"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"breadth": 0}, "breadth must be from 1 to 10, not 0"),
        ({"beam": 101}, "beam must be from 1 to 100, not 101"),
        ({"width": 3}, "TreeOfThoughtsPolicy has no setting 'width'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ArgumentError, match=message):
        method_of("tot", Cell("x", backbone=Scripted(solver), settings=settings))
