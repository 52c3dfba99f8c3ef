"""The prefix cache: keys and values that outlive the rollout that computed them.

A :class:`PagePool` has pages, each for the keys and values of one token in all layers, so that
sequences share exactly the tokens that they have in common. Their contents are in *planes*: tensors
with a row for each page, two for each layer.

A :class:`KVCacheManager` joins a pool with a :class:`RadixTree` of the tokens in its pages.
Rollouts take pages, publish what they computed to the tree, and start where the longest cached
prefix of their tokens ends. The last token of a sequence is never reused, since the next one is
drawn from its logits. When pages run out, ends of unused prefixes are evicted, the longest unused
first.

A manager is not locked: an engine's belongs to its worker thread; other threads may call
:meth:`KVCacheManager.get_cache_stats`.
"""

from __future__ import annotations

import hashlib
import heapq
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.devices import resolve
from echoic.agents.llm.config import ExecutionConfig
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from numpy.typing import NDArray


__all__ = ["KVCacheManager", "Node", "PagePool", "RadixTree", "as_tokens", "common"]

_NOTHING: NDArray[np.int64] = np.empty(0, np.int64)
# Old entries of the heap are dropped when it has this many times more entries than nodes.
_SLACK = 4


class PagePool:
    """A fixed number of pages, and which of them are free.

    Invariants: ``free + taken == capacity``; the free pages are ``_stack[:free]``, each once;
    ``versions[page]`` is the version of the weights that filled the page, and -1 if it is free.

    Args:
        capacity: Number of pages.
        planes: For each plane the shape and the dtype of a row.
        device: Device of the planes.
    """

    def __init__(
        self, capacity: int, planes: Sequence[tuple[tuple[int, ...], Any]], device: Any
    ) -> None:
        self.capacity = capacity
        # Pages are written before they are read; unused memory is not touched.
        self.planes = [
            torch.empty((capacity, *shape), dtype=dtype, device=device) for shape, dtype in planes
        ]
        self.versions: NDArray[np.int64] = np.full(capacity, -1, np.int64)
        self._stack: NDArray[np.int64] = np.arange(capacity, dtype=np.int64)[::-1].copy()
        self.free = capacity

    @property
    def nbytes(self) -> int:
        """Bytes of all planes. They never change."""
        return sum(int(plane.numel()) * int(plane.element_size()) for plane in self.planes)

    def take(self, count: int, version: int) -> NDArray[np.int64]:
        """Take ``count`` pages, to be filled by the weights of ``version``, or none and raise."""
        if count > self.free:
            raise ArgumentError(f"{count} pages were requested, and {self.free} are free")
        self.free -= count
        pages = self._stack[self.free : self.free + count].copy()
        self.versions[pages] = version
        return pages

    def give_back(self, pages: NDArray[np.int64]) -> None:
        """Free ``pages``; an ``ArgumentError`` if one of them is free already."""
        if (self.versions[pages] < 0).any():
            raise ArgumentError("a page that is free was given back")
        self.versions[pages] = -1
        self._stack[self.free : self.free + len(pages)] = pages
        self.free += len(pages)

    def read(self, pages: NDArray[np.int64]) -> list[Any]:
        """Return copies of ``pages``, plane by plane."""
        rows = torch.from_numpy(pages)
        return [plane[rows.to(plane.device)] for plane in self.planes]


def as_tokens(sequence: Any) -> tuple[Hashable, ...]:
    """Read a sequence as tokens: ids as integers, or each row of states as its bytes."""
    if isinstance(sequence, torch.Tensor):
        sequence = sequence.detach().cpu().numpy()
    array = np.asarray(sequence)
    if array.size == 0:
        return ()
    if array.ndim == 1 and array.dtype.kind in "iu":
        return tuple(array.tolist())
    if array.ndim == 2 and array.dtype.kind in "iuf":
        # -0.0 equals 0.0 for every model, but has other bytes.
        rows = np.ascontiguousarray(array + 0.0 if array.dtype.kind == "f" else array)
        return tuple(row.tobytes() for row in rows)
    raise ArgumentError(
        "a sequence must be one row of token ids (integers) or a matrix of states; got "
        f"shape {array.shape} of {array.dtype}"
    )


