"""Serve tables at a port, as Reverb's server does.

By default only processes on the same machine can connect. Set ``ECHOIC_REVERB_HOST`` to listen at
another interface, ``0.0.0.0`` for all, and ``ECHOIC_REVERB_TOKEN`` to a secret that clients must
have as well; an interface that other machines can reach needs one.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from echoic import Checkpointer as EngineCheckpointer
from echoic import Server as EngineServer
from echoic import _native, connect
from echoic.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from echoic import Connection
    from echoic.reverb._engine.table import Table

__all__ = [
    "Checkpointer",
    "Server",
    "create_default_checkpointer",
    "server_of_this_process",
    "stopped_in_this_process",
]

_log = logging.getLogger(__name__)

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1", "0.0.0.0"})

# Servers of this process, by process and port: a forked child has none.
_servers: weakref.WeakValueDictionary[tuple[int, int], Server] = weakref.WeakValueDictionary()

# Ports of servers of this process that were stopped, until another one takes the port.
_stopped: set[tuple[int, int]] = set()


def token() -> str | None:
    """Return the secret of servers and clients."""
    return os.environ.get("ECHOIC_REVERB_TOKEN") or None


def server_of_this_process(host: str, port: int) -> Server | None:
    """Return the server that listens there, if it is in this process."""
    return _servers.get((os.getpid(), port)) if host in _LOCAL_HOSTS else None


def stopped_in_this_process(host: str, port: int) -> bool:
    """Return whether the last server of this process that listened there was stopped."""
    return host in _LOCAL_HOSTS and (os.getpid(), port) in _stopped


class Checkpointer:
    """Where checkpoints are written, and which one a server starts from."""

    def __init__(self, root_dir: str, group: str, fallback: str | None = None) -> None:
        self.group = group
        path = Path(root_dir)
        self._text = f"EchoicCheckpointer(root_dir={root_dir}, group={group})"
        # A path that `Client.checkpoint` returned; its parent has the other checkpoints.
        self.load = path if (path / "manifest.json").is_file() else None
        self.root = path.parent if self.load else path
        if self.load is None:
            self.root = _own_folder(path)
            known = _native.list_checkpoints(self.root)
            self.load = known[-1] if known else None
        if self.load is None and fallback is not None:
            if (Path(fallback) / "manifest.json").is_file():
                self.load = Path(fallback)
            else:
                _log.warning("the fallback checkpoint %s is missing, or not ours", fallback)

    def setting(self) -> EngineCheckpointer | None:
        """Return the setting for our server; ``None`` for a group, which is not supported."""
        return None if self.group else EngineCheckpointer(self.root, keep=1, load=False)

    def __repr__(self) -> str:
        return self._text


def _own_folder(path: Path) -> Path:
    """Return a directory for our checkpoints alone: the path itself, or one below other files."""
    try:
        entries = {entry.name for entry in path.iterdir()}
    except FileNotFoundError:
        return path
    return path if not entries or "echoic-checkpoints.lock" in entries else path / "echoic"


create_default_checkpointer = Checkpointer


class Server:
    """Serve tables at a port; 0 chooses a free one."""

    def __init__(
        self, priority_tables: Sequence[Table], port: int, checkpointer: Checkpointer | None = None
    ) -> None:
        self._checkpointer = checkpointer
        self._made = list(priority_tables)
        host = os.environ.get("ECHOIC_REVERB_HOST", "127.0.0.1")
        self._server = EngineServer(
            *[table.table for table in priority_tables],
            listen=f"tcp://{host}:{operator.index(port)}",
            token=token(),
            checkpointer=None if checkpointer is None else checkpointer.setting(),
        )
        # It needs no connection.
        self.tables: Connection = connect(self._server)
        self._stopped = threading.Event()
        try:
            if checkpointer is not None and checkpointer.load is not None:
                self._load(checkpointer.load)
            self._server.start()
        except BaseException:
            self._server.close(0.0)
            raise
        self.port = int(self._server.address.rpartition(":")[2])
        _servers[os.getpid(), self.port] = self
        _stopped.discard((os.getpid(), self.port))

    def _load(self, path: Path) -> None:
        known = self.tables.tables
        for saved in _native.open_checkpoint(path):
            if saved.name not in known:
                raise ValueError(
                    f"Trying to load table '{saved.name}' but table was not found in provided list "
                    "of tables."
                )
        try:
            self._server._load(path)
        except CheckpointError as error:
            raise ValueError(f"can't load the checkpoint {path}: {error}") from error

    def check_checkpoints(self) -> None:
        """Raise an error if the checkpointer has a group."""
        if self._checkpointer is not None and self._checkpointer.group:
            raise ValueError("Setting non-empty group is not supported")

    def Stop(self) -> None:
        """Stop the server, and end all waiting calls."""
        # Another server may have taken the port since this one was first stopped.
        if _servers.get((os.getpid(), self.port)) is self:
            del _servers[os.getpid(), self.port]
            _stopped.add((os.getpid(), self.port))
        self._server.close(0.0)
        self._stopped.set()

    def Wait(self) -> bool:
        """Wait until the server was stopped; a signal raises what its handler raises."""
        self._stopped.wait()
        return False

    def __repr__(self) -> str:
        return (
            f"Server(port={self.port}, reverb_service=Echoic(tables={self._made!r}, "
            f"checkpointer={self._checkpointer!r}))"
        )
