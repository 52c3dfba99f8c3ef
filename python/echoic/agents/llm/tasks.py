"""Tasks that a language model learns: prompts, and what to do with one.

A task's prompts have numbers. The same number is the same prompt on every machine, and no prompt of
:meth:`Task.held_out` is one of :meth:`Task.prompt`. One of five generated problems is held out, by
a hash of its numbers, and one of five episodes of an environment, by a hash of its first
observation: at every seed the same ones.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import operator
import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from echoic.agents import _checks
from echoic.agents.baselines.prompted import bare, clip, matching, parse, show_commands
from echoic.agents.environments.base import environment_names, make_environment, provenance_of
from echoic.agents.environments.puzzles import parse_expression
from echoic.errors import ArgumentError, CollectorError
from echoic.rl.background import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from echoic.agents.llm.conversation import Answer, Conversation

__all__ = [
    "EnvironmentTask",
    "Outcome",
    "PromptTask",
    "Task",
    "make_task",
    "register_task",
    "task_names",
]

# One of these many is held out.
_PARTS = 5
# Problems that are drawn for one of a kind.
_MOST_DRAWS = 1000


def is_held_out(text: str) -> bool:
    """Whether what has this text is for evaluation."""
    return crc32(text.encode("utf-8", "surrogatepass")) % _PARTS == 0


class Outcome(NamedTuple):
    """How a conversation went: the sum of the rewards of its turns, and whether it succeeded."""

    reward: float
    success: bool


class Task(ABC):
    """Prompts, and how a conversation about one goes."""

    #: Its name in reports, with where its data comes from.
    name: str = "task"

    @abstractmethod
    def prompt(self, index: int) -> Any:
        """Return a prompt of training; indices have no end."""

    @abstractmethod
    def held_out(self, index: int) -> Any:
        """Return a prompt that is never one of training; indices have no end.

        Raises:
            ArgumentError: If the task has none.
        """

    @abstractmethod
    async def run(self, prompt: Any, talk: Conversation) -> Outcome:
        """Hold a conversation about a prompt, and add rewards to its turns.

        Raises:
            CollectorError: If the engine or the task failed; the conversation is not learned from.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what the task holds."""


# Calls in an answer: of Qwen and Hermes, and of Mistral. Llama's answer is the call itself.
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_LISTED = re.compile(r"\[TOOL_CALLS\]\s*(\[.*\])", re.DOTALL)
_LONGEST_RESULT = 4000
# Answers with calls before the last answer, seconds of a call, and calls that run at a time.
_MOST_TURNS, _SECONDS, _MOST_CALLS = 4, 10.0, 64
_room = threading.Semaphore(_MOST_CALLS)


class Tools:
    """Python functions that a model may call in its answers.

    A call that is wrong, fails or takes too long gives the model a text that says so. A function
    that takes too long goes on in its thread.

    Raises:
        ArgumentError: If a function has no annotations or docstring for a schema, or is async.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        if found := [one.__name__ for one in functions if inspect.iscoroutinefunction(one)]:
            raise ArgumentError(f"a tool must be a function that is not async: {found[0]}")
        self._functions = {function.__name__: function for function in functions}
        self.schemas: list[Any] = []
        if functions:
            from transformers.utils import get_json_schema

            try:
                self.schemas = [get_json_schema(function) for function in functions]
            except Exception as error:  # the library's own errors
                raise ArgumentError(f"a tool needs a schema: {error}") from error

    def offer(self, talk: Conversation) -> None:
        """Show the functions to the model, before the first message."""
        if self.schemas:
            talk.offer(self.schemas)

    async def answer(self, talk: Conversation) -> Answer:
        """Draw an answer, after as many turns with calls as the model wants."""
        for _ in range(_MOST_TURNS if self._functions else 0):
            answer = await talk.answer()
            calls = read_calls(answer.text, talk.tokenizer.decode(answer.tokens))
            if not calls:
                return answer
            for call in calls:
                talk.say("tool", await self._call(call))
            if talk.full:
                return answer
        return await talk.answer()

    async def _call(self, call: Any) -> str:
        """Return the result of a call as a text."""
        if isinstance(call, str):
            return f"Error: {call}"
        name, arguments = call
        function = self._functions.get(name)
        if function is None:
            return f"Error: there is no function {name!r}; there are {list(self._functions)}"
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            return f"Error: {name}: {error}"

        def work() -> str:
            if not _room.acquire(blocking=False):
                return f"Error: {_MOST_CALLS} calls are running already"
            try:
                return clip(str(function(**arguments)), _LONGEST_RESULT)
            except Exception as error:  # the function's own
                return clip(f"Error: {type(error).__name__}: {error}", _LONGEST_RESULT)
            finally:
                _room.release()

        try:
            return await asyncio.wait_for(in_thread(work), _SECONDS)
        except asyncio.TimeoutError:
            return f"Error: {name} took longer than {_SECONDS:g} s"


