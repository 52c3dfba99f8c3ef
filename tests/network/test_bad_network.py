"""A network that cuts, delays, splits, holds and re-orders: everything still arrives once."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from content import FRAME, SMALL, assert_exactly
from polling import until
from tiers import size

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(55)


def anywhere(seed: int, most: int) -> Iterator[float]:
    """After how many bytes to end connections: in the handshake, in the samples, the last never."""
    random_number = random.Random(seed)
    for _ in range(25):
        yield random_number.randrange(random_number.choice([500, most]))


@pytest.mark.parametrize("abruptly", [True, False], ids=["reset", "ended"])
@pytest.mark.parametrize("load", [(SMALL, 100_000), (FRAME, 600)])
def test_cuts_at_any_byte(
    tcp: Any, make_proxy: Any, processes: Any, load: tuple[int, int], abruptly: bool
) -> None:
    words, count = load
    server, intake = tcp.open_and_take(words)
    proxy = make_proxy(server)
    proxy.limits = anywhere(words + abruptly, most=200_000)
    proxy.abruptly = abruptly
    sender = processes.start("send", proxy.address, words=words, count=count, rows=20, report=20)
    assert sender.done() == count
    assert len(proxy.links) > 10
    assert_exactly(intake.finish()[0], count)


def test_cuts_of_all_connections_again_and_again(tcp: Any, make_proxy: Any, processes: Any) -> None:
    random_number = random.Random(0)
    server, intake = tcp.open_and_take()
    proxy = make_proxy(server)
    senders = [
        processes.start("send", proxy.address, producer=number, rows=number, report=10)
        for number in range(4)
    ]
    for sender in senders:
        sender.wait_for("ready")
    for turn in range(size(6, 20)):
        before = [sender.acked for sender in senders]
        time.sleep(random_number.uniform(0, 0.03))
        proxy.cut(abruptly=turn % 2 == 0)
        until(
            lambda before=before: all(
                sender.acked > then for sender, then in zip(senders, before, strict=True)
            )
        )
    sent = [sender.stop() for sender in senders]
    steps = intake.finish()
    for producer, count in enumerate(sent):
        assert_exactly(steps.pop(producer), count)
    assert not steps


@pytest.mark.parametrize(
    "trouble",
    [("delay", 0.03, 3_000), ("piece", 7, 3_000), ("rate", 300_000.0, 20_000)],
)
def test_a_slow_or_splitting_network(
    tcp: Any, make_proxy: Any, processes: Any, trouble: tuple[str, float, int]
) -> None:
    setting, value, count = trouble
    server, intake = tcp.open_and_take()
    proxy = make_proxy(server)
    setattr(proxy, setting, value)
    sender = processes.start("send", proxy.address, count=count, rows=10)
    assert sender.done() == count
    assert_exactly(intake.finish()[0], count)


def test_silence_for_longer_than_heartbeats_allow(
    tcp: Any, make_proxy: Any, processes: Any
) -> None:
    server, intake = tcp.open_and_take(heartbeat=0.2)
    proxy = make_proxy(server)
    sender = processes.start("send", proxy.address, rows=10, report=10)
    until(lambda: sender.acked > 0)
    for _ in range(2):
        links = len(proxy.links)
        proxy.stall()
        # The client gives the silent connection up and tries another.
        until(lambda links=links: len(proxy.links) > links)
        before = sender.acked
        proxy.resume()
        until(lambda before=before: sender.acked > before)
    count = sender.stop()
    assert_exactly(intake.finish()[0], count)


def test_bytes_of_a_lost_connection_that_arrive_after_the_new_one(
    tcp: Any, make_proxy: Any, processes: Any
) -> None:
    server, intake = tcp.open_and_take()
    proxy = make_proxy(server)
    sender = processes.start("send", proxy.address, rows=10, report=1)
    until(lambda: sender.acked > 0)
    for _ in range(5):
        links = len(proxy.links)
        old = proxy.links[links - 1]
        old.hold()
        # It sends on, until its credit or the buffers are used up.
        time.sleep(0.05)
        before = sender.acked
        old.sever_client()
        # Released at several moments: before, while and after the client has come back.
        if links % 2:
            until(lambda before=before: sender.acked > before)
        old.release()
        until(lambda before=before: sender.acked > before)
        # What was acknowledged on the old connection may be reported late.
        until(lambda links=links: len(proxy.links) > links)
    count = sender.stop()
    assert len(proxy.links) > 5
    assert_exactly(intake.finish()[0], count)


def test_connections_that_arrive_in_another_order(
    tcp: Any, make_proxy: Any, processes: Any
) -> None:
    server, intake = tcp.open_and_take()
    proxy = make_proxy(server)
    proxy.together = 3
    senders = [
        processes.start("send", proxy.address, producer=number, rows=10, report=10)
        for number in range(3)
    ]
    for round_number in range(1, size(4, 7)):
        # A sender's report of its last connection may come late: only what is acknowledged once
        # all three are connected again says that the new connections work.
        until(lambda links=3 * round_number: len(proxy.links) == links)
        before = [sender.acked for sender in senders]
        until(
            lambda before=before: all(
                sender.acked > then for sender, then in zip(senders, before, strict=True)
            )
        )
        proxy.cut()
    proxy.together = 1
    sent = [sender.stop() for sender in senders]
    steps = intake.finish()
    for producer, count in enumerate(sent):
        assert_exactly(steps.pop(producer), count)
    assert not steps


def test_a_flush_waits_for_updates_that_other_threads_wait_for(
    make_proxy: Any, background: Any
) -> None:
    table = echoic.Table("t", np.int64(0), capacity=10)
    table.add(1)
    keys = table.items().keys
    with echoic.Server(table, listen="tcp://127.0.0.1:0") as server:
        proxy = make_proxy(server)
        with echoic.connect(proxy.address) as client:
            remote = client.table("t")
            proxy.stall()
            remote.update_priorities(keys, np.full(1, 7.0), wait=False)
            others = [background.start_and_let_block(client.flush) for _ in range(2)]
            with pytest.raises(echoic.errors.WaitTimeoutError):
                client.flush(timeout=0.1)
            proxy.resume()
            for other in others:
                other()
            client.flush()
            assert table.items().info.priorities.tolist() == [7.0]
