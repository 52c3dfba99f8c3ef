"""Rollouts on servers, with the interface of the engine for local models.

A rollout waits by priority for one of ``max_concurrent_rollouts`` places, is sent to the replica
that has probably computed most of its prompt, and yields tokens as they arrive. If a server is
full, gone or silent, the rest is requested from the best replica then: the prompt with the tokens
so far continues where the other stopped, so nothing is lost or drawn twice, and tokens that were
streamed stay valid.

Everything runs in the event loop of the caller, without locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import heapq
import itertools
import math
import operator
import random
import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents import _checks
from echoic.agents.llm.replica import MAX_LINE, Fault, Piece, Replica, Usage
from echoic.agents.llm.requests import (
    Handle,
    RolloutEngine,
    RolloutResult,
    RolloutToken,
    SamplingParams,
    check_reward,
)
from echoic.errors import ArgumentError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from echoic.agents.bandwidth import BandwidthEfficiencyTracker

__all__ = ["PrefixRouter", "RemoteConfig", "RemoteEngine"]


@dataclasses.dataclass(frozen=True)
class RemoteConfig:
    """Limits of a :class:`RemoteEngine`.

    Attributes:
        max_concurrent_rollouts: Most requests under way, at all replicas together.
        priority_queue_size: Most rollouts that wait; further submissions wait for room.
        timeout: Seconds after which a rollout has failed, including its waiting.
        stall: Seconds that a server may be silent, before or between tokens.
        attempts: Most attempts of a rollout.
        backoff: Seconds before the second attempt; doubled with each. A server's ``Retry-After``
            replaces it.
        max_backoff: Most seconds between two attempts, also if a server asks for more.
        aging: Priority that each second of waiting adds, so that every rollout is admitted.
        max_results: A result is kept until it is taken, or this many later rollouts have ended.
    """

    max_concurrent_rollouts: int = 128
    priority_queue_size: int = 1000
    timeout: float = 30.0
    stall: float = 10.0
    attempts: int = 5
    backoff: float = 0.25
    max_backoff: float = 10.0
    aging: float = 0.1
    max_results: int = 10_000

    def __post_init__(self) -> None:
        _checks.whole(self, "max_concurrent_rollouts", "priority_queue_size", "attempts")
        _checks.whole(self, "max_results")
        _checks.number(self, "timeout", "stall", above=0, finite=False)
        _checks.number(self, "backoff", "max_backoff", "aging", least=0, finite=False)


class PrefixRouter:
    """Sends prompts that begin alike to the same replica, unless it is busy.

    A prompt is cut into blocks. The digest of a block stands for it and all before it. The router
    remembers which replicas blocks were sent to, and not what a replica has evicted meanwhile: an
    affinity is a guess, and reuse is counted from the answers.

    Args:
        replicas: Number of replicas.
        block: Tokens, or bytes of text, of a block.
        remembered: Number of blocks that are remembered of each replica.
        slack: How many more unanswered requests than the idlest a replica may have.
    """

    def __init__(
        self, replicas: int, *, block: int = 64, remembered: int = 65536, slack: int = 8
    ) -> None:
        self._block = block
        self._remembered = remembered
        self._slack = slack
        self._seen: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(replicas)]
        self.loads = [0] * replicas

    def choose(self, prompt: str | Sequence[int], allowed: Collection[int] | None = None) -> int:
        """Choose one of the ``allowed`` replicas for a prompt: its load until :meth:`done`."""
        candidates = sorted(range(len(self.loads)) if allowed is None else allowed)
        digests = self._digests(prompt)
        idlest = min(self.loads[replica] for replica in candidates)
        free = [one for one in candidates if self.loads[one] <= idlest + self._slack]
        chosen = max(free, key=lambda one: (self._shared(one, digests), -self.loads[one], -one))
        self.loads[chosen] += 1
        seen = self._seen[chosen]
        for digest in digests:
            seen[digest] = None
            seen.move_to_end(digest)
        while len(seen) > self._remembered:
            seen.popitem(last=False)
        return chosen

    def done(self, replica: int) -> None:
        """Count a request at this replica as ended."""
        self.loads[replica] -= 1

    def forget(self, replica: int) -> None:
        """Forget the blocks of a replica whose cache was emptied."""
        self._seen[replica].clear()

    def _shared(self, replica: int, digests: list[bytes]) -> int:
        """Return how many blocks from the beginning were sent to a replica."""
        seen = self._seen[replica]
        for count, digest in enumerate(digests):
            if digest not in seen:
                return count
        return len(digests)

    def _digests(self, prompt: str | Sequence[int]) -> list[bytes]:
        if isinstance(prompt, str):
            data, width = prompt.encode(), self._block
        else:
            data, width = np.asarray(prompt, dtype="<i8").tobytes(), 8 * self._block
        digests = []
        rolling = hashlib.blake2b(digest_size=16)
        for end in range(width, len(data) + 1, width):
            rolling.update(data[end - width : end])
            digests.append(rolling.digest())
        return digests


class _Rollout(Handle):
    """One rollout, from its submission until its result was taken."""

    def __init__(
        self,
        request_id: str,
        prompt: str | list[int],
        sampling: SamplingParams,
        metadata: Mapping[str, Any],
    ) -> None:
        super().__init__(request_id)
        self.prompt = prompt
        self.sampling = sampling
        self.metadata = metadata
        self.submitted = time.monotonic()
        self.began: float | None = None
        self.text = ""
        self.usage: Usage | None = None
        self.faults: list[str] = []
        self.failed: set[int] = set()
        # Whether the usage of a broken attempt is unknown.
        self.uncounted = False
        self.task: asyncio.Task[str] | None = None

    def take(self, piece: Piece, version: int) -> None:
        """Add what a server sent. Tokens without an id get the id -1."""
        ids = piece.token_ids or (-1,) * (len(piece.log_probs) or bool(piece.text))
        log_probs = piece.log_probs or (float("nan"),) * len(ids)
        if len(ids) != len(log_probs):
            raise Fault(
                f"a server sent {len(ids)} tokens with {len(log_probs)} log-probabilities",
                again=False,
            )
        if len(self.tokens) + len(ids) > self.sampling.max_new_tokens:
            raise Fault("a server sent more tokens than were requested", again=False)
        if len(self.text) + len(piece.text) > MAX_LINE:
            raise Fault(f"a server sent more than {MAX_LINE} characters", again=False)
        self.text += piece.text
        self.tokens.extend(
            RolloutToken(token, log_prob, version)
            for token, log_prob in zip(ids, log_probs, strict=True)
        )
        if ids:
            self.notify()

    @property
    def has_ids(self) -> bool:
        """Whether the id of every token is known."""
        return all(token.token >= 0 for token in self.tokens)

    def end(self, finish: str, error: str | None) -> RolloutResult:
        """Make the result."""
        now = time.monotonic()
        began = now if self.began is None else self.began
        length = 0 if self.usage is None else self.usage.prompt
        if not isinstance(self.prompt, str):
            length = len(self.prompt)
        result = RolloutResult(
            request_id=self.request_id,
            success=error is None,
            execution_time=now - began,
            error=error,
            metadata={**self.metadata, "faults": list(self.faults)},
            text=self.text,
            finish_reason=finish,
            prompt_tokens=length,
            reused_tokens=None if self.usage is None or self.uncounted else self.usage.cached,
            queue_time=began - self.submitted,
        )
        result.add(self.tokens)
        if not self.has_ids:
            result.tokens = []
        return result


class RemoteEngine(RolloutEngine[_Rollout]):
    """Generates with servers that speak OpenAI's protocol of completions.

    Args:
        replicas: The servers, all with the same weights.
        config: Limits; see :class:`RemoteConfig`.
        tracker: Records each rollout's tokens, where the server reports those reused.
        version: Version of the replicas' weights.
        salt: With the version, separates cached prefixes from those of other engines' weights,
            where a server salts its cache; random by default. Engines with the same weights may
            share one.
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
        super().__init__(self._config.priority_queue_size, self._config.max_results)
        self._tracker = tracker
        self._versions = [version] * len(self._replicas)
        self._open = set(range(len(self._replicas)))
        self._router = PrefixRouter(len(self._replicas))
        self._numbers = itertools.count()
        self._queue: list[tuple[float, int, asyncio.Future[None]]] = []
        self._running = 0
        self._changed = asyncio.Event()
        self._completed = self._failed = self._retried = 0
        self._made = self._prompted = self._cached = self._uncounted = 0
        self._began = time.monotonic()

    @property
    def version(self) -> int:
        """The lowest version of all replicas."""
        return min(self._versions)

    async def submit_rollout(
        self,
        state_sequence: str | Sequence[int],
        priority: float = 1.0,
        metadata: Mapping[str, Any] | None = None,
        *,
        sampling: SamplingParams | None = None,
        timeout: float | None = None,
        **local: Any,
    ) -> str:
        """Submit a rollout and return its name, after waiting for room in the queue.

        ``state_sequence`` is token ids where the servers take them, text otherwise. The other
        arguments are those of ``AsyncExecutionEngine.submit_rollout``; its ``callback``,
        ``return_kv`` and ``embeddings`` are errors.
        """
        for name, value in local.items():
            if value:
                raise ArgumentError(f"servers take no {name}: use a local model")
        prompt = self._checked(state_sequence)
        sampling = sampling or SamplingParams()
        if not math.isfinite(priority):
            raise ArgumentError(f"a priority must be a finite number, not {priority}")
        check_reward(metadata or {})
        if sampling.forced:
            raise ArgumentError("servers take no forced tokens: use a local model to score answers")
        for replica in self._replicas:
            if sampling.stop and replica.dialect.stop_ids is None:
                raise ArgumentError(f"{replica!r} takes no stop tokens")
        limit = self._config.timeout if timeout is None else timeout
        self._check_open()
        await self._take_room(limit)
        number = next(self._numbers)
        rollout = _Rollout(f"remote-{number}", prompt, sampling, dict(metadata or {}))
        self._handles[rollout.request_id] = rollout
        # All ranks age at the same rate, so that their order does not depend on the time.
        rank = self._config.aging * rollout.submitted - priority
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (rank, number, place))
        # A callback ends the rollout: a task that is cancelled before its first step never runs.
        rollout.task = asyncio.create_task(self._live(rollout, place, limit))
        rollout.task.add_done_callback(lambda task: self._end(rollout, place, task, limit))
        self._admit()
        return rollout.request_id

    def cancel(self, request_id: str) -> bool:
        """Cancel a rollout, keeping its tokens; return whether it had not ended."""
        rollout = self._handles.get(request_id)
        if rollout is None or rollout.task is None or rollout.result is not None:
            return False
        return rollout.task.cancel()

    async def update_weights(
        self,
        version: int,
        load: Callable[[Replica, int], Awaitable[None]] | None = None,
        *,
        timeout: float = 60.0,
    ) -> None:
        """Load new weights into every replica, one after the other, and empty their caches.

        A replica first finishes its rollouts, and gets no others meanwhile.

        Args:
            version: Version of the new weights, above the last.
            load: Sends the weights to a replica; None if it has them.
            timeout: Seconds for a replica to finish its rollouts, and to empty its cache.

        Raises:
            ArgumentError: If the version is not above the last, or a replica's cache can not be
                emptied.
            Fault: If a cache was not emptied. The replica is not used until this is called again.
            WaitTimeoutError: If a replica did not finish in time; it keeps the old weights.
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
                await self._drained(index, timeout)
                if load is not None:
                    await load(replica, version)
                if not replica.dialect.salted:
                    await replica.reset_cache(timeout)
                self._router.forget(index)
                self._versions[index] = version
                self._open.add(index)
                self._notify()

    def get_performance_metrics(self) -> dict[str, Any]:
        """Return counts since the engine was made, and the rollouts under way."""
        seconds = time.monotonic() - self._began
        counted = self._prompted - self._uncounted
        return {
            "active_rollouts": self._running,
            "queued_rollouts": self._waiting,
            "completed_rollouts": self._completed,
            "failed_rollouts": self._failed,
            "retries": self._retried,
            "tokens_generated": self._made,
            "tokens_per_second": self._made / seconds if seconds else 0.0,
            "prompt_tokens": self._prompted,
            "reused_tokens": self._cached,
            "prompt_tokens_of_unknown_reuse": self._uncounted,
            "kv_reuse_rate": self._cached / counted if counted else None,
            "loads": list(self._router.loads),
            "versions": list(self._versions),
        }

    def shutdown(self) -> None:
        """End every rollout. Results can still be taken; connections close with the event loop."""
        self._closed = True
        for rollout in self._handles.values():
            if rollout.task is not None:
                rollout.task.cancel()
        self._make_room()
        self._notify()

    async def aclose(self) -> None:
        """Do the same as :meth:`shutdown`, wait until it is done, and close all connections."""
        self.shutdown()
        tasks = [rollout.task for rollout in self._handles.values() if rollout.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.close() for replica in self._replicas))

    def _checked(self, prompt: str | Sequence[int]) -> str | list[int]:
        if isinstance(prompt, str):
            return prompt
        try:
            tokens = [operator.index(token) for token in prompt]
        except TypeError as error:
            raise ArgumentError(f"a prompt must be text or token ids, not {prompt!r}") from error
        if not all(0 <= token < 1 << 31 for token in tokens):
            raise ArgumentError(f"token ids are from 0 to below 2³¹, unlike those of {prompt!r}")
        for replica in self._replicas:
            if not replica.dialect.token_prompts:
                raise ArgumentError(f"{replica!r} takes text, not token ids")
        return tokens

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _admit(self) -> None:
        """Admit rollouts while there are free places."""
        while self._queue and self._running < self._config.max_concurrent_rollouts:
            _, _, place = heapq.heappop(self._queue)
            if not place.done():
                place.set_result(None)
                self._running += 1
                self._waiting -= 1
                self._make_room()
        self._notify()

    async def _drained(self, index: int, timeout: float) -> None:
        """Wait until a replica has no rollouts."""
        deadline = time.monotonic() + timeout
        while self._router.loads[index]:
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except (asyncio.CancelledError, asyncio.TimeoutError) as error:
                self._open.add(index)
                self._notify()
                if isinstance(error, asyncio.CancelledError):
                    raise
                raise WaitTimeoutError(
                    f"{self._replicas[index]!r} still has {self._router.loads[index]} rollouts "
                    f"after {timeout:g} s; it goes on with version {self._versions[index]}"
                ) from None

    def _end(
        self, rollout: _Rollout, place: asyncio.Future[None], task: asyncio.Task[str], limit: float
    ) -> None:
        """Set the result of a rollout and free its place."""
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
            self._queue = [entry for entry in self._queue if entry[2] is not place]
            heapq.heapify(self._queue)
            self._waiting -= 1
            self._make_room()
        self._settle(rollout, rollout.end(finish, error))
        self._admit()
        self._count(rollout, error)

    async def _live(self, rollout: _Rollout, place: asyncio.Future[None], limit: float) -> str:
        # Not wait_for alone: cancelled before its first step, it would leave a coroutine unawaited.
        return await asyncio.wait_for(self._run(rollout, place), limit)

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
                pause = wait if fault.after is None else fault.after
            finally:
                self._router.done(index)
                self._notify()
            self._retried += 1
            # Up to half as long again, so that rollouts refused together do not return together.
            pause = min(pause * (1 + random.random() / 2), self._config.max_backoff)
            await asyncio.sleep(pause)
            wait *= 2
        raise AssertionError("the last attempt returns or raises")

    async def _route(self, rollout: _Rollout) -> int:
        """Choose a replica: one that has not failed the rollout yet, if there is one."""
        while not self._open:
            await self._changed.wait()
        others = self._open - rollout.failed
        if not others:
            rollout.failed.clear()
        return self._router.choose(rollout.prompt, others or self._open)

    async def _attempt(self, rollout: _Rollout, index: int) -> str:
        """Request the missing tokens from one replica; return why the rollout has ended."""
        replica, version = self._replicas[index], self._versions[index]
        sampling = rollout.sampling
        missing = sampling.max_new_tokens - len(rollout.tokens)
        if missing == 0:
            return "length"
        pieces = replica.complete(
            self._so_far(rollout, replica),
            max_tokens=missing,
            sampling=self._fields(rollout, replica),
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
            rollout.uncounted = rollout.uncounted or fault.worked
            # An error after the end of an answer costs only its usage.
            if finish is None or not fault.again:
                raise
        if finish not in ("stop", "length"):
            # Such as "abort"; the rest is requested again.
            rollout.uncounted = True
            raise Fault(f"{replica!r} ended its answer with the reason {finish!r}", again=True)
        return finish

    def _so_far(self, rollout: _Rollout, replica: Replica) -> str | list[int]:
        """Return the prompt with the tokens so far, from which the rest is drawn."""
        if isinstance(rollout.prompt, str):
            return rollout.prompt + rollout.text
        if not rollout.has_ids:
            raise Fault(
                f"the rest can't be requested, since {replica!r} does not return token ids",
                again=False,
            )
        return [*rollout.prompt, *(token.token for token in rollout.tokens)]

    def _fields(self, rollout: _Rollout, replica: Replica) -> dict[str, Any]:
        sampling = rollout.sampling
        fields: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        if sampling.seed is not None:
            # The rest of an answer must not repeat the random numbers of its beginning.
            fields["seed"] = sampling.seed + len(rollout.tokens)
        if sampling.stop and replica.dialect.stop_ids is not None:
            fields[replica.dialect.stop_ids] = list(sampling.stop)
        return fields

    def _count(self, rollout: _Rollout, error: str | None) -> None:
        self._completed += error is None
        self._failed += error is not None
        self._made += len(rollout.tokens)
        usage = rollout.usage
        if usage is not None:
            self._prompted += usage.prompt
            if usage.cached is None or rollout.uncounted:
                self._uncounted += usage.prompt
            else:
                self._cached += usage.cached
                if self._tracker is not None:
                    # The last token drawn has no keys and values yet.
                    self._tracker.record_rollout_step(
                        reward=float(rollout.metadata.get("reward", 0.0)),
                        seq_len=usage.prompt + max(usage.made - 1, 0),
                        reuse_len=usage.cached,
                    )
