"""Methods that prompt a language model: ReAct and Tree of Thoughts. Nothing is trained.

Answers of models are read leniently, and never replaced by a random or default action.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from echoic.agents import _checks
from echoic.agents.backbones.base import Message
from echoic.agents.baselines import Method
from echoic.agents.environments.base import read_settings
from echoic.agents.episodes import Decision, Usage, all_of
from echoic.errors import BackboneError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

__all__ = ["ReAct", "ReActPolicy", "TreeOfThoughts", "TreeOfThoughtsPolicy", "parse"]

# Longest observation or answer in a prompt, in characters.
_LONGEST = 4000
# Most earlier turns that a model sees.
_HISTORY = 10

# Signs before an item of a list, or around a command, that models write.
_BULLET = re.compile(r"^\s*(?:[-*•>]+|\(?\d{1,3}[.):])\s+")
_AROUND = "\"'`*“”"


def restricted(info: Mapping[str, Any]) -> bool:
    """Return whether the list of commands is complete: not empty, and not cut."""
    return bool(info["commands"]) and not bool(info["command_mask"].all())


def show_commands(commands: Sequence[str]) -> str:
    """Format commands for a prompt."""
    return "Commands:\n" + "\n".join(f"- {command}" for command in commands)


def clip(text: str, limit: int) -> str:
    """Replace the middle of a text that is too long."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[...]\n{text[-half:]}"


def bare(text: str) -> str:
    """Strip quotes, stars, and a fence of code around a command.

    >>> bare('**"go north"**')
    'go north'
    """
    text = text.strip()
    text = re.sub(r"^```\w*\n?(.*?)\n?```$", r"\1", text, flags=re.DOTALL)
    while len(text) > 1 and text[0] in _AROUND and text[-1] in _AROUND:
        text = text[1:-1].strip()
    return text.strip()


def lines(text: str, most: int) -> list[str]:
    r"""Read the first different items of a list, without bullets and numbers.

    >>> lines("1. go north\n2. go north\n- wait", 5)
    ['go north', 'wait']
    """
    items = filter(None, (bare(_BULLET.sub("", line)) for line in text.splitlines()))
    return list({_plain(item): item for item in items}.values())[:most]


