"""ReplayBuffer: what goes in comes out, evenly, whatever the form of the transitions."""

from __future__ import annotations

import threading

import echoic
import numpy as np
import pytest
from echoic import rlox
from echoic.buffers import PrioritizedReplayBuffer, ReplayBuffer
from echoic.errors import PriorityError, ReplayError, SpecError
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered import transition, vectors

KEYS = {"obs", "next_obs", "actions", "rewards", "terminated", "truncated"}


def check_numbered(batch, steps) -> None:
    """That every row is one of these numbers' transitions, as a whole."""
    number = batch["rewards"]
    assert np.isin(number, list(steps)).all()
    assert (batch["obs"] == number[:, None]).all()
    assert (batch["next_obs"] == number[:, None] + 1).all()
    assert (batch["actions"] == number[:, None] * 2).all()


@pytest.mark.parametrize("next_obs", ["stored", "shared"])
def test_the_last_transitions_come_out_as_they_went_in(fill, next_obs) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 10, seed=1, next_obs=next_obs)
    for count in range(1, 50):
        fill(buffer, [count])
        batch = buffer.sample(64)
        assert batch.data.keys() == KEYS
        check_numbered(batch, range(max(1, count - 9), count + 1))
        assert len(buffer) == min(count, 10)
    assert set(buffer.sample(1000)["rewards"]) == set(range(40, 50))


def test_rows_of_several_buffers_are_read_by_position(fill) -> None:
    """What adapters use that address transitions by number."""
    buffers = [ReplayBuffer(vectors(3, 1), 10, seed=1) for _ in range(3)]
    for at, buffer in enumerate(buffers):
        fill(buffer, range(100 * at, 100 * at + 15 - at))
    owners, positions = np.array([2, 0, 0, 1, 2]), np.array([12, 5, 14, 13, 3])
    rows = ReplayBuffer._rows(buffers, owners, positions)
    assert rows["rewards"].tolist() == [212, 5, 14, 113, 203]
    check_numbered(rows, rows["rewards"])
    assert ReplayBuffer._rows(buffers[:1], [], [])["obs"].shape == (0, 3)
    buffers[1].clear()
    for owner, position in [(0, 4), (0, 15), (0, -1), (1, 13), (3, 5), (-1, 5)]:
        with pytest.raises(ReplayError, match=f"position {position} of buffer {owner}"):
            ReplayBuffer._rows(buffers, [owner], [position])
    with pytest.raises(ReplayError, match="got 2 and 1"):
        ReplayBuffer._rows(buffers, [0], [5, 6])
    for wrong in ([], [buffers[0], ReplayBuffer(vectors(2, 1), 10)]):
        with pytest.raises(ReplayError, match="buffer"):
            ReplayBuffer._rows(wrong, [0], [5])


def test_the_form_of_widths_has_the_dtypes_of_the_seed(fill) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 10)
    fill(buffer, [1])
    found = {name: (array.dtype, array.shape) for name, array in buffer.sample(5).data.items()}
    vector = np.dtype("float32")
    assert found == {
        "obs": (vector, (5, 3)),
        "actions": (vector, (5, 1)),
        "rewards": (vector, (5,)),
        "terminated": (np.dtype(bool), (5,)),
        "truncated": (np.dtype(bool), (5,)),
        "next_obs": (vector, (5, 3)),
    }


@pytest.mark.parametrize(
    ("obs", "action", "reward", "flag"),
    [
        (np.array([1.0, 2.0]), np.array([3]), np.float64(4), np.True_),
        ([1, 2], 3, 4, True),
        (np.array([1, 2], np.int16), np.float32(3), np.array(4.0), 1),
        (np.arange(1, 5, dtype=np.float32)[::2] * [1, 2 / 3], [3.0], np.float32(4), np.int64(1)),
    ],
)
def test_values_of_other_dtypes_are_converted_where_everything_is_float(
    obs, action, reward, flag
) -> None:
    buffer = rlox.ReplayBuffer(10, obs_dim=2, act_dim=1)
    buffer.push(obs, action, reward, flag, False, obs)
    batch = buffer.sample(1)
    np.testing.assert_allclose(batch["obs"], [[1, 2]])
    assert (batch["actions"], batch["rewards"], batch["terminated"]) == ([[3]], [4], [True])


EXAMPLE = {
    "obs": {"image": np.zeros((4, 4), np.uint8), "joint": (np.zeros(2), np.int16(0))},
    "actions": np.int64(0),
    "rewards": np.float64(0),
    "terminated": False,
    "next_obs": {"image": np.zeros((4, 4), np.uint8), "joint": (np.zeros(2), np.int16(0))},
    "log_prob": np.float32(0),
}


