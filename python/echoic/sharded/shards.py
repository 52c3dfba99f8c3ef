"""The servers that hold tables together: which of them are there, and who comes next."""

from __future__ import annotations

import hashlib
import itertools
import operator
import random
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from echoic import _native
from echoic.errors import DisconnectedError, EchoicError, ShardWarning, WaitTimeoutError
from echoic.sharded.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from echoic.table_client import TableClient

    Key: TypeAlias = str | bytes | int
    Where: TypeAlias = list[str] | tuple[str, ...] | Callable[[], Iterable[str]]
    Connect: TypeAlias = Callable[[str, Mapping[str, Any]], TableClient]

__all__ = ["LOOK", "Shards", "deadline_in", "left_until", "warn"]

# How often a call that waits looks whether a shard went or came.
LOOK = 0.05
# How long a connection may take to say goodbye, when everything was delivered.
_GRACE = 5.0
# How often it is tried to reach a shard that has no connection which comes back by itself, and for
# how long.
_RETRY = 1.0

_T = TypeVar("_T")


class Shards:
    """All shards.

    Every call looks who is there, and warns when one went or came; nothing else watches them. A
    thread runs only while one of them has no connection that comes back by itself.

    Args:
        where: The addresses, or who knows them: asked at the start, and again while a shard is
            away, since it may come back at another address. A shard keeps its place.
        connect: Connects to one of them.
        options: Those of each connection.
        deadline: For how many seconds a call waits for a shard that it can't do without.
    """

    def __init__(
        self, where: Where, connect: Connect, options: Mapping[str, Any], deadline: float | None
    ) -> None:
        """Connect to all that can be reached; see the class for the arguments."""
        self._locate: Callable[[], Iterable[str]] | None = where if callable(where) else None
        addresses = list(where() if callable(where) else where)
        if not addresses or not all(isinstance(address, str) for address in addresses):
            raise ValueError(f"expected addresses of servers, got {addresses!r}")
        if len(set(addresses)) < len(addresses):
            raise ValueError(f"a shard is there twice: {addresses}")
        self.all = [Shard(number, address) for number, address in enumerate(addresses)]
        self.deadline = deadline
        # A connection tries for ever: a shard that comes back is used again, however late.
        self._options = {**options, "deadline": None}
        self._connect = connect
        # Called with a shard that has come back.
        self.on_return: list[Callable[[Shard], None]] = []
        # Keys of shards that were away, or have been since, in changes of items.
        self.dropped = 0
        # Who inserts little would otherwise always begin with the first.
        self._turns = itertools.count(random.randrange(len(addresses)))  # noqa: S311 - no secret
        # What keeps shards from being used, as far as it was said.
        self._complaints: set[str] = set()
        # Since when a call has found none.
        self._none_since: float | None = None
        # Guards who is there, and the thread.
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._mender: threading.Thread | None = None
        self._connect_all()

    def _connect_all(self) -> None:
        failed = self._join_all()
        found = [shard for shard in self.all if shard.client is not None]
        # One that can't be reached may come later; one that says no is a mistake of the caller.
        bad = [error for error in failed if not found or not isinstance(error, DisconnectedError)]
        try:
            if bad:
                raise bad[0]  # noqa: TRY301 - the connections are ended below
            for shard in found[1:]:
                _check_alike(shard, found[0])
        except BaseException:
            for shard in found:
                shard.leave()
            raise
        for shard in self.all:
            if shard.client is None:
                warn(f"{shard} can't be reached; it is used as soon as it can be")
        self.look()

    def _join_all(self) -> list[Exception]:
        """Connect to all of them at once; what went wrong."""
        failed: list[Exception] = []

        def join(shard: Shard) -> None:
            try:
                shard.join(self._connect(shard.address, self._options))
            except Exception as error:  # noqa: BLE001 - the caller raises it
                failed.append(error)

        with ThreadPoolExecutor(len(self.all)) as pool:
            list(pool.map(join, self.all))
        return failed

    # Who is there.

    def look(self) -> None:
        """Take note of who went and who came, and say so."""
        for shard in self.all:
            if shard.connected != shard.there:
                self._note(shard)
            elif not shard.there and self._mender is None and self._needs_mending(shard):
                self._mend()

    def _note(self, shard: Shard) -> None:
        with self._lock:
            there = shard.connected
            if there == shard.there or self._ended.is_set():
                return
            shard.there, seen = there, shard.seen
            shard.seen = seen or there
        if not there:
            kept = shard.pending
            waiting = f"; {kept} inserts wait for its return" if kept else ""
            warn(f"{shard} is away: its items can't be sampled{waiting}")
            return
        for tell in self.on_return:
            tell(shard)
        if seen:
            dropped = f"; so far {self.dropped} changes of items were dropped"
            warn(f"{shard} is back{dropped if self.dropped else ''}")

    def there(self) -> list[Shard]:
        """Those that can be used now."""
        self.look()
        return [shard for shard in self.all if shard.there]

    def wait_for_any(self, deadline: float | None) -> list[Shard]:
        """Those that can be used; waits while it is none.

        Raises:
            WaitTimeoutError: None was there in time.
            DisconnectedError: None was there for as long as a call may wait for one.
        """
        while not (there := self.there()):
            now = time.monotonic()
            # Many short calls wait together.
            since = self._none_since = self._none_since or now
            if deadline is not None and now >= deadline:
                error = WaitTimeoutError("timed out: all shards are away (AWAY)")
                error.reason = "AWAY"
                raise error
            if self.deadline is not None and now - since >= self.deadline:
                raise DisconnectedError(f"all shards were away for {self.deadline} s")
            time.sleep(LOOK / 5)
        self._none_since = None
        return there

    # Who comes next.

    def next(self) -> Shard | None:
        """The one whose turn it is, if it is there; only this one is looked at."""
        shard = self.all[next(self._turns) % len(self.all)]
        return shard if shard.there and shard.connected else None

    def candidates(self, key: Key | None) -> list[Shard]:
        """Those that an item may go to, the first choice first; of a key only one."""
        if key is not None:
            scored = sorted(self.all, key=lambda shard: _score(key, shard.number), reverse=True)
            self.look()
            return next(([shard] for shard in scored if shard.there), [])
        self.look()
        turn = next(self._turns) % len(self.all)
        return [shard for shard in self.all[turn:] + self.all[:turn] if shard.there]

    # Waiting for one.

    def patiently(
        self,
        shard: Shard,
        call: Callable[[float], _T],
        deadline: float | None,
        *,
        while_there: bool = False,
    ) -> _T | None:
        """Call until it does not time out, with timeouts that are short.

        Args:
            shard: Who it is about.
            call: Takes a timeout.
            deadline: When to give up.
            while_there: Whether to return when the shard is away, and not to wait for it.

        Raises:
            WaitTimeoutError: It was too late.
            DisconnectedError: The shard was away for as long as a call may wait for it.
        """
        away: float | None = None
        while True:
            left = left_until(deadline)
            try:
                return call(LOOK if left is None else min(LOOK, left))
            except WaitTimeoutError as error:
                now = time.monotonic()
                self.look()
                if while_there and not shard.connected:
                    return None
                away = None if shard.connected else away or now
                kept = shard.pending
                if deadline is not None and now >= deadline:
                    late = WaitTimeoutError(f"{shard}, which has {kept} inserts to do: {error}")
                    late.reason, late.stored = error.reason, error.stored
                    raise late from None
                patience = self.deadline
                if away is not None and patience is not None and now - away >= patience:
                    text = f"{shard} was away for {self.deadline} s; {kept} inserts wait for it"
                    gone = DisconnectedError(text)
                    gone.undelivered = kept
                    raise gone from None

    # Shards that have no connection, or another address.

    def _needs_mending(self, shard: Shard) -> bool:
        return not shard.connected and (shard.over or self._locate is not None)

    def _mend(self) -> None:
        with self._lock:
            if self._mender is None and not self._ended.is_set():
                self._mender = threading.Thread(
                    target=self._keep_mending, name="echoic-shards", daemon=True
                )
                self._mender.start()

    def _keep_mending(self) -> None:
        try:
            while not self._ended.is_set():
                self._mend_once()
                with self._lock:
                    if not any(self._needs_mending(shard) for shard in self.all):
                        return
                self._ended.wait(_RETRY)
        finally:
            # Also when a warning was made an error: whoever looks next begins anew.
            self._mender = None

    def _mend_once(self) -> None:
        addresses: dict[int, str] = {}
        if self._locate is not None:
            try:
                addresses = dict(enumerate(self._locate()))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is asked again
                self._complain(f"where the shards are could not be found out: {error}")
        for shard in self.all:
            if self._needs_mending(shard):
                self._try_to_mend(shard, addresses.get(shard.number, shard.address))

    def _try_to_mend(self, shard: Shard, address: str) -> None:
        if address != shard.address or shard.over:
            self.move(shard.number, address, patience=_RETRY)

    def move(self, number: int, address: str, patience: float | None = None) -> bool:
        """Look for a shard at another address; whether it was there.

        What its old connection had not delivered is lost.
        """
        shard = self.all[number]
        with self._lock:
            lost = shard.leave()
            shard.address = address
        if lost:
            warn(f"{shard} has another connection: {lost} inserts that the old one had are lost")
        options = dict(self._options)
        if patience is not None:
            options["connect_timeout"] = min(patience, options.get("connect_timeout", patience))
        try:
            client = self._connect(address, options)
        except DisconnectedError:
            return False
        except EchoicError as error:
            self._complain(f"{shard} can't be used: {error}")
            return False
        fresh = Shard(number, address)
        fresh.join(client)
        try:
            for other in self.all:
                if other is not shard and other.client is not None:
                    _check_alike(fresh, other)
        except ValueError as error:
            fresh.leave()
            self._complain(f"{shard} can't be used: {error}")
            return False
        with self._lock:
            if self._ended.is_set():
                fresh.leave()
                return False
            shard.join(client)
        return True

    def _complain(self, text: str) -> None:
        """Warn, but not every second of the same."""
        if text not in self._complaints:
            self._complaints.add(text)
            warn(text)

    # All together.

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was inserted before is in the tables of its shards."""
        deadline = deadline_in(timeout)
        # Those that are away may keep the others waiting, not the other way round.
        for shard in sorted(self.all, key=lambda shard: not shard.connected):
            client = shard.client
            if client is not None and shard.pending:
                self.patiently(shard, client.flush, deadline)

    def close(self, timeout: float | None = None) -> None:
        """Deliver what is left, and end."""
        self._ended.set()
        late: EchoicError | None = None
        try:
            self.flush(timeout)
        except EchoicError as error:
            late = error
        for shard in self.all:
            if shard.client is not None:
                try:
                    shard.client.close(0.0 if shard.pending else _GRACE)
                except EchoicError as error:
                    late = late or error
        mender = self._mender
        if mender is not None:
            mender.join()
        if late is not None:
            raise late

    def stats(self) -> dict[str, float]:
        """Return the numbers of all connections together."""
        total: dict[str, float] = {}
        for shard in self.all:
            for name, number in shard.stats().items():
                total[name] = total.get(name, 0) + number
        return {**total, "dropped_changes": self.dropped}


def left_until(deadline: float | None) -> float | None:
    """How many seconds there are until a deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def deadline_in(timeout: float | None) -> float | None:
    """When a timeout will have passed."""
    return None if timeout is None else time.monotonic() + timeout


