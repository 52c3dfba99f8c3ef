"""GRPO and RLOO for token policies: what is learned, from which tokens, and that it can go on."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tiers
from echoic.errors import ArgumentError, CheckpointError
from echoic.primitives import compute_importance_weights, compute_token_kl
from echoic.rollouts import RolloutTable

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from echoic.agents import checkpoint
from echoic.agents.llm import (
    GRPOConfig,
    GRPOLearner,
    LoRAConfig,
    PPOTokenConfig,
    PPOTokenLearner,
    RLOOConfig,
    RLOOLearner,
    TokenBatch,
)
from echoic.agents.llm.loss import (
    importance_ratio,
    score,
    token_kl,
    token_weights,
)
from echoic.agents.updates import clipped_gain

if TYPE_CHECKING:
    from pathlib import Path

WORDS = 16
LEARNERS = {
    "grpo": (GRPOLearner, GRPOConfig),
    "rloo": (RLOOLearner, RLOOConfig),
    "ppo": (PPOTokenLearner, PPOTokenConfig),
}


def tiny_llama(seed: int = 0, *, tied: bool = False) -> Any:
    """A causal model of two layers, small enough to learn in a test."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
        # Outputs of fresh models are almost alike; these say something.
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config).eval()


@torch.no_grad()
def answers(policy: Any, prompt: list[int], count: int, length: int, rng: Any) -> tuple[Any, Any]:
    """Draw answers; return the prompt with each, and a log-probability for each token."""
    ids = torch.tensor([prompt] * count)
    logprobs = torch.zeros(ids.shape)
    for _ in range(length):
        following = policy(ids).logits[:, -1].log_softmax(-1)
        drawn = torch.multinomial(following.exp(), 1, generator=rng)
        ids = torch.cat([ids, drawn], 1)
        logprobs = torch.cat([logprobs, following.gather(-1, drawn)], 1)
    return ids.numpy(), logprobs.numpy()


def rollouts(policy: Any, seed: int = 0, groups: int = 3, size: int = 4) -> TokenBatch:
    """Groups of answers of different lengths; what is earned is the share of even tokens."""
    rng = torch.Generator().manual_seed(seed)
    tokens, logprobs, masks, rewards = [], [], [], []
    for group in range(groups):
        prompt = [1, 2 + group, 3][: 1 + group % 3]
        for item, (ids, said) in enumerate(
            zip(*answers(policy, prompt, size, 5, rng), strict=True)
        ):
            length = len(prompt) + 2 + (group + item) % 4
            tokens.append(ids[:length])
            logprobs.append(said[:length])
            masks.append([0] * len(prompt) + [1] * (length - len(prompt)))
            rewards.append(np.mean(ids[len(prompt) : length] % 2 == 0))
    return TokenBatch.from_items(
        tokens=tokens,
        logprobs=logprobs,
        mask=masks,
        rewards=rewards,
        group_sizes=[size] * groups,
    )


def behind(batch: TokenBatch, shift: float) -> TokenBatch:
    """The batch as if tokens had been drawn by a policy that said something else."""
    noise = np.random.default_rng(0).normal(0, shift, len(batch.logprobs))
    return dataclasses.replace(batch, logprobs=np.minimum(batch.logprobs + noise, 0))


def bandit(*logits: float) -> Any:
    """A policy whose answers are one token, with the same probabilities whatever came before."""

    class Bandit(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = torch.nn.Parameter(torch.tensor(logits, dtype=torch.float32))

        def forward(self, ids: Any) -> Any:
            return self.logits.expand(*ids.shape, -1)

    return Bandit()


def gradient(learner: Any, batch: TokenBatch) -> Any:
    """What a learner would have stepped along, in one vector."""
    parts, tensors, _ = learner._prepare(batch)
    learner.optimizer.zero_grad()
    for part in parts:
        learner._loss(part, tensors)[0].backward()
    groups = learner.optimizer.param_groups
    stepped_on = [one for group in groups for one in group["params"] if one.grad is not None]
    found = [one.grad.flatten().clone() for one in stepped_on]
    learner.optimizer.zero_grad()
    return torch.cat(found)


def parameters(learner: Any) -> dict[str, Any]:
    return {name: one.detach().clone() for name, one in learner.policy.named_parameters()}


# Batches.


@pytest.mark.parametrize("form", ["flat", "padded", "packed"])
def test_batch_of_a_table_is_the_same_in_every_form(form: str) -> None:
    columns = {"tokens": "int32", "logprobs": "float32", "mask": "uint8"}
    with RolloutTable(
        "t", columns, {"reward": "float32"}, group_size=2, batch_groups=2, max_lag=5
    ) as table:
        for group in range(2):
            reservation = table.reserve()
            for item in range(2):
                length = 2 + group + item
                values = {
                    "tokens": np.arange(length, dtype=np.int32) + 10 * item,
                    "logprobs": np.full(length, -1 - item, np.float32),
                    "mask": np.array([0] + [1] * (length - 1), np.uint8),
                }
                reservation.add(values, {"reward": group + item}, versions=0)
        how = {"width": 8} if form == "packed" else {}
        found = TokenBatch.from_rollouts(table.sample(form=form, **how))
    assert found.tokens.tolist() == [0, 1, 10, 11, 12, 0, 1, 2, 10, 11, 12, 13]
    assert found.logprobs.tolist() == [-1] * 2 + [-2] * 3 + [-1] * 3 + [-2] * 4
    assert found.mask.tolist() == [position > 0 for n in (2, 3, 3, 4) for position in range(n)]
    assert found.rewards.tolist() == [0, 1, 1, 2]
    assert found.group_sizes.tolist() == [2, 2]


def test_first_token_is_never_learned_from() -> None:
    batch = TokenBatch.from_items(
        tokens=[[1, 2], [3]],
        logprobs=[[-1, -1], [-1]],
        mask=[[1, 1], [1]],
        rewards=[0, 1],
        group_sizes=[2],
    )
    assert batch.mask.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"logprobs": [[0, 0.4], [0, -1]]}, "at most 0"),
        ({"logprobs": [[0, math.nan], [0, -1]]}, "finite"),
        ({"tokens": [[0, -1], [0, 1]]}, "at least 0"),
        ({"rewards": [1.0]}, "2 values of rewards"),
        ({"rewards": [math.inf, 1.0]}, "finite"),
        ({"group_sizes": [1]}, "there are 2 items"),
        ({"mask": [[0, 1], [0]]}, "a value of mask for each token"),
    ],
)
def test_batch_that_does_not_fit_together_is_refused(change: dict[str, Any], text: str) -> None:
    good = {
        "tokens": [[0, 1], [0, 1]],
        "logprobs": [[0, -1], [0, -1]],
        "mask": [[0, 1], [0, 1]],
        "rewards": [0.0, 1.0],
        "group_sizes": [2],
    }
    assert len(TokenBatch.from_items(**good)) == 2
    with pytest.raises(ArgumentError, match=text):
        TokenBatch.from_items(**{**good, **change})