def tree_obs(step):
    return {
        "image": np.full((4, 4), step, np.uint8),
        "joint": (np.full(2, step / 2), np.int16(-step)),
    }


@pytest.mark.parametrize("next_obs", ["stored", "shared"])
def test_trees_of_any_dtype_stay_what_they_are(next_obs) -> None:
    buffer = ReplayBuffer(EXAMPLE, 20, seed=3, next_obs=next_obs)
    for step in range(30):
        buffer.add(
            transition(
                tree_obs(step),
                step,
                step,
                step % 7 == 0,
                next_obs=tree_obs(step + 1),
                log_prob=-step,
            )
        )
    batch = buffer.sample(100)
    number = batch["actions"]
    assert number.dtype == np.int64
    assert batch["rewards"].dtype == np.float64
    assert batch["obs"]["image"].dtype == np.uint8
    assert batch["obs"]["image"].shape == (100, 4, 4)
    for side, shift in (("obs", 0), ("next_obs", 1)):
        assert (batch[side]["image"] == (number + shift)[:, None, None]).all()
        assert (batch[side]["joint"][0] == (number + shift)[:, None] / 2).all()
        assert (batch[side]["joint"][1] == -(number + shift)).all()
    assert (batch["log_prob"] == -number).all()
    assert (batch["terminated"] == (number % 7 == 0)).all()
    assert set(number) <= set(range(10, 30))


@settings(max_examples=40, deadline=None)
@given(
    capacity=st.integers(1, 40),
    sizes=st.lists(st.integers(0, 60), max_size=8),
    shared=st.booleans(),
)
def test_extend_is_many_times_add(capacity, sizes, shared) -> None:
    mode = "shared" if shared else "stored"
    one = ReplayBuffer(vectors(2, 1), capacity, seed=0, next_obs=mode)
    many = ReplayBuffer(vectors(2, 1), capacity, seed=0, next_obs=mode)
    start = 0
    for size in sizes:
        steps = np.arange(start, start + size, dtype=np.float32)
        start += size
        obs = np.repeat(steps[:, None], 2, axis=1)
        flags = steps % 5 == 4
        many.extend(transition(obs, steps, steps, flags, ~flags, obs + 1))
        for row in range(size):
            one.add(
                transition(
                    obs[row], steps[row], steps[row], flags[row], not flags[row], obs[row] + 1
                )
            )
    assert len(one) == len(many) == min(start, capacity)
    if start:
        first, second = one.sample(50, seed=9), many.sample(50, seed=9)
        for name in KEYS:
            np.testing.assert_array_equal(first[name], second[name])


def test_a_seed_gives_one_batch_and_none_gives_another_each_time(fill) -> None:
    buffer, other = (ReplayBuffer(vectors(3, 1), 1000, seed=5) for _ in range(2))
    fill(buffer, range(1000))
    fill(other, range(1000))
    first = buffer.sample(32, seed=7)["rewards"]
    np.testing.assert_array_equal(first, buffer.sample(32, seed=7)["rewards"])
    own = [buffer.sample(32)["rewards"] for _ in range(3)]
    assert not np.array_equal(own[0], own[1])
    for mine, theirs in zip(own, (other.sample(32)["rewards"] for _ in range(3)), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    unseeded = [ReplayBuffer(vectors(3, 1), 1000) for _ in range(2)]
    for some in unseeded:
        fill(some, range(1000))
    assert not np.array_equal(*(some.sample(32)["rewards"] for some in unseeded))


def xoshiro(seed: int):
    """The generator that the documentation names: xoshiro256++, seeded with SplitMix64."""
    mask = 2**64 - 1
    state = []
    for _ in range(4):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        mixed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        state.append(mixed ^ (mixed >> 31))

    def rotate(word, by):
        return ((word << by) | (word >> (64 - by))) & mask

    while True:
        yield (rotate((state[0] + state[3]) & mask, 23) + state[0]) & mask
        shifted = (state[1] << 17) & mask
        state[2] ^= state[0]
        state[3] ^= state[1]
        state[1] ^= state[2]
        state[0] ^= state[3]
        state[2] ^= shifted
        state[3] = rotate(state[3], 45)


@pytest.mark.parametrize("seed", [0, 42, 2**64 - 1])
def test_the_draws_of_a_seed_are_those_of_the_documented_generator(fill, seed) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 1000)
    fill(buffer, range(1500))
    words = xoshiro(seed)
    # Of a range this small none is redrawn.
    expected = [500 + ((next(words) * 1000) >> 64) for _ in range(20)]
    np.testing.assert_array_equal(buffer.sample(20, seed=seed)["rewards"], expected)


