"""Household worlds in text: ALFWorld, and Rooms, a small generated world without dependencies.

ALFWorld brings Fast Downward and jericho, which are under the GPL. It runs in an interpreter of its
own, which may be of another virtual environment; nothing of it is imported here. It plays the
official games, where ``ALFWORLD_DATA`` points at them, and nothing else.

A world of Rooms is a tree of rooms on a grid. Some doors are locked: the key of each is behind the
door before it, and the trophy is behind the last, so all are needed. All commands of a size are
listed in every state, so an index always means the same command.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from echoic.agents import _checks
from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.agents.environments.processes import JsonProcess
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ALFWorldConfig", "ALFWorldEnvironment", "RoomsConfig", "RoomsEnvironment"]

_TASKS = {
    "pick_and_place": "pick_and_place_simple",
    "look_at_obj": "look_at_obj_in_light",
    "pick_clean_then_place": "pick_clean_then_place_in_recep",
    "pick_heat_then_place": "pick_heat_then_place_in_recep",
    "pick_cool_then_place": "pick_cool_then_place_in_recep",
    "pick_two_obj": "pick_two_obj_and_place",
}
_DIM = 512
# Names the interpreter that has alfworld, if it isn't this one.
_PYTHON = "ECHOIC_ALFWORLD_PYTHON"
# Seconds for a command, and for finding the games or starting one.
_STEP_TIMEOUT, _RESET_TIMEOUT = 60.0, 300.0
_INSTALL = (
    "pip install alfworld==0.4.2, which compiles for some minutes, in a virtual environment of its "
    "own if you don't want its GPL packages in yours"
)


@dataclass
class ALFWorldConfig(EnvironmentConfig):
    """Settings of ALFWorld.

    Attributes:
        task_type: ``"pick_and_place"``, ``"look_at_obj"``, ``"pick_clean_then_place"``,
            ``"pick_heat_then_place"``, ``"pick_cool_then_place"``, ``"pick_two_obj"`` or ``"any"``.
        max_objects: Without effect, as ``room_size``: a game has its own room and things.
        use_vision: Must be False: the simulator that draws the rooms is not in the package.
        text_encoding_dim: Another name of ``state_encoding_dim``; give either.
        split: Part of the games.
    """

    max_steps: int = 100
    timeout_penalty: float = 0.0
    task_type: str = "pick_and_place"
    max_objects: int = 10
    room_size: int = 5
    use_vision: bool = False
    text_encoding_dim: int = _DIM
    split: str = "train"

    def __post_init__(self) -> None:
        if self.use_vision:
            raise ArgumentError(
                "use_vision must be False: rooms are drawn by a simulator that ALFWorld's package "
                "does not bring"
            )
        sizes = {self.text_encoding_dim, self.state_encoding_dim} - {_DIM}
        if len(sizes) > 1:
            raise ArgumentError(
                "text_encoding_dim and state_encoding_dim are the same, not "
                f"{self.text_encoding_dim} and {self.state_encoding_dim}"
            )
        self.text_encoding_dim = self.state_encoding_dim = sizes.pop() if sizes else _DIM
        super().__post_init__()
        _checks.one_of(self, "task_type", (*_TASKS, "any"))
        _checks.one_of(self, "split", ("train", "valid_seen", "valid_unseen"))

    @property
    def folder(self) -> Path:
        """Where the games of the split are, if they are installed."""
        return Path(os.environ.get("ALFWORLD_DATA") or ".") / "json_2.1.1" / self.split

    @property
    def provenance(self) -> str:
        """The name of the task in reports."""
        return "alfworld" if self.folder.is_dir() else "alfworld (official games: not installed)"


class ALFWorldEnvironment(EchoRLEnvironment):
    """An official game of ALFWorld, played in a process of its own.

    Making one needs no ALFWorld; the first ``reset`` does. The expert says a game's own
    walkthrough, as long as it is followed.

    Raises:
        ModuleNotFoundError: From ``reset``, if the worker's interpreter has no alfworld.
        FileNotFoundError: From ``reset``, if there are no games.
        EnvironmentProcessError: If the worker died or hung; the next ``reset`` starts another.
    """

    config: ALFWorldConfig
    instructions = (
        "You are in a room of a house, and have a task. Say one command at a time: look, "
        "inventory, go to <place>, open <place>, close <place>, take <thing> from <place>, move "
        "<thing> to <place>, examine <thing>, use <lamp>, clean <thing> with <place>, heat <thing> "
        "with <place>, cool <thing> with <place>. Places and things have numbers, such as drawer 2."
    )

    _worker: Any = None

    def __init__(self, config: ALFWorldConfig | None = None) -> None:
        super().__init__(config or ALFWorldConfig())

    def _expert(self) -> str | None:
        command: str | None = self._worker.ask("expert", _STEP_TIMEOUT)
        return command

    def close(self) -> None:
        """End the worker; the environment can't be used afterwards."""
        super().close()
        if self._worker is not None:
            self._worker.close()

    def _start(self, options: dict[str, Any]) -> str:
        if self._worker is None or not self._worker.alive:
            self._worker = self._open()
        # Any number chooses a game, modulo how many there are.
        seed = int(self.np_random.integers(2**31))
        self._told = self._worker.ask("reset", _RESET_TIMEOUT, seed=seed)
        return str(self._told["text"])

    def _apply(self, command: str) -> Outcome | None:
        said = " ".join(command.split()).casefold()
        known = {one.casefold(): one for one in self._told["commands"]}
        if said not in known:
            return None
        before = self._told["score"]
        self._told = told = self._worker.ask("step", _STEP_TIMEOUT, command=known[said])
        reward = max(0.0, told["score"] - before)
        return Outcome(told["text"], reward, told["won"], told["score"], told["details"])

    def _commands(self) -> Sequence[str]:
        commands: list[str] = self._told["commands"]
        return commands

    def _open(self) -> JsonProcess:
        config = self.config
        python = os.environ.get(_PYTHON) or sys.executable
        file = Path(__file__).parent / "workers" / "alfworld_games.py"
        worker = JsonProcess([python, str(file)], name="the worker of ALFWorld")
        tasks = [name for short, name in _TASKS.items() if config.task_type in (short, "any")]
        try:
            worker.ask("hello", _RESET_TIMEOUT, folder=str(config.folder), tasks=tasks)
        except BaseException as error:
            worker.close()
            if isinstance(error, ImportError):
                raise ModuleNotFoundError(
                    f"ALFWorld is not installed for {python} ({error}): {_INSTALL}; then give its "
                    f"interpreter in {_PYTHON}"
                ) from error
            raise
        return worker


