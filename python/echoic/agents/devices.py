"""Where tensors live: what the user asked for where it can be had, the CPU otherwise.

Importing this module imports torch.
"""

from __future__ import annotations

import functools
import warnings

import torch

__all__ = ["resolve"]


def resolve(device: str | torch.device) -> torch.device:
    """The device to use. ``"auto"`` is CUDA where there is one; CUDA that is not there is the CPU.

    >>> resolve("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    asked = torch.device(device)
    if asked.type == "cuda" and not torch.cuda.is_available():
        _tell(str(asked))
        return torch.device("cpu")
    return asked


@functools.cache
def _tell(device: str) -> None:
    """Warn, once in the life of the process."""
    warnings.warn(
        f"device {device!r} was asked for, but torch finds no CUDA here; the CPU is used instead. "
        'Say device="cpu" to silence this',
        UserWarning,
        stacklevel=4,
    )
