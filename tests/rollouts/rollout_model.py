"""What a rollout table should do, by lists and loops: the rules of the guide, as plain as they are.

Its calls return what a table's calls should, or `BLOCKED` where one would wait. It has no clock:
leases and reservations end by `expire_lease` and `expire`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BLOCKED = "blocked"
# What became of a group that no batch will have, or no other batch.
OVER = {"rejected", "expired", "stale", "filtered", "over"}


@dataclass
class Item:
    """Tokens of an answer, by the versions that made them."""

    versions: list[int] = field(default_factory=list)
    segments: int = 0
    finished: bool = False
    # The value of its field, and of its column for all tokens; `None` until it comes.
    reward: float | None = None
    score: float | None = None

    @property
    def whole(self) -> bool:
        """Whether it has its end, and all values that may come late."""
        return self.finished and self.reward is not None and not self.lacks_score

    @property
    def lacks_score(self) -> bool:
        """Whether its tokens have no values of the column yet."""
        return self.score is None and bool(self.versions)


@dataclass
class Group:
    """A group: `status` is "running", "suspended", "complete", "out", or one of `OVER`."""

    number: int
    dispatched: int
    status: str = "running"
    # The reservation that it is made with.
    holder: int = 0
    items: dict[int, Item] = field(default_factory=dict)
    # Which group it was to be complete.
    place: int = 0

    @property
    def open(self) -> bool:
        """Whether it may still be complete."""
        return self.status in ("running", "suspended")

    @property
    def whole(self) -> list[Item]:
        """The items that are whole, in their order."""
        return [item for _, item in sorted(self.items.items()) if item.whole]

    @property
    def tokens(self) -> int:
        """Tokens of the items that are whole."""
        return sum(len(item.versions) for item in self.whole)

    def oldest(self, *, of_whole: bool) -> int | None:
        """The version of its oldest token."""
        items = self.whole if of_whole else self.items.values()
        return min((min(item.versions) for item in items if item.versions), default=None)


@dataclass
class Share:
    """A rank's part of a batch: `state` is "waiting", "out" or "over"."""

    state: str = "waiting"
    attempt: int = 0
    groups: list[int] | None = None


@dataclass
class Batch:
    """A batch, until all of its shares are over."""

    number: int
    target: int
    size: tuple[str, int]
    groups: list[int]
    shares: list[Share]
    used: bool = False
    lost: int = 0


@dataclass
class Settings:
    """Arguments of a table that the model knows."""

    group_size: int = 2
    redundancy: int = 0
    batch_groups: int = 2
    batches_per_version: int = 1
    max_lag: int | None = None
    pipeline_depth: int | None = None
    target_lag: int | None = None
    max_running: int = 8
    capacity: int = 64
    order: str = "ready"
    on_expiry: str = "reject"
    delivery: str = "at_least_once"
    filter: str | None = None
    late: tuple[str, ...] = ()