_NAMES = (
    "hall", "kitchen", "study", "pantry", "bedroom", "cellar", "attic", "library",
    "workshop", "bathroom", "garage", "parlour", "chapel", "nursery", "office", "laundry",
)  # fmt: skip
_COLOURS = ("red", "blue", "green")
_CONTAINERS = ("chest", "cupboard", "drawer", "box")
_WAYS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
_BACK = {"north": "south", "east": "west", "south": "north", "west": "east"}


@dataclass
class RoomsConfig(EnvironmentConfig):
    """Settings of a world of rooms.

    Attributes:
        num_rooms: Number of rooms, from 2 to 16.
        locked_doors: Number of locked doors, from 0 to 3.
        containers: Number of containers, from 0 to 4.
    """

    max_steps: int = 100
    timeout_penalty: float = 0.0
    num_rooms: int = 8
    locked_doors: int = 2
    containers: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole(self, "num_rooms", least=2, most=len(_NAMES))
        _checks.whole(self, "locked_doors", least=0, most=len(_COLOURS))
        _checks.whole(self, "containers", least=0, most=len(_CONTAINERS))
        if self.locked_doors >= self.num_rooms:
            raise ArgumentError(
                f"{self.num_rooms} rooms have {self.num_rooms - 1} doors, fewer than the "
                f"{self.locked_doors} that are to be locked"
            )


class _Where(NamedTuple):
    """The state of an episode: all that a command can change."""

    room: int
    opened: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    unlocked: frozenset[str] = frozenset()
    done: bool = False


