"""Backbones at vendors: requests, counts, money, faults and bounds, against a server of our own."""

from __future__ import annotations

import asyncio
import json
import math
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("httpx")

import httpx
from echoic.agents.backbones import (
    PRICES,
    HostedBackbone,
    HttpConfig,
    Message,
    Price,
    backbone_names,
    backbone_status,
    base,
    http,
    make_backbone,
    register_backbone,
)
from echoic.agents.episodes import Usage
from echoic.errors import ArgumentError, BackboneError
from http_server import KEY, WRITTEN, VendorsServer

if TYPE_CHECKING:
    from echoic.agents.backbones.base import Backbone

QUICK = HttpConfig(backoff=0.01, attempt_timeout=5.0, timeout=20.0)
SYSTEM = Message("system", "You are brief. " * 4)
CHAT = [SYSTEM, Message("user", "Is it dark?")]
LONGER = [*CHAT, Message("assistant", "yes"), Message("user", "And now?")]


@pytest.fixture
def server():
    one = VendorsServer()
    yield one
    one.close()


def openai(server: VendorsServer, http: HttpConfig = QUICK, **settings: Any) -> HostedBackbone:
    return HostedBackbone("gpt-4o", key=KEY, url=server.url + "/v1", http=http, **settings)


def anthropic(server: VendorsServer, http: HttpConfig = QUICK) -> HostedBackbone:
    model = "claude-3-5-sonnet-20241022"
    return HostedBackbone(model, "anthropic", key=KEY, url=server.url, http=http)


VENDORS = {"openai": openai, "anthropic": anthropic}


def ask(backbone: Backbone, *chats: list[Message], **settings: Any) -> list[Any]:
    async def main() -> list[Any]:
        async with backbone:
            return [await backbone.chat(chat, **settings) for chat in chats]

    return asyncio.run(main())


@pytest.mark.parametrize("vendor", VENDORS)
def test_answers_and_counts_are_the_vendors(vendor, server):
    backbone = VENDORS[vendor](server)
    first, second = ask(backbone, CHAT, LONGER, max_tokens=10, stop=("\nEnd",))
    assert (first.text, first.finish) == ("yes", "stop")
    prompts = ["\n".join(message.text for message in chat) for chat in (CHAT, LONGER)]
    assert first.usage.tokens_in == len(prompts[0])
    assert first.usage.tokens_cached == 0
    assert second.usage.tokens_in == len(prompts[1])
    assert second.usage.tokens_cached == len(prompts[0]) // 16 * 16
    assert second.usage.tokens_out == 3
    assert second.usage.requests == 1
    price = PRICES[backbone.model]
    written = WRITTEN if vendor == "anthropic" else 0
    fresh = second.usage.tokens_in - second.usage.tokens_cached - written
    dollars = (
        fresh * price.input
        + second.usage.tokens_cached * price.cached
        + written * (price.written or 0)
        + second.usage.tokens_out * price.out
    ) / 1e6
    assert second.usage.cost == pytest.approx(dollars)
    assert (first.usage + second.usage).requests == 2


@pytest.mark.parametrize("vendor", VENDORS)
def test_an_answer_that_is_cut_off_says_so(vendor, server):
    server.reply = lambda chat: "a long answer"
    [answer] = ask(VENDORS[vendor](server), CHAT, max_tokens=6)
    assert (answer.text, answer.finish) == ("a long", "length")


def test_a_request_to_openai_has_its_shape(server):
    ask(openai(server), LONGER, max_tokens=7, temperature=0.5, stop=["\n"], seed=3)
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert body == {
        "model": "gpt-4o",
        "max_tokens": 7,
        "temperature": 0.5,
        "stop": ["\n"],
        "seed": 3,
        "messages": [{"role": one.role, "content": one.text} for one in LONGER],
    }


def test_fields_have_other_names_with_other_vendors(server):
    rename = {"seed": "random_seed", "max_tokens": "max_tokens", "temperature": None}
    ask(openai(server, rename=rename), CHAT, seed=3)
    body = server.requests[0][2]
    assert (body["random_seed"], body["max_tokens"]) == (3, 256)
    assert not {"seed", "temperature"} & set(body)


