"""Training of a language model: tasks, conversations, an engine, rollouts, a learner, weights.

``max_lag`` decides between two ways of working:

- 0 is lock-step. Each step draws the answers of its prompts, learns from them, and goes on. Engine
  and learner use one module, with LoRA too: no weights are copied, and ratios of fresh answers are
  1 up to rounding. A run repeats itself to the last bit, also when it was killed and resumed:
  answers that were not learned from when it was saved are drawn again.
- With n, engines have weights of their own and answer while the learner learns, at most n versions
  behind. Rollouts survive in ``dir``: a resumed run learns from each once, and goes on with those
  that were begun.

Importing this module imports torch.
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
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

import echoic.rl
from echoic.agents import _checks
from echoic.agents.baselines.prompted import show_commands
from echoic.agents.episodes import Decision, Usage
from echoic.agents.llm.batch import TokenBatch, join
from echoic.agents.llm.config import ExecutionConfig
from echoic.agents.llm.conversation import Conversation
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
from echoic.agents.llm.requests import SamplingParams
from echoic.agents.llm.soft_prefix import PlanPrefix
from echoic.agents.llm.tasks import read_command
from echoic.agents.llm.workers import (
    COLUMNS,
    FIELDS,
    PLANS,
    Actor,
    Answering,
    LockStep,
    Member,
    Processes,
    cancel,
    engine_of,
    load_model,
    socket_of_run,
    task_of,
    together,
    work_on_ray,
)
from echoic.agents.ray_actors import RayActors
from echoic.agents.replay import ReplayConfig
from echoic.agents.training.records import Records
from echoic.errors import ArgumentError, EchoicError, WaitTimeoutError
from echoic.rl.background import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from echoic.agents.llm.engine import AsyncExecutionEngine
    from echoic.agents.llm.replica import Replica
    from echoic.agents.llm.tasks import Task
    from echoic.agents.plans import PlanningConfig
    from echoic.agents.training.config import TrainingConfig
    from echoic.agents.training.records import TrainingMetrics
    from echoic.rollouts import RolloutBatch

    Row = dict[str, Any]
    Resume = bool | str | os.PathLike[str]

__all__ = ["AgentTrainer", "LLMConfig", "LLMTrainer"]

# Seconds between two looks for workers that died, and of the lease of a batch: until the next
# checkpoint has it, however long that takes.
_LOOK, _LEASE = 0.2, 1e6
# Seconds after which a worker that is gone loses its groups to others.
_TTL = 15.0
# In place of an answer's number in the seeds of evaluations.
_HELD_OUT = 1 << 32
_LEARNERS: dict[type[TokenLearnerConfig], type[TokenLearner]] = {
    GRPOConfig: GRPOLearner,
    RLOOConfig: RLOOLearner,
    PPOTokenConfig: PPOTokenLearner,
}


def _execution() -> ExecutionConfig:
    # Weights change more often than prefixes would be cleaned up, and a clock must not decide what
    # is cached.
    return ExecutionConfig(timeout=600.0, cache_cleanup_interval=math.inf)


def _replay() -> ReplayConfig:
    return ReplayConfig(max_experiences=1024, min_experiences=1)


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
        max_restarts: Workers that may be replaced; with Ray, restarts of each.
        worker_imports: Modules that workers import first, to register tasks and environments.
        servers: Servers that answer instead of an engine: vLLM and SGLang load weights.
        listen: Address at which workers join; by default one for this machine.
        dir: Folder of checkpoints, rollouts, ``metrics.jsonl`` and TensorBoard's files.
        save_every: Updates between two checkpoints.
        evaluate_every: Updates between two evaluations, of which the first is before training; 0:
            none.
        evaluate_prompts: Held-out prompts of an evaluation.
        evaluate_temperature: Temperature of its answers; 0 takes the likeliest tokens.
        timeout: Seconds that the learner waits for answers before the run fails.
        max_turns_total: The run ends with the update that makes it this many turns in all.
        progress: Whether a live view is shown.
        plans: Settings of plans: a soft prefix before each answer, of the latest observations. With
            engines only: servers take no embeddings.
        plan_prefix: Embeddings of a plan.
        plan_state_dim: Numbers of an observation's encoding.
        replay: Earlier groups that are learned from again with each batch, drawn by their surprise.
        replay_config: How they are scored and drawn, and how many are kept.
        seed: Seed of the answers.
    """

    steps: int = 100
    prompts_per_step: int = 4
    answers_per_prompt: int = 8
    max_new_tokens: int = 64
    max_length: int | None = None
    stop: tuple[int, ...] = ()
    learner: TokenLearnerConfig = field(default_factory=GRPOConfig)
    execution: ExecutionConfig = field(default_factory=_execution)
    max_lag: int | None = 0
    workers: int = 0
    backend: Literal["processes", "ray"] = "processes"
    max_restarts: int = 20
    worker_imports: tuple[str, ...] = ()
    servers: tuple[Replica, ...] = ()
    listen: str | None = None
    dir: str | os.PathLike[str] | None = None
    save_every: int = 10
    evaluate_every: int = 0
    evaluate_prompts: int = 32
    evaluate_temperature: float = 0.0
    timeout: float = 1800.0
    max_turns_total: int | None = None
    progress: bool = False
    plans: PlanningConfig | None = None
    plan_prefix: int = 4
    plan_state_dim: int = 512
    replay: int = 0
    replay_config: ReplayConfig = field(default_factory=_replay)
    seed: int = 0

    def __post_init__(self) -> None:
        _checks.whole(self, "steps", "prompts_per_step", "max_new_tokens", "save_every")
        _checks.whole(self, "evaluate_prompts")
        _checks.whole(self, "answers_per_prompt", least=2)
        _checks.whole(self, "workers", "evaluate_every", "max_restarts", "seed", least=0)
        given = {name for name, value in vars(self).items() if value is not None}
        _checks.whole(self, *given & {"max_length", "max_turns_total"})
        _checks.whole(self, *given & {"max_lag"}, least=0)
        _checks.number(self, "timeout", above=0)
        _checks.number(self, "evaluate_temperature", least=0)
        _checks.one_of(self, "backend", ("processes", "ray"))
        if type(self.learner) not in _LEARNERS:
            known = " or ".join(f"a {kind.__name__}" for kind in _LEARNERS)
            kind = type(self.learner).__name__
            raise ArgumentError(f"expected {known} as learner, got a {kind}")
        _checks.whole(self, "plan_prefix", "plan_state_dim")
        _checks.whole(self, "replay", least=0)
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

    >>> import asyncio
    >>> from echoic.agents.llm import PromptTask, TinyConfig, TinyTransformer
    >>> model = TinyTransformer(TinyConfig(vocab_size=8, dim=16, hidden=16), device="cpu")
    >>> task = PromptTask([[1, 2]], lambda answer: answer.tokens.count(5))
    >>> config = LLMConfig(steps=2, prompts_per_step=1, answers_per_prompt=4, max_new_tokens=3)
    >>> trainer = LLMTrainer(model, task, config, device="cpu")
    >>> [round(row["ratio_mean"], 3) for row in asyncio.run(trainer.train())]
    [1.0, 1.0]
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
        self.task = task_of(task)
        # For other processes.
        self._recipe = task
        self._dir = None if config.dir is None else Path(config.dir)
        self._saved = None if self._dir is None else self._dir / "learner.ckpt"
        self._name = os.fspath(model) if isinstance(model, str | os.PathLike) else None
        if self._name is not None:
            model, found = load_model(self._name, device)
            tokenizer = found if tokenizer is None else tokenizer
        self.tokenizer = tokenizer
        self._model = model
        plans: PlanPrefix | None = None
        if config.plans is not None:
            sizes = {"state_dim": config.plan_state_dim, "prefix": config.plan_prefix}
            plans = PlanPrefix(model, config.plans, seed=config.seed, **sizes)
        #: The learner; its ``policy`` is the trained model, with adapters if there are any.
        self.learner: TokenLearner = _LEARNERS[type(config.learner)](
            model, config.learner, plans=plans, device=device
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
        #: Workers that were replaced.
        self.restarts = 0
        #: Turns that were learned from.
        self.turns = 0
        self._seconds = 0.0
        self._stopping = False
        #: Functions that get ``"update"`` or ``"evaluation"`` and its row.
        self.listeners: list[Callable[[str, Row], None]] = []
        # Of lock-step, while it runs.
        self._engine: AsyncExecutionEngine | None = None
        # Batches that were learned from, and that no checkpoint has.
        self._leased: list[RolloutBatch] = []
        self._is_begun, self._saved_at = False, -1
        if resume and self._saved is not None and self._saved.exists():
            self.resume()

    @property
    def is_over(self) -> bool:
        """Whether all updates are made."""
        most = self.config.max_turns_total
        is_full = most is not None and self.turns >= most
        return self._stopping or is_full or self.learner.updates >= self.config.steps

    async def train(self) -> list[Row]:
        """Train until ``steps`` updates are made, those before included.

        Cancelling ends the run after the current update; calling it again goes on.

        Returns:
            The ``history``.

        Raises:
            ArgumentError: If a prompt does not fit the model or the engine's cache, a reward is not
                a finite number, or ``dir`` has another run.
            CollectorError: If the engine, the task or a worker failed.
            WaitTimeoutError: If there were no answers within ``timeout`` seconds.
        """
        self._stopping = False
        if self.is_over:
            return self.history
        if self._saved is not None and self._saved.exists() and not self._is_begun:
            raise ArgumentError(
                f"{self._dir} has a run: expected another folder, or resume to go on with it"
            )
        self._is_begun = True
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
            if self.config.max_lag == 0:
                await self._train_in_lock_step(stack)
            else:
                await self._train_behind(stack)
        return self.history

    def stop(self) -> None:
        """End the run after the current update."""
        self._stopping = True

    async def evaluate(self) -> Row:
        """Answer the held-out prompts with the learner's weights; return and keep the results."""
        config, began = self.config, time.monotonic()
        heat = config.evaluate_temperature
        sampling = replace(self._how.sampling, temperature=heat)
        async with contextlib.AsyncExitStack() as stack:
            engine = self._engine
            if engine is None:
                engine, _ = engine_of(self._how, self._model, self.learner.device)
                await stack.enter_async_context(engine)
            actor = Actor(self._how, engine, self.tokenizer)
            found: list[Any] = [None] * config.evaluate_prompts

            async def hold(number: int) -> None:
                prompt = self.task.held_out(number)
                _, found[number] = await actor.hold(prompt, number, _HELD_OUT, sampling=sampling)

            await self._in_time(map(hold, range(config.evaluate_prompts)))
            # So that a run computes the same with evaluations and without.
            await engine.update_weights(_unchanged)
        rewards = [float(one.reward) for one in found]
        successes = [bool(one.success) for one in found]
        row: Row = {
            "step": self.learner.updates,
            "avg_reward": float(np.mean(rewards)),
            "success_rate": float(np.mean(successes)),
            "rewards": rewards,
            "successes": successes,
            "seconds": time.monotonic() - began,
        }
        self.evaluations.append(row)
        self._tell("evaluation", row)
        return row

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the learner's state to a file, by default the one of ``config.dir``; return it."""
        place = self._saved if path is None else Path(path)
        if place is None:
            raise ArgumentError("expected a path, or config.dir")
        replay = self._replay_file(place)
        if self.replay is not None:
            # First: a run that ends between the two goes on from the ones before.
            self.replay.save(replay)
        self.learner.save(place)
        for old in set(place.parent.glob(f"{glob.escape(place.name)}.replay-*")) - {replay}:
            old.unlink()
        return place

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file of :meth:`save`, of the same first model and settings."""
        self.learner.load(path)
        if self.replay is not None:
            self.replay.load(self._replay_file(Path(path)))

    def export(self, folder: str | os.PathLike[str]) -> None:
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

    # Lock-step.

    async def _train_in_lock_step(self, stack: contextlib.AsyncExitStack) -> None:
        engine, _ = engine_of(self._how, self._model, self.learner.device)
        self._engine = await stack.enter_async_context(engine)
        stack.callback(setattr, self, "_engine", None)
        run = stack.enter_context(self._run(max_lag=0, order="submission"))
        worker = await stack.enter_async_context(echoic.rl.join(run))
        stack.callback(self._save_rest)
        actor = Actor(self._how, engine, self.tokenizer)
        version = self.learner.updates
        run.restore(version)
        run.publish(version=version)
        count = self.config.prompts_per_step
        if self.config.evaluate_every and not self.evaluations:
            await self.evaluate()
        while not self.is_over:
            began, version = time.monotonic(), self.learner.updates
            seats = count * self.config.answers_per_prompt
            seats = min(seats, getattr(self.task, "parallel", seats))
            steps = LockStep(engine, version, seats)
            worker.version = version
            indices = range(version * count, (version + 1) * count)
            groups = [group async for group in worker.groups(indices, key=str)]
            await self._in_time(actor.fill(group, group.prompt, steps) for group in groups)
            await worker.aflush()
            batch = run.sample(timeout=60)
            await self._learn(batch, began)
            run.publish(version=self.learner.updates)
            await engine.update_weights(_unchanged)
            await self._between()

    # With a lag.

    async def _train_behind(self, stack: contextlib.AsyncExitStack) -> None:
        config, version = self.config, self.learner.updates
        rollouts = None if self._dir is None else self._dir / "rollouts"
        listen: Any = config.listen
        if config.workers and listen is None and config.backend == "processes":
            listen, folder = socket_of_run()
            stack.enter_context(folder)
        settings = {"on_expiry": "suspend", "reservation_ttl": _TTL}
        run = stack.enter_context(
            self._run(max_lag=config.max_lag, listen=listen, dir=rollouts, **settings)
        )
        stack.callback(self._save_rest)
        run.restore(version)
        run.publish(self._weights(), version)
        first = 0 if rollouts is not None else version * config.prompts_per_step
        how = replace(self._how, first=first)
        if how.plans is not None:
            # It goes to where the engine is.
            how = replace(how, plans=copy.deepcopy(how.plans).cpu())
        acting: asyncio.Future[None] | None = None
        check: Callable[[], None] | None = None
        if config.workers:
            check = self._start_workers(stack, run, how)
        else:
            worker = await stack.enter_async_context(echoic.rl.join(run, partial=True))
            if config.servers:
                actor = await self._remote_actor(stack, run, how)
            else:
                engine, load = engine_of(how, self._copy(), self.learner.device)
                await stack.enter_async_context(engine)
                actor = Actor(how, engine, self.tokenizer, load)
            await actor.refresh(worker)
            acting = asyncio.ensure_future(actor.act(worker, config.prompts_per_step * 64))
            stack.push_async_callback(cancel, [acting])
        if self.config.evaluate_every and not self.evaluations:
            await self.evaluate()
        while not self.is_over:
            began = time.monotonic()
            batch = await self._take(run, acting, check)
            await self._learn(batch, began)
            run.publish(self._weights(), self.learner.updates)
            await self._between()
        self._save_rest()
        # Workers need not wait for another learner.
        run.close(restart=False)

    async def _take(
        self,
        run: echoic.rl.Run,
        acting: asyncio.Future[None] | None,
        check: Callable[[], None] | None,
    ) -> RolloutBatch:
        """Wait for a batch; raise the error of what should make it."""
        lease = None if self._dir is None else _LEASE
        taking = asyncio.ensure_future(in_thread(lambda: run.sample(lease=lease), _return))
        began = time.monotonic()
        try:
            while True:
                waiting = {taking, *({acting} if acting else ())}
                done, _ = await asyncio.wait(
                    waiting, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED
                )
                if acting in done and acting is not None:
                    acting.result()
                if taking in done:
                    return taking.result()
                if check is not None:
                    await asyncio.to_thread(check)
                if time.monotonic() - began > self.config.timeout:
                    raise WaitTimeoutError(
                        f"no batch within {self.config.timeout:g} s: {'; '.join(run.stats().why)}"
                    )
        finally:
            taking.cancel()

    def _start_workers(
        self, stack: contextlib.AsyncExitStack, run: echoic.rl.Run, how: Answering
    ) -> Callable[[], None]:
        config, device = self.config, self.learner.device
        cards = torch.cuda.device_count() if device.type == "cuda" else 0
        share = max(1, (os.cpu_count() or 1) // config.workers)
        member = Member(
            replace(how, task=self._recipe),
            self._name or copy.deepcopy(self._model).cpu(),
            # A name brings its own.
            None if self._name else self.tokenizer,
            config.learner.lora,
            "cpu",
            None if cards else share,
            math.ceil(2 * config.prompts_per_step / config.workers),
            None if config.backend == "ray" else run.address,
            imports=config.worker_imports,
        )
        members = [
            replace(member, device=f"cuda:{(i + 1) % cards}" if cards else "cpu")
            for i in range(config.workers)
        ]
        workers: Processes | RayActors = (
            RayActors(run.server, work_on_ray, members, config.max_restarts)
            if config.backend == "ray"
            else Processes(members, config.max_restarts, self._dir)
        )
        stack.callback(workers.close)

        def check() -> None:
            workers.check()
            self.restarts = workers.restarts

        return check

    async def _remote_actor(
        self, stack: contextlib.AsyncExitStack, run: echoic.rl.Run, how: Answering
    ) -> Actor:
        """Make an actor of servers, which load what is published where they can."""
        from echoic.agents.llm.remote import RemoteConfig, RemoteEngine
        from echoic.integrations.serving import SglangServer, VllmServer, WeightPusher

        config = self.config
        limits = RemoteConfig(timeout=config.execution.timeout, stall=config.execution.timeout)
        engine = RemoteEngine(config.servers, limits, version=self.learner.updates)
        await stack.enter_async_context(engine)
        if config.max_lag is None:
            return Actor(how, engine, self.tokenizer)
        kinds: dict[str, Any] = {"vllm": VllmServer, "sglang": SglangServer}
        for one in config.servers:
            if one.dialect.name not in kinds:
                raise ArgumentError(
                    f"{one!r} can't load weights, so its answers would get older than "
                    f"max_lag={config.max_lag}: expected servers of {' or '.join(kinds)}, or "
                    "max_lag=None"
                )
        targets = [
            kinds[one.dialect.name](one.url.removesuffix("/v1"), timeout=config.timeout)
            for one in config.servers
        ]
        pusher = stack.enter_context(WeightPusher(run.weights, targets))

        async def load(_tree: Any, version: int) -> None:
            await in_thread(lambda: pusher.wait(version, config.timeout))
            if version > engine.version:
                await engine.update_weights(version)

        return Actor(how, engine, self.tokenizer, load)

    def _weights(self) -> Any:
        """Return what is published: the parameters that learn, or for servers the whole model."""
        if self.config.servers:
            if self.config.max_lag is None:
                return None
            return self.learner.weights()
        weights = {n: one.data for n, one in self._model.named_parameters() if one.requires_grad}
        if self.learner.plans is not None:
            own = self.learner.plans.named_parameters()
            weights |= {f"{PLANS}{name}": one.data for name, one in own}
        return weights

    def _copy(self) -> Any:
        """Return a copy of the model that has its own of what learns, and shares the rest."""
        frozen = [one for one in self._model.parameters() if not one.requires_grad]
        return copy.deepcopy(self._model, {id(one): one for one in frozen})

    # Both.

    @property
    def _how(self) -> Answering:
        config = self.config
        room = [config.execution.max_cache_size]
        if config.servers:
            room = [config.max_length or 1 << 20]
        own = getattr(self._model, "max_length", None)
        own = own or getattr(getattr(self._model, "config", None), "max_position_embeddings", None)
        limit = min(x for x in (*room, own, config.max_length) if x is not None)
        sampling = SamplingParams(
            config.max_new_tokens, temperature=config.learner.temperature, stop=config.stop
        )
        how = Answering(self.task, sampling, int(limit), config.seed, config.execution)
        return replace(how, plans=self.learner.plans)

    def _run(self, **how: Any) -> echoic.rl.Run:
        config = self.config
        return echoic.rl.Run(
            COLUMNS,
            FIELDS,
            group=config.answers_per_prompt,
            batch=config.prompts_per_step,
            seed=config.seed,
            **how,
        )

    async def _in_time(self, answers: Iterable[Awaitable[Any]]) -> None:
        """Await all answers; cancel them if they take too long, or one fails."""
        limit = self.config.timeout
        try:
            await asyncio.wait_for(together(answers), limit)
        except asyncio.TimeoutError as error:
            raise WaitTimeoutError(
                f"prompts of {self.task.name} were not answered in {limit:g} s"
            ) from error

    async def _learn(self, batch: RolloutBatch, began: float) -> None:
        """Update the policy in a thread, which is waited for if this is cancelled."""
        update = asyncio.ensure_future(asyncio.to_thread(self._update, batch, began))
        try:
            await asyncio.shield(update)
        except asyncio.CancelledError:
            await asyncio.wait({update})
            update.result()
            raise

    def _update(self, batch: RolloutBatch, began: float) -> None:
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
        self._seconds += now - began
        sums = {name: int(batch[name].sum()) for name in ("turns", "drawn", "reused", "computed")}
        self.turns += sums["turns"]
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
            "seconds": self._seconds,
            "groups": [int(one) for one in batch.group_ids],
            "rewards": [float(one) for one in batch["reward"]],
            "lengths": [int(one) for one in batch["turns"]],
        }
        self.history.append(row)
        self._tell("update", row)

    async def _between(self) -> None:
        """Evaluate and save when it is time."""
        config, step = self.config, self.learner.updates
        if config.evaluate_every and (step % config.evaluate_every == 0 or self.is_over):
            began = time.monotonic()
            await self.evaluate()
            self._seconds += time.monotonic() - began
        if step % config.save_every == 0:
            self._save_rest()

    def _save_rest(self) -> None:
        """Write a checkpoint, unless the last one has all updates; then acknowledge batches."""
        if self._saved is None or not self.history:
            return
        if self._saved_at != self.learner.updates:
            self.save()
            self._saved_at = self.learner.updates
        leased, self._leased = self._leased, []
        for batch in leased:
            with contextlib.suppress(EchoicError):
                batch.ack()

    def _replay_file(self, place: Path) -> Path:
        return place.with_name(f"{place.name}.replay-{self.learner.updates}")

    def resume(self) -> None:
        """Load the checkpoint in ``config.dir``, and the history up to it.

        Raises:
            FileNotFoundError: If there is none.
            CheckpointError: If it is damaged, or of another model or other settings.
        """
        if self._dir is None or self._saved is None:
            raise ArgumentError("there is nothing to resume without config.dir")
        self.load(self._saved)
        step = self._saved_at = self.learner.updates
        self._is_begun = True
        self.history, self.evaluations = [], []
        lines = self._dir / "metrics.jsonl"
        if lines.exists():
            for line in lines.read_text(encoding="utf-8").splitlines():
                # A kill may leave half a line.
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    row = json.loads(line)
                    rows = self.history if row.pop("kind") == "update" else self.evaluations
                    if row["step"] <= step:
                        rows.append({n: math.nan if one is None else one for n, one in row.items()})
        if self.history:
            self._seconds = self.history[-1]["seconds"]
            self.turns = int(sum(row["turns"] for row in self.history))

    def _show(self, stack: contextlib.AsyncExitStack) -> None:
        """Open the files of measurements, and the live view."""
        if self._dir is not None:
            settings: Any = SimpleNamespace(
                results_dir=str(self._dir),
                tensorboard_log=str(self._dir / "tensorboard"),
                log_level="INFO",
                progress=False,
                wandb_project=None,
            )
            at = self.learner.updates
            records = Records(settings, goes_on_at=at if self.history else None)
            stack.callback(records.close)

            def write(kind: str, row: Row) -> None:
                numbers = {n: one for n, one in row.items() if not isinstance(one, list)}
                records.add(kind, numbers.pop("step"), numbers)

            self.listeners.append(write)
        if self.config.progress:
            from echoic.agents.llm.view import View

            name = f"{self._name or type(self._model).__name__}, {self.task.name}"
            view = stack.enter_context(View(name, self.config.steps, self.history))
            self.listeners.append(view.show)

    def _tell(self, kind: str, row: Row) -> None:
        for call in self.listeners:
            call(kind, row)


# Answers that are compared, the learning rate of adapters, and the lists of metrics with what they
# get from each update.
_GROUP, _RATE = 8, 1e-3
# Turns of an episode, about, to translate steps into updates.
_EACH = 4
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


class AgentTrainer:
    """Trains a language model as :class:`~echoic.agents.training.EchoRLTrainer` is used.

    Episodes side by side are ``num_actors``: groups of 8. Steps are turns of episodes. It learns
    adapters by GRPO, with plans and surprise replay unless ``use_plans`` and ``replay`` say
    otherwise; what belongs to networks of vectors, such as ``algorithm``, has no effect.

    Args:
        config: Settings; ``backbone`` is the model, and ``env_name`` a task or an environment.
        metrics: Filled as the run goes on.
        resume: Continue from the checkpoint of ``checkpoint_dir``, if there is one; or from this.
    """

    def __init__(
        self, config: TrainingConfig, metrics: TrainingMetrics, *, resume: Resume = False
    ) -> None:
        self._config, self._metrics = config, metrics
        if config.replay == "uniform":
            raise ArgumentError('replay="uniform" is of vectors: expected "surprise" or "none"')
        groups = max(1, config.num_actors // _GROUP)
        turns = groups * _GROUP
        behind = config.backend != "threads"
        settings = LLMConfig(
            steps=max(1, config.total_timesteps),
            prompts_per_step=groups,
            answers_per_prompt=min(_GROUP, max(2, config.num_actors)),
            learner=GRPOConfig(learning_rate=_RATE, lora=LoRAConfig(rank=8, alpha=16.0)),
            plans=config.planning_config if config.use_plans else None,
            plan_state_dim=config.state_dim,
            replay=0 if config.replay == "none" else max(1, config.batch_size // (turns * _EACH)),
            replay_config=config.replay_config,
            max_lag=int(config.is_asynchronous or behind),
            workers=config.num_workers if behind else 0,
            backend="ray" if config.backend == "ray" else "processes",
            max_restarts=config.max_restarts,
            worker_imports=config.worker_imports,
            dir=config.checkpoint_dir,
            save_every=max(1, config.save_frequency // (turns * _EACH)),
            evaluate_every=max(1, config.evaluation_frequency // (turns * _EACH)),
            evaluate_prompts=config.evaluation_episodes,
            evaluate_temperature=0.0 if config.evaluation_greedy else 1.0,
            max_turns_total=config.total_timesteps,
            progress=config.progress,
            seed=config.seed or 0,
        )
        task = {**config.env_config}
        if config.max_episode_steps < _TURNS:
            task["max_turns"] = config.max_episode_steps
        self.trainer = LLMTrainer(
            config.backbone,
            (config.env_name, task),
            settings,
            device=config.device,
            resume=resume is True,
        )
        if not isinstance(resume, bool):
            self.trainer.load(resume)
        self._fill()

    async def train(self) -> None:
        """Train for ``total_timesteps`` turns, or until ``early_stop_success`` is reached."""
        config, at = self._config, self._metrics.total_timesteps
        records = Records(config, goes_on_at=at if self.trainer.history else None)

        def write(kind: str, row: Row) -> None:
            numbers = {n: one for n, one in row.items() if not isinstance(one, list)}
            records.add(kind, self._metrics.total_timesteps, numbers)

        self.trainer.listeners = [self._note, write]
        try:
            await self.trainer.train()
        finally:
            records.close()

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a checkpoint, by default the one of ``checkpoint_dir``; return its place."""
        return self.trainer.save(path)

    def resume(self, path: str | os.PathLike[str] | None = None) -> int:
        """Continue from a checkpoint; return the turns that it has learned from."""
        if path is None:
            self.trainer.resume()
        else:
            self.trainer.load(path)
        self._fill()
        return self._metrics.total_timesteps

    def policy(self, *, greedy: bool = False) -> TalkPolicy:
        """Return a copy of the model that acts in episodes."""
        return TalkPolicy(self.trainer, greedy=greedy)

    def close(self) -> None:
        """End the run after the current update."""
        self.trainer.stop()
        self.trainer.task.close()

    def _fill(self) -> None:
        """Take over what was measured before."""
        rows = [(row["step"], "update", row) for row in self.trainer.history]
        rows += [(row["step"] + 0.5, "evaluation", row) for row in self.trainer.evaluations]
        for _, kind, row in sorted(rows, key=lambda one: one[0]):
            self._note(kind, row)

    def _note(self, kind: str, row: Row) -> None:
        metrics = self._metrics
        if kind == "evaluation":
            found = {**row, "step": metrics.total_timesteps}
            for name, values in metrics.history.items():
                values.append(found.get(name))
            most = self._config.early_stop_success
            if most is not None and row["success_rate"] >= most:
                self.trainer.stop()
            return
        for name, key in _METRICS.items():
            getattr(metrics, name).append(row.get(key, math.nan))
        metrics.episode_rewards += row.get("rewards", [])
        metrics.episode_lengths += row.get("lengths", [])
        metrics.total_timesteps += int(row["turns"])
        settings = self.trainer.config
        metrics.total_episodes += settings.prompts_per_step * settings.answers_per_prompt
        metrics.training_time = row["seconds"]
        metrics.execution_metrics = {
            "updates": row["step"],
            "version": row["step"],
            "lag_mean": row["lag_mean"],
            "restarts": self.trainer.restarts,
            "steps_per_second": metrics.total_timesteps / max(row["seconds"], 1e-9),
        }


class TalkPolicy:
    """A copy of a trained model as a policy of episodes, with the prompts of training.

    Args:
        trainer: Has the model.
        greedy: Whether it takes the likeliest tokens.
    """

    def __init__(self, trainer: LLMTrainer, *, greedy: bool = False) -> None:
        how = trainer._how
        self._limit, self._tokenizer = how.limit, trainer.tokenizer
        self._sampling = replace(how.sampling, temperature=0.0) if greedy else how.sampling
        how = replace(how, plans=copy.deepcopy(how.plans))
        self._plans, self._greedy = how.plans, greedy
        self.engine, _ = engine_of(how, trainer._copy(), trainer.learner.device)

    def begin(self, instructions: str, seed: int) -> None:
        """Start an episode."""
        self._instructions, self._seed = instructions, seed
        self._talk: Conversation | None = None

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Answer an observation with a command; forget earlier ones where there is no room."""
        commands = info["commands"]
        shown = show_commands(commands) if commands else ""
        text = f"{observation['text']}\n\n{shown}".strip()
        talk = self._talk
        if talk is not None:
            talk.say("user", text)
        if talk is None or talk.full:
            plans, seed = self._plans, self._seed
            talk = self._talk = Conversation(
                self.engine,
                self._tokenizer,
                self._sampling,
                seed=seed,
                limit=self._limit,
                plans=None if plans is None else plans.begin(seed, greedy=self._greedy),
            )
            how = "\nAnswer with one of the commands." if commands else ""
            talk.say("system", f"{self._instructions}{how}".strip())
            talk.say("user", text)
        answer = await talk.answer()
        turn = talk.turns[-1]
        usage = Usage(len(talk.tokens) - turn.drawn, turn.reused, turn.drawn, requests=1)
        return Decision(read_command(answer.text, commands), answer.text, usage)

    async def aclose(self) -> None:
        """End the engine."""
        await self.engine.aclose()


def _return(batch: RolloutBatch) -> None:
    """Return a batch that came when it was not waited for any more."""
    with contextlib.suppress(EchoicError):
        if not batch.is_over:
            batch.nack()


def _unchanged(_module: Any) -> None:
    """Load no weights: the engine runs the module that was trained."""
