"""ReAct: think, act, observe, again (Yao et al., 2023, arXiv:2210.03629).

The model sees the task, what happened so far, what can be done, and last what is to be seen now; it
says a thought and an action. An action that is no command is told to be none, with what the
commands are, and asked for again ``retries`` times; then it is done as it was said, and the
environment answers that nothing happens. Nothing is trained.

Where all commands are listed, and the backbone tells how likely given answers are, the model says
its thought only, and that command is done which it finds likeliest after it: its own choice, in a
form that can't be missed.

What happened so far is bounded. The first turn, in which tasks are told, always stays. When there
are more than ``history`` turns, the older half of the others is left out at once, and not one turn
at a time: as long as nothing is left out, a prompt continues the one before it, and its keys and
values need not be computed again. Commands are shown only for the present.
What is seen stands behind them, at the very end: small models follow what they read last.

What an episode may hold in memory is bounded by the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents import _checks
from echoic.agents.backbones.base import Message, with_plan
from echoic.agents.baselines.base import Cell, Method
from echoic.agents.baselines.prompting import (
    bare,
    clip,
    matching,
    read_settings,
    restricted,
    show_commands,
)
from echoic.agents.episodes import Decision, Usage, used_by
from echoic.errors import BackboneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from echoic.agents.backbones.base import Backbone

__all__ = ["ReAct", "ReActConfig", "ReActPolicy", "parse"]

# It says no word that could be taken for an action: small models repeat what they are shown.
FORM = (
    'Answer in two lines. The first begins with "Thought:" and says what you make of it; the '
    'second begins with "Action:" and says what you do.'
)
# Of no task, to show the form: small models follow an example where they follow no instruction.
EXAMPLE = (
    "Commands:\n- leave\n- stir soup\n\nObservation: A kitchen. A note says: stir the soup.",
    "Thought: The note says to stir the soup.\nAction: stir soup",
)
# The same where any text is an action.
FREE_EXAMPLE = (
    "Observation: How many days are three weeks?",
    "Thought: A week has 7 days, so three have 21.\nAction: 21",
)
CHOICES = ("likeliest", "said")
_STOP = ("\nObservation:",)
_STOP_THOUGHT = (*_STOP, "\nAction:")
_ACTION = re.compile(r"^[\s*#>_-]*action\s*\d*\s*[*_]*:[*_]*[ \t]*", re.IGNORECASE | re.MULTILINE)
_THOUGHT = re.compile(r"^[\s*#>_-]*thought\s*\d*\s*[*_]*:[*_]*[ \t]*", re.IGNORECASE)
_NEXT = re.compile(r"^\s*(?:thought|action|observation)\s*\d*\s*:", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class ReActConfig:
    """Bounds of ReAct.

    Attributes:
        max_tokens: Of one answer.
        temperature: 0 takes the likeliest tokens.
        history: Most turns that the model sees beside the present one.
        max_characters: Of one observation; the middle of a longer one is left out.
        retries: How often an answer without a command is asked for again.
        examples: Pairs of what is seen and what is said, shown before an episode; None is one of
            ours that shows the form.
        choice: Of a command, where all are listed: ``"likeliest"`` after the thought, if the
            backbone has ``score``, or the one that is ``"said"``.
        plan_every: Every so many turns the model is first asked for a plan in words, which stands
            at the end of each prompt until the next one: what replaces a plan in vectors where a
            backbone takes none. 0 is no plans.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    history: int = 10
    max_characters: int = 4000
    retries: int = 1
    examples: tuple[tuple[str, str], ...] | None = None
    choice: str = "likeliest"
    plan_every: int = 0

    def __post_init__(self) -> None:
        _checks.whole(self, "max_tokens", "history")
        _checks.whole(self, "max_characters", least=100)
        _checks.whole(self, "retries", "plan_every", least=0)
        _checks.one_of(self, "choice", CHOICES)
        _checks.number(self, "temperature", least=0, finite=False)


class ReAct(Method):
    """Thoughts and actions in turn; settings are :class:`ReActConfig`'s."""

    name = "react"
    needs_backbone = True

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.config = read_settings(ReActConfig, cell.settings)

    def policy(self) -> ReActPolicy:
        """A new policy."""
        return ReActPolicy(self.cell.backbone, self.config)