def _check_alike(shard: Shard, other: Shard) -> None:
    """Refuse a shard whose tables are not like those of another."""
    if set(shard.tables) != set(other.tables):
        own, known = sorted(shard.tables), sorted(other.tables)
        raise ValueError(f"{shard} has the tables {own}, but {other} has {known}")
    for name, table in shard.tables.items():
        _native.Shards(2, 0).check([(other.tables[name], 0), (table, 0)])


def _score(key: Key, number: int) -> bytes:
    """How much a key wants a shard: the same in every process.

    When a shard goes, only its keys go to others, and to each of these alike (rendezvous hashing,
    Thaler and Ravishankar, 1998).
    """
    if isinstance(key, str):
        name = b"s" + key.encode()
    elif isinstance(key, bytes):
        name = b"b" + key
    else:
        try:
            name = b"i%d" % operator.index(key)
        except TypeError:
            kind = type(key).__name__
            raise TypeError(f"a shard_key is a str, bytes or an int, got a {kind}") from None
    return hashlib.blake2b(name, digest_size=8, salt=number.to_bytes(2, "little")).digest()


def warn(text: str) -> None:
    """Tell what became of a shard."""
    # With the time, since a text that was there before would not be shown again.
    warnings.warn(f"{time.strftime('%H:%M:%S')}: {text}", ShardWarning, stacklevel=3)
