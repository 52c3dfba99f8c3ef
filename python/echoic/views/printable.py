"""Text from elsewhere, as it may be shown."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Write out what a terminal would obey instead of showing it: a server may say anything.

    Examples:
        >>> print(printable("replay"), printable("\x1b[2J"))
        replay \x1b[2J
    """
    return text if text.isprintable() else text.encode("unicode_escape").decode()
