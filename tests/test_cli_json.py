"""What scripts read of the command line: JSON, versions, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic.cli.app import app
from echoic.cli.spec import parse, text
from typer.testing import CliRunner

if TYPE_CHECKING:
    from pathlib import Path

SPEC = "obs=float32[4],reward=float32"


def sample() -> dict[str, Any]:
    return {"obs": np.zeros(4, np.float32), "reward": np.float32(0)}


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})


def test_ping_as_json_has_all_that_it_tells() -> None:
    with echoic.Server(echoic.Stream(sample(), batch_size=4), listen="tcp://127.0.0.1:0") as server:
        address = server.address
        arguments = (address, "--json", "--count", "3", "--spec", SPEC)
        said = json.loads(invoke("ping", *arguments).output)
    assert said["address"] == address
    assert said["spec"] == text(parse(SPEC))
    assert said["tables"] == []
    assert len(said["round_trips"]) == 3
    assert said["release"] == version("echoic")


def test_ping_and_inspect_of_tables_alone() -> None:
    replay = echoic.Table("replay", sample(), capacity=10)
    queue = echoic.Table.queue("messages", np.zeros(3), capacity=5)
    address = "tcp://127.0.0.1:0"
    with echoic.Server(replay, queue, listen=address) as server:
        replay.add(sample(), 2.5)
        address = server.address
        done = invoke("ping", address)
        assert done.exit_code == 0
        assert "tables, and no stream: replay, messages" in done.output
        said = json.loads(invoke("inspect", address, "--json", "--items", "2").output)
        listed = [
            line for line in invoke("inspect", address).output.splitlines() if "replay" in line
        ]
        done = invoke("bench", address)
    assert len(listed) == 1
    assert set(said) == {"replay", "messages"}
    assert said["replay"]["size"] == 1
    assert said["messages"]["spec"] == [{"path": "", "dtype": "float64", "shape": [3]}]
    # JSON has no infinity.
    assert said["replay"]["max_diff"] == "inf"
    first = said["replay"]["first_items"]
    assert [(item["priority"], item["times_sampled"]) for item in first] == [(2.5, 0)]
    assert said["messages"]["first_items"] == []
    assert done.exit_code == 1
    assert "it has no stream to send samples to" in done.output


def test_checkpoints_are_verified_and_exported_as_json(tmp_path: Path) -> None:
    table = echoic.Table("replay", sample(), capacity=10)
    keeper = echoic.Checkpointer(tmp_path / "checkpoints")
    with echoic.Server(table, checkpointer=keeper) as server:
        table.add(sample())
        place = server.checkpoint()
    said = json.loads(invoke("verify", str(tmp_path / "checkpoints"), "--json").output)
    assert said["path"] == str(place)
    assert said["tables"] == 1
    file = tmp_path / "replay.npz"
    done = invoke("export", str(tmp_path / "checkpoints"), "replay", str(file), "--json")
    assert json.loads(done.output) == {"table": "replay", "items": 1, "file": str(file)}
    inspected = json.loads(invoke("inspect", str(place), "--json").output)
    assert inspected["replay"]["inserts"] == 1


def test_version_names_what_bugs_depend_on() -> None:
    said = json.loads(invoke("version", "--json").output)
    assert said["echoic"] == version("echoic")
    assert said["numpy"] == np.__version__
    assert {"python", "platform", "typer", "rich"} <= set(said)
    lines = invoke("version").output.splitlines()
    assert f"echoic {version('echoic')}" in lines
    assert len(lines) == len(said)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(shell: str) -> None:
    environment = {"_ECHOIC_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "echoic ins"}
    environment |= {"COMP_WORDS": "echoic ins", "COMP_CWORD": "1"}
    environment |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    program = "from echoic.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "inspect" in done.stdout
    assert "ping" not in done.stdout
