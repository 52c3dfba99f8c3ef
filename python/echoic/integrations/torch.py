"""The native policies as a torch module, their weights as flat arrays, and batches for a GPU.

Importing this module imports torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from echoic import _trees
from echoic.errors import SpecError

__all__ = ["ActorCritic", "load_flat", "pinned_like", "to_flat"]


class ActorCritic(nn.Module):  # type: ignore[misc]
    """The policy of a :class:`~echoic.collectors.CandleCollector`, to be trained.

    ``parameters()`` come in the order of the collector's flat weights. A new module has torch's own
    first weights; ``load_flat(module, collector.get_weights())`` gives it the collector's.

    Args:
        obs_dim: How many numbers an observation has.
        n_actions: How many actions there are, or how many numbers one has.
        hidden: How wide the hidden layers are.
        continuous: Whether actions are normally distributed numbers, and not one of several.
    """

    def __init__(
        self, obs_dim: int, n_actions: int, hidden: int = 64, *, continuous: bool = False
    ) -> None:
        super().__init__()
        # A parameter of the module itself comes before those of its layers.
        self.log_std = nn.Parameter(torch.zeros(n_actions)) if continuous else None
        self.actor = _network(obs_dim, hidden, n_actions)
        self.critic = _network(obs_dim, hidden, 1)

    def forward(self, observations: Any) -> tuple[Any, Any]:
        """Return the actor's outputs (..., n_actions), logits or means, and the values (...)."""
        return self.actor(observations), self.critic(observations).squeeze(-1)

    def evaluate_actions(self, observations: Any, actions: Any) -> tuple[Any, Any, Any]:
        """Return the log-probabilities of actions, the entropies, and the values, each (...).

        Args:
            observations: (..., obs_dim).
            actions: (...) of integers, or (..., n_actions) of numbers.
        """
        outputs, values = self(observations)
        if self.log_std is None:
            log_probs = torch.log_softmax(outputs, -1)
            chosen = log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
            return chosen, -(log_probs.exp() * log_probs).sum(-1), values
        distribution = torch.distributions.Normal(outputs, self.log_std.exp().expand_as(outputs))
        log_densities = distribution.log_prob(actions).sum(-1)
        return log_densities, distribution.entropy().sum(-1), values


def _network(inputs: int, hidden: int, outputs: int) -> Any:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.Tanh(),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Linear(hidden, outputs),
    )


def to_flat(module: Any) -> npt.NDArray[np.float32]:
    """Return a copy of a module's parameters, one after the other, for ``sync_weights``."""
    with torch.no_grad():
        parts = [parameter.detach().reshape(-1).float().cpu() for parameter in module.parameters()]
        flat: npt.NDArray[np.float32] = torch.cat(parts).numpy()
    return flat


def load_flat(module: Any, flat: npt.ArrayLike) -> None:
    """Set a module's parameters to what ``get_weights`` gave.

    Raises:
        SpecError: There are too few or too many numbers. Nothing was changed.
    """
    given = np.asarray(flat)
    parameters = list(module.parameters())
    expected = sum(parameter.numel() for parameter in parameters)
    if given.shape != (expected,):
        raise SpecError(f"weights: expected an array of shape ({expected},), got {given.shape}")
    # A copy, because torch shares memory with arrays and warns of those that can't be written.
    tensor = torch.from_numpy(given.astype(np.float32))
    with torch.no_grad():
        start = 0
        for parameter in parameters:
            part = tensor[start : start + parameter.numel()]
            parameter.copy_(part.reshape(parameter.shape))
            start += parameter.numel()


def pinned_like(batch: Any) -> tuple[Any, Any]:
    """Make page-locked room for batches, from which a GPU takes them while the program goes on.

    Where there is no CUDA the memory is of the usual kind, so that a program runs there too.

    Args:
        batch: A batch as ``sample`` gives it; only its shapes and dtypes count.

    Returns:
        The same memory twice: as arrays, for ``sample(…, out=arrays)``, and as tensors, for
        ``tensor.to("cuda", non_blocking=True)``. Before the next ``sample`` writes to it, the GPU
        must have taken what is there: ``torch.cuda.current_stream().synchronize()``.

    Example::

        arrays, tensors = pinned_like(buffer.sample(256))
        while training:
            buffer.sample(256, out=arrays)
            batch = {name: tensor.to("cuda", non_blocking=True) for name, tensor in tensors.items()}
            learn(batch)
            torch.cuda.current_stream().synchronize()
    """
    pin = torch.cuda.is_available()

    def room(leaf: Any) -> Any:
        dtype = torch.from_numpy(np.empty(0, leaf.dtype)).dtype
        return torch.empty(leaf.shape, dtype=dtype, pin_memory=pin)

    tensors = _trees.tree_map(room, batch)
    return _trees.tree_map(lambda tensor: tensor.numpy(), tensors), tensors
