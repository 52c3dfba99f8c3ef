"""Answer the prompts of a run: in this process, in worker processes, or in actors of Ray.

An :class:`Actor` holds the conversations of groups and writes them to an :mod:`echoic.rl` run. In
lock-step it fills the groups of one update, and then the learner learns. Otherwise it takes groups
as the run admits them, and loads weights as they are published.

Workers are supervised. One that is killed is replaced, and the groups that it had reserved are
filled by others: a group keeps its number, which is that of its prompt. One whose program fails
ends the run, since another would fail at the same prompt.

Importing this module imports torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import math
import os
import tempfile
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import echoic.rl
from echoic.agents.llm.conversation import Conversation
from echoic.agents.llm.engine import AsyncExecutionEngine
from echoic.agents.llm.lora import LoRAConfig, add_lora
from echoic.agents.llm.tasks import Task, make_task
from echoic.errors import ArgumentError, ClosedError, CollectorError, DisconnectedError, EchoicError
from echoic.workers import Supervisor, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from echoic.agents.llm.config import ExecutionConfig
    from echoic.agents.llm.requests import RolloutEngine, RolloutResult, SamplingParams
    from echoic.agents.llm.soft_prefix import PlanPrefix
    from echoic.rl import Group, Item
    from echoic.rl import Worker as Joined

__all__ = ["COLUMNS", "FIELDS", "Actor", "LockStep", "Processes", "load_model", "work"]

COLUMNS = {"tokens": "int32", "logprobs": "float32", "mask": "uint8", "rewards": "float32"}
FIELDS = {
    **dict.fromkeys(("reward", "success"), "float32"),
    **dict.fromkeys(("turns", "drawn", "reused", "computed"), "int32"),
}
# Before the names of a soft prefix's weights.
PLANS = "plans."
# Seconds between two looks for new weights.
_LOOK = 0.02
# Seconds that a worker may need for its imports and its model on a busy machine.
_JOIN = 300.0


def load_model(name: str | os.PathLike[str], device: Any = "auto") -> tuple[Any, Any]:
    """Load a language model and its tokenizer.

    Args:
        name: A folder or name of transformers, or ``"local:SmolLM2-135M"``.
        device: Where the model goes.

    Raises:
        ArgumentError: If there is no such model here.
    """
    from echoic.agents.devices import resolve

    text = os.fspath(name)
    if text.startswith("local:"):
        from echoic.agents.backbones import smollm2

        smollm2.check_name(text)
        return smollm2.load(device)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(text)
        tokenizer = AutoTokenizer.from_pretrained(text)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"{text!r} can't be loaded; expected local:SmolLM2-135M, a folder with a language "
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


async def together(coroutines: Iterable[Awaitable[Any]]) -> None:
    """Await all; if one fails, cancel the others and raise its error."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel those that are not done, and wait for them."""
    left = [one for one in tasks if not one.done()]
    for one in left:
        one.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class LockStep:
    """Passes turns to an engine when all conversations wait for one, in the order of their seats.

    What a forward pass computes differs in its last bits with what else is in it. So that a run
    repeats itself to the last bit, no turn starts at a time that a thread or a clock decides.

    Args:
        engine: The engine.
        version: The version of its weights.
        seats: Conversations at a time; further ones wait until one of them ends.
    """

    def __init__(self, engine: RolloutEngine[Any], version: int, seats: int) -> None:
        self._engine, self.version = engine, version
        # Empty ones count, so that the first turn waits for all others.
        self._seats = self._free = seats
        self._queue: deque[asyncio.Future[None]] = deque()
        self._waiting: dict[tuple[int, ...], asyncio.Future[None]] = {}

    @contextlib.asynccontextmanager
    async def seat(self, *place: int) -> AsyncIterator[Any]:
        """Return what a conversation uses as its engine."""
        if self._free:
            self._free -= 1
        else:
            # One that ends leaves its seat to it, so that turns wait for its first one.
            turn = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            await turn
        try:
            yield SimpleNamespace(generate=partial(self.generate, place))
        finally:
            while self._queue and self._queue[0].done():
                self._queue.popleft()
            if self._queue:
                self._queue.popleft().set_result(None)
            else:
                self._seats -= 1
                self._go()

    async def generate(
        self, place: tuple[int, ...], prompt: Any, sampling: Any, **options: Any
    ) -> RolloutResult:
        """Draw a turn with those of all other seats."""
        turn = self._waiting[place] = asyncio.get_running_loop().create_future()
        # Later: awaiting a turn that is there already would overtake all others.
        asyncio.get_running_loop().call_soon(self._go)
        try:
            await turn
        finally:
            self._waiting.pop(place, None)
        return await self._engine.generate(prompt, sampling, **options)

    def _go(self) -> None:
        if self._waiting and len(self._waiting) >= self._seats:
            waiting, self._waiting = self._waiting, {}
            for place in sorted(waiting):
                if not (turn := waiting[place]).done():
                    turn.set_result(None)


