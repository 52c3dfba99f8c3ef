"""Every error is an EchoicError and the builtin that it resembles, and none is a panic."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import echoic
import numpy as np
import pytest
from echoic import _native, echo, errors

BUILTINS = {
    "ArgumentError": ValueError,
    "BackboneError": RuntimeError,
    "DtypeError": TypeError,
    "SpecError": ValueError,
    "StorageError": OSError,
    "WaitTimeoutError": TimeoutError,
    "ClosedError": RuntimeError,
    "CollectorError": RuntimeError,
    "ServingError": RuntimeError,
    "DisconnectedError": ConnectionError,
    "RefusedError": ConnectionError,
    "ReplayError": ValueError,
    "TrajectoryError": ValueError,
    "TableNotFoundError": KeyError,
    "PriorityError": ValueError,
    "LimiterError": ValueError,
    "CheckpointError": ValueError,
    "JournalError": ValueError,
    "RolloutError": ValueError,
    "LeaseError": RuntimeError,
    "GroupNotFoundError": KeyError,
}


@pytest.mark.parametrize(("name", "builtin"), BUILTINS.items())
def test_each_error_is_an_echoic_error_and_a_builtin(name: str, builtin: type) -> None:
    error = getattr(errors, name)
    assert issubclass(error, echoic.EchoicError)
    assert issubclass(error, builtin)


def test_the_list_above_is_complete() -> None:
    classes = {name for name in errors.__all__ if name.endswith("Error")}
    assert classes == {"EchoicError", *BUILTINS}
    assert issubclass(echoic.EchoicError, Exception)
    assert issubclass(echoic.errors.HeldBatchesWarning, UserWarning)


def test_the_root_has_the_base_class_alone() -> None:
    assert echoic.EchoicError is errors.EchoicError
    assert set(errors.__all__) & set(echoic.__all__) == {"EchoicError"}


def wrong_token() -> None:
    stream = echoic.Stream(0, batch_size=1)
    with echoic.Server(stream, listen="tcp://127.0.0.1:0", token=b"right") as server:
        echoic.connect(server.address, token=b"wrong").stream(0)


def closed_sample() -> None:
    with echoic.Stream(0, batch_size=1) as stream:
        pass
    stream.sample()


def closed_add() -> None:
    with echoic.Stream(0, batch_size=1) as stream:
        pass
    stream.add(0)


def other_journal() -> None:
    table = echoic.Table("tests", 0, capacity=1, durability="async")
    with tempfile.TemporaryDirectory() as root:
        Path(root, "tests").mkdir()
        Path(root, "tests", "echoic-table").write_text("[]")
        echoic.Server(table, journal=root)


PROVOKED = {
    "a sample that does not fit": (
        lambda: echoic.Stream(0, batch_size=1).add(0.5),
        echoic.errors.SpecError,
    ),
    "rows that do not fit": (
        lambda: echoic.Stream(0, batch_size=1).extend(np.zeros(2)),
        echoic.errors.SpecError,
    ),
    "an example without leaves": (lambda: echoic.Stream({}, batch_size=1), echoic.errors.SpecError),
    "no batch in time": (
        lambda: echoic.Stream(0, batch_size=1).sample(timeout=0),
        echoic.errors.WaitTimeoutError,
    ),
    "nobody there": (
        lambda: echoic.connect("tcp://127.0.0.1:1", timeout=0.05).stream(0),
        echoic.errors.DisconnectedError,
    ),
    "the wrong token": (wrong_token, echoic.errors.RefusedError),
    "a closed stream, sample": (closed_sample, echoic.errors.ClosedError),
    "a closed stream, add": (closed_add, echoic.errors.ClosedError),
    "an unfinished trajectory": (
        lambda: _native.TrajectoryAccumulator({"a": np.zeros(2)}).build(),
        echoic.errors.TrajectoryError,
    ),
    "an unknown table": (
        lambda: echoic.connect(echoic.Server(echoic.Table("t", 0, capacity=1))).table("x"),
        echoic.errors.TableNotFoundError,
    ),
    "a priority below zero": (
        lambda: echoic.Table("t", 0, capacity=1).add(0, -1.0),
        echoic.errors.PriorityError,
    ),
    "a table that could never be sampled": (
        lambda: echoic.Table("t", 0, capacity=1, limiter=echoic.limiters.MinSize(2)),
        echoic.errors.LimiterError,
    ),
    "a folder that is no checkpoint": (
        lambda: _native.open_checkpoint(Path(__file__).parent),
        echoic.errors.CheckpointError,
    ),
    "a folder that is no journal": (other_journal, echoic.errors.JournalError),
}


@pytest.mark.parametrize("case", PROVOKED)
def test_what_goes_wrong_is_raised_as_just_that_class(case: str) -> None:
    provoke, expected = PROVOKED[case]
    with pytest.raises(echoic.EchoicError) as caught:
        provoke()
    assert type(caught.value) is expected
    assert isinstance(caught.value, BUILTINS[expected.__name__])


# Nonsense of all kinds: each must end in an ordinary exception that names no Rust source.
ABUSES = {
    "no example": echoic.Stream,
    "no store": echoic.Server,
    "sizes of another type": lambda: echoic.Stream(0, batch_size="2"),
    "a size past an int": lambda: echoic.Stream(0, batch_size=1 << 80),
    "all the slots there are": lambda: echoic.Stream(0, batch_size=(1 << 63) - 1).stats(),
    "all the buffers there are": lambda: echoic.Stream(
        0, batch_size=1, capacity=(1 << 63) - 1
    ).stats(),
    "slots without bytes": lambda: echoic.Stream(
        np.zeros(0), batch_size=1 << 62, capacity=(1 << 63) - 1
    ).stats(),
    "a timeout of another type": lambda: echoic.Stream(0, batch_size=1).sample(timeout="1"),
    "a batch made by hand": echoic.Batch,
    "an info made by hand": echoic.batches.StreamStats,
    "a histogram made by hand": echoic.batches.Histogram,
    "a spec made by hand": echoic.Spec,
    "an info that is assigned": lambda: setattr(
        echoic.Stream(0, batch_size=1).stats(), "partial", 1
    ),
    "an address without a scheme": lambda: echoic.connect("localhost:1").stream(0),
    "a window of no bytes": lambda: echoic.connect("tcp://localhost:1", window_bytes=-1).stream(0),
    "a producer of 3 bytes": lambda: echoic.connect("tcp://localhost:1").stream(0, producer=b"abc"),
    "an empty token": lambda: echoic.connect("tcp://localhost:1", token="").stream(0),
    "a linger of nan": lambda: echoic.connect("tcp://localhost:1", linger=float("nan")).stream(0),
    "an authority without tls": lambda: echoic.connect(
        "tcp://localhost:1", tls=echoic.Tls(ca="ca.pem")
    ).stream(0),
    "an authority that is no file": lambda: echoic.connect(
        "tls://localhost:1", tls=echoic.Tls(ca="/no.pem")
    ).stream(0),
    "a name with a slash": lambda: echoic.connect("shm://a/b").stream(0),
    "a server with no threads": lambda: echoic.Server(
        echoic.Stream(0, batch_size=1), listen="tcp://127.0.0.1:0", threads=0
    ).start(),
    "a heart that stands": lambda: echoic.Server(
        echoic.Stream(0, batch_size=1), listen="tcp://127.0.0.1:0", heartbeat=0
    ).start(),
    "an accumulator of no dict": lambda: echo.TrajectoryAccumulator([np.zeros(2)]),
    "an accumulator of nothing": lambda: echo.TrajectoryAccumulator({}),
    "an accumulator of numbered parts": lambda: echo.TrajectoryAccumulator({1: np.zeros(2)}),
    "a part that is no name": lambda: echo.TrajectoryAccumulator({"a": np.zeros(2)}).add(1, 2),
}


@pytest.mark.parametrize("abuse", ABUSES)
def test_abuse_is_an_ordinary_exception_and_never_a_panic(abuse: str, capfd: Any) -> None:
    with pytest.raises(Exception) as caught:
        ABUSES[abuse]()
    assert type(caught.value).__name__ != "PanicException"
    assert ".rs:" not in str(caught.value)
    # A panic that was caught would still have been printed.
    assert capfd.readouterr().err == ""


def test_errors_survive_pickling_with_their_attributes() -> None:
    with pytest.raises(echoic.errors.WaitTimeoutError) as caught:
        echoic.Stream(0, batch_size=1).sample(timeout=0)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.reason, copy.stored) == (str(caught.value), "EMPTY", 0)
