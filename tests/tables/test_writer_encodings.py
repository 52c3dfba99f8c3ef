"""Chunks that are kept smaller: what comes out is what went in, over every transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import echoic
import numpy as np
import pytest
from echoic import Checkpointer, Server, Table, patterns
from echoic.trajectory_writer import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)

ENCODINGS = get_args(Encoding)
STEPS = 12


def leaves() -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Values of a column at `STEPS` steps: constant, alike or noise, NaNs with them."""
    dtypes = st.sampled_from(["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "S3"])
    shapes = hnp.array_shapes(min_dims=0, max_dims=2, max_side=12)

    def values(dtype: str, shape: tuple[int, ...], kind: int, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        size = STEPS * int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = rng.integers(0, 256, size, np.uint8)
        if kind == 0:
            raw[:] = seed % 256
        elif kind == 1:
            raw = np.repeat(raw[: -(-size // STEPS)], STEPS)[:size]
        if dtype == "?":
            raw &= 1
        return np.frombuffer(raw.tobytes(), dtype).reshape(STEPS, *shape)

    return st.builds(values, dtypes, shapes, st.integers(0, 2), st.integers(0, 2**32))


@given(
    values=leaves(),
    encoding=st.sampled_from(ENCODINGS),
    chunk=st.sampled_from([None, 1, 5, STEPS]),
    start=st.integers(-STEPS, -1),
    stride=st.sampled_from([1, 2, -1]),
)
@settings(max_examples=150, deadline=None)
def test_a_slice_has_the_very_bytes_that_were_appended(
    values: Any, encoding: Encoding, chunk: int | None, start: int, stride: int
) -> None:
    table = Table.queue("t", capacity=10)
    with Server(table) as server:
        writer = echoic.connect(server).trajectory_writer(
            STEPS, chunk_length=chunk, encoding=encoding
        )
        with writer:
            for step in range(STEPS):
                writer.append({"x": values[step, ...]})
            history = writer.history["x"]
            writer.create_item("t", 1.0, {"all": history[:], "some": history[start::stride]})
            assert history[:].numpy().tobytes() == values.tobytes()
        data = table.sample(1).data
    assert data["all"][0].tobytes() == values.tobytes()
    assert data["some"][0].tobytes() == values[start::stride].tobytes()
    assert data["all"].dtype == values.dtype


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_writer_and_transport_gives_back_what_was_appended(
    serve: Callable[..., echoic.Connection], encoding: Encoding
) -> None:
    client = serve(*(Table.queue(name, capacity=100) for name in ("free", "structured", "vector")))
    rng = np.random.default_rng(1)
    frames = np.cumsum(rng.integers(0, 2, (20, 30, 30), np.uint8), axis=0, dtype=np.uint8)
    noise = rng.standard_normal((20, 100))
    pattern = {"frame": patterns.column("frame")[-2:], "noise": patterns.column("noise")[-1]}
    with (
        client.trajectory_writer(5, encoding=encoding) as free,
        client.structured_writer(
            [patterns.Config(pattern, table="structured")], encoding=encoding
        ) as by,
        client.vector_writer(2, 5, encoding=encoding) as many,
    ):
        for step, (frame, number) in enumerate(zip(frames, noise, strict=True)):
            tree = {"frame": frame, "noise": number}
            free.append(tree)
            by.append(tree)
            many.append_batch({"frame": frame[None].repeat(2, 0), "noise": np.array([number] * 2)})
            if step > 0:
                history = free.history
                item = {"frame": history["frame"][-2:], "noise": history["noise"][-1]}
                free.create_item("free", 1.0, item)
                many.create_items("vector", 1.0, pattern)
    client.flush()
    pairs = np.stack([frames[:-1], frames[1:]], axis=1)
    for name, copies in (("free", 1), ("structured", 1), ("vector", 2)):
        data = client.table(name).sample(19 * copies).data
        order = np.argsort(data["noise"][:, 0], kind="stable")
        expected = np.argsort(np.repeat(noise[1:, 0], copies), kind="stable")
        np.testing.assert_array_equal(data["frame"][order], pairs.repeat(copies, 0)[expected])
        np.testing.assert_array_equal(data["noise"][order], noise[1:].repeat(copies, 0)[expected])


def chunk_bytes(tmp_path: Path, name: str, encoding: Encoding, frames: Any) -> int:
    """Return how many bytes the chunks of a checkpoint have, which keeps them as the table does."""
    root = tmp_path / name
    server = Server(Table("t", capacity=100), checkpointer=Checkpointer(root))
    with server:
        with echoic.connect(server).trajectory_writer(len(frames), chunk_length=10) as writer:
            writer.configure("frame", encoding=encoding)
            for frame in frames:
                writer.append({"frame": frame})
            writer.create_item("t", 1.0, writer.history["frame"][:])
        server.checkpoint()
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())


@pytest.mark.parametrize("encoding", ENCODINGS[1:])
def test_frames_that_hardly_change_shrink_and_noise_does_not(
    tmp_path: Path, encoding: Encoding
) -> None:
    rng = np.random.default_rng(2)
    noise = rng.integers(0, 256, (50, 40, 40), np.uint8)
    still = np.broadcast_to(np.arange(40, dtype=np.uint8), (50, 40, 40))
    plain = chunk_bytes(tmp_path, "plain", "none", still)
    assert plain > still.nbytes
    assert chunk_bytes(tmp_path, "still", encoding, still) < plain / 8
    assert abs(chunk_bytes(tmp_path, "noise", encoding, noise) - plain) < 200


def test_an_encoding_saves_bytes_on_the_way_to_a_server() -> None:
    sent = {}
    for encoding in ("none", "auto"):
        server = Server(Table("t", capacity=100), listen="tcp://127.0.0.1:0").start()
        with server, echoic.connect(server.address) as client:
            with client.trajectory_writer(100, encoding=encoding) as writer:
                for step in range(100):
                    writer.append(np.full((84, 84), step, np.uint8))
                writer.create_item("t", 1.0, writer.history[:])
            client.flush()
            sent[encoding] = client.stats().bytes_sent
            values = client.table("t").sample(1).data
        assert (values[0] == np.arange(100)[:, None, None]).all()
    assert sent["none"] > 100 * 84 * 84
    assert sent["auto"] < sent["none"] / 20


def test_a_sample_outlives_its_encoded_chunks() -> None:
    table = Table.queue("t", capacity=10)
    with Server(table) as server:
        with echoic.connect(server).trajectory_writer(10, encoding="zstd") as writer:
            writer.append_batch(np.arange(1000).reshape(10, 100))
            writer.create_item("t", 1.0, writer.history[3:])
        data = table.sample(1).data
    np.testing.assert_array_equal(data[0], np.arange(1000).reshape(10, 100)[3:])


def test_a_checkpoint_restores_encoded_chunks(tmp_path: Path) -> None:
    values = np.arange(5000).reshape(10, 500)

    def serve() -> Server:
        return Server(Table("t", capacity=10), checkpointer=Checkpointer(tmp_path))

    with serve() as server:
        with echoic.connect(server).trajectory_writer(10, encoding="auto") as writer:
            writer.append_batch(values)
            writer.create_item("t", 1.0, writer.history[:])
        server.checkpoint()
    with serve() as server:
        data = echoic.connect(server).table("t").sample(1).data
    np.testing.assert_array_equal(data[0], values)


@pytest.mark.parametrize("encoding", ["gzip", "LZ4", "", "raw"])
def test_an_unknown_encoding_is_named_with_those_that_are_known(encoding: Any) -> None:
    with Server(Table("t", capacity=10)) as server:
        client = echoic.connect(server)
        config = patterns.Config(patterns.column("x")[-1], table="t")
        writer = client.trajectory_writer()
        for call in (
            lambda: client.trajectory_writer(encoding=encoding),
            lambda: client.vector_writer(2, encoding=encoding),
            lambda: client.structured_writer([config], encoding=encoding),
            lambda: writer.configure("x", encoding=encoding),
        ):
            with pytest.raises(ValueError, match=r"no encoding .*delta\+zstd"):
                call()


def test_a_column_keeps_the_writers_other_settings() -> None:
    with Server(Table("t", capacity=10)) as server:
        writer = echoic.connect(server).trajectory_writer(7, chunk_length=4)
        writer.configure("encoded", encoding="lz4")
        writer.configure("short", num_keep_alive_refs=2)
        for step in range(20):
            writer.append(dict.fromkeys(("encoded", "short", "other"), step))
        history = writer.history
        assert [len(history[name]) for name in ("encoded", "short", "other")] == [7, 2, 7]
        # Steps 16 to 19 are a chunk of all columns, so there is nothing to wait for.
        for name in ("encoded", "short", "other"):
            writer.create_item("t", 1.0, history[name][-2:])
            assert writer.pending == 0
