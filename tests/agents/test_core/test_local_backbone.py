"""A local backbone: what is drawn, counted, stopped and trained is the engine's."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from echoic.agents.backbones import LocalBackbone, Message, backbone_status, make_backbone
from echoic.agents.llm import (
    SamplingParams,
    TinyConfig,
    TinyTransformer,
)
from echoic.errors import ArgumentError, BackboneError

torch.set_num_threads(1)
END = 255


class Bytes:
    """A tokenizer whose tokens are bytes, and whose template is a letter before each message."""

    eos_token_id = END

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        return bytes(token for token in tokens if token != END).decode("latin-1")

    def apply_chat_template(self, chat: list[dict[str, str]], **asked: Any) -> dict[str, Any]:
        assert asked == {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
        text = "".join(f"{one['role'][0]}:{one['content']}\n" for one in chat)
        return {"input_ids": self.encode(text + "a:")}


def make(**settings: Any) -> LocalBackbone:
    torch.manual_seed(0)
    model = TinyTransformer(TinyConfig(vocab_size=256))
    return LocalBackbone(model, Bytes(), device="cpu", **settings)


CHAT = [Message("system", "Be brief."), Message("user", "Is it dark in the hall?")]


def ask(backbone: LocalBackbone, *chats: list[Message], **settings: Any) -> list[Any]:
    async def main() -> list[Any]:
        async with backbone:
            return [await backbone.chat(chat, **settings) for chat in chats]

    return asyncio.run(main())


def test_tokens_and_reuse_are_the_engines():
    backbone = make()
    longer = [*CHAT, Message("assistant", "no"), Message("user", "Sure?")]
    first, again, second = ask(backbone, CHAT, CHAT, longer, max_tokens=6)
    assert first.usage.tokens_out == 6
    assert (first.finish, first.usage.cost, first.usage.requests) == ("length", 0.0, 1)
    assert (first.usage.tokens_cached, again.usage.tokens_cached) == (
        0,
        first.usage.tokens_in - 1,
    )
    assert again.text == first.text
    # All of the first chat but its last tokens is the beginning of the longer one.
    assert second.usage.tokens_cached >= first.usage.tokens_in - 2
    assert second.usage.tokens_in > first.usage.tokens_in


def test_answers_are_scored_as_the_model_would_have_said_them():
    async def main() -> None:
        async with make() as backbone:
            said = await backbone.chat(CHAT, max_tokens=5)
            # What is forced has, token for token, the probability that it was drawn with.
            prompt_tokens = backbone._prompt(CHAT)
            first = await backbone.engine.generate(prompt_tokens, SamplingParams(5, 0.0))
            forced = SamplingParams(5, 1.0, forced=tuple(first.tokens))
            again = await backbone.engine.generate(prompt_tokens, forced)
            assert again.tokens == first.tokens
            assert again.logprobs == pytest.approx(first.logprobs, abs=1e-4)
            # An answer has that of its tokens and its end; what is said already is before it.
            text = ["a", "yes", "no"]
            scores = await backbone.score(CHAT, text)
            assert scores.tokens == (2, 4, 3)
            whole = SamplingParams(4, 0.0, forced=(*b"yes", END))
            drawn = await backbone.engine.generate(prompt_tokens, whole)
            assert scores.log_probs[1] == pytest.approx(math.fsum(drawn.logprobs), abs=1e-4)
            rest = await backbone.score(CHAT, ["s"], begin="ye")
            assert rest.log_probs[0] == pytest.approx(math.fsum(drawn.logprobs[2:]), abs=1e-4)
            # Prompts are computed once, and nothing is said.
            prompt = said.usage.tokens_in
            assert scores.usage.tokens_cached >= 3 * (prompt - 1)
            assert (scores.usage.tokens_out, scores.usage.requests) == (0, 1)
            assert scores.usage.tokens_in == 3 * prompt + sum(scores.tokens)
            for wrong in ([], [""]):
                with pytest.raises(ArgumentError, match="at least one answer"):
                    await backbone.score(CHAT, wrong)
            with pytest.raises(ArgumentError, match="2 tokens are forced, and max_new_tokens is 1"):
                SamplingParams(1, forced=(1, 2))

    asyncio.run(main())


def test_an_answer_ends_before_a_stop_text():
    [whole] = ask(make(), CHAT, max_tokens=12)
    stop = whole.text[4:7]
    assert stop not in whole.text[:6]
    backbone = make()
    [answer] = ask(backbone, CHAT, max_tokens=1000, stop=("\0never", stop))
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert answer.finish == "stop"
    # What was drawn until the engine heard of it was computed, and counts.
    assert 7 <= answer.usage.tokens_out < 500


def test_an_answer_ends_with_the_models_own_end():
    class Ends(Bytes):
        eos_token_id = ord(ask(make(), CHAT, max_tokens=4)[0].text[2])

    torch.manual_seed(0)
    backbone = LocalBackbone(TinyTransformer(TinyConfig(vocab_size=256)), Ends(), device="cpu")
    [answer] = ask(backbone, CHAT, max_tokens=50)
    assert (answer.usage.tokens_out, answer.finish) == (3, "stop")


def test_a_seed_says_the_same_again_and_another_something_else():
    backbone = make()

    async def main() -> list[Any]:
        async with backbone:
            settings = {"max_tokens": 20, "temperature": 1.0}
            return [(await backbone.chat(CHAT, seed=s, **settings)).text for s in (1, 1, 2)]

    one, again, other = asyncio.run(main())
    assert one == again != other


def test_an_answer_must_fit():
    with pytest.raises(ArgumentError, match="do not fit"):
        ask(make(), CHAT, max_tokens=100_000)


def test_requests_run_side_by_side_and_cancelling_frees_their_place():
    async def main() -> None:
        async with make() as backbone:
            answers = await asyncio.gather(
                *(backbone.chat(CHAT, max_tokens=5, temperature=1.0, seed=s) for s in range(8))
            )
            assert len({answer.text for answer in answers}) > 1
            for stop in ((), ("\0never",)):
                task = asyncio.ensure_future(backbone.chat(CHAT, max_tokens=900, stop=stop))
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await backbone.chat(CHAT, max_tokens=1)
            metrics = backbone.engine.get_performance_metrics()
            assert (metrics["active"], metrics["waiting"]) == (0, 0)

    asyncio.run(main())


def test_an_answer_that_somebody_else_ended_is_none():
    async def main() -> None:
        async with make() as backbone:
            engine = backbone.engine
            submit = engine.submit_rollout
            name: asyncio.Future[str] = asyncio.get_running_loop().create_future()

            async def submitted(*given: Any, **named: Any) -> str:
                name.set_result(await submit(*given, **named))
                return await name

            engine.submit_rollout = submitted
            task = asyncio.ensure_future(backbone.chat(CHAT, max_tokens=900, stop=["\0never"]))
            async for _ in engine.stream(await asyncio.wait_for(name, 30)):
                break
            engine.cancel(name.result())
            with pytest.raises(BackboneError, match="cancelled"):
                await asyncio.wait_for(task, 30)

    asyncio.run(main())


@pytest.mark.timeout(600)  # The first time, the model is unpacked.
def test_smollm2_answers_through_the_registry():
    status = backbone_status("smollm2")
    if status != "ready":
        pytest.skip(status)
    chat = [Message("user", "What is 2+2?")]
    backbone = make_backbone("smollm2", device="cpu")
    [answer] = ask(backbone, chat, max_tokens=16)
    assert "4" in answer.text
    assert backbone.name == "smollm2"