def read_calls(text: str, raw: str = "") -> list[tuple[str, dict[str, Any]] | str]:
    """Read the calls in an answer; one that can't be read is a text that says why.

    >>> read_calls('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    [('add', {'a': 1})]

    Args:
        text: The answer.
        raw: The same with control tokens, in which some models write calls.
    """
    found = _TAGGED.findall(text) or _TAGGED.findall(raw) or _LISTED.findall(raw)
    if not found and text.lstrip().startswith("{") and '"name"' in text:
        found = [text]
    calls: list[tuple[str, dict[str, Any]] | str] = []
    for said in found:
        try:
            read = json.loads(said)
        except (ValueError, RecursionError) as error:
            calls.append(f"a call must be JSON: {error}")
            continue
        for one in read if isinstance(read, list) else [read]:
            name = one.get("name") if isinstance(one, dict) else None
            arguments = one.get("arguments", one.get("parameters", {})) if name else None
            if isinstance(name, str) and isinstance(arguments, dict):
                calls.append((name, arguments))
            else:
                calls.append('a call must be {"name": "...", "arguments": {...}}')
    return calls


class PromptTask(Task):
    """One answer to a prompt, scored by a function.

    Args:
        prompts: Of training: texts, chats (lists of ``{"role": ..., "content": ...}``), or lists of
            token ids.
        reward: Returns the reward of an :class:`Answer`, or an :class:`Outcome`; may be async. A
            reward of 1 and more is a success.
        held_out: Prompts of evaluation.
        tools: Functions that the model may call before its answer, with annotations and a docstring
            in Google's style: it sees their schemas. With them, a text is a message of the user.
        name: Its name in reports.
    """

    def __init__(
        self,
        prompts: Sequence[Any],
        reward: Callable[[Answer], float | Outcome | Awaitable[float | Outcome]],
        *,
        held_out: Sequence[Any] = (),
        tools: Sequence[Callable[..., Any]] = (),
        name: str = "prompts",
    ) -> None:
        self.name, self._reward, self._tools = name, reward, Tools(tools)
        self._prompts, self._held_out = list(prompts), list(held_out)
        if not self._prompts:
            raise ArgumentError("expected at least one prompt, got none")
        for place, prompt in enumerate((*self._prompts, *self._held_out)):
            if not prompt:
                raise ArgumentError(f"expected at least one token, got none in prompt {place}")
        if both := [one for one in self._held_out if one in self._prompts]:
            raise ArgumentError(f"a held-out prompt is one of training: {both[0]!r}")

    def prompt(self, index: int) -> Any:
        """Return a prompt; after the last one they begin again."""
        return self._prompts[index % len(self._prompts)]

    def held_out(self, index: int) -> Any:
        """Return a held-out prompt; after the last one they begin again."""
        if not self._held_out:
            raise ArgumentError(f"the task {self.name!r} has no held-out prompts")
        return self._held_out[index % len(self._held_out)]

    async def run(self, prompt: Any, talk: Conversation) -> Outcome:
        """Ask for an answer and score it."""
        given: Any = prompt.chat if isinstance(prompt, Problem) else prompt
        self._tools.offer(talk)
        if isinstance(given, str) and self._tools.schemas:
            given = [{"role": "user", "content": given}]
        if isinstance(given, str):
            if talk.tokenizer is None:
                raise ArgumentError(f"a prompt of text needs a tokenizer: {given!r}")
            given = talk.tokenizer.encode(given)
        if all(isinstance(one, int) for one in given):
            talk.extend(given)
        else:
            for fields in map(dict, given):
                talk.say(fields.pop("role"), fields.pop("content"), **fields)
        answer = await self._tools.answer(talk)
        found = self._reward(answer._replace(prompt=prompt))
        if inspect.isawaitable(found):
            found = await found
        if not isinstance(found, Outcome):
            found = Outcome(float(found), float(found) >= 1)
        talk.reward(found.reward)
        return found


class Problem(NamedTuple):
    """A generated problem: its chat, what an answer is compared with, and its identity."""

    chat: list[dict[str, str]]
    facts: Any
    key: str


