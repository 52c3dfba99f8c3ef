"""What the workloads need of a library for one process, and what it may say it has not.

An engine offers its own calls wherever there is a choice, without a wrapper: what is timed is what
a user would write. What makes results comparable (`Store.columns`, `Engine.outputs`) is called off
the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from benchmarks.local import oracles
from benchmarks.timing import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Array, Tree

ALPHA = 0.6
BETA = 0.4


@dataclass(frozen=True)
class Plan:
    """A buffer: the kind of its transitions, how many it holds, and how they are drawn.

    ``hot`` is how many are in memory, where the others are in a file; otherwise it is 0. ``length``
    is how many consecutive steps are drawn together, if above 1: a batch then has windows.
    """

    kind: Literal["small", "steps", "image"]
    capacity: int
    prioritized: bool = False
    hot: int = 0
    length: int = 1


class Store(Protocol):
    """A replay buffer."""

    #: The names of the columns of a drawn batch that `update` and the check need.
    indices: str
    actions: str

    @property
    def push(self) -> Callable[..., Any]:
        """Take one: obs, action, reward, terminated, truncated, next_obs."""
        ...

    @property
    def update(self) -> Callable[[Array, Array], Any]:
        """Set the priorities of drawn indices."""
        ...

    def extend(self, columns: Tree, /) -> Any:
        """Take many, all of priority 1, in the fastest way there is."""
        ...

    def draws(self, size: int, /) -> Callable[[], Any]:
        """Return what draws a batch of this size, another one with each call."""
        ...

    def columns(self, drawn: Any, /) -> Tree:
        """Return a drawn batch by the names of `benchmarks.local.items`, off the clock."""
        ...

    def __len__(self) -> int:
        """How many transitions are stored."""
        ...

    def close(self) -> None:
        """Let go of the memory."""
        ...


@dataclass(frozen=True)
class Case:
    """A call of a primitive: the function's name and its arguments, which are the same for all.

    ``time_major`` has arrays of two dimensions in place of flat ones, time first.
    """

    function: str
    arguments: tuple[Any, ...]
    time_major: bool = False


class Collector(Protocol):
    """Plays episodes by itself."""

    @property
    def recv(self) -> Callable[[], Any]:
        """Wait for a rollout."""
        ...

    def columns(self, batch: Any, /) -> Tree:
        """Return a rollout's columns, each with the axes time and environment, off the clock."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Environments(Protocol):
    """CartPole, many at once, which begin anew by themselves."""

    @property
    def step(self) -> Callable[[Array], Any]:
        """Step all of them by an array of actions."""
        ...

    def reset(self) -> Array:
        """Begin; return the observations."""
        ...

    def outcome(self, result: Any, /) -> tuple[Array, Array]:
        """Return the observations and which episodes ended, off the clock."""
        ...

    def close(self) -> None:
        """End them."""
        ...


class Engine:
    """A library that has nothing yet: each one overrides what it has."""

    name = ""

    def store(self, plan: Plan) -> Store:
        """Make an empty buffer."""
        raise self.missing(f"buffer of this kind: {plan}")

    def call(self, case: Case) -> Callable[[], Any]:
        """Return what calls a primitive once."""
        raise self.missing(case.function)

    def outputs(self, case: Case, result: Any) -> tuple[Any, ...]:
        """Return a primitive's results as arrays, shaped like the arguments, off the clock."""
        return result if isinstance(result, tuple) else (result,)

    def oracle(self, function: str) -> Callable[..., tuple[Array, ...]]:
        """Return the plain numpy form of what this engine computes under that name."""
        return oracles.ORACLES[function]

    def collector(self, *, envs: int, steps: int, hidden: int) -> Collector:
        """Start a collector of CartPole with two hidden layers, for the actor and for the critic.

        Discount 0.99, and 0.95 for the lambda of the advantages.
        """
        raise self.missing(f"collector of {envs} x {steps} steps with {hidden} hidden units")

    def environments(self, count: int) -> Environments:
        """Make so many CartPoles."""
        raise self.missing(f"environments, of which {count} are to be stepped")

    def missing(self, what: str) -> UnavailableError:
        """Return the error that says so."""
        return UnavailableError(f"{self.name} has no {what}")
