"""The torch module against the native policy."""

from __future__ import annotations

import numpy as np
import pytest
from echoic.collectors import CandleCollector, parameter_shapes
from echoic.errors import SpecError

torch = pytest.importorskip("torch")

from echoic.integrations.torch import ActorCritic, load_flat, to_flat

CASES = [("CartPole-v1", 4, 2), ("Pendulum-v1", 3, 1), ("Acrobot-v1", 6, 3)]


@pytest.mark.parametrize(("env_id", "obs_dim", "n_actions"), CASES)
def test_torch_and_native_policies_agree(env_id: str, obs_dim: int, n_actions: int) -> None:
    torch.manual_seed(0)
    with CandleCollector(env_id, 5, obs_dim, n_actions, 100, hidden=64, capacity=0) as collector:
        module = ActorCritic(obs_dim, n_actions, 64, continuous=collector.continuous)
        # Larger than usual, so that a weight in another place would be seen.
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        collector.sync_weights(to_flat(module))
        batch = collector.recv()
        observations = torch.from_numpy(batch["observations"])
        actions = torch.from_numpy(batch["actions"])
        with torch.no_grad():
            log_probs, _, values = module.evaluate_actions(observations, actions)
            outputs, _ = module(observations)
        np.testing.assert_allclose(batch["log_probs"], log_probs.numpy(), rtol=0, atol=1e-5)
        np.testing.assert_allclose(batch["values"], values.numpy(), rtol=0, atol=1e-5)
        got, got_values = collector.evaluate(batch["observations"].reshape(-1, obs_dim))
        flat = outputs.numpy().reshape(-1, n_actions)
        np.testing.assert_allclose(got, flat, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(got_values, batch["values"].ravel())


@pytest.mark.parametrize("continuous", [False, True])
def test_parameters_have_the_documented_names_and_order(continuous: bool) -> None:
    module = ActorCritic(4, 2, 8, continuous=continuous)
    names = {name: tuple(value.shape) for name, value in module.named_parameters()}
    expected = parameter_shapes(4, 2, 8, continuous=continuous)
    assert list(names.items()) == list(expected.items())


def test_weights_go_there_and_back() -> None:
    with CandleCollector("Pendulum-v1", 2, 3, 1, 8, hidden=8) as collector:
        weights = collector.get_weights()
    module = ActorCritic(3, 1, 8, continuous=True)
    load_flat(module, weights)
    np.testing.assert_array_equal(to_flat(module), weights)
    with pytest.raises(SpecError, match="expected an array"):
        load_flat(module, weights[1:])
    np.testing.assert_array_equal(to_flat(module), weights)


def test_entropies_are_those_of_the_distributions() -> None:
    module = ActorCritic(4, 2, 8)
    observations = torch.randn(6, 4)
    _, entropies, _ = module.evaluate_actions(observations, torch.zeros(6, dtype=torch.int64))
    expected = torch.distributions.Categorical(logits=module(observations)[0]).entropy()
    torch.testing.assert_close(entropies, expected)
