"""Samples that say who made them and can be checked byte by byte, and what a server gave out.

A sample is `{"producer", "step", "words"}`; the words follow from the two numbers, so that a byte
that is wrong, old or of another sample is seen.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import echoic

# Words of a sample of 24 bytes, of one of 28 kB and of one that no socket takes in one piece.
SMALL = 2
FRAME = 7_052
HUGE = 1 << 20

# A wait that should have ended fails its own test after this, long before the whole run does.
PATIENCE = 30.0


def example(words: int) -> dict[str, Any]:
    """A sample as all others are."""
    return {
        "producer": np.int64(0),
        "step": np.int64(0),
        "words": np.zeros(words, np.uint32),
    }


def rows(producer: int, start: int, count: int, words: int) -> dict[str, Any]:
    """Many samples of one producer, with a leading axis."""
    steps = np.arange(start, start + count)
    return {
        "producer": np.full(count, producer),
        "step": steps,
        "words": _words(np.full(count, producer), steps, words),
    }


def sample(producer: int, step: int, words: int) -> dict[str, Any]:
    """One sample."""
    return {name: leaf[0] for name, leaf in rows(producer, step, 1, words).items()}


def _words(producer: np.ndarray, step: np.ndarray, words: int) -> np.ndarray:
    first = (producer * 2_654_435_761 + step * 40_503).astype(np.uint32)
    return first[:, None] + np.arange(words, dtype=np.uint32)


def pairs(batch: dict[str, Any]) -> np.ndarray:
    """The producer and step of every sample of a batch, after a look at all its bytes."""
    producer, step, words = batch["producer"], batch["step"], batch["words"]
    wrong = (words != _words(producer, step, words.shape[1])).any(axis=1)
    assert not wrong.any(), (
        f"wrong bytes in rows {np.flatnonzero(wrong)} of {len(wrong)}: "
        f"producers {producer[wrong]}, steps {step[wrong]}, first words {words[wrong, :4]}"
    )
    return np.stack([producer, step], axis=1)


NOTHING = np.zeros(0, np.int64)


def by_producer(taken: Iterable[np.ndarray]) -> dict[int, np.ndarray]:
    """The steps of each producer, in the order in which they came out."""
    table = np.concatenate([np.zeros((0, 2), np.int64), *taken])
    return {int(key): table[table[:, 0] == key, 1] for key in np.unique(table[:, 0])}


def assert_exactly(steps: np.ndarray, count: int) -> None:
    """Each of the steps from 0 came once, and in order."""
    assert_run(steps, at_least=count, at_most=count)


def assert_run(
    steps: np.ndarray, *, at_least: int, at_most: float = float("inf"), start: int = 0
) -> None:
    """The steps are a gapless run that lost nothing which was acknowledged."""
    expected = np.arange(start, start + len(steps))
    if not np.array_equal(steps, expected):
        first = int(np.flatnonzero(steps != expected)[0])
        around = steps[max(first - 3, 0) : first + 5].tolist()
        raise AssertionError(f"not a run from {start}: at {first} of {len(steps)} come {around}")
    assert at_least <= len(steps) <= at_most, f"{len(steps)} came, not {at_least} to {at_most}"


class Intake:
    """Takes all batches of a server in a thread, and checks every byte of them."""

    def __init__(self, server: echoic.Server) -> None:
        self._server = server
        self._taken: list[np.ndarray] = []
        self._failure: BaseException | None = None
        self._open = threading.Event()
        self._open.set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for taken in self._server.stream.batches():
                self._open.wait(PATIENCE)
                self._taken.append(pairs(taken.data))
        except BaseException as failure:  # raised again by `finish`
            self._failure = failure

    def pause(self) -> None:
        """Stop taking, as a learner that compiles or writes a checkpoint."""
        self._open.clear()

    def resume(self) -> None:
        """Go on."""
        self._open.set()

    @property
    def count(self) -> int:
        """How many samples were taken."""
        assert self._failure is None, self._failure
        return sum(map(len, self._taken))

    def finish(self, drain: float = 1.0) -> dict[int, np.ndarray]:
        """Close the server, take what is left, and give the steps of each producer."""
        self._server.close(drain)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "a closed server still keeps its consumer waiting"
        if self._failure is not None:
            raise self._failure
        rest = self._server.stream.rest(timeout=PATIENCE)
        if rest is not None:
            self._taken.append(pairs(rest.data))
        return by_producer(self._taken)
