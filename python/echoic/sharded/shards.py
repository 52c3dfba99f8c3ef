"""Track which of several servers are connected, and choose the next one."""

from __future__ import annotations

import hashlib
import itertools
import operator
import random
import threading
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from echoic import _native
from echoic._links import deadline_in, left_until
from echoic.errors import (
    ClosedError,
    DisconnectedError,
    EchoicError,
    ShardWarning,
    WaitTimeoutError,
)
from echoic.sharded.places import read_places
from echoic.sharded.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from echoic.connection import Connection
    from echoic.sharded.places import Named, Place, Where
    from echoic.sharded.table import ShardedTable

    Key: TypeAlias = str | bytes | int
    Connect: TypeAlias = Callable[[str, Mapping[str, Any]], Connection]

__all__ = ["LOOK", "Shards", "warn"]

# Seconds between two checks, in a call that waits, whether a shard went or came.
LOOK = 0.05
# Seconds that closing a connection may take when everything was delivered.
_GRACE = 5.0
# Seconds between two attempts to reach a shard whose connection is not restored by itself, and the
# timeout of one; also between two requests for the address of a shard that is away.
_RETRY = 1.0
# Seconds that a shard that moves may be away without a warning.
_MOVE = 3.0

_T = TypeVar("_T")


class Shards:
    """The shards of a client, their connections and their addresses.

    Every call checks which shards are connected, and warns if that changed. A thread runs while a
    shard has no connection that is restored by itself, and always if a function returns the
    addresses.

    Args:
        where: The addresses, or a function that returns them: called at the start, then every
            ``refresh`` seconds, and each second while a shard is away, since it may come back at
            another address. A shard keeps its position; new ones are added at the end.
        connect: Connects to one of them.
        options: The options of each connection.
            Its ``reconnect`` is the seconds that a call waits for a shard that it needs.
        refresh: Seconds between two calls for the addresses; ``None`` calls only while a shard is
            away.
    """

    def __init__(
        self,
        where: Where,
        connect: Connect,
        options: Mapping[str, Any],
        refresh: float | None = None,
    ) -> None:
        self._locate: Callable[[], Iterable[Named]] | None = where if callable(where) else None
        places = read_places(where() if callable(where) else where)
        # Replaced as a whole when one joins, so that readers need no lock.
        self.all = [_placed(number, place) for number, place in enumerate(places)]
        # Those that get inserts; replaced as a whole, too.
        self._takers: list[Shard] = []
        self.deadline: float | None = options["reconnect"]
        # A connection retries forever, whichever server is at the address meanwhile: a shard that
        # comes back is used again, however late, and gets what it had not acknowledged.
        self._options = {**options, "reconnect": None, "steadfast": True}
        self._connect = connect
        self._refresh = refresh
        # Called with a shard that has come back.
        self.on_return: list[Callable[[Shard], None]] = []
        # Changes of items that were dropped: their shards were away, or have been since.
        self.dropped = 0
        # Or clients that insert little would all begin with the first shard.
        self._turns = itertools.count(random.randrange(len(places)))
        # Reasons why shards can't be used that were already reported.
        self._complaints: set[str] = set()
        # Since when a call has found none.
        self._none_since: float | None = None
        # Guards which are there, and the thread.
        self._lock = threading.RLock()
        # Held while shards are connected or moved.
        self._reconnecting = threading.Lock()
        self._ended = threading.Event()
        # Ends a pause of the thread: a shard has gone, or the client is closed.
        self._gone = threading.Event()
        self._reconnector: threading.Thread | None = None
        self._connect_all()

    def _connect_all(self) -> None:
        failed = self._join_all()
        found = [shard for shard in self.all if shard.client is not None]
        # One that can't be reached may come later; a refusal is a mistake of the caller.
        bad = [error for error in failed if not found or not isinstance(error, DisconnectedError)]
        try:
            if bad:
                raise bad[0]
            for shard in found[1:]:
                _check_alike(shard, found[0])
        except BaseException:
            for shard in found:
                shard.leave()
            raise
        for shard in self.all:
            if shard.client is None and not shard.removed:
                self._complain(f"{shard} can't be reached; it is used as soon as it can be")
        self.look()
        if self._locate is not None:
            self._start_reconnecting()

    def _join_all(self) -> list[Exception]:
        """Connect to all of them at once; return the errors."""
        failed: list[Exception] = []

        def join(shard: Shard) -> None:
            try:
                shard.join(self._connect(shard.address, self._options))
            except Exception as error:  # the caller raises it
                failed.append(error)

        wanted = [shard for shard in self.all if not shard.removed]
        with ThreadPoolExecutor(len(wanted)) as pool:
            list(pool.map(join, wanted))
        return failed

    def check_open(self) -> None:
        """Raise ``ClosedError`` if the connection is closed."""
        if self._ended.is_set():
            raise ClosedError("the connection to the shards is closed")

    def leave_to_parent(self) -> None:
        """End it in a forked child: threads that it lacks may have the locks."""
        self._lock, self._ended, self._takers = threading.RLock(), threading.Event(), []
        self._ended.set()

    # Which are there.

    def look(self) -> None:
        """Note which shards went and came, and warn."""
        for shard in self.all:
            if shard.connected != shard.there:
                self._note(shard)
            elif not shard.there:
                if shard.seen and not shard.missed:
                    self._miss(shard)
                if self._reconnector is None and self._needs_reconnecting(shard):
                    self._start_reconnecting()

    def _note(self, shard: Shard) -> None:
        with self._lock:
            there = shard.connected
            if there == shard.there or self._ended.is_set():
                return
            shard.there = there
            if there:
                shard.seen, was_missed, shard.missed = True, shard.missed, False
                self._none_since = None
            self._count_takers()
        if not there:
            self._gone.set()
            self._miss(shard)
            return
        for call in self.on_return:
            call(shard)
        if was_missed:
            dropped = f"; so far {self.dropped} changes of items were dropped"
            warn(f"{shard} is back{dropped if self.dropped else ''}")

    def _miss(self, shard: Shard) -> None:
        """Warn that a shard is away, unless that was expected."""
        with self._lock:
            over = shard.removed or self._ended.is_set()
            if over or shard.missed or time.monotonic() < shard.quiet_until:
                return
            kept = shard.pending
            # A drained shard is missed only while it has inserts to acknowledge.
            if not kept and (shard.drained or shard.draining):
                return
            shard.missed = True
        if shard.closed:
            warn(f"a table of {shard} is closed: {kept} inserts can't be delivered there")
            return
        waiting = f"; {kept} inserts wait for its return" if kept else ""
        warn(f"{shard} is away: its items can't be sampled{waiting}")

    def there(self) -> list[Shard]:
        """Return those that can be used now."""
        self.look()
        return [shard for shard in self.all if shard.there]

    def wait_for_any(self, deadline: float | None, *, to_insert: bool = False) -> list[Shard]:
        """Return those that can be used; wait while there is none.

        Raises:
            WaitTimeoutError: If none was there in time.
            ClosedError: If the connection is closed, or tables of all of them are.
            DisconnectedError: If none was there within the ``deadline`` of all calls.
        """
        while True:
            self.check_open()
            there = [one for one in self.there() if one.takes or not to_insert]
            if there:
                break
            now = time.monotonic()
            # The time counts across many short calls.
            since = self._none_since = self._none_since or now
            drained = to_insert and any(one.there for one in self.all)
            kind = "all shards that take inserts" if drained else "all shards"
            left = [one for one in self.all if not one.removed and not (drained and one.there)]
            if left and all(one.closed for one in left):
                raise ClosedError(f"tables of {kind} are closed")
            if deadline is not None and now >= deadline:
                error = WaitTimeoutError(f"timed out: {kind} are away (AWAY)")
                error.reason = "AWAY"
                raise error
            if self.deadline is not None and now - since >= self.deadline:
                raise DisconnectedError(f"{kind} were away for {self.deadline} s")
            time.sleep(LOOK / 5)
        self._none_since = None
        return there

    # Which one is next.

    def next(self) -> Shard | None:
        """Return the one whose turn it is, if it is there; check no other."""
        takers = self._takers
        if not takers:
            return None
        shard = takers[next(self._turns) % len(takers)]
        return shard if shard.connected else None

    def candidates(self, key: Key | None) -> list[Shard]:
        """Return those that an item may go to, first choice first; with a key just one."""
        if key is not None:
            scored = sorted(self.all, key=lambda shard: _score(key, shard.number), reverse=True)
            self.look()
            return next(([shard] for shard in scored if shard.takes), [])
        self.look()
        takers = self._takers
        at = next(self._turns) % max(1, len(takers))
        return takers[at:] + takers[:at]

    def _count_takers(self) -> None:
        """Note which of them get inserts."""
        with self._lock:
            self._takers = [shard for shard in self.all if shard.takes]

    def lend(self, key: Key | None, timeout: float | None) -> list[Any]:
        """Return the tables of the shard whose turn it is, or that a key belongs to."""
        if key is None:
            self.wait_for_any(deadline_in(timeout), to_insert=True)
        shard = (self.next() if key is None else None) or next(iter(self.candidates(key)), None)
        if shard is None or shard.client is None:
            raise DisconnectedError("the shard that a vector_writer is for is away")
        shard.lent = True
        return list(shard.tables.values())

    # Wait for one.

    def patiently(
        self,
        shard: Shard,
        call: Callable[[float], _T],
        deadline: float | None,
        *,
        while_there: bool = False,
    ) -> _T | None:
        """Call repeatedly, with short timeouts, until it does not time out.

        Args:
            shard: The shard that the call needs.
            call: Takes a timeout.
            deadline: When to give up.
            while_there: Whether to return when the shard is away, instead of waiting for it.

        Raises:
            WaitTimeoutError: If the deadline passed.
            ClosedError: If a table that inserts wait for is closed there.
            DisconnectedError: If the shard was away for longer than ``self.deadline``.
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
                if shard.closed and not shard.removed:
                    text = f"a table of {shard} is closed; {shard.pending} inserts wait for it"
                    raise ClosedError(text) from None
                away = None if shard.reaches else away or now
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

    # Shards without a connection, with another address, or removed.

    def _needs_reconnecting(self, shard: Shard) -> bool:
        if shard.removed:
            return shard.client is not None and (not shard.lent or shard.pending > 0)
        # Report when another server answers at this address.
        return shard.over or (not shard.connected and not shard.closed and bool(shard.trouble))

    def _start_reconnecting(self) -> None:
        with self._lock:
            if self._reconnector is None and not self._ended.is_set():
                self._reconnector = threading.Thread(
                    target=_keep_reconnecting,
                    args=(weakref.ref(self), self._ended, self._gone),
                    name="echoic-shards",
                    daemon=True,
                )
                self._reconnector.start()

    def reconnect(self) -> float | None:
        """Connect and move shards as needed; return the seconds to the next check, if any."""
        self.refresh()
        with self._lock:
            away = any(not shard.connected and not shard.removed for shard in self.all)
            if any(self._needs_reconnecting(shard) for shard in self.all):
                return _RETRY
            if self._locate is not None and away:
                return _RETRY
            if self._locate is not None and self._refresh is not None:
                # Not all clients at the same moment.
                return self._refresh * random.uniform(0.75, 1.25)
            # The next call that finds one away starts it again.
            self._reconnector = None
            return None

    def note_thread_ended(self) -> None:
        """Let the next call start the thread again."""
        self._reconnector = None

    def refresh(self) -> None:
        """Ask for the addresses, if a function knows them, and apply them."""
        with self._reconnecting:
            if self._locate is not None:
                try:
                    self._adopt(read_places(self._locate()))
                except Exception as error:  # whatever it is, it is tried again
                    self._complain(f"can't find out where the shards are: {error}")
            for shard in self.all:
                if self._ended.is_set():
                    return
                self._tend(shard)
        self.look()

    def _adopt(self, places: list[Place]) -> None:
        """Apply new addresses. Shards that are not named stay as they are."""
        for number, place in enumerate(places):
            if number == len(self.all):
                shard = _placed(number, place)
                with self._lock:
                    self.all = [*self.all, shard]
                continue
            shard = self.all[number]
            shard.draining = place.draining
            self._count_takers()
            if place.address is None:
                self._strike(shard)
            elif shard.removed or place.address != shard.address:
                self._follow(shard, place.address)

    def _follow(self, shard: Shard, address: str) -> None:
        """Set a shard's address."""
        with self._lock:
            shard.redirect(address)
            if shard.there:
                shard.quiet_until = time.monotonic() + _MOVE
            shard.address, shard.removed = address, False

    def _strike(self, shard: Shard) -> None:
        """Remove a shard."""
        with self._lock:
            shard.removed, shard.there, shard.missed, shard.address = True, False, False, ""
            self._count_takers()

    def _tend(self, shard: Shard) -> None:
        """Connect a shard, if it needs that."""
        if shard.removed:
            self._wind_up(shard)
        elif shard.over:
            self._join(shard, _RETRY)
        elif not shard.connected and not shard.closed and (trouble := shard.trouble) is not None:
            self._complain(f"{shard} can't be used: {trouble}")

    def _wind_up(self, shard: Shard) -> None:
        """Send what a removed shard had not acknowledged to another."""
        if shard.client is None or (shard.arrived and shard.pending):
            return
        if shard.pending or shard.lent:
            heir = next((one for one in self.all if one.takes), None)
            if heir is not None and not shard.arrived:
                shard.redirect(heir.address)
            return
        with self._lock:
            if not shard.pending:
                shard.leave()

    def _join(self, shard: Shard, patience: float | None = None) -> bool:
        """Connect to a shard without a connection; return whether it can be used."""
        with self._lock:
            lost = shard.leave()
        if lost:
            warn(f"{shard} has another connection: {lost} inserts that the old one had are lost")
        options = dict(self._options)
        if patience is not None:
            options["timeout"] = min(patience, options.get("timeout", patience))
        try:
            client = self._connect(shard.address, options)
        except DisconnectedError:
            if not shard.seen:
                self._complain(f"{shard} can't be reached; it is used as soon as it can be")
            return False
        except (EchoicError, OSError, ValueError) as error:
            self._complain(f"{shard} can't be used: {error}")
            return False
        fresh = Shard(shard.number, shard.address)
        fresh.join(client)
        try:
            for other in self.all:
                if other is not shard and other.client is not None:
                    _check_alike(fresh, other)
        except (EchoicError, ValueError) as error:
            fresh.leave()
            self._complain(f"{shard} can't be used: {error}")
            return False
        with self._lock:
            if self._ended.is_set():
                fresh.leave()
                return False
            shard.join(client)
        return True

    # What callers set.

    def numbered(self, number: int) -> Shard:
        """Return a shard."""
        if not 0 <= number < len(self.all):
            raise IndexError(f"expected a shard below {len(self.all)}, got {number}")
        return self.all[number]

    def move(self, number: int, address: str) -> bool:
        """Set a shard's address; return whether it is there.

        Inserts that it had not acknowledged are sent there.
        """
        moved = self._move(self.numbered(number), address)
        self.look()
        return moved

    def _move(self, shard: Shard, address: str) -> bool:
        with self._reconnecting:
            self._follow(shard, address)
            if shard.over:
                return self._join(shard)
        timeout = self._options.get("timeout", _RETRY)
        deadline = time.monotonic() + timeout
        while not shard.arrived and time.monotonic() < deadline:
            if shard.trouble is not None:
                self._start_reconnecting()
                return False
            time.sleep(LOOK / 5)
        return shard.arrived

    def drain(self, number: int, drained: bool) -> None:
        """Send no more inserts to a shard, or send them again."""
        self.numbered(number).drained = drained
        self._count_takers()

    def remove(self, number: int) -> None:
        """Remove a shard; send what it had not acknowledged to another."""
        shard = self.numbered(number)
        if not any(one.there for one in self.all if one is not shard):
            raise ValueError(f"no other shard is there, so shard {number} can't be removed")
        with self._reconnecting:
            self._strike(shard)
            self._wind_up(shard)
        self._start_reconnecting()

    def _complain(self, text: str) -> None:
        """Warn, but only once of the same."""
        if text not in self._complaints:
            self._complaints.add(text)
            warn(text)

    # All shards.

    def make_tables(self, seed: int | None) -> list[ShardedTable]:
        """Make the tables that are spread over the shards."""
        from echoic.sharded.table import ShardedTable

        names = next(shard.tables for shard in self.all if shard.client is not None)
        return [
            ShardedTable(name, self, None if seed is None else seed + number)
            for number, name in enumerate(names)
        ]

    def named(self) -> list[Named]:
        """Return the addresses, as a list of them is given."""
        return [
            (one.address, "draining")
            if one.address and (one.drained or one.draining)
            else one.address
            for one in self.all
        ]

    def checkpoint(self, timeout: float | None) -> dict[str, Path]:
        """Write a checkpoint on every shard that is there; a warning names the others."""
        deadline = deadline_in(timeout)
        written: dict[str, Path] = {}
        self.look()
        for shard in self.all:
            try:
                if shard.there and shard.client is not None:
                    written[shard.address] = shard.client._link.checkpoint(left_until(deadline))
                    continue
            except (DisconnectedError, ClosedError):
                # It went away during the call.
                pass
            if not shard.removed:
                warn(f"{shard} is away, so no checkpoint was written there")
        return written

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was inserted before is in the tables of its shards."""
        deadline = deadline_in(timeout)
        if any(shard.removed and shard.pending for shard in self.all):
            self._start_reconnecting()
        # Shards that are away last, so that they do not delay the others.
        for shard in sorted(self.all, key=lambda shard: not shard.reaches):
            client = shard.client
            if client is not None and shard.pending:
                self.patiently(shard, client.flush, deadline)

    def close(self, timeout: float | None = None) -> None:
        """Deliver what is left, and close the connections."""
        if not self._ended.is_set():
            with self._reconnecting:
                for shard in self.all:
                    if shard.removed:
                        self._wind_up(shard)
        self._ended.set()
        self._gone.set()
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
        reconnector = self._reconnector
        if reconnector is not None:
            reconnector.join()
        if late is not None:
            raise late

    def stats(self) -> dict[str, float]:
        """Return the sums of all connections' numbers."""
        total: dict[str, float] = {}
        for shard in self.all:
            for name, number in shard.stats().items():
                total[name] = total.get(name, 0) + number
        return {**total, "dropped_changes": self.dropped}


