"""The mathematics of reinforcement learning on arrays.

Functions take numpy arrays, sequences of numbers, and tensors of PyTorch and JAX on the CPU, and
return what they were given. Nothing is copied that lies in memory without gaps.
"""

from echoic._native import (
    compute_discounted_sums,
    compute_gae,
    compute_gae_batched,
    compute_gae_batched_f32,
    compute_lambda_returns,
    compute_n_step_returns,
    compute_retrace,
    compute_upgo,
    compute_vtrace,
)

__all__ = [
    "compute_discounted_sums",
    "compute_gae",
    "compute_gae_batched",
    "compute_gae_batched_f32",
    "compute_lambda_returns",
    "compute_n_step_returns",
    "compute_retrace",
    "compute_upgo",
    "compute_vtrace",
]
