"""Rollouts for a program that awaits them.

The engine has two sides. A worker thread owns the model, its pages and the schedule, and does tick
after tick while there is work. The event loop only gives it orders and hands on what ticks brought,
so that no coroutine ever waits for a forward pass. Both meet once a tick.

Invariants:

1. One tick runs at a time, on the one worker thread. Nothing else touches the runner's state.
2. Tickets belong to the event loop. One exists from submission until its result has been taken, or
   dropped as the oldest of more than ``max_results``.
3. ``_waiting`` is the number of tickets that are not admitted, and at most ``priority_queue_size``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import sys
import time
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from echoic.agents.async_execution.batcher import Batcher
from echoic.agents.async_execution.cache import KVCacheManager, as_tokens
from echoic.agents.async_execution.config import ExecutionConfig
from echoic.agents.async_execution.model import CausalModel
from echoic.agents.async_execution.rollouts import (
    Progress,
    Rollout,
    RolloutRequest,
    RolloutResult,
    RolloutToken,
    SamplingParams,
    check_reward,
)
from echoic.agents.async_execution.runner import PolicyRunner, read_states
from echoic.agents.bandwidth import BandwidthConfig, BandwidthEfficiencyTracker
from echoic.agents.devices import resolve
from echoic.errors import ArgumentError, ClosedError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from typing_extensions import Self

    from echoic.agents.async_execution.runner import Runner

__all__ = ["AsyncExecutionEngine"]


class _Ticket:
    """What the event loop knows of a rollout."""

    def __init__(self, request: RolloutRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.result: asyncio.Future[RolloutResult] = loop.create_future()
        self.tokens: list[RolloutToken] = []
        self.admitted = False
        self.readers: list[asyncio.Event] = []

    def tell(self) -> None:
        for reader in self.readers:
            reader.set()


class AsyncExecutionEngine:
    """Runs rollouts of a model, many at a time.

    ```python
    import asyncio

    from echoic.agents.async_execution import (
        AsyncExecutionEngine, ExecutionConfig, SamplingParams, TinyTransformer,
    )

    async def main():
        async with AsyncExecutionEngine(ExecutionConfig(), TinyTransformer()) as engine:
            return await engine.generate([1, 2, 3], SamplingParams(max_new_tokens=4, seed=0))

    assert len(asyncio.run(main()).tokens) == 4
    ```

    It is used from one event loop. The worker thread starts with the first rollout and ends with
    :meth:`shutdown`.

    Args:
        config: Bounds and weights.
        model: A :class:`CausalModel`; a causal language model of transformers, which is wrapped in
            ``TransformersModel``; or a policy with ``sample_action(state, plan)``.
        device: Where a policy, or a model of transformers, is put. A :class:`CausalModel` stays
            where it is.
        seed: Of the seeds of rollouts that bring none.
        tracker: Is told of every rollout's measured tokens; by default one of its own.
    """

    def __init__(
        self,
        config: ExecutionConfig | None = None,
        model: Any = None,
        device: Any = "cuda",
        *,
        seed: int | None = None,
        tracker: BandwidthEfficiencyTracker | None = None,
    ) -> None:
        self.config = config or ExecutionConfig()
        self.device = resolve(device)
        self.tracker = tracker or BandwidthEfficiencyTracker(
            BandwidthConfig(
                attention_scale=self.config.bandwidth_scale,
                schedule_epsilon=self.config.schedule_epsilon,
                bandwidth_weight=self.config.bandwidth_weight,
                queue_weight=self.config.queue_weight,
                enable_bandwidth_scheduling=self.config.enable_bandwidth_scheduling,
            )
        )
        self.cache: KVCacheManager | None = None
        self.model = self._read_model(model)
        arguments = (self.config, self.tracker, time.monotonic)
        self._runner: Runner
        if isinstance(self.model, CausalModel):
            shape = self.model.shape
            self.cache = KVCacheManager(self.config, self.model.device, planes=shape.planes())
            self._runner = Batcher(self.model, self.cache, *arguments)
        else:
            self._runner = PolicyRunner(self.model, self.device, *arguments)
        self._names = itertools.count()
        self._seeds = random.Random(seed)
        self._tickets: OrderedDict[str, _Ticket] = OrderedDict()
        self._ended: deque[str] = deque()
        self._waiting = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._updates: set[asyncio.Future[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._pumping: asyncio.Task[None] | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._closed = False
        self._asked_version = 0

    # Rollouts.

    async def submit_rollout(
        self,
        state_sequence: Any,
        priority: float = 1.0,
        metadata: Mapping[str, Any] | None = None,
        *,
        sampling: SamplingParams | None = None,
        timeout: float | None = None,
        callback: Callable[[RolloutResult], None] | None = None,
        return_kv: bool = False,
    ) -> str:
        """Hand in a rollout; returns its name as soon as there is room for it to wait.

        Args:
            state_sequence: Token ids for a language model, [rows, state_dim] for a policy.
            priority: Its worth; see ``LatencyScheduler``.
            metadata: Comes back with the result. ``reward`` is told to the tracker, ``plan`` to a
                policy over vectors.
            sampling: How tokens are drawn.
            timeout: Seconds from now until it is given up; by default the config's.
            callback: Called with the result, on the event loop.
            return_kv: Whether the result has a copy of its keys and values.

        Raises:
            ArgumentError: The sequence does not fit the model, or could never fit the cache.
            WaitTimeoutError: There was no room in time.
            ClosedError: The engine was shut down.
        """
        ticket = await self._submit(
            state_sequence, priority, metadata, sampling, timeout, callback, return_kv=return_kv
        )
        return ticket.request.request_id

    async def get_result(self, request_id: str, timeout: float | None = None) -> RolloutResult:
        """Wait for a rollout's result and take it.

        It always comes: a rollout has an end, or a timeout. A failure is a result, too.

        Args:
            request_id: What ``submit_rollout`` returned.
            timeout: Seconds to wait here; the rollout goes on after them.

        Raises:
            WaitTimeoutError: They passed.
            ArgumentError: There is no such rollout, or its result has been taken.
        """
        ticket = self._ticket(request_id)
        done, _ = await asyncio.wait({ticket.result}, timeout=timeout)
        if not done:
            raise WaitTimeoutError(f"rollout {request_id} is not done after {timeout} seconds")
        self._tickets.pop(request_id, None)
        return ticket.result.result()

    async def stream(self, request_id: str) -> AsyncIterator[RolloutToken]:
        """Yield tokens of a rollout as they are drawn, from the first one.

        The result stays to be taken. Several may read the same rollout; who stops reading does not
        stop it.
        """
        ticket = self._ticket(request_id)
        reader = asyncio.Event()
        ticket.readers.append(reader)
        sent = 0
        try:
            while True:
                over = ticket.result.done()
                while sent < len(ticket.tokens):
                    sent += 1
                    yield ticket.tokens[sent - 1]
                if over:
                    return
                await reader.wait()
                reader.clear()
        finally:
            ticket.readers.remove(reader)

    async def generate(
        self,
        state_sequence: Any,
        sampling: SamplingParams | None = None,
        priority: float = 1.0,
        *,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        return_kv: bool = False,
    ) -> RolloutResult:
        """Submit a rollout and wait for its result. Whoever cancels this cancels the rollout."""
        ticket = await self._submit(
            state_sequence, priority, metadata, sampling, timeout, None, return_kv=return_kv
        )
        name = ticket.request.request_id
        try:
            return await self.get_result(name)
        except asyncio.CancelledError:
            self._runner.cancel(name)
            self._wake.set()
            # Nobody will take the result.
            ticket.result.add_done_callback(lambda _: self._tickets.pop(name, None))
            raise

    def cancel(self, request_id: str) -> bool:
        """End a rollout; its pages are free by the next tick. Returns whether it was on its way."""
        ticket = self._tickets.get(request_id)
        if ticket is None or ticket.result.done():
            return False
        self._runner.cancel(request_id)
        self._wake.set()
        return True

    # Weights.

    @property
    def version(self) -> int:
        """Version of the weights that the last tick used."""
        return self._runner.version

    async def update_weights(
        self, weights: Mapping[str, Any] | Callable[[Any], None], version: int | None = None
    ) -> int:
        """Take new weights between two ticks.

        The prefix cache is flushed. Rollouts on their way keep their tokens, and go on under the
        new weights as soon as keys and values of these tokens are computed anew.

        Args:
            weights: A state dict, or a function that changes the module that it is given.
            version: Of these weights; above all before. By default the next number.

        Returns:
            The version.

        Raises:
            ArgumentError: The version is not above the one before, or weights do not fit, in which
                case the old ones stay.
        """
        number = self._asked_version + 1 if version is None else int(version)
        if number <= self._asked_version:
            raise ArgumentError(
                f"versions only grow: {number} was given after {self._asked_version}"
            )
        loop = self._start()
        self._asked_version = number
        told: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if told.done():
                return
            if error is None:
                told.set_result(None)
            else:
                told.set_exception(error)

        def done(error: BaseException | None) -> None:
            # The loop may be gone by now, and with it whoever waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, error)

        self._updates.add(told)
        self._runner.update_weights(weights, number, done)
        self._wake.set()
        try:
            await told
        except Exception:
            # What was refused has not used its number up.
            if self._asked_version == number:
                self._asked_version = self._runner.version
            raise
        finally:
            self._updates.discard(told)
        return number

    # Numbers.

    def get_performance_metrics(self) -> dict[str, Any]:
        """Counts since the start, as of the last tick; tokens per second are of time at work."""
        runner = self._runner
        counts = dict(runner.counts)
        cache = self.cache.get_cache_stats() if self.cache is not None else None
        seconds = runner.busy_seconds
        tokens = counts["prompt_tokens"] + counts["generated_tokens"]
        return {
            **counts,
            "active": runner.snapshot["active"],
            "waiting": self._waiting,
            "version": runner.version,
            "busy_seconds": seconds,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "cache_hit_rate": cache["hit_rate"] if cache else 0.0,
            "queue": runner.snapshot["queue"],
            "cache": cache,
            "bandwidth": self.tracker.get_summary(),
        }

    # Ends.

    def shutdown(self) -> None:
        """End all rollouts and the worker. It waits for a tick that is running."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._pumping is not None and not self._pumping.get_loop().is_closed():
            self._pumping.cancel()
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
        self._fail_all("shutdown", "the engine was shut down")

    async def aclose(self) -> None:
        """Do what :meth:`shutdown` does without blocking the event loop."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._pumping is not None and self._loop is asyncio.get_running_loop():
            await asyncio.wait({self._pumping})
        if self._worker is not None:
            self._worker.shutdown(wait=True)
        self._fail_all("shutdown", "the engine was shut down")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # The rest is ours.

    def _read_model(self, model: Any) -> Any:
        if isinstance(model, CausalModel):
            return model
        transformers = sys.modules.get("transformers")
        if transformers is not None and isinstance(model, transformers.PreTrainedModel):
            from echoic.agents.async_execution.transformers import (
                TransformersModel,
            )

            return TransformersModel(model.to(self.device))
        if callable(getattr(model, "sample_action", None)):
            return model.to(self.device) if callable(getattr(model, "to", None)) else model
        raise ArgumentError(
            "model is a CausalModel, a causal language model of transformers, or has "
            f"sample_action(state, plan); got {type(model).__name__}"
        )

    async def _submit(
        self,
        sequence: Any,
        priority: float,
        metadata: Mapping[str, Any] | None,
        sampling: SamplingParams | None,
        timeout: float | None,
        callback: Callable[[RolloutResult], None] | None,
        *,
        return_kv: bool,
    ) -> _Ticket:
        loop = self._start()
        request = RolloutRequest(
            request_id=f"rollout-{next(self._names)}",
            state_sequence=sequence,
            priority=float(priority),
            timestamp=time.monotonic(),
            callback=callback,
            metadata=dict(metadata or {}),
            sampling=sampling or SamplingParams(),
            timeout=self.config.timeout if timeout is None else float(timeout),
            return_kv=return_kv,
        )
        if not request.timeout > 0:
            raise ArgumentError(f"a timeout is above 0, not {timeout}")
        if not math.isfinite(self.config.reward_weight * request.priority):
            raise ArgumentError(f"a priority is a finite number, not {priority}")
        check_reward(request.metadata)
        rollout = self._read(request)
        await self._take_room(request)
        ticket = _Ticket(request, loop)
        self._tickets[request.request_id] = ticket
        self._runner.submit(rollout)
        self._wake.set()
        return ticket

    def _read(self, request: RolloutRequest) -> Rollout:
        """Check that the model can take what was asked."""
        seed = self._seeds.getrandbits(63)
        if isinstance(self._runner, PolicyRunner):
            request.state_sequence = states = read_states(request.state_sequence)
            self._runner.plan(request)
            return Rollout(request, tuple(range(len(states))), seed)
        tokens = as_tokens(request.state_sequence)
        model = self.model
        if not tokens:
            raise ArgumentError("a rollout needs a token to begin with")
        given = (*tokens, *request.sampling.forced)
        bad = next((t for t in given if not isinstance(t, int) or t < 0), None)
        largest = max((t for t in given if isinstance(t, int)), default=0)
        if bad is not None or largest >= model.vocab_size:
            raise ArgumentError(
                f"tokens are ids from 0 to below {model.vocab_size}; got "
                f"{largest if bad is None else bad!r}"
            )
        request.state_sequence = list(tokens)
        rollout = Rollout(request, tokens, seed)
        room = min(int(self.config.max_cache_size), int(model.max_length))
        if rollout.limit > room:
            raise ArgumentError(
                f"{len(tokens)} tokens and {request.sampling.max_new_tokens} new ones do not fit "
                f"into {room}: max_cache_size is {self.config.max_cache_size}, and the model takes "
                f"{model.max_length}"
            )
        return rollout

    async def _take_room(self, request: RolloutRequest) -> None:
        """Wait until one more may wait, and be counted; who came earlier goes first."""
        if self._waiting < self.config.priority_queue_size and not self._room:
            self._waiting += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(place)
        left = request.timestamp + request.timeout - time.monotonic()
        try:
            await asyncio.wait_for(place, max(left, 0.0))
        except asyncio.TimeoutError:
            with contextlib.suppress(ValueError):
                self._room.remove(place)
            if place.done() and not place.cancelled():
                # It came at the last moment; somebody else may have it.
                self._waiting -= 1
                self._make_room()
            raise WaitTimeoutError(
                f"{self._waiting} rollouts wait already, and after {request.timeout:g} seconds "
                "there was no room for another one"
            ) from None
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._waiting -= 1
                self._make_room()
            raise
        if self._closed:
            self._waiting -= 1
            raise ClosedError("the engine was shut down")

    def _make_room(self) -> None:
        """Let in as many as there is room for."""
        free = self.config.priority_queue_size - self._waiting
        while free > 0 and self._room:
            place = self._room.popleft()
            if not place.done():
                place.set_result(None)
                # Counted here, so that nobody slips in before it runs.
                self._waiting += 1
                free -= 1

    def _ticket(self, request_id: str) -> _Ticket:
        ticket = self._tickets.get(request_id)
        if ticket is None:
            raise ArgumentError(f"there is no rollout {request_id!r}, or its result was taken")
        return ticket

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ClosedError("the engine was shut down")
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise ArgumentError("an engine is used from one event loop at a time")
            self._loop, self._wake, self._pumping = loop, asyncio.Event(), None
            for name in self._tickets:
                self._runner.cancel(name)
            self._tickets.clear()
            self._room.clear()
            self._waiting = 0
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "echoic-engine")
        if self._pumping is None or self._pumping.done():
            self._pumping = loop.create_task(self._pump(loop, self._worker))
        return loop

    async def _pump(self, loop: asyncio.AbstractEventLoop, worker: ThreadPoolExecutor) -> None:
        try:
            while not self._closed:
                if not self._runner.busy:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                self._dispatch(await loop.run_in_executor(worker, self._runner.step))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # nobody awaits this task; who awaits is told
            self._closed = True
            self._fail_all("error", f"{type(error).__name__}: {error}")

    def _dispatch(self, brought: list[Progress]) -> None:
        for progress in brought:
            ticket = self._tickets.get(progress.request_id)
            if ticket is None:
                continue
            over = progress.result is not None
            if not ticket.admitted and (progress.admitted or over):
                ticket.admitted = True
                self._waiting -= 1
            ticket.tokens.extend(progress.tokens)
            if progress.result is not None:
                self._settle(ticket, progress.result)
            if ticket.readers:
                ticket.tell()
        self._make_room()

    def _settle(self, ticket: _Ticket, result: RolloutResult) -> None:
        if ticket.result.done():
            return
        ticket.result.set_result(result)
        name = ticket.request.request_id
        self._ended.append(name)
        while len(self._ended) > self.config.max_results:
            self._tickets.pop(self._ended.popleft(), None)
        if ticket.request.callback is not None:
            try:
                ticket.request.callback(result)
            except Exception as error:  # a caller's fault must not stop others
                loop = ticket.result.get_loop()
                loop.call_exception_handler(
                    {"message": f"the callback of {name} failed", "exception": error}
                )

    def _fail_all(self, reason: str, error: str) -> None:
        if self._loop is None or self._loop.is_closed():
            self._tickets.clear()
            return
        for ticket in list(self._tickets.values()):
            if not ticket.result.done():
                name = ticket.request.request_id
                failed = RolloutResult(
                    name,
                    success=False,
                    error=error,
                    finish_reason=reason,
                    metadata=ticket.request.metadata,
                    tokens=[token.token for token in ticket.tokens],
                    logprobs=[token.logprob for token in ticket.tokens],
                    versions=[token.version for token in ticket.tokens],
                    tokens_generated=len(ticket.tokens),
                )
                self._settle(ticket, failed)
                ticket.tell()
        while self._room:
            place = self._room.popleft()
            if not place.done():
                self._waiting += 1
                place.set_result(None)
        for told in self._updates:
            if not told.done():
                told.set_exception(ClosedError(error))
