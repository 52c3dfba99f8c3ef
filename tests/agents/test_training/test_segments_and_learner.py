"""What goes through the table is what was acted on, and what is learned of it is what is said."""

import copy
import dataclasses

import numpy as np
import pytest
import tmaze_environment
import torch
from echoic.agents.training.acting import published
from echoic.agents.training.actors import ActorGroup
from echoic.agents.training.learner import VectorLearner
from echoic.agents.training.segments import batch_of, example_of
from echoic.primitives import compute_vtrace
from learner_tensors import tensors


class Published:
    def __init__(self, learner, version=0):
        self.tree, self.version = published(learner), version


def acted(config, rounds=4):
    learner = VectorLearner(config, 0)
    group = ActorGroup(config, range(config.num_actors), 0)
    group.load(Published(learner))
    columns = [group.collect() for _ in range(rounds)]
    group.close()
    return learner, columns


@pytest.mark.parametrize("history", [None, 0, 2])
def test_windows_of_segments_are_those_that_were_acted_on(run, history):
    # Segments of three steps, episodes of four and windows of six: all of them overlap.
    config = run(env_name="test-tmaze", train_frequency=3, num_actors=4, plan_history=history)
    learner, rounds = acted(config, rounds=6)
    for columns in rounds:
        batch = batch_of(columns, config)
        steps = learner.steps_of(batch)
        with torch.no_grad():
            log_probs, _ = learner._look(steps)
        torch.testing.assert_close(log_probs, steps.log_probs, atol=1e-5, rtol=0)
        # What a step led to is the next state of its episode, unless there is none.
        going_on = batch.pairs[1:]
        assert torch.equal(batch.next_states[:-1][going_on], batch.states[1:][going_on])


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
    assert found["dones"].any()
    for name in ("states", "next_states"):
        np.testing.assert_array_equal(found[name], expected[name])


def test_an_episode_that_starts_with_no_numbers_is_another_episode(run, monkeypatch):
    made = tmaze_environment.TMaze._vector
    seen = []

    def vector(self, text):
        seen.append(text)
        # The third episode's first observation.
        worth = np.nan if sum("shown" in one for one in seen) == 3 and "shown" in text else 0.0
        return made(self, text) + np.float32(worth)

    monkeypatch.setattr(tmaze_environment.TMaze, "_vector", vector)
    _, (columns,) = acted(run(env_name="test-tmaze", train_frequency=16, num_actors=1), rounds=1)
    assert all(np.isfinite(columns[name]).all() for name in ("states", "next_states"))


def test_plans_that_are_not_learned_from_do_not_move_the_scale_of_their_changes(run):
    config = run(env_name="test-tmaze", num_learners=1)
    learner, (_, columns) = acted(config, rounds=2)
    learner.learn(batch_of(columns, config), current=True)
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


def test_a_segment_is_like_the_spec_of_its_table(run):
    config = run()
    _, (columns, *_) = acted(config, rounds=1)
    for name, zeros in example_of(config).items():
        found = np.asarray(columns[name])
        assert found.shape == (config.num_actors, *np.shape(zeros)), name
        assert found.dtype == np.asarray(zeros).dtype, name


def test_one_step_of_impala_is_along_the_gradient_of_vtrace(run):
    config = run(algorithm="impala", use_plans=False, replay="none", num_learners=2)
    learner, (_, columns) = acted(config, rounds=2)
    batch = batch_of(columns, config)
    # Older actors: the weights have moved since.
    with torch.no_grad():
        for one in learner.policy_network.parameters():
            one.add_(0.05 * torch.sin(torch.arange(one.numel()).float()).view_as(one))
    policy, value = copy.deepcopy((learner.policy_network, learner.value_network))
    plans = torch.zeros_like(batch.latent_plans)
    logits = policy(batch.states, plans).masked_fill(~batch.action_masks, -1e9).log_softmax(-1)
    chosen = logits.gather(-1, batch.actions[..., None])[..., 0]
    values, following = value(batch.states, plans), value(batch.next_states, plans).detach()
    assert abs(float((chosen - batch.log_probs).detach().exp().mean()) - 1.0) > 1e-3
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
    found = learner.learn(batch, current=False)
    assert found["value_loss"] == pytest.approx(float(value_loss.detach()), rel=1e-4)
    assert found["grad_norm"] == pytest.approx(norm, rel=1e-4)
    ours = [*learner.policy_network.parameters(), *learner.value_network.parameters()]
    for one, other in zip(ours, parameters, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)


def test_a_step_that_broke_is_learned_from_by_nobody(run):
    config = run(use_plans=False, replay="none", num_learners=1)
    learner, (columns,) = acted(config, rounds=1)
    columns["valid"][:, 3] = False
    columns["truncated"][:, 3] = True
    columns["rewards"][:, 3] = 1e6
    before = {name: one.clone() for name, one in tensors(learner).items()}
    columns["valid"][:] = False
    columns["truncated"][:] = True
    learner.config = dataclasses.replace(learner.config, entropy_coef=0.0, kl_coef=0.0)
    learner.learn(batch_of(columns, config), current=True)
    for name, one in tensors(learner).items():
        assert torch.equal(one, before[name]), name


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_nothing_is_traced_back_from_a_step_that_broke(run, algorithm):
    config = run(use_plans=False, replay="none", num_learners=1, algorithm=algorithm)
    config.ppo_config = dataclasses.replace(
        config.ppo_config, gamma=0.5, normalize_advantages=False
    )
    learner, (columns,) = acted(config, rounds=1)
    columns["dones"][:] = False
    columns["truncated"][:] = False
    columns["valid"][:, 3] = False
    columns["truncated"][:, 3] = True
    columns["next_states"][:, 3] = columns["states"][:, config.context + 3]
    seen = []
    learner.update = lambda steps, **_: seen.append(steps)
    for reward in (0.0, 1e6):
        columns["rewards"][:, 3] = reward
        learner.learn(batch_of(columns, config), current=True)
    one, other = (steps.advantages.view(config.train_frequency, -1) for steps in seen)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one[3], torch.zeros_like(one[3]), atol=1e-6, rtol=0)
    assert one[:3].abs().min() > 0


def test_replayed_steps_are_corrected_for_who_acted(run):
    config = run(use_plans=False, num_learners=1)
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
    _, rounds = acted(config)
    assert all((columns["actions"] < 2).all() for columns in rounds)
    _, rounds = acted(dataclasses.replace(config, mask_commands=False))
    assert any((columns["actions"] >= 2).any() for columns in rounds)
