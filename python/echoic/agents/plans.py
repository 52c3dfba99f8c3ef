"""Latent plans: what an agent makes of an episode so far, and acts on.

The encoder F_φ makes a plan of a window: the latest `k + 1` states of an episode, the current one
last. The policy π_θ acts on the current state and the plan. A learner makes the same plan again
from its window and noise, so that the ratio of an action's probability now to then is 1 before the
first update, and carries gradients to φ and θ. Hence nothing here has dropout.

Importing this module imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import scaled_dot_product_attention

from echoic.agents import _checks, checkpoint, kernels
from echoic.agents.devices import resolve
from echoic.agents.replay import ReplayConfig, SurpriseCalculator
from echoic.agents.updates import clipped_gain, step
from echoic.errors import ArgumentError
from echoic.primitives import compute_discounted_sums

if TYPE_CHECKING:
    import os

__all__ = [
    "LatentPlanningOptimizer",
    "PlanDivergence",
    "PlanPosterior",
    "PlanWindows",
    "PlannedAction",
    "PlanningConfig",
    "PolicyNetwork",
    "SoftPrefixAdapter",
    "TrajectoryEncoder",
    "TrajectoryPrior",
    "windows_of",
]

_KIND = "latent planner"
# How far a ratio of probabilities may move in the planner's own updates.
_CLIP = 0.2


@dataclass(frozen=True)
class PlanningConfig:
    """Settings of an encoder of plans, of the policy that uses them, and of their learning.

    Attributes:
        state_window_size: States before the current one that the encoder sees (k).
        kl_weight: Weight of a plan's change from one step to the next, in the loss. See
            :class:`PlanDivergence` for its unit.
        ema_decay: Decay of the mean plan and of the running scale of the divergence.
        soft_prefix_alpha: The state's share of the policy's input; the plan has the rest.
        lipschitz_constant: How far the mean of a plan may move when the encoder's pooled features
            move by one, kept by a projection after each update; infinity: no bound.
        noise_std: Initial standard deviation of a plan, the middle of the allowed range.
        learning_rate: Of the encoder, and of the planner's own optimizer.
        discount_gamma: Discount of the planner's returns, used without advantages.
        encoder_dim: Width of the encoder; ``None``: ``embedding_dim``. Vectors need less.
        feedforward_factor: Width of a block's inner layer, relative to the encoder's.
        hidden_dim: Width of the policy.
        std_range: Factor by which a standard deviation may differ from ``noise_std``, up and down.
        free_bits: Divergence per dimension, in nats, that costs nothing.
        kl_warmup_updates: Updates in which ``kl_weight`` grows from 0 to its value.
    """

    embedding_dim: int = 512
    state_window_size: int = 8
    kl_weight: float = 0.1
    ema_decay: float = 0.99
    soft_prefix_alpha: float = 0.5
    lipschitz_constant: float = 1.0
    noise_std: float = 0.01
    learning_rate: float = 3e-4
    max_grad_norm: float = 1.0
    discount_gamma: float = 1.0
    num_layers: int = 6
    encoder_dim: int | None = None
    num_heads: int = 8
    feedforward_factor: int = 4
    hidden_dim: int = 512
    std_range: float = 10.0
    free_bits: float = 0.5
    kl_warmup_updates: int = 100

    def __post_init__(self) -> None:
        _checks.whole(self, "embedding_dim", "num_layers", "num_heads", "feedforward_factor")
        _checks.whole(self, "hidden_dim")
        if self.encoder_dim is not None:
            _checks.whole(self, "encoder_dim")
        _checks.whole(self, "state_window_size", "kl_warmup_updates", least=0)
        _checks.number(self, "kl_weight", "free_bits", least=0)
        _checks.number(self, "noise_std", "learning_rate", "max_grad_norm", above=0)
        _checks.number(self, "ema_decay", "discount_gamma", "soft_prefix_alpha", least=0, most=1)
        _checks.number(self, "std_range", least=1)
        _checks.number(self, "lipschitz_constant", above=0, finite=False)
        if self.width % self.num_heads:
            raise ArgumentError(
                f"num_heads must divide the width {self.width}, not {self.num_heads}"
            )

    @property
    def width(self) -> int:
        """Width of the encoder."""
        return self.encoder_dim or self.embedding_dim


class PlanWindows(nn.Module):
    """The windows of environments that act side by side, each within one episode.

    A window has ``window_size`` states before the current one. Of these ``history`` are shown, by
    default all; 0 is a baseline without memory.

    >>> windows = PlanWindows(1, 1, window_size=2, device="cpu")
    >>> _ = windows.push(torch.tensor([[5.0]]), starts=torch.tensor([True]))
    >>> window, mask = windows.push(torch.tensor([[6.0]]), starts=torch.tensor([False]))
    >>> window.squeeze().tolist(), mask.tolist()
    ([0.0, 5.0, 6.0], [[False, True, True]])
    """

    states: torch.Tensor
    mask: torch.Tensor

    def __init__(
        self,
        num_envs: int,
        state_dim: int,
        window_size: int,
        *,
        history: int | None = None,
        device: Any = "cuda",
    ) -> None:
        super().__init__()
        self.history = window_size if history is None else history
        if min(num_envs, state_dim) < 1 or not 0 <= self.history <= window_size:
            raise ArgumentError(
                "num_envs and state_dim must be at least 1, and history from 0 to window_size, got "
                f"{num_envs}, {state_dim} and {self.history} of {window_size}"
            )
        shape, place = (num_envs, window_size + 1), resolve(device)
        self.register_buffer("states", torch.zeros(*shape, state_dim, device=place))
        self.register_buffer("mask", torch.zeros(shape, dtype=torch.bool, device=place))

    def push(self, states: Any, starts: Any) -> tuple[Any, Any]:
        """Add the current states, and return copies of the windows that end with them.

        ``states`` are ``(num_envs, state_dim)``; ``starts`` says where an episode starts with them.
        The windows are ``(num_envs, k + 1, state_dim)``, with a mask of places that hold a state.
        """
        place = self.states.device
        states = torch.as_tensor(states, dtype=self.states.dtype, device=place)
        starts = torch.as_tensor(starts, dtype=torch.bool, device=place)
        expected = (self.states.shape[0], self.states.shape[2])
        if states.shape != expected or starts.shape != expected[:1]:
            raise ArgumentError(
                f"expected states of shape {expected} and starts of shape {expected[:1]}, got "
                f"{tuple(states.shape)} and {tuple(starts.shape)}"
            )
        kept = self.mask[:, 1:] & ~starts[:, None]
        self.states = torch.cat([self.states[:, 1:], states[:, None]], dim=1)
        self.mask = torch.cat([kept, torch.ones_like(starts)[:, None]], dim=1)
        return shown(self.states, self.mask, self.history)


def windows_of(states: Any, starts: Any, window_size: int) -> tuple[Any, Any]:
    """Return the windows of all steps of recorded sequences, as :class:`PlanWindows` makes them.

    Of ``(T, N, state_dim)`` states and ``(T, N)`` starts, windows are ``(T, N, k + 1, state_dim)``.
    """
    states = torch.as_tensor(states)
    _, count, dim = states.shape
    made = PlanWindows(count, dim, window_size, device=states.device)
    windows, masks = zip(*map(made.push, states, starts), strict=True)
    return torch.stack(windows), torch.stack(masks)


def shown(windows: Any, mask: Any, history: int) -> tuple[Any, Any]:
    """Mask all but ``history`` states before the last, and zero all that is masked."""
    mask = mask.clone()
    mask[..., : mask.shape[-1] - 1 - history] = False
    return windows.masked_fill(~mask[..., None], 0.0), mask


class PlanPosterior(Normal):
    """The normal distribution of a plan, ``(..., embedding_dim)``."""

    def at(self, noise: Any) -> Any:
        """Return the plan of this noise, in standard deviations. Gradients reach both."""
        return self.mean + self.stddev * noise

    def detach(self) -> PlanPosterior:
        """Return the same distribution without gradients."""
        return PlanPosterior(self.mean.detach(), self.stddev.detach(), validate_args=False)


class PlanDivergence(nn.Module):
    """The cost of a plan's changes, with guards.

    The plain cost ``D_KL[q(τ_t | s_1..t) || q(τ_{t-1} | s_1..t-1)]`` is a sum over dimensions in
    units of a small variance: hundreds in the loss of a new planner, beside a policy's loss of
    about 1. Here it is

    1. a mean over dimensions, of which ``free_bits`` nats each cost nothing;
    2. divided by a running scale of that mean, so that a cost of 1 is the recent average; the scale
       is at least 1: plans that hardly change any more cost little;
    3. multiplied by a weight that grows from 0 over ``kl_warmup_updates``.
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
        return self.config.kl_weight * min(1.0, (int(self.updates) / warmup) if warmup else 1.0)

    def forward(
        self, current: PlanPosterior, previous: PlanPosterior, pairs: Any
    ) -> tuple[Any, Any]:
        """Return the cost, to be multiplied by :attr:`weight`, and the mean divergence behind it.

        ``previous`` is of the states up to the step before. It gets no gradient: a plan follows the
        one before, not the other way round. Rows that are no ``pairs`` of one episode cost nothing.
        The divergence is per dimension, in nats, without a gradient; NaN without a pair.
        """
        each = kl_divergence(current, previous.detach())
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
    """Makes plans of windows: ``q_φ(τ_t | s_{t-k..t}) = N(μ_t, diag σ_t²)``.

    A transformer, its outputs averaged over the places that hold a state, and two heads.
    ``noise_std / std_range <= σ <= noise_std * std_range``, whatever the parameters are. After
    :meth:`project`, μ's head has a Lipschitz constant of at most ``lipschitz_constant``; none is
    claimed for the attention below it, which has none (Kim et al., "The Lipschitz Constant of
    Self-Attention", 2021). ``device`` is the CPU, with a warning, where CUDA is missing.

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
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.num_layers))
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

        Windows are ``(..., k + 1, state_dim)`` or shorter, and the current state is the last; the
        mask says which places hold a state, by default all.
        """
        like = self.project_state.weight
        window = torch.as_tensor(window, dtype=like.dtype, device=like.device)
        *lead, length, dim = window.shape if window.ndim > 1 else (0, 0)
        places = self.positions.shape[0]
        if dim != self.state_dim or not 1 <= length <= places:
            raise ArgumentError(
                f"expected windows of shape (..., 1 to {places}, {self.state_dim}), got "
                f"{tuple(window.shape)}"
            )
        if mask is None:
            mask = torch.ones(window.shape[:-1], dtype=torch.bool)
        mask = torch.as_tensor(mask, dtype=torch.bool, device=like.device)
        if mask.shape != window.shape[:-1] or not bool(mask[..., -1].all()):
            raise ArgumentError(
                f"expected a mask of shape {tuple(window.shape[:-1])}, true in the last place, the "
                f"current state; got one of shape {tuple(mask.shape)}"
            )
        window, mask = window.reshape(-1, length, dim), mask.reshape(-1, length)
        # A NaN in a masked place would stay one when weighted by 0.
        window = window.masked_fill(~mask[..., None], 0.0)
        hidden = self.project_state(window) + self.positions[places - length :]
        for block in self.blocks:
            hidden = block(hidden, mask)
        hidden = self.final_norm(hidden)
        weight = mask.to(hidden.dtype)[..., None]
        pooled = ((hidden * weight).sum(dim=1) / weight.sum(dim=1)).view(*lead, -1)
        reach = math.log(self.config.std_range)
        log_std = math.log(self.config.noise_std) + reach * torch.tanh(self.std_head(pooled))
        return PlanPosterior(self.mean_head(pooled), log_std.exp(), validate_args=False)

    def forward(self, window: Any, mask: Any = None) -> Any:
        """Return the means of the plans, ``(..., embedding_dim)``."""
        return self.posterior(window, mask).mean

    def compute_kl_divergence(self, current: Any, previous: Any) -> Any:
        """Return ``D_KL[current || previous]`` of each row, summed over dimensions, in nats.

        Gradients reach ``current`` only. Tensors in place of posteriors are means whose standard
        deviation is ``noise_std``: then this is ``|τ - τ'|² / (2 σ²)``.
        """
        now, before = (
            one if isinstance(one, Normal) else PlanPosterior(one, self.config.noise_std)
            for one in (current, previous)
        )
        return kl_divergence(now, before.detach()).sum(dim=-1)

    def compute_kl_divergence_fast(self, current: Any, previous: Any) -> Any:
        """Return that of means alone, by the native kernel, without gradients."""
        now, before = (one.detach().to("cpu", torch.float32) for one in (current, previous))
        variance = self.config.noise_std**2
        return torch.as_tensor(kernels.temporal_kl_batch(now.numpy(), before.numpy(), variance))

    def get_lipschitz_bound(self) -> float:
        """Return how far a plan's mean moves at most when the pooled features move by one."""
        heads = (layer.weight.detach() for layer in self.mean_head[::2])
        return math.prod(float(torch.linalg.matrix_norm(one, ord=2)) for one in heads)

    @torch.no_grad()
    def project(self) -> None:
        """Shrink the mean's head until ``lipschitz_constant`` holds; call it after each step."""
        for layer in self.mean_head[::2]:
            norm = torch.linalg.matrix_norm(layer.weight, ord=2)
            layer.weight.mul_((self.config.lipschitz_constant**0.5 / norm).clamp(max=1.0))


