"""A run: what it learns, what it measures, and that it repeats itself."""

import asyncio
import functools
import json
import logging
import math
import os
import shutil
import threading
from dataclasses import asdict
from pathlib import Path

import pytest
import safetensors
import tiers
import tmaze_environment
import torch
from echoic.agents.environments import make_environment
from echoic.agents.episodes import run_episode
from echoic.agents.llm import trainer as llm_trainer
from echoic.agents.training import EchoRLTrainer, TrainingMetrics, actors
from echoic.agents.training import trainer as trainers
from echoic.agents.training.actors import HELD_OUT, episode_seed
from echoic.errors import ArgumentError, CheckpointError, ClosedError, CollectorError
from learner_tensors import tensors


def train(config, **options):
    with EchoRLTrainer(config, **options) as trainer:
        metrics = asyncio.run(trainer.train())
        return metrics, tensors(trainer._agent.learner), trainer.policy()


def test_a_plan_learns_what_needs_a_memory_and_the_same_networks_without_one_do_not(run):
    changes = {
        "env_name": "test-tmaze",
        "num_actors": 32,
        "total_timesteps": 6144,
        "evaluation_frequency": 1024,
        "early_stop_success": 0.95,
        "evaluation_episodes": 20,
    }
    metrics, _, policy = train(run("plans", **changes))
    assert metrics.evaluation_results["success_rate"] >= 0.95
    # What was trained acts the same way as a policy of episodes.
    environment = make_environment("test-tmaze", state_encoding_dim=6, action_space_size=2)
    episodes = [asyncio.run(run_episode(environment, policy, seed)) for seed in range(900, 920)]
    assert [one.error for one in episodes] == [None] * 20
    assert sum(one.success for one in episodes) >= 16
    forgetful = {**changes, "plan_history": 0, "total_timesteps": metrics.total_timesteps}
    without, _, _ = train(run("forgetful", **forgetful))
    assert without.evaluation_results["success_rate"] <= 0.8


