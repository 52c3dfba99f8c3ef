"""Data sets that do not change: what batches of them have, and what is refused."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from echoic import EchoicError
from echoic.buffers import OfflineDataset
from echoic.errors import ReplayError, SpecError
from hypothesis import given, settings
from hypothesis import strategies as st

N = 60


def columns(steps: int = N, every: int = 10) -> dict[str, Any]:
    """Episodes of ten steps, every second of which is truncated; values tell which step it is."""
    number = np.arange(steps)
    ends = number % every == every - 1
    odd = number // every % 2 == 1
    obs = np.stack([number, number * 2.0, number % every], axis=1).astype(np.float32)
    return {
        "obs": obs,
        "next_obs": obs + np.float32(0.5),
        "actions": np.stack([number, -number], axis=1).astype(np.float32),
        "rewards": (number % every).astype(np.float32),
        "terminated": ends & ~odd,
        "truncated": ends & odd,
    }


def numbers_below(end: int, seed: int, count: int) -> list[int]:
    """The documented generator: xoshiro256++ seeded by SplitMix64, and Lemire's numbers below."""
    whole = 2**64 - 1
    state = []
    for _ in range(4):
        seed = (seed + 0x9E3779B97F4A7C15) & whole
        mixed = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 & whole
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & whole
        state.append(mixed ^ mixed >> 31)

    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> 64 - bits) & whole

    numbers = []
    while len(numbers) < count:
        word = (rotated((state[0] + state[3]) & whole, 23) + state[0]) & whole
        shifted = state[1] << 17 & whole
        state[2] ^= state[0]
        state[3] ^= state[1]
        state[1] ^= state[2]
        state[0] ^= state[3]
        state[2] ^= shifted
        state[3] = rotated(state[3], 45)
        if word * end & whole >= 2**64 % end:
            numbers.append(word * end >> 64)
    return numbers


def flat(data: dict[str, Any]) -> list[Any]:
    return [values.ravel() for values in data.values()]


def test_the_flat_form_gives_rows_of_float32() -> None:
    data = columns()
    buffer = OfflineDataset(*flat(data), normalize=False)
    batch = buffer.sample(256, seed=42)
    assert list(batch.data) == ["obs", "next_obs", "actions", "rewards", "terminated", "truncated"]
    step = batch["obs"][:, 0].astype(int)
    for name, values in data.items():
        np.testing.assert_array_equal(batch[name], values[step], name)
        assert batch[name].dtype == values.dtype
    assert len(buffer) == N
    assert buffer.num_episodes == 6


def test_doubles_in_the_flat_form_become_float32_and_integers_stay() -> None:
    data = columns()
    buffer = OfflineDataset(
        data["obs"].ravel().astype(np.float64),
        data["next_obs"].ravel().astype(np.float64),
        np.arange(N),
        data["rewards"].astype(np.float64),
        data["terminated"].astype(np.uint8),
        data["truncated"].astype(np.float32),
    )
    batch = buffer.sample(8)
    got = {name: (values.dtype.name, values.shape) for name, values in batch.data.items()}
    assert got == {
        "obs": ("float32", (8, 3)),
        "next_obs": ("float32", (8, 3)),
        "actions": ("int64", (8,)),
        "rewards": ("float32", (8,)),
        "terminated": ("bool", (8,)),
        "truncated": ("bool", (8,)),
    }


def test_arrays_with_a_row_each_keep_their_dtypes_and_trees_their_structure() -> None:
    data = columns()
    images = np.arange(N * 12, dtype=np.uint8).reshape(N, 2, 6)
    obs = {"image": images, "pose": (np.arange(N), data["obs"].astype(np.float64))}
    buffer = OfflineDataset(
        obs,
        obs,
        data["actions"].astype(np.float16),
        data["rewards"].astype(np.float64),
        data["terminated"],
        data["truncated"],
        extras={"goal": np.arange(N, dtype=np.int32)},
    )
    batch = buffer.sample(32, seed=0)
    step = batch["goal"]
    np.testing.assert_array_equal(batch["obs"]["image"], images[step])
    np.testing.assert_array_equal(batch["next_obs"]["pose"][0], step)
    np.testing.assert_array_equal(batch["obs"]["pose"][1], data["obs"][step])
    assert batch["obs"]["pose"][1].dtype == batch["rewards"].dtype == np.float64
    assert batch["actions"].dtype == np.float16
    windows = buffer.sample_trajectories(2, 5, seed=0)
    assert windows["obs"]["image"].shape == (2, 5, 2, 6)
    assert windows["goal"].dtype == np.int32
    assert windows["returns_to_go"].dtype == np.float64


