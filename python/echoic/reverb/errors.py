"""Errors of calls that do not raise a builtin."""

from echoic.errors import EchoicError

__all__ = ["DeadlineExceededError", "ReverbError"]


class ReverbError(EchoicError):
    """Base of the errors of this module."""


class DeadlineExceededError(ReverbError):
    """A call did not complete within its timeout."""
