"""The interface that all environments share: text in, text out, a vector beside it, and a name.

- An invalid command costs a step and changes nothing. It is never an error: models and untrained
  policies send such commands all the time.
- Success is the environment's own signal: a score between 0 and 1 at the end of an episode that
  reaches ``success_threshold``. An episode that is cut off is no success.
- The listed commands are the same, in the same order, for the same state. ``action_space_size``
  cuts the list, for policies of fixed width; text may name the rest. Where an index means the same
  command in every state, all are listed, and the mask marks those that have an effect now.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import re
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import gymnasium
import numpy as np
from gymnasium import spaces

from echoic.agents import _checks
from echoic.errors import ArgumentError, ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "EchoRLEnvironment",
    "EnvironmentConfig",
    "EnvironmentState",
    "Outcome",
    "TextEncoder",
    "environment_names",
    "make_environment",
    "register_environment",
]

# Bounds of the cache of encodings, in entries, and characters and bytes of one: 25 MB.
MOST_KEPT, LARGEST_KEPT = 4096, 6144

_WORD = re.compile(r"[a-z]+|\d|[^\sa-z\d]")
# Longer texts are cut, which bounds the cost of a step.
_MAX_WORDS = 4096


class TextEncoder:
    """Encodes texts as vectors of ``dim`` numbers and of length one, without a vocabulary.

    Each word and each pair of neighbours adds one at a place given by its hash, with a sign given
    by the hash too, so that collisions cancel. A text has the same vector on every machine.
    """

    def __init__(self, dim: int) -> None:
        if dim < 1:
            raise ArgumentError(f"dim must be at least 1, not {dim}")
        self.dim = dim

    def __call__(self, text: str) -> NDArray[np.float32]:
        """Encode a text; an empty one is zeros. The caller owns the vector."""
        is_small = len(text) + 4 * self.dim <= LARGEST_KEPT
        return _kept(text, self.dim).copy() if is_small else _encoded(text, self.dim)


def _encoded(text: str, dim: int) -> NDArray[np.float32]:
    words = _WORD.findall(text.lower())[:_MAX_WORDS]
    said = [*words, *map(" ".join, itertools.pairwise(words))]
    hashes = np.array([crc32(one.encode("utf-8", "surrogatepass")) for one in said], np.int64)
    signs = np.where(hashes & 1, 1.0, -1.0)
    vector = np.bincount((hashes >> 1) % dim, weights=signs, minlength=dim)
    return (vector / (np.linalg.norm(vector) or 1.0)).astype(np.float32)


_kept = lru_cache(MOST_KEPT)(_encoded)

_LONGEST_TEXT = 1_000_000
_LONGEST_COMMAND = 20_000


@dataclass
class EnvironmentConfig:
    """Settings that every environment has.

    Attributes:
        max_steps: Steps after which an episode is cut off.
        reward_scale: Factor of all rewards.
        success_threshold: The score, above 0 and at most 1, from which an ended episode is a
            success.
        timeout_penalty: Added to the last reward of an episode that is cut off, before scaling.
        device: Where :meth:`EchoRLEnvironment.get_state_representation` puts its tensor.
        seed: Seed of the first episode if ``reset`` gets none; later episodes follow from it.
        action_format: The action space, ``"text"`` or ``"discrete"``. ``step`` takes both.
        state_encoding_dim: Numbers of the vector.
        action_space_size: Most commands that are listed: the width of a discrete policy.
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
        _checks.one_of(self, "action_format", ("text", "discrete"))


@dataclass(frozen=True)
class Outcome:
    """The result of a command.

    Attributes:
        text: The next observation.
        reward: The environment's own reward, before scaling.
        ended: Whether the episode is over.
        score: How well the task is done so far, from 0 to 1.
        details: More entries of ``info``, of this environment only.
    """

    text: str
    reward: float = 0.0
    ended: bool = False
    score: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvironmentState:
    """The state of an episode: the last text, reward and ``info``, and its steps and their sum."""

    observation: str
    reward: float
    done: bool
    info: dict[str, Any]
    step_count: int = 0
    episode_reward: float = 0.0


#: What is before an episode, whose first observation is no step.
BEFORE = EnvironmentState("", 0.0, False, {}, step_count=-1)