def test_draws_are_even(fill) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 50, seed=8)
    fill(buffer, range(70))
    counts = np.bincount(buffer.sample(50_000)["rewards"].astype(int), minlength=70)
    assert (counts[:20] == 0).all()
    # Six standard deviations of a count of 1000.
    assert (abs(counts[20:] - 1000) < 190).all()


def test_a_batch_may_be_larger_than_the_content(fill) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 10)
    fill(buffer, [1, 2])
    assert set(buffer.sample(100, seed=0)["rewards"]) == {1, 2}


def test_a_batch_stays_what_it_was(fill) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 4, seed=0)
    fill(buffer, range(4))
    kept = [buffer.sample(16) for _ in range(40)]
    before = [batch["obs"].copy() for batch in kept]
    fill(buffer, range(100, 200))
    later = [buffer.sample(16) for _ in range(40)]
    assert all((batch["rewards"] >= 100).all() for batch in later)
    for batch, obs in zip(kept, before, strict=True):
        np.testing.assert_array_equal(batch["obs"], obs)
    del buffer, later
    check_numbered(kept[0], range(4))


def test_a_batch_is_written_into_arrays_that_are_given(fill) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 100, seed=0)
    fill(buffer, range(100))
    out = buffer.sample(32, seed=1)
    obs = out["obs"]
    again = buffer.sample(32, seed=2, out=out)
    assert again is out
    assert out["obs"] is obs
    expected = buffer.sample(32, seed=2)
    for name in KEYS:
        np.testing.assert_array_equal(out[name], expected[name])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"obs": np.zeros((32, 3))}, "expected a contiguous writable float32"),
        ({"obs": np.zeros((31, 3), np.float32)}, r"\[32, 3\], got float32\[31, 3\]"),
        ({"obs": np.zeros((32, 6), np.float32)[:, ::2]}, "contiguous"),
        ({"obs": np.broadcast_to(np.float32(0), (32, 3))}, "read-only"),
        ({"obs": [0.0]}, "got list"),
        ({"obs": None}, "got NoneType"),
    ],
)
def test_arrays_that_a_batch_does_not_fit_are_refused(fill, change, text) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 100, seed=0)
    fill(buffer, range(10))
    out = buffer.sample(32).data | change
    with pytest.raises(SpecError, match=text):
        buffer.sample(32, out=out)


def test_a_batch_has_its_data_and_what_is_known_of_each_row(fill) -> None:
    even = ReplayBuffer(vectors(3, 1), 100, seed=0)
    fill(even, range(10))
    batch = even.sample(8)
    assert (len(batch), batch.keys, batch.info) == (8, None, None)
    assert repr(batch).startswith("Batch(len=8, data={obs: float32[8, 3], actions: float32[8, 1], ")
    assert batch.weights.tolist() == [1] * 8
    assert batch["obs"] is batch.data["obs"]
    with pytest.raises(KeyError, match=r"no 'reward'.*'rewards'"):
        batch["reward"]
    buffer = prioritized(fill)
    out = buffer.sample(8, seed=1)
    keys, weights = out.keys, out.weights
    assert buffer.sample(8, seed=2, out=out) is out
    assert (out.keys is keys, out.weights is weights) == (True, True)
    arrays = {**out.data, "keys": keys, "weights": weights}
    again = buffer.sample(8, seed=3, out=arrays)
    assert again["obs"] is out["obs"]
    np.testing.assert_array_equal(keys, buffer.sample(8, seed=3).keys)
    with pytest.raises(TypeError, match="batch"):
        buffer.sample(8, out=[1])
    with pytest.raises(SpecError, match="`weights`"):
        PrioritizedReplayBuffer({"weights": 0.0}, 10)


def test_arrays_that_share_memory_are_refused_as_targets(fill) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 100, seed=0)
    fill(buffer, range(10))
    out = buffer.sample(8)
    out.data["next_obs"] = out["obs"]
    with pytest.raises(SpecError, match="share memory"):
        buffer.sample(8, out=out)
    del out.data["next_obs"]
    with pytest.raises(SpecError, match="no entry `next_obs`"):
        buffer.sample(8, out=out)


def test_clear_forgets_everything(fill) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 10)
    fill(buffer, range(25))
    buffer.clear()
    assert len(buffer) == 0
    with pytest.raises(ReplayError, match="empty"):
        buffer.sample(1)
    fill(buffer, [77])
    assert set(buffer.sample(10)["rewards"]) == {77}


