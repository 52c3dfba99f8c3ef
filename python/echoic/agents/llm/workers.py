"""Answer the prompts of a run: in this process, in worker processes, or in actors of Ray.

An :class:`Actor` holds the conversations of groups and writes them to an :mod:`echoic.rl` run. In
lock-step it fills the groups of one update, and then the learner learns. Otherwise it takes groups
as the run admits them, and loads weights as they are published.

Workers are supervised. One that is killed is replaced, and the groups that it had reserved are
filled by others: a group keeps its number, which is that of its prompt. One whose program fails
ends the run, since another would fail at the same prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import math
import os
import secrets
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

import echoic.rl
from echoic.agents.llm.conversation import Conversation
from echoic.agents.llm.engine import AsyncExecutionEngine
from echoic.agents.llm.lora import add_lora
from echoic.agents.llm.requests import SamplingParams
from echoic.agents.llm.tasks import Outcome, Task, make_task
from echoic.errors import ArgumentError, ClosedError, CollectorError, DisconnectedError, EchoicError
from echoic.rl.background import in_thread
from echoic.workers import Supervisor, Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from pathlib import Path

    from echoic import Server
    from echoic.agents.llm.requests import RolloutEngine, RolloutResult
    from echoic.agents.llm.soft_prefix import PlanPrefix
    from echoic.agents.llm.trainer import LLMConfig
    from echoic.rl import Group, Item
    from echoic.rl import Worker as Joined

__all__ = ["COLUMNS", "FIELDS", "Actor", "LockStep", "Processes", "RayTasks", "load_model", "work"]

COLUMNS = {"tokens": "int32", "logprobs": "float32", "mask": "uint8", "rewards": "float32"}
FIELDS = {
    **dict.fromkeys(("reward", "success"), "float32"),
    **dict.fromkeys(("turns", "drawn", "reused", "computed"), "int32"),
}
# Seconds between two looks for new weights.
_LOOK = 0.02
# Seconds that a worker may need for its imports and its model on a busy machine, and how many
# workers may be replaced; with Ray, how often each.
_JOIN, _RESTARTS = 300.0, 20


def load_model(name: str, device: Any = "auto") -> tuple[Any, Any]:
    """Load a language model and its tokenizer, by a name or folder as of :class:`LLMTrainer`.

    Raises:
        ArgumentError: If there is no such model here.
    """
    from echoic.agents.devices import resolve

    if name.startswith("local:"):
        from echoic.agents.backbones import smollm2

        smollm2.check_name(name)
        return smollm2.load(device)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(name)
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"{name!r} can't be loaded; expected local:SmolLM2-135M, a folder with a language "
            f"model, or a name that transformers can load: {error}"
        ) from error
    return model.to(resolve(device)).eval(), tokenizer


def task_of(given: Any) -> Task:
    """Return a task, or make the one of a name, or of a name and a dict of settings."""
    if isinstance(given, str):
        given = (given, {})
    if isinstance(given, tuple):
        name, settings = given
        return make_task(name, **settings)
    if not isinstance(given, Task):
        raise ArgumentError(f"expected a Task or its name, got a {type(given).__name__}")
    return given


async def together(coroutines: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await all; if one fails, cancel the others and raise its error."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(*tasks)


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait for them."""
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class LockStep:
    """Passes turns to an engine when all conversations wait for one, in the order of their places.

    What a forward pass computes differs in its last bits with what else is in it. So that a run
    repeats itself to the last bit, no turn starts at a time that a thread or a clock decides.

    Args:
        engine: The engine.
        conversations: How many there are.
    """

    def __init__(self, engine: RolloutEngine[Any], conversations: int) -> None:
        self._engine, self._left = engine, conversations
        self._waiting: dict[tuple[int, ...], asyncio.Future[None]] = {}

    @contextlib.contextmanager
    def seat(self, *place: int) -> Iterator[Any]:
        """Yield what a conversation uses as its engine."""
        try:
            yield SimpleNamespace(generate=partial(self._generate, place))
        finally:
            self._left -= 1
            self._go()

    async def _generate(
        self, place: tuple[int, ...], prompt: Any, sampling: Any, **options: Any
    ) -> RolloutResult:
        turn = self._waiting[place] = asyncio.get_running_loop().create_future()
        # Later: awaiting a turn that is there already would overtake all others.
        asyncio.get_running_loop().call_soon(self._go)
        try:
            await turn
        finally:
            self._waiting.pop(place, None)
        return await self._engine.generate(prompt, sampling, **options)

    def _go(self) -> None:
        if len(self._waiting) >= self._left:
            waiting, self._waiting = self._waiting, {}
            for _, turn in sorted(waiting.items()):
                if not turn.done():
                    turn.set_result(None)


