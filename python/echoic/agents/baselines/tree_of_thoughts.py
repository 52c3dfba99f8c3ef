"""Tree of Thoughts: propose, judge, search (Yao et al., 2023, arXiv:2305.10601).

Breadth first. At each level the model proposes up to ``breadth`` thoughts for each state that is
kept, and judges what came of them; with ``beam`` only so many of a level are kept, without it all
are, and a tree of depth d has up to b^d leaves and b + b^2 + ... + b^d nodes. Nodes and leaves are
counted as they are made: a model that proposes fewer gets fewer.

What a thought is depends on the task:

- Where the environment lists commands, a thought is a command, and deeper ones continue it *in the
  model's imagination*: the environment can't be asked what would happen, and is not. The first
  command of the best path is done, and the next step searches anew.
- Where any text is an action, as with puzzles of one answer, a thought is a step of a solution, and
  after the search the model is asked for the answer that follows from the best path.

Nothing is trained. A judgement that can't be read counts as the lowest and is counted in
``unread``; where nothing is proposed the model is asked once for its answer, without a tree.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echoic.agents import _checks
from echoic.agents.backbones.base import Message
from echoic.agents.baselines.base import Cell, Method
from echoic.agents.baselines.prompting import (
    bare,
    clip,
    lines,
    matching,
    read_settings,
    restricted,
    show_commands,
)
from echoic.agents.episodes import Decision, Usage, used_by
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from echoic.agents.backbones.base import Backbone, Completion

__all__ = ["TreeOfThoughts", "TreeOfThoughtsConfig", "TreeOfThoughtsPolicy"]

_NUMBER = re.compile(r"(?<![\d.])(\d{1,3})(?:\.\d+)?(?!\d)")
_BEST = 10


@dataclass(frozen=True)
class TreeOfThoughtsConfig:
    """Bounds of the search.

    Attributes:
        breadth: Most thoughts that are proposed for a state, b.
        depth: Levels, d.
        beam: States of a level that are kept; None keeps all.
        judge: ``"value"`` asks for a number from 1 to 10 for each state; ``"vote"`` shows all of a
            level and asks for the best.
        votes: How often a level is voted on.
        max_nodes: The most nodes that a tree may come to; more is refused, not cut off.
        max_tokens: Of one answer.
        temperature: Of proposals and votes; values and answers are the likeliest.
        history: Most earlier steps of the episode that the model sees.
        max_characters: Of one observation.
    """

    breadth: int = 3
    depth: int = 2
    beam: int | None = None
    judge: str = "value"
    votes: int = 3
    max_nodes: int = 1000
    max_tokens: int = 128
    temperature: float = 0.7
    history: int = 5
    max_characters: int = 4000

    def __post_init__(self) -> None:
        _checks.whole(self, "breadth", "depth", "votes", "max_nodes", "max_tokens")
        if self.beam is not None:
            _checks.whole(self, "beam")
        _checks.one_of(self, "judge", ("value", "vote"))
        _checks.whole(self, "history", least=0)
        _checks.whole(self, "max_characters", least=100)
        _checks.number(self, "temperature", least=0, finite=False)
        if self.largest > self.max_nodes:
            raise ArgumentError(
                f"breadth {self.breadth} and depth {self.depth} can make more than max_nodes, "
                f"which is {self.max_nodes}"
            )

    @property
    def largest(self) -> int:
        """Nodes of the largest tree; counted up to where they are more than ``max_nodes``."""
        nodes, kept = 0, 1
        for _ in range(self.depth):
            made = kept * self.breadth
            nodes += made
            kept = made if self.beam is None else min(made, self.beam)
            if nodes > self.max_nodes:
                break
        return nodes


class TreeOfThoughts(Method):
    """A search over thoughts; settings are :class:`TreeOfThoughtsConfig`'s."""

    name = "tot"
    needs_backbone = True

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.config = read_settings(TreeOfThoughtsConfig, cell.settings)

    def policy(self) -> TreeOfThoughtsPolicy:
        """A new policy."""
        return TreeOfThoughtsPolicy(self.cell.backbone, self.config)


Path = tuple[str, ...]


