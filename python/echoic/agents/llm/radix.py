"""A radix tree on tokens: which prefixes are cached, and in which pages.

A path from the root spells a sequence of tokens; each node has a piece of it and a page for each of
its tokens. A sequence that leaves a piece in its middle splits the node there. The user of a prefix
pins its last node, which pins all nodes above. A leaf without pins can be evicted, the longest
unused first and from its end, since a prefix is useful without what followed it.

Tokens are compared, not their hashes, so there are no collisions. A token is any hashable value:
the id of a language model's token, or the bytes of a row of states.

Invariants:

1. Children of a node start with different tokens, and only the root's piece is empty.
2. ``len(node.pages) == len(node.piece)``; no page is in two nodes.
3. ``node.pins`` is the number of pins on the node and below it. The root is never evicted.
4. ``pinned + evictable == size``, counted in tokens: those of nodes with and without pins.
5. Every unpinned leaf has an entry in ``_idle`` that is not later than its last use.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from numpy.typing import NDArray

__all__ = ["Node", "RadixTree", "common"]

_NOTHING: NDArray[np.int64] = np.empty(0, np.int64)
# Old entries of the heap are dropped when it has this many times more entries than nodes.
_SLACK = 4


def common(one: tuple[Hashable, ...], other: tuple[Hashable, ...]) -> int:
    """Return how many tokens two sequences have in common from their start.

    >>> common((1, 2, 3), (1, 2, 4, 5))
    2
    """
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
    """Cached prefixes.

    >>> tree = RadixTree()
    >>> tree.insert((1, 2, 3), np.array([7, 8, 9]))[0]
    0
    >>> tree.match((1, 2, 4))[1].tolist()
    [7, 8]
    """

    def __init__(self) -> None:
        self.root = Node((), _NOTHING, None)
        self.evictable = 0
        self.pinned = 0
        self.nodes = 0
        self._clock = 0
        self._idle: list[tuple[int, int, Node]] = []
        self._entries = 0

    @property
    def size(self) -> int:
        """Tokens in the tree."""
        return self.pinned + self.evictable

    @property
    def clock(self) -> int:
        """The count that ``last_use`` of a node is compared with."""
        return self._clock

    def match(self, tokens: tuple[Hashable, ...]) -> tuple[Node, NDArray[np.int64]]:
        """Return the last node and the pages of the longest cached prefix of ``tokens``.

        A node whose piece is left in its middle is split, so that the prefix ends with a node.
        """
        self._clock += 1
        node, done = self.root, 0
        pages: list[NDArray[np.int64]] = []
        while done < len(tokens):
            child = node.children.get(tokens[done])
            if child is None:
                break
            same = common(child.piece, tokens[done : done + len(child.piece)])
            if same < len(child.piece):
                child = self._split(child, same)
            child.last_use = self._clock
            pages.append(child.pages)
            done += same
            node = child
        return node, np.concatenate(pages) if pages else _NOTHING

    def length(self, tokens: tuple[Hashable, ...]) -> int:
        """Return how many of ``tokens`` are cached, without counting as a use."""
        node, done = self.root, 0
        while done < len(tokens):
            child = node.children.get(tokens[done])
            if child is None:
                break
            same = common(child.piece, tokens[done : done + len(child.piece)])
            done += same
            if same < len(child.piece):
                break
            node = child
        return done

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
            child.last_use = self._clock
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
