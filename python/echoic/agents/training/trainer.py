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
import os
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

from echoic import Table
from echoic.agents import checkpoint
from echoic.agents.bandwidth import BandwidthEfficiencyTracker
from echoic.agents.replay import PrioritizedReplayBuffer, SurpriseCalculator
from echoic.agents.training.acting import ActingNetworks, TrainedPolicy, published
from echoic.agents.training.actors import Evaluator
from echoic.agents.training.config import TrainingConfig
from echoic.agents.training.learner import VectorLearner
from echoic.agents.training.records import Records, TrainingMetrics, memory_mib
from echoic.agents.training.segments import batch_of, example_of
from echoic.agents.training.workers import TABLE, workers_of
from echoic.errors import ArgumentError, CheckpointError, ClosedError, WaitTimeoutError
from echoic.weights import WeightStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from echoic.agents.episodes import Policy
    from echoic.agents.training.actors import Transcript
    from echoic.agents.training.rewards import PreferenceReward
    from echoic.agents.training.segments import Batch

__all__ = ["EchoRLTrainer", "TrainingConfig"]

_log = logging.getLogger("echoic.agents.training")
_KIND = "training run"
# Counts of a run that checkpoints keep.
_COUNTED = ("version", "tokens", "lost", "replayed", "has_reference")


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
        reward_model: PreferenceReward | None = None,
    ) -> None:
        self.config = config
        if judge is not None and config.backend != "threads":
            raise ArgumentError(f'a judge needs backend="threads", not {config.backend!r}')
        self._resume = resume
        self._judge = judge
        self._reward_model = reward_model
        self._metrics = TrainingMetrics()
        self._stop = threading.Event()
        self._run: _Run | None = None
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
            from echoic.agents.llm.trainer import AgentTrainer

            self._language = AgentTrainer(config, self._metrics, resume=resume)

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
            networks.load(published(self._ready().learner))
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
            run, root = self._ready(), Path(self.config.checkpoint_dir)
            name = f"step-{self._metrics.total_timesteps:010d}"
            folder = root / name if path is None else Path(path)
            run.write(folder)
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
        with self._round:
            if self._run is not None:
                raise ClosedError("resume a run before it starts: this one has started")
            folder = self._newest() if path is None else Path(path)
            if folder is None:
                raise FileNotFoundError(f"there is no checkpoint in {self.config.checkpoint_dir!r}")
            self._begin(folder)
            return self._metrics.total_timesteps

    def close(self) -> None:
        """Stop all workers. Measurements and checkpoints are kept."""
        self._stop.set()
        if self._language is not None:
            self._language.close()
        with self._round:
            self._closed = True
            run, self._run = self._run, None
            if run is not None:
                run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _train(self) -> TrainingMetrics:
        # Starting is a round, too: close() waits for it, and finds what it has to close.
        with self._round:
            run, config = self._ready(), self.config
            # A checkpoint brings its own metrics.
            metrics = self._metrics
            began = time.monotonic() - metrics.training_time
            run.start()
        while metrics.total_timesteps < config.total_timesteps and not run.is_good_enough():
            with self._round:
                before = metrics.total_timesteps
                if self._stop.is_set() or not run.advance(self._stop, began):
                    break
                if run.due(config.save_frequency, before):
                    self.save()
        with self._round:
            metrics.training_time = time.monotonic() - began
            if not self._stop.is_set():
                if metrics.evaluation_results.get("step") != metrics.total_timesteps:
                    run.evaluate()
                self.save()
            if not self._closed:
                run.summarize()
        return metrics

    def _ready(self) -> _Run:
        self._check_open()
        if self._run is None:
            return self._begin(self._newest() if self._resume is True else self._resume)
        return self._run

    def _newest(self) -> Path | None:
        found = Path(self.config.checkpoint_dir).glob("step-" + "[0-9]" * 10)
        return max(found, key=lambda one: one.stat().st_mtime_ns, default=None)

    def _begin(self, given: str | os.PathLike[str] | bool | None) -> _Run:
        """Make a run, at a checkpoint if one is given."""
        folder = Path(given) if given and not isinstance(given, bool) else None
        state = None
        if folder is not None:
            state = checkpoint.load(folder / "run.ckpt", kind=_KIND)
        run = _Run(self.config, self._judge, self._reward_model, state)
        try:
            if state is not None and folder is not None:
                run.restore(state, folder)
            run.publish()
        except BaseException:
            run.close()
            raise
        self._run, self._metrics, self._resume = run, run.metrics, False
        return run

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the trainer is closed")


