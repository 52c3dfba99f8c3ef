"""MiniGrid and BabyAI, from the minigrid package: grids, of which seven by seven cells are seen.

The world, its missions, its rewards and its limit of steps are the package's own. This module adds
a text and a vector of the view, words for the seven actions, and solvers. The seven actions are
always listed, in the package's order; one without effect, or a text that is no command, costs a
step of the package too. The score is 1 once the mission is done, whatever the reward, which shrinks
with each step to 0.1.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np

from echoic.agents import _checks
from echoic.agents.environments.base import (
    EchoRLEnvironment,
    EnvironmentConfig,
    Outcome,
    TextEncoder,
    package,
    shortest,
)
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["COMMANDS", "MiniGridConfig", "MiniGridEnvironment"]

_log = logging.getLogger(__name__)

#: The actions, in the package's order.
COMMANDS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
# Other names of the actions: the package's own, and common ones.
_SAYINGS = {command: index for index, command in enumerate(COMMANDS)}
_SAYINGS |= {"left": 0, "right": 1, "forward": 2, "move forward": 2, "pickup": 3, "open": 5}
_LEFT, _RIGHT, _FORWARD, _PICK_UP, _DROP, _TOGGLE, _DONE = range(7)
_TURNS = '"turn left", "turn right", "go forward"'

_SIZES = {
    "key_door": {size: f"MiniGrid-DoorKey-{size}x{size}-v0" for size in (5, 6, 8, 16)},
    "navigation": {size: f"MiniGrid-Empty-{size}x{size}-v0" for size in (5, 6, 8, 16)},
    "memory": {
        **{size: f"MiniGrid-MemoryS{size}-v0" for size in (7, 9, 11, 13)},
        17: "MiniGrid-MemoryS17Random-v0",
    },
}
_TASKS = (*_SIZES, "multi_object")

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
_STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))
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

    >>> MiniGridConfig(task_type="memory")
    Traceback (most recent call last):
    echoic.errors.ArgumentError: memory has grid_size 7, 9, 11, 13, 17, not 8
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
                f"task_type must be one of {', '.join(_TASKS)}, or an id that begins with "
                f"MiniGrid- or BabyAI-, not {self.task_type!r}"
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

    ``info`` has the ``package_seed``, with which the bare package resets to the same world. The
    expert takes a shortest way, or is the package's bot for BabyAI; worlds with ``MiniGrid-`` ids
    whose goal is not a place have none.
    """

    config: MiniGridConfig
    instructions = (
        "You are in a grid world and see what is ahead of you, up to six steps away and three to "
        f'each side. Say one command per turn: {_TURNS}, "pick up" (the thing in front of you), '
        '"drop" (in front of you), "toggle" (open or close what is in front of you; a locked '
        'door needs the key of its colour, carried) or "done". You carry one thing at a time.'
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
        self._solver: _Bot | _Search | None = None
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
        if isinstance(self._solver, _Bot) and not ended:
            self._solver.did(action)
        details = {"package_seed": self._package_seed}
        score = float(ended and reward > 0)
        return Outcome(text, float(reward), bool(ended), score, details)

    def _commands(self) -> tuple[str, ...]:
        return COMMANDS

    def _step_limit(self) -> int:
        return min(self.config.max_steps, int(self._world.max_steps))

    def _vector(self, text: str) -> NDArray[np.float32]:
        return self._current.copy()

    def _expert(self) -> str | None:
        if self._solver is None:
            baby = hasattr(self._world, "instrs")
            self._solver = _Bot(self._world) if baby else _Search(self._world)
        action = self._solver.next()
        return None if action is None else COMMANDS[action]

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


class _Bot:
    """The package's own bot for BabyAI; it needs to know each action that is taken."""

    def __init__(self, world: Any) -> None:
        from minigrid.utils.baby_ai_bot import BabyAIBot

        self._bot: Any = BabyAIBot(world)
        self._advice: int | None = int(self._bot.replan())

    def next(self) -> int | None:
        return self._advice

    def did(self, action: int) -> None:
        try:
            self._advice = int(self._bot.replan(action))
        except Exception:  # the package's own errors and assertions: it gives up
            _log.debug("the package's bot failed", exc_info=True)
            self._advice = None


class _State(NamedTuple):
    """What changes in a world: place, direction, carried thing, places of things, doors' states."""

    at: tuple[int, int]
    way: int
    held: int
    things: tuple[tuple[int, int] | None, ...]
    doors: tuple[int, ...]


class _Search:
    """Breadth-first search over the true state, with the package's rules. Boxes stay closed.

    Things are put down only if the task asks for it, or if there is no other way.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self._plan: dict[_State, int] = {}
        cells = list(_cells_of(world))
        self._objects = [cell for _, cell in cells if cell.can_pickup()]
        if world.carrying is not None:
            self._objects.append(world.carrying)
        self._doors = {place: cell for place, cell in cells if cell.type == "door"}
        self._goals = {place for place, cell in cells if cell.type == "goal"}
        self._solid = {place for place, cell in cells if cell.type in ("wall", "lava")}
        self._near = _place(world.target_pos) if hasattr(world, "move_type") else None
        if hasattr(world, "success_pos"):
            self._goals = {_place(world.success_pos)}
            self._solid.add(_place(world.failure_pos))

    def next(self) -> int | None:
        """Return the next action of a plan, or None if there is no way."""
        state = self._now()
        if state not in self._plan and (self._goals or self._near is not None):
            self._plan = shortest(state, self._around) or shortest(state, self._around_dropping)
        return self._plan.get(state)

    def _now(self) -> _State:
        world = self._world
        lying = {id(cell): place for place, cell in _cells_of(world) if cell.can_pickup()}
        if not lying.keys() <= {id(one) for one in self._objects}:
            self.__init__(world)  # type: ignore[misc] # a box was opened, and held something
        things = tuple(lying.get(id(one)) for one in self._objects)
        held = next((i for i, one in enumerate(self._objects) if one is world.carrying), -1)
        doors = tuple(door.encode()[2] for door in self._doors.values())
        return _State(_place(world.agent_pos), int(world.agent_dir), held, things, doors)

    def _around_dropping(self, state: _State) -> Iterator[tuple[int, _State, bool]]:
        return self._around(state, dropping=True)

    def _around(
        self, state: _State, *, dropping: bool = False
    ) -> Iterator[tuple[int, _State, bool]]:
        for action in (_LEFT, _RIGHT, _FORWARD, _PICK_UP, _DROP, _TOGGLE):
            if action == _DROP and not dropping and self._near is None:
                continue
            after = self._after(state, action)
            if after is None:
                continue
            if self._near is None:
                yield action, after, after.at in self._goals
            elif action == _DROP:
                # Anywhere else than near its target, and with any other thing, the task is over.
                x, y = after.things[state.held] or (-9, -9)
                if max(abs(x - self._near[0]), abs(y - self._near[1])) <= 1:
                    yield action, after, True
            elif action != _PICK_UP or self._is_asked_for(self._objects[after.held]):
                yield action, after, False

    def _is_asked_for(self, one: Any) -> bool:
        return bool((one.type, one.color) == (self._world.move_type, self._world.moveColor))

    def _after(self, state: _State, action: int) -> _State | None:
        """Return the state after an action; None if it has no effect."""
        if action in (_LEFT, _RIGHT):
            return state._replace(way=(state.way + (1 if action == _RIGHT else -1)) % 4)
        step = _STEPS[state.way]
        front = (state.at[0] + step[0], state.at[1] + step[1])
        lies = state.things.index(front) if front in state.things else -1
        door = tuple(self._doors).index(front) if front in self._doors else -1
        held = state.held
        if action == _FORWARD:
            shut = door >= 0 and state.doors[door] != 0
            if front in self._solid or lies >= 0 or shut:
                return None
            return state._replace(at=front)
        if action == _PICK_UP:
            if lies < 0 or held >= 0 or hasattr(self._world, "success_pos"):
                return None
            return state._replace(held=lies, things=_with(state.things, lies, None))
        if action == _DROP:
            if held < 0 or max(lies, door) >= 0 or front in self._solid | self._goals:
                return None
            return state._replace(held=-1, things=_with(state.things, held, front))
        if door < 0:
            return None
        if state.doors[door] == _STATES.index("locked"):
            key = self._objects[held] if held >= 0 else None
            color = self._doors[front].color
            if key is None or key.type != "key" or key.color != color:
                return None
        return state._replace(doors=_with(state.doors, door, int(state.doors[door] == 0)))


def _cells_of(world: Any) -> Iterator[tuple[tuple[int, int], Any]]:
    width = world.grid.width
    for i, cell in enumerate(world.grid.grid):
        if cell is not None:
            yield (i % width, i // width), cell


def _with(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _place(pair: Any) -> tuple[int, int]:
    return int(pair[0]), int(pair[1])
