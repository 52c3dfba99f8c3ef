"""Batches as small and samples as odd as they come: all arrive, once and whole."""

from __future__ import annotations

from typing import Any

import echoic
import numpy as np
import pytest
from content import FRAME, SMALL, assert_exactly, example, rows, sample
from polling import until

pytestmark = pytest.mark.timeout(40)


# A ring this small is full most of the time: whoever waits for room must be woken each time.
@pytest.mark.parametrize(
    ("batch_size", "capacity"), [(1, 2), pytest.param(3, 6, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("words", [SMALL, FRAME])
def test_small_batches_from_many_producers_never_stall(
    transport: Any, processes: Any, words: int, batch_size: int, capacity: int
) -> None:
    server, intake = transport.open_and_take(words, batch_size, capacity)
    count = 3_000 if words == SMALL else 1_000
    senders = [
        processes.start("send", server.address, words=words, producer=n, rows=n, count=count)
        for n in (0, 1, 20)
    ]
    assert [sender.done() for sender in senders] == [count] * 3
    steps = intake.finish()
    for producer in (0, 1, 20):
        assert_exactly(steps[producer], count)


def test_samples_without_bytes_are_counted(transport: Any, make_server: Any) -> None:
    nothing = {"a": np.zeros((0, 3), np.float32)}
    server = make_server(nothing, 4, 32, listen=transport.address()).start()
    with echoic.connect(server.address).stream(nothing) as client:
        client.add(nothing)
        client.extend({"a": np.zeros((9, 0, 3), np.float32)})
    assert server.stream.stats().inserted_total == 10
    assert server.stream.sample(timeout=10).data["a"].shape == (4, 0, 3)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"words": np.zeros(SMALL + 1, np.uint32)}, "words"),
        ({"words": np.zeros(1 << 20, np.uint32)}, "words"),
        ({"words": np.zeros(SMALL, np.int32)}, "words"),
        ({"words": np.array([object()] * SMALL)}, "words"),
        ({"extra": np.int64(0)}, "extra"),
        ({"step": 0.5}, "step"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused_where_it_is_sent(
    transport: Any, connect: Any, change: dict[str, Any], text: str
) -> None:
    server, intake = transport.open_and_take()
    client = connect(server)
    client.add(sample(0, 0, SMALL))
    with pytest.raises(echoic.errors.SpecError, match=text):
        client.add({**sample(0, 1, SMALL), **change})
    client.add(sample(0, 1, SMALL))
    client.close(timeout=10)
    assert_exactly(intake.finish()[0], 2)


def test_a_sample_is_copied_before_send_returns(transport: Any, connect: Any) -> None:
    server = transport.open(FRAME, batch_size=64)
    client = connect(server, FRAME)
    reused = sample(0, 0, FRAME)
    for step in range(64):
        for name, leaf in sample(0, step, FRAME).items():
            reused[name] = leaf if name != "words" else reused["words"]
            reused["words"][...] = rows(0, step, 1, FRAME)["words"][0]
        client.add(reused)
    reused["words"][...] = 0
    client.flush(timeout=10)
    taken = server.stream.sample(timeout=10).data
    np.testing.assert_array_equal(taken["words"], rows(0, 0, 64, FRAME)["words"])


def test_batches_outlive_their_server_and_its_clients(transport: Any, connect: Any) -> None:
    server = transport.open(batch_size=4)
    client = connect(server)
    client.extend(rows(0, 0, 4, SMALL))
    client.flush(timeout=10)
    taken = server.stream.sample(timeout=10).data
    client.close(timeout=10)
    server.close()
    del server, client
    np.testing.assert_array_equal(taken["words"], rows(0, 0, 4, SMALL)["words"])


def test_a_batch_that_is_larger_than_window_and_ring_goes_through(
    transport: Any, connect: Any
) -> None:
    server, intake = transport.open_and_take(batch_size=4, capacity=8)
    client = connect(server, window_bytes=1 << 12)
    client.extend(rows(0, 0, 20_000, SMALL), timeout=30)
    client.close(timeout=10)
    assert_exactly(intake.finish()[0], 20_000)


def test_what_is_in_the_numbers(transport: Any, connect: Any) -> None:
    server, intake = transport.open_and_take()
    client = connect(server)
    client.extend(rows(0, 0, 1_000, SMALL))
    client.flush(timeout=10)
    stats = client.stats()
    assert stats.samples_sent == stats.samples_acked == 1_000
    assert stats.pending == stats.reconnects == 0
    assert all(isinstance(value, int | float) for value in server.metrics().values())
    # Over shared memory the server knows what the client reports, a moment later.
    until(lambda: [one["samples"] for one in server.connections()] == [1_000])
    client.close(timeout=10)
    assert_exactly(intake.finish()[0], 1_000)
    assert example(SMALL).keys() == {"producer", "step", "words"}
