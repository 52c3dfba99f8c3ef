"""ALFWorld: household tasks in text, played by ALFWorld itself in a process of its own.

ALFWorld brings Fast Downward and jericho, which are under the GPL, so it runs in an interpreter of
its own, which may be of another virtual environment; nothing of it is imported here.

Decisions:

- The official games are not in the package; they are played where ``ALFWORLD_DATA`` points at them.
  Otherwise games are generated: the same engine, rules, words and rooms, but problems of ours, so
  that results do not compare with published ones.
- ``max_objects`` and ``room_size`` make generated games small, 10 things in 5 receptacles as a
  rule: then nearly all commands of a state fit into an ``action_space_size`` of 20. Official games
  have twice as many, and the list is cut for policies of fixed width.
- Commands are those that ALFWorld calls admissible; the reward is its own, 1 for the task done.
- The expert is the walkthrough that ALFWorld's own expert found, or Fast Downward where that one
  gave up, and from off its way, the plan of Fast Downward, which takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic.agents import _checks
from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.agents.environments.processes import EnvironmentProcessError, JsonProcess
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ALFWorldConfig", "ALFWorldEnvironment"]

_TASKS = {
    "pick_and_place": "pick_and_place_simple",
    "look_at_obj": "look_at_obj_in_light",
    "pick_clean_then_place": "pick_clean_then_place_in_recep",
    "pick_heat_then_place": "pick_heat_then_place_in_recep",
    "pick_cool_then_place": "pick_cool_then_place_in_recep",
    "pick_two_obj": "pick_two_obj_and_place",
}
_GAMES = ("auto", "generated", "official")
_SPLITS = ("train", "valid_seen", "valid_unseen")
_DIM = 512
_PYTHON = "ECHOIC_ALFWORLD_PYTHON"
_INSTALL = (
    "pip install alfworld==0.4.2, which compiles for some minutes, in a virtual environment of its "
    "own if you don't want its GPL packages in yours"
)


@dataclass
class ALFWorldConfig(EnvironmentConfig):
    """Settings of ALFWorld.

    Attributes:
        task_type: ``"pick_and_place"``, ``"look_at_obj"``, ``"pick_clean_then_place"``,
            ``"pick_heat_then_place"``, ``"pick_cool_then_place"``, ``"pick_two_obj"``, ALFWorld's
            long name of one of them, or ``"any"``.
        max_objects: How many things a generated game has at most, those of the task included.
        room_size: How many receptacles a generated game has: more where the task needs more, fewer
            where the room has fewer.
        use_vision: Must be False: the simulator that draws the rooms does not come with ALFWorld's
            package.
        text_encoding_dim: Numbers of the vector: the same as ``state_encoding_dim``, and either
            can be given.
        games: ``"official"`` games, ``"generated"`` ones, or ``"auto"``: official where
            ``ALFWORLD_DATA`` points at them.
        split: Of the official games.
        num_games: How many generated games there are. Seeds choose among them.
        python: The interpreter that has alfworld; this one unless ``ECHOIC_ALFWORLD_PYTHON`` says
            another.
        step_timeout: Seconds that a command may take.
        reset_timeout: Seconds that making and starting a game, or a word of the expert, may take.
        max_steps: As of all environments; lower here.
        timeout_penalty: As of all environments; none here.

    >>> ALFWorldConfig(task_type="pick_and_place", max_objects=10).state_encoding_dim
    512
    """

    max_steps: int = 100
    timeout_penalty: float = 0.0
    task_type: str = "pick_and_place"
    max_objects: int = 10
    room_size: int = 5
    use_vision: bool = False
    text_encoding_dim: int = _DIM
    games: str = "auto"
    split: str = "train"
    num_games: int = 10_000
    python: str | None = None
    step_timeout: float = 60.0
    reset_timeout: float = 300.0

    def __post_init__(self) -> None:
        if self.use_vision:
            raise ArgumentError(
                "use_vision must be False: rooms are drawn by a simulator that ALFWorld's package "
                "does not bring"
            )
        if self.text_encoding_dim != self.state_encoding_dim:
            if _DIM not in (self.text_encoding_dim, self.state_encoding_dim):
                raise ArgumentError(
                    "text_encoding_dim and state_encoding_dim are the same, not "
                    f"{self.text_encoding_dim} and {self.state_encoding_dim}"
                )
            given = self.text_encoding_dim + self.state_encoding_dim - _DIM
            self.text_encoding_dim = self.state_encoding_dim = given
        super().__post_init__()
        if not self.task_names():
            known = ", ".join((*_TASKS, "any"))
            raise ArgumentError(f"task_type must be one of {known}, not {self.task_type!r}")
        _checks.whole(self, "max_objects", "room_size", least=2)
        _checks.whole(self, "num_games")
        _checks.number(self, "step_timeout", "reset_timeout", above=0)
        _checks.one_of(self, "games", _GAMES)
        _checks.one_of(self, "split", _SPLITS)

    def task_names(self) -> list[str]:
        """ALFWorld's names of the tasks."""
        if self.task_type == "any":
            return sorted(_TASKS.values())
        name = _TASKS.get(self.task_type, self.task_type)
        return [name] if name in _TASKS.values() else []


