"""Why a pipeline is stuck, in words: each reason is brought about and read over a connection."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from echoic import Server, Stream, Table, connect, limiters
from echoic.views.history import History
from echoic.views.problems import Problem, find_problems
from echoic.views.reading import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic import Connection

EXAMPLE = {"obs": np.zeros(4, np.float32)}


def wait_for(watch: Connection, found: Callable[[list[Problem]], bool]) -> list[Problem]:
    """Look until the problems are those that are waited for."""
    history = History()
    until = time.monotonic() + 30
    while True:
        history.add(read(next(iter(watch.server_stats().values()))))
        problems = find_problems(history)
        if found(problems):
            return problems
        assert time.monotonic() < until, problems
        # Some seconds are to fit into what is remembered.
        time.sleep(0.02)


def the_one(watch: Connection, reason: str, level: str = "stuck") -> Problem:
    def found(problems: list[Problem]) -> bool:
        return any((one.reason, one.level) == (reason, level) for one in problems)

    problems = wait_for(watch, found)
    assert [problem.reason for problem in problems] == [reason]
    return problems[0]


def in_background(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_a_learner_that_waits_for_the_first_items_is_told_how_many_are_missing() -> None:
    table = Table("replay", EXAMPLE, capacity=100, limiter=limiters.MinSize(10))
    with Server(table, listen="tcp://127.0.0.1:0") as server:
        table.add(EXAMPLE)
        client = connect(server.address)
        learner = in_background(lambda: client.table("replay").sample(4))
        with connect(server.address) as watch:
            problem = the_one(watch, "MIN_SIZE")
            assert problem.subject == "table 'replay'"
            assert "1 sample call waits" in problem.text
            assert "has 1 items, its limiter wants 10" in problem.text
            assert "wait for workers" in problem.advice
            for _ in range(9):
                table.add(EXAMPLE)
            learner.join(30)
            assert wait_for(watch, lambda problems: not problems) == []
        client.close()


@pytest.mark.parametrize("slow", ["insert", "sample"])
def test_a_ratio_that_is_not_kept_names_the_slow_side(slow: str) -> None:
    limiter = limiters.SampleToInsertRatio(2.0, 5, error_buffer=10)
    table = Table("replay", EXAMPLE, capacity=1000, limiter=limiter)
    with Server(table, listen="tcp://127.0.0.1:0") as server:
        for _ in range(5):
            table.add(EXAMPLE)

        def hurry() -> None:
            # Until the table is closed.
            try:
                while True:
                    if slow == "sample":
                        table.add(EXAMPLE)
                    else:
                        table.sample(1)
            except Exception:  # the end of the test
                return

        fast = in_background(hurry)
        with connect(server.address) as watch:
            problem = the_one(watch, "RATIO")
        who = "1 insert call waits" if slow == "sample" else "1 sample call waits"
        assert problem.text.startswith(who)
        assert "the limiter holds the table to its ratio of 2" in problem.text
        assert f"{slow}s are the slow side" in problem.advice
    fast.join(30)


def test_a_ratio_that_only_slows_a_side_down_is_not_called_stuck() -> None:
    limiter = limiters.SampleToInsertRatio(1.0, 1, error_buffer=2)
    table = Table("replay", EXAMPLE, capacity=1000, limiter=limiter)
    over = threading.Event()

    def insert_now_and_then() -> None:
        while not over.wait(0.01):
            table.add(EXAMPLE)

    def sample_all_the_time() -> None:
        while not over.is_set():
            table.sample(1)

    with Server(table, listen="tcp://127.0.0.1:0") as server:
        threads = [in_background(insert_now_and_then), in_background(sample_all_the_time)]
        with connect(server.address) as watch:
            history = History()
            until = time.monotonic() + 1
            while time.monotonic() < until:
                history.add(read(next(iter(watch.server_stats().values()))))
                levels = {problem.level for problem in find_problems(history)}
                # Between two looks, a busy machine may well let nobody insert.
                if history.readings[-1].age - history.readings[0].age > 0.5:
                    assert levels <= {"slow"}
                time.sleep(0.02)
            problem = the_one(watch, "RATIO", "slow")
        assert "inserts are the slow side" in problem.advice
        over.set()
        for _ in range(3):
            table.add(EXAMPLE, timeout=0.1)
        for thread in threads:
            thread.join(30)


def test_a_batch_that_waits_for_more_than_one_item_is_told() -> None:
    # One more could be sampled, and one could be inserted; the learner wants 13 at once.
    limiter = limiters.SampleToInsertRatio(1.0, 1, error_buffer=8)
    table = Table("replay", EXAMPLE, capacity=1000, limiter=limiter)
    queue = Table.queue("messages", EXAMPLE, capacity=10)
    with Server(table, queue, listen="tcp://127.0.0.1:0") as server:
        for _ in range(4):
            table.add(EXAMPLE)
        queue.add(EXAMPLE)
        client = connect(server.address)
        learners = [
            in_background(lambda: table.sample(13)),
            in_background(lambda: client.table("messages").sample(4)),
        ]
        with connect(server.address) as watch:
            problems = wait_for(watch, lambda problems: len(problems) == 2)
        assert {problem.subject for problem in problems} == {"table 'replay'", "table 'messages'"}
        assert all("1 sample call waits" in problem.text for problem in problems)
        for _ in range(4):
            table.add(EXAMPLE, timeout=10)
            queue.add(EXAMPLE)
        for learner in learners:
            learner.join(30)
        client.close()


def test_a_learner_that_holds_all_buffers_and_wants_another_is_told() -> None:
    stream = Stream(EXAMPLE, batch_size=2, capacity=4)
    with Server(stream, listen="tcp://127.0.0.1:0") as server:
        stream.extend({"obs": np.zeros((4, 4), np.float32)})
        held = [stream.sample().data["obs"] for _ in range(2)]
        learner = in_background(lambda: stream.sample(timeout=60))
        with connect(server.address) as watch:
            problem = the_one(watch, "LEASED")
        assert "the learner holds all 2 buffers, and waits for another batch" in problem.text
        held.clear()
        stream.extend({"obs": np.zeros((2, 4), np.float32)})
        learner.join(30)


def test_waits_of_others_do_not_thin_out_those_of_a_worker() -> None:
    stream = Stream(EXAMPLE, batch_size=2, capacity=4)
    with Server(stream, listen="tcp://127.0.0.1:0") as server:
        address = server.address
        worker = connect(address).stream(EXAMPLE)
        in_background(lambda: worker.extend({"obs": np.zeros((64, 4), np.float32)}))
        others = [connect(address) for _ in range(3)]
        with connect(address) as watch:
            wait_for(watch, lambda problems: any(one.level == "stuck" for one in problems))
            history = History()
            history.add(read(next(iter(watch.server_stats().values()))))
            time.sleep(0.2)
            history.add(read(next(iter(watch.server_stats().values()))))
        assert history.last
        assert history.last.stream
        assert history.rates(history.last.stream)["blocked"] > 0.9
        for _ in range(32):
            stream.sample(timeout=30)
        worker.close()
        for other in others:
            other.close()


def test_a_paused_table_says_so_even_when_nobody_waits_yet() -> None:
    table = Table("replay", EXAMPLE, capacity=100)
    with Server(table, listen="tcp://127.0.0.1:0") as server:
        table.add(EXAMPLE)
        table.pause()
        with connect(server.address) as watch:
            problems = wait_for(watch, bool)
        assert {problem.reason for problem in problems} == {"PAUSED"}
        assert "resume()" in problems[0].advice


def test_a_full_queue_waits_for_those_who_sample() -> None:
    table = Table.queue("messages", EXAMPLE, capacity=2)
    with Server(table, listen="tcp://127.0.0.1:0") as server:
        producer = in_background(lambda: [table.add(EXAMPLE) for _ in range(3)])
        with connect(server.address) as watch:
            problem = wait_for(watch, bool)[0]
        assert "1 insert call waits" in problem.text
        table.sample(1)
        producer.join(30)


def test_a_ring_that_nobody_empties_is_stuck() -> None:
    stream = Stream(EXAMPLE, batch_size=2, capacity=4)
    with Server(stream, listen="tcp://127.0.0.1:0") as server:
        worker = connect(server.address).stream(EXAMPLE)
        in_background(lambda: worker.extend({"obs": np.zeros((64, 4), np.float32)}))
        with connect(server.address) as watch:
            problem = the_one(watch, "CAPACITY")
        assert problem.subject == "the stream"
        assert (
            "1 push waits: the ring is full, 2 batches are ready, and no batch is taken"
            in problem.text
        )
        assert "the learner is the slow side" in problem.advice
        # Wherever the producer is, its wait is one of the stream.
        info = stream.stats()
        assert info.blocked_pushes == 1
        assert info.blocked_time > 0
        for _ in range(32):
            stream.sample(timeout=30)
        worker.close()


def test_batches_that_are_held_are_told_apart_from_a_slow_learner() -> None:
    stream = Stream(EXAMPLE, batch_size=2, capacity=4)
    with Server(stream, listen="tcp://127.0.0.1:0") as server:
        worker = connect(server.address).stream(EXAMPLE)
        in_background(lambda: worker.extend({"obs": np.zeros((8, 4), np.float32)}))
        held = [stream.sample(timeout=30).data["obs"] for _ in range(2)]
        with connect(server.address) as watch:
            problem = the_one(watch, "LEASED")
        assert "all 2 buffers are held" in problem.text
        assert "drop the arrays of old batches" in problem.advice
        held.clear()
        for _ in range(2):
            stream.sample(timeout=30)
        worker.close()


def test_a_learner_without_workers_is_told_to_look_for_them() -> None:
    stream = Stream(EXAMPLE, batch_size=2)
    with Server(stream, listen="tcp://127.0.0.1:0") as server:
        with connect(server.address) as watch:
            learner = in_background(lambda: stream.sample(timeout=60))
            problem = the_one(watch, "EMPTY")
        assert "a batch takes 2" in problem.text
        assert "no sample has come yet" in problem.advice
        stream.extend({"obs": np.zeros((2, 4), np.float32)})
        learner.join(30)


def test_refused_connections_are_noted_with_the_reason() -> None:
    with Server(
        Stream(EXAMPLE, batch_size=2), listen="tcp://127.0.0.1:0", token=b"right"
    ) as server:
        for _ in range(2):
            with pytest.raises(Exception, match="token"):
                connect(server.address, token=b"wrong").stream(EXAMPLE)
        with connect(server.address, token=b"right") as watch:
            problem = the_one(watch, "AUTH", "note")
        assert "2 connections were refused" in problem.text
        assert "token" in problem.advice


def test_rates_are_those_of_the_last_seconds_and_forget_an_earlier_server() -> None:
    table = Table("replay", EXAMPLE, capacity=100)
    with Server(table, listen="tcp://127.0.0.1:0") as server:
        history = History()
        with connect(server.address) as watch:
            history.add(read(next(iter(watch.server_stats().values()))))
            for _ in range(50):
                table.add(EXAMPLE)
            history.add(read(next(iter(watch.server_stats().values()))))

        first, last = history.readings
        rate = pytest.approx(50 / (last.age - first.age))
        assert history.rates(last.tables[0])["inserts"] == rate
        assert history.series(last.tables[0], "inserts") == [rate]
        # Another incarnation is another server, however old it is.
        other = replace(first, incarnation=first.incarnation ^ 1, age=last.age + 1)
        history.add(other)
        assert history.readings == (other,)
        assert history.series(last.tables[0], "inserts") == []


def test_what_a_terminal_would_obey_is_written_out() -> None:
    name = "\x1b]0;owned\x07"
    with Server(Table(name, EXAMPLE, capacity=1), listen="tcp://127.0.0.1:0") as server:
        reading = read(server.stats())
    (table,) = reading.tables
    assert table.name == "\\x1b]0;owned\\x07"
    assert table.capacity == 1
