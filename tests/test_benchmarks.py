"""The benchmarks run, write complete records, and refuse to report wrong content.

No test here looks at a speed. Peers are left out: they need a package index.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tiers

from benchmarks import check, lines, payload, probes, report, runner, stream
from benchmarks.child import ChildError
from benchmarks.content import ContentError, Crowd, Receiver
from benchmarks.engine import Echoic
from benchmarks.limits import program
from benchmarks.limits.program import built
from benchmarks.lines import read
from benchmarks.machine import machine, versions
from benchmarks.net import probes as net_probes
from benchmarks.net.client import ClientProcess
from benchmarks.payload import Pool
from benchmarks.peers import PEERS
from benchmarks.progress import Progress
from benchmarks.runner import Run, measure
from benchmarks.suites import SUITES
from benchmarks.timing import Measurement, Summary, UnavailableError, interleave

if TYPE_CHECKING:
    from benchmarks.net.engine import Learner
    from benchmarks.workload import Workload

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture(autouse=True)
def no_compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile the program of the limits for the nightly tier only: that takes ten seconds."""
    if not tiers.full and request.node.get_closest_marker("nightly") is None:
        monkeypatch.setattr(program, "_build", lambda: "it is built for the nightly tier")


# The limits are compiled for it, and the network has many transports.
NIGHTLY = {"limits", "net"}
# They start many processes; other tests measure the workloads of tables, rollouts and model too.
IN_TURN = ("tables", "rollouts", "weights", "model")


# Memory is that of a process; those of other suites start too many to wait for.
@pytest.mark.parametrize(
    "suite",
    [
        pytest.param(suite, marks=pytest.mark.nightly) if suite in NIGHTLY else suite
        for suite in SUITES
        if suite not in {"memory", *IN_TURN}
    ]
    + tiers.rotating(*IN_TURN),
)
def test_quick_run_writes_a_complete_record_of_every_workload(tmp_path: Path, suite: str) -> None:
    if suite == "limits" and not limits_are_built():
        pytest.skip("the program of the limits cannot be built here")
    asked = Run([suite], tmp_path, quick=True, repeats=1, apart=False, warm_up=False)
    with Progress() as progress:
        assert measure(asked, progress) == 0
    assert_complete(tmp_path, suite, 1)


