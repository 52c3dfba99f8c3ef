"""Reuse writers for items that are inserted one by one, by the form of the data."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic import TrajectoryWriter

__all__ = ["Inserters"]

# The most forms of data for which writers are kept.
_MOST_FORMS = 32


class Inserters:
    """Idle writers by form. One that failed or was interrupted is not reused."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: OrderedDict[Any, deque[TrajectoryWriter]] = OrderedDict()
        # The connection or server that the writers belong to.
        self._source: Any = None

    def take(
        self, form: Any, source: Any, make: Callable[[], TrajectoryWriter]
    ) -> TrajectoryWriter:
        """Return a writer that no other thread uses."""
        with self._lock:
            if self._source is not source:
                self._idle.clear()
                self._source = source
            idle = self._idle.get(form)
            if idle:
                self._idle.move_to_end(form)
                return idle.pop()
        return make()

    def give_back(self, form: Any, source: Any, writer: TrajectoryWriter) -> None:
        """Return a writer for reuse, once its item is in its tables."""
        with self._lock:
            if self._source is source:
                self._idle.setdefault(form, deque()).append(writer)
                if len(self._idle) > _MOST_FORMS:
                    self._idle.popitem(last=False)
