"""Format numbers, errors and text from elsewhere for people."""

__all__ = ["age", "amount", "duration", "printable", "size", "why"]

THOUSAND = 1000


def scaled(value: float, units: tuple[str, ...]) -> str:
    """Format a number with three digits, in the largest unit in which it is at least 1."""
    unit = 0
    # Compared as rounded, so that nothing is written as 1000 of a unit.
    while abs(value) >= THOUSAND - 0.5 and unit + 1 < len(units):
        value /= THOUSAND
        unit += 1
    return f"{value:.3g} {units[unit]}".rstrip()


def amount(value: float) -> str:
    """Format a count, such as `1.23 M`."""
    return scaled(value, ("", "k", "M", "G", "T"))


def size(value: float) -> str:
    """Format a number of bytes, such as `1.23 MB`; a kB has 1000, as in network rates."""
    return scaled(value, ("B", "kB", "MB", "GB", "TB"))


def duration(seconds: float) -> str:
    """Format a time, such as `1.23 ms`."""
    if seconds >= THOUSAND / 10:
        return f"{seconds:,.0f} s"
    return scaled(seconds * 1e9, ("ns", "µs", "ms", "s"))


def age(seconds: float) -> str:
    """How old something is, in the unit in which people say it, such as `3 h`."""
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def why(error: BaseException) -> str:
    """Return an error's text, without the number of a system's error."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error) or type(error).__name__
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def printable(text: str) -> str:
    r"""Escape control characters, which a server may send and a terminal would execute.

    Examples:
        >>> print(printable("replay"), printable("\x1b[2J"))
        replay \x1b[2J
    """
    return text if text.isprintable() else text.encode("unicode_escape").decode()
