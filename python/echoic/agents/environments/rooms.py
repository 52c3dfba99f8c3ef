"""Rooms: our own generated text world, of rooms, containers, keys and one thing to bring home.

A world is a tree of rooms on a grid. Some doors are locked: the key of each is behind the one
before it, and the trophy is behind the last, so that all are needed. Things lie on the floor or in
closed containers. The pedestal on which the trophy belongs is in a room before all locked doors.
Only the room that the player is in is seen. No package is needed.

Decisions:

- All commands of a world's size are listed in every state, so that an index means the same command
  for ever; ``command_mask`` tells those that do something now.
- The reward is 1 for the trophy on the pedestal, or is shared out among milestones that count once
  each, so that going round in circles earns nothing.
- The expert knows the world and goes the shortest way, found by breadth-first search. What is to be
  learned is looking for things, which takes longer than the expert's way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from echoic.agents import _checks
from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

__all__ = ["RoomsConfig", "RoomsEnvironment"]

_NAMES = (
    "hall", "kitchen", "study", "pantry", "bedroom", "cellar", "attic", "library",
    "workshop", "bathroom", "garage", "parlour", "chapel", "nursery", "office", "laundry",
)  # fmt: skip
_COLOURS = ("red", "blue", "green")
_CONTAINERS = ("chest", "cupboard", "drawer", "box")
_WAYS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
_BACK = {"north": "south", "east": "west", "south": "north", "west": "east"}
_TROPHY = "trophy"
REWARDS = ("sparse", "milestones")


@dataclass
class RoomsConfig(EnvironmentConfig):
    """Settings of a world of rooms.

    Attributes:
        num_rooms: How many rooms there are, from 2 to 16.
        locked_doors: How many doors are locked, from 0 to 3.
        containers: How many containers there are, from 0 to 4.
        reward: ``"sparse"``, 1 at the end, or ``"milestones"``, which shares that 1 out among each
            key taken, each door unlocked, the trophy taken and the trophy in its place.
        max_steps: As of all environments; lower here, since worlds are small.
        timeout_penalty: As of all environments; none here.

    >>> RoomsConfig(num_rooms=3, locked_doors=3)
    Traceback (most recent call last):
    echoic.errors.ArgumentError: 3 rooms have 2 doors, fewer than the 3 that are to be locked
    """

    max_steps: int = 100
    timeout_penalty: float = 0.0
    num_rooms: int = 8
    locked_doors: int = 2
    containers: int = 3
    reward: str = "sparse"

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
        _checks.one_of(self, "reward", REWARDS)


class _Place(NamedTuple):
    """Where a thing is at first: in a room, and in a container there unless that is empty."""

    room: int
    container: str = ""


class _Where(NamedTuple):
    """Where an episode stands: all that a command can change."""

    room: int
    opened: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    unlocked: frozenset[str] = frozenset()
    done: bool = False


@dataclass
class _World:
    names: list[str]
    #: For each room, the room and the colour (empty if not locked) behind each way out.
    exits: list[dict[str, tuple[int, str]]]
    containers: dict[str, int] = field(default_factory=dict)
    things: dict[str, _Place] = field(default_factory=dict)
    start: int = 0
    home: int = 0

    def after(self, at: _Where, command: str) -> _Where | None:
        """What a command leads to; None if it does nothing."""
        verb, _, rest = command.partition(" ")
        if verb == "go":
            beyond, colour = self.exits[at.room].get(rest, (-1, ""))
            return (
                None
                if beyond < 0 or (colour and colour not in at.unlocked)
                else at._replace(room=beyond)
            )
        if verb == "open":
            here = self.containers.get(rest) == at.room and rest not in at.opened
            return at._replace(opened=at.opened | {rest}) if here else None
        if verb == "take":
            return at._replace(held=at.held | {rest}) if self.lies(at, rest) else None
        if verb == "unlock":
            colour = rest.removesuffix(" door")
            here = any(locked == colour for _, locked in self.exits[at.room].values())
            can = here and f"{colour} key" in at.held and colour not in at.unlocked
            return at._replace(unlocked=at.unlocked | {colour}) if can else None
        can = at.room == self.home and _TROPHY in at.held
        return at._replace(done=True) if can else None

    def lies(self, at: _Where, thing: str) -> bool:
        """Whether a thing can be seen and taken here."""
        place = self.things.get(thing)
        if place is None or place.room != at.room or thing in at.held:
            return False
        return not place.container or place.container in at.opened

    def text(self, at: _Where) -> str:
        """What is seen."""
        if at.done:
            return "The trophy stands on its pedestal. You have done it."
        parts = [f"You are in the {self.names[at.room]}."]
        ways = []
        for way, (_, colour) in self.exits[at.room].items():
            state = "" if not colour else "unlocked " if colour in at.unlocked else "locked "
            ways.append(f"a {state}{colour} door leads {way}" if colour else f"a way leads {way}")
        parts.append(f"Here, {', '.join(ways)}.")
        for kind, room in self.containers.items():
            if room == at.room:
                inside = [
                    t for t in self.things if self.lies(at, t) and self.things[t].container == kind
                ]
                what = (
                    f"an open {kind} holds {_list(inside)}"
                    if kind in at.opened
                    else f"a closed {kind}"
                )
                parts.append(f"There is {what}.")
        floor = [t for t in self.things if self.lies(at, t) and not self.things[t].container]
        if floor:
            parts.append(f"On the floor: {_list(floor)}.")
        if at.room == self.home:
            parts.append("There is an empty pedestal.")
        parts.append(f"You hold {_list(t for t in self.things if t in at.held)}.")
        parts.append(f"The trophy belongs on the pedestal in the {self.names[self.home]}.")
        return " ".join(parts)


class RoomsEnvironment(EchoRLEnvironment):
    """A generated world of rooms: find the trophy, and put it on the pedestal.

    >>> from echoic.agents.environments import RoomsConfig, RoomsEnvironment
    >>> environment = RoomsEnvironment(RoomsConfig(num_rooms=2, locked_doors=0, containers=0))
    >>> observation, info = environment.reset(seed=0)
    >>> observation["text"].startswith("You are in the ")
    True
    >>> info["commands"][:2]
    ('go north', 'go east')
    """

    instructions = (
        "You are in a house, and see the room that you are in. Find the trophy and put it on the "
        "pedestal. A locked door needs the key of its colour; things may be in closed containers. "
        "Say one command: go north, go east, go south, go west, open <container>, take <thing>, "
        "unlock <colour> door, put trophy on pedestal."
    )

    def __init__(self, config: RoomsConfig | None = None) -> None:
        self.rooms = config or RoomsConfig()
        super().__init__(self.rooms)
        colours = _COLOURS[: self.rooms.locked_doors]
        self._all = (
            *(f"go {way}" for way in _WAYS),
            "take trophy",
            "put trophy on pedestal",
            *(f"open {kind}" for kind in _CONTAINERS[: self.rooms.containers]),
            *(f"take {colour} key" for colour in colours),
            *(f"unlock {colour} door" for colour in colours),
        )
        self._milestones = 2 * len(colours) + 2

    def _start(self, options: dict[str, Any]) -> str:
        del options
        self._world = _generate(self.rooms, self.np_random)
        self._at = _Where(self._world.start)
        self._plan: deque[tuple[_Where, str]] = deque()
        # Of the states that this episode was in: no more than it had steps.
        self._masks: dict[_Where, list[bool]] = {}
        return self._world.text(self._at)

    def _apply(self, command: str) -> Outcome | None:
        command = " ".join(command.lower().split())
        at = self._world.after(self._at, command) if command in self._all else None
        if at is None:
            return None
        before, now = self._share(self._at), self._share(at)
        self._at = at
        shared = self.rooms.reward == "milestones"
        reward = now - before if shared else float(at.done)
        return Outcome(self._world.text(at), reward, at.done, now)

    def _share(self, at: _Where) -> float:
        """How many of the milestones are reached. None can be undone."""
        return (len(at.held) + len(at.unlocked) + at.done) / self._milestones

    def _commands(self) -> Sequence[str]:
        return self._all

    def _possible(self) -> Sequence[bool]:
        if self._at not in self._masks:
            after = self._world.after
            self._masks[self._at] = [after(self._at, command) is not None for command in self._all]
        return self._masks[self._at]

    def _expert(self) -> str | None:
        """The next command of a shortest way to the end."""
        while self._plan and self._plan[0][0] != self._at:
            self._plan.popleft()
        if not self._plan:
            self._plan.extend(_shortest(self._world, self._at, self._all))
        return self._plan[0][1] if self._plan else None


def _generate(config: RoomsConfig, rng: np.random.Generator) -> _World:
    """A world that can be solved."""
    names = [_NAMES[i] for i in rng.permutation(len(_NAMES))[: config.num_rooms]]
    cells = {(0, 0): 0}
    exits: list[dict[str, tuple[int, str]]] = [{} for _ in names]
    parents: list[tuple[int, str]] = [(-1, "")]
    while len(cells) < len(names):
        spots = list(cells)
        x, y = spots[int(rng.integers(len(spots)))]
        way = list(_WAYS)[int(rng.integers(len(_WAYS)))]
        cell = (x + _WAYS[way][0], y + _WAYS[way][1])
        if cell not in cells:
            room = cells[cell] = len(cells)
            old = cells[x, y]
            exits[old][way], exits[room][_BACK[way]] = (room, ""), (old, "")
            parents.append((old, way))
    # Rooms are numbered so that a parent comes before its children: doors are reached in the order
    # of their numbers, and what is before the first is all that is not behind any.
    doors = sorted(1 + int(i) for i in rng.permutation(len(names) - 1)[: config.locked_doors])
    lock = {room: _COLOURS[i] for i, room in enumerate(doors)}
    for room, colour in lock.items():
        old, way = parents[room]
        exits[old][way], exits[room][_BACK[way]] = (room, colour), (old, colour)
    behind: list[int] = []
    for room, (old, _) in enumerate(parents):
        behind.append(room if room in lock else 0 if old < 0 else behind[old])
    regions = [[r for r in range(len(names)) if behind[r] == door] for door in (0, *doors)]
    world = _World(names, _sorted(exits))
    for kind in _CONTAINERS[: config.containers]:
        world.containers[kind] = int(rng.integers(len(names)))

    def put(thing: str, rooms: list[int]) -> int:
        room = rooms[int(rng.integers(len(rooms)))]
        kinds = ["", *(kind for kind, where in world.containers.items() if where == room)]
        # In a container where there is one, as a rule.
        kind = kinds[int(rng.integers(len(kinds)))] or kinds[-1]
        world.things[thing] = _Place(room, kind)
        return room

    before = regions[0]
    world.start = before[int(rng.integers(len(before)))]
    world.home = before[int(rng.integers(len(before)))]
    # Each key is behind the door before its own, so that all are needed.
    for door, region in zip(doors, regions, strict=False):
        put(f"{lock[door]} key", region)
    last = regions[-1]
    others = [room for room in last if room not in (world.start, world.home)]
    put(_TROPHY, others or last)
    return world


def _sorted(exits: list[dict[str, tuple[int, str]]]) -> list[dict[str, tuple[int, str]]]:
    return [{way: ways[way] for way in _WAYS if way in ways} for ways in exits]


def _shortest(
    world: _World, start: _Where, commands: Sequence[str]
) -> Iterator[tuple[_Where, str]]:
    """The states of a shortest way and what to say in each, by breadth-first search."""
    came: dict[_Where, tuple[_Where, str] | None] = {start: None}
    queue = deque([start])
    while queue and not (at := queue.popleft()).done:
        for command in commands:
            after = world.after(at, command)
            if after is not None and after not in came:
                came[after] = (at, command)
                queue.append(after)
    steps = []
    step = came.get(at) if at.done else None
    while step is not None:
        steps.append(step)
        step = came[step[0]]
    return reversed(steps)


def _list(things: Any) -> str:
    return ", ".join(f"a {thing}" for thing in things) or "nothing"
