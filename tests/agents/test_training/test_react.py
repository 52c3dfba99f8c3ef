"""ReAct: the loop's logic by written answers, and a real small model on a task of reading."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from echoic.agents.backbones import Message
from echoic.agents.backbones.base import Scores as Given
from echoic.agents.baselines import Cell, method_names, method_of
from echoic.agents.baselines.prompted import FORM, parse
from echoic.agents.environments import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.agents.episodes import Usage, run_episode
from echoic.errors import ArgumentError, BackboneError
from standins import Scripted, Signs


def play(
    backbone: Any, environment: Any, *, seed: int = 1, steps: int = 30, **settings: Any
) -> Any:
    method = method_of("react", Cell("signs", backbone=backbone, settings=settings))
    policy = method.policy()
    episode = asyncio.run(run_episode(environment, policy, seed, max_steps=steps, keep_turns=True))
    return episode, policy


def reader(chat: list[Message]) -> str:
    """What a model that reads the sign would say."""
    seen = [one for one in chat if one.role == "user"][-1].text
    color = seen.rpartition("says: open the ")[2].split(" ")[0]
    return f"Thought: the sign says {color}.\nAction: open {color} door"


def test_it_is_a_method_that_needs_a_model():
    assert {"react", "tot"} <= set(method_names())
    with pytest.raises(ArgumentError, match="react acts through a language model"):
        method_of("react", Cell("signs"))
    method = method_of("react", Cell("signs", backbone=Scripted(reader)))
    assert asyncio.run(method.train()) == {}
    assert not method.trains


def test_it_acts_by_what_it_reads_and_adds_up_what_that_used():
    backbone = Scripted(reader)
    episode, policy = play(backbone, Signs(4))
    assert episode.success, episode
    assert episode.turns[0].thought.startswith("the sign says")
    assert policy.invalid == 0
    assert episode.usage.requests == len(backbone.chats) == 4
    assert episode.usage.cost == pytest.approx(0.004)
    assert episode.usage.tokens_in == sum(
        len(message.text) for chat in backbone.chats for message in chat
    )


def test_a_prompt_continues_the_one_before_it_up_to_the_commands():
    backbone = Scripted(reader)
    play(backbone, Signs(4))
    for before, after in zip(backbone.chats, backbone.chats[1:], strict=False):
        assert after[: len(before) - 1] == before[:-1]
        seen = after[len(before) - 1]
        assert before[-1].text.endswith(f"\n\n{seen.text}")
        assert after[len(before)].role == "assistant"
    # What is seen comes last: small models follow what they read last.
    assert backbone.chats[-1][-1].text.startswith("Commands:")
    assert not any("Commands:" in one.text for one in backbone.chats[-1][3:-1])


def test_history_is_bounded_and_keeps_the_first_turn(monkeypatch):
    monkeypatch.setattr("echoic.agents.baselines.prompted._HISTORY", 4)
    backbone = Scripted(reader)
    episode, policy = play(backbone, Signs(12))
    assert episode.success
    first = backbone.chats[0][-1].text.partition("\n\n")[2]
    for chat in backbone.chats:
        assert len(chat) <= 4 + 2 * 4
        assert [one.role for one in chat[1:]] == ["user", "assistant"] * (len(chat) // 2 - 1) + [
            "user"
        ]
        assert chat[3].text.endswith(first)
    assert len(policy._turns) <= 4


def test_the_form_has_no_action_that_could_be_repeated():
    assert parse(FORM, within_line=True) == (FORM, None)


def test_where_any_text_is_an_action_the_example_has_no_commands():
    backbone = Scripted(lambda chat: "Action: 1")
    environment = Wide(EnvironmentConfig(action_space_size=20))
    environment._commands = list
    play(backbone, environment, steps=1)
    assert not any("Commands:" in one.text for one in backbone.chats[0])
    assert parse(backbone.chats[0][2].text, within_line=False)[1] == "21"


class Scores(Scripted):
    """Finds the command likeliest that its rule names, behind what it is said to have thought."""

    can_score = True

    def __init__(self, reply: Any, likes: Any) -> None:
        super().__init__(reply)
        self.scored: list[tuple[list[str], str]] = []
        self._likes = likes

    async def score(self, messages: Any, answers: Any, *, begin: str = "") -> Any:
        self.scored.append((list(answers), begin))
        right = self._likes(messages)
        log_probs = tuple(-1.0 if one.strip() == right else -5.0 for one in answers)
        return Given(log_probs, (3,) * len(answers), Usage(10, 5, 0, 0.25, 1))


def right_door(chat: Any) -> str:
    return parse(reader(chat), within_line=True)[1]


def test_where_all_commands_are_listed_the_likeliest_behind_the_thought_is_done():
    backbone = Scores(lambda chat: "Thought: doors.", right_door)
    episode, policy = play(backbone, Signs(3))
    assert episode.success
    assert policy.invalid == 0
    answers, begin = backbone.scored[0]
    assert begin == "Thought: doors.\nAction:"
    assert [f"- {one.strip()}" in backbone.chats[0][-1].text for one in answers] == [True] * 4
    assert "\nAction:" in backbone.asked[0].stop
    # Both calls of each step count, and the next prompt has both.
    assert (episode.usage.requests, policy.spent.requests) == (6, 6)
    assert episode.usage.cost == pytest.approx(3 * 0.251)
    assert backbone.chats[1][-2].text == f"Thought: doors.\nAction: {episode.turns[0].action}"


def test_a_said_choice_and_a_list_that_is_not_complete_are_not_scored():
    for environment, settings in (
        (Signs(1), {"choice": "said"}),
        (Wide(EnvironmentConfig(action_space_size=20)), {}),
    ):
        backbone = Scores(lambda chat: "Action: 30", right_door)
        play(backbone, environment, steps=1, **settings)
        assert backbone.scored == []


def test_an_example_shows_the_form():
    backbone = Scripted(reader)
    play(backbone, Signs(1))
    example = backbone.chats[0][2].text
    assert parse(example, within_line=True) == ("The note says to stir the soup.", "stir soup")


def test_what_is_no_command_is_told_so_and_asked_again():
    answers = iter(["I like doors.", "Action: fly", None])

    def reply(chat: list[Message]) -> str:
        said = next(answers)
        return said or reader([chat[3]])

    backbone = Scripted(reply)
    episode, policy = play(backbone, Signs(1), retries=2)
    assert episode.success
    assert episode.steps == 1
    assert policy.invalid == 2
    assert episode.usage.requests == 3
    assert "names no command" in backbone.chats[1][-1].text
    assert "word for word" in backbone.chats[1][-1].text
    assert backbone.chats[1][-2] == Message("assistant", "I like doors.")
    assert len({asked.seed for asked in backbone.asked}) == 3


def test_nonsense_is_done_as_it_was_said_and_never_replaced():
    backbone = Scripted(lambda chat: "Action: fly away")
    episode, policy = play(backbone, Signs(1), steps=3, retries=1)
    assert [turn.action for turn in episode.turns] == ["fly away"] * 3
    assert (episode.success, episode.steps, policy.invalid) == (False, 3, 6)
    episode, _ = play(Scripted(lambda chat: ""), Signs(1), steps=2)
    assert [turn.action for turn in episode.turns] == ["", ""]


@pytest.mark.parametrize(
    ("said", "thought", "action"),
    [
        ("Thought: a\nAction: go north", "a", "go north"),
        ("thought: a\nb\n**Action:** `go north`\nObservation: x", "a\nb", "go north"),
        ("Thought 2: a\nAction 2: go\nThought 3: b\nAction 3: run", "a", "go"),
        ("Action: 'go'", "", "go"),
        ("I would go", "I would go", None),
        ("Thought: a\nAction:", "a", None),
        ("Action:\ngo north", "", "go north"),
    ],
)
def test_answers_are_read_leniently(said, thought, action):
    assert parse(said, within_line=True) == (thought, action)


def test_an_action_of_many_lines_is_kept_where_any_text_is_one():
    said = "Thought: rotate\nAction: 1 2\n3 4\n\nObservation: ok"
    assert parse(said, within_line=False) == ("rotate", "1 2\n3 4")
    fenced = "Action:\n```python\nf(1)\n```"
    assert parse(fenced, within_line=False) == ("", "f(1)")


class Wide(EchoRLEnvironment):
    """More commands than are listed."""

    instructions = "Say 30."

    def _start(self, options: Any) -> str:
        return "Say it."

    def _apply(self, command: str) -> Outcome | None:
        right = command == "30"
        return Outcome("So.", float(right), True, float(right)) if command.isdigit() else None

    def _commands(self) -> list[str]:
        return [str(i) for i in range(40)]


def test_a_command_that_may_be_unlisted_is_not_refused():
    backbone = Scripted(lambda chat: "Action: 30")
    episode, policy = play(backbone, Wide(EnvironmentConfig(action_space_size=20)))
    assert episode.success
    assert policy.invalid == 0


def test_a_model_that_fails_is_an_error_of_the_episode():
    def reply(chat: Any) -> str:
        raise BackboneError("the server is gone")

    episode, _ = play(Scripted(reply), Signs(1))
    assert (episode.ended, episode.error) == ("error", "BackboneError: the server is gone")


@pytest.mark.parametrize("method", ["react", "tot"])
def test_what_a_failed_call_used_is_in_what_the_episode_used(method):
    def reply(chat: Any) -> str:
        error = BackboneError("all tokens went into thinking")
        error.usage = Usage(50, 0, 128, 0.5, 1)
        raise error

    policy = method_of(method, Cell("signs", backbone=Scripted(reply))).policy()
    episode = asyncio.run(run_episode(Signs(1), policy, 1))
    assert episode.ended == "error"
    assert episode.usage == Usage(50, 0, 128, 0.5, 1)


def test_policies_act_side_by_side():
    async def main() -> list[Any]:
        method = method_of("react", Cell("signs", backbone=Scripted(reader)))
        return await asyncio.gather(
            *(run_episode(Signs(3), method.policy(), seed) for seed in range(6))
        )

    assert all(episode.success for episode in asyncio.run(main()))


def test_settings_are_checked():
    for settings, message in (
        ({"history": 3}, "ReActPolicy has no setting 'history'; it has choice"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"choice": "best"}, "choice must be one of likeliest, said, not 'best'"),
        ({"temperature": float("nan")}, "temperature must be at least 0, not nan"),
    ):
        with pytest.raises(ArgumentError, match=message):
            method_of("react", Cell("signs", backbone=Scripted(reader), settings=settings))
