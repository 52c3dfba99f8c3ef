"""The command line: what it understands, what it says, and whole runs in processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import echoic
import numpy as np
import pytest
from echoic.cli import load as loads
from echoic.cli.app import app
from echoic.cli.bench import Report, report
from echoic.cli.config import Config, ConfigError, Listen, listener, read
from echoic.cli.serve import Ending
from echoic.cli.sink import Consumer, Counter, Folder
from echoic.cli.spec import Field, SpecTextError, example, from_table, mirror, parse, text
from echoic.cli.status import LineView, PanelView, choose_view
from echoic.cli.text import amount, duration, size, why
from echoic.transports import Listener
from echoic.views.reading import Reading, ServerReading, StreamReading
from echoic.watch import Peer
from hypothesis import given
from hypothesis import strategies as st
from polling import until
from rich.console import Console
from typer.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Command

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "guides" / "command-line.md"
# For processes that import and connect, on a machine that does other things too.
PATIENCE = 60.0
SPEC = "obs=float32[4],reward=float32"


def sample() -> dict[str, Any]:
    return {"obs": np.zeros(4, np.float32), "reward": np.float32(0)}


def squeeze(output: str) -> str:
    """Text without the frames and line ends that depend on a terminal's width."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", output)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})


# Specs.


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("x=float32", [Field("x", "float32", ())]),
        (
            "obs/image=uint8[84,84,4],reward=float32",
            [Field("obs/image", "uint8", (84, 84, 4)), Field("reward", "float32", ())],
        ),
        (" a = int8 [ 2, 3 ] , b=bool", [Field("a", "int8", (2, 3)), Field("b", "bool", ())]),
        ("x=f4,y=S12,z=float", [Field("x", "float32"), Field("y", "S12"), Field("z", "float64")]),
        ("float32[3]", [Field("", "float32", (3,))]),
        ("x=int8[0]", [Field("x", "int8", (0,))]),
        ("x=int8[]", [Field("x", "int8", ())]),
    ],
)
def test_spec_is_read(source: str, fields: list[Field]) -> None:
    assert list(parse(source)) == fields


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", r"the sample: expected dtype\[shape\] like float32\[4\], got ``"),
        ("x=float31", "`x`: expected a dtype .*, got `float31`"),
        ("x=float32[-1]", r"`x`: expected dtype\[shape\] like float32\[4\], got `float32\[-1\]`"),
        ("x=float32[4", "expected dtype"),
        ("x=float32[4,,4]", "an axis without a length"),
        ("x=float32,", r"expected a field path=dtype\[shape\], got ``"),
        ("x=float32,y", r"expected a field path=dtype\[shape\], got `y`"),
        ("=float32", r"expected a field path=dtype\[shape\], got `=float32`"),
        ("x=int8,x=int8", "`x` is given twice"),
        ("x=int8,x/y=int8", "`x` is a leaf and can't have `x/y` below it"),
    ],
)
def test_what_is_no_spec_is_refused_with_its_part(source: str, complaint: str) -> None:
    with pytest.raises(SpecTextError, match=complaint):
        parse(source)


names = st.text(st.characters(codec="utf-8", exclude_characters="/,=[] "), min_size=1).filter(
    lambda name: name == name.strip()
)
shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@given(st.dictionaries(names, st.tuples(st.sampled_from(["int8", "float64", "S7"]), shapes)))
def test_text_of_a_spec_reads_as_the_spec(leaves: dict[str, Any]) -> None:
    if leaves:
        fields = tuple(Field(path, dtype, shape) for path, (dtype, shape) in leaves.items())
        assert parse(text(fields)) == fields


def test_example_has_the_dtypes_and_shapes_of_the_spec() -> None:
    tree = example(parse("obs/image=uint8[2,3],obs/flags=bool,reward=float32"))
    assert tree["obs"]["image"].dtype == np.uint8
    assert tree["obs"]["image"].shape == (2, 3)
    assert tree["obs"]["flags"].dtype == bool
    assert tree["reward"].shape == ()
    assert set(tree) == {"obs", "reward"}


def test_keys_that_count_make_a_tuple() -> None:
    # As a dict they would be sorted as text: 10 before 2.
    fields = parse(",".join(f"x/{index}=int8[{index}]" for index in range(12)))
    tree = example(fields)
    assert isinstance(tree["x"], tuple)
    assert [leaf.shape[0] for leaf in tree["x"]] == list(range(12))


class Point(NamedTuple):
    y: Any
    x: Any


