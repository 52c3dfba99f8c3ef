"""The prefix cache: keys and values that outlive the rollout that computed them.

A page has the keys and values of one token in all layers, so that sequences share exactly the
tokens that they have in common. A :class:`RadixTree` says which tokens are in which pages. The last
token of a sequence is never reused, since the next one is drawn from its logits. When pages run
out, ends of unused prefixes are evicted, the longest unused first.

Nothing is locked: an engine's cache belongs to its worker thread.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.devices import resolve
from echoic.agents.llm.config import ExecutionConfig
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from numpy.typing import NDArray


__all__ = ["KVCacheManager", "Node", "RadixTree", "as_tokens", "common"]

_NOTHING: NDArray[np.int64] = np.empty(0, np.int64)


def as_tokens(sequence: Any) -> tuple[Hashable, ...]:
    """Read a sequence as tokens: ids as integers, or each row of states as its bytes."""
    array = np.asarray(sequence.detach().cpu() if torch.is_tensor(sequence) else sequence)
    if array.ndim == 1 and (array.dtype.kind in "iu" or not array.size):
        return tuple(array.tolist())
    if array.ndim == 2 and array.dtype.kind in "iuf":
        # -0.0 equals 0.0 for every model, but has other bytes.
        return tuple(row.tobytes() for row in array + array.dtype.type(0))
    raise ArgumentError(
        "a sequence must be one row of token ids (integers) or a matrix of states; got "
        f"shape {array.shape} of {array.dtype}"
    )


def common(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return how many items two tuples have in common from their start."""
    end = min(len(one), len(other))
    if one[:end] == other[:end]:
        return end
    # Slices are compared in C, which is much faster than a loop over tokens.
    return bisect_left(range(1, end + 1), True, key=lambda size: one[:size] != other[:size])


