"""Parameters on their way from the learner to the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from examples.cartpole.policy import Array


class Version(NamedTuple):
    """Parameters that no longer change, and their number, which counts up from 0."""

    number: int
    params: Array


class WeightsSource(Protocol):
    """Where a worker asks for parameters. It does not know how they got there."""

    def latest(self) -> Version:
        """Return the newest version there is."""
        ...


class SharedWeights:
    """A source for workers in the learner's own process.

    It needs no lock: a version is immutable, and replacing it is one assignment.
    """

    def __init__(self, params: Array) -> None:
        self._latest = self._freeze(0, params)

    def latest(self) -> Version:
        """Return what was published last."""
        return self._latest

    def publish(self, params: Array) -> None:
        """Make a copy of `params` the latest version. Only the learner calls this."""
        self._latest = self._freeze(self._latest.number + 1, params)

    @staticmethod
    def _freeze(number: int, params: Array) -> Version:
        frozen = params.copy()
        frozen.setflags(write=False)
        return Version(number, frozen)
