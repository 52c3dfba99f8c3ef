"""What screens show: readings, and whether the server is there."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from echoic.views.history import History

__all__ = ["Away", "Moment"]


@dataclass(frozen=True)
class Away:
    """That a server does not answer.

    Attributes:
        why: What the last look said.
        clock: The time of day since which.
        since: The same on the monotonic clock.
    """

    why: str
    clock: str = field(default_factory=lambda: time.strftime("%H:%M:%S"))
    since: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """For how long."""
        return time.monotonic() - self.since


@dataclass
class Moment:
    """What there is to show now.

    Attributes:
        address: Of the server.
        interval: Seconds between two looks.
        history: Readings so far.
        away: Whether the server is not there, and why.
        paused: Whether somebody wants to read in peace.
    """

    address: str
    interval: float
    history: History = field(default_factory=History)
    away: Away | None = None
    paused: bool = False
