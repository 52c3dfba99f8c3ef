"""`echoic serve` with tables: what a configuration can say, and whole servers in processes."""

from __future__ import annotations

import contextlib
import json
import math
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import AnyLength, Checkpointer, limiters, reverb, selectors
from echoic.cli.config import ConfigError, read
from echoic.cli.spec import ANY, Field, SpecTextError, parse, text
from echoic.cli.status import LineView, PanelView, choose_view
from echoic.cli.table_settings import TableSettings, make_table
from echoic.views.reading import Reading, ServerReading, Side, TableReading
from polling import until
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Command

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "command-line.md"
# For processes that import and connect, on a machine that does other things too.
PATIENCE = 60.0


# Configuration files.


def write(folder: Path, **config: Any) -> Path:
    path = folder / "tables.json"
    path.write_text(json.dumps(config))
    return path


def read_table(folder: Path, **settings: Any) -> TableSettings:
    """What a file says of its only table."""
    table = {"name": "t", "capacity": 10, **settings}
    journal = {"journal": "journal"} if "durability" in settings else {}
    (found,) = read(write(folder, tables=[table], **journal)).tables
    return found


def test_toml_and_json_say_the_same_of_tables(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        """
        journal = "j"
        [checkpoints]
        path = "c"
        keep = 2
        every = 1.5
        load = false
        [[tables]]
        name = "replay"
        capacity = 1_000
        sampler = {prioritized = 0.6}
        remover = "lifo"
        limiter.sample_to_insert_ratio = {samples_per_insert = 4, min_size = 9, error_buffer = 50}
        max_times_sampled = 3
        seed = 7
        durability = "sync"
        [tables.spec]
        obs = {dtype = "float32", shape = [4]}
        done = "bool"
        [[tables]]
        name = "windows"
        capacity = 10
        trajectories = "obs=float32[?,4],lost=bool"
        """
    )
    ratio = {"samples_per_insert": 4, "min_size": 9, "error_buffer": 50}
    (tmp_path / "a.json").write_text(
        json.dumps(
            {
                "journal": "j",
                "checkpoints": {"path": "c", "keep": 2, "every": 1.5, "load": False},
                "tables": [
                    {
                        "name": "replay",
                        "capacity": 1000,
                        "sampler": {"prioritized": {"exponent": 0.6}},
                        "remover": "lifo",
                        "limiter": {"sample_to_insert_ratio": ratio},
                        "max_times_sampled": 3,
                        "seed": 7,
                        "durability": "sync",
                        "spec": "obs=float32[4],done=bool",
                    },
                    {
                        "name": "windows",
                        "capacity": 10,
                        "trajectories": {
                            "obs": {"dtype": "float32", "shape": ["?", 4]},
                            "lost": "bool",
                        },
                    },
                ],
            }
        )
    )
    replay = TableSettings(
        "replay",
        1000,
        sampler=selectors.Prioritized(0.6),
        remover=selectors.Lifo(),
        limiter=limiters.SampleToInsertRatio(4.0, 9, 50.0),
        max_times_sampled=3,
        seed=7,
        durability="sync",
        spec=(Field("obs", "float32", (4,)), Field("done", "bool")),
    )
    windows = TableSettings(
        "windows",
        10,
        trajectories=(Field("obs", "float32", (ANY, 4)), Field("lost", "bool")),
    )
    for name in ("a.toml", "a.json"):
        config = read(tmp_path / name)
        assert config.tables == (replay, windows)
        assert config.checkpoints == Checkpointer(tmp_path / "c", keep=2, every=1.5, load=False)
        assert config.journal == tmp_path / "j"
        assert config.spec == ()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("uniform", selectors.Uniform()),
        ({"uniform": {}}, selectors.Uniform()),
        ("prioritized", selectors.Prioritized(1.0)),
        ({"prioritized": 0}, selectors.Prioritized(0.0)),
        ("fifo", selectors.Fifo()),
        ("lifo", selectors.Lifo()),
        ("min_heap", selectors.MinHeap()),
        ("max_heap", selectors.MaxHeap()),
        ("epoch", selectors.Epoch()),
        ({"hot_cold": 4}, selectors.HotCold(4)),
        (
            {"hot_cold": {"age_threshold": 4, "hot_fraction": 0.5, "exponent": 0}},
            selectors.HotCold(4, 0.5, 0.0),
        ),
    ],
)
def test_selector_is_read(tmp_path: Path, written: Any, meant: selectors.Selector) -> None:
    settings = read_table(tmp_path, sampler=written, remover=written)
    assert (settings.sampler, settings.remover) == (meant, meant)
    make_table(settings).close()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"min_size": 5}, limiters.MinSize(5)),
        ("min_size", limiters.MinSize(1)),
        ({"queue": 5}, limiters.Queue(5)),
        ({"stack": {"capacity": 5}}, limiters.Stack(5)),
        (
            {
                "sample_to_insert_ratio": {
                    "samples_per_insert": 1.5,
                    "min_size": 2,
                    "error_buffer": [-7, 9.5],
                }
            },
            limiters.SampleToInsertRatio(1.5, 2, (-7.0, 9.5)),
        ),
        (
            {"rate_limiter": {"samples_per_insert": 2}},
            limiters.RateLimiter(1, 2.0, -math.inf, math.inf),
        ),
        (
            {
                "rate_limiter": {
                    "samples_per_insert": 2,
                    "min_size": 3,
                    "max_diff": 9,
                    "min_diff": 1,
                }
            },
            limiters.RateLimiter(3, 2.0, 1.0, 9.0),
        ),
    ],
)
def test_limiter_is_read(tmp_path: Path, written: Any, meant: limiters.Limiter) -> None:
    settings = read_table(tmp_path, limiter=written)
    assert settings.limiter == meant
    make_table(settings).close()


