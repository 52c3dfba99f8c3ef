"""The worker's side: asked by lines of JSON, answers by lines of JSON, until nobody asks.

Needs the standard library only, because it also runs where Echoic is not installed.

A request is ``{"do": name, "with": {...}, "limit": seconds}``, an answer ``{"is": value}`` or
``{"error": {"kind": class, "text": message, "trace": where}}``. A worker never outlives who asks:
the end of its input ends it, and while it works, the system's alarm does that kills it after the
limit, even where code holds the interpreter. Whatever libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import signal
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["serve"]

# How many seconds after its limit a worker ends by itself. Who asks kills it before, if alive.
_GRACE = 5.0
_LONGEST_TRACE = 4000


def serve(
    does: Mapping[str, Callable[..., Any]], default: Callable[[Any], Any] | None = None
) -> None:
    """Answer until the input ends; ``default`` says as JSON what JSON can't."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    for line in asked:
        request = json.loads(line)
        # Each time, because libraries take the signal for themselves.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, request["limit"] + _GRACE)
        said = _answer(does, request, default)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            answers.write(said)
            answers.flush()
        except BrokenPipeError:
            return


def _answer(
    does: Mapping[str, Callable[..., Any]],
    request: Mapping[str, Any],
    default: Callable[[Any], Any] | None,
) -> bytes:
    try:
        value = does[request["do"]](**request["with"])
        text = json.dumps({"is": value}, default=default)
    except Exception as error:  # who asks is told
        told = {
            "kind": type(error).__name__,
            "text": str(error),
            "trace": traceback.format_exc()[-_LONGEST_TRACE:],
        }
        text = json.dumps({"error": told})
    return text.encode() + b"\n"
