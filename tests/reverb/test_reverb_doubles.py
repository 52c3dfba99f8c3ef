"""The classes above the engine work with a double in its place, as tests of programs have it."""

from unittest import mock

import numpy as np
import pytest
from reverb_under_test import reverb, submodule

pybind = submodule("pybind")
trajectory_writer = submodule("trajectory_writer")


class Cell:
    """A value that was appended."""

    expired = False

    def __init__(self, value):
        self._value = np.asarray(value)
        self.shape, self.dtype = self._value.shape, self._value.dtype

    def numpy(self):
        return self._value


@pytest.fixture
def engine():
    double = mock.Mock(max_num_keep_alive_refs=5, episode_steps=3)
    cells = mock.Mock(side_effect=lambda row: [None if v is None else Cell(v) for v in row])
    double.Append, double.AppendPartial = cells, cells
    return double


@pytest.fixture
def writer(engine):
    return trajectory_writer.TrajectoryWriter(engine)


def test_steps_become_rows_of_columns(engine, writer):
    writer.append({"a": 1, "b": 2})
    writer.append({"c": 3, "a": 4})
    assert engine.Append.mock_calls == [mock.call([1, 2]), mock.call([4, None, 3])]
    assert [column.numpy() for column in (writer.history["a"][0], writer.history["c"][1])] == [1, 3]
    assert len(writer.history["c"]) == 2


def test_items_become_cells_of_columns(engine, writer):
    writer.append({"a": 1, "b": 2})
    writer.create_item("table", 0.5, {"y": writer.history["b"][:], "x": writer.history["a"][-1]})
    (table, priority, columns, squeezed), _ = engine.CreateItem.call_args
    assert (table, priority, squeezed) == ("table", 0.5, [True, False])
    assert [[cell.numpy() for cell in column] for column in columns] == [[1], [2]]


def test_settings_wait_for_their_column(engine, writer):
    writer.configure(("b",), num_keep_alive_refs=3, max_chunk_length=2)
    engine.ConfigureChunker.assert_not_called()
    writer.append({"a": 1, "b": 2})
    options = pybind.ConstantChunkerOptions(max_chunk_length=2, num_keep_alive_refs=3)
    assert engine.ConfigureChunker.call_args == mock.call(1, options)
    writer.configure(("a",), num_keep_alive_refs=4, max_chunk_length=None)
    options = pybind.AutoTunedChunkerOptions(num_keep_alive_refs=4, throughput_weight=1.0)
    assert engine.ConfigureChunker.call_args == mock.call(0, options)


def test_calls_are_handed_on(engine, writer):
    writer.flush()
    writer.flush(2, timeout_ms=5)
    writer.end_episode()
    writer.end_episode(clear_buffers=False, timeout_ms=7)
    assert engine.Flush.mock_calls == [mock.call(0, -1), mock.call(2, 5)]
    assert engine.EndEpisode.mock_calls == [mock.call(True, None), mock.call(False, 7)]
    assert writer.episode_steps == 3
    writer.close()
    engine.Close.assert_called_once_with()


def test_a_timeout_is_told_by_its_text(engine, writer):
    engine.Flush.side_effect = RuntimeError("Timeout exceeded with 1 items waiting")
    with pytest.raises(reverb.DeadlineExceededError, match=r"timeout of 0:00:00\.010000"):
        writer.flush(timeout_ms=10)
    engine.Flush.side_effect = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        writer.flush(timeout_ms=10)
