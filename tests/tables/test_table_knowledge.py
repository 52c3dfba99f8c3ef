"""What a table knows of itself, in this process and in others: metadata, calls, episodes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import Table, patterns
from polling import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEP = {"obs": np.zeros(3, np.float32)}


def test_metadata_is_told_to_clients_byte_for_byte(
    serve: Callable[..., echoic.Connection],
) -> None:
    every_byte = bytes(range(256)) * 256
    client = serve(
        Table("none", STEP, capacity=5),
        Table("some", capacity=5, metadata=b"\x00\xff text"),
        Table.queue("most", STEP, capacity=5, metadata=every_byte),
        Table.stack("stack", STEP, capacity=5, metadata=b"stack"),
    )
    told = {name: client.table(name).metadata for name in ("none", "some", "most", "stack")}
    assert told == {"none": b"", "some": b"\x00\xff text", "most": every_byte, "stack": b"stack"}


def test_metadata_that_is_too_long_or_no_bytes_is_refused() -> None:
    too_long: Any = bytes(65_537)
    with pytest.raises(ValueError, match=r"metadata has at most 65536 bytes, got 65537"):
        Table("replay", STEP, capacity=5, metadata=too_long)
    text: Any = "text"
    with pytest.raises(TypeError, match="metadata"):
        Table("replay", STEP, capacity=5, metadata=text)


def test_metadata_of_a_table_on_several_servers_is_that_of_the_first() -> None:
    tables = [Table("replay", STEP, capacity=5, metadata=name) for name in (b"first", b"second")]
    servers = [echoic.Server(table, listen="tcp://127.0.0.1:0") for table in tables]
    for server in servers:
        server.start()
    try:
        with echoic.connect([server.address for server in servers]) as client:
            assert client.table("replay").metadata == b"first"
    finally:
        for server in servers:
            server.close()


def test_a_checkpoint_has_no_metadata(tmp_path: Path) -> None:
    def server(metadata: bytes) -> echoic.Server:
        table = Table("replay", STEP, capacity=5, seed=1, metadata=metadata)
        return echoic.Server(table, checkpointer=echoic.Checkpointer(tmp_path))

    with server(b"then") as first, echoic.connect(first) as client:
        client.table("replay").add({"obs": np.ones(3, np.float32)})
        client.checkpoint()
    with server(b"now") as second, echoic.connect(second) as client:
        assert len(client.table("replay")) == 1
        assert client.table("replay").metadata == b"now"


def calls(table: Any) -> dict[str, tuple[int, int, int]]:
    stats = table.stats()
    return {
        "add": (stats.inserts, stats.add_calls_waiting, stats.add_calls_limited),
        "sample": (stats.samples, stats.sample_calls_waiting, stats.sample_calls_limited),
    }


def test_waits_are_counted_wherever_they_are_made(
    serve: Callable[..., echoic.Connection],
) -> None:
    table = serve(Table.queue("queue", STEP, capacity=2)).table("queue")
    step = {"obs": np.ones(3, np.float32)}
    table.add(step)
    # Elsewhere a sample may come there before an insert that was made before it.
    until(lambda: calls(table)["add"] == (1, 0, 0))
    table.sample(1)
    assert calls(table) == {"add": (1, 0, 0), "sample": (1, 0, 0)}
    assert table.stats().sample_wait_seconds == table.stats().add_wait_seconds == 0.0

    with ThreadPoolExecutor() as pool:
        samples = [pool.submit(table.sample, 1) for _ in range(2)]
        until(lambda: calls(table)["sample"] == (1, 2, 0))
        table.add(step)
        table.add(step)
        assert sum(len(sample.result()) for sample in samples) == 2
        until(lambda: calls(table) == {"add": (3, 0, 0), "sample": (3, 0, 2)})
        assert table.stats().sample_wait_seconds > 0

        # The second of them goes on by itself where the server is elsewhere, and is counted there.
        inserts = [pool.submit(table.add, step) for _ in range(3)]
        until(lambda: calls(table)["add"] == (5, 1, 0))
        table.sample(1)
        until(lambda: calls(table)["add"] == (6, 0, 1))
        assert table.stats().add_wait_seconds > 0
        assert [insert.result() for insert in inserts] == [None] * 3
    table.clear()
    assert calls(table) == {"add": (0, 0, 0), "sample": (0, 0, 0)}
    assert table.stats().sample_wait_seconds == table.stats().add_wait_seconds == 0.0


def test_a_sample_that_times_out_had_to_wait(serve: Callable[..., echoic.Connection]) -> None:
    table = serve(Table.queue("queue", STEP, capacity=2)).table("queue")
    with pytest.raises(echoic.errors.WaitTimeoutError):
        table.sample(1, timeout=0.02)
    until(lambda: calls(table)["sample"] == (0, 0, 1))
    with pytest.raises(echoic.errors.WaitTimeoutError):
        table.sample(1, timeout=0)
    assert calls(table)["sample"] == (0, 0, 1)


def test_each_item_is_a_unique_sample_once(serve: Callable[..., echoic.Connection]) -> None:
    table = serve(Table("replay", STEP, sampler=echoic.selectors.Fifo(), capacity=3, seed=1)).table(
        "replay"
    )
    for _ in range(3):
        table.add({"obs": np.ones(3, np.float32)})
        table.sample(4)
    assert table.stats().unique_samples == 1
    table.remove(table.sample(1).keys)
    assert table.stats().unique_samples == 1
    table.sample(1)
    assert table.stats().unique_samples == 2
    table.clear()
    assert table.stats().unique_samples == 0


def test_unique_samples_are_in_a_checkpoint(tmp_path: Path) -> None:
    def server() -> echoic.Server:
        table = Table("replay", STEP, sampler=echoic.selectors.Fifo(), capacity=5, seed=1)
        return echoic.Server(table, checkpointer=echoic.Checkpointer(tmp_path))

    with server() as first, echoic.connect(first) as client:
        table = client.table("replay")
        for _ in range(3):
            table.add({"obs": np.ones(3, np.float32)})
        table.remove(table.sample(1).keys)
        client.checkpoint()
    with server() as second, echoic.connect(second) as client:
        table = client.table("replay")
        assert (len(table), table.stats().unique_samples) == (2, 1)
        table.sample(2)
        assert table.stats().unique_samples == 2


def episodes(table: Any) -> tuple[int, int]:
    info = table.stats()
    return info.episodes, info.deleted_episodes


@pytest.mark.parametrize("encoding", ["none", "zstd"])
def test_an_episode_is_what_a_writer_appends_until_it_ends(
    serve: Callable[..., echoic.Connection], encoding: Any
) -> None:
    client = serve(Table("windows", capacity=4, seed=1))
    table = client.table("windows")
    with client.trajectory_writer(8, chunk_length=4, encoding=encoding) as writer:
        for last in (False, True):
            for step in range(3):
                writer.append({"obs": np.full(20, step), "reward": float(step)})
                writer.create_item("windows", 1.0, last=1)
            writer.flush()
            # The fifth and sixth item have pushed the first two out.
            assert episodes(table) == ((2, 0) if last else (1, 0))
            writer.end_episode()
        for _ in range(2):
            writer.append({"obs": np.zeros(20, np.int64), "reward": 0.0})
            writer.create_item("windows", 1.0, last=1)
        writer.flush()
    assert episodes(table) == (2, 1)
    with client.trajectory_writer() as other:
        other.append({"obs": np.zeros(20, np.int64), "reward": 0.0})
        other.create_item("windows", 1.0, last=1)
        other.flush()
    assert episodes(table) == (3, 1)
    table.clear()
    assert episodes(table) == (0, 0)


def test_an_item_over_the_end_of_an_episode_is_of_both(
    serve: Callable[..., echoic.Connection],
) -> None:
    client = serve(Table("pairs", capacity=4, seed=1))
    with client.trajectory_writer(4) as writer:
        writer.append(1.0)
        writer.end_episode(clear=False)
        writer.append(2.0)
        writer.create_item("pairs", 1.0, last=2)
        writer.flush()
    assert episodes(client.table("pairs")) == (2, 0)
    assert client.table("pairs").sample(1).data.tolist() == [[1.0, 2.0]]


def test_an_item_without_a_writer_is_an_episode(
    serve: Callable[..., echoic.Connection],
) -> None:
    client = serve(Table("free", capacity=4, seed=1), Table("rows", STEP, capacity=4, seed=1))
    for _ in range(5):
        client.table("free").add({"obs": np.ones(3, np.float32), "reward": 1.0})
        client.table("rows").add({"obs": np.ones(3, np.float32)})
    client.flush()
    assert episodes(client.table("free")) == (4, 1)
    assert episodes(client.table("rows")) == (0, 0)


def test_each_environment_has_episodes_of_its_own(
    serve: Callable[..., echoic.Connection],
) -> None:
    client = serve(Table("steps", capacity=100, seed=1))
    with client.vector_writer(3, 2) as writer:
        for step in range(4):
            writer.append_batch({"obs": np.full((3, 2), step)})
            writer.create_items("steps", 1.0, {"obs": writer.history["obs"][-1]})
            writer.end_episode(envs=[step % 3])
        writer.flush()
    # The first has ended two and begun no other, the others have ended one and begun another.
    assert episodes(client.table("steps")) == (6, 0)


def test_patterns_make_items_of_episodes(serve: Callable[..., echoic.Connection]) -> None:
    client = serve(Table("steps", capacity=100, seed=1))
    with client.structured_writer(
        [patterns.Config(patterns.column("obs")[-2:], table="steps")]
    ) as writer:
        for _ in range(3):
            for step in range(3):
                writer.append({"obs": step})
            writer.end_episode()
        writer.flush()
    table = client.table("steps")
    assert (len(table), episodes(table)) == (6, (3, 0))


def test_episodes_survive_a_restart(tmp_path: Path) -> None:
    def server() -> echoic.Server:
        return echoic.Server(
            Table("saved", capacity=3, seed=1),
            Table("told", capacity=3, seed=1, durability="async"),
            checkpointer=echoic.Checkpointer(tmp_path / "checkpoints"),
            journal=tmp_path / "journals",
        )

    with server() as first, echoic.connect(first) as client:
        with client.trajectory_writer() as writer:
            for step in range(5):
                writer.append({"obs": step})
                for name in ("saved", "told"):
                    writer.create_item(name, 1.0, last=1)
                if step == 3:
                    writer.flush()
                    client.checkpoint()
                if step != 0:
                    writer.end_episode()
            writer.flush()
        assert [episodes(client.table(name)) for name in ("saved", "told")] == [(3, 1), (3, 1)]
    with server() as second, echoic.connect(second) as client:
        assert episodes(client.table("saved")) == (3, 0), "as in the checkpoint"
        assert episodes(client.table("told")) == (3, 1), "as in the journal"
