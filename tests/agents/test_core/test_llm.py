"""A language model learns from rewards, by the engine, a rollout table and a token learner."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import tiers
from echoic.errors import ArgumentError, CollectorError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from echoic.agents.llm import (
    Answer,
    ExecutionConfig,
    GRPOConfig,
    LLMConfig,
    LLMTrainer,
    LoRAConfig,
    RLOOConfig,
    TinyConfig,
    TinyTransformer,
)
from echoic.agents.training import PPOConfig

if TYPE_CHECKING:
    from pathlib import Path

PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 9, 8]]


def sevens(answer: Answer) -> float:
    return answer.tokens.count(7) / len(answer.tokens)


def tiny() -> TinyTransformer:
    return TinyTransformer(TinyConfig(vocab_size=16, dim=32, hidden=32), device="cpu")


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config)


def trainer(model: Any, learner: Any, steps: int, reward: Any = sevens, **more: Any) -> LLMTrainer:
    config = LLMConfig(steps, 2, 8, max_new_tokens=3, learner=learner, **more)
    return LLMTrainer(model, PROMPTS, reward, config, device="cpu")


@pytest.mark.parametrize(
    ("make", "learner"),
    tiers.rotating(
        pytest.param(llama, GRPOConfig(learning_rate=3e-2, lora=LoRAConfig(rank=4)), id="lora"),
        pytest.param(tiny, GRPOConfig(learning_rate=1e-2), id="grpo"),
        pytest.param(tiny, RLOOConfig(learning_rate=1e-2), id="rloo"),
    ),
)
def test_a_model_learns_what_is_rewarded(make: Any, learner: Any) -> None:
    history = asyncio.run(trainer(make(), learner, 25).train())
    assert [step["step"] for step in history] == list(range(25))
    assert history[0]["reward"] < 0.3
    assert sum(step["reward"] for step in history[-3:]) / 3 > 0.7
    for step in history:
        # Engine and learner compute the same probabilities, after each update too.
        assert step["ratio_min"] == pytest.approx(1, abs=1e-3)
        assert step["ratio_max"] == pytest.approx(1, abs=1e-3)
        assert step["stale_tokens"] == 0
        # Sixteen answers share the eight tokens of two prompts, of which six are common.
        assert step["kv_reuse_rate"] > 0.4


def test_a_run_that_was_saved_goes_on(tmp_path: Path) -> None:
    learner = GRPOConfig(learning_rate=1e-2)
    first = trainer(tiny(), learner, 2)
    asyncio.run(first.train())
    first.save(tmp_path / "run.ckpt")
    second = trainer(tiny(), learner, 4)
    second.load(tmp_path / "run.ckpt")
    history = asyncio.run(second.train())
    assert [step["step"] for step in history] == [2, 3]
    assert second.learner.updates == 4
    # The engine runs the weights that were loaded.
    assert history[0]["ratio_max"] == pytest.approx(1, abs=1e-3)


def test_an_answer_that_fails_ends_the_run_with_its_reason() -> None:
    run = trainer(tiny(), GRPOConfig(), 1, execution=ExecutionConfig(timeout=1e-9))
    with pytest.raises(CollectorError, match=r"prompt \d was not answered: not done after"):
        asyncio.run(run.train())


def test_a_run_that_ends_early_goes_on() -> None:
    rewards = iter([0.0] * 20 + [float("nan")])
    run = trainer(tiny(), GRPOConfig(), 3, lambda _: next(rewards, 1.0))
    with pytest.raises(ArgumentError, match=r"expected a finite reward, got nan .* prompt \d"):
        asyncio.run(run.train())
    assert run.learner.updates == 1

    update, begun, go_on = run.learner.update, threading.Event(), threading.Event()

    def wait(batch: Any) -> dict[str, float]:
        begun.set()
        go_on.wait(60)
        return update(batch)

    async def cancel() -> None:
        run.learner.update = wait  # type: ignore[method-assign]
        training = asyncio.create_task(run.train())
        await asyncio.to_thread(begun.wait)
        training.cancel()
        await asyncio.wait({training}, timeout=0.1)
        assert not training.done()
        go_on.set()
        await training

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
    assert run.learner.updates == 2
    assert asyncio.run(run.train())[-1]["step"] == 2


class Words:
    """A tokenizer of numbers."""

    eos_token_id = 9

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        return " ".join(str(token) for token in tokens if not skip_special_tokens or token != 9)

    def apply_chat_template(self, chat: Any, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [1, *self.encode(chat[0]["content"])]}


def test_texts_and_chats_need_a_tokenizer_and_rewards_see_text() -> None:
    seen: list[Answer] = []

    def reward(answer: Answer) -> float:
        seen.append(answer)
        return 0.0

    prompts = ["2 3", [{"role": "user", "content": "4"}]]
    config = LLMConfig(steps=1, prompts_per_step=2, answers_per_prompt=2, max_new_tokens=6)
    run = LLMTrainer(tiny(), prompts, reward, config, tokenizer=Words(), device="cpu")
    asyncio.run(run.train())
    assert len(seen) == 4
    assert all(one.prompt in prompts for one in seen)
    for one in seen:
        assert one.text == Words().decode(one.tokens, skip_special_tokens=True)
        assert 9 not in one.tokens[:-1]
    with pytest.raises(ArgumentError, match="needs a tokenizer"):
        LLMTrainer(tiny(), prompts, reward, config, device="cpu")
    with pytest.raises(ArgumentError, match="GRPOConfig or RLOOConfig as learner, got PPOConfig"):
        LLMConfig(learner=PPOConfig())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="at least one prompt"):
        LLMTrainer(tiny(), [], reward, config, device="cpu")
    with pytest.raises(ArgumentError, match="at least one token, got none in prompt 1"):
        LLMTrainer(tiny(), [[1], ""], reward, config, tokenizer=Words(), device="cpu")
    long = LLMTrainer(tiny(), [[1], [2] * 4091], reward, config, device="cpu")
    with pytest.raises(ArgumentError, match=r"at most 4096 tokens .* got 4091 in prompt 1"):
        asyncio.run(long.train())
