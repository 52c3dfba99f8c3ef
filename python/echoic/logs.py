"""What happens in the native core, as records of Python's :mod:`logging`.

Connections that come, are refused or get lost, doors, checkpoints and journals that fail: the core
tells of them, and nobody listens until :func:`enable` is called. Records come to the loggers
``echoic.net`` (servers and clients) and ``echoic.replay`` (checkpoints and journals), from a thread
of their own, so that nothing in the core ever waits for Python. Nothing is told per sample.

Examples:
    >>> import logging
    >>> import echoic.logs
    >>> logging.basicConfig(level=logging.INFO)
    >>> echoic.logs.enable("INFO")
    >>> echoic.logs.disable()
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading

from echoic import _native

__all__ = ["disable", "enable"]

_POLL = 0.5

_lock = threading.Lock()
_thread: threading.Thread | None = None


def enable(level: int | str = logging.INFO) -> None:
    """Have the core's records come to Python's logging, from this level on.

    Loggers and handlers decide as always what becomes of them. Calling it again changes the level.

    Args:
        level: As of :mod:`logging`: a number from 1 to 50, or a name such as ``"DEBUG"``.
    """
    global _thread  # noqa: PLW0603 - there is one core, and one thread that listens to it
    number = logging.getLevelName(level) if isinstance(level, str) else level
    if not isinstance(number, int) or not 1 <= number <= logging.CRITICAL:
        raise ValueError(
            f"level must be a number from 1 to {logging.CRITICAL} or a name, got {level!r}"
        )
    with _lock:
        if _thread is None or not _thread.is_alive():
            # What was said when somebody listened before is not news.
            _native.take_logs(0.0)
            _thread = threading.Thread(target=_carry, name="echoic-logs", daemon=True)
            _thread.start()
        _native.set_log_level(number)


def disable() -> None:
    """Listen no more. What was said before still comes."""
    global _thread
    with _lock:
        _native.set_log_level(0)
        thread, _thread = _thread, None
    if thread is not None and thread is not threading.current_thread():
        thread.join()


def _carry() -> None:
    """Carry records from the core to logging, until nobody listens."""
    own = threading.current_thread()
    while True:
        # Looked at first: what was said before the end is still taken.
        over = _thread is not own
        records, dropped = _native.take_logs(_POLL)
        for level, target, text in records:
            # echoic_net::server::worker
            logger = logging.getLogger(target.split("::")[0].replace("_", "."))
            try:
                logger.log(level, "%s", text)
            except Exception:  # noqa: BLE001 - a filter that fails must not end all logs
                threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), own]))
        if dropped:
            logging.getLogger("echoic").warning(
                "%d records were dropped: too many at once", dropped
            )
        if over:
            return


def _forget_thread() -> None:
    """Begin in a forked child as if nobody had listened: the thread is the parent's."""
    global _thread, _lock
    _lock, _thread = threading.Lock(), None
    _native.set_log_level(0)
    # What the parent has to say is the parent's.
    _native.take_logs(0.0)


os.register_at_fork(after_in_child=_forget_thread)
# Before the interpreter goes: a thread that comes back to it later can't.
atexit.register(disable)
