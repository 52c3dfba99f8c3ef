"""What actors collect is what was acted on, and what is learned of it is what is said."""

import copy
import dataclasses

import numpy as np
import pytest
import tmaze_environment
import torch
from echoic.agents.training.actors import ActingNetworks, ActorGroup
from echoic.agents.training.ppo import VectorLearner
from echoic.errors import CollectorError
from echoic.primitives import compute_vtrace
from learner_tensors import tensors


def acted(config, rounds=4):
    learner = VectorLearner(config, 0)
    encoder = None if learner.planner is None else learner.planner.encoder
    group = ActorGroup(config, ActingNetworks(config, encoder, learner.policy_network), 0)
    batches = [group.collect() for _ in range(rounds)]
    for batch in batches:
        batch.next_plans = learner.next_plans(batch)
    group.close()
    return learner, batches


@pytest.mark.parametrize("history", [None, 0, 2])
def test_windows_are_those_that_were_acted_on_and_those_before_and_after(run, history):
    # Rounds of three steps, episodes of four and windows of six: all of them overlap.
    config = run(env_name="test-tmaze", train_frequency=3, num_actors=4, plan_history=history)
    learner, rounds = acted(config, rounds=6)
    for batch in rounds:
        steps = learner._steps(batch)
        log_probs, _ = learner._look(steps)
        torch.testing.assert_close(log_probs, steps.log_probs, atol=1e-5, rtol=0)
    names = ("states", "next_states", "pairs", "windows", "masks")
    names += ("previous_windows", "previous_masks", "next_windows", "next_masks")
    whole = {name: torch.cat([getattr(batch, name) for batch in rounds]) for name in names}
    # Of what goes on, also from one round to the next, one step's future is the other's past.
    pairs = whole["pairs"][1:]
    assert pairs.any()
    assert not pairs.all()
    for name in ("states", "windows", "masks"):
        if name != "states":
            before = whole[f"previous_{name}"][1:]
            assert torch.equal(before[pairs], whole[name][:-1][pairs])
        assert torch.equal(whole[f"next_{name}"][:-1][pairs], whole[name][1:][pairs])


def test_an_environment_that_writes_states_in_place_is_copied_from(run, monkeypatch):
    shared = np.zeros(6, np.float32)
    made = tmaze_environment.TMaze._vector

    def vector(self, text):
        shared[:] = made(self, text)
        return shared

    config = run(env_name="test-tmaze", train_frequency=8, num_actors=1)
    _, (expected,) = acted(config, rounds=1)
    monkeypatch.setattr(tmaze_environment.TMaze, "_vector", vector)
    _, (found,) = acted(config, rounds=1)
    assert found.dones.any()
    assert torch.equal(found.states, expected.states)
    assert torch.equal(found.next_states, expected.next_states)


def test_what_is_no_number_is_no_step(run, monkeypatch):
    made, seen = tmaze_environment.TMaze._vector, []

    def vector(self, text):
        seen.append(text)
        # The third step, and the fourth episode's first observation.
        firsts = sum("shown" in one for one in seen)
        worth = np.nan if len(seen) == 4 or (firsts == 4 and "shown" in text) else 0.0
        return made(self, text) + np.float32(worth)

    monkeypatch.setattr(tmaze_environment.TMaze, "_vector", vector)
    _, (batch,) = acted(run(env_name="test-tmaze", train_frequency=6, num_actors=1), rounds=1)
    assert batch.valid[:, 0].tolist() == [True, True, False, True, True, True]
    assert batch.states.isfinite().all()
    assert batch.next_states.isfinite().all()
    with pytest.raises(CollectorError, match="not finite"):
        acted(run(env_name="test-tmaze", train_frequency=16, num_actors=1), rounds=1)


def test_plans_that_are_not_learned_from_do_not_move_the_scale_of_their_changes(run):
    config = run(env_name="test-tmaze")
    learner, (_, batch) = acted(config, rounds=2)
    learner.learn(batch)
    before = learner.planner.divergence.scale.clone()
    rows, dim = 4, config.state_dim + config.plan_dim
    learner.learn_replayed(
        {
            **{name: np.zeros((rows, dim), np.float32) for name in ("state", "next_state")},
            **{name: np.ones(rows, np.float32) for name in ("reward", "weight")},
            "log_prob": np.full(rows, -0.7, np.float32),
            "action": np.ones((rows, 3), np.int16),
            "done": np.ones(rows, bool),
        }
    )
    assert learner.planner.divergence.updates > 1
    assert torch.equal(learner.planner.divergence.scale, before)


