"""Rollouts: their requests, tokens and results, and how tokens are drawn.

Each rollout has its own random numbers, so that what it draws depends on its seed and its logits,
and not on the rest of the batch.
"""

from __future__ import annotations

import math
import numbers
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from echoic.agents.llm.radix import Node

__all__ = [
    "Progress",
    "Rollout",
    "RolloutRequest",
    "RolloutResult",
    "RolloutToken",
    "SamplingParams",
    "check_reward",
    "draw",
]


@dataclass(frozen=True)
class SamplingParams:
    """How a rollout draws its tokens, and when it ends.

    >>> SamplingParams(temperature=0.0).greedy
    True

    Attributes:
        max_new_tokens: Most tokens that are drawn.
        temperature: Logits are divided by it; 0 takes the likeliest token.
        top_p: Only the likeliest tokens that together have this probability are drawn.
        stop: The rollout ends after one of these tokens, which is part of it.
        seed: Seed of its random numbers; None takes one from the engine's.
        forced: Tokens that are taken first instead of drawn, to get the log-probabilities of a
            given answer. ``stop`` does not apply to them.
    """

    max_new_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[int, ...] = ()
    seed: int | None = None
    forced: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ArgumentError(f"max_new_tokens is at least 1, not {self.max_new_tokens}")
        if not 0 <= self.temperature < math.inf:
            raise ArgumentError(f"temperature is finite and not below 0, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ArgumentError(f"top_p is above 0 and at most 1, not {self.top_p}")
        object.__setattr__(self, "stop", tuple(int(token) for token in self.stop))
        object.__setattr__(self, "forced", tuple(int(token) for token in self.forced))
        if len(self.forced) > self.max_new_tokens:
            raise ArgumentError(
                f"{len(self.forced)} tokens are forced, and max_new_tokens is {self.max_new_tokens}"
            )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0


def draw(
    logits: Any,
    params: Sequence[SamplingParams],
    chances: Sequence[float],
    forced: Sequence[int | None] = (),
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw a token for each row.

    Args:
        logits: [rows, vocab].
        params: Of each row.
        chances: For each row a random number from 0 to below 1; not used for greedy rows.
        forced: For each row the token that is taken instead, or None; empty: all are drawn.

    Returns:
        Tokens, and the logarithm of the probability of each under ``softmax(logits /
        temperature)``, where greedy rows have temperature 1. ``top_p`` does not change it, so
        that it equals what a learner computes from the same logits.
    """
    logits = logits.float()
    device = logits.device
    heats = torch.tensor([1.0 if p.greedy else p.temperature for p in params], device=device)
    logs = torch.log_softmax(logits / heats[:, None], -1)
    tokens = logs.argmax(-1)
    drawn = [row for row, p in enumerate(params) if not p.greedy]
    if drawn:
        rows = torch.tensor(drawn, device=device)
        chance = torch.tensor([chances[row] for row in drawn], dtype=torch.float64, device=device)
        likely = logs[rows].double().exp()
        order = None
        limits = [params[row].top_p for row in drawn]
        if min(limits) < 1:
            likely, order = likely.sort(-1, descending=True)
            limit = torch.tensor(limits, dtype=torch.float64, device=device)[:, None]
            # A token stays if those before it have not filled the limit, so that one always does.
            before = likely.cumsum(-1) - likely
            likely = torch.where((before < limit) | (limit >= 1), likely, 0.0)
        sums = likely.cumsum(-1)
        picks = torch.searchsorted(sums, (chance * sums[:, -1])[:, None], right=True)
        # Rounding could point behind the last token with a probability.
        last = (likely > 0).long().cumsum(-1).argmax(-1, keepdim=True)
        picks = torch.minimum(picks, last)
        if order is not None:
            picks = order.gather(-1, picks)
        tokens[rows] = picks[:, 0]
    for row, token in enumerate(forced):
        if token is not None:
            tokens[row] = token
    taken = logs.gather(-1, tokens[:, None])[:, 0]
    return tokens.cpu().numpy(), taken.double().cpu().numpy()


@dataclass
class RolloutRequest:
    """A request for a rollout.

    Attributes:
        request_id: Name of the rollout.
        state_sequence: Token ids, or states, a row each.
        priority: Its worth; see ``LatencyScheduler``.
        timestamp: When it was submitted, in seconds of ``time.monotonic``.
        callback: Called with the result, on the thread of the event loop.
        metadata: Returned with the result. An engine reads ``reward`` (for its tracker of
            bandwidth) and, for policies over vectors, ``plan``.
        sampling: How tokens are drawn.
        timeout: Seconds from submission until it is stopped.
        return_kv: Whether the result has a copy of its keys and values.
        embeddings: Input embeddings of virtual tokens: ids from the model's ``vocab_size`` up.
    """

    request_id: str
    state_sequence: Any
    priority: float = 1.0
    timestamp: float = 0.0
    callback: Callable[[RolloutResult], None] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    timeout: float = 30.0
    return_kv: bool = False
    embeddings: Mapping[int, Any] = field(default_factory=dict)


class RolloutToken(NamedTuple):
    """A token, the logarithm of its probability, and the version of the weights that drew it."""

    token: int
    logprob: float
    version: int


@dataclass
class RolloutResult:
    """The result of a rollout.

    Attributes:
        request_id: Name of the rollout.
        success: Whether it ended by itself. Tokens drawn before a failure are included.
        kv_cache: With ``return_kv`` a copy of keys and values, [2 * layers, tokens, kv_heads,
            head_dim], of all tokens but the last drawn one.
        execution_time: Seconds from admission to the end.
        tokens_generated: Number of tokens drawn; 1, the action, for a policy over vectors.
        error: Why it failed.
        metadata: That of the request.
        tokens: The tokens drawn.
        logprobs: Of each token; see ``echoic.agents.llm.requests.draw``.
        versions: For each token the version of the weights that drew it.
        finish_reason: ``"stop"``, ``"length"``, ``"action"``, ``"cancelled"``, ``"timeout"``,
            ``"error"`` or ``"shutdown"``.
        prompt_tokens: Tokens, or rows, of the request.
        reused_tokens: Number of those in the cache when it was first admitted; None if a server
            does not report it.
        queue_time: Seconds from submission to admission.
        action: Action of a policy over vectors.
        text: Text of a server's answer; local engines return tokens only.
    """

    request_id: str
    success: bool
    kv_cache: Any = None
    execution_time: float = 0.0
    tokens_generated: int = 0
    error: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str = ""
    prompt_tokens: int = 0
    reused_tokens: int | None = 0
    queue_time: float = 0.0
    action: Any = None
    text: str = ""

    def add(self, drawn: Sequence[RolloutToken]) -> None:
        """Set the tokens that were drawn."""
        self.tokens_generated = len(drawn)
        self.tokens = [token.token for token in drawn]
        self.logprobs = [token.logprob for token in drawn]
        self.versions = [token.version for token in drawn]


def check_reward(metadata: Mapping[str, Any]) -> None:
    """Raise an ``ArgumentError`` if ``reward`` is not a finite number, which a tracker needs."""
    reward = metadata.get("reward", 0.0)
    if not isinstance(reward, numbers.Real) or not math.isfinite(reward):
        raise ArgumentError(f"a reward in metadata must be a finite number, not {reward!r}")


@dataclass
class Progress:
    """Progress of one rollout in a tick; ``result`` is set when it has ended."""

    request_id: str
    admitted: bool = False
    tokens: list[RolloutToken] = field(default_factory=list)
    result: RolloutResult | None = None


class Rollout:
    """The worker's state of a rollout.

    ``pages[:shared]`` are the tree's, pinned through ``node``; ``pages[shared:filled]`` are its
    own. Keys and values of ``tokens[:filled]`` are in ``pages[:filled]``.
    """

    def __init__(self, request: RolloutRequest, tokens: tuple[Hashable, ...], seed: int) -> None:
        self.request = request
        self.tokens: list[Any] = list(tokens)
        self.prompt = len(tokens)
        self.sampling = request.sampling
        self.deadline = request.timestamp + request.timeout
        self.drawn: list[RolloutToken] = []
        self.admitted: float | None = None
        self.reused = 0
        self.node: Node | None = None
        self.pages: NDArray[np.int64] = np.empty(0, np.int64)
        self.filled = 0
        self.shared = 0
        # Tokens that it reused when it was last started, for accounts.
        self.began = 0
        self.published = False
        self._seed = request.sampling.seed if request.sampling.seed is not None else seed
        self._random: random.Random | None = None

    @property
    def limit(self) -> int:
        """Most tokens whose keys and values it may need: all but the last one drawn."""
        return self.prompt + self.sampling.max_new_tokens - 1

    @property
    def forced(self) -> int | None:
        """The next token, if it is given and not drawn."""
        given, place = self.sampling.forced, len(self.drawn)
        return given[place] if place < len(given) else None

    def chance(self) -> float:
        """Take the next random number."""
        if self.sampling.greedy:
            return 0.0
        if self._random is None:
            # Random numbers for exploration, not for secrets.
            self._random = random.Random(self._seed)
        return self._random.random()

    def result(self, now: float, reason: str, error: str | None = None) -> RolloutResult:
        """Make the result."""
        began = now if self.admitted is None else self.admitted
        result = RolloutResult(
            request_id=self.request.request_id,
            success=error is None,
            execution_time=now - began,
            error=error,
            metadata=self.request.metadata,
            finish_reason=reason,
            prompt_tokens=self.prompt,
            reused_tokens=self.reused,
            queue_time=began - self.request.timestamp,
        )
        result.add(self.drawn)
        return result
