"""F_φ: from the latest states of an episode to a plan with a bounded variance, and a plan's cost.

A window has `k + 1` places. The current state is always in the last one, and places before the
start of the episode are masked: a window never holds states of two episodes.

The encoder is a small transformer with layer norms before its blocks, its outputs averaged over the
places of the window that hold a state; two heads give the mean and the standard deviations of
`q_φ(τ_t | s_{t-k..t}) = N(μ_t, diag σ_t²)`. Training and evaluation do not differ, as by dropout:
PPO compares the probability of an action when it was taken with the current one, and both have to
be of one function.

Invariants:

1. `noise_std / std_range <= σ <= noise_std * std_range`, whatever the parameters are.
2. After `project()`, the head of the mean has a Lipschitz constant of at most `lipschitz_constant`
   by the exact spectral norms of its layers. No bound is claimed for the attention below it, which
   has none on unbounded inputs (Kim et al., "The Lipschitz Constant of Self-Attention", 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from echoic.agents import kernels
from echoic.agents.devices import resolve
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from echoic.agents.plans.config import PlanningConfig

__all__ = [
    "PlanDivergence",
    "PlanPosterior",
    "PlanWindows",
    "TrajectoryEncoder",
    "gaussian_kl",
    "windows_of",
]


class PlanWindows:
    """The windows of several environments that act side by side.

    Args:
        num_envs: Number of environments.
        state_dim: Numbers of a state.
        window_size: States before the current one that are kept (k).
        history: Number of these that are shown; by default all. 0 is a baseline without memory.
        device: Device of the windows.

    >>> windows = PlanWindows(1, 1, window_size=2, device="cpu")
    >>> _ = windows.push(torch.tensor([[5.0]]), starts=torch.tensor([True]))
    >>> window, mask = windows.push(torch.tensor([[6.0]]), starts=torch.tensor([False]))
    >>> window.squeeze().tolist(), mask.tolist()
    ([0.0, 5.0, 6.0], [[False, True, True]])
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
            Copies: windows ``(num_envs, k + 1, state_dim)``, and which places hold a state.
        """
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
        self._states = torch.cat([self._states[:, 1:], states[:, None]], dim=1)
        self._mask = torch.cat([kept, torch.ones_like(starts)[:, None]], dim=1)
        return shown(self._states, self._mask, self.history)

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
        window_size: As for :class:`PlanWindows`, as is ``history``.
        history: Number of states that are shown.

    Returns:
        Windows ``(T, N, k + 1, state_dim)`` and masks ``(T, N, k + 1)``.
    """
    states, starts = torch.as_tensor(states), torch.as_tensor(starts, dtype=torch.bool)
    if states.ndim != 3 or starts.shape != states.shape[:2] or len(states) == 0:
        raise ArgumentError(
            "expected states of shape (T, N, state_dim) and starts of shape (T, N), got "
            f"{tuple(states.shape)} and {tuple(starts.shape)}"
        )
    _, count, dim = states.shape
    made = PlanWindows(count, dim, window_size, history=history, device=states.device)
    windows, masks = zip(*map(made.push, states, starts), strict=True)
    return torch.stack(windows), torch.stack(masks)


def shown(windows: Any, mask: Any, history: int) -> tuple[Any, Any]:
    """Mask all but ``history`` states before the last, and zero all that is masked."""
    mask = mask.clone()
    mask[..., : mask.shape[-1] - 1 - history] = False
    return windows.masked_fill(~mask[..., None], 0.0), mask


@dataclass(frozen=True)
class PlanPosterior:
    """The normal distribution of a plan: ``mean`` and ``log_std``, ``(..., embedding_dim)``."""

    mean: Any
    log_std: Any

    @property
    def std(self) -> Any:
        """Standard deviations."""
        return self.log_std.exp()

    def at(self, noise: Any) -> Any:
        """Return the plan of this noise, in standard deviations. Gradients reach both."""
        return self.mean + self.std * noise

    def detach(self) -> PlanPosterior:
        """Return the same distribution without gradients."""
        return PlanPosterior(self.mean.detach(), self.log_std.detach())

    def __getitem__(self, index: Any) -> PlanPosterior:
        return PlanPosterior(self.mean[index], self.log_std[index])


def gaussian_kl(current: PlanPosterior, previous: PlanPosterior) -> Any:
    """Return ``D_KL[current || previous]`` of each dimension, in nats.

    ``log(σ'/σ) + (σ² + (μ - μ')²) / (2 σ'²) - 1/2``, with a prime for ``previous``.
    """
    gap = current.mean - previous.mean
    spread = (2.0 * (current.log_std - previous.log_std)).exp()
    scaled = gap.square() * (-2.0 * previous.log_std).exp()
    return previous.log_std - current.log_std + 0.5 * (spread + scaled - 1.0)


