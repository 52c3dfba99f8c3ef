"""Rollouts on servers elsewhere: what comes back is right whatever the servers do meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

import pytest
from echoic.agents.backbones import HttpConfig
from echoic.agents.llm import (
    Fault,
    RemoteEngine,
    Replica,
)
from echoic.agents.llm.remote import Router
from echoic.agents.llm.requests import SamplingParams
from echoic.errors import ArgumentError, ClosedError, WaitTimeoutError
from http_server import CompletionsServer, continuation

PROMPT = list(range(40))
FAST = HttpConfig(backoff=0.01, attempt_timeout=20.0, timeout=60.0)
IMPATIENT = dataclasses.replace(FAST, attempt_timeout=0.3)


def replica(server: CompletionsServer, **options: Any) -> Replica:
    return Replica(server.url, **{"model": "formula", "dialect": "vllm", **options})


def tokens(number: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=number)


def run(engine_of: Any) -> Any:
    return asyncio.run(asyncio.wait_for(engine_of, 30))


def test_tokens_log_probs_versions_and_reuse_come_back(serve: Any) -> None:
    server = serve()

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST, version=3) as engine:
            first = await engine.generate(PROMPT, tokens(20))
            again = await engine.generate(PROMPT, tokens(20))
            assert first.success, first.error
            assert first.tokens == continuation(PROMPT, 20)
            assert first.logprobs == [-0.5] * 20
            assert first.versions == [3] * 20
            assert first.finish_reason == "length"
            assert (first.prompt_tokens, first.reused_tokens) == (40, 0)
            # Whole blocks of 16 tokens.
            assert again.reused_tokens == 32

    run(main())


def test_a_server_that_tells_no_reuse_is_not_given_one(serve: Any) -> None:
    server = serve(token_ids=False)

    async def main() -> None:
        async with RemoteEngine([replica(server, dialect="openai")], FAST) as engine:
            text = "the quick brown fox"
            result = await engine.generate(text, tokens(5))
            assert result.text == "".join(map(chr, continuation(list(text.encode()), 5)))
            assert result.tokens == []
            with pytest.raises(ArgumentError, match="takes text, not token ids"):
                await engine.generate([1, 2])
            assert "cache_salt" not in server.requests[0]

    run(main())


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 429, "headers": {"Retry-After": "0.05"}},
        {"status": 503},
        {"drop": 0},
        {"drop": 7},
        {"stall": 0},
        {"stall": 12},
        {"error": 5, "code": 503},
    ],
    ids=lambda fault: "-".join(f"{name}-{number}" for name, number in fault.items())[:20],
)
def test_a_fault_costs_time_and_no_token(serve: Any, fault: Any) -> None:
    server = serve()
    server.faults.extend([fault, None])
    config = IMPATIENT if "stall" in fault else FAST

    async def main() -> None:
        async with RemoteEngine([replica(server)], config) as engine:
            result = await engine.generate(PROMPT, tokens(20))
            assert result.success, result.error
            assert result.tokens == continuation(PROMPT, 20)
            assert len(result.metadata["faults"]) == 1

    run(main())
    made = max(fault.get(name, 0) for name in ("drop", "stall", "error"))
    assert server.requests[1]["prompt"] == PROMPT + continuation(PROMPT, made)


def test_text_goes_on_where_it_broke_off(serve: Any) -> None:
    server = serve()
    server.faults.append({"drop": 3})

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST) as engine:
            result = await engine.generate("abc", tokens(9))
            assert result.text == "".join(map(chr, continuation(list(b"abc"), 9)))

    run(main())


def test_without_ids_a_broken_answer_to_token_ids_fails_and_says_why(serve: Any) -> None:
    server = serve(token_ids=False)
    server.faults.append({"drop": 3})

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST) as engine:
            result = await engine.generate(PROMPT, tokens(9))
            assert not result.success
            assert "does not return token ids" in result.error

    run(main())


def test_what_the_server_asks_for_is_waited(serve: Any) -> None:
    server = serve()
    server.faults.append({"status": 429, "headers": {"Retry-After": "0.3"}})

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST) as engine:
            began = time.monotonic()
            assert (await engine.generate(PROMPT, tokens(1))).success
            assert time.monotonic() - began > 0.29

    run(main())


@pytest.mark.parametrize("fault", [{"status": 400}, {"nonsense": 1}, {"error": 1, "code": 400}])
def test_what_can_not_succeed_is_not_tried_again(serve: Any, fault: Any) -> None:
    server = serve()
    server.faults.append(fault)

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST) as engine:
            result = await engine.generate(PROMPT, tokens(4))
            assert (result.success, result.finish_reason) == (False, "error")
            assert result.error
            assert (await engine.generate(PROMPT, tokens(4))).success

    run(main())
    assert len(server.requests) == 2


def event(choice: str, **fields: str) -> str:
    more = "".join(f', "{name}": {value}' for name, value in fields.items())
    return f'{{"choices": [{{{choice}}}]{more}}}'


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (event('"token_ids": [1e999]'), "can't be read"),
        (event('"token_ids": [1.5]'), "can't be read"),
        (event('"token_ids": [-3]'), "can't be read"),
        (event(f'"token_ids": [{1 << 40}]'), "can't be read"),
        (event('"token_ids": [5], "logprobs": {"token_logprobs": [Infinity]}'), "can't be read"),
        (event('"text": "a"', usage='{"prompt_tokens": -5}'), "can't be read"),
        ("[" * 100_000, "can't be read"),
        (event(f'"text": "{"a" * ((1 << 20) - 100)}"'), "more than 1048576 characters"),
        ("a" * (1 << 20), "a line of more than 1048576 B"),
    ],
    ids=lambda value: value[:40],
)
def test_what_a_server_must_not_send_ends_a_rollout_with_an_error(
    serve: Any, said: str, message: str
) -> None:
    server = serve()
    server.faults.append({"events": [said] * 2})

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST) as engine:
            result = await engine.generate(PROMPT, tokens(4))
            assert (result.success, result.finish_reason) == (False, "error")
            assert message in result.error

    run(main())
    assert len(server.requests) == 1


def test_an_answer_that_a_server_gave_up_goes_on_where_it_stopped(serve: Any) -> None:
    server = serve()
    [first, *_] = expected = continuation(PROMPT, 4)
    choice = f'"token_ids": [{first}], "logprobs": {{"token_logprobs": [-0.5]}}'
    server.faults.append({"events": [event(f'{choice}, "finish_reason": "abort"'), "[DONE]"]})

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST) as engine:
            result = await engine.generate(PROMPT, tokens(4))
            assert (result.tokens, result.finish_reason) == (expected, "length")
            assert result.reused_tokens is None

    run(main())


def test_counts_of_reuse_that_can_not_be_are_unknown(serve: Any) -> None:
    server = serve()
    usage = '{"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}'
    said = event('"token_ids": [5], "finish_reason": "stop"', usage=usage)
    server.faults.append({"events": [said, "[DONE]"]})

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST) as engine:
            result = await engine.generate(PROMPT, tokens(4))
            assert (result.success, result.reused_tokens) == (True, None)

    run(main())


def test_a_server_that_is_gone_fails_after_all_attempts() -> None:
    async def main() -> None:
        gone = Replica("http://127.0.0.1:9/v1", model="formula")
        config = HttpConfig(backoff=0.0, attempts=3)
        async with RemoteEngine([gone], config) as engine:
            result = await engine.generate(PROMPT, tokens(4))
            assert not result.success
            assert len(result.metadata["faults"]) == 3

    run(main())


def test_a_key_that_is_wrong_is_told(serve: Any) -> None:
    server = serve(key="right")

    async def main() -> None:
        async with RemoteEngine([replica(server, key="wrong")], FAST) as engine:
            assert "401" in (await engine.generate(PROMPT, tokens(4))).error
        async with RemoteEngine([replica(server, key="right")], FAST) as engine:
            assert (await engine.generate(PROMPT, tokens(4))).success

    run(main())


def test_no_more_are_under_way_than_allowed(serve: Any) -> None:
    server = serve()
    server.delay = 0.01
    config = HttpConfig(max_concurrent=2)

    async def main() -> None:
        async with RemoteEngine([replica(server)], config) as engine:
            rollouts = (engine.generate([n] * 20, tokens(3)) for n in range(8))
            results = await asyncio.gather(*rollouts)
            assert all(result.success for result in results)
            assert results[-1].queue_time > 0.02

    run(main())
    assert server.most_active == 2
    assert sorted(one["prompt"][0] for one in server.requests) == list(range(8))


def test_a_dead_replica_costs_one_attempt_each(serve: Any) -> None:
    server = serve()

    async def main() -> None:
        gone = Replica("http://127.0.0.1:9/v1", model="formula", dialect="vllm")
        async with RemoteEngine([gone, replica(server)], FAST) as engine:
            for _ in range(5):
                result = await engine.generate([1, 2, 3], tokens(2))
                assert result.success, result.error
                assert len(result.metadata["faults"]) <= 1

    run(main())


@pytest.mark.parametrize("fault", [None, {"unfinished": True}])
def test_an_answer_that_has_stopped_is_over(serve: Any, fault: Any) -> None:
    server = serve()
    server.faults.append(fault)
    stop = continuation(PROMPT, 4)[3]
    expected = continuation(PROMPT, 4)
    expected = expected[: expected.index(stop) + 1]

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST) as engine:
            result = await engine.generate(PROMPT, SamplingParams(max_new_tokens=30, stop=(stop,)))
            assert (result.tokens, result.finish_reason) == (expected, "stop")
            # Nobody knows what a broken answer has cost.
            assert result.reused_tokens == (0 if fault is None else None)
        text = RemoteEngine([replica(server, dialect="openai")], FAST)
        async with text as engine:
            with pytest.raises(ArgumentError, match="takes no stop tokens"):
                await engine.generate("a", SamplingParams(stop=(1,)))

    run(main())


def test_a_broken_attempt_makes_reuse_unknown(serve: Any) -> None:
    server = serve()
    server.faults.extend([None, {"drop": 5}, None])

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST) as engine:
            whole = await engine.generate(PROMPT, tokens(8))
            assert (whole.prompt_tokens, whole.reused_tokens) == (40, 0)
            broken = await engine.generate(PROMPT, tokens(8))
            assert (broken.prompt_tokens, broken.reused_tokens) == (40, None)

    run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": SamplingParams(forced=(1,))}, "servers take no forced tokens"),
        ({"embeddings": {500: [0.0]}}, "servers take no embeddings: use a local model"),
    ],
)
def test_what_servers_can_not_do_is_refused_at_once(options: Any, message: str) -> None:
    async def main() -> None:
        gone = Replica("http://127.0.0.1:9/v1", model="formula")
        async with RemoteEngine([gone]) as engine:
            with pytest.raises(ArgumentError, match=message):
                await engine.generate([1], **options)

    run(main())


def test_updates_of_weights_come_one_after_the_other(serve: Any) -> None:
    server = serve()
    loaded: list[int] = []

    async def load(_: Replica, version: int) -> None:
        await asyncio.sleep(0.05 if version == 1 else 0.0)
        loaded.append(version)

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST) as engine:
            await asyncio.gather(engine.update_weights(1, load), engine.update_weights(2, load))
            assert engine.version == 2

    run(main())
    assert loaded == [1, 2]


def test_a_rollout_that_is_cancelled_or_late_frees_its_place(serve: Any) -> None:
    server = serve()
    server.delay = 0.02
    config = HttpConfig(max_concurrent=1)

    async def main() -> None:
        async with RemoteEngine([replica(server)], config) as engine:
            running = asyncio.ensure_future(engine.generate(PROMPT, tokens(500)))
            waiting = asyncio.ensure_future(engine.generate(PROMPT, tokens(1)))
            while not server.requests:  # noqa: ASYNC110 - it is in another thread
                await asyncio.sleep(0.005)
            for one in (running, waiting):
                one.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await one
            late = await engine.generate(PROMPT, tokens(400), timeout=0.2)
            assert (late.finish_reason, late.success) == ("timeout", False)
            assert late.tokens == continuation(PROMPT, len(late.tokens))
            assert late.tokens_generated == len(late.tokens) > 0
            assert (await engine.generate(PROMPT, tokens(1))).success
            # Closing ends what runs.
            last = asyncio.ensure_future(engine.generate(PROMPT, tokens(500)))
            await asyncio.sleep(0.05)
        assert (await last).finish_reason == "shutdown"
        with pytest.raises(ClosedError):
            await engine.generate(PROMPT)

    run(main())


def test_new_weights_reuse_nothing_of_the_old(serve: Any) -> None:
    servers = [serve(), serve()]
    loaded: list[tuple[str, int]] = []

    async def load(where: Replica, version: int) -> None:
        loaded.append((where.url, version))

    async def main() -> None:
        replicas = [replica(servers[0]), replica(servers[1], dialect="sglang")]
        replicas[1].dialect = type(replicas[1].dialect)(
            "resets", token_prompts=True, reset="/reset_prefix_cache"
        )
        async with RemoteEngine(replicas, FAST) as engine:
            before = await asyncio.gather(*(engine.generate(PROMPT, tokens(2)) for _ in range(20)))
            assert sum(result.reused_tokens for result in before)
            # Both have the prompt now.
            assert all(server.requests for server in servers)
            await engine.update_weights(1, load)
            after = await asyncio.gather(*(engine.generate(PROMPT, tokens(2)) for _ in range(20)))
            assert {version for result in after for version in result.versions} == {1}
            # Each replica computes the prompt once more.
            assert sorted(result.reused_tokens for result in after)[:2] == [0, 0]
            with pytest.raises(ArgumentError, match="above 1"):
                await engine.update_weights(1)

    run(main())
    assert loaded == [(server.url, 1) for server in servers]
    assert (servers[0].resets, servers[1].resets) == (0, 1)


def test_a_replica_that_is_not_done_in_time_waits_for_the_next_update(serve: Any) -> None:
    server = serve()
    server.delay = 0.02

    async def main() -> None:
        async with RemoteEngine([replica(server)], FAST) as engine:
            running = asyncio.ensure_future(engine.generate(PROMPT, tokens(500)))
            while not server.requests:  # noqa: ASYNC110 - it is in another thread
                await asyncio.sleep(0.005)
            with pytest.raises(WaitTimeoutError, match=r"still has 1 rollouts after 0\.05 s"):
                await engine.update_weights(1, timeout=0.05)
            running.cancel()
            await engine.update_weights(1)
            assert (await engine.generate(PROMPT, tokens(1))).versions == [1]

    run(main())


def test_a_server_that_can_not_forget_is_refused_new_weights(serve: Any) -> None:
    server = serve()

    async def main() -> None:
        engines = RemoteEngine([replica(server, dialect="llama-cpp-python")], FAST)
        async with engines as engine:
            with pytest.raises(ArgumentError, match="neither empty its prefix cache nor salt"):
                await engine.update_weights(1)

    run(main())


def test_a_cache_that_was_not_emptied_keeps_its_replica_out(serve: Any) -> None:
    server = serve()

    async def main() -> None:
        one = replica(server)
        one.dialect = type(one.dialect)("none", token_prompts=True, reset="/not-there")
        async with RemoteEngine([one], FAST) as engine:
            with pytest.raises(Fault, match=r"/not-there: the server answered 404"):
                await engine.update_weights(1)
            assert engine.version == 0
            assert (await engine.generate(PROMPT, timeout=0.1)).finish_reason == "timeout"

    run(main())


def test_conversations_stay_where_their_beginning_was_computed(serve: Any) -> None:
    servers = [serve() for _ in range(3)]

    async def main() -> None:
        async with RemoteEngine([replica(server) for server in servers], FAST) as engine:
            conversations = [[n] * 64 for n in range(6)]
            for _ in range(5):
                results = await asyncio.gather(
                    *(engine.generate(prompt, tokens(16)) for prompt in conversations)
                )
                for prompt, result in zip(conversations, results, strict=True):
                    prompt.extend(result.tokens)

    run(main())
    for server in servers:
        assert len({asked["prompt"][0] for asked in server.requests}) == 2
    # Of each conversation all but the first turn, and of each turn all but what is new.
    reused = sum(server.hits for server in servers) / sum(server.queries for server in servers)
    assert reused > 0.6


def test_affinity_gives_way_to_load() -> None:
    router = Router(2)
    router.block, router.slack = 4, 1
    assert router.choose([1] * 8, {0, 1}) == router.choose([1] * 8, {0, 1}) == 0
    # Two more than the other would be beyond the slack.
    assert router.choose([1] * 8, {0, 1}) == 1
    assert router.loads == [2, 1]
    # It was sent there last.
    assert router.choose([1] * 8 + [2], {0, 1}) == 1
    router.sent.clear()
    router.loads = [1, 0]
    assert router.choose([1] * 9, {0, 1}) == 1
    assert router.choose([1] * 9, {0}) == 0


def test_what_a_router_remembers_is_bounded() -> None:
    router = Router(1)
    router.block, router.remembered = 1, 10
    for start in range(100):
        router.choose([start, start + 1, start + 2], {0})
    assert len(router.sent) == 10
