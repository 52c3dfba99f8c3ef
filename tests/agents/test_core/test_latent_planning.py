"""Plans: their windows, their distribution, what their changes cost, and who learns from them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from echoic.agents.kernels import EMAPlanTracker
from echoic.agents.plans import (
    LatentPlanningOptimizer,
    PlanDivergence,
    PlanningConfig,
    PlanPosterior,
    PlanWindows,
    PolicyNetwork,
    SoftPrefixAdapter,
    TrajectoryEncoder,
    shown,
    windows_of,
)
from echoic.agents.replay import ReplayConfig, SurpriseCalculator
from echoic.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, Any] = {
    "embedding_dim": 8,
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "state_window_size": 3,
}


def small(**changes: Any) -> PlanningConfig:
    return PlanningConfig(**{**SMALL, **changes})


def make_planner(seed: int = 0, **changes: Any) -> LatentPlanningOptimizer:
    torch.manual_seed(seed)
    return LatentPlanningOptimizer(4, 3, small(**changes), "cpu", seed=seed)


def make_windows(count: int = 6, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 4, 4, generator=torch.Generator().manual_seed(seed))


# Settings.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("embedding_dim", 0),
        ("embedding_dim", 8.0),
        ("state_window_size", -1),
        ("kl_weight", -0.1),
        ("kl_weight", float("nan")),
        ("ema_decay", 1.5),
        ("soft_prefix_alpha", -0.1),
        ("lipschitz_constant", 0.0),
        ("noise_std", 0.0),
        ("learning_rate", 0.0),
        ("max_grad_norm", float("inf")),
        ("discount_gamma", 1.01),
        ("std_range", 0.5),
        ("num_heads", 3),
    ],
)
def test_a_setting_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=field):
        PlanningConfig(**{field: value})


# Windows.


def test_windows_made_while_acting_are_those_of_the_recorded_sequence() -> None:
    rng = np.random.default_rng(0)
    states = torch.as_tensor(rng.normal(size=(20, 5, 2)), dtype=torch.float32)
    starts = torch.as_tensor(rng.random((20, 5)) < 0.2)
    starts[0] = True
    for history in (None, 2, 0):
        acting = PlanWindows(5, 2, 3, history=history, device="cpu")
        made = [acting.push(*step) for step in zip(states, starts, strict=True)]
        windows, masks = shown(*windows_of(states, starts, 3), 3 if history is None else history)
        assert torch.equal(torch.stack([window for window, _ in made]), windows)
        assert torch.equal(torch.stack([mask for _, mask in made]), masks)


def test_a_window_holds_only_states_of_its_own_episode() -> None:
    rng = np.random.default_rng(1)
    starts = rng.random((50, 4)) < 0.3
    starts[0] = True
    # A state tells its episode and how old that is.
    episodes = np.cumsum(starts, axis=0)
    ages = np.zeros_like(episodes)
    for t in range(1, 50):
        ages[t] = np.where(starts[t], 0, ages[t - 1] + 1)
    windows, masks = windows_of(np.stack([episodes, ages], -1).astype(np.float32), starts, 8)
    for t, n in itertools.product(range(50), range(4)):
        held = windows[t, n][masks[t, n]]
        length = min(int(ages[t, n]), 8) + 1
        assert held[:, 0].tolist() == [episodes[t, n]] * length
        assert held[:, 1].tolist() == list(range(int(ages[t, n]) + 1 - length, int(ages[t, n]) + 1))
    assert not windows[~masks].any()


def test_windows_continue_after_a_checkpoint() -> None:
    first, second = (PlanWindows(2, 1, 3, device="cpu") for _ in range(2))
    starts = torch.tensor([True, True])
    first.push(torch.ones(2, 1), starts)
    second.load_state_dict(first.state_dict())
    step = torch.full((2, 1), 2.0), torch.tensor([False, True])
    for one, other in zip(first.push(*step), second.push(*step), strict=True):
        assert torch.equal(one, other)


def test_states_of_another_shape_are_refused() -> None:
    windows = PlanWindows(2, 3, 4, device="cpu")
    with pytest.raises(ArgumentError, match=r"expected states of shape \(2, 3\)"):
        windows.push(torch.zeros(2, 4), torch.ones(2, dtype=torch.bool))


# The encoder.


def test_masked_places_change_nothing() -> None:
    encoder = TrajectoryEncoder(4, small(), "cpu")
    window = make_windows()
    mask = torch.tensor([[False, False, True, True]]).expand(6, -1)
    garbage = window.clone()
    garbage[:, :2] = 1e6
    assert torch.equal(encoder(window, mask), encoder(garbage, mask))
    assert not torch.allclose(encoder(window, mask), encoder(window))


def test_a_masked_place_may_hold_what_is_no_number() -> None:
    planner = make_planner()
    windows = make_windows()
    mask = torch.ones(6, 4, dtype=torch.bool)
    mask[:, 0] = False
    spoiled = windows.clone()
    spoiled[:, 0] = torch.nan
    plain, found = planner.encoder(windows, mask), planner.encoder(spoiled, mask)
    assert torch.equal(found, plain)
    found.sum().backward()
    assert all(torch.isfinite(one.grad).all() for one in planner.encoder.mean_head.parameters())
    assert torch.isfinite(planner.encoder.project_state.weight.grad).all()


def test_windows_take_the_precision_of_the_encoder() -> None:
    planner = make_planner()
    assert torch.equal(planner.encoder(make_windows().double()), planner.encoder(make_windows()))


def test_a_short_window_is_a_masked_long_one() -> None:
    encoder = TrajectoryEncoder(4, small(), "cpu")
    window = make_windows()
    mask = torch.tensor([[False, False, True, True]]).expand(6, -1)
    torch.testing.assert_close(encoder(window[:, 2:]), encoder(window, mask))


def test_acting_and_learning_see_the_same_function() -> None:
    encoder = TrajectoryEncoder(4, small(), "cpu")
    window = make_windows()
    learning = encoder.train()(window)
    with torch.no_grad():
        acting = encoder.eval()(window)
    assert torch.equal(learning, acting)
    # The plan of a window does not differ from itself, so that nothing is to be paid for it.
    kl = encoder.compute_kl_divergence(encoder.posterior(window), encoder.posterior(window))
    assert torch.equal(kl, torch.zeros(6))


def test_standard_deviations_stay_in_their_range_whatever_the_parameters_are() -> None:
    config = small(noise_std=0.1, std_range=5.0)
    encoder = TrajectoryEncoder(4, config, "cpu")
    torch.testing.assert_close(encoder.posterior(make_windows()).stddev, torch.full((6, 8), 0.1))
    for sign in (-1e4, 1e4):
        torch.nn.init.constant_(encoder.std_head.bias, sign)
        std = encoder.posterior(make_windows()).stddev
        torch.testing.assert_close(std, torch.full((6, 8), 0.5 if sign > 0 else 0.02))


def test_the_head_keeps_its_lipschitz_constant_after_every_update() -> None:
    planner = make_planner(lipschitz_constant=0.7, learning_rate=0.3)
    encoder = planner.encoder
    window = make_windows()
    for _ in range(5):
        loss = planner.compute_planning_loss(
            window, window, torch.zeros(6), advantages=torch.ones(6)
        )
        # Something that wants large plans.
        loss["total_loss"] = loss["total_loss"] - loss["current_plan"].square().sum()
        planner.update(loss)
        assert encoder.get_lipschitz_bound() <= 0.7 * (1 + 1e-5)
    assert encoder.get_lipschitz_bound() > 0.5
    pooled = torch.randn(2, 100, 8)
    moved = (encoder.mean_head(pooled[0]) - encoder.mean_head(pooled[1])).norm(dim=-1)
    assert (moved <= 0.7 * (pooled[0] - pooled[1]).norm(dim=-1) * (1 + 1e-5)).all()


def test_no_lipschitz_constant_leaves_the_head_alone() -> None:
    encoder = TrajectoryEncoder(4, small(lipschitz_constant=math.inf), "cpu")
    with torch.no_grad():
        encoder.mean_head[0].weight.mul_(100.0)
    before = encoder.mean_head[0].weight.clone()
    encoder.project()
    assert torch.equal(encoder.mean_head[0].weight, before)


@pytest.mark.parametrize("shape", [(6, 4), (6, 5, 4), (6, 4, 3), (6, 0, 4)])
def test_windows_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="expected windows of shape"):
        TrajectoryEncoder(4, small(), "cpu")(torch.zeros(shape))


def test_a_masked_current_state_is_refused() -> None:
    mask = torch.ones(6, 4, dtype=torch.bool)
    mask[2, -1] = False
    with pytest.raises(ArgumentError, match="last place"):
        TrajectoryEncoder(4, small(), "cpu")(make_windows(), mask)


# What changes cost.


def test_divergence_of_equal_deviations_is_half_a_squared_distance() -> None:
    encoder = TrajectoryEncoder(4, small(embedding_dim=2, num_heads=1, noise_std=0.1), "cpu")
    kl = encoder.compute_kl_divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
    assert float(kl) == pytest.approx(50.0, rel=1e-6)


def test_the_native_divergence_reports_the_same_without_a_gradient() -> None:
    encoder = TrajectoryEncoder(4, small(noise_std=0.1), "cpu")
    plans = torch.randn(2, 5, 8, requires_grad=True)
    found = encoder.compute_kl_divergence_fast(*plans)
    expected = encoder.compute_kl_divergence(*plans)
    assert not found.requires_grad
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_divergence_is_that_of_normal_distributions() -> None:
    rng = torch.Generator().manual_seed(0)
    mean, other = torch.randn(2, 5, 8, generator=rng, dtype=torch.float64)
    std, other_std = torch.randn(2, 5, 8, generator=rng, dtype=torch.float64).exp()
    gaps = (std.square() + (mean - other).square()) / (2 * other_std.square())
    expected = ((other_std / std).log() + gaps - 0.5).sum(-1)
    encoder = TrajectoryEncoder(4, small(), "cpu")
    found = encoder.compute_kl_divergence(PlanPosterior(mean, std), PlanPosterior(other, other_std))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_gradient_of_the_divergence_is_that_of_finite_differences() -> None:
    torch.manual_seed(3)
    config = small(free_bits=0.0)
    encoder = TrajectoryEncoder(4, config, "cpu").double()
    torch.nn.init.normal_(encoder.std_head.weight, std=0.3)
    divergence = PlanDivergence(config).double()
    divergence.scale.fill_(3.0)
    window = make_windows().double()
    pairs = torch.tensor([True, True, False, True, True, False])
    # The step before is what it was: no gradient reaches it, so differences must not either.
    previous = encoder.posterior(window.roll(1, dims=0)).detach()

    def loss() -> torch.Tensor:
        return divergence(encoder.posterior(window), previous, pairs)[0]

    loss().backward()
    rng = np.random.default_rng(0)
    checked = 0
    for parameter in encoder.parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        for place in rng.choice(len(flat), min(4, len(flat)), replace=False):
            kept = float(flat[place])
            sides = []
            for side in (-1e-6, 1e-6):
                flat[place] = kept + side
                sides.append(float(loss().detach()))
            flat[place] = kept
            expected = (sides[1] - sides[0]) / 2e-6
            assert float(gradient[place]) == pytest.approx(expected, rel=2e-4, abs=2e-5)
            checked += abs(expected) > 1e-3
    assert checked > 20


def test_no_gradient_reaches_the_step_before() -> None:
    config = small()
    mean = torch.zeros(2, 8, requires_grad=True)
    before = torch.ones(2, 8, requires_grad=True)
    flat = torch.full((2, 8), 0.01)
    cost, _ = PlanDivergence(config)(
        PlanPosterior(mean, flat), PlanPosterior(before, flat), torch.ones(2, dtype=torch.bool)
    )
    cost.backward()
    assert mean.grad.abs().min() > 0
    assert before.grad is None


def test_pairs_of_two_episodes_cost_nothing() -> None:
    divergence = PlanDivergence(small(free_bits=0.0))
    flat = torch.full((3, 8), 0.01)
    moved = torch.tensor([[0.02], [5.0], [0.04]]).expand(3, 8)
    args = PlanPosterior(moved, flat), PlanPosterior(torch.zeros(3, 8), flat)
    cost, plain = divergence(*args, torch.tensor([True, False, True]))
    assert float(cost) == pytest.approx((2.0 + 8.0) / 2)
    assert float(plain) == pytest.approx((2.0 + 8.0) / 2)
    assert float(divergence(*args, torch.zeros(3, dtype=torch.bool))[0]) == 0.0


def test_a_cost_is_measured_by_what_plans_changed_lately() -> None:
    divergence = PlanDivergence(small(free_bits=0.0))
    flat = torch.full((1, 8), 0.01)
    pairs = torch.ones(1, dtype=torch.bool)
    args = PlanPosterior(torch.ones(1, 8), flat), PlanPosterior(torch.zeros(1, 8), flat), pairs
    # A change of one, in units of a deviation of 0.01: what sank the plan as it stands.
    cost, plain = divergence(*args)
    assert float(cost) == pytest.approx(5000.0, rel=1e-5)
    divergence.advance(plain)
    assert float(divergence(*args)[0]) == pytest.approx(1.0, rel=1e-5)
    # The scale moves slowly, and not below 1.
    divergence.advance(0.0)
    assert float(divergence.scale) == pytest.approx(0.99 * 5000.0, rel=1e-5)
    for _ in range(2000):
        divergence.advance(0.0)
    assert float(divergence(*args)[0]) == pytest.approx(5000.0, rel=1e-5)


def test_the_first_divergence_that_is_known_sets_the_scale() -> None:
    divergence = PlanDivergence(small())
    divergence.advance(math.nan)
    assert (float(divergence.scale), int(divergence.updates)) == (1.0, 1)
    divergence.advance(40.0)
    divergence.advance(math.nan)
    assert (float(divergence.scale), int(divergence.updates)) == (40.0, 3)


def test_a_nan_makes_no_step_of_a_planner() -> None:
    planner = make_planner()
    windows = make_windows()
    loss = planner.compute_planning_loss(
        windows, windows, torch.zeros(6), advantages=torch.tensor([1.0, math.nan, 1, 1, 1, 1])
    )
    before = [one.detach().clone() for one in planner.parameters()]
    with pytest.raises(FloatingPointError, match="the step was not taken"):
        planner.update(loss)
    assert all(map(torch.equal, before, planner.parameters()))
    assert int(planner.divergence.updates) == 0


def test_free_bits_are_free_in_every_dimension() -> None:
    divergence = PlanDivergence(small(free_bits=0.5))
    flat = torch.full((1, 8), 0.01)
    moved = torch.full((1, 8), 0.01)
    moved[0, 0] = 0.02
    cost, plain = divergence(
        PlanPosterior(moved, flat),
        PlanPosterior(torch.zeros(1, 8), flat),
        torch.ones(1, dtype=torch.bool),
    )
    # 0.5 nats in seven dimensions, and 2 in one.
    assert float(plain) == pytest.approx((7 * 0.5 + 2.0) / 8, rel=1e-5)
    assert float(cost) == pytest.approx(1.5 / 8, rel=1e-5)


def test_the_weight_grows_from_nothing() -> None:
    divergence = PlanDivergence(small(kl_weight=0.4, kl_warmup_updates=4))
    weights = []
    for _ in range(6):
        weights.append(divergence.weight)
        divergence.advance(1.0)
    assert weights == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.4])
    assert PlanDivergence(small(kl_weight=0.4, kl_warmup_updates=0)).weight == 0.4


def test_the_default_cost_of_a_new_planner_does_not_outweigh_its_policy() -> None:
    planner = make_planner(kl_warmup_updates=0)
    window = make_windows(64)
    loss = planner.compute_planning_loss(
        window, window.roll(1, 0), torch.zeros(64), advantages=torch.randn(64)
    )
    planner.divergence.advance(loss["kl_divergence"])
    loss = planner.compute_planning_loss(
        window, window.roll(1, 0), torch.zeros(64), advantages=torch.randn(64)
    )
    assert planner.divergence.weight * float(loss["kl_loss"].detach()) <= 0.1


# The policy.


def test_alpha_is_the_share_of_the_state() -> None:
    state, plan = torch.randn(2, 5, 4)
    for alpha, one, other in ((1.0, state, plan), (0.0, plan, state)):
        adapter = SoftPrefixAdapter(4, 4, 8, alpha)
        args = (one, other) if alpha else (other, one)
        base = adapter(*args)
        ignored = list(args)
        ignored[1 if alpha else 0] = torch.randn(5, 4)
        assert torch.equal(adapter(*ignored), base)
    adapter = SoftPrefixAdapter(4, 4, 8, 0.25)
    mixed = 0.25 * adapter.state(state) + 0.75 * adapter.plan(plan)
    torch.testing.assert_close(adapter(state, plan), adapter.norm(mixed))


def test_actions_are_drawn_as_often_as_they_are_likely() -> None:
    torch.manual_seed(0)
    policy = PolicyNetwork(4, 3, 8, 16, device="cpu")
    state, plan = torch.randn(4), torch.randn(8)
    probs = policy.get_action_probs(state, plan)
    actions, log_probs = policy.sample_action(
        state.expand(20_000, -1),
        plan.expand(20_000, -1),
        generator=torch.Generator().manual_seed(1),
    )
    shares = torch.bincount(actions, minlength=3) / 20_000
    torch.testing.assert_close(shares, probs.detach(), atol=0.012, rtol=0.0)
    torch.testing.assert_close(log_probs.exp(), probs.detach()[actions])
    assert int(policy.sample_action(state, plan, greedy=True)[0]) == int(probs.argmax())


def test_states_and_plans_of_another_size_are_refused() -> None:
    policy = PolicyNetwork(4, 3, 8, 16, device="cpu")
    with pytest.raises(ArgumentError, match="states of 4 and plans of 8"):
        policy(torch.zeros(2, 4), torch.zeros(2, 7))


# The planner.


def test_the_policy_that_acts_moves_the_encoder() -> None:
    planner = make_planner()
    window = make_windows()
    planned = planner.act(window)
    loss = planner.compute_planning_loss(
        window,
        window,
        planned.action,
        advantages=torch.randn(6),
        log_probs=planned.log_prob,
        noise=planned.prior.noise,
    )
    loss["policy_loss"].backward()
    for name, parameter in planner.encoder.named_parameters():
        assert parameter.grad is not None, name
        if "queries_keys_values.bias" not in name:
            assert float(parameter.grad.abs().max()) > 0, name


@pytest.mark.parametrize("moved", ["encoder", "policy"])
def test_the_ratio_is_one_before_an_update_and_not_after(moved: str) -> None:
    planner = make_planner()
    windows = planner.windows(6)
    windows.push(torch.randn(6, 4), torch.ones(6, dtype=torch.bool))
    window, mask = windows.push(torch.randn(6, 4), torch.zeros(6, dtype=torch.bool))
    planned = planner.act(window, mask)

    def loss() -> dict[str, Any]:
        return planner.compute_planning_loss(
            window,
            window,
            planned.action,
            advantages=torch.linspace(-1, 1, 6),
            log_probs=planned.log_prob,
            noise=planned.prior.noise,
            current_mask=mask,
            previous_mask=mask,
        )

    assert torch.equal(loss()["ratio"], torch.ones(6))
    frozen = planner.policy if moved == "encoder" else planner.encoder
    frozen.requires_grad_(False)
    planner.update(loss())
    assert float((loss()["ratio"] - 1).abs().min()) > 1e-6


def test_gradients_of_a_ratio_outside_the_clip_vanish() -> None:
    planner = make_planner()
    window = make_windows()
    planned = planner.act(window)
    loss = planner.compute_planning_loss(
        window,
        window,
        planned.action,
        advantages=torch.ones(6),
        # The actions are twice as likely now as they were said to be.
        log_probs=planned.log_prob - math.log(2.0),
        noise=planned.prior.noise,
    )
    assert float(loss["policy_loss"].detach()) == pytest.approx(-1.2, rel=1e-6)
    loss["policy_loss"].backward()
    assert all(
        parameter.grad is None or not parameter.grad.any() for parameter in planner.parameters()
    )


def test_plans_are_scored_before_they_move_the_mean() -> None:
    planner = make_planner(ema_decay=0.5)
    assert not planner.get_ema_plan().any()
    first = planner.encode_trajectory(make_windows(1)[0])
    assert first.surprise_score == pytest.approx(float(first.latent_plan.square().sum()), rel=1e-5)
    torch.testing.assert_close(planner.get_ema_plan(), first.latent_plan)
    second = planner.encode_trajectory(make_windows(1, seed=2)[0], previous=first)
    gap = float((second.latent_plan - first.latent_plan).square().sum())
    assert second.surprise_score == pytest.approx(gap, rel=1e-4)
    mean = (first.latent_plan + second.latent_plan) / 2
    torch.testing.assert_close(planner.get_ema_plan(), mean)
    assert (first.timestamp, second.timestamp) == (0, 1)
    assert second.kl_divergence > 0


def test_surprise_is_distance_and_reward() -> None:
    planner = make_planner()
    prior = planner.encode_trajectory(make_windows(1)[0])
    prior.latent_plan = planner.get_ema_plan()
    prior.latent_plan[:3] += torch.tensor([1.0, 2.0, 3.0])
    assert planner.get_trajectory_surprise(prior, -0.5) == pytest.approx(14.5)
    assert planner.get_trajectory_surprise(prior, 0.5) == pytest.approx(14.5)


def test_surprise_is_that_of_replay_with_the_same_mean() -> None:
    planner = make_planner()
    prior = planner.encode_trajectory(make_windows(3))
    planner.encode_trajectory(make_windows(5, seed=2))
    config = ReplayConfig(ema_decay=planner.config.ema_decay, score_scale="sum")
    shared = SurpriseCalculator(config, 8, tracker=planner.tracker)
    rewards = [0.0, 1.0, -2.0]
    theirs = shared.compute_surprise_score(prior.latent_plan, rewards)
    assert planner.get_trajectory_surprise(prior, rewards).tolist() == theirs.tolist()


def test_a_mean_plan_can_be_shared() -> None:
    shared = EMAPlanTracker(8, 0.5)
    torch.manual_seed(0)
    planner = LatentPlanningOptimizer(4, 3, small(), "cpu", tracker=shared)
    prior = planner.encode_trajectory(make_windows(2))
    plans = prior.latent_plan.double().numpy()
    assert shared.get_ema() == pytest.approx(plans.mean(axis=0))
    shared.update(np.arange(8.0) * 2 - plans.mean(axis=0))
    assert planner.get_ema_plan().tolist() == pytest.approx(list(range(8)), abs=1e-6)


def test_a_greedy_planner_repeats_itself_and_a_seeded_one_too() -> None:
    window = make_windows()
    planner, same = make_planner(), make_planner()
    assert torch.equal(planner.act(window).prior.latent_plan, same.act(window).prior.latent_plan)
    drawn = planner.act(window).prior.latent_plan
    assert not torch.equal(drawn, planner.act(window).prior.latent_plan)
    greedy = planner.act(window, greedy=True)
    assert torch.equal(greedy.action, planner.act(window, greedy=True).action)
    assert torch.equal(greedy.prior.latent_plan, planner.encoder(window))


def test_rewards_become_discounted_returns_where_there_are_no_advantages() -> None:
    planner = make_planner(discount_gamma=0.5)
    window = make_windows(3)
    loss = planner.compute_planning_loss(window, window, torch.zeros(3), [1.0, 2.0, 4.0])
    returns = np.array([1.0 + 1.0 + 1.0, 2.0 + 2.0, 4.0])
    assert float(loss["policy_loss"].detach()) == pytest.approx(
        -(returns - returns.mean()).mean(), abs=1e-6
    )
    given = planner.compute_planning_loss(
        window, window, torch.zeros(3), advantages=returns - returns.mean()
    )
    for one in (loss, given):
        planner.policy.zero_grad()
        one["policy_loss"].backward()
        one["gradient"] = planner.policy.layers[2].weight.grad.clone()
    torch.testing.assert_close(loss["gradient"], given["gradient"])
    with pytest.raises(ArgumentError, match="needs advantages"):
        planner.compute_planning_loss(window, window, torch.zeros(3))


def test_gradients_are_cut_to_their_length() -> None:
    planner = make_planner(max_grad_norm=0.01)
    window = make_windows()
    loss = planner.compute_planning_loss(window, window, torch.zeros(6), advantages=torch.ones(6))
    assert planner.update(loss)["grad_norm"] > 0.01
    norms = [float(p.grad.norm()) for p in planner.parameters() if p.grad is not None]
    assert math.hypot(*norms) == pytest.approx(0.01, rel=1e-3)


def test_a_planner_resumes_bit_for_bit(tmp_path: Path) -> None:
    def work(planner: LatentPlanningOptimizer, steps: int) -> list[Any]:
        window = make_windows(16)
        done = []
        for _ in range(steps):
            planned = planner.act(window)
            loss = planner.compute_planning_loss(
                window,
                window.roll(1, 0),
                planned.action,
                advantages=torch.linspace(-1, 1, 16),
                log_probs=planned.log_prob,
                noise=planned.prior.noise,
            )
            done.append((planned.action.tolist(), planned.prior.latent_plan, planner.update(loss)))
        return done

    planner = make_planner()
    work(planner, 3)
    planner.save_checkpoint(tmp_path / "planner.ckpt")
    other = make_planner(seed=7)
    other.load_checkpoint(tmp_path / "planner.ckpt")
    assert torch.equal(planner.get_ema_plan(), other.get_ema_plan())
    for one, two in zip(work(planner, 3), work(other, 3), strict=True):
        assert one[0] == two[0]
        assert torch.equal(one[1], two[1])
        assert one[2] == two[2]
    assert planner.get_training_metrics() == other.get_training_metrics()


def test_a_planner_of_other_sizes_changes_nothing(tmp_path: Path) -> None:
    make_planner(1, state_window_size=5).save_checkpoint(tmp_path / "a.ckpt")
    planner = make_planner()
    before = repr(planner.state_dict())
    with pytest.raises(CheckpointError, match=r"encoder.positions: .*\[4, 8\]"):
        planner.load_checkpoint(tmp_path / "a.ckpt")
    assert repr(planner.state_dict()) == before


def test_a_file_of_a_learner_is_no_planner(tmp_path: Path) -> None:
    from echoic.agents import checkpoint

    checkpoint.save(tmp_path / "a.ckpt", {}, kind="PPO learner")
    with pytest.raises(CheckpointError, match="'PPO learner', not of a 'latent planner'"):
        make_planner().load_checkpoint(tmp_path / "a.ckpt")


# The names of the root, on a machine with CUDA or without.


def test_default_sizes_are_built_and_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from echoic.agents import PolicyNetwork
    from echoic.agents.plans import (
        LatentPlanningOptimizer,
        TrajectoryEncoder,
    )

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="the CPU is used instead"):  # noqa: PT031
        encoder = TrajectoryEncoder(state_dim=512, config=PlanningConfig())
        policy = PolicyNetwork(state_dim=512, action_dim=20, latent_dim=512)
        optimizer = LatentPlanningOptimizer(state_dim=512, action_dim=20, config=PlanningConfig())
    plan = encoder(torch.zeros(1, 9, 512))
    assert plan.shape == (1, 512)
    assert policy.get_action_probs(torch.zeros(1, 512), plan).shape == (1, 20)
    assert optimizer.act(torch.zeros(9, 512)).action.shape == ()
    assert encoder.get_lipschitz_bound() <= 1.0 + 1e-5


def test_settings_are_imported_from_the_root() -> None:
    from echoic.agents import PlanningConfig as Planning
    from echoic.agents import PPOConfig

    assert Planning().embedding_dim == 512
    assert PPOConfig().batch_size == 256