@dataclass(frozen=True)
class Answering:
    """How prompts are answered, wherever that is.

    Attributes:
        task: The task; for another process, what :func:`task_of` takes.
        sampling: How tokens are drawn.
        limit: Most tokens of a conversation.
        seed: Seed of the run.
        execution: Settings of the engine.
        first: Number of the prompt of group 0.
        plans: Makes soft prefixes of what was observed.
    """

    task: Any
    sampling: SamplingParams
    limit: int
    seed: int
    execution: ExecutionConfig
    first: int = 0
    plans: PlanPrefix | None = None


class Actor:
    """Fills groups with conversations.

    Args:
        how: The task and settings.
        engine: Draws the answers.
        tokenizer: The model's.
        load: Gets a published tree and a version, and has the engine load them.
    """

    def __init__(
        self,
        how: Answering,
        engine: Any,
        tokenizer: Any,
        load: Callable[[Any, int], Awaitable[Any]] | None = None,
    ) -> None:
        self._how, self._engine, self._tokenizer, self._load = how, engine, tokenizer, load
        self._loaded = 0

    async def fill(self, group: Group, index: int, steps: LockStep | None = None) -> None:
        """Hold the conversations of a group about prompt ``index``."""
        async with group:
            items = list(group)
            if any(len(item.columns.get("tokens", ())) for item in items):
                # Its worker died between the tokens and the end of an item.
                group.fail()
                return
            prompt = self._how.task.prompt(index)
            await together(self._item(prompt, index, item, steps) for item in items)

    async def _item(self, prompt: Any, index: int, item: Item, steps: LockStep | None) -> None:
        place = (index, item.index)
        async with contextlib.AsyncExitStack() as stack:
            engine = self._engine
            if steps is not None:
                engine = await stack.enter_async_context(steps.seat(*place))
            talk, outcome = await self.hold(prompt, index, item.index, engine)
        columns: dict[str, Any] = talk.columns()
        blobs = None if talk.plans is None else {"plans": talk.plans.rows()}
        item.write(version=steps.version if steps else talk.versions, blobs=blobs, **columns)
        item.done(
            reward=outcome.reward,
            success=float(outcome.success),
            turns=len(talk.turns),
            drawn=int(columns["mask"].sum()),
            reused=talk.reused_tokens,
            computed=talk.computed_tokens,
        )

    async def hold(
        self,
        prompt: Any,
        index: int,
        copy: int,
        engine: Any = None,
        sampling: SamplingParams | None = None,
    ) -> tuple[Conversation, Any]:
        """Hold one conversation; return it and its outcome.

        Raises:
            CollectorError: If the engine or the task failed.
            ArgumentError: If the prompt is too long, or a reward is not a finite number.
        """
        how = self._how
        seed = np.random.SeedSequence([how.seed, index, copy]).generate_state(1, np.uint64)[0]
        sampling = sampling or how.sampling
        plans = None
        if how.plans is not None:
            plans = how.plans.begin(int(seed) >> 1, greedy=sampling.temperature == 0)
        talk = Conversation(
            engine or self._engine,
            self._tokenizer,
            sampling,
            seed=int(seed),
            limit=how.limit,
            plans=plans,
        )
        where = f"prompt {index} of {how.task.name}"
        try:
            outcome = await how.task.run(prompt, talk)
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

    async def act(self, worker: Joined, most: int) -> None:
        """Fill groups, ``most`` at a time, and load weights, until the run is closed."""
        following = asyncio.ensure_future(self._follow(worker))
        groups = aiter(worker.groups(itertools.repeat(None)))
        taking: asyncio.Future[Group] | None = None
        running: set[asyncio.Future[Any]] = set()
        try:
            while True:
                if taking is None and len(running) < most:
                    taking = asyncio.ensure_future(anext(groups))
                waiting = {following, *running, *({taking} if taking else ())}
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for one in done - {taking}:
                    one.result()
                    running.discard(one)
                if taking in done and taking is not None:
                    group, taking = taking.result(), None
                    index = self._how.first + int(group.handle.split(".")[0])
                    running.add(asyncio.ensure_future(self.fill(group, index)))
        finally:
            await cancel({following, *running, *({taking} if taking else ())})

    async def _follow(self, worker: Joined) -> None:
        while True:
            await self.refresh(worker)
            await asyncio.sleep(_LOOK)

    async def refresh(self, worker: Joined) -> bool:
        """Load weights that are newer than those loaded before; return whether there are any."""
        found = worker.weights.latest()
        if found is None:
            return False
        if found.version > self._loaded and self._load is not None:
            await self._load(found.tree, found.version)
            self._loaded = found.version
        worker.version = found.version
        return True


