"""Send log records of the native core to Python's :mod:`logging`.

The core logs connections that open, are refused or get lost, and transports, checkpoints and
journals that fail. Records are dropped until :func:`enable` is called. They go to the loggers
``echoic.net`` (servers and clients) and ``echoic.replay`` (checkpoints and journals). A thread
delivers them, so the core never waits for Python. Nothing is logged per sample.

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
    """Send the core's records of this level and above to Python's logging.

    Loggers and handlers filter them as usual. Calling it again changes the level.

    Args:
        level: As of :mod:`logging`: a number from 1 to 50, or a name such as ``"DEBUG"``.
    """
    global _thread
    number = logging.getLevelName(level) if isinstance(level, str) else level
    if not isinstance(number, int) or not 1 <= number <= logging.CRITICAL:
        raise ValueError(
            f"level must be a number from 1 to {logging.CRITICAL} or a name, got {level!r}"
        )
    with _lock:
        if _thread is None or not _thread.is_alive():
            # Drop records of an earlier time.
            _native.take_logs(0.0)
            _thread = threading.Thread(target=_carry, name="echoic-logs", daemon=True)
            _thread.start()
        _native.set_log_level(number)


def disable() -> None:
    """Stop sending records. Those logged before are still delivered."""
    global _thread
    with _lock:
        _native.set_log_level(0)
        thread, _thread = _thread, None
    if thread is not None and thread is not threading.current_thread():
        thread.join()


def _carry() -> None:
    """Pass records from the core to logging until :func:`disable` is called."""
    own = threading.current_thread()
    while True:
        # Read before the records are taken, so that those logged before the end are delivered.
        over = _thread is not own
        records, dropped = _native.take_logs(_POLL)
        for level, target, text in records:
            # echoic_net::server::worker
            logger = logging.getLogger(target.split("::")[0].replace("_", "."))
            try:
                logger.log(level, "%s", text)
            except Exception:  # a filter that fails must not end all logs
                threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), own]))
        if dropped:
            logging.getLogger("echoic").warning(
                "%d records were dropped: too many at once", dropped
            )
        if over:
            return


def _forget_thread() -> None:
    """Reset the state in a forked child: the thread and the records belong to the parent."""
    global _thread, _lock
    _lock, _thread = threading.Lock(), None
    _native.set_log_level(0)
    # Pending records are the parent's.
    _native.take_logs(0.0)


os.register_at_fork(after_in_child=_forget_thread)
# Before the interpreter exits: a thread that returns to it later can't.
atexit.register(disable)
