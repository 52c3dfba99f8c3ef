"""What tests of training share: settings as small as their environments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))
import tmaze_environment  # noqa: F401 - gives environments their names
from echoic.agents.plans import PlanningConfig
from echoic.agents.replay import ReplayConfig
from echoic.agents.training import PPOConfig, TrainingConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Settings of a small run in a folder of its own, some of them changed."""

    def make(folder: str = "run", **changes: Any) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "env_name": "test-corridor",
            "state_dim": 6,
            "action_dim": 2,
            "latent_dim": 16,
            "num_actors": 16,
            "train_frequency": 8,
            "learning_starts": 0,
            "total_timesteps": 512,
            "planning_config": PlanningConfig(
                embedding_dim=16,
                num_layers=1,
                num_heads=2,
                feedforward_factor=2,
                hidden_dim=32,
                state_window_size=5,
                learning_rate=1e-3,
            ),
            "ppo_config": PPOConfig(learning_rate=2e-3, target_kl=0.03, batch_size=128),
            "replay_config": ReplayConfig(
                min_experiences=100, hot_buffer_size=5000, cold_buffer_size=5000
            ),
            "batch_size": 64,
            "evaluation_episodes": 4,
            "device": "cpu",
            "seed": 0,
            "checkpoint_dir": str(tmp_path / folder / "checkpoints"),
            "results_dir": str(tmp_path / folder / "results"),
            "tensorboard_log": "",
        }
        return {**settings, **changes}

    return make


@pytest.fixture
def run(small: Any) -> Callable[..., TrainingConfig]:
    return lambda folder="run", **changes: TrainingConfig(**small(folder, **changes))
