"""Batches as torch takes them."""

from __future__ import annotations

import numpy as np
import pytest
from echoic import ReplayBuffer

torch = pytest.importorskip("torch")

from echoic.integrations.torch import pinned_like  # noqa: E402


def test_a_batch_goes_where_tensors_are() -> None:
    example = {"image": np.zeros((2, 3), np.uint8), "position": (np.zeros(2), np.int64(0))}
    buffer = ReplayBuffer(10, example={"obs": example, "rewards": np.float32(0)})
    for number in range(1, 4):
        observation = {
            "image": np.full((2, 3), number, np.uint8),
            "position": (np.full(2, number, float), np.int64(number)),
        }
        buffer.push(observation, None, np.float32(number))
    arrays, tensors = pinned_like(buffer.sample(16))
    for seed in range(3):
        batch = buffer.sample(16, seed=seed, out=arrays)
        numbers = torch.from_numpy(buffer.sample(16, seed=seed)["rewards"])
        assert batch["obs"]["image"].ctypes.data == tensors["obs"]["image"].data_ptr()
        assert torch.equal(tensors["rewards"], numbers)
        assert torch.equal(tensors["obs"]["image"][:, 1, 2].float(), numbers)
        assert torch.equal(tensors["obs"]["position"][1].float(), numbers)
    assert tensors["rewards"].is_pinned() == torch.cuda.is_available()