class _Run:
    """Everything that a run has started, and a round of it; at a checkpoint if one is given."""

    def __init__(
        self,
        config: TrainingConfig,
        judge: Callable[[Transcript], float] | None,
        reward_model: PreferenceReward | None,
        state: dict[str, Any] | None,
    ) -> None:
        self.config, self.reward_model = config, reward_model
        self.metrics = TrainingMetrics()
        seed = config.seed if state is None else state["seed"]
        self.seed: int = secrets.randbits(31) if seed is None else seed
        # How often the run was resumed before.
        self.opening: int = 0 if state is None else state["opening"] + 1
        self.version = self.tokens = self.lost = self.replayed = 0
        self.has_reference = self.started = False
        # Successes of the latest episodes.
        self.latest: deque[bool] = deque(maxlen=100)
        self.lags: deque[int] = deque(maxlen=100_000)
        with contextlib.ExitStack() as stack:
            # First, since making an environment fails most often.
            self.evaluator = Evaluator(config)
            stack.callback(self.evaluator.seat.close)
            self.replay, mean_plan = _replay(config, self.seed)
            self.learner = VectorLearner(config, self.seed, mean_plan)
            stack.callback(self.learner.close)
            self.tracker = BandwidthEfficiencyTracker(config.bandwidth_config)
            step = None if state is None else state["metrics"]["total_timesteps"]
            self.records = Records(config, goes_on_at=step)
            stack.callback(self.records.close)
            self.table = Table.queue(TABLE, example_of(config), capacity=2 * config.num_actors)
            self.weights = WeightStore()
            # A resumed run draws other numbers, and has other episodes, than before.
            generation = self.opening * (config.max_restarts + 1)
            given = (self.seed, generation, self.table, self.weights, judge)
            self.workers = workers_of(config, *given)
            stack.callback(self.workers.close)
            self._closing = stack.pop_all()

    def close(self) -> None:
        self._closing.close()

    def start(self) -> None:
        if not self.started:
            self.workers.start()
            self.started = True

    def publish(self) -> None:
        self.weights.publish(published(self.learner), self.version)

    def advance(self, stop: threading.Event, began: float) -> bool:
        """Take segments and learn from them; return False if the run was stopped."""
        config, metrics = self.config, self.metrics
        before = metrics.total_timesteps
        columns = self._take(stop)
        if columns is None:
            return False
        batch = batch_of(columns, config)
        self._note(batch)
        if self.reward_model is not None:
            self.reward_model.relabel(batch)
        if metrics.total_timesteps > config.learning_starts:
            self._learn(batch, before, max(time.monotonic() - began, 1e-9))
        else:
            self._remember(batch)
        metrics.training_time = time.monotonic() - began
        if self.due(config.evaluation_frequency, before):
            self.evaluate()
        return True

    def due(self, every: int, before: int) -> bool:
        """Return whether the steps of the latest batch passed a multiple of ``every``."""
        return self.metrics.total_timesteps // every > before // every

    def is_good_enough(self) -> bool:
        """Return whether the latest evaluation reached ``early_stop_success``."""
        wanted, latest = self.config.early_stop_success, self.metrics.evaluation_results
        if wanted is None or latest.get("step") != self.metrics.total_timesteps:
            return False
        return bool(latest["success_rate"] >= wanted)

    def _take(self, stop: threading.Event) -> dict[str, Any] | None:
        """Wait for `num_actors` segments, and watch the workers meanwhile; None if stopped."""
        self.workers.fill()
        while True:
            began = time.monotonic()
            columns: dict[str, Any] | None = None
            with contextlib.suppress(WaitTimeoutError):
                columns = self.table.sample(self.config.num_actors, timeout=0.5).data
            if columns is None and stop.is_set():
                return None
            heard = () if columns is None else columns["actor"].tolist()
            self.workers.check(time.monotonic() - began, heard)
            if columns is not None:
                return columns

    def _note(self, batch: Batch) -> None:
        metrics, columns = self.metrics, batch.columns
        metrics.total_timesteps += batch.rewards.numel()
        for reward, places in zip(columns["earned"].flat, columns["places"].flat, strict=True):
            # A policy of vectors computes every place of a window: nothing is reused.
            self.tracker.record_rollout_step(float(reward), int(places), 0)
        self.tokens += int(columns["places"].sum())
        self.lost += int((~columns["valid"]).sum())
        self.lags.extend((self.version - columns["version"]).tolist())
        ended = columns["valid"] & (columns["dones"] | columns["truncated"])
        metrics.total_episodes += int(ended.sum())
        metrics.episode_rewards += columns["episode_reward"][ended].tolist()
        metrics.episode_lengths += columns["episode_steps"][ended].tolist()
        self.latest.extend(columns["success"][ended].tolist())

    def _learn(self, batch: Batch, before: int, seconds: float) -> None:
        config, metrics, learner = self.config, self.metrics, self.learner
        if self.due(config.target_update_interval, before) or not self.has_reference:
            learner.set_reference()
            self.has_reference = True
        found = learner.learn(batch, current=bool((batch.versions == self.version).all()))
        self._remember(batch)
        self.tracker.record_learner_update(found["policy_loss"])
        if self.replay is not None and self.replay.ready:
            replayed = learner.learn_replayed(self.replay.sample_columns(config.batch_size))
            self.replayed += config.batch_size
            self.tracker.record_learner_update(replayed["policy_loss"])
            found |= {f"replayed_{name}": replayed[name] for name in ("policy_loss", "value_loss")}
        if self.replay is not None:
            self.replay.update_experience_ages()
        lag = float((self.version - batch.versions).mean())
        self.version += 1
        self.publish()
        bandwidth = self.tracker.snapshot()
        rate = float(np.mean(self.latest)) if self.latest else 0.0
        metrics.success_rates.append(rate)
        metrics.policy_losses.append(found["policy_loss"])
        metrics.value_losses.append(found["value_loss"])
        metrics.kl_divergences.append(found["approx_kl"])
        metrics.entropy_losses.append(found["entropy"])
        metrics.kv_cache_hit_rates.append(bandwidth.kv_reuse_rate)
        metrics.bandwidth_efficiency.append(bandwidth.eta_bw)
        metrics.tokens_per_second.append(self.tokens / seconds)
        metrics.wall_clock_times.append(seconds)
        metrics.memory_usage.append(memory_mib())
        more = {"success_rate": rate, "mean_lag": lag, "seconds": seconds}
        self.records.add("update", metrics.total_timesteps, {**found, **more})

    def _remember(self, batch: Batch) -> None:
        if self.replay is None:
            return
        valid = batch.valid.flatten()

        def rows(*parts: Any) -> Any:
            return torch.cat([part.reshape(len(valid), -1) for part in parts], dim=1)[valid].numpy()

        versions = torch.from_numpy(batch.versions).expand_as(batch.rewards)
        self.replay.add_batch(
            rows(batch.states, batch.latent_plans),
            rows(batch.latent_plans),
            rows(batch.actions, batch.action_masks.long()).astype(np.int16),
            rows(batch.rewards)[:, 0],
            rows(batch.next_states, self.learner.next_plans(batch).cpu()),
            rows(batch.dones)[:, 0],
            log_probs=rows(batch.log_probs)[:, 0],
            episode_ids=rows(batch.episode)[:, 0],
            policy_versions=rows(versions)[:, 0],
        )

    def evaluate(self) -> None:
        config, step = self.config, self.metrics.total_timesteps
        networks = ActingNetworks(config)
        networks.load(published(self.learner))
        policy = TrainedPolicy(networks, greedy=config.evaluation_greedy)
        played = asyncio.run(self.evaluator.play(policy))
        if not played:
            _log.warning("all episodes of an evaluation failed: nothing to report")
            return
        rewards, successes = [one.reward for one in played], [one.success for one in played]
        means = {
            "avg_reward": float(np.mean(rewards)),
            "success_rate": float(np.mean(successes)),
        }
        lists = {"rewards": rewards, "successes": successes}
        for name, value in {"step": step, **means, **lists}.items():
            self.metrics.history[name].append(value)
        more = {
            "avg_steps": float(np.mean([one.steps for one in played])),
            "broken": float(config.evaluation_episodes - len(played)),
        }
        self.records.add("evaluation", step, {**means, **more})

    def summarize(self) -> None:
        metrics = self.metrics
        if self.replay is not None:
            metrics.replay_buffer_stats = self.replay.get_buffer_statistics()
        metrics.execution_metrics = {
            "seed": self.seed,
            "updates": len(metrics.policy_losses),
            "weight_version": self.version,
            "steps_per_second": metrics.total_timesteps / max(metrics.training_time, 1e-9),
            "mean_lag": float(np.mean(self.lags)) if self.lags else 0.0,
            "max_lag": int(max(self.lags, default=0)),
            "replayed_steps": self.replayed,
            "broken_steps": self.lost,
            "actor_restarts": self.workers.restarts,
            "bandwidth": dataclasses.asdict(self.tracker.snapshot()),
        }

    def write(self, folder: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        if folder.exists() and not (folder / "run.ckpt").exists():
            raise ArgumentError(f"{os.fspath(folder)!r} exists and is no checkpoint to replace")
        model = self.reward_model
        state = {
            "seed": self.seed,
            "opening": self.opening,
            "tracker": self.tracker.state_dict(),
            "lags": np.array(self.lags, np.int64),
            "learner": self.learner.state_dict(),
            "reward_model": None if model is None else model.state_dict(),
            "workers": self.workers.state(),
            # As arrays: the rest is one text, of which a file has 100 MB at most.
            "metrics": {
                name: np.array(value) if isinstance(value, list) else value
                for name, value in vars(self.metrics).items()
            },
            "counts": {name: getattr(self, name) for name in _COUNTED},
            "latest": list(self.latest),
        }
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            if self.replay is not None:
                self.replay.save_buffer(beside / "replay.bin")
            checkpoint.save(beside / "run.ckpt", state, kind=_KIND)
            if folder.exists():
                shutil.rmtree(folder)
            beside.replace(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        self.learner.load_state_dict(state["learner"])
        if self.replay is not None and (folder / "replay.bin").exists():
            self.replay.load_buffer(folder / "replay.bin")
        if self.reward_model is not None and state["reward_model"] is not None:
            self.reward_model.load_state_dict(state["reward_model"])
        for name in _COUNTED:
            setattr(self, name, state["counts"][name])
        self.latest.extend(state["latest"])
        self.lags.extend(state["lags"].tolist())
        self.tracker.load_state_dict(state["tracker"])
        kept = state["metrics"].items()
        self.metrics = TrainingMetrics.from_dict(
            {name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in kept}
        )
        try:
            self.workers.restore(state["workers"])
        except ValueError as error:
            raise CheckpointError(f"the checkpoint has other actors: {error}") from error


def _replay(config: TrainingConfig, seed: int) -> tuple[Any, Any]:
    """Make the replay, and return it with the mean plan that it shares with the planner."""
    if config.replay == "none":
        return None, None
    settings = config.replay_config
    if settings.seed is None:
        settings = dataclasses.replace(settings, seed=seed)
    if config.replay == "uniform":
        # Equal scores, in one tier.
        both = settings.hot_buffer_size + settings.cold_buffer_size
        settings = dataclasses.replace(
            settings,
            surprise_weight=0.0,
            reward_weight=0.0,
            hot_buffer_size=min(both, settings.max_experiences),
            age_threshold=settings.max_replay_age,
            hot_sample_ratio=1.0,
        )
    calculator = SurpriseCalculator(settings, config.plan_dim)
    replay = PrioritizedReplayBuffer(settings, config.plan_dim, surprise_calculator=calculator)
    return replay, calculator.tracker if config.use_plans else None