@dataclass(eq=False)
class Node:
    """A piece of some sequences; the prefix that ends with it has ``end`` tokens."""

    piece: tuple[Hashable, ...]
    pages: NDArray[np.int64]
    parent: Node | None
    end: int = 0
    pins: int = 0
    last_use: int = 0
    children: dict[Hashable, Node] = field(default_factory=dict)

    def upwards(self) -> Iterator[Node]:
        """Yield this node and all above it."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


class RadixTree:
    """Which prefixes are cached, and in which pages.

    A path from the root spells a sequence; each node has a piece of it, and a page for each token
    of the piece. The user of a prefix pins its last node, which pins all nodes above; a leaf
    without pins can be evicted. A token is any hashable value, and compared by itself, not by its
    hash: the id of a token, or the bytes of an embedding or a row of states.

    Invariants: children of a node start with different tokens; no page is in two nodes;
    ``node.pins`` counts the pins on the node and below it; ``evictable`` counts the tokens of nodes
    without pins, and ``size`` all; ``last_use`` is what the count of calls ``clock`` was.
    """

    def __init__(self) -> None:
        self.root = Node((), _NOTHING, None)
        self.size = self.evictable = 0
        self.clock = 0

    def match(self, tokens: tuple[Hashable, ...]) -> tuple[Node, NDArray[np.int64]]:
        """Return the last node and the pages of the longest cached prefix of ``tokens``.

        A node whose piece is left in its middle is split, so that the prefix ends with a node.
        """
        self.clock += 1
        node, pages = self.root, [_NOTHING]
        for child, same in self._walk(tokens):
            node = self._split(child, same) if same < len(child.piece) else child
            node.last_use = self.clock
            pages.append(node.pages)
        return node, np.concatenate(pages)

    def length(self, tokens: tuple[Hashable, ...]) -> int:
        """Return how many of ``tokens`` are cached, without counting as a use."""
        return sum(same for _, same in self._walk(tokens))

    def _walk(self, tokens: tuple[Hashable, ...]) -> Iterator[tuple[Node, int]]:
        """Yield nodes from the root on, and how many tokens of their pieces are in ``tokens``."""
        node, done, whole = self.root, 0, True
        while whole and done < len(tokens) and tokens[done] in node.children:
            node = node.children[tokens[done]]
            same = common(node.piece, tokens[done : done + len(node.piece)])
            done, whole = done + same, same == len(node.piece)
            yield node, same

    def insert(
        self, tokens: tuple[Hashable, ...], pages: NDArray[np.int64]
    ) -> tuple[int, Node, NDArray[np.int64]]:
        """Cache ``tokens`` in ``pages``, which the tree takes for tokens that it did not have.

        Returns the number of tokens it had, the last node, and its pages of ``tokens``.
        """
        node, known = self.match(tokens)
        had = len(known)
        if had < len(tokens):
            parent = node
            node = Node(tokens[had:], pages[had:].copy(), parent, len(tokens), 0, self.clock)
            parent.children[tokens[had]] = node
            self.size += len(node.piece)
            self.evictable += len(node.piece)
            known = np.concatenate([known, node.pages])
        return had, node, known

    def pin(self, node: Node, by: int = 1) -> None:
        """Keep ``node`` and all above it, until they are pinned ``by`` -1."""
        for one in node.upwards():
            before, one.pins = one.pins, one.pins + by
            self.evictable += len(one.piece) * ((one.pins == 0) - (before == 0))

    def evict(self, count: int, unused_since: float = math.inf) -> NDArray[np.int64]:
        """Evict ``count`` tokens, or as many as possible; return their pages.

        Only those last used before ``unused_since``, a count of the clock, are evicted.
        """
        leaves = [
            (node.last_use, index, node)
            for index, node in enumerate(self)
            if not node.pins and not node.children
        ]
        heapq.heapify(leaves)
        freed = [_NOTHING]
        while count > 0 and leaves:
            when, index, node = heapq.heappop(leaves)
            if when >= unused_since:
                break
            kept, parent = max(0, len(node.piece) - count), node.parent
            freed.append(node.pages[kept:])
            count -= len(node.piece) - kept
            self.size -= len(node.piece) - kept
            self.evictable -= len(node.piece) - kept
            if kept:
                node.end -= len(node.piece) - kept
                node.piece, node.pages = node.piece[:kept], node.pages[:kept]
            elif parent is not None:
                del parent.children[node.piece[0]]
                if parent.piece and not parent.pins and not parent.children:
                    heapq.heappush(leaves, (parent.last_use, index, parent))
        return np.concatenate(freed)

    def __iter__(self) -> Iterator[Node]:
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            yield node

    def _split(self, node: Node, at: int) -> Node:
        """Insert a node above ``node`` with the first ``at`` tokens of its piece.

        The lower one stays the same object, so that pins on it hold.
        """
        end = node.end - len(node.piece) + at
        upper = Node(node.piece[:at], node.pages[:at], node.parent, end, node.pins, node.last_use)
        upper.children[node.piece[at]] = node
        if node.parent is not None:
            node.parent.children[node.piece[0]] = upper
        node.piece, node.pages, node.parent = node.piece[at:], node.pages[at:], upper
        return upper


class KVCacheManager:
    """A fixed number of pages, and a tree of the prefixes that are in them.

    Alone it keeps what :meth:`store_kv_cache` stores, a row for each token. An engine makes its
    own, whose pages hold the keys and values of its model.

    >>> cache = KVCacheManager(ExecutionConfig(max_cache_size=8), device="cpu")
    >>> cache.store_kv_cache([1, 2, 3], torch.arange(6.0).view(3, 2))
    3
    >>> kv, reused = cache.get_kv_cache([1, 2, 9])
    >>> kv.tolist(), reused
    ([[0.0, 1.0], [2.0, 3.0]], 2)

    Args:
        config: ``max_cache_size``, ``cache_cleanup_interval`` and ``enable_prefix_cache`` are read.
        device: Device of keys and values.
        shape: Of a page, [planes, ...]; by default one plane, of the first rows that are stored.
        dtype: Of a page.
    """

    def __init__(
        self,
        config: ExecutionConfig | None = None,
        device: Any = "cuda",
        *,
        shape: tuple[int, ...] = (0,),
        dtype: Any = torch.float32,
    ) -> None:
        self.config = config or ExecutionConfig()
        self.device = resolve(device)
        self.tree = RadixTree()
        #: [planes, pages, ...]
        self.pages = self._allocate(shape, dtype)
        self._free = list(range(int(self.config.max_cache_size)))
        self.reused_tokens = self.computed_tokens = self.evicted_tokens = 0
        # Time and count of uses at the last cleaning.
        self._cleaned: tuple[float, int] | None = None

    def _allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        # Pages are written before they are read; unused memory is not touched.
        size = int(self.config.max_cache_size)
        return torch.empty((shape[0], size, *shape[1:]), dtype=dtype, device=self.device)

    def get_cache_key(self, sequence: Any) -> str:
        """Return a digest of a sequence, the same on every machine."""
        return hashlib.blake2b(repr(as_tokens(sequence)).encode(), digest_size=16).hexdigest()

    def find_longest_prefix(self, sequence: Any) -> tuple[str, int] | None:
        """Return the key and the length of the longest cached prefix that could be reused."""
        length = self.tree.length(as_tokens(sequence)[:-1])
        return (self.get_cache_key(sequence[:length]), length) if length else None

    def get_kv_cache(self, sequence: Any) -> tuple[Any, int]:
        """Return the cached rows of ``sequence`` without its last token or None, and how many."""
        _, pages = self.tree.match(as_tokens(sequence)[:-1])
        self.reused_tokens += len(pages)
        return (self.read(pages).squeeze(0) if len(pages) else None), len(pages)

    def store_kv_cache(self, sequence: Any, kv_states: Any) -> int:
        """Store a row for each token, as far as they fit; return how many tokens are cached now."""
        tokens = as_tokens(sequence)
        rows = torch.as_tensor(kv_states).detach().to(self.device)
        if rows.ndim < 2 or len(rows) != len(tokens):
            raise ArgumentError(
                f"{len(tokens)} tokens need a row each, [{len(tokens)}, ...]; got "
                f"shape {tuple(rows.shape)}"
            )
        if not len(self.pages):
            self.pages = self._allocate((1, *rows.shape[1:]), rows.dtype)
        shape, expected = (1, *rows.shape[1:]), (len(self.pages), *self.pages.shape[2:])
        if shape != expected:
            raise ArgumentError(f"a row of this cache is {expected}, not {shape}")
        self.clean(time.monotonic())
        node, known = self.tree.match(tokens)
        self.tree.pin(node)
        had = len(known)
        new = self.take(min(len(tokens) - had, self.available))
        end = had + len(new)
        self.pages[0, torch.from_numpy(new).to(self.device)] = rows[had:end]
        node, _ = self.publish(tokens[:end], np.concatenate([known, new]), node, had)
        self.tree.pin(node, -1)
        return end

    def get_cache_stats(self) -> dict[str, Any]:
        """Return the contents in tokens, and counts since the start.

        ``hit_rate`` is the share of reused tokens in those reused and computed.
        """
        needed = self.reused_tokens + self.computed_tokens
        return {
            "cache_size": self.tree.size,
            "free": len(self._free),
            "reused_tokens": self.reused_tokens,
            "computed_tokens": self.computed_tokens,
            "evicted_tokens": self.evicted_tokens,
            "hit_rate": self.reused_tokens / needed if needed else 0.0,
        }

    @property
    def available(self) -> int:
        """Pages that are free or can be evicted."""
        return len(self._free) + self.tree.evictable

    def begin(self, tokens: tuple[Hashable, ...]) -> tuple[Node, NDArray[np.int64]]:
        """Find and pin the prefix that a rollout of ``tokens`` can start behind."""
        node, pages = self.tree.match(tokens[:-1] if self.config.enable_prefix_cache else ())
        self.tree.pin(node)
        return node, pages

    def take(self, count: int) -> NDArray[np.int64]:
        """Take pages to be filled, evicting others if needed."""
        if count > self.available:
            raise ArgumentError(f"{count} pages were requested, and {self.available} are available")
        if count > len(self._free):
            # Some more than needed, since finding leaves costs the same for any number.
            self._evict(max(count - len(self._free), int(self.config.max_cache_size) // 64))
        self.computed_tokens += count
        left = len(self._free) - count
        pages = np.array(self._free[left:], np.int64)
        del self._free[left:]
        return pages

    def give_back(self, pages: NDArray[np.int64]) -> None:
        """Free pages that are not in the tree."""
        self._free.extend(pages.tolist())

    def read(self, pages: NDArray[np.int64]) -> Any:
        """Return a copy of ``pages``, [planes, pages, ...]."""
        return self.pages[:, torch.from_numpy(pages).to(self.device)]

    def publish(
        self, tokens: tuple[Hashable, ...], pages: NDArray[np.int64], node: Node, shared: int
    ) -> tuple[Node, NDArray[np.int64]]:
        """Let others reuse ``tokens``; return the node pinned instead of ``node``, and their pages.

        ``pages`` up to ``shared`` are the tree's, those from there on the caller's, and become the
        tree's. Where another rollout was faster, its pages are returned, and the caller's freed.
        """
        had, last, known = self.tree.insert(tokens, pages)
        self.give_back(pages[shared:had])
        self.tree.pin(last)
        self.tree.pin(node, -1)
        return last, known

    def flush(self) -> None:
        """Forget everything, since weights have changed. Nothing may be pinned."""
        if self.tree.evictable < self.tree.size:
            raise ArgumentError(f"{self.tree.size - self.tree.evictable} tokens are in use")
        self.give_back(self.tree.evict(self.tree.size))

    def clean(self, now: float) -> int:
        """Free prefixes unused since the last cleaning, if it is time; return the tokens freed."""
        when, use = self._cleaned = self._cleaned or (now, self.tree.clock)
        if now - when < self.config.cache_cleanup_interval:
            return 0
        self._cleaned = now, self.tree.clock
        return self._evict(self.tree.evictable, use + 1)

    def _evict(self, count: int, unused_since: float = math.inf) -> int:
        pages = self.tree.evict(count, unused_since)
        self.give_back(pages)
        self.evicted_tokens += len(pages)
        return len(pages)
