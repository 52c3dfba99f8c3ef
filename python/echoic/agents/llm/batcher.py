"""Runners: what happens tick by tick on the engine's thread.

Other threads give a :class:`Runner` orders (``submit``, ``cancel``, ``update_weights``), which are
executed when its next tick starts. A :class:`Batcher` runs language models by continuous batching:
each tick is one forward pass over tokens of many rollouts.

1. Every rollout that is generating has one token to compute.
2. The rest of ``token_budget`` goes to prompts, in the order of admission and in pieces.
3. If budget is left, the best waiting rollouts are admitted, as long as their pages are certain:
   all that one may ever need must fit beside what the others may need. So no rollout runs out of
   pages or is evicted. Pages are taken as they are filled.
4. One forward pass. Rollouts whose last token was in it draw the next one.

Prompts are published to the prefix cache when they are computed, and generated tokens when the
rollout ends.

New weights are loaded between ticks. The cache is flushed, and running rollouts keep their tokens
and compute keys and values of all of them again. That makes every log-probability that of one
version's policy, given all that came before; old keys would make it that of a mixture.
"""

from __future__ import annotations

import math
import random
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.llm.cache import common
from echoic.agents.llm.model import PagedBatch, Span, Window, check_weights
from echoic.agents.llm.requests import RolloutRequest, RolloutResult, RolloutToken, SamplingParams
from echoic.agents.llm.scheduler import LatencyScheduler
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from echoic.agents.bandwidth import BandwidthEfficiencyTracker
    from echoic.agents.llm.cache import KVCacheManager, Node
    from echoic.agents.llm.config import ExecutionConfig
    from echoic.agents.llm.model import CausalModel

    Weights = Mapping[str, Any] | Callable[[Any], None]
    Done = Callable[[BaseException | None], None]
    Paths = list[tuple[bytes, str]]

__all__ = ["Batcher", "PolicyRunner", "Progress", "Rollout", "Runner", "draw", "read_states"]

# Tokens from which on a common beginning is worth products of its own.
_LEAST_STEM = 16
_COUNTS = (
    *("submitted", "completed", "failed", "cancelled", "timed_out", "ticks"),
    *("forwards", "forward_tokens", "prompt_tokens", "generated_tokens", "updates"),
)


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
    device = logits.device
    heats = [1.0 if p.greedy else p.temperature for p in params]
    logits = logits.float()
    if any(heat != 1 for heat in heats):
        logits = logits / torch.tensor(heats, device=device)[:, None]
    tokens = logits.argmax(-1)
    total = logits.logsumexp(-1)
    drawn = [row for row, p in enumerate(params) if not p.greedy]
    if drawn:
        rows = torch.tensor(drawn, device=device)
        chance = torch.tensor([chances[row] for row in drawn], dtype=torch.float64, device=device)
        likely = (logits[rows] - total[rows, None]).exp()
        order = None
        limits = [params[row].top_p for row in drawn]
        if min(limits) < 1:
            likely, order = likely.double().sort(-1, descending=True)
            limit = torch.tensor(limits, dtype=torch.float64, device=device)[:, None]
            # A token stays if those before it have not filled the limit, so that one always does.
            before = likely.cumsum(-1) - likely
            likely = torch.where((before < limit) | (limit >= 1), likely, 0.0)
        sums = likely.cumsum(-1, dtype=torch.float64)
        every = sums[:, -1:].contiguous()
        picks = torch.searchsorted(sums, chance[:, None] * every, right=True)
        # Rounding could point behind the last token with a probability.
        picks = torch.minimum(picks, torch.searchsorted(sums, every))
        if order is not None:
            picks = order.gather(-1, picks)
        tokens[rows] = picks[:, 0]
    for row, token in enumerate(forced):
        if token is not None:
            tokens[row] = token
    taken = logits.gather(-1, tokens[:, None])[:, 0] - total
    return tokens.cpu().numpy(), taken.double().cpu().numpy()


@dataclass
class Progress:
    """Progress of one rollout in a tick; ``result`` is set when it has ended."""

    request_id: str
    admitted: bool = False
    tokens: list[RolloutToken] = field(default_factory=list)
    result: RolloutResult | None = None