class Model:
    """See the module."""

    def __init__(self, settings: Settings, ranks: int) -> None:
        self.settings, self.ranks = settings, ranks
        self.per_version = settings.batch_groups * settings.batches_per_version
        self.depth = (
            settings.max_lag if settings.pipeline_depth is None else settings.pipeline_depth
        )
        self.version = self.target = self.taken = self.offset = 0
        self.paused = False
        self.groups: dict[int, Group] = {}
        self.batches: dict[int, Batch] = {}
        self.last_holder = self.places = 0
        names = (
            "submitted accepted rejected filtered expired stale removed surplus batches delivered"
        )
        names += (
            " delivered_tokens acked returned redelivered lost expired_leases resumed fenced tokens"
        )
        self.counts = dict.fromkeys(names.split(), 0)

    def stats(self) -> dict[str, int]:
        """What `stats()` of the table should have."""
        statuses = [group.status for group in self.groups.values()]
        return {
            **self.counts,
            "running": statuses.count("running") + statuses.count("suspended"),
            "suspended": statuses.count("suspended"),
            "queued": statuses.count("complete"),
            "leased": statuses.count("out"),
            "version": self.version,
            "target": self.target,
            "room": self.room(),
            "overdue": 0,
        }

    # Producers.

    def room(self) -> int:
        """How many groups may be reserved."""
        settings = self.settings
        running = sum(group.open for group in self.groups.values())
        there = running + sum(group.status in ("complete", "out") for group in self.groups.values())
        room = min(settings.max_running - running, settings.capacity - there)
        if self.depth is not None:
            most = (self.depth + self.version + 1) * self.per_version
            room = min(room, most - max(self.counts["accepted"] + self.offset, 0) - running)
            # What begins now would be too old already.
            if self.is_stale(self.version):
                room = 0
        return 0 if self.paused else max(room, 0)

    def reserve(self, numbers: list[int], version: int | None) -> list[int]:
        """Reserve groups of these numbers; returns their holders."""
        holders = []
        for number in numbers:
            assert number not in self.groups, f"group {number} was reserved twice"
            self.last_holder += 1
            dispatched = self.version if version is None else version
            self.groups[number] = Group(number, dispatched, holder=self.last_holder)
            self.counts["submitted"] += 1
            holders.append(self.last_holder)
        return holders

    def resume(self) -> Group | str:
        """Go on with the first group that was left."""
        left = sorted(n for n, group in self.groups.items() if group.status == "suspended")
        if self.paused or not left:
            return BLOCKED
        group = self.groups[left[0]]
        group.status = "running"
        self.counts["resumed"] += 1
        return group

    def add(
        self,
        number: int,
        holder: int,
        index: int,
        versions: list[int],
        score: float | None,
        *,
        ends: bool,
        reward: float | None = None,
    ) -> str:
        """Add tokens to an item, all of which have the same score, and maybe end it."""
        group = self.groups[number]
        if not group.open:
            return self.status(number, holder)
        if group.status == "suspended" or group.holder != holder:
            self.counts["fenced"] += 1
            return "expired"
        item = group.items.setdefault(index, Item())
        assert not item.finished
        item.versions += versions
        item.segments += bool(versions)
        self.counts["tokens"] += len(versions)
        item.score = score if versions else item.score
        if ends:
            item.finished, item.reward = True, reward
        if len(group.whole) >= self.settings.group_size:
            return self._complete(group)
        oldest = group.oldest(of_whole=False)
        if oldest is not None and self.is_stale(oldest):
            return self._reject(group, "stale")
        return "running"

    def update(
        self, number: int, holder: int, index: int, reward: float | None, score: float | None
    ) -> str | None:
        """Give an item values that come late; `None` if there is no such item."""
        group = self.groups[number]
        if group.status in OVER:
            return group.status
        if group.status == "suspended" or group.holder != holder:
            self.counts["fenced"] += 1
            return "expired"
        if group.status == "out":
            return "delivered"
        item = group.items.get(index)
        if group.open and (item is None or not (item.segments or item.finished)):
            return None
        if item is not None and (group.open or item.whole):
            item.reward = item.reward if reward is None else reward
            item.score = item.score if score is None else score
        if group.open and len(group.whole) >= self.settings.group_size:
            return self._complete(group)
        return group.status

    def end(self, number: int, holder: int, status: str) -> bool:
        """Give a group up, or leave it to others; whether it was this holder's."""
        group = self.groups[number]
        if group.status != "running" or group.holder != holder:
            return False
        if status == "suspended":
            self._leave(group)
        else:
            self._reject(group, status)
        return True

    def expire(self, number: int) -> None:
        """A reservation is over."""
        group = self.groups[number]
        assert group.status == "running"
        self.counts["expired"] += 1
        if self.settings.on_expiry == "suspend":
            self._leave(group)
        else:
            self._reject(group, "expired")

    def status(self, number: int, holder: int) -> str:
        """What a reservation reports of its group."""
        group = self.groups[number]
        if group.open and (group.status == "suspended" or group.holder != holder):
            return "expired"
        return "complete" if group.status == "out" else group.status

    def is_stale(self, version: int) -> bool:
        """Whether a token of a version is too old for the next batch."""
        lag = self.settings.max_lag
        return lag is not None and version < self.target - lag

    def _leave(self, group: Group) -> None:
        group.status = "suspended"
        self.last_holder += 1
        group.holder = self.last_holder

    def _reject(self, group: Group, status: str) -> str:
        self.counts["rejected"] += 1
        self.counts["stale"] += status == "stale"
        group.status = status
        return status

    def _filter(self, group: Group, status: str) -> str:
        self.counts["filtered"] += 1
        self.counts["stale"] += status == "stale"
        group.status = status
        return status

    def _complete(self, group: Group) -> str:
        self.counts["surplus"] += sum(
            not item.whole and item.segments > 0 for item in group.items.values()
        )
        oldest = group.oldest(of_whole=True)
        if self.is_stale(group.dispatched if oldest is None else oldest):
            return self._filter(group, "stale")
        rewards = {item.reward for item in group.whole}
        if self.settings.filter is not None and len(rewards) == 1:
            return self._filter(group, "filtered")
        self.counts["accepted"] += 1
        self.places += 1
        group.status, group.place = "complete", self.places
        return "complete"

    # The learner.

    def publish(self, version: int) -> None:
        """The learner has a new version."""
        self.version = version
        if version > self.target:
            self.target, self.taken = version, 0
            self._sweep()
        for batch in [one for one in self.batches.values() if one.target < version]:
            for share in batch.shares:
                if share.state == "waiting":
                    self._return(batch, share)
            self._tidy(batch)

    def sample(
        self, size: tuple[str, int], rank: int, *, leased: bool
    ) -> tuple[Batch, Share] | str:
        """Deliver a share of a batch that waits for this rank, or of a new one."""
        if self.paused:
            return BLOCKED
        found = self._find(size, rank)
        if found == BLOCKED and self._recall(size, rank):
            found = self._find(size, rank)
        if isinstance(found, str):
            return BLOCKED
        share = found.shares[rank]
        self.counts["redelivered"] += share.attempt > 0
        share.attempt += 1
        share.state = "out"
        if not leased:
            # Which groups they are is known after the call.
            found.used = True
        return found, share

    def took(self, batch: Batch, share: Share, groups: list[int], *, leased: bool) -> None:
        """A consumer has these groups."""
        if share.groups is None:
            share.groups = groups
        for number in groups:
            assert self.groups[number].status == "out", f"group {number} is not in a batch"
        if not leased:
            self._use_up(batch, share)

    def ack(self, batch: Batch, share: Share, attempt: int) -> bool:
        """A consumer is done; whether the lease was its own."""
        if not self._holds(share, attempt):
            return False
        batch.used = True
        self._use_up(batch, share)
        return True

    def nack(self, batch: Batch, share: Share, attempt: int) -> bool:
        """A consumer gives a share back; whether the lease was its own."""
        if not self._holds(share, attempt):
            return False
        self._take_back(batch, share)
        return True

    def expire_lease(self, batch: Batch, share: Share) -> None:
        """A lease is over."""
        self.counts["expired_leases"] += 1
        self._take_back(batch, share)

    def remove(self, numbers: list[int]) -> int:
        """Remove complete groups."""
        removed = [n for n in dict.fromkeys(numbers) if self.groups[n].status == "complete"]
        for number in removed:
            self.counts["removed"] += 1
            self.counts["accepted"] -= 1
            self._filter(self.groups[number], "filtered")
        return len(removed)

    def restore(self, version: int) -> None:
        """The learner goes on from a version."""
        self.version, self.target, self.taken = version, version, 0
        for batch in [self.batches[number] for number in sorted(self.batches)]:
            for share in batch.shares:
                if share.state == "out" and batch.target < version:
                    # This version was made of it.
                    self._use_up(batch, share)
                elif share.state == "out" and self.settings.delivery == "at_most_once":
                    self._lose(batch, share)
                elif share.state != "over":
                    self._return(batch, share)
            self.batches.pop(batch.number, None)
        self._sweep()
        queued = sum(group.status == "complete" for group in self.groups.values())
        self.offset = version * self.per_version + queued - self.counts["accepted"]

    def _holds(self, share: Share, attempt: int) -> bool:
        held = share.state == "out" and share.attempt == attempt
        self.counts["fenced"] += not held
        return held

    def _queue(self) -> list[Group]:
        queued = [group for group in self.groups.values() if group.status == "complete"]
        by_number = self.settings.order == "submission"
        return sorted(queued, key=lambda group: group.number if by_number else group.place)

    def _pick(self, size: tuple[str, int]) -> list[Group] | str:
        unit, most = size
        picked: list[Group] = []
        tokens, queue = 0, self._queue()
        if unit == "groups" and len(queue) < most:
            return BLOCKED
        by_number = self.settings.order == "submission"
        first_open = min((n for n, group in self.groups.items() if group.open), default=None)
        for group in queue:
            if by_number and first_open is not None and group.number > first_open:
                return BLOCKED
            if unit == "tokens" and tokens + group.tokens > most:
                return picked
            picked.append(group)
            tokens += group.tokens
            if len(picked) == (most if unit == "groups" else self.settings.batch_groups):
                return picked
        return BLOCKED

    def _find(self, size: tuple[str, int], rank: int) -> Batch | str:
        for number in sorted(self.batches):
            batch = self.batches[number]
            if batch.size == size and batch.shares[rank].state == "waiting":
                return batch
        lag = self.settings.target_lag
        if lag is not None and self.version < self.target - lag:
            return BLOCKED
        picked = self._pick(size)
        if isinstance(picked, str):
            return BLOCKED
        self.counts["batches"] += 1
        number = self.counts["batches"]
        shares = [Share() for _ in range(self.ranks)]
        batch = Batch(number, self.target, size, [group.number for group in picked], shares)
        for group in picked:
            group.status = "out"
            self.counts["delivered"] += 1
            self.counts["delivered_tokens"] += group.tokens
        self.batches[number] = batch
        self.taken += len(picked)
        before = self.target
        self.target += self.taken // self.per_version
        self.taken %= self.per_version
        if self.target > before:
            self._sweep()
        return batch

    def _recall(self, size: tuple[str, int], rank: int) -> bool:
        found = False
        for batch in [self.batches[number] for number in sorted(self.batches)]:
            if batch.size == size:
                continue
            whole = not batch.used and all(share.state == "waiting" for share in batch.shares)
            shares = [
                share
                for other, share in enumerate(batch.shares)
                if share.state == "waiting" and (whole or other == rank)
            ]
            self._step_back(sum(len(self._groups_of(batch, share)) for share in shares))
            for share in shares:
                self._return(batch, share)
                found = True
            self._tidy(batch)
        return found

    def _step_back(self, groups: int) -> None:
        ahead = max(self.target - self.version, 0) * self.per_version + self.taken
        ahead = max(ahead - groups, 0)
        self.target = self.version + ahead // self.per_version
        self.taken = ahead % self.per_version

    def _groups_of(self, batch: Batch, share: Share) -> list[int]:
        """Its groups; those that the others don't have, if no consumer has seen it yet."""
        if share.groups is None:
            seen = {n for other in batch.shares for n in other.groups or ()}
            unseen = [number for number in batch.groups if number not in seen]
            strangers = [other for other in batch.shares if other.groups is None]
            # Where several are unseen it does not matter which has which.
            count = len(unseen) // len(strangers)
            share.groups = unseen[:count]
        return share.groups

    def _take_back(self, batch: Batch, share: Share) -> None:
        if self.settings.delivery == "at_most_once":
            self._lose(batch, share)
        elif self.version > batch.target:
            self._return(batch, share)
        else:
            share.state = "waiting"
            return
        self._tidy(batch)

    def _lose(self, batch: Batch, share: Share) -> None:
        share.state = "over"
        for number in self._groups_of(batch, share):
            self.groups[number].status = "over"
            self.counts["lost"] += 1
            batch.lost += 1

    def _return(self, batch: Batch, share: Share) -> None:
        share.state = "over"
        for number in self._groups_of(batch, share):
            self.counts["returned"] += 1
            group = self.groups[number]
            group.status = "complete"
            self._drop_if_stale(group)

    def _use_up(self, batch: Batch, share: Share) -> None:
        share.state = "over"
        for number in self._groups_of(batch, share):
            self.groups[number].status = "over"
            self.counts["acked"] += 1
        self._tidy(batch)

    def _tidy(self, batch: Batch) -> None:
        if any(share.state != "over" for share in batch.shares):
            return
        self.batches.pop(batch.number, None)
        if batch.lost and not batch.used and batch.target >= self.version:
            # The learner makes no step of it, and another is made in its place.
            self._step_back(batch.lost)
            self.offset -= batch.lost
            batch.lost = 0

    def _sweep(self) -> None:
        for group in self.groups.values():
            if group.status == "complete":
                self._drop_if_stale(group)
            elif group.open:
                oldest = group.oldest(of_whole=False)
                if oldest is not None and self.is_stale(oldest):
                    self._reject(group, "stale")

    def _drop_if_stale(self, group: Group) -> None:
        oldest = group.oldest(of_whole=True)
        if self.is_stale(group.dispatched if oldest is None else oldest):
            self.counts["accepted"] -= 1
            self._filter(group, "stale")
