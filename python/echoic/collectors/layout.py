"""Locate the parameters of a native policy in its flat weights."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from echoic.errors import SpecError

__all__ = ["parameter_shapes", "split_weights"]


def parameter_shapes(
    obs_dim: int, n_actions: int, hidden: int, *, continuous: bool = False
) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a policy's parameters, in the order of the flat weights.

    Actor and critic are separate networks, each with two hidden layers of ``hidden`` tanh
    units. The actor's outputs are logits, or with ``continuous`` the means of normal distributions
    whose standard deviations are the exponential of ``log_std``. A weight of shape ``(out, in)``
    follows another in C order, as in ``torch.nn.Linear``. Names and order are those of
    :class:`echoic.integrations.torch.ActorCritic`.

    >>> for name, shape in parameter_shapes(4, 2, 64).items():
    ...     print(name, shape)
    actor.0.weight (64, 4)
    actor.0.bias (64,)
    actor.2.weight (64, 64)
    actor.2.bias (64,)
    actor.4.weight (2, 64)
    actor.4.bias (2,)
    critic.0.weight (64, 4)
    critic.0.bias (64,)
    critic.2.weight (64, 64)
    critic.2.bias (64,)
    critic.4.weight (1, 64)
    critic.4.bias (1,)
    """
    shapes: dict[str, tuple[int, ...]] = {"log_std": (n_actions,)} if continuous else {}
    for network, outputs in (("actor", n_actions), ("critic", 1)):
        widths = [obs_dim, hidden, hidden, outputs]
        for layer in range(3):
            shapes[f"{network}.{2 * layer}.weight"] = (widths[layer + 1], widths[layer])
            shapes[f"{network}.{2 * layer}.bias"] = (widths[layer + 1],)
    return shapes


def split_weights(
    flat: npt.NDArray[Any], obs_dim: int, n_actions: int, hidden: int, *, continuous: bool = False
) -> dict[str, npt.NDArray[Any]]:
    """Split flat weights into a policy's parameters, as views.

    >>> parts = split_weights(np.arange(9155.0), 4, 2, 64)
    >>> parts["actor.0.bias"][:2]
    array([256., 257.])

    Raises:
        SpecError: If there are too few or too many weights, or they are not flat.
    """
    shapes = parameter_shapes(obs_dim, n_actions, hidden, continuous=continuous)
    expected = sum(map(math.prod, shapes.values()))
    if flat.shape != (expected,):
        raise SpecError(f"weights: expected an array of shape ({expected},), got {flat.shape}")
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1]
    parts = np.split(flat, ends)
    return {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