def test_an_integer_that_its_field_can_not_hold_is_refused() -> None:
    buffer = ReplayBuffer({"actions": np.int32(0)}, 10)
    for action in (2**31, -(2**31) - 1, 2**40):
        with pytest.raises(SpecError, match=rf"expected int32\[\], got the int {action}"):
            buffer.add({"actions": action})
    with pytest.raises(SpecError, match="expected int32"):
        buffer.extend({"actions": [1, 2**40]})
    assert len(buffer) == 0
    buffer.extend({"actions": [2**31 - 1, -(2**31)]})
    assert set(buffer.sample(50)["actions"]) == {2**31 - 1, -(2**31)}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda b: b.add(
                transition(np.zeros(2, np.float32), 0.0, 0.0, False, False, np.zeros(3))
            ),
            SpecError,
            "obs",
        ),
        (
            lambda b: b.add(transition(np.zeros(3), [0.0, 1.0], 0.0, False, False, np.zeros(3))),
            SpecError,
            "actions",
        ),
        (
            lambda b: b.add(transition(np.zeros(3), 0.0, "x", False, False, np.zeros(3))),
            SpecError,
            "rewards",
        ),
        (
            lambda b: b.add(transition(np.zeros(3), 0.0, None, False, False, np.zeros(3))),
            SpecError,
            "rewards",
        ),
        (
            lambda b: b.add(transition(np.zeros(3) * 1j, 0.0, 0.0, False, False, np.zeros(3))),
            SpecError,
            "complex",
        ),
        (lambda b: b.add(transition(np.zeros(3), 0.0, 0.0, False, False)), SpecError, "next_obs"),
        (
            lambda b: b.add(transition(np.zeros(3), 0.0, 0.0, False, False, np.zeros(3), more=1)),
            SpecError,
            "more",
        ),
        (
            lambda b: b.extend(
                transition(np.zeros((2, 3)), [0.0], [0, 0], [0, 0], [0, 0], np.zeros((2, 3)))
            ),
            SpecError,
            "actions",
        ),
        (
            lambda b: b.extend(transition(np.zeros(3), 0.0, 0.0, 0, 0, np.zeros(3))),
            SpecError,
            "obs",
        ),
        (lambda b: b.add(3), SpecError, "expected a dict with the entries obs, .*, got a int"),
        (lambda b: b.sample(0), ReplayError, "at least 1, got 0"),
        (lambda b: b.sample(-3), ReplayError, "at least 1, got -3"),
        (lambda b: b.sample(1, seed=-1), ReplayError, "seed.*got -1"),
        (lambda b: b.sample(1, seed="x"), ReplayError, "seed.*got 'x'"),
        (lambda b: b.sample_sequences(1, 2), ReplayError, "episodes=True"),
        (lambda b: b.sample_hindsight(1, None), ReplayError, "episodes=True"),
        (lambda b: b.end_episode(), ReplayError, "episodes=True"),
        (
            lambda b: b.add(
                transition(np.zeros(3), 0.0, 0.0, False, False, np.zeros(3)), priority=1.0
            ),
            TypeError,
            "priority",
        ),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(fill, call, error, text) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 10, seed=0)
    fill(buffer, range(5))
    with pytest.raises(error, match=text):
        call(buffer)
    assert len(buffer) == 5
    check_numbered(buffer.sample(20), range(5))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"capacity": 0}, ReplayError, "capacity must be at least 1, got 0"),
        ({"capacity": -1}, ReplayError, "got -1"),
        ({"capacity": 1, "example": 3}, SpecError, "dict"),
        ({"capacity": 1, "example": {}}, SpecError, "no leaves"),
        ({"capacity": 1, "example": {1: 2}}, SpecError, "strings"),
        ({"capacity": 1 << 50}, MemoryError, "bytes"),
        ({"capacity": 1, "n_step": 0}, ReplayError, "n_step"),
        ({"capacity": 1, "gamma": 1.5}, ReplayError, "gamma.*1.5"),
        ({"capacity": 1, "next_obs": "x"}, ReplayError, '"x"'),
        ({"capacity": 1, "stack": 4}, SpecError, "stack=4"),
        ({"capacity": 1, "example": {"obs": 0.0}, "next_obs": "shared"}, SpecError, "next_obs"),
        ({"capacity": 1, "example": {"obs": 0.0}, "episodes": True}, SpecError, "terminated"),
        (
            {"capacity": 1, "example": {"terminated": False, "rewards": 1}, "n_step": 2},
            SpecError,
            "float32",
        ),
    ],
)
def test_a_buffer_that_makes_no_sense_is_refused(arguments, error, text) -> None:
    with pytest.raises(error, match=text):
        ReplayBuffer(**{"example": vectors(3, 1), **arguments})


