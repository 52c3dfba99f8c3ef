"""What all links to a server share: their options, and their end."""

from __future__ import annotations

import atexit
import contextlib
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from echoic.errors import EchoicError
from echoic.tls import Tls
from echoic.transports import secret

if TYPE_CHECKING:
    from typing_extensions import Self

Seconds = TypeVar("Seconds", float, "float | None")

__all__ = ["Delivers", "deadline_in", "left_until", "link_options", "open_links"]

# Seconds that a script that ends without closing its links waits for what they have to deliver.
_EXIT_TIMEOUT = 5.0
# Seconds that the end of a `with` block waits when an exception ended it.
_ERROR_TIMEOUT = 1.0

open_links: weakref.WeakSet[Any] = weakref.WeakSet()


def link_options(
    *,
    token: str | bytes | None = None,
    tls: Tls | None = None,
    name: str | None = None,
    timeout: float = 10.0,
    reconnect: float | None = 60.0,
    window_bytes: int = 4 << 20,
    linger: float = 0.0002,
) -> dict[str, Any]:
    """Return the options of :func:`echoic.connect` as the native core takes them.

    Raises:
        ValueError: If a time is not a number of seconds >= 0.
        TypeError: If ``tls`` is no :class:`~echoic.Tls`.
    """
    for argument, seconds in (("timeout", timeout), ("reconnect", reconnect)):
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"{argument} must be a number of seconds >= 0, got {seconds}")
    if not isinstance(tls, (Tls, type(None))):
        raise TypeError(f"expected a Tls in tls, got {tls!r}")
    return {
        "token": secret(token),
        **vars(tls or Tls()),
        "name": name,
        "timeout": timeout,
        "reconnect": reconnect,
        "window_bytes": window_bytes,
        "linger": linger,
    }


def deadline_in(timeout: Seconds) -> Seconds:
    """Return when a timeout will have passed."""
    return None if timeout is None else time.monotonic() + timeout


def left_until(deadline: Seconds) -> Seconds:
    """Return how many seconds are left of a timeout."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class Delivers:
    """A context manager that delivers what is left and closes; after an exception, not for long."""

    __slots__ = ()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Deliver what is left and close; after an exception, wait one second at most."""
        close: Any = self.close  # type: ignore[attr-defined]
        if kind is None:
            close()
            return
        # The exception matters more than what it leaves undelivered.
        with contextlib.suppress(EchoicError):
            close(_ERROR_TIMEOUT)


@atexit.register
def _deliver_at_exit() -> None:
    """Close the links that are open, all of them within a few seconds."""
    deadline = time.monotonic() + _EXIT_TIMEOUT
    for link in list(open_links):
        # No caller is left to get the error.
        with contextlib.suppress(EchoicError):
            link.close(max(0.0, deadline - time.monotonic()))