def test_a_seed_gives_the_same_batch_everywhere() -> None:
    for seed in (0, 42, 2**64 - 1):
        expected = numbers_below(N, seed, 8)
        for _ in range(2):
            batch = OfflineDataset(*columns().values()).sample(8, seed=seed)
            assert batch["obs"][:, 0].tolist() == expected


def test_without_a_seed_batches_differ_and_the_buffers_seed_repeats_them() -> None:
    def draws(seed: int | None) -> list[list[float]]:
        buffer = OfflineDataset(*columns().values(), seed=seed)
        return [buffer.sample(16)["obs"][:, 0].tolist() for _ in range(4)]

    one, other = draws(None), draws(None)
    assert len({tuple(draw) for draw in one + other}) == 8
    assert draws(7) == draws(7)
    trajectories = OfflineDataset(*columns().values())
    first, second = (trajectories.sample_trajectories(16, 4)["obs"].tolist() for _ in range(2))
    assert first != second


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_draws_something_else() -> None:
    buffer = OfflineDataset(*columns().values(), seed=1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, buffer.sample(16)["obs"][:, 0].astype(np.uint8).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 16) != buffer.sample(16)["obs"][:, 0].astype(np.uint8).tobytes()
    os.close(read)
    os.close(write)


def test_steps_are_drawn_with_replacement_and_equally_often() -> None:
    buffer = OfflineDataset(*columns(steps=8, every=4).values())
    counts = Counter(buffer.sample(80_000, seed=5)["obs"][:, 0].tolist())
    assert len(counts) == 8
    # Six standard deviations are 562.
    assert all(abs(count - 10_000) < 562 for count in counts.values())


def test_normalised_observations_have_mean_0_and_spread_1() -> None:
    data = columns()
    data["obs"][:, 1] = 3.0
    data["next_obs"][:, 1] = 4.0
    buffer = OfflineDataset(*data.values(), normalize=True)
    mean, std = data["obs"].mean(0, np.float64), data["obs"].std(0, dtype=np.float64)
    stats = buffer.stats()
    np.testing.assert_allclose(stats.obs_mean, mean)
    np.testing.assert_allclose(stats.obs_std, std)
    batch = buffer.sample(5000, seed=0)
    step = batch["rewards"].astype(int)
    assert abs(batch["obs"][:, 0].mean()) < 0.05
    assert abs(batch["obs"][:, 0].std() - 1) < 0.05
    # What is constant is only shifted.
    assert set(batch["obs"][:, 1]) == {0.0}
    assert set(batch["next_obs"][:, 1]) == {1.0}
    np.testing.assert_allclose(batch["obs"][:, 2], (step - mean[2]) / std[2], rtol=1e-6)
    raw = data["next_obs"][7]
    np.testing.assert_array_equal(
        buffer.normalize_obs(raw)[2], np.float32((7.5 - mean[2]) / std[2])
    )
    plain = OfflineDataset(*data.values())
    np.testing.assert_allclose(plain.stats().obs_std, std)
    np.testing.assert_array_equal(plain.sample(9, seed=1)["obs"][:, 1], np.full(9, 3.0))


def test_padding_is_zero_also_where_zero_is_no_normal_value(tmp_path: Any) -> None:
    data = columns()
    data["obs"][:, 0] += 100
    for copy in (True, False):
        buffer = OfflineDataset(*data.values(), normalize=True, copy=copy)
        windows = buffer.sample_trajectories(20, 9, seed=3)
        assert not windows["mask"].all()
        for name, values in windows.data.items():
            assert not values[~windows["mask"]].any(), name


