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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echoic.agents.environments._games import GameConfig, GameEnvironment, cache_folder
from echoic.errors import ArgumentError

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


@dataclass
class ALFWorldConfig(GameConfig):
    """Settings of ALFWorld.

    Attributes:
        task_type: ``"pick_and_place"``, ``"look_at_obj"``, ``"pick_clean_then_place"``,
            ``"pick_heat_then_place"``, ``"pick_cool_then_place"``, ``"pick_two_obj"``, ALFWorld's
            long name of one of them, or ``"any"``.
        max_objects: How many things a generated game has at most, those of the task included.
        room_size: How many receptacles a generated game has: more where the task needs more, fewer
            where the room has fewer.
        use_vision: Must be False: the simulator that draws the rooms does not come with ALFWorld's
            package, and is none of text.
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
        for name, least in (("max_objects", 2), ("room_size", 2), ("num_games", 1)):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name, known_ones in (("games", _GAMES), ("split", _SPLITS)):
            if getattr(self, name) not in known_ones:
                known = ", ".join(known_ones)
                raise ArgumentError(f"{name} must be one of {known}, not {getattr(self, name)!r}")

    def task_names(self) -> list[str]:
        """ALFWorld's names of the tasks."""
        if self.task_type == "any":
            return sorted(_TASKS.values())
        name = _TASKS.get(self.task_type, self.task_type)
        return [name] if name in _TASKS.values() else []


class ALFWorldEnvironment(GameEnvironment):
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
    _worker_file = "alfworld_games.py"
    _package = "ALFWorld"
    _install = (
        "pip install alfworld==0.4.2, which compiles for some minutes, in a virtual environment of "
        "its own if you don't want its GPL packages in yours"
    )
    _variables = ("ECHOIC_ALFWORLD_PYTHON",)

    def __init__(self, config: ALFWorldConfig | None = None) -> None:
        self.game = config or ALFWorldConfig()
        super().__init__(self.game)

    def _game(self, options: dict[str, Any]) -> dict[str, Any]:
        del options
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
            "folder": str(cache_folder("alfworld") / key),
        }
