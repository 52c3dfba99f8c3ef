"""What the primitives should give: plain loops in float64, to be read rather than to be fast.

Each takes the arguments of the function of its name. Flat arrays of many sequences have all steps
of the first one first; arrays of two dimensions have time first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Array

Outputs = tuple[Any, ...]


def gae_over_time(
    rewards: Array, values: Array, dones: Array, last: Any, gamma: float, lam: float
) -> Outputs:
    """Advantages and returns along the first axis."""
    rewards, values, dones = (np.asarray(a, np.float64) for a in (rewards, values, dones))
    advantages = np.empty_like(rewards)
    following, advantage = np.asarray(last, np.float64), np.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        goes_on = 1 - dones[t]
        delta = rewards[t] + gamma * following * goes_on - values[t]
        advantage = delta + gamma * lam * goes_on * advantage
        advantages[t] = advantage
        following = values[t]
    return advantages, advantages + values


def gae_batched(
    rewards: Array,
    values: Array,
    dones: Array,
    last: Array,
    n_steps: int,
    gamma: float,
    lam: float,
) -> Outputs:
    """Advantages and returns of sequences one after the other; or of time-major arrays."""
    if rewards.ndim == 2:
        return gae_over_time(rewards, values, dones, last, gamma, lam)
    rewards, values, dones = (each.reshape(-1, n_steps).T for each in (rewards, values, dones))
    results = gae_over_time(rewards, values, dones, last, gamma, lam)
    return tuple(each.T.reshape(-1) for each in results)


def vtrace(
    log_rhos: Array,
    rewards: Array,
    values: Array,
    dones: Array,
    bootstrap: float,
    gamma: float,
    rho_bar: float,
    c_bar: float,
) -> Outputs:
    """Targets of the values, and advantages for the policy's gradient."""
    log_rhos, rewards, values, dones = (
        np.asarray(each, np.float64) for each in (log_rhos, rewards, values, dones)
    )
    ratios = np.exp(log_rhos)
    rhos, cs = np.minimum(rho_bar, ratios), np.minimum(c_bar, ratios)
    discounts = gamma * (1 - dones)
    following = np.append(values[1:], bootstrap)
    deltas = rhos * (rewards + discounts * following - values)
    targets, ahead = np.empty_like(values), 0.0
    for t in reversed(range(len(values))):
        ahead = deltas[t] + discounts[t] * cs[t] * ahead
        targets[t] = values[t] + ahead
    return targets, rhos * (rewards + discounts * np.append(targets[1:], bootstrap) - values)


def token_kl(log_p: Array, log_q: Array, seq_len: int) -> Outputs:
    """Sum per sequence of the log-ratio: unbiased for tokens that are sampled from p."""
    return ((log_p - log_q).reshape(-1, seq_len).sum(1),)


def token_kl_schulman(log_p: Array, log_q: Array, seq_len: int) -> Outputs:
    """Sum per sequence of Schulman's k3: unbiased too, and of less variance."""
    ratio = log_q - log_p
    return ((np.expm1(ratio) - ratio).reshape(-1, seq_len).sum(1),)


def group_advantages(rewards: Array, group_size: int) -> Outputs:
    """Rewards less their group's mean, in units of its deviation."""
    groups = rewards.reshape(-1, group_size)
    mean, deviation = groups.mean(1, keepdims=True), groups.std(1, keepdims=True)
    return (((groups - mean) / deviation).reshape(-1),)


ORACLES: dict[str, Callable[..., Outputs]] = {
    "compute_gae": gae_over_time,
    "compute_gae_batched_f32": gae_batched,
    "compute_vtrace": vtrace,
    "compute_batch_token_kl": token_kl,
    "compute_batch_token_kl_schulman": token_kl_schulman,
    "compute_batch_group_advantages": group_advantages,
}
