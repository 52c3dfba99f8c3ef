"""`echoic inspect`, `verify` and `export` on checkpoints and servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import Checkpointer, Table
from echoic.cli.app import app
from typer.testing import CliRunner

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of a table of rows and one of windows that differ in length."""
    tables = [
        Table("rows", {"a": np.zeros((2, 3), np.float32), "b": (np.int64(0),)}, capacity=10),
        Table("windows", capacity=10),
    ]
    root = tmp_path / "checkpoints"
    with echoic.Server(*tables, checkpointer=Checkpointer(root)) as server:
        client = echoic.connect(server)
        a = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
        client.table("rows").extend({"a": a, "b": (np.arange(3),)}, [1.0, 2.0, 3.0], version=4)
        with client.trajectory_writer(num_keep_alive_refs=5) as writer:
            for length in (1, 3):
                for at in range(length):
                    writer.append({"at": at})
                writer.create_item("windows", 1.0, {"at": writer.history["at"][:]})
                writer.end_episode()
        server.checkpoint()
    return root


def test_a_checkpoint_is_inspected(checkpoint: Path) -> None:
    ended = run("inspect", checkpoint, "--items", 2)
    assert ended.exit_code == 0
    assert "rows" in ended.stdout
    assert "2 leaves, 32 B" in ended.stdout
    assert "of any form" in ended.stdout
    assert "rows key 1 priority 2 sampled 0 version 4" in ended.stdout
    assert "rows key 2" not in ended.stdout


def test_a_server_is_inspected() -> None:
    table = Table("replay", np.zeros(3), capacity=10)
    with echoic.Server(table, listen="tcp://127.0.0.1:0") as server:
        table.add(np.ones(3))
        ended = run("inspect", server.address, "--items", 3)
        assert ended.exit_code == 0
        assert "replay" in ended.stdout
        assert "replay key 0 priority 1 sampled 0 version 0" in ended.stdout
        assert "1 leaves, 24 B" in ended.stdout
    assert run("inspect", server.address, "--timeout", 0.2).exit_code == 1


def test_a_damaged_checkpoint_is_found(checkpoint: Path) -> None:
    ended = run("verify", checkpoint)
    assert ended.exit_code == 0
    assert "is whole: 2 tables, 2 chunks" in ended.stdout
    section = next(checkpoint.glob("checkpoint-*/section-*"))
    section.write_bytes(section.read_bytes()[:-1])
    ended = run("verify", checkpoint)
    assert ended.exit_code == 1
    assert section.name in ended.stderr
    assert run("verify", checkpoint / "nothing").exit_code == 1


def test_items_are_exported_as_arrays(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.npz"
    assert run("export", checkpoint, "rows", file).exit_code == 0
    with np.load(file) as arrays:
        assert sorted(arrays) == ["@key", "@priority", "@times_sampled", "@version", "a", "b/0"]
        assert (arrays["a"] == np.arange(18).reshape(3, 2, 3)).all()
        assert arrays["b/0"].tolist() == [0, 1, 2]
        assert arrays["@priority"].tolist() == [1.0, 2.0, 3.0]
    assert run("export", checkpoint, "windows", file).exit_code == 0
    with np.load(file) as arrays:
        assert arrays["at"].tolist() == [0, 0, 1, 2]
        assert arrays["at@offsets"].tolist() == [0, 1, 4]
    ended = run("export", checkpoint, "other", file)
    assert (ended.exit_code, "the checkpoint has 'rows', 'windows'" in ended.stderr) == (1, True)
    assert run("export", checkpoint, "rows", tmp_path / "rows.txt").exit_code == 2


def test_items_are_exported_as_parquet(checkpoint: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for table, expected in (("rows", [[0, 1, 2], [3, 4, 5]]), ("windows", None)):
        file = tmp_path / f"{table}.parquet"
        assert run("export", checkpoint, table, file).exit_code == 0
        rows = parquet.read_table(file).to_pylist()
        if expected is not None:
            assert rows[0]["a"] == expected
            assert [row["b/0"] for row in rows] == [0, 1, 2]
        else:
            assert [row["at"] for row in rows] == [[0], [0, 1, 2]]
