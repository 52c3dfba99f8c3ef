"""The demo of latent planning learns both arms and draws them; a short run of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
pytest.importorskip("matplotlib")

from examples import latent_planning_demo as demo

if TYPE_CHECKING:
    from pathlib import Path


def test_both_arms_learn_for_as_long_and_are_drawn(tmp_path: Path) -> None:
    shown = []
    found = demo.run(0, 3, lambda outcome: shown.append(demo.table(outcome).row_count))
    assert {arm: len(curve) for arm, curve in found.curves.items()} == {
        "with a plan": 3,
        "without": 3,
    }
    assert shown[0] == 1
    assert shown[-1] == 2
    assert found.plans.shape == (400, 32)
    demo.draw(found, tmp_path / "sub" / "plans.png")
    assert (tmp_path / "sub" / "plans.png").read_bytes()[1:4] == b"PNG"
