"""The manifest of a cluster's directory: what it refuses, and what it keeps."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from echoic.errors import StorageError

pytest.importorskip("ray")
from echoic.integrations.ray import manifest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def made(tmp_path: Path) -> manifest.Manifest:
    """A directory with shards 0 and 1, of which 1 was closed with five items."""
    identity = manifest.open_directory(tmp_path).identity
    for number in (0, 1):
        manifest.open_shard(tmp_path, identity, number)
    manifest.add_shards(tmp_path, identity, [0, 1])
    manifest.record_items(tmp_path / "shard-1", identity, 1, {"replay": 5})
    return manifest.open_directory(tmp_path)


def test_shards_are_kept_by_their_numbers_and_removed_ones_are_cleared(
    made: manifest.Manifest, tmp_path: Path
) -> None:
    assert (made.shards, made.removed, made.count) == ((0, 1), (), 2)
    assert manifest.open_shard(tmp_path, made.identity, 0) is None
    assert manifest.open_shard(tmp_path, made.identity, 1) == {"replay": 5}
    manifest.remove_shard(tmp_path, made.identity, 1)
    with pytest.raises(StorageError, match="shard 1 was removed from"):
        manifest.open_shard(tmp_path, made.identity, 1)
    assert (tmp_path / "shard-1").exists()
    kept = manifest.open_directory(tmp_path)
    assert (kept.shards, kept.removed, kept.count) == ((0,), (1,), 2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["cluster.json", "shard-0"]


def test_a_new_shard_begins_with_nothing_of_a_start_that_did_not_end(
    made: manifest.Manifest, tmp_path: Path
) -> None:
    manifest.open_shard(tmp_path, made.identity, 2)
    (tmp_path / "shard-2" / "journal").mkdir()
    assert manifest.open_shard(tmp_path, made.identity, 2) is None
    assert [entry.name for entry in (tmp_path / "shard-2").iterdir()] == ["shard.json"]


def test_a_directory_that_is_missing_or_another_one_is_refused(
    made: manifest.Manifest, tmp_path: Path
) -> None:
    away = tmp_path.with_name(f"{tmp_path.name}-away")
    tmp_path.rename(away)
    with pytest.raises(StorageError, match=r"expected the manifest .*is the file system mounted"):
        manifest.open_shard(tmp_path, made.identity, 0)
    assert not tmp_path.exists()
    other = manifest.open_directory(tmp_path).identity
    with pytest.raises(StorageError, match=f"another cluster: expected .*{made.identity}.*{other}"):
        manifest.open_shard(tmp_path, made.identity, 0)
    shutil.copytree(away / "shard-0", tmp_path / "shard-0")
    (tmp_path / "cluster.json").unlink()
    with pytest.raises(StorageError, match=r"the directory has only \['shard-0'\]"):
        manifest.open_directory(tmp_path)
    # The folders of two shards are swapped.
    (away / "shard-0").rename(away / "two")
    (away / "shard-1").rename(away / "shard-0")
    (away / "two").rename(away / "shard-1")
    with pytest.raises(StorageError, match="expected the folder of shard 0"):
        manifest.open_directory(away)
    shutil.rmtree(away / "shard-0")
    with pytest.raises(StorageError, match=r"expected the manifest .*shard-0/shard\.json"):
        manifest.open_directory(away)


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("cluster.json", {"format": "else"}, "is no manifest"),
        ("cluster.json", {"version": 2}, "of version 2, and this release reads 1"),
        ("cluster.json", {"version": True}, "of version True"),
        ("cluster.json", {"identity": "../up"}, "'identity' must be 32 hex digits"),
        ("cluster.json", {"shards": [0, 256]}, "'shards' must be different numbers below 256"),
        ("cluster.json", {"shards": [0, 0]}, "'shards' must be different numbers"),
        ("cluster.json", {"shards": [0, "1"]}, "'shards' must be different numbers"),
        ("cluster.json", {"removed": {}}, "'removed' must be different numbers"),
        ("cluster.json", {"removed": [1]}, r"shards \[1\] are there and removed"),
        ("cluster.json", {"more": 1}, "expected the fields"),
        ("shard-1/shard.json", {"identity": "0" * 32}, "belongs to another cluster"),
        ("shard-1/shard.json", {"items": {"replay": -1}}, "'items' must be counts by table"),
        ("shard-1/shard.json", {"items": [5]}, "'items' must be counts by table"),
    ],
)
@pytest.mark.usefixtures("made")
def test_a_field_that_makes_no_sense_is_an_error(
    tmp_path: Path, name: str, change: dict[str, Any], error: str
) -> None:
    path = tmp_path / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(StorageError, match=error):
        manifest.open_directory(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"format": "echoic-ray-cluster"}', "\udcff"])
@pytest.mark.usefixtures("made")
def test_a_file_that_is_damaged_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StorageError, match=r"cluster\.json"):
        manifest.open_directory(tmp_path)


def test_a_write_that_fails_leaves_the_manifest_as_it_was(
    made: manifest.Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(manifest.os, "fsync", fail)
    with pytest.raises(StorageError, match=r"cluster\.json can't be written.*no space left"):
        manifest.remove_shard(tmp_path, made.identity, 1)
    monkeypatch.undo()
    assert manifest.open_directory(tmp_path) == made
    assert not list(tmp_path.glob(".*"))


def test_a_shard_with_fewer_items_than_it_was_closed_with_is_refused(tmp_path: Path) -> None:
    manifest.check_items(tmp_path, {"replay": 5, "gone": 3}, {"replay": 5, "other": 0})
    with pytest.raises(StorageError, match=r"'replay' had 5 items .* has 4: bring the missing"):
        manifest.check_items(tmp_path, {"replay": 5}, {"replay": 4})