class Rollout:
    """The runner's state of a rollout.

    ``pages[:shared]`` are the tree's, pinned through ``node``; ``pages[shared:filled]`` are its
    own. Keys and values of ``tokens[:filled]`` are in ``pages[:filled]``, except those from
    ``stored`` on, which are only in its window. Random numbers are its own, so that what it draws
    depends on its seed and its logits, and not on the rest of the batch.
    """

    def __init__(self, request: RolloutRequest, tokens: tuple[Hashable, ...], seed: int) -> None:
        self.request = request
        self.name = request.request_id
        self.tokens: list[Any] = list(tokens)
        self.prompt = len(tokens)
        self.sampling = request.sampling
        self.deadline = request.timestamp + request.timeout
        self.drawn: list[RolloutToken] = []
        self.admitted: float | None = None
        # Tokens reused when it was first admitted, and when it was last started.
        self.reused = self.began = 0
        self.node: Node | None = None
        self.pages: NDArray[np.int64] = np.empty(0, np.int64)
        self.filled = self.shared = self.stored = 0
        self.published = False
        seed = seed if request.sampling.seed is None else request.sampling.seed
        # Random numbers for exploration, not for secrets.
        self._random = None if request.sampling.greedy else random.Random(seed)

    @property
    def missing(self) -> int:
        """Tokens whose keys and values are not computed."""
        return len(self.tokens) - self.filled

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
        return 0.0 if self._random is None else self._random.random()

    def result(self, now: float, reason: str, error: str | None = None) -> RolloutResult:
        """Make the result."""
        began = now if self.admitted is None else self.admitted
        result = RolloutResult(
            request_id=self.name,
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


class Runner(ABC):
    """Carries out rollouts tick by tick; ``clock`` is that of the requests' ``timestamp``."""

    def __init__(
        self,
        config: ExecutionConfig,
        tracker: BandwidthEfficiencyTracker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.tracker = tracker
        self.clock = clock
        self.version = 0
        self.scheduler = LatencyScheduler(config, clock=clock)
        self.rollouts: dict[str, Rollout] = {}
        self.counts = dict.fromkeys(_COUNTS, 0)
        self.busy_seconds = 0.0
        # Made at the end of a tick, for other threads to read.
        self.snapshot: dict[str, Any] = {"queue": self.scheduler.get_queue_stats(), "active": 0}
        self._orders: deque[Callable[[], None]] = deque()
        self._progress: dict[str, Progress] = {}

    @property
    def busy(self) -> bool:
        """Whether a tick would have something to do."""
        return bool(self._orders or self.rollouts)

    def submit(self, rollout: Rollout) -> None:
        """Queue a rollout."""
        self._orders.append(lambda: self._enter(rollout))

    def cancel(self, request_id: str) -> None:
        """End a rollout, if it has not ended."""
        self._orders.append(lambda: self._stop(request_id, "cancelled", "cancelled", "cancelled"))

    def update_weights(self, weights: Weights, version: int, done: Done) -> None:
        """Load new weights before the next tick; ``done`` gets the error, or None."""
        self._orders.append(lambda: self._update(weights, version, done))

    def step(self) -> list[Progress]:
        """Execute orders and one tick; return the progress of rollouts."""
        began = time.perf_counter()
        self.counts["ticks"] += 1
        while self._orders:
            self._orders.popleft()()
        now = self.clock()
        for rollout in [one for one in self.rollouts.values() if one.deadline <= now]:
            error = f"not done after {rollout.request.timeout:g} seconds"
            self._stop(rollout.name, "timed_out", "timeout", error)
        if self.rollouts:
            self._tick()
        self.busy_seconds += time.perf_counter() - began
        self.snapshot = {"queue": self.scheduler.get_queue_stats(), "active": len(self.rollouts)}
        progress, self._progress = list(self._progress.values()), {}
        return progress

    @abstractmethod
    def _tick(self) -> None:
        """Advance rollouts."""

    @abstractmethod
    def _load(self, weights: Weights, version: int) -> None:
        """Load new weights; on an error the old ones stay in use."""

    def _release(self, rollout: Rollout, *, keep: bool) -> None:
        """Free what a rollout has. With ``keep``, its keys and values may be cached."""
        del rollout, keep

    def _reusable(self, rollout: Rollout) -> int:
        """Return how many tokens of a new rollout are cached."""
        del rollout
        return 0

    def _copy(self, rollout: Rollout) -> Any:
        """Copy keys and values of a rollout; None without any."""
        del rollout

    def _note(self, name: str) -> Progress:
        return self._progress.setdefault(name, Progress(name))

    def _enter(self, rollout: Rollout) -> None:
        self.counts["submitted"] += 1
        self.rollouts[rollout.name] = rollout
        self.scheduler.add_request(rollout.request, len(rollout.tokens), self._reusable(rollout))

    def _begun(self, rollout: Rollout) -> None:
        rollout.admitted = self.clock()
        self.counts["prompt_tokens"] += rollout.prompt
        self._note(rollout.name).admitted = True

    def _stop(self, name: str, count: str, reason: str, error: str) -> None:
        rollout = self.rollouts.get(name)
        if rollout is not None:
            self._end(rollout, count, reason, error)

    def _end(
        self, rollout: Rollout, count: str, reason: str, error: str | None = None
    ) -> RolloutResult:
        self.counts[count] += 1
        result = rollout.result(self.clock(), reason, error)
        if rollout.request.return_kv and error is None:
            result.kv_cache = self._copy(rollout)
        self.scheduler.remove(rollout.name)
        self._release(rollout, keep=error is None)
        del self.rollouts[rollout.name]
        self._note(rollout.name).result = result
        return result

    def _fail(self, rollouts: Iterable[Rollout], error: Exception) -> None:
        """Make an error the result of some rollouts; others go on."""
        for rollout in rollouts:
            self._end(rollout, "failed", "error", f"{type(error).__name__}: {error}")

    def _update(self, weights: Weights, version: int, done: Done) -> None:
        try:
            self._load(weights, version)
        except Exception as error:  # update_weights raises it
            done(error)
            return
        self.version = version
        self.counts["updates"] += 1
        done(None)


class Batcher(Runner):
    """Runs rollouts of a causal model; ``arguments`` are those of :class:`Runner`."""

    def __init__(self, model: CausalModel, cache: KVCacheManager, *arguments: Any) -> None:
        super().__init__(*arguments)
        config = self.config
        self.model = model
        self.cache = cache
        self.running: dict[str, Rollout] = {}
        # Rollouts that lost their keys and values to new weights; they are admitted first.
        self._again: deque[Rollout] = deque()
        # Of the rollouts that generate; the key of a window has its stem's pages, and the binary
        # logarithm of the tokens of its rows.
        self._windows: dict[tuple[bytes, int], Window] = {}
        self._places: dict[str, tuple[bytes, int]] = {}
        # Tokens that windows have room for: rollouts that share nothing always fit.
        self._most = 2 * config.max_cache_size + 64 * config.max_concurrent_rollouts
        # Pages that running rollouts may still take.
        self._promised = 0
        # Called with the rollouts that draw and their logits, for tests.
        self.watch: Callable[[list[Rollout], Any], None] | None = None

    def _tick(self) -> None:
        self.cache.clean(self.clock())
        budget = self.config.token_budget
        planned: list[tuple[Rollout, int]] = []

        def plan(rollout: Rollout) -> None:
            nonlocal budget
            count = min(rollout.missing, budget)
            if count > 0:
                planned.append((rollout, count))
                budget -= count

        # Those that generate come first.
        for rollout in sorted(self.running.values(), key=lambda rollout: rollout.missing > 1):
            plan(rollout)
        while budget > 0 and len(self.running) < self.config.max_concurrent_rollouts:
            admitted = self._admit()
            if admitted is None:
                break
            plan(admitted)
        if planned:
            self._forward(planned)

    def _admit(self) -> Rollout | None:
        """Admit the best rollout that may run now."""
        if self._again:
            rollout = self._again[0]
            if self._held_back(rollout) or not self._begin(rollout):
                return None
            return self._again.popleft()
        aside = []
        admitted = None
        while (entry := self.scheduler.take()) is not None:
            rollout = self.rollouts[entry.request.request_id]
            if self._held_back(rollout):
                aside.append(entry)
                continue
            if not self._begin(rollout):
                # Admitting smaller ones first could starve this one.
                aside.append(entry)
                break
            self.scheduler.count(entry)
            rollout.reused = rollout.filled
            self._begun(rollout)
            admitted = rollout
            break
        for entry in aside:
            self.scheduler.put_back(entry)
        return admitted

    def _held_back(self, rollout: Rollout) -> bool:
        """Whether another rollout is computing a prefix worth waiting for."""
        least = self.config.kv_reuse_threshold * len(rollout.tokens)
        if not self.config.enable_prefix_cache or least >= len(rollout.tokens):
            return False
        tokens = tuple(rollout.tokens[:-1])
        others = (other for other in self.running.values() if not other.published)
        best = max((common(tokens, tuple(other.tokens)) for other in others), default=0)
        return best >= max(least, 1) and best > self.cache.tree.length(tokens)

    def _begin(self, rollout: Rollout) -> bool:
        """Start computing ``rollout`` behind its cached prefix, if its pages are certain."""
        node, pages = self.cache.begin(tuple(rollout.tokens))
        need = rollout.limit - len(pages)
        if need > self.cache.available - self._promised:
            self.cache.tree.unpin(node)
            return False
        self._promised += need
        self.cache.reused_tokens += len(pages)
        rollout.node = node
        rollout.pages = np.empty(rollout.limit, np.int64)
        rollout.pages[: len(pages)] = pages
        rollout.filled = rollout.stored = rollout.shared = rollout.began = len(pages)
        rollout.published = False
        self.running[rollout.name] = rollout
        return True

    def _forward(self, planned: list[tuple[Rollout, int]]) -> None:
        try:
            windows, planned = self._windowed(planned)
        except Exception as error:  # memory was not enough
            self._fail([rollout for rollout, _ in planned], error)
            return
        spans = []
        for rollout, count in planned:
            start, rollout.filled = rollout.filled, rollout.filled + count
            rollout.pages[start : rollout.filled] = self.cache.take(count)
            self._promised -= count
            tokens = rollout.tokens[start : rollout.filled]
            spans.append(Span(tokens, start, rollout.pages[: rollout.filled]))
            if rollout.name not in self._places:
                rollout.stored = rollout.filled
        self.counts["forwards"] += 1
        self.counts["forward_tokens"] += sum(count for _, count in planned)
        rows = [i for i, (rollout, _) in enumerate(planned) if not rollout.missing]
        drawing = [planned[row][0] for row in rows]
        try:
            tokens, logprobs = self._compute(spans, windows, rows, drawing)
        except Exception as error:
            self._fail([rollout for rollout, _ in planned], error)
            return
        for rollout, token, logprob in zip(drawing, tokens, logprobs, strict=True):
            if not math.isfinite(logprob):
                # Its keys and values are not published.
                self._end(rollout, "failed", "error", "the model's logits are not finite")
                continue
            if not rollout.published:
                self._publish(rollout)
            self._drawn(rollout, RolloutToken(int(token), float(logprob), self.version))

    def _compute(
        self, spans: list[Span], windows: list[Window], rows: list[int], drawing: list[Rollout]
    ) -> tuple[Any, Any]:
        """Run the model on ``spans``, and draw for ``drawing``, whose spans are ``rows``."""
        with torch.inference_mode():
            batch = PagedBatch(spans, self.cache.pool.planes, self.model.device, windows)
            logits = self.model.forward_paged(batch)
            if not drawing:
                return (), ()
            if len(rows) < len(spans):
                logits = logits[torch.tensor(rows, device=logits.device)]
            if self.watch is not None:
                self.watch(drawing, logits)
            params = [rollout.sampling for rollout in drawing]
            forced = [rollout.forced for rollout in drawing]
            return draw(logits, params, [rollout.chance() for rollout in drawing], forced)

    def _drawn(self, rollout: Rollout, token: RolloutToken) -> None:
        self.counts["generated_tokens"] += 1
        stopped = token.token in rollout.sampling.stop and rollout.forced is None
        rollout.tokens.append(token.token)
        rollout.drawn.append(token)
        self._note(rollout.name).tokens.append(token)
        if stopped or len(rollout.drawn) >= rollout.sampling.max_new_tokens:
            self._end(rollout, "completed", "stop" if stopped else "length")

    # Windows.

    def _windowed(
        self, planned: list[tuple[Rollout, int]]
    ) -> tuple[list[Window], list[tuple[Rollout, int]]]:
        """Return the windows of a tick, and ``planned`` with their rollouts first, in order."""
        new = [one for one, _ in planned if one.missing == 1 and one.name not in self._places]
        if new:
            self._arrange(new)
        here = {rollout.name: rollout for rollout, _ in planned if rollout.name in self._places}
        windows, inside = [], []
        for window in self._windows.values():
            rows = [row for row, name in enumerate(window.rows) if name in here]
            if rows:
                members = [here[window.rows[row]] for row in rows]
                window.begin(rows, [len(rollout.tokens) for rollout in members])
                windows.append(window)
                inside += [(rollout, 1) for rollout in members]
        return windows, inside + [one for one in planned if one[0].name not in here]

    def _arrange(self, new: list[Rollout]) -> None:
        """Give rollouts that begin to generate a place in a window, by what they share."""
        rollouts = {name: self.running[name] for name in self._places}
        rollouts |= {rollout.name: rollout for rollout in new}
        # Bytes of big-endian numbers are in the order of the numbers.
        paths = sorted(
            (rollout.pages[: rollout.shared].astype(">i8").tobytes(), name)
            for name, rollout in rollouts.items()
        )
        keys = {
            name: (path[:size], max(6, (rollouts[name].limit - size // 8 - 1).bit_length()))
            for size, group in _stems(paths)
            for path, name in group
        }
        counts = Counter(keys.values())
        for name, key in keys.items():
            rollout = rollouts[name]
            if self._places.get(name) == key:
                continue
            self._save(rollout)
            self._leave(rollout)
            stem = rollout.pages[: len(key[0]) // 8]
            window = self._windows.get(key) or Window(self.cache.pool.planes, stem)
            if self._most < sum(
                len(stem) // 8 + (one.height << size)
                for (stem, size), one in {**self._windows, key: window}.items()
            ) + (max(0, counts[key] - window.height) << key[1]):
                # Attention gathers its pages.
                continue
            window.fit(counts[key])
            window.add(name, rollout.pages[: rollout.filled])
            self._windows[key] = window
            self._places[name] = key

    def _leave(self, rollout: Rollout) -> None:
        """Remove a rollout from its window, if it is in one."""
        key = self._places.pop(rollout.name, None)
        if key is not None:
            self._windows[key].remove(rollout.name)
            if not self._windows[key].rows:
                del self._windows[key]

    def _save(self, rollout: Rollout) -> None:
        """Copy to pages what is only in a window."""
        if rollout.stored < rollout.filled:
            pages = rollout.pages[rollout.stored : rollout.filled]
            window = self._windows[self._places[rollout.name]]
            window.save(rollout.name, rollout.stored, pages)
            rollout.stored = rollout.filled

    def _publish(self, rollout: Rollout) -> None:
        rollout.published = True
        if self.config.enable_prefix_cache and rollout.node is not None:
            self._save(rollout)
            filled = rollout.filled
            rollout.node, rollout.pages[:filled] = self.cache.publish(
                tuple(rollout.tokens[:filled]), rollout.pages[:filled], rollout.node, rollout.shared
            )
            rollout.shared = filled

    def _release(self, rollout: Rollout, *, keep: bool) -> None:
        if self.running.pop(rollout.name, None) is None or rollout.node is None:
            if rollout in self._again:
                self._again.remove(rollout)
            return
        if keep:
            self._publish(rollout)
        self._leave(rollout)
        self.cache.pool.give_back(rollout.pages[rollout.shared : rollout.filled])
        self.cache.tree.unpin(rollout.node)
        rollout.node = None
        self._promised -= rollout.limit - rollout.filled
        reward = float(rollout.request.metadata.get("reward", 0.0)) if keep else 0.0
        self.tracker.record_rollout_step(reward, rollout.filled, rollout.began)

    def _load(self, weights: Weights, version: int) -> None:
        stopped = list(self.running.values())
        for rollout in stopped:
            self._release(rollout, keep=False)
            rollout.filled = rollout.shared = rollout.stored = 0
        self._again = deque([*stopped, *self._again])
        # Also if loading fails: earlier keys and values are not used again.
        self.cache.flush()
        self.model.load_weights(weights)
        del version
        self.scheduler.flushed()

    def _reusable(self, rollout: Rollout) -> int:
        return self.cache.tree.length(tuple(rollout.tokens[:-1]))

    def _copy(self, rollout: Rollout) -> Any:
        if rollout.filled == 0:
            return None
        self._save(rollout)
        return self.cache.pool.read(rollout.pages[: rollout.filled])


def _stems(paths: Paths) -> list[tuple[int, Paths]]:
    """Group sorted paths by their beginnings, so that most bytes are read once for several.

    Each group comes with the number of bytes that its paths have in common; 0: nothing.
    """
    if len(paths) < 2:
        return [(0, paths)]
    size = common(paths[0][0], paths[-1][0]) // 8 * 8
    branches: dict[bytes, Paths] = {}
    for path in paths:
        branches.setdefault(path[0][size : size + 8], []).append(path)
    # Those that end here, and each branch, by themselves.
    alone = branches.pop(b"", [])
    below = [group for branch in branches.values() for group in _stems(branch)]
    saved = sum(length * (len(group) - 1) for length, group in below)
    if size >= 8 * _LEAST_STEM and size * (len(paths) - 1) >= saved:
        return [(size, paths)]
    alone += [path for length, group in below if not length for path in group]
    return [group for group in below if group[0]] + ([(0, alone)] if alone else [])


def read_states(sequence: Any) -> Any:
    """Read [rows, state_dim] as a tensor of floats; another shape is an ``ArgumentError``."""
    states = torch.as_tensor(sequence).detach()
    if states.ndim != 2 or states.shape[0] == 0:
        raise ArgumentError(
            "a policy over vectors takes [rows, state_dim] with at least one row; got shape "
            f"{tuple(states.shape)}"
        )
    return states.float()


class PolicyRunner(Runner):
    """Runs decisions of a policy that has ``sample_action(state, plan)``.

    A rollout is one decision: the action is that for the last row of its states, [rows, state_dim],
    and the plan is ``metadata["plan"]``, or zeros. The policy takes [batch, state_dim] and [batch,
    latent_dim], and returns actions and their log-probabilities, a row each.
    """

    def __init__(self, policy: Any, device: Any, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.policy = policy
        self.device = device

    def plan(self, request: RolloutRequest) -> Any:
        """Return the plan of a request, [latent_dim]; without any an ``ArgumentError``."""
        given = request.metadata.get("plan")
        if given is not None:
            return torch.as_tensor(given).detach().float().reshape(-1)
        width = getattr(self.policy, "latent_dim", None)
        if width is None:
            raise ArgumentError(
                "this policy has no latent_dim, so that a rollout of it needs "
                'metadata={"plan": ...}'
            )
        return torch.zeros(int(width))

    def _tick(self) -> None:
        # Policies take one shape at a time.
        groups: dict[tuple[int, int], list[tuple[Rollout, Any, Any]]] = {}
        for _ in range(self.config.max_concurrent_rollouts):
            request = self.scheduler.get_next_request()
            if request is None:
                break
            rollout = self.rollouts[request.request_id]
            self._begun(rollout)
            state, plan = request.state_sequence[-1], self.plan(request)
            groups.setdefault((len(state), len(plan)), []).append((rollout, state, plan))
        for group in groups.values():
            self._decide(group)

    def _decide(self, group: list[tuple[Rollout, Any, Any]]) -> None:
        self.counts["forwards"] += 1
        self.counts["forward_tokens"] += len(group)
        try:
            with torch.no_grad():
                actions, logprobs = self.policy.sample_action(
                    torch.stack([state for _, state, _ in group]).to(self.device),
                    torch.stack([plan for _, _, plan in group]).to(self.device),
                )
            actions = torch.as_tensor(actions).cpu()
            logprobs = torch.as_tensor(logprobs).double().cpu().reshape(-1)
            if len(actions) != len(group) or len(logprobs) != len(group):
                raise ArgumentError(
                    f"sample_action was given {len(group)} states, and returned {len(actions)} "
                    f"actions and {len(logprobs)} log-probabilities"
                )
        except Exception as error:
            self._fail([rollout for rollout, _, _ in group], error)
            return
        for (rollout, _, _), action, logprob in zip(group, actions, logprobs, strict=True):
            self.counts["generated_tokens"] += 1
            result = self._end(rollout, "completed", "action")
            result.action = action.item() if action.numel() == 1 else action
            result.tokens_generated = 1
            result.logprobs = [float(logprob)]
            result.versions = [self.version]
            reward = float(rollout.request.metadata.get("reward", 0.0))
            self.tracker.record_rollout_step(reward, rollout.prompt, 0)

    def _load(self, weights: Weights, version: int) -> None:
        del version
        check_weights(self.policy, weights)