def test_a_request_to_anthropic_has_its_shape(server):
    ask(anthropic(server), LONGER, max_tokens=7, temperature=0.5, stop=["Stop"], seed=3)
    path, headers, body = server.requests[0]
    assert path == "/v1/messages"
    assert headers["x-api-key"] == KEY
    assert headers["anthropic-version"] == "2023-06-01"
    mark = {"cache_control": {"type": "ephemeral"}}
    assert body == {
        "model": "claude-3-5-sonnet-20241022",
        "max_tokens": 7,
        "temperature": 0.5,
        "stop_sequences": ["Stop"],
        "system": [{"type": "text", "text": SYSTEM.text, **mark}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Is it dark?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "yes", **mark}]},
            {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
        ],
    }


def test_an_answer_that_a_vendor_withheld_is_filtered(server):
    withheld = {"message": {"content": None}, "finish_reason": "content_filter"}
    server.faults.append({"with": {"choices": [withheld]}})
    [answer] = ask(openai(server), CHAT)
    assert (answer.text, answer.finish) == ("", "filtered")
    assert answer.usage.tokens_in > 0


def test_gemini_counts_thoughts_in_the_total_only(server):
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 112}
    server.faults.append({"with": {"usage": usage}})
    assert ask(openai(server), CHAT)[0].usage.tokens_out == 12


def test_deepseek_counts_cached_tokens_in_its_own_way(server):
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_cache_hit_tokens": 64}
    server.faults.append({"with": {"usage": usage}})
    backbone = openai(server)
    assert ask(backbone, CHAT)[0].usage.tokens_cached == 64


def test_a_server_that_tells_nothing_of_a_cache_is_not_said_to_have_none(server):
    untold = {"with": {"usage": {"prompt_tokens": 100, "completion_tokens": 5}}}
    server.faults.append(untold)
    backbone = openai(server)
    answers = ask(backbone, CHAT, CHAT)
    assert [one.usage.tokens_cached is None for one in answers] == [True, False]
    both = answers[0].usage + answers[1].usage
    assert both.tokens_cached is None
    assert both.tokens_in == sum(one.usage.tokens_in for one in answers)
    # Paid as if none had been cached.
    assert answers[0].usage.cost == pytest.approx(100 * 2.5e-6 + 5 * 10e-6)


@pytest.mark.parametrize("vendor", VENDORS)
def test_who_does_not_count_is_an_error_and_not_free(vendor, server):
    server.faults.append({"without": "usage"})
    with pytest.raises(BackboneError, match="count"):
        ask(VENDORS[vendor](server), CHAT)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"body": "<html>"}, "no JSON object: .<html>."),
        ({"body": "[]"}, "no JSON object"),
        ({"without": "choices"}, r"can't be read \(KeyError: 'choices'\)"),
        ({"with": {"choices": []}}, "can't be read"),
        ({"with": {"usage": {"prompt_tokens": -1}}}, "expected a whole number as prompt_tokens"),
        ({"status": 400}, "answered 400"),
    ],
)
def test_nonsense_is_an_error_that_names_it_and_is_not_tried_again(fault, message, server):
    server.faults.append(fault)
    with pytest.raises(BackboneError, match=message) as caught:
        ask(openai(server), CHAT)
    assert len(server.requests) == 1
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_wrong_key_is_refused_and_not_shown(vendor, server):
    backbone = VENDORS[vendor](server)
    backbone.client._headers = {"authorization": "Bearer x", "x-api-key": "x"}
    with pytest.raises(BackboneError, match="answered 401") as caught:
        ask(backbone, CHAT)
    assert KEY not in repr(backbone) + str(caught.value)


# Busy, slow and broken servers.


def test_failures_that_pass_are_tried_again(server):
    server.faults += [{"status": 503}, {"drop": True}, {"status": 529}]
    backbone = openai(server)
    assert ask(backbone, CHAT)[0].text == "yes"
    assert len(server.requests) == 4


def test_attempts_are_bounded_and_the_key_is_hidden(server):
    server.faults += [{"status": 500}] * 9
    with pytest.raises(BackboneError, match=r"500: .*\[key\].* \(attempt 5 of 5\)") as caught:
        ask(openai(server), CHAT)
    assert len(server.requests) == 5
    assert KEY not in str(caught.value)


def test_a_server_that_is_silent_or_drips_is_given_up(server):
    http = HttpConfig(attempt_timeout=0.2, attempts=2, backoff=0.0)
    server.faults += [{"stall": 5.0}, {"drip": 0.02}]
    with pytest.raises(BackboneError, match=r"no answer within 0.2 s \(attempt 2 of 2\)"):
        ask(openai(server, http), CHAT)