@dataclass(frozen=True)
class Actor:
    """Holds conversations about prompts, wherever that is.

    Attributes:
        config: Settings of the run.
        task: The task; for another process, what :func:`task_of` takes.
        tokenizer: The model's.
        limit: Most tokens of a conversation.
        plans: Makes soft prefixes of what was observed.
        first: Number of the prompt of group 0.
        engine: Draws the answers.
        load: Gets a published tree and its version, and has the engine load them.
    """

    config: LLMConfig
    task: Any
    tokenizer: Any
    limit: int
    plans: PlanPrefix | None = None
    first: int = 0
    engine: Any = None
    load: Callable[[Any, int], Awaitable[Any]] | None = None

    def with_engine(self, model: Any, device: Any) -> Actor:
        """Return an actor with an engine of a model."""
        engine = AsyncExecutionEngine(self.config.execution, model, device)
        if self.plans is not None:
            self.plans.to(device)

        async def load(tree: Any, version: int) -> None:
            await engine.update_weights(lambda module: copy_into(module, tree["model"]), version)
            if self.plans is not None:
                copy_into(self.plans, tree["plans"])

        return replace(self, engine=engine, load=load)

    def talk(self, seed: int, engine: Any = None, temperature: float | None = None) -> Conversation:
        """Begin a conversation, by default as those that are learned from."""
        config, plans = self.config, None
        if temperature is None:
            temperature = config.learner.temperature
        sampling = SamplingParams(config.max_new_tokens, temperature=temperature, stop=config.stop)
        if self.plans is not None:
            plans = self.plans.begin(seed >> 1, greedy=temperature == 0)
        engine, limit = engine or self.engine, self.limit
        return Conversation(engine, self.tokenizer, sampling, seed=seed, limit=limit, plans=plans)

    async def hold(
        self, prompt: Any, index: int, copy: int, **how: Any
    ) -> tuple[Conversation, Outcome]:
        """Hold one conversation, as of :meth:`talk`; return it and its outcome.

        Raises:
            CollectorError: If the engine or the task failed.
            ArgumentError: If the prompt is too long, or a reward is not a finite number.
        """
        seed = np.random.SeedSequence([self.config.seed, index, copy]).generate_state(1, np.uint64)
        talk, where = self.talk(int(seed[0]), **how), f"prompt {index} of {self.task.name}"
        try:
            outcome: Outcome = await self.task.run(prompt, talk)
        except (ArgumentError, CollectorError) as error:
            raise type(error)(f"{where}: {error}") from error
        except EchoicError:
            raise
        except Exception as error:  # of the user's functions
            raise CollectorError(f"{where} failed: {error!r}") from error
        if not talk.turns or not math.isfinite(outcome.reward):
            raise ArgumentError(
                f"{where}: expected an answer with a finite reward, got {len(talk.turns)} answers "
                f"and a reward of {outcome.reward}"
            )
        return talk, outcome

    async def fill(self, group: Group, index: int, steps: LockStep | None = None) -> None:
        """Hold the conversations of a group about prompt ``index``."""
        async with group:
            items = list(group)
            if any(len(item.columns.get("tokens", ())) for item in items):
                # Its worker died between the tokens and the end of an item.
                group.fail()
                return
            prompt = self.task.prompt(index)
            await together(self._item(prompt, index, item, steps) for item in items)

    async def _item(self, prompt: Any, index: int, item: Item, steps: LockStep | None) -> None:
        place = (index, item.index)
        with contextlib.nullcontext() if steps is None else steps.seat(*place) as engine:
            talk, outcome = await self.hold(prompt, *place, engine=engine)
        columns: dict[str, Any] = talk.columns()
        blobs = None if talk.plans is None else {"plans": talk.plans.rows()}
        item.write(version=None if steps else talk.versions, blobs=blobs, **columns)
        item.done(
            reward=outcome.reward,
            success=float(outcome.success),
            turns=len(talk.turns),
            drawn=int(columns["mask"].sum()),
            reused=talk.reused_tokens,
            computed=talk.computed_tokens,
        )

    async def act(self, worker: Joined) -> None:
        """Fill as many groups as may be ahead, and load weights, until the run is closed."""
        config = self.config
        ahead = config.prompts_per_step * (1 + (1 if config.max_lag is None else config.max_lag))
        most = math.ceil(ahead / max(1, config.workers))
        groups, taking = aiter(worker.groups(itertools.repeat(None))), asyncio.Lock()

        async def follow() -> None:
            while True:
                await self._refresh(worker)
                await asyncio.sleep(_LOOK)

        async def fill() -> None:
            while True:
                async with taking:
                    group = await anext(groups)
                await self.fill(group, self.first + int(group.handle.split(".")[0]))

        await self._refresh(worker)
        await together([follow(), *(fill() for _ in range(most))])

    async def _refresh(self, worker: Joined) -> None:
        """Load weights that are newer than those loaded before."""
        found = worker.weights.latest()
        if found is not None:
            if found.version > worker.version and self.load is not None:
                await self.load(found.tree, found.version)
            worker.version = found.version