def test_all_that_is_measured_is_there_and_can_be_written(run):
    config = run(evaluation_frequency=256, save_frequency=256, log_level="DEBUG")
    metrics, _, _ = train(config)
    assert logging.getLogger("echoic.agents.training").level == logging.NOTSET
    assert metrics.total_timesteps == 512
    assert metrics.total_episodes == len(metrics.episode_rewards) == len(metrics.episode_lengths)
    assert sum(metrics.episode_lengths) <= 512
    updates = 512 // (16 * 8)
    for name in (
        *("success_rates", "policy_losses", "value_losses", "kl_divergences", "entropy_losses"),
        *("kv_cache_hit_rates", "bandwidth_efficiency", "tokens_per_second"),
        *("wall_clock_times", "memory_usage"),
    ):
        values = getattr(metrics, name)
        assert len(values) == updates, name
        assert all(math.isfinite(value) for value in values), name
    assert metrics.kv_cache_hit_rates == [0.0] * updates
    assert min(metrics.memory_usage) > 10
    history = metrics.history
    assert history["step"] == [256, 512]
    assert [len(one) for one in history["successes"]] == [4, 4]
    assert metrics.evaluation_results == {name: values[1] for name, values in history.items()}
    assert TrainingMetrics().evaluation_results == {}
    assert metrics.replay_buffer_stats["total_size"] == 512
    assert metrics.execution_metrics["updates"] == updates
    assert metrics.execution_metrics["bandwidth"]["num_rollout_steps"] == 512
    plain = json.loads(json.dumps(asdict(metrics), default=float))
    assert TrainingMetrics(**plain).evaluation_results == metrics.evaluation_results
    lines = Path(config.results_dir, "metrics.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert (kinds.count("update"), kinds.count("evaluation")) == (updates, 2)
    assert "evaluation at step 256" in Path(config.results_dir, "train.log").read_text()


@pytest.mark.parametrize("plans", tiers.rotating(True, False))
def test_the_same_seed_and_settings_give_the_same_run_to_the_last_bit(run, plans):
    changes = {"env_name": "test-tmaze", "use_plans": plans, "train_frequency": 3}
    changes |= {"total_timesteps": 240, "evaluation_frequency": 10_000}
    one, first, _ = train(run("one", **changes))
    two, second, _ = train(run("two", **changes))
    for name in ("policy_losses", "value_losses", "episode_rewards", "bandwidth_efficiency"):
        assert getattr(one, name) == getattr(two, name), name
    assert one.evaluation_results == two.evaluation_results
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_a_run_that_was_resumed_has_what_was_learned_and_measured_and_begins_new_episodes(run):
    config = run(total_timesteps=256)
    before, learned, _ = train(config)
    with EchoRLTrainer(config, resume=True) as trainer:
        assert trainer.get_training_metrics() == before
        for name, tensor in tensors(trainer._agent.learner).items():
            assert torch.equal(tensor, learned[name]), name
        assert trainer._agent.replay.get_buffer_statistics() == before.replay_buffer_stats
    later, _, _ = train(run(total_timesteps=512), resume=True)
    assert later.total_timesteps == 512
    assert later.policy_losses[:2] == before.policy_losses
    assert len(later.policy_losses) == 4
    count = before.total_episodes
    assert later.episode_rewards[:count] == before.episode_rewards
    # Episodes of the second part are not those of the first again.
    again = later.episode_lengths[count : 2 * count]
    assert again != before.episode_lengths[: len(again)]


def test_nothing_is_learned_before_learning_starts(run):
    metrics, _, _ = train(run(learning_starts=256))
    assert len(metrics.policy_losses) == 2
    assert metrics.replay_buffer_stats["total_size"] == 512


def test_an_environment_that_breaks_does_not_end_the_run(run):
    metrics, _, _ = train(run(env_name="test-fragile"))
    assert metrics.total_timesteps == 512
    broken = metrics.execution_metrics["broken_steps"]
    assert 8 <= broken <= 12
    assert metrics.replay_buffer_stats["total_size"] == 512 - broken


def test_an_episode_without_a_finite_reward_is_in_no_evaluation(run, monkeypatch):
    made = tmaze_environment.TMaze.step

    def step(self, action):
        seen, _, *rest = made(self, action)
        return seen, math.nan, *rest

    monkeypatch.setattr(tmaze_environment.TMaze, "step", step)
    metrics, _, _ = train(run(env_name="test-tmaze", total_timesteps=256))
    assert metrics.execution_metrics["broken_steps"] == 256
    assert metrics.history["avg_reward"] == []


def test_seeds_of_evaluations_are_none_of_training():
    assert all(episode_seed(s, a, e) < HELD_OUT for s in (0, 7) for a in (0, 5) for e in range(50))
    assert len({episode_seed(0, a, e) for a in range(20) for e in range(20)}) == 400


def test_an_environment_of_other_sizes_is_refused(run, monkeypatch):
    monkeypatch.setattr(tmaze_environment.Corridor, "get_state_dim", lambda self: 7)
    with (
        EchoRLTrainer(run()) as trainer,
        pytest.raises(CollectorError, match="states of 7 numbers and 2 actions; state_dim is 6"),
    ):
        asyncio.run(trainer.train())


def test_checkpoints_are_kept_some_of_them_and_fit_or_are_refused(run):
    config = run(save_frequency=128, keep_checkpoints=2)
    train(config)
    names = sorted(one.name for one in Path(config.checkpoint_dir).iterdir())
    assert names == ["step-0000000384", "step-0000000512"]
    other = run(latent_dim=8, planning_config=None)
    with EchoRLTrainer(other) as trainer, pytest.raises(CheckpointError):
        trainer.resume()
    with EchoRLTrainer(config) as trainer:
        assert trainer.resume(Path(config.checkpoint_dir) / names[0]) == 384
        # A text of millions of episodes would not fit into a file.
        metrics = trainer.get_training_metrics()
        metrics.episode_rewards += [0.1] * 100_000
        metrics.episode_lengths += [3] * 100_000
        long = trainer.save()
        with safetensors.safe_open(str(long / "run.ckpt"), framework="pt") as file:
            assert len(file.metadata()["tree"]) < 100_000
    with EchoRLTrainer(config) as trainer:
        trainer.resume(long)
        assert trainer.get_training_metrics() == metrics
    with EchoRLTrainer(run("empty")) as trainer:
        with pytest.raises(FileNotFoundError):
            trainer.resume()
        # What else is in a folder stays there.
        trainer.save(Path(config.results_dir))
        assert trainer.resume(config.results_dir) == 0
    assert Path(config.results_dir, "metrics.jsonl").exists()


def test_a_run_can_be_cancelled_and_goes_on(run):
    config = run(total_timesteps=100_000_000)

    async def cancelled(trainer):
        before = len(trainer.get_training_metrics().policy_losses)
        work = asyncio.create_task(trainer.train())
        while len(trainer.get_training_metrics().policy_losses) == before:  # noqa: ASYNC110 - a list
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        return trainer.get_training_metrics().total_timesteps

    with EchoRLTrainer(config) as trainer:
        steps = asyncio.run(cancelled(trainer))
        assert asyncio.run(cancelled(trainer)) > steps
        with pytest.raises(ClosedError, match="before it starts"):
            trainer.resume()
    with pytest.raises(ClosedError):
        asyncio.run(trainer.train())


def test_a_trainer_that_is_closed_as_it_begins_closes_its_environments(run, monkeypatch):
    reached, closing, closed = threading.Event(), threading.Event(), []

    class Slow(trainers.Records):
        def __init__(self, *given, **more):
            reached.set()
            closing.wait(10)
            super().__init__(*given, **more)

    monkeypatch.setattr(trainers, "Records", Slow)

    def close(environment):
        closed.append(environment)

    monkeypatch.setattr(tmaze_environment.Corridor, "close", close)
    trainer = EchoRLTrainer(run(total_timesteps=100_000_000))
    stop = trainer._agent._stop
    monkeypatch.setattr(stop, "set", lambda: (threading.Event.set(stop), closing.set()))

    async def close_soon():
        work = asyncio.create_task(trainer.train())
        await asyncio.to_thread(reached.wait)
        await asyncio.to_thread(trainer.close)
        await work

    asyncio.run(close_soon())
    # The actors' and that of evaluations.
    assert len({id(one) for one in closed}) == 17


def test_a_new_run_keeps_its_checkpoints_beside_those_of_another(run):
    changes = {"save_frequency": 32, "keep_checkpoints": 2, "num_actors": 4}
    long, short = run(total_timesteps=128, **changes), run(total_timesteps=64, **changes)
    train(long)
    train(short)
    names = sorted(one.name for one in Path(long.checkpoint_dir).iterdir())
    assert names == [f"step-{steps:010d}" for steps in (32, 64, 96, 128)]
    with EchoRLTrainer(short) as trainer:
        assert trainer.resume() == 64


def test_a_run_that_was_good_enough_does_not_go_on_when_it_is_resumed(run):
    changes = {"early_stop_success": 0.01, "evaluation_frequency": 128, "evaluation_greedy": False}
    first, _, _ = train(run(**changes))
    assert first.total_timesteps < 512
    again, _, _ = train(run(**changes), resume=True)
    assert again.total_timesteps == first.total_timesteps


def test_rows_of_steps_that_are_done_again_are_there_once(run):
    config = run(total_timesteps=64, save_frequency=32, keep_checkpoints=9, num_actors=4)
    train(config)
    shutil.rmtree(Path(config.checkpoint_dir, "step-0000000064"))
    train(config, resume=True)
    lines = Path(config.results_dir, "metrics.jsonl").read_text().splitlines()
    rows = [(row["kind"], row["step"]) for row in map(json.loads, lines)]
    assert len(rows) == len(set(rows))


def test_efficiency_is_of_what_the_environment_paid(run):
    # Nothing is learned, so both do the same.
    one, _, _ = train(run("one", learning_starts=512))
    two, _, _ = train(run("two", learning_starts=512), judge=lambda transcript: 10.0)
    first, second = (m.execution_metrics["bandwidth"] for m in (one, two))
    assert first["total_reward"] != 0
    assert first == second


def test_a_language_model_is_trained_by_its_own_trainer(run, monkeypatch, tmp_path):
    calls = []

    class Stub:
        def __init__(self, config, metrics, *, resume):
            self.metrics, self.resume_from = metrics, resume
            calls.append(config.backbone)

        async def train(self):
            self.metrics.history["success_rate"].append(0.5)

        def save(self, path):
            calls.append("save")
            return path

        def policy(self, *, greedy):
            return f"greedy={greedy}"

        def resume(self, path):
            return 7

        def close(self):
            calls.append("close")

    monkeypatch.setattr(llm_trainer, "AgentTrainer", Stub)
    with EchoRLTrainer(run(backbone="local:tiny"), resume=True) as trainer:
        assert trainer.resume() == 7
        assert asyncio.run(trainer.train()).evaluation_results == {"success_rate": 0.5}
        assert (trainer.policy(), trainer.save(tmp_path)) == ("greedy=False", tmp_path)
    assert calls == ["local:tiny", "save", "close"]
    with pytest.raises(ArgumentError, match='for backbone="mlp" only'):
        EchoRLTrainer(run(backbone="local:tiny"), judge=lambda _: 0.0)


def test_an_evaluation_leaves_out_what_broke(run):
    tmaze_environment.Fragile.steps = 0
    changes = {"evaluation_frequency": 128, "evaluation_episodes": 16, "total_timesteps": 256}
    metrics, _, _ = train(run(env_name="test-fragile", **changes))
    played = [len(one) for one in metrics.history["successes"]]
    assert len(played) == 2
    assert 8 < min(played) < 16


@tiers.turn(0, of=2)
def test_an_environment_that_hangs_is_killed_and_the_run_goes_on(run, tmp_path, monkeypatch):
    mark = tmp_path / "hang"
    mark.touch()
    monkeypatch.setenv("ECHOIC_TEST_HANGING", str(mark))
    # Its process imports this folder's environments, too.
    made = functools.partial(actors.environment_of, imports=("tmaze_environment",))
    monkeypatch.setattr(actors, "environment_of", made)
    config = run(
        env_name="test-hanging",
        environment_timeout=3.0,
        num_actors=2,
        evaluation_episodes=1,
        total_timesteps=64,
        replay="none",
    )
    with EchoRLTrainer(config) as trainer:
        metrics = asyncio.run(trainer.train())
        seats = [*trainer._agent.actors.seats, trainer._agent.evaluator]
        pids = [one.environment._worker.process.pid for one in seats]
    assert not mark.exists()
    # The step that hung is lost, and no other.
    assert metrics.total_timesteps == 64
    assert metrics.execution_metrics["broken_steps"] == 1
    assert len(set(pids)) == 3
    for pid in pids:
        assert pid != os.getpid()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
