//! Groups that are made.

use std::sync::Arc;

use super::check::value;
use super::{
    Append, Blocked, ChangeError, Due, GroupStatus, Hold, Ledger, Outcome, Progress, Ready,
    Reservation, Reserve, Update,
};
use crate::rollouts::config::{OnExpiry, Order};
use crate::rollouts::item::{Group, Item, Updates};

/// The most bytes of a group that is left: more would not fit in one message to the producer that goes on with it.
pub const MAX_SUSPENDED: u64 = (1 << 30) - (1 << 20);

/// See the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Open {
    pub(super) key: String,
    pub(super) source: String,
    pub(super) reserved: i64,
    pub(super) dispatched: i64,
    /// The version of its oldest token, once it has one.
    pub(super) oldest: Option<i64>,
    pub(super) items: Vec<Item>,
    pub(super) finished: u32,
    pub(super) attempt: u32,
    pub(super) ttl_ms: u64,
    /// When the reservation is over; `None` while no producer has it.
    pub(super) expires: Option<u64>,
    /// When it is looked whether it is. That may be earlier: a sign of life moves only the one above.
    pub(super) looked_at: u64,
    pub(super) deadline: Option<u64>,
    pub(super) priority: f64,
}

impl Open {
    /// How old it counts.
    pub(super) fn age(&self) -> i64 {
        self.oldest.map_or(self.dispatched, |oldest| oldest.min(self.dispatched))
    }

    /// Whether the producer with this attempt has it. No producer has a suspended one, whatever it sends.
    fn is_of(&self, hold: Hold) -> bool {
        self.attempt == hold.attempt && self.expires.is_some()
    }

    /// About how many bytes it takes to send what is there of it.
    fn bytes(&self) -> u64 {
        let of_item = |item: &Item| {
            let segments = item.segments.iter();
            let tokens: usize =
                segments.map(|segment| 16 + segment.bytes.len() + 12 * segment.runs.len()).sum();
            let finish = item.finish.as_ref().map_or(0, |finish| {
                let blobs = finish.blobs.iter().map(|(name, bytes)| 8 + name.len() + bytes.len());
                12 + finish.fields.len() + blobs.sum::<usize>()
            });
            let updates = item.updates.as_ref().map_or(0, |updates| {
                let columns = updates.columns.iter().map(|update| 12 + update.bytes.len());
                let fields = updates.fields.iter().map(|(_, bytes)| 8 + bytes.len());
                8 + columns.sum::<usize>() + fields.sum::<usize>()
            });
            (16 + tokens + finish + updates) as u64
        };
        self.items.iter().map(of_item).sum()
    }

    fn reservation(&self, id: u64, version: i64) -> Reservation {
        let (hold, key) = (Hold { group: id, attempt: self.attempt }, self.key.clone());
        Reservation { hold, key, version, ttl_ms: self.ttl_ms }
    }
}

/// That there are values of all tokens of an item.
fn check_tokens(item: &Item, values: &Updates) -> Result<(), ChangeError> {
    let tokens = item.tokens();
    match values.columns.iter().find(|update| update.tokens != tokens) {
        Some(update) => {
            let expected = format!("{tokens}, as many as tokens of item {}", item.index);
            Err(value("values of a column", expected, update.tokens))
        }
        None => Ok(()),
    }
}

impl Ledger {
    fn ttl(&self, wanted: Option<u64>) -> u64 {
        wanted.map_or(self.config.reservation_ttl_ms, |ttl| ttl.min(u64::MAX >> 16))
    }

    pub(super) fn reserve(&mut self, now: u64, reserve: &Reserve) -> Result<Outcome, ChangeError> {
        let Reserve { count, source, keys, version, ttl_ms } = reserve;
        let ttl = self.ttl(*ttl_ms);
        let mut reservations = Vec::new();
        for at in 0..*count as usize {
            let key = keys.get(at).map_or("", String::as_str);
            let room = match self.room() {
                Err(blocked) if reservations.is_empty() => return Err(blocked.into()),
                Err(_) => break,
                Ok(room) => room,
            };
            let spare = u64::from(self.config.capacity).saturating_sub(self.live());
            if spare == 0 && room > 0 {
                self.retire_oldest();
            }
            reservations.push(self.open_group(now, source, key, *version, ttl));
        }
        Ok(Outcome::Reserved(reservations))
    }

