"""Rollouts on servers: the same ``generate`` as that of the engine for local models.

A rollout waits for one of ``max_concurrent`` places, and is sent to the replica that has
probably computed most of its prompt. If a server is full, gone or silent, the rest is requested
from the best replica then: the prompt with the tokens so far continues where the other stopped, so
nothing is lost or drawn twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import operator
import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents.backbones.http import HttpConfig
from echoic.agents.llm.replica import Fault, Replica
from echoic.agents.llm.requests import RolloutResult, SamplingParams
from echoic.errors import ArgumentError, BackboneError, ClosedError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from typing_extensions import Self

__all__ = ["RemoteEngine"]


class Router:
    """Sends prompts that begin alike to the same replica, unless it is busy.

    A prompt is cut into blocks of tokens, or bytes of text. The digest of a block stands for it and
    all before it. The router remembers where blocks were sent last, and not what a replica has
    evicted meanwhile: an affinity is a guess, and reuse is counted from the answers.
    """

    block = 64
    #: Number of blocks that are remembered.
    remembered = 1 << 17
    #: How many more unanswered requests than the idlest a replica may have.
    slack = 8

    def __init__(self, replicas: int) -> None:
        self.sent: OrderedDict[bytes, int] = OrderedDict()
        self.loads = [0] * replicas

    def choose(self, prompt: str | Sequence[int], allowed: Collection[int]) -> int:
        """Choose one of the ``allowed`` replicas for a prompt, and add one to its load."""
        data = np.asarray(list(prompt.encode()) if isinstance(prompt, str) else prompt, "<i8")
        chosen = min(sorted(allowed), key=self.loads.__getitem__)
        most = self.loads[chosen] + self.slack
        rolling = hashlib.blake2b(digest_size=16)
        digests = []
        for end in range(self.block, len(data) + 1, self.block):
            rolling.update(data[end - self.block : end].tobytes())
            digests.append(rolling.digest())
            # The longest beginning decides.
            known = self.sent.get(digests[-1], -1)
            if known in allowed and self.loads[known] <= most:
                chosen = known
        for digest in digests:
            self.sent[digest] = chosen
            self.sent.move_to_end(digest)
        while len(self.sent) > self.remembered:
            self.sent.popitem(last=False)
        self.loads[chosen] += 1
        return chosen


class RemoteEngine:
    """Generates with servers that speak OpenAI's protocol of completions, in one event loop.

    Args:
        replicas: The servers, all with the same weights.
        config: Bounds of a rollout; by default 128 at a time.
        version: Version of the replicas' weights.
    """

    def __init__(
        self, replicas: Sequence[Replica], config: HttpConfig | None = None, *, version: int = 0
    ) -> None:
        self._replicas = list(replicas)
        if not self._replicas:
            raise ArgumentError("an engine needs at least one replica")
        self._config = config or HttpConfig(max_concurrent=128)
        # With the version, separates prefixes in a server's cache from those of other weights.
        self._salt = secrets.token_hex(8)
        self._updating = asyncio.Lock()
        self._versions = [version] * len(self._replicas)
        self._open = set(range(len(self._replicas)))
        self._router = Router(len(self._replicas))
        self._places = asyncio.Semaphore(self._config.max_concurrent)
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[str]] = set()
        self._closed = False

    @property
    def version(self) -> int:
        """The lowest version of all replicas."""
        return min(self._versions)

    async def generate(
        self,
        state_sequence: str | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        **local: Any,
    ) -> RolloutResult:
        """Run a rollout and return its result, which says why if it failed.

        ``state_sequence`` is token ids where the servers take them, text otherwise. The other
        arguments are those of ``AsyncExecutionEngine.generate``; what servers do not take, such as
        ``embeddings``, is an error.
        """
        sampling = sampling or SamplingParams()
        for name, value in {**local, "forced tokens": sampling.forced}.items():
            if value:
                raise ArgumentError(f"servers take no {name}: use a local model")
        prompt = self._checked(state_sequence, sampling)
        if self._closed:
            raise ClosedError("the engine was shut down")
        limit = self._config.timeout if timeout is None else timeout
        result = RolloutResult(secrets.token_hex(4), success=False, reused_tokens=None)
        faults: list[str] = []
        result.metadata = {**(metadata or {}), "faults": faults}
        result.prompt_tokens = 0 if isinstance(prompt, str) else len(prompt)
        began = time.monotonic()
        task = asyncio.create_task(self._run(prompt, sampling, result))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            done, _ = await asyncio.wait({task}, timeout=limit)
        finally:
            task.cancel()
        await asyncio.wait({task})
        if not done:
            result.finish_reason, result.error = "timeout", f"it took more than {limit:g} s"
        elif task.cancelled():
            result.finish_reason, result.error = "shutdown", "the engine was shut down"
        elif isinstance(fault := task.exception(), BackboneError):
            result.finish_reason, result.error = "error", str(fault)
        else:
            result.finish_reason, result.success = task.result(), True
        result.execution_time = time.monotonic() - began - result.queue_time
        result.tokens_generated = len(result.tokens)
        if faults:
            # Nobody counted what broken attempts have used.
            result.reused_tokens = None
        if -1 in result.tokens:
            result.tokens = []
        return result

    async def update_weights(
        self,
        version: int,
        load: Callable[[Replica, int], Awaitable[None]] | None = None,
        *,
        timeout: float = 60.0,
    ) -> None:
        """Load new weights into every replica, one after the other, and empty their caches.

        A replica first has ``timeout`` seconds to finish its rollouts, and gets no others
        meanwhile. ``load`` sends it the weights, unless it has them. After an error it is not used
        until this is called again.

        Raises:
            Fault: If a cache was not emptied.
            WaitTimeoutError: If a replica did not finish in time.
        """
        async with self._updating:
            if version <= self.version:
                raise ArgumentError(f"the version must be above {self.version}, and is {version}")
            for replica in self._replicas:
                if not (replica.dialect.salted or replica.dialect.reset):
                    raise ArgumentError(
                        f"{replica!r} can neither empty its prefix cache nor salt it, so answers "
                        "would mix keys and values of old and new weights; restart it, in a new "
                        "engine"
                    )
            for index, replica in enumerate(self._replicas):
                if self._versions[index] >= version:
                    continue
                self._open.discard(index)
                try:
                    await asyncio.wait_for(self._idle(index), timeout)
                except asyncio.TimeoutError:
                    left = f"{self._router.loads[index]} rollouts after {timeout:g} s"
                    raise WaitTimeoutError(f"{replica!r} still has {left}") from None
                if load is not None:
                    await load(replica, version)
                if not replica.dialect.salted:
                    path = f"{replica.url.removesuffix('/v1')}{replica.dialect.reset}"
                    async with replica.client.stream(path, None, timeout):
                        pass
                self._router.sent.clear()
                self._versions[index] = version
                self._open.add(index)
                self._notify()

    async def aclose(self) -> None:
        """End every rollout, and close all connections."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.client.aclose() for replica in self._replicas))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _checked(self, prompt: str | Sequence[int], sampling: SamplingParams) -> str | list[int]:
        for replica in self._replicas:
            if sampling.stop and replica.dialect.stop_ids is None:
                raise ArgumentError(f"{replica!r} takes no stop tokens")
            if not isinstance(prompt, str) and not replica.dialect.token_prompts:
                raise ArgumentError(f"{replica!r} takes text, not token ids")
        if isinstance(prompt, str):
            return prompt
        tokens = [operator.index(token) for token in prompt]
        if not all(0 <= token < 1 << 31 for token in tokens):
            raise ArgumentError(f"token ids are from 0 to below 2³¹, unlike those of {prompt!r}")
        return tokens

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _idle(self, index: int) -> None:
        while self._router.loads[index]:
            await self._changed.wait()

    async def _run(
        self, prompt: str | list[int], sampling: SamplingParams, result: RolloutResult
    ) -> str:
        """Request a rollout until it has ended, and return why."""
        failed: set[int] = set()

        async def attempt() -> str:
            while not self._open:
                await self._changed.wait()
            # One that has not failed this yet, if there is one.
            others = self._open - failed
            if not others:
                failed.clear()
            index = self._router.choose(prompt, others or self._open)
            replica, version = self._replicas[index], self._versions[index]
            salt, stall = f"{self._salt}-{version}", self._config.attempt_timeout
            try:
                return await replica.complete(
                    prompt, sampling, result, version=version, salt=salt, stall=stall
                )
            except Fault:
                failed.add(index)
                raise
            finally:
                self._router.loads[index] -= 1
                self._notify()

        submitted = time.monotonic()
        async with self._places:
            result.queue_time = time.monotonic() - submitted
            return await self._config.persist(attempt, result.metadata["faults"])
