"""The rollout tables of a server elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from echoic import _native
from echoic.errors import TableNotFoundError
from echoic.links import LinkOptions, link_options
from echoic.rendezvous import address_for, options_for
from echoic.rollouts.table import RolloutTable, common_version, publish_everywhere

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["RolloutClient", "connect"]


class RolloutClient(Mapping[str, RolloutTable]):
    """The rollout tables of a server by name, over one connection that many threads may share.

    When the connection breaks it comes back, and what has no answer is asked again. So a
    reservation or a leased batch whose answer was lost ends with its time to live; tokens are taken
    once.
    """

    def __init__(self, link: _native.RolloutLink) -> None:
        """Take a connection; :func:`connect` makes one."""
        self._link = link
        self._tables = {native.name: RolloutTable._of(native) for native in link.tables()}

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._link.address

    @property
    def connected(self) -> bool:
        """Whether the server is there now."""
        return self._link.connected

    @property
    def reconnects(self) -> int:
        """How often the connection came back."""
        return self._link.reconnects

    def __getitem__(self, name: str) -> RolloutTable:
        """Return a table by its name.

        Raises:
            TableNotFoundError: The server has none of this name.
        """
        try:
            return self._tables[name]
        except KeyError:
            known = ", ".join(repr(name) for name in self._tables) or "none"
            raise TableNotFoundError(
                f"there is no rollout table {name!r}; the server has {known}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self._tables)

    def __len__(self) -> int:
        """Return how many tables there are."""
        return len(self._tables)

    def version(self) -> int:
        """Return the version that the learner has published last, in all tables.

        Where tables have several, it is the lowest: what they all have reached.

        Raises:
            RolloutError: The server has no rollout tables.
        """
        return common_version(self._tables.values())

    def publish_version(self, version: int) -> None:
        """Say that the learner has a later version of the policy, to all tables.

        Raises:
            RolloutError: It is below that of one of them, and none was told; or there are none.
        """
        publish_everywhere(self._tables.values(), version)

    def close(self, timeout: float | None = 5.0) -> None:
        """End the connection, once what was added without waiting has arrived.

        Reservations and leases end with their time to live.

        Raises:
            WaitTimeoutError: Something is still on its way; the connection is closed all the same.
            EchoicError: What the server said of a group whose reservation was not asked.
        """
        self._link.close(timeout)

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the connection."""
        self.close()

    def __repr__(self) -> str:
        """Say where the server is."""
        return f"RolloutClient({self.address!r}, tables={list(self._tables)})"


def connect(address: str | None = None, **options: Unpack[LinkOptions]) -> RolloutClient:
    """Connect to the rollout tables of a server.

    Args:
        address: ``tcp://host:port``, ``tls://host:port``, ``unix:///path`` or ``shm://name``; what
            the environment says when ``None``, see :mod:`echoic.rendezvous`.
        **options: How it is reached: those of :class:`~echoic.links.LinkOptions`.

    Examples:
        >>> from echoic import Server
        >>> from echoic.rollouts import RolloutTable, connect
        >>> table = RolloutTable("math", {"tokens": "int32"}, batch_groups=1)
        >>> with Server(table, listen="tcp://127.0.0.1:0") as server:
        ...     with connect(server.address) as client:
        ...         print(client["math"].reserve().add({"tokens": [1, 2, 3]}))
        ...     print(table.sample()["tokens"])
        complete
        [1 2 3]
    """
    if address is None:
        options = options_for(options)
        address = address_for("a client of rollouts", options.get("connect_timeout", 10.0))
    link = _native.connect_rollouts(address, link_options(**options))
    return RolloutClient(link)