class _Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and around a skip.

    Not torch's own layer: without gradients that may use a fused kernel whose last bits differ.
    """

    def __init__(self, config: PlanningConfig) -> None:
        super().__init__()
        self.heads, width = config.num_heads, config.width
        inner = config.feedforward_factor * width
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(
            nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)
        )

    def forward(self, hidden: Any, mask: Any) -> Any:
        joint = self.queries_keys_values(self.attention_norm(hidden))
        # (3, B, heads, places, width of a head).
        queries, keys, values = joint.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        # Places that may be attended to: (B, heads, queries, keys), the middle two broadcast.
        seen = mask[:, None, None, :]
        mixed = scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.feedforward(self.feedforward_norm(hidden))


class SoftPrefixAdapter(nn.Module):
    """Mixes states and plans: ``h = LayerNorm(α W_s s + (1 - α) W_τ τ)``.

    The norm applies to the sum, so α bounds how much each part counts, not how large it is.
    """

    def __init__(
        self, state_dim: int, latent_dim: int, hidden_dim: int, alpha: float = 0.5
    ) -> None:
        super().__init__()
        if not 0.0 <= alpha <= 1.0:
            raise ArgumentError(f"alpha must be from 0 to 1, got {alpha!r}")
        self.alpha = alpha
        self.state = nn.Linear(state_dim, hidden_dim)
        self.plan = nn.Linear(latent_dim, hidden_dim)
        self.norm = nn.LayerNorm(hidden_dim)

    def forward(self, state: Any, latent_plan: Any) -> Any:
        """Return the mixtures, ``(..., hidden_dim)``."""
        return self.norm(
            self.alpha * self.state(state) + (1.0 - self.alpha) * self.plan(latent_plan)
        )


class PolicyNetwork(nn.Module):
    """A policy over ``action_dim`` actions, conditioned on a state and a plan.

    ``soft_prefix_alpha`` is the state's share of the input. ``device`` is the CPU, with a warning,
    where CUDA is missing.

    >>> policy = PolicyNetwork(state_dim=4, action_dim=3, latent_dim=8, hidden_dim=16, device="cpu")
    >>> action, log_prob = policy.sample_action(torch.zeros(4), torch.zeros(8))
    >>> action.shape, log_prob.shape
    (torch.Size([]), torch.Size([]))
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        latent_dim: int,
        hidden_dim: int = 512,
        soft_prefix_alpha: float = 0.5,
        device: Any = "cuda",
    ) -> None:
        super().__init__()
        if min(state_dim, action_dim, latent_dim, hidden_dim) < 1:
            raise ArgumentError(
                "state_dim, action_dim, latent_dim and hidden_dim must be at least 1, got "
                f"{state_dim}, {action_dim}, {latent_dim} and {hidden_dim}"
            )
        self.state_dim, self.action_dim, self.latent_dim = state_dim, action_dim, latent_dim
        self.adapter = SoftPrefixAdapter(state_dim, latent_dim, hidden_dim, soft_prefix_alpha)
        self.layers = nn.Sequential(
            nn.Linear(hidden_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, action_dim)
        )
        self.to(resolve(device))

    def forward(self, state: Any, latent_plan: Any) -> Any:
        """Return logits of the actions, ``(..., action_dim)``, for any leading axes."""
        if state.shape[-1] != self.state_dim or latent_plan.shape[-1] != self.latent_dim:
            raise ArgumentError(
                f"expected states of {self.state_dim} and plans of {self.latent_dim} numbers, got "
                f"shapes {tuple(state.shape)} and {tuple(latent_plan.shape)}"
            )
        return self.layers(self.adapter(state, latent_plan))

    def get_action_probs(self, state: Any, latent_plan: Any) -> Any:
        """Return probabilities of the actions, ``(..., action_dim)``."""
        return self(state, latent_plan).softmax(dim=-1)

    @torch.no_grad()
    def sample_action(
        self, state: Any, latent_plan: Any, *, greedy: bool = False, generator: Any = None
    ) -> tuple[Any, Any]:
        """Draw an action for each state; return it with its log-probability, without gradients."""
        log_probs = self(state, latent_plan).log_softmax(dim=-1)
        if greedy:
            action = log_probs.argmax(dim=-1)
        else:
            flat = log_probs.exp().reshape(-1, self.action_dim)
            drawn = torch.multinomial(flat, 1, generator=generator)
            action = drawn.reshape(log_probs.shape[:-1])
        return action, log_probs.gather(-1, action[..., None]).squeeze(-1)


