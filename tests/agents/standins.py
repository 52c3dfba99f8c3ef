"""What stands in for a model and for a world in tests of the loops between them.

A backbone whose answers a test writes, and a hall with doors and a sign that says which to take:
the smallest task that reading solves.
"""

from __future__ import annotations

from typing import Any

from echoic.agents.backbones import Backbone, Completion, Message, Sampling
from echoic.agents.environments import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.agents.episodes import Usage

COLORS = ("red", "blue", "green", "yellow", "white", "black")


class Signs(EchoRLEnvironment):
    """In each hall four doors of different colors; one leads on. A wrong door ends the episode."""

    instructions = "You are in a house. Read the sign and take the door that it names."

    def __init__(self, halls: int = 1, **settings: Any) -> None:
        super().__init__(EnvironmentConfig(timeout_penalty=0.0, **settings))
        self._halls = halls

    def _start(self, options: dict[str, Any]) -> str:
        self._passed = 0
        return self._hall()

    def _hall(self) -> str:
        self._doors = [COLORS[i] for i in self.np_random.permutation(len(COLORS))[:4]]
        self._right = self._doors[int(self.np_random.integers(4))]
        return f"A hall with four doors. The sign says: open the {self._right} door."

    def _apply(self, command: str) -> Outcome | None:
        color = command.removeprefix("open ").removesuffix(" door")
        if color not in self._doors:
            return None
        if color != self._right:
            return Outcome("A trap.", ended=True, score=self._passed / self._halls)
        self._passed += 1
        score = self._passed / self._halls
        if self._passed == self._halls:
            return Outcome("You are out.", 1.0, True, 1.0)
        return Outcome(self._hall(), score=score)

    def _commands(self) -> list[str]:
        return [f"open {color} door" for color in self._doors]

    def expert(self) -> str:
        return f"open {self._right} door"


class Scripted(Backbone):
    """Answers with what a function of the chat returns, and keeps the chats."""

    name = "standins"

    def __init__(self, reply: Any) -> None:
        self._reply = reply
        self.chats: list[list[Message]] = []
        self.asked: list[Sampling] = []

    async def answer(self, messages: Any, sampling: Sampling) -> Completion:
        self.chats.append(list(messages))
        self.asked.append(sampling)
        text = self._reply(messages)
        size = sum(len(message.text) for message in messages)
        return Completion(text, usage=Usage(size, 0, len(text), 0.001, 1))