def matching(said: str, commands: Sequence[str]) -> str | None:
    """Find the one listed command in a text, also within more words; None for none or several.

    >>> matching("Go  North.", ["go north", "go south"])
    'go north'
    >>> matching("north or south", ["north", "south"]) is None
    True
    """
    plain = _plain(bare(said))
    by_plain = {key: command for command in commands if (key := _plain(command))}
    if plain in by_plain:
        return by_plain[plain]
    within = [one for one in by_plain if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", plain)]
    # "take key from box" contains "take key", which may be a command too.
    longest = max(within, key=len, default="")
    return by_plain.get(longest) if all(one in longest for one in within) else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!")


class _Prompted(Method):
    """A method whose settings are the fields of its policy."""

    needs_backbone: ClassVar[bool] = True
    policy_class: ClassVar[Any]

    @classmethod
    def check(cls, settings: Mapping[str, Any]) -> None:
        """Raise an ``ArgumentError`` for settings that are not the policy's."""
        read_settings(cls.policy_class, settings)

    def policy(self) -> Any:
        """Return a new policy."""
        policy = read_settings(self.policy_class, self.cell.settings)
        policy.backbone = self.cell.backbone
        return policy


@dataclass
class _Policy:
    """Asks a model, and counts what that used; acts in one episode at a time."""

    max_tokens: int = 128  # most of an answer
    temperature: float = 0.0  # 0 takes the likeliest tokens

    def __post_init__(self) -> None:
        _checks.whole(self, "max_tokens")
        _checks.number(self, "temperature", least=0, finite=False)
        self.backbone: Any = None

    def begin(self, instructions: str, seed: int) -> None:
        """Begin an episode."""
        #: Usage of all calls of this episode, those that failed included.
        self.spent = Usage()
        self._seed, self._instructions = seed * 100_003, instructions
        # The earlier turns: what was seen, and what was answered.
        self._turns: list[tuple[str, str]] = []

    async def _ask(self, chat: list[Message], temperature: float, *stop: str) -> str:
        # Another seed for each call, so that the same question can have another answer.
        self._seed += 1
        limits = {"max_tokens": self.max_tokens, "temperature": temperature, "stop": stop}
        return str((await self._counted(self.backbone.chat(chat, seed=self._seed, **limits))).text)

    async def _counted(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            answer = await call
        except BackboneError as error:
            if isinstance(error.usage, Usage):
                self.spent += error.usage
            raise
        self.spent += answer.usage
        return answer


# It has no word that could be read as an action: small models repeat what they are shown.
FORM = (
    'Answer in two lines. The first begins with "Thought:" and says what you make of it; the '
    'second begins with "Action:" and says what you do.'
)
# An example of the form: small models follow an example where they follow no instruction.
EXAMPLE = (
    "Commands:\n- leave\n- stir soup\n\nObservation: A kitchen. A note says: stir the soup.",
    "Thought: The note says to stir the soup.\nAction: stir soup",
)
# The same where any text is an action.
FREE_EXAMPLE = (
    "Observation: How many days are three weeks?",
    "Thought: A week has 7 days, so three have 21.\nAction: 21",
)
_STOP, _STOP_THOUGHT = "\nObservation:", "\nAction:"
_ACTION = re.compile(r"^[\s*#>_-]*action\s*\d*\s*[*_]*:[*_]*[ \t]*", re.IGNORECASE | re.MULTILINE)
_THOUGHT = re.compile(r"^[\s*#>_-]*thought\s*\d*\s*[*_]*:[*_]*[ \t]*", re.IGNORECASE)
_NEXT = re.compile(r"^\s*(?:thought|action|observation)\s*\d*\s*:", re.IGNORECASE | re.MULTILINE)


@dataclass
class ReActPolicy(_Policy):
    """Thinks and acts in turn; ``invalid`` counts answers without a command."""

    retries: int = 1  # how often an answer without a command is asked for again
    #: How a command is chosen where all are listed: ``"likeliest"`` after the thought, if the
    #: backbone has ``score``, or the one that is ``"said"``.
    choice: str = "likeliest"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole(self, "retries", least=0)
        _checks.one_of(self, "choice", ("likeliest", "said"))

    def begin(self, instructions: str, seed: int) -> None:
        """Begin an episode."""
        super().begin(instructions, seed)
        self.invalid = 0

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Think and act."""
        commands = info["commands"]
        seen = "Observation: " + clip(observation["text"], _LONGEST)
        if not self._turns:
            # The same in all prompts of an episode, so that they begin alike.
            self._example = EXAMPLE if commands else FREE_EXAMPLE
        chat = [Message("system", f"{self._instructions}\n\n{FORM}".strip())]
        for shown, said in (self._example, *self._turns):
            chat += [Message("user", shown), Message("assistant", said)]
        # What is seen comes last: small models follow what they read last.
        now = f"{show_commands(commands)}\n\n{seen}" if commands else seen
        chat.append(Message("user", now))
        if self.choice == "likeliest" and self.backbone.can_score and restricted(info):
            thought, done = await self._choose(chat, commands)
        else:
            thought, done = await self._say(chat, info)
        said = f"Thought: {thought}\nAction: {done}" if thought else f"Action: {done}"
        self._turns.append((seen, clip(said, _LONGEST)))
        # Many at once, but for the first, which states tasks: until then a prompt continues the one
        # before it, whose keys and values need not be computed again.
        if len(self._turns) > _HISTORY:
            self._turns = [self._turns[0], *self._turns[-(_HISTORY // 2) :]]
        return Decision(done, thought)

    async def _say(self, chat: list[Message], info: Mapping[str, Any]) -> tuple[str, str]:
        """Return a thought and an action as the model writes them."""
        for _ in range(self.retries + 1):
            text = await self._ask(chat, self.temperature, _STOP)
            thought, action = parse(text, within_line=bool(info["commands"]))
            if (command := _command(text, action, info)) is not None:
                return thought, command
            self.invalid += 1
            again = f"That names no command. {FORM}"
            if restricted(info):
                again += "\n\nThe command is one of these, word for word. "
                again += show_commands(info["commands"])
            chat = [*chat, Message("assistant", text.strip() or "..."), Message("user", again)]
        return thought, action or bare(text)

    async def _choose(self, chat: list[Message], commands: Sequence[str]) -> tuple[str, str]:
        """Return a thought as the model writes it, and the command that is likeliest after it."""
        text = await self._ask(chat, self.temperature, _STOP, _STOP_THOUGHT)
        thought, _ = parse(text, within_line=True)
        begin = f"Thought: {thought}\nAction:" if thought else "Action:"
        answers = [f" {one}" for one in commands]
        scores = await self._counted(self.backbone.score(chat, answers, begin=begin))
        return thought, max(zip(scores.log_probs, commands, strict=True), key=lambda one: one[0])[1]


class ReAct(_Prompted):
    """ReAct (Yao et al., 2023, arXiv:2210.03629)."""

    name, policy_class = "react", ReActPolicy


def parse(text: str, *, within_line: bool) -> tuple[str, str | None]:
    r"""Split an answer into the thought and the action; None without an action.

    An action ends with its line, or else, as the rows of a grid, with the next thought.

    >>> parse("Thought: it is dark.\nAction: light lamp", within_line=True)
    ('it is dark.', 'light lamp')
    """
    before, *rest = _ACTION.split(text, maxsplit=1)
    thought = _THOUGHT.sub("", before.strip()).strip()
    if not rest:
        return thought, None
    action = _NEXT.split(rest[0], maxsplit=1)[0].strip()
    return thought, bare(action.partition("\n")[0] if within_line else action) or None


def _command(text: str, action: str | None, info: Mapping[str, Any]) -> str | None:
    """Find the command that was meant; None without one."""
    commands = info["commands"]
    if not commands:
        return action
    if action is None:
        # Small models leave out the form and write the command only.
        said = [one for line in text.splitlines() if (one := matching(line, commands))]
        return said[0] if len(set(said)) == 1 else None
    listed = matching(action, commands)
    return listed if listed is not None or restricted(info) else action


_NUMBER = re.compile(r"(?<![\d.])(10|\d)(?:\.\d+)?(?!\d)")


def read_rating(text: str) -> float | None:
    """Read a rating: the first number from 0 to 10; None without one.

    >>> read_rating("8/10, because"), read_rating("Well done!")
    (8.0, None)
    """
    found = _NUMBER.search(text)
    return None if found is None else min(float(found[0]), 10.0)


Path = tuple[str, ...]


@dataclass
class TreeOfThoughtsPolicy(_Policy):
    """Searches, breadth first.

    Counted are ``nodes``, the thoughts of an episode, ``leaves``, those at the full depth, and
    ``unread``, ratings without a number.
    """

    temperature: float = 0.7  # of proposals; ratings and answers are the likeliest
    breadth: int = 3  # most thoughts that are proposed for a state, b
    depth: int = 2  # levels, d
    beam: int = 5  # states of a level that are kept

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole(self, "breadth", "depth", most=10)
        _checks.whole(self, "beam", most=100)

    def begin(self, instructions: str, seed: int) -> None:
        """Begin an episode."""
        super().begin(instructions, seed)
        self.nodes = self.leaves = self.unread = 0

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Search, and act by the best path."""
        seen, commands = clip(observation["text"], _LONGEST), info["commands"]
        # The task and its state; the same for all questions of a step, and before them.
        parts = [self._instructions] if self._instructions else []
        parts += [f"Earlier: {before}\nThen you did: {action}" for before, action in self._turns]
        parts += [f"Now: {seen}", *([show_commands(commands)] if commands else [])]
        self._context, self._info = "\n\n".join(parts), info
        path = await self._search()
        action = path[0] if path and commands else await self._answer(path)
        self._turns.append((seen, action))
        self._turns = self._turns[-_HISTORY:]
        return Decision(action, " -> ".join(path))

    async def _search(self) -> Path:
        """Return the best path of the deepest level that has any; empty without proposals."""
        kept: list[Path] = [()]
        for level in range(1, self.depth + 1):
            proposed = await all_of([self._propose(path) for path in kept])
            made = [(*path, one) for path, some in zip(kept, proposed, strict=True) for one in some]
            if not made:
                break
            self.nodes += len(made)
            self.leaves += len(made) if level == self.depth else 0
            # One needs no comparison.
            worth = await all_of([self._value(one) for one in made]) if len(made) > 1 else [1]
            # Of equal ones the first proposal is first.
            order = sorted(range(len(made)), key=lambda index: -worth[index])
            kept = [made[index] for index in order[: self.beam]]
        return kept[0]

    async def _answer(self, path: Path) -> str:
        commands = self._info["commands"]
        kind = "one of the commands, word for word" if commands else "your answer"
        question = f"Now say {kind}, and nothing else."
        text = await self._question("Your steps so far", path, question)
        return (matching(text, commands) if commands else None) or bare(text)

    async def _propose(self, path: Path) -> list[str]:
        breadth, commands = self.breadth, self._info["commands"]
        what = "commands to do next" if commands else "next steps of a solution"
        question = (
            f"Propose {breadth} different {what}, one on a line, the best first, and nothing else."
        )
        text = await self._question("After these steps", path, question, self.temperature)
        if path or not commands:
            return lines(text, breadth)
        # The first step is sent to the environment, so it must be a command.
        said = (matching(one, commands) or one for one in lines(text, 10 * breadth))
        real = (one for one in said if one in commands or not restricted(self._info))
        return list(dict.fromkeys(real))[:breadth]

    async def _value(self, path: Path) -> float:
        """Ask how good a path is; the lowest, and counted, if the answer can't be read."""
        question = (
            "How good is this plan, from 1 (useless) to 10 (certain to succeed)? Say the number "
            "only."
        )
        found = read_rating(await self._question("Someone plans these steps", path, question))
        self.unread += found is None
        return found or 0.0

    async def _question(self, steps: str, path: Path, question: str, heat: float = 0.0) -> str:
        listed = "\n".join(f"{number}. {thought}" for number, thought in enumerate(path, 1))
        parts = [self._context, *([f"{steps}:\n{listed}"] if path else []), question]
        return await self._ask([Message("user", "\n\n".join(parts))], heat)


class TreeOfThoughts(_Prompted):
    """Tree of Thoughts (Yao et al., 2023, arXiv:2305.10601).

    If the environment lists commands, a thought is a command and deeper ones continue it in the
    model's imagination; the first command of the best path is sent. If any text is an action, a
    thought is a step of a solution, and the model says the answer that follows from the best path.
    """

    name, policy_class = "tot", TreeOfThoughtsPolicy
