"""Studies, in their quick tier: each runs to its end, keeps its rows, and does nothing twice.

What is known is kept, and intervals are those of the mean over seeds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")

from experiments import __main__ as studies
from experiments._seeds import Rows, interval

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


def each_update_is_there_once(rows: list[Row]) -> None:
    for is_killed in (False, True):
        own = [row for row in rows if row["is_killed"] == is_killed]
        assert [row["version"] for row in own] == list(range(1, 21))
        assert max(row["lag"] for row in own) <= 2


# What a row must be for the study to mean anything, however short it is.
STUDIES: dict[str, Callable[[list[Row]], None]] = {
    "async_grpo": each_update_is_there_once,
    "kv_sharing": same_tokens_for_less,
    "plans_minigrid": arms_are_all_there,
    "plans_tmaze": arms_are_all_there,
    "surprise_replay": each_temperature_draws_as_more,
    "token_learners": arms_are_all_there,
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", STUDIES)
def test_a_quick_study_comes_to_its_end_and_does_nothing_twice(name: str, tmp_path: Path) -> None:
    pytest.importorskip("minigrid")
    studies.main([name, "--quick", "--out", str(tmp_path)])
    text = (tmp_path / f"{name}.jsonl").read_text()
    STUDIES[name]([json.loads(line) for line in text.splitlines()])
    studies.main([name, "--quick", "--out", str(tmp_path)])
    assert (tmp_path / f"{name}.jsonl").read_text() == text


# Fourteen trainings: half a minute of a processor.
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_methods_are_trained_evaluated_and_reported(tmp_path: Path) -> None:
    pytest.importorskip("minigrid")
    from experiments import trained_methods

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
    assert (folder / "benchmark_report.md").exists()
    studies.main(command)
    assert (folder / "rows.jsonl").read_text() == text


def test_a_study_goes_on_after_its_last_whole_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = Rows(path, ("arm", "seed"))
    rows.add({"arm": "a", "seed": 0, "found": 1.5})
    with path.open("a") as file:
        file.write('{"arm": "a", "se')
    rows = Rows(path, ("arm", "seed"))
    assert rows.has(arm="a", seed=0)
    assert not rows.has(arm="a", seed=1)
    rows.add({"arm": "a", "seed": 1, "found": 2.5})
    assert [row["found"] for row in Rows(path, ("arm", "seed")).of(arm="a")] == [1.5, 2.5]


@pytest.mark.parametrize("seeds", [2, 3, 5, 30, 40])
def test_intervals_cover_the_mean_as_often_as_they_say(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    covered = 0
    for values in rng.normal(size=(4000, seeds)):
        low, high = interval(list(values))
        covered += low <= 0.0 <= high
    # Three standard deviations of such a share are one in a hundred.
    assert covered / 4000 == pytest.approx(0.95, abs=0.011)


def test_one_seed_says_nothing_about_others() -> None:
    assert interval([0.5]) == (-np.inf, np.inf)