class ReActPolicy:
    """Acts in one episode at a time.

    Attributes:
        invalid: Answers of this episode that held no command.
        spent: What all calls of this episode used.
    """

    def __init__(self, backbone: Backbone, config: ReActConfig) -> None:
        self._backbone = backbone
        self._config = config
        self.begin("", 0)

    def begin(self, instructions: str, seed: int) -> None:
        """An episode begins."""
        self.invalid = 0
        self.spent = Usage()
        self._system = Message("system", f"{instructions}\n\n{FORM}".strip())
        # What was seen and what was said, a pair a turn.
        self._turns: list[tuple[str, str]] = []
        self._examples = self._config.examples or ()
        self._seed = seed * 100_003
        self._plan = ""
        self._acted = 0

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Think and act."""
        config = self._config
        seen = "Observation: " + clip(observation["text"], config.max_characters)
        commands = info["commands"]
        if not self._acted and config.examples is None:
            # Those of the first step stay, so that prompts of an episode begin alike.
            self._examples = (EXAMPLE,) if commands else (FREE_EXAMPLE,)
        chat = self._chat(f"{show_commands(commands)}\n\n{seen}" if commands else seen)
        usage = Usage()
        if config.plan_every and self._acted % config.plan_every == 0:
            usage += await self._make_plan(chat)
        chat = with_plan(chat, self._plan)
        scored = config.choice == "likeliest" and self._backbone.capabilities.score
        if scored and restricted(info):
            thought, done, used = await self._choose(chat, commands)
        else:
            thought, done, used = await self._say(chat, info)
        self._acted += 1
        self._keep(seen, f"Thought: {thought}\nAction: {done}" if thought else f"Action: {done}")
        return Decision(done, thought, usage + used)

    async def _say(self, chat: list[Message], info: Mapping[str, Any]) -> tuple[str, str, Usage]:
        """A thought and an action as the model says them."""
        config, usage = self._config, Usage()
        for attempt in range(config.retries + 1):
            text, used = await self._ask(chat)
            usage += used
            thought, action = parse(text, within_line=bool(info["commands"]))
            command = _command(text, action, info)
            if command is not None:
                break
            self.invalid += 1
            if attempt < config.retries:
                chat = [*chat, Message("assistant", text.strip() or "..."), _none_said(info)]
        return thought, command if command is not None else action or bare(text), usage

    async def _choose(self, chat: list[Message], commands: Sequence[str]) -> tuple[str, str, Usage]:
        """A thought as the model says it, and the command that is likeliest behind it."""
        text, usage = await self._ask(chat, _STOP_THOUGHT)
        thought, _ = parse(text, within_line=True)
        begin = f"Thought: {thought}\nAction:" if thought else "Action:"
        try:
            scores = await self._backbone.score(chat, [f" {one}" for one in commands], begin=begin)
        except BackboneError as error:
            self.spent += used_by(error)
            raise
        self.spent += scores.usage
        heat = self._config.temperature
        if heat > 0:
            # The largest of these is drawn with the probability that the softmax gives it.
            noise = np.random.default_rng(self._seed).gumbel(size=len(commands))
            worth = np.asarray(scores.log_probs) / heat + noise
        else:
            worth = np.asarray(scores.log_probs)
        return thought, commands[int(worth.argmax())], usage + scores.usage

    async def _make_plan(self, chat: list[Message]) -> Usage:
        last = f"{chat[-1].text}\n\nBefore you act: say in one short sentence what your plan is."
        text, used = await self._ask([*chat[:-1], Message("user", last)])
        self._plan = clip(text.strip().partition("\n")[0], self._config.max_characters)
        return used

    async def _ask(self, chat: list[Message], stop: tuple[str, ...] = _STOP) -> tuple[str, Usage]:
        config = self._config
        # Another number for each call, so that the same question can be answered otherwise.
        self._seed += 1
        try:
            answer = await self._backbone.chat(
                chat,
                max_tokens=config.max_tokens,
                temperature=config.temperature,
                stop=stop,
                seed=self._seed,
            )
        except BackboneError as error:
            self.spent += used_by(error)
            raise
        self.spent += answer.usage
        return answer.text, answer.usage

    def _chat(self, now: str) -> list[Message]:
        chat = [self._system]
        for seen, said in (*self._examples, *self._turns):
            chat += [Message("user", seen), Message("assistant", said)]
        return [*chat, Message("user", now)]

    def _keep(self, seen: str, said: str) -> None:
        self._turns.append((seen, clip(said, self._config.max_characters)))
        most = self._config.history
        if len(self._turns) > most:
            first, *others = self._turns
            kept = others[len(others) - most // 2 :] if most > 1 else []
            self._turns = [first, *kept]


def parse(text: str, *, within_line: bool) -> tuple[str, str | None]:
    r"""The thought and the action of an answer; None if it names no action.

    >>> parse("Thought: it is dark.\nAction: light lamp", within_line=True)
    ('it is dark.', 'light lamp')

    Args:
        text: What a model said.
        within_line: Whether an action ends with its line; or else, as the rows of a grid, with the
            next thought or observation.
    """
    found = _ACTION.search(text)
    before = text if found is None else text[: found.start()]
    thought = _THOUGHT.sub("", before.strip()).strip()
    if found is None:
        return thought, None
    rest = text[found.end() :]
    following = _NEXT.search(rest)
    if following is not None:
        rest = rest[: following.start()]
    rest = rest.strip()
    if within_line:
        rest = rest.partition("\n")[0]
    return thought, bare(rest) or None


def _command(text: str, action: str | None, info: Mapping[str, Any]) -> str | None:
    """The command that was meant; None if there is none."""
    commands = info["commands"]
    if not commands:
        return action
    if action is None:
        # Small models leave out the form and just say the command.
        said = [one for line in text.splitlines() if (one := matching(line, commands))]
        return said[0] if len(set(said)) == 1 else None
    listed = matching(action, commands)
    return listed if listed is not None or restricted(info) else action


def _none_said(info: Mapping[str, Any]) -> Message:
    what = f"That names no command. {FORM}"
    if restricted(info):
        what += f"\n\nThe command is one of these, word for word. {show_commands(info['commands'])}"
    return Message("user", what)
