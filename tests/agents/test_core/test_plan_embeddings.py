"""Plans of token policies: placed behind the shared context, whose keys and values they leave."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch
from echoic.agents.latent_planning import PlanEmbeddings
from echoic.errors import ArgumentError
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def plans(model: Any) -> PlanEmbeddings:
    torch.manual_seed(1)
    return PlanEmbeddings.for_model(model, latent_dim=8, num_tokens=3)


CONTEXT = torch.arange(10)[None]
WRITTEN = torch.tensor([[7, 8, 9]])


def keys_and_values(cache: Any, places: slice) -> torch.Tensor:
    return torch.stack(
        [torch.stack([layer.keys, layer.values])[..., places, :] for layer in cache.layers]
    )


@torch.no_grad()
def test_the_context_keeps_its_keys_and_values_with_every_plan(
    model: Any, plans: PlanEmbeddings
) -> None:
    alone = model(input_ids=CONTEXT, use_cache=True).past_key_values
    outputs = []
    for seed in (2, 3):
        plan = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed))
        inputs = plans.build(model, CONTEXT, plan, WRITTEN)
        assert (inputs.shareable, inputs.plan) == (10, slice(10, 13))
        out = model(
            inputs_embeds=inputs.inputs_embeds, position_ids=inputs.position_ids, use_cache=True
        )
        shared = slice(0, inputs.shareable)
        torch.testing.assert_close(
            keys_and_values(out.past_key_values, shared), keys_and_values(alone, shared)
        )
        outputs.append(out.logits[:, -1])
    # And still the plan counts.
    assert float((outputs[0] - outputs[1]).abs().max()) > 1e-3


@torch.no_grad()
def test_a_plan_in_front_changes_all_that_follows(model: Any, plans: PlanEmbeddings) -> None:
    held = []
    for seed in (2, 3):
        plan = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed))
        context = model.get_input_embeddings()(CONTEXT)
        out = model(inputs_embeds=torch.cat([plans(plan), context], dim=1), use_cache=True)
        held.append(keys_and_values(out.past_key_values, slice(3, 13)))
    # The first layer sees tokens and places only; from the second on every place has read the plan.
    differs = (held[0] - held[1]).abs().amax(dim=(1, 2, 3, 5))
    assert (differs[0] == 0).all()
    assert (differs[1] > 1e-4).all()


@torch.no_grad()
def test_a_cached_context_is_extended_by_one_plan_and_then_by_another(
    model: Any, plans: PlanEmbeddings
) -> None:
    cache = DynamicCache()
    model(input_ids=CONTEXT, past_key_values=cache, use_cache=True)
    for seed in (2, 3):
        plan = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed))
        whole = plans.build(model, CONTEXT, plan, WRITTEN)
        expected = model(inputs_embeds=whole.inputs_embeds, position_ids=whole.position_ids)
        behind = plans.extend(model, 10, plan, WRITTEN)
        found = model(
            inputs_embeds=behind.inputs_embeds,
            position_ids=behind.position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        torch.testing.assert_close(found.logits, expected.logits[:, 10:], rtol=1e-4, atol=1e-5)
        # The next plan finds the context alone.
        cache.crop(10 - cache.get_seq_length())
        assert cache.get_seq_length() == 10


def test_what_is_written_on_a_plan_teaches_it(model: Any, plans: PlanEmbeddings) -> None:
    plan = torch.randn(1, 8, requires_grad=True)
    inputs = plans.build(model, CONTEXT, plan, WRITTEN)
    out = model(inputs_embeds=inputs.inputs_embeds, position_ids=inputs.position_ids)
    # The last place of the plan is where the first written token is said.
    first = inputs.plan.stop - 1
    log_probs = out.logits[:, first : first + 3].log_softmax(-1)
    log_probs.gather(-1, WRITTEN[..., None]).sum().backward()
    assert float(plan.grad.abs().max()) > 0
    assert float(plans.project.weight.grad.abs().max()) > 0


def test_embeddings_are_as_large_as_those_of_the_model(model: Any, plans: PlanEmbeddings) -> None:
    size = float(model.get_input_embeddings().weight.detach().std())
    made = plans(torch.randn(100, 8)).detach()
    assert made.shape == (100, 3, 32)
    assert float(made.std()) == pytest.approx(size, rel=0.05)


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ArgumentError, match="num_tokens"):
        PlanEmbeddings(8, 32, 0)


def test_plans_in_single_precision_suit_a_model_in_half() -> None:
    torch.manual_seed(1)
    made = PlanEmbeddings(8, 32, 3).to(torch.bfloat16)
    plan = torch.randn(2, 8, requires_grad=True)
    rows = made(plan)
    assert rows.dtype == torch.bfloat16
    rows.float().square().sum().backward()
    assert plan.grad is not None
    assert plan.grad.abs().sum() > 0
