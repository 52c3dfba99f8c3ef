"""The demo of bandwidth shows what its page says of it, and writes its plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from examples import bandwidth_efficient_demo as demo

if TYPE_CHECKING:
    from pathlib import Path


def test_by_bandwidth_less_is_read_and_with_a_bound_nobody_waits_long() -> None:
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


def test_the_demo_prints_a_table_and_writes_a_plot(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "made" / "plot.png"
    demo.main(["--requests", "60", "--out", str(path)])
    assert "order of" in capsys.readouterr().out
    assert path.read_bytes().startswith(b"\x89PNG")
