"""Rollouts of a local model for a program that awaits them.

A worker thread owns the model, its pages and the schedule, and runs tick after tick while there is
work. The event loop gives it orders and hands out what ticks return, and owns the handles.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import sys
import time
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.bandwidth import BandwidthEfficiencyTracker
from echoic.agents.devices import resolve
from echoic.agents.llm.batcher import Batcher, PolicyRunner, Progress, Rollout, read_states
from echoic.agents.llm.cache import KVCacheManager, as_tokens
from echoic.agents.llm.config import ExecutionConfig
from echoic.agents.llm.model import CausalModel
from echoic.agents.llm.requests import (
    Handle,
    RolloutEngine,
    RolloutRequest,
    RolloutResult,
    SamplingParams,
    check_reward,
)
from echoic.agents.llm.scheduler import costs
from echoic.errors import ArgumentError, ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from echoic.agents.llm.batcher import Runner

__all__ = ["AsyncExecutionEngine"]


class _Handle(Handle):
    def __init__(self, request: RolloutRequest) -> None:
        super().__init__(request.request_id)
        self.request = request
        self.admitted = False


class AsyncExecutionEngine(RolloutEngine[_Handle]):
    """Runs rollouts of a model, many at a time.

    Use it from one event loop. The worker thread starts with the first rollout and ends with
    :meth:`shutdown`. The guide of engines has a program.

    Args:
        config: Bounds and weights.
        model: A :class:`CausalModel`; a causal language model of transformers, which is wrapped in
            ``TransformersModel``; or a policy with ``sample_action(state, plan)``.
        device: Device of a policy or a model of transformers. A :class:`CausalModel` is not moved.
        seed: Seed of the seeds of rollouts without one.
        tracker: Records every rollout's measured tokens; by default a new one.
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
        super().__init__(self.config.priority_queue_size, self.config.max_results)
        self.device = resolve(device)
        self.tracker = tracker or BandwidthEfficiencyTracker(costs(self.config))
        self.cache: KVCacheManager | None = None
        self.model = self._read_model(model)
        arguments = (self.config, self.tracker)
        self._runner: Runner
        if isinstance(self.model, CausalModel):
            shape = self.model.shape
            self.cache = KVCacheManager(self.config, self.model.device, planes=shape.planes())
            self._runner = Batcher(self.model, self.cache, *arguments)
        else:
            self._runner = PolicyRunner(self.model, self.device, *arguments)
        self._names = itertools.count()
        self._seeds = random.Random(seed)
        self._updates: set[Future[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._pumping: asyncio.Task[None] | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._asked_version = 0

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
        embeddings: Mapping[int, Any] | None = None,
    ) -> str:
        """Submit a rollout; return its name as soon as there is room for it to wait.

        Args:
            state_sequence: Token ids for a language model, [rows, state_dim] for a policy.
            priority: Its worth; see ``LatencyScheduler``.
            metadata: Returned with the result. The tracker records ``reward``; a policy over
                vectors uses ``plan``.
            sampling: How tokens are drawn.
            timeout: Seconds from now until it is stopped; by default the config's.
            callback: Called with the result, on the event loop.
            return_kv: Whether the result has a copy of its keys and values.
            embeddings: Input embeddings of virtual tokens, such as a soft prefix: the sequence may
                have the ids from the model's ``vocab_size`` up that are its keys. They are never
                drawn. Cached keys and values are shared by equal embeddings, whatever their ids.

        Raises:
            ArgumentError: If the sequence does not fit the model, or could never fit the cache.
            WaitTimeoutError: If there was no room in time.
            ClosedError: If the engine was shut down.
        """
        self._start()
        request = RolloutRequest(
            request_id=f"rollout-{next(self._names)}",
            state_sequence=state_sequence,
            priority=float(priority),
            timestamp=time.monotonic(),
            callback=callback,
            metadata=dict(metadata or {}),
            sampling=sampling or SamplingParams(),
            timeout=self.config.timeout if timeout is None else float(timeout),
            return_kv=return_kv,
            embeddings=dict(embeddings or {}),
        )
        if not request.timeout > 0:
            raise ArgumentError(f"a timeout must be above 0, not {timeout}")
        if not math.isfinite(self.config.reward_weight * request.priority):
            raise ArgumentError(f"a priority must be a finite number, not {priority}")
        check_reward(request.metadata)
        rollout = self._read(request)
        await self._take_room(request.timeout)
        self._handles[request.request_id] = _Handle(request)
        self._runner.submit(rollout)
        self._wake.set()
        return request.request_id

    def cancel(self, request_id: str) -> bool:
        """Cancel a rollout, free its pages by the next tick; return whether it had not ended."""
        handle = self._handles.get(request_id)
        if handle is None or handle.result.done():
            return False
        self._runner.cancel(request_id)
        self._wake.set()
        return True

    @property
    def version(self) -> int:
        """Version of the weights that the last tick used."""
        return self._runner.version

    async def update_weights(
        self, weights: Mapping[str, Any] | Callable[[Any], None], version: int | None = None
    ) -> int:
        """Load new weights between two ticks, and return their version.

        The prefix cache is flushed. Running rollouts go on when keys and values of their tokens
        are computed again.

        Args:
            weights: A state dict, or a function that changes the module that it is given.
            version: Version of these weights, above all before. By default the next number.

        Raises:
            ArgumentError: If the version is not above the one before, or weights do not fit.
        """
        number = self._asked_version + 1 if version is None else int(version)
        if number <= self._asked_version:
            raise ArgumentError(f"versions grow: {number} was given after {self._asked_version}")
        self._start()
        self._asked_version = number
        loaded: Future[None] = Future()
        self._updates.add(loaded)
        self._runner.update_weights(weights, number, lambda error: _settle(loaded, error))
        self._wake.set()
        try:
            await asyncio.wrap_future(loaded)
        except Exception:
            # A refused version may be used again.
            if self._asked_version == number:
                self._asked_version = self._runner.version
            raise
        finally:
            self._updates.discard(loaded)
        return number

    def get_performance_metrics(self) -> dict[str, Any]:
        """Return counts since the start, as of the last tick; seconds are those of ticks."""
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

    def shutdown(self) -> None:
        """End all rollouts and the worker. Waits for the running tick."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._pumping is not None and not self._pumping.get_loop().is_closed():
            self._pumping.cancel()
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)
        self._fail_all("shutdown", "the engine was shut down")

    async def aclose(self) -> None:
        """Do the same as :meth:`shutdown` without blocking the event loop."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._pumping is not None and self._loop is asyncio.get_running_loop():
            await asyncio.wait({self._pumping})
        if self._worker is not None:
            self._worker.shutdown(wait=True)
        self._fail_all("shutdown", "the engine was shut down")

    def _read_model(self, model: Any) -> Any:
        if isinstance(model, CausalModel):
            return model
        transformers = sys.modules.get("transformers")
        if transformers is not None and isinstance(model, transformers.PreTrainedModel):
            from echoic.agents.llm.transformers import TransformersModel

            return TransformersModel(model.to(self.device))
        if callable(getattr(model, "sample_action", None)):
            return model.to(self.device) if callable(getattr(model, "to", None)) else model
        raise ArgumentError(
            "model must be a CausalModel, a causal language model of transformers, or have "
            f"sample_action(state, plan); got {type(model).__name__}"
        )

    def _read(self, request: RolloutRequest) -> Rollout:
        """Check that the model can run a request, and make its rollout."""
        seed = self._seeds.getrandbits(63)
        if isinstance(self._runner, PolicyRunner):
            if request.embeddings:
                raise ArgumentError("a policy over vectors takes no embeddings")
            request.state_sequence = states = read_states(request.state_sequence)
            self._runner.plan(request)
            return Rollout(request, tuple(range(len(states))), seed)
        tokens = as_tokens(request.state_sequence)
        model = self.model
        if not tokens:
            raise ArgumentError("a rollout needs at least one token to start from")
        virtual: dict[Hashable, bytes] = {
            token: self._vector(token, vector) for token, vector in request.embeddings.items()
        }
        given = (*(t for t in tokens if t not in virtual), *request.sampling.forced)
        bad = next((t for t in given if not isinstance(t, int) or t < 0), None)
        largest = max((t for t in given if isinstance(t, int)), default=0)
        if bad is not None or largest >= model.vocab_size:
            raise ArgumentError(
                f"tokens are ids from 0 to below {model.vocab_size}; got "
                f"{largest if bad is None else bad!r}"
            )
        request.state_sequence = list(tokens)
        if virtual:
            tokens = tuple(virtual.get(token, token) for token in tokens)
        rollout = Rollout(request, tokens, seed)
        room = min(int(self.config.max_cache_size), int(model.max_length))
        if rollout.limit > room:
            raise ArgumentError(
                f"{len(tokens)} tokens and {request.sampling.max_new_tokens} new ones do not fit "
                f"into {room}: max_cache_size is {self.config.max_cache_size}, and the model takes "
                f"{model.max_length}"
            )
        return rollout

    def _vector(self, token: Any, vector: Any) -> bytes:
        """Return the embedding of a virtual token as bytes, which the prefix cache compares."""
        row = torch.as_tensor(vector).detach().cpu().float().numpy()
        least, width = self.model.vocab_size, self.model.width
        if not isinstance(token, int) or token < least:
            raise ArgumentError(f"ids of embeddings are at least {least}, not {token!r}")
        if row.shape != (width,) or not np.isfinite(row).all():
            raise ArgumentError(
                f"the embedding of {token} must be {width} finite numbers; got shape {row.shape}"
            )
        return bytes(row.tobytes())

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        self._check_open()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise ArgumentError("an engine is used from one event loop at a time")
            self._loop, self._wake, self._pumping = loop, asyncio.Event(), None
            for name in self._handles:
                self._runner.cancel(name)
            self._handles.clear()
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
        except Exception as error:  # rollouts end with it; this task is not awaited
            self._closed = True
            worker.shutdown(wait=False)
            self._fail_all("error", f"{type(error).__name__}: {error}")

    def _dispatch(self, ticked: list[Progress]) -> None:
        for progress in ticked:
            handle = self._handles.get(progress.request_id)
            if handle is None:
                continue
            over = progress.result is not None
            if not handle.admitted and (progress.admitted or over):
                handle.admitted = True
                self._waiting -= 1
            handle.tokens.extend(progress.tokens)
            if progress.result is not None:
                self._settle(handle, progress.result)
            else:
                handle.notify()
        self._make_room()

    def _settle(self, handle: _Handle, result: RolloutResult) -> None:
        if handle.result.done():
            return
        super()._settle(handle, result)
        if handle.request.callback is not None:
            try:
                handle.request.callback(result)
            except Exception as error:  # an error of one caller must not stop others
                message = f"the callback of {handle.request_id} failed"
                handle.result.get_loop().call_exception_handler(
                    {"message": message, "exception": error}
                )

    def _fail_all(self, reason: str, error: str) -> None:
        if self._loop is None or self._loop.is_closed():
            self._handles.clear()
            return
        for handle in list(self._handles.values()):
            failed = RolloutResult(
                handle.request_id,
                success=False,
                error=error,
                finish_reason=reason,
                metadata=handle.request.metadata,
            )
            failed.add(handle.tokens)
            self._settle(handle, failed)
        self._make_room(for_all=True)
        for loading in self._updates:
            _settle(loading, ClosedError(error))


def _settle(loaded: Future[None], error: BaseException | None) -> None:
    # It may be cancelled, or settled by a shutdown.
    with contextlib.suppress(InvalidStateError):
        if error is None:
            loaded.set_result(None)
        else:
            loaded.set_exception(error)
