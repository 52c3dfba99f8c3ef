"""Plans of language models: soft prefixes that act, and that learn from what they did."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from echoic.agents.llm import (
    AsyncExecutionEngine,
    Conversation,
    GRPOConfig,
    GRPOLearner,
    LLMConfig,
    LLMTrainer,
    LoRAConfig,
    Outcome,
    SamplingParams,
    Task,
    TinyConfig,
    TinyTransformer,
    TokenBatch,
)
from echoic.agents.llm.soft_prefix import PlanPrefix
from echoic.agents.plans import PlanningConfig, windows_of
from echoic.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

torch.set_num_threads(1)

SIZES: dict[str, Any] = {
    "embedding_dim": 16,
    "num_layers": 1,
    "num_heads": 2,
    "state_window_size": 3,
    "learning_rate": 1e-2,
}
TURNS = 3


def tiny(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return TinyTransformer(TinyConfig(vocab_size=4, dim=16, hidden=16), device="cpu")


def learner_of(model: Any, *, plans: bool = True, **settings: Any) -> GRPOLearner:
    known = {
        name: settings.pop(name) for name in ("kl_warmup_updates", "kl_weight") if name in settings
    }
    prefix = PlanPrefix(model, PlanningConfig(**{**SIZES, **known}), state_dim=4, prefix=2)
    return GRPOLearner(
        model,
        GRPOConfig(**{"learning_rate": 1e-2, **settings}),
        plans=prefix if plans else None,
        device="cpu",
    )


async def episode(engine: Any, plans: PlanPrefix | None, cue: int, seed: int) -> Conversation:
    """Show a cue that is no token, walk on, and pay the last answer if it names the cue."""
    talk = Conversation(
        engine,
        None,
        SamplingParams(1),
        seed=seed,
        limit=64,
        plans=None if plans is None else plans.begin(seed),
    )
    for turn in range(TURNS):
        talk.observe(np.eye(4, dtype=np.float32)[cue if turn == 0 else 2])
        talk.extend([1])
        answer = await talk.answer()
    talk.reward(float(answer.tokens[0] == 2 + cue))
    return talk


async def batch_of(engine: Any, plans: PlanPrefix | None, step: int, groups: int = 4) -> TokenBatch:
    cues = [group % 2 for group in range(groups) for _ in range(8)]
    talks = await asyncio.gather(
        *(episode(engine, plans, cue, step * 1000 + item) for item, cue in enumerate(cues))
    )
    columns = [talk.columns() for talk in talks]
    return TokenBatch.from_items(
        **{name: [one[name] for one in columns] for name in ("tokens", "logprobs", "mask")},
        token_rewards=[one["rewards"] for one in columns],
        group_sizes=[8] * groups,
        plans=None if plans is None else [talk.plans.rows() for talk in talks],
    )


def drawn(model: Any, plans: PlanPrefix | None, groups: int = 4) -> TokenBatch:
    async def draw() -> TokenBatch:
        async with AsyncExecutionEngine(None, model, "cpu") as engine:
            return await batch_of(engine, plans, 0, groups)

    return asyncio.run(draw())


def train(steps: int, *, plans: bool) -> list[float]:
    """Return the share of right answers of each step."""

    async def run() -> list[float]:
        model = tiny()
        learner = learner_of(model, plans=plans)
        shares = []
        async with AsyncExecutionEngine(None, model, "cpu") as engine:
            for step in range(steps):
                metrics = learner.update(await batch_of(engine, learner.plans, step, groups=2))
                assert metrics["ratio_min"] == pytest.approx(1, abs=1e-4)
                assert metrics["ratio_max"] == pytest.approx(1, abs=1e-4)
                shares.append(metrics["reward"])
                await engine.update_weights(lambda _module: None, step + 1)
        return shares

    return asyncio.run(run())


def test_a_cue_outside_of_the_tokens_is_remembered_by_a_plan_and_not_without_one() -> None:
    assert np.mean(train(14, plans=True)[-4:]) >= 0.9
    assert np.mean(train(8, plans=False)[-4:]) <= 0.65


class Corridor(Task):
    """The same walk as a task: the cue is the number of the prompt."""

    name = "corridor"

    def prompt(self, index: int) -> int:
        return index % 2

    held_out = prompt

    async def run(self, prompt: int, talk: Conversation) -> Outcome:
        for turn in range(TURNS):
            talk.observe(np.eye(4, dtype=np.float32)[prompt if turn == 0 else 2])
            talk.extend([1])
            answer = await talk.answer()
        reward = float(answer.tokens[0] == 2 + prompt)
        talk.reward(reward)
        return Outcome(reward, reward == 1)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_trainer_learns_with_plans_and_goes_on_from_its_folder(tmp_path: Path, lag: int) -> None:
    config = LLMConfig(
        steps=3,
        max_new_tokens=1,
        learner=GRPOConfig(learning_rate=1e-2),
        max_lag=lag,
        plans=PlanningConfig(**SIZES),
        plan_prefix=2,
        plan_state_dim=4,
        replay=1,
        dir=tmp_path,
        save_every=1,
    )
    trainer = LLMTrainer(tiny(), Corridor(), config, device="cpu")
    rows = asyncio.run(trainer.train())
    assert all(row["plan_divergence"] > 0 for row in rows)
    assert rows[0]["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert [row["items"] for row in rows] == [32, 40, 40], "a group is learned from again"
    weights = torch.cat([one.flatten() for one in trainer.learner.plans.parameters()])
    again = LLMTrainer(
        tiny(), Corridor(), dataclasses.replace(config, steps=4), device="cpu", resume=True
    )
    assert torch.equal(
        torch.cat([one.flatten() for one in again.learner.plans.parameters()]), weights
    )
    assert len(again.replay) == 12
    assert again.replay._plans.shape == (12, 16), "scored by their plans"
    assert asyncio.run(again.train())[-1]["step"] == 4
    with pytest.raises(ArgumentError, match="servers don't take"):
        LLMConfig(plans=PlanningConfig(), servers=(object(),), max_lag=1)


def test_the_loss_of_fresh_answers_moves_every_part_of_the_plan() -> None:
    model = tiny()
    learner = learner_of(model)
    plans = learner.plans
    batch = drawn(model, plans)
    before = {name: one.detach().clone() for name, one in plans.named_parameters()}
    metrics = learner.update(batch)
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-4)
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert metrics["plan_divergence"] > 0
    still = [name for name, one in plans.named_parameters() if torch.equal(one, before[name])]
    assert still == []
    # The same answers are not as likely any more.
    assert learner.update(batch)["ratio_max"] > 1.001
    assert plans.encoder.get_lipschitz_bound() <= 1 + 1e-5
    assert not model.embed._forward_hooks


def test_micro_batches_change_only_the_order_of_sums() -> None:
    found = []
    for most in (None, 24):
        model = tiny()
        learner = learner_of(model, max_tokens=most, kl_warmup_updates=0)
        batch = drawn(tiny(), learner_of(tiny()).plans)
        metrics = learner.update(batch)
        assert metrics["micro_batches"] == (1 if most is None else 16)
        assert int(learner.plans.divergence.samples) == 1
        found.append((metrics, torch.cat([one.flatten() for one in learner.plans.parameters()])))
    (whole, one), (parts, other) = found
    assert parts["plan_divergence"] == pytest.approx(whole["plan_divergence"], rel=1e-4)
    assert parts["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-4)
    torch.testing.assert_close(one, other, rtol=0, atol=2e-4)


def test_changes_of_plans_cost_in_the_gradient_what_their_divergence_says() -> None:
    model = tiny()
    learner = learner_of(model, kl_warmup_updates=0, max_grad_norm=np.inf)
    plans = learner.plans
    batch = drawn(model, plans, groups=1)
    # Nothing is to be learned from equal rewards.
    batch.token_rewards[:] = 0.0
    rows = torch.tensor(np.stack(batch.plans))
    windows, masks = windows_of(rows[..., :4].transpose(0, 1), torch.zeros(TURNS, 8), 3)
    now, before = (
        plans.encoder.posterior(windows[at].flatten(0, 1), masks[at].flatten(0, 1))
        for at in (slice(1, None), slice(-1))
    )
    cost, _ = plans.divergence(now, before, torch.ones(16))
    (0.1 * cost).backward()
    expected = torch.cat(
        [one.grad.flatten() for one in plans.encoder.parameters() if one.grad is not None]
    ).norm()
    assert learner.update(batch)["grad_norm"] == pytest.approx(float(expected), rel=1e-4)


def test_a_checkpoint_of_the_learner_has_the_plans(tmp_path: Path) -> None:
    first, other = tiny(), tiny()
    learner, resumed = learner_of(first), learner_of(other)
    batch = drawn(first, learner.plans, groups=1)
    learner.update(batch)
    learner.save(tmp_path / "learner.ckpt")
    resumed.load(tmp_path / "learner.ckpt")
    assert learner.update(batch) == resumed.update(batch)
    for one, two in zip(learner.plans.parameters(), resumed.plans.parameters(), strict=True):
        assert torch.equal(one, two)
    with pytest.raises(CheckpointError, match="plans"):
        learner_of(tiny(), plans=False).load(tmp_path / "learner.ckpt")


def test_a_model_of_transformers_reads_the_same_prefix_that_its_engine_read() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    lora = LoRAConfig(rank=2)
    for settings in (
        {"kl_coef": 0.1},
        {"checkpointing": True, "chunk": 4},
        {"kl_coef": 0.1, "lora": lora},
    ):
        learner = learner_of(model, **settings)
        before = learner.plans.project.weight.detach().clone()
        metrics = learner.update(drawn(model, learner.plans, groups=1))
        assert metrics["ratio_min"] == pytest.approx(1, abs=1e-4)
        assert metrics["ratio_max"] == pytest.approx(1, abs=1e-4)
        # The reference has read the same prefixes.
        assert metrics.get("kl", 0.0) == pytest.approx(0, abs=1e-5)
        assert not torch.equal(learner.plans.project.weight, before)


def test_an_answer_that_was_cancelled_keeps_its_plan() -> None:
    plans = PlanPrefix(tiny(), PlanningConfig(**SIZES), state_dim=4, prefix=2)

    asked = []

    class Stuck:
        async def generate(self, tokens: Any, _sampling: Any, **options: Any) -> Any:
            asked.append((tokens, list(options["embeddings"])))
            await asyncio.sleep(60)

    async def twice() -> None:
        talk = Conversation(Stuck(), None, SamplingParams(1), limit=8, plans=plans.begin(0))
        talk.extend([1])
        for _ in range(2):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(talk.answer(), 0.01)

    asyncio.run(twice())
    assert asked == [([1, 4, 5], [4, 5])] * 2


def test_conversations_without_a_second_plan_or_any_measure_no_divergence() -> None:
    model = tiny()
    learner = learner_of(model)
    turn = learner.plans.begin(0)
    ids = turn.plan(np.ones(4))
    batch = TokenBatch.from_items(
        tokens=[[1, *ids, 2], [1, *ids, 3], [1]],
        logprobs=[[0, 0, 0, -1.0]] * 2 + [[0]],
        mask=[[0, 0, 0, 1]] * 2 + [[0]],
        rewards=[1.0, 0.0, 0.0],
        group_sizes=[3],
        plans=[turn.rows(), turn.rows(), learner.plans.begin(1).rows()],
    )
    metrics = learner.update(batch)
    assert metrics["stepped"] == 1
    assert metrics["plan_divergence"] == 0
    divergence = learner.plans.divergence
    assert (int(divergence.updates), int(divergence.samples), float(divergence.scale)) == (1, 0, 1)


def test_what_is_no_plan_is_refused() -> None:
    model = tiny()
    learner = learner_of(model)
    plans = learner.plans
    batch = drawn(model, plans, groups=1)
    for rows, message in (
        (batch.plans[0][:, 1:], "rows of 20 finite numbers"),
        (batch.plans[0][:2], "a plan for each virtual token"),
        (batch.plans[0] * np.nan, "rows of 20 finite numbers"),
        # What another process sends may be anything.
        ("no plan", "rows of 20 finite numbers"),
        (batch.plans[0].astype(str), "rows of 20 finite numbers"),
    ):
        odd = TokenBatch(**{**vars(batch), "plans": (rows, *batch.plans[1:])})
        with pytest.raises(ArgumentError, match=message):
            learner.update(odd)
    with pytest.raises(ArgumentError, match="virtual tokens are not drawn"):
        learner.update(TokenBatch(**{**vars(batch), "mask": batch.tokens >= 4}))
    with pytest.raises(ArgumentError, match="expected 8 values of plans"):
        TokenBatch(**{**vars(batch), "plans": batch.plans[1:]})
    for observation in (np.zeros(3), np.full(4, np.inf)):
        with pytest.raises(ArgumentError, match="observation of 4 finite numbers"):
            plans.begin(0).plan(observation)
    with pytest.raises(ArgumentError, match="prefix must be at least 1"):
        PlanPrefix(model, PlanningConfig(**SIZES), prefix=0)
