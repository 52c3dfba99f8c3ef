"""Rollouts on servers elsewhere, by the interface of the engine for models that are here.

A rollout waits by priority for one of ``max_concurrent_rollouts`` places, is sent to the replica
that has probably computed most of its prompt, and hands out tokens as they come. If a server is
full, gone or silent, the rest is asked of whichever replica is best then: the prompt with what was
made of it goes on where the other left off, so nothing is lost or drawn twice, and what was already
streamed stays true.

All runs in the event loop of the caller. There is no lock: between two awaits nobody else runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import random
import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from echoic.agents.async_execution.rollouts import (
    RolloutResult,
    RolloutToken,
    SamplingParams,
    check_reward,
)
from echoic.agents.remote_execution.replica import Fault, Piece, Replica, Usage
from echoic.agents.remote_execution.routing import PrefixRouter, RemoteConfig
from echoic.errors import ArgumentError, ClosedError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from typing_extensions import Self

    from echoic.agents.bandwidth import BandwidthEfficiencyTracker

__all__ = ["RemoteEngine"]


class _Rollout:
    """One rollout, from its submission until its result was taken."""

    def __init__(
        self,
        request_id: str,
        prompt: str | list[int],
        sampling: SamplingParams,
        metadata: Mapping[str, Any],
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.sampling = sampling
        self.metadata = metadata
        self.submitted = time.monotonic()
        self.began: float | None = None
        self.text = ""
        # Ids are those that the server told, or -1 where it tells only text.
        self.tokens: list[RolloutToken] = []
        self.finish = ""
        self.usage: Usage | None = None
        self.faults: list[str] = []
        self.failed: set[int] = set()
        # Whether what a broken attempt has cost is known to nobody.
        self.untold = False
        self.result: RolloutResult | None = None
        self.task: asyncio.Task[str] | None = None
        self.changed = asyncio.Event()

    def tell(self) -> None:
        """Wake whoever awaits tokens or the result."""
        self.changed.set()
        self.changed = asyncio.Event()

    def take(self, piece: Piece, version: int) -> None:
        """Add what a server sent. A token whose id it does not tell has the id -1."""
        ids = piece.token_ids or (-1,) * (len(piece.log_probs) or bool(piece.text))
        log_probs = piece.log_probs or (float("nan"),) * len(ids)
        if len(ids) != len(log_probs):
            raise Fault(
                f"a server sent {len(ids)} tokens with {len(log_probs)} log-probabilities",
                again=False,
            )
        if len(self.tokens) + len(ids) > self.sampling.max_new_tokens:
            raise Fault("a server sent more tokens than it was asked for", again=False)
        self.text += piece.text
        self.tokens.extend(
            RolloutToken(token, log_prob, version)
            for token, log_prob in zip(ids, log_probs, strict=True)
        )
        if ids:
            self.tell()

    @property
    def told_ids(self) -> bool:
        """Whether the id of every token is known."""
        return all(token.token >= 0 for token in self.tokens)

    def end(self, finish: str, error: str | None) -> RolloutResult:
        """What came of it."""
        now = time.monotonic()
        began = now if self.began is None else self.began
        prompt_length = 0 if self.usage is None else self.usage.prompt
        if not isinstance(self.prompt, str):
            prompt_length = len(self.prompt)
        cached = None if self.usage is None or self.untold else self.usage.cached
        return RolloutResult(
            request_id=self.request_id,
            success=error is None,
            execution_time=now - began,
            tokens_generated=len(self.tokens),
            error=error,
            metadata={**self.metadata, "faults": list(self.faults)},
            tokens=[token.token for token in self.tokens] if self.told_ids else [],
            logprobs=[token.logprob for token in self.tokens],
            versions=[token.version for token in self.tokens],
            text=self.text,
            finish_reason=finish,
            prompt_tokens=prompt_length,
            reused_tokens=cached,
            queue_time=began - self.submitted,
        )


class RemoteEngine:
    """Generates with servers that speak OpenAI's protocol of completions.

    Args:
        replicas: The servers. All serve the same weights.
        config: Limits; see :class:`RemoteConfig`.
        tracker: Is told what each rollout cost beyond what was reused, where the server says so.
        version: The version of the weights that the replicas have now.
        salt: Keeps prefixes of other engines' weights apart, together with the version, where a
            server salts its cache; by default one that nobody else has. Engines with the same
            weights may share one.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        config: RemoteConfig | None = None,
        *,
        tracker: BandwidthEfficiencyTracker | None = None,
        version: int = 0,
        salt: str | None = None,
    ) -> None:
        self._salt = salt or secrets.token_hex(8)
        self._updating = asyncio.Lock()
        self._replicas = list(replicas)
        if not self._replicas:
            raise ArgumentError("an engine needs at least one replica")
        self._config = config or RemoteConfig()
        self._tracker = tracker
        self._versions = [version] * len(self._replicas)
        self._open = set(range(len(self._replicas)))
        self._router = PrefixRouter(
            len(self._replicas),
            block=self._config.affinity_block,
            slack=self._config.affinity_slack,
        )
        # Jitter of waits, no secret.
        self._random = random.Random(self._config.seed)
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._running = 0
        self._rollouts: dict[str, _Rollout] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._changed = asyncio.Event()
        self._closed = False
        self._completed = self._failed = self._retried = 0
        self._made = self._prompted = self._cached = self._untold = 0
        self._began = time.monotonic()

    @property
    def version(self) -> int:
        """The version that every replica has at least."""
        return min(self._versions)

    async def submit_rollout(
        self,
        state_sequence: str | Sequence[int],
        priority: float = 1.0,
        metadata: Mapping[str, Any] | None = None,
        *,
        sampling: SamplingParams | None = None,
        timeout: float | None = None,
    ) -> str:
        """Ask for a rollout, and get its name. Waits while ``priority_queue_size`` others wait.

        Args:
            state_sequence: The prompt: token ids where the servers take them, text otherwise.
            priority: Who is more is admitted sooner.
            metadata: Comes back with the result; ``reward`` in it is what a tracker is told.
            sampling: How tokens are drawn.
            timeout: Seconds until it is given up; the configuration's by default.
        """
        prompt = self._checked(state_sequence)
        sampling = sampling or SamplingParams()
        if not math.isfinite(priority):
            raise ArgumentError(f"a priority is a finite number, not {priority}")
        check_reward(metadata or {})
        if sampling.forced:
            raise ArgumentError("servers elsewhere take no forced tokens: score with a model here")
        for replica in self._replicas:
            if sampling.stop and replica.dialect.stop_ids is None:
                raise ArgumentError(f"{replica!r} takes no token ids that end an answer")
        limit = self._config.timeout if timeout is None else timeout
        await self._room(limit)
        number = next(self._numbers)
        request_id = f"remote-{number}"
        rollout = _Rollout(request_id, prompt, sampling, dict(metadata or {}))
        self._rollouts[request_id] = rollout
        # Everybody ages at the same rate, so that who is next does not depend on when one looks.
        rank = self._config.aging * rollout.submitted - priority
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, number, place))
        # What ends it is a callback: a task that is cancelled before its first step never runs.
        rollout.task = asyncio.create_task(self._live(rollout, place, limit))
        rollout.task.add_done_callback(lambda task: self._end(rollout, place, task, limit))
        self._admit()
        return request_id

    async def get_result(self, request_id: str, timeout: float | None = None) -> RolloutResult:
        """What came of a rollout, once. A rollout that failed has a result that says why.

        Raises:
            WaitTimeoutError: It has not ended in time; it goes on, and can be asked for again.
            ArgumentError: There is no such rollout, or its result was taken or dropped.
        """
        rollout = self._known(request_id)

        async def ended() -> RolloutResult:
            while rollout.result is None:
                await rollout.changed.wait()
            return rollout.result

        try:
            result = await asyncio.wait_for(ended(), timeout)
        except asyncio.TimeoutError:
            raise WaitTimeoutError(
                f"rollout {request_id} has not ended within {timeout:g} s; it goes on"
            ) from None
        self._rollouts.pop(request_id, None)
        self._ended.pop(request_id, None)
        return result

    async def stream(self, request_id: str) -> AsyncIterator[RolloutToken]:
        """The tokens of a rollout as they come; ids are -1 where a server tells only text."""
        rollout = self._known(request_id)
        seen = 0
        while True:
            while seen < len(rollout.tokens):
                seen += 1
                yield rollout.tokens[seen - 1]
            if rollout.result is not None:
                return
            await rollout.changed.wait()

    async def generate(
        self,
        state_sequence: str | Sequence[int],
        sampling: SamplingParams | None = None,
        priority: float = 1.0,
        *,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> RolloutResult:
        """Submit a rollout and wait for its result. Whoever cancels this cancels the rollout."""
        request_id = await self.submit_rollout(
            state_sequence, priority, metadata, sampling=sampling, timeout=timeout
        )
        rollout = self._known(request_id)
        try:
            return await self.get_result(request_id)
        except asyncio.CancelledError:
            # Nobody will take the result.
            if rollout.task is not None:
                rollout.task.add_done_callback(lambda _: self._rollouts.pop(request_id, None))
            self.cancel(request_id)
            raise

    def cancel(self, request_id: str) -> bool:
        """End a rollout where it is, with what was made of it. False if it had ended by itself."""
        rollout = self._known(request_id)
        return rollout.result is None and rollout.task is not None and rollout.task.cancel()

    async def update_weights(
        self,
        version: int,
        load: Callable[[Replica, int], Awaitable[None]] | None = None,
        *,
        timeout: float = 60.0,
    ) -> None:
        """Give every replica new weights, one after the other, and let it forget what it computed.

        A replica gets no rollouts while it is updated; those that it has may end before. With
        several replicas the others go on. What they compute from then on is of the new version.

        Args:
            version: Of the new weights; larger than the last.
            load: Brings the weights to a replica; leave it out if they are there.
            timeout: Seconds for a replica to end what it has, and to empty its cache.

        Raises:
            ArgumentError: The version is no larger, or a replica can't be made to forget.
            Fault: A cache was not emptied. The replica stays out until this is called again.
            WaitTimeoutError: A replica did not end in time what it had; it goes on with the old
                ones.
        """
        async with self._updating:
            await self._update(version, load, timeout)

    async def cache_counters(self) -> list[tuple[float, float] | None]:
        """For each replica the prompt tokens looked up in its cache and found there, as it says."""
        asked = (replica.cache_counters(self._config.stall) for replica in self._replicas)
        return list(await asyncio.gather(*asked))

    def get_performance_metrics(self) -> dict[str, Any]:
        """Counts since the engine was made, and what is under way."""
        seconds = time.monotonic() - self._began
        told = self._prompted - self._untold
        return {
            "active_rollouts": self._running,
            "queued_rollouts": len(self._waiting),
            "completed_rollouts": self._completed,
            "failed_rollouts": self._failed,
            "retries": self._retried,
            "tokens_generated": self._made,
            "tokens_per_second": self._made / seconds if seconds else 0.0,
            "prompt_tokens": self._prompted,
            "reused_tokens": self._cached,
            "prompt_tokens_of_unknown_reuse": self._untold,
            "kv_reuse_rate": self._cached / told if told else None,
            "loads": list(self._router.loads),
            "versions": list(self._versions),
        }

    def shutdown(self) -> None:
        """End every rollout. Results can still be taken; connections close with the event loop."""
        self._closed = True
        for rollout in self._rollouts.values():
            if rollout.task is not None:
                rollout.task.cancel()
        self._tell()

    async def aclose(self) -> None:
        """Do what :meth:`shutdown` does, wait until it is done, and close all connections."""
        self.shutdown()
        tasks = [rollout.task for rollout in self._rollouts.values() if rollout.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.close() for replica in self._replicas))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _checked(self, prompt: str | Sequence[int]) -> str | list[int]:
        if isinstance(prompt, str):
            return prompt
        try:
            tokens = [int(token) for token in prompt]
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"a prompt is text or token ids, not {prompt!r}") from error
        for replica in self._replicas:
            if not replica.dialect.token_prompts:
                raise ArgumentError(f"{replica!r} takes text, not token ids")
        return tokens

    def _known(self, request_id: str) -> _Rollout:
        if request_id not in self._rollouts:
            raise ArgumentError(
                f"there is no rollout {request_id!r}; its result was taken, or dropped when there "
                f"were more than {self._config.max_results}"
            )
        return self._rollouts[request_id]

    async def _room(self, limit: float) -> None:
        """Wait until one more may wait."""
        deadline = time.monotonic() + limit
        while not self._closed and len(self._waiting) >= self._config.priority_queue_size:
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except asyncio.TimeoutError:
                raise WaitTimeoutError(
                    f"{len(self._waiting)} rollouts wait already, and after {limit:g} s there was "
                    "no room for another one"
                ) from None
        if self._closed:
            raise ClosedError("the engine was shut down")

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _admit(self) -> None:
        """Give free places to those whose turn it is."""
        while self._waiting and self._running < self._config.max_concurrent_rollouts:
            _, _, place = heapq.heappop(self._waiting)
            if not place.done():
                place.set_result(None)
                self._running += 1
        self._tell()

    async def _update(
        self,
        version: int,
        load: Callable[[Replica, int], Awaitable[None]] | None,
        timeout: float,
    ) -> None:
        if version <= self.version:
            raise ArgumentError(f"the version must be above {self.version}, and is {version}")
        for replica in self._replicas:
            if not replica.dialect.forgets:
                raise ArgumentError(
                    f"{replica!r} can neither empty its prefix cache nor salt it, so answers would "
                    "mix what old and new weights computed; start it anew, in a new engine"
                )
        for index, replica in enumerate(self._replicas):
            if self._versions[index] >= version:
                continue
            self._open.discard(index)
            await self._drained(index, timeout)
            if load is not None:
                await load(replica, version)
            if not replica.dialect.salted:
                await replica.reset_cache(timeout)
            self._router.forget(index)
            self._versions[index] = version
            self._open.add(index)
            self._tell()

    async def _drained(self, index: int, timeout: float) -> None:
        """Wait until a replica has nothing to do."""
        deadline = time.monotonic() + timeout
        while self._router.loads[index]:
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except asyncio.CancelledError:
                self._open.add(index)
                self._tell()
                raise
            except asyncio.TimeoutError:
                self._open.add(index)
                self._tell()
                raise WaitTimeoutError(
                    f"{self._replicas[index]!r} still has {self._router.loads[index]} rollouts "
                    f"after {timeout:g} s; it goes on with version {self._versions[index]}"
                ) from None

    async def _live(self, rollout: _Rollout, place: asyncio.Future[None], limit: float) -> str:
        """The time that it waits counts too."""
        return await asyncio.wait_for(self._run(rollout, place), limit)

    def _end(
        self, rollout: _Rollout, place: asyncio.Future[None], task: asyncio.Task[str], limit: float
    ) -> None:
        """Whatever became of a rollout, it has a result, and its place is free."""
        finish, error = "error", None
        if task.cancelled():
            finish = "shutdown" if self._closed else "cancelled"
            error = "the engine was shut down" if self._closed else "it was cancelled"
        elif (raised := task.exception()) is None:
            finish = task.result()
        elif isinstance(raised, asyncio.TimeoutError):
            finish, error = "timeout", f"it took more than {limit:g} s"
        else:
            error = str(raised) if isinstance(raised, Fault) else repr(raised)
        if place.done():
            self._running -= 1
        else:
            place.cancel()
            self._waiting = [entry for entry in self._waiting if entry[2] is not place]
            heapq.heapify(self._waiting)
        rollout.result = rollout.end(finish, error)
        rollout.tell()
        self._admit()
        self._count(rollout, error)

    async def _run(self, rollout: _Rollout, place: asyncio.Future[None]) -> str:
        await asyncio.shield(place)
        rollout.began = time.monotonic()
        wait = self._config.backoff
        for attempt in range(1, self._config.attempts + 1):
            index = await self._route(rollout)
            try:
                return await self._attempt(rollout, index)
            except Fault as fault:
                rollout.faults.append(str(fault))
                rollout.failed.add(index)
                if not fault.again or attempt == self._config.attempts:
                    raise
                asked = wait if fault.after is None else fault.after
            finally:
                self._router.done(index)
                self._tell()
            self._retried += 1
            # Up to half as long again, so that those who were refused together do not come
            # together.
            pause = min(asked * (1 + self._random.random() / 2), self._config.max_backoff)
            await asyncio.sleep(pause)
            wait *= 2
        raise AssertionError("the last attempt returns or raises")

    async def _route(self, rollout: _Rollout) -> int:
        """Whoever has not failed it yet, as long as there is somebody."""
        while not self._open:
            await self._changed.wait()
        others = self._open - rollout.failed
        if not others:
            rollout.failed.clear()
        return self._router.choose(rollout.prompt, others or self._open)

    async def _attempt(self, rollout: _Rollout, index: int) -> str:
        """Ask one replica for what is missing. Returns why the rollout has ended."""
        replica, version = self._replicas[index], self._versions[index]
        sampling = rollout.sampling
        missing = sampling.max_new_tokens - len(rollout.tokens)
        if missing == 0:
            return "length"
        pieces = replica.complete(
            self._so_far(rollout, replica),
            max_tokens=missing,
            sampling=self._asked(rollout, replica),
            salt=f"{self._salt}-{version}",
            stall=self._config.stall,
        )
        finish = None
        rollout.usage = None
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    finish = piece.finish or finish
                    rollout.usage = piece.usage or rollout.usage
                    rollout.take(piece, version)
        except Fault as fault:
            rollout.untold = rollout.untold or fault.worked
            # What broke after the end of an answer costs its numbers only.
            if finish is None or not fault.again:
                raise
        if finish is None:
            raise Fault(f"{replica!r} ended its answer without saying why", again=True)
        return finish

    def _so_far(self, rollout: _Rollout, replica: Replica) -> str | list[int]:
        """The prompt with what was made of it: from there the rest has the distribution it had."""
        if isinstance(rollout.prompt, str):
            return rollout.prompt + rollout.text
        if not rollout.told_ids:
            raise Fault(
                f"the rest can't be asked for, since {replica!r} does not tell token ids",
                again=False,
            )
        return [*rollout.prompt, *(token.token for token in rollout.tokens)]

    def _asked(self, rollout: _Rollout, replica: Replica) -> dict[str, Any]:
        sampling = rollout.sampling
        asked: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        if sampling.seed is not None:
            # The rest of an answer must not draw what its beginning drew.
            asked["seed"] = sampling.seed + len(rollout.tokens)
        if sampling.stop and replica.dialect.stop_ids is not None:
            asked[replica.dialect.stop_ids] = list(sampling.stop)
        return asked

    def _count(self, rollout: _Rollout, error: str | None) -> None:
        self._completed += error is None
        self._failed += error is not None
        self._made += len(rollout.tokens)
        usage = rollout.usage
        if usage is not None:
            self._prompted += usage.prompt
            if usage.cached is None or rollout.untold:
                self._untold += usage.prompt
            else:
                cached = min(usage.cached, usage.prompt)
                self._cached += cached
                if self._tracker is not None:
                    # All whose keys and values were computed or reused: not the last one drawn.
                    self._tracker.record_rollout_step(
                        reward=float(rollout.metadata.get("reward", 0.0)),
                        seq_len=usage.prompt + max(usage.made - 1, 0),
                        reuse_len=cached,
                    )
        self._ended[rollout.request_id] = None
        while len(self._ended) > self._config.max_results:
            oldest, _ = self._ended.popitem(last=False)
            self._rollouts.pop(oldest, None)
