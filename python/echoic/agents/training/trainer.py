"""Training runs: actors fill a table, the learner empties it, and publishes weights.

1. Each actor takes `train_frequency` steps: a segment. It is inserted into the table `segments`, a
   queue with room for two of each actor, whose limiter makes actors wait for the learner.
2. The learner takes `num_actors` segments. It learns from them, and from `batch_size` replayed
   steps; the new steps are added to the replay, with the log-probability, the episode and the
   version of the weights that acted. See :mod:`~echoic.agents.training.learner`.
3. The weights are published with the next version. Every segment carries the version it is of.

In lock-step (threads, unless ``asynchronous``) all three follow each other, and a run is the same
to the last bit for the same seed and settings, also when it was stopped and resumed: all random
numbers have their own generators, threads have an order, and episodes under way are restored.
Otherwise actors act meanwhile, and their segments are some versions behind; the metrics report how
far.

A worker that dies is replaced; only its unfinished segments are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import shutil
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic import Server, Table
from echoic.agents import checkpoint
from echoic.agents.bandwidth import BandwidthEfficiencyTracker
from echoic.agents.replay import PrioritizedReplayBuffer, SurpriseCalculator
from echoic.agents.training.acting import ActingNetworks, TrainedPolicy, published
from echoic.agents.training.actors import Evaluator
from echoic.agents.training.config import TrainingConfig
from echoic.agents.training.learner import learner_of
from echoic.agents.training.records import Records, TrainingMetrics, memory_mib
from echoic.agents.training.segments import batch_of, example_of
from echoic.agents.training.workers import (
    TABLE,
    ProcessWorkers,
    RayWorkers,
    ThreadWorkers,
    Workers,
)
from echoic.errors import ArgumentError, CheckpointError, ClosedError, WaitTimeoutError
from echoic.weights import WeightStore

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from typing_extensions import Self

    from echoic.agents.episodes import Policy
    from echoic.agents.training.actors import Transcript
    from echoic.agents.training.rewards import RewardModel
    from echoic.agents.training.segments import Batch

__all__ = ["EchoRLTrainer", "TrainingConfig"]

_log = logging.getLogger("echoic.agents.training")
_KIND = "training run"
_LATEST = 100


class EchoRLTrainer:
    """Trains an agent in an environment.

    With a language model as ``config.backbone``, an :class:`~echoic.agents.llm.LLMTrainer` does the
    work of all methods.

    Args:
        config: All settings.
        resume: Continue from the newest checkpoint of ``checkpoint_dir``, if there is one; or from
            this one.
        judge: Pays episodes in place of the environment; with threads only.
        reward_model: Pays steps in place of the environment.

    Nothing is started before :meth:`train`, :meth:`resume` or :meth:`policy` is called.
    """

    def __init__(
        self,
        config: TrainingConfig,
        *,
        resume: bool | str | os.PathLike[str] = False,
        judge: Callable[[Transcript], float] | None = None,
        reward_model: RewardModel | None = None,
    ) -> None:
        self.config = config
        self._resume = resume
        self._judge = judge
        self._reward_model = reward_model
        self._metrics = TrainingMetrics()
        self._stop = threading.Event()
        self._parts: _Parts | None = None
        self._closed = False
        # Held by a round of training, so that what is saved or shown is of one moment.
        self._round = threading.RLock()
        # Checkpoints of this run, the oldest first.
        self._saved: list[Path] = []
        # What trains a language model: it fills the metrics in place.
        self._language: Any = None
        if config.trains_language_model:
            if judge is not None or reward_model is not None:
                raise ArgumentError('judge and reward_model are for backbone="mlp" only')
            from echoic.agents.llm.trainer import agent_trainer

            self._language = agent_trainer(config, self._metrics, resume=resume)

    async def train(self) -> TrainingMetrics:
        """Train for ``total_timesteps``, or until ``early_stop_success`` is reached.

        Cancelling stops after the current update; the trainer can go on from there.
        """
        self._check_open()
        if self._language is not None:
            await self._language.train()
            return self._metrics
        self._stop.clear()
        work = asyncio.create_task(asyncio.to_thread(self._train))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stop.set()
            await work
            raise

    def get_training_metrics(self) -> TrainingMetrics:
        """Return the measurements so far."""
        return self._metrics

    def policy(self, *, greedy: bool = False) -> Policy:
        """Return a copy of the current policy."""
        if self._language is not None:
            made: Policy = self._language.policy(greedy=greedy)
            return made
        networks = ActingNetworks(self.config)
        with self._round:
            networks.load(_copied(published(self._ready().learner.networks)))
        return TrainedPolicy(networks, greedy=greedy)

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a checkpoint to a folder, which appears whole or not at all.

        Args:
            path: The folder; by default one of ``checkpoint_dir``, named after the step. Of those,
                the last ``keep_checkpoints`` that this run has written are kept.
        """
        if self._language is not None:
            return Path(self._language.save(path))
        with self._round:
            return self._save(path)

    def _save(self, path: str | os.PathLike[str] | None) -> Path:
        parts, steps = self._ready(), self._metrics.total_timesteps
        root = Path(self.config.checkpoint_dir)
        folder = root / f"step-{steps:010d}" if path is None else Path(path)
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            if parts.replay is not None:
                parts.replay.save_buffer(beside / "replay.bin")
            checkpoint.save(beside / "run.ckpt", self._state(parts), kind=_KIND)
            if folder.exists():
                shutil.rmtree(folder)
            beside.replace(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        if path is None:
            # Checkpoints of other runs in the same folder are not removed.
            self._saved = [one for one in self._saved if one != folder] + [folder]
            for old in self._saved[: -self.config.keep_checkpoints]:
                shutil.rmtree(old, ignore_errors=True)
            self._saved = self._saved[-self.config.keep_checkpoints :]
        return folder

    def resume(self, path: str | os.PathLike[str] | None = None) -> int:
        """Continue from a checkpoint, by default the newest of ``checkpoint_dir``; return its step.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            CheckpointError: If it is damaged, or of a run of other sizes.
        """
        self._check_open()
        if self._language is not None:
            return int(self._language.resume(path))
        if self._parts is not None:
            raise ClosedError("resume a run before it starts: this one has started")
        folder = self._newest() if path is None else Path(path)
        if folder is None:
            raise FileNotFoundError(f"there is no checkpoint in {self.config.checkpoint_dir!r}")
        state = checkpoint.load(folder / "run.ckpt", kind=_KIND)
        self._resume = False
        self._begin(state, folder)
        return self._metrics.total_timesteps

    def close(self) -> None:
        """Stop all workers. Measurements and checkpoints are kept."""
        self._closed = True
        self._stop.set()
        if self._language is not None:
            self._language.close()
        with self._round:
            parts, self._parts = self._parts, None
            if parts is not None:
                parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _train(self) -> TrainingMetrics:
        # A checkpoint brings its own metrics.
        parts = self._ready()
        config, metrics = self.config, self._metrics
        began = time.monotonic() - metrics.training_time
        if not parts.started:
            parts.workers.start()
            parts.started = True
        while metrics.total_timesteps < config.total_timesteps and not self._is_good_enough():
            with self._round:
                if self._stop.is_set() or not self._one_round(parts, began):
                    break
        with self._round:
            metrics.training_time = time.monotonic() - began
            if not self._stop.is_set():
                if metrics.evaluation_results.get("step") != metrics.total_timesteps:
                    self._evaluate(parts)
                self.save()
            self._summarize(parts)
        return metrics

    def _one_round(self, parts: _Parts, began: float) -> bool:
        """Take segments and learn from them; return False if the run was stopped."""
        config, metrics = self.config, self._metrics
        before = metrics.total_timesteps
        columns = self._take(parts)
        if columns is None:
            return False
        batch = batch_of(columns, config)
        self._note(parts, batch)
        if self._reward_model is not None:
            self._reward_model.relabel(batch)
        if metrics.total_timesteps > config.learning_starts:
            self._learn(parts, batch, before, time.monotonic() - began)
        else:
            self._remember(parts, batch)
        metrics.training_time = time.monotonic() - began
        if self._due(config.evaluation_frequency, before):
            self._evaluate(parts)
        if self._due(config.save_frequency, before):
            self.save()
        return True

    def _take(self, parts: _Parts) -> dict[str, Any] | None:
        """Wait for one segment per actor, and watch the workers meanwhile; None if stopped."""
        parts.workers.fill()
        while True:
            began = time.monotonic()
            columns: dict[str, Any] | None = None
            with contextlib.suppress(WaitTimeoutError):
                columns = parts.table.sample(self.config.num_actors, timeout=0.5).data
            if columns is None and self._stop.is_set():
                return None
            parts.workers.check(time.monotonic() - began)
            if columns is not None:
                parts.workers.note(columns["actor"])
                return columns

    def _note(self, parts: _Parts, batch: Batch) -> None:
        """Count steps and episodes."""
        metrics, columns = self._metrics, batch.columns
        metrics.total_timesteps += batch.steps
        for reward, places in zip(columns["earned"].flat, columns["places"].flat, strict=True):
            # A policy of vectors computes every place of a window: nothing is reused.
            parts.tracker.record_rollout_step(float(reward), int(places), 0)
        parts.tokens += int(columns["places"].sum())
        parts.lost += int((~columns["valid"]).sum())
        parts.lags.extend((parts.version - columns["version"]).tolist())
        ended = columns["valid"] & (columns["dones"] | columns["truncated"])
        for actor, step in zip(*np.nonzero(ended), strict=True):
            metrics.episode_rewards.append(float(columns["episode_reward"][actor, step]))
            metrics.episode_lengths.append(int(columns["episode_steps"][actor, step]))
            parts.latest.append(bool(columns["success"][actor, step]))
            metrics.total_episodes += 1

    def _learn(self, parts: _Parts, batch: Batch, before: int, seconds: float) -> None:
        """Update from new segments and from replayed steps."""
        config, metrics, learner = self.config, self._metrics, parts.learner
        if self._due(config.target_update_interval, before) or not parts.has_reference:
            learner.set_reference()
            parts.has_reference = True
        found = learner.learn(batch, current=bool((batch.versions == parts.version).all()))
        self._remember(parts, batch)
        # An update that stopped before its first step has no loss.
        if np.isfinite(found["policy_loss"]):
            parts.tracker.record_learner_update(found["policy_loss"])
        if parts.replay is not None and parts.replay.ready:
            replayed = learner.learn_replayed(parts.replay.sample_columns(config.batch_size))
            parts.replayed += config.batch_size
            found["replayed_policy_loss"] = replayed["policy_loss"]
            found["replayed_value_loss"] = replayed["value_loss"]
            if np.isfinite(replayed["policy_loss"]):
                parts.tracker.record_learner_update(replayed["policy_loss"])
        if parts.replay is not None:
            parts.replay.update_experience_ages()
        parts.version += 1
        parts.weights.publish(published(learner.networks), parts.version)
        bandwidth = parts.tracker.snapshot()
        rate = float(np.mean(parts.latest)) if parts.latest else 0.0
        seconds = max(seconds, 1e-9)
        for name, value in (
            ("success_rates", rate),
            ("policy_losses", found["policy_loss"]),
            ("value_losses", found["value_loss"]),
            ("kl_divergences", found["approx_kl"]),
            ("entropy_losses", found["entropy"]),
            ("kv_cache_hit_rates", bandwidth.kv_reuse_rate),
            ("bandwidth_efficiency", bandwidth.eta_bw),
            ("tokens_per_second", parts.tokens / seconds),
            ("wall_clock_times", seconds),
            ("memory_usage", memory_mib()),
        ):
            getattr(metrics, name).append(value)
        lag = parts.version - 1 - batch.versions
        parts.records.add(
            "update",
            metrics.total_timesteps,
            {**found, "success_rate": rate, "mean_lag": float(lag.mean()), "seconds": seconds},
        )

    def _remember(self, parts: _Parts, batch: Batch) -> None:
        """Add the steps of a batch to the replay."""
        if parts.replay is None:
            return
        valid = batch.valid.flatten().numpy()
        plans = batch.plans.flatten(0, 1)
        states = torch.cat([batch.states.flatten(0, 1), plans], dim=1)
        following = torch.cat(
            [batch.next_states.flatten(0, 1), parts.learner.next_plans(batch).cpu()], dim=1
        )
        action = torch.cat(
            [batch.actions.flatten()[:, None], batch.allowed.flatten(0, 1).long()], dim=1
        )
        versions = np.broadcast_to(batch.versions, batch.rewards.shape).flatten()
        parts.replay.add_batch(
            states.numpy()[valid],
            plans.numpy()[valid],
            action.numpy().astype(np.int16)[valid],
            batch.rewards.flatten().numpy()[valid],
            following.numpy()[valid],
            batch.dones.flatten().numpy()[valid],
            log_probs=batch.log_probs.flatten().numpy()[valid],
            episode_ids=batch.episode.flatten().numpy()[valid],
            policy_versions=versions[valid],
        )

    def _evaluate(self, parts: _Parts) -> None:
        networks = ActingNetworks(self.config)
        networks.load(published(parts.learner.networks))
        found = parts.evaluator.play(networks)
        history = self._metrics.history
        if not found.rewards:
            _log.warning(
                "the environment failed in all episodes of an evaluation: nothing to report"
            )
            return
        for name, value in (
            ("step", self._metrics.total_timesteps),
            ("avg_reward", float(np.mean(found.rewards))),
            ("success_rate", found.success_rate),
            ("rewards", found.rewards),
            ("successes", found.successes),
        ):
            history[name].append(value)
        parts.records.add(
            "evaluation",
            self._metrics.total_timesteps,
            {
                "avg_reward": history["avg_reward"][-1],
                "success_rate": found.success_rate,
                "avg_steps": float(np.mean(found.steps)),
                "broken": float(found.broken),
            },
        )

    def _due(self, every: int, before: int) -> bool:
        """Whether the steps of the latest batch passed a multiple of ``every``."""
        return self._metrics.total_timesteps // every > before // every

    def _is_good_enough(self) -> bool:
        wanted, latest = self.config.early_stop_success, self._metrics.evaluation_results
        if wanted is None or latest.get("step") != self._metrics.total_timesteps:
            return False
        return bool(latest["success_rate"] >= wanted)

    def _summarize(self, parts: _Parts) -> None:
        metrics = self._metrics
        metrics.replay_buffer_stats = (
            {} if parts.replay is None else parts.replay.get_buffer_statistics()
        )
        seconds = max(metrics.training_time, 1e-9)
        metrics.execution_metrics = {
            "seed": parts.seed,
            "updates": len(metrics.policy_losses),
            "weight_version": parts.version,
            "steps_per_second": metrics.total_timesteps / seconds,
            "mean_lag": float(np.mean(parts.lags)) if parts.lags else 0.0,
            "max_lag": int(max(parts.lags, default=0)),
            "replayed_steps": parts.replayed,
            "broken_steps": parts.lost,
            "actor_restarts": parts.workers.restarts,
            "bandwidth": dataclasses.asdict(parts.tracker.snapshot()),
        }

    def _ready(self) -> _Parts:
        self._check_open()
        if self._parts is None:
            state = folder = None
            if self._resume:
                folder = self._newest() if self._resume is True else Path(self._resume)
                if folder is not None:
                    state = checkpoint.load(folder / "run.ckpt", kind=_KIND)
            self._begin(state, folder)
        if self._parts is None:
            raise ClosedError("the trainer is closed")
        return self._parts

    def _newest(self) -> Path | None:
        found = Path(self.config.checkpoint_dir).glob("step-" + "[0-9]" * 10)
        return max(found, key=lambda one: one.stat().st_mtime_ns, default=None)

    def _begin(self, state: dict[str, Any] | None, folder: Path | None) -> None:
        """Make the parts, and restore a state if there is one."""
        seed = self.config.seed
        if state is not None:
            seed = state["seed"]
        if seed is None:
            seed = secrets.randbits(31)
        opening, step = 0, None
        if state is not None:
            opening, step = state["opening"] + 1, state["metrics"]["total_timesteps"]
        parts = _Parts(self.config, seed, self._judge, opening=opening, goes_on_at=step)
        try:
            if state is not None and folder is not None:
                self._restore(parts, state, folder)
            parts.weights.publish(published(parts.learner.networks), parts.version)
        except BaseException:
            parts.close()
            raise
        self._parts = parts

    def _state(self, parts: _Parts) -> dict[str, Any]:
        return {
            "seed": parts.seed,
            "opening": parts.opening,
            "tracker": parts.tracker.state_dict(),
            "lags": list(parts.lags),
            "learner": parts.learner.state_dict(),
            "reward_model": None if self._reward_model is None else self._reward_model.state_dict(),
            "workers": parts.workers.state(),
            "metrics": self._metrics.to_dict(),
            "counts": {name: getattr(parts, name) for name in _COUNTED},
            "latest": list(parts.latest),
        }

    def _restore(self, parts: _Parts, state: dict[str, Any], folder: Path) -> None:
        parts.learner.load_state_dict(state["learner"])
        if parts.replay is not None and (folder / "replay.bin").exists():
            parts.replay.load_buffer(folder / "replay.bin")
        if self._reward_model is not None and state["reward_model"] is not None:
            self._reward_model.load_state_dict(state["reward_model"])
        for name in _COUNTED:
            setattr(parts, name, state["counts"][name])
        parts.latest.extend(state["latest"])
        parts.lags.extend(state["lags"])
        parts.tracker.load_state_dict(state["tracker"])
        self._metrics = TrainingMetrics.from_dict(state["metrics"])
        try:
            parts.workers.restore(state["workers"])
        except ValueError as error:
            raise CheckpointError(f"the checkpoint has other actors: {error}") from error

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the trainer is closed")


# Counts of the parts that checkpoints keep.
_COUNTED = ("version", "tokens", "lost", "replayed", "has_reference")


class _Parts:
    """Everything that a run has started."""

    def __init__(
        self,
        config: TrainingConfig,
        seed: int,
        judge: Callable[[Transcript], float] | None,
        *,
        opening: int,
        goes_on_at: int | None,
    ) -> None:
        self.seed = seed
        # How often the run was resumed before.
        self.opening = opening
        self.version = self.tokens = self.lost = self.replayed = 0
        self.has_reference = self.started = False
        self.latest: deque[bool] = deque(maxlen=_LATEST)
        self.lags: deque[int] = deque(maxlen=100_000)
        self._closing: list[Callable[[], Any]] = []
        try:
            self._make(config, seed, judge, goes_on_at)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close everything in reverse order, also if closing something fails."""
        with contextlib.ExitStack() as stack:
            for close in self._closing:
                stack.callback(close)
            self._closing = []

    def _make(self, config: TrainingConfig, seed: int, judge: Any, goes_on_at: int | None) -> None:
        # First, since making an environment fails most often.
        self.evaluator = Evaluator(config, seed)
        self._closing.append(self.evaluator.close)
        self.replay, tracker = _replay(config, seed)
        self.learner = learner_of(config, seed, tracker)
        self._closing.append(self.learner.close)
        self.tracker = BandwidthEfficiencyTracker(config.bandwidth_config)
        self.records = Records(config, goes_on_at=goes_on_at)
        self._closing.append(self.records.close)
        results = Path(config.results_dir)
        self.table = Table.queue(TABLE, example_of(config), capacity=2 * config.num_actors)
        self.weights = WeightStore()
        # A resumed run draws other numbers, and has other episodes, than before.
        generation = self.opening * (config.max_restarts + 1)
        if config.backend == "threads":
            self.workers: Workers = ThreadWorkers(
                config, seed, self.table, self.weights, judge, generation
            )
            self._closing += [self.weights.close, self.workers.close, self.table.close]
            return
        if config.backend == "ray":
            # The workers open the addresses, since they know the nodes of the actors.
            server = Server(self.table, self.weights)
            self._closing.append(server.close)
            self.workers = RayWorkers(config, seed, server, generation)
        else:
            folder = tempfile.mkdtemp(prefix="echoic-")
            self._closing.append(lambda: shutil.rmtree(folder, ignore_errors=True))
            server = Server(self.table, self.weights, listen=f"unix://{folder}/run.sock")
            server.start()
            self._closing.append(server.close)
            self.workers = ProcessWorkers(config, seed, server.address, results, generation)
        self._closing.append(self.workers.close)


def _replay(config: TrainingConfig, seed: int) -> tuple[Any, Any]:
    """Make the replay, and return it with the mean plan that it shares with the planner."""
    if config.replay == "none":
        return None, None
    settings = config.replay_config
    if settings.seed is None:
        settings = dataclasses.replace(settings, seed=seed)
    if config.replay == "uniform":
        # Equal scores, in one tier.
        settings = dataclasses.replace(
            settings,
            surprise_weight=0.0,
            reward_weight=0.0,
            hot_buffer_size=min(
                settings.hot_buffer_size + settings.cold_buffer_size, settings.max_experiences
            ),
            age_threshold=settings.max_replay_age,
            hot_sample_ratio=1.0,
        )
    calculator = SurpriseCalculator(settings, config.plan_dim)
    replay = PrioritizedReplayBuffer(settings, config.plan_dim, surprise_calculator=calculator)
    return replay, calculator.tracker if config.use_plans else None


def _copied(tree: dict[str, Any]) -> dict[str, Any]:
    return {
        part: {name: one.copy() for name, one in arrays.items()} for part, arrays in tree.items()
    }