class _AnyText(spaces.Text):
    """Any text up to a length; samples have letters and digits."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class EchoRLEnvironment(gymnasium.Env[dict[str, Any], Any]):
    """An environment of text, for Gymnasium and for language models.

    ``info`` of ``reset`` and ``step`` holds ``commands`` (the valid ones; empty where any text is
    valid), ``command_mask`` (which indices of the discrete action space have an effect),
    ``score``, ``success``, and ``valid`` (whether the last command was).

    A subclass defines ``_start``, ``_apply``, and, where they apply, ``_commands``, ``_possible``,
    ``_vector``, ``_step_limit`` and ``_expert``.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}
    #: The prompt of a model before the first observation: the task, and the form of commands.
    instructions: str = ""

    def __init__(self, config: EnvironmentConfig) -> None:
        self.config = config
        self.render_mode = "ansi"
        self.observation_space = spaces.Dict(
            {
                "text": _AnyText(_LONGEST_TEXT, min_length=0),
                "vector": spaces.Box(-1.0, 1.0, (config.state_encoding_dim,), np.float32),
            }
        )
        self.action_space = (
            _AnyText(_LONGEST_COMMAND, min_length=0)
            if config.action_format == "text"
            else spaces.Discrete(config.action_space_size)
        )
        self._encode = TextEncoder(config.state_encoding_dim)
        self._seeded = self._closed = False
        self._state: EnvironmentState | None = None
        self._listed: tuple[str, ...] = ()
        # Of ended episodes: their number, successes, rewards and steps.
        self._totals = np.zeros(4)

    # For subclasses to define.

    @abstractmethod
    def _start(self, options: dict[str, Any]) -> str:
        """Begin an episode, random by ``self.np_random`` only; return the observation."""

    @abstractmethod
    def _apply(self, command: str) -> Outcome | None:
        """Execute a command; return None, and change nothing, if it is not valid here."""

    def _commands(self) -> Sequence[str]:
        """List the valid commands."""
        return ()

    def _possible(self) -> Sequence[bool] | None:
        """Mark the listed commands that have an effect; None marks all."""
        return None

    def _vector(self, text: str) -> NDArray[np.float32]:
        """Encode an observation."""
        return self._encode(text)

    def _step_limit(self) -> int:
        """Return the steps after which this episode is cut off."""
        return self.config.max_steps

    def _expert(self) -> str | None:
        """Return what :meth:`expert` does, within an episode."""
        return None

    def _index_of(self, options: dict[str, Any], name: str, count: int) -> int:
        """Draw one of ``count`` tasks, or take the one that ``options`` of ``reset`` choose."""
        drawn = int(self.np_random.integers(count))
        index = options.get(name, drawn)
        if not isinstance(index, int) or not 0 <= index < count:
            raise ArgumentError(f"{name} must be from 0 to {count - 1}, not {index!r}")
        return index

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        self._check_open()
        if seed is None and not self._seeded:
            seed = self.config.seed
        self._seeded = True
        super().reset(seed=seed)
        return self._show(Outcome(self._start(dict(options or {}))), BEFORE, valid=True)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Execute a command: a text, or the index of a listed one."""
        before = self._before_step()
        command = self._command_of(action)
        outcome = None if command is None else self._apply(command)
        valid = outcome is not None
        if outcome is None:
            said = repr(action if command is None else command)[:200]
            text = f"Nothing happens: {said} is no command here.\n{self._last_valid}"
            outcome = Outcome(text, score=float(before.info["score"]))
        observation, info = self._show(outcome, before, valid=valid)
        state = self.state
        return observation, state.reward, outcome.ended, state.done and not outcome.ended, info

    def render(self) -> str:
        """Return the last text."""
        return "" if self._state is None else self._state.observation

    def close(self) -> None:
        """Release what the environment holds; it can't be used afterwards."""
        self._closed = True

    def expert(self) -> str | None:
        """Return the next command of a solver that may see hidden state; None if it has none."""
        self._check_open()
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset before expert")
        return self._expert()

    @property
    def state(self) -> EnvironmentState:
        """The state of the episode."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset first")
        return self._state

    def get_state_representation(self) -> Any:
        """Return the last vector, as a tensor on the device of the settings."""
        import torch

        from echoic.agents.devices import resolve

        vector = self._vector(self.state.observation)
        return torch.as_tensor(vector, device=resolve(self.config.device))

    def get_action_space_size(self) -> int:
        """Return the width of a discrete policy."""
        return self.config.action_space_size

    def get_state_dim(self) -> int:
        """Return the size of the vector."""
        return self.config.state_encoding_dim

    def get_statistics(self) -> dict[str, float]:
        """Count ended episodes, with the share of successes and means per episode."""
        episodes, *totals = self._totals.tolist()
        means = [one / max(episodes, 1) for one in totals]
        names = ("success_rate", "average_reward", "average_steps")
        return {"episodes": int(episodes), **dict(zip(names, means, strict=True))}

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{type(self).__name__} is closed")

    def _before_step(self) -> EnvironmentState:
        self._check_open()
        if self._state is None or self._state.done:
            raise gymnasium.error.ResetNeeded("reset comes before step, and after an episode's end")
        return self._state

    def _enter(self, state: EnvironmentState) -> None:
        """Take a new state, and count the episode if it is its last."""
        self._state = state
        if state.done:
            success = bool(state.info["success"])
            self._totals += (1, success, state.episode_reward, state.step_count)

    def _command_of(self, action: Any) -> str | None:
        action = plain_action(action)
        if isinstance(action, str):
            return action.strip()[:_LONGEST_COMMAND]
        return self._listed[action] if 0 <= action < len(self._listed) else None

    def _show(
        self, outcome: Outcome, before: EnvironmentState, *, valid: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make the state after a command, or that of a new episode."""
        config, text, step = self.config, outcome.text[:_LONGEST_TEXT], before.step_count + 1
        if valid:
            self._last_valid = text
        truncated = step >= self._step_limit() and not outcome.ended
        reward = outcome.reward + (config.timeout_penalty if truncated else 0.0)
        reward *= config.reward_scale
        size = config.action_space_size
        self._listed = () if outcome.ended else tuple(self._commands())[:size]
        mask = np.zeros(size, bool)
        possible = self._possible() if self._listed else None
        mask[: len(self._listed)] = True if possible is None else possible[:size]
        info = {
            **outcome.details,
            "commands": self._listed,
            "command_mask": mask,
            "score": outcome.score,
            "success": outcome.ended and outcome.score >= config.success_threshold,
            "valid": valid,
        }
        done = outcome.ended or truncated
        earned = before.episode_reward + reward
        self._enter(EnvironmentState(text, reward, done, info, step, earned))
        return {"text": text, "vector": self._vector(text)}, info


