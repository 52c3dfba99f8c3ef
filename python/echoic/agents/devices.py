"""The device of tensors: the requested one if it is available, the CPU otherwise.

Importing this module imports torch.
"""

from __future__ import annotations

import functools
import warnings

import torch

__all__ = ["resolve"]


def resolve(device: str | torch.device) -> torch.device:
    """Return the device to use: ``"auto"`` is CUDA if available; missing CUDA becomes the CPU.

    >>> resolve("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    asked = torch.device(device)
    if asked.type == "cuda" and not torch.cuda.is_available():
        _warn(str(asked))
        return torch.device("cpu")
    return asked


@functools.cache
def _warn(device: str) -> None:
    """Warn once per process."""
    warnings.warn(
        f"expected CUDA for device {device!r}, but torch finds none; the CPU is used instead. "
        'Set device="cpu" to silence this',
        UserWarning,
        stacklevel=4,
    )
