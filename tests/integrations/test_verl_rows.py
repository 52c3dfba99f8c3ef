"""How rows of TransferQueue are stored for verl, without either of them."""

from __future__ import annotations

import contextlib
import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic import connect
from echoic.errors import WaitTimeoutError
from echoic.integrations.verl.records import Record, decode, encode
from echoic.integrations.verl.rows import Rows, merge, serve

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and one.is_nested:
        rows = zip(one.unbind(), other.unbind(), strict=True)
        return one.layout == other.layout and all(same(*row) for row in rows)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


VALUES = {
    "tokens": torch.arange(7),
    "bfloat16": torch.randn(3, 4).bfloat16(),
    "part": torch.arange(10).reshape(2, 5)[:, ::2],
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "jagged": torch.nested.as_nested_tensor(
        [torch.arange(3), torch.arange(5)], layout=torch.jagged
    ),
    "array": np.arange(6.0).reshape(2, 3),
    "no array": np.empty((0, 4), np.int8),
    "objects": np.array([{"a": 1}, "x", None], object),
    "texts": np.array(["ab", "c"]),
    "number": np.float32(0.5),
    "bytes": b"\x00\xff",
    "images": {"pixel_values": torch.ones(2, 3, dtype=torch.float16), 3: [(1, 2.5, None), True]},
    "large": 2**80,
}


def test_every_kind_of_value_comes_back_as_it_was() -> None:
    record = Record("train", "uid_0_0", VALUES, {"status": "finished"}, {"at": 5})
    data = encode(record, pad=True)
    found = decode(data)
    assert (found.partition, found.key, found.tags) == ("train", "uid_0_0", {"status": "finished"})
    assert found.extra == {"at": 5}
    images, expected = found.fields.pop("images"), VALUES["images"]
    assert same(images.pop("pixel_values"), expected["pixel_values"])
    assert images == {3: [(1, 2.5, None), True]}
    for name, value in found.fields.items():
        assert same(value, VALUES[name]), name
    assert decode(data, {"tokens"}).fields.keys() == {"tokens"}


def test_a_value_that_is_not_stored_is_named() -> None:
    record = Record("train", "k", {"when": {"a": [1, object()]}})
    with pytest.raises(
        TypeError, match=r"builtins.object at field 'when'\['a'\]\[1\] of key 'k' of"
    ):
        encode(record)
    record = Record("train", "k", {"video": np.empty(70_000_000, np.uint8)})
    with pytest.raises(ValueError, match=r"expected at most 67104768 bytes, got 7\d+ for key 'k'"):
        encode(record)


def header(**changes: Any) -> np.ndarray[Any, Any]:
    """Return a record whose header another program has written."""
    text = json.dumps({"p": "", "k": "", "t": None, "x": {}, "f": {}} | changes).encode()
    text += b" " * (-len(text) % 8)
    return np.frombuffer(len(text).to_bytes(8, "little") + text + bytes(64), np.uint8)


@pytest.mark.parametrize(
    "data",
    [
        np.zeros(3, np.uint8),
        np.full(64, 255, np.uint8),
        header(f={"x": {"t": ["float32", [2**40], 0, 64]}}),
        header(f={"x": {"t": ["load", [1], 0, 8]}}),
        header(f={"x": {"a": ["|O", [8], 0, 64]}}),
        header(f={"x": {"a": ["<f4", [-1, -16], 0, 64]}}),
        header(f={"x": {"b": [8, 65]}}),
        header(f={"x": {"b": [-8, 8]}}),
        header(f={"x": {"o": [[3], [1]]}}),
        header(f={"x": {"pickle": [0, 8]}}),
        header(f=[1]),
        header(f={"x": {"a": [",", [1], 0, 8]}}),
        header(f={"x": {"o": [[1]]}}),
        # Every value has bytes of its own, or a small record would take any amount of memory.
        header(f={"x": {"b": [0, 64]}, "y": {"b": [63, 1]}}),
    ],
    ids=range(14),
)
def test_bytes_that_are_no_record_are_refused(data: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|got"):
        decode(data)


def test_changed_bytes_are_a_record_or_refused() -> None:
    draw = random.Random(0)
    data = encode(Record("train", "uid_0_0", VALUES, {"status": "finished"}, {"at": 5}))
    size = 8 + int.from_bytes(data[:8].tobytes(), "little")
    for _ in range(3000):
        changed = data.copy()
        for _ in range(draw.randint(1, 3)):
            changed[draw.randrange(size)] = draw.choice(b'0123456789-[]{}",:etabdlnosu<>|? ')
        with contextlib.suppress(ValueError):
            decode(changed)


def test_rows_survive_their_server_and_marked_ones_can_come_back(tmp_path: Path) -> None:
    names = [("train", f"{i}") for i in range(40)]
    with serve(tmp_path, listen="tcp://127.0.0.1:0") as server, connect(server.address) as client:
        rows = Rows(client.table("rows"), client.flush)
        # Records of many lengths, and a second one for some rows.
        rows.put(
            Record(*name, {"ids": np.arange(i * 9), "rest": "x"}, {"status": "running"})
            for i, name in enumerate(names)
        )
        rows.put(Record(*name, {"ids": np.arange(3), "new": 1}) for name in names[:5])
        rows.put([Record(*names[0], {"rest": "y", "ids": np.arange(4)}, {"status": "finished"})])
        rows.replace([names[0]])
        rows.mark(names[10:20], 3)
        rows.mark(names[20:30], 4)
        rows.remove([names[39], ("train", "none")])
    with serve(tmp_path, listen="tcp://127.0.0.1:0") as server, connect(server.address) as client:
        rows = Rows(client.table("rows"), client.flush)
        found = rows.read([*names, ("val", "1")])
        assert set(found) == set(names[:39])
        assert {len(found[name].fields["ids"]) for name in names[1:5]} == {3}
        assert found[names[0]].fields.keys() == {"ids", "rest", "new"}
        assert found[names[0]].tags == {"status": "finished"}
        assert [len(found[n].fields["ids"]) for n in names[5:39]] == [9 * i for i in range(5, 39)]
        marks = {(record.partition, record.key): mark for _, mark, record in rows.items()}
        assert [marks[name] for name in names[8:32:2]] == [0, *[3] * 5, *[4] * 5, 0]
        # The first record of row 0 had nothing that the last lacks.
        assert len(rows.items()) == 39 + 4 + 1 + 0
        rows.mark(names[20:25], 0)
        rows.remove_marked(3)
        left = merge(record for _, _, record in rows.items())
        assert set(left) == set(names[:10]) | set(names[20:39])


def test_a_full_table_refuses_rows_and_loses_none(tmp_path: Path) -> None:
    with serve(tmp_path, capacity=3) as server, connect(server) as client:
        rows = Rows(client.table("rows"), timeout=0.05)
        rows.put(Record("train", f"{i}") for i in range(3))
        with pytest.raises(WaitTimeoutError):
            rows.put([Record("train", "3")])
        rows.remove([("train", "1")])
        rows.put([Record("train", "3")])
        assert sorted(record.key for _, _, record in rows.items()) == ["0", "2", "3"]
