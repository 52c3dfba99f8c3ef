"""Compute returns, advantages, losses and packings of reinforcement learning on arrays.

Functions take numpy arrays, sequences of numbers, and tensors of PyTorch and JAX on the CPU, and
return the same kind. Contiguous arrays are not copied.
"""

from echoic._native import (
    RunningStats,
    RunningStatsVec,
    balance_sequences,
    compute_batch_group_advantages,
    compute_batch_token_kl,
    compute_batch_token_kl_schulman,
    compute_categorical_kl,
    compute_discounted_sums,
    compute_effective_sample_size,
    compute_gae,
    compute_gae_batched,
    compute_gae_batched_f32,
    compute_group_advantages,
    compute_importance_weights,
    compute_lambda_returns,
    compute_n_step_returns,
    compute_retrace,
    compute_token_kl,
    compute_token_kl_schulman,
    compute_upgo,
    compute_vtrace,
    pack_sequences,
    plan_micro_batches,
    plan_packing,
)
from echoic.primitives.value_normalizer import ValueNormalizer

__all__ = [
    "RunningStats",
    "RunningStatsVec",
    "ValueNormalizer",
    "balance_sequences",
    "compute_batch_group_advantages",
    "compute_batch_token_kl",
    "compute_batch_token_kl_schulman",
    "compute_categorical_kl",
    "compute_discounted_sums",
    "compute_effective_sample_size",
    "compute_gae",
    "compute_gae_batched",
    "compute_gae_batched_f32",
    "compute_group_advantages",
    "compute_importance_weights",
    "compute_lambda_returns",
    "compute_n_step_returns",
    "compute_retrace",
    "compute_token_kl",
    "compute_token_kl_schulman",
    "compute_upgo",
    "compute_vtrace",
    "pack_sequences",
    "plan_micro_batches",
    "plan_packing",
]
