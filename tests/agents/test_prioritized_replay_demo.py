"""The demo of surprise replay shows what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from examples import prioritized_replay_demo as demo

if TYPE_CHECKING:
    from pathlib import Path


def test_the_demo_replays_what_is_new_and_draws_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = demo.simulate(updates=90)
    assert result.hot[-1] > 0
    assert result.cold[-1] > 0
    sizes = list(result.effective.values())
    assert sizes == sorted(sizes), "the sharper, the fewer"
    # Just after the second phase began its plans are what surprises.
    begin = 30 - 5 + 3
    assert np.mean(result.newest_drawn[begin : begin + 10]) > np.mean(
        result.newest_there[begin : begin + 10]
    )
    demo.draw(result, tmp_path / "replay.png")
    assert (tmp_path / "replay.png").stat().st_size > 10_000
