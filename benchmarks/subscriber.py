"""A process that subscribes to weights, or copies as many bytes.

``python -m benchmarks.subscriber MEGABYTES [ADDRESS]``. [`Subscribers`] are several of them, as the
publisher has them.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.child import Child, Message, answer_requests
from benchmarks.content import ContentError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Elements of float32 in a page of memory.
_PAGE = 1024


class Subscribers:
    """Processes of one kind, which are asked all at the same time."""

    def __init__(self, children: list[Child]) -> None:
        """Have them; [`subscribers`] starts them."""
        self._children = children

    def tell(self, **request: Any) -> None:
        """Ask all of them."""
        for child in self._children:
            child.tell(request)

    def hear(self) -> list[float]:
        """Wait for the number that each answers."""
        return [child.hear()["number"] for child in self._children]


@contextlib.contextmanager
def subscribers(count: int, megabytes: int, *address: str) -> Iterator[Subscribers]:
    """Start so many; without an address they can copy only."""
    command = [sys.executable, "-m", "benchmarks.subscriber", str(megabytes), *address]
    with contextlib.ExitStack() as stack:
        all_ = Subscribers([stack.enter_context(Child(command)) for _ in range(count)])
        # They answer when they are there.
        all_.tell(do="copy")
        all_.hear()
        yield all_


class Subscriber:
    """The process, as it has itself."""

    def __init__(self, megabytes: int, subscription: Any) -> None:
        """Have nothing to copy yet."""
        self._count = megabytes << 18
        self._subscription = subscription
        self._copied: tuple[Any, Any] | None = None

    def answer(self, request: Message) -> Message:
        """Do what the publisher asks for."""
        number: float = getattr(self, request.pop("do"))(**request)
        return {"number": number}

    def copy(self) -> float:
        """Copy as many bytes between memory that was touched before: seconds."""
        if self._copied is None:
            source = np.ones(self._count, np.float32)
            self._copied = source, source.copy()
        source, target = self._copied
        start = time.perf_counter()
        np.copyto(target, source)
        return time.perf_counter() - start

    def wait(self, version: int) -> float:
        """Wait for a version, and read an element of each page of it: when it had done so."""
        publication = self._subscription.wait(newer_than=version - 1, timeout=60)
        arrays = publication.tree.values()
        right = all((array[::_PAGE] == version).all() for array in arrays)
        # The clock is the machine's, so the publisher may subtract its own times from it.
        ended = time.perf_counter()
        size = sum(array.size for array in arrays)
        if not right or publication.version != version or size != self._count:
            raise ContentError(f"expected version {version}, got {publication} or other bytes")
        return ended


def serve(megabytes: str, *address: str) -> None:
    """Answer the publisher's requests until it closes the pipe."""
    with contextlib.ExitStack() as stack:
        subscription = None
        if address:
            import echoic

            client = stack.enter_context(echoic.connect(address[0]).weights())
            subscription = client.subscribe()
        answer_requests(Subscriber(int(megabytes), subscription).answer)


if __name__ == "__main__":
    serve(*sys.argv[1:])