def common(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return how many items two tuples, or two texts of bytes, have in common from their start."""
    end = min(len(one), len(other))
    if one[:end] == other[:end]:
        return end
    # Halves are compared in C, which is much faster than a loop over tokens.
    start = 0
    while end - start > 1:
        middle = (start + end) // 2
        if one[start:middle] == other[start:middle]:
            start = middle
        else:
            end = middle
    return start


class Node:
    """A piece of some sequences. ``last_use`` is a count of calls, not a time."""

    __slots__ = ("children", "last_use", "pages", "parent", "piece", "pins")

    def __init__(
        self, piece: tuple[Hashable, ...], pages: NDArray[np.int64], parent: Node | None
    ) -> None:
        self.piece = piece
        self.pages = pages
        self.parent = parent
        self.children: dict[Hashable, Node] = {}
        self.pins = 0
        self.last_use = 0


class RadixTree:
    """Which prefixes are cached, and in which pages.

    A path from the root spells a sequence; each node has a piece of it, and a page for each token
    of the piece. The user of a prefix pins its last node, which pins all nodes above; a leaf
    without pins can be evicted. A token is any hashable value, and compared by itself, not by its
    hash: the id of a token, or the bytes of an embedding or a row of states.

    Invariants: children of a node start with different tokens; no page is in two nodes;
    ``node.pins`` counts the pins on the node and below it; ``pinned + evictable == size``, in
    tokens; every unpinned leaf has an entry in ``_idle`` that is not later than its last use.

    ``clock`` is the count that ``last_use`` of a node is compared with.
    """

    def __init__(self) -> None:
        self.root = Node((), _NOTHING, None)
        self.evictable = 0
        self.pinned = 0
        self.nodes = 0
        self.clock = 0
        self._idle: list[tuple[int, int, Node]] = []
        self._entries = 0

    @property
    def size(self) -> int:
        """Tokens in the tree."""
        return self.pinned + self.evictable

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
        """Cache ``tokens`` in ``pages``; the tree takes the pages of tokens that it did not have.

        Returns:
            The number of tokens it had, the last node, and the tree's pages of ``tokens``. The
            caller still owns ``pages`` up to that number.
        """
        node, known = self.match(tokens)
        had = len(known)
        if had < len(tokens):
            child = Node(tokens[had:], pages[had:].copy(), node)
            child.last_use = self.clock
            node.children[tokens[had]] = child
            self.nodes += 1
            self.evictable += len(child.piece)
            self._retire(child)
            node = child
            known = np.concatenate([known, child.pages])
        return had, node, known

    def pin(self, node: Node) -> None:
        """Keep ``node`` and all above it until :meth:`unpin`."""
        current: Node | None = node
        while current is not None:
            if current.pins == 0:
                self.evictable -= len(current.piece)
                self.pinned += len(current.piece)
            current.pins += 1
            current = current.parent

    def unpin(self, node: Node) -> None:
        """Undo one :meth:`pin` of this node."""
        current: Node | None = node
        while current is not None:
            current.pins -= 1
            if current.pins == 0:
                self.evictable += len(current.piece)
                self.pinned -= len(current.piece)
                self._retire(current)
            current = current.parent

    def evict(self, count: int, unused_since: int | None = None) -> NDArray[np.int64]:
        """Evict ``count`` tokens, or as many as possible; return their pages.

        With ``unused_since``, only those last used before that count of the clock.
        """
        freed: list[NDArray[np.int64]] = []
        while count > 0 and self._idle:
            when, _, node = self._idle[0]
            if unused_since is not None and when >= unused_since:
                break
            heapq.heappop(self._idle)
            if node.pins or node.children or node.parent is None or not node.piece:
                continue
            if node.last_use != when:
                self._retire(node)
                continue
            taken = min(count, len(node.piece))
            freed.append(node.pages[len(node.pages) - taken :])
            count -= taken
            self.evictable -= taken
            if taken == len(node.piece):
                self._remove(node)
            else:
                node.piece = node.piece[:-taken]
                node.pages = node.pages[:-taken]
                self._retire(node)
        return np.concatenate(freed) if freed else _NOTHING

    def clear(self) -> NDArray[np.int64]:
        """Forget everything and return the pages. Nothing may be pinned."""
        pages = [node.pages for node in self]
        self.root.children.clear()
        self._idle.clear()
        self.evictable = self.nodes = 0
        return np.concatenate(pages) if pages else _NOTHING

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
        upper = Node(node.piece[:at], node.pages[:at], node.parent)
        upper.pins, upper.last_use = node.pins, node.last_use
        upper.children[node.piece[at]] = node
        if node.parent is not None:
            node.parent.children[node.piece[0]] = upper
        node.piece, node.pages, node.parent = node.piece[at:], node.pages[at:], upper
        self.nodes += 1
        return upper

    def _remove(self, node: Node) -> None:
        parent = node.parent
        if parent is None:
            return
        del parent.children[node.piece[0]]
        # Marks it as gone, for entries of the heap that still name it.
        node.parent = None
        self.nodes -= 1
        self._retire(parent)

    def _retire(self, node: Node) -> None:
        """Queue ``node`` for eviction, if it may be evicted."""
        if node.pins or node.children or node.parent is None:
            return
        self._entries += 1
        heapq.heappush(self._idle, (node.last_use, self._entries, node))
        if len(self._idle) > _SLACK * (self.nodes + 16):
            self._idle = [
                (leaf.last_use, index, leaf)
                for index, leaf in enumerate(self)
                if not leaf.pins and not leaf.children
            ]
            self._entries = len(self._idle)
            heapq.heapify(self._idle)


class KVCacheManager:
    """A prefix cache of a fixed number of tokens.

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
        planes: Shape and dtype of each plane's rows; by default one plane, shaped as the first
            rows that are stored.
    """

    def __init__(
        self,
        config: ExecutionConfig | None = None,
        device: Any = "cuda",
        *,
        planes: Sequence[tuple[tuple[int, ...], Any]] | None = None,
    ) -> None:
        self.config = config or ExecutionConfig()
        self.device = resolve(device)
        self.tree = RadixTree()
        self.version = 0
        self.lookups = self.hits = 0
        self.reused_tokens = self.computed_tokens = self.evicted_tokens = 0
        self._pool: PagePool | None = None
        self._cleaned: float | None = None
        self._cleaned_at_use = 0
        if planes is not None:
            self._pool = PagePool(int(self.config.max_cache_size), planes, self.device)

    @property
    def pool(self) -> PagePool:
        """The pages."""
        if self._pool is None:
            raise ArgumentError("nothing has been stored yet: the shape of a page is not known")
        return self._pool

    def get_cache_key(self, sequence: Any) -> str:
        """Return a digest of a sequence, the same on every machine."""
        digest = hashlib.blake2b(digest_size=16)
        for token in as_tokens(sequence):
            part = token if isinstance(token, bytes) else str(token).encode()
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()

    def find_longest_prefix(self, sequence: Any) -> tuple[str, int] | None:
        """Return the key and the length of the longest cached prefix that could be reused."""
        tokens = as_tokens(sequence)
        length = min(self.tree.length(tokens), len(tokens) - 1)
        if length <= 0:
            return None
        return self.get_cache_key(sequence[:length]), length

    def get_kv_cache(self, sequence: Any) -> tuple[Any, int]:
        """Return copies of the cached rows of ``sequence`` without its last token, and how many.

        Without any they are None.
        """
        tokens = as_tokens(sequence)
        self.lookups += 1
        if self._pool is None or len(tokens) <= 1:
            self.computed_tokens += len(tokens)
            return None, 0
        _, pages = self.tree.match(tokens[:-1])
        self.computed_tokens += len(tokens) - len(pages)
        self.reused_tokens += len(pages)
        if len(pages) == 0:
            return None, 0
        self.hits += 1
        planes = self._pool.read(pages)
        return planes[0] if len(planes) == 1 else torch.stack(planes), len(pages)

    def store_kv_cache(self, sequence: Any, kv_states: Any) -> int:
        """Store a row for each token of ``sequence``, and return how many tokens are cached now.

        They are fewer if the cache is smaller, and 0 without ``enable_prefix_cache``.
        """
        tokens = as_tokens(sequence)
        rows = torch.as_tensor(kv_states).detach().to(self.device)
        if rows.ndim < 2 or len(rows) != len(tokens):
            raise ArgumentError(
                f"{len(tokens)} tokens need a row each, [{len(tokens)}, ...]; got "
                f"shape {tuple(rows.shape)}"
            )
        if self._pool is None:
            shape = (tuple(rows.shape[1:]), rows.dtype)
            self._pool = PagePool(int(self.config.max_cache_size), [shape], self.device)
        planes = self._pool.planes
        if len(planes) != 1 or planes[0].shape[1:] != rows.shape[1:]:
            expected = [tuple(plane.shape[1:]) for plane in planes]
            raise ArgumentError(f"a row of this cache is {expected}, not {tuple(rows.shape[1:])}")
        if not self.config.enable_prefix_cache:
            return 0
        self.clean(time.monotonic())
        node, known = self.tree.match(tokens)
        self.tree.pin(node)
        try:
            count = min(len(tokens) - len(known), self.available)
            pages = self.take(count, computed=False)
        finally:
            self.tree.unpin(node)
        end = len(known) + count
        planes[0][torch.from_numpy(pages).to(self.device)] = rows[len(known) : end].to(
            planes[0].dtype
        )
        self.tree.insert(tokens[:end], np.concatenate([known, pages]))
        return end

    def get_cache_stats(self) -> dict[str, Any]:
        """Return counts since the start, and the current contents, in tokens.

        ``reused_tokens`` are those of prefixes that rollouts started behind, ``computed_tokens`` of
        pages that were filled; ``hit_rate`` and ``reuse_rate`` both the share of the former.
        """
        needed = self.reused_tokens + self.computed_tokens
        rate = self.reused_tokens / needed if needed else 0.0
        return {
            "cache_size": self.tree.size,
            "max_cache_size": int(self.config.max_cache_size),
            "nodes": self.tree.nodes,
            "pinned": self.tree.pinned,
            "evictable": self.tree.evictable,
            "free": self._pool.free if self._pool else int(self.config.max_cache_size),
            "bytes": self._pool.nbytes if self._pool else 0,
            "version": self.version,
            "lookups": self.lookups,
            "hits": self.hits,
            "reused_tokens": self.reused_tokens,
            "computed_tokens": self.computed_tokens,
            "evicted_tokens": self.evicted_tokens,
            "hit_rate": rate,
            "reuse_rate": rate,
        }

    @property
    def available(self) -> int:
        """Pages that are free or can be evicted."""
        return self.pool.free + self.tree.evictable

    def begin(self, tokens: tuple[Hashable, ...]) -> tuple[Node, NDArray[np.int64]]:
        """Find and pin the prefix that a rollout of ``tokens`` can start behind."""
        if self.config.enable_prefix_cache:
            node, pages = self.tree.match(tokens[:-1])
        else:
            node, pages = self.tree.root, _NOTHING
        self.tree.pin(node)
        return node, pages

    def count(self, reused: int) -> None:
        """Count a rollout that started behind ``reused`` tokens."""
        self.lookups += 1
        self.hits += reused > 0
        self.reused_tokens += reused

    def take(self, count: int, *, computed: bool = True) -> NDArray[np.int64]:
        """Take pages, evicting others if needed."""
        lacking = count - self.pool.free
        if lacking > 0:
            evicted = self.tree.evict(lacking)
            self.evicted_tokens += len(evicted)
            self.pool.give_back(evicted)
        pages = self.pool.take(count, self.version)
        if computed:
            self.computed_tokens += count
        return pages

    def publish(
        self, tokens: tuple[Hashable, ...], pages: NDArray[np.int64], node: Node, shared: int
    ) -> tuple[Node, NDArray[np.int64]]:
        """Let others reuse ``tokens``, which lie in ``pages``.

        Pages from ``shared`` on are the caller's; before, they are ``node``'s, which it has pinned.
        Both become the tree's. Where another rollout was faster, its pages are used from now on,
        and the caller's are freed.

        Returns:
            The node that is pinned instead of ``node``, and the pages to use.
        """
        had, last, known = self.tree.insert(tokens, pages)
        self.pool.give_back(pages[shared:had])
        self.tree.pin(last)
        self.tree.unpin(node)
        return last, known

    def flush(self, version: int) -> None:
        """Forget everything before weights of ``version``. Nothing may be pinned."""
        if self.tree.pinned:
            raise ArgumentError(f"{self.tree.pinned} tokens are in use")
        pages = self.tree.clear()
        if self._pool is not None:
            self._pool.give_back(pages)
        self.version = version

    def clean(self, now: float) -> int:
        """Free prefixes unused since the last cleaning, if it is time; return the tokens freed."""
        if self._cleaned is None:
            self._cleaned, self._cleaned_at_use = now, self.tree.clock
            return 0
        if now - self._cleaned < self.config.cache_cleanup_interval:
            return 0
        freed = self.tree.evict(self.tree.evictable, self._cleaned_at_use + 1)
        if self._pool is not None:
            self._pool.give_back(freed)
        self.evicted_tokens += len(freed)
        self._cleaned, self._cleaned_at_use = now, self.tree.clock
        return len(freed)
