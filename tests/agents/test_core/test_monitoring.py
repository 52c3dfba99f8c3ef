"""Numbers of a run over time: bounded, ready for JSON, and seen where the server's are."""

import json
import logging
import time
from dataclasses import fields

import echoic
import numpy as np
import pytest
from echoic.agents.monitoring import (
    MetricsCollector,
    MetricsLogger,
    PerformanceMetrics,
    PerformanceMonitor,
    SystemMonitor,
)
from echoic.errors import ArgumentError
from echoic.views.history import History
from echoic.views.plain import as_data, as_text
from echoic.views.reading import read


def collected(values, max_history=10_000):
    collector = MetricsCollector(max_history)
    for step, value in enumerate(values):
        collector.collect_metrics(PerformanceMetrics(time.time(), step, 0, total_reward=value))
    return collector


def test_it_runs_as_it_is_promised():
    performance_metrics = PerformanceMetrics(timestamp=1.0, step=1, episode=1)
    monitor = PerformanceMonitor()
    monitor.start_monitoring()
    collector = MetricsCollector()
    collector.collect_metrics(performance_metrics)
    assert collector.metrics_history == (performance_metrics,)
    monitor.stop_monitoring()


def test_metrics_are_three_that_must_be_given_and_numbers_that_are_zero():
    names = [field.name for field in fields(PerformanceMetrics)]
    assert names[:3] == ["timestamp", "step", "episode"]
    assert len(names) == 24
    assert all(getattr(PerformanceMetrics(0.0, 0, 0), name) == 0.0 for name in names[3:])


def test_what_was_never_measured_is_no_zero(tmp_path):
    monitor = PerformanceMonitor()
    monitor.log_metrics(1, 0, {"success_rate": 0.0, "policy_loss": None, "value_loss": "x"})
    monitor.log_metrics(2, 0, {"policy_loss": 2.0})
    report = monitor.get_performance_report()
    assert report["metrics"]["success_rate"]["mean"] == 0.0
    assert report["metrics"]["policy_loss"]["mean"] == 2.0
    assert report["metrics"]["policy_loss"]["count"] == 1
    assert not {"value_loss", "tokens_per_second"} & set(report["metrics"])
    assert "success_rate" not in report["latest"]
    monitor.metrics_collector.export_metrics(tmp_path / "all.json")
    first, second = json.loads((tmp_path / "all.json").read_text())["metrics_history"]
    assert first["success_rate"] == 0.0
    assert ("policy_loss" in first, "policy_loss" in second) == (False, True)


def test_history_is_bounded_and_summaries_are_of_late():
    collector = collected(range(50), max_history=20)
    assert [one.step for one in collector.metrics_history] == list(range(30, 50))
    assert collector.get_metric_summary("total_reward", 10) == {
        "mean": 44.5,
        "std": pytest.approx(np.std(range(10))),
        "min": 40.0,
        "max": 49.0,
        "median": 44.5,
        "count": 10,
    }
    assert collector.get_metric_summary("total_reward")["count"] == 20
    assert MetricsCollector().get_metric_summary("step") == {}
    with pytest.raises(ArgumentError, match="there is no metric 'speed'"):
        collector.get_metric_summary("speed")


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_a_trend_does_not_depend_on_the_unit(unit):
    noise = np.random.default_rng(0).normal(size=100)
    directions = [
        collected(unit * (slope * np.arange(100) + noise)).get_trend_analysis("total_reward")[
            "trend_direction"
        ]
        for slope in (0.1, -0.1, 0.0)
    ]
    assert directions == ["increasing", "decreasing", "stable"]


def test_a_trend_needs_a_whole_window_and_is_the_slope_of_its_line():
    collector = collected([2.0 * step for step in range(10)])
    assert collector.get_trend_analysis("total_reward", 11) == {}
    trend = collector.get_trend_analysis("total_reward", 5)
    assert trend["trend_slope"] == pytest.approx(2.0)
    assert trend["recent_values"] == [10.0, 12.0, 14.0, 16.0, 18.0]
    assert collected([0.1 + 0.2] * 9).get_trend_analysis("total_reward", 9)[
        "trend_direction"
    ] == "stable"  # fmt: skip


def test_numbers_of_numpy_and_numbers_that_are_none_are_exported(tmp_path):
    collector = collected([np.float32(1.5), np.int64(2), float("nan"), float("inf")])
    collector.export_metrics(tmp_path / "new" / "metrics.json")
    data = json.loads((tmp_path / "new" / "metrics.json").read_text())
    rewards = [one["total_reward"] for one in data["metrics_history"]]
    assert rewards == [1.5, 2.0, None, None]
    assert data["metric_summaries"]["total_reward"]["count"] == 2
    assert data["total_metrics"] == 4