# Settings.


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"clip_low": -0.1}, "clip_low must be at least 0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": math.nan}, "must be above 0, not nan"),
        ({"aggregation": "mean"}, "aggregation must be one of"),
        ({"aggregation": "fixed_length"}, "fixed_length belongs"),
        ({"fixed_length": 8}, "fixed_length belongs"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"gae_lambda": 1.5}, "gae_lambda must be at least 0 and at most 1"),
        ({"distributed": "horovod"}, "distributed must be one of"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        PPOTokenConfig(**change)
    with pytest.raises(ArgumentError, match="scale must be one of"):
        GRPOConfig(scale="mean")


def test_a_schedule_of_torch_sets_the_learning_rate() -> None:
    learner = GRPOLearner(tiny_llama(), GRPOConfig(learning_rate=1e-3), device="cpu")
    schedule = torch.optim.lr_scheduler.LinearLR(learner.optimizer, 1.0, 0.0, total_iters=2)
    batch, before = rollouts(learner.policy), parameters(learner)
    learner.update(batch)
    after = parameters(learner)
    assert not torch.equal(after["lm_head.weight"], before["lm_head.weight"])
    schedule.step()
    schedule.step()
    learner.update(batch)
    assert all(torch.equal(one, after[name]) for name, one in parameters(learner).items())


# Parts of the loss.


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_mean"])
def test_ratios_are_those_of_the_primitive(level: str) -> None:
    rng = np.random.default_rng(1)
    new, old = rng.normal(-2, 0.3, (2, 9)).astype(np.float32)
    lengths = np.array([4, 2, 3])
    items = torch.from_numpy(np.repeat(np.arange(3), lengths))
    found = importance_ratio(torch.from_numpy(new - old), items, 3, level)
    if level == "token":
        expected = compute_importance_weights(new, old)
    else:
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        each = compute_importance_weights(new, old, level=level, offsets=offsets)
        expected = np.repeat(each, lengths)
    assert found.numpy() == pytest.approx(expected, rel=1e-5)


def test_divergence_has_the_value_of_the_primitive_and_the_gradient_of_its_formula() -> None:
    p = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    q = torch.tensor([-1.5, -0.7, -0.5])
    found = token_kl(p, q)
    expected = compute_token_kl(p.detach(), q, estimator="k3", reduction="none")
    assert torch.allclose(found.detach(), expected, atol=1e-7)
    found.sum().backward()
    by_formula = p.detach().requires_grad_()
    d = q - by_formula
    (d.exp() - 1 - d).sum().backward()
    assert torch.allclose(p.grad, by_formula.grad, atol=1e-6)


def test_clip_bounds_what_can_be_gained_and_not_what_can_be_lost() -> None:
    ratio = torch.tensor([2.0, 2.0, 0.5, 0.5, 1.1])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    gain, clipped = clipped_gain(ratio, advantages, 0.2, 0.28)
    assert gain.tolist() == pytest.approx([1.28, -2.0, 0.5, -0.8, 1.1])
    assert clipped.tolist() == [True, False, False, True, False]
    free, clipped = clipped_gain(ratio, advantages, math.inf, math.inf)
    assert torch.equal(free, ratio * advantages)
    assert not clipped.any()


def test_aggregations_weigh_tokens_as_they_say() -> None:
    batch = TokenBatch.from_items(
        tokens=[[0, 1, 1, 1, 1], [0, 1, 1], [0, 1]],
        logprobs=[[0, -1, -1, -1, -1], [0, -1, -1], [0, -1]],
        mask=[[0, 1, 1, 1, 1], [0, 1, 1], [0, 0]],
        rewards=[0, 1, 1],
        group_sizes=[3],
    )

    def found(aggregation: Any, length: int | None = None) -> list[float]:
        weights = token_weights(batch, aggregation, length, lambda n: [n])
        assert not weights[~batch.mask].any()
        return weights[batch.mask].tolist()

    assert found("token_mean") == pytest.approx([1 / 6] * 6)
    assert found("sequence_mean") == pytest.approx([1 / 8] * 4 + [1 / 4] * 2)
    assert found("fixed_length", 10) == pytest.approx([1 / 30] * 6)


# Updates.


@pytest.mark.parametrize("kind", LEARNERS)
def test_ratio_is_one_before_the_first_step_and_not_after(kind: str) -> None:
    learner_class, config = LEARNERS[kind]
    learner = learner_class(tiny_llama(), config(learning_rate=1e-2), device="cpu")
    batch = rollouts(learner.policy)
    first, second = learner.update(batch), learner.update(batch)
    for name in ("ratio_mean", "ratio_min", "ratio_max", "effective_samples"):
        assert first[name] == pytest.approx(1, abs=1e-4)
    assert first["kl_behaviour"] == pytest.approx(0, abs=1e-6)
    assert first["clip_fraction"] == 0
    assert second["ratio_max"] > 1.05
    assert second["kl_behaviour"] > 1e-4
    assert learner.updates == 2


def test_loss_is_that_of_the_formula_token_by_token() -> None:
    config = GRPOConfig(kl_coef=0.1, temperature=0.7)
    policy = tiny_llama()
    batch = behind(rollouts(policy), 0.3)
    learner = GRPOLearner(policy, config, reference=tiny_llama(1), device="cpu")
    metrics = learner.update(batch)

    terms, entropies, divergences = [], [], []
    fresh, reference = tiny_llama(), tiny_llama(1)
    for item in range(len(batch)):
        ids = batch.tokens[batch.offsets[item] : batch.offsets[item + 1]]
        group = batch.rewards[4 * (item // 4) : 4 * (item // 4) + 4]
        spread = group.std()
        advantage = (batch.rewards[item] - group.mean()) / spread if spread > 0 else 0.0
        with torch.no_grad():
            said, other = (
                (model(torch.from_numpy(ids)[None]).logits[0].double() / 0.7).log_softmax(-1)
                for model in (fresh, reference)
            )
        for place in range(len(ids)):
            cell = batch.offsets[item] + place
            if not batch.mask[cell]:
                continue
            logprob = float(said[place - 1, ids[place]])
            ratio = math.exp(logprob - batch.logprobs[cell])
            bounded = min(max(ratio, 0.8), 1.28)
            terms.append(min(ratio * advantage, bounded * advantage))
            entropies.append(float(-(said[place - 1].exp() * said[place - 1]).sum()))
            d = float(other[place - 1, ids[place]]) - logprob
            divergences.append(math.exp(d) - 1 - d)
    assert metrics["policy_loss"] == pytest.approx(-np.mean(terms), abs=1e-5)
    assert metrics["entropy"] == pytest.approx(np.mean(entropies), abs=1e-4)
    assert metrics["kl"] == pytest.approx(np.mean(divergences), rel=1e-4)
    whole = -np.mean(terms) + 0.1 * np.mean(divergences)
    assert metrics["loss"] == pytest.approx(whole, abs=1e-5)


MICRO_BATCHES = [
    GRPOConfig(kl_coef=0.1),
    GRPOConfig(aggregation="sequence_mean", ratio_level="sequence_mean"),
    GRPOConfig(aggregation="fixed_length", fixed_length=12, proximal="start"),
    RLOOConfig(kl_coef=0.1),
    PPOTokenConfig(kl_coef=0.1),
]


@pytest.mark.parametrize(
    "config", MICRO_BATCHES, ids=["tokens", "gspo", "decoupled", "rloo", "ppo"]
)
def test_micro_batches_add_up_to_the_batch(config: Any) -> None:
    learner_class = next(one for one, of in LEARNERS.values() if type(config) is of)
    batch = behind(rollouts(tiny_llama()), 0.2)
    gradients = {}
    for budget in (None, 16):
        settings = dataclasses.replace(config, max_tokens=budget)
        learner = learner_class(tiny_llama(), settings, device="cpu")
        gradients[budget] = gradient(learner, batch)
        parts = learner._parts(batch)
        assert len(parts) == 1 if budget is None else len(parts) >= 4
        # With what fills rows up.
        assert all(part.ids.numel() <= (budget or math.inf) for part in parts)
    scale = gradients[None].abs().max()
    assert scale > 1e-3
    assert (gradients[16] - gradients[None]).abs().max() < 1e-6 * max(1, float(scale))


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_chunks_and_checkpointing_change_the_memory_and_no_gradient(kind: str) -> None:
    config = PPOTokenConfig(
        lora=LoRAConfig(rank=2, targets=("lm_head", "q_proj")) if kind == "lora" else None,
    )
    batch = behind(rollouts(tiny_llama()), 0.2)
    gradients, widest, calls = {}, {}, {}
    for chunk, checkpointing in [(256, False), (5, False), (256, True), (5, True)]:
        settings = dataclasses.replace(config, chunk=chunk, checkpointing=checkpointing)
        model = tiny_llama()
        # Recomputed values would be others if anything were dropped.
        model.config.attention_dropout = model.model.layers[0].self_attn.attention_dropout = 0.5
        learner = PPOTokenLearner(model, settings, device="cpu")
        for name, one in (
            *learner.value_head.named_parameters(),
            *learner.policy.named_parameters(),
        ):
            if name == "weight" or "lora_B" in name:
                torch.nn.init.normal_(one, std=0.1, generator=torch.Generator().manual_seed(0))
        rows: list[int] = []
        layers: list[int] = []
        head = learner.policy.get_output_embeddings()
        forward = head.forward
        head.forward = lambda x, rows=rows, forward=forward: (
            rows.append(x.numel() // 16) or forward(x)
        )
        act = model.model.layers[0].mlp.act_fn
        act.register_forward_hook(lambda *_, layers=layers: layers.append(1))
        found = gradient(learner, batch)
        key = (chunk, checkpointing)
        gradients[key], widest[key], calls[key] = found, max(rows), len(layers)
        # A copy of the model, such as an engine's, has layers of its own.
        other = copy.deepcopy(model)
        for one in other.model.layers.parameters():
            one.data.zero_()
        ids = torch.tensor([[1, 2]])
        assert not torch.equal(other(ids).logits, model(ids).logits)
    exact = gradients[256, False]
    assert exact.abs().max() > 1e-2
    for key, found in gradients.items():
        assert (found - exact).abs().max() < 1e-6, key
    drawn = int(batch.mask.sum())
    assert list(widest.values()) == [drawn, 5, drawn, 5]
    # Once for the values, and once or twice for the gradient.
    assert list(calls.values()) == [2, 2, 3, 3]


def test_logits_that_a_model_changes_are_not_computed_in_chunks() -> None:
    class Capped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.head = torch.nn.Embedding(WORDS, 8), torch.nn.Linear(8, WORDS)

        def get_output_embeddings(self) -> Any:
            return self.head

        def forward(self, ids: Any) -> Any:
            return 0.5 * torch.tanh(self.head(self.embed(ids)) / 0.5)

    learner = GRPOLearner(Capped(), GRPOConfig(chunk=2), device="cpu")
    batch = rollouts(tiny_llama())
    with torch.no_grad():
        part = learner._parts(batch)[0]
        found = score(learner.policy, part, 1.0, learner._chunk)[0]
        ids = torch.from_numpy(batch.tokens)
        said = learner.policy(ids[None])[0].log_softmax(-1)
    assert torch.allclose(found, said[part.index - 1, part.targets], atol=1e-6)


def test_config_of_another_learner_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expected a PPOTokenConfig as config, got a GRPOC"):
        PPOTokenLearner(tiny_llama(), GRPOConfig(), device="cpu")


def test_item_longer_than_a_micro_batch_is_refused() -> None:
    learner = GRPOLearner(tiny_llama(), GRPOConfig(max_tokens=4), device="cpu")
    with pytest.raises(ArgumentError, match=r"more than a micro-batch may have: max_tokens is 4"):
        learner.update(rollouts(learner.policy))
    assert learner.updates == 0


def test_batch_without_drawn_tokens_changes_nothing() -> None:
    learner = GRPOLearner(tiny_llama(), GRPOConfig(learning_rate=0.1), device="cpu")
    batch = rollouts(learner.policy)
    before = parameters(learner)
    found = learner.update(dataclasses.replace(batch, mask=np.zeros_like(batch.mask)))
    assert (found["stepped"], found["tokens"], learner.updates) == (0, 0, 0)
    assert all(torch.equal(before[name], one) for name, one in parameters(learner).items())


def test_gradient_that_is_no_number_is_an_error_before_the_step() -> None:
    learner = GRPOLearner(tiny_llama(), GRPOConfig(), device="cpu")
    batch = rollouts(learner.policy)
    with torch.no_grad():
        learner.policy.model.norm.weight[0] = math.nan
    before = parameters(learner)["lm_head.weight"]
    with pytest.raises(FloatingPointError, match="the gradient is nan"):
        learner.update(batch)
    assert torch.equal(before, parameters(learner)["lm_head.weight"])
    assert learner.updates == 0


def test_long_gradients_are_shortened() -> None:
    def step(longest: float) -> float:
        config = GRPOConfig(max_grad_norm=longest, learning_rate=1.0)
        learner = GRPOLearner(tiny_llama(), config, device="cpu")
        sgd = torch.optim.SGD(learner.policy.parameters(), lr=1.0)
        learner.optimizer, before = sgd, parameters(learner)
        norm = learner.update(rollouts(learner.policy))["grad_norm"]
        moved = [(one - before[name]).square().sum() for name, one in parameters(learner).items()]
        assert float(sum(moved)) ** 0.5 == pytest.approx(min(norm, longest), rel=1e-3)
        return norm

    assert step(math.inf) == pytest.approx(step(1e-3))


# Off policy.


def off_policy_gradient(level: str) -> tuple[Any, Any]:
    """The mean over all answers of an old policy, each as often as it gives it; and the truth."""
    logits, old = [0.3, -0.2, 0.5], torch.tensor([1.0, 0.0, -1.0]).log_softmax(-1)
    learner = GRPOLearner(
        bandit(*logits),
        GRPOConfig(
            clip_low=math.inf,
            clip_high=math.inf,
            ratio_level=level,
            aggregation="sequence_mean",
        ),
        device="cpu",
    )
    # Groups of one answer have no baseline of their own, so this one is given.
    learner.advantages = lambda rewards, _: rewards - 0.4
    total, earned = torch.zeros(3), {}
    for answer in itertools.product(range(3), repeat=2):
        earned[answer] = float(answer[0] == answer[1]) + 0.3 * answer[0]
        said = [float(old[word]) for word in answer]
        batch = TokenBatch.from_items(
            tokens=[[0, *answer]],
            logprobs=[[0.0, *said]],
            mask=[[0, 1, 1]],
            rewards=[earned[answer]],
            group_sizes=[1],
        )
        total += math.exp(sum(said)) * gradient(learner, batch)
    values = torch.tensor(logits, requires_grad=True)
    p = values.log_softmax(-1).exp()
    (-sum(reward * p[first] * p[second] for (first, second), reward in earned.items())).backward()
    return total, values.grad


def test_answers_of_another_policy_give_the_right_gradient_by_the_ratio_of_the_whole() -> None:
    found, exact = off_policy_gradient("sequence")
    assert torch.allclose(found, exact, atol=1e-6)


def test_ratios_of_tokens_can_point_elsewhere_when_policies_are_far_apart() -> None:
    """They say nothing of how likely the other tokens of the answer were."""
    found, exact = off_policy_gradient("token")
    assert torch.nn.functional.cosine_similarity(found, exact, dim=0) < 0


def test_decoupled_objective_clips_from_where_the_update_began() -> None:
    """Old draws have a ratio of 1 at first, and a weight, which has its bound."""
    p = torch.tensor([0.3, -0.2]).log_softmax(-1)
    drawn = [float(p[0]) - 0.5, float(p[1]) + 0.5, float(p[0]) - 3.0, float(p[1])]
    batch = TokenBatch.from_items(
        tokens=[[0, 0], [0, 1]] * 2,
        logprobs=[[0.0, min(said, 0.0)] for said in drawn],
        mask=[[0, 1]] * 4,
        rewards=[1.0, 0.0, 1.0, 0.0],
        group_sizes=[2, 2],
    )
    plain, decoupled = (
        GRPOLearner(bandit(0.3, -0.2), GRPOConfig(proximal=proximal), device="cpu").update(batch)
        for proximal in ("behaviour", "start")
    )
    assert plain["clip_fraction"] == 3 / 4
    assert plain["ratio_max"] == pytest.approx(math.exp(3), rel=1e-4)
    assert (decoupled["clip_fraction"], decoupled["ratio_max"]) == (0, 1)
    weights = [math.exp(0.5), math.exp(float(p[1]) - min(drawn[1], 0)), 2.0, 1.0]
    expected = -np.dot(weights, [1, -1, 1, -1]) / 4
    assert decoupled["policy_loss"] == pytest.approx(expected, rel=1e-5)


# RLOO.


def draws(policy: Any, count: int, size: int, seed: int) -> TokenBatch:
    """Answers of one token; its number says what it earns."""
    logprobs = policy.logits.detach().log_softmax(-1).double()
    rng = np.random.default_rng(seed)
    p = logprobs.exp().numpy()
    arms = rng.choice(len(p), size=count * size, p=p / p.sum())
    earned = np.array([1.0, 0.25, -0.5, 0.0])
    return TokenBatch.from_items(
        tokens=np.stack([np.zeros_like(arms), arms], 1),
        logprobs=np.stack([np.zeros(len(arms)), logprobs.numpy()[arms]], 1),
        mask=np.tile([False, True], (len(arms), 1)),
        rewards=earned[arms],
        group_sizes=np.full(count, size),
    )


def test_rloo_takes_the_mean_of_the_others() -> None:
    learner = RLOOLearner(bandit(0, 0), device="cpu")
    rewards = np.array([1.0, 2.0, 6.0, 0.0, 4.0, 7.0])
    found = learner.advantages(rewards, np.array([3, 2, 1]))
    others = [(2 + 6) / 2, (1 + 6) / 2, (1 + 2) / 2, 4, 0]
    assert found.tolist() == pytest.approx([*(rewards[:5] - others), 0])


def test_rloo_gradient_is_unbiased_and_that_of_the_group_mean_is_not() -> None:
    """Groups of two: with the mean of the group, half of the gradient would be missing."""
    logits = (0.4, 0.0, -0.3, 0.2)
    p = torch.tensor(logits).double().softmax(-1).numpy()
    earned = np.array([1.0, 0.25, -0.5, 0.0])
    exact = -p * (earned - p @ earned)
    rloo = RLOOLearner(bandit(*logits), device="cpu")
    mean = GRPOLearner(
        bandit(*logits), GRPOConfig(scale="none", aggregation="sequence_mean"), device="cpu"
    )
    found: dict[str, list[Any]] = {"rloo": [], "mean": []}
    for seed in range(150):
        batch = draws(rloo.policy, 60, 2, seed)
        found["rloo"].append(gradient(rloo, batch).numpy())
        found["mean"].append(gradient(mean, batch).numpy())

    def deviations(samples: list[Any]) -> Any:
        array = np.array(samples, np.float64)
        error = array.std(0, ddof=1) / math.sqrt(len(array))
        return np.abs(array.mean(0) - exact) / error

    # Four numbers within 3.5 deviations, in all but one of five hundred seeds.
    assert deviations(found["rloo"]).max() < 3.5
    assert deviations(found["mean"]).max() > 10
    half = np.mean(found["mean"], 0)
    assert half == pytest.approx(exact / 2, abs=3e-3)


def test_divergence_in_the_reward_is_taken_from_whole_answers() -> None:
    policy, reference = bandit(0.3, -0.2), bandit(-0.5, 0.5)
    config = RLOOConfig(kl_coef=0.5)
    learner = RLOOLearner(policy, config, reference=reference, device="cpu")
    p, q = (one.logits.detach().log_softmax(-1).double().numpy() for one in (policy, reference))
    batch = TokenBatch.from_items(
        tokens=[[0, 0, 1], [0, 1, 1]],
        logprobs=[[0, p[0], p[1]], [0, p[1], p[1]]],
        mask=[[0, 1, 1], [0, 1, 1]],
        rewards=[1.0, 0.0],
        group_sizes=[2],
    )
    _, tensors, _ = learner._prepare(batch)
    advantages = tensors["advantages"][batch.offsets[:-1]].tolist()
    d = p - q
    earned = np.array([1 - 0.5 * (d[0] + d[1]), -0.5 * 2 * d[1]])
    assert advantages == pytest.approx([earned[0] - earned[1], earned[1] - earned[0]], abs=1e-6)


# PPO.


def turns() -> TokenBatch:
    """Two items of two turns, with tokens of a tool between them and rewards for turns."""
    rng = np.random.default_rng(3)
    mask = [0, 0, 1, 1, 0, 0, 1, 1, 0]
    return TokenBatch.from_items(
        tokens=rng.integers(0, WORDS, (2, 9)),
        logprobs=[[-2.0] * 9] * 2,
        mask=[mask, mask],
        # The first turn of the second item is scored at a token of the tool.
        token_rewards=[[0, 0, 0, 0.5, 0, 0, 0, 1, 0], [0, 0, 0, 0, -1, 0, 0, 0, 0.25]],
        group_sizes=[1, 1],
    )


def test_ppo_has_the_advantages_of_gae_over_drawn_tokens() -> None:
    config = PPOTokenConfig(gamma=0.9, gae_lambda=0.8)
    learner = PPOTokenLearner(tiny_llama(), config, device="cpu")
    torch.manual_seed(1)
    for one in learner.value_head.parameters():
        torch.nn.init.normal_(one)
    batch = turns()
    assert batch.rewards.tolist() == [1.5, -0.75]
    hidden = tiny_llama().model(torch.from_numpy(batch.tokens).view(2, 9)).last_hidden_state
    unit = torch.nn.functional.normalize(hidden, dim=-1)
    before = learner.value_head(unit).detach().view(2, 9)

    _, tensors, metrics = learner._prepare(batch)
    earned = [[0, 0.5, 0, 1], [0, -1, 0, 0.25]]
    drawn = [2, 3, 6, 7]
    returns, values = [], []
    for item in range(2):
        # What a token is worth is said where it was drawn from: one place before it.
        value = [float(before[item, place - 1]) for place in drawn] + [0.0]
        advantage = 0.0
        for step in (3, 2, 1, 0):
            error = earned[item][step] + 0.9 * value[step + 1] - value[step]
            advantage = error + 0.9 * 0.8 * advantage
            place = 9 * item + drawn[step]
            expected = advantage + value[step]
            assert float(tensors["returns"][place]) == pytest.approx(expected, abs=1e-5)
            returns.append(advantage + value[step])
            values.append(value[step])
    explained = 1 - np.var(np.subtract(returns, values)) / np.var(returns)
    assert metrics["explained_variance"] == pytest.approx(explained, abs=1e-5)
    plain = np.subtract(returns, values)
    scaled = (plain - plain.mean()) / plain.std()
    # From the last token of an item to its first.
    found = tensors["advantages"][batch.mask].view(2, 4).flip(1).flatten()
    assert found.numpy() == pytest.approx(scaled, abs=1e-5)


@pytest.mark.parametrize("kind", LEARNERS)
def test_nothing_is_learned_from_tokens_of_tools_and_prompts(kind: str) -> None:
    """What they earned, how likely they were and what they are called changes no gradient."""
    learner_class, config = LEARNERS[kind]
    batch = dataclasses.replace(turns(), group_sizes=np.array([2]))
    logprobs = np.where(batch.mask, batch.logprobs, np.float32(-20))
    other = dataclasses.replace(batch, logprobs=logprobs)
    learner = learner_class(tiny_llama(), config(), device="cpu")
    found = gradient(learner, batch)
    assert torch.equal(found, gradient(learner, other))
    assert float(found.abs().max()) > 1e-3
    parts, _, _ = learner._prepare(batch)
    assert parts[0].index.tolist() == np.flatnonzero(batch.mask).tolist()


def test_values_learn_to_explain_what_can_be_known_and_nothing_else() -> None:
    config = PPOTokenConfig(gae_lambda=1.0, value_learning_rate=0.1)
    learner = PPOTokenLearner(tiny_llama(), config, device="cpu")
    # The prompt says which half of the reward it is; the rest is a coin.
    batch = TokenBatch.from_items(
        tokens=[[1, 5], [1, 5], [2, 5], [2, 5]],
        logprobs=[[0, -2.7]] * 4,
        mask=[[0, 1]] * 4,
        rewards=[4.0, 2.0, 0.0, -2.0],
        group_sizes=[4],
    )
    found = [learner.update(batch) for _ in range(60)]
    assert found[0]["explained_variance"] == 0
    assert found[-1]["explained_variance"] == pytest.approx(0.8, abs=0.02)
    assert found[-1]["value_loss"] == pytest.approx(0.5, abs=0.05)
    assert found[-1]["value_mean"] == pytest.approx(1.0, abs=0.1)


def test_ppo_needs_a_model_with_an_output_layer() -> None:
    with pytest.raises(ArgumentError, match="get_output_embeddings"):
        PPOTokenLearner(bandit(0, 0), device="cpu")


# Learning.


@pytest.mark.parametrize("kind", LEARNERS)
def test_learner_learns_to_say_a_token(kind: str) -> None:
    learner_class, config = LEARNERS[kind]
    learner = learner_class(tiny_llama(), config(learning_rate=1e-2), device="cpu")
    rng = torch.Generator().manual_seed(0)
    earned = []
    for _ in range(25):
        ids, logprobs = answers(learner.policy, [1], 32, 3, rng)
        rewards = (ids[:, 1:] == 7).mean(1)
        earned.append(rewards.mean())
        learner.update(
            TokenBatch.from_items(
                tokens=list(ids),
                logprobs=list(logprobs),
                mask=[[0, 1, 1, 1]] * 32,
                rewards=rewards,
                group_sizes=[8] * 4,
            )
        )
    assert np.mean(earned[:2]) < 0.3
    assert np.mean(earned[-3:]) > 0.9


def test_divergence_holds_back() -> None:
    found = {}
    for kl_coef in (0.0, 5.0):
        config = GRPOConfig(learning_rate=1e-2, epochs=8, kl_coef=kl_coef)
        learner = GRPOLearner(tiny_llama(), config, device="cpu")
        batch = rollouts(tiny_llama())
        learner.update(batch)
        found[kl_coef] = learner.update(batch)["kl_behaviour"]
    assert found[5.0] < found[0.0] / 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
def test_cuda_learns_what_the_cpu_learns() -> None:
    config = PPOTokenConfig(
        learning_rate=1e-3, kl_coef=0.1, max_tokens=32, chunk=5, checkpointing=True
    )
    batch = behind(rollouts(tiny_llama()), 0.2)
    learners = [PPOTokenLearner(tiny_llama(), config, device=one) for one in ("cpu", "cuda")]
    on_cpu, on_cuda = (learner.update(batch) for learner in learners)
    assert learners[1].policy.device.type == "cuda"
    assert on_cuda == pytest.approx(on_cpu, rel=1e-3, abs=1e-4)
    for one, other in zip(*(learner.weights().values() for learner in learners), strict=True):
        assert torch.allclose(one, other.cpu(), atol=1e-4)
    half = GRPOLearner(tiny_llama().to(torch.bfloat16), GRPOConfig(), device="cuda")
    assert half.update(batch)["stepped"] == 1


# LoRA.


def test_adapters_alone_are_learned_and_merge_to_the_same_logits(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    learner = GRPOLearner(
        tiny_llama(), GRPOConfig(learning_rate=1e-2, lora=LoRAConfig(rank=2)), device="cpu"
    )
    ids = torch.tensor([[1, 5, 3, 7]])
    plain = tiny_llama()
    with torch.no_grad():
        assert torch.equal(learner.policy(ids).logits, plain(ids).logits)
    before, batch = parameters(learner), rollouts(learner.policy)
    for _ in range(3):
        learner.update(batch)
    changed = {
        name for name, one in parameters(learner).items() if not torch.equal(one, before[name])
    }
    assert changed
    assert changed == {name for name in before if "lora_" in name}
    same, other = (
        parameters(GRPOLearner(tiny_llama(), learner.config, device="cpu", seed=seed))
        for seed in (0, 1)
    )
    assert all(torch.equal(one, before[name]) for name, one in same.items())
    differ = {name for name, one in other.items() if not torch.equal(one, before[name])}
    assert differ == {name for name in before if "lora_A" in name}
    with torch.no_grad():
        learned = learner.policy(ids).logits
        assert (learned - plain(ids).logits).abs().max() > 1e-3
        plain.load_state_dict(learner.weights())
        # As a trainer exports it.
        base = learner.policy.get_base_model()
        base.save_pretrained(tmp_path, state_dict=learner.weights())
        exported = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
        for merged in (plain, exported):
            assert torch.allclose(merged(ids).logits, learned, atol=1e-5)


def test_reference_of_adapters_is_the_model_without_them() -> None:
    pytest.importorskip("peft")
    config = GRPOConfig(learning_rate=1e-2, kl_coef=0.1)
    batch = rollouts(tiny_llama())
    adapted = GRPOLearner(
        tiny_llama(), dataclasses.replace(config, lora=LoRAConfig(rank=2)), device="cpu"
    )
    assert adapted._reference is None
    assert adapted.update(batch)["kl"] == 0
    for _ in range(3):
        metrics = adapted.update(batch)
    assert metrics["kl"] > 1e-5
    # A learner with a reference of its own agrees on how far that is.
    merged = tiny_llama()
    merged.load_state_dict(adapted.weights())
    other = GRPOLearner(merged, config, reference=tiny_llama(), device="cpu")
    now, again = adapted.update(batch)["kl"], other.update(batch)["kl"]
    assert now == pytest.approx(again, rel=1e-3)


def test_adapters_that_fit_nothing_are_refused() -> None:
    pytest.importorskip("peft")
    with pytest.raises(ArgumentError, match="no adapters"):
        GRPOLearner(tiny_llama(), GRPOConfig(lora=LoRAConfig(targets=("nothing",))), device="cpu")


# Going on.


@pytest.mark.parametrize("kind", tiers.rotating("full", "tied", "lora", "reference", "bfloat16"))
def test_learner_that_goes_on_from_a_file_is_bit_for_bit_the_one_that_never_stopped(
    tmp_path: Path, kind: str
) -> None:
    if kind == "lora":
        pytest.importorskip("peft")
    config = GRPOConfig(
        learning_rate=1e-2,
        epochs=2,
        max_tokens=24,
        kl_coef=0.1 if kind == "reference" else 0.0,
        lora=LoRAConfig(rank=2) if kind == "lora" else None,
    )

    def learner() -> GRPOLearner:
        model = tiny_llama(tied=kind == "tied")
        if kind == "bfloat16":
            model = model.to(torch.bfloat16)
        return GRPOLearner(model, config, device="cpu")

    straight, second = learner(), learner()
    straight.update(rollouts(straight.policy))
    straight.save(tmp_path / "learner.ckpt")
    second.load(tmp_path / "learner.ckpt")
    assert second.updates == 1
    for one in (straight, second):
        one.update(rollouts(one.policy, seed=1))
    expected, found = parameters(straight), parameters(second)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    start = parameters(learner())
    assert any(not torch.equal(start[name], found[name]) for name in expected)


def test_small_steps_of_16_bits_add_up_as_those_of_32() -> None:
    rounded = tiny_llama().to(torch.bfloat16)
    # The same numbers with more room.
    whole = copy.deepcopy(rounded).float()
    config = GRPOConfig(learning_rate=1e-6, max_tokens=24)
    learners = [GRPOLearner(model, config, device="cpu") for model in (rounded, whole)]

    def weights(learner: GRPOLearner) -> Any:
        stepped_on = learner.optimizer.param_groups[0]["params"]
        return torch.cat([one.detach().double().flatten() for one in stepped_on])

    before = [weights(learner) for learner in learners]
    for seed in range(tiers.size(8, 20)):
        batch = rollouts(whole, seed=seed)
        assert all(learner.update(batch)["stepped"] == 1 for learner in learners)
    half, full = (weights(one) - was for one, was in zip(learners, before, strict=True))
    assert float((half != 0).double().mean()) > 0.9
    assert float(torch.nn.functional.cosine_similarity(half, full, dim=0)) > 0.9
    assert 0.9 < float(half.norm() / full.norm()) < 1.1
    learned = torch.cat([one.detach().flatten() for one in rounded.parameters()])
    assert torch.equal(learned, weights(learners[0]).to(torch.bfloat16))
    # What somebody else writes to the policy is where the next step begins.
    with torch.no_grad():
        rounded.get_input_embeddings().weight.zero_()
    learners[0].update(rollouts(whole, seed=0))
    assert float(rounded.get_input_embeddings().weight.detach().abs().max()) < 1e-5


def test_file_of_another_learner_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "learner.ckpt"
    config = GRPOConfig(kl_coef=0.1)
    GRPOLearner(tiny_llama(), config, device="cpu").save(path)
    with pytest.raises(CheckpointError, match="RLOOLearner"):
        RLOOLearner(tiny_llama(), device="cpu").load(path)
    with pytest.raises(CheckpointError, match="doesn't fit"):
        GRPOLearner(bandit(0, 0), config, device="cpu").load(path)
    with pytest.raises(CheckpointError, match="kl_coef"):
        GRPOLearner(tiny_llama(), GRPOConfig(), device="cpu").load(path)
    with pytest.raises(CheckpointError, match="another frozen model or reference"):
        GRPOLearner(tiny_llama(1), config, device="cpu").load(path)


def test_file_that_misses_a_part_changes_nothing(tmp_path: Path) -> None:
    path, learner = tmp_path / "learner.ckpt", PPOTokenLearner(tiny_llama(), device="cpu")
    learner.update(rollouts(tiny_llama()))
    learner.save(path)
    before = {name: one.clone() for name, one in learner._trained().items()}
    learner.update(rollouts(tiny_llama(), seed=1))
    after = {name: one.clone() for name, one in learner._trained().items()}
    kind = "PPOTokenLearner"
    parts = list(checkpoint.load(path, kind=kind))
    for odd in (*parts, "value_head.weight", "group", "exp_avg", "tree", "no number", "params"):
        state = checkpoint.load(path, kind=kind)
        averages = state["optimizer"]["state"]
        if odd == "group":
            state["optimizer"]["param_groups"].pop()
        elif odd == "tree":
            state = [state]
        elif odd == "no number":
            state["updates"] = "many"
        elif odd == "params":
            state["optimizer"]["param_groups"][0]["params"][0] = [1]
        else:
            {"value_head.weight": state["policy"], "exp_avg": averages[0]}.get(odd, state).pop(odd)
        checkpoint.save(tmp_path / "odd", state, kind=kind)
        with pytest.raises(CheckpointError):
            learner.load(tmp_path / "odd")
        assert all(torch.equal(one, after[name]) for name, one in learner._trained().items())
    learner.load(path)
    assert all(torch.equal(one, before[name]) for name, one in learner._trained().items())


def test_a_policy_that_is_its_own_reference_still_learns() -> None:
    policy = tiny_llama()
    learner = GRPOLearner(policy, GRPOConfig(kl_coef=0.1), reference=policy, device="cpu")
    assert all(one.requires_grad for one in policy.parameters())
    assert learner._reference is not policy


@pytest.mark.parametrize("name", ["epochs", "max_tokens", "chunk", "fixed_length"])
@pytest.mark.parametrize("value", [2.0, True])
def test_what_is_counted_is_a_whole_number(name: str, value: Any) -> None:
    extra: Any = {"aggregation": "fixed_length"} if name == "fixed_length" else {}
    with pytest.raises(ArgumentError, match=f"{name} must be a whole number"):
        GRPOConfig(**{name: value}, **extra)
