"""Rollouts of a local model for a program that awaits them.

A worker thread owns the model, its pages and the schedule, and runs tick after tick while there is
work. The event loop hands out what ticks return.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import math
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.bandwidth import BandwidthEfficiencyTracker
from echoic.agents.devices import resolve
from echoic.agents.llm.batcher import Batcher, Rollout
from echoic.agents.llm.cache import as_tokens
from echoic.agents.llm.config import ExecutionConfig
from echoic.agents.llm.model import CausalModel, PolicyModel
from echoic.agents.llm.requests import (
    RolloutEngine,
    RolloutRequest,
    RolloutResult,
    SamplingParams,
    check_reward,
)
from echoic.agents.llm.scheduler import costs
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

__all__ = ["AsyncExecutionEngine"]

_LOG = logging.getLogger("echoic")


class AsyncExecutionEngine(RolloutEngine[Rollout]):
    """Runs rollouts of a model, many at a time.

    Use it from one event loop. The worker thread starts with the first rollout and ends with
    :meth:`shutdown`.

    Args:
        config: Bounds and weights.
        model: A :class:`CausalModel`; a causal language model of transformers, which is wrapped in
            ``TransformersModel``; or a ``PolicyNetwork``, whose rollouts are one decision.
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
        self.config = config = config or ExecutionConfig()
        super().__init__(config.priority_queue_size)
        self.device = resolve(device)
        self.tracker = tracker or BandwidthEfficiencyTracker(costs(config))
        self.model = self._read_model(model)
        if isinstance(self.model, PolicyModel):
            # It has no keys and values that rollouts could share.
            config = dataclasses.replace(config, enable_prefix_cache=False)
        self._batcher = Batcher(self.model, config, self.tracker)
        self.cache = self._batcher.cache
        self._names = itertools.count()
        self._seeds = random.Random(seed)
        # Those that are not known to be admitted.
        self._queued: set[Rollout] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._pumping: asyncio.Task[None] | None = None
        self._worker: ThreadPoolExecutor | None = None

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
            metadata: Returned with the result. The tracker records ``reward``.
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
        self._handles[request.request_id] = rollout
        self._queued.add(rollout)
        self._batcher.submit(rollout)
        self._wake.set()
        return request.request_id

    def cancel(self, request_id: str) -> bool:
        """Cancel a rollout, free its pages by the next tick; return whether it had not ended."""
        rollout = self._handles.get(request_id)
        if rollout is None or rollout.result is not None:
            return False
        rollout.cancelled = True
        return True

    @property
    def version(self) -> int:
        """Version of the weights that the last tick used."""
        return self._batcher.version

    async def update_weights(
        self, weights: Mapping[str, Any] | Callable[[Any], None], version: int | None = None
    ) -> int:
        """Load new weights between two ticks, and return their version.

        ``weights`` is a state dict, or a function that changes the module that it is given;
        ``version`` is above all before, by default the next number.

        Raises:
            ArgumentError: If the version is not above the one before, or weights do not fit.
        """

        def load() -> int:
            self._check_open()
            number = self.version + 1 if version is None else int(version)
            if number <= self.version:
                raise ArgumentError(f"versions grow: {number} was given after {self.version}")
            self._batcher.load(weights, number)
            return number

        return await asyncio.get_running_loop().run_in_executor(self._start(), load)

    def get_performance_metrics(self) -> dict[str, Any]:
        """Return counts since the start; seconds are those of ticks."""
        batcher, counts, cache = self._batcher, self._batcher.counts, self.cache.get_cache_stats()
        tokens = counts["prompt_tokens"] + counts["generated_tokens"]
        return {
            **counts,
            "active": len(batcher.rollouts),
            "waiting": self._waiting,
            "version": batcher.version,
            "tokens_per_second": tokens / max(batcher.busy_seconds, 1e-9),
            "cache_hit_rate": cache["hit_rate"],
            "queue": batcher.scheduler.get_queue_stats(),
            "cache": cache,
            "bandwidth": self.tracker.get_summary(),
        }

    def shutdown(self) -> None:
        """End all rollouts and the worker. Waits for the running tick."""
        self._closed = True
        self._wake.set()
        if self._worker is not None:
            self._worker.shutdown()
        self._fail_all("shutdown", "the engine was shut down")

    async def aclose(self) -> None:
        """Do the same as :meth:`shutdown` without blocking the event loop."""
        self._closed = True
        self._wake.set()
        if self._pumping is not None and self._loop is asyncio.get_running_loop():
            await asyncio.wait({self._pumping})
        self.shutdown()

    def _read_model(self, model: Any) -> Any:
        if isinstance(model, CausalModel):
            return model
        transformers = sys.modules.get("transformers")
        if transformers is not None and isinstance(model, transformers.PreTrainedModel):
            from echoic.agents.llm.transformers import TransformersModel

            return TransformersModel(model.to(self.device))
        if all(hasattr(model, name) for name in ("state_dim", "action_dim", "latent_dim")):
            return PolicyModel(model, self.device)
        raise ArgumentError(
            "model must be a CausalModel, a causal language model of transformers, or a "
            f"PolicyNetwork; got {type(model).__name__}"
        )

    def _read(self, request: RolloutRequest) -> Rollout:
        """Check that the model can run a request, and make its rollout."""
        model = self.model
        if isinstance(model, PolicyModel):
            states = torch.as_tensor(request.state_sequence)
            if states.ndim != 2 or not len(states):
                raise ArgumentError(
                    f"a policy takes [rows, state_dim], and rows; got shape {tuple(states.shape)}"
                )
            # It decides for the last state, as a token whose embedding is the state.
            request.state_sequence = [model.vocab_size]
            request.embeddings = {model.vocab_size: states[-1]}
            request.sampling = dataclasses.replace(request.sampling, max_new_tokens=1)
        tokens = as_tokens(request.state_sequence)
        if not tokens:
            raise ArgumentError("a rollout needs at least one token to start from")
        # Embeddings of virtual tokens, as bytes, which the prefix cache compares.
        virtual: dict[Hashable, bytes] = {}
        for name, vector in request.embeddings.items():
            row = torch.as_tensor(vector).detach().cpu().float().numpy()
            if not isinstance(name, int) or name < model.vocab_size:
                raise ArgumentError(
                    f"ids of embeddings are at least {model.vocab_size}, not {name!r}"
                )
            if row.shape != (model.width,) or not np.isfinite(row).all():
                raise ArgumentError(
                    f"the embedding of {name} must be {model.width} finite numbers; got shape "
                    f"{row.shape}"
                )
            virtual[name] = row.tobytes()
        for token in (*(t for t in tokens if t not in virtual), *request.sampling.forced):
            if not isinstance(token, int) or not 0 <= token < model.vocab_size:
                raise ArgumentError(
                    f"tokens are ids from 0 to below {model.vocab_size}; got {token!r}"
                )
        sequence = tuple(virtual.get(token, token) for token in tokens)
        rollout = Rollout(request, sequence, self._seeds.getrandbits(63))
        room = min(int(self.config.max_cache_size), int(model.max_length))
        if rollout.limit > room:
            raise ArgumentError(
                f"{len(tokens)} tokens and {request.sampling.max_new_tokens} new ones do not fit "
                f"into {room}: max_cache_size is {self.config.max_cache_size}, and the model takes "
                f"{model.max_length}"
            )
        return rollout

    def _start(self) -> ThreadPoolExecutor:
        loop = asyncio.get_running_loop()
        self._check_open()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise ArgumentError("an engine is used from one event loop at a time")
            self._loop, self._wake, self._pumping = loop, asyncio.Event(), None
            for rollout in self._handles.values():
                rollout.cancelled = True
            self._handles.clear()
            self._queued.clear()
            self._waiting, self._room = 0, asyncio.Semaphore(self._queue_size)
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "echoic-engine")
        if self._pumping is None or self._pumping.done():
            self._pumping = loop.create_task(self._pump(loop, self._worker))
        return self._worker

    async def _pump(self, loop: asyncio.AbstractEventLoop, worker: ThreadPoolExecutor) -> None:
        try:
            while not self._closed:
                if self._batcher.busy:
                    self._dispatch(await loop.run_in_executor(worker, self._batcher.step))
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except Exception as error:  # rollouts end with it; this task is not awaited
            self._closed = True
            worker.shutdown(wait=False)
            self._fail_all("error", f"{type(error).__name__}: {error}")

    def _dispatch(self, changed: list[Rollout]) -> None:
        for rollout in changed:
            if rollout in self._queued:
                self._queued.remove(rollout)
                self._waiting -= 1
                self._make_room()
            if rollout.result is None:
                rollout.notify()
            else:
                self._settle(rollout, rollout.result)

    def _settle(self, handle: Rollout, result: RolloutResult) -> None:
        if handle.settled.is_set():
            return
        super()._settle(handle, result)
        if handle.request.callback is not None:
            try:
                handle.request.callback(result)
            except Exception:  # an error of one caller must not stop others
                _LOG.exception("the callback of %s failed", handle.request_id)

    def _fail_all(self, reason: str, error: str) -> None:
        for rollout in list(self._handles.values()):
            if rollout.result is None:
                rollout.end(time.monotonic(), reason, error)
            assert rollout.result is not None
            self._settle(rollout, rollout.result)
        self._make_room()
