"""Where data sets come from: archives, folders, Parquet, HDF5, Minari, and damaged files."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.buffers import OfflineDataset
from echoic.errors import SpecError
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS, EVERY = 40, 8


def dataset() -> dict[str, Any]:
    """Five episodes of eight steps: three that are terminated and two that are cut off."""
    number = np.arange(STEPS)
    ends = number % EVERY == EVERY - 1
    odd = number // EVERY % 2 == 1
    # The observations of an episode go on from 100 times its number.
    obs = (number // EVERY * 100 + number % EVERY).astype(np.float32)[:, None] * [1, 2]
    return {
        "obs": obs.astype(np.float32),
        "next_obs": (obs + np.array([1, 2])).astype(np.float32),
        "actions": number.astype(np.int64),
        "rewards": number.astype(np.float32),
        "terminated": ends & ~odd,
        "truncated": ends & odd,
    }


def same(buffer: OfflineDataset, expected: OfflineDataset) -> None:
    """Both draw the same steps and windows."""
    assert len(buffer) == len(expected)
    for kind, sizes in (("sample", (100,)), ("sample_trajectories", (10, 6))):
        left, right = (getattr(one, kind)(*sizes, seed=4) for one in (buffer, expected))
        assert list(left.data) == list(right.data)
        for name, values in right.data.items():
            np.testing.assert_array_equal(left[name], values, name)
            assert left[name].dtype == values.dtype, name


def expected() -> OfflineDataset:
    return OfflineDataset(*dataset().values())


NAMES = {
    "d4rl": {
        "obs": "observations",
        "next_obs": "next_observations",
        "terminated": "terminals",
        "truncated": "timeouts",
    },
    "minari": {"obs": "observations", "terminated": "terminations", "truncated": "truncations"},
    "own": {},
}


def named(names: str) -> dict[str, Any]:
    return {NAMES[names].get(name, name): values for name, values in dataset().items()}


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_is_read_under_any_usual_names(tmp_path: Path, names: str, save: Any) -> None:
    save(tmp_path / "data.npz", **named(names))
    same(OfflineDataset.from_npz(tmp_path / "data.npz"), expected())


def test_an_archive_is_mapped_where_it_lies(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **dataset())
    buffer = OfflineDataset.from_npz(tmp_path / "data.npz", mmap=True)
    assert buffer.stats().memory_bytes == 0
    same(buffer, expected())
    own = OfflineDataset.from_npz(tmp_path / "data.npz", mmap=True, copy=True)
    assert own.stats().memory_bytes > 0
    same(own, expected())


def test_a_folder_of_arrays_is_mapped(tmp_path: Path) -> None:
    for name, values in dataset().items():
        np.save(tmp_path / f"{name}.npy", values)
    buffer = OfflineDataset.from_npz(tmp_path, normalize=True)
    assert buffer.stats().memory_bytes == 0
    same(buffer, OfflineDataset(*dataset().values(), normalize=True))


def test_large_rows_of_a_mapped_file_come_in_the_order_that_was_drawn(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (STEPS, 90, 90), np.uint8)
    np.savez(tmp_path / "data.npz", **{**dataset(), "obs": frames, "next_obs": frames[::-1]})
    buffer = OfflineDataset.from_npz(tmp_path / "data.npz", mmap=True)
    batch = buffer.sample(64, seed=1)
    np.testing.assert_array_equal(batch["obs"], frames[batch["actions"]])
    np.testing.assert_array_equal(batch["next_obs"], frames[::-1][batch["actions"]])


def test_names_with_slashes_are_trees_and_own_names_and_extras_are_taken(tmp_path: Path) -> None:
    data = dataset()
    arrays = {"obs/a": data.pop("obs"), "obs/b/c": np.arange(STEPS)}
    del data["next_obs"]
    arrays |= {f"next_{name}": values for name, values in arrays.items()}
    data["prize"] = data.pop("rewards")
    np.savez(tmp_path / "data.npz", **arrays, **data, goal=np.arange(STEPS), other=np.ones(3))
    buffer = OfflineDataset.from_npz(
        tmp_path / "data.npz", names={"rewards": "prize"}, extras=["goal"]
    )
    batch = buffer.sample(16, seed=4)
    np.testing.assert_array_equal(batch["obs"]["b"]["c"], batch["goal"])
    np.testing.assert_array_equal(batch["rewards"], batch["goal"])


def test_missing_next_observations_are_those_of_the_next_step(tmp_path: Path) -> None:
    data = dataset()
    del data["next_obs"]
    np.savez(tmp_path / "data.npz", **data)
    buffer = OfflineDataset.from_npz(tmp_path / "data.npz")
    # The last steps of the two episodes that were cut off are gone.
    assert len(buffer) == STEPS - 2
    assert buffer.num_episodes == 5
    batch = buffer.sample(400, seed=0)
    assert set(batch["actions"].tolist()) == set(range(STEPS)) - {15, 31}
    alive = ~batch["terminated"]
    np.testing.assert_array_equal(batch["next_obs"][alive], batch["obs"][alive] + [1, 2])
    assert set(batch["actions"][batch["truncated"]].tolist()) == {14, 30}


def test_an_archive_without_truncations_ends_episodes_where_they_are_terminated(
    tmp_path: Path,
) -> None:
    data = dataset()
    del data["truncated"]
    np.savez(tmp_path / "data.npz", **data)
    assert OfflineDataset.from_npz(tmp_path / "data.npz").num_episodes == 3


def test_what_an_archive_lacks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, obs=np.ones((3, 2)), rewards=np.ones(3))
    with pytest.raises(SpecError, match="expected `actions` or `action`, got `obs`, `rewards`"):
        OfflineDataset.from_npz(path)
    with pytest.raises(SpecError, match="names: expected some of obs"):
        OfflineDataset.from_npz(path, names={"action": "a"})
    with pytest.raises(SpecError, match="expected `a`, got"):
        OfflineDataset.from_npz(path, names={"actions": "a"})
    np.savez(path, **dataset())
    with pytest.raises(SpecError, match="expected the extra `goal`"):
        OfflineDataset.from_npz(path, extras=["goal"])
    with pytest.raises(FileNotFoundError):
        OfflineDataset.from_npz(tmp_path / "other.npz")


class Trap:
    """Pickled, it would write a file when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (self.path, "w"))


