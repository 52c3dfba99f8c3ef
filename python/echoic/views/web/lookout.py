"""Looking at a server now and then, for all browsers together."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from echoic.errors import EchoicError
from echoic.views.history import History
from echoic.views.problems import find_problems
from echoic.views.reading import read
from echoic.views.web import account

if TYPE_CHECKING:
    from typing_extensions import Self

    from echoic.views.reading import Reading
    from echoic.watch import Watch

__all__ = ["Lookout"]


class Lookout:
    """A thread that looks through a watch every so many seconds, from ``__enter__`` on.

    Args:
        watch: Which this has for itself from now on.
        interval: Seconds between two looks.
        length: How many looks to remember.
    """

    def __init__(self, watch: Watch, interval: float = 1.0, length: int = 600) -> None:
        """Remember nothing yet."""
        self._watch = watch
        self._interval = interval
        self._history = History(length)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="echoic-lookout", daemon=True)
        # Moments of one life of the server; a browser that knows another life begins anew.
        self._life = ""
        self._moments: deque[dict[str, Any]] = deque(maxlen=length)
        self._count = 0
        self._now: dict[str, Any] = account.nothing()
        self._away: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        """Look for the first time, and go on in the background."""
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look no more."""
        self._stop.set()
        # A server that does not answer is not waited for.
        self._thread.join(timeout=1.0)

    def tell(self, life: str, after: int) -> dict[str, Any]:
        """Return how the server is, and what a browser that knows moments up to one lacks."""
        with self._lock:
            after = after if life == self._life else 0
            return {
                "address": self._watch.address,
                "interval": self._interval,
                "away": self._away,
                "life": self._life,
                "moments": [moment for moment in self._moments if moment["number"] > after],
                **self._now,
            }

    def _look_on(self) -> None:
        with self._watch:
            while not self._stop.wait(self._interval):
                self._look()

    def _look(self) -> None:
        try:
            self._take(read(self._watch.stats()))
        except (EchoicError, OSError) as error:
            self._miss(str(error).removeprefix(f"{self._watch.address}: "))
        except Exception as error:  # noqa: BLE001 - a page that stands still in silence is worse
            self._miss(f"the dashboard failed: {error!r}")

    def _take(self, reading: Reading) -> None:
        before = self._history.last
        self._history.add(reading)
        anew = len(self._history.readings) == 1
        now = account.now(reading, None if anew else before, find_problems(self._history))
        moment = None if anew or before is None else account.moment(before, reading)
        with self._lock:
            self._away = None
            self._now = now
            if anew:
                self._life = secrets.token_hex(8)
                self._moments.clear()
            if moment is not None:
                self._count += 1
                self._moments.append({"number": self._count, **moment})

    def _miss(self, reason: str) -> None:
        with self._lock:
            since = time.time() if self._away is None else self._away["since"]
            self._away = {"since": since, "reason": reason}