DTYPES = ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"]
try:
    import ml_dtypes

    DTYPES.append(np.dtype(ml_dtypes.bfloat16))
except ImportError:
    pass


def is_cast(given: np.dtype, to: np.dtype) -> bool:
    """The rule: floats become floats, and integers become what holds all of them."""
    floats = [dtype.kind == "f" or dtype.name == "bfloat16" for dtype in (given, to)]
    integers = [dtype.kind in "iu" for dtype in (given, to)]
    return all(floats) or (all(integers) and np.can_cast(given, to, "safe"))


@pytest.mark.parametrize("cast", [True, False])
@pytest.mark.parametrize("given", [np.dtype(one) for one in DTYPES], ids=str)
@pytest.mark.parametrize("to", [np.dtype(one) for one in DTYPES], ids=str)
def test_one_rule_says_for_every_leaf_which_dtypes_are_cast(to, given, cast) -> None:
    good = to == given or (cast and is_cast(given, to))
    text = (
        "only floats are cast to floats" if cast else "with cast=False the dtype must be the same"
    )
    for shape, wrap in (((2, 3), lambda x: {"a": x}), ((3,), lambda x: x), ((), lambda x: x)):
        if cast and not shape and to == "bool" and given != "bfloat16":
            continue  # A flag may come as a number.
        rows = (np.arange(5 * 6).reshape(5, 2, 3) % 2).astype(given)
        rows = rows[(slice(None), *[0] * (2 - len(shape)))]
        # In C order, in another, and with the other order of bytes.
        batches = [rows, np.asfortranarray(rows)]
        if given != "bfloat16":
            batches.append(rows.astype(given.newbyteorder()))
        example = wrap(np.zeros(shape, to))
        for options in ({}, {"next_obs": "shared"}):
            buffer = ReplayBuffer({"obs": example, "next_obs": example}, 100, cast=cast, **options)
            calls = [(buffer.add, row) for row in rows] + [(buffer.extend, b) for b in batches]
            for call, values in calls:
                if good:
                    call(transition(wrap(values), next_obs=wrap(values)))
                else:
                    with pytest.raises(SpecError, match=text):
                        call(transition(wrap(values), next_obs=wrap(values)))
            assert len(buffer) == (5 * (1 + len(batches)) if good else 0)
            if good:
                found = buffer.sample(300, seed=0)["obs"]
                found = found["a"] if len(shape) == 2 else found
                assert found.dtype == to
                expected = np.unique(rows.astype(np.int64), axis=0)
                np.testing.assert_array_equal(np.unique(found.astype(np.int64), axis=0), expected)


def test_float64_is_rounded_as_numpy_rounds_it() -> None:
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer({"obs": np.zeros(17, np.float32), "rewards": np.float32(0)}, 1000)
    obs, rewards = rng.normal(size=(500, 17)) * 1e3, rng.normal(size=500)
    obs[0, :4] = np.inf, -np.inf, np.nan, 1e-42
    # One value after the other, from memory that is not aligned, and of a subclass of floats.
    odd = np.frombuffer(b"x" + obs[0].tobytes(), np.uint8)[1:].view(np.float64)
    buffer.add(transition(odd, rewards=rewards[0]))
    buffer.extend(transition(obs[1:], rewards=rewards[1:]))
    batch = buffer.sample(5000, seed=1)
    for row, reward in zip(batch["obs"], batch["rewards"], strict=True):
        [index] = np.flatnonzero(rewards.astype(np.float32) == reward)
        np.testing.assert_array_equal(row, obs[index].astype(np.float32))


def test_a_number_of_python_is_taken_as_it_is() -> None:
    buffer = ReplayBuffer({"rewards": np.float32(0), "terminated": False}, 9, cast=False)
    for reward in (1, 1.0):
        buffer.add(transition(rewards=reward, terminated=0))
    for fields in ({"rewards": np.float64(1)}, {"rewards": np.int64(1)}):
        with pytest.raises(SpecError, match="rewards"):
            buffer.add(transition(terminated=False, **fields))
    with pytest.raises(SpecError, match="terminated"):
        buffer.add(transition(rewards=1.0, terminated=np.int64(1)))
    assert len(buffer) == 2
    with pytest.raises(SpecError, match=r"obs.*float32.*int64.*only floats"):
        ReplayBuffer({"obs": np.zeros(3, np.float32)}, 9).add(transition(np.zeros(3, np.int64)))


