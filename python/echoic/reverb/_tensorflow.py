"""Make datasets of TensorFlow, in programs that have it; nothing is imported before the first one.

A dataset fetches groups of items in Python, which TensorFlow takes apart. TensorFlow can't end a
call of Python that waits: so one that finds no items returns an empty group after ``POLL``
seconds, and TensorFlow asks again unless its iterator was deleted or its session closed.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.reverb import _nest, _signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["POLL", "Groups", "calls", "kind_of", "nothing", "source", "spec_of", "tensorflow"]

# Seconds that a call of Python waits for items before it looks whether it is to end.
POLL = 0.1

# Part of the names of its files.
_TENSORFLOW = f"{os.sep}tensorflow{os.sep}"


@functools.cache
def tensorflow() -> Any:
    """Import TensorFlow; ``None`` if it is not installed."""
    if "tensorflow" not in sys.modules and importlib.util.find_spec("tensorflow") is None:
        return None
    return importlib.import_module("tensorflow")


def spec_of(leaf: _signature.TensorSpec, *axes: int | None) -> Any:
    """Convert a spec to TensorFlow's, with more leading axes."""
    leaf = _signature.normalize(leaf)
    shape = None if leaf.shape is None else (*axes, *leaf.shape)
    return tensorflow().TensorSpec(shape, tensorflow().as_dtype(leaf.dtype))


def nothing(leaf: _signature.TensorSpec) -> np.ndarray[Any, Any]:
    """Return a leaf of a group of no elements."""
    return np.zeros((0, *(axis or 0 for axis in leaf.shape or ())), leaf.dtype)


class _Calls:
    """Calls of Python by threads of TensorFlow, which end with the program and by Ctrl-C.

    A program that ends, or its main thread if it waits in TensorFlow when Ctrl-C comes, could do
    nothing about a call that goes on.
    """

    def __init__(self) -> None:
        self._idle = threading.Condition()
        self._running = 0
        self._over = False
        self._signals = -1
        self._interrupts = 0
        atexit.register(self._end)

    def __enter__(self) -> None:
        with self._idle:
            if self._over:
                raise StopIteration
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._idle:
            self._running -= 1
            self._idle.notify_all()

    def _end(self) -> None:
        with self._idle:
            self._over = True
            waited = self._running > 0
            self._idle.wait_for(lambda: not self._running, 10 * POLL)
        if waited:
            # TensorFlow calls again, is refused, and then leaves Python alone.
            time.sleep(POLL)

    def watch(self) -> None:
        """Notice Ctrl-C from now on, if this is the main thread and nothing else does."""
        if self._signals >= 0 or threading.current_thread() is not threading.main_thread():
            return
        self._signals, there = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(there, False)
        known = signal.set_wakeup_fd(there, warn_on_full_buffer=False)
        if known != -1:
            signal.set_wakeup_fd(known)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    @staticmethod
    def _interrupt(number: int, frame: FrameType | None) -> None:
        """Raise ``KeyboardInterrupt``, as Python does by itself.

        It would be lost in the C++ that makes TensorFlow's error of a call that was ended: there it
        is raised as soon as the caller of that C++ goes on.
        """
        caller = frame and frame.f_back
        if frame is None or caller is None or frame.f_code.co_name != "__init__":
            raise KeyboardInterrupt
        if _TENSORFLOW not in frame.f_code.co_filename:
            raise KeyboardInterrupt
        traced = sys.gettrace()

        def interrupt(*_: Any) -> None:
            sys.settrace(traced)
            caller.f_trace = None
            raise KeyboardInterrupt

        caller.f_trace = interrupt
        sys.settrace(lambda *_: None)

    def noticed(self) -> int:
        """Return how often Ctrl-C was noticed."""
        try:
            caught = os.read(self._signals, 4096) if self._signals >= 0 else b""
        except BlockingIOError:
            caught = b""
        self._interrupts += signal.SIGINT in caught
        return self._interrupts

    def check(self, noticed: int) -> int:
        """Return what :meth:`noticed` does now, given what it returned when a wait began.

        Raises:
            StopIteration: If the program ends.
            RuntimeError: If Ctrl-C came and the main thread waits.
        """
        if self._over:
            raise StopIteration
        now = self.noticed()
        default = (signal.default_int_handler, self._interrupt)
        if now != noticed and signal.getsignal(signal.SIGINT) in default:
            main = sys._current_frames().get(threading.main_thread().ident or 0)
            # A main thread that runs Python raises KeyboardInterrupt by itself.
            if main is not None and _TENSORFLOW in main.f_code.co_filename:
                raise RuntimeError("interrupted by Ctrl-C")
        return now


calls = _Calls()


class Groups:
    """Iterate over groups of items for TensorFlow; an empty one says that there are none yet.

    Args:
        groups: Yields lists of arrays, or ``None`` after it has waited for a while.
        specs: Of the elements of a group.
    """

    def __init__(self, groups: Iterator[Any], specs: list[_signature.TensorSpec]) -> None:
        self._groups = groups
        self._none = tuple(map(nothing, specs))
        self._noticed: int | None = None

    def __iter__(self) -> Groups:
        return self

    def __next__(self) -> tuple[Any, ...]:
        with calls:
            if self._noticed is None:
                self._noticed = calls.noticed()
            group = next(self._groups)
            noticed, self._noticed = self._noticed, None
            if group is None:
                self._noticed = calls.check(noticed)
                return self._none
            return tuple(group)


def source(make: Callable[..., Iterator[Any]], specs: list[Any], ahead: int, *inputs: Any) -> Any:
    """Make a dataset of the elements of groups, as flat tuples.

    Args:
        make: Makes an iterator over groups for each iteration, given the values of the inputs.
        specs: Of an element.
        ahead: How many groups to fetch ahead.
        *inputs: Tensors, or what becomes one.
    """
    tf = tensorflow()
    calls.watch()
    dataset = tf.data.Dataset.from_generator(
        lambda *values: Groups(make(*values), specs),
        output_signature=tuple(spec_of(leaf, None) for leaf in specs),
        args=inputs,
    )
    return (dataset.prefetch(ahead) if ahead else dataset).unbatch()


@functools.cache
def _nested() -> Any:
    """Return the class of datasets whose elements are those of a flat one, nested."""
    base: Any = tensorflow().compat.v1.data.Dataset

    class Nested(base):  # type: ignore[misc]
        def __init__(self, flat: Any, spec: Any) -> None:
            self._flat = flat
            self._nested_spec = _nest.map_leaves(spec_of, spec)
            base.__init__(self)

        def _as_variant_tensor(self) -> Any:
            return self._flat._variant_tensor

        def _inputs(self) -> list[Any]:
            return [self._flat]

        @property
        def element_spec(self) -> Any:
            return self._nested_spec

    return Nested


@functools.cache
def kind_of(kind: Any) -> Any:
    """Return the class of this kind's datasets, which are TensorFlow's too where that is there."""
    if tensorflow() is None:
        return kind
    nested: Any = _nested()

    class Made(nested, kind):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._plain = object.__new__(kind)
            self._plain.__init__(*args, **kwargs)
            nested.__init__(self, self._plain._flat(), self._plain.element_spec)

        def batch(self, batch_size: Any, drop_remainder: Any = False, **more: Any) -> Any:
            flat = None if more else self._plain._flat_batches(batch_size, drop_remainder)
            if flat is None:
                return super().batch(batch_size, drop_remainder, **more)
            return nested(flat, self._plain.batch(batch_size, drop_remainder).element_spec)

    Made.__name__ = Made.__qualname__ = kind.__name__
    Made.__module__ = kind.__module__
    return Made
