"""Pages and the tree of prefixes, against plain lists and under long random use."""

from __future__ import annotations

import math
import random
import threading
from typing import Any

import numpy as np
import pytest
import tiers
from echoic.errors import ArgumentError

torch = pytest.importorskip("torch")

from echoic.agents.llm import (
    ExecutionConfig,
    KVCacheManager,
    RadixTree,
)
from echoic.agents.llm.cache import as_tokens, common


def manager(size: int = 100, **fields: Any) -> KVCacheManager:
    return KVCacheManager(ExecutionConfig(max_cache_size=size, **fields), device="cpu")


def rows(count: int) -> Any:
    return torch.arange(float(count * 2)).view(count, 2)


def check(cache: KVCacheManager) -> None:
    """All that must hold of the tree and the pool, whatever happened."""
    tree = cache.tree
    pinned = evictable = 0
    pages: list[int] = []
    for node in tree:
        assert len(node.piece) == len(node.pages) > 0
        assert all(child.parent is node for child in node.children.values())
        assert all(first == child.piece[0] for first, child in node.children.items())
        assert node.pins >= sum(child.pins for child in node.children.values())
        pages.extend(node.pages.tolist())
        if node.pins:
            pinned += len(node.piece)
        else:
            evictable += len(node.piece)
    assert (tree.size, tree.evictable) == (pinned + evictable, evictable)
    free = cache._free
    assert len({*pages, *free}) == len(pages) + len(free)


# Pages.


def test_a_page_is_given_to_one_taker() -> None:
    cache = manager(4)
    taken = [cache.take(2), cache.take(2)]
    assert sorted(np.concatenate(taken).tolist()) == [0, 1, 2, 3]
    with pytest.raises(ArgumentError, match="1 pages were requested, and 0 are available"):
        cache.take(1)


# The tree.


def test_common_prefix_is_found_to_the_token() -> None:
    for length in range(20):
        one, other = (0,) * 20, (0,) * length + (1,) * (20 - length)
        assert common(one, other) == length


@pytest.mark.parametrize("seed", range(5))
def test_matches_are_those_of_a_list_of_sequences(seed: int) -> None:
    draw = random.Random(seed)
    tree, known, pages = RadixTree(), [], {}
    for step in range(400):
        tokens = tuple(draw.randrange(3) for _ in range(draw.randrange(1, 12)))
        best = max((common(tokens, other) for other in known), default=0)
        assert tree.length(tokens) == best
        _, found = tree.match(tokens)
        assert [pages[tokens[: i + 1]] for i in range(best)] == found.tolist()
        if draw.random() < 0.5:
            own = np.arange(step * 100, step * 100 + len(tokens))
            had, _, now = tree.insert(tokens, own)
            assert had == best
            for i in range(best, len(tokens)):
                pages[tokens[: i + 1]] = int(own[i])
            assert now.tolist() == [pages[tokens[: i + 1]] for i in range(len(tokens))]
            known.append(tokens)


def test_the_longest_unused_leaf_is_evicted_first_and_from_its_end() -> None:
    tree = RadixTree()
    tree.insert((1, 2, 3), np.array([1, 2, 3]))
    tree.insert((1, 5, 6), np.array([1, 5, 6]))
    tree.match((1, 2, 3))
    assert tree.evict(1).tolist() == [6]
    assert tree.evict(2).tolist() == [5, 3]
    assert tree.length((1, 2, 3)) == 2


def test_a_pinned_prefix_is_not_evicted_and_its_branches_are() -> None:
    tree = RadixTree()
    tree.insert((1, 2, 3, 4), np.arange(4))
    node, _ = tree.match((1, 2))
    tree.pin(node)
    assert sorted(tree.evict(100).tolist()) == [2, 3]
    assert (tree.size, tree.evictable, tree.length((1, 2, 3))) == (2, 0, 2)
    tree.pin(node, -1)
    assert len(tree.evict(100)) == 2
    assert tree.size == len(list(tree)) == 0


