"""MiniGrid and BabyAI, from the minigrid package: grids, of which seven by seven cells are seen.

The world, its missions, its rewards and its limit of steps are the package's own. This module adds
a text and a vector of the view, and words for the seven actions, which are always listed, in the
package's order; one without effect, or a text that is no command, costs a step of the package too.
The score is 1 once the mission is done, whatever the reward, which shrinks with each step to 0.1.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from echoic.agents import _checks
from echoic.agents.environments.base import (
    EchoRLEnvironment,
    EnvironmentConfig,
    Outcome,
    TextEncoder,
    package,
)
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["COMMANDS", "MiniGridConfig", "MiniGridEnvironment"]

#: The actions, in the package's order.
COMMANDS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
# Other names of the actions: the package's own, and common ones.
_SAYINGS = {command: index for index, command in enumerate(COMMANDS)}
_SAYINGS |= {"left": 0, "right": 1, "forward": 2, "move forward": 2, "pickup": 3, "open": 5}

_SIZES = {
    "key_door": {size: f"MiniGrid-DoorKey-{size}x{size}-v0" for size in (5, 6, 8, 16)},
    "navigation": {size: f"MiniGrid-Empty-{size}x{size}-v0" for size in (5, 6, 8, 16)},
    "memory": {
        **{size: f"MiniGrid-MemoryS{size}-v0" for size in (7, 9, 11, 13)},
        17: "MiniGrid-MemoryS17Random-v0",
    },
}

_VIEW = 7
_CELLS = _VIEW * _VIEW
# Numbers of a cell in the vector: five for what it is, three for its colour, one for a door.
_PER_CELL = 9
_EXACT = _CELLS * _PER_CELL + 4
_OBJECTS = (
    "unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent",
)  # fmt: skip
_COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
_STATES = ("open", "closed", "locked")
_FACING = ("east", "south", "west", "north")
_SIGNS = {  # by kind of object: which of the five numbers, and its sign
    "wall": (0, 1), "unseen": (0, -1), "door": (1, 1), "floor": (1, -1), "key": (2, 1),
    "ball": (2, -1), "goal": (3, 1), "lava": (3, -1), "box": (4, 1), "agent": (4, -1),
}  # fmt: skip


@dataclass
class MiniGridConfig(EnvironmentConfig):
    """Settings of a MiniGrid environment.

    Attributes:
        grid_size: Cells of a side, walls included. ``key_door`` and ``navigation`` have sizes
            5, 6, 8 and 16, ``memory`` 7, 9, 11, 13 and 17, ``multi_object`` any from 6 on.
        num_objects: Number of things for ``multi_object``; the other tasks have their own.
        task_type: ``"key_door"`` (DoorKey), ``"navigation"`` (Empty, from a random place),
            ``"multi_object"`` (PutNear), ``"memory"`` (Memory), or any id of the package that
            begins with ``MiniGrid-`` or ``BabyAI-``, which sets its own size and things.
        action_space_size: The seven actions of the package, or the first ones of them.
        timeout_penalty: 0 here, not -1, so that rewards are the package's.
        max_steps: The package has a limit for every task, and the smaller one counts.
        state_encoding_dim: At least 446: 445 numbers for the view, the rest for the mission's hash.
    """

    timeout_penalty: float = 0.0
    action_space_size: int = 7
    grid_size: int = 8
    num_objects: int = 3
    task_type: str = "key_door"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole(self, "state_encoding_dim", least=_EXACT + 1)
        size, number, sizes = self.grid_size, self.num_objects, _SIZES.get(self.task_type)
        if self.task_type == "multi_object":
            if size < 6:
                raise ArgumentError(f"multi_object has grid_size 6 or more, not {size}")
            # Things may not touch: each takes nine cells at most, and the package looks for a place
            # for the next one until there is one.
            most = min(((size - 2) ** 2 - 1) // 9 + 1, 18)
            if not 2 <= number <= most:
                raise ArgumentError(
                    f"num_objects must be from 2 to {most} with grid_size {size}, not {number}"
                )
        elif sizes is None and not self.task_type.startswith(("MiniGrid-", "BabyAI-")):
            raise ArgumentError(
                f"task_type must be one of {', '.join(_SIZES)}, multi_object, or an id that begins "
                f"with MiniGrid- or BabyAI-, not {self.task_type!r}"
            )
        elif sizes is not None and size not in sizes:
            known = ", ".join(map(str, sizes))
            raise ArgumentError(f"{self.task_type} has grid_size {known}, not {size}")


def _cell_table() -> NDArray[np.float32]:
    """Compute the numbers of each possible cell, by object, colour and state."""
    table = np.zeros((len(_OBJECTS), len(_COLORS), len(_STATES), _PER_CELL), np.float32)
    for kind, (place, sign) in _SIGNS.items():
        table[_OBJECTS.index(kind), ..., place] = sign
    for color in range(len(_COLORS)):
        table[2:, color, :, 5 + color // 2] = -1 if color % 2 else 1
    door = _OBJECTS.index("door")
    table[door, :, _STATES.index("open"), 8] = 1
    table[door, :, _STATES.index("locked"), 8] = -1
    return table


_TABLE = _cell_table()


class MiniGridEnvironment(EchoRLEnvironment):
    """A world of the minigrid package, as text and as a vector.

    The text has the mission, the carried thing, the cell in front, the free steps each way, and
    every visible thing with its relative place. The vector holds, for each of the 49 visible cells
    (by columns from the left, each from far to near), nine numbers from -1 to 1: five for what it
    is, three for its colour, and one for an open or locked door.

    Empty cells are zeros. The agent's own cell holds the carried thing. Four numbers encode the
    direction, and the rest is a hash of the mission.

    ``info`` has the ``package_seed``, with which the bare package resets to the same world. There
    is no expert.
    """

    config: MiniGridConfig
    instructions = (
        "You are in a grid world and see what is ahead of you, up to six steps away and three to "
        'each side. Say one command per turn: "turn left", "turn right", "go forward", "pick up" '
        '(the thing in front of you), "drop" (in front of you), "toggle" (open or close what is in '
        "front of you; a locked door needs the key of its colour, carried) or "
        '"done". You carry one thing at a time.'
    )

    def __init__(self, config: MiniGridConfig | None = None) -> None:
        config = config or MiniGridConfig()
        super().__init__(config)
        self._world = _make(config)
        self._mission_code = TextEncoder(config.state_encoding_dim - _EXACT)
        self._current = np.zeros(config.state_encoding_dim, np.float32)

    def _start(self, options: dict[str, Any]) -> str:
        self._package_seed = int(self.np_random.integers(2**31))
        seen, _ = self._world.reset(seed=self._package_seed)
        self._current[_EXACT:] = self._mission_code(self._world.mission)
        return self._look(seen)

    def _apply(self, command: str) -> Outcome | None:
        # Invalid indices are steps that did not come here.
        self._world.step_count = self.state.step_count
        action = _SAYINGS.get(command.lower().rstrip("."))
        if action is None:
            self._world.step_count += 1
            return None
        seen, reward, ended, _, _ = self._world.step(action)
        text = self._look(seen)
        details = {"package_seed": self._package_seed}
        score = float(ended and reward > 0)
        return Outcome(text, float(reward), bool(ended), score, details)

    def _commands(self) -> tuple[str, ...]:
        return COMMANDS

    def _step_limit(self) -> int:
        return min(self.config.max_steps, int(self._world.max_steps))

    def _vector(self, text: str) -> NDArray[np.float32]:
        return self._current.copy()

    def _look(self, seen: dict[str, Any]) -> str:
        self._image = cells = seen["image"]
        view, world = self._current, self._world
        view[: _EXACT - 4] = _TABLE[cells[..., 0], cells[..., 1], cells[..., 2]].reshape(-1)
        view[_EXACT - 4 : _EXACT] = 0
        view[_EXACT - 4 + int(seen["direction"])] = 1
        image, middle, near, held = cells.tolist(), _VIEW // 2, _VIEW - 1, world.carrying
        things = []
        for depth in range(_VIEW):  # from near to far
            for column in range(_VIEW):
                cell = image[column][near - depth]
                if cell[0] > 2 and (depth or column != middle):
                    where = [f"{depth} ahead"] * bool(depth)
                    side = "left" if column < middle else "right"
                    where += [f"{abs(column - middle)} to the {side}"] * (column != middle)
                    things.append(f"- {_name(*cell)}: {', '.join(where)}")
        steps = []
        for way, line in (
            ("ahead", image[middle][near - 1 :: -1]),
            ("to the left", [image[middle - i][near] for i in range(1, middle + 1)]),
            ("to the right", [image[middle + i][near] for i in range(1, middle + 1)]),
        ):
            free = next((i for i, cell in enumerate(line) if not _passable(cell)), len(line))
            steps.append(f"{free}{'' if free < len(line) else ' or more'} {way}")
        carried = f"a {held.color} {held.type}" if held is not None else "nothing"
        return "\n".join(
            [
                f"Mission: {world.mission}.",
                f"You face {_FACING[world.agent_dir]} and carry {carried}.",
                f"In front of you: {_name(*image[middle][near - 1])}.",
                f"Free steps: {', '.join(steps)}.",
                *(["You see:", *things] if things else ["You see nothing but floor and walls."]),
            ]
        )


_NAMES = {
    "wall": "a wall", "unseen": "unseen", "empty": "nothing", "lava": "lava", "goal": "the goal",
}  # fmt: skip


def _name(kind: int, color: int, state: int) -> str:
    name = _OBJECTS[kind]
    if name == "door":
        word = _STATES[state]
        return f"{'an' if word == 'open' else 'a'} {word} {_COLORS[color]} door"
    return _NAMES.get(name, f"a {_COLORS[color]} {name}")


def _passable(cell: list[int]) -> bool:
    kind = _OBJECTS[cell[0]]
    return kind in ("empty", "floor", "goal") or (kind == "door" and cell[2] == 0)


def _make(config: MiniGridConfig) -> Any:
    package("minigrid")  # its import registers the ids
    extra: dict[str, Any] = {}
    if config.task_type == "multi_object":
        name = "MiniGrid-PutNear-8x8-N3-v0"
        extra = {"size": config.grid_size, "numObjs": config.num_objects}
    elif config.task_type in _SIZES:
        name = _SIZES[config.task_type][config.grid_size]
        if config.task_type == "navigation":
            extra = {"agent_start_pos": None}
    else:
        name = config.task_type
    try:
        world = gymnasium.make(name, disable_env_checker=True, **extra).unwrapped
    except gymnasium.error.Error as error:
        raise ArgumentError(f"the package has no {name!r}: {error}") from error
    view = world.observation_space["image"].shape
    if view != (_VIEW, _VIEW, 3):
        raise ArgumentError(f"{name} shows {view[0]} by {view[1]} cells, not {_VIEW} by {_VIEW}")
    # BabyAI's levels print while they are generated. Standard output is shared by all threads, so
    # it can't be redirected for one of them; the name ``print`` of that one module can.
    levels = importlib.import_module("minigrid.envs.babyai.core.roomgrid_level")
    levels.print = lambda *_args, **_options: None  # type: ignore[attr-defined]
    return world