def learned(model: Any, plans: PlanPrefix | None) -> dict[str, Any]:
    """Return what actors load: the parameters that learn."""
    own = {name: one.data for name, one in model.named_parameters() if one.requires_grad}
    if plans is None:
        return {"model": own}
    return {"model": own, "plans": {name: one.data for name, one in plans.named_parameters()}}


def copy_into(module: Any, weights: dict[str, Any]) -> None:
    """Write published arrays to the parameters of these names."""
    own = dict(module.named_parameters())
    echoic.rl.modules.load_tree({name: own[name].data for name in weights}, weights)


def work(
    _connection: object, actor: Actor, model: Any, device: str, address: str, token: Any = None
) -> None:
    """Join a run as a worker, and answer prompts until it is over.

    ``model`` is a name for :func:`load_model`, or the module itself.
    """
    for module in actor.config.worker_imports:
        importlib.import_module(module)
    with contextlib.suppress(ClosedError, DisconnectedError):
        asyncio.run(_work(actor, model, device, echoic.rl.join(address, token=token, partial=True)))


async def _work(actor: Actor, model: Any, device: str, joined: Joined) -> None:
    if isinstance(model, str):
        model, _ = load_model(model, device)
        if actor.config.learner.lora is not None:
            add_lora(model, actor.config.learner.lora)
    actor = replace(actor, task=task_of(actor.task)).with_engine(model, device)
    async with actor.engine, joined as worker:
        await in_thread(lambda: worker.weights.wait(timeout=_JOIN))
        await actor.act(worker)


class Processes(Supervisor[Worker]):
    """Workers in processes of this machine; with a folder, their output goes to files there.

    Each of ``tasks`` has the arguments of :func:`work` for one of them.
    """

    def __init__(self, tasks: list[Any], folder: Path | None) -> None:
        threads = max(1, (os.cpu_count() or 1) // len(tasks))

        def start(i: int, _restarts: int) -> Worker:
            name, env = f"worker-{i}", {"OMP_NUM_THREADS": str(threads)}
            log = None if folder is None else folder / f"{name}.log"
            return Worker(work, *tasks[i], name=name, env=env, log=log)

        super().__init__(start, len(tasks), _RESTARTS)
        try:
            self.start()
        except OSError:
            raise
        except Exception as error:  # of what can't be sent to a process
            raise ArgumentError(
                "a worker process makes the task by its name, or imports it and its functions, "
                f"which must be at the top of a module: {error}"
            ) from error

    def check(self) -> dict[int, str]:
        """Replace workers that died.

        Raises:
            CollectorError: If a worker's program failed, or too many were replaced before.
        """
        for one in self.members:
            if not one.alive and (text := one.traceback) is not None:
                raise CollectorError(f"{one.name} failed:\n{text}")
        return super().check()


class RayTasks:
    """Workers on the nodes of Ray, which starts each again if it dies.

    They reach the server by shared memory on this machine, and by TCP from the others. If no Ray
    is running here, one is started, and shut down by :meth:`stop`.
    """

    #: Ray counts its own.
    restarts = 0

    def __init__(self, server: Server, task: tuple[Actor, Any], count: int, *, cuda: bool) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ArgumentError('backend="ray" needs Ray: pip install "echoic[ray]"') from error
        self._ray, self._started = ray, not ray.is_initialized()
        self._running: list[Any] = []
        if self._started:
            ray.init(include_dashboard=False, log_to_driver=False)
        try:
            from echoic.integrations.ray.addresses import open_transports

            name, token = f"agents-{secrets.token_hex(8)}", secrets.token_hex(16)
            addresses = open_transports(server, name, token=token, threads=None, before=None)
            # Ray shows a worker the GPUs that it asks for; where they are few, several share one.
            gpus = ray.cluster_resources().get("GPU", 0) if cuda else 0
            how: dict[str, Any] = {"max_retries": _RESTARTS, "scheduling_strategy": "SPREAD"}
            how["num_gpus"] = 1 / math.ceil(count / gpus) if gpus else 0
            remote = ray.remote(num_cpus=1, **how)(_work_on_ray)
            given = (addresses, token, *task, "cuda" if gpus else "cpu")
            self._running += [remote.remote(*given) for _ in range(count)]
        except BaseException:
            self.stop()
            raise

    def check(self) -> None:
        """Raise the error of a worker that ended, as a ``CollectorError``."""
        ended, _ = self._ray.wait(self._running, num_returns=1, timeout=0)
        if ended:
            try:
                self._ray.get(ended)
            except self._ray.exceptions.RayError as error:
                raise CollectorError(f"a worker of Ray failed: {error}") from error
            raise CollectorError("a worker of Ray ended by itself")

    def stop(self) -> None:
        """End all workers."""
        for one in self._running:
            self._ray.cancel(one, force=True)
        if self._started:
            self._ray.shutdown()


def _work_on_ray(addresses: Any, token: str, actor: Actor, model: Any, device: str) -> None:
    from echoic.integrations.ray.addresses import nearest

    work(None, actor, model, device, nearest(addresses, token), token)
