"""What all writers share: their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Writes:
    """A context manager that writes what is left and closes; after an exception, it only closes."""

    __slots__ = ()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write what is left and close; after an exception, only close."""
        writer: Any = self
        if kind is None:
            writer.flush()
        writer.close()