def test_command_measures_in_processes_and_writes_a_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "benchmarks", "run", "--quick", "--peers", "none"]
    done = subprocess.run(
        [*command, "--suite", "memory", "--repeats", "2", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_complete(tmp_path, "memory", 2)
    text = (tmp_path / "report.md").read_text()
    assert all(f"| `{each.name}` |" in text for each in SUITES["memory"].workloads(True))
    assert "![Memory for an item: memory](memory.png)" in text
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


def limits_are_built() -> bool:
    try:
        return built().exists()
    except UnavailableError:
        return False


def assert_complete(folder: Path, suite: str, rounds: int) -> None:
    records = read(folder / f"{suite}.jsonl")
    workloads = SUITES[suite].workloads(True)
    assert [record["workload"] for record in records] == [workload.name for workload in workloads]
    for record, workload in zip(records, workloads, strict=True):
        assert record["content_checked"] is True
        assert record["repeats"] == rounds
        assert record["unit"]
        assert record["spread"].keys() == {"iqr", "q1", "q3", "min", "max"}
        assert 0 < record["spread"]["min"] <= record["median"] <= record["spread"]["max"]
        for name in ("bound", "limit"):
            is_built = limits_are_built() or (name == "bound" and suite != "scaling")
            if getattr(workload, name) is None or not is_built:
                assert record[f"ratio_to_{name}"] is None
            else:
                assert record[name]["name"]
                assert record[name]["median"] > 0, record[name]
                assert record[f"ratio_to_{name}"] > 0
        assert record["peers"] == record["ratio_to_peer"] == {}
        assert record["machine"]["cores"] >= 1
        assert record["machine"].keys() >= {"cpu", "memory_gib", "kernel", "date"}
        assert record["versions"].keys() >= {"python", "numpy", "echoic", "build"}
        for name, metric in record["metrics"].items():
            assert metric["median"] > 0 or name == "above_bound", (record["workload"], name)
        for target in record["targets"]:
            assert target["value"] is not None, (record["workload"], target)


def test_report_shows_the_curves_and_the_sizes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curve = {f"samples_per_s_{count}": {"median": count * 1e6} for count in (1, 64)}
    same = {
        "unit": "ns/item",
        "median": 5.0,
        "bound": {"median": 2.0},
        "ratio_to_bound": 0.4,
        "ratio_to_peer": {"other": None},
        "peers": {"other": {"median": None, "unavailable": "stalled"}},
        "targets": [{"metric": "value", "at_most": 3, "value": 5.0, "met": False}],
        "machine": machine(),
        "versions": versions(),
        "repeats": 5,
        "quick": False,
    }
    for suite, metrics, parameters in (
        ("net", curve, {"connections": [1, 64]}),
        ("scaling", {}, {"by_size": "sampling", "size": 1000}),
    ):
        record = {"workload": "it", "metrics": metrics, "parameters": parameters, **same}
        (tmp_path / f"{suite}.jsonl").write_text(json.dumps(record))
    written = report.write(tmp_path, pytest.fail)
    assert [path.name for path in written] == [
        "report.md",
        "net.png",
        "net-connections.png",
        "scaling-sizes.png",
    ]
    text = written[0].read_text()
    assert "- No number of other for `it`: stalled." in text
    assert "- `it` misses a target: value is 5.0, at most 3 was wanted" in text


class Corrupting:
    """Echoic with one bit flipped in a late batch, as a faulty ring might do it."""

    # Its clients are Echoic's own.
    __module__ = Echoic.__module__
    name = "corrupting"

    def open(self, example: Any, *, batch_size: int, num_buffers: int) -> Any:
        server: Any = Echoic().open(example, batch_size=batch_size, num_buffers=num_buffers)
        return SimpleNamespace(
            add=server.add,
            extend=server.extend,
            sample=self.corrupted(example, server.sample),
            close=server.close,
        )

    def listen(self, example: Any, **options: Any) -> Learner:
        learner = Echoic().listen(example, **options)
        return replace(learner, sample=self.corrupted(example, learner.sample))

    def corrupted(self, example: Any, sample_of_server: Any) -> Any:
        taken = 0

        def sample() -> SimpleNamespace:
            nonlocal taken
            taken += 1
            batch = payload.rebuild(
                example,
                iter([leaf.copy() for _, leaf in payload.flatten(sample_of_server().data)]),
            )
            if taken == 6:
                _, leaf = payload.flatten(batch)[-1]
                leaf.reshape(-1).view(np.uint8)[-1] ^= 1
            return SimpleNamespace(data=batch)

        return sample

    def extend(self, stream: Any) -> Any:
        return stream.extend

    def empty_call(self) -> Any:
        return Echoic().empty_call()


@pytest.mark.parametrize("name", [workload.name for workload in stream.workloads(quick=True)])
def test_workload_with_a_corrupted_batch_writes_no_number(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Run(
        ["stream"], tmp_path, quick=True, names=[name], repeats=9, engines={"stream": Corrupting()}
    )
    with Progress() as progress:
        assert measure(asked, progress) == 1
    assert read(tmp_path / "stream.jsonl") == []
    assert f"{name}: WRONG CONTENT" in capsys.readouterr().err


def test_run_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["submit_frames", "submit_layers", "take_ready"]
    asked = Run(["stream"], tmp_path, quick=True, names=names, repeats=1)
    measured = runner.measured
    begun: list[str] = []

    def stopped_at_the_second(asked: Run, suite: str, workload: Any, progress: Any) -> Any:
        begun.append(workload.name)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return measured(asked, suite, workload, progress)

    monkeypatch.setattr(runner, "measured", stopped_at_the_second)
    with Progress() as progress:
        with pytest.raises(KeyboardInterrupt):
            measure(asked, progress)
        (first,) = read(tmp_path / "stream.jsonl")
        assert measure(asked, progress) == 0
        assert begun == ["submit_frames", "submit_layers", "submit_layers", "take_ready"]
        records = read(tmp_path / "stream.jsonl")
        assert [record["workload"] for record in records] == names
        assert records[0] == first
        # All is there, so nothing is measured, unless it is of another build.
        assert measure(asked, progress) == 0
        assert len(begun) == 4
        monkeypatch.setattr(lines, "versions", lambda: {**first["versions"], "build": "other"})
        assert measure(asked, progress) == 0
        assert begun[4:] == names


def test_peers_are_asked_for_by_name_and_unknown_ones_are_refused() -> None:
    assert [peer.name for peer in runner.peers_named(["rlox", "id-echo"])] == ["rlox", "id-echo"]
    light = runner.peers_named(["light"])
    assert light
    assert not any(peer.heavy for peer in light)
    assert runner.peers_named(["all"]) == list(PEERS)
    assert runner.peers_named(["none"]) == []
    with pytest.raises(ValueError, match="no peer 'rlax': all, light, none, or some of id-echo"):
        runner.peers_named(["rlax"])


class TestCheck:
    """Ratios of two runs, compared."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        records = [
            {"workload": "submit_layers", "ratio_to_bound": 0.8, "quick": False},
            {"workload": "submit_batch_frames", "ratio_to_bound": 0.9, "quick": True},
            {"workload": "take_ready", "ratio_to_bound": 0.9, "quick": False},
        ]
        (tmp_path / "stream.jsonl").write_text("\n".join(map(json.dumps, records)))
        return tmp_path

    @pytest.mark.parametrize(("now", "status"), [(0.61, 0), (0.59, 1), (2.0, 0)])
    def test_only_what_is_slower_by_more_than_the_margin_is_a_regression(
        self, folder: Path, now: float, status: int, monkeypatch: Any, capsys: Any
    ) -> None:
        def measure(asked: Run, _: Progress) -> int:
            # What is neither steady nor measured in full takes no part.
            assert list(asked.names) == ["submit_layers"]
            record = {"workload": "submit_layers", "ratio_to_bound": now, "quick": False}
            (asked.out / "stream.jsonl").write_text(json.dumps(record))
            return 0

        monkeypatch.setattr(runner, "measure", measure)
        assert check.run(folder, margin=0.25) == status
        row = capsys.readouterr().out.splitlines()[-1]
        assert row.startswith("| `submit_layers` | 0.8 |")
        assert ("regression" in row) == bool(status)

    def test_nothing_to_compare_with_is_no_success(self, tmp_path: Path) -> None:
        assert check.run(tmp_path, margin=0.25) == 1

    def test_workload_that_gives_no_number_is_no_success(
        self, folder: Path, monkeypatch: Any, capsys: Any
    ) -> None:
        monkeypatch.setattr(runner, "measure", lambda asked, progress: 0)
        assert check.run(folder, margin=0.25) == 1
        assert "not measured: submit_layers" in capsys.readouterr().err

    def test_the_worst_change_comes_first(self) -> None:
        compared = check.compare({"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 1.1, "b": 0.5})
        rows = list(check.table(compared, 0.25))[2:]
        assert rows == [
            "| `b` | 1 | 0.5 | -50% **regression** |",
            "| `a` | 1 | 1.1 | +10% |",
        ]

    def test_steady_workloads_have_a_bound_and_are_in_the_committed_run(self) -> None:
        for suite, names in check.steady().items():
            bounds = {each.name: each.bound for each in SUITES[suite].workloads(False)}
            committed = {record["workload"] for record in read(RESULTS / f"{suite}.jsonl")}
            for name in names:
                assert bounds[name] is not None
                assert name in committed


# One of each kind: the transports differ in nothing that is tested here.
@pytest.mark.parametrize(
    "name", ["send_small_tcp", "latency_small_unix", "send_batch_small_unix", "connections_tcp"]
)
def test_network_workload_with_a_corrupted_batch_gives_no_number(name: str) -> None:
    # The session sees the error too, and ends the client that sends on.
    with (
        pytest.raises(ContentError, match=r"row|there are"),
        network_workload(name).session(Corrupting()) as measure,
    ):
        # The batch that is wrong is the sixth, whose repeat depends on the workload.
        [measure() for _ in range(9)]


def test_network_workload_ends_with_the_reason_of_a_client_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        ClientProcess, "send", lambda client, calls: client.tell({"do": "send", "burst": "many"})
    )
    with (
        pytest.raises(ChildError, match="missing 1 required positional argument: 'turns'"),
        network_workload("send_small_tcp").session(Echoic()) as measure,
    ):
        measure()


def network_workload(name: str) -> Workload:
    return next(workload for workload in SUITES["net"].workloads(True) if workload.name == name)


@pytest.mark.parametrize("transport", ["tcp", "unix", "tls"])
def test_bare_stream_checks_its_bytes_too(monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    with net_probes.bare_stream(transport, ring_bytes=1 << 20, total_bytes=1 << 22) as measure:
        assert measure().value > 0
    monkeypatch.setattr(net_probes, "BLOCKS", 2)
    with (
        net_probes.bare_stream(transport, ring_bytes=1 << 20, total_bytes=1 << 22) as measure,
        pytest.raises(ContentError, match="of a bare stream"),
    ):
        measure()


ROWS = 32


class TestCrowd:
    """A batch of 32 rows, in turn from three producers."""

    @pytest.fixture
    def crowd(self) -> Crowd:
        return Crowd(3)

    @pytest.fixture
    def batch(self) -> dict[str, Any]:
        return self.rows([row % 3 for row in range(ROWS)])

    def rows(self, producers: list[int]) -> dict[str, Any]:
        numbers = [producers[:row].count(producer) for row, producer in enumerate(producers)]
        sent = [
            Crowd.pool(producer).entries[number]
            for producer, number in zip(producers, numbers, strict=True)
        ]
        return {leaf: np.stack([sample[leaf] for sample in sent]) for leaf in sent[0]}

    def test_each_producer_in_its_order_is_right(self, crowd: Crowd) -> None:
        for producers in ([0, 1, 2, 1, 0], [2, 2, 2, 2, 2]):
            crowd = Crowd(3)
            crowd.check(self.rows(producers), 5)
            assert list(crowd.received) == [producers.count(producer) for producer in range(3)]

    @pytest.mark.parametrize("row", [0, 4, ROWS - 1])
    def test_a_changed_bit_is_seen(self, crowd: Crowd, batch: Any, row: int) -> None:
        batch["words"][row, 3] ^= 1
        with pytest.raises(ContentError, match=rf"row {row} is not what producer {row % 3} sent"):
            crowd.check(batch, ROWS)

    def test_swapped_rows_of_one_producer_are_seen(self, crowd: Crowd, batch: Any) -> None:
        batch["words"][[3, 6]] = batch["words"][[6, 3]]
        with pytest.raises(ContentError, match="row 3 is not what producer 0 sent"):
            crowd.check(batch, ROWS)

    def test_a_repeated_batch_is_seen(self, crowd: Crowd, batch: Any) -> None:
        crowd.count(batch, ROWS)
        with pytest.raises(ContentError, match="after its first 11 rows"):
            crowd.check(batch, ROWS)

    def test_an_unknown_producer_is_seen(self, crowd: Crowd, batch: Any) -> None:
        batch["origin"][5] = 3
        with pytest.raises(ContentError, match="there are 3 producers, not 3"):
            crowd.count(batch, ROWS)


@pytest.fixture
def pool() -> Pool:
    return Pool.of_samples(payload.small(), 7)


def batch_of(pool: Pool, first: int = 0, rows: int = ROWS) -> dict[str, Any]:
    return {path: pool.expected(path, first, rows) for path in pool.columns}


def test_receiver_accepts_the_stream_in_order(pool: Pool) -> None:
    receiver = Receiver(pool)
    receiver.check(batch_of(pool), ROWS)
    receiver.check(batch_of(pool, ROWS), ROWS)
    receiver.check_ends(batch_of(pool, 2 * ROWS), ROWS)
    assert receiver.rows == 3 * ROWS


@pytest.mark.parametrize("row", [0, 1, ROWS - 1])
def test_receiver_names_the_leaf_and_row_of_one_changed_bit(pool: Pool, row: int) -> None:
    batch = batch_of(pool)
    batch["obs"][row].view(np.uint8)[0] ^= 1
    with pytest.raises(ContentError, match=rf"`obs`: row {row} "):
        Receiver(pool).check(batch, ROWS)


@pytest.mark.parametrize("row", [0, ROWS - 1])
def test_check_of_the_ends_sees_a_changed_end(pool: Pool, row: int) -> None:
    batch = batch_of(pool)
    batch["reward"][row] += 1
    with pytest.raises(ContentError, match=rf"`reward`: row {row} "):
        Receiver(pool).check_ends(batch, ROWS)


@pytest.mark.parametrize("check", ["check", "check_ends"])
@pytest.mark.parametrize(
    "first",
    [0, ROWS - 1, ROWS + 1, 2 * ROWS],
    ids=["repeated", "early", "late", "skipped"],
)
def test_receiver_refuses_a_batch_out_of_order(pool: Pool, check: str, first: int) -> None:
    receiver = Receiver(pool)
    receiver.check(batch_of(pool), ROWS)
    with pytest.raises(ContentError, match="differs from what was sent"):
        getattr(receiver, check)(batch_of(pool, first), ROWS)


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.pop("reward"),
        lambda batch: batch.update(obs=batch["obs"].astype(np.float64)),
        lambda batch: batch.update(obs=batch["obs"][:-1]),
        lambda batch: batch.update(obs=batch["obs"].reshape(ROWS, 2, 2)),
    ],
    ids=["leaf missing", "other dtype", "row missing", "other shape"],
)
def test_receiver_refuses_another_form(pool: Pool, change: Any) -> None:
    batch = batch_of(pool)
    change(batch)
    with pytest.raises(ContentError, match="expected"):
        Receiver(pool).check(batch, ROWS)


@pytest.mark.parametrize("rows", [1, ROWS], ids=["samples", "blocks"])
def test_bound_checks_its_copies_too(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    pool = (
        Pool.of_samples(payload.frame(), 7)
        if rows == 1
        else Pool.of_blocks(payload.frame(), 3, rows)
    )
    slots = ROWS // rows
    with probes.plain_copies(pool, slots_per_batch=slots, num_buffers=4, batches=2) as measure:
        assert measure().value > 0
        monkeypatch.setattr(np, "copyto", lambda slot, source: None)
        with pytest.raises(ContentError, match="differs from what was sent"):
            measure()


def test_no_ring_of_a_workload_hides_a_stale_row() -> None:
    for workload in [*SUITES["stream"].workloads(True), *SUITES["net"].workloads(True)]:
        settings = workload.session.keywords  # type: ignore[attr-defined]
        pool = settings["pool"] if "pool" in settings else settings["load"].pool()
        period = len(pool.entries) * pool.rows
        batch_size = workload.parameters["batch_size"]
        ring = batch_size * workload.parameters["num_buffers"]
        assert batch_size % period, workload.name
        assert ring % period, workload.name


def test_subjects_are_measured_in_turn_and_a_failing_one_is_left_out() -> None:
    order: list[str] = []

    class Subject:
        def __init__(self, name: str, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        def __call__(self) -> Subject:
            return self

        def __enter__(self) -> Any:
            return self.measure

        def __exit__(self, *_: object) -> None:
            order.append(f"close {self.name}")

        def measure(self) -> Measurement:
            order.append(self.name)
            if self.fails:
                raise UnavailableError("stalled")
            return Measurement(float(len(order)))

    subjects: Any = {
        "a": Subject("a"),
        "b": Subject("b", fails=True),
        "c": Subject("c"),
    }
    rounds = interleave(subjects, repeats=2)
    assert order == ["a", "b", "c", "a", "c", "a", "c", "close c", "close b", "close a"]
    # The first round only warms up.
    assert rounds.values("a") == [4, 6]
    assert rounds.values("c") == [5, 7]
    assert rounds.values("b") == []
    assert rounds.unavailable == {"b": "stalled"}


def test_summary_gives_median_quartiles_and_range() -> None:
    assert Summary.of([5, 1, 4, 2, 3]) == Summary(median=3, q1=2, q3=4, min=1, max=5)
    assert Summary.of([2.5]) == Summary(median=2.5, q1=2.5, q3=2.5, min=2.5, max=2.5)


@pytest.mark.parametrize(
    ("suite", "peers"),
    [
        ("stream", "id-echo"),
        ("net", "id-echo"),
        ("tables", "dm-reverb"),
        ("local", "cpprb | speed / numpy | speed / rlox"),
    ],
)
def test_tables_show_the_committed_results(suite: str, peers: str) -> None:
    records = read(RESULTS / f"{suite}.jsonl")
    lines = list(report.tables(records))
    limit = "speed / limit | " if any(record.get("limit") for record in records) else ""
    assert lines[0] == f"| workload | Echoic | bound | speed / bound | {limit}speed / {peers} |"
    first = lines[2 : lines.index("") if "" in lines else None]
    assert [line.split("`")[1] for line in first] == [record["workload"] for record in records]


def test_table_of_a_curve_has_every_number_of_connections() -> None:
    numbers = {f"samples_per_s_{count}": {"median": count * 1e6} for count in (1, 64)}
    record = {
        "workload": "curve",
        "unit": "samples/s",
        "median": 64e6,
        "bound": {"median": 12_300.0},
        "ratio_to_bound": None,
        "ratio_to_peer": {"other": 2},
        "metrics": numbers,
        "peers": {"other": {"unavailable": "stalled"}},
        "parameters": {"connections": [1, 64]},
    }
    assert list(report.tables([record]))[2:] == [
        "| `curve` | 64 M samples/s | 12.3 k samples/s | - | 2 |",
        "",
        "| samples/s in total over so many connections | system | 1 | 64 |",
        "|---|---|---|---|",
        "| `curve` | Echoic | 1 M | 64 M |",
    ]
