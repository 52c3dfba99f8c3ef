"""Checkpoints of learners: what comes back, and what a damaged or foreign file does."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from echoic.agents import checkpoint
from echoic.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_tree_comes_back_with_its_types_keys_and_bits(tmp_path: Path) -> None:
    tree = {
        "numbers": (1, 2**200, 0.1 + 0.2, float("-inf"), True, None),
        7: [np.arange(6, dtype=np.uint32).reshape(2, 3), np.float64(3.5)],
        "tensors": {"half": torch.randn(3, dtype=torch.bfloat16), "none": torch.zeros(0, 4)},
        "scalar": torch.tensor(3),
        "array scalar": np.array(4),
    }
    checkpoint.save(tmp_path / "sub" / "a.ckpt", tree, kind="test")
    got = checkpoint.load(tmp_path / "sub" / "a.ckpt", kind="test")
    assert got["numbers"] == tree["numbers"]
    assert list(got) == list(tree)
    assert got[7][0].dtype == np.uint32
    assert got[7][0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert got[7][1] == 3.5
    assert torch.equal(got["tensors"]["half"], tree["tensors"]["half"])
    assert got["tensors"]["none"].shape == (0, 4)
    assert got["scalar"].shape == ()
    assert got["array scalar"].shape == ()


def test_an_optimizer_resumes_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 2)
        return module, torch.optim.AdamW(module.parameters(), lr=0.1, betas=(0.8, 0.9))

    def step(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        module(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()

    module, optimizer = make()
    step(module, optimizer)
    checkpoint.save(
        tmp_path / "a.ckpt",
        {"module": module.state_dict(), "optimizer": optimizer.state_dict()},
        kind="test",
    )
    torch.manual_seed(1)
    step(module, optimizer)

    other, other_optimizer = make()
    state = checkpoint.load(tmp_path / "a.ckpt", kind="test")
    other.load_state_dict(state["module"])
    other_optimizer.load_state_dict(state["optimizer"])
    torch.manual_seed(1)
    step(other, other_optimizer)
    assert torch.equal(module.weight, other.weight)
    assert torch.equal(module.bias, other.bias)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.ckpt", {}, kind="planner")
    with pytest.raises(CheckpointError, match="state of a 'planner', not of a 'learner'"):
        checkpoint.load(tmp_path / "a.ckpt", kind="learner")


@pytest.mark.parametrize("keep", [0, 4, 40, -1])
def test_a_cut_off_file_is_an_error(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.ckpt"
    checkpoint.save(path, {"a": torch.ones(100)}, kind="test")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError):
        checkpoint.load(path, kind="test")


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Attack:
        def __reduce__(self) -> object:
            return (ran.touch, ())

    path = tmp_path / "a.ckpt"
    path.write_bytes(pickle.dumps(Attack()))
    with pytest.raises(CheckpointError):
        checkpoint.load(path, kind="test")
    assert not ran.exists()


def test_what_cannot_be_saved_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    checkpoint.save(path, {"a": 1}, kind="test")
    with pytest.raises(TypeError, match="object is not JSON serializable"):
        checkpoint.save(path, {"b": [0, object()]}, kind="test")
    assert checkpoint.load(path, kind="test") == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.ckpt"]


def test_no_file_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none.ckpt", kind="test")
