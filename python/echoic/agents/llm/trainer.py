"""Training of a language model: tasks, conversations, an engine, rollouts, a learner, weights.

``max_lag=0`` is lock-step: engine and learner share one module, so ratios of fresh answers are 1 up
to rounding, and a run repeats itself to the last bit, also when it was killed and resumed. Answers
that were not learned from when it was saved are drawn again. With n, engines have weights of their
own and answer while the learner learns, at most n versions behind. Rollouts survive in ``dir``: a
resumed run learns from each once, and goes on with those that were begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import fcntl
import glob
import json
import math
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

import echoic.rl
from echoic.agents import _checks
from echoic.agents.episodes import Decision, Usage
from echoic.agents.llm import workers
from echoic.agents.llm.batch import TokenBatch, join
from echoic.agents.llm.config import ExecutionConfig
from echoic.agents.llm.group_replay import GroupReplay
from echoic.agents.llm.learner import (
    GRPOConfig,
    GRPOLearner,
    PPOTokenConfig,
    PPOTokenLearner,
    RLOOConfig,
    RLOOLearner,
    TokenLearner,
    TokenLearnerConfig,
)
from echoic.agents.llm.lora import LoRAConfig
from echoic.agents.llm.soft_prefix import PlanPrefix
from echoic.agents.llm.tasks import instruct, read_command, show
from echoic.agents.llm.workers import Actor
from echoic.agents.replay import ReplayConfig
from echoic.agents.training.records import Records
from echoic.errors import ArgumentError, EchoicError, WaitTimeoutError
from echoic.rl.background import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from echoic.agents.llm.conversation import Conversation
    from echoic.agents.llm.replica import Replica
    from echoic.agents.llm.tasks import Task
    from echoic.agents.plans import PlanningConfig
    from echoic.agents.training.config import TrainingConfig
    from echoic.agents.training.records import TrainingMetrics
    from echoic.rollouts import RolloutBatch

    Row = dict[str, Any]
    Draw = Callable[[], Awaitable[RolloutBatch]]
    Place = str | os.PathLike[str]

__all__ = ["AgentTrainer", "LLMConfig", "LLMTrainer"]

# Seconds between two looks for workers that died, and of the lease of a batch: until the next
# checkpoint has it, however long that takes.
_LOOK, _LEASE = 0.2, 1e6
# Seconds after which a worker that is gone loses its groups to others.
_TTL = 15.0
# In place of an answer's number in the seeds of evaluations.
_HELD_OUT = 1 << 32
# What is printed of an update, and of how many updates its curve is.
_SHOWN = ("reward", "success", "lag_max", "kv_reuse_rate", "tokens_per_second")
_WIDTH = 30
_LEARNERS: dict[type[TokenLearnerConfig], type[TokenLearner]] = {
    GRPOConfig: GRPOLearner,
    RLOOConfig: RLOOLearner,
    PPOTokenConfig: PPOTokenLearner,
}


@dataclass(frozen=True)
class LLMConfig:
    """Settings of an :class:`LLMTrainer`.

    Attributes:
        steps: Updates of a run.
        prompts_per_step: Prompts that are answered for each update.
        answers_per_prompt: Answers that are compared with each other.
        max_new_tokens: Most tokens of an answer.
        max_length: Most tokens of a conversation; ``None``: what model and cache take.
        stop: Token ids that end an answer; by default those that end a turn of the tokenizer.
        learner: Settings of the learner. Answers are drawn at its ``temperature``.
        execution: Settings of the engine.
        max_lag: How many versions answers may be behind: 0 is lock-step; ``None``: any number, for
            servers that can't load weights.
        workers: Worker processes with an engine each; 0: one engine in this process. Threads would
            share its processor time and gain nothing: an engine batches all of its conversations.
        backend: Workers are ``"processes"`` of this machine, or actors of ``"ray"``.
        worker_imports: Modules that workers import first, to register tasks and environments.
        servers: Servers that answer instead of an engine: vLLM and SGLang load weights.
        dir: Folder of checkpoints, rollouts, ``metrics.jsonl`` and TensorBoard's files.
        save_every: Updates between two checkpoints.
        evaluate_every: Updates between two evaluations, of which the first is before training; 0:
            none.
        evaluate_prompts: Held-out prompts of an evaluation.
        evaluate_temperature: Temperature of its answers; 0 takes the likeliest tokens.
        timeout: Seconds that the learner waits for answers before the run fails.
        progress: Whether a line for each update is printed as it comes, to the standard error.
        plans: Settings of plans: a soft prefix before each answer, of the latest observations. With
            engines only: servers take no embeddings.
        plan_prefix: Embeddings of a plan.
        plan_state_dim: Numbers of an observation's encoding.
        replay: Earlier groups that are learned from again with each batch, drawn by their surprise.
        replay_config: How they are scored and drawn, and how many are kept.
        seed: Seed of the answers, and of first values: of adapters, plans and draws of the replay.
    """

    steps: int = 100
    prompts_per_step: int = 4
    answers_per_prompt: int = 8
    max_new_tokens: int = 64
    max_length: int | None = None
    stop: tuple[int, ...] = ()
    learner: TokenLearnerConfig = field(default_factory=GRPOConfig)
    execution: ExecutionConfig = field(
        # Weights change more often than prefixes would be cleaned up, and a clock must not decide
        # what is cached.
        default_factory=lambda: ExecutionConfig(timeout=600.0, cache_cleanup_interval=math.inf)
    )
    max_lag: int | None = 0
    workers: int = 0
    backend: Literal["processes", "ray"] = "processes"
    worker_imports: tuple[str, ...] = ()
    servers: tuple[Replica, ...] = ()
    dir: str | os.PathLike[str] | None = None
    save_every: int = 10
    evaluate_every: int = 0
    evaluate_prompts: int = 32
    evaluate_temperature: float = 0.0
    timeout: float = 1800.0
    progress: bool = False
    plans: PlanningConfig | None = None
    plan_prefix: int = 4
    plan_state_dim: int = 512
    replay: int = 0
    replay_config: ReplayConfig = field(
        default_factory=lambda: ReplayConfig(max_experiences=1024, min_experiences=1)
    )
    seed: int = 0

    def __post_init__(self) -> None:
        _checks.whole(self, "steps", "prompts_per_step", "max_new_tokens", "save_every")
        _checks.whole(self, "evaluate_prompts", "plan_prefix", "plan_state_dim")
        _checks.whole(self, "answers_per_prompt", least=2)
        _checks.whole(self, "workers", "evaluate_every", "replay", "seed", least=0)
        given = {name for name, value in vars(self).items() if value is not None}
        _checks.whole(self, *given & {"max_length"})
        _checks.whole(self, *given & {"max_lag"}, least=0)
        _checks.number(self, "timeout", above=0)
        _checks.number(self, "evaluate_temperature", least=0)
        _checks.one_of(self, "backend", ("processes", "ray"))
        if type(self.learner) not in _LEARNERS:
            known = " or ".join(f"a {kind.__name__}" for kind in _LEARNERS)
            kind = type(self.learner).__name__
            raise ArgumentError(f"expected {known} as learner, got a {kind}")
        if self.plans is not None and self.servers:
            raise ArgumentError("plans are input embeddings, which servers don't take")
        if self.workers and self.servers:
            raise ArgumentError("workers have engines of their own: expected no servers with them")
        if self.max_lag == 0 and (self.workers or self.servers):
            raise ArgumentError(
                "max_lag=0 is lock-step, with one engine in this process; with workers or servers "
                "max_lag must be at least 1"
            )


class LLMTrainer:
    """Trains a causal language model.

    Args:
        model: ``"local:SmolLM2-135M"``, a folder or name of transformers, a causal language model
            of transformers, or a ``CausalModel`` that is a module, such as ``TinyTransformer``.
            With ``LoRAConfig`` its layers get adapters.
        task: A :class:`Task`; or a name for :func:`make_task`, or the name and its settings, so
            that worker processes make it themselves.
        config: Settings.
        tokenizer: Of the model, by default that of its name. Bare ids need none.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        resume: Go on from the checkpoint in ``config.dir``, if there is one.

    Raises:
        ArgumentError: If there is no such model or task.
        CheckpointError: If the checkpoint is damaged, or of another model or other settings.
    """

    def __init__(
        self,
        model: Any,
        task: Task | str | tuple[str, dict[str, Any]],
        config: LLMConfig | None = None,
        *,
        tokenizer: Any = None,
        device: Any = "auto",
        resume: bool = False,
    ) -> None:
        self.config = config = config or LLMConfig()
        # Other processes make it by its name.
        self.task, self._recipe = workers.task_of(task), task
        self._dir = None if config.dir is None else Path(config.dir)
        self._saved = None if self._dir is None else self._dir / "learner.ckpt"
        self._name = os.fspath(model) if isinstance(model, str | os.PathLike) else None
        if self._name is not None:
            model, found = workers.load_model(self._name, device)
            tokenizer = found if tokenizer is None else tokenizer
        self.tokenizer, self._model = tokenizer, model
        plans: PlanPrefix | None = None
        if config.plans is not None:
            sizes = {"state_dim": config.plan_state_dim, "prefix": config.plan_prefix}
            plans = PlanPrefix(model, config.plans, seed=config.seed, **sizes)
        #: The learner; its ``policy`` is the trained model, with adapters if there are any.
        self.learner: TokenLearner = _LEARNERS[type(config.learner)](
            model, config.learner, plans=plans, device=device, seed=config.seed
        )
        #: Earlier groups; None without ``replay``.
        self.replay: GroupReplay | None = None
        if config.replay:
            self.replay = GroupReplay(
                config.replay_config, plans=self.learner.plans, seed=config.seed
            )
        #: Measurements of each update: the learner's, and ``step`` (updates so far), ``success``,
        #: ``turns``, ``lag_mean`` and ``lag_max``, ``tokens_per_second`` (drawn, by the time since
        #: the last update), ``kv_reuse_rate``, ``answer_seconds`` (waiting for answers),
        #: ``learner_seconds``, ``seconds`` (of the run so far), ``groups`` (their numbers), and
        #: of each answer ``rewards`` and ``lengths`` (turns). Lists are not kept in ``dir``.
        self.history: list[Row] = []
        #: ``step``, ``avg_reward``, ``success_rate``, ``rewards`` and ``successes`` of each
        #: evaluation on held-out prompts.
        self.evaluations: list[Row] = []
        #: Worker processes that were replaced.
        self.restarts = 0
        #: Functions that get ``"update"`` or ``"evaluation"`` and its row.
        self.listeners: list[Callable[[str, Row], None]] = []
        self._stopping = False
        # Batches that were learned from and that no checkpoint has, and the update of the last one.
        self._leased: list[RolloutBatch] = []
        self._saved_at = -1
        if resume and self._saved is not None and self._saved.exists():
            self.resume()

    @property
    def is_over(self) -> bool:
        """Whether all updates are made."""
        return self._stopping or self.learner.updates >= self.config.steps

    async def train(self) -> list[Row]:
        """Train until ``steps`` updates are made, those before included; return the ``history``.

        Cancelling ends the run after the current update; calling it again goes on.

        Raises:
            ArgumentError: If a prompt does not fit the model or the engine's cache, a reward is not
                a finite number, or ``dir`` has another run.
            CollectorError: If the engine, the task or a worker failed.
            WaitTimeoutError: If there were no answers within ``timeout`` seconds.
        """
        self._stopping = False
        if self.is_over:
            return self.history
        if self._saved is not None and self._saved.exists() and self._saved_at < 0:
            raise ArgumentError(
                f"{self._dir} has a run: expected another folder, or resume to go on with it"
            )
        async with contextlib.AsyncExitStack() as stack:
            if self._dir is not None:
                self._dir.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((self._dir / "lock").open("a"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ArgumentError(f"another run is training in {self._dir}") from None
            stack.callback(setattr, self, "listeners", list(self.listeners))
            self._show(stack)
            await self._train(stack)
        return self.history

    def stop(self) -> None:
        """End the run after the current update."""
        self._stopping = True

    async def evaluate(self) -> Row:
        """Answer the held-out prompts with the learner's weights; return and keep the results."""
        began, actor = time.monotonic(), self._actor()
        heat = self.config.evaluate_temperature
        actor = actor.with_engine(self._model, self.learner.device)
        prompts = [self.task.held_out(number) for number in range(self.config.evaluate_prompts)]
        async with actor.engine:
            talks = await self._in_time(
                actor.hold(prompt, number, _HELD_OUT, temperature=heat)
                for number, prompt in enumerate(prompts)
            )
        rewards = [float(outcome.reward) for _, outcome in talks]
        successes = [bool(outcome.success) for _, outcome in talks]
        row: Row = {
            "step": self.learner.updates,
            "avg_reward": float(np.mean(rewards)),
            "success_rate": float(np.mean(successes)),
            "rewards": rewards,
            "successes": successes,
            "seconds": time.monotonic() - began,
        }
        self._note("evaluation", row)
        return row

    def save(self, path: Place | None = None) -> Path:
        """Write the learner's state to a file, by default the one of ``config.dir``; return it."""
        place = self._place(path)
        replay = self._replay_file(place)
        if self.replay is not None:
            # First: a run that ends between the two goes on from the ones before.
            self.replay.save(replay)
        self.learner.save(place)
        for old in set(place.parent.glob(f"{glob.escape(place.name)}.replay-*")) - {replay}:
            old.unlink()
        if place == self._saved:
            self._saved_at = self.learner.updates
        return place

    def resume(self, path: Place | None = None) -> int:
        """Continue from a file of :meth:`save`; return its updates.

        By default that is the one of ``config.dir``, with the history up to it.

        Raises:
            FileNotFoundError: If there is none.
            CheckpointError: If it is damaged, or of another model or other settings.
        """
        place = self._place(path)
        self.learner.load(place)
        if self.replay is not None:
            self.replay.load(self._replay_file(place))
        self.history, self.evaluations = [], []
        if place == self._saved:
            self._saved_at = self.learner.updates
            self._read_history(place.with_name("metrics.jsonl"))
        return self.learner.updates

    def export(self, folder: Place) -> None:
        """Write the trained model, adapters merged, and its tokenizer for transformers.

        Raises:
            ArgumentError: If it is no model of transformers.
        """
        policy = self.learner.policy
        model = policy.get_base_model() if self.config.learner.lora is not None else policy
        if not callable(getattr(model, "save_pretrained", None)):
            raise ArgumentError(f"a {type(model).__name__} is no model of transformers")
        model.save_pretrained(folder, state_dict=self.learner.weights())
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    async def _train(self, stack: contextlib.AsyncExitStack) -> None:
        config, version = self.config, self.learner.updates
        if config.max_lag == 0:
            how: dict[str, Any] = {"order": "submission"}
        else:
            rollouts = None if self._dir is None else self._dir / "rollouts"
            how = {"on_expiry": "suspend", "reservation_ttl": _TTL, "dir": rollouts}
        if config.workers and config.backend == "processes":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="echoic-"))
            how["listen"] = f"unix://{folder}/run.sock"
        run = stack.enter_context(
            echoic.rl.Run(
                workers.COLUMNS,
                workers.FIELDS,
                group=config.answers_per_prompt,
                batch=config.prompts_per_step,
                max_lag=config.max_lag,
                seed=config.seed,
                **how,
            )
        )
        stack.callback(self._save_rest)
        run.restore(version)
        run.publish(self._weights(), version)
        draw = await (self._lock_step if config.max_lag == 0 else self._behind)(stack, run)
        # Of the run so far, which evaluations belong to.
        start = time.monotonic() - (self.history[-1]["seconds"] if self.history else 0.0)
        if config.evaluate_every and not self.evaluations:
            await self.evaluate()
        while not self.is_over:
            began = time.monotonic()
            batch = await draw()
            await self._learn(batch, began, start)
            run.publish(self._weights(), self.learner.updates)
            step = self.learner.updates
            if config.evaluate_every and (step % config.evaluate_every == 0 or self.is_over):
                await self.evaluate()
            if step % config.save_every == 0:
                self._save_rest()
        self._save_rest()
        # Workers need not wait for another learner.
        run.close(restart=False)

    async def _lock_step(self, stack: contextlib.AsyncExitStack, run: echoic.rl.Run) -> Draw:
        """Return what draws the answers of a step, by an engine that runs the learner's module.

        Each step has an engine of its own: evaluations, which have one too, and the learner need
        the memory of its keys and values, which the next weights change.
        """
        worker = await stack.enter_async_context(echoic.rl.join(run))
        count = self.config.prompts_per_step

        async def draw() -> RolloutBatch:
            actor = self._actor().with_engine(self._model, self.learner.device)
            version = worker.version = self.learner.updates
            steps = workers.LockStep(actor.engine, count * self.config.answers_per_prompt)
            indices = range(version * count, (version + 1) * count)
            groups = [group async for group in worker.groups(indices, key=str)]
            async with actor.engine:
                await self._in_time(actor.fill(group, group.prompt, steps) for group in groups)
            await worker.aflush()
            return run.sample(timeout=60)

        return draw

    async def _behind(self, stack: contextlib.AsyncExitStack, run: echoic.rl.Run) -> Draw:
        """Have groups filled from now on; return what waits for a batch of them."""
        config = self.config
        first = 0 if self._dir is not None else run.version * config.prompts_per_step
        # Plans go to where the engine is.
        actor = replace(self._actor(), first=first, plans=copy.deepcopy(self.learner.plans))
        if config.workers:
            crew = self._start_workers(run, actor)
            stack.callback(crew.stop)
            work = self._watch(crew)
        else:
            worker = await stack.enter_async_context(echoic.rl.join(run, partial=True))
            if config.servers:
                actor = await self._remote(stack, run, actor)
            else:
                actor = actor.with_engine(self._copy(), self.learner.device)
                await stack.enter_async_context(actor.engine)
            work = actor.act(worker)
        working = asyncio.ensure_future(work)
        stack.push_async_callback(workers.cancel, working)
        lease = None if self._dir is None else _LEASE

        async def draw() -> RolloutBatch:
            taking = asyncio.ensure_future(in_thread(lambda: run.sample(lease=lease)))
            try:
                done, _ = await asyncio.wait(
                    {taking, working}, timeout=config.timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if working in done:
                    # With an error, whatever it is.
                    working.result()
                if taking in done:
                    return taking.result()
                raise WaitTimeoutError(
                    f"no batch within {config.timeout:g} s: {'; '.join(run.stats().why)}"
                )
            finally:
                taking.cancel()

        return draw

    def _start_workers(
        self, run: echoic.rl.Run, actor: Actor
    ) -> workers.Processes | workers.RayTasks:
        config = self.config
        cards = torch.cuda.device_count() if self.learner.device.type == "cuda" else 0
        plans = None if actor.plans is None else actor.plans.cpu()
        actor = replace(actor, task=self._recipe, plans=plans)
        model = self._name or copy.deepcopy(self._model).cpu()
        if config.backend == "ray":
            return workers.RayTasks(run.server, (actor, model), config.workers, cuda=cards > 0)
        devices = [f"cuda:{(i + 1) % cards}" if cards else "cpu" for i in range(config.workers)]
        tasks = [(actor, model, device, run.address) for device in devices]
        return workers.Processes(tasks, self._dir)

    async def _watch(self, crew: workers.Processes | workers.RayTasks) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            await asyncio.to_thread(crew.check)
            self.restarts = crew.restarts

    async def _remote(
        self, stack: contextlib.AsyncExitStack, run: echoic.rl.Run, actor: Actor
    ) -> Actor:
        """Return an actor of servers, which load what is published where they can."""
        from echoic.agents.backbones.http import HttpConfig
        from echoic.agents.llm.remote import RemoteEngine
        from echoic.integrations.serving import SglangServer, VllmServer, WeightPusher

        config = self.config
        timeout = config.execution.timeout
        limits = HttpConfig(timeout, attempt_timeout=timeout, max_concurrent=128)
        engine = RemoteEngine(config.servers, limits, version=self.learner.updates)
        await stack.enter_async_context(engine)
        if config.max_lag is None:
            return replace(actor, engine=engine)
        kinds: dict[str, Any] = {"vllm": VllmServer, "sglang": SglangServer}
        targets = []
        for one in config.servers:
            if (kind := kinds.get(one.dialect.name)) is None:
                raise ArgumentError(
                    f"{one!r} can't load weights, so its answers would get older than "
                    f"max_lag={config.max_lag}: expected servers of {' or '.join(kinds)}, or "
                    "max_lag=None"
                )
            targets.append(kind(one.url.removesuffix("/v1"), timeout=config.timeout))
        pusher = stack.enter_context(WeightPusher(run.weights, targets))

        async def load(_tree: Any, version: int) -> None:
            await in_thread(lambda: pusher.wait(version, config.timeout))
            if version > engine.version:
                await engine.update_weights(version)

        return replace(actor, engine=engine, load=load)

    def _weights(self) -> Any:
        """Return what engines load; for servers that is the whole model."""
        config = self.config
        if config.max_lag == 0 or (config.servers and config.max_lag is None):
            return None
        if config.servers:
            return self.learner.weights()
        return workers.learned(self._model, self.learner.plans)

    def _copy(self) -> Any:
        """Return a copy of the model that has its own of what learns, and shares the rest."""
        frozen = [one for one in self._model.parameters() if not one.requires_grad]
        return copy.deepcopy(self._model, {id(one): one for one in frozen})

    def _actor(self) -> Actor:
        config = self.config
        room = config.execution.max_cache_size
        if config.servers:
            room = config.max_length or 1 << 20
        own = getattr(self._model, "max_length", None)
        own = own or getattr(getattr(self._model, "config", None), "max_position_embeddings", None)
        limit = min(int(x) for x in (room, own, config.max_length) if x is not None)
        return Actor(config, self.task, self.tokenizer, limit, self.learner.plans)

    async def _in_time(self, answers: Iterable[Awaitable[Any]]) -> list[Any]:
        """Await all answers; cancel them if they take too long, or one fails."""
        limit = self.config.timeout
        try:
            return await asyncio.wait_for(workers.together(answers), limit)
        except asyncio.TimeoutError as error:
            raise WaitTimeoutError(
                f"prompts of {self.task.name} were not answered in {limit:g} s"
            ) from error

    async def _learn(self, batch: RolloutBatch, began: float, start: float) -> None:
        """Update the policy in a thread, which is waited for if this is cancelled."""
        update = asyncio.ensure_future(asyncio.to_thread(self._update, batch, began, start))
        try:
            await asyncio.shield(update)
        except asyncio.CancelledError:
            await asyncio.wait({update})
            update.result()
            raise

    def _update(self, batch: RolloutBatch, began: float, start: float) -> None:
        answered = time.monotonic()
        before = self.learner.updates
        found: RolloutBatch | TokenBatch = batch
        if self.replay is not None:
            # Groups are drawn among those of earlier batches.
            fresh = TokenBatch.from_rollouts(batch)
            again = self.replay.sample(self.config.replay, before)
            self.replay.add(fresh, before)
            found = fresh if again is None else join([fresh, again])
        metrics = self.learner.update(found)
        # A batch is learned from once, whatever was in it.
        self.learner.updates = before + 1
        if batch.lease_seconds is not None:
            self._leased.append(batch)
        now = time.monotonic()
        sums = {name: int(batch[name].sum()) for name in ("turns", "drawn", "reused", "computed")}
        lags = np.asarray(batch.lag_oldest)
        row: Row = {
            "step": self.learner.updates,
            **metrics,
            "reward": float(batch["reward"].mean()),
            "success": float(batch["success"].mean()),
            "turns": sums["turns"],
            "lag_mean": float(lags.mean()),
            "lag_max": int(lags.max()),
            "tokens_per_second": sums["drawn"] / (now - began),
            "kv_reuse_rate": sums["reused"] / max(1, sums["reused"] + sums["computed"]),
            "answer_seconds": answered - began,
            "learner_seconds": now - answered,
            "seconds": now - start,
            "groups": [int(one) for one in batch.group_ids],
            "rewards": [float(one) for one in batch["reward"]],
            "lengths": [int(one) for one in batch["turns"]],
        }
        self._note("update", row)

    def _save_rest(self) -> None:
        """Write a checkpoint, unless the last one has all updates; then acknowledge batches."""
        if self._saved is None or not self.history:
            return
        if self._saved_at != self.learner.updates:
            self.save()
        leased, self._leased = self._leased, []
        for batch in leased:
            with contextlib.suppress(EchoicError):
                batch.ack()

    def _place(self, path: Place | None) -> Path:
        if path is None and self._saved is None:
            raise ArgumentError("expected a path, or config.dir")
        return Path(path or self._saved or "")

    def _replay_file(self, place: Path) -> Path:
        return place.with_name(f"{place.name}.replay-{self.learner.updates}")

    def _read_history(self, file: Path) -> None:
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            # A kill may leave half a line.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = {n: math.nan if one is None else one for n, one in json.loads(line).items()}
                rows = self.history if row.pop("kind") == "update" else self.evaluations
                if row["step"] <= self.learner.updates:
                    rows.append(row)

    def _show(self, stack: contextlib.AsyncExitStack) -> None:
        """Have measurements written to files, and printed."""
        if self._dir is not None:
            settings: Any = SimpleNamespace(
                results_dir=str(self._dir),
                tensorboard_log=str(self._dir / "tensorboard"),
                log_level="INFO",
            )
            records = Records(settings, goes_on_at=self.learner.updates if self.history else None)
            stack.callback(records.close)
            self.listeners.append(lambda kind, row: records.add(kind, row["step"], _numbers(row)))
        if self.config.progress:
            self.listeners.append(self._print)

    def _print(self, kind: str, row: Row) -> None:
        """Show an update or an evaluation, with the curve of the last rewards."""
        if kind == "evaluation":
            text = f"success {row['success_rate']:.2f}, reward {row['avg_reward']:.2f}"
            text = f"held out, after update {row['step']}: {text}"
        else:
            numbers = ", ".join(f"{n.replace('_', ' ')} {row[n]:.3g}" for n in _SHOWN)
            drawn = curve([one["reward"] for one in self.history])
            text = f"update {row['step']}: {numbers}, {row['seconds']:.0f} s  {drawn}"
        sys.stderr.write(f"{text}\n")

    def _note(self, kind: str, row: Row) -> None:
        (self.history if kind == "update" else self.evaluations).append(row)
        for call in self.listeners:
            call(kind, row)


def _numbers(row: Row) -> dict[str, float]:
    """Return what of a row is kept in files."""
    return {n: one for n, one in row.items() if n != "step" and not isinstance(one, list)}


def curve(values: list[float]) -> str:
    """Draw the last values as blocks, from the lowest to the highest of them.

    >>> curve([0.0, 0.5, 1.0])
    '▁▄█'
    """
    values = values[-_WIDTH:]
    low, high = min(values), max(values)
    return "".join("▁▂▃▄▅▆▇█"[int(7 * (one - low) / ((high - low) or 1))] for one in values)


# Answers that are compared, the learning rate of adapters, and the lists of metrics with what they
# get from each update.
_GROUP, _RATE = 8, 1e-3
# Turns of an episode, about, to translate steps into updates.
_EACH = 4
# Most groups that are kept: TrainingConfig's own number is of steps.
_KEPT = 1024
# TrainingConfig's own limit of an episode, which is of vectors: a task has one of turns.
_TURNS = 1000
_METRICS = {
    "success_rates": "success",
    "policy_losses": "policy_loss",
    "value_losses": "value_loss",
    "kl_divergences": "kl_behaviour",
    "entropy_losses": "entropy",
    "kv_cache_hit_rates": "kv_reuse_rate",
    "tokens_per_second": "tokens_per_second",
    "wall_clock_times": "seconds",
}


class AgentTrainer(LLMTrainer):
    """Trains a language model as :class:`~echoic.agents.training.EchoRLTrainer` is used.

    Episodes side by side are ``num_actors``: groups of 8. Steps are turns of episodes. It learns
    adapters by GRPO in lock-step, with plans and surprise replay unless ``use_plans`` and
    ``replay`` say otherwise; what belongs to networks of vectors, such as ``algorithm``, has no
    effect.

    Args:
        config: Settings; ``backbone`` is the model, and ``env_name`` a task or an environment.
        metrics: Filled as the run goes on.
        resume: Continue from the checkpoint of ``checkpoint_dir``, if there is one; or from this.
    """

    def __init__(
        self, config: TrainingConfig, metrics: TrainingMetrics, *, resume: bool | Place = False
    ) -> None:
        self._settings, self._metrics = config, metrics
        if config.replay == "uniform":
            raise ArgumentError('replay="uniform" is of vectors: expected "surprise" or "none"')
        groups = max(1, config.num_actors // _GROUP)
        # Turns of an update.
        turns = groups * _GROUP * _EACH
        settings = LLMConfig(
            steps=config.total_timesteps,
            prompts_per_step=groups,
            answers_per_prompt=min(_GROUP, max(2, config.num_actors)),
            learner=GRPOConfig(learning_rate=_RATE, lora=LoRAConfig(rank=8, alpha=16.0)),
            plans=config.planning_config if config.use_plans else None,
            plan_state_dim=config.state_dim,
            replay=0 if config.replay == "none" else max(1, config.batch_size // turns),
            replay_config=replace(
                config.replay_config,
                max_experiences=min(config.replay_config.max_experiences, _KEPT),
                min_experiences=min(config.replay_config.min_experiences, _KEPT),
            ),
            dir=config.checkpoint_dir,
            save_every=max(1, config.save_frequency // turns),
            evaluate_every=max(1, config.evaluation_frequency // turns),
            evaluate_prompts=config.evaluation_episodes,
            evaluate_temperature=0.0 if config.evaluation_greedy else 1.0,
            seed=config.seed or 0,
        )
        task = {**config.env_config}
        if config.max_episode_steps < _TURNS:
            task["max_turns"] = config.max_episode_steps
        named, go_on = (config.env_name, task), resume is True
        super().__init__(config.backbone, named, settings, device=config.device, resume=go_on)
        if not isinstance(resume, bool):
            self.resume(resume)

    @property
    def is_over(self) -> bool:
        """Whether all turns were made, or an evaluation was good enough just now."""
        metrics, wanted = self._metrics, self._settings.early_stop_success
        latest, now = metrics.evaluation_results, metrics.total_timesteps
        is_good = latest.get("step") == now and wanted is not None
        is_good = is_good and latest["success_rate"] >= wanted
        return super().is_over or is_good or now >= self._settings.total_timesteps

    async def train(self) -> list[Row]:
        """Train for ``total_timesteps`` turns, or until ``early_stop_success`` is reached."""
        metrics = self._metrics
        at = metrics.total_timesteps if self.history else None
        records = Records(self._settings, goes_on_at=at)

        def write(kind: str, row: Row) -> None:
            records.add(kind, metrics.total_timesteps, _numbers(row))

        self.listeners = [self._measure, write]
        with contextlib.closing(records):
            return await super().train()

    def resume(self, path: Place | None = None) -> int:
        """Continue from a checkpoint; return the turns that it has learned from."""
        super().resume(path)
        # The measurements before it, and no others; of one step, those of the update come first.
        vars(self._metrics).update(vars(type(self._metrics)()))
        for row in sorted(self.history + self.evaluations, key=lambda row: float(row["step"])):
            self._measure("update" if "turns" in row else "evaluation", row)
        return self._metrics.total_timesteps

    def policy(self, *, greedy: bool = False) -> TalkPolicy:
        """Return a copy of the model that acts in episodes."""
        return TalkPolicy(self, greedy=greedy)

    def close(self) -> None:
        """End the run after the current update."""
        self.stop()
        self.task.close()

    def _measure(self, kind: str, row: Row) -> None:
        metrics = self._metrics
        if kind == "evaluation":
            for name, values in metrics.history.items():
                values.append(metrics.total_timesteps if name == "step" else row.get(name))
            return
        for name, key in _METRICS.items():
            getattr(metrics, name).append(row.get(key, math.nan))
        metrics.episode_rewards += row.get("rewards", [])
        metrics.episode_lengths += row.get("lengths", [])
        metrics.total_timesteps += int(row["turns"])
        metrics.total_episodes += self.config.prompts_per_step * self.config.answers_per_prompt
        metrics.training_time = row["seconds"]
        metrics.execution_metrics = {
            "updates": row["step"],
            "steps_per_second": metrics.total_timesteps / max(row["seconds"], 1e-9),
        }


class TalkPolicy:
    """A copy of a trained model as a policy of episodes, with the prompts of training.

    Args:
        trainer: Has the model.
        greedy: Whether it takes the likeliest tokens.
    """

    def __init__(self, trainer: LLMTrainer, *, greedy: bool = False) -> None:
        actor = trainer._actor()
        actor = replace(actor, plans=copy.deepcopy(actor.plans))
        self._actor = actor.with_engine(trainer._copy(), trainer.learner.device)
        self._temperature = 0.0 if greedy else None
        self.engine = self._actor.engine
        #: Ends the engine.
        self.aclose = self.engine.aclose

    def begin(self, instructions: str, seed: int) -> None:
        """Start an episode."""
        self._instructions, self._seed = instructions, seed
        self._talk: Conversation | None = None

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Answer an observation with a command; forget earlier ones where there is no room."""
        commands, talk = info["commands"], self._talk
        text = show(observation["text"], commands)
        if talk is not None:
            talk.say("user", text)
        if talk is None or talk.full:
            talk = self._talk = self._actor.talk(self._seed, temperature=self._temperature)
            talk.say("system", instruct(self._instructions, commands))
            talk.say("user", text)
        answer = await talk.answer()
        turn = talk.turns[-1]
        usage = Usage(len(talk.tokens) - turn.drawn, turn.reused, turn.drawn, requests=1)
        return Decision(read_command(answer.text, commands), answer.text, usage)