@pytest.mark.parametrize("mapped", [False, True])
def test_objects_in_an_archive_are_refused_and_never_loaded(tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "data.npz"
    trap = np.array([Trap(str(tmp_path / "trapped"))] * STEPS, object)
    np.savez(path, **{**dataset(), "actions": trap})
    with pytest.raises(SpecError, match="`actions`: expected numbers, got objects"):
        OfflineDataset.from_npz(path, mmap=mapped)
    assert not (tmp_path / "trapped").exists()


def archive(**members: bytes) -> bytes:
    """An archive of these members beside good ones."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, values in dataset().items():
            if name not in members:
                member = io.BytesIO()
                np.save(member, values)
                made.writestr(f"{name}.npy", member.getvalue())
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file.getvalue()


def header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY\x09\x00",
        header("(40,)") + bytes(159),
        header("(1000000000000000,)"),
        header("(-40, -1)") + bytes(160),
        header("(2**40,)"),
        header("(40,)", "'<x9'") + bytes(160),
    ],
)
def test_a_member_that_is_not_what_it_says_is_named(
    tmp_path: Path, content: bytes, mapped: bool
) -> None:
    (tmp_path / "data.npz").write_bytes(archive(rewards=content))
    with pytest.raises(SpecError, match="`rewards`: expected"):
        OfflineDataset.from_npz(tmp_path / "data.npz", mmap=mapped)


def test_a_compressed_archive_is_not_mapped(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "data.npz", **dataset())
    with pytest.raises(SpecError, match=r"`obs` is compressed, so it can't be mapped"):
        OfflineDataset.from_npz(tmp_path / "data.npz", mmap=True)


@given(data=st.data(), mapped=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_damaged_archive_is_an_error_or_harmless(
    tmp_path_factory: Any, data: Any, mapped: bool
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "data.npz"
    content = bytearray(archive())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(content))))
    path.write_bytes(content[:cut])
    try:
        buffer = OfflineDataset.from_npz(path, mmap=mapped)
    except SpecError:
        return
    assert buffer.sample(8)["rewards"].shape == (8,)


@dataclass
class Episode:
    observations: Any
    actions: Any
    rewards: Any
    terminations: Any
    truncations: Any


class Episodes:
    """Has episodes as a Minari data set has them."""

    total_episodes = 5
    total_steps = STEPS

    def __init__(self, tree: bool = False) -> None:
        self._tree = tree

    def iterate_episodes(self) -> Iterator[Episode]:
        data = dataset()
        for first in range(0, STEPS, EVERY):
            part = slice(first, first + EVERY)
            last = data["next_obs"][part.stop - 1 : part.stop]
            obs: Any = np.concatenate([data["obs"][part], last])
            yield Episode(
                {"a": obs, "b": (obs[:, 0], obs)} if self._tree else obs,
                data["actions"][part],
                data["rewards"][part],
                data["terminated"][part],
                data["truncated"][part],
            )


def test_a_data_set_of_episodes_is_read() -> None:
    same(OfflineDataset.from_minari(Episodes()), expected())
    tree = OfflineDataset.from_minari(Episodes(tree=True)).sample(9, seed=4)
    np.testing.assert_array_equal(tree["obs"]["b"]["0"], tree["obs"]["a"][:, 0])
    np.testing.assert_array_equal(tree["next_obs"]["a"], expected().sample(9, seed=4)["next_obs"])


def test_an_episode_with_flags_before_its_end_is_several(tmp_path: Path) -> None:
    class Long(Episodes):
        def iterate_episodes(self) -> Iterator[Episode]:
            flags = np.array([0, 1, 0, 0, 0], bool)
            obs = np.arange(6, dtype=np.float32)[:, None]
            yield Episode(obs, np.zeros(5), np.ones(5), flags, flags & False)

    buffer = OfflineDataset.from_minari(Long())
    assert (buffer.num_episodes, buffer.stats().last_episode_complete) == (2, True)
    batch = buffer.sample(50, seed=0)
    np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 1)
    assert set(batch["obs"][batch["terminated"]].ravel()) == {1}
    assert set(batch["obs"][batch["truncated"]].ravel()) == {4}


def test_a_cache_is_written_once_and_mapped(tmp_path: Path) -> None:
    cache = tmp_path / "some" / "cache"
    buffer = OfflineDataset.from_minari(Episodes(), cache_dir=cache)
    same(buffer, expected())
    assert buffer.stats().memory_bytes == 0
    assert [path.name for path in cache.parent.iterdir()] == ["cache"]

    class Unread(Episodes):
        def iterate_episodes(self) -> Iterator[Episode]:
            raise AssertionError("the cache has it")

    Unread.__name__ = "Episodes"
    same(OfflineDataset.from_minari(Unread(), cache_dir=cache), expected())
    same(OfflineDataset.from_npz(cache), expected())
    Unread.total_steps = 7
    with pytest.raises(SpecError, match="expected a folder made from Minari's Episodes of 7 steps"):
        OfflineDataset.from_minari(Unread(), cache_dir=cache)


def test_two_that_write_one_cache_at_once_both_have_it(tmp_path: Path) -> None:
    class Overtaken(Episodes):
        def iterate_episodes(self) -> Iterator[Episode]:
            yield from super().iterate_episodes()
            same(OfflineDataset.from_minari(Episodes(), cache_dir=tmp_path / "cache"), expected())

    Overtaken.__name__ = "Episodes"
    same(OfflineDataset.from_minari(Overtaken(), cache_dir=tmp_path / "cache"), expected())
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    Overtaken.__name__ = "Others"
    with pytest.raises(SpecError, match="got one made from Minari's Episodes"):
        OfflineDataset.from_minari(Overtaken(), cache_dir=tmp_path / "cache")


def test_a_cache_of_a_part_is_not_that_of_another_part(tmp_path: Path) -> None:
    part = Episodes()
    part.episode_indices = np.array([0, 1])
    OfflineDataset.from_minari(part, cache_dir=tmp_path / "cache")
    part.episode_indices = np.array([2, 3])
    with pytest.raises(SpecError, match="expected a folder made from Minari's Episodes"):
        OfflineDataset.from_minari(part, cache_dir=tmp_path / "cache")


def test_a_terminal_gets_a_bar_and_the_same_data(monkeypatch: Any) -> None:
    asked: list[Any] = []

    class Shown:
        def __init__(self, what: str, **_: Any) -> None:
            asked.append(what)

        def start(self) -> None: ...

        def update(self, done: int, total: int | None = None, /) -> None:
            asked.append((done, total))

        def stop(self) -> None: ...

    monkeypatch.setattr("echoic._progress._is_watched", lambda: True)
    monkeypatch.setattr("echoic._progress._Shown", Shown)
    same(OfflineDataset.from_minari(Episodes()), expected())
    assert asked == ["reading the data set", *((done, 5) for done in range(5))]


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    class Broken(Episodes):
        def iterate_episodes(self) -> Iterator[Episode]:
            yield from list(super().iterate_episodes())[:2]
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        OfflineDataset.from_minari(Broken(), cache_dir=tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "index", ["", "[]", '{"source": 1, "arrays": {}}', '{"source": "", "arrays": {"obs": "../x"}}']
)
def test_a_cache_with_a_wrong_index_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / "data.json").write_text(index)
    with pytest.raises(SpecError, match="expected a"):
        OfflineDataset.from_npz(tmp_path)
    assert json.loads('"still here"')


def test_episodes_of_other_forms_are_refused() -> None:
    class Mixed(Episodes):
        def iterate_episodes(self) -> Iterator[Episode]:
            for number, episode in enumerate(super().iterate_episodes()):
                if number == 3:
                    episode.actions = episode.actions.astype(np.float32)
                yield episode

    with pytest.raises(
        SpecError, match=r"`actions`: expected int64\[\], got float32\[\] in part 3"
    ):
        OfflineDataset.from_minari(Mixed())

    class Short(Episodes):
        def iterate_episodes(self) -> Iterator[Episode]:
            for episode in super().iterate_episodes():
                episode.observations = episode.observations[:-1]
                yield episode

    with pytest.raises(SpecError, match="episode 0: `observations`: expected 9 rows"):
        OfflineDataset.from_minari(Short())


def test_parquet_files_are_read_and_converted(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    data = dataset()
    fixed = pa.FixedSizeListArray.from_arrays(data["obs"].ravel(), 2)
    columns = {
        "obs": fixed,
        "next_obs": data["next_obs"].tolist(),
        **{name: data[name] for name in ("actions", "rewards", "terminated", "truncated")},
        "goal": np.arange(STEPS),
        "unread": ["text"] * STEPS,
    }
    table = pa.table(columns).cast(
        pa.schema(
            [
                pa.field(name, pa.list_(pa.float32()) if name == "next_obs" else column.type)
                for name, column in zip(columns, pa.table(columns).columns, strict=True)
            ]
        )
    )
    pq.write_table(table.slice(0, 25), tmp_path / "a.parquet")
    pq.write_table(table.slice(25), tmp_path / "b.parquet")
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    same(OfflineDataset.from_parquet(files), expected())
    same(OfflineDataset.from_parquet(tmp_path), expected())
    cached = OfflineDataset.from_parquet(files, cache_dir=tmp_path / "cache")
    assert cached.stats().memory_bytes == 0
    same(cached, expected())
    extra = OfflineDataset.from_parquet(files, extras=["goal"]).sample(9)
    np.testing.assert_array_equal(extra["goal"], extra["actions"])
    with pytest.raises(SpecError, match="made from"):
        OfflineDataset.from_parquet(files[:1], cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("rows_of_block", [1, 3, 8, 100])
def test_parquet_files_without_next_observations_are_mapped(
    tmp_path: Path, rows_of_block: int, monkeypatch: Any
) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("echoic.buffers._sources.arrow._ROWS", rows_of_block)
    data = dataset()
    del data["next_obs"]
    # Episodes of one step, of which the first two are cut off; and one at the end without an end.
    data["truncated"][[0, 1]] = True
    data["terminated"][-1] = False
    state = pa.StructArray.from_arrays(
        [pa.array(list(data["obs"])), pa.array(data["actions"])], "ab"
    )
    pq.write_table(pa.table({**data, "obs": state}), tmp_path / "data.parquet")
    np.savez(tmp_path / "data.npz", **{**data, "obs": data["obs"]})
    read = OfflineDataset.from_parquet(tmp_path / "data.parquet", cache_dir=tmp_path / "cache")
    assert read.stats().memory_bytes == 0
    plain = OfflineDataset.from_npz(tmp_path / "data.npz")
    assert len(read) == len(plain) == STEPS - 5
    assert not read.stats().last_episode_complete
    batch, expected = read.sample(200, seed=3), plain.sample(200, seed=3)
    np.testing.assert_array_equal(batch["obs"]["b"], batch["actions"])
    for name in ("obs", "next_obs"):
        np.testing.assert_array_equal(batch[name]["a"], expected[name])
    for name in ("actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(batch[name], expected[name])


def test_parquet_columns_that_are_no_rows_of_numbers_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    good = {name: values.tolist() for name, values in dataset().items()}
    path = tmp_path / "data.parquet"
    for name, values, text in (
        ("actions", [None, *good["actions"][1:]], "`actions`: expected values, got 1 nulls"),
        ("obs", [[1.0], *good["obs"][1:]], "`obs`: expected lists of one length"),
        ("rewards", ["a"] * STEPS, "`rewards`: expected numbers"),
    ):
        pq.write_table(pa.table({**good, name: values}), path)
        with pytest.raises(SpecError, match=text):
            OfflineDataset.from_parquet(path)
    pq.write_table(pa.table({"obs": [1.0]}), path)
    with pytest.raises(SpecError, match="expected `actions`"):
        OfflineDataset.from_parquet(path)
    path.write_bytes(b"PAR1" + bytes(40))
    with pytest.raises(SpecError, match="expected an intact Parquet file"):
        OfflineDataset.from_parquet(path)
    with pytest.raises(SpecError, match="got none in"):
        OfflineDataset.from_parquet([])


def write_recording(path: Path) -> None:
    """A file as Minari's recorder leaves it."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for number, episode in enumerate(Episodes(tree=True).iterate_episodes()):
            group = file.create_group(f"episode_{number}")
            for name, values in vars(episode).items():
                if name == "observations":
                    values = {"a": values["a"], "c": values["b"][0]}  # noqa: PLW2901
                    for key, leaf in values.items():
                        group[f"observations/{key}"] = leaf
                else:
                    group[name] = values


def test_a_recording_is_read_and_converted(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    (tmp_path / "set" / "data").mkdir(parents=True)
    write_recording(tmp_path / "set" / "data" / "main_data.hdf5")
    for options in ({}, {"cache_dir": tmp_path / "cache"}):
        buffer = OfflineDataset.from_gymnasium_recording(tmp_path / "set", **options)
        batch, other = buffer.sample(20, seed=1), expected().sample(20, seed=1)
        np.testing.assert_array_equal(batch["obs"]["a"], other["obs"])
        np.testing.assert_array_equal(batch["next_obs"]["c"], other["next_obs"][:, 0])
        np.testing.assert_array_equal(batch["terminated"], other["terminated"])


def test_a_flat_recording_is_read_with_the_steps_of_its_names(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "flat.hdf5", "w") as file:
        for name, values in named("d4rl").items():
            file[name] = values
        file["infos/qpos"] = np.ones((STEPS, 3))
    same(OfflineDataset.from_gymnasium_recording(tmp_path / "flat.hdf5"), expected())
    np.savez(tmp_path / "flat.npz", **dataset())
    same(OfflineDataset.from_gymnasium_recording(tmp_path / "flat.npz"), expected())


def test_links_out_of_a_recording_are_not_followed(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["rewards"] = np.ones(EVERY, np.float32)
    write_recording(tmp_path / "data.hdf5")
    with h5py.File(tmp_path / "data.hdf5", "a") as file:
        del file["episode_2/rewards"]
        file["episode_2/rewards"] = h5py.ExternalLink("secret.hdf5", "rewards")
    with pytest.raises(SpecError, match="`episode_2/rewards`: a link to another file"):
        OfflineDataset.from_gymnasium_recording(tmp_path / "data.hdf5")
    write_recording(tmp_path / "soft.hdf5")
    with h5py.File(tmp_path / "soft.hdf5", "a") as file:
        del file["episode_2/rewards"]
        file["other"] = h5py.ExternalLink("secret.hdf5", "/")
        file["episode_2/rewards"] = h5py.SoftLink("/other/rewards")
    with pytest.raises(SpecError, match="`episode_2/rewards`: a link to another file"):
        OfflineDataset.from_gymnasium_recording(tmp_path / "soft.hdf5")
    (tmp_path / "data.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64))
    with pytest.raises(SpecError, match="expected an intact HDF5 file"):
        OfflineDataset.from_gymnasium_recording(tmp_path / "data.hdf5")
    with pytest.raises(SpecError, match=r"expected a file main_data\.hdf5"):
        OfflineDataset.from_gymnasium_recording(tmp_path)


def test_a_group_that_contains_itself_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    write_recording(tmp_path / "data.hdf5")
    with h5py.File(tmp_path / "data.hdf5", "a") as file:
        file["episode_2/observations/again"] = file["episode_2/observations"]
    with pytest.raises(SpecError, match="expected at most 16 groups in each other"):
        OfflineDataset.from_gymnasium_recording(tmp_path / "data.hdf5")