    fn open_group(
        &mut self,
        now: u64,
        source: &str,
        key: &str,
        version: Option<i64>,
        ttl_ms: u64,
    ) -> Reservation {
        let id = self.state.next_group;
        self.state.next_group += 1;
        let expires = now.saturating_add(ttl_ms);
        let deadline = self.config.group_deadline_ms.map(|after| now.saturating_add(after));
        let open = Open {
            key: key.into(),
            source: source.into(),
            reserved: self.state.version,
            dispatched: version.unwrap_or(self.state.version),
            oldest: None,
            items: Vec::new(),
            finished: 0,
            attempt: self.first_attempt,
            ttl_ms,
            expires: Some(expires),
            looked_at: expires,
            deadline,
            priority: 1.0,
        };
        let reservation = open.reservation(id, open.dispatched);
        self.derived.due.insert((expires, Due::Reservation(id)));
        if let Some(deadline) = deadline {
            self.derived.due.insert((deadline, Due::Deadline(id)));
        }
        *self.derived.ages.entry(open.age()).or_default() += 1;
        self.state.counts.submitted += 1;
        self.state.counts.running += 1;
        self.state.sources.count(source, |source| {
            source.submitted += 1;
            source.running += 1;
            source.last_reserved = Some(now);
        });
        self.state.open.insert(id, open);
        self.changed = true;
        reservation
    }

    /// Whether a group is open, and the producer's.
    fn holds(&self, hold: Hold) -> bool {
        self.state.open.get(&hold.group).is_some_and(|open| open.is_of(hold))
    }

    /// Takes a sign of life of the producer of an open group.
    fn touch(&mut self, now: u64, id: u64) {
        if let Some(open) = self.state.open.get_mut(&id)
            // A suspended one has no producer that could renew it.
            && let Some(expires) = &mut open.expires
        {
            *expires = now.saturating_add(open.ttl_ms);
            self.changed = true;
        }
    }

    /// Counts a producer that added to a group that is another one's by now, or of none.
    fn count_fenced(&mut self) {
        (self.state.counts.fenced, self.changed) = (self.state.counts.fenced + 1, true);
    }