def copy_into(module: Any, weights: Mapping[str, Any]) -> None:
    """Write published arrays to the parameters of these names."""
    own = dict(module.named_parameters())
    if unknown := sorted(weights.keys() - own.keys()):
        raise ArgumentError(f"the model has no parameters {unknown[:4]}, which were published")
    echoic.rl.modules.load_tree({name: own[name].data for name in weights}, dict(weights))


def engine_of(how: Answering, model: Any, device: Any) -> tuple[AsyncExecutionEngine, Any]:
    """Make an engine, and the function with which an :class:`Actor` loads weights into it."""
    engine = AsyncExecutionEngine(how.execution, model, device)
    if how.plans is not None:
        how.plans.to(device)

    async def load(tree: Any, version: int) -> None:
        own = {name: one for name, one in tree.items() if not name.startswith(PLANS)}
        await engine.update_weights(lambda module: copy_into(module, own), version)
        if how.plans is not None:
            names = tree.keys() - own.keys()
            copy_into(how.plans, {name.removeprefix(PLANS): tree[name] for name in names})

    return engine, load


@dataclass(frozen=True)
class Member:
    """What a worker in another process needs.

    Attributes:
        how: The task and settings.
        model: A name for :func:`load_model`, or the module itself.
        tokenizer: Replaces that of the name.
        lora: Adapters that the learner's model has.
        device: Where it computes.
        threads: Of torch; ``None``: as many as torch takes.
        most: Groups at a time.
        address: Of the run.
        token: Its secret.
        imports: Modules to import first, to register tasks and environments.
    """

    how: Answering
    model: Any
    tokenizer: Any
    lora: LoRAConfig | None
    device: str
    threads: int | None
    most: int
    address: Any = None
    token: str | None = None
    imports: tuple[str, ...] = ()


def work(_connection: object, member: Member) -> None:
    """Join a run as a worker, and answer prompts until it is over."""
    if member.threads is not None:
        torch.set_num_threads(member.threads)
    for module in member.imports:
        importlib.import_module(module)
    with contextlib.suppress(ClosedError, DisconnectedError):
        asyncio.run(_work(member))


async def _work(member: Member) -> None:
    how = replace(member.how, task=task_of(member.how.task))
    model, tokenizer = member.model, None
    if isinstance(model, str):
        model, tokenizer = load_model(model, member.device)
        if member.lora is not None:
            add_lora(model, member.lora)
    engine, load = engine_of(how, model, member.device)
    joined = echoic.rl.join(member.address, token=member.token, partial=True)
    async with engine, joined as worker:
        actor = Actor(how, engine, member.tokenizer or tokenizer, load)
        end = time.monotonic() + _JOIN
        while not await actor.refresh(worker):
            if time.monotonic() > end:
                raise CollectorError(f"the run published no weights within {_JOIN:g} s")
            await asyncio.sleep(_LOOK)
        await actor.act(worker, member.most)


def work_on_ray(member: Member, address: str, token: str, _restarts: int) -> None:
    """Work as an actor of Ray."""
    work(None, replace(member, address=address, token=token))


class Processes:
    """Workers in processes of this machine.

    Args:
        members: One for each.
        max_restarts: How many may be replaced in all.
        folder: Where their output goes; ``None``: to that of this process.
    """

    def __init__(self, members: list[Member], max_restarts: int, folder: Path | None) -> None:
        self._members, self._folder = members, folder
        self.processes = Supervisor(self._start, len(members), max_restarts)
        try:
            self.processes.start()
        except OSError:
            raise
        except Exception as error:  # of what can't be sent to a process
            raise ArgumentError(
                "a worker process makes the task by its name, or imports it and its functions, "
                f"which must be at the top of a module: {error}"
            ) from error

    @property
    def restarts(self) -> int:
        """How many were replaced."""
        return self.processes.restarts

    def _start(self, i: int, _restarts: int) -> Worker:
        name = f"worker-{i}"
        threads = self._members[i].threads
        env = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        log = None if self._folder is None else self._folder / f"{name}.log"
        return Worker(work, self._members[i], name=name, env=env, log=log)

    def check(self) -> None:
        """Replace workers that died.

        Raises:
            CollectorError: If a worker's program failed, or ``max_restarts`` were replaced before.
        """
        for one in self.processes.members:
            if not one.alive and (text := one.traceback) is not None:
                raise CollectorError(f"{one.name} failed:\n{text}")
        self.processes.check()

    def close(self) -> None:
        """End all workers."""
        self.processes.stop()


def socket_of_run() -> tuple[str, tempfile.TemporaryDirectory[str]]:
    """Return an address for workers of this machine, and the folder that has it."""
    folder = tempfile.TemporaryDirectory(prefix="echoic-")
    return f"unix://{folder.name}/run.sock", folder