@pytest.mark.parametrize(
    ("kind", "made"), [("queue", echoic.Table.queue), ("stack", echoic.Table.stack)]
)
@pytest.mark.parametrize("api", ["echoic", "reverb"])
def test_kind_is_what_the_table_has_a_method_for(
    tmp_path: Path, api: str, kind: str, made: Callable[..., echoic.Table]
) -> None:
    table = make_table(read_table(tmp_path, kind=kind, api=api))
    assert table.stats() == made("t", capacity=10).stats()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"size": 3}, r"unknown key `tables\[1\].size`; allowed are name, capacity, kind, api"),
        ({"name": ""}, r"`tables\[1\].name` must be text, not ''"),
        ({"name": "first"}, r"`tables\[1\].name`: another table is named `first`"),
        ({"capacity": 0}, r"`tables\[1\].capacity` must be a whole number from 1 on, not 0"),
        ({"capacity": "9"}, r"`tables\[1\].capacity` must be a whole number from 1 on, not '9'"),
        ({"max_times_sampled": 0}, r"`tables\[1\].max_times_sampled` must be .* from 1 on"),
        ({"seed": 2**64}, r"`tables\[1\].seed` must be a whole number from 0 to 18446744073709551"),
        (
            {"sampler": "best"},
            r"`tables\[1\].sampler`: unknown selector `best`; known are epoch, fi",
        ),
        ({"sampler": 3}, r"`tables\[1\].sampler` must be the name of a selector, or a table with"),
        ({"sampler": {}}, r"`tables\[1\].sampler` must be the name .*, not \{\}"),
        ({"sampler": {"fifo": 1}}, r"`tables\[1\].sampler.fifo` takes no arguments: give its name"),
        (
            {"sampler": {"prioritized": "a"}},
            r"`tables\[1\].sampler.prioritized` must be a number, not 'a'",
        ),
        ({"sampler": {"prioritized": 10**400}}, r"sampler.prioritized` must be a number that fits"),
        (
            {"sampler": {"prioritized": {"alpha": 1}}},
            r"unknown key `tables\[1\].sampler.prioritized.alpha`; allowed are exponent",
        ),
        ({"remover": "hot_cold"}, r"`tables\[1\].remover` needs age_threshold"),
        ({"limiter": {"min_size": 0}}, r"`tables\[1\].limiter.min_size` must be a whole number"),
        ({"limiter": {"size": 1}}, r"unknown limiter `size`; known are min_size, queue, r"),
        ({"limiter": {"queue": {}}}, r"`tables\[1\].limiter.queue` needs capacity"),
        (
            {"limiter": {"sample_to_insert_ratio": 4}},
            r"tables\[1\].limiter.sample_to_insert_ratio must be a table, not 4",
        ),
        (
            {"limiter": {"sample_to_insert_ratio": {"samples_per_insert": 4, "min_size": 1}}},
            r"`tables\[1\].limiter.sample_to_insert_ratio` needs error_buffer",
        ),
        (
            {"limiter": {"sample_to_insert_ratio": {"error_buffer": [1]}}},
            r"error_buffer` must be a number or a list of two, not \[1\]",
        ),
        ({"kind": "heap"}, r'`tables\[1\].kind` must be "queue" or "stack", not \'heap\''),
        (
            {"kind": "queue", "limiter": {"min_size": 1}},
            r"`tables\[1\].limiter` can't be set with kind = .queue.",
        ),
        ({"kind": "stack", "seed": 1}, r"`tables\[1\].seed` can't be set with kind = .stack."),
        ({"api": "dm"}, r'`tables\[1\].api` must be "echoic" or "reverb", not \'dm\''),
        ({"durability": "all"}, r'`tables\[1\].durability` must be "none", "async" or "sync"'),
        ({"durability": "async"}, r"`tables\[1\].durability` needs a `journal`"),
        ({"spec": 3}, r"`tables\[1\].spec` must be a table or text, not 3"),
        ({"spec": "x=float31"}, r"`tables\[1\].spec`: `x`: expected a dtype .*, got `float31`"),
        ({"spec": "x=int8[?]"}, r"`tables\[1\].spec`: `x`: every axis must have a length, got"),
        (
            {"trajectories": "x=int8[4,?]"},
            r"only the first axis may be of any length, not .*\[4,\?",
        ),
        ({"spec": "int8", "trajectories": "int8"}, r"`tables\[1\]` has a spec and trajectories"),
        ({"signature": "int8"}, r'`tables\[1\].signature` needs api = "reverb"'),
        ({"api": "reverb", "spec": "int8"}, r"`tables\[1\].spec` can't be set with api = .reverb."),
        ({"api": "reverb", "sampler": "epoch"}, r"`tables\[1\].sampler`: Reverb has no such"),
        ({"api": "reverb", "remover": {"hot_cold": 1}}, r"`tables\[1\].remover`: Reverb has no"),
    ],
)
def test_mistake_in_a_table_is_named(tmp_path: Path, settings: Any, complaint: str) -> None:
    tables = [{"name": "first", "capacity": 1}, {"name": "t", "capacity": 1, **settings}]
    path = write(tmp_path, tables=tables)
    with pytest.raises(ConfigError, match=complaint) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"tables": {}}, "`tables` must be a list of tables with a name and a capacity"),
        ({"tables": [3]}, r"tables\[0\] must be a table, not 3"),
        ({"tables": [{"capacity": 1}]}, r"`tables\[0\]` has no name"),
        ({"tables": [{"name": "a"}]}, r"`tables\[0\]` has no capacity"),
        ({"checkpoints": "dir"}, "checkpoints must be a table, not 'dir'"),
        ({"checkpoints": {"keep": 1}}, "`checkpoints` has no path"),
        ({"checkpoints": {"path": "a", "keep": 0}}, "`checkpoints.keep` must be a whole number"),
        ({"checkpoints": {"path": "a", "every": 0}}, "`checkpoints.every` must be at least 0.1"),
        ({"checkpoints": {"path": "a", "every": 1e9}}, "every` must be a number of seconds from"),
        ({"checkpoints": {"path": "a", "load": 1}}, "`checkpoints.load` must be true or false"),
        ({"checkpoints": {"path": "a", "root": 1}}, "unknown key `checkpoints.root`"),
        ({"journal": 1}, "`journal` must be text, not 1"),
    ],
)
def test_mistake_in_a_file_of_tables_is_named(tmp_path: Path, config: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read(write(tmp_path, **config))


def test_text_of_a_spec_has_axes_of_any_length() -> None:
    source = "a=float32[?,4],b=int8[?]"
    assert text(parse(source, any_length=True)) == source
    with pytest.raises(SpecTextError, match=r"`a`: every axis must have a length"):
        parse(source)
    with pytest.raises(SpecTextError, match=r"the sample: every axis must have a length"):
        parse("float32[?]")


# Tables of a configuration.


def test_table_is_as_it_is_written(tmp_path: Path) -> None:
    table = make_table(
        read_table(
            tmp_path,
            sampler={"prioritized": 0.5},
            remover="lifo",
            limiter={"min_size": 3},
            max_times_sampled=2,
            spec="obs=float32[4],reward=float32",
        )
    )
    stats = table.stats()
    assert [
        getattr(stats, name) for name in ("sampler", "remover", "min_size", "max_times_sampled")
    ] == [
        "prioritized(exponent=0.5)",
        "lifo",
        3,
        2,
    ]
    assert table.spec is not None
    assert [(leaf.path, leaf.dtype, leaf.shape) for leaf in table.spec.leaves] == [
        ("obs", "float32", (4,)),
        ("reward", "float32", ()),
    ]


def test_seed_gives_the_draws_of_a_table_with_this_seed(tmp_path: Path) -> None:
    def draws(table: echoic.Table) -> list[int]:
        for number in range(10):
            table.add(np.int64(number))
        return [int(table.sample(1).data[0]) for _ in range(20)]

    made = make_table(read_table(tmp_path, seed=5, spec="int64"))
    assert draws(made) == draws(echoic.Table("t", np.int64(0), capacity=10, seed=5))


def test_trajectories_are_those_of_any_length(tmp_path: Path) -> None:
    table = make_table(read_table(tmp_path, trajectories="obs=float32[?,4],r=float32[3],lost=bool"))
    step = {
        "obs": AnyLength(np.zeros(4, np.float32)),
        "r": np.zeros(3, np.float32),
        "lost": np.bool_(0),
    }
    by_hand = echoic.Table("t", trajectories=step, capacity=10)
    assert table.spec is not None
    assert by_hand.spec is not None
    assert table.spec.leaves == by_hand.spec.leaves


SIGNATURE = {"a": reverb.TensorSpec((None, 3), np.int64), "b": (reverb.TensorSpec((), object),)}


@pytest.mark.parametrize("more", [{}, {"seed": 3, "durability": "async"}])
def test_reverb_table_is_the_one_its_class_makes(tmp_path: Path, more: dict[str, Any]) -> None:
    ratio = {"samples_per_insert": 4, "min_size": 2, "error_buffer": 50}
    table = make_table(
        read_table(
            tmp_path,
            api="reverb",
            sampler={"prioritized": 0.8},
            remover="min_heap",
            limiter={"sample_to_insert_ratio": ratio},
            max_times_sampled=3,
            signature="a=int64[?,3],b/0=object",
            **more,
        )
    )
    by_hand = reverb.Table(
        name="t",
        sampler=reverb.selectors.Prioritized(0.8),
        remover=reverb.selectors.MinHeap(),
        max_size=10,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(4.0, 2, 50.0),
        max_times_sampled=3,
        signature=SIGNATURE,
    ).internal_table.table
    assert table.metadata == by_hand.metadata
    assert table.stats() == by_hand.stats()
    assert table.durability == more.get("durability", "none")


@pytest.mark.parametrize(
    "limiter",
    [
        {"min_size": 2},
        {"queue": 5},
        {"stack": 5},
        {"rate_limiter": {"samples_per_insert": 2, "min_size": 2, "max_diff": 9}},
    ],
)
def test_reverb_table_has_the_bounds_of_the_limiter(tmp_path: Path, limiter: Any) -> None:
    ours, theirs = (
        make_table(read_table(tmp_path, api=api, limiter=limiter)).stats()
        for api in ("echoic", "reverb")
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"limiter": {"min_size": 11}},
            "table `t`: min_size 11 is never reached by .* capacity 10",
        ),
        ({"spec": "x=object"}, "table `t`: .*leaf `x`"),
        ({"capacity": 2**40}, "table `t`: capacity must be below"),
        ({"capacity": 2**64}, "table `t`: a number does not fit into 64 bits"),
        ({"sampler": {"prioritized": -1}}, "table `t`: .*exponent"),
        (
            {
                "api": "reverb",
                "limiter": {
                    "sample_to_insert_ratio": {
                        "samples_per_insert": 4,
                        "min_size": 1,
                        "error_buffer": 1,
                    }
                },
            },
            "table `t`: The size of error_buffer must be",
        ),
    ],
)
def test_table_that_can_not_be_is_named(tmp_path: Path, settings: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_table(read_table(tmp_path, **settings))


# What a person sees.


BEFORE = Reading(
    1.0,
    tables=(
        TableReading("my replay", capacity=2000),
        TableReading("q", capacity=2000, inserts=500),
    ),
)
AFTER = Reading(
    3.0,
    server=ServerReading(connections=4, refused={"AUTH": 2}),
    tables=(
        TableReading(
            "my replay",
            items=900,
            capacity=2000,
            inserts=1000,
            samples=5000,
            insert=Side(waiting=1),
        ),
        TableReading("q", items=500, capacity=2000, inserts=501, sample=Side(waiting=2)),
    ),
)


def test_line_has_the_numbers_of_each_table(capsys: Any) -> None:
    view = LineView(1.0, BEFORE)
    view.update(AFTER)
    line = capsys.readouterr().err
    numbers = dict(part.split("=") for part in line.split()[1:])
    assert numbers == {
        "connections": "4",
        "refused": "2",
        "refused.AUTH": "2",
        "my_replay.size": "900",
        "my_replay.inserts": "1000",
        "my_replay.inserts/s": "500",
        "my_replay.inserts_waiting": "1",
        "my_replay.samples": "5000",
        "my_replay.samples/s": "2500",
        "my_replay.samples_waiting": "0",
        "q.size": "500",
        "q.inserts": "501",
        "q.inserts/s": "0",
        "q.inserts_waiting": "0",
        "q.samples": "0",
        "q.samples/s": "0",
        "q.samples_waiting": "2",
    }


def test_panel_has_a_row_for_each_table(tmp_path: Path) -> None:
    with (tmp_path / "screen").open("w+") as screen:
        console = Console(file=screen, force_terminal=True, width=100, color_system=None)
        view = choose_view(console, "echoic serve", ["tcp://127.0.0.1:5555"], 1.0, BEFORE)
        assert isinstance(view, PanelView)
        with view:
            view.update(AFTER)
        screen.seek(0)
        shown = screen.read()
    assert re.search(r"my replay +900 of 2 k \(45%\) +500 +1 +2\.5 k +0 ", shown)
    assert re.search(r"q +500 of 2 k \(25%\) +0\.5 +0 +0 +2 ", shown)
    # What only a stream has.
    assert "ring" not in shown


# Whole runs, in processes.


def command(path: Path) -> list[str]:
    return [sys.executable, "-m", "echoic", "serve", "--config", str(path)]


@pytest.fixture
def start(serve_command: Callable[..., Command]) -> Callable[[Path], Command]:
    """Start `echoic serve` with a configuration."""
    return lambda path: serve_command("--config", path)


def test_clients_insert_and_sample(start: Any, tmp_path: Path) -> None:
    server = start(
        write(
            tmp_path,
            interval=0.1,
            tables=[
                {"name": "replay", "capacity": 10, "spec": "obs=float32[4],reward=float32"},
                {"name": "queue", "capacity": 10, "kind": "queue"},
            ],
        )
    )
    with echoic.connect(server.addresses[0]) as client:
        client.table("replay").add({"obs": np.ones(4, np.float32), "reward": 0.5})
        with client.trajectory_writer(3) as writer:
            for at in range(3):
                writer.append({"at": at})
            writer.create_item("queue", 1.0, {"at": writer.history["at"][-2:]})
        client.flush()
        batch = client.table("replay").sample(2)
        assert batch.data["obs"].tolist() == [[1.0] * 4] * 2
        assert client.table("queue").sample(1).data["at"].tolist() == [[1, 2]]
    errors = server.end(signal.SIGINT)
    assert "table replay: obs=float32[4],reward=float32; at most 10 items\n" in errors
    assert "table queue: items of any form; at most 10 items\n" in errors
    assert " replay.size=1 replay.inserts=1 " in errors
    assert "table replay: 1 items after 1 inserts, 2 samples and 0 deletions\n" in errors
    assert "table queue: 0 items after 1 inserts, 1 samples and 1 deletions\n" in errors
    assert errors.splitlines()[-1].endswith(": 0 connections refused")
    assert "checkpoint" not in errors


def test_a_server_may_have_a_stream_and_tables(start: Any, tmp_path: Path) -> None:
    table = {"name": "replay", "capacity": 10, "spec": "int64"}
    server = start(write(tmp_path, spec={"x": "int64"}, batch_size=2, save="out", tables=[table]))
    with echoic.connect(server.addresses[0]).stream({"x": np.int64(0)}) as client:
        client.extend({"x": np.arange(5)})
    with echoic.connect(server.addresses[0]) as client:
        client.table("replay").add(np.int64(7))
    errors = server.end()
    assert len(list((tmp_path / "out").iterdir())) == 3
    assert "table replay: 1 items after 1 inserts" in errors
    assert ": 5 samples (40 B) in 2 batches and 1 in no batch" in errors.splitlines()[-1]


def test_the_last_checkpoint_has_all_that_clients_know_to_be_stored(
    start: Any, tmp_path: Path
) -> None:
    tables = [
        {"name": "rows", "capacity": 100, "spec": "int64", "sampler": "fifo"},
        {"name": "theirs", "capacity": 100, "api": "reverb"},
    ]
    config = write(tmp_path, tables=tables, checkpoints={"path": "saved", "keep": 2})
    for run in range(3):
        server = start(config)
        with echoic.connect(server.addresses[0]) as client:
            client.table("rows").extend(np.arange(10) + 10 * run)
        their_client = reverb.Client(server.addresses[0])
        their_client.insert([run], {"theirs": 1.0})
        errors = server.end()
        last = tmp_path / "saved" / f"checkpoint-{run + 1:010}"
        assert f"the last checkpoint is {last}\n" in errors
        assert ("were restored" in errors) == (run > 0)
    assert len(list((tmp_path / "saved").glob("checkpoint-*"))) == 2
    server = start(config)
    with echoic.connect(server.addresses[0]) as client:
        rows = client.table("rows")
        assert rows.get(rows.items().keys).data.tolist() == [*range(30)]
        assert len(client.table("theirs").items().keys) == 3
    assert "; 30 were restored\n" in server.end()


def test_inserts_that_come_while_the_server_ends_are_in_the_last_checkpoint(
    start: Any, tmp_path: Path
) -> None:
    table = {"name": "rows", "capacity": 100_000, "spec": "int64"}
    config = write(tmp_path, tables=[table], checkpoints={"path": "saved"})
    server = start(config)
    client = echoic.connect(server.addresses[0], reconnect=0.5)
    client.table("rows").add(np.int64(0))
    client.flush(PATIENCE)
    sent = 1
    # The client gives up some time after the server has ended.
    with contextlib.suppress(echoic.errors.DisconnectedError):
        while sent < 50_000:
            client.table("rows").add(np.int64(sent))
            sent += 1
            if sent == 10_000:
                server.popen.send_signal(signal.SIGTERM)
        client.close(PATIENCE)
    _, errors = server.popen.communicate(timeout=PATIENCE)
    assert server.popen.returncode == 0, errors
    acked = int(client.stats().items_acked)
    (saved,) = echoic._native.open_checkpoint(tmp_path / "saved")
    # In order and without a gap; the answer to what came last may have been lost.
    stored = np.sort(saved.get(saved.items().keys).data)
    assert 0 < acked <= len(stored)
    assert stored.tolist() == [*range(len(stored))]


def test_scheduled_checkpoints_survive_a_kill(start: Any, tmp_path: Path) -> None:
    table = {"name": "rows", "capacity": 100, "spec": "int64"}
    config = write(tmp_path, tables=[table], checkpoints={"path": "saved", "every": 0.1})
    server = start(config)
    with echoic.connect(server.addresses[0]) as client:
        client.table("rows").extend(np.arange(10))
        client.flush()
        [first] = client.checkpoint().values()
        # A whole one that began after the insert: the one above may be the last that counts.
        until(lambda: any(path > first for path in first.parent.glob("checkpoint-*")))
        server.kill()
    assert "; 10 were restored\n" in start(config).end()


def test_journalled_tables_of_both_kinds_survive_a_kill(start: Any, tmp_path: Path) -> None:
    tables = [
        {"name": "rows", "capacity": 100, "spec": "int64", "durability": "async"},
        {"name": "theirs", "capacity": 100, "api": "reverb", "durability": "sync", "seed": 1},
        {"name": "lost", "capacity": 100, "spec": "int64"},
    ]
    config = write(tmp_path, tables=tables, journal="journal")
    server = start(config)
    client = echoic.connect(server.addresses[0])
    client.table("rows").extend(np.arange(10))
    client.table("lost").extend(np.arange(10))
    client.flush()
    reverb.Client(server.addresses[0]).insert([1.0, "text"], {"theirs": 1.0})
    server.kill()
    server = start(config)
    [[step]] = reverb.Client(server.addresses[0]).sample("theirs")
    assert step.data == [1.0, b"text"]
    with echoic.connect(server.addresses[0]) as again:
        assert {name: len(table) for name, table in again.tables.items()} == {
            "rows": 10,
            "theirs": 1,
            "lost": 0,
        }
    server.end()


@pytest.fixture
def guide() -> list[str]:
    """The TOML files of the guide that have tables."""
    blocks = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return [block for block in blocks if "[[tables]]" in block]


def test_the_file_of_tables_in_the_guide_is_served(
    start: Any, tmp_path: Path, guide: list[str]
) -> None:
    (tmp_path / "tables.toml").write_text(guide[0].replace(":5555", ":0"))
    (tmp_path / "secret").write_text("hunter2\n")
    server = start(tmp_path / "tables.toml")
    with echoic.connect(server.addresses[0], token="hunter2") as client:
        assert sorted(client.tables) == ["messages", "replay", "sequences"]
        item = {"obs": np.zeros(4, np.float32), "action": 1, "reward": 0.5}
        client.table("replay").add(item, 2.0)
        with client.trajectory_writer(5) as writer:
            for _ in range(5):
                writer.append({"obs": np.zeros(4, np.float32), "lost": False})
            history = writer.history
            leaves = {"obs": history["obs"][-4:], "lost": history["lost"][-1]}
            writer.create_item("sequences", 1.0, leaves)
            writer.create_item("messages", 1.0, {"any": history["lost"][:]})
        client.flush()
        assert client.table("messages").sample(1).data["any"].shape == (1, 5)
    assert "table replay: 1 items after 1 inserts" in server.end()


def test_reverb_clients_understand_the_tables_of_the_guide(
    start: Any, tmp_path: Path, guide: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ECHOIC_REVERB_TOKEN", raising=False)
    (tmp_path / "tables.toml").write_text(guide[1].replace(":8000", ":0"))
    server = start(tmp_path / "tables.toml")
    client = reverb.Client(server.addresses[0].removeprefix("tcp://"))
    infos = client.server_info(timeout=int(PATIENCE))
    assert sorted(infos) == ["my_queue", "my_table"]
    table = infos["my_table"]
    assert table.sampler_options.prioritized.priority_exponent == pytest.approx(0.8)
    assert table.max_size == 1000
    assert table.signature == {
        "a": reverb.TensorSpec((None,), np.int64),
        "b": reverb.TensorSpec((None, 3), np.float32),
    }
    assert infos["my_queue"].max_times_sampled == 1
    assert infos["my_queue"].signature is None
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for step in range(3):
            writer.append({"a": np.int64(step), "b": np.full(3, step, np.float32)})
        history = writer.history
        trajectory = {"a": history["a"][-2:], "b": history["b"][:]}
        writer.create_item("my_table", 1.0, trajectory)
        with pytest.raises(ValueError, match="my_table"):
            writer.create_item("my_table", 1.0, {"a": history["b"][:], "b": history["b"][:]})
    [sample] = client.sample("my_table", emit_timesteps=False, unpack_as_table_signature=True)
    assert sample.data["a"].tolist() == [1, 2]
    assert sample.data["b"].shape == (3, 3)
    with echoic.connect(server.addresses[0]) as ours:
        assert ours.table("my_table").stats().samples == 1
    server.end()


@pytest.mark.parametrize(
    ("config", "code", "complaint"),
    [
        ({}, 2, "nothing to serve: give --spec or a --config with a spec or tables"),
        (
            {"tables": [{"name": "a", "capacity": 1}], "save": "out"},
            2,
            "--save needs a stream",
        ),
        (
            {"tables": [{"name": "a", "capacity": 1, "limiter": {"min_size": 2}}]},
            1,
            "table `a`: min_size 2 is never reached",
        ),
        (
            {"tables": [{"name": "a", "capacity": 1}], "checkpoints": {"path": "."}},
            1,
            "tables.json",
        ),
    ],
)
def test_serve_says_what_is_wrong_with_tables(
    tmp_path: Path, config: Any, code: int, complaint: str
) -> None:
    done = subprocess.run(
        command(write(tmp_path, **config)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("echoic: ")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_last_checkpoint_that_fails_is_exit_status_1(start: Any, tmp_path: Path) -> None:
    table = {"name": "rows", "capacity": 100, "spec": "int64"}
    server = start(write(tmp_path, tables=[table], checkpoints={"path": "saved"}))
    (tmp_path / "saved").mkdir(exist_ok=True)
    (tmp_path / "saved" / "notes.txt").write_text("of somebody else")
    server.popen.send_signal(signal.SIGTERM)
    _, errors = server.popen.communicate(timeout=PATIENCE)
    assert server.popen.returncode == 1
    assert errors.splitlines()[-1].startswith("echoic: could not write the last checkpoint: ")
