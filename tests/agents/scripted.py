"""A backbone whose answers a test writes, to test the logic of loops around a model; no model."""

from __future__ import annotations

from typing import Any

from echoic.agents.backbones import Backbone, Capabilities, Completion, Message, Sampling
from echoic.agents.episodes import Usage


class Scripted(Backbone):
    """Answers with what a function of the chat returns, and keeps the chats."""

    capabilities = Capabilities()
    name = "scripted"

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
