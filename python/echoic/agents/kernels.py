"""Native kernels of planning agents: plans, prefixes, draws, and costs of bandwidth.

Arrays are read in place: numpy arrays in C order, tensors of PyTorch and JAX on the CPU. Sums and
costs are in double precision. Kernels over many numbers run without the GIL.
"""

from __future__ import annotations

from echoic._native import (
    EMAPlanTracker,
    attention_bandwidth_cost,
    attention_bandwidth_cost_batch,
    bandwidth_aware_priorities,
    bandwidth_efficiency,
    effective_bandwidth_cost,
    effective_bandwidth_cost_batch,
    plan_surprise,
    plan_surprise_batch,
    prefix_match,
    prefix_match_batch,
    priority_sample,
    schedule_priorities,
    state_hash,
    state_hash_batch,
    temporal_kl,
    temporal_kl_batch,
)

__all__ = [
    "EMAPlanTracker",
    "attention_bandwidth_cost",
    "attention_bandwidth_cost_batch",
    "bandwidth_aware_priorities",
    "bandwidth_efficiency",
    "effective_bandwidth_cost",
    "effective_bandwidth_cost_batch",
    "kernels_available",
    "plan_surprise",
    "plan_surprise_batch",
    "prefix_match",
    "prefix_match_batch",
    "priority_sample",
    "schedule_priorities",
    "state_hash",
    "state_hash_batch",
    "temporal_kl",
    "temporal_kl_batch",
]


def kernels_available() -> bool:
    """Return whether the native kernels are available: always, since there are no others."""
    return True