def test_an_answer_is_bounded(server):
    server.faults.append({"body": " " * 5000})
    with pytest.raises(BackboneError, match="more than 1000 B"):
        ask(openai(server, HttpConfig(max_answer=1000)), CHAT)


def test_nobody_there_is_an_error(server):
    backbone = HostedBackbone("m", url="http://127.0.0.1:1/v1", price=None, http=QUICK)
    with pytest.raises(BackboneError, match=r"the connection to .* failed: .*attempts failed"):
        ask(backbone, CHAT)


def test_no_more_requests_are_under_way_than_is_allowed(server):
    server.delay = 0.02
    backbone = openai(server, HttpConfig(max_concurrent=3))

    async def main() -> None:
        async with backbone:
            await asyncio.gather(*(backbone.chat(CHAT) for _ in range(12)))

    asyncio.run(main())
    assert server.most_active == 3
    assert len(server.requests) == 12


def test_a_backbone_serves_one_event_loop_after_another(server):
    backbone = openai(server)
    for _ in range(3):
        assert ask(backbone, CHAT)[0].text == "yes"


def test_a_server_says_when_to_come_back(server):
    for headers, seconds in (
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "1e999"}, None),
        ({}, None),
    ):
        assert http._retry_after(httpx.Headers(headers)) == seconds
    server.faults.append({"status": 429, "headers": {"Retry-After": "0.2"}})
    began = time.monotonic()
    ask(openai(server, HttpConfig(backoff=0.0)), CHAT)
    assert time.monotonic() - began >= 0.2


def test_without_it_pauses_double_and_are_partly_drawn(server, monkeypatch):
    pauses = []

    async def sleep(seconds):
        # The server's thread waits for nothing.
        pauses.extend([seconds] if seconds else [])

    server.faults += [{"status": 429, "headers": {"Retry-After": "soon"}}] * 4
    monkeypatch.setattr(http.asyncio, "sleep", sleep)
    with pytest.raises(BackboneError, match="attempt 4 of 4"):
        ask(openai(server, HttpConfig(backoff=1.0, attempts=4, max_backoff=3.5)), CHAT)
    for pause, longest in zip(pauses, (1, 2, 3.5), strict=True):
        assert longest / 2 <= pause <= longest


def test_a_server_that_asks_for_hours_has_failed(server):
    server.faults.append({"status": 429, "headers": {"Retry-After": "7200"}})
    with pytest.raises(BackboneError, match="asks to wait 7200 s"):
        ask(openai(server), CHAT)
    assert len(server.requests) == 1


def test_a_call_has_an_end_with_its_pauses_and_says_what_failed(server):
    server.faults.append({"status": 503, "headers": {"Retry-After": "30"}})
    with pytest.raises(BackboneError, match=r"no answer in 0.2 s.*answered 503"):
        ask(openai(server, HttpConfig(timeout=0.2)), CHAT)


@pytest.mark.parametrize("vendor", VENDORS)
def test_no_error_shows_a_key_or_a_part_of_it(vendor, server):
    async def said(answer):
        backbone = VENDORS[vendor](server, HttpConfig(attempts=1))
        status, body = answer
        server_ = httpx.MockTransport(lambda request: httpx.Response(status, content=body))
        async with backbone:
            backbone.client._connect()
            backbone.client._http = httpx.AsyncClient(transport=server_)
            with pytest.raises(BackboneError) as caught:
                await backbone.chat(CHAT)
        return caught.value

    answers = [
        (200, f"no JSON, {KEY}"),
        (200, "x" * 75 + KEY),
        (401, "x" * 495 + KEY),
        (500, repr(KEY)),
        (200, json.dumps({"usage": {"prompt_tokens": KEY, "input_tokens": KEY}, "error": KEY})),
        (200, json.dumps({"usage": KEY})),
        (200, json.dumps({"x": "x" * 430, "y": KEY, "usage": {"x": 1}})),
    ]
    for answer in answers:
        error = asyncio.run(said(answer))
        shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        assert KEY[:5] not in shown.replace("KEY", ""), answer