def test_one_step_of_impala_is_along_the_gradient_of_vtrace(run):
    config = run(algorithm="impala", use_plans=False, replay="none")
    learner, (_, batch) = acted(config, rounds=2)
    # Older actors: the weights have moved since.
    with torch.no_grad():
        for one in learner.policy_network.parameters():
            one.add_(0.05 * torch.sin(torch.arange(one.numel()).float()).view_as(one))
    policy, value = copy.deepcopy((learner.policy_network, learner.value_network))
    plans = torch.zeros_like(batch.latent_plans)
    logits = policy(batch.states, plans).masked_fill(~batch.action_masks, -1e9).log_softmax(-1)
    chosen = logits.gather(-1, batch.actions[..., None])[..., 0]
    values, following = value(batch.states, plans), value(batch.next_states, plans).detach()
    assert float((chosen - batch.log_probs).detach().abs().max()) > 1e-2
    settings = learner.config
    targets, advantages = compute_vtrace(
        (chosen - batch.log_probs).detach(),
        batch.rewards,
        values.detach(),
        batch.dones,
        following[-1],
        settings.gamma,
        1.0,
        1.0,
        truncated=batch.truncated,
        final_values=following,
        time_axis=0,
    )
    value_loss = 0.5 * (values - targets).square().mean()
    entropy = -(logits.exp() * logits).sum(-1).mean()
    loss = -(chosen * advantages).mean() + settings.value_loss_coef * value_loss
    (loss - settings.entropy_coef * entropy).backward()
    parameters = [*policy.parameters(), *value.parameters()]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm))
    torch.optim.Adam(parameters, lr=settings.learning_rate).step()
    found = learner.learn(batch)
    assert found["value_loss"] == pytest.approx(float(value_loss.detach()), rel=1e-4)
    assert found["grad_norm"] == pytest.approx(norm, rel=1e-4)
    ours = [*learner.policy_network.parameters(), *learner.value_network.parameters()]
    for one, other in zip(ours, parameters, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)


def test_a_step_that_broke_is_learned_from_by_nobody(run):
    config = run(use_plans=False, replay="none")
    learner, (batch,) = acted(config, rounds=1)
    before = {name: one.clone() for name, one in tensors(learner).items()}
    batch.valid[:] = False
    batch.truncated[:] = True
    batch.rewards[:] = 1e6
    learner.config = dataclasses.replace(learner.config, entropy_coef=0.0, kl_coef=0.0)
    learner.learn(batch)
    for name, one in tensors(learner).items():
        assert torch.equal(one, before[name]), name


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_nothing_is_traced_back_from_a_step_that_broke(run, algorithm):
    config = run(use_plans=False, replay="none", algorithm=algorithm)
    config.ppo_config = dataclasses.replace(
        config.ppo_config, gamma=0.5, normalize_advantages=False
    )
    learner, (batch,) = acted(config, rounds=1)
    batch.dones[:] = False
    batch.truncated[:] = False
    batch.valid[3] = False
    batch.truncated[3] = True
    batch.next_states[3] = batch.states[3]
    seen = []
    learner.update = lambda steps, **_: seen.append(steps)
    for reward in (0.0, 1e6):
        batch.rewards[3] = reward
        learner.learn(batch)
    one, other = (steps.advantages.view(config.train_frequency, -1) for steps in seen)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one[3], torch.zeros_like(one[3]), atol=1e-6, rtol=0)
    assert one[:3].abs().min() > 0


def test_replayed_steps_are_corrected_for_who_acted(run):
    config = run(use_plans=False)
    learner = VectorLearner(config, 0)
    states = np.eye(6, dtype=np.float32)
    plan = np.zeros((6, 1), np.float32)
    action = np.array([[i % 2, 1, 1] for i in range(6)], np.int16)
    with torch.no_grad():
        now = learner.policy_network(torch.from_numpy(states), torch.from_numpy(plan))
    now = now.log_softmax(-1).gather(-1, torch.from_numpy(action[:, :1]).long()).squeeze(-1).numpy()
    seen = {}
    update = learner.update
    learner.update = lambda steps, **kw: seen.update(steps=steps) or update(steps, **kw)
    rows = {
        "state": np.concatenate([states, plan], 1),
        "next_state": np.concatenate([np.roll(states, 1, 0), plan], 1),
        "action": action,
        "reward": np.arange(6, dtype=np.float32),
        "done": np.array([False] * 5 + [True]),
        # Who acted was twice as sure, or half as sure.
        "log_prob": now + np.log([2, 2, 2, 0.5, 0.5, 0.5]),
        "weight": np.full(6, 0.5, np.float32),
    }
    values = learner.get_value_estimate(states, plan)
    following = learner.get_value_estimate(np.roll(states, 1, 0), plan)
    told = learner.learn_replayed(rows)
    steps = seen["steps"]
    expected = 0.5 * np.array([0.5, 0.5, 0.5, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(steps.importance_weights, expected, rtol=1e-5)
    going_on = torch.tensor([1.0] * 5 + [0.0])
    error = torch.arange(6.0) + learner.config.gamma * going_on * following - values
    torch.testing.assert_close(steps.advantages, error)
    torch.testing.assert_close(steps.returns, values + error)
    assert told["minibatches"] == 1


def test_commands_that_are_not_there_are_not_chosen(run):
    # Four actions, of which two are listed.
    config = run(action_dim=4)
    learner, rounds = acted(config)
    assert all((batch.actions < 2).all() for batch in rounds)
    assert learner.policy_network.action_dim == 4