class GeneratedTask(PromptTask):
    """Problems that ``draw`` makes of a random generator, and answers that ``score`` judges."""

    def __init__(
        self,
        name: str,
        draw: Callable[[np.random.Generator], Problem],
        score: Callable[[Problem, str], Outcome],
        seed: int,
        tools: Sequence[Callable[..., Any]],
    ) -> None:
        self.name, self.draw, self.score, self.seed = name, draw, score, seed
        self._tools, self._reward = Tools(tools), lambda answer: score(answer.prompt, answer.text)
        _checks.whole(self, "seed", least=0)

    def prompt(self, index: int, *, held_out: bool = False) -> Problem:
        """Return a problem of training."""
        random = np.random.default_rng([self.seed, held_out, index])
        for _ in range(_MOST_DRAWS):
            if is_held_out((problem := self.draw(random)).key) == held_out:
                return problem
        kind = "held-out" if held_out else "training"
        raise ArgumentError(f"{self.name!r} draws no {kind} problem: it has too few different keys")

    def held_out(self, index: int) -> Problem:
        """Return a problem that is never one of training."""
        return self.prompt(index, held_out=True)


_NAMES = (
    "Ada", "Ben", "Carl", "Dina", "Emma", "Finn", "Gina", "Hugo", "Ida", "Jack", "Kim", "Leo",
    "Maya", "Nina", "Omar", "Paul",
)  # fmt: skip
_THINGS = (
    "apples", "balls", "books", "cards", "coins", "cookies", "eggs", "flowers", "keys", "pencils",
    "shells", "stamps", "stones", "toys",
)  # fmt: skip
# Sentences for a change of the number of things, and its result.
_EVENTS = {
    "+": ("{name} buys {n} more.", "{name} finds {n} more.", "A friend gives {name} {n} more."),
    "-": ("{name} loses {n}.", "{name} gives {n} to a friend.", "{name} sells {n}."),
    "*": ("Then the number of {things} is multiplied by {n}.",),
    "/": ("{name} puts them into {n} equal boxes and keeps one of these.",),
}
_RESULTS: dict[str, Callable[[Any, int], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction,
}  # fmt: skip
# Of each level from 2: how many events, of which kinds, and the largest number on the way.
_LEVELS = ((1, "+-", 20), (2, "+-*", 50), (3, "+-*/", 100), (5, "+-*/", 200))
_NUMBER = re.compile(r"-?[0-9][0-9,]*")
_NUMBER_AT_END = re.compile(r"[0-9][.]?\s*$")


def word_problems(
    level: int = 1, *, seed: int = 0, tools: Sequence[Callable[..., Any]] = ()
) -> GeneratedTask:
    """Make ``gsm8k-like``: stories about a number of things that changes; the answer is the last.

    Level 1 asks for sums of two digits without a story, for models that can do little more; 2 has
    one operation up to 20, and 5 has five up to 200. A right number at the end is worth 1, a right
    one before other words 0.5, and a wrong one at the end 0.1.
    """
    _checks.whole(SimpleNamespace(level=level), "level", most=len(_LEVELS) + 1)
    system = {"role": "system", "content": "End with the number."}

    def draw(random: np.random.Generator) -> Problem:
        if level == 1:
            a, b = (int(one) for one in random.integers(1, 10, 2))
            asked = {"role": "user", "content": f"What is {a} + {b}?"}
            return Problem([system, asked], a + b, f"{min(a, b)} + {max(a, b)}")
        count, signs, most = _LEVELS[level - 2]
        name, things = str(random.choice(_NAMES)), str(random.choice(_THINGS))
        amount = int(random.integers(2, most))
        told, key = [f"{name} has {amount} {things}."], str(amount)
        for _ in range(count):
            choices: dict[str, Sequence[int]] = {
                "+": range(1, most - amount + 1),
                "-": range(1, amount),
                "*": range(2, min(5, most // amount) + 1),
                "/": [n for n in range(2, 6) if amount % n == 0],
            }
            sign = str(random.choice([one for one in signs if choices[one]]))
            n = choices[sign][int(random.integers(len(choices[sign])))]
            amount = int(_RESULTS[sign](amount, n))
            told.append(str(random.choice(_EVENTS[sign])).format(name=name, things=things, n=n))
            key += f" {sign} {n}"
        told.append(f"How many {things} does {name} have now?")
        return Problem([system, {"role": "user", "content": " ".join(told)}], amount, key)

    def score(problem: Problem, text: str) -> Outcome:
        numbers = _NUMBER.findall(text)
        right = bool(numbers) and numbers[-1].replace(",", "") == str(problem.facts)
        at_end = bool(_NUMBER_AT_END.search(text))
        return Outcome((1.0 if at_end else 0.5) if right else 0.1 * at_end, right)

    return GeneratedTask("gsm8k-like", draw, score, seed, tools)


def countdown(
    numbers: int = 3, largest: int = 20, *, seed: int = 0, tools: Sequence[Callable[..., Any]] = ()
) -> GeneratedTask:
    """Make ``countdown``: form a number of others with ``+ - * /``, using each exactly once.

    From 2 to 6 are given, up to ``largest``. A right expression is worth 1, another one of the
    given numbers 0.2, and any other one 0.1.
    """
    settings = SimpleNamespace(numbers=numbers, largest=largest)
    _checks.whole(settings, "numbers", least=2, most=6)
    _checks.whole(settings, "largest", least=10, most=1000)

    def draw(random: np.random.Generator) -> Problem:
        while True:
            given = [int(one) for one in random.integers(1, largest + 1, numbers)]
            value = Fraction(given[0])
            for n in given[1:]:
                value = _RESULTS[str(random.choice(list("+-*/")))](value, n)
            if value.denominator == 1 and 1 <= value <= 10 * largest and value not in given:
                break
        given.sort()
        asked = f"Make {value} of {', '.join(map(str, given))}."
        how = "Use each number exactly once, with + - * / and parentheses. Answer with one line."
        chat = [{"role": "system", "content": how}, {"role": "user", "content": asked}]
        return Problem(chat, (given, int(value)), asked)

    def score(problem: Problem, text: str) -> Outcome:
        given, target = problem.facts
        # The last line.
        lines = [line for line in text.splitlines() if line.strip()]
        said = bare(lines[-1][:200]).rpartition(":")[2].partition("=")[0] if lines else ""
        found = parse_expression(said)
        # A number alone is no attempt.
        if found is None or len(found.numbers) < 2:
            return Outcome(0.0, False)
        if sorted(found.numbers) != given:
            return Outcome(0.1, False)
        right = found.value == target
        return Outcome(1.0 if right else 0.2, right)

    return GeneratedTask("countdown", draw, score, seed, tools)


# An environment that has begun this often with each of its first observations has no others.
_RESETS_OF_TEXT = 16


class EnvironmentTask(Task):
    """Episodes of an environment: each turn, the model sees an observation and says a command.

    The instructions are the system message. A command that is listed counts also within more words;
    another answer goes to the environment as it is, which says that nothing happens. An environment
    whose few beginnings are all of training has held-out seeds only.

    Args:
        environment: A name, or a function that makes one.
        max_turns: Most turns of an episode.
        tools: As for :class:`PromptTask`: functions to call before a command.
        timeout: Seconds of a call of the environment.
        seed: Seed of the episodes' seeds.
        settings: Those of the named environment.

    Raises:
        ArgumentError: If the name or a setting is unknown.
    """

    def __init__(
        self,
        environment: str | Callable[..., Any],
        *,
        max_turns: int = 16,
        tools: Sequence[Callable[..., Any]] = (),
        timeout: float = 60.0,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.max_turns, self.timeout, self.seed = max_turns, timeout, seed
        _checks.whole(self, "max_turns")
        _checks.whole(self, "seed", least=0)
        _checks.number(self, "timeout", above=0)
        self._make: Callable[[], Any]
        if isinstance(environment, str):
            self._make = functools.partial(make_environment, environment, **settings)
            self.name = provenance_of(environment, settings)
        else:
            self._make = functools.partial(environment, **settings)
            self.name = getattr(environment, "__name__", "environment")
        self._tools = Tools(tools)
        # The first one is made here, so that wrong settings fail here.
        self._free, self._closed = [self._make()], False

    def prompt(self, index: int) -> tuple[int, bool]:
        """Return an episode of training: its number, and whether it is held out."""
        return index, False

    def held_out(self, index: int) -> tuple[int, bool]:
        """Return an episode whose first observation is in none of training."""
        return index, True

    async def run(self, prompt: Any, talk: Conversation) -> Outcome:
        """Play an episode."""
        if self._free:
            environment = self._free.pop()
        else:
            environment = await self._call(self._make, lambda late: late.close())
        try:
            outcome = await self._play(prompt, talk, environment)
        except BaseException:
            # It may be in the middle of a step.
            _end(environment)
            raise
        if self._closed:
            _end(environment)
        else:
            self._free.append(environment)
        return outcome

    def close(self) -> None:
        """Close the environments, those in an episode after it; waits for each up to 5 s."""
        self._closed = True
        closing = [_end(self._free.pop()) for _ in range(len(self._free))]
        for thread in closing:
            thread.join(5.0)

    async def _play(self, prompt: Any, talk: Conversation, environment: Any) -> Outcome:
        observation, info = await self._reset(environment, *prompt)
        self._tools.offer(talk)
        talk.say("system", instruct(environment.instructions, info["commands"]))
        total = 0.0
        for turn in range(self.max_turns):
            talk.say("user", show(observation["text"], info["commands"]))
            if turn and talk.full:
                break
            answer = await self._tools.answer(talk)
            command = read_command(answer.text, info["commands"])
            step = functools.partial(environment.step, command)
            observation, reward, ended, cut_off, info = await self._call(step)
            talk.reward(float(reward))
            total += float(reward)
            if ended or cut_off:
                break
        return Outcome(total, bool(info["success"]))

    async def _reset(self, environment: Any, number: int, held_out: bool) -> Any:
        random = np.random.default_rng([self.seed, held_out, number])
        texts: Counter[str] = Counter()
        while True:
            seed = int(random.integers(2**31))
            found = await self._call(functools.partial(environment.reset, seed=seed))
            texts[text := found[0]["text"]] += 1
            exhausted = texts.total() >= _RESETS_OF_TEXT * len(texts)
            if is_held_out(text) == held_out or exhausted:
                return found

    async def _call(
        self, function: Callable[[], Any], discard: Callable[[Any], object] = lambda _: None
    ) -> Any:
        try:
            return await asyncio.wait_for(in_thread(function, discard), self.timeout)
        except asyncio.TimeoutError:
            raise CollectorError(
                f"the environment {self.name!r} took longer than {self.timeout:g} s"
            ) from None


def _end(environment: Any) -> threading.Thread:
    """Close an environment, which may block or be in a step, in a thread."""
    closing = threading.Thread(target=environment.close, daemon=True)
    closing.start()
    return closing


def instruct(instructions: str, commands: Sequence[str]) -> str:
    """Return the first message of an episode."""
    return f"{instructions}\nAnswer with one of the commands.".strip() if commands else instructions


def show(text: str, commands: Sequence[str]) -> str:
    """Return the message with an observation."""
    return f"{text}\n\n{show_commands(commands)}".strip() if commands else text


def read_command(text: str, commands: Sequence[str]) -> str:
    """Read the command in an answer; the answer itself if there is none.

    >>> read_command("I would go forward.", ["turn left", "go forward"])
    'go forward'
    """
    _, action = parse(text, within_line=bool(commands))
    said = bare(action or text)
    if not commands:
        return said
    for one in (said, *said.splitlines()):
        if (found := matching(one, commands)) is not None:
            return found
    return said


_OURS: dict[str, Callable[..., Task]] = {
    "countdown": countdown,
    "gsm8k-like": word_problems,
    # A room that is solved in a few turns.
    "minigrid": lambda **settings: EnvironmentTask(
        "minigrid", **{"task_type": "navigation", "grid_size": 5, "max_turns": 8, **settings}
    ),
}
_USERS: dict[str, Callable[..., Task]] = {}


def register_task(name: str, make: Callable[..., Task]) -> None:
    """Register a task under a name; the latest of a name counts. ``make`` gets the settings."""
    if not name or not callable(make):
        raise ArgumentError("a task needs a name and a function that makes it")
    _USERS[name] = make


def task_names() -> tuple[str, ...]:
    """Return all names, in alphabetical order."""
    return tuple(sorted({*_OURS, *_USERS, *environment_names()}))


def make_task(name: str, **settings: Any) -> Task:
    """Make the task of a name, with these settings.

    Raises:
        ArgumentError: If the name or a setting is unknown; the message lists the known ones.
    """
    make = _USERS.get(name) or _OURS.get(name)
    if make is None and name in environment_names():
        make = functools.partial(EnvironmentTask, name)
    if make is None:
        raise ArgumentError(f"there is no task {name!r}; there are {', '.join(task_names())}")
    try:
        inspect.signature(make).bind(**settings)
    except TypeError as error:
        known = ", ".join(inspect.signature(make).parameters)
        raise ArgumentError(f"the task {name!r}: {error}; its settings are {known}") from None
    return make(**settings)
