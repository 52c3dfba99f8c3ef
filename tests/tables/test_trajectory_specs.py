"""Tables that say what trajectories look like: what they take, and what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import AnyLength, Checkpointer, Server, Table, patterns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)

SEQUENCE = {
    "obs": AnyLength(np.zeros(4, np.float32)),
    "reward": np.zeros(3),
    "start": np.int64(0),
}


def steps(count: int) -> dict[str, Any]:
    return {
        "obs": np.arange(count * 4, dtype=np.float32).reshape(count, 4),
        "reward": np.arange(float(count)),
        "start": np.arange(count),
    }


def test_items_of_the_spec_are_taken(serve: Callable[..., echoic.Connection]) -> None:
    client = serve(Table.queue("t", trajectories=SEQUENCE, capacity=10))
    with client.trajectory_writer(10) as writer:
        writer.append_batch(steps(10))
        history = writer.history
        for length in (1, 5):
            item = {
                "obs": history["obs"][-length:],
                "reward": history["reward"][-3:],
                "start": history["start"][0],
            }
            writer.create_item("t", 1.0, item)
    client.flush()
    data = client.table("t").sample(2).data
    assert [len(obs) for obs in data["obs"]] == [1, 5]
    assert data["reward"].tolist() == [[7.0, 8.0, 9.0]] * 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"obs": lambda history: history["wide"][-2:]},
            r"expected the leaf `obs: float32\[\?, 4\]`, got `obs: float32\[2, 5\]`",
        ),
        (
            {"obs": lambda history: history["obs"][-1]},
            r"got `obs: float32\[4\]`, which is one step without an axis of time",
        ),
        (
            {"reward": lambda history: history["reward"][-2:]},
            r"expected the leaf `reward: float64\[3\]`, got `reward: float64\[2\]`",
        ),
        (
            {"start": lambda history: history["reward"][-1]},
            r"expected the leaf `start: int64\[\]`, got `start: float64\[\]`",
        ),
        ({"more": lambda history: history["obs"][-1]}, "expected an item of 3 leaves, got 4"),
    ],
)
def test_an_item_that_is_not_like_the_spec_is_refused_by_the_writer(
    serve: Callable[..., echoic.Connection], change: Any, text: str
) -> None:
    client = serve(Table("t", trajectories=SEQUENCE, capacity=10))
    with client.trajectory_writer(10) as writer:
        writer.append_batch({**steps(10), "wide": np.zeros((10, 5), np.float32)})
        history = writer.history
        good = {
            "obs": history["obs"][:],
            "reward": history["reward"][:3],
            "start": history["start"][0],
        }
        changed = {name: leaf(history) for name, leaf in change.items()}
        with pytest.raises(echoic.errors.SpecError, match=text) as refusal:
            writer.create_item("t", 1.0, {**good, **changed})
        assert 'table "t"' in str(refusal.value)
        writer.create_item("t", 1.0, good)
    client.flush()
    assert client.table("t").stats().inserts == 1


def test_a_pattern_that_is_not_like_the_spec_is_refused(
    serve: Callable[..., echoic.Connection],
) -> None:
    client = serve(Table("t", trajectories={"obs": AnyLength(np.float32(0))}, capacity=10))
    obs = patterns.column("obs")
    for leaf in (obs[-3:], obs[-1:]):
        with client.structured_writer([patterns.Config({"obs": leaf}, table="t")]) as writer:
            writer.append({"obs": np.float32(1)})
    with (
        client.structured_writer([patterns.Config({"obs": obs[-2:]}, table="t")]) as writer,
        pytest.raises(echoic.errors.SpecError, match=r"expected the leaf `obs: float32\[\?\]`"),
    ):
        writer.append({"obs": np.float64(1)})
    with client.vector_writer(2) as writer:
        writer.append_batch({"obs": np.zeros(2, np.float32)})
        with pytest.raises(echoic.errors.SpecError, match="one step without an axis of time"):
            writer.create_items("t", 1.0, {"obs": writer.history["obs"][-1]})
        writer.create_items("t", 1.0, {"obs": writer.history["obs"][-1:]})
    client.flush()
    assert client.table("t").stats().size == 3


def test_a_tree_is_checked_too(serve: Callable[..., echoic.Connection]) -> None:
    client = serve(Table("t", trajectories={"x": np.zeros((2, 3)), "y": np.int32(0)}, capacity=10))
    client.table("t").add({"x": np.ones((2, 3)), "y": np.int32(1)})
    with pytest.raises(echoic.errors.SpecError, match=r"expected the leaf `x: float64\[2, 3\]`"):
        client.table("t").add({"x": np.ones((3, 3)), "y": np.int32(1)})
    client.table("t").add({"x": np.ones((2, 3)), "y": np.int32(2)})
    client.flush()
    assert client.table("t").stats().size == 2


def test_a_table_says_what_its_trajectories_look_like(
    serve: Callable[..., echoic.Connection],
) -> None:
    client = serve(Table("t", trajectories=SEQUENCE, capacity=10), Table("any", capacity=10))
    spec = client.table("t").spec
    assert spec is not None
    assert [(leaf.path, leaf.dtype, leaf.shape, leaf.nbytes) for leaf in spec.leaves] == [
        ("obs", "float32", (None, 4), 16),
        ("reward", "float64", (3,), 24),
        ("start", "int64", (), 8),
    ]
    assert "float32[?, 4]  16 bytes a step" in str(spec)
    assert "shape=[?, 4]" in repr(spec.leaves[0])
    assert client.table("any").spec is None


def test_a_checkpoint_knows_the_spec(tmp_path: Path) -> None:
    def serve() -> Server:
        table = Table("t", trajectories=SEQUENCE, capacity=10)
        return Server(table, checkpointer=Checkpointer(tmp_path))

    with serve() as server:
        with echoic.connect(server).trajectory_writer(10) as writer:
            writer.append_batch(steps(4))
            history = writer.history
            item = {
                "obs": history["obs"][:],
                "reward": history["reward"][:3],
                "start": history["start"][0],
            }
            writer.create_item("t", 1.0, item)
        path = server.checkpoint()
    with serve() as server:
        assert echoic.connect(server).table("t").sample(1).data["obs"].shape == (1, 4, 4)
    (looked_at,) = echoic._native.open_checkpoint(path)
    assert str(looked_at.spec) == str(Table("t", trajectories=SEQUENCE, capacity=1).spec)


@pytest.mark.parametrize("bad", [{}, {"x": object()}, AnyLength({"x": 1}), [AnyLength(None)]])
def test_what_no_trajectory_could_be_is_refused(bad: Any) -> None:
    with pytest.raises(echoic.errors.SpecError):
        Table("t", trajectories=bad, capacity=10)


def test_a_table_has_rows_or_trajectories() -> None:
    with pytest.raises(ValueError, match="got both"):
        Table("t", np.zeros(3), trajectories=SEQUENCE, capacity=10)
    with pytest.raises(echoic.errors.SpecError):
        Table("t", SEQUENCE, capacity=10)
