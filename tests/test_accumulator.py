"""Trajectories put together step by step: filling, errors, and whose memory it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import echoic
import numpy as np
import pytest
from echoic._native import TrajectoryAccumulator

MakeStream = Callable[..., echoic.Stream]

EXAMPLE = {
    "step": {"obs": np.zeros((3, 2), np.float32), "reward": np.zeros(3, np.float32)},
    "last_obs": np.zeros(2, np.float32),
}


@pytest.fixture
def buf() -> TrajectoryAccumulator:
    return TrajectoryAccumulator(EXAMPLE)


def step(value: float) -> dict[str, Any]:
    return {"obs": np.full(2, value, np.float32), "reward": np.float32(-value)}


def fill(buf: TrajectoryAccumulator, start: float) -> None:
    for t in range(3):
        buf.add("step", step(start + t))
    buf.add("last_obs", np.full(2, start + 3, np.float32))


def check(tree: dict[str, Any], start: float) -> None:
    values = np.arange(start, start + 3, dtype=np.float32)
    np.testing.assert_array_equal(tree["step"]["obs"], np.stack([values, values], axis=1))
    np.testing.assert_array_equal(tree["step"]["reward"], -values)
    np.testing.assert_array_equal(tree["last_obs"], [start + 3, start + 3])


def test_steps_are_put_along_the_time_axis_in_order(buf: TrajectoryAccumulator) -> None:
    fill(buf, 10)
    tree = buf.build()
    assert list(tree) == ["step", "last_obs"]
    assert (tree["step"]["obs"].dtype, tree["step"]["obs"].shape) == (np.float32, (3, 2))
    check(tree, 10)


def test_parts_may_be_filled_in_any_order(buf: TrajectoryAccumulator) -> None:
    buf.add("step", step(0))
    buf.add("last_obs", np.full(2, 3, np.float32))
    buf.add("step", step(1))
    buf.add("step", step(2))
    check(buf.build(), 0)


def test_fill_tells_how_much_each_part_has(buf: TrajectoryAccumulator) -> None:
    assert buf.fill == {"step": (0, None), "last_obs": (0, None)}
    buf.add("step", step(0))
    assert buf.fill == {"step": (1, 3), "last_obs": (0, None)}
    buf.add("last_obs", np.zeros(2, np.float32))
    buf.add("step", step(0))
    assert buf.fill == {"step": (2, 3), "last_obs": (1, 1)}
    assert not buf.is_full
    buf.add("step", step(0))
    assert buf.fill == {"step": (3, 3), "last_obs": (1, 1)}
    assert buf.is_full
    buf.build()
    assert buf.fill == {"step": (0, None), "last_obs": (0, None)}
    assert not buf.is_full


def test_a_whole_leaf_is_set_at_once(buf: TrajectoryAccumulator) -> None:
    obs = np.arange(6, dtype=np.float32).reshape(3, 2)
    buf.add("step", {"obs": obs, "reward": np.arange(3, dtype=np.float32)})
    assert buf.fill["step"] == (1, 1)
    buf.add("last_obs", np.ones(2, np.float32))
    tree = buf.build()
    np.testing.assert_array_equal(tree["step"]["obs"], obs)
    assert tree["step"]["reward"].tolist() == [0, 1, 2]


def test_the_first_value_of_each_trajectory_decides_anew(
    buf: TrajectoryAccumulator,
) -> None:
    whole = {"obs": np.zeros((3, 2), np.float32), "reward": np.zeros(3, np.float32)}
    for start in (0, 10):
        buf.add("step", whole)
        buf.add("last_obs", np.zeros(2, np.float32))
        buf.build()
        fill(buf, start)
        check(buf.build(), start)


def test_step_leaves_and_whole_leaves_may_be_mixed_in_a_part() -> None:
    buf = TrajectoryAccumulator({"p": {"x": np.zeros((2, 3)), "mask": np.zeros(5, bool)}})
    masks = [np.arange(5) > 2, np.arange(5) < 1]
    buf.add("p", {"x": np.full(3, 1.0), "mask": masks[0]})
    assert buf.fill == {"p": (1, 2)}
    buf.add("p", {"x": np.full(3, 2.0), "mask": masks[1]})
    tree = buf.build()
    assert tree["p"]["x"].tolist() == [[1] * 3, [2] * 3]
    # The last value stays.
    assert tree["p"]["mask"].tolist() == masks[1].tolist()


def test_scalars_and_single_leaves_are_parts() -> None:
    example = {"rewards": np.zeros(2, np.float32), "done": False, "length": 0}
    buf = TrajectoryAccumulator(example)
    buf.add("rewards", 1.5)
    buf.add("rewards", np.float32(2.5))
    buf.add("done", True)
    buf.add("length", 7)
    tree = buf.build()
    assert tree["rewards"].tolist() == [1.5, 2.5]
    assert (tree["done"].tolist(), tree["done"].shape) == (True, ())
    assert tree["length"].tolist() == 7


def test_steps_are_converted_like_samples(buf: TrajectoryAccumulator) -> None:
    for t in range(3):
        strided = np.array([t, 9, t, 9], np.float32)[::2]
        buf.add("step", {"obs": strided, "reward": np.array(-t, ">f4")})
    buf.add("last_obs", np.array([3, 3], ">f4"))
    check(buf.build(), 0)


# Errors.


def test_a_step_too_many_is_refused(buf: TrajectoryAccumulator) -> None:
    fill(buf, 0)
    with pytest.raises(echoic.errors.TrajectoryError) as caught:
        buf.add("step", step(9))
    assert str(caught.value) == (
        "part `step` is full: it has 3 of 3; call build() or reset() first"
    )
    with pytest.raises(
        echoic.errors.TrajectoryError, match="part `last_obs` is full: it has 1 of 1"
    ):
        buf.add("last_obs", np.zeros(2, np.float32))
    check(buf.build(), 0)


def test_building_too_early_says_what_is_missing(buf: TrajectoryAccumulator) -> None:
    with pytest.raises(echoic.errors.TrajectoryError) as caught:
        buf.build()
    assert str(caught.value) == (
        "the trajectory is not complete: `step` is empty, `last_obs` is empty"
    )
    buf.add("step", step(0))
    buf.add("step", step(1))
    buf.add("last_obs", np.full(2, 3, np.float32))
    with pytest.raises(echoic.errors.TrajectoryError) as caught:
        buf.build()
    assert str(caught.value) == "the trajectory is not complete: `step` has 2 of 3"
    # Nothing is lost by having tried.
    buf.add("step", step(2))
    check(buf.build(), 0)


def test_a_trajectory_is_built_once(buf: TrajectoryAccumulator) -> None:
    fill(buf, 0)
    buf.build()
    with pytest.raises(echoic.errors.TrajectoryError, match="not complete"):
        buf.build()


def test_an_unknown_part_is_refused_with_those_there_are(
    buf: TrajectoryAccumulator,
) -> None:
    with pytest.raises(echoic.errors.TrajectoryError) as caught:
        buf.add("stp", step(0))
    assert str(caught.value) == "there is no part `stp`; there are `step`, `last_obs`"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"obs": np.zeros(3, np.float32), "reward": np.float32(0)},
            (
                "leaf `step/obs`: expected float32[2] (one step) or [3, 2] (the whole leaf), "
                "got float32[3]"
            ),
        ),
        (
            {"obs": np.zeros(2, np.float64), "reward": np.float32(0)},
            (
                "leaf `step/obs`: expected float32[2] (one step) or [3, 2] (the whole leaf), "
                "got float64[2]"
            ),
        ),
        (
            {"obs": np.zeros(2, np.float32), "reward": np.zeros(1, np.float32)},
            (
                "leaf `step/reward`: expected float32[] (one step) or [3] (the whole leaf), "
                "got float32[1]"
            ),
        ),
        ({"obs": np.zeros(2, np.float32)}, "the keys differ from the example's: missing 'reward'"),
    ],
)
def test_a_value_that_does_not_fit_names_the_leaf_and_changes_nothing(
    buf: TrajectoryAccumulator, value: Any, message: str
) -> None:
    with pytest.raises(echoic.errors.SpecError) as caught:
        buf.add("step", value)
    assert message in str(caught.value)
    assert buf.fill["step"] == (0, None)
    buf.add("step", step(0))
    with pytest.raises(echoic.errors.SpecError):
        buf.add("step", value)
    assert buf.fill["step"] == (1, 3)
    buf.add("step", step(1))
    buf.add("step", step(2))
    buf.add("last_obs", np.full(2, 3, np.float32))
    check(buf.build(), 0)


def test_a_leaf_that_got_steps_takes_no_whole_value_in_between(
    buf: TrajectoryAccumulator,
) -> None:
    buf.add("step", step(0))
    whole = {"obs": np.zeros((3, 2), np.float32), "reward": np.float32(0)}
    with pytest.raises(echoic.errors.SpecError) as caught:
        buf.add("step", whole)
    assert str(caught.value) == (
        "leaf `step/obs`: expected float32[2] (one step of [3, 2]), got float32[3, 2]"
    )


def test_a_wrong_value_for_a_part_that_is_one_leaf_names_the_part(
    buf: TrajectoryAccumulator,
) -> None:
    with pytest.raises(echoic.errors.SpecError, match="`last_obs`"):
        buf.add("last_obs", np.zeros(3, np.float32))


def test_time_axes_of_one_part_must_agree() -> None:
    example = {"p": {"a": np.zeros((3, 2)), "b": np.zeros(4)}}
    buf = TrajectoryAccumulator(example)
    with pytest.raises(echoic.errors.TrajectoryError) as caught:
        buf.add("p", {"a": np.zeros(2), "b": 0.0})
    assert str(caught.value) == (
        "the time axes of part `p` differ: p/a: float64[3, 2] and p/b: float64[4]"
    )
    assert buf.fill == {"p": (0, None)}


def test_a_time_axis_of_length_zero_is_refused() -> None:
    buf = TrajectoryAccumulator({"p": np.zeros((0, 2))})
    with pytest.raises(echoic.errors.TrajectoryError, match="`p` has a time axis of length 0"):
        buf.add("p", np.zeros(2))
    buf.add("p", np.zeros((0, 2)))
    assert buf.build()["p"].shape == (0, 2)


@pytest.mark.parametrize("example", [{}, {1: np.zeros(2)}])
def test_an_example_without_named_parts_is_refused(example: Any) -> None:
    with pytest.raises(echoic.errors.TrajectoryError):
        TrajectoryAccumulator(example)


def test_a_part_without_leaves_is_refused() -> None:
    with pytest.raises(echoic.errors.SpecError, match="no leaves"):
        TrajectoryAccumulator({"p": {}})


def test_a_leaf_that_uses_the_accumulator_while_it_is_read_does_no_harm(
    buf: TrajectoryAccumulator,
) -> None:
    class Nested:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            buf.reset()
            return np.zeros(2, np.float32)

    with pytest.raises((RuntimeError, echoic.EchoicError)):
        buf.add("step", {"obs": Nested(), "reward": np.float32(0)})
    fill(buf, 0)
    check(buf.build(), 0)


# Whose memory it is.


@pytest.mark.parametrize(
    "keep",
    [
        lambda tree: tree,
        lambda tree: tree["step"]["obs"][1:, :1],
        lambda tree: memoryview(tree["step"]["obs"]),
        lambda tree: np.from_dlpack(tree["step"]["obs"]),
    ],
    ids=["tree", "view", "memoryview", "dlpack"],
)
def test_a_trajectory_that_is_kept_never_changes(
    buf: TrajectoryAccumulator, keep: Callable[[Any], Any]
) -> None:
    fill(buf, 0)
    tree = buf.build()
    kept, before = keep(tree), tree["step"]["obs"].copy()
    pointer = tree["step"]["obs"].ctypes.data
    del tree
    fill(buf, 100)
    assert buf.build()["step"]["obs"].ctypes.data != pointer
    if isinstance(kept, dict):
        check(kept, 0)
    else:
        expected = before[1:, :1] if np.shape(kept) == (2, 1) else before
        np.testing.assert_array_equal(np.asarray(kept), expected)


def test_memory_of_trajectories_that_are_not_kept_is_reused(
    buf: TrajectoryAccumulator,
) -> None:
    places = set()
    for start in range(10):
        fill(buf, start)
        tree = buf.build()
        check(tree, start)
        places.add(tree["step"]["obs"].ctypes.data)
        del tree
    assert len(places) == 1


def test_building_copies_nothing() -> None:
    buf = TrajectoryAccumulator({"p": np.zeros((2, 3))})
    buf.add("p", np.zeros(3))
    buf.add("p", np.zeros(3))
    first = buf.build()["p"]
    place = first.ctypes.data
    del first
    buf.add("p", np.ones(3))
    buf.add("p", np.ones(3))
    assert buf.build()["p"].ctypes.data == place


def test_a_trajectory_that_feeds_the_next_is_read_before_it_is_overwritten(
    buf: TrajectoryAccumulator,
) -> None:
    fill(buf, 0)
    tree = buf.build()
    last = tree["last_obs"]
    del tree
    buf.add("step", {"obs": last, "reward": np.float32(0)})
    buf.add("last_obs", np.full(2, 50, np.float32))
    assert last.tolist() == [3, 3]
    for value in (1, 2):
        buf.add("step", step(value))
    assert buf.build()["step"]["obs"][0].tolist() == [3, 3]


def test_trajectories_outlive_their_accumulator() -> None:
    buf = TrajectoryAccumulator(EXAMPLE)
    fill(buf, 5)
    tree = buf.build()
    del buf
    check(tree, 5)


def test_the_example_itself_is_never_written() -> None:
    example = {"p": np.zeros(2)}
    buf = TrajectoryAccumulator(example)
    buf.add("p", 1.0)
    buf.add("p", 2.0)
    assert buf.build()["p"].tolist() == [1, 2]
    assert example["p"].tolist() == [0, 0]


# Together with the rest.


def test_submitting_what_was_built_delivers_it(make_stream: MakeStream) -> None:
    buf = TrajectoryAccumulator(EXAMPLE)
    stream = make_stream(EXAMPLE, batch_size=4, capacity=8)
    for trajectory in range(8):
        fill(buf, 10 * trajectory)
        stream.add(buf.build())
    for first in (0, 4):
        batch = stream.sample(timeout=0).data
        for row in range(4):
            tree = {
                "step": {name: leaf[row] for name, leaf in batch["step"].items()},
                "last_obs": batch["last_obs"][row],
            }
            check(tree, 10 * (first + row))


def test_reset_forgets_the_steps_so_far(buf: TrajectoryAccumulator) -> None:
    buf.add("step", step(77))
    buf.add("last_obs", np.full(2, 77, np.float32))
    buf.reset()
    assert buf.fill == {"step": (0, None), "last_obs": (0, None)}
    fill(buf, 0)
    check(buf.build(), 0)


def test_reset_after_build_leaves_the_trajectory_alone(
    buf: TrajectoryAccumulator,
) -> None:
    fill(buf, 0)
    tree = buf.build()
    buf.reset()
    fill(buf, 50)
    buf.reset()
    fill(buf, 70)
    check(tree, 0)


def test_its_repr_tells_the_fill(buf: TrajectoryAccumulator) -> None:
    buf.add("step", step(0))
    assert repr(buf) == "TrajectoryAccumulator(`step` has 1 of 3, `last_obs` is empty)"
