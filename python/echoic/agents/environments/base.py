"""What all environments share: text in, text out, a vector beside it, and a name.

An environment says what it is in :attr:`EchoRLEnvironment.instructions`, shows a text and a vector,
and takes a command: as text, or as the index of one of those that it lists. What a command does,
which there are and what counts as success is in the file of each; steps, limits, rewards' scale,
seeds and statistics are here.

Decisions:

- A command that makes no sense costs a step and changes nothing. It is never an error: models and
  untrained policies say such things all the time.
- Success is the environment's own signal: a score between 0 and 1 at the end of an episode that
  reaches ``success_threshold``. An episode that is cut off has none.
- The listed commands are the same, in the same order, for the same state. The list is cut to
  ``action_space_size``, if there is one, for policies of fixed width; text may say the rest.
- Where an index means the same command in every state, all are listed, and the mask tells those
  that do something now.
- A text's vector needs neither a vocabulary nor a model: each word and each pair of neighbours adds
  one to a place that a hash of it says, with a sign that the hash says too, so that what collides
  cancels rather than piles up. The vector has length one, and is the same on every machine. The
  latest encodings of a process are kept, and so are the sums of the sentences that texts are made
  of: at most :data:`MOST_KEPT` each, of at most :data:`LONGEST_KEPT` and :data:`LONGEST_SENTENCE`
  characters, and vectors of at most :data:`WIDEST_KEPT` numbers, which is 40 MB at most.

>>> from echoic.agents.environments import environment_names
>>> "minigrid" in environment_names()
True
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import re
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from zlib import crc32

import gymnasium
import numpy as np
from gymnasium import spaces

from echoic.agents import _checks
from echoic.errors import ArgumentError, ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = [
    "EchoRLEnvironment",
    "EnvironmentConfig",
    "EnvironmentState",
    "FreeText",
    "Outcome",
    "TextEncoder",
    "environment_names",
    "make_environment",
    "register_environment",
]

MOST_KEPT = 4096
LONGEST_KEPT = 2048
WIDEST_KEPT = 1024
LONGEST_SENTENCE = 128

# No word goes over a space, so that a text may be cut at any.
_SENTENCES = re.compile(r"(?<=[.!?:\n]) ")
_WORD = re.compile(r"[a-z]+|\d|[^\sa-z\d]")
# Longer texts are cut, so that a step's cost has a bound.
_MAX_WORDS = 4096


class TextEncoder:
    """Encodes texts as vectors of ``dim`` numbers.

    >>> encoder = TextEncoder(64)
    >>> one, other = encoder("take the key"), encoder("take the lamp")
    >>> one.shape, float(one @ one) > float(one @ other) > 0
    ((64,), True)
    """

    def __init__(self, dim: int) -> None:
        if dim < 1:
            raise ArgumentError(f"dim must be at least 1, not {dim}")
        self.dim = dim

    def __call__(self, text: str) -> NDArray[np.float32]:
        """Encode a text; an empty one is zeros. The vector is the caller's own."""
        if len(text) > LONGEST_KEPT or self.dim > WIDEST_KEPT:
            return _encoded(text, self.dim)
        return _kept(text, self.dim).copy()


class _Hashes(NamedTuple):
    """Of the words of a text and of its pairs, and what a pair with a neighbour is made of."""

    all: NDArray[np.int64]
    first: bytes
    last: int


def _hashes(text: str) -> _Hashes | None:
    """None of a text without words."""
    words = [word.encode("utf-8", "surrogatepass") for word in _WORD.findall(text)[:_MAX_WORDS]]
    if not words:
        return None
    ones = [crc32(word) for word in words]
    pairs = [_pair(one, word) for one, word in zip(ones, words[1:], strict=False)]
    return _Hashes(np.array(ones + pairs, np.int64), words[0], ones[-1])


def _pair(one: int, word: bytes) -> int:
    """A checksum can be gone on with: this is that of the first word, a space, and the second."""
    return crc32(b" " + word, one)


_sentence = lru_cache(MOST_KEPT)(_hashes)


