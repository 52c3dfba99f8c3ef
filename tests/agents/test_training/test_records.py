"""What a run tells others of itself, read back from the files that they write."""

import json
import struct
from pathlib import Path

import pytest
from echoic.agents.training.records import Records


def tell(records):
    records.add("update", 8, {"policy_loss": 0.5, "approx_kl": float("nan")})
    records.add("evaluation", 16, {"success_rate": 0.25})
    records.close()


def varint(content, at):
    number = shift = 0
    while True:
        byte = content[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def fields(content):
    """The fields of a protocol buffer: numbers, and bytes."""
    at, found = 0, []
    while at < len(content):
        key, at = varint(content, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(content, at)
        else:
            size, at = varint(content, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = content[at : at + size], at + size
        found.append((key >> 3, value))
    return found


def scalars(folder):
    """What TensorBoard would show: step, tag and value of each scalar in its files."""
    found = []
    for file in sorted(Path(folder).glob("events.out.tfevents.*")):
        content, at = file.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            event = content[at + 12 : at + 12 + size]
            at += 12 + size + 4
            told = dict(fields(event))
            for number, value in fields(told.get(5, b"")):
                one = dict(fields(value)) if number == 1 else {}
                if 2 in one:
                    (scalar,) = struct.unpack("<f", one[2])
                    found.append((told.get(2, 0), one[1].decode(), scalar))
    return found


def test_tensorboard_finds_what_was_measured(run, tmp_path):
    try:
        import tensorboardX  # noqa: F401
    except ImportError:
        pytest.importorskip("torch.utils.tensorboard")
    records = Records(run(tensorboard_log=str(tmp_path / "board")), goes_on_at=None)
    assert records._board is not None
    tell(records)
    # What was not measured is not there, rather than a number.
    assert scalars(tmp_path / "board") == [
        (8, "update/policy_loss", 0.5),
        (16, "evaluation/success_rate", 0.25),
    ]


def test_without_a_folder_there_is_no_board(run):
    records = Records(run(), goes_on_at=None)
    assert records._board is None
    tell(records)


def test_lines_of_later_steps_are_cut_off_where_a_run_goes_on(run):
    config = run()
    tell(Records(config, goes_on_at=None))
    tell(Records(config, goes_on_at=8))
    lines = (Path(config.results_dir) / "metrics.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert [one["step"] for one in told] == [8, 8, 16]
    assert told[0]["approx_kl"] is None
