"""The engine as a program that awaits it sees it."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest
import tiers
from echoic.errors import ArgumentError, ClosedError, WaitTimeoutError

torch = pytest.importorskip("torch")

from echoic.agents.llm import (
    AsyncExecutionEngine,
    ExecutionConfig,
    KVCacheManager,
    RolloutResult,
    SamplingParams,
    TinyConfig,
    TinyTransformer,
)

torch.set_num_threads(1)
SMALL = TinyConfig(vocab_size=17, dim=32, layers=2, heads=4, kv_heads=2, hidden=48)
GREEDY = SamplingParams(max_new_tokens=4, temperature=0.0)


def engine(**fields: Any) -> AsyncExecutionEngine:
    fields = {"timeout": 100.0, **fields}
    return AsyncExecutionEngine(
        ExecutionConfig(**fields), TinyTransformer(SMALL, device="cpu"), "cpu", seed=0
    )


class Gated(TinyTransformer):
    """Each forward pass waits until the test lets it go."""

    def __init__(self) -> None:
        super().__init__(SMALL, device="cpu")
        self.gate = threading.Semaphore(0)

    def forward_paged(self, batch: Any) -> Any:
        assert self.gate.acquire(timeout=20)
        return super().forward_paged(batch)


def idle(running: AsyncExecutionEngine) -> bool:
    cache = running.cache
    assert cache is not None
    return (
        running.get_performance_metrics()["active"] == 0
        and running._waiting == 0
        and cache.available == cache.config.max_cache_size
    )


# Rollouts.


def test_submitting_gives_a_name_and_the_result_comes_back_with_its_metadata() -> None:
    async def main() -> None:
        async with engine() as running:
            name = await running.submit_rollout([1, 2, 3], 1.0, {"task": 7}, sampling=GREEDY)
            result = await running.get_result(name)
            assert (result.request_id, result.success, result.metadata) == (name, True, {"task": 7})
            assert len(result.tokens) == len(result.logprobs) == result.tokens_generated == 4
            with pytest.raises(ArgumentError, match="or its result was taken"):
                await running.get_result(name)

    asyncio.run(main())


def test_tokens_come_one_by_one_to_all_who_read() -> None:
    async def main() -> None:
        async with engine() as running:
            name = await running.submit_rollout([1, 2, 3], sampling=GREEDY)
            readers = []
            for _ in range(2):
                readers.append([token async for token in running.stream(name)])
            result = await running.get_result(name)
            for tokens in readers:
                assert [token.token for token in tokens] == result.tokens
                assert [token.logprob for token in tokens] == result.logprobs

    asyncio.run(main())


def test_a_token_is_there_before_the_rollout_has_ended() -> None:
    async def main() -> None:
        model = Gated()
        async with AsyncExecutionEngine(ExecutionConfig(timeout=60.0), model, "cpu") as running:
            name = await running.submit_rollout([1, 2, 3], sampling=GREEDY)
            stream = running.stream(name)
            model.gate.release()
            await asyncio.wait_for(anext(stream), 20)
            assert running.get_performance_metrics()["active"] == 1
            model.gate.release(100)
            assert len([token async for token in stream]) == 3

    asyncio.run(main())


def test_many_of_equal_priority_are_all_done() -> None:
    async def main() -> None:
        async with engine() as running:
            short = SamplingParams(max_new_tokens=1)
            names = [
                await running.submit_rollout([1, i % 17], priority=0, sampling=short)
                for i in range(1_000)
            ]
            results = [await running.get_result(name) for name in names]
            assert all(result.success for result in results)
            assert idle(running)

    asyncio.run(main())


def test_concurrent_rollouts_are_what_each_would_be_alone() -> None:
    async def main() -> None:
        prompts = [[i % 17, 2, 5] for i in range(16)]
        async with engine() as running:
            together = await asyncio.gather(*(running.generate(p, GREEDY) for p in prompts))
        async with engine() as running:
            alone = [await running.generate(p, GREEDY) for p in prompts]
        assert [r.tokens for r in together] == [r.tokens for r in alone]

    asyncio.run(main())


def test_sixteen_at_a_time_have_twice_the_throughput_of_one_at_a_time() -> None:
    async def main() -> float:
        model = TinyTransformer(device="cpu")
        sampling = SamplingParams(max_new_tokens=16, temperature=0.0)
        prompts = [[i, *range(20)] for i in range(16)]
        config = ExecutionConfig(enable_prefix_cache=False, timeout=100.0)
        async with AsyncExecutionEngine(config, model, "cpu") as running:
            await running.generate(prompts[0], sampling)
            start = time.process_time()
            for prompt in prompts:
                await running.generate(prompt, sampling)
            one = time.process_time() - start
            start = time.process_time()
            await asyncio.gather(*(running.generate(prompt, sampling) for prompt in prompts))
            return one / (time.process_time() - start)

    # Of the processor's time, which others on this machine do not change.
    assert asyncio.run(main()) >= 2.0


def test_the_loop_is_not_blocked_by_forward_passes() -> None:
    passes: list[tuple[float, float]] = []

    class Slow(TinyTransformer):
        def forward_paged(self, batch: Any) -> Any:
            start = time.perf_counter()
            time.sleep(0.12)
            passes.append((start, time.perf_counter()))
            return super().forward_paged(batch)

    async def main() -> list[tuple[float, float]]:
        beats = []

        async def heart() -> None:
            while True:
                beats.append((time.perf_counter(), time.thread_time()))
                await asyncio.sleep(0.005)

        async with AsyncExecutionEngine(
            ExecutionConfig(timeout=60.0), Slow(SMALL, device="cpu"), "cpu"
        ) as running:
            beating = asyncio.create_task(heart())
            await asyncio.gather(*(running.generate([i % 17, 1], GREEDY) for i in range(64)))
            beating.cancel()
        return beats

    beats = asyncio.run(main())
    # The loop itself never works for 50 ms between two beats (its own time: how long others on
    # this machine keep it from working is not its fault), and beats while the model computes.
    assert max(np.diff([own for _, own in beats])) < 0.05
    assert all(sum(start < at < end for at, _ in beats) > 5 for start, end in passes)


def test_a_rollout_out_of_bounds_is_refused_when_it_is_submitted() -> None:
    async def main() -> None:
        async with engine(max_cache_size=20) as running:
            for tokens, message in (
                ([], "at least one token"),
                ([17], "ids from 0 to below 17; got 17"),
                ([-1], "got -1"),
                ([0.5], "one row of token ids"),
                (range(17), "17 tokens and 16 new ones do not fit into 20"),
            ):
                with pytest.raises(ArgumentError, match=message):
                    await running.submit_rollout(list(tokens))
            assert running.get_performance_metrics()["submitted"] == 0

    asyncio.run(main())


def test_a_callback_gets_the_result() -> None:
    async def main() -> None:
        results: list[RolloutResult] = []
        async with engine() as running:
            name = await running.submit_rollout([1], sampling=GREEDY, callback=results.append)
            assert results == [] or results[0].request_id == name
            result = await running.get_result(name)
            assert results == [result]

    asyncio.run(main())


# Waiting, and ends.


def test_get_result_stops_waiting_and_the_rollout_goes_on() -> None:
    async def main() -> None:
        model = Gated()
        async with AsyncExecutionEngine(ExecutionConfig(timeout=60.0), model, "cpu") as running:
            name = await running.submit_rollout([1, 2], sampling=GREEDY)
            with pytest.raises(TimeoutError, match=r"has not ended within 0\.05 s"):
                await running.get_result(name, timeout=0.05)
            model.gate.release(100)
            assert (await running.get_result(name)).success

    asyncio.run(main())


def test_submitting_waits_while_the_queue_is_full() -> None:
    async def main() -> None:
        model = Gated()
        config = ExecutionConfig(priority_queue_size=2, max_concurrent_rollouts=1, timeout=60.0)
        async with AsyncExecutionEngine(config, model, "cpu") as running:
            names = [await running.submit_rollout([i], sampling=GREEDY) for i in range(2)]
            model.gate.release()
            await anext(running.stream(names[0]))
            # One runs and one waits, so that there is room for one more.
            names.append(await running.submit_rollout([2], sampling=GREEDY))
            with pytest.raises(WaitTimeoutError, match="2 rollouts wait already"):
                await running.submit_rollout([3], sampling=GREEDY, timeout=0.05)
            late = asyncio.create_task(running.submit_rollout([4], sampling=GREEDY))
            await asyncio.sleep(0)
            assert not late.done()
            model.gate.release(100)
            names.append(await late)
            assert all([(await running.get_result(name)).success for name in names])
            assert idle(running)

    asyncio.run(main())


def test_a_timeout_ends_a_rollout_that_the_model_keeps_waiting() -> None:
    async def main() -> None:
        model = Gated()
        async with AsyncExecutionEngine(ExecutionConfig(), model, "cpu") as running:
            name = await running.submit_rollout([1, 2], sampling=GREEDY, timeout=0.05)
            await asyncio.sleep(0.1)
            model.gate.release(100)
            result = await running.get_result(name)
            assert (result.success, result.finish_reason) == (False, "timeout")
            assert idle(running)

    asyncio.run(main())


def test_cancelling_ends_a_rollout_and_says_whether_it_did() -> None:
    async def main() -> None:
        model = Gated()
        async with AsyncExecutionEngine(ExecutionConfig(timeout=60.0), model, "cpu") as running:
            name = await running.submit_rollout([1, 2], sampling=GREEDY)
            assert running.cancel(name)
            model.gate.release(100)
            result = await running.get_result(name)
            assert (result.success, result.finish_reason) == (False, "cancelled")
            assert not running.cancel(name)
            assert idle(running)

    asyncio.run(main())


def test_nothing_is_left_after_thousands_of_requests_with_random_cancels() -> None:
    async def main() -> None:
        draw = random.Random(0)
        tiny = TinyConfig(vocab_size=17, dim=8, layers=1, heads=1, kv_heads=1, hidden=8)
        config = ExecutionConfig(max_cache_size=600, timeout=300.0)
        model = TinyTransformer(tiny, device="cpu")
        async with AsyncExecutionEngine(config, model, "cpu", seed=0) as running:
            assert running.cache is not None

            async def one(index: int) -> str:
                tokens = [index % 5, *(draw.randrange(3) for _ in range(draw.randrange(8)))]
                sampling = SamplingParams(max_new_tokens=draw.randrange(1, 4))
                if draw.random() < 0.1:
                    waiting = asyncio.create_task(running.generate(tokens, sampling))
                    for _ in range(draw.randrange(4)):
                        await asyncio.sleep(0)
                    waiting.cancel()
                    await asyncio.wait({waiting})
                    return "cancelled" if waiting.cancelled() else waiting.result().finish_reason
                name = await running.submit_rollout(tokens, draw.random(), sampling=sampling)
                if draw.random() < 0.2:
                    for _ in range(draw.randrange(4)):
                        await asyncio.sleep(0)
                    running.cancel(name)
                return (await running.get_result(name)).finish_reason

            ends = []
            count = tiers.size(1_500, 3_000)
            for start in range(0, count, 500):
                ends += await asyncio.gather(*(one(i) for i in range(start, start + 500)))
            # Whoever was cancelled while it waited here may still be on its way there.
            while running.get_performance_metrics()["active"] or running._batcher.busy:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert set(ends) == {"length", "cancelled"}
            assert 0.15 < ends.count("cancelled") / count < 0.4
            assert idle(running)
            assert not running._handles
            assert not running._room.locked()
            metrics, cache = running.get_performance_metrics(), running.cache
            assert cache.evicted_tokens > count / 10
            needed = cache.reused_tokens + cache.computed_tokens
            assert metrics["bandwidth"]["kv_reuse_rate"] == cache.reused_tokens / needed

    asyncio.run(main())


def test_results_that_nobody_takes_are_dropped_at_a_bound() -> None:
    async def main() -> None:
        async with engine() as running:
            running._max_results = 3
            names = [await running.submit_rollout([i], sampling=GREEDY) for i in range(5)]
            await running.get_result(names[-1])
            while running.get_performance_metrics()["active"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            kept = [name for name in names if name in running._handles]
            assert len(kept) <= 3

    asyncio.run(main())


@pytest.mark.parametrize("way", ["shutdown", "aclose"])
def test_who_waits_is_told_that_the_engine_was_shut_down(way: str) -> None:
    async def main() -> None:
        model = Gated()
        running = AsyncExecutionEngine(ExecutionConfig(timeout=60.0), model, "cpu")
        name = await running.submit_rollout([1, 2], sampling=GREEDY)
        waiting = asyncio.create_task(running.get_result(name))
        updating = asyncio.create_task(running.update_weights(model.state_dict()))
        await asyncio.sleep(0.02)
        model.gate.release(100)
        if way == "shutdown":
            running.shutdown()
        else:
            await running.aclose()
        result = await waiting
        assert (result.success, result.finish_reason) == (False, "shutdown")
        with pytest.raises(ClosedError):
            await updating
        with pytest.raises(ClosedError):
            await running.submit_rollout([1])
        running.shutdown()

    asyncio.run(main())
    assert not [t for t in threading.enumerate() if t.name.startswith("echoic-engine")]


def test_an_engine_outlives_an_event_loop() -> None:
    running = engine()
    for _ in range(2):
        assert asyncio.run(running.generate([1, 2, 3], GREEDY)).success
    running.shutdown()


def test_making_an_engine_starts_no_thread() -> None:
    before = threading.active_count()
    engine()
    assert threading.active_count() == before


# Weights.


def test_new_weights_flush_the_cache_and_are_named_in_results() -> None:
    async def main() -> None:
        other = TinyTransformer(SMALL, seed=1, device="cpu")
        async with engine() as running:
            prompt = list(range(10))
            await running.generate(prompt, GREEDY)
            assert (await running.generate(prompt, GREEDY)).reused_tokens == 9
            assert await running.update_weights(other.state_dict(), 5) == 5
            result = await running.generate(prompt, GREEDY)
            assert (result.reused_tokens, result.versions) == (0, [5] * 4)
            with pytest.raises(ArgumentError, match="5 was given after 5"):
                await running.update_weights(other.state_dict(), 5)
            assert await running.update_weights(lambda model: model.requires_grad_(False)) == 6
            with pytest.raises(
                ArgumentError, match=r"new weights do not fit: blocks\.0\.\w+.weight is None, not"
            ):
                await running.update_weights({})

    asyncio.run(main())


# Policies over vectors.


def test_diverged_weights_fail_their_rollouts_and_leave_nothing_behind() -> None:
    async def main() -> None:
        async with engine() as running:
            good = {name: value.clone() for name, value in running.model.state_dict().items()}
            prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [3, 3]]
            before = [await running.generate(prompt, GREEDY) for prompt in prompts]
            await running.update_weights({name: value * torch.nan for name, value in good.items()})
            broken = await asyncio.gather(*(running.generate(one, GREEDY) for one in prompts))
            for result in broken:
                assert (result.success, result.finish_reason) == (False, "error")
                assert "not finite" in str(result.error)
            await running.update_weights(good)
            # Together, so that the short ones are padded to the long one's shape.
            after = await asyncio.gather(*(running.generate(one, GREEDY) for one in prompts))
            for old, new in zip(before, after, strict=True):
                assert new.tokens == old.tokens
                assert np.isfinite(new.logprobs).all()
            assert idle(running)

    asyncio.run(main())


def test_a_refused_update_has_not_used_its_version_up() -> None:
    async def main() -> None:
        async with engine() as running:
            with pytest.raises(ArgumentError):
                await running.update_weights({}, 5)
            assert await running.update_weights(running.model.state_dict(), 5) == 5

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": float("inf")}, "a priority must be a finite number"),
        ({"metadata": {"reward": None}}, "a reward in metadata"),
        ({"metadata": {"reward": float("nan")}}, "a reward in metadata"),
    ],
)
def test_what_nobody_could_count_is_refused_and_the_engine_goes_on(
    options: Any, message: str
) -> None:
    async def main() -> None:
        async with engine() as running:
            with pytest.raises(ArgumentError, match=message):
                await running.submit_rollout([1, 2, 3], **options)
            assert (await running.generate([1, 2, 3], GREEDY)).success

    asyncio.run(main())


class Policy(torch.nn.Module):
    """A policy of two actions, which keeps what it was given."""

    state_dim, action_dim, latent_dim = 4, 2, 3

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 2)
        self.calls: list[tuple[Any, Any]] = []

    def forward(self, state: Any, plan: Any) -> Any:
        self.calls.append((state, plan))
        return self.head(state)


def test_a_rollout_of_a_policy_is_its_decision_for_the_last_state() -> None:
    async def main() -> None:
        policy = Policy()
        states = torch.randn(32, 5, 4)
        async with AsyncExecutionEngine(ExecutionConfig(), policy, "cpu", seed=0) as running:
            names = [await running.submit_rollout(rows) for rows in states]
            results = [await running.get_result(name) for name in names]
            # What waits together is one call.
            assert len(policy.calls) < 8
            assert torch.equal(torch.cat([state for state, _ in policy.calls]), states[:, -1])
            assert not any(plan.any() for _, plan in policy.calls)
            logs = torch.log_softmax(policy.head(states[:, -1]), -1).detach()
            for result, expected in zip(results, logs, strict=True):
                [action] = result.tokens
                assert result.logprobs == [pytest.approx(float(expected[action]))]
                # No keys and values are pretended.
                assert (result.reused_tokens, result.kv_cache) == (0, None)
            assert {result.tokens[0] for result in results} == {0, 1}
            await running.update_weights({name: 0 * x for name, x in policy.state_dict().items()})
            result = await running.generate(states[0])
            assert result.logprobs == [pytest.approx(np.log(0.5))]
            assert running.get_performance_metrics()["cache_hit_rate"] == 0
            for wrong, message in (
                (torch.zeros(4), r"takes \[rows, state_dim\], and rows"),
                (torch.zeros(2, 5), r"must be 4 finite numbers; got shape \(5,\)"),
            ):
                with pytest.raises(ArgumentError, match=message):
                    await running.submit_rollout(wrong)

    asyncio.run(main())


def test_the_documented_program_runs_as_written() -> None:
    """The program that this engine's names come from, with its root renamed."""
    planning = pytest.importorskip("echoic.agents.plans")

    async def main() -> None:
        policy_network = planning.PolicyNetwork(state_dim=512, action_dim=20, latent_dim=512)
        kv_manager = KVCacheManager(config=ExecutionConfig())
        running = AsyncExecutionEngine(
            config=ExecutionConfig(), model=policy_network, device="cuda"
        )
        state_sequence = torch.randn(9, 512)
        name = await running.submit_rollout(state_sequence=state_sequence, priority=1.0)
        result = await running.get_result(name)
        assert result.success, result.error
        assert 0 <= result.tokens[0] < 20
        assert result.logprobs[0] < 0
        assert kv_manager.get_cache_stats()["cache_size"] == 0
        running.shutdown()

    with warnings.catch_warnings():
        # Where there is no CUDA, it is said once in the life of a process.
        warnings.simplefilter("ignore", UserWarning)
        asyncio.run(main())


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"model must be a CausalModel, .* got int"):
        AsyncExecutionEngine(ExecutionConfig(), 3, "cpu")
