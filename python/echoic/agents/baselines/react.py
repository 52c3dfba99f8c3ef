"""ReAct: think, act, observe, again (Yao et al., 2023, arXiv:2210.03629).

The model sees the task, what happened so far, and what can be done now; it says a thought and an
action. An action that is no command is told to be none, with what the commands are, and asked for
again ``retries`` times; then it is done as it was said, and the environment answers that nothing
happens. Nothing is trained.

What happened so far is bounded. The first turn, in which tasks are told, always stays. When there
are more than ``history`` turns, the older half of the others is left out at once, and not one turn
at a time: as long as nothing is left out, a prompt continues the one before it, and its keys and
values need not be computed again. Commands are shown only for the present, at the very end.

What an episode may hold in memory is bounded by the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from echoic.agents.episodes import Decision, Usage
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.agents.backbones.base import Backbone

__all__ = ["ReAct", "ReActConfig", "ReActPolicy", "parse"]

FORM = """Answer in two lines. The first says what you think, the second what you do, like this:
Thought: why
Action: the command"""
# Of no task, to show the form: small models follow an example where they follow no instruction.
EXAMPLE = (
    "Observation: A kitchen. A note says: stir the soup.\n\nCommands:\n- leave\n- stir soup",
    "Thought: The note says to stir the soup.\nAction: stir soup",
)
_STOP = ("\nObservation:",)
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
        examples: Pairs of what is seen and what is said, shown before an episode; by default one
            that shows the form.
        plan_every: Every so many turns the model is first asked for a plan in words, which stands
            at the end of each prompt until the next one: what replaces a plan in vectors where a
            backbone takes none. 0 is no plans.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    history: int = 10
    max_characters: int = 4000
    retries: int = 1
    examples: tuple[tuple[str, str], ...] = (EXAMPLE,)
    plan_every: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("max_tokens", 1),
            ("history", 1),
            ("max_characters", 100),
            ("retries", 0),
            ("plan_every", 0),
        ):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not self.temperature >= 0:
            raise ArgumentError(f"temperature must not be below 0, and is {self.temperature}")


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
        self._seed = seed * 100_003
        self._plan = ""
        self._acted = 0

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Think and act."""
        config = self._config
        seen = "Observation: " + clip(observation["text"], config.max_characters)
        commands = info["commands"]
        chat = self._chat(f"{seen}\n\n{show_commands(commands)}" if commands else seen)
        usage = Usage()
        if config.plan_every and self._acted % config.plan_every == 0:
            usage += await self._make_plan(chat)
        chat = with_plan(chat, self._plan)
        for attempt in range(config.retries + 1):
            text, used = await self._ask(chat)
            usage += used
            thought, action = parse(text, within_line=bool(commands))
            command = _command(text, action, info)
            if command is not None:
                break
            self.invalid += 1
            if attempt < config.retries:
                chat = [*chat, Message("assistant", text.strip() or "..."), _none_said(info)]
        done = command if command is not None else action or bare(text)
        self._acted += 1
        self._keep(seen, f"Thought: {thought}\nAction: {done}" if thought else f"Action: {done}")
        return Decision(done, thought, usage)

    async def _make_plan(self, chat: list[Message]) -> Usage:
        last = f"{chat[-1].text}\n\nBefore you act: say in one short sentence what your plan is."
        text, used = await self._ask([*chat[:-1], Message("user", last)])
        self._plan = clip(text.strip().partition("\n")[0], self._config.max_characters)
        return used

    async def _ask(self, chat: list[Message]) -> tuple[str, Usage]:
        config = self._config
        # Another number for each call, so that the same question can be answered otherwise.
        self._seed += 1
        answer = await self._backbone.chat(
            chat,
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            stop=_STOP,
            seed=self._seed,
        )
        self.spent += answer.usage
        return answer.text, answer.usage

    def _chat(self, now: str) -> list[Message]:
        chat = [self._system]
        for seen, said in (*self._config.examples, *self._turns):
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
