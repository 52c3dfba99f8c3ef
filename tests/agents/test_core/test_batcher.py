"""Ticks of the batcher: what is computed is what a plain forward pass computes, and no more."""

from __future__ import annotations

import random
from typing import Any

import pytest
import tiers
from echoic.errors import ArgumentError

torch = pytest.importorskip("torch")

from echoic.agents.bandwidth import BandwidthEfficiencyTracker
from echoic.agents.llm import (
    Batcher,
    ExecutionConfig,
    RolloutRequest,
    RolloutResult,
    SamplingParams,
    TinyConfig,
    TinyTransformer,
)
from echoic.agents.llm.batcher import Rollout, draw
from echoic.agents.llm.model import Window

from experiments import kv_sharing

torch.set_num_threads(1)
SMALL = TinyConfig(vocab_size=17, dim=32, layers=2, heads=4, kv_heads=2, hidden=48)


class Clock:
    """Time that passes when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A batcher, and results as they come."""

    def __init__(self, model: Any = None, **fields: Any) -> None:
        self.model = model or TinyTransformer(SMALL, device="cpu")
        self.config = ExecutionConfig(**fields)
        self.tracker = BandwidthEfficiencyTracker()
        self.clock = Clock()
        self.batcher = Batcher(self.model, self.config, self.tracker, self.clock)
        self.cache = self.batcher.cache
        self.rollouts: dict[str, Rollout] = {}
        self.results: dict[str, RolloutResult] = {}
        self.admitted: list[str] = []

    def add(self, name: str, tokens: Any, count: int = 4, **fields: Any) -> None:
        sampling = SamplingParams(
            max_new_tokens=count,
            temperature=fields.pop("temperature", 0.0),
            stop=fields.pop("stop", ()),
            seed=fields.pop("seed", None),
        )
        request = RolloutRequest(
            name, list(tokens), timestamp=self.clock.now, sampling=sampling, **fields
        )
        self.rollouts[name] = Rollout(request, tuple(tokens), seed=0)
        self.batcher.submit(self.rollouts[name])

    def step(self) -> None:
        for rollout in self.batcher.step():
            name = rollout.request_id
            if rollout.admitted is not None and name not in self.admitted:
                self.admitted.append(name)
            if rollout.result is not None:
                assert name not in self.results
                self.results[name] = rollout.result

    def run(self) -> dict[str, RolloutResult]:
        for _ in range(10_000):
            if not self.batcher.busy:
                return self.results
            self.step()
        raise AssertionError("it does not end")

    def idle(self) -> bool:
        """Whether nothing is held by anybody."""
        return (
            not self.batcher.running
            and not self.batcher._windows
            and len(self.batcher.scheduler) == 0
            and self.cache.available == self.config.max_cache_size
        )


def greedy(model: Any, tokens: Any, count: int) -> list[int]:
    """What one-by-one generation gives, with no cache at all."""
    tokens = list(tokens)
    start = len(tokens)
    for _ in range(count):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[start:]


# The same numbers.


