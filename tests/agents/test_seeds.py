"""Rows of studies: what is known is kept, and intervals are those of the mean over seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch")

from experiments._seeds import Rows, interval

if TYPE_CHECKING:
    from pathlib import Path


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