def _placed(number: int, place: Place) -> Shard:
    """Make a shard from its address."""
    shard = Shard(number, place.address or "")
    shard.removed, shard.draining = place.address is None, place.draining
    return shard


def _keep_reconnecting(
    reference: weakref.ref[Shards], ended: threading.Event, gone: threading.Event
) -> None:
    """Run in the thread. It keeps no reference: a client that is no longer used ends it."""
    while (shards := reference()) is not None and not ended.is_set():
        try:
            pause = shards.reconnect()
        except BaseException:
            # A warning was raised as an error. The next call starts the thread again.
            shards.note_thread_ended()
            raise
        if pause is None:
            return
        del shards
        gone.wait(min(pause, threading.TIMEOUT_MAX))
        gone.clear()


def _check_alike(shard: Shard, other: Shard) -> None:
    """Raise an error if a shard's tables differ from another's."""
    if set(shard.tables) != set(other.tables):
        own, known = sorted(shard.tables), sorted(other.tables)
        raise ValueError(f"{shard} has the tables {own}, but {other} has {known}")
    for name, table in shard.tables.items():
        _native.Shards(2, 0).check([(other.tables[name], 0), (table, 0)])


def _score(key: Key, number: int) -> bytes:
    """Return a shard's score for a key; the same in every process, and the highest wins.

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
            raise TypeError(f"shard_key: expected a str, bytes or an int, got a {kind}") from None
    return hashlib.blake2b(name, digest_size=8, salt=number.to_bytes(2, "little")).digest()


def warn(text: str) -> None:
    """Issue a ``ShardWarning``."""
    # With the time, since Python shows the same text only once.
    warnings.warn(f"{time.strftime('%H:%M:%S')}: {text}", ShardWarning, stacklevel=3)
