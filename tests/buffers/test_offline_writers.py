"""Episodes in order, from buffers and data sets, and what is written of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic import Server, Table, connect
from echoic.buffers import OfflineDataset, PrioritizedReplayBuffer, ReplayBuffer
from echoic.errors import ArgumentError, SpecError
from episodic import all_same, data_sets, made, same
from hypothesis import given, settings

if TYPE_CHECKING:
    from pathlib import Path


@given(data_sets())
@settings(max_examples=30, deadline=None)
def test_episodes_come_in_order(given: Any) -> None:
    dataset, expected = given
    all_same(dataset.episodes(), expected)


def test_episodes_longer_than_a_block_are_joined(monkeypatch: Any) -> None:
    monkeypatch.setattr("echoic.buffers.offline._BLOCK_BYTES", 100)
    dataset, expected = made(
        [7, 30, 1, 2], {"a": ("float32", (3,)), "actions": ("int64", ())}, [True, False, True, True]
    )
    all_same(dataset.episodes(), expected)


def test_an_unfinished_episode_is_the_last() -> None:
    obs = np.arange(5, dtype=np.float32)[:, None]
    none = np.zeros(5, bool)
    dataset = OfflineDataset(obs, obs + 1, np.zeros(5, int), np.ones(5), none, none)
    (episode,) = dataset.episodes()
    assert episode["obs"].ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert not (episode["terminated"] | episode["truncated"]).any()


def test_steps_that_do_not_follow_each_other_are_no_episodes() -> None:
    obs = np.arange(5, dtype=np.float32)[:, None]
    none = np.zeros(5, bool)
    dataset = OfflineDataset(obs, obs + 3, np.zeros(5, int), np.ones(5), none, none)
    with pytest.raises(SpecError, match="`next_obs`: expected the observation of the next step"):
        list(dataset.episodes())


def buffer_of(cls: Any, **settings: Any) -> Any:
    state = {"s": np.zeros(2, np.float32)}
    example = {"obs": state, "actions": 0, "rewards": np.float32(0), "terminated": False}
    more = {"truncated": False, "next_obs": state, "goal": {"x": np.int32(0)}}
    return cls({**example, **more}, 100, seed=0, **settings)


def step(env: int, number: int, **flags: bool) -> dict[str, Any]:
    value = np.float32(100 * env + number)
    return {
        "obs": {"s": np.array([value, 0], np.float32)},
        "next_obs": {"s": np.array([value + 1, 0], np.float32)},
        "actions": 100 * env + number,
        "rewards": value,
        "terminated": flags.get("terminated", False),
        "truncated": flags.get("truncated", False),
        "goal": {"x": env},
    }


@pytest.mark.parametrize("cls", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("next_obs", ["stored", "shared"])
def test_a_buffer_has_the_episodes_of_each_environment(cls: Any, next_obs: str) -> None:
    buffer = buffer_of(cls, episodes=True, next_obs=next_obs)
    for number in range(6):
        for env in range(2):
            buffer.add(step(env, number, terminated=env == 0 and number == 2), env=env)
    episodes = list(OfflineDataset.from_buffer(buffer).episodes())
    assert [episode["actions"].tolist() for episode in episodes] == [
        [0, 1, 2],
        [3, 4, 5],
        [100, 101, 102, 103, 104, 105],
    ]
    assert [bool(episode["terminated"][-1]) for episode in episodes] == [True, False, False]
    assert [bool(episode["truncated"][-1]) for episode in episodes] == [False, True, False]
    for episode in episodes:
        assert episode["goal"]["x"].tolist() == (episode["actions"] // 100).tolist()
        assert episode["obs"]["s"][:-1, 0].tolist() == episode["actions"].tolist()


def test_a_buffer_without_episodes_is_one_environment() -> None:
    buffer = buffer_of(ReplayBuffer)
    for number in range(5):
        buffer.add(step(0, number, truncated=number == 1))
    episodes = OfflineDataset.from_buffer(buffer).episodes()
    assert [episode["actions"].tolist() for episode in episodes] == [[0, 1], [2, 3, 4]]


def test_ends_that_the_buffer_was_told_of_end_episodes() -> None:
    buffer = buffer_of(ReplayBuffer, episodes=True)
    for number in range(4):
        buffer.add(step(0, number))
        if number == 1:
            buffer.end_episode()
    episodes = OfflineDataset.from_buffer(buffer).episodes()
    assert [episode["actions"].tolist() for episode in episodes] == [[0, 1], [2, 3]]


def test_a_buffer_of_other_transitions_is_refused() -> None:
    buffer = ReplayBuffer({"obs": np.zeros(2), "rewards": 0.0}, 10)
    buffer.add({"obs": np.zeros(2), "rewards": 0.0})
    with pytest.raises(SpecError, match="the buffer: expected `actions`"):
        OfflineDataset.from_buffer(buffer)


def as_frames(episode: dict[str, Any]) -> dict[str, Any]:
    """What LeRobot keeps of an episode: its last step only if it was terminated."""
    steps = len(episode["rewards"]) - bool(episode["truncated"][-1])
    kept = {name: cut(tree, steps) for name, tree in episode.items() if name != "obs"}
    flags = {"terminated": episode["terminated"][:steps], "truncated": np.zeros(steps, bool)}
    last = steps - 1 if episode["terminated"][-1] else steps
    obs = {
        name: np.concatenate([leaf[:steps], leaf[last : last + 1]])
        for name, leaf in episode["obs"].items()
    }
    if steps and not episode["terminated"][-1]:
        flags["truncated"][-1] = True
    return {**kept, **flags, "obs": obs}


def cut(tree: Any, rows: int) -> Any:
    return {k: v[:rows] for k, v in tree.items()} if isinstance(tree, dict) else tree[:rows]


@given(data_sets())
@settings(max_examples=25, deadline=None)
def test_lerobot_keeps_all_but_what_follows_the_last_step(
    tmp_path_factory: Any, given: Any
) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("PIL")
    dataset, episodes = given
    path = tmp_path_factory.mktemp("lerobot") / "data"
    dataset.to_lerobot(path, fps=10, task="draw")
    expected = [frames for frames in map(as_frames, episodes) if len(frames["rewards"])]
    if not expected:
        return
    read = OfflineDataset.from_lerobot(path, extras=["x.y"])
    found = list(read.episodes())
    for episode in found:
        episode["x"] = {"y": episode.pop("x.y")}
    # A flat column of floats has rows of one float32, in all data sets.
    for episode in (*found, *expected):
        episode["x"] = {"y": episode["x"]["y"].astype(np.float32).ravel()}
    all_same(found, expected)


def test_lerobot_files_have_what_its_reader_asks_for(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    dataset, _ = made([3, 2], {"a": ("float32", (2,)), "actions": ("int64", ())}, [True, False])
    dataset.to_lerobot(tmp_path / "data", fps=5, task="draw")
    info = json.loads((tmp_path / "data" / "meta" / "info.json").read_text())
    assert (info["codebase_version"], info["total_episodes"], info["total_frames"]) == (
        "v3.0",
        2,
        5,
    )
    assert info["features"]["observation.a"] == {"dtype": "float32", "shape": [2], "names": None}
    table = pq.read_table(tmp_path / "data" / "data" / "chunk-000" / "file-000.parquet")
    assert table["timestamp"].to_pylist() == pytest.approx([0, 0.2, 0.4, 0, 0.2])
    assert table["next.done"].to_pylist() == [False, False, True, False, True]
    assert table["episode_index"].to_pylist() == [0, 0, 0, 1, 1]
    assert table["index"].to_pylist() == [0, 1, 2, 3, 4]
    episodes = pq.read_table(tmp_path / "data" / "meta" / "episodes").to_pylist()
    assert [(e["dataset_from_index"], e["dataset_to_index"]) for e in episodes] == [(0, 3), (3, 5)]
    stats = json.loads((tmp_path / "data" / "meta" / "stats.json").read_text())
    a = np.concatenate([np.asarray(row) for row in table["observation.a"].to_pylist()]).reshape(
        5, 2
    )
    np.testing.assert_allclose(stats["observation.a"]["mean"], a.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats["observation.a"]["std"], a.std(0), rtol=1e-5)
    np.testing.assert_array_equal(stats["observation.a"]["max"], a.max(0))


def test_lerobot_files_are_of_a_limited_size(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("echoic.buffers._writers.lerobot._FILE_BYTES", 10_000)
    monkeypatch.setattr("echoic.buffers._writers.lerobot._CHUNK_FILES", 2)
    lengths = [60] * 12
    dataset, episodes = made(
        lengths, {"a": ("float32", (9,)), "actions": ("int64", ())}, [True] * 12
    )
    dataset.to_lerobot(tmp_path / "data", fps=5)
    assert len(list((tmp_path / "data" / "data").glob("*/*.parquet"))) > 3
    read = list(OfflineDataset.from_lerobot(tmp_path / "data").episodes())
    for one, other in zip(read, episodes, strict=True):
        same(one["obs"]["a"][:-1], other["obs"]["a"][:-1])


def test_what_lerobot_cannot_store_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for kind, text in (
        (("complex64", (2,)), "expected numbers with at most 5 axes"),
        (("float32", (1, 1, 1, 1, 1, 1)), "expected numbers with at most 5 axes"),
    ):
        obs = {"a": np.zeros((2, *kind[1]), kind[0])}
        none = np.zeros(2, bool)
        dataset = OfflineDataset(obs, obs, np.zeros(2, int), np.ones(2), none, none)
        with pytest.raises(SpecError, match=text):
            dataset.to_lerobot(tmp_path / "data", fps=5)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "data").mkdir()
    with pytest.raises(FileExistsError, match="expected a new folder"):
        dataset.to_lerobot(tmp_path / "data", fps=5)


@pytest.mark.parametrize("name", ["task_index", "timestamp", "action", "next.done"])
def test_a_name_that_lerobot_uses_is_refused(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    obs, none = {"a": np.zeros((2, 3), np.float32)}, np.zeros(2, bool)
    extras = {name: np.full(2, 7)}
    dataset = OfflineDataset(obs, obs, np.zeros(2, int), np.ones(2), none, none, extras=extras)
    with pytest.raises(SpecError, match=f"`{name}`: expected names that LeRobot does not use"):
        dataset.to_lerobot(tmp_path / "data", fps=5)
    for fps in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match=f"fps: expected a positive number, got {fps}"):
            dataset.to_lerobot(tmp_path / "data", fps=fps)
    assert list(tmp_path.iterdir()) == []


def test_items_of_a_table_become_a_data_set(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    spaces = pytest.importorskip("gymnasium.spaces")
    box = spaces.Box(-100, 100, (2,), np.float32)
    table = Table.from_spaces(box, spaces.Discrete(100), capacity=100)
    rows = [step(0, number, terminated=number == 3, truncated=number == 8) for number in range(9)]
    with Server(table, listen="tcp://127.0.0.1:0") as server:
        connection = connect(server.address)
        remote = connection.table("replay")
        for row in rows:
            del row["goal"]
            remote.add({**row, "obs": row["obs"]["s"], "next_obs": row["next_obs"]["s"]})
        remote.flush()
        batch = remote.get(remote.items().keys)
        connection.close()
    buffer = ReplayBuffer.from_spaces(box, spaces.Discrete(100), 100)
    buffer.extend(batch.data)
    dataset = OfflineDataset.from_buffer(buffer)
    found = [episode["actions"].tolist() for episode in dataset.episodes()]
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    dataset.to_lerobot(tmp_path / "data", fps=5)
    # Its last step was truncated, and LeRobot has no place for where that led.
    again = list(OfflineDataset.from_lerobot(tmp_path / "data").episodes())
    assert [episode["actions"].tolist() for episode in again] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [bool(episode["terminated"][-1]) for episode in again] == [True, False]
