"""The servers that hold tables together: which of them are there, and who comes next."""

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

    from echoic.sharded.places import Named, Place, Where
    from echoic.table_client import TableClient

    Key: TypeAlias = str | bytes | int
    Connect: TypeAlias = Callable[[str, Mapping[str, Any]], TableClient]

__all__ = ["LOOK", "Shards", "deadline_in", "left_until", "warn"]

# How often a call that waits looks whether a shard went or came.
LOOK = 0.05
# How long a connection may take to say goodbye, when everything was delivered.
_GRACE = 5.0
# How often it is tried to reach a shard that has no connection which comes back by itself, and for
# how long; so often is asked where a shard is that is away.
_RETRY = 1.0
# For how long a shard that moves may be away without a warning.
_MOVE = 3.0

_T = TypeVar("_T")


class Shards:
    """All shards.

    Every call looks who is there, and warns when one went or came; nothing else watches them. A
    thread runs while one of them has no connection that comes back by itself, and always when
    somebody can be asked where they are.

    Args:
        where: The addresses, or who knows them: asked at the start, then once in a while, and each
            second while a shard is away, since it may come back at another address. A shard keeps
            its place; new ones join at the end.
        connect: Connects to one of them.
        options: Those of each connection.
        deadline: For how many seconds a call waits for a shard that it can't do without.
        refresh: How many seconds to wait before asking again where they are; they are asked for
            only while one is away when ``None``.
    """

    def __init__(
        self,
        where: Where,
        connect: Connect,
        options: Mapping[str, Any],
        deadline: float | None,
        refresh: float | None = None,
    ) -> None:
        """Connect to all that can be reached; see the class for the arguments."""
        self._locate: Callable[[], Iterable[Named]] | None = where if callable(where) else None
        places = read_places(where() if callable(where) else where)
        # Replaced as a whole when one joins, so that who goes through it need not stop the others.
        self.all = [_placed(number, place) for number, place in enumerate(places)]
        # Those that items may be inserted into; replaced as a whole, too.
        self._takers: list[Shard] = []
        self.deadline = deadline
        # A connection tries for ever, whoever is at the address meanwhile: a shard that comes back
        # is used again, however late, and is given what it had not acknowledged.
        self._options = {**options, "deadline": None, "steadfast": True}
        self._connect = connect
        self._refresh = refresh
        # Called with a shard that has come back.
        self.on_return: list[Callable[[Shard], None]] = []
        # Keys of shards that were away, or have been since, in changes of items.
        self.dropped = 0
        # Who inserts little would otherwise always begin with the first.
        self._turns = itertools.count(random.randrange(len(places)))  # noqa: S311 - no secret
        # What keeps shards from being used, as far as it was said.
        self._complaints: set[str] = set()
        # Since when a call has found none.
        self._none_since: float | None = None
        # Guards who is there, and the thread.
        self._lock = threading.RLock()
        # Held by who brings the shards to where they are said to be.
        self._mending = threading.Lock()
        self._ended = threading.Event()
        # Ends a pause of the thread: a shard has gone, or the client is closed.
        self._gone = threading.Event()
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
            if shard.client is None and not shard.removed:
                self._complain(f"{shard} can't be reached; it is used as soon as it can be")
        self.look()
        if self._locate is not None:
            self._mend()

    def _join_all(self) -> list[Exception]:
        """Connect to all of them at once; what went wrong."""
        failed: list[Exception] = []

        def join(shard: Shard) -> None:
            try:
                shard.join(self._connect(shard.address, self._options))
            except Exception as error:  # noqa: BLE001 - the caller raises it
                failed.append(error)

        wanted = [shard for shard in self.all if not shard.removed]
        with ThreadPoolExecutor(len(wanted)) as pool:
            list(pool.map(join, wanted))
        return failed

    # Who is there.

    def look(self) -> None:
        """Take note of who went and who came, and say so."""
        for shard in self.all:
            if shard.connected != shard.there:
                self._note(shard)
            elif not shard.there:
                if shard.seen and not shard.missed:
                    self._miss(shard)
                if self._mender is None and self._needs_mending(shard):
                    self._mend()

    def _note(self, shard: Shard) -> None:
        with self._lock:
            there = shard.connected
            if there == shard.there or self._ended.is_set():
                return
            shard.there = there
            if there:
                shard.seen, told, shard.missed = True, shard.missed, False
            self._count_takers()
        if not there:
            self._gone.set()
            self._miss(shard)
            return
        for tell in self.on_return:
            tell(shard)
        if told:
            dropped = f"; so far {self.dropped} changes of items were dropped"
            warn(f"{shard} is back{dropped if self.dropped else ''}")

    def _miss(self, shard: Shard) -> None:
        """Say that a shard is away, unless nobody need know."""
        with self._lock:
            over = shard.removed or self._ended.is_set()
            if over or shard.missed or time.monotonic() < shard.quiet_until:
                return
            kept = shard.pending
            # Nothing is expected of one that is drained, but for what it has not taken yet.
            if not kept and (shard.drained or shard.draining):
                return
            shard.missed = True
        if shard.closed:
            warn(f"a table of {shard} is closed: {kept} inserts can't be delivered there")
            return
        waiting = f"; {kept} inserts wait for its return" if kept else ""
        warn(f"{shard} is away: its items can't be sampled{waiting}")

    def there(self) -> list[Shard]:
        """Those that can be used now."""
        self.look()
        return [shard for shard in self.all if shard.there]

    def wait_for_any(self, deadline: float | None, *, to_insert: bool = False) -> list[Shard]:
        """Those that can be used; waits while it is none.

        Raises:
            WaitTimeoutError: None was there in time.
            ClosedError: Tables of all of them are closed.
            DisconnectedError: None was there for as long as a call may wait for one.
        """
        while not (there := [one for one in self.there() if one.takes or not to_insert]):
            now = time.monotonic()
            # Many short calls wait together.
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

    # Who comes next.

    def next(self) -> Shard | None:
        """The one whose turn it is, if it is there; only this one is looked at."""
        takers = self._takers
        if not takers:
            return None
        shard = takers[next(self._turns) % len(takers)]
        return shard if shard.connected else None

    def candidates(self, key: Key | None) -> list[Shard]:
        """Those that an item may go to, the first choice first; of a key only one."""
        if key is not None:
            scored = sorted(self.all, key=lambda shard: _score(key, shard.number), reverse=True)
            self.look()
            return next(([shard] for shard in scored if shard.takes), [])
        self.look()
        takers = self._takers
        at = next(self._turns) % max(1, len(takers))
        return takers[at:] + takers[:at]

    def _count_takers(self) -> None:
        """Take note of which of them items may be inserted into."""
        with self._lock:
            self._takers = [shard for shard in self.all if shard.takes]

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
            ClosedError: A table that inserts wait for is closed there.
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

    # Shards that have no connection, or another address, or are no more.

    def _needs_mending(self, shard: Shard) -> bool:
        if shard.removed:
            return shard.client is not None and (not shard.lent or shard.pending > 0)
        # Of who is at its address instead, somebody should hear.
        return shard.over or (not shard.connected and not shard.closed and bool(shard.trouble))

    def _mend(self) -> None:
        with self._lock:
            if self._mender is None and not self._ended.is_set():
                self._mender = threading.Thread(
                    target=_keep_mending,
                    args=(weakref.ref(self), self._ended, self._gone),
                    name="echoic-shards",
                    daemon=True,
                )
                self._mender.start()

    def mend(self) -> float | None:
        """Bring the shards to where they are; in how many seconds to look again, if at all."""
        self.refresh()
        with self._lock:
            away = any(not shard.connected and not shard.removed for shard in self.all)
            if any(self._needs_mending(shard) for shard in self.all):
                return _RETRY
            if self._locate is not None and away:
                return _RETRY
            if self._locate is not None and self._refresh is not None:
                # Not all clients at the same moment.
                return self._refresh * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
            # Whoever looks next and finds one away begins anew.
            self._mender = None
            return None

    def note_mender_gone(self) -> None:
        """Have whoever looks next begin anew."""
        self._mender = None

    def refresh(self) -> None:
        """Ask where the shards are, if somebody knows, and follow them there."""
        with self._mending:
            if self._locate is not None:
                try:
                    self._adopt(read_places(self._locate()))
                except Exception as error:  # noqa: BLE001 - whatever it is, it is asked again
                    self._complain(f"where the shards are could not be found out: {error}")
            for shard in self.all:
                if self._ended.is_set():
                    return
                self._tend(shard)
        self.look()

    def _adopt(self, places: list[Place]) -> None:
        """Take over what is said of the shards. Of those that are not named nothing changes."""
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
        """Find a shard at this address from now on."""
        with self._lock:
            shard.redirect(address)
            if shard.there:
                shard.quiet_until = time.monotonic() + _MOVE
            shard.address, shard.removed = address, False

    def _strike(self, shard: Shard) -> None:
        """Count a shard no more."""
        with self._lock:
            shard.removed, shard.there, shard.missed, shard.address = True, False, False, ""
            self._count_takers()

    def _tend(self, shard: Shard) -> None:
        """Do what a shard needs, if it does."""
        if shard.removed:
            self._wind_up(shard)
        elif shard.over:
            self._join(shard, _RETRY)
        elif not shard.connected and not shard.closed and (trouble := shard.trouble) is not None:
            self._complain(f"{shard} can't be used: {trouble}")

    def _wind_up(self, shard: Shard) -> None:
        """Have another shard take what one that is no more had not acknowledged."""
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
        """Make a connection to a shard that has none; whether it can be used."""
        with self._lock:
            lost = shard.leave()
        if lost:
            warn(f"{shard} has another connection: {lost} inserts that the old one had are lost")
        options = dict(self._options)
        if patience is not None:
            options["connect_timeout"] = min(patience, options.get("connect_timeout", patience))
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

    # What their users say of them.

    def move(self, number: int, address: str) -> bool:
        """Find a shard at another address from now on; whether it is there.

        What it had not acknowledged goes to there.
        """
        shard = self.all[number]
        with self._mending:
            self._follow(shard, address)
            if shard.over:
                return self._join(shard)
        timeout = self._options.get("connect_timeout", _RETRY)
        deadline = time.monotonic() + timeout
        while not shard.arrived and time.monotonic() < deadline:
            if shard.trouble is not None:
                self._mend()
                return False
            time.sleep(LOOK / 5)
        return shard.arrived

    def drain(self, number: int, drained: bool) -> None:
        """Let no more inserts go to a shard, or let them again."""
        self.all[number].drained = drained
        self._count_takers()

    def remove(self, number: int) -> None:
        """Count a shard no more; what it had not acknowledged goes to another."""
        if not any(one.there for one in self.all if one.number != number):
            raise ValueError(f"no other shard is there, so shard {number} can't be removed")
        with self._mending:
            self._strike(self.all[number])
            self._wind_up(self.all[number])
        self._mend()

    def _complain(self, text: str) -> None:
        """Warn, but not every second of the same."""
        if text not in self._complaints:
            self._complaints.add(text)
            warn(text)

    # All together.

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was inserted before is in the tables of its shards."""
        deadline = deadline_in(timeout)
        if any(shard.removed and shard.pending for shard in self.all):
            self._mend()
        # Those that are away may keep the others waiting, not the other way round.
        for shard in sorted(self.all, key=lambda shard: not shard.reaches):
            client = shard.client
            if client is not None and shard.pending:
                self.patiently(shard, client.flush, deadline)

    def close(self, timeout: float | None = None) -> None:
        """Deliver what is left, and end."""
        if not self._ended.is_set():
            with self._mending:
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


def _placed(number: int, place: Place) -> Shard:
    """A shard as it is said to be."""
    shard = Shard(number, place.address or "")
    shard.removed, shard.draining = place.address is None, place.draining
    return shard


def _keep_mending(
    reference: weakref.ref[Shards], ended: threading.Event, gone: threading.Event
) -> None:
    """The thread's life. It keeps nothing alive: a client that nobody has any more ends it."""
    while (shards := reference()) is not None and not ended.is_set():
        try:
            pause = shards.mend()
        except BaseException:
            # A warning was made an error. Whoever looks next begins anew.
            shards.note_mender_gone()
            raise
        if pause is None:
            return
        del shards
        gone.wait(min(pause, threading.TIMEOUT_MAX))
        gone.clear()


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
