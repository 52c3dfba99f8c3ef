"""PPO of vectors, and V-trace: advantages, losses by hand, what stops an update, and resuming."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from echoic.agents import checkpoint
from echoic.agents.plans import LatentPlanningOptimizer, PlanningConfig, windows_of
from echoic.agents.training import GAECalculator, PPOConfig, PPOLearner, PPOTrainingStep
from echoic.errors import ArgumentError, CheckpointError
from echoic.primitives import compute_vtrace

if TYPE_CHECKING:
    from pathlib import Path

STATE, ACTIONS, LATENT = 4, 3, 8
PLANS = PlanningConfig(
    embedding_dim=LATENT, num_layers=1, num_heads=2, hidden_dim=16, state_window_size=3
)


def make_learner(seed: int = 0, *, planner: bool = False, **changes: Any) -> PPOLearner:
    torch.manual_seed(seed)
    plans = LatentPlanningOptimizer(STATE, ACTIONS, PLANS, "cpu", seed=seed) if planner else None
    return PPOLearner(
        STATE,
        ACTIONS,
        LATENT,
        PPOConfig(**changes),
        "cpu",
        planner=plans,
        seed=seed,
        hidden_dim=16,
    )


def make_steps(learner: PPOLearner, count: int = 64, seed: int = 1) -> PPOTrainingStep:
    """Steps on which the learner acts, each in a window of its own."""
    rng = torch.Generator().manual_seed(seed)
    windows = torch.randn(count, 4, STATE, generator=rng)
    extra: dict[str, Any] = {}
    if learner.planner is None:
        plans = torch.randn(count, LATENT, generator=rng)
    else:
        prior = learner.planner.encode_trajectory(windows)
        plans = prior.latent_plan
        extra = {
            "windows": windows,
            "plan_noise": prior.noise,
            "previous_windows": windows.roll(1, 0),
            "pairs": torch.ones(count, dtype=torch.bool),
        }
    actions, log_probs = learner.get_action_and_log_prob(windows[:, -1], plans)
    values = learner.get_value_estimate(windows[:, -1], plans)
    advantages = torch.randn(count, generator=rng)
    return PPOTrainingStep(
        windows[:, -1],
        plans,
        actions,
        advantages,
        values,
        log_probs,
        advantages,
        values + advantages,
        **extra,
    )


# Settings.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0.0),
        ("clip_epsilon", -0.2),
        ("value_loss_coef", -1.0),
        ("kl_coef", float("nan")),
        ("gae_lambda", 1.1),
        ("gamma", -0.1),
        ("num_epochs", 0),
        ("batch_size", 2.5),
        ("target_kl", 0.0),
    ],
)
def test_a_setting_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=field):
        PPOConfig(**{field: value})


def test_rows_of_steps_must_be_as_many_as_states() -> None:
    steps = make_steps(make_learner())
    with pytest.raises(ArgumentError, match="actions has 3 rows, and states has 64"):
        replace(steps, actions=steps.actions[:3])


# Advantages.


def naive_gae(
    rewards: Any, values: Any, dones: Any, last: float, gamma: float, lam: float
) -> list[float]:
    following, advantage, found = last, 0.0, []
    for reward, value, done in zip(rewards[::-1], values[::-1], dones[::-1], strict=True):
        goes_on = 0.0 if done else 1.0
        error = reward + gamma * following * goes_on - value
        advantage = error + gamma * lam * goes_on * advantage
        found.append(advantage)
        following = value
    return found[::-1]


def test_advantages_are_those_of_the_recursion_and_stop_at_ends() -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 5, 30))
    dones = rng.random((5, 30)) < 0.15
    last = rng.normal(size=5)
    calculator = GAECalculator(PPOConfig(gamma=0.9, gae_lambda=0.8))
    advantages, returns = calculator.compute_advantages(rewards, values, dones, last)
    for row in range(5):
        expected = naive_gae(rewards[row], values[row], dones[row], last[row], 0.9, 0.8)
        assert advantages[row] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert returns == pytest.approx(advantages + values)


def test_one_episode_is_a_row_that_ends() -> None:
    rng = np.random.default_rng(1)
    rewards, values = rng.normal(size=(2, 12))
    calculator = GAECalculator(PPOConfig())
    dones = np.zeros((1, 12))
    dones[0, -1] = 1
    rows = calculator.compute_advantages(rewards[None], values[None], dones)
    single = calculator.compute_advantages_single_episode(rewards, values)
    assert rows[0][0] == pytest.approx(single[0])
    cut = calculator.compute_advantages_single_episode(rewards, values, next_value=3.0)
    assert cut[0] == pytest.approx(naive_gae(rewards, values, [False] * 12, 3.0, 0.99, 0.95))


def test_an_episode_that_was_cut_off_expects_what_its_last_state_is_worth() -> None:
    blank = torch.zeros(2, 1)
    made = PPOTrainingStep.from_rollout(
        GAECalculator(PPOConfig(gamma=0.5, gae_lambda=1.0)),
        states=torch.zeros(2, 1, STATE),
        latent_plans=torch.zeros(2, 1, LATENT),
        actions=blank.long(),
        rewards=torch.ones(2, 1),
        values=blank,
        log_probs=blank,
        dones=blank.bool(),
        starts=blank.bool(),
        next_values=[10.0],
        truncated=torch.tensor([[True], [False]]),
        final_values=torch.tensor([[4.0], [0.0]]),
    )
    assert made.advantages.tolist() == [3.0, 6.0]


def test_advantages_of_a_rollout_follow_its_environments() -> None:
    rng = np.random.default_rng(2)
    steps, envs = 7, 3
    rewards, values = rng.normal(size=(2, steps, envs))
    dones = rng.random((steps, envs)) < 0.2
    made = PPOTrainingStep.from_rollout(
        GAECalculator(PPOConfig()),
        states=np.zeros((steps, envs, STATE)),
        latent_plans=np.zeros((steps, envs, LATENT)),
        actions=np.zeros((steps, envs), int),
        rewards=rewards,
        values=values,
        log_probs=np.zeros((steps, envs)),
        dones=dones,
        starts=np.zeros((steps, envs), bool),
        next_values=np.ones(envs),
    )
    assert len(made) == steps * envs
    found = made.advantages.view(steps, envs)
    for env in range(envs):
        expected = naive_gae(rewards[:, env], values[:, env], dones[:, env], 1.0, 0.99, 0.95)
        assert found[:, env].tolist() == pytest.approx(expected)


def test_steps_of_a_rollout_are_paired_with_the_step_before_of_their_episode() -> None:
    steps, envs = 5, 2
    states = torch.arange(steps * envs, dtype=torch.float32).view(steps, envs, 1)
    starts = torch.zeros(steps, envs, dtype=torch.bool)
    starts[0, 0] = starts[3, 1] = True
    windows, masks = windows_of(states, starts, 2)
    blank = torch.zeros(steps, envs)
    made = PPOTrainingStep.from_rollout(
        GAECalculator(PPOConfig()),
        states=states,
        latent_plans=torch.zeros(steps, envs, LATENT),
        actions=blank.long(),
        rewards=blank,
        values=blank,
        log_probs=blank,
        dones=blank,
        starts=starts,
        next_values=torch.zeros(envs),
        windows=windows,
        masks=masks,
    )
    pairs = made.pairs.view(steps, envs)
    # The first row may go on from an earlier rollout, whose windows are not here.
    assert pairs.tolist() == [[False, False], [True, True], [True, True], [True, False], [True] * 2]
    current = made.windows[made.pairs][:, -1, 0]
    before = made.previous_windows[made.pairs][:, -1, 0]
    assert (current - before).tolist() == [2.0] * int(made.pairs.sum())


# Losses.


def test_the_first_ratio_of_an_update_is_one_and_the_last_is_not() -> None:
    for planner in (False, True):
        learner = make_learner(planner=planner, batch_size=16, target_kl=math.inf)
        metrics = learner.update(make_steps(learner))
        assert metrics["first_ratio_gap"] < 1e-6
        assert metrics["last_ratio_gap"] > 1e-3
        assert (metrics["minibatches"], metrics["epochs"]) == (16, 4)


def test_a_policy_that_acts_with_a_planner_is_the_planners_own() -> None:
    learner = make_learner(planner=True)
    assert learner.policy_network is learner.planner.policy
    steps = make_steps(learner).to("cpu")
    learner.compute_policy_loss(steps).backward()
    reached = [float(p.grad.abs().max()) for p in learner.planner.encoder.parameters()]
    assert sum(one > 0 for one in reached) >= len(reached) - 1


def test_an_update_moves_encoder_policy_and_values() -> None:
    learner = make_learner(planner=True)
    modules = learner.planner.encoder, learner.policy_network, learner.value_network
    before = [torch.nn.utils.parameters_to_vector(m.parameters()).clone() for m in modules]
    learner.update(make_steps(learner))
    for module, old in zip(modules, before, strict=True):
        assert not torch.equal(torch.nn.utils.parameters_to_vector(module.parameters()), old)
    assert int(learner.planner.divergence.updates) == 4


def test_an_update_pays_for_changes_of_plans() -> None:
    moved = []
    for weight in (0.0, 50.0):
        config = replace(PLANS, kl_weight=weight, kl_warmup_updates=0, learning_rate=1e-2)
        torch.manual_seed(0)
        planner = LatentPlanningOptimizer(STATE, ACTIONS, config, "cpu", seed=0)
        learner = PPOLearner(
            STATE, ACTIONS, LATENT, PPOConfig(target_kl=math.inf), "cpu", planner=planner, seed=0
        )
        steps = make_steps(learner)
        for _ in range(5):
            learner.update(steps)
        plans = planner.encoder(steps.windows).detach()
        moved.append(float((plans - plans.roll(1, 0)).square().mean()))
    assert moved[1] < moved[0] / 2


def test_without_windows_plans_are_inputs_and_the_encoder_does_not_learn() -> None:
    learner = make_learner(planner=True)
    modules = learner.planner.encoder, learner.policy_network
    before = [torch.nn.utils.parameters_to_vector(m.parameters()).clone() for m in modules]
    learner.update(replace(make_steps(learner), windows=None, previous_windows=None))
    after = [torch.nn.utils.parameters_to_vector(m.parameters()) for m in modules]
    assert [torch.equal(*pair) for pair in zip(before, after, strict=True)] == [True, False]


def test_importance_weights_multiply_outside_the_clip() -> None:
    learner = make_learner()
    steps = make_steps(learner).to("cpu")
    steps.advantages = torch.ones(64)
    steps.importance_weights = torch.full((64,), 3.0)
    loss = learner.compute_policy_loss(steps)
    # Inside the clip the weight would be a ratio of 3, cut to 1.2, and there would be no gradient.
    assert float(loss.detach()) == pytest.approx(-3.0, rel=1e-5)
    loss.backward()
    assert float(learner.policy_network.layers[2].weight.grad.abs().max()) > 0


def test_a_ratio_beyond_the_clip_gains_nothing() -> None:
    learner = make_learner()
    steps = make_steps(learner).to("cpu")
    steps.advantages = torch.ones(64)
    steps.log_probs = steps.log_probs - math.log(2.0)
    loss = learner.compute_policy_loss(steps)
    assert float(loss.detach()) == pytest.approx(-1.2, rel=1e-5)
    loss.backward()
    assert not learner.policy_network.layers[2].weight.grad.any()
    # What makes a bad action likelier is not cut.
    steps.advantages = -torch.ones(64)
    assert float(learner.compute_policy_loss(steps).detach()) == pytest.approx(2.0, rel=1e-5)


def test_the_larger_value_loss_is_taken_for_each_step() -> None:
    learner = make_learner()
    steps = make_steps(learner, 2).to("cpu")
    now = learner.get_value_estimate(steps.states, steps.latent_plans)
    # Both values have moved by 1, of which the clip allows 0.2. The first moved away from its
    # target: the plain error is larger. The second moved onto it: the clipped one is.
    steps.values = now - 1.0
    steps.returns = torch.stack([now[0] - 1.0, now[1]])
    expected = 0.5 * (1.0**2 + 0.8**2) / 2
    assert float(learner.compute_value_loss(steps).detach()) == pytest.approx(expected, rel=1e-5)
    plain = make_learner(value_clip=False)
    assert float(plain.compute_value_loss(steps).detach()) == pytest.approx(0.25, rel=1e-5)


def test_a_policy_that_moved_too_far_ends_all_epochs() -> None:
    learner = make_learner(target_kl=1e-9, batch_size=16)
    metrics = learner.update(make_steps(learner))
    # The first minibatch is of the policy itself. The second sees the step, and is not stepped on.
    assert (metrics["minibatches"], metrics["epochs"], metrics["stopped"]) == (1, 1, 1)
    assert metrics["approx_kl"] > 1e-9


def test_a_ratio_beyond_all_numbers_is_too_far() -> None:
    learner = make_learner()
    steps = make_steps(learner)
    steps.log_probs[3] -= 200.0
    metrics = learner.update(steps)
    assert (metrics["minibatches"], metrics["stopped"]) == (0, 1)
    assert metrics["approx_kl"] == math.inf


def test_the_scale_of_advantages_does_not_matter_when_they_are_normalized() -> None:
    found = []
    for scale in (1.0, 1000.0):
        learner = make_learner(value_loss_coef=0.0)
        steps = make_steps(learner)
        found.append(learner.update(replace(steps, advantages=scale * steps.advantages + 5.0)))
    assert found[0]["policy_loss"] == pytest.approx(found[1]["policy_loss"], abs=1e-5)
    learner = make_learner(value_loss_coef=0.0, normalize_advantages=False, num_epochs=1)
    steps = make_steps(learner)
    expected = -float((1000.0 * steps.advantages).mean())
    metrics = learner.update(replace(steps, advantages=1000.0 * steps.advantages))
    assert metrics["policy_loss"] == pytest.approx(expected, rel=1e-4)


def test_steps_given_to_an_update_are_left_as_they_are() -> None:
    learner = make_learner()
    steps = make_steps(learner)
    before = steps.advantages.clone()
    learner.update(steps)
    assert torch.equal(steps.advantages, before)


def test_a_reference_holds_the_policy() -> None:
    gaps = []
    for coefficient in (0.0, 20.0):
        learner = make_learner(
            kl_coef=coefficient, entropy_coef=0.0, learning_rate=3e-3, target_kl=math.inf
        )
        learner.set_reference()
        steps = make_steps(learner)
        before = learner.policy_network.get_action_probs(steps.states, steps.latent_plans).detach()
        for _ in range(5):
            metrics = learner.update(steps)
        after = learner.policy_network.get_action_probs(steps.states, steps.latent_plans).detach()
        gaps.append(float((after - before).abs().mean()))
        assert (metrics["reference_kl"] > 0) == (coefficient > 0)
    assert gaps[1] < gaps[0] / 3


def test_entropy_is_rewarded() -> None:
    entropies = []
    for coefficient in (0.0, 1.0):
        learner = make_learner(
            entropy_coef=coefficient, learning_rate=1e-2, target_kl=math.inf, kl_coef=0.0
        )
        steps = make_steps(learner)
        for _ in range(5):
            metrics = learner.update(steps)
        entropies.append(metrics["entropy"])
    assert entropies[1] > entropies[0] + 0.05


def test_gradients_are_cut_to_their_length() -> None:
    learner = make_learner(max_grad_norm=0.01)
    metrics = learner.update(make_steps(learner))
    assert metrics["grad_norm"] > 0.01
    norms = [float(p.grad.norm()) for p in learner.parameters()]
    assert math.hypot(*norms) == pytest.approx(0.01, rel=1e-3)


def test_the_encoder_has_the_learning_rate_of_its_settings() -> None:
    learner = make_learner(planner=True, learning_rate=7e-3)
    rates = [group["lr"] for group in learner.optimizer.param_groups]
    assert rates == [7e-3, PLANS.learning_rate]


def test_a_planner_of_other_sizes_is_refused() -> None:
    planner = LatentPlanningOptimizer(STATE, ACTIONS, PLANS, "cpu")
    with pytest.raises(ArgumentError, match="expected a planner with"):
        PPOLearner(STATE, ACTIONS + 1, LATENT, PPOConfig(), "cpu", planner=planner)


def test_an_update_of_nothing_is_refused() -> None:
    learner = make_learner()
    with pytest.raises(ArgumentError, match="at least one step"):
        learner.update(make_steps(learner)[:0])


@pytest.mark.parametrize("planner", [False, True])
def test_a_learner_resumes_bit_for_bit(tmp_path: Path, planner: bool) -> None:
    learner = make_learner(planner=planner, batch_size=16)
    learner.set_reference()
    learner.update(make_steps(learner))
    learner.save_checkpoint(tmp_path / "a.ckpt")
    other = make_learner(seed=9, planner=planner, batch_size=16)
    other.load_checkpoint(tmp_path / "a.ckpt")
    assert other.get_training_metrics() == learner.get_training_metrics()
    for seed in (2, 3):
        one, two = make_steps(learner, seed=seed), make_steps(other, seed=seed)
        assert torch.equal(one.latent_plans, two.latent_plans)
        assert torch.equal(one.actions, two.actions)
        assert learner.update(one) == other.update(two)
    for mine, yours in zip(learner.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, yours)


def test_a_learner_without_a_planner_does_not_load_one(tmp_path: Path) -> None:
    make_learner(planner=True).save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="only one of the checkpoint"):
        make_learner().load_checkpoint(tmp_path / "a.ckpt")


# V-trace.


def naive_vtrace(
    log_rhos: Any,
    rewards: Any,
    values: Any,
    dones: Any,
    last: float,
    gamma: float,
    rho_bar: float,
    c_bar: float,
    lam: float,
) -> tuple[Any, Any]:
    """The sums of the paper's equation 1, one after the other, with no recursion."""
    steps = len(rewards)
    rho = np.minimum(rho_bar, np.exp(log_rhos))
    c = lam * np.minimum(c_bar, np.exp(log_rhos))
    following = np.append(values[1:], last) * (1 - dones)
    error = rho * (rewards + gamma * following - values)
    targets = values.copy()
    for start in range(steps):
        product = 1.0
        for t in range(start, steps):
            targets[start] += product * error[t]
            product *= gamma * c[t] * (1 - dones[t])
    ahead = np.append(targets[1:], last) * (1 - dones)
    return targets, rho * (rewards + gamma * ahead - values)


