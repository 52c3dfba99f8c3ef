"""Explain errors of loading Reverb's C++ library, which is not used here."""

from typing import NoReturn

__all__ = ["reraise_wrapped_error"]


def reraise_wrapped_error(error: Exception) -> NoReturn:
    """Raise the error."""
    raise error