class RoomsEnvironment(EchoRLEnvironment):
    """A generated world of rooms: find the trophy, and put it on the pedestal."""

    config: RoomsConfig
    instructions = (
        "You are in a house, and see the room that you are in. Find the trophy and put it on the "
        "pedestal. A locked door needs the key of its colour; things may be in closed containers. "
        "Say one command: go north, go east, go south, go west, open <container>, take <thing>, "
        "unlock <colour> door, put trophy on pedestal."
    )

    def __init__(self, config: RoomsConfig | None = None) -> None:
        config = config or RoomsConfig()
        super().__init__(config)
        colours = _COLOURS[: config.locked_doors]
        self._all = (
            *(f"go {way}" for way in _WAYS),
            "take trophy",
            "put trophy on pedestal",
            *(f"open {kind}" for kind in _CONTAINERS[: config.containers]),
            *(f"take {colour} key" for colour in colours),
            *(f"unlock {colour} door" for colour in colours),
        )

    def _start(self, options: dict[str, Any]) -> str:
        """Make a world that can be solved."""
        count, rng = self.config.num_rooms, self.np_random

        def pick(some: Sequence[Any]) -> Any:
            return some[int(rng.integers(len(some)))]

        self._names = [_NAMES[i] for i in rng.permutation(len(_NAMES))[:count]]
        # For each room, the one that it was built at, and the way from there.
        cells, parents = {(0, 0): 0}, [(0, "")]
        while len(cells) < count:
            x, y = pick(list(cells))
            way = pick(list(_WAYS))
            cell = (x + _WAYS[way][0], y + _WAYS[way][1])
            if cell not in cells:
                parents.append((cells[x, y], way))
                cells[cell] = len(cells)
        # A parent has a lower number than its children, so locked doors are reached in the order of
        # their rooms' numbers, and the first region holds all rooms behind no locked door.
        doors = sorted(1 + int(i) for i in rng.permutation(count - 1)[: self.config.locked_doors])
        lock = dict(zip(doors, _COLOURS, strict=False))
        # By room and way, the room there, and the colour of its door (empty if it isn't locked).
        self._exits: dict[tuple[int, str], tuple[int, str]] = {}
        behind = [0]
        for room, (old, way) in enumerate(parents[1:], 1):
            colour = lock.get(room, "")
            self._exits[old, way], self._exits[room, _BACK[way]] = (room, colour), (old, colour)
            behind.append(room if room in lock else behind[old])
        regions = [[r for r in range(count) if behind[r] == door] for door in (0, *doors)]
        kinds = _CONTAINERS[: self.config.containers]
        self._containers = {kind: int(rng.integers(count)) for kind in kinds}
        # For each thing, its room at first, and its container there unless that is empty.
        self._things: dict[str, tuple[int, str]] = {}

        def put(thing: str, rooms: list[int]) -> None:
            room = pick(rooms)
            there = ["", *(kind for kind, where in self._containers.items() if where == room)]
            # Preferably in a container.
            self._things[thing] = (room, pick(there) or there[-1])

        start, self._home = pick(regions[0]), pick(regions[0])
        # The key of each door is in the region before it, so that all are needed.
        for door, region in zip(doors, regions, strict=False):
            put(f"{lock[door]} key", region)
        last = regions[-1]
        put("trophy", [room for room in last if room not in (start, self._home)] or last)
        self._at = _Where(start)
        self._plan: dict[_Where, str] = {}
        return self._text()

    def _apply(self, command: str) -> Outcome | None:
        command = " ".join(command.lower().split())
        at = self._after(self._at, command) if command in self._all else None
        if at is None:
            return None
        self._at = at
        # Each key and door, the trophy, and its place; none can be undone.
        reached = len(at.held) + len(at.unlocked) + at.done
        score = reached / (2 * self.config.locked_doors + 2)
        return Outcome(self._text(), float(at.done), at.done, score)

    def _commands(self) -> Sequence[str]:
        return self._all

    def _possible(self) -> Sequence[bool]:
        return [self._after(self._at, command) is not None for command in self._all]

    def _expert(self) -> str | None:
        """Search breadth-first for a shortest way, and remember it."""
        came: dict[_Where, tuple[_Where, str]] = {}
        queue = [] if self._at in self._plan else [self._at]
        for at in queue:
            for command in self._all:
                after = self._after(at, command)
                if after is None or after in came or after == self._at:
                    continue
                came[after] = (at, command)
                queue.append(after)
                if after.done:
                    while after != self._at:
                        after, self._plan[after] = came[after]
                    return self._plan[self._at]
        return self._plan.get(self._at)

    def _after(self, at: _Where, command: str) -> _Where | None:
        """Return the state after a command; None if it has no effect."""
        verb, _, rest = command.partition(" ")
        if verb == "go" and (at.room, rest) in self._exits:
            beyond, colour = self._exits[at.room, rest]
            return None if colour and colour not in at.unlocked else at._replace(room=beyond)
        if verb == "open" and self._containers.get(rest) == at.room and rest not in at.opened:
            return at._replace(opened=at.opened | {rest})
        if verb == "take" and self._lies(at, rest):
            return at._replace(held=at.held | {rest})
        if verb == "unlock":
            colour = rest.removesuffix(" door")
            here = any(self._exits.get((at.room, way), ("", ""))[1] == colour for way in _WAYS)
            if here and colour not in at.unlocked and f"{colour} key" in at.held:
                return at._replace(unlocked=at.unlocked | {colour})
        at_home = at.room == self._home and "trophy" in at.held
        return at._replace(done=True) if verb == "put" and at_home else None

    def _lies(self, at: _Where, thing: str, within: str | None = None) -> bool:
        """Return whether a thing can be seen and taken here (within a container, or "")."""
        room, container = self._things.get(thing, (-1, ""))
        if room != at.room or thing in at.held or within not in (None, container):
            return False
        return not container or container in at.opened

    def _text(self) -> str:
        """Describe what is seen."""
        at, exits = self._at, self._exits
        if at.done:
            return "The trophy stands on its pedestal. You have done it."
        ways = []
        for way, colour in ((w, exits[at.room, w][1]) for w in _WAYS if (at.room, w) in exits):
            state = "unlocked" if colour in at.unlocked else "locked"
            ways.append(f"a {state} {colour} door leads {way}" if colour else f"a way leads {way}")
        parts = [f"You are in the {self._names[at.room]}.", f"Here, {', '.join(ways)}."]
        for kind in (one for one, room in self._containers.items() if room == at.room):
            inside = _list(t for t in self._things if self._lies(at, t, kind))
            opened = f"an open {kind} holds {inside}"
            parts.append(f"There is {opened if kind in at.opened else f'a closed {kind}'}.")
        if floor := [t for t in self._things if self._lies(at, t, "")]:
            parts.append(f"On the floor: {_list(floor)}.")
        if at.room == self._home:
            parts.append("There is an empty pedestal.")
        parts.append(f"You hold {_list(t for t in self._things if t in at.held)}.")
        parts.append(f"The trophy belongs on the pedestal in the {self._names[self._home]}.")
        return " ".join(parts)


def _list(things: Any) -> str:
    return ", ".join(f"a {thing}" for thing in things) or "nothing"