def test_vtrace_equals_its_sums_to_a_millionth() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        steps = int(rng.integers(1, 20))
        log_rhos, rewards, values = rng.normal(size=(3, steps))
        dones = (rng.random(steps) < 0.2).astype(float)
        rest = float(rng.normal()), 0.97, rng.uniform(0.5, 2.0), rng.uniform(0.5, 2.0), rng.random()
        found = compute_vtrace(log_rhos, rewards, values, dones, *rest[:-1], lam=rest[-1])
        expected = naive_vtrace(log_rhos, rewards, values, dones, *rest)
        assert found[0] == pytest.approx(expected[0], rel=1e-6, abs=1e-6)
        assert found[1] == pytest.approx(expected[1], rel=1e-6, abs=1e-6)


# What is no number.


@pytest.mark.parametrize("planner", [False, True])
@pytest.mark.parametrize("field", ["advantages", "returns", "log_probs"])
def test_a_nan_makes_no_step_of_ppo(field: str, planner: bool) -> None:
    learner = make_learner(planner=planner)
    steps = make_steps(learner)
    getattr(steps, field)[3] = math.nan
    before = [one.detach().clone() for one in learner.parameters()]
    with pytest.raises(FloatingPointError, match="NaN" if field == "log_probs" else "gradient"):
        learner.update(steps)
    assert all(map(torch.equal, before, learner.parameters()))
    # And it goes on with steps that are numbers.
    assert math.isfinite(learner.update(make_steps(learner))["grad_norm"])


