"""CartPole by numpy: what a step must lead to, and many of them at once as a peer has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from benchmarks.payload import Array

_GRAVITY, _CART, _POLE, _HALF_LENGTH, _FORCE, _TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
_MOST_STEPS = 500


def advance(state: Array, action: Array) -> Array:
    """Return where states lead to, a row each, by the equations of Gymnasium's CartPole-v1."""
    x, speed, angle, turn = state.T
    force = np.where(action == 1, _FORCE, -_FORCE)
    sine, cosine = np.sin(angle), np.cos(angle)
    mass, moment = _CART + _POLE, _POLE * _HALF_LENGTH
    push = (force + moment * turn**2 * sine) / mass
    turning = (_GRAVITY * sine - cosine * push) / (
        _HALF_LENGTH * (4 / 3 - _POLE * cosine**2 / mass)
    )
    moving = push - moment * turning * cosine / mass
    return np.stack(
        [x + _TAU * speed, speed + _TAU * moving, angle + _TAU * turn, turn + _TAU * turning], 1
    )


def fell(state: Array) -> Array:
    """Say which states are the end of an episode."""
    fallen: Array = (np.abs(state[:, 0]) > 2.4) | (np.abs(state[:, 2]) > 12 * 2 * np.pi / 360)
    return fallen


class CartPoles:
    """Many at once; an episode that ends begins anew in the same step."""

    def __init__(self, count: int, seed: int) -> None:
        """Make them; `reset` begins."""
        self._rng = np.random.default_rng(seed)
        self._state = np.zeros((count, 4))
        self._ages = np.zeros(count, np.int64)

    def reset(self) -> Array:
        """Begin all episodes; return the observations."""
        self._state = self._rng.uniform(-0.05, 0.05, self._state.shape)
        self._ages[:] = 0
        return self._state.astype(np.float32)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        """Return observations, rewards, terminated and truncated."""
        self._state = advance(self._state, actions)
        self._ages += 1
        terminated = fell(self._state)
        truncated = self._ages >= _MOST_STEPS
        over = terminated | truncated
        if over.any():
            self._state[over] = self._rng.uniform(-0.05, 0.05, (int(over.sum()), 4))
            self._ages[over] = 0
        return self._state.astype(np.float32), np.ones(len(over)), terminated, truncated
