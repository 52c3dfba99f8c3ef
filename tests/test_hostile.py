"""Callers that change things under our hands: nothing may be corrupted, lost or leaked."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic.echo import TrajectoryAccumulator

if TYPE_CHECKING:
    from collections.abc import Callable


class Leaf:
    """An array-like that runs code of its own while it is read."""

    def __init__(self, action: Callable[[], object], value: np.ndarray) -> None:
        self.action = action
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        self.action()
        return self.value


def resize(array: np.ndarray) -> None:
    array.resize(2, refcheck=False)


def replace(array: np.ndarray) -> None:
    array.__setstate__(np.zeros(2, np.float32).__reduce__()[2])


@pytest.mark.parametrize("change", [resize, replace])
def test_an_array_that_gets_other_memory_while_its_sample_is_read_is_refused(
    change: Callable[[np.ndarray], None],
) -> None:
    example = {"a": np.zeros(1 << 16, np.float32), "b": np.zeros(4, np.float32)}
    stream = echoic.Stream(example, batch_size=1)
    victim = np.ones(1 << 16, np.float32)
    trap = Leaf(lambda: change(victim), np.zeros(4, np.float32))
    with pytest.raises(echoic.errors.SpecError, match="leaf `a`: the array was changed while"):
        stream.add({"a": victim, "b": trap})
    assert stream.stats().inserted_total == 0
    stream.add(example)
    assert stream.sample(timeout=0).data["a"].shape == (1, 1 << 16)


def test_a_built_trajectory_can_not_be_resized() -> None:
    buf = TrajectoryAccumulator({"o": np.zeros((2, 4), np.float32)})
    for value in range(2):
        buf.add("o", np.full(4, value, np.float32))
    built = buf.build()
    array = built.pop("o")
    with pytest.raises(ValueError, match="does not own its data"):
        array.resize((1,))


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_what_a_user_does_to_a_built_array_does_not_reach_the_next() -> None:
    buf = TrajectoryAccumulator({"o": np.zeros((2, 4), np.float32)})

    def build() -> np.ndarray:
        for value in range(2):
            buf.add("o", np.full(4, value, np.float32))
        return buf.build()["o"]

    first = build()
    first.shape = (8,)
    first.setflags(write=False)
    address = first.ctypes.data
    del first
    second = build()
    assert second.shape == (2, 4)
    assert second.flags.writeable
    assert second.ctypes.data == address


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on() -> None:
    example = {"a": np.zeros(2, np.float32)}
    stream = echoic.Stream(example, batch_size=1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (lambda: stream.add(example), lambda: stream.sample(timeout=0)):
            try:
                call()
            except echoic.errors.ClosedError as error:
                said.append(str(error))
        # A stream of the child's own works.
        own = echoic.Stream(example, batch_size=1)
        own.add(example)
        said.append(str(len(own.sample(timeout=0))))
        os.write(writing, "\n".join(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    assert len(said) == 3
    assert "made before a fork" in said[0]
    assert said[0] == said[1]
    assert said[2] == "1"
    stream.add(example)
    assert len(stream.sample(timeout=0)) == 1


def test_a_batch_that_refers_to_its_own_sample_is_collected() -> None:
    example = {"a": np.zeros(2, np.float32)}
    stream = echoic.Stream(example, batch_size=1)
    stream.add(example)
    sample = stream.sample()
    sample.data["itself"] = sample
    del sample
    gc.collect()
    assert stream.stats().batches_held == 0


@dataclass
class OnlyVectors:
    """Accepts what the example holds, but no batch of it."""

    value: np.ndarray

    def __post_init__(self) -> None:
        if self.value.ndim != 1:
            message = "a vector, please"
            raise ValueError(message)


def test_a_tree_that_can_not_hold_a_batch_is_refused_before_there_is_one() -> None:
    with pytest.raises(
        echoic.errors.SpecError, match="can't hold a batch: ValueError: a vector, please"
    ):
        echoic.Stream(OnlyVectors(np.zeros(3)), batch_size=2)
    with pytest.raises(echoic.errors.SpecError, match="can't hold a batch"):
        echoic.Stream(np.zeros((1,) * 64), batch_size=2)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [(np.float16, 1e5), (np.float32, 1e300), (np.float32, -1e39), (np.complex64, 1e300)],
)
def test_a_python_number_that_would_become_infinite_is_refused(dtype: Any, number: float) -> None:
    stream = echoic.Stream(np.zeros((), dtype), batch_size=1)
    with pytest.raises(echoic.errors.SpecError, match="got the float"):
        stream.add(number)
    stream.add(float("inf"))
    assert np.isinf(stream.sample(timeout=0).data).all()


def test_no_samples_for_a_closed_stream_are_refused_too() -> None:
    stream = echoic.Stream(np.zeros(2), batch_size=1)
    stream.extend(np.zeros((0, 2)))
    stream.close()
    with pytest.raises(echoic.errors.ClosedError):
        stream.extend(np.zeros((0, 2)))


def test_never_is_a_time_after_which_held_batches_are_worth_a_warning() -> None:
    assert echoic.Stream(np.zeros(2), batch_size=1, held_warning_after=float("inf")).batch_size == 1
