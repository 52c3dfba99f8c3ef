"""Answers prompts with the newest policy, and brings the answers to the table.

It shows partial rollouts from a producer's side. A worker draws a few tokens of each answer, brings
them, and looks for newer weights; then it goes on with those, in the middle of the answers. Each
token carries the version that made it and its log-probability under that version. What a worker has
brought is safe: if it dies, another one goes on from there (``Reservation.resume``). If the table
says that a group is of no use any more, the worker leaves it.

A worker needs no signal to begin: ``reserve_many`` waits while the learner has enough on its way.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from echoic.errors import ClosedError, WaitTimeoutError
from echoic.rollouts import Reservation

from examples.grpo import task
from examples.grpo.model import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.rollouts import RolloutTable
    from echoic.weights import Subscription

    from examples.grpo.settings import Settings


@dataclass
class Answer:
    """An answer on its way, behind its prompt."""

    reservation: Reservation
    item: int
    tokens: list[int]
    #: Where the answer begins.
    start: int
    #: What was drawn and not brought yet.
    logprobs: list[float] = field(default_factory=list)
    #: How many tokens were brought.
    brought: int = 0

    @property
    def words(self) -> list[int]:
        """The answer without its prompt."""
        return self.tokens[self.start :]

    @property
    def is_over(self) -> bool:
        """Whether it needs no more tokens."""
        return task.is_over(self.words)

    def bring(self, version: int) -> None:
        """Append what is new to the table: tokens of one version."""
        new = self.tokens[self.brought :]
        # The first segment begins with the prompt, which was not drawn.
        given = len(new) - len(self.logprobs)
        columns = {
            "tokens": np.array(new, np.int32),
            "logprobs": np.array([0.0] * given + self.logprobs, np.float32),
            "mask": np.array([0] * given + [1] * len(self.logprobs), np.uint8),
        }
        if self.is_over:
            reward = task.reward(self.tokens[: self.start], self.words)
            self.reservation.add(columns, {"reward": reward}, item=self.item, versions=version)
        else:
            self.reservation.extend(self.item, columns, versions=version)
        self.brought = len(self.tokens)
        self.logprobs = []


def answers_of(reservation: Reservation, settings: Settings) -> list[Answer]:
    """Return the answers of a group that are to be made, or made to the end."""
    prompt = task.prompt(settings.seed, reservation.group)
    answers = []
    for item in range(settings.answers):
        done = reservation.progress.get(item)
        if done is not None and done.finished:
            continue
        answer = Answer(reservation, item, list(prompt), len(prompt))
        if done is not None and done.segments:
            answer.tokens = done.columns["tokens"].tolist()
            answer.brought = len(answer.tokens)
        answers.append(answer)
    return answers


class Worker:
    """Answers prompts until the table is closed."""

    def __init__(
        self,
        number: int,
        table: RolloutTable,
        weights: Subscription,
        settings: Settings,
        *,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = f"worker-{number}"
        self.table, self.weights, self.settings, self.is_gone = table, weights, settings, is_gone
        self.policy = Policy().eval()
        self.rng = torch.Generator().manual_seed(1000 * settings.seed + number)
        self.version = -1

    def work(self) -> None:
        """Make groups until there is no use in it."""
        with suppress(ClosedError):
            self.load(wait=True)
            while not self.is_gone():
                self.load()
                answers = [
                    a
                    for reservation in self.reservations()
                    for a in answers_of(reservation, self.settings)
                ]
                self.make(answers)

    def reservations(self) -> list[Reservation]:
        """Resume a suspended group, or wait until others may be reserved."""
        try:
            return [Reservation.resume(self.table, source=self.name, timeout=0)]
        except WaitTimeoutError:
            pass
        # Those that were left are not announced here, so it looks for some now and then.
        with suppress(WaitTimeoutError):
            return self.table.reserve_many(
                self.settings.at_once, source=self.name, version=self.version, timeout=0.2
            )
        return []

    def make(self, answers: list[Answer]) -> None:
        """Draw all answers to their ends, a segment at a time."""
        while answers and not self.is_gone():
            for _ in range(self.settings.segment):
                self.draw([answer for answer in answers if not answer.is_over])
            if self.is_gone():
                return
            for answer in answers:
                # Once the table does not want a group any more, nothing of it is brought.
                if answer.reservation.status == "running":
                    answer.bring(self.version)
            answers = [a for a in answers if not a.is_over and a.reservation.status == "running"]
            self.load()

    def draw(self, answers: list[Answer]) -> None:
        """Add a token to each answer."""
        if not answers:
            return
        lengths = np.array([len(answer.tokens) for answer in answers])
        rows = np.zeros((len(answers), lengths.max()), np.int64)
        for row, answer in zip(rows, answers, strict=True):
            row[: len(answer.tokens)] = answer.tokens
        for answer, token, logprob in zip(
            answers, *self.policy.draw(rows, lengths, self.rng), strict=True
        ):
            answer.tokens.append(int(token))
            answer.logprobs.append(float(logprob))

    def load(self, *, wait: bool = False) -> None:
        """Take the newest weights, if there are newer ones than it has."""
        publication = self.weights.wait() if wait else self.weights.latest()
        if publication is None or publication.version == self.version:
            return
        state = {name: torch.from_numpy(np.array(leaf)) for name, leaf in publication.tree.items()}
        self.policy.load_state_dict(state)
        self.version = publication.version