def test_forms_of_integers_take_no_floats() -> None:
    buffer = ReplayBuffer({"obs": np.zeros(3, np.uint8), "actions": np.int64(0)}, 10)
    with pytest.raises(SpecError, match=r"obs.*uint8\[3\].*float64"):
        buffer.add(transition(np.zeros(3), 1))
    with pytest.raises(SpecError, match="actions"):
        buffer.add(transition(np.zeros(3, np.uint8), 1.5))
    with pytest.raises(SpecError, match="rewards"):
        buffer.add(transition(np.zeros(3, np.uint8), 1, 1.0))
    buffer.add(transition(np.zeros(3, np.uint8), np.int32(7)))
    assert buffer.sample(1)["actions"] == [7]


@pytest.mark.parametrize("options", [{}, {"next_obs": "shared"}, {"episodes": True}, {"n_step": 3}])
def test_threads_add_and_sample_at_once(options) -> None:
    buffer = ReplayBuffer(vectors(64, 1), 300, seed=0, **options)
    errors = []

    def run(body):
        try:
            body()
        except BaseException as error:  # told to the test
            errors.append(error)

    def writer(first: int):
        for round_number in range(60):
            steps = np.arange(20, dtype=np.float32) + first + 20 * round_number
            obs = np.repeat(steps[:, None], 64, axis=1)
            flags = np.zeros(20, bool)
            buffer.extend(
                transition(obs, steps * 2, steps, flags, flags, obs + 1), env=first // 100_000
            )
            step = np.full(64, first, np.float32)
            buffer.add(
                transition(step, first * 2, first, False, False, step + 1), env=first // 100_000
            )

    def reader():
        for _ in range(150):
            batch = buffer.sample(512)
            # A row is whole, also when it is replaced meanwhile.
            assert (batch["obs"] == batch["obs"][:, :1]).all()
            assert (batch["actions"][:, 0] == 2 * batch["obs"][:, 0]).all()
            assert (batch["next_obs"] == batch["next_obs"][:, :1]).all()

    writer(0)
    threads = [
        threading.Thread(target=run, args=(lambda n=n: writer(n * 100_000),)) for n in range(3)
    ]
    threads += [threading.Thread(target=run, args=(reader,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    # Rows that follow nothing need a frame more each: fewer may fit where observations are shared.
    assert len(buffer) == 300 or (options.get("next_obs") == "shared" and len(buffer) > 200)


def test_dlpack_shares_the_memory_of_a_batch(fill) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 10, seed=0)
    fill(buffer, [1])
    batch = buffer.sample(4)
    other = np.from_dlpack(batch["obs"])
    assert np.shares_memory(other, batch["obs"])
    assert batch["obs"].ctypes.data % 64 == 0


def test_spaces_say_what_transitions_are() -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    image = spaces.Box(0, 255, (4, 4), np.uint8)
    seen = spaces.Dict({"image": image, "joint": spaces.Tuple([spaces.Box(-1, 1, (2,))])})
    choice = spaces.Discrete(5, seed=3)
    buffer = ReplayBuffer.from_spaces(seen, choice, 10, n_step=2, seed=1)
    assert choice.sample() == spaces.Discrete(5, seed=3).sample()
    for _ in range(3):
        obs = seen.sample()
        buffer.add(transition(obs, choice.sample(), 1.0, False, False, obs))
    batch = buffer.sample(6)
    assert batch["obs"]["image"].dtype == np.uint8
    assert batch["next_obs"]["joint"][0].shape == (6, 2)
    assert (batch["actions"].dtype, batch["rewards"].dtype) == (np.int64, np.float32)
    with pytest.raises(SpecError, match="obs"):
        ReplayBuffer.from_spaces(spaces.Text(3), choice, 10)


def test_batches_go_on_and_numbers_are_in_stats(fill) -> None:
    buffer = PrioritizedReplayBuffer(vectors(3, 1), 10, seed=5)
    fill(buffer, range(20))
    batches = buffer.batches(4, beta=0.0)
    for _ in range(3):
        assert (next(batches).weights == 1).all()
    stats = buffer.stats()
    assert (stats.size, stats.capacity, stats.seed, stats.episodes) == (10, 10, 5, None)
    assert stats.memory_bytes == buffer.nbytes
    with pytest.raises(ReplayError, match="empty"):
        next(ReplayBuffer(vectors(3, 1), 10).batches(1))


def test_the_root_has_the_buffers() -> None:
    assert echoic.ReplayBuffer is ReplayBuffer
    assert echoic.PrioritizedReplayBuffer is PrioritizedReplayBuffer


def test_a_buffer_says_what_it_is(fill) -> None:
    buffer = ReplayBuffer(vectors(3, 1), 10)
    fill(buffer, [1, 2])
    assert repr(buffer).startswith("ReplayBuffer(len=2, capacity=10, fields=[obs, actions, ")
    assert (buffer.capacity, buffer.num_episodes) == (10, None)
    assert buffer.nbytes == 2 * 36


# Frames.


def stacks(length: int, size: int = 6):
    """Observations of an episode as a frame stack gives them: first one frame repeated."""
    frames = np.random.default_rng(length).integers(0, 255, (length + 1, size, size), np.uint8)
    padded = np.concatenate([np.repeat(frames[:1], 3, axis=0), frames])
    return np.stack([padded[at : at + 4] for at in range(length + 1)])


def stacked(capacity: int, **options) -> ReplayBuffer:
    image = np.zeros((4, 6, 6), np.uint8)
    step = {"obs": image, "actions": 0, "rewards": 0.0, "terminated": False, "truncated": False}
    return ReplayBuffer(step | {"next_obs": image}, capacity, seed=0, **options)


@pytest.mark.parametrize("envs", [1, 3])
def test_stacks_of_frames_come_out_as_they_went_in(envs) -> None:
    plain, buffer = stacked(40), stacked(40, stack=4)
    episodes = [iter([]) for _ in range(envs)]
    lengths = iter(range(3, 100))
    for step in range(120):
        env = step % envs
        values = next(episodes[env], None)
        if values is None:
            obs = stacks(next(lengths))
            last = len(obs) - 2
            episodes[env] = iter(
                [(obs[t], t, t / 2, t == last, False, obs[t + 1]) for t in range(last + 1)]
            )
            values = next(episodes[env])
        buffer.add(transition(*values), env=env)
        plain.add(transition(*values))
        if step % 10 == 9:
            mine, theirs = buffer.sample(30, seed=step), plain.sample(30, seed=step)
            for name in KEYS:
                np.testing.assert_array_equal(mine[name], theirs[name])
    assert buffer.nbytes * 2.5 < plain.nbytes


def test_a_shared_observation_is_stored_once() -> None:
    plain, shared = (
        ReplayBuffer(vectors(1000, 1), 100),
        ReplayBuffer(vectors(1000, 1), 100, next_obs="shared"),
    )
    obs = np.random.default_rng(0).random((101, 1000), np.float32)
    for buffer in (plain, shared):
        for step in range(100):
            buffer.add(transition(obs[step], 0.0, 0.0, False, False, obs[step + 1]))
    assert shared.nbytes < 0.55 * plain.nbytes


def test_short_episodes_make_a_shared_buffer_hold_less_and_nothing_wrong() -> None:
    buffer = ReplayBuffer(vectors(8, 1), 1000, seed=0, next_obs="shared")
    rng = np.random.default_rng(0)
    for step in range(5000):
        obs = rng.random((2, 8), np.float32)
        buffer.add(transition(obs[0], obs[0].sum(), step, True, False, obs[1]))
    assert 500 < len(buffer) < 1000
    batch = buffer.sample(500)
    assert batch["rewards"].min() >= 4000
    np.testing.assert_allclose(batch["obs"].sum(1), batch["actions"][:, 0], rtol=1e-5)


def test_more_environments_than_frames_are_no_deadlock() -> None:
    buffer = ReplayBuffer(vectors(8, 1), 4, seed=0, next_obs="shared")
    obs = np.random.default_rng(0).random((1000, 8), np.float32)
    for env in range(999):
        buffer.add(transition(obs[env], 0.0, env, False, False, obs[env + 1]), env=env)
    assert len(buffer) >= 1
    assert buffer.sample(20)["rewards"].min() >= 990


# Priorities.


def prioritized(fill, count=100, **options) -> PrioritizedReplayBuffer:
    buffer = PrioritizedReplayBuffer(vectors(3, 1), 100, seed=0, **options)
    fill(buffer, range(count))
    return buffer


def test_priorities_decide_how_often_a_transition_comes(fill) -> None:
    buffer = PrioritizedReplayBuffer(vectors(3, 1), 10, alpha=0.5, seed=0)
    fill(buffer, [0], priority=1.0)
    fill(buffer, [1], priority=4.0)
    fill(buffer, [2], priority=9.0)
    fill(buffer, [3], priority=0.0)
    for stratified in (True, False):
        batch = buffer.sample(60_000, stratified=stratified)
        counts = np.bincount(batch["rewards"].astype(int), minlength=4)
        # Six standard deviations are below 750.
        assert (abs(counts - [10_000, 20_000, 30_000, 0]) < 750).all()
        assert counts[3] == 0
    np.testing.assert_allclose(batch.weights, 1 / (batch["rewards"] + 1), rtol=1e-6)
    np.testing.assert_array_equal(batch.keys, batch["rewards"])
    assert batch.keys.dtype == np.int64
    assert batch.weights.dtype == np.float32
    assert (buffer.sample(10, beta=0.0).weights == 1).all()
    assert buffer.alpha == 0.5


def test_the_update_of_a_transition_that_is_gone_hits_no_other(fill) -> None:
    buffer = prioritized(fill, alpha=1.0)
    indices = np.arange(100)
    fill(buffer, range(100, 150))
    assert buffer.update_priorities(indices, np.full(100, 1000.0)) == 50
    batch = buffer.sample(5000)
    counts = np.bincount(batch.keys, minlength=150)
    assert (counts[:50] == 0).all()
    assert counts[50:100].sum() > 4900


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint8, object, None])
def test_indices_of_every_integer_dtype_are_taken(fill, dtype) -> None:
    buffer = prioritized(fill)
    indices = [1, 2, 3] if dtype in (object, None) else np.array([1, 2, 3], dtype)
    assert buffer.update_priorities(indices, [1, 2, 3]) == 3
    assert buffer.update_priorities(indices, np.array([1, 2, 3], np.float32)) == 3