class ALFWorldEnvironment(EchoRLEnvironment):
    """A game of ALFWorld, played in a process of its own.

    Making one needs no ALFWorld; the first ``reset`` does.

    Raises:
        ModuleNotFoundError: From ``reset``, where the worker's interpreter has no alfworld.
        EnvironmentProcessError: The worker died or hung; the next ``reset`` starts another.

    >>> from echoic.agents.environments import ALFWorldConfig, ALFWorldEnvironment
    >>> ALFWorldEnvironment(ALFWorldConfig(task_type="look_at_obj")).get_state_dim()
    512
    """

    instructions = (
        "You are in a room of a house, and have a task. Say one command at a time: look, "
        "inventory, go to <place>, open <place>, close <place>, take <thing> from <place>, move "
        "<thing> to <place>, examine <thing>, use <lamp>, clean <thing> with <place>, heat <thing> "
        "with <place>, cool <thing> with <place>. Places and things have numbers, such as drawer 2."
    )

    def __init__(self, config: ALFWorldConfig | None = None) -> None:
        self.game = config or ALFWorldConfig()
        super().__init__(self.game)
        self._worker: JsonProcess | None = None
        self._seen: dict[str, Any] = {}

    def _game(self) -> dict[str, Any]:
        """What the worker makes an episode's game from."""
        config = self.game
        games = config.games
        if games == "auto":
            data = os.environ.get("ALFWORLD_DATA")
            there = bool(data) and (Path(str(data)) / "json_2.1.1").is_dir()
            games = "official" if there else "generated"
        made_from: dict[str, Any] = {
            "tasks": config.task_names(),
            "max_objects": config.max_objects,
            "room_size": config.room_size,
        }
        key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
        # Any number does for the official games, of which there may be more.
        most = 2**31 if games == "official" else config.num_games
        return {
            "seed": int(self.np_random.integers(most)),
            "settings": {**made_from, "games": games, "split": config.split},
            "folder": str(_cache_folder() / key),
        }

    @property
    def python(self) -> str:
        """The interpreter of the worker."""
        return self.game.python or os.environ.get(_PYTHON) or sys.executable

    def _expert(self) -> str | None:
        """The next command of the game's own solver."""
        command: str | None = self._ask("expert", self.game.reset_timeout)
        return command

    def close(self) -> None:
        """End the worker; the environment can't be used after."""
        super().close()
        if self._worker is not None:
            self._worker.close()

    def _start(self, options: dict[str, Any]) -> str:
        del options
        game = self._game()
        if self._worker is None:
            self._worker = self._open()
        self._seen = self._ask("reset", self.game.reset_timeout, **game)
        return str(self._seen["text"])

    def _apply(self, command: str) -> Outcome | None:
        said = " ".join(command.split()).casefold()
        known = {one.casefold(): one for one in self._seen["commands"]}
        if said not in known:
            return None
        before = float(self._seen["score"])
        self._seen = seen = self._ask("step", self.game.step_timeout, command=known[said])
        score = float(seen["score"])
        # A lost game earns nothing, however far it got.
        final = 0.0 if seen["ended"] and not seen["won"] else score
        reward = max(0.0, score - before)
        return Outcome(seen["text"], reward, bool(seen["ended"]), final, seen["details"])

    def _commands(self) -> Sequence[str]:
        commands: list[str] = self._seen["commands"]
        return commands

    def _ask(self, do: str, timeout: float, **arguments: Any) -> Any:
        if self._worker is None:
            raise EnvironmentProcessError("ALFWorld's worker is gone, and reset starts another")
        try:
            return self._worker.ask(do, timeout, **arguments)
        except EnvironmentProcessError:
            # What it plays is of no more use, even if it lives.
            self._worker.close()
            self._worker = None
            raise

    def _open(self) -> JsonProcess:
        file = Path(__file__).parent / "workers" / "alfworld_games.py"
        worker = JsonProcess([self.python, str(file)], name="the worker of ALFWorld")
        try:
            worker.ask("hello", self.game.reset_timeout)
        except BaseException as error:
            worker.close()
            if isinstance(error, ImportError):
                raise ModuleNotFoundError(
                    f"ALFWorld is not installed for {self.python} ({error}): {_INSTALL}; then give "
                    f"its interpreter in {_PYTHON} or in the setting python"
                ) from error
            raise
        return worker


def _cache_folder() -> Path:
    """Where games are kept: ``ECHOIC_CACHE``, or in the user's cache."""
    own = os.environ.get("ECHOIC_CACHE")
    if own:
        return Path(own) / "alfworld"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "echoic" / "alfworld"
