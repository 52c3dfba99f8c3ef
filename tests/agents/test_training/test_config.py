"""Settings are checked, and go to other processes as JSON."""

import dataclasses
import json

import pytest
from echoic.agents.plans import PlanningConfig
from echoic.agents.training import TrainingConfig
from echoic.agents.training.config import from_json
from echoic.errors import ArgumentError

DEFAULTS = {
    "env_name": "alfworld", "env_config": {}, "total_timesteps": 1_000_000,
    "learning_starts": 10_000, "train_frequency": 4, "target_update_interval": 1000,
    "evaluation_frequency": 10_000, "save_frequency": 50_000, "state_dim": 512, "action_dim": 20,
    "latent_dim": 512, "device": "cuda", "seed": None, "num_actors": 128, "num_learners": 2,
    "batch_size": 256, "log_level": "INFO", "tensorboard_log": "./logs/tensorboard",
    "checkpoint_dir": "./checkpoints", "results_dir": "./results",
}  # fmt: skip


def test_fields_and_defaults_are_those_of_the_documentation():
    config = TrainingConfig()
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS
    # Of plans, only sizes that the documentation does not name are smaller.
    small = {"encoder_dim": 128, "num_layers": 2, "hidden_dim": 256}
    assert config.planning_config == PlanningConfig(**small)
    names = [field.name for field in dataclasses.fields(TrainingConfig)]
    configs = ["planning", "execution", "replay", "ppo", "bandwidth"]
    assert [n for n in names if n.endswith("_config") and n != "env_config"] == [
        f"{one}_config" for one in configs
    ]


def test_a_run_of_the_documentation_can_be_described():
    config = TrainingConfig(
        env_name="alfworld", total_timesteps=100_000, num_actors=128, device="cuda"
    )
    assert config.environment_settings["state_encoding_dim"] == 512


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_actors": 0}, "num_actors must be at least 1, not 0"),
        ({"learning_starts": -1}, "learning_starts must be at least 0, not -1"),
        ({"backend": "mpi"}, "one of threads, processes, not 'mpi'"),
        ({"algorithm": "dqn"}, "one of ppo, impala, not 'dqn'"),
        ({"replay": "all"}, "one of surprise, uniform, none, not 'all'"),
        ({"log_level": "loud"}, "log_level must be a level of logging, not 'loud'"),
        ({"early_stop_success": 1.5}, "above 0 and at most 1, not 1.5"),
        ({"plan_history": 9}, "plan_history must be from 0 to 8, not 9"),
        ({"backend": "processes", "asynchronous": False}, "is asynchronous"),
        (
            {"latent_dim": 64, "planning_config": PlanningConfig()},
            "both the numbers of a plan: got 64 and 512",
        ),
        ({"backbone": "gpt-4o"}, "'gpt-4o' can't be trained: expected \"mlp\""),
        ({"backbone": "local:"}, "'local:' can't be trained"),
        ({"env_config": {"state_encoding_dim": 64}}, "says state_encoding_dim=64, and state_dim"),
        ({"env_config": {"action_space_size": 7}}, "says action_space_size=7, and action_dim is"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ArgumentError, match=message):
        TrainingConfig(**changes)


def test_a_backbone_is_the_policy_of_vectors_or_a_model_that_is_here(tmp_path):
    assert not TrainingConfig().trains_language_model
    assert TrainingConfig(backbone="local:SmolLM2-135M").trains_language_model
    assert TrainingConfig(backbone=str(tmp_path)).trains_language_model


def test_settings_go_through_json(run):
    config = run(env_config={"corridor": 3}, seed=None, early_stop_success=0.5)
    assert from_json(json.loads(json.dumps(dataclasses.asdict(config)))) == config