def test_metrics_have_the_same_names_when_the_first_minibatch_stops() -> None:
    learner = make_learner()
    steps = make_steps(learner)
    stale = replace(steps, log_probs=steps.log_probs - 3.0)
    stopped = learner.update(stale)
    assert (stopped["minibatches"], stopped["stopped"]) == (0, 1)
    # The losses are of the minibatch that was evaluated; there was no step, so no length.
    assert math.isfinite(stopped["policy_loss"])
    assert math.isnan(stopped["grad_norm"])
    assert stopped.keys() == learner.update(steps).keys()


def test_a_divergence_that_was_not_measured_is_not_zero() -> None:
    learner = make_learner(planner=True, num_epochs=1, batch_size=32)
    steps = make_steps(learner)
    alone = replace(steps, pairs=torch.zeros(64, dtype=torch.bool))
    assert math.isnan(learner.update(alone)["plan_divergence"])
    scale = learner.planner.divergence.scale
    assert float(scale) == 1.0
    found = learner.update(replace(make_steps(learner), pairs=torch.arange(64) == 5))
    # One of two minibatches has the only pair: the mean is over it alone, and so is the scale.
    assert found["minibatches"] == 2
    assert float(scale) == pytest.approx(found["plan_divergence"], rel=1e-5)


# What does not fit.


