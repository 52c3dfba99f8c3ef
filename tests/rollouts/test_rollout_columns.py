"""Columns whose values have a shape, and what columns are made of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic import Server, connect
from echoic.errors import RolloutError, SpecError
from echoic.integrations._answers import Answers
from echoic.integrations.tensordict import rows
from echoic.rollouts import History, Reservation, RolloutTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from echoic.rollouts import RolloutBatch

COLUMNS: dict[str, Any] = {
    # First, since the first column used to have the shape of all.
    "experts": ("uint8", (2, 3)),
    "tokens": "int32",
    "hidden": ("float16", 4),
    "mask": "uint8",
}
FORMS: list[dict[str, Any]] = [
    {},
    {"form": "padded"},
    {"form": "padded", "left": True, "width": 9},
    {"form": "packed", "width": 8},
]


def item(length: int, first: int) -> dict[str, np.ndarray]:
    """Return columns whose values tell their token and their place in it."""
    tokens = np.arange(first, first + length, dtype=np.int32)
    places = np.arange(6).reshape(2, 3)
    return {
        "experts": (10 * tokens[:, None, None] + places).astype(np.uint8),
        "tokens": tokens,
        "hidden": (tokens[:, None] + np.arange(4) / 4).astype(np.float16),
        "mask": (np.arange(length) > 0).astype(np.uint8),
    }


LENGTHS = [3, 5, 1]
ITEMS = [item(length, 1 + 7 * at) for at, length in enumerate(LENGTHS)]


def add(table: RolloutTable) -> None:
    """Add the items: one whole, one in two parts, and one by `add_items`."""
    reservation = table.reserve()
    reservation.add(ITEMS[0])
    reservation.extend(1, {name: values[:2] for name, values in ITEMS[1].items()})
    reservation.extend(1, {name: values[2:] for name, values in ITEMS[1].items()})
    reservation.finish(1)
    assert reservation.add_items([LENGTHS[2]], ITEMS[2]) == "complete"


def check(batch: RolloutBatch) -> None:
    """Compare a batch of any form with the items."""
    axes = 1 if batch.form == "flat" else 2
    assert batch.shape == batch["tokens"].shape
    assert len(batch.shape) == axes
    assert batch["experts"].shape == (*batch.shape, 2, 3)
    assert batch["hidden"].shape == (*batch.shape, 4)
    for got, expected in zip(batch, ITEMS, strict=True):
        for name, values in expected.items():
            np.testing.assert_array_equal(np.asarray(got[name]), values)
            assert str(values.dtype) in str(got[name].dtype)
    padding = ~np.asarray(batch.is_token)
    assert not np.asarray(batch["experts"])[padding].any()
    assert not np.asarray(batch["hidden"])[padding].any()


@pytest.fixture(params=["here", "unix", "shm"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RolloutTable]:
    """Make a table of this process, or of a server over a socket or shared memory."""
    own = RolloutTable("t", COLUMNS, group_size=3, batch_groups=1, max_tokens=64)
    if request.param == "here":
        with own:
            yield own
        return
    listen = {"unix": f"unix://{tmp_path}/socket", "shm": f"shm://echoic-columns-{os.getpid()}"}
    with (
        Server(own, listen=listen[request.param]).start() as server,
        connect(server.address) as connection,
    ):
        yield connection.rollouts("t")


def test_values_with_a_shape_go_through_every_form(table: RolloutTable) -> None:
    assert {name: np.dtype(dtype).shape for name, dtype in table.settings["columns"].items()} == {
        "experts": (2, 3),
        "tokens": (),
        "hidden": (4,),
        "mask": (),
    }
    for form in FORMS:
        add(table)
        check(table.sample(**form))


def test_a_restart_and_a_history_have_values_with_a_shape(tmp_path: Path) -> None:
    options: dict[str, Any] = {"group_size": 3, "batch_groups": 1, "max_tokens": 64}
    options |= {"directory": tmp_path, "on_expiry": "suspend"}
    with RolloutTable("t", COLUMNS, history=True, **options) as table:
        add(table)
        running = table.reserve()
        running.extend(0, {name: values[:2] for name, values in ITEMS[1].items()})
        settings = table.settings
    with pytest.raises(RolloutError, match=r"the schema is .*shape: \[2, 3\]"):
        RolloutTable("t", {**COLUMNS, "experts": ("uint8", (3, 2))}, **options)
    with RolloutTable(**settings, directory=tmp_path, history=True) as table:
        table.reservation(running).suspend()
        found = Reservation.resume(table).progress[0].columns
        np.testing.assert_array_equal(found["experts"], ITEMS[1]["experts"][:2])
        check(table.sample(form="padded"))
        table.checkpoint()
    history = History(tmp_path)
    (delivered,) = history.batches("packed", width=8)
    check(delivered.batch)
    assert history.settings == settings


def test_adapters_give_rows_of_values_with_a_shape(table: RolloutTable) -> None:
    for form in FORMS:
        add(table)
        batch = table.sample(**form)
        found = rows(batch)
        assert found["experts"].shape == (3, 5, 2, 3)
        answers = Answers(batch, "mask")
        prompts = answers.prompts(batch["hidden"], 0, np.float16)
        assert prompts.shape == (3, 1, 4)
        for at, expected in enumerate(ITEMS):
            np.testing.assert_array_equal(found["experts"][at, : LENGTHS[at]], expected["experts"])
            np.testing.assert_array_equal(prompts[at], expected["hidden"][:1])
        assert not found["experts"][0, 3:].any()


@pytest.mark.parametrize(
    ("columns", "fields", "error", "message"),
    [
        ({"x": "int33"}, {}, SpecError, r"column 'x': expected a dtype such as 'int32'.*'int33'"),
        ({"x": ("int8", (2, -1))}, {}, SpecError, r"column 'x'.*\(2, -1\)"),
        ({"x": ("int8", (2, 0))}, {}, RolloutError, r"each of at least 1, got \[2, 0\]"),
        ({"x": ("int8", (1 << 16, 1 << 16))}, {}, SpecError, "column 'x'"),
        ({"x": ("float32", 1 << 23)}, {}, RolloutError, "at most 16777216 bytes for a token"),
        ({"x": "int8"}, {"y": ("int8", 3)}, RolloutError, 'field "y": expected a number'),
    ],
)
def test_shapes_that_cannot_be_stored_are_refused(
    columns: dict[str, Any], fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        RolloutTable("t", columns, fields, batch_groups=1)
    with pytest.raises(RolloutError, match="a number or a bool for each token"):
        RolloutTable("t", {"x": ("int8", 2)}, mask="x", batch_groups=1)


class Exported:
    """An array that offers its memory by DLPack, and in no other way."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype = array, array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(
    "value",
    [
        [[1, 2], [3, 4], [5, 6]],
        [np.array([1, 2]), np.array([3, 4]), np.array([5, 6])],
        np.array([[1, 2], [3, 4], [5, 6]], np.int64),
        np.array([[1, 2], [3, 4], [5, 6]], ">i4"),
        np.array([[1, 3, 5], [2, 4, 6]], np.uint8).T,
        Exported(np.array([[1, 2], [3, 4], [5, 6]], np.int32)),
        Exported(np.array([[1, 2], [3, 4], [5, 6]], np.int64)),
    ],
)
def test_columns_take_what_has_the_same_values(value: Any) -> None:
    with RolloutTable("t", {"x": ("int32", 2)}, batch_groups=1) as table:
        adds: list[Callable[[Reservation], str]] = [
            lambda reservation: reservation.add({"x": value}),
            lambda reservation: reservation.add_items([3], {"x": value}),
            lambda reservation: reservation.add_items(None, {"x": [value]}),
        ]
        for add_one in adds:
            assert add_one(table.reserve()) == "complete"
            assert table.sample()["x"].tolist() == [[1, 2], [3, 4], [5, 6]]
        table.reserve().add({"x": []})
        assert table.sample()["x"].shape == (0, 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([[1, 2], [3, 1 << 31]]), r"fit int32, got 2147483648 at \[1, 1\]"),
        ([[1, 2], [3, -(1 << 40)]], r"fit int32, got -1099511627776 at \[1, 1\]"),
        (np.array([[1, 1 << 63]], np.uint64), r"fit int32, got 9223372036854775808 at \[0, 1\]"),
        (np.array([[1, 2]], np.float32), "expected dtype int32, got float32"),
        ([[1, 2.5]], "expected dtype int32, got float64"),
        (np.array([1, 2], np.int32), r"expected shape \(tokens, 2\), got \(2,\)"),
        (np.zeros((1, 2, 1), np.int32), r"expected shape \(tokens, 2\), got \(1, 2, 1\)"),
        ([[1, 2], [3]], "a list can't be read as an array"),
    ],
)
def test_values_that_do_not_fit_are_named(value: Any, message: str) -> None:
    with RolloutTable("t", {"x": ("int32", 2)}, batch_groups=1) as table:
        reservation = table.reserve()
        with pytest.raises(SpecError, match=rf"column 'x': .*{message}"):
            reservation.add({"x": value})
        assert reservation.add({"x": [[1, 2]]}) == "complete"