def test_a_key_with_the_end_of_a_line_is_taken_and_one_with_more_is_refused(
    server, bare_environment
):
    bare_environment.setenv("OPENAI_API_KEY", f" {KEY}\r\n")
    bare_environment.setenv("GPT_4O_BASE_URL", server.url + "/v1")
    assert ask(make_backbone("gpt-4o", http=QUICK), CHAT)[0].text == "yes"
    for odd in (f"{KEY}\nmore", f"{KEY}\u201d", f"{KEY}\x7f", f'{KEY}"', f"{KEY}\\"):
        bare_environment.setenv("OPENAI_API_KEY", odd)
        with pytest.raises(ArgumentError, match="visible ASCII") as caught:
            make_backbone("gpt-4o", http=QUICK)
        assert KEY not in str(caught.value)
    bare_environment.setenv("ANTHROPIC_API_KEY", "  \n")
    assert backbone_status("claude-3.5-sonnet") == "skipped: no key ANTHROPIC_API_KEY"


@pytest.mark.parametrize(
    "usage",
    [
        '{"prompt_tokens": 5}',
        '{"prompt_tokens": 5, "completion_tokens": null}',
        '{"prompt_tokens": 1e999, "completion_tokens": 1}',
        '{"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 6}',
        '{"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": -1}',
    ],
)
def test_counts_that_can_not_be_are_errors(usage):
    answer = f'{{"usage": {usage}, "choices": [{{"message": {{"content": "yes"}}}}]}}'

    async def main():
        transport = httpx.MockTransport(lambda request: httpx.Response(200, text=answer))
        async with HostedBackbone("gpt-4o", url="http://x", key=KEY, http=QUICK) as backbone:
            backbone.client._connect()
            backbone.client._http = httpx.AsyncClient(transport=transport)
            await backbone.chat(CHAT)

    with pytest.raises(BackboneError):
        asyncio.run(main())


def test_a_model_that_only_thought_says_so(server):
    server.reply = lambda chat: "   and"
    answer = {
        "usage": {"prompt_tokens": 5, "completion_tokens": 9},
        "choices": [{"message": {"content": None}, "finish_reason": "length"}],
    }

    async def main():
        transport = httpx.MockTransport(lambda request: httpx.Response(200, json=answer))
        async with openai(server) as backbone:
            backbone.client._connect()
            backbone.client._http = httpx.AsyncClient(transport=transport)
            await backbone.chat(CHAT, max_tokens=9)

    with pytest.raises(BackboneError, match=r"all 9 tokens .* raise max_tokens") as failed:
        asyncio.run(main())
    # It is billed all the same.
    assert failed.value.usage == Usage(5, None, 9, (5 * 2.5 + 9 * 10) / 1e6, 1)


def test_a_name_that_points_elsewhere_may_have_no_known_price(bare_environment):
    bare_environment.setenv("OPENAI_API_KEY", KEY)
    plain = base.backbone_target("gpt-4o")
    assert (plain.model, plain.moved, plain.price) == ("gpt-4o", False, PRICES["gpt-4o"])
    bare_environment.setenv("GPT_4O_MODEL", "gpt-9")
    assert make_backbone("gpt-4o").price is None
    bare_environment.setenv("GPT_4O_MODEL", "gpt-4o-mini")
    assert make_backbone("gpt-4o").price == PRICES["gpt-4o-mini"]
    assert base.backbone_target("gpt-4o").moved
    assert base.backbone_target("nobody").model == "nobody"


# Prices.


def test_a_price_is_known_or_given_or_said_to_be_unknown(server):
    with pytest.raises(ArgumentError, match="no price of 'my-model' is known"):
        HostedBackbone("my-model", url=server.url + "/v1", key=KEY)
    unknown = HostedBackbone("my-model", url=server.url + "/v1", key=KEY, price=None)
    assert math.isnan(ask(unknown, CHAT)[0].usage.cost)
    PRICES["my-model"] = Price(2.0, out=4.0)
    try:
        known = HostedBackbone("my-model", url=server.url + "/v1", key=KEY)
        usage = ask(known, CHAT)[0].usage
    finally:
        del PRICES["my-model"]
    assert usage.cost == pytest.approx((usage.tokens_in * 2 + 3 * 4) / 1e6)
    with pytest.raises(ArgumentError, match="input must be at least 0, not -1"):
        Price(-1.0)
    assert all(price.date for price in PRICES.values())


# Names.

SEED_NAMES = (
    "gpt-4o",
    "claude-3.5-sonnet",
    "gemini-1.5-pro",
    "llama-4",
    "qwen-7b",
    "deepseek-r1",
)


@pytest.fixture
def bare_environment(monkeypatch):
    for name in SEED_NAMES:
        monkeypatch.delenv(base._HOSTED[name].key, raising=False)
        for what in ("MODEL", "BASE_URL"):
            monkeypatch.delenv(base._variable(name, what), raising=False)
    return monkeypatch