class TreeOfThoughtsPolicy:
    """Acts in one episode at a time.

    Attributes:
        nodes: Thoughts that were made in this episode.
        leaves: Those of them at the full depth.
        unread: Judgements that could not be read.
        spent: What all calls of this episode used, also beside one that failed.
    """

    def __init__(self, backbone: Backbone, config: TreeOfThoughtsConfig) -> None:
        self._backbone = backbone
        self._config = config
        self.begin("", 0)

    def begin(self, instructions: str, seed: int) -> None:
        """An episode begins."""
        self.nodes = self.leaves = self.unread = 0
        self.spent = Usage()
        self._instructions = instructions
        self._seed = seed * 100_003
        self._past: list[tuple[str, str]] = []

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Search, and act by the best path."""
        seen = clip(observation["text"], self._config.max_characters)
        search = _Search(self, self._context(seen, info), info)
        path = await search.run()
        if path and info["commands"]:
            action = path[0]
        else:
            action = await search.answer(path)
        self._past.append((seen, action))
        self._past = self._past[len(self._past) - self._config.history :]
        return Decision(action, " -> ".join(path), search.usage)

    def _context(self, seen: str, info: Mapping[str, Any]) -> str:
        """The task and where it stands; the same for all questions of a step, and before them."""
        parts = [self._instructions] if self._instructions else []
        parts += [f"Earlier: {before}\nThen you did: {action}" for before, action in self._past]
        parts.append(f"Now: {seen}")
        if info["commands"]:
            parts.append(show_commands(info["commands"]))
        return "\n\n".join(parts)

    async def _ask(self, question: str, temperature: float) -> Completion:
        self._seed += 1
        try:
            answer = await self._backbone.chat(
                [Message("user", question)],
                max_tokens=self._config.max_tokens,
                temperature=temperature,
                seed=self._seed,
            )
        except BackboneError as error:
            self.spent += used_by(error)
            raise
        self.spent += answer.usage
        return answer


class _Search:
    """One tree."""

    def __init__(self, policy: TreeOfThoughtsPolicy, context: str, info: Mapping[str, Any]) -> None:
        self.usage = Usage()
        self._policy = policy
        self._config = policy._config
        self._context = context
        self._info = info

    async def run(self) -> Path:
        """The best path of the deepest level that has any; empty if nothing was proposed."""
        kept: list[Path] = [()]
        best: Path = ()
        for level in range(1, self._config.depth + 1):
            proposed = await _all([self._propose(path) for path in kept])
            made = [(*path, one) for path, some in zip(kept, proposed, strict=True) for one in some]
            if not made:
                break
            self._policy.nodes += len(made)
            self._policy.leaves += len(made) if level == self._config.depth else 0
            worth = await self._judge(made)
            # Among equals the one that was proposed first.
            order = sorted(range(len(made)), key=lambda index: -worth[index])
            best = made[order[0]]
            kept = [made[index] for index in order[: self._config.beam]]
        return best

    async def answer(self, path: Path) -> str:
        """What to say in the end."""
        steps = f"\n\nYour steps so far:\n{_numbered(path)}" if path else ""
        kind = "one of the commands, word for word" if self._info["commands"] else "your answer"
        text = await self._ask(f"{self._context}{steps}\n\nNow say {kind}, and nothing else.", 0.0)
        commands = self._info["commands"]
        return (matching(text, commands) if commands else None) or bare(text)

    async def _propose(self, path: Path) -> list[str]:
        config, commands = self._config, self._info["commands"]
        what = "commands to do next" if commands else "next steps of a solution"
        steps = f"\n\nAfter these steps:\n{_numbered(path)}" if path else ""
        text = await self._ask(
            f"{self._context}{steps}\n\nPropose {config.breadth} different {what}, one on a line, "
            "the best first, and nothing else.",
            config.temperature,
        )
        if path or not commands:
            return lines(text, config.breadth)
        # The first step is done for real, so it must be a command.
        said = lines(text, 10 * config.breadth)
        real = (
            matching(one, commands) or (None if restricted(self._info) else one) for one in said
        )
        return list(dict.fromkeys(one for one in real if one is not None))[: config.breadth]

    async def _judge(self, made: Sequence[Path]) -> list[float]:
        if len(made) == 1:
            return [1.0]
        if self._config.judge == "value":
            return await _all([self._value(path) for path in made])
        counts = [0.0] * len(made)
        for choice in await _all([self._vote(made) for _ in range(self._config.votes)]):
            if choice is not None:
                counts[choice] += 1
        return counts

    async def _value(self, path: Path) -> float:
        text = await self._ask(
            f"{self._context}\n\nSomeone plans these steps:\n{_numbered(path)}\n\n"
            f"How good is this plan, from 1 (useless) to {_BEST} (certain to succeed)? "
            "Say the number only.",
            0.0,
        )
        return float(self._number(text, _BEST) or 0)

    async def _vote(self, made: Sequence[Path]) -> int | None:
        shown = "\n".join(f"Plan {i}: {', then '.join(p)}" for i, p in enumerate(made, 1))
        text = await self._ask(
            f"{self._context}\n\n{shown}\n\nWhich plan is best? Say its number only.",
            self._config.temperature,
        )
        number = self._number(text, len(made))
        return None if number is None else number - 1

    def _number(self, text: str, most: int) -> int | None:
        """The first number of an answer, if it is one from 1 to ``most``."""
        found = _NUMBER.search(text)
        number = int(found[1]) if found else 0
        if not 1 <= number <= most:
            self._policy.unread += 1
            return None
        return number

    async def _ask(self, question: str, temperature: float) -> str:
        answer = await self._policy._ask(question, temperature)
        self.usage += answer.usage
        return answer.text


def _numbered(path: Path) -> str:
    return "\n".join(f"{number}. {thought}" for number, thought in enumerate(path, 1))


async def _all(work: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """All results in their order. If one fails, the others are stopped."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