@dataclass
class TrajectoryPrior:
    """A plan, or one for each row of a batch, without gradients.

    ``timestamp`` is the number of plans made before, ``kl_divergence`` that from the plan before,
    if it was given, and ``surprise_score`` the squared distance from the mean plan before this one.
    With ``noise``, in standard deviations, and the window, a learner rebuilds the plan.
    """

    latent_plan: Any
    state_window: Any
    timestamp: int
    kl_divergence: Any = None
    surprise_score: Any = None
    noise: Any = None
    posterior: Any = None


@dataclass
class PlannedAction:
    """Actions ``(B,)``, their log-probabilities ``(B,)``, and the plans acted on."""

    action: Any
    log_prob: Any
    prior: TrajectoryPrior


class LatentPlanningOptimizer(nn.Module):
    """Plans, acts and learns.

    A :class:`~echoic.agents.training.PPOLearner` given this planner trains the same two networks,
    by minibatches and with a value network.

    ``tracker`` is the mean plan, which a replay may share; plans are scored against it first and
    move it then. ``seed`` is that of noise and actions, by default drawn from torch's generator.
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        config: PlanningConfig,
        device: Any = "cuda",
        *,
        tracker: kernels.EMAPlanTracker | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.device = resolve(device)
        dim = config.embedding_dim
        self.encoder = TrajectoryEncoder(state_dim, config, self.device)
        self.policy = PolicyNetwork(
            state_dim, action_dim, dim, config.hidden_dim, config.soft_prefix_alpha, self.device
        )
        self.divergence = PlanDivergence(config).to(self.device)
        self.tracker = tracker or kernels.EMAPlanTracker(dim, config.ema_decay)
        scores = ReplayConfig(ema_decay=self.tracker.decay, score_scale="sum")
        self._surprise = SurpriseCalculator(scores, dim, tracker=self.tracker)
        self._optimizer = torch.optim.Adam(self.parameters(), lr=config.learning_rate)
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._plans_made = 0
        self._metrics: dict[str, float] = {}

    def windows(self, num_envs: int, *, history: int | None = None) -> PlanWindows:
        """Return windows of this planner's sizes, for environments side by side."""
        size, dim = self.config.state_window_size, self.encoder.state_dim
        return PlanWindows(num_envs, dim, size, history=history, device=self.device)

    @torch.no_grad()
    def encode_trajectory(
        self,
        window: Any,
        mask: Any = None,
        *,
        previous: TrajectoryPrior | None = None,
        deterministic: bool = False,
    ) -> TrajectoryPrior:
        """Draw the plan of a window, score it against the mean plan, and then move the mean.

        ``previous`` is the plan of the step before, for ``kl_divergence``; a ``deterministic`` plan
        is the mean. There may be several windows, ``(B, k + 1, state_dim)``.
        """
        window = torch.as_tensor(window, dtype=torch.float32, device=self.device)
        posterior = self.encoder.posterior(window, mask)
        noise = torch.zeros_like(posterior.mean)
        if not deterministic:
            noise.normal_(generator=self.generator)
        plans = posterior.at(noise)
        score = self._surprise.compute_surprise_score(plans)
        self._surprise.update_ema_plan(plans)
        divergence = None
        if previous is not None:
            divergence = self.encoder.compute_kl_divergence(posterior, previous.posterior)
        before = self._plans_made
        self._plans_made += noise[..., 0].numel()
        return TrajectoryPrior(plans, window, before, divergence, score, noise, posterior)

    def act(self, window: Any, mask: Any = None, *, greedy: bool = False) -> PlannedAction:
        """Draw a plan and an action for each window; ``greedy`` takes the likeliest of both."""
        prior = self.encode_trajectory(window, mask, deterministic=greedy)
        state = prior.state_window[..., -1, :]
        action, log_prob = self.policy.sample_action(
            state, prior.latent_plan, greedy=greedy, generator=self.generator
        )
        return PlannedAction(action, log_prob, prior)

    def get_trajectory_surprise(self, prior: TrajectoryPrior, reward: Any = 0.0) -> Any:
        """Return ``|τ - mean τ|² + |r|`` against the current mean plan."""
        return self._surprise.compute_surprise_score(prior.latent_plan, reward)

    def get_ema_plan(self) -> Any:
        """Return the mean plan; zeros before the first plan."""
        mean = self._surprise.get_ema_plan()
        return torch.as_tensor(mean, dtype=torch.float32, device=self.device)

    def replan(self, window: Any, mask: Any, noise: Any) -> tuple[PlanPosterior, Any]:
        """Rebuild the plans acted on from their windows and noise, with gradients."""
        posterior = self.encoder.posterior(window, mask)
        return posterior, posterior.mean if noise is None else posterior.at(noise)

    def compute_planning_loss(
        self,
        current_state_window: Any,
        previous_state_window: Any,
        actions: Any,
        rewards: Any = None,
        advantages: Any = None,
        *,
        log_probs: Any = None,
        noise: Any = None,
        current_mask: Any = None,
        previous_mask: Any = None,
        pairs: Any = None,
    ) -> dict[str, Any]:
        """Return the policy's clipped loss on these steps, and the cost of the plans' changes.

        By default ``advantages`` are the returns of ``rewards`` of consecutive steps minus their
        mean. ``log_probs`` are those of the actions when they were taken, by default the current
        ones, and ``noise`` that of the plans acted on, by default none. Masks say which places of
        windows hold a state, and ``pairs`` where both are of one episode, by default everywhere.
        """
        if advantages is None:
            if rewards is None:
                raise ArgumentError(
                    "compute_planning_loss needs advantages, or rewards to make them"
                )
            rewards, gamma = np.asarray(rewards, np.float64), self.config.discount_gamma
            gains = compute_discounted_sums(rewards, None, gamma)
            advantages = gains - gains.mean()
        advantages = torch.as_tensor(advantages, dtype=torch.float32, device=self.device)
        actions = torch.as_tensor(actions, dtype=torch.int64, device=self.device)
        current, plans = self.replan(current_state_window, current_mask, noise)
        with torch.no_grad():
            previous = self.encoder.posterior(previous_state_window, previous_mask)
        if pairs is None:
            pairs = torch.ones(len(actions), dtype=torch.bool, device=self.device)
        logits = self.policy(current_state_window[:, -1], plans)
        chosen = logits.log_softmax(dim=-1).gather(-1, actions[:, None]).squeeze(-1)
        before = chosen.detach() if log_probs is None else log_probs
        ratio = (chosen - before).exp()
        policy_loss = -clipped_gain(ratio, advantages, _CLIP, _CLIP)[0].mean()
        kl_loss, plain = self.divergence(current, previous, pairs)
        return {
            "total_loss": policy_loss + self.divergence.weight * kl_loss,
            "policy_loss": policy_loss,
            "kl_loss": kl_loss,
            "kl_divergence": plain,
            "ratio": ratio.detach(),
            "current_plan": plans,
            "previous_plan": previous.mean,
        }

    def update(self, loss_dict: dict[str, Any]) -> dict[str, float]:
        """Take one step along the gradient of ``total_loss``, and return its numbers.

        Raises:
            FloatingPointError: If the gradient is not finite. The step was not taken.
        """
        self._optimizer.zero_grad(set_to_none=True)
        loss_dict["total_loss"].backward()
        norm = step(self._optimizer, self.parameters(), self.config.max_grad_norm)
        self.after_step(loss_dict["kl_divergence"])
        names = ("total_loss", "policy_loss", "kl_loss", "kl_divergence")
        self._metrics = {name: float(loss_dict[name].detach()) for name in names}
        self._metrics["grad_norm"] = norm
        return dict(self._metrics)

    def after_step(self, plain: Any) -> None:
        """Update the bounds and the scale; call it after each step of any optimizer."""
        self.encoder.project()
        self.divergence.advance(plain)

    def get_training_metrics(self) -> dict[str, float]:
        """Return the numbers of the latest update, and the state of the divergence."""
        return {
            **self._metrics,
            "updates": float(self.divergence.updates),
            "kl_scale": float(self.divergence.scale),
            "kl_weight": self.divergence.weight,
            "lipschitz_bound": self.encoder.get_lipschitz_bound(),
            "plans_made": float(self._plans_made),
        }

    def get_extra_state(self) -> dict[str, Any]:
        """Return what ``state_dict`` has beside the networks."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "plans_made": self._plans_made,
            "tracker": self.tracker.state_dict(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`get_extra_state`; a shared mean plan is restored, too."""
        checkpoint.check_optimizer(self._optimizer, state["optimizer"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self._plans_made = state["plans_made"]
        self.tracker.load_state_dict(state["tracker"])

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write the planner to a file for :meth:`load_checkpoint`."""
        checkpoint.save(path, self.state_dict(), kind=_KIND)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file of :meth:`save_checkpoint`.

        Raises:
            CheckpointError: If the file is damaged, or of a planner of other sizes. Nothing was
                changed.
        """
        state = checkpoint.load(path, kind=_KIND)
        with checkpoint.all_or_nothing(self.load_state_dict, self.state_dict(), kind=_KIND):
            self.load_state_dict(state)