def test_names_without_a_key_or_a_server_are_skipped(bare_environment):
    assert set(SEED_NAMES) < set(backbone_names())
    reasons = {name: backbone_status(name) for name in SEED_NAMES}
    assert reasons == {
        "gpt-4o": "skipped: no key OPENAI_API_KEY",
        "claude-3.5-sonnet": "skipped: no key ANTHROPIC_API_KEY",
        "gemini-1.5-pro": "skipped: no key GEMINI_API_KEY",
        "llama-4": "skipped: no server LLAMA_4_BASE_URL",
        "qwen-7b": "skipped: no server QWEN_7B_BASE_URL",
        "deepseek-r1": "skipped: no key DEEPSEEK_API_KEY",
    }
    with pytest.raises(BackboneError, match="gpt-4o is skipped: no key OPENAI_API_KEY"):
        make_backbone("gpt-4o")
    with pytest.raises(ArgumentError, match=r"there is no backbone 'gpt-5'; there are .*claude"):
        backbone_status("gpt-5")


@pytest.mark.parametrize(
    ("name", "key", "path"),
    [
        ("gpt-4o", "OPENAI_API_KEY", "/v1"),
        ("claude-3.5-sonnet", "ANTHROPIC_API_KEY", ""),
        ("gemini-1.5-pro", "GEMINI_API_KEY", "/v1"),
        ("llama-4", "LLAMA_4_API_KEY", "/v1"),
        ("deepseek-r1", "DEEPSEEK_API_KEY", "/v1"),
    ],
)
def test_names_resolve_by_the_environment(name, key, path, server, bare_environment):
    bare_environment.setenv(key, KEY)
    bare_environment.setenv(base._variable(name, "BASE_URL"), server.url + path)
    # A server of one's own has no list price.
    assert backbone_status(name) == "ready: no price, so costs are not known"
    backbone = make_backbone(name, http=QUICK)
    [answer] = ask(backbone, CHAT)
    assert (backbone.name, answer.text) == (name, "yes")
    assert math.isnan(answer.usage.cost)


def test_a_name_can_point_at_another_model(bare_environment):
    bare_environment.setenv("OPENAI_API_KEY", KEY)
    assert backbone_status("gpt-4o") == "ready"
    assert make_backbone("gpt-4o").price == PRICES["gpt-4o"]
    bare_environment.setenv("GPT_4O_MODEL", "gpt-4o-mini")
    backbone = make_backbone("gpt-4o")
    assert (backbone.model, backbone.price) == ("gpt-4o-mini", PRICES["gpt-4o-mini"])
    bare_environment.setenv("GPT_4O_MODEL", "other")
    assert make_backbone("gpt-4o").price is None


def test_users_add_backbones(monkeypatch, server):
    monkeypatch.setattr(base, "_MADE", dict(base._MADE))
    register_backbone("mine", lambda **settings: openai(server, **settings))
    assert backbone_status("mine") == "ready"
    assert make_backbone("mine", name="x").name == "x"
    register_backbone("gpt-4o", lambda: openai(server), status=lambda: "no funds")
    assert backbone_status("gpt-4o") == "skipped: no funds"
    with pytest.raises(ArgumentError, match="a name, and functions"):
        register_backbone("", openai)


# Chats.


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        ([], "at least one message"),
        ([CHAT[1], SYSTEM], "only the first message"),
        (
            [CHAT[1], Message("assistant", "a")],
            "last message must be the user's, not the assistant's",
        ),
    ],
)
def test_a_chat_that_nobody_would_take_is_not_sent(chat, message, server):
    with pytest.raises(ArgumentError, match=message):
        ask(openai(server), chat)
    assert server.requests == []


def test_settings_are_checked(server):
    for settings in ({"max_tokens": 0}, {"temperature": -1.0}, {"stop": "word"}, {"stop": [""]}):
        with pytest.raises(ArgumentError):
            ask(openai(server), CHAT, **settings)
    for bounds in (
        {"attempts": 0},
        {"timeout": 0},
        {"max_concurrent": 0},
        {"backoff": -1},
    ):
        with pytest.raises(ArgumentError):
            HttpConfig(**bounds)
    with pytest.raises(
        ArgumentError, match="role must be one of system, user, assistant, not 'tool'"
    ):
        Message("tool", "x")