def test_splitting_a_pinned_node_keeps_both_halves() -> None:
    tree = RadixTree()
    _, node, _ = tree.insert((1, 2, 3, 4), np.arange(4))
    tree.pin(node)
    tree.insert((1, 2, 9), np.array([0, 1, 9]))
    assert tree.evict(100).tolist() == [9]
    assert (tree.size, tree.evictable) == (4, 0)
    tree.pin(node, -1)
    assert (tree.size, tree.evictable) == (4, 4)


# The manager by itself. Each of these was wrong in a program of this kind.


def test_an_exact_repeat_reuses_all_but_the_last_token() -> None:
    cache = manager()
    cache.store_kv_cache([1, 2, 3, 4], rows(4))
    kv, reused = cache.get_kv_cache([1, 2, 3, 4])
    assert reused == 3
    assert torch.equal(kv, rows(4)[:3])


def test_a_partial_overlap_reuses_its_common_part() -> None:
    cache = manager()
    cache.store_kv_cache([1, 2, 3, 4, 5, 6], rows(6))
    kv, reused = cache.get_kv_cache([1, 2, 3, 7, 8, 9])
    assert reused == 3
    assert torch.equal(kv, rows(6)[:3])
    assert cache.find_longest_prefix([1, 2, 3, 7])[1] == 3


def test_storing_a_sequence_again_takes_no_pages() -> None:
    cache = manager()
    for _ in range(4):
        assert cache.store_kv_cache([1, 2, 3], rows(3)) == 3
    stats = cache.get_cache_stats()
    assert (stats["cache_size"], len(list(cache.tree)), stats["free"]) == (3, 1, 97)


def test_cleaning_leaves_nothing_behind_and_hides_nothing() -> None:
    cache = manager(cache_cleanup_interval=10.0)
    cache.store_kv_cache([1, 2], rows(2))
    cache.store_kv_cache([1, 2, 3, 4], rows(4))
    assert cache._cleaned is not None
    start, _ = cache._cleaned
    assert cache.clean(start + 9.0) == 0
    assert cache.clean(start + 11.0) == 0
    cache.get_kv_cache([1, 2, 9])
    # 3 and 4 were not used since the cleaning before, 1 and 2 were.
    assert cache.clean(start + 22.0) == 2
    assert cache.get_kv_cache([1, 2, 3, 4])[1] == 2
    assert len(list(cache.tree)) == 1
    check(cache)


def test_sequences_longer_than_the_cache_are_kept_as_far_as_they_fit() -> None:
    cache = manager(4)
    assert cache.store_kv_cache([1, 2, 3, 4, 5, 6], rows(6)) == 4
    assert cache.store_kv_cache([7, 8], rows(2)) == 2
    assert cache.get_cache_stats()["evicted_tokens"] == 2
    assert cache.get_kv_cache([1, 2, 3])[1] == 2
    check(cache)


def test_states_match_by_their_bytes_and_zero_has_one_sign() -> None:
    cache = manager()
    states = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    states[0, 0] = 0.0
    cache.store_kv_cache(states, rows(6))
    other = states.copy()
    other[0, 0] = -0.0
    other[3] += 1e-6
    assert cache.get_kv_cache(other)[1] == 3
    assert cache.get_kv_cache(torch.from_numpy(states))[1] == 5


def test_keys_name_contents() -> None:
    cache = manager()
    assert cache.get_cache_key([1, 23]) == cache.get_cache_key(torch.tensor([1, 23]))
    assert cache.get_cache_key([1, 23]) != cache.get_cache_key([12, 3])


def test_the_rate_of_reuse_is_of_tokens() -> None:
    cache = manager()
    cache.store_kv_cache([1, 2, 3, 4], rows(4))
    cache.get_kv_cache([1, 2, 3, 4])
    cache.get_kv_cache([9, 9, 9, 9])
    stats = cache.get_cache_stats()
    assert stats["hit_rate"] == 3 / 7


def test_no_thread_is_started() -> None:
    before = threading.active_count()
    for _ in range(10):
        manager().store_kv_cache([1], rows(1))
    assert threading.active_count() == before


def test_a_flush_forgets_all_and_refuses_while_something_is_used() -> None:
    cache = manager()
    cache.store_kv_cache([1, 2, 3], rows(3))
    node, _ = cache.begin((1, 2, 3))
    with pytest.raises(ArgumentError, match="2 tokens are in use"):
        cache.flush()
    cache.tree.pin(node, -1)
    cache.flush()
    assert (cache.tree.size, cache.available) == (0, 100)
    assert cache.get_kv_cache([1, 2, 3]) == (None, 0)