@pytest.mark.parametrize(
    "tree",
    [
        {"b": np.zeros(2), "a": {"d": np.zeros(3), "c": np.zeros(4)}},
        {"p": Point(np.zeros(1), np.zeros(2)), "a": np.int8(0)},
        [np.zeros(index, np.int8) for index in range(12)],
        {"with/slash": np.zeros(1), "with~tilde": np.zeros(2)},
        np.zeros(5),
    ],
    ids=["dicts", "namedtuple", "list", "escapes", "array"],
)
def test_mirror_has_the_leaves_of_a_stream_in_their_order(make_stream: Any, tree: Any) -> None:
    leaves = make_stream(tree).spec.leaves
    fields = [Field(leaf.path, leaf.dtype, leaf.shape) for leaf in leaves]
    copy = mirror((field, field.zeros()) for field in fields)
    assert make_stream(copy).spec.leaves == leaves


def test_table_of_a_file_is_the_same_spec_as_text() -> None:
    table = {
        "obs": {"image": {"dtype": "uint8", "shape": [84, 84]}, "speed": "float32[3]"},
        "with/slash": {"dtype": "bool"},
    }
    assert from_table(table) == parse(
        "obs/image=uint8[84,84],obs/speed=float32[3],with~1slash=bool"
    )


def test_leaf_may_be_called_dtype() -> None:
    assert from_table({"x": {"dtype": {"dtype": "int8"}}}) == (Field("x/dtype", "int8"),)


# Configuration files.