def _encoded(text: str, dim: int) -> NDArray[np.float32]:
    text = text.lower()
    # A longer one may have more words than count.
    parts = _SENTENCES.split(text) if len(text) <= LONGEST_KEPT else [text]
    found = [
        one
        for part in parts
        if (one := (_sentence if len(part) <= LONGEST_SENTENCE else _hashes)(part)) is not None
    ]
    if not found:
        return np.zeros(dim, np.float32)
    seams = [_pair(one.last, two.first) for one, two in itertools.pairwise(found)]
    hashes = np.concatenate([one.all for one in found] + [np.array(seams, np.int64)])
    signs = np.where(hashes & 1, 1.0, -1.0)
    vector = np.bincount((hashes >> 1) % dim, weights=signs, minlength=dim)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)


# Behind a lock of its own: threads may ask at once.
_kept = lru_cache(MOST_KEPT)(_encoded)


FORMATS = ("text", "discrete")
_LONGEST_TEXT = 1_000_000
_LONGEST_COMMAND = 20_000


@dataclass
class EnvironmentConfig:
    """Settings that every environment has.

    Attributes:
        max_steps: After how many steps an episode is cut off.
        reward_scale: What rewards are multiplied by.
        success_threshold: The score, from 0 to 1, from which an episode that ended is a success.
        timeout_penalty: Added to the last reward of an episode that is cut off, before scaling.
        device: Where :meth:`EchoRLEnvironment.get_state_representation` puts its tensor.
        seed: Of the first episode, where ``reset`` is given none; later ones follow from it.
        action_format: What the action space is: ``"text"`` or ``"discrete"``. ``step`` takes both
            either way.
        state_encoding_dim: Numbers of the vector.
        action_space_size: How many commands are listed at most: the width of a discrete policy.

    >>> EnvironmentConfig(max_steps=0)
    Traceback (most recent call last):
    echoic.errors.ArgumentError: max_steps must be at least 1, not 0
    """

    max_steps: int = 1000
    reward_scale: float = 1.0
    success_threshold: float = 0.8
    timeout_penalty: float = -1.0
    device: str = "cuda"
    seed: int | None = None
    action_format: str = "text"
    state_encoding_dim: int = 512
    action_space_size: int = 20

    def __post_init__(self) -> None:
        _checks.whole(self, "max_steps", "state_encoding_dim", "action_space_size")
        _checks.number(self, "success_threshold", above=0, most=1)
        _checks.number(self, "reward_scale", "timeout_penalty")
        _checks.one_of(self, "action_format", FORMATS)


@dataclass(frozen=True)
class Outcome:
    """What a command did.

    Attributes:
        text: What is seen now.
        reward: The environment's own reward, not scaled.
        ended: Whether the episode is over.
        score: From 0 to 1, how well the task is done so far.
        details: More for ``info``, of this environment only.
    """

    text: str
    reward: float = 0.0
    ended: bool = False
    score: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvironmentState:
    """Where an episode stands.

    Attributes:
        observation: The text that was last seen.
        reward: What the last step earned.
        done: Whether the episode is over or cut off.
        info: What ``step`` or ``reset`` told last.
        step_count: Steps of this episode.
        episode_reward: What it earned so far.
    """

    observation: str
    reward: float
    done: bool
    info: dict[str, Any]
    step_count: int
    episode_reward: float


class FreeText(spaces.Text):
    """Any text up to a length; sampled from letters, digits and spaces."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=_LETTERS)

    def contains(self, x: Any) -> bool:
        """Whether it is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length


_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 "