@pytest.mark.parametrize(
    ("indices", "priorities", "error", "text"),
    [
        ([1, 2], [1.0], ReplayError, "priorities.*got 1 and 2"),
        ([1, 100], [1.0, 1.0], ReplayError, "index 100 at position 1"),
        ([1, -1], [1.0, 1.0], ReplayError, "index -1 at position 1"),
        ([1, 2], [1.0, float("nan")], PriorityError, "NaN at index 1"),
        ([1, 2], [1.0, -2.0], PriorityError, "-2 at index 1"),
        ([1, 2], [1.0, float("inf")], PriorityError, "inf at index 1"),
        ([1.5, 2.5], [1.0, 1.0], ValueError, "float64"),
        ([2**64, 1], [1.0, 1.0], ValueError, "object"),
    ],
)
def test_a_failing_update_is_not_applied_in_part(fill, indices, priorities, error, text) -> None:
    buffer = prioritized(fill, alpha=1.0)
    before = buffer.state_dict()["weights"]
    with pytest.raises(error, match=text):
        buffer.update_priorities(indices, priorities)
    np.testing.assert_array_equal(buffer.state_dict()["weights"], before)


@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf")])
def test_a_priority_that_can_not_be_is_refused(fill, priority) -> None:
    buffer = prioritized(fill)
    with pytest.raises(PriorityError, match="finite number >= 0"):
        fill(buffer, [1], priority=priority)
    rows = np.zeros((2, 3)), [0.0, 0.0], [0, 0], [0, 0], [0, 0], np.zeros((2, 3))
    with pytest.raises(PriorityError, match="at index 1"):
        buffer.extend(transition(*rows), priorities=[1.0, priority])
    with pytest.raises(ReplayError, match="priorities"):
        buffer.extend(transition(*rows), priorities=[1.0])
    assert len(buffer) == 100


