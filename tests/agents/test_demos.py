"""The demos of agents in `examples` show what they and their pages say; short runs of them."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def demo_of(name: str, *needed: str) -> Any:
    """The module of a demo, or a skip where a package that it needs is missing."""
    for package in needed:
        pytest.importorskip(package)
    return importlib.import_module(f"examples.{name}_demo")


def test_the_engine_reuses_tokens_only_with_the_prefix_cache() -> None:
    numbers = demo_of("async_execution", "torch", "rich").main(["--quick"])
    for row in numbers.values():
        assert (row["completed"], row["failed"], row["version"]) == (36, 0, 1)
    assert numbers["shared"]["cache"]["hit_rate"] > 0.3
    assert numbers["alone"]["cache"]["reused_tokens"] == 0


def test_by_bandwidth_less_is_read_and_with_a_bound_nobody_waits_long() -> None:
    demo = demo_of("bandwidth_efficient")
    arrival, _, unbounded, bounded = demo.compare(1_000).values()
    for outcome in (arrival, unbounded, bounded):
        assert outcome.metrics.num_rollout_steps == 1_000
    for outcome in (unbounded, bounded):
        assert outcome.metrics.kv_reuse_rate > arrival.metrics.kv_reuse_rate + 0.08
        assert outcome.metrics.eta_bw > 1.1 * arrival.metrics.eta_bw
    # Everybody earns the same in the end; what differs is what was read for it.
    assert abs(bounded.metrics.total_reward - arrival.metrics.total_reward) < 1e-9
    assert max(unbounded.waits) > 4 * demo.BOUND
    assert max(bounded.waits) < 1.5 * demo.BOUND


def test_that_of_bandwidth_prints_a_table_and_writes_a_plot(tmp_path: Path, capsys: Any) -> None:
    demo = demo_of("bandwidth_efficient")
    path = tmp_path / "made" / "plot.png"
    demo.main(["--requests", "60", "--out", str(path)])
    assert "order of" in capsys.readouterr().out
    assert path.read_bytes().startswith(b"\x89PNG")


def test_planners_learn_in_both_arms_for_as_long_and_are_drawn(tmp_path: Path) -> None:
    demo = demo_of("latent_planning", "torch", "rich", "matplotlib")
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


def test_surprise_replays_what_is_new_and_draws_a_picture(tmp_path: Path) -> None:
    demo = demo_of("prioritized_replay", "matplotlib")
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


@pytest.mark.parametrize(
    "path",
    [*(ROOT / "examples").glob("*_demo.py"), *(ROOT / "examples").glob("*_echo_rl.py")],
    ids=lambda path: path.stem,
)
def test_it_runs_by_its_path(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for package in ("torch", "rich", "matplotlib"):
        pytest.importorskip(package)
    for name in [name for name in sys.modules if name.partition(".")[0] == "examples"]:
        monkeypatch.delitem(sys.modules, name)
    others = [one for one in sys.path if Path(one).resolve() != ROOT]
    monkeypatch.setattr(sys, "path", [str(path.parent), *others])
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(path), run_name="__main__")
    assert f"usage: {path.name}" in capsys.readouterr().out