class PlanDivergence(nn.Module):
    """The cost of a plan's changes, with guards.

    The plain cost ``D_KL[q(τ_t | s_1..t) || q(τ_{t-1} | s_1..t-1)]`` is a sum over dimensions in
    units of a small variance: of a new planner of default size, on random states, 575 in the loss
    at the default weight, beside a policy's loss of about 1. Here it is

    1. a mean over dimensions, of which ``free_bits`` nats each cost nothing;
    2. divided by a running scale of that mean, so that a cost of 1 is the recent average; the scale
       is at least 1: plans that hardly change any more cost little;
    3. multiplied by a weight that grows from 0 over the first updates, while the policy does not
       use plans yet.

    Args:
        config: ``kl_weight``, ``free_bits``, ``kl_warmup_updates`` and ``ema_decay``.
    """

    def __init__(self, config: PlanningConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        # Updates whose divergence is known: the scale is of these.
        self.register_buffer("samples", torch.zeros((), dtype=torch.int64))

    @property
    def weight(self) -> float:
        """``kl_weight``, or its share during the warm-up."""
        warmup = self.config.kl_warmup_updates
        share = 1.0 if warmup == 0 else min(1.0, int(self.updates) / warmup)
        return self.config.kl_weight * share

    def forward(
        self, current: PlanPosterior, previous: PlanPosterior, pairs: Any
    ) -> tuple[Any, Any]:
        """Return the cost, to be multiplied by :attr:`weight`, and the mean divergence behind it.

        Args:
            current: Of the states up to now, ``(B, embedding_dim)``.
            previous: Of the states up to the step before. It gets no gradient: a plan follows the
                one before, not the other way round.
            pairs: ``(B,)``, where both are of one episode; other rows cost nothing.

        Returns:
            The cost, and the divergence per dimension in nats, without a gradient; NaN without a
            pair.
        """
        each = gaussian_kl(current, previous.detach())
        weight = pairs.to(each.dtype)
        count = weight.sum()
        cost = ((each - self.config.free_bits).clamp(min=0.0).mean(dim=-1) * weight).sum()
        cost /= count.clamp(min=1.0)
        # Without a pair this is 0 / 0, NaN: nothing was measured.
        plain = (each.detach().mean(dim=-1) * weight).sum() / count
        return cost / self.scale.clamp(min=1.0).to(each.dtype), plain

    @torch.no_grad()
    def advance(self, plain: Any) -> None:
        """Count an update with this mean divergence; NaN does not move the scale."""
        value = torch.as_tensor(plain, dtype=self.scale.dtype, device=self.scale.device)
        if bool(torch.isfinite(value)):
            # The first sample is the scale itself; later ones move it.
            decay = 0.0 if int(self.samples) == 0 else self.config.ema_decay
            self.scale.copy_(decay * self.scale + (1.0 - decay) * value)
            self.samples.add_(1)
        self.updates.add_(1)


class TrajectoryEncoder(nn.Module):
    """Makes plans of windows of states.

    Args:
        state_dim: Numbers of a state.
        config: Sizes and bounds.
        device: Device of the parameters; the CPU, with a warning, where CUDA is missing.

    >>> from echoic.agents.plans import PlanningConfig
    >>> config = PlanningConfig(embedding_dim=16, num_layers=1, num_heads=2)
    >>> encoder = TrajectoryEncoder(state_dim=3, config=config, device="cpu")
    >>> encoder(torch.zeros(5, 9, 3)).shape
    torch.Size([5, 16])
    """

    def __init__(self, state_dim: int, config: PlanningConfig, device: Any = "cuda") -> None:
        super().__init__()
        if state_dim < 1:
            raise ArgumentError(f"state_dim must be at least 1, got {state_dim}")
        self.state_dim = state_dim
        self.config = config
        width, dim = config.width, config.embedding_dim
        self.project_state = nn.Linear(state_dim, width)
        self.positions = nn.Parameter(torch.randn(config.state_window_size + 1, width) * 0.02)
        self.blocks = nn.ModuleList(
            _Block(width, config.num_heads, config.feedforward_factor)
            for _ in range(config.num_layers)
        )
        self.final_norm = nn.LayerNorm(width)
        self.mean_head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim))
        self.std_head = nn.Linear(width, dim)
        # All plans have the same variance at first.
        nn.init.zeros_(self.std_head.weight)
        nn.init.zeros_(self.std_head.bias)
        self.to(resolve(device))
        self.project()

    def posterior(self, window: Any, mask: Any = None) -> PlanPosterior:
        """Return the distribution of the plan of each window.

        Args:
            window: ``(B, k + 1, state_dim)``, or shorter; the current state is the last.
            mask: ``(B, k + 1)``, which places hold a state; without it, all do.

        Raises:
            ArgumentError: If a shape does not fit, or the current state of a window is masked.
        """
        places = self.positions.shape[0]
        fits = window.ndim == 3 and window.shape[2] == self.state_dim
        if not (fits and 1 <= window.shape[1] <= places):
            raise ArgumentError(
                f"expected windows of shape (B, 1 to {places}, {self.state_dim}), got "
                f"{tuple(window.shape)}"
            )
        if mask is None:
            mask = torch.ones(window.shape[:2], dtype=torch.bool, device=window.device)
        elif mask.shape != window.shape[:2]:
            raise ArgumentError(
                f"expected a mask of shape {tuple(window.shape[:2])}, got {tuple(mask.shape)}"
            )
        elif not bool(mask[:, -1].all()):
            raise ArgumentError(
                "the last place of a window is the current state: it can not be masked"
            )
        # A NaN in a masked place would stay one when weighted by 0.
        window = window.to(self.project_state.weight.dtype).masked_fill(~mask[..., None], 0.0)
        hidden = self.project_state(window) + self.positions[places - window.shape[1] :]
        # Places that may be attended to: (B, heads, queries, keys), the middle two broadcast.
        seen = mask[:, None, None, :]
        for block in self.blocks:
            hidden = block(hidden, seen)
        hidden = self.final_norm(hidden)
        weight = mask.to(hidden.dtype)[..., None]
        pooled = (hidden * weight).sum(dim=1) / weight.sum(dim=1)
        reach = math.log(self.config.std_range)
        log_std = math.log(self.config.noise_std) + reach * torch.tanh(self.std_head(pooled))
        return PlanPosterior(self.mean_head(pooled), log_std)

    def forward(self, window: Any, mask: Any = None) -> Any:
        """Return the means of the plans, ``(B, embedding_dim)``."""
        return self.posterior(window, mask).mean

    def compute_kl_divergence(self, current: Any, previous: Any) -> Any:
        """Return ``D_KL[current || previous]`` of each row, summed over dimensions, in nats.

        Gradients reach ``current`` only. Tensors in place of posteriors are means whose standard
        deviation is ``noise_std``: then this is ``|τ - τ'|² / (2 σ²)``.
        """
        current, previous = self._as_posterior(current), self._as_posterior(previous)
        return gaussian_kl(current, previous.detach()).sum(dim=-1)

    def compute_kl_divergence_fast(self, current: Any, previous: Any) -> Any:
        """Return that of means alone, by the native kernel, without gradients."""
        now, before = (one.detach().to("cpu", torch.float32) for one in (current, previous))
        variance = self.config.noise_std**2
        return torch.as_tensor(kernels.temporal_kl_batch(now.numpy(), before.numpy(), variance))

    def get_lipschitz_bound(self) -> float:
        """Return how far a plan's mean moves at most when the pooled features move by one."""
        norms = [torch.linalg.matrix_norm(one.detach(), ord=2) for one in self._head_weights()]
        return math.prod(map(float, norms))

    @torch.no_grad()
    def project(self) -> None:
        """Shrink the mean's head until ``lipschitz_constant`` holds; call it after each step."""
        if math.isinf(self.config.lipschitz_constant):
            return
        weights = self._head_weights()
        most = self.config.lipschitz_constant ** (1.0 / len(weights))
        for weight in weights:
            norm = torch.linalg.matrix_norm(weight, ord=2)
            weight.mul_(torch.clamp(most / norm, max=1.0))

    def _head_weights(self) -> list[Any]:
        return [layer.weight for layer in self.mean_head if isinstance(layer, nn.Linear)]

    def _as_posterior(self, plan: Any) -> PlanPosterior:
        if isinstance(plan, PlanPosterior):
            return plan
        return PlanPosterior(plan, torch.full_like(plan, math.log(self.config.noise_std)))


class _Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and around a skip.

    Not torch's own layer: without gradients that uses a fused kernel whose last bits differ, and a
    ratio of probabilities should be one when nothing has changed.
    """

    def __init__(self, width: int, heads: int, factor: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(
            nn.Linear(width, factor * width), nn.GELU(), nn.Linear(factor * width, width)
        )

    def forward(self, hidden: Any, seen: Any) -> Any:
        batch, places, width = hidden.shape
        joint = self.queries_keys_values(self.attention_norm(hidden))
        # (3, B, heads, places, width of a head).
        queries, keys, values = joint.view(batch, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).reshape(batch, places, width))
        return hidden + self.feedforward(self.feedforward_norm(hidden))
