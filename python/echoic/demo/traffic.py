"""How much comes through each connection to the server."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from echoic.demo import rollout

if TYPE_CHECKING:
    from collections.abc import Callable


class Flow(NamedTuple):
    """One connection, over the last few seconds."""

    address: str  # of the server
    peer: str
    rate: float  # steps per second
    blocked: float  # the share of the time that it waited for room


class Traffic:
    """Looks at the connections twice a second, however often it is asked."""

    INTERVAL = 0.5
    # Workers that write into shared memory tell the server once a second how much: over a shorter
    # time the rates would jump.
    LOOKS = 4

    def __init__(
        self,
        connections: Callable[[], list[dict[str, Any]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._next = clock() + self.INTERVAL
        self._looks: deque[tuple[float, dict[int, dict[str, Any]]]] = deque(maxlen=self.LOOKS)
        self._flows: list[Flow] = []

    def flows(self) -> list[Flow]:
        """Return the connections that stand, in the order in which they came."""
        now = self._clock()
        if now >= self._next:
            found = {connection["id"]: connection for connection in self._connections()}
            since, before = self._looks[0] if self._looks else (now, {})
            self._flows = [
                self._flow(connection, before.get(number), now - since)
                for number, connection in sorted(found.items())
            ]
            self._looks.append((now, found))
            self._next = now + self.INTERVAL
        return self._flows

    @staticmethod
    def _flow(now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> Flow:
        if before is None:
            before = {"samples": 0, "blocked_time": 0.0}
            seconds = now["age"]
        steps = (now["samples"] - before["samples"]) * rollout.LENGTH
        blocked = now["blocked_time"] - before["blocked_time"]
        # A long wait is noted when it is over, and may be longer than the time looked at.
        return Flow(now["address"], now["peer"], steps / seconds, min(blocked / seconds, 1.0))