def test_ten_thousand_moments_are_exported_with_their_trend(tmp_path):
    collector = collected(range(12_000))
    assert collector.get_trend_analysis("total_reward", 10_000)["trend_direction"] == "increasing"
    collector.export_metrics(tmp_path / "metrics.json")
    data = json.loads((tmp_path / "metrics.json").read_text())
    assert (len(data["metrics_history"]), data["total_metrics"]) == (10_000, 12_000)


def test_the_machine_is_read_once_an_interval():
    monitor = SystemMonitor(monitoring_interval=3600)
    first = monitor.get_current_metrics()
    assert 0 <= first["cpu_usage"] <= 100
    assert 0 < first["memory_usage"] < 100
    first["memory_usage"] = -1.0
    monitor._last["cpu_usage"] = 42.0
    again = monitor.get_current_metrics()
    assert (again["cpu_usage"], again["memory_usage"] > 0) == (42.0, True)
    monitor.monitoring_interval = 1e-9
    assert monitor.get_current_metrics() != again
    with pytest.raises(ArgumentError, match="monitoring_interval"):
        SystemMonitor(0.0)


def test_a_monitor_joins_all_numbers_and_a_bad_callback_ends_nothing(tmp_path, caplog):
    seen = []
    with PerformanceMonitor(log_interval=0.0) as monitor:
        monitor.add_performance_callback(lambda metrics: 1 / 0)
        monitor.add_performance_callback(seen.append)
        with caplog.at_level(logging.INFO, logger="echoic.agents.monitoring"):
            for step in range(3):
                monitor.log_metrics(
                    step,
                    step // 2,
                    {"success_rate": np.float32(0.5), "step": 99, "unknown": object()},
                    {"tokens_per_second": 100.0 * step},
                )
    assert [(one.step, one.success_rate) for one in seen] == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert "step 2, episode 1: success_rate 0.5" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    report = monitor.get_performance_report()
    assert report["trends"]["tokens_per_second"]["trend_direction"] == "increasing"
    assert report["latest"]["memory_usage"] > 0
    monitor.export_performance_data(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["moments"] == 3


def test_a_report_of_nothing_is_one():
    assert PerformanceMonitor().get_performance_report()["latest"] == {}


def test_a_log_has_a_line_for_each_moment(tmp_path):
    log = MetricsLogger(tmp_path / "run" / "metrics.jsonl")
    log.log_metrics(PerformanceMetrics(1.0, 2, 3, value_loss=float("nan"), policy_loss=0.0))
    log.log_metrics(PerformanceMetrics(2.0, np.int64(4), 3))
    lines = [json.loads(line) for line in log.log_file.read_text().splitlines()]
    first = {"timestamp": 1.0, "step": 2.0, "episode": 3.0, "policy_loss": 0.0, "value_loss": None}
    assert lines == [first, {"timestamp": 2.0, "step": 4.0, "episode": 3.0}]


def test_a_server_shows_the_numbers_wherever_its_own_are():
    door = "tcp://127.0.0.1:0"
    with echoic.Server(echoic.Table("replay", capacity=10), listen=door) as server:
        address = server.address
        monitor = PerformanceMonitor(server=server)
        with monitor, echoic.connect(address) as watch:
            monitor.log_metrics(7, 1, {"success_rate": 0.25, "policy_loss": float("nan")})
            assert server.metrics()["gauge.success_rate"] == 0.25
            history = History()
            history.add(read(next(iter(watch.server_stats().values()))))
            assert history.last.gauges["step"] == 7
            data = as_data(address, history)
            assert (data["gauges"]["success_rate"], data["gauges"]["policy_loss"]) == (0.25, None)
            assert "  success_rate: 0.25" in as_text(address, history)
        assert "gauge.success_rate" not in server.metrics()
    # A server that is closed is told nothing.
    monitor.log_metrics(8, 1, {})


def test_what_a_server_can_not_show_it_refuses():
    with echoic.Server(echoic.Table("replay", capacity=10)) as server:
        with pytest.raises(ValueError, match="1 to 128 bytes"):
            server.set_gauge("", 1.0)
        for number in range(256):
            server.set_gauge(str(number), 0.0)
        with pytest.raises(ValueError, match="at most 256"):
            server.set_gauge("256", 0.0)
        for number in range(256):
            server.set_gauge(str(number), None)
        assert not [name for name in server.metrics() if name.startswith("gauge")]