CONFIG = {
    "spec": {"obs": {"dtype": "float32", "shape": [4]}, "reward": {"dtype": "float32"}},
    "batch_size": 32,
    "capacity": 256,
    "listen": [
        {"address": "tcp://0.0.0.0:5555", "token_file": "secret", "max_connections": 100},
        {"address": "shm://robots", "heartbeat": 2},
    ],
    "save": "batches",
    "metrics": "127.0.0.1:9464",
    "drain": 1.5,
}
CONFIG_TOML = """
batch_size = 32
capacity = 256
save = "batches"
metrics = "127.0.0.1:9464"
drain = 1.5

[spec.obs]
dtype = "float32"
shape = [4]

[spec]
reward = { dtype = "float32" }

[[listen]]
address = "tcp://0.0.0.0:5555"
token_file = "secret"
max_connections = 100

[[listen]]
address = "shm://robots"
heartbeat = 2
"""


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(CONFIG))
    (tmp_path / "a.toml").write_text(CONFIG_TOML)
    expected = Config(
        spec=parse(SPEC),
        batch_size=32,
        capacity=256,
        listen=(
            Listen("tcp://0.0.0.0:5555", token_file=tmp_path / "secret", max_connections=100),
            Listen("shm://robots", heartbeat=2.0),
        ),
        save=tmp_path / "batches",
        metrics="127.0.0.1:9464",
        drain=1.5,
    )
    assert read(tmp_path / "a.json") == expected
    assert read(tmp_path / "a.toml") == expected


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"batchsize": 1}, "unknown key `batchsize`; allowed are spec, batch_size, capacity"),
        ({"batch_size": 0}, "`batch_size` must be a whole number from 1 on, not 0"),
        ({"batch_size": True}, "`batch_size` must be a whole number from 1 on, not True"),
        ({"capacity": 1.5}, "`capacity` must be a whole number"),
        ({"drain": -1}, "`drain` must be a number of seconds"),
        ({"drain": 1e9}, "`drain` must be a number of seconds from 0 to 3600"),
        ({"interval": 0}, "`interval` must be at least"),
        ({"save": 3}, "`save` must be text, not 3"),
        ({"listen": {}}, "`listen` must be a list of tables with an address"),
        ({"listen": [3]}, r"listen\[0\] must be a table, not 3"),
        ({"listen": [{}]}, r"`listen\[0\]` has no address"),
        (
            {"listen": [{"address": "shm://a", "port": 1}]},
            r"unknown key `listen\[0\].port`; allowed are address, token_file",
        ),
        ({"listen": [{"address": "x", "insecure": 1}]}, "`.*insecure` must be true or false"),
        ({"spec": []}, "`spec` must be a table or text"),
        ({"spec": {"x": 3}}, r"`x`: expected a table or dtype\[shape\], got 3"),
        ({"spec": {"x": {}}}, "`x`: expected a table with fields, got an empty one"),
        ({"spec": {"x": {"dtype": "int8", "size": 1}}}, "`x`: unknown key `size`; allowed are"),
        (
            {"spec": {"x": {"dtype": "int8", "shape": [-1]}}},
            r"`x`: shape must be a list of lengths, got \[-1\]",
        ),
        (
            {"spec": {"x": "int9"}},
            "`x`: expected a dtype such as float32, uint8 or bool, got `int9`",
        ),
    ],
)
def test_mistake_in_a_file_is_named(tmp_path: Path, change: Any, complaint: str) -> None:
    path = tmp_path / "stream.json"
    path.write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ConfigError, match=complaint) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.json", "{", "a.json: Expecting"),
        ("a.toml", "x", "a.toml: "),
        ("a.yaml", "", "must end in .toml or .json"),
        ("a.json", "[]", "the file must be a table"),
    ],
)
def test_file_that_can_not_be_read_is_named(
    tmp_path: Path, name: str, content: str, complaint: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        read(tmp_path / name)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't read .*none\.toml: No such file"):
        read(tmp_path / "none.toml")


def test_configurations_in_the_guide_can_be_used(tmp_path: Path) -> None:
    blocks = re.findall(r"```(toml|json)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert {kind for kind, _ in blocks} == {"toml", "json"}
    for kind, block in blocks:
        path = tmp_path / f"stream.{kind}"
        path.write_text(block)
        config = read(path)
        assert config.spec or config.tables
        (tmp_path / "secret").write_text("secret")
        assert [listener(listen) for listen in config.listen]


# Addresses.


def test_address_becomes_its_listener(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hunter2\n")
    assert listener(Listen("tcp://127.0.0.1:5555")) == Listener("tcp://127.0.0.1:5555")
    assert listener(
        Listen("tcp://[::1]:0", token, insecure=True, max_connections=3, heartbeat=1.0, threads=2)
    ) == Listener(
        "tcp://[::1]:0",
        token=b"hunter2",
        insecure=True,
        max_connections=3,
        heartbeat=1.0,
        threads=2,
    )
    tls = echoic.Tls(certificate=Path("c"), key=Path("k"), ca=Path("a"))
    assert listener(
        Listen("tls://host:1", certificate=tls.certificate, key=tls.key, client_ca=tls.ca)
    ) == Listener("tls://host:1", tls=tls)
    assert listener(Listen("unix:///run/a b.sock")) == Listener("unix:///run/a b.sock")
    assert listener(Listen("shm://robots", token)) == Listener("shm://robots", token=b"hunter2")


def test_listener_with_tls_needs_a_certificate() -> None:
    with pytest.raises(ConfigError, match=r"tls://127\.0\.0\.1:1 needs a certificate and its key"):
        listener(Listen("tls://127.0.0.1:1"))


def test_empty_token_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("\n")
    with pytest.raises(ConfigError, match=r"the token: the file .* is empty"):
        listener(Listen("shm://a", path))


# Where batches go.


def fill(stream: echoic.Stream, rows: int) -> None:
    for row in range(rows):
        stream.add({"x": {"file": np.full(3, row, np.int16), "arr_0": np.float64(-row)}})


def filed_stream(make_stream: Any) -> echoic.Stream:
    # The names are those of `numpy.savez`'s arguments.
    stream: echoic.Stream = make_stream({"x": {"file": np.zeros(3, np.int16), "arr_0": 0.0}}, 4)
    return stream


def consume(stream: echoic.Stream, sink: Any) -> Consumer:
    failures: list[int] = []
    consumer = Consumer(stream, sink, failed=lambda: failures.append(1))
    consumer.start()
    stream.close()
    consumer.join()
    assert len(failures) == (consumer.error is not None)
    return consumer


def paths_of(stream: echoic.Stream) -> list[str]:
    return [leaf.path for leaf in stream.spec.leaves]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_batches_are_saved_by_path_and_the_rest_too(make_stream: Any, tmp_path: Path) -> None:
    stream = filed_stream(make_stream)
    fill(stream, 6)
    consumer = consume(stream, Folder(tmp_path, paths_of(stream)))
    assert (consumer.error, consumer.batches, consumer.samples) == (None, 1, 6)
    assert names_in(tmp_path) == ["batch-00000000.npz", "batch-00000001.npz"]
    rows = []
    for path in sorted(tmp_path.iterdir()):
        with np.load(path, allow_pickle=False) as file:
            assert set(file) == {"x/file", "x/arr_0"}
            assert file["x/file"].dtype == np.int16
            assert file["x/arr_0"].tolist() == (-file["x/file"][:, 0]).tolist()
            rows += file["x/file"].tolist()
    assert rows == [[row] * 3 for row in range(6)]


def test_sample_that_is_one_array_is_saved_under_a_name(
    counter_stream: Any, tmp_path: Path
) -> None:
    stream = counter_stream(2)
    stream.extend(np.arange(2))
    consume(stream, Folder(tmp_path, paths_of(stream)))
    with np.load(tmp_path / "batch-00000000.npz") as file:
        assert {name: file[name].tolist() for name in file} == {"sample": [0, 1]}


def test_files_of_an_earlier_run_are_kept(counter_stream: Any, tmp_path: Path) -> None:
    for run in range(2):
        stream = counter_stream(1)
        stream.add(np.int64(run))
        consume(stream, Folder(tmp_path, paths_of(stream)))
    (tmp_path / "batch-00000041.npz").touch()
    stream = counter_stream(1)
    stream.add(np.int64(2))
    consume(stream, Folder(tmp_path, paths_of(stream)))
    names = [f"batch-000000{number}.npz" for number in ("00", "01", "41", "42")]
    assert names_in(tmp_path) == names
    assert np.load(tmp_path / names[0])["sample"].tolist() == [0]
    assert np.load(tmp_path / names[3])["sample"].tolist() == [2]


def test_failed_write_leaves_no_file_and_is_told(counter_stream: Any, tmp_path: Path) -> None:
    class Full(Folder):
        def _write(self, path: Path, leaves: list[Any]) -> None:
            super()._write(path, leaves)
            raise OSError(28, "No space left on device")

    stream = counter_stream(1)
    stream.add(np.int64(1))
    consumer = consume(stream, Full(tmp_path, paths_of(stream)))
    assert why(consumer.error) == "No space left on device"
    assert names_in(tmp_path) == []


def test_counting_keeps_no_batch(counter_stream: Any) -> None:
    stream = counter_stream(batch_size=2, capacity=4)
    consumer = Consumer(stream, Counter(), failed=lambda: None)
    consumer.start()
    stream.extend(np.arange(100), timeout=PATIENCE)
    until(lambda: consumer.batches == 50)
    assert stream.stats().batches_held == 0
    stream.close()
    consumer.join()
    assert consumer.samples == 100


# What a person sees.


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (amount(0), "0"),
        (amount(999.4), "999"),
        (amount(999.6), "1 k"),
        (amount(1_234_567), "1.23 M"),
        (size(20), "20 B"),
        (size(1_500_000), "1.5 MB"),
        (duration(4e-8), "40 ns"),
        (duration(1.23e-5), "12.3 µs"),
        (duration(0.0315), "31.5 ms"),
        (duration(2.5), "2.5 s"),
        (duration(1234), "1,234 s"),
    ],
)
def test_numbers_have_three_digits_and_a_unit(shown: str, expected: str) -> None:
    assert shown == expected


def pushing(number: int, blocked_time: float) -> Peer:
    """A connection of a worker."""
    return Peer("tcp://", number, "", "push", 60.0, 0, 0, 0, 0, blocked_time, "")


BEFORE = Reading(
    10.0,
    stream=StreamReading(samples=1000, bytes=20_000),
    connections=(pushing(1, 1.0), pushing(2, 0.0)),
)
AFTER = Reading(
    12.0,
    stream=StreamReading(samples=5000, bytes=100_000, stored=3, capacity=4),
    server=ServerReading(connections=2, accepted=9, refused={"AUTH": 2, "SPEC": 1}),
    connections=(pushing(1, 2.0), pushing(2, 1.0)),
)


def test_line_has_the_rates_since_the_one_before(capsys: Any) -> None:
    view = LineView(1.0)
    view.update(BEFORE)
    capsys.readouterr()
    view.update(AFTER)
    output, line = capsys.readouterr()
    assert output == ""
    numbers = dict(part.split("=") for part in line.split()[1:])
    assert numbers == {
        "samples": "5000",
        "samples/s": "2000",
        "MB/s": "0.04",
        "connections": "2",
        "fill": "0.75",
        # Two connections waited for one second each, of two.
        "blocked": "0.50",
        "reconnects": "0",
        "duplicates": "0",
        "refused": "3",
        "refused.AUTH": "2",
        "refused.SPEC": "1",
    }


def test_panel_shows_rates_and_refusals() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    view = choose_view(console, "echoic serve", ["tcp://127.0.0.1:5555"], 1.0)
    assert isinstance(view, PanelView)
    with view:
        view.update(BEFORE)
        view.update(AFTER)
    shown = screen.getvalue()
    for part in (
        "tcp://127.0.0.1:5555",
        "samples/s",
        "2 k",
        "40 kB/s, 5 k in all",
        "75% full",
        "50% of the time",
        "9 since the start",
        "2 AUTH, 1 SPEC",
    ):
        assert part in shown


def test_output_that_is_no_terminal_gets_lines() -> None:
    assert isinstance(choose_view(Console(file=io.StringIO()), "", [], 3.0), LineView)


# The commands, in this process.


def test_importing_the_package_loads_nothing_of_the_command_line(run_script: Any) -> None:
    done = run_script(
        "import sys, echoic, echoic.cli\n"
        "print(sorted({'typer', 'rich', 'click', 'pydantic'} & set(sys.modules)))"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_processes_of_bench_load_neither_typer_nor_rich(run_script: Any) -> None:
    done = run_script(
        "import sys, echoic.cli.load; print(sorted({'typer', 'rich'} & set(sys.modules)))"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_missing_extra_is_one_line_that_says_how_to_get_it(run_script: Any, missing: str) -> None:
    done = run_script(
        f"import sys; sys.modules[{missing!r}] = None\nfrom echoic.cli import main\nmain()"
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'echoic[cli]'" in done.stderr
    assert missing in done.stderr


@pytest.mark.parametrize("command", ["serve", "ping", "bench"])
def test_help_of_a_command_ends_with_examples_that_parse(command: str) -> None:
    done = invoke(command, "--help")
    assert done.exit_code == 0, done.output
    examples = re.findall(rf"echoic ({command} .*?)\s*$", done.output, re.MULTILINE)
    assert len(examples) >= 4
    known = set(re.findall(r"--[a-z-]+", done.output.partition("Examples")[0]))
    for line in examples:
        assert set(re.findall(r"--[a-z-]+", line)) <= known


def test_help_shows_brackets_of_a_shape() -> None:
    assert "path=dtype[shape]" in squeeze(invoke("serve", "--help").output)


def test_no_command_shows_what_there_is() -> None:
    output = invoke().output
    assert all(command in output for command in ("serve", "ping", "bench"))


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ([], 2, "give --spec or a --config"),
        (
            ["--spec", "x=float31"],
            2,
            "expected a dtype such as float32, uint8 or bool, got `float31`",
        ),
        (["--spec", "x=object"], 1, "leaf `x`"),
        (["--spec", SPEC, "--batch-size", "0"], 2, "--batch-size"),
        (["--spec", SPEC, "--address", "tcp://0.0.0.0:0"], 1, "--token-file, --insecure"),
        (["--spec", SPEC, "--address", "ftp://x"], 1, 'an unknown scheme in the address "ftp://x"'),
        (["--spec", SPEC, "--address", "tcp://127.0.0.1"], 1, 'no port in the address "tcp://'),
        (["--spec", SPEC, "--save", "/dev/null/x"], 1, "/dev/null/x: Not a directory"),
        (["--config", "/none.toml"], 2, "can't read /none.toml"),
        (["--spec", SPEC, "--metrics", "here"], 1, '"here" is no address to listen at'),
        (["--spec", SPEC, "--metrics", "0.0.0.0:0"], 1, "--token-file, --insecure"),
    ],
)
def test_serve_says_what_it_can_not_do(arguments: list[str], code: int, complaint: str) -> None:
    done = invoke("serve", *arguments)
    assert complaint in squeeze(done.output)
    assert done.exit_code == code


def test_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = invoke("serve", "--spec", SPEC, "--address", address)
    assert done.exit_code == 1
    assert done.output.startswith(f"echoic: cannot listen at {address}")
    assert done.output.count("\n") == 1


@pytest.fixture
def open_server(make_server: Any) -> Callable[..., str]:
    """Start a server of `SPEC` in this process, with somebody who takes its batches."""

    def start(**options: Any) -> str:
        server = make_server(sample(), 64, 256, listen="tcp://127.0.0.1:0", **options).start()
        start.server = server  # type: ignore[attr-defined]
        taken = server.stream.batches()
        threading.Thread(target=lambda: list(map(len, taken)), daemon=True).start()
        address: str = server.address
        return address

    return start


def test_ping_tells_version_spec_and_round_trips(open_server: Any) -> None:
    address = open_server()
    done = invoke("ping", address, "--count", "7")
    assert done.exit_code == 0, done.output
    first, second, third = done.output.splitlines()
    assert re.fullmatch(rf"{address} answers: echoic \d\S+, protocol \d+", first)
    assert second == f"samples of 20 B: {SPEC}"
    assert re.match(r"round trips: 7, shortest [\d.]+ .s, median ", third)
    assert open_server.server.stream.stats().inserted_total == 0


def test_ping_with_the_right_spec_says_so(open_server: Any) -> None:
    done = invoke("ping", open_server(), "--spec", SPEC)
    assert done.exit_code == 0, done.output
    assert "a client with this spec is accepted" in done.output


def test_ping_with_another_spec_tells_what_the_server_said(open_server: Any) -> None:
    done = invoke("ping", open_server(), "--spec", "obs=float64[4],reward=float32")
    assert done.exit_code == 1
    assert f"samples of 20 B: {SPEC}" in done.output
    last = done.output.splitlines()[-1]
    assert "answers, but" in last
    assert "`obs`" in last
    assert "float64" in last


def test_ping_without_the_token_is_refused_and_says_what_to_give(
    open_server: Any, tmp_path: Path
) -> None:
    address = open_server(token="hunter2")
    done = invoke("ping", address)
    assert done.exit_code == 1
    assert "answers, but" in done.output
    assert "--token-file" in done.output
    (tmp_path / "token").write_text("hunter2\n")
    assert invoke("ping", address, "--token-file", str(tmp_path / "token")).exit_code == 0


def test_ping_that_nobody_answers_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"tcp://127.0.0.1:{gone.getsockname()[1]}"
    for command in ("ping", "bench"):
        done = invoke(command, address, "--timeout", "5")
        assert done.exit_code == 1
        assert done.output.startswith(f"echoic: no server answers at {address}: ")
        assert done.output.count("\n") == 1


def test_ping_of_a_server_that_is_silent_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        since = time.monotonic()
        done = invoke("ping", address, "--timeout", "0.2")
        assert time.monotonic() - since < PATIENCE / 4
    assert done.exit_code == 1
    assert "no server answers" in done.output


def test_text_that_is_no_address_is_refused() -> None:
    done = invoke("ping", "localhost:5555")
    assert done.exit_code == 1
    assert "localhost:5555" in done.output


@pytest.mark.parametrize("options", [[], ["--batch", "100"], ["--clients", "2"]])
def test_bench_counts_what_the_server_stored(open_server: Any, options: list[str]) -> None:
    address = open_server()
    done = invoke("bench", address, "--seconds", "0.5", "--json", *options)
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["samples"] == open_server.server.stream.stats().inserted_total > 0
    assert found["spec"] == SPEC
    assert found["samples_per_second"] == pytest.approx(found["samples"] / found["seconds"])
    assert found["megabytes_per_second"] == pytest.approx(found["samples_per_second"] * 2e-5)
    assert 0 < found["flush_p50"] <= found["flush_p99"]
    assert found["cpu_seconds_per_million"] > 0


def test_bench_keeps_to_a_rate(open_server: Any) -> None:
    done = invoke("bench", open_server(), "--seconds", "1", "--rate", "500")
    assert done.exit_code == 0, done.output
    samples = int(re.search(r"stored +([\d,]+) samples", done.output)[1].replace(",", ""))  # type: ignore[index]
    # Never above; below only where the machine does not keep up.
    assert 10 < samples <= 500
    assert "flushes" in done.output


def test_bench_sends_to_a_server_with_any_tree(make_server: Any) -> None:
    tree = {"step": Point(np.float32(0), np.zeros(2)), "a": (np.int8(0), np.zeros(1, "S4"), 1j)}
    server = make_server(tree, 16, 64, listen="tcp://127.0.0.1:0").start()
    threading.Thread(target=lambda: list(map(len, server.stream.batches())), daemon=True).start()
    done = invoke("bench", server.address, "--seconds", "0.2")
    assert done.exit_code == 0, done.output
    assert server.stream.stats().inserted_total > 0


def test_bench_that_is_refused_is_exit_status_1(open_server: Any) -> None:
    done = invoke("bench", open_server(), "--spec", "x=int8", "--clients", "2", "--timeout", "20")
    assert done.exit_code == 1
    assert re.match(r"echoic: client [01]: tcp://\S+: the server refused: ", done.output)
    assert "`x: int8" in done.output
    assert done.output.count("\n") == 1


def test_bench_fails_when_nobody_takes_the_batches(make_server: Any) -> None:
    server = make_server(sample(), 4, 8, listen="tcp://127.0.0.1:0").start()
    done = invoke("bench", server.address, "--timeout", "1")
    assert done.exit_code == 1
    assert "the server's ring is full" in done.output


def test_random_leaf_has_values_of_all_kinds() -> None:
    rng = np.random.default_rng(0)
    for field in parse(
        "a=int8[99],b=uint64[9],c=float16[9],d=bool[99],e=complex64[9],f=S3[9],g=int8"
    ):
        leaf = loads.random_leaf(field, (2,), rng)
        assert leaf.shape == (2, *field.shape)
        assert leaf.dtype == np.dtype(field.dtype)
        assert len(np.unique(leaf)) > 1
    bfloat16 = loads.random_leaf(Field("x", "bfloat16", (9,)), (), rng)
    assert bfloat16.dtype.name == "bfloat16"


def test_report_adds_up_what_clients_measured() -> None:
    stats = {"writes": 10, "reconnects": 1, "blocked_time": 0.5}
    results = [
        loads.Result(samples=1000, seconds=2.0, cpu=0.5, flushes=[0.1, 0.2], stats=stats),
        loads.Result(samples=3000, seconds=4.0, cpu=1.5, flushes=[0.3], stats=stats),
    ]
    load = loads.Load("shm://x", parse(SPEC), {}, seconds=2.0, clients=2)
    assert report(load, results) == Report(
        clients=2,
        batch=1,
        samples=4000,
        seconds=4.0,
        samples_per_second=1000.0,
        megabytes_per_second=0.02,
        cpu_seconds_per_million=500.0,
        flushes=3,
        flush_p50=0.2,
        flush_p99=pytest.approx(0.298),
        writes=20,
        reconnects=2,
        blocked_time=1.0,
    )


# Whole runs, in processes.


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "echoic", *arguments]


def run_bench(*arguments: str) -> Any:
    done = subprocess.run(
        command("bench", *arguments, "--json"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def summary(errors: str) -> dict[str, int]:
    """The numbers of the last line."""
    found = re.search(
        r"ended after .*: ([\d,]+) samples .* in ([\d,]+) batches and ([\d,]+) in no batch;"
        r" ([\d,]+) came while draining; ([\d,]+) connections, ([\d,]+) refused",
        errors.splitlines()[-1],
    )
    assert found, errors
    numbers = [int(number.replace(",", "")) for number in found.groups()]
    names = ("samples", "batches", "rest", "drained", "connections", "refused")
    return dict(zip(names, numbers, strict=True))


def test_serve_and_bench_agree_on_every_sample(serve_command: Any) -> None:
    server = serve_command("--spec", SPEC, "--interval", "0.2", "--batch-size", "100")
    sent = [
        run_bench(server.addresses[0], "--seconds", "0.5", *options)["samples"]
        for options in ([], ["--batch", "64", "--clients", "2"])
    ]
    errors = server.end()
    numbers = summary(errors)
    assert numbers["samples"] == sum(sent)
    assert numbers["samples"] == numbers["batches"] * 100 + numbers["rest"]
    # Each bench asks once what samples look like.
    assert (numbers["connections"], numbers["refused"]) == (5, 0)
    lines = [line for line in errors.splitlines() if " samples/s=" in line]
    assert len(lines) >= 2
    assert f" samples={sum(sent)} " in lines[-1]
    assert "\x1b" not in errors


def test_numbers_are_where_serve_says(serve_command: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    server = serve_command("--spec", SPEC, "--metrics", "127.0.0.1:0", "--token-file", str(secret))
    said = server.popen.stderr.readline()
    url = re.fullmatch(r"metrics are at (http://127\.0\.0\.1:\d+/metrics)\n", said)
    assert url, said
    request = urllib.request.Request(url[1], headers={"Authorization": "Bearer open sesame"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        numbers = answer.read().decode()
    assert "\nechoic_stream_inserted_samples_total 0\n" in numbers
    assert re.search(
        r'^echoic_gauge{name="process_cpu_seconds_total"} \d*\.\d+$', numbers, re.MULTILINE
    )
    assert 'name="process_resident_memory_bytes"' in numbers
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url[1], timeout=PATIENCE)
    server.end()


def test_drain_saves_exactly_what_clients_know_to_be_stored(
    serve_command: Any, tmp_path: Path
) -> None:
    server = serve_command(
        "--spec", "x=int64", "--batch-size", "1000", "--save", str(tmp_path / "out")
    )
    client = echoic.connect(server.addresses[0], reconnect=0.5).stream({"x": np.int64(0)})
    client.add({"x": 0})
    client.flush(PATIENCE)
    sent = 1
    # The client gives up some time after the server has ended.
    with contextlib.suppress(echoic.errors.DisconnectedError):
        while sent < 50_000:
            client.add({"x": sent})
            sent += 1
            if sent == 25_000:
                server.popen.send_signal(signal.SIGTERM)
        client.close(PATIENCE)
    _, errors = server.popen.communicate(timeout=PATIENCE)
    assert server.popen.returncode == 0, errors
    left = client.undelivered()
    acked = sent - (0 if left is None else len(left["x"]))
    assert client.stats().samples_acked == acked > 0
    numbers = summary(errors)
    assert numbers["samples"] == acked
    assert (numbers["batches"], numbers["rest"]) == divmod(acked, 1000)
    files = sorted((tmp_path / "out").iterdir())
    saved = np.concatenate([np.load(path, allow_pickle=False)["x"] for path in files])
    assert saved.tolist() == list(range(acked))


def test_server_listens_at_several_addresses_and_sigint_ends_it(
    serve_command: Any, tmp_path: Path
) -> None:
    wanted = [
        "tcp://127.0.0.1:0",
        f"unix://{tmp_path / 's'}",
        f"shm://echoic-test-cli-{os.getpid()}",
    ]
    server = serve_command(
        "--spec", SPEC, *(word for each in wanted for word in ("--address", each))
    )
    tcp, *others = server.addresses
    assert re.fullmatch(r"tcp://127\.0\.0\.1:[1-9]\d+", tcp)
    assert others == wanted[1:]
    sent = 0
    for address in server.addresses:
        assert invoke("ping", address).exit_code == 0
        sent += run_bench(address, "--seconds", "0.2")["samples"]
    numbers = summary(server.end(signal.SIGINT))
    # Of each address a ping, and a bench that asks before it sends.
    assert (numbers["samples"], numbers["connections"]) == (sent, 9)
    for address in server.addresses:
        assert invoke("ping", address, "--timeout", "1").exit_code == 1


def test_options_win_over_the_configuration(serve_command: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    listen = [{"address": "tcp://127.0.0.1:0", "token_file": "secret"}]
    config = {"spec": {"x": "int8"}, "batch_size": 10, "listen": listen, "save": "out"}
    (tmp_path / "stream.json").write_text(json.dumps(config))
    server = serve_command("--config", str(tmp_path / "stream.json"), "--batch-size", "3")
    with echoic.connect(server.addresses[0], token="hunter2").stream({"x": np.int8(0)}) as client:
        client.extend({"x": np.arange(7, dtype=np.int8)})
    assert summary(server.end())["batches"] == 2
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_disk_that_takes_no_more_ends_the_server_with_status_1(
    serve_command: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    server = serve_command("--spec", "x=int8", "--batch-size", "1", "--save", str(folder))
    folder.rmdir()
    with echoic.connect(server.addresses[0]).stream({"x": np.int8(0)}) as client:
        client.add({"x": 1})
        _, errors = server.popen.communicate(timeout=PATIENCE)
        assert server.popen.returncode == 1
        assert re.fullmatch(
            r"echoic: could not save a batch: .*: No such file or directory;"
            r" 1 stored samples are lost",
            errors.splitlines()[-1],
        )


def test_bench_of_a_killed_server_is_exit_status_1(serve_command: Any) -> None:
    server = serve_command("--spec", SPEC, "--interval", "0.1")
    with subprocess.Popen(
        command("bench", server.addresses[0], "--seconds", "100", "--timeout", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as bench:
        try:
            wait_for_load(server)
            server.popen.kill()
            output, errors = bench.communicate(timeout=PATIENCE)
        finally:
            bench.kill()
    assert bench.returncode == 1
    assert output == ""
    assert errors.startswith("echoic: client 0: ")


def test_interrupted_bench_leaves_no_process(serve_command: Any) -> None:
    server = serve_command("--spec", SPEC, "--interval", "0.1")
    with subprocess.Popen(
        command("bench", server.addresses[0], "--seconds", "100", "--clients", "4"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A group of its own, which a terminal's Ctrl-C would reach as a whole.
        start_new_session=True,
    ) as bench:
        try:
            wait_for_load(server)
            os.killpg(bench.pid, signal.SIGINT)
            # Ends only when all have closed the pipes.
            output, errors = bench.communicate(timeout=PATIENCE)
        finally:
            bench.kill()
    assert bench.returncode == 130
    assert (output, errors) == ("", "echoic: interrupted\n")


def wait_for_load(server: Command) -> None:
    """Wait until samples come in."""
    assert server.popen.stderr is not None
    for line in server.popen.stderr:
        if " samples=" in line and " samples=0 " not in line:
            return
    pytest.fail("the server ended before any sample came")


def test_an_end_that_a_signal_sets_does_not_wait_for_itself() -> None:
    """A handler runs in the thread that waits, at any instruction of the wait."""
    ending, handled = Ending(), 0

    def handle(_kind: int, _frame: object) -> None:
        nonlocal handled
        handled += 1
        ending.set()

    # Another process sends, so that a signal can come at any moment. An event hung after thousands.
    code = (
        f"import os\nfor _ in range(20_000):\n    os.kill({os.getpid()}, {int(signal.SIGUSR1)})\n"
        "    for _ in range(300):\n        pass\n"
    )
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with subprocess.Popen([sys.executable, "-c", code]) as sender:
            noticed = 0
            while sender.poll() is None or noticed < handled:
                noticed += ending.wait(0.0001)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert noticed == handled > 0
    assert not ending.wait(0)