@pytest.mark.parametrize("padding", ["right", "left"])
@given(
    ends=st.lists(
        st.sampled_from(["", "", "", "terminated", "truncated"]), min_size=1, max_size=40
    ),
    seq_len=st.integers(1, 12),
    gamma=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=40, deadline=None)
def test_windows_are_those_of_a_plain_reading(
    padding: Any, ends: list[str], seq_len: int, gamma: float, seed: int
) -> None:
    steps = len(ends)
    number = np.arange(steps)
    terminated = np.array([end == "terminated" for end in ends])
    truncated = np.array([end == "truncated" for end in ends])
    rewards = (number + 1).astype(np.float64)
    buffer = OfflineDataset(
        number[:, None], number[:, None] + 1, number, rewards, terminated, truncated, gamma=gamma
    )
    batch = buffer.sample_trajectories(8, seq_len, seed=seed, padding=padding)
    last = {}
    for step in range(steps):
        following = [later for later in range(step, steps) if ends[later]]
        last[step] = following[0] if following else steps - 1
    assert buffer.num_episodes == len(set(last.values()))
    for row in range(8):
        mask = batch["mask"][row]
        first = int(batch["obs"][row][mask][0, 0])
        episode = range(min(s for s in last if last[s] == last[first]), last[first] + 1)
        expected = list(range(first, min(first + seq_len, last[first] + 1)))
        shift = seq_len - len(expected) if padding == "left" else 0
        there = np.zeros(seq_len, bool)
        there[shift : shift + len(expected)] = True
        np.testing.assert_array_equal(mask, there)
        np.testing.assert_array_equal(batch["obs"][row][mask][:, 0], expected)
        np.testing.assert_array_equal(
            batch["timesteps"][row][mask], np.array(expected) - episode[0]
        )
        np.testing.assert_array_equal(batch["terminated"][row][mask], terminated[expected])
        to_go = [
            sum(rewards[later] * gamma ** (later - step) for later in range(step, last[step] + 1))
            for step in expected
        ]
        np.testing.assert_allclose(batch["returns_to_go"][row][mask], to_go)


def test_returns_to_go_are_not_cut_at_the_windows_end() -> None:
    data = columns()
    data["rewards"][:] = 1
    windows = OfflineDataset(*data.values()).sample_trajectories(50, 2, seed=0)
    steps = windows["obs"][..., 2][windows["mask"]]
    np.testing.assert_array_equal(windows["returns_to_go"][windows["mask"]], 10 - steps)


def test_observations_that_have_the_next_ones_give_the_same_batches() -> None:
    data = columns()
    joined = []
    for first in range(0, N, 10):
        joined += [data["obs"][first : first + 10], data["next_obs"][first + 9 : first + 10]]
        data["next_obs"][first : first + 9] = data["obs"][first + 1 : first + 10]
    two = OfflineDataset(*data.values(), normalize=True)
    one = OfflineDataset(np.concatenate(joined), None, *list(data.values())[2:], normalize=True)
    for kind, sizes in (("sample", (64,)), ("sample_trajectories", (16, 7))):
        left, right = (getattr(buffer, kind)(*sizes, seed=2) for buffer in (one, two))
        for name, values in left.data.items():
            np.testing.assert_array_equal(values, right[name], name)


