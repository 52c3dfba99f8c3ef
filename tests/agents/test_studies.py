"""Studies, in their quick tier: each runs to its end, keeps its rows, and does nothing twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("minigrid")

from experiments import __main__ as studies

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Row = dict[str, Any]


def same_tokens_for_less(rows: list[Row]) -> None:
    assert all(row["same_tokens"] for row in rows)
    assert all(row["fewer_flops"] > 2 and row["reuse"] > 0.5 for row in rows)


def each_temperature_draws_as_more(rows: list[Row]) -> None:
    sizes = [row for row in rows if row["table"] == "sizes"]
    assert all(0 < row["ess_at_0.1"] <= row["ess_at_2"] <= 1.001 for row in sizes)
    assert all(row["adds_per_s_full"] > 0 for row in rows if row["table"] == "speed")


def arms_are_all_there(rows: list[Row]) -> None:
    assert (
        len({json.dumps([row.get("arm"), row.get("form"), row.get("kl_weight")]) for row in rows})
        > 1
    )


# What a row must be for the study to mean anything, however short it is.
STUDIES: dict[str, Callable[[list[Row]], None]] = {
    "kv_sharing": same_tokens_for_less,
    "plans_minigrid": arms_are_all_there,
    "plans_tmaze": arms_are_all_there,
    "surprise_replay": each_temperature_draws_as_more,
    "token_learners": arms_are_all_there,
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", STUDIES)
def test_a_quick_study_comes_to_its_end_and_does_nothing_twice(name: str, tmp_path: Path) -> None:
    studies.main([name, "--quick", "--out", str(tmp_path)])
    text = (tmp_path / f"{name}.jsonl").read_text()
    STUDIES[name]([json.loads(line) for line in text.splitlines()])
    studies.main([name, "--quick", "--out", str(tmp_path)])
    assert (tmp_path / f"{name}.jsonl").read_text() == text


# Fourteen trainings: half a minute of a processor.
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_methods_are_trained_evaluated_and_reported(tmp_path: Path) -> None:
    from experiments import trained_methods  # noqa: PLC0415 - needs minigrid

    command = ["trained_methods", "--quick", "--steps", "512", "--out", str(tmp_path)]
    studies.main(command)
    folder = tmp_path / "trained_methods-512"
    text = (folder / "rows.jsonl").read_text()
    rows = [row for row in map(json.loads, text.splitlines()) if row["kind"] == "episode"]
    methods = {row["method"] for row in rows}
    assert methods == {"echo-rl", *trained_methods.ABLATIONS, *trained_methods.BASELINES}
    # Two seeds, five episodes each, and none that a method was trained on.
    assert len(rows) == len(methods) * 2 * 5
    assert {row["task"] for row in rows} == {"navigation-8"}
    assert (folder / "report.html").exists()
    studies.main(command)
    assert (folder / "rows.jsonl").read_text() == text
