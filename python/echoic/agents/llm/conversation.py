"""Conversations with a language model, as token sequences that a learner learns from.

Ids that were drawn are never encoded again. A later turn adds only what the chat template has after
the last answer: the template renders all messages with a mark in place of each answer, and the text
after the last mark is encoded. So the engine finds earlier turns in its cache, the learner sees the
ids that the engine drew, and a template that removes an answer's thoughts later on changes nothing.

A control token in a text is encoded as plain text: observations and results of tools can't end a
turn or begin another.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echoic.agents.llm.requests import SamplingParams
from echoic.errors import ArgumentError, CollectorError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from echoic.agents.llm.requests import RolloutEngine
    from echoic.agents.llm.soft_prefix import TurnPlans

    Array = np.ndarray[Any, Any]

__all__ = ["Answer", "Conversation", "TurnCounts"]

# In place of an answer in what a template renders, and around the number of a control token. Said
# texts can't contain them.
_ANSWER, _OPEN, _CLOSE = "\ue000", "\ue001", "\ue002"
_MARKS = re.compile(f"[{_ANSWER}{_OPEN}{_CLOSE}]")
_CONTROL = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_HOW_TO_CALL = (
    "You can call these functions. To call one, answer with\n"
    '<tool_call>{"name": "...", "arguments": {...}}</tool_call>\n'
)


class Answer(NamedTuple):
    """A drawn turn: its text, its ids, whether a stop token ended it, and what it answers."""

    text: str
    tokens: list[int]
    ended: bool
    prompt: Any = None


class TurnCounts(NamedTuple):
    """Tokens of a drawn turn.

    ``given`` were added before it and not drawn, and of those before the answer ``reused`` had keys
    and values in the engine's cache; None if a server did not report it.
    """

    given: int
    drawn: int
    reused: int | None


class Conversation:
    """Messages and drawn answers, as one sequence of tokens.

    Args:
        engine: Draws answers: an ``AsyncExecutionEngine``, or a ``RemoteEngine`` whose servers
            return token ids.
        tokenizer: One of transformers, with a chat template for :meth:`say`; None for bare ids.
        sampling: How answers are drawn. Without ``stop``, an answer ends with the tokenizer's end
            token or with the template's token for the end of a turn.
        seed: Seed of the conversation: equal seeds draw equal answers from equal weights.
        limit: Most tokens.
        plans: Makes a soft prefix for each answer; of a local engine.
    """

    def __init__(
        self,
        engine: RolloutEngine[Any],
        tokenizer: Any = None,
        sampling: SamplingParams | None = None,
        *,
        seed: int = 0,
        limit: int,
        plans: TurnPlans | None = None,
    ) -> None:
        if limit < 1:
            raise ArgumentError(f"limit must be at least 1, not {limit}")
        self.engine, self.tokenizer, self.plans = engine, tokenizer, plans
        self.sampling, self.seed, self.limit = sampling or SamplingParams(), seed, limit
        #: The messages, as texts.
        self.messages: list[dict[str, Any]] = []
        #: Ids up to the last answer.
        self.tokens: list[int] = []
        #: Counts of each drawn turn.
        self.turns: list[TurnCounts] = []
        #: Tokens of all turns whose keys and values were in the engine's cache, and that were not.
        self.reused_tokens = self.computed_tokens = 0
        self._logprobs: list[float] = []
        self._mask: list[int] = []
        self._rewards: list[float] = []
        self._versions: list[int] = []
        # Ids before the next answer; messages that are not rendered yet follow them.
        self._given: list[int] = []
        self._said = 0
        self._opened = False
        # Places of drawn answers in the messages.
        self._answers: set[int] = set()
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._controls = {token.content: one for one, token in added.items() if token.special}
        # Functions for the template, and as a text for one that does not show them.
        self._tools: list[dict[str, Any]] | None = None
        self._tools_text = ""
        self._busy = False
        # What the next plan is of, and the virtual tokens that were made of it.
        self._observed: str | Array | None = None
        self._planned: list[int] | None = None

    def say(self, role: str, text: str, **fields: Any) -> None:
        """Add a message, which is not learned from.

        Args:
            role: ``"system"``, ``"user"``, ``"tool"``, or another that the template knows.
            text: The message.
            fields: More fields of the message, for the template.

        Raises:
            ArgumentError: If there is no tokenizer, or ids were added after a message.
        """
        if self.tokenizer is None:
            raise ArgumentError("a message needs a tokenizer with a chat template; there is none")
        self._check_idle()
        if self._opened:
            raise ArgumentError("the answer's turn has begun, by extend: answer comes before say")
        if self._tools_text and not self.messages:
            if role == "system":
                text = f"{text}\n\n{self._tools_text}".strip()
            else:
                self.say("system", "")
        message = {"role": role, "content": text, **fields}
        self.messages.append(_texts(message, lambda one: _MARKS.sub("", one)))
        self._said += 1

    def extend(self, ids: Sequence[int]) -> None:
        """Add ids that are not learned from; after a message, they begin the answer's turn."""
        self._check_idle()
        ids = [int(one) for one in ids]
        if min(ids, default=0) < 0:
            raise ArgumentError(f"ids must be at least 0, not {min(ids)}")
        self._opened = self._opened or self._said > 0
        self._given, self._said = [*self.ahead(), *ids], 0

    def observe(self, observation: str | Array) -> None:
        """Make the next plan of this text or vector, instead of the messages since the last answer.

        The tokens don't get it. Without ``plans`` it is not used.
        """
        self._observed = observation

    def offer(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Offer functions to the model, before the first message.

        The template gets their schemas; if it does not show them, a system message does.
        """
        if self.messages or self.tokenizer is None:
            raise ArgumentError("tools are offered before the first message, and need a tokenizer")
        chat = [{"role": "user", "content": ""}]
        self._tools, self._tools_text = None, ""
        without = self._render(chat)
        self._tools = [dict(tool) for tool in tools] or None
        if self._tools and self._render(chat) == without:
            lines = [json.dumps(tool, ensure_ascii=False) for tool in self._tools]
            self._tools_text = _HOW_TO_CALL + "\n".join(lines)

    async def answer(
        self, *, max_new_tokens: int | None = None, stop: Sequence[int] | None = None
    ) -> Answer:
        """Draw a turn of the assistant. Cancelling it leaves the conversation as it was.

        Args:
            max_new_tokens: Most tokens of it; by default those of ``sampling``.
            stop: Ids that end it; by default those of ``sampling``, or of the template.

        Raises:
            ArgumentError: If the turn does not fit ``limit``; see :attr:`full`. If another answer
                is being drawn, or the template can't continue the conversation.
            CollectorError: If the engine failed, or a server returned no ids.
        """
        self._check_idle()
        given = self._planned_ahead()
        most = self.sampling.max_new_tokens if max_new_tokens is None else max_new_tokens
        if (needed := len(self.tokens) + len(given) + most) > self.limit:
            raise ArgumentError(
                f"another turn needs {needed} tokens, {most} of them new; limit is {self.limit}"
            )
        seed = int(np.random.SeedSequence([self.seed, len(self.turns)]).generate_state(1)[0])
        ends = tuple(self.sampling.stop if stop is None else stop)
        if not ends:
            usual = {getattr(self.tokenizer, "eos_token_id", None), self._end_of_turn()}
            ends = tuple(sorted(one for one in usual if one is not None))
        sampling = replace(self.sampling, max_new_tokens=most, stop=ends, seed=seed)
        options: Any = {} if self.plans is None else {"embeddings": self.plans.embeddings}
        self._busy = True
        try:
            result = await self.engine.generate([*self.tokens, *given], sampling, **options)
        finally:
            self._busy = False
        if not result.success:
            raise CollectorError(f"turn {len(self.turns)} was not answered: {result.error}")
        drawn = result.tokens
        if min(drawn, default=-1) < 0 or len(result.logprobs) != len(drawn):
            raise CollectorError(
                f"turn {len(self.turns)} has no token ids with log-probabilities, which training "
                "needs: the server has to return them"
            )
        self.tokens += [*given, *drawn]
        self._logprobs += [0.0] * len(given) + result.logprobs
        self._mask += [0] * len(given) + [1] * len(drawn)
        self._rewards += [0.0] * (len(given) + len(drawn))
        self._versions += [result.versions[0]] * len(given) + result.versions
        self.turns.append(TurnCounts(len(given), len(drawn), result.reused_tokens))
        self.reused_tokens += result.reused_tokens or 0
        self.computed_tokens += len(self.tokens) - (result.reused_tokens or 0)
        text = ""
        if self.tokenizer is not None:
            text = str(self.tokenizer.decode(drawn, skip_special_tokens=True))
        self._answers.add(len(self.messages))
        self.messages.append({"role": "assistant", "content": text})
        self._given, self._said, self._opened = [], 0, False
        self._observed = self._planned = None
        return Answer(text, drawn, result.finish_reason == "stop")

    def reward(self, value: float) -> None:
        """Add a reward to the last answer's last token.

        Raises:
            ArgumentError: If nothing was drawn yet, or the reward is not finite.
        """
        if not math.isfinite(value):
            raise ArgumentError(f"expected a finite reward, got {value}")
        if not self._rewards:
            raise ArgumentError("a reward is for an answer, and nothing was drawn yet")
        self._rewards[-1] += float(value)

    @property
    def full(self) -> bool:
        """Whether another turn would not fit ``limit``."""
        needed = len(self.tokens) + len(self.ahead()) + self.sampling.max_new_tokens
        return needed + (0 if self.plans is None else self.plans.size) > self.limit

    @property
    def versions(self) -> Array:
        """Version of the weights that drew each token; of tokens before an answer, that of it."""
        return np.array(self._versions, np.int64)

    def columns(self) -> dict[str, Array]:
        """Return the tokens up to the last answer, with a value of each column for each.

        ``tokens`` (int32), ``logprobs`` (float32; 0 where nothing was drawn), ``mask`` (uint8; 1
        where it was drawn), ``rewards`` (float32; at the last token of a turn).
        """
        return {
            "tokens": np.array(self.tokens, np.int32),
            "logprobs": np.array(self._logprobs, np.float32),
            "mask": np.array(self._mask, np.uint8),
            "rewards": np.array(self._rewards, np.float32),
        }

    def _planned_ahead(self) -> list[int]:
        """Return the ids between the last answer and the next one, with those of a plan.

        The plan is before the words of the template that begin an answer: a model whose answers
        begin after something else writes nonsense until it has learned to read plans.
        """
        ids = self.ahead()
        if self.plans is None:
            return ids
        if self._planned is None:
            # An answer that is cancelled, and drawn again, has the same plan.
            last = max(self._answers, default=-1)
            said = "\n".join(one["content"] for one in self.messages[last + 1 :])
            self._planned = self.plans.plan(said if self._observed is None else self._observed)
        begins: list[int] = []
        if self._said:
            chat = [{"role": "user", "content": "."}]
            plain, whole = (self._render(chat, add_generation_prompt=one) for one in (False, True))
            begins = self._encode(whole.removeprefix(plain))
        at = len(ids) - len(begins) if ids[-len(begins) :] == begins else len(ids)
        return [*ids[:at], *self._planned, *ids[at:]]

    def _check_idle(self) -> None:
        if self._busy:
            raise ArgumentError("an answer is being drawn: a conversation has one turn at a time")

    def ahead(self) -> list[int]:
        """Return the ids between the last answer and the next one."""
        if not self._said:
            return list(self._given)
        chat = [
            {**one, "content": _ANSWER} if place in self._answers else _texts(one, self._plain)
            for place, one in enumerate(self.messages)
        ]
        parts = self._render(chat, add_generation_prompt=True).split(_ANSWER)
        if len(parts) != len(self._answers) + 1:
            raise ArgumentError(
                f"the chat template can't continue this conversation: of {len(self._answers)} "
                f"answers it shows {len(parts) - 1}"
            )
        ids = self._encode(parts[-1])
        end = self._end_of_turn() if self.turns else None
        if end is not None and self.tokens[-1] == end and end in ids:
            ids = ids[ids.index(end) + 1 :]
        return [*self._given, *ids]

    def _render(self, chat: Sequence[Mapping[str, Any]], **options: Any) -> str:
        try:
            rendered = self.tokenizer.apply_chat_template(
                list(chat), tools=self._tools, tokenize=False, **options
            )
        except Exception as error:  # of the template: jinja's, or what its code raises
            roles = ", ".join(message["role"] for message in chat)
            raise ArgumentError(
                f"the chat template can't continue a conversation of {roles}: {error}"
            ) from error
        return str(rendered)

    def _plain(self, text: str) -> str:
        """Put marks in place of control tokens."""
        for token, number in self._controls.items():
            text = text.replace(token, f"{_OPEN}{number}{_CLOSE}")
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        names = {str(number): token for token, number in self._controls.items()}
        for place, piece in enumerate(_CONTROL.split(text)):
            if place % 2:
                options = {"add_special_tokens": False, "split_special_tokens": True}
                ids += self.tokenizer.encode(names[piece], **options)
            elif piece:
                ids += self.tokenizer.encode(piece, add_special_tokens=False)
        return ids

    def _end_of_turn(self) -> int | None:
        """Return the control token with which the template ends an answer."""
        if getattr(self.tokenizer, "chat_template", None) is None:
            return None
        chat = [{"role": "user", "content": "."}, {"role": "assistant", "content": _ANSWER}]
        ids = self._encode(self._render(chat).rpartition(_ANSWER)[2])
        controls = self._controls.values()
        return next((one for one in ids if one in controls), None)


def _texts(value: Any, change: Callable[[str], str]) -> Any:
    """Change all texts in what JSON can hold, except names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _texts(one, change) for name, one in value.items()}
    return [_texts(one, change) for one in value] if isinstance(value, (list, tuple)) else value