def test_long_observations_that_repeat_are_stored_once() -> None:
    steps = 300
    frames = np.random.default_rng(0).integers(0, 255, (steps + 1, 64, 64), np.uint8)
    ends = np.arange(steps) == steps - 1
    rest = (np.zeros(steps, np.int64), np.ones(steps, np.float32), ends, ~ends & False)
    buffer = OfflineDataset(frames[:-1], frames[1:], *rest, extras={"step": np.arange(steps)})
    assert buffer.stats().memory_bytes < 1.2 * frames.nbytes
    other = OfflineDataset(frames[:-1], frames[1:].copy() // 2, *rest)
    assert other.stats().memory_bytes > 1.9 * frames.nbytes
    batch = buffer.sample(64, seed=0)
    np.testing.assert_array_equal(batch["obs"], frames[batch["step"]])
    np.testing.assert_array_equal(batch["next_obs"], frames[batch["step"] + 1])


def test_stats_are_of_episodes_with_the_one_that_goes_on() -> None:
    data = {name: values[:25] for name, values in columns().items()}
    stats = OfflineDataset(*data.values()).stats()
    returns = np.array([45, 45, 10])
    expected = {
        "size": 25,
        "episodes": 3,
        "last_episode_complete": False,
        "obs_dim": 3,
        "act_dim": 2,
        "mean_return": returns.mean(),
        "std_return": returns.std(),
        "min_return": 10.0,
        "max_return": 45.0,
        "mean_episode_length": 25 / 3,
        "min_episode_length": 5,
        "max_episode_length": 10,
    }
    assert {name: getattr(stats, name) for name in expected} == pytest.approx(expected)
    np.testing.assert_allclose(stats.obs_mean, data["obs"].mean(0))


def test_what_is_given_may_change_afterwards_and_batches_are_the_callers() -> None:
    data = columns()
    buffer = OfflineDataset(*data.values())
    before = buffer.sample(32, seed=1)
    kept = {name: values.copy() for name, values in before.data.items()}
    for values in data.values():
        values[...] = 0
    after = buffer.sample(32, seed=1)
    after.data["rewards"] += 5
    for name, values in buffer.sample(32, seed=1).data.items():
        np.testing.assert_array_equal(values, kept[name])
        np.testing.assert_array_equal(before[name], kept[name])


@pytest.mark.parametrize(("kind", "sizes"), [("sample", (64,)), ("sample_trajectories", (8, 5))])
def test_a_batch_is_written_into_arrays_that_are_there(kind: str, sizes: Any) -> None:
    buffer = OfflineDataset(*columns().values())
    draw = getattr(buffer, kind)
    expected = {name: values.copy() for name, values in draw(*sizes, seed=3).data.items()}
    out = {name: np.zeros_like(values) for name, values in expected.items()}
    assert draw(*sizes, seed=3, out=out).data is out
    for name, values in expected.items():
        np.testing.assert_array_equal(out[name], values)
    wrong = {
        "rewards": out["rewards"].astype(np.float64),
        "actions": out["actions"][:-1],
        "obs": np.asfortranarray(out["obs"]),
    }
    for name, values in wrong.items():
        with pytest.raises(SpecError):
            draw(*sizes, out={**out, name: values})
    with pytest.raises(SpecError):
        draw(*sizes, out={"obs": out["obs"]})
    with pytest.raises(SpecError, match="share memory"):
        draw(*sizes, out={**out, "terminated": out["truncated"]})
    out["rewards"].flags.writeable = False
    with pytest.raises(SpecError):
        draw(*sizes, out=out)


def test_a_batch_is_not_written_over_the_data_that_it_is_read_from() -> None:
    data = columns()
    buffer = OfflineDataset(*data.values(), copy=False)
    out = buffer.sample(N - 1)
    with pytest.raises(SpecError, match="over the memory of the data set"):
        buffer.sample(N - 1, out={**out.data, "obs": data["obs"][1:]})


def test_many_threads_draw_what_one_draws() -> None:
    steps = 4000
    obs = np.repeat(np.arange(steps, dtype=np.float32)[:, None], 200, axis=1)
    ends = np.arange(steps) % 100 == 99
    rest = (np.zeros(steps, np.int64), np.ones(steps, np.float32), ends, ~ends & False)
    buffer = OfflineDataset(obs, obs + 1, *rest)
    expected = {seed: buffer.sample(512, seed=seed)["obs"].copy() for seed in range(8)}
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(20):
            batch = buffer.sample(512, seed=seed)
            if not (
                np.array_equal(batch["obs"], expected[seed])
                and np.array_equal(batch["next_obs"], expected[seed] + 1)
            ):
                wrong.append(seed)
            buffer.sample(64)
            buffer.sample_trajectories(8, 30)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def change(**changes: Any) -> dict[str, Any]:
    return {**columns(), **changes}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (change(rewards=np.ones(N - 1)), "`terminated`: expected 59 rows"),
        (change(obs=np.ones((N - 1, 3))), r"`obs`: expected 60 rows, got shape \(59, 3\)"),
        (change(obs=np.ones(N * 3 + 1)), "`obs`: a flat array of 181 elements"),
        (change(next_obs=np.ones((N, 4), np.float32)), r"`next_obs`: expected float32\[3\]"),
        (change(next_obs={"a": np.ones((N, 3))}), "`next_obs`: expected the structure"),
        (change(next_obs=None), r"`obs`: expected 66 rows, got shape \(60, 3\)"),
        (change(actions=np.ones((N, 2), object)), "`actions`: expected numbers"),
        (change(actions=np.float32(1)), "`actions`: expected 60 rows, got a scalar"),
        (change(actions={}), "`actions`: expected arrays"),
        (
            change(rewards=np.full(N, np.nan)),
            "`rewards`: expected finite numbers, got NaN at step 0",
        ),
        (change(rewards=np.ones((N, 2))), "`rewards`: expected one number for each step"),
        (change(rewards=np.full(N, "a")), "`rewards`: expected real numbers"),
        (change(terminated=np.full(N, 2)), "`terminated`: expected 0 or 1, got 2 at step 0"),
        (
            change(truncated=np.full(N, 3, np.uint8)),
            "`truncated`: expected 0 or 1, got 3 at step 0",
        ),
        (change(truncated=np.full(N, 1j)), "`truncated`: expected booleans"),
        (columns(0), "the data set has no steps"),
        (change(obs=np.ma.masked_array(np.ones((N, 3)), True)), "masked"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(data: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=text) as caught:
        OfflineDataset(*data.values())
    assert isinstance(caught.value, (EchoicError, ValueError))


@pytest.mark.parametrize(
    ("options", "data", "text"),
    [
        (
            {"normalize": True},
            change(obs=np.ones((N, 3), np.uint8), next_obs=np.ones((N, 3), np.uint8)),
            "normalize: expected",
        ),
        ({"normalize": True}, change(obs=np.full((N, 3), np.inf, np.float32)), "`obs`: element 0"),
        ({"gamma": 1.5}, columns(), "gamma: expected a number from 0 to 1, got 1.5"),
        ({"extras": {"mask": np.ones(N)}}, columns(), "`mask` is the name of another column"),
        ({"extras": {"goal": np.ones((3, 2))}}, columns(), "`goal`: expected 60 rows"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: Any, data: Any, text: str) -> None:
    with pytest.raises(EchoicError, match=text):
        OfflineDataset(*data.values(), **options)


@pytest.mark.parametrize(
    "call",
    [
        lambda buffer: buffer.sample(0),
        lambda buffer: buffer.sample(-1),
        lambda buffer: buffer.sample(1.5),
        lambda buffer: buffer.sample(4, seed=-1),
        lambda buffer: buffer.sample(4, seed=2**64),
        lambda buffer: buffer.sample_trajectories(4, 0),
        lambda buffer: buffer.sample_trajectories(4, 4, padding="middle"),
        lambda buffer: buffer.sample_trajectories(4, 4, seed="a"),
    ],
)
def test_arguments_out_of_range_are_refused(call: Any) -> None:
    with pytest.raises(ReplayError, match=r"expected .*, got"):
        call(OfflineDataset(*columns().values()))


def test_a_batch_that_no_memory_holds_is_an_error() -> None:
    buffer = OfflineDataset(*columns().values())
    with pytest.raises(MemoryError):
        buffer.sample(2**60)
    with pytest.raises(MemoryError):
        buffer.sample_trajectories(2**40, 2**40)