class EchoRLEnvironment(gymnasium.Env[dict[str, Any], Any]):
    """An environment of text, for Gymnasium and for language models.

    ``info`` of ``reset`` and ``step`` holds ``commands`` (those that make sense now; empty where
    any text does), ``command_mask`` (which indices of the discrete action space do something),
    ``score``, ``success``, and ``valid`` (whether the last command made sense).

    A subclass has a ``_start``, an ``_apply``, and, where there are such things, ``_commands``,
    ``_vector``, ``_step_limit`` and ``_expert``.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}
    #: What a model is told before the first observation: the task, and how to say a command.
    instructions: str = ""

    def __init__(self, config: EnvironmentConfig) -> None:
        self.config = config
        self.render_mode = "ansi"
        self.observation_space = spaces.Dict(
            {
                "text": FreeText(_LONGEST_TEXT),
                "vector": spaces.Box(-1.0, 1.0, (config.state_encoding_dim,), np.float32),
            }
        )
        self.action_space = (
            FreeText(_LONGEST_COMMAND)
            if config.action_format == "text"
            else spaces.Discrete(config.action_space_size)
        )
        self._encode = TextEncoder(config.state_encoding_dim)
        self._seeded = False
        self._closed = False
        self._state: EnvironmentState | None = None
        self._listed: tuple[str, ...] = ()
        self._episodes = self._successes = self._steps = 0
        self._rewards = 0.0

    # What an environment is made of.

    @abstractmethod
    def _start(self, options: dict[str, Any]) -> str:
        """Begin an episode, with no other randomness than ``self.np_random``; what is seen."""

    @abstractmethod
    def _apply(self, command: str) -> Outcome | None:
        """Do a command; None if it makes no sense here, and nothing changes."""

    def _commands(self) -> Sequence[str]:
        """The commands that make sense now."""
        return ()

    def _possible(self) -> Sequence[bool] | None:
        """Which of the commands do something now, where some that do nothing are listed too."""
        return None

    def _vector(self, text: str) -> NDArray[np.float32]:
        """The vector beside a text."""
        return self._encode(text)

    def _step_limit(self) -> int:
        """After how many steps this episode is cut off."""
        return self.config.max_steps

    def _expert(self) -> str | None:
        """What :meth:`expert` says, within an episode."""
        return None

    # What Gymnasium asks for.

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        self._check_open()
        if seed is None and not self._seeded:
            seed = self.config.seed
        self._seeded = True
        super().reset(seed=seed)
        text = self._start(dict(options or {}))
        return self._show(Outcome(text), valid=True, truncated=False, step=0, earned=0.0)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Do a command: a text, or the index of a listed one."""
        self._check_open()
        before = self._state
        if before is None or before.done:
            raise gymnasium.error.ResetNeeded("reset comes before step, and after an episode's end")
        command = self._command_of(action)
        outcome = None if command is None else self._apply(command)
        valid = outcome is not None
        if outcome is None:
            said = repr(action if command is None else command)[:200]
            outcome = Outcome(
                f"Nothing happens: {said} is no command here.\n{self._again(before)}",
                score=float(before.info["score"]),
            )
        step = before.step_count + 1
        truncated = step >= self._step_limit() and not outcome.ended
        reward = outcome.reward + (self.config.timeout_penalty if truncated else 0.0)
        reward *= self.config.reward_scale
        observation, info = self._show(
            outcome,
            valid=valid,
            truncated=truncated,
            step=step,
            earned=before.episode_reward + reward,
            reward=reward,
        )
        if outcome.ended or truncated:
            self._episodes += 1
            self._successes += bool(info["success"])
            self._steps += step
            self._rewards += before.episode_reward + reward
        return observation, reward, outcome.ended, truncated, info

    def render(self) -> str:
        """What was last seen."""
        return "" if self._state is None else self._state.observation

    def close(self) -> None:
        """Give back what the environment holds; it can't be used after."""
        self._closed = True

    # What agents ask for beside it.

    def expert(self) -> str | None:
        """The next command of a solver that may look behind the scenes; None if there is none."""
        self._check_open()
        if self._state is None:
            raise gymnasium.error.ResetNeeded("reset comes before the expert is asked")
        return self._expert()

    @property
    def state(self) -> EnvironmentState:
        """Where the episode stands."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("reset comes first")
        return self._state

    def get_state_representation(self) -> Any:
        """The vector of what was last seen, as a tensor on the device of the settings."""
        import torch

        from echoic.agents.devices import resolve

        vector = self._vector(self.state.observation)
        return torch.as_tensor(vector, device=resolve(self.config.device))

    def get_action_space_size(self) -> int:
        """The width of a discrete policy."""
        return self.config.action_space_size

    def get_state_dim(self) -> int:
        """Numbers of the vector."""
        return self.config.state_encoding_dim

    def get_statistics(self) -> dict[str, float]:
        """Episodes that ended so far, the share of successes, and means per episode."""
        ended = max(self._episodes, 1)
        return {
            "episodes": self._episodes,
            "success_rate": self._successes / ended,
            "average_reward": self._rewards / ended,
            "average_steps": self._steps / ended,
        }

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{type(self).__name__} is closed")

    def _command_of(self, action: Any) -> str | None:
        if isinstance(action, str):
            return action.strip()[:_LONGEST_COMMAND]
        if isinstance(action, (int, np.integer)) or (
            isinstance(action, np.ndarray) and action.ndim == 0 and action.dtype.kind in "iu"
        ):
            index = int(action)
            return self._listed[index] if 0 <= index < len(self._listed) else None
        raise ArgumentError(
            f"an action is a text or an index of a listed command, not {type(action).__name__}"
        )

    def _again(self, before: EnvironmentState) -> str:
        """What is still seen after a command that made no sense."""
        text = before.observation
        while text.startswith("Nothing happens: ") and "\n" in text:
            text = text.split("\n", 1)[1]
        return text

    def _show(
        self,
        outcome: Outcome,
        *,
        valid: bool,
        truncated: bool,
        step: int,
        earned: float,
        reward: float = 0.0,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        text = outcome.text[:_LONGEST_TEXT]
        size = self.config.action_space_size
        self._listed = () if outcome.ended else tuple(self._commands())[:size]
        mask = np.zeros(size, bool)
        possible = self._possible() if self._listed else None
        mask[: len(self._listed)] = True if possible is None else possible[:size]
        info = {
            **outcome.details,
            "commands": self._listed,
            "command_mask": mask,
            "score": outcome.score,
            "success": outcome.ended and outcome.score >= self.config.success_threshold,
            "valid": valid,
        }
        done = outcome.ended or truncated
        self._state = EnvironmentState(text, reward, done, info, step, earned)
        return {"text": text, "vector": self._vector(text)}, info


# Where ours are: a module, its settings, its environment. Imported when asked for, because each
# brings packages of its own.
_OURS = {
    "alfworld": ("alfworld", "ALFWorldConfig", "ALFWorldEnvironment"),
    "arc": ("arc", "ARCConfig", "ARCEnvironment"),
    "cruxeval": ("cruxeval", "CRUXEvalConfig", "CRUXEvalEnvironment"),
    "game24": ("game24", "Game24Config", "Game24Environment"),
    "minigrid": ("minigrid", "MiniGridConfig", "MiniGridEnvironment"),
    "reasoning_gym": ("reasoning_gym", "ReasoningGymConfig", "ReasoningGymEnvironment"),
    "rooms": ("rooms", "RoomsConfig", "RoomsEnvironment"),
    "webshop": ("webshop", "WebShopConfig", "WebShopEnvironment"),
}
_USERS: dict[str, Callable[..., Any]] = {}


def register_environment(name: str, make: Callable[..., Any]) -> None:
    """Give a name to an environment; ``make`` gets the settings by name.

    It must return an :class:`~echoic.agents.environments.EchoRLEnvironment`, or something that
    acts as one. A name can be given again: the newest counts.
    """
    if not name or not callable(make):
        raise ArgumentError("an environment needs a name and a function that makes it")
    _USERS[name] = make


def environment_names() -> tuple[str, ...]:
    """All names, in alphabetical order."""
    return tuple(sorted({*_OURS, *_USERS}))


def make_environment(name: str, **settings: Any) -> Any:
    """Make the environment of a name, with these settings."""
    if name in _USERS:
        return _USERS[name](**settings)
    if name not in _OURS:
        known = ", ".join(environment_names())
        raise ArgumentError(f"there is no environment {name!r}; there are {known}")
    module_name, config_name, class_name = _OURS[name]
    module = importlib.import_module(f"echoic.agents.environments.{module_name}")
    config = getattr(module, config_name)
    known_settings = {one.name for one in dataclasses.fields(config)}
    if unknown := sorted(set(settings) - known_settings):
        known = ", ".join(sorted(known_settings))
        raise ArgumentError(f"{config_name} has no setting {unknown[0]!r}; it has {known}")
    return getattr(module, class_name)(config(**settings))