@pytest.mark.parametrize("sequence", [np.zeros(3, np.float32), np.zeros((2, 2, 2)), ["a"]])
def test_what_is_no_sequence_is_an_error(sequence: Any) -> None:
    with pytest.raises(ArgumentError, match="a sequence must be one row of token ids"):
        as_tokens(sequence)


def test_rows_must_fit() -> None:
    cache = manager()
    with pytest.raises(ArgumentError, match=r"3 tokens need a row each, .* shape \(2, 2\)"):
        cache.store_kv_cache([1, 2, 3], rows(2))
    cache.store_kv_cache([1], rows(1))
    with pytest.raises(ArgumentError, match="a row of this cache is"):
        cache.store_kv_cache([1], torch.zeros(1, 5))


# Long random use.


def test_invariants_hold_over_many_thousands_of_operations() -> None:
    """Rollouts begin, take pages, publish, end or are dropped; what they read is what they wrote.

    A page is written with a number that its whole prefix determines, so that a page that two
    sequences share wrongly, or that was freed too early, is read as a wrong number.
    """
    draw = random.Random(7 + tiers.part)
    cache = KVCacheManager(ExecutionConfig(max_cache_size=256), "cpu", shape=(1, 1))
    plane = cache.pages[0].numpy()[:, 0]
    live: list[list[Any]] = []

    def worth(tokens: tuple[int, ...]) -> list[float]:
        values, value = [], 1
        for token in tokens:
            value = (value * 31 + token + 1) % 1_000_003
            values.append(float(value))
        return values

    operations = 0
    while operations < tiers.size(30_000, 100_000):
        operations += 1
        choice = draw.random()
        if choice < 0.35 or not live:
            tokens = tuple(draw.randrange(2) for _ in range(draw.randrange(2, 24)))
            node, pages = cache.begin(tokens)
            if len(tokens) - len(pages) > cache.available - sum(
                len(r[0]) - len(r[1]) for r in live
            ):
                cache.tree.pin(node, -1)
                continue
            live.append([tokens, pages, node, len(pages)])
        elif choice < 0.75:
            rollout = draw.choice(live)
            tokens, pages, _, _ = rollout
            count = min(draw.randrange(1, 9), len(tokens) - len(pages))
            own = cache.take(count)
            plane[own] = worth(tokens)[len(pages) : len(pages) + count]
            rollout[1] = np.concatenate([pages, own])
        else:
            rollout = live.pop(draw.randrange(len(live)))
            tokens, pages, node, shared = rollout
            assert plane[pages].tolist() == worth(tokens)[: len(pages)]
            if choice < 0.95:
                node, pages = cache.publish(tokens[: len(pages)], pages, node, shared)
                shared = len(pages)
                assert plane[pages].tolist() == worth(tokens)[: len(pages)]
            cache.give_back(pages[shared:])
            cache.tree.pin(node, -1)
        if operations % 500 == 0:
            check(cache)
            own = sum(len(r[1]) - r[3] for r in live)
            assert len(cache._free) + cache.tree.size + own == 256
    for tokens, pages, node, shared in live:
        assert plane[pages].tolist() == worth(tokens)[: len(pages)]
        cache.give_back(pages[shared:])
        cache.tree.pin(node, -1)
    check(cache)
    assert cache.available == 256
    assert cache.evicted_tokens > 10_000, "the pool was too large to be tested"


# Settings.


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_cache_size", 0, "max_cache_size must be at least 1, not 0"),
        ("max_concurrent_rollouts", 2.5, "whole number, at least 1, not 2.5"),
        ("timeout", 0.0, "timeout must be above 0"),
        ("latency_weight", -1.0, "latency_weight must be at least 0"),
        ("schedule_epsilon", math.nan, "must be above 0, not nan"),
        ("enable_bandwidth_scheduling", 1, "True or False"),
    ],
)
def test_settings_are_checked(field: str, value: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ExecutionConfig(**{field: value})