def _all_of(learner: Any) -> list[Any]:
    """Everything that learning changes, as texts and numbers that can be compared."""
    state = [learner.state_dict(), learner.get_training_metrics()]
    return [repr(one) for one in state]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: Any) -> tuple[Path, Any]:
    """A checkpoint of a learner, and another learner that no checkpoint may change."""
    donor, learner = make_learner(seed=1, planner=True), make_learner(planner=True)
    for one in (donor, learner):
        one.update(make_steps(one))
    path = tmp_path_factory.mktemp("checkpoint") / "a.ckpt"
    donor.save_checkpoint(path)
    return path, learner


@pytest.mark.parametrize("spoil", ["shape", "dtype", "missing", "optimizer", "tracker", "damaged"])
def test_a_checkpoint_that_does_not_fit_changes_nothing(
    trained: tuple[Path, Any], spoil: str, tmp_path: Path
) -> None:
    path, learner = trained
    state = checkpoint.load(path, kind="PPO learner")
    networks = state["networks"]
    # The last of what is copied is spoiled each time, after much that does fit.
    name = list(networks["value"])[-1]
    if spoil == "shape":
        networks["value"][name] = torch.zeros(2)
    elif spoil == "dtype":
        networks["value"][name] = networks["value"][name].double()
    elif spoil == "missing":
        del state["planner"]["policy.layers.2.bias"]
    elif spoil == "optimizer":
        last = state["optimizer"]["state"][max(state["optimizer"]["state"])]
        last["exp_avg"] = torch.zeros(1, 1, 1)
    elif spoil == "tracker":
        state["planner"]["tracker"] = {"decay": 0.99, "count": 1, "ema": np.zeros(LATENT + 1)}
    else:
        del state["optimizer"]["param_groups"][0]
    checkpoint.save(tmp_path / "a.ckpt", state, kind="PPO learner")
    before = _all_of(learner)
    with pytest.raises(CheckpointError):
        learner.load_checkpoint(tmp_path / "a.ckpt")
    assert _all_of(learner) == before