@pytest.mark.parametrize("part", tiers.rotating(0, 1, 2, 3))
def test_cached_decoding_gives_the_logits_of_a_full_pass_in_hundreds_of_trees(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small pools, so that there are evictions; small budgets, so that prompts come in pieces."""
    monkeypatch.setattr("echoic.agents.llm.batcher._LEAST_STEM", 2)
    model = TinyTransformer(SMALL, device="cpu")
    worst, drawn, evicted, reused, shared = 0.0, 0, 0, 0, 0
    begin = Window.begin

    def look(window: Window, lengths: Any) -> bool:
        nonlocal shared
        used = begin(window, lengths)
        shared += window._start > 0 and len(window.members) > 1
        return used

    monkeypatch.setattr(Window, "begin", look)
    for seed in range(100 * part, 100 * part + 100):
        random_ = random.Random(seed)
        bench = Bench(
            model,
            max_cache_size=random_.randrange(18, 36),
            token_budget=random_.randrange(6, 32),
            max_concurrent_rollouts=random_.randrange(2, 7),
            kv_reuse_threshold=random_.choice([0.0, 0.5, 1.0]),
        )
        stems = [[random_.randrange(17) for _ in range(8)] for _ in range(2)]
        for index in range(5):
            stem = random_.choice(stems)[: random_.randrange(1, 9)]
            tail = [random_.randrange(17) for _ in range(random_.randrange(5))]
            bench.add(str(index), stem + tail, random_.randrange(1, 4))
            if random_.random() < 0.2:
                bench.step()
        bench.run()
        assert bench.idle()
        rollouts = list(bench.rollouts.values())
        longest = max(len(one.sequence) for one in rollouts)
        padded = [one.sequence + [0] * (longest - len(one.sequence)) for one in rollouts]
        with torch.no_grad():
            logs = torch.log_softmax(model(torch.tensor(padded)), -1)
        for row, one in enumerate(rollouts):
            result = bench.results[one.request_id]
            assert result.success
            drawn_here = zip(result.tokens, result.logprobs, strict=True)
            for place, (token, logprob) in enumerate(drawn_here, one.prompt - 1):
                best, own = float(logs[row, place].max()), float(logs[row, place, token])
                worst = max(worst, best - own, abs(own - logprob))
            drawn += len(result.tokens)
        evicted += bench.cache.evicted_tokens
        reused += bench.cache.reused_tokens
    assert worst < 1e-5
    assert (drawn > 500, evicted > 150, reused > 500, shared > 10) == (True,) * 4


@pytest.mark.parametrize("budget", [1, 7, 512])
def test_greedy_tokens_are_those_of_one_by_one_generation(budget: int) -> None:
    bench = Bench(token_budget=budget)
    prompts = [[i % 17, 3, 5, *range(i % 7)] for i in range(12)]
    for index, prompt in enumerate(prompts):
        bench.add(str(index), prompt, 8)
    results = bench.run()
    for index, prompt in enumerate(prompts):
        assert results[str(index)].tokens == greedy(bench.model, prompt, 8)
        assert results[str(index)].finish_reason == "length"


def test_log_probabilities_are_those_of_the_policy() -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3], 12, temperature=0.7, seed=5)
    result = bench.run()["a"]
    tokens = [1, 2, 3, *result.tokens]
    with torch.no_grad():
        logs = torch.log_softmax(bench.model(torch.tensor([tokens]))[0] / 0.7, -1)
    expected = [float(logs[2 + i, token]) for i, token in enumerate(result.tokens)]
    assert result.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_seed_gives_the_same_tokens_whoever_else_is_there() -> None:
    alone, together = Bench(), Bench()
    alone.add("a", [1, 2, 3], 10, temperature=1.0, seed=3)
    for index in range(5):
        together.add(str(index), [index, 4], 10, temperature=1.0, seed=index)
    together.add("a", [1, 2, 3], 10, temperature=1.0, seed=3)
    assert alone.run()["a"].tokens == together.run()["a"].tokens


def test_what_is_returned_as_keys_and_values_is_what_the_model_made() -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3], 4, return_kv=True)
    bench.add("b", [1, 2, 3], 4)
    results = bench.run()
    # Two planes a layer, all tokens but the last drawn one.
    assert results["a"].kv_cache.shape == (4, 6, 2, 8)
    assert results["b"].kv_cache is None
    other = Bench(enable_prefix_cache=False)
    other.add("a", [1, 2, 3], 4, return_kv=True)
    assert torch.allclose(results["a"].kv_cache, other.run()["a"].kv_cache, atol=1e-5)


@pytest.mark.parametrize(
    ("prompts", "stems"),
    [
        # All begin alike, and what follows is their own.
        ([[1] * 20 + [i] * 2 for i in range(4)], [(20, 4)]),
        # Two tasks with four answers each: more is read once if each task has its stem.
        (
            [[1] * 20 + [2 + i] * 30 + [6, j] for i in range(2) for j in range(4)],
            [(51, 4), (51, 4)],
        ),
        # Too little to be worth it, and nothing in common.
        ([[1] * 15 + [2 + i] * 2 for i in range(4)], [(0, 4)]),
        ([[1, 2], [2, 2], [3, 2]], [(0, 3)]),
        # Two have a token more in common than all: the windows would be small.
        ([[1] * 20 + [i // 2, i] for i in range(4, 12)], [(20, 8)]),
    ],
)
def test_stems_are_where_most_is_read_once(prompts: Any, stems: Any) -> None:
    bench = Bench(kv_reuse_threshold=0.1)
    for index, prompt in enumerate(prompts):
        bench.add(str(index), prompt, 16)
    while min(len(rollout.tokens) for rollout in bench.rollouts.values()) < 2:
        bench.step()
    windows = bench.batcher._windows.values()
    assert sorted((window._start, len(window.rows)) for window in windows) == stems
    assert bench.run()["0"].tokens == greedy(bench.model, prompts[0], 16)


@pytest.mark.parametrize("alike", [True, False])
def test_windows_take_a_few_times_the_memory_of_the_pool_at_most(alike: bool) -> None:
    random_ = random.Random(0)
    text = [random_.randrange(17) for _ in range(1_000)]
    if alike:
        # The beginnings of one text: the pool has it once, and a row for each has most of it.
        prompts = [text[: 50 * length] for length in range(1, 21)]
    else:
        # One long rollout among many short ones: not all rows are as long as its own.
        prompts = [[i % 17, i // 17, 3] for i in range(63)] + [text]
    bench = Bench(max_cache_size=1_500, token_budget=4_000, max_concurrent_rollouts=len(prompts))
    for index, prompt in enumerate(prompts):
        bench.add(str(index), prompt, 8)
    most = 0
    while bench.batcher.busy:
        bench.step()
        windows = bench.batcher._windows.values()
        most = max(most, sum(window._own.nbytes + window._stem.nbytes for window in windows))
    assert 0 < most < 4 * bench.cache.pages.nbytes
    for index in (0, 1, len(prompts) - 2, len(prompts) - 1):
        assert bench.results[str(index)].tokens == greedy(bench.model, prompts[index], 8)
    assert bench.idle()


def test_memory_that_is_not_enough_for_a_window_fails_its_rollouts_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3], 4)
    bench.step()

    def add(*_: Any) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("echoic.agents.llm.model.Window.add", add)
        bench.step()
    assert bench.results["a"].error == "MemoryError: no memory"
    bench.add("b", [1, 2, 3], 4)
    assert bench.run()["b"].tokens == greedy(bench.model, [1, 2, 3], 4)
    assert bench.idle()


# Reuse.


def test_an_exact_repeat_computes_one_token_of_its_prompt() -> None:
    bench = Bench()
    prompt = list(range(10))
    bench.add("a", prompt, 1)
    bench.run()
    before = bench.cache.computed_tokens
    bench.add("b", prompt, 1)
    assert bench.run()["b"].reused_tokens == 9
    assert bench.cache.computed_tokens - before == 1


def test_a_partial_overlap_reuses_its_common_part() -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3, 4, 5, 6], 1)
    bench.run()
    bench.add("b", [1, 2, 3, 7, 8, 9], 1)
    assert bench.run()["b"].reused_tokens == 3


def test_what_was_generated_is_reused_by_the_next_turn() -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3, 4], 5)
    first = bench.run()["a"]
    bench.add("b", [1, 2, 3, 4, *first.tokens, 7, 7], 1)
    # The keys of the last drawn token were never needed, so they were never computed.
    assert bench.run()["b"].reused_tokens == 4 + 5 - 1


def test_rollouts_of_one_prompt_that_come_together_compute_it_once() -> None:
    prompt = [i % 17 for i in range(100)]
    computed = {}
    for threshold in (0.5, 1.0):
        bench = Bench(kv_reuse_threshold=threshold, token_budget=40)
        for index in range(8):
            bench.add(str(index), [*prompt, index], 1)
        bench.run()
        computed[threshold] = bench.cache.computed_tokens
    assert computed[0.5] == 101 + 7
    assert computed[1.0] > 1.5 * computed[0.5]


def test_ten_turns_of_two_rollouts_reuse_most_tokens_and_spare_most_products() -> None:
    """The workload of `experiments/kv_sharing.py`; how much time that saves is measured there."""
    model = TinyTransformer(TinyConfig(vocab_size=64, layers=1), device="cpu")
    row = kv_sharing.count(model, turns=10, rollouts=2, seed=0)
    assert row["same_tokens"]
    assert row["reuse"] >= 0.78
    assert row["fewer_flops"] >= 3.0
    # The counter sees every product: those of weights alone are two a weight and token.
    weights = sum(p.numel() for block in model.blocks for p in block.parameters() if p.ndim > 1)
    assert row["alone_flops"] > 2 * weights * row["alone_computed"]
    # Pairs of tokens by the formula, from the tokens that the cache counted.
    assert row["shared_b_eff"] < row["alone_b_eff"] / 5


def test_without_the_prefix_cache_nothing_is_reused() -> None:
    bench = Bench(enable_prefix_cache=False)
    for _ in range(2):
        bench.add("a", list(range(10)), 3)
        bench.run()
        bench.results.clear()
    assert bench.cache.reused_tokens == 0
    assert bench.cache.computed_tokens == 2 * 12
    assert bench.idle()


def test_the_tracker_has_the_counts_of_the_cache() -> None:
    bench = Bench(max_cache_size=60)
    random_ = random.Random(0)
    for index in range(50):
        bench.add(str(index), [1, 2, 3, *(random_.randrange(3) for _ in range(6))], 3)
        if index % 3 == 0:
            bench.step()
        if index % 7 == 0:
            bench.rollouts[str(index)].cancelled = True
    bench.run()
    metrics, cache = bench.tracker.snapshot(), bench.cache
    assert cache.reused_tokens > 100
    needed = cache.reused_tokens + cache.computed_tokens
    assert metrics.kv_reuse_rate == cache.reused_tokens / needed


# Who is next.


def test_with_one_slot_admissions_follow_priorities() -> None:
    bench = Bench(max_concurrent_rollouts=1)
    priorities = [3.0, -2.0, 5.0, 0.0, 4.0, -1.0]
    for index, priority in enumerate(priorities):
        bench.add(str(index), [index, 1, 2], 1, priority=priority)
    bench.run()
    best = sorted(range(6), key=lambda i: -priorities[i])
    assert bench.admitted == [str(i) for i in best]


def test_of_equal_worth_the_cheaper_goes_first_also_below_zero() -> None:
    for priority in (1.0, -1.0):
        bench = Bench(max_concurrent_rollouts=1)
        bench.add("long", list(range(16)) * 3, 1, priority=priority)
        bench.add("short", [1, 2], 1, priority=priority)
        bench.run()
        assert bench.admitted == ["short", "long"]


def test_what_the_cache_has_makes_a_rollout_cheap() -> None:
    bench = Bench(max_concurrent_rollouts=1)
    bench.add("seed", list(range(16)) * 2, 1)
    bench.run()
    bench.add("fresh", [9] * 31, 1)
    bench.add("cached", list(range(16)) * 2, 1)
    bench.run()
    assert bench.admitted[1:] == ["cached", "fresh"]


def test_equals_go_in_the_order_of_arrival() -> None:
    bench = Bench(max_concurrent_rollouts=1)
    for index in range(300):
        bench.clock.now = index * 1e-4
        bench.add(str(index), [1, index % 17], 1, priority=0.0)
    bench.run()
    assert bench.admitted == [str(index) for index in range(300)]


def test_nobody_starves_behind_a_stream_of_better_ones() -> None:
    bench = Bench(max_concurrent_rollouts=1, timeout=30.0)
    bench.add("poor", list(range(16)), 1, priority=0.001)
    for index in range(400):
        bench.add(f"rich-{index}", [index % 17], 1, priority=100.0)
        bench.clock.now += 0.1
        bench.step()
        if "poor" in bench.results:
            break
    assert bench.results["poor"].success
    # Half of the timeout, and the tick in which it was noticed.
    assert 15.0 <= bench.clock.now <= 15.3


def test_one_that_needs_many_pages_is_not_overtaken_for_ever() -> None:
    bench = Bench(max_cache_size=40, max_concurrent_rollouts=8)
    for index in range(3):
        bench.add(f"small-{index}", [index, 1], 10)
    bench.step()
    bench.add("large", list(range(15)) * 2, 8, priority=1e9)
    for index in range(3, 9):
        bench.add(f"small-{index}", [index, 1], 2)
    results = bench.run()
    assert all(result.success for result in results.values())
    assert bench.admitted[3] == "large"


# Ends.


def test_a_stop_token_ends_a_rollout_and_is_part_of_it() -> None:
    bench = Bench()
    tokens = greedy(bench.model, [1, 2, 3], 8)
    bench.add("a", [1, 2, 3], 8, stop=(tokens[3],))
    result = bench.run()["a"]
    assert (result.finish_reason, result.tokens[-1]) == ("stop", tokens[3])
    assert result.tokens == tokens[: tokens.index(tokens[3]) + 1]


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_cancelling_frees_pages_at_every_stage(steps: int) -> None:
    bench = Bench(token_budget=8, max_concurrent_rollouts=2)
    for index in range(4):
        bench.add(str(index), [index] * 20, 10)
    for _ in range(steps):
        bench.step()
    for index in range(4):
        bench.rollouts[str(index)].cancelled = True
    results = bench.run()
    assert {result.finish_reason for result in results.values()} == {"cancelled"}
    assert not any(result.success for result in results.values())
    assert bench.idle()


def test_a_timeout_ends_what_waits_and_what_runs() -> None:
    bench = Bench(max_concurrent_rollouts=1)
    bench.add("runs", [1, 2], 1_000, timeout=5.0)
    bench.add("waits", [1, 3], 1, timeout=5.0)
    for _ in range(3):
        bench.step()
    bench.clock.now = 5.0
    results = bench.run()
    assert [r.finish_reason for r in results.values()] == ["timeout", "timeout"]
    assert results["runs"].error == "not done after 5 seconds"
    assert len(results["runs"].tokens) == 3
    assert bench.idle()


def test_a_model_that_raises_fails_its_rollouts_and_nobody_else() -> None:
    class Moody(TinyTransformer):
        angry = False

        def forward_paged(self, batch: Any) -> Any:
            if self.angry:
                raise RuntimeError("not today")
            return super().forward_paged(batch)

    bench = Bench(Moody(SMALL, device="cpu"))
    bench.model.angry = True
    bench.add("a", [1, 2, 3], 4)
    result = bench.run()["a"]
    assert (result.success, result.error) == (False, "RuntimeError: not today")
    assert result.tokens == []
    bench.model.angry = False
    bench.add("b", [1, 2, 3], 4)
    assert bench.run()["b"].tokens == greedy(bench.model, [1, 2, 3], 4)
    assert bench.run()["b"].reused_tokens == 0
    assert bench.idle()


# New weights.


def other_weights() -> dict[str, Any]:
    return dict(TinyTransformer(SMALL, seed=1, device="cpu").state_dict())


def test_after_new_weights_nothing_is_reused() -> None:
    bench = Bench()
    bench.add("a", list(range(10)), 2)
    bench.run()
    bench.batcher.load(other_weights(), 3)
    bench.add("b", list(range(10)), 2)
    result = bench.run()["b"]
    assert (result.reused_tokens, result.versions) == (0, [3, 3])
    assert result.tokens == greedy(bench.model, range(10), 2)


def test_rollouts_go_on_under_new_weights_with_a_version_on_every_token() -> None:
    bench = Bench(token_budget=16)
    for index in range(4):
        bench.add(str(index), [5, 6, 7, 8, 9, index], 6)
    while bench.batcher.counts["generated_tokens"] < 8:
        bench.step()
    bench.batcher.load(other_weights(), 1)
    results = bench.run()
    changed = 0
    for index in range(4):
        result = results[str(index)]
        assert len(result.tokens) == 6
        assert sorted(result.versions) == result.versions
        old = result.versions.count(0)
        changed += 0 < old < 6
        prompt = [5, 6, 7, 8, 9, index]
        first = TinyTransformer(SMALL, device="cpu")
        assert result.tokens[:old] == greedy(first, prompt, old)
        # As if the new policy had been given all that came before.
        rest = greedy(bench.model, prompt + result.tokens[:old], 6 - old)
        assert result.tokens[old:] == rest
    assert changed == 4
    assert bench.idle()


def test_new_weights_fit_a_pool_that_only_sharing_made_large_enough() -> None:
    # Eight rollouts of one prompt fit only while they share it; then nobody shares with anybody.
    prompt = [i % 17 for i in range(30)]
    bench = Bench(max_cache_size=100)
    bench.add("first", prompt, 1)
    bench.run()
    for index in range(8):
        bench.add(str(index), [*prompt, index], 6)
    for _ in range(2):
        bench.step()
    assert len(bench.batcher.running) == 8
    bench.batcher.load(other_weights(), 1)
    results = bench.run()
    assert all(result.success for result in results.values())
    assert bench.idle()


def test_weights_that_do_not_fit_leave_the_old_ones() -> None:
    bench = Bench()
    wrong = other_weights()
    wrong["norm.weight"] = torch.zeros(5)
    lacking = other_weights()
    del lacking["norm.weight"]
    for weights, message in (
        (wrong, r"norm.weight is \(5,\), not \(32,\)"),
        (lacking, "norm.weight is None"),
    ):
        with pytest.raises(ArgumentError, match=message):
            bench.batcher.load(weights, 1)
    bench.add("a", [1, 2, 3], 4)
    result = bench.run()["a"]
    assert result.versions == [0] * 4
    assert result.tokens == greedy(TinyTransformer(SMALL, device="cpu"), [1, 2, 3], 4)


# Drawing.


def test_draws_have_the_probabilities_of_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    count = 20_000
    chances = [(i + 0.5) / count for i in range(count)]
    for heat, top_p in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.8)):
        params = [SamplingParams(temperature=heat, top_p=top_p)] * count
        tokens, logprobs = draw(logits.repeat(count, 1), params, chances)
        likely = torch.softmax(logits / heat, -1).double()
        assert logprobs[0] == pytest.approx(float(likely[tokens[0]].log()), abs=1e-5)
        if top_p < 1:
            # 0.64 and 0.24 fill it; the others are cut off.
            likely = torch.where(likely > 0.1, likely, 0.0)
        found = [(tokens == i).mean() for i in range(4)]
        assert found == pytest.approx((likely / likely.sum()).tolist(), abs=2e-4)


@pytest.mark.parametrize(
    "fields", [{"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.1}]
)
def test_sampling_parameters_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        SamplingParams(**fields)