    pub(super) fn append(&mut self, now: u64, append: &Append) -> Result<Outcome, ChangeError> {
        let id = append.hold.group;
        if id >= self.state.next_group {
            return Err(ChangeError::Unknown(id));
        }
        let Some(open) = self.state.open.get_mut(&id) else {
            if self.state.generation.has_lost_group(id) {
                self.count_fenced();
            }
            return Ok(Outcome::Appended(self.status(id)));
        };
        if !open.is_of(append.hold) {
            self.count_fenced();
            return Ok(Outcome::Appended(GroupStatus::Expired));
        }
        let at = append.item as usize;
        let item = open.items.get(at);
        let there = item.map_or(0, |item| item.segments.len()) as u32;
        let is_finished = item.is_some_and(|item| item.finish.is_some());
        let is_empty = append.segment.tokens == 0;
        // The end of an item that is not finished came never before, whatever its number.
        let is_new_end = append.finish.is_some() && !is_finished;
        let is_known = append.sequence < there && !is_new_end;
        if is_known || (is_finished && is_empty && append.sequence == there) {
            let known = item.and_then(|item| item.segments.get(append.sequence as usize));
            if known.is_some_and(|known| !is_empty && *known != append.segment) {
                let (sequence, item) = (append.sequence, append.item);
                let expected = format!(
                    "those that segment {sequence} of item {item} of group {id} has, since one producer at a time \
                     writes an item"
                );
                return Err(value("tokens of a segment", expected, "others"));
            }
            self.state.counts.duplicates += 1;
            self.touch(now, id);
            return Ok(Outcome::Appended(GroupStatus::Running));
        }
        if is_finished {
            let got = format!("segment {} of it", append.sequence);
            let expected =
                format!("one that is not finished; item {} of group {id} is", append.item);
            return Err(value("item to append to", expected, got));
        }
        if append.sequence != there {
            let expected = format!("{there}, the next one of item {} of group {id}", append.item);
            return Err(value("number of a segment", expected, append.sequence));
        }
        let tokens = item.map_or(0, Item::tokens).saturating_add(append.segment.tokens);
        if tokens > self.config.max_tokens {
            let expected = format!("at most max_tokens = {}", self.config.max_tokens);
            return Err(value("tokens of an item", expected, tokens));
        }
        while open.items.len() <= at {
            let index = open.items.len() as u32;
            open.items.push(Item { index, ..Item::default() });
        }
        self.changed = true;
        let shared = append.finish.as_ref().and_then(|finish| finish.sharing(&open.items));
        let before = (open.age(), open.oldest);
        if let Some(item) = open.items.get_mut(at) {
            if !is_empty {
                item.segments.push(Arc::clone(&append.segment));
            }
            if let Some(finish) = &append.finish {
                item.end(shared.map_or_else(|| Arc::clone(finish), Arc::new));
                open.finished += u32::from(item.is_whole());
                open.priority = append.priority;
            }
        }
        open.oldest = match (open.oldest, append.segment.oldest()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let after = (open.age(), open.oldest);
        let is_complete = open.finished >= self.config.group_size;
        self.state.counts.tokens += u64::from(append.segment.tokens);
        if before.0 != after.0 {
            // It is a producer's, since the attempt is that of a reservation that stands.
            self.forget_age(before.0);
            *self.derived.ages.entry(after.0).or_default() += 1;
        }
        if before.1 != after.1 {
            if let Some(oldest) = before.1 {
                self.derived.by_oldest.remove(&(oldest, id));
            }
            if let Some(oldest) = after.1 {
                self.derived.by_oldest.insert((oldest, id));
            }
        }
        if is_complete {
            return Ok(Outcome::Appended(self.complete(id)));
        }
        self.touch(now, id);
        // One token that is too old makes the group too old, so the rest of it need not be made.
        if self.drops() && self.bound().is_some_and(|bound| after.1.is_some_and(|v| v < bound)) {
            self.state.counts.stale += 1;
            self.reject(id, GroupStatus::Stale);
            return Ok(Outcome::Appended(GroupStatus::Stale));
        }
        Ok(Outcome::Appended(GroupStatus::Running))
    }

    pub(super) fn update(&mut self, now: u64, update: &Update) -> Result<Outcome, ChangeError> {
        let Update { hold, item: at, values } = update;
        let id = hold.group;
        if id >= self.state.next_group {
            return Err(ChangeError::Unknown(id));
        }
        if let Some(open) = self.state.open.get_mut(&id) {
            if !open.is_of(*hold) {
                self.count_fenced();
                return Ok(Outcome::Appended(GroupStatus::Expired));
            }
            let item = open.items.get_mut(*at as usize).filter(|item| item.is_there());
            let Some(item) = item else {
                let expected = format!("one that has tokens or its end in group {id}");
                return Err(value("item to update", expected, at));
            };
            check_tokens(item, values)?;
            let was_whole = item.is_whole();
            self.dead.values.extend(item.update(values));
            self.changed = true;
            open.finished += u32::from(!was_whole && item.is_whole());
            if open.finished >= self.config.group_size {
                return Ok(Outcome::Appended(self.complete(id)));
            }
            self.touch(now, id);
            return Ok(Outcome::Appended(GroupStatus::Running));
        }
        let Some(ready) = self.state.ready.get_mut(&id) else {
            if self.state.generation.has_lost_group(id) {
                self.count_fenced();
            }
            return Ok(Outcome::Appended(self.status(id)));
        };
        if ready.attempt != hold.attempt {
            self.count_fenced();
            return Ok(Outcome::Appended(GroupStatus::Expired));
        }
        if ready.is_out || ready.uses > 0 {
            return Ok(Outcome::Appended(GroupStatus::Delivered));
        }
        let items = &ready.group.items;
        let place = items.binary_search_by_key(at, |item| item.index);
        // One that was not needed is not there.
        if let Ok(place) = place
            && let Some(item) = items.get(place)
        {
            check_tokens(item, values)?;
            let item = Arc::make_mut(&mut ready.group).items.get_mut(place);
            self.dead.values.extend(item.into_iter().flat_map(|item| item.update(values)));
            self.changed = true;
        }
        Ok(Outcome::Appended(GroupStatus::Complete))
    }

    /// Takes a group out of all lists of open ones.
    fn close(&mut self, id: u64) -> Option<Open> {
        let open = self.state.open.remove(&id)?;
        self.changed = true;
        self.state.counts.running -= 1;
        self.derived.due.remove(&(open.looked_at, Due::Reservation(id)));
        if let Some(deadline) = open.deadline {
            self.derived.due.remove(&(deadline, Due::Deadline(id)));
        }
        if let Some(oldest) = open.oldest {
            self.derived.by_oldest.remove(&(oldest, id));
        }
        if !self.derived.suspended.remove(&id) {
            self.forget_age(open.age());
        }
        self.state.sources.count(&open.source, |source| source.running -= 1);
        Some(open)
    }

    pub(super) fn reject(&mut self, id: u64, status: GroupStatus) {
        let Some(mut open) = self.close(id) else { return };
        self.dead.items.append(&mut open.items);
        self.state.counts.rejected += 1;
        self.state.sources.count(&open.source, |source| source.rejected += 1);
        self.note(id, status);
    }

    /// Makes a group of the items that are finished.
    fn complete(&mut self, id: u64) -> GroupStatus {
        let Some(open) = self.close(id) else { return GroupStatus::Over };
        let (items, surplus): (Vec<Item>, Vec<Item>) =
            open.items.into_iter().partition(Item::is_whole);
        self.state.counts.surplus +=
            surplus.iter().filter(|item| !item.segments.is_empty()).count() as u64;
        self.dead.items.extend(surplus);
        if items.len() < self.config.group_size as usize {
            self.state.counts.short += 1;
        }
        let oldest = items.iter().filter_map(Item::oldest).min().unwrap_or(open.dispatched);
        let newest = items.iter().filter_map(Item::newest).max().unwrap_or(open.dispatched);
        let tokens = items.iter().map(|item| u64::from(item.tokens())).sum();
        let is_stale = self.drops() && self.bound().is_some_and(|bound| oldest < bound);
        let status = match &self.filter {
            _ if is_stale => GroupStatus::Stale,
            Some(filter) => {
                let schema = &self.config.schema;
                let kept = filter.keeps(items.len(), |field, item| {
                    let Some(item) = items.get(item) else { return f64::NAN };
                    if field == schema.fields.len() {
                        return item.tokens().into();
                    }
                    schema.number(field, item)
                });
                if kept { GroupStatus::Complete } else { GroupStatus::Filtered }
            }
            None => GroupStatus::Complete,
        };
        if status != GroupStatus::Complete {
            self.state.counts.stale += u64::from(status == GroupStatus::Stale);
            self.state.counts.filtered += 1;
            self.state.sources.count(&open.source, |source| source.filtered += 1);
            self.note(id, status);
            self.dead.items.extend(items);
            return status;
        }
        self.state.counts.accepted += 1;
        self.state.sources.count(&open.source, |source| {
            source.accepted += 1;
            source.tokens += tokens;
        });
        let Open { key, source, reserved, dispatched, priority, attempt, .. } = open;
        let completed = self.state.version;
        let group = Group {
            id,
            key,
            source,
            reserved,
            dispatched,
            oldest,
            newest,
            completed,
            items,
            tokens,
        };
        let (place, group) = (self.state.next_place, Arc::new(group));
        self.state.next_place += 1;
        let ready = Ready { group, priority, place, uses: 0, is_out: false, attempt };
        self.derived.queue.insert(&ready.place());
        self.state.ready.insert(id, ready);
        GroupStatus::Complete
    }

    pub(super) fn fail(&mut self, holds: &[Hold]) -> Outcome {
        let mut count = 0;
        for hold in holds {
            if self.holds(*hold) {
                self.reject(hold.group, GroupStatus::Rejected);
                count += 1;
            }
        }
        Outcome::Count(count)
    }

    pub(super) fn suspend(&mut self, holds: &[Hold]) -> Result<Outcome, ChangeError> {
        for hold in holds.iter().filter(|hold| self.holds(**hold)) {
            let bytes = self.state.open.get(&hold.group).map_or(0, Open::bytes);
            if bytes > MAX_SUSPENDED {
                let expected = format!(
                    "at most {MAX_SUSPENDED}, so that another producer can be told of it: finish it or \
                     give it up"
                );
                let got = format!("{bytes} of group {}", hold.group);
                return Err(value("bytes of a group that is left", expected, got));
            }
        }
        let mut count = 0;
        for hold in holds {
            if self.holds(*hold) {
                self.leave(hold.group);
                count += 1;
            }
        }
        Ok(Outcome::Count(count))
    }

    /// Has a group wait for another producer.
    fn leave(&mut self, id: u64) {
        let Some(open) = self.state.open.get_mut(&id) else { return };
        // A former owner that wakes up is distinguished from the one that continues with it.
        open.attempt = self.state.generation.attempt_after(id, open.attempt);
        (open.expires, self.changed) = (None, true);
        self.derived.due.remove(&(open.looked_at, Due::Reservation(id)));
        let age = open.age();
        self.derived.suspended.insert(id);
        // Nobody promises it any more, so no batch waits for it.
        self.forget_age(age);
    }

    pub(super) fn resume(
        &mut self,
        now: u64,
        source: &str,
        ttl_ms: Option<u64>,
    ) -> Result<Outcome, ChangeError> {
        let ttl_ms = self.ttl(ttl_ms);
        if self.state.paused {
            return Err(Blocked::Paused.into());
        }
        let Some(id) = self.derived.suspended.pop_first() else {
            return Err(Blocked::NoneSuspended.into());
        };
        let expires = now.saturating_add(ttl_ms);
        let Some(open) = self.state.open.get_mut(&id) else { return Err(ChangeError::Unknown(id)) };
        (open.ttl_ms, open.expires, open.looked_at) = (ttl_ms, Some(expires), expires);
        let before = std::mem::replace(&mut open.source, source.into());
        let (reservation, items) = (open.reservation(id, self.state.version), open.items.clone());
        *self.derived.ages.entry(open.age()).or_default() += 1;
        self.derived.due.insert((expires, Due::Reservation(id)));
        (self.state.counts.resumed, self.changed) = (self.state.counts.resumed + 1, true);
        // It is another producer's from here on, in all counts.
        self.state.sources.count(&before, |source| {
            source.submitted -= 1;
            source.running -= 1;
        });
        self.state.sources.count(source, |source| {
            source.submitted += 1;
            source.running += 1;
            source.last_reserved = Some(now);
        });
        Ok(Outcome::Resumed(reservation, items))
    }

    pub(super) fn renew(&mut self, now: u64, holds: &[Hold]) -> Outcome {
        let mut count = 0;
        for hold in holds {
            if self.holds(*hold) {
                self.touch(now, hold.group);
                count += 1;
            }
        }
        Outcome::Count(count)
    }

    /// How far a group is, or that it is not the producer's.
    pub(super) fn progress(&self, hold: Hold) -> Result<Outcome, ChangeError> {
        if hold.group >= self.state.next_group {
            return Err(ChangeError::Unknown(hold.group));
        }
        let Some(open) = self.state.open.get(&hold.group) else {
            return Ok(Outcome::Appended(self.status(hold.group)));
        };
        if !open.is_of(hold) {
            return Ok(Outcome::Appended(GroupStatus::Expired));
        }
        let progress = |item: &Item| Progress {
            segments: item.segments.len() as u32,
            is_finished: item.finish.is_some(),
        };
        Ok(Outcome::Progress(open.items.iter().map(progress).collect()))
    }

    pub(super) fn check_reservation(&mut self, now: u64, id: u64) {
        let Some(open) = self.state.open.get_mut(&id) else { return };
        let Some(expires) = open.expires else { return };
        if expires > now {
            open.looked_at = expires;
            self.derived.due.insert((expires, Due::Reservation(id)));
            return;
        }
        self.state.counts.expired += 1;
        match self.config.on_expiry {
            OnExpiry::Reject => self.reject(id, GroupStatus::Expired),
            // One that is too large to send could never be resumed.
            OnExpiry::Suspend if open.bytes() > MAX_SUSPENDED => {
                self.reject(id, GroupStatus::Expired)
            }
            OnExpiry::Suspend => self.leave(id),
        }
    }

    pub(super) fn meet_deadline(&mut self, id: u64) {
        let Some(open) = self.state.open.get_mut(&id) else { return };
        open.deadline = None;
        if open.finished >= self.config.min_group_size {
            self.complete(id);
        } else {
            self.state.counts.late += 1;
            self.reject(id, GroupStatus::Rejected);
        }
    }

    /// Has the complete group of the oldest tokens make room, where groups are used again and again.
    fn retire_oldest(&mut self) {
        if self.config.order != Order::Weighted {
            return;
        }
        let is_more = self.derived.queue.len() > self.config.batch_groups as usize;
        let oldest =
            if is_more { self.derived.queue.oldest() } else { self.derived.queue.oldest_used() };
        if let Some(id) = oldest {
            self.retire(id);
        }
    }
}
