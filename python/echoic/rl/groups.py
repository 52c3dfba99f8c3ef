"""Iterate over a group for each prompt, as soon as the learner can use one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from echoic.errors import RolloutError
from echoic.rl.group import Group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from typing_extensions import Self

    from echoic.rl.worker import Given, Worker

__all__ = ["Groups", "key_of"]

# The most bytes of a prompt that is its group's name.
_NAME_BYTES = 255
# Reservations are taken ahead for the groups that are used in this many seconds; this many at most.
_AHEAD, _MOST = 0.005, 64


def key_of(prompt: Any, key: Callable[[Any], str] | None) -> str:
    """Return the name of a prompt's group."""
    if key is not None:
        name = key(prompt)
        if len(name.encode()) > _NAME_BYTES:
            raise RolloutError(f"expected a key of at most {_NAME_BYTES} bytes, got {name!r}")
        return name
    # Bytes are only counted where characters may have several.
    is_name = isinstance(prompt, str) and len(prompt) <= _NAME_BYTES
    if is_name and (prompt.isascii() or len(prompt.encode()) <= _NAME_BYTES):
        return str(prompt)
    return ""


class Groups:
    """An iterator over one group for each prompt, with ``for`` or ``async for``."""

    def __init__(
        self,
        worker: Worker,
        prompts: Iterable[Any] | AsyncIterable[Any],
        key: Callable[[Any], str] | None,
        source: str,
    ) -> None:
        # Prompts that were read, and their keys; and reservations for the first of them.
        self._prompts: deque[tuple[Any, str]] = deque()
        self._given: deque[Given] = deque()
        self._worker = worker
        self._key = key
        self._source = source
        self._sync: Iterator[Any] | None = None
        self._async: AsyncIterator[Any] | None = None
        if isinstance(prompts, Iterable):
            self._sync = iter(prompts)
        elif isinstance(prompts, AsyncIterable):
            self._async = aiter(prompts)
        else:
            raise TypeError(
                f"expected an iterable of prompts, or an async one, got a {type(prompts).__name__}"
            )
        # What is read ahead of an iterator would be lost to others when the loop is left.
        self._reads_ahead = self._sync is not None and self._sync is not prompts
        # How many were reserved last and when; how many groups were begun.
        self._last, self._when = 0, 0.0
        self._begun = self._seen = 0

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Group:
        """Return the group for the next prompt; wait until it may be made."""
        if not self._prompts:
            if self._sync is None:
                raise TypeError("prompts of an async iterable need `async for`")
            self._read(next(self._sync, self))
            if not self._prompts:
                self._end()
                raise StopIteration
        worker = self._worker
        while (group := self._next()) is None:
            worker._raise()
            self._take(worker._reserve(self._wanted(), self._source, worker._partial))
        return group

    async def __anext__(self) -> Group:
        """Return the group for the next prompt; wait until it may be made."""
        if not self._prompts:
            if self._async is not None:
                self._read(await anext(self._async, self))
            elif self._sync is not None:
                self._read(next(self._sync, self))
            if not self._prompts:
                self._end()
                raise StopAsyncIteration
        worker = self._worker
        while (group := self._next()) is None:
            self._take(
                await worker._reserver.reserve(self._wanted(), self._source, worker._partial)
            )
        return group

    def _read(self, prompt: Any) -> None:
        """Add a prompt, unless there is none."""
        if prompt is not self:
            self._prompts.append((prompt, key_of(prompt, self._key)))

    def _next(self) -> Group | None:
        """Return the group for the first prompt if there is a reservation for it."""
        try:
            given = self._given.popleft()
        except IndexError:
            return None
        worker = self._worker
        if len(given) == 2:
            # What another worker began; the first prompt is still to come.
            worker._unused[given[0][:2]] = worker._suspend
            return Group(worker, given[0][2], given[0][2], self._source)._resumed(*given)
        prompt, key = self._prompts[0]
        if given[2] != key:
            # Of a prompt that was not there yet when it was reserved.
            worker._discard([given, *self._given])
            self._given.clear()
            return None
        self._prompts.popleft()
        self._begun += 1
        worker._unused[given[:2]] = worker._give_back
        return Group(worker, prompt, key, self._source)._reserved(given)

    def _wanted(self) -> list[str]:
        """Return the keys to reserve: that of the first prompt, and as many as are used at once."""
        now = time.monotonic()
        took, last = now - self._when, self._last
        count = 1
        if last and not self._worker._partial:
            count = min(2 * last, int(last * _AHEAD / max(took, 1e-9)), _MOST)
        while self._reads_ahead and len(self._prompts) < count:
            before = len(self._prompts)
            self._read(next(self._sync, self))  # type: ignore[arg-type]
            if len(self._prompts) == before:
                break
        keys = [key for _, key in self._prompts]
        if not self._reads_ahead and keys == [""]:
            # Those that follow have no name either, most likely.
            keys *= max(count, 1)
        return keys[:count] if count > 1 else keys[:1]

    def _take(self, given: Sequence[Given]) -> None:
        self._given.extend(given)
        self._last, self._when = len(given), time.monotonic()
        if len(given) > 1:
            self._worker._watch(self)

    def _end(self) -> None:
        """Give back what is left."""
        rest, self._given = list(self._given), deque()
        if rest:
            self._worker._discard(rest)

    def _is_idle(self) -> bool:
        """Give reservations back if none was used since the last call; whether none is left."""
        if not self._given:
            return True
        if self._begun != self._seen:
            self._seen = self._begun
            return False
        rest = []
        # From the end: the loop may take the first meanwhile.
        while True:
            try:
                rest.append(self._given.pop())
            except IndexError:
                break
        self._worker._discard(rest)
        return True

    def __del__(self) -> None:
        self._end()
