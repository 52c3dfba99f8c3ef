"""Routing of prompts to the replica that has computed most of them, unless it is busy; and limits.

A prompt is cut into blocks. The digest of a block stands for the block and all before it, so a
common beginning of two prompts has equal digests. The router remembers which replicas blocks were
sent to, the latest ones of each. It does not know what a replica has evicted meanwhile, so an
affinity is a guess; reuse is counted from the answers.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from echoic.agents import _checks
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["PrefixRouter", "RemoteConfig"]


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
        affinity_block: Tokens, or bytes of text, in a block of the router.
        affinity_slack: How much busier than the idlest the router lets a replica be.
        seed: Seed of the jitter of pauses between attempts.
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
    affinity_block: int = 64
    affinity_slack: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        _checks.whole(self, "max_concurrent_rollouts", "priority_queue_size", "attempts")
        _checks.whole(self, "max_results")
        _checks.number(self, "timeout", "stall", above=0, finite=False)
        _checks.number(self, "backoff", "max_backoff", "aging", least=0, finite=False)


class PrefixRouter:
    """Sends prompts that begin alike to the same replica.

    Args:
        replicas: Number of replicas.
        block: Tokens, or bytes of text, of a block. Only whole blocks count as shared.
        remembered: Number of blocks that are remembered of each replica.
        slack: Affinity is ignored for replicas with more unanswered requests than this above the
            idlest.
    """

    def __init__(
        self, replicas: int, *, block: int = 64, remembered: int = 65536, slack: int = 8
    ) -> None:
        for name, number in (("replicas", replicas), ("block", block), ("remembered", remembered)):
            if number < 1:
                raise ArgumentError(f"{name} must be at least 1, not {number}")
        if slack < 0:
            raise ArgumentError(f"slack must not be negative, and is {slack}")
        self._block = block
        self._remembered = remembered
        self._slack = slack
        self._seen: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(replicas)]
        self.loads = [0] * replicas

    def choose(self, prompt: str | Sequence[int], allowed: Collection[int] | None = None) -> int:
        """Choose the replica for a prompt, which counts as its load until :meth:`done`.

        Args:
            prompt: Text or token ids.
            allowed: Replicas that may be chosen; all by default.
        """
        candidates = sorted(range(len(self.loads)) if allowed is None else allowed)
        if not candidates:
            raise ArgumentError("expected at least one allowed replica, got none")
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

    def forget(self, replica: int | None = None) -> None:
        """Forget the blocks of a replica whose cache was emptied; of all without one."""
        for one in range(len(self.loads)) if replica is None else (replica,):
            self._seen[one].clear()

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
