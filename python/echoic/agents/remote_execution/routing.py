"""Which replica gets a prompt: the one that has computed most of it, unless it is busy; and limits.

A prompt is cut into blocks. The digest of a block stands for the block and all before it, so what
two prompts share at their beginning are equal digests. The router remembers to which replicas
blocks were sent, the latest ones of each; it does not know what a replica has thrown away in the
meantime, so an affinity is a guess, and what was really reused is counted from the answers.
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
        max_concurrent_rollouts: How many requests are under way at once, at all replicas together.
        priority_queue_size: How many more may wait; then whoever submits waits.
        timeout: After how many seconds a rollout has failed, its waiting included.
        stall: How many seconds a server may be silent, before or between tokens, until it counts as
            gone.
        attempts: How often a rollout is tried before it has failed.
        backoff: Seconds before the second attempt; it doubles with each. A server's ``Retry-After``
            counts where it says one.
        max_backoff: The most seconds between two attempts, also if a server asks for more.
        aging: What a second of waiting adds to a priority, so that nobody waits for ever.
        max_results: How many results are kept until somebody asks; then the oldest are dropped.
        affinity_block: Tokens, or bytes of text, in a block of the router.
        affinity_slack: How much busier than the idlest the router lets a replica be.
        seed: Of the randomness in waits between attempts.
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
        replicas: How many there are.
        block: How many tokens, or bytes of text, a block has. What is shared beyond whole blocks
            does not count.
        remembered: How many blocks are remembered of each replica.
        slack: How many more unanswered requests than the idlest replica one may have before
            affinity does not count any more.
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
        """The replica for this prompt, which counts as its load until :meth:`done`.

        Args:
            prompt: Text or token ids.
            allowed: Which replicas may be chosen; all by default.
        """
        candidates = sorted(range(len(self.loads)) if allowed is None else allowed)
        if not candidates:
            raise ArgumentError("no replica may be chosen")
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
        """A request at this replica is over, whatever came of it."""
        self.loads[replica] -= 1

    def forget(self, replica: int | None = None) -> None:
        """Its cache was emptied; or everybody's."""
        for one in range(len(self.loads)) if replica is None else (replica,):
            self._seen[one].clear()

    def _shared(self, replica: int, digests: list[bytes]) -> int:
        """How many blocks from the beginning this replica has seen."""
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
