"""Windows of the latest states of an episode, of which plans are made.

A window has `k + 1` places, and the current state is always in the last one. Places before the
start of the episode are masked, so that an encoder can distinguish them from a state of zeros.

Invariant: a window never holds states of two episodes. The step at which an episode starts has a
window of one state.
"""

from __future__ import annotations

from typing import Any

import torch

from echoic.agents.devices import resolve
from echoic.errors import ArgumentError

__all__ = ["PlanWindows", "windows_of"]


class PlanWindows:
    """The windows of several environments that act side by side.

    Args:
        num_envs: Number of environments.
        state_dim: Numbers of a state.
        window_size: States before the current one that are kept (k).
        history: Number of these that are shown; by default all. With 0 the encoder sees the current
            state alone, through the same parameters: a fair baseline without memory.
        device: Device of the windows.

    >>> windows = PlanWindows(1, 1, window_size=2, device="cpu")
    >>> _ = windows.push(torch.tensor([[5.0]]), starts=torch.tensor([True]))
    >>> window, mask = windows.push(torch.tensor([[6.0]]), starts=torch.tensor([False]))
    >>> window.squeeze().tolist(), mask.tolist()
    ([0.0, 5.0, 6.0], [[False, True, True]])
    >>> windows.push(torch.tensor([[7.0]]), starts=torch.tensor([True]))[1].tolist()
    [[False, False, True]]
    """

    def __init__(
        self,
        num_envs: int,
        state_dim: int,
        window_size: int,
        *,
        history: int | None = None,
        device: Any = "cuda",
    ) -> None:
        if num_envs < 1 or state_dim < 1 or window_size < 0:
            raise ArgumentError(
                "num_envs and state_dim must be at least 1 and window_size at least 0, got "
                f"{num_envs}, {state_dim} and {window_size}"
            )
        if history is not None and not 0 <= history <= window_size:
            raise ArgumentError(f"history must be from 0 to {window_size}, got {history}")
        self.history = window_size if history is None else history
        place = resolve(device)
        self._states = torch.zeros(num_envs, window_size + 1, state_dim, device=place)
        self._mask = torch.zeros(num_envs, window_size + 1, dtype=torch.bool, device=place)

    def push(self, states: Any, starts: Any) -> tuple[Any, Any]:
        """Add the current states, and return the windows that end with them.

        Args:
            states: ``(num_envs, state_dim)``.
            starts: ``(num_envs,)``, whether an episode starts with this state.

        Returns:
            Windows ``(num_envs, k + 1, state_dim)``, and which of their places hold a state. Both
            are copies.
        """
        self._states, self._mask = self._with(states, starts)
        return _shown(self._states, self._mask, self.history)

    def peek(self, states: Any) -> tuple[Any, Any]:
        """Return the windows that would end with these states, in the same episodes.

        For the values of states that are not acted on: the last of an episode that is cut off, or
        of a rollout.
        """
        starts = torch.zeros(len(self._states), dtype=torch.bool)
        return _shown(*self._with(states, starts), self.history)

    def _with(self, states: Any, starts: Any) -> tuple[Any, Any]:
        place = self._states.device
        states = torch.as_tensor(states, dtype=self._states.dtype, device=place)
        starts = torch.as_tensor(starts, dtype=torch.bool, device=place)
        expected = (self._states.shape[0], self._states.shape[2])
        if states.shape != expected or starts.shape != expected[:1]:
            raise ArgumentError(
                f"expected states of shape {expected} and starts of shape {expected[:1]}, got "
                f"{tuple(states.shape)} and {tuple(starts.shape)}"
            )
        kept = self._mask[:, 1:] & ~starts[:, None]
        return (
            torch.cat([self._states[:, 1:], states[:, None]], dim=1),
            torch.cat([kept, torch.ones_like(starts)[:, None]], dim=1),
        )

    def reset(self) -> None:
        """Forget all episodes."""
        self._states = torch.zeros_like(self._states)
        self._mask = torch.zeros_like(self._mask)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for :meth:`load_state_dict`."""
        return {"states": self._states.clone(), "mask": self._mask.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the windows of :meth:`state_dict`."""
        if state["states"].shape != self._states.shape:
            raise ArgumentError(
                f"expected windows of shape {tuple(self._states.shape)}, got "
                f"{tuple(state['states'].shape)}"
            )
        self._states = state["states"].to(self._states.device).clone()
        self._mask = state["mask"].to(self._mask.device).clone()


def windows_of(
    states: Any, starts: Any, window_size: int, *, history: int | None = None
) -> tuple[Any, Any]:
    """Return the windows of all steps of recorded sequences, as :class:`PlanWindows` makes them.

    Args:
        states: ``(T, N, state_dim)``.
        starts: ``(T, N)``, whether an episode starts with this state. The first states start one.
        window_size: States before the current one that are kept (k).
        history: Number of these that are shown; by default all.

    Returns:
        Windows ``(T, N, k + 1, state_dim)`` and masks ``(T, N, k + 1)``.
    """
    states = torch.as_tensor(states)
    starts = torch.as_tensor(starts, dtype=torch.bool, device=states.device)
    if states.ndim != 3 or starts.shape != states.shape[:2]:
        raise ArgumentError(
            "expected states of shape (T, N, state_dim) and starts of shape (T, N), got "
            f"{tuple(states.shape)} and {tuple(starts.shape)}"
        )
    steps = states.shape[0]
    # Steps of the episode before each step; those before the sequence are unknown.
    index = torch.arange(steps, device=states.device)[:, None].expand_as(starts)
    first = torch.where(starts, index, torch.zeros_like(index)).cummax(dim=0).values
    back = torch.arange(window_size, -1, -1, device=states.device)
    mask = back <= (index - first)[..., None]
    padded = torch.cat([states.new_zeros(window_size, *states.shape[1:]), states])
    windows = padded.unfold(0, window_size + 1, 1).movedim(-1, 2)
    return _shown(windows, mask, window_size if history is None else history)


def _shown(windows: Any, mask: Any, history: int) -> tuple[Any, Any]:
    """Zero masked places, so that no number of an earlier episode is left."""
    if history < mask.shape[-1] - 1:
        mask = mask.clone()
        mask[..., : mask.shape[-1] - 1 - history] = False
    return torch.where(mask[..., None], windows, torch.zeros_like(windows)), mask.clone()
