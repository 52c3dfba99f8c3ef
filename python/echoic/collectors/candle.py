"""Collect rollouts in a native thread, without Python; and the layout of its policy's weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _native
from echoic.errors import SpecError, WaitTimeoutError

if TYPE_CHECKING:
    from types import TracebackType

    import numpy.typing as npt
    from typing_extensions import Self

__all__ = ["CandleCollector", "parameter_shapes", "split_weights"]


class CandleCollector:
    """Collect rollouts of native environments under a native policy, ahead of the learner.

    A native thread steps the environments, evaluates the policy, samples actions and computes
    advantages; :meth:`recv` returns complete rollouts. When ``capacity`` rollouts are waiting, the
    thread waits too. The class has the name of rlox's collector, but does not use the Candle
    library, whose calls alone take longer than these networks.

    The policy is an actor and a critic of two hidden layers of tanh units each;
    :func:`~echoic.collectors.parameter_shapes` returns the layout of their weights, and
    :class:`echoic.integrations.torch.ActorCritic` is the same in torch. Discrete actions are drawn
    from the softmax of the actor's outputs. Continuous ones (Pendulum-v1, whose ``n_actions`` is 1)
    are normally distributed around them, with standard deviations ``exp(log_std)``; the environment
    clips what is beyond its bounds, while the batch has the unclipped values.

    Initial weights are orthogonal with biases of 0, hidden layers times √2, the actor's outputs
    times 0.01, and ``log_std`` 0. They and all other random choices depend on the seed: without new
    weights the same seed gives the same rollouts, and environment ``i`` starts as environment ``i``
    of ``VectorEnv(...).reset(seed=seed)``. (Sines and cosines are the system's, so the last digits
    may differ on another system.)

    After a fork, the thread stays in the parent: in the child every method raises
    :class:`ClosedError`.

    Args:
        env_id: ``"CartPole-v1"``, ``"Pendulum-v1"``, ``"MountainCar-v0"`` or ``"Acrobot-v1"``.
        n_envs: Number of environments that are stepped together.
        obs_dim: Number of elements of an observation; checked against the environment.
        n_actions: Number of discrete actions, or of elements of a continuous one; checked too.
        n_steps: Number of steps of each environment in a rollout.
        hidden: Width of the hidden layers. Default: 64.
        seed: Seed of all random choices. Default: 42, as in rlox.
        gamma: The discount of rewards. Default: 0.99.
        lam: The λ of generalised advantage estimation. Default: 0.95.
        capacity: Number of rollouts that may wait. 0 begins a rollout when :meth:`recv` waits for
            one, so that it always has the latest weights. Default: 2.

    Raises:
        SpecError: If there is no such environment, its dimensions differ, or a number is out of
            range.

    Examples:
        >>> from echoic.collectors import CandleCollector
        >>> with CandleCollector(
        ...     env_id="CartPole-v1", n_envs=16, obs_dim=4, n_actions=2, n_steps=128, hidden=64,
        ...     seed=42,
        ... ) as collector:
        ...     batch = collector.recv()
        ...     version = collector.sync_weights(collector.get_weights() * 0.5)
        ...     fresh = collector.recv(min_version=version)
        >>> batch["observations"].shape, batch["actions"].shape, batch["advantages"].dtype
        ((128, 16, 4), (128, 16), dtype('float32'))
        >>> batch["version"], fresh["version"]
        (0, 1)
    """

    def __init__(
        self,
        env_id: str,
        n_envs: int,
        obs_dim: int,
        n_actions: int,
        n_steps: int,
        hidden: int = 64,
        seed: int = 42,
        *,
        gamma: float = 0.99,
        lam: float = 0.95,
        capacity: int = 2,
    ) -> None:
        counts = {
            "n_envs": n_envs,
            "obs_dim": obs_dim,
            "n_actions": n_actions,
            "n_steps": n_steps,
            "hidden": hidden,
            "seed": seed,
            "capacity": capacity,
        }
        for name, count in counts.items():
            if not 0 <= count < 2**64:
                raise SpecError(f"{name} must be from 0 to 2**64 - 1, got {count}")
        self._native = _native.Collector(
            env_id, n_envs, obs_dim, n_actions, n_steps, hidden, gamma, lam, seed, capacity
        )
        self._text = f"{env_id!r}, n_envs={n_envs}, n_steps={n_steps}, hidden={hidden}"

    def recv(
        self, timeout: float | None = None, *, min_version: int = 0, flat: bool = False
    ) -> dict[str, Any]:
        """Return the next rollout; wait until it is complete.

        The keys, with T steps and N environments:

        - ``observations`` (T, N, obs_dim) float32: the observation before each step.
        - ``actions`` (T, N) int64, or (T, N, n_actions) float32 when they are continuous.
        - ``rewards`` (T, N) float32.
        - ``terminated`` and ``truncated`` (T, N) bool: the task ended, or its time ran out.
        - ``dones`` (T, N) float32: 1 for either.
        - ``log_probs`` (T, N) float32: of the actions, under the policy that drew them.
        - ``values`` (T, N) float32: the critic's, of the observations.
        - ``advantages`` and ``returns`` (T, N) float32: generalised advantage estimates, and their
          sum with the values. After a truncation, the value of the last observation replaces future
          rewards; after a termination they are zero.
        - ``last_values`` (N,) float32: of the observations after the last step.
        - ``episode_returns`` float32 and ``episode_lengths`` int64: of the episodes that ended.
        - ``n_steps``, ``n_envs`` and ``version``, the version of the weights at its start: ints.

        The next rollout continues where this one ended. Arrays stay valid for as long as they are
        referenced; their memory is used again when no array of a rollout is referenced.

        Args:
            timeout: Seconds to wait; ``None`` waits forever.
            min_version: Drop rollouts that were begun with weights older than this version, a
                result of :meth:`sync_weights`.
            flat: Whether to make steps and environments one axis, of T · N rows.

        Raises:
            WaitTimeoutError: If no rollout was complete in time; its ``reason`` is ``"EMPTY"``.
            ClosedError: If the collector is closed, or its weights gave actions that are not
                finite.
            SpecError: If ``min_version`` is above the version of the latest weights.
        """
        return self._native.recv(timeout, min_version, flat)

    def try_recv(self, *, flat: bool = False) -> dict[str, Any] | None:
        """Return a rollout if one is complete, else ``None``.

        Raises:
            ClosedError: If the collector is closed.
        """
        try:
            return self.recv(0, flat=flat)
        except WaitTimeoutError:
            return None

    def sync_weights(self, flat: npt.ArrayLike) -> int:
        """Set new weights, starting with the next rollout that the thread begins.

        Rollouts that are waiting or being made have older weights; pass the result to
        ``recv(min_version=...)`` to drop them.

        Args:
            flat: As many numbers as :meth:`get_weights` returns, in that order.

        Returns:
            The version of these weights: the number of times that weights were set.

        Raises:
            SpecError: If there are too few or too many, or one is not finite. The old ones are
                kept.
            ClosedError: If the collector is closed.
        """
        given = np.asarray(flat)
        if given.ndim != 1 or given.dtype.kind not in "fiu":
            got = f"{given.dtype} of shape {given.shape}"
            raise SpecError(f"weights: expected a flat array of real numbers, got {got}")
        with np.errstate(over="ignore"):
            # Numbers too large for float32 become infinite and are rejected.
            return self._native.sync_weights(given.astype(np.float32, copy=False))

    def get_weights(self) -> npt.NDArray[np.float32]:
        """Return a copy of the weights that were set last, or of the initial ones."""
        return self._native.get_weights()

    def evaluate(
        self, observations: npt.ArrayLike
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Evaluate the policy with the latest weights, on this thread.

        Args:
            observations: Rows of ``obs_dim`` numbers, or one row.

        Returns:
            The actor's outputs (rows, n_actions), which are logits or means, and the values
            (rows,); without the first axis for one observation.
        """
        given = np.asarray(observations, np.float32)
        if given.ndim not in {1, 2}:
            raise SpecError(f"observations: expected 1 or 2 axes, got shape {given.shape}")
        outputs, values = self._native.evaluate(np.atleast_2d(given))
        return (outputs[0], values[0]) if given.ndim == 1 else (outputs, values)

    @property
    def continuous(self) -> bool:
        """Whether actions are real numbers."""
        return self._native.continuous

    @property
    def closed(self) -> bool:
        """Whether the collector makes no more rollouts."""
        return self._native.stopped

    def close(self) -> None:
        """Stop the thread, after the current step of all environments.

        Waiting and later calls of :meth:`recv` raise :class:`ClosedError`. Waiting rollouts are
        dropped; arrays that were returned stay valid. Calling it again does nothing.
        """
        self._native.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CandleCollector({self._text})"


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
