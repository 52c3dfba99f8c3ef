"""The names and settings that agents are promised: all there, with the promised defaults."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("torch")
import echoic.agents

DEFAULTS: dict[str, dict[str, Any]] = {
    "PlanningConfig": {
        "embedding_dim": 512,
        "state_window_size": 8,
        "kl_weight": 0.1,
        "ema_decay": 0.99,
        "soft_prefix_alpha": 0.5,
        "lipschitz_constant": 1.0,
        "noise_std": 0.01,
        "learning_rate": 3e-4,
        "max_grad_norm": 1.0,
        "discount_gamma": 1.0,
    },
    "ExecutionConfig": {
        "max_cache_size": 10_000,
        "cache_cleanup_interval": 60.0,
        "max_concurrent_rollouts": 128,
        "priority_queue_size": 1000,
        "kv_reuse_threshold": 0.5,
        "latency_weight": 0.1,
        "reward_weight": 1.0,
        "timeout": 30.0,
        "schedule_epsilon": 1e-6,
        "bandwidth_scale": 1.0,
        "enable_bandwidth_scheduling": True,
        "bandwidth_weight": 1.0,
        "queue_weight": 1.0,
    },
    "ReplayConfig": {
        "hot_buffer_size": 1_000_000,
        "cold_buffer_size": 10_000_000,
        "age_threshold": 1000,
        "max_replay_age": 100_000,
        "temperature": 1.0,
        "surprise_weight": 1.0,
        "reward_weight": 1.0,
        "ema_decay": 0.99,
        "min_experiences": 1000,
        "max_experiences": 11_000_000,
        "priority_alpha": 0.6,
        "importance_sampling_beta": 0.4,
        "hot_sample_ratio": 0.7,
    },
    "PPOConfig": {
        "learning_rate": 3e-4,
        "clip_epsilon": 0.2,
        "value_loss_coef": 0.5,
        "entropy_coef": 0.01,
        "kl_coef": 0.1,
        "max_grad_norm": 1.0,
        "gae_lambda": 0.95,
        "gamma": 0.99,
        "num_epochs": 4,
        "batch_size": 256,
        "target_kl": 0.01,
        "value_clip": True,
        "normalize_advantages": True,
    },
    "BandwidthConfig": {
        "attention_scale": 1.0,
        "schedule_epsilon": 1e-6,
        "bandwidth_weight": 1.0,
        "queue_weight": 1.0,
        "history_size": 1000,
        "enable_bandwidth_scheduling": True,
    },
}


@pytest.mark.parametrize("name", echoic.agents.__all__)
def test_a_name_of_the_root_is_there(name: str) -> None:
    assert getattr(echoic.agents, name).__name__ == name


@pytest.mark.parametrize("name", DEFAULTS)
def test_settings_have_the_promised_defaults(name: str) -> None:
    found = dataclasses.asdict(getattr(echoic.agents, name)())
    promised = DEFAULTS[name]
    # Those of ours come after, so that settings given by place mean what they did.
    assert list(found)[: len(promised)] == list(promised)
    assert {field: found[field] for field in promised} == promised


def test_the_settings_of_all_parts_come_from_one_place() -> None:
    # The import is one line as it is promised.
    from echoic.agents import ExecutionConfig, PlanningConfig, PPOConfig, ReplayConfig

    planning_config = PlanningConfig(
        embedding_dim=512, state_window_size=8, kl_weight=0.1, learning_rate=3e-4
    )
    execution_config = ExecutionConfig(
        max_concurrent_rollouts=128, max_cache_size=10000, timeout=30.0
    )
    replay_config = ReplayConfig(
        hot_buffer_size=1000000, cold_buffer_size=10000000, age_threshold=1000, temperature=1.0
    )
    ppo_config = PPOConfig(
        learning_rate=3e-4,
        clip_epsilon=0.2,
        value_loss_coef=0.5,
        entropy_coef=0.01,
        kl_coef=0.1,
        gae_lambda=0.95,
        gamma=0.99,
    )
    assert planning_config == PlanningConfig()
    assert execution_config == ExecutionConfig()
    assert replay_config == ReplayConfig()
    assert ppo_config == PPOConfig()