def plain_action(action: Any) -> str | int:
    """Return a text, or an index as Python's own number."""
    if isinstance(action, np.ndarray) and action.ndim == 0 and action.dtype.kind in "iu":
        action = action.item()
    if not isinstance(action, (str, int, np.integer)):
        raise ArgumentError(
            f"an action is a text or an index of a listed command, not {type(action).__name__}"
        )
    return action if isinstance(action, str) else int(action)


def package(name: str) -> Any:
    """Import the package that an environment needs, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"this environment needs: pip install {name}", name=name
        ) from error


# What the names of settings and class begin with. Their module is imported when one is first used,
# because each has dependencies of its own.
_CLASSES = ("ALFWorld", "ARC", "CRUXEval", "Game24", "MiniGrid", "Rooms", "WebShop")
_OURS = {name.lower(): name for name in _CLASSES}
_USERS: dict[str, Callable[..., Any]] = {}


def register_environment(name: str, make: Callable[..., Any]) -> None:
    """Register a function that makes an environment of settings by name; the latest counts."""
    if not name or not callable(make):
        raise ArgumentError("an environment needs a name and a function that makes it")
    _USERS[name] = make


def environment_names() -> tuple[str, ...]:
    """Return all names, in alphabetical order."""
    return tuple(sorted({*_OURS, *_USERS}))


def make_environment(name: str, **settings: Any) -> Any:
    """Make the environment of a name, with these settings.

    Raises:
        ArgumentError: If the name or a setting is unknown; the message lists the known ones.
    """
    if name in _USERS:
        return _USERS[name](**settings)
    config, kind = _found(name)
    return kind(read_settings(config, settings))


def _found(name: str) -> tuple[Any, Any]:
    """Import an environment's settings and class."""
    if name not in _OURS:
        known = ", ".join(environment_names())
        raise ArgumentError(f"there is no environment {name!r}; there are {known}")
    ours = importlib.import_module("echoic.agents.environments")
    return getattr(ours, f"{_OURS[name]}Config"), getattr(ours, f"{_OURS[name]}Environment")


def provenance_of(name: str, settings: Mapping[str, Any]) -> str:
    """Name a task in a report, with where its data comes from: ``"webshop-generated"``."""
    # A name or settings that can't be made keep their name; making them says what is wrong.
    with contextlib.suppress(ArgumentError):
        if name not in _USERS:
            return str(getattr(read_settings(_found(name)[0], settings), "provenance", name))
    return name


def read_settings(kind: Any, settings: Mapping[str, Any]) -> Any:
    """Make a dataclass of settings by name; an unknown name is an error that lists the known."""
    known = {one.name for one in dataclasses.fields(kind)}
    if unknown := sorted(set(settings) - known):
        listed = ", ".join(sorted(known))
        raise ArgumentError(f"{kind.__name__} has no setting {unknown[0]!r}; it has {listed}")
    return kind(**settings)