def test_priorities_of_zero_only_draw_evenly(fill) -> None:
    buffer = PrioritizedReplayBuffer(vectors(3, 1), 10, seed=0)
    fill(buffer, range(4), priority=0.0)
    batch = buffer.sample(4000)
    counts = np.bincount(batch["rewards"].astype(int), minlength=4)
    assert (abs(counts - 1000) < 170).all()
    assert (batch.weights == 1).all()


def test_settings_of_priorities_are_checked(fill) -> None:
    with pytest.raises(ReplayError, match="alpha"):
        PrioritizedReplayBuffer(vectors(3, 1), 10, alpha=-0.1)
    with pytest.raises(ReplayError, match=r"beta must be from 0 to 1, got 1\.1"):
        prioritized(fill).sample(10, beta=1.1)
    with pytest.raises(ReplayError, match="beta"):
        prioritized(fill).sample(10, beta=float("nan"))


def test_threads_update_priorities_while_others_add(fill) -> None:
    buffer = prioritized(fill)
    stop = threading.Event()

    def update():
        while not stop.is_set():
            batch = buffer.sample(64)
            buffer.update_priorities(batch.keys, batch["rewards"])

    threads = [threading.Thread(target=update) for _ in range(2)]
    for thread in threads:
        thread.start()
    for step in range(100, 3000):
        fill(buffer, [step], priority=1.0)
    stop.set()
    for thread in threads:
        thread.join(30)
    weights = buffer.state_dict()["weights"]
    rewards = buffer.state_dict()["rows"]["rewards"]
    assert weights.shape == (100,)
    assert (np.isclose(weights, 1.0) | np.isclose(weights, rewards**0.6, rtol=1e-4)).all()
