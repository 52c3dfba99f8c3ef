"""Training runs: actors act, a learner learns from what they did.

1. Each actor takes `train_frequency` steps with the current policy.
2. The learner learns from these, and from `batch_size` replayed steps; the new steps are added to
   the replay. See ``VectorLearner``.

A run is the same to the last bit for the same seed and settings: all random numbers have their own
generators. One that was resumed has the learner, the replay and the measurements of its checkpoint,
and begins new episodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import secrets
import shutil
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch

from echoic.agents import checkpoint
from echoic.agents.bandwidth import BandwidthEfficiencyTracker
from echoic.agents.replay import PrioritizedReplayBuffer, SurpriseCalculator
from echoic.agents.training.actors import ActingNetworks, ActorGroup, Seat, TrainedPolicy
from echoic.agents.training.config import TrainingConfig
from echoic.agents.training.ppo import VectorLearner
from echoic.agents.training.records import Records, TrainingMetrics
from echoic.errors import ArgumentError, ClosedError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from typing_extensions import Self

    from echoic.agents.episodes import Policy
    from echoic.agents.training.actors import Transcript
    from echoic.agents.training.ppo import Batch
    from echoic.agents.training.rewards import PreferenceReward

__all__ = ["EchoRLTrainer", "TrainingConfig"]

_KIND, _FILE = "training run", "run.ckpt"
# Lists of the metrics, and the numbers of an update that are added to them.
_METRICS = {
    "success_rates": "success_rate",
    "policy_losses": "policy_loss",
    "value_losses": "value_loss",
    "kl_divergences": "approx_kl",
    "entropy_losses": "entropy",
    "wall_clock_times": "seconds",
}


class EchoRLTrainer:
    """Trains an agent in an environment.

    With a language model as ``config.backbone``, an :class:`~echoic.agents.llm.LLMTrainer` does the
    work of all methods. Environments are made when training starts.

    Args:
        config: All settings.
        resume: Continue from the newest checkpoint of ``checkpoint_dir``, if there is one; or from
            this one.
        judge: Pays episodes in place of the environment.
        reward_model: Pays steps in place of the environment.
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
        self._metrics = TrainingMetrics()
        self._agent: Any
        if config.trains_language_model:
            if judge is not None or reward_model is not None:
                raise ArgumentError('judge and reward_model are for backbone="mlp" only')
            from echoic.agents.llm.trainer import AgentTrainer

            self._agent = AgentTrainer(config, self._metrics, resume=resume)
        else:
            self._agent = _VectorTrainer(config, self._metrics, judge, reward_model)
            if resume is True:
                with contextlib.suppress(FileNotFoundError):
                    self._agent.resume()
            elif resume:
                self._agent.resume(resume)

    async def train(self) -> TrainingMetrics:
        """Train for ``total_timesteps``, or until ``early_stop_success`` is reached.

        Cancelling stops after the current update; the trainer can go on from there.
        """
        await self._agent.train()
        return self._metrics

    def get_training_metrics(self) -> TrainingMetrics:
        """Return the measurements so far."""
        return self._metrics

    def policy(self, *, greedy: bool = False) -> Policy:
        """Return a copy of the current policy."""
        made: Policy = self._agent.policy(greedy=greedy)
        return made

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a checkpoint to a folder, and return it.

        Args:
            path: The folder; by default one of ``checkpoint_dir``, named after the step. Of those,
                the last ``keep_checkpoints`` that this run has written are kept.
        """
        return Path(self._agent.save(path))

    def resume(self, path: str | os.PathLike[str] | None = None) -> int:
        """Continue from a checkpoint, by default the newest of ``checkpoint_dir``; return its step.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            CheckpointError: If it is damaged, or of a run of other sizes.
        """
        return int(self._agent.resume(path))

    def close(self) -> None:
        """Stop training, and close the environments. Measurements and checkpoints are kept."""
        self._agent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _VectorTrainer:
    """Trains a policy of vectors; the metrics are filled in place."""

    def __init__(
        self,
        config: TrainingConfig,
        metrics: TrainingMetrics,
        judge: Callable[[Transcript], float] | None,
        reward_model: PreferenceReward | None,
    ) -> None:
        self.config, self.metrics, self.judge = config, metrics, judge
        self.reward_model = reward_model
        self.seed: int = secrets.randbits(31) if config.seed is None else config.seed
        self.replay, mean_plan = _replay(config, self.seed)
        self.learner = VectorLearner(config, self.seed, mean_plan)
        encoder = None if self.learner.planner is None else self.learner.planner.encoder
        self.networks = ActingNetworks(config, encoder, self.learner.policy_network)
        self.tracker = BandwidthEfficiencyTracker(config.bandwidth_config)
        # What a checkpoint has the state of.
        self._parts: dict[str, Any] = {"learner": self.learner, "tracker": self.tracker}
        if reward_model is not None:
            self._parts["reward_model"] = reward_model
        # Places of windows that were read, and steps of environments that failed.
        self.tokens = self.lost = 0
        # Successes of the latest episodes.
        self.latest: deque[bool] = deque(maxlen=100)
        self.actors: ActorGroup | None = None
        # Steps that the actors of IMPALA have taken ahead of the learner.
        self._ahead: Batch | None = None
        # Checkpoints of this run, the oldest first.
        self._saved: list[Path] = []
        self._stop, self._closed = threading.Event(), False
        # Held by a round of training, so that what is saved or shown is of one moment.
        self._round = threading.RLock()
        self._closing = contextlib.ExitStack()

    async def train(self) -> None:
        self._stop.clear()
        work = asyncio.create_task(asyncio.to_thread(self._train))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stop.set()
            await work
            raise

    def policy(self, *, greedy: bool) -> TrainedPolicy:
        with self._round:
            networks = self.networks
            copies = copy.deepcopy((networks.encoder, networks.policy))
        return TrainedPolicy(ActingNetworks(self.config, *copies), greedy=greedy)

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        with self._round:
            root, step = Path(self.config.checkpoint_dir), self.metrics.total_timesteps
            folder = root / f"step-{step:010d}" if path is None else Path(path)
            state = {
                "seed": self.seed,
                "tokens": self.tokens,
                "lost": self.lost,
                "latest": list(self.latest),
                "parts": {name: part.state_dict() for name, part in self._parts.items()},
                # As arrays: the rest is one text, of which a file has 100 MB at most.
                "metrics": {
                    name: np.array(value) if isinstance(value, list) else value
                    for name, value in vars(self.metrics).items()
                },
            }
            folder.mkdir(parents=True, exist_ok=True)
            # Written last: without it a folder is no checkpoint.
            (folder / _FILE).unlink(missing_ok=True)
            if self.replay is not None:
                self.replay.save_buffer(folder / "replay.bin")
            checkpoint.save(folder / _FILE, state, kind=_KIND)
            if path is None:
                # Checkpoints of other runs in the same folder are not removed.
                self._saved = [one for one in self._saved if one != folder] + [folder]
                while len(self._saved) > self.config.keep_checkpoints:
                    shutil.rmtree(self._saved.pop(0), ignore_errors=True)
            return folder

    def resume(self, path: str | os.PathLike[str] | None = None) -> int:
        with self._round:
            if self.actors is not None or self._closed:
                raise ClosedError("resume a run before it starts: this one has started")
            root = Path(self.config.checkpoint_dir)
            found = root.glob(f"step-*/{_FILE}") if path is None else [Path(path) / _FILE]
            file = max(found, key=lambda one: one.stat().st_mtime_ns, default=root / _FILE)
            state = checkpoint.load(file, kind=_KIND)
            for name in self._parts.keys() & state["parts"].keys():
                self._parts[name].load_state_dict(state["parts"][name])
            if self.replay is not None and file.with_name("replay.bin").exists():
                self.replay.load_buffer(file.with_name("replay.bin"))
            self.seed, self.tokens, self.lost = state["seed"], state["tokens"], state["lost"]
            self.latest.extend(state["latest"])
            for name, value in state["metrics"].items():
                plain = value.tolist() if isinstance(value, np.ndarray) else value
                setattr(self.metrics, name, plain)
            return self.metrics.total_timesteps

    def close(self) -> None:
        self._stop.set()
        with self._round:
            self._closed = True
            self._closing.close()

    def _train(self) -> None:
        metrics = self.metrics
        # Starting is a round, too: close() waits for it, and finds what it has to close.
        with self._round:
            self._start()
        began = time.monotonic() - metrics.training_time
        while not self._is_over():
            with self._round:
                if self._stop.is_set():
                    break
                self._advance(began)
        with self._round:
            is_over = not self._stop.is_set()
            if is_over and metrics.evaluation_results.get("step") != metrics.total_timesteps:
                self._evaluate()
            metrics.training_time = time.monotonic() - began
            self._summarize()
            if is_over:
                self.save()

    def _start(self) -> None:
        if self._closed:
            raise ClosedError("the trainer is closed")
        if self.actors is not None:
            return
        config, at = self.config, self.metrics.total_timesteps
        with contextlib.ExitStack() as stack:
            self.evaluator = Seat(config)
            stack.callback(self.evaluator.environment.close)
            actors = ActorGroup(config, self.networks, self.seed, first=at, judge=self.judge)
            stack.callback(actors.close)
            self.records = Records(config, goes_on_at=at or None)
            stack.callback(self.records.close)
            self.actors, self._closing = actors, stack.pop_all()

    def _advance(self, began: float) -> None:
        """Take steps and learn from them."""
        config, metrics, actors = self.config, self.metrics, self.actors
        assert actors is not None
        batch = self._ahead or actors.collect()
        self._ahead = actors.collect() if config.algorithm == "impala" else None
        batch.next_plans = self.learner.next_plans(batch)
        self._note(batch)
        if self.reward_model is not None:
            self.reward_model.relabel(batch)
        if metrics.total_timesteps > config.learning_starts:
            self._learn(batch, max(time.monotonic() - began, 1e-9))
        else:
            self._remember(batch)
        metrics.training_time = time.monotonic() - began
        if self._is_due(config.evaluation_frequency):
            self._evaluate()
        if self._is_due(config.save_frequency):
            self.save()

    def _is_due(self, every: int) -> bool:
        """Return whether the steps of the latest batch passed a multiple of ``every``."""
        now = self.metrics.total_timesteps
        return now // every > (now - self.config.steps_per_update) // every

    def _is_over(self) -> bool:
        """Return whether all steps were taken, or an evaluation was good enough just now."""
        wanted, metrics = self.config.early_stop_success, self.metrics
        latest, now = metrics.evaluation_results, metrics.total_timesteps
        is_good = latest.get("step") == now and wanted is not None
        return now >= self.config.total_timesteps or (is_good and latest["success_rate"] >= wanted)

    def _note(self, batch: Batch) -> None:
        metrics = self.metrics
        metrics.total_timesteps += batch.rewards.numel()
        pairs = zip(batch.earned.T.flatten(), batch.places.T.flatten(), strict=True)
        for reward, places in pairs:
            # A policy of vectors computes every place of a window: nothing is reused.
            self.tracker.record_rollout_step(float(reward), int(places), 0)
        self.tokens += int(batch.places.sum())
        self.lost += int((~batch.valid).sum())
        metrics.total_episodes += len(batch.ended)
        for reward, steps, success in batch.ended:
            metrics.episode_rewards.append(reward)
            metrics.episode_lengths.append(steps)
            self.latest.append(success)

    def _learn(self, batch: Batch, seconds: float) -> None:
        config, metrics, learner = self.config, self.metrics, self.learner
        if self._is_due(config.target_update_interval) or learner.reference is None:
            learner.set_reference()
        found = learner.learn(batch)
        self._remember(batch)
        self.tracker.record_learner_update(found["policy_loss"])
        if self.replay is not None and self.replay.ready:
            replayed = learner.learn_replayed(self.replay.sample_columns(config.batch_size))
            self.tracker.record_learner_update(replayed["policy_loss"])
            found |= {f"replayed_{name}": replayed[name] for name in ("policy_loss", "value_loss")}
        if self.replay is not None:
            self.replay.update_experience_ages()
        bandwidth = self.tracker.snapshot()
        found["seconds"] = seconds
        found["success_rate"] = float(np.mean(self.latest)) if self.latest else 0.0
        for name, key in _METRICS.items():
            getattr(metrics, name).append(found[key])
        metrics.kv_cache_hit_rates.append(bandwidth.kv_reuse_rate)
        metrics.bandwidth_efficiency.append(bandwidth.eta_bw)
        metrics.tokens_per_second.append(self.tokens / seconds)
        metrics.memory_usage.append(psutil.Process().memory_info().rss / 2**20)
        self.records.add("update", metrics.total_timesteps, found)

    def _remember(self, batch: Batch) -> None:
        if self.replay is None:
            return
        valid = batch.valid.flatten()

        def rows(*parts: Any) -> Any:
            return torch.cat([part.reshape(len(valid), -1) for part in parts], dim=1)[valid].numpy()

        self.replay.add_batch(
            rows(batch.states, batch.latent_plans),
            rows(batch.latent_plans),
            rows(batch.actions, batch.action_masks.long()).astype(np.int16),
            rows(batch.rewards)[:, 0],
            rows(batch.next_states, batch.next_plans),
            rows(batch.dones)[:, 0],
            log_probs=rows(batch.log_probs)[:, 0],
            episode_ids=rows(batch.episode)[:, 0],
        )

    def _evaluate(self) -> None:
        config, step = self.config, self.metrics.total_timesteps
        policy = TrainedPolicy(self.networks, greedy=config.evaluation_greedy)
        played = asyncio.run(self.evaluator.play(policy))
        if not played:
            return
        rewards, successes = [one.reward for one in played], [one.success for one in played]
        found: dict[str, Any] = {
            "avg_reward": float(np.mean(rewards)),
            "success_rate": float(np.mean(successes)),
        }
        lists = {"rewards": rewards, "successes": successes}
        for name, value in {"step": step, **found, **lists}.items():
            self.metrics.history[name].append(value)
        found["avg_steps"] = float(np.mean([one.steps for one in played]))
        found["broken"] = float(config.evaluation_episodes - len(played))
        self.records.add("evaluation", step, found)

    def _summarize(self) -> None:
        metrics = self.metrics
        if self.replay is not None:
            metrics.replay_buffer_stats = self.replay.get_buffer_statistics()
        metrics.execution_metrics = {
            "seed": self.seed,
            "updates": len(metrics.policy_losses),
            "steps_per_second": metrics.total_timesteps / max(metrics.training_time, 1e-9),
            "broken_steps": self.lost,
            "bandwidth": dataclasses.asdict(self.tracker.snapshot()),
        }


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
