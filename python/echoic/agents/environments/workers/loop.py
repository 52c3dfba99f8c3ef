"""The worker's side of a ``JsonProcess``, by the standard library only: it runs without Echoic.

A request is the line ``{"do": name, "with": {...}, "limit": seconds}`` on the socket that the last
argument names, an answer the line ``{"is": value}`` or ``{"error": {"kind": class, "text": message,
"trace": where}}``. The end of the socket ends a worker, and while it works, an alarm of the system
kills it after the limit, even if its code holds the interpreter: no worker outlives its parent.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["serve"]

# Seconds after the limit at which the alarm ends a worker. A parent that lives kills it before.
_GRACE = 2.0
_LONGEST_TRACE = 4000


def serve(worker: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Call the worker's methods until the socket ends; ``default`` is for :func:`json.dumps`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = socket.socket(fileno=int(sys.argv[-1]))
    parent.set_inheritable(False)
    for line in parent.makefile("rb"):
        request = json.loads(line)
        # Each time, because libraries may install a handler.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, request["limit"] + _GRACE)
        try:
            value = getattr(worker, request["do"])(**request["with"])
            answer = json.dumps({"is": value}, default=default)
        except Exception as error:  # the parent raises it
            trace = traceback.format_exc()[-_LONGEST_TRACE:]
            answer = json.dumps(
                {"error": {"kind": type(error).__name__, "text": str(error), "trace": trace}}
            )
        signal.setitimer(signal.ITIMER_REAL, 0)
        with contextlib.suppress(ConnectionError):
            parent.sendall(answer.encode() + b"\n")
