"""Import this package as ``reverb``, for programs and libraries that can't be changed."""

from __future__ import annotations

from echoic import _dropin

__all__ = ["install"]


def install() -> None:
    """Make ``import reverb``, and of its submodules, import this package in this process.

    Call it before anything imports ``reverb``. ``python -m echoic.reverb PROGRAM`` does so for a
    program.

    Raises:
        ImportError: If another ``reverb`` was imported before.

    Examples:
        >>> import echoic.reverb
        >>> echoic.reverb.install()
        >>> import reverb
        >>> from reverb import rate_limiters
        >>> reverb is echoic.reverb, rate_limiters is echoic.reverb.rate_limiters
        (True, True)
    """
    _dropin.install("reverb")
