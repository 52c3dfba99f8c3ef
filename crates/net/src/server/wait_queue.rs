//! The waiting requests of all connections of an event loop.
//!
//! Each thing that can be waited for has a row, and a waker that is called when it happens. In a row are connections,
//! which then have another turn, and requests, which are then tried again.
//!
//! Connections have their turns in the order in which they came, but that the one with the first turn has the last the
//! next time, or no other would ever get what is scarce. Of those that wait for the ring, only as many have a
//! turn as find room: all need the same.
//!
//! Requests are tried in the order in which they came. Once one is kept waiting, no later one that wants just the same
//! is served before it: of reserves and resumes that is any other; of samples of rollouts, one for the same rank of batches
//! of the same size; of samples of items, one of the same connection for as many items or more. Those with other wants
//! are tried each time: a batch that was given back may be what only they can have. So requests for large batches may wait
//! for as long as others take small ones.
//!
//! # Invariants
//!
//! 1. A request is here until it is answered, given up, or its connection is gone.
//! 2. While a request waits, what could help wakes the loop, or the time at which it happens is known.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use echoic_replay::WaitReason;
use echoic_replay::rollouts::RolloutTable;
use echoic_replay::rollouts::ledger::{self, Change, Size};
use echoic_replay::rollouts::table::{self as rollout_table, Side};
use echoic_replay::table::{self, Call};

use super::ServerContext;
use super::loop_wakers::LoopWaker;
use super::rollout_session::failure;
use crate::wire::rollouts::Wish;
use crate::wire::tables::Area;

/// What can be waited for. Tables of items and rollout tables have numbers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// The ring has room.
    Stream,
    /// Something has happened to the weights.
    Weights,
    /// The pool has done something.
    Pool,
    /// A checkpoint is written.
    Checkpoint,
    /// A table of items has room.
    Room(usize),
    /// More may be sampled from a table of items.
    Items(usize),
    /// More is durable of what was changed in a table of items, or nothing more will be.
    Durable(usize),
    /// The same of a rollout table.
    DurableRollouts(usize),
    /// A rollout table may have more groups to reserve.
    Producers(usize),
    /// More may be sampled from a rollout table.
    Consumers(usize),
    /// The learner of a rollout table has another version.
    Version(usize),
}

/// A request that may have to wait.
#[derive(Debug)]
pub(crate) enum WaitingRequest {
    /// A sample of a table of items.
    Items { count: usize, area: Option<Area> },
    /// A reserve, a resume, or a wait for a version.
    Change(Change),
    /// A share of a batch of rollouts.
    Share(Wish),
}

/// Why a request waits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BlockedBy {
    Items(WaitReason),
    Rollouts(ledger::Blocked),
}

/// What became of a request that was tried again.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verdict {
    /// It is answered.
    Done,
    /// It is answered, since its time is over.
    Late,
    /// It has to wait for this.
    Waits(BlockedBy),
    /// It was not tried: nothing more can be answered until its connection [says](WaitQueue::stir) so.
    PassedOver,
}

/// Tries a request that waits again; what is given is why one before it waits that wants the same, if one does.
pub(crate) type Attempt<'a> =
    dyn FnMut(&mut Waiter, Option<BlockedBy>, &mut WaitQueue) -> Verdict + 'a;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) id: u64,
    /// The number of its table.
    pub(crate) table: usize,
    /// The place of its connection.
    pub(crate) index: usize,
    pub(crate) request: WaitingRequest,
    pub(crate) deadline: Option<Instant>,
    /// What for, when it was last tried.
    pub(crate) blocked: Option<BlockedBy>,
    /// It was not tried the last time, so it makes no other wait.
    pub(crate) is_passed_over: bool,
    /// Counts it among those that wait.
    counted: Option<Counted>,
}

#[derive(Debug)]
enum Counted {
    Items(table::Waiting),
    Rollouts(rollout_table::Waiting),
}

/// Requests for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Class {
    /// Of a connection.
    Items(usize),
    Reserve,
    Resume,
    /// Of a size of the batch, a rank, and how many share it.
    Share(Size, u32, u32),
}

impl Waiter {
    pub(crate) fn new(id: u64, table: usize, index: usize, request: WaitingRequest) -> Self {
        let (deadline, blocked, counted) = (None, None, None);
        Self { id, table, index, request, deadline, blocked, is_passed_over: false, counted }
    }

    /// What it waits for.
    fn key(&self) -> Key {
        match &self.request {
            WaitingRequest::Items { .. } => Key::Items(self.table),
            WaitingRequest::Change(Change::AwaitVersion { .. }) => Key::Version(self.table),
            WaitingRequest::Change(_) => Key::Producers(self.table),
            WaitingRequest::Share(_) => Key::Consumers(self.table),
        }
    }

    /// Those of a class are served in order, unless an earlier one wants more items than a later one; all others whenever
    /// they can be.
    fn class(&self) -> Option<(Class, usize)> {
        match &self.request {
            WaitingRequest::Items { count, .. } => Some((Class::Items(self.index), *count)),
            WaitingRequest::Change(Change::Reserve(_)) => Some((Class::Reserve, 0)),
            WaitingRequest::Change(Change::AwaitVersion { .. }) => None,
            WaitingRequest::Change(_) => Some((Class::Resume, 0)),
            WaitingRequest::Share(Wish { want, .. }) => {
                Some((Class::Share(want.size, want.rank, want.ranks), 0))
            }
        }
    }

    /// Takes note of why it waits, and counts it among those that do.
    pub(crate) fn note(&mut self, blocked: BlockedBy, shared: &ServerContext) {
        self.blocked = Some(blocked);
        let reason = match blocked {
            BlockedBy::Items(reason) => reason,
            BlockedBy::Rollouts(blocked) => blocked.reason(),
        };
        if self.counted.is_none() {
            self.counted = self.count(reason, shared);
        }
        match &mut self.counted {
            Some(Counted::Items(waiting)) => waiting.because(reason),
            Some(Counted::Rollouts(waiting)) => waiting.because(reason),
            None => {}
        }
    }

    fn count(&self, reason: WaitReason, shared: &ServerContext) -> Option<Counted> {
        let (side, applicant) = match &self.request {
            WaitingRequest::Items { .. } => {
                return Some(Counted::Items(shared.table(self.table)?.begin_wait(Call::Sample)));
            }
            WaitingRequest::Change(change) => (change.side()?, change.applicant()),
            WaitingRequest::Share(_) => (Side::Consumers, None),
        };
        let table = shared.rollout_table(self.table)?;
        Some(Counted::Rollouts(table.begin_wait(side, applicant, reason)))
    }

    /// Whether it has waited for as long as it may.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }
}

#[derive(Debug)]
struct Row {
    waker: LoopWaker,
    /// In the order in which they came.
    connections: VecDeque<usize>,
    /// Why one of them could not go on, if so.
    stall: Option<WaitReason>,
    /// In the order in which they came.
    requests: VecDeque<Waiter>,
    /// Those that were tried in a pass that is not over.
    tried: VecDeque<Waiter>,
    /// The waker will be called for the requests.
    is_listening: bool,
    /// The requests are to be tried.
    is_stirred: bool,
    /// When the first of them has waited for as long as it may, or before.
    deadline: Option<Instant>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct WaitQueue {
    event_loop: Arc<mio::Waker>,
    /// Of what has been waited for.
    rows: BTreeMap<Key, Row>,
    /// When time may next change something in a rollout table.
    due: Option<Instant>,
}

impl WaitQueue {
    pub(crate) fn new(event_loop: Arc<mio::Waker>) -> Self {
        Self { event_loop, rows: BTreeMap::new(), due: None }
    }

    fn row(&mut self, key: Key) -> &mut Row {
        self.rows.entry(key).or_insert_with(|| Row {
            waker: LoopWaker::new(&self.event_loop),
            connections: VecDeque::new(),
            stall: None,
            requests: VecDeque::new(),
            tried: VecDeque::new(),
            is_listening: false,
            is_stirred: false,
            deadline: None,
        })
    }

    pub(crate) fn waker(&mut self, key: Key) -> &Waker {
        &self.row(key).waker.waker
    }

    /// Has this wake the event loop once it happens.
    fn listen(&mut self, key: Key, shared: &ServerContext) {
        let waker = self.waker(key);
        let (tables, rollouts) = (shared.tables.all(), &shared.rollouts);
        match (key, &shared.stream, &shared.weights) {
            (Key::Stream, Some(stream), _) => stream.wake_on_room(waker),
            (Key::Weights, _, Some(store)) => store.wake_later(waker),
            // Whoever does it has the waker.
            (Key::Stream | Key::Weights | Key::Pool | Key::Checkpoint, ..) => {}
            (Key::Room(number), ..) => tables[number].wake_on_room(waker),
            (Key::Items(number), ..) => tables[number].wake_on_items(waker),
            (Key::Durable(number), ..) => tables[number].wake_on_durable(waker),
            (Key::DurableRollouts(number), ..) => rollouts[number].wake_on_durable(waker),
            (Key::Producers(number), ..) => rollouts[number].wake_later(Side::Producers, waker),
            (Key::Consumers(number), ..) => rollouts[number].wake_later(Side::Consumers, waker),
            (Key::Version(number), ..) => rollouts[number].wake_later(Side::Versions, waker),
        }
    }

    /// Has a connection have another turn when this has happened. If it did not wait for that before, what has happened
    /// up to now is found by one more look.
    pub(crate) fn park(&mut self, key: Key, index: usize, shared: &ServerContext) -> bool {
        let row = self.row(key);
        if row.connections.contains(&index) {
            return false;
        }
        row.connections.push_back(index);
        self.listen(key, shared);
        true
    }

    /// The next connection that waited for this; none, once one found the ring full, as the others would.
    pub(crate) fn pop(&mut self, key: Key) -> Option<usize> {
        let row = self.row(key);
        if key == Key::Stream && row.stall.is_some() {
            return None;
        }
        row.connections.pop_front()
    }

    /// Takes note of why a connection that waits for this can't go on.
    pub(crate) fn hold(&mut self, key: Key, stall: Option<WaitReason>) {
        self.row(key).stall = stall;
    }

    /// Why another connection that needs this could not go on, if it has not happened since.
    pub(crate) fn stall(&self, key: Key) -> Option<WaitReason> {
        self.rows.get(&key)?.stall
    }

    /// Why a request has to wait for one that came before it, if so.
    pub(crate) fn ahead(&self, waiter: &Waiter) -> Option<BlockedBy> {
        let (class, count) = waiter.class()?;
        let wants_the_same = |other: &&Waiter| {
            !other.is_passed_over
                && other.class().is_some_and(|(of, least)| of == class && least <= count)
        };
        self.rows.get(&waiter.key())?.requests.iter().find(wants_the_same)?.blocked
    }

    /// Keeps a request that has to wait.
    pub(crate) fn add(&mut self, waiter: Waiter, shared: &ServerContext) {
        let key = waiter.key();
        self.push(waiter);
        // What has happened since it was tried is found by one more try.
        if self.begin_to_listen(key, shared) {
            self.row(key).is_stirred = true;
        }
    }

    fn push(&mut self, waiter: Waiter) {
        let row = self.row(waiter.key());
        row.deadline = [row.deadline, waiter.deadline].into_iter().flatten().min();
        row.requests.push_back(waiter);
    }

    /// Gives up a request; whether it waited.
    pub(crate) fn cancel(&mut self, index: usize, id: u64) -> bool {
        let is_it = |waiter: &Waiter| waiter.index == index && waiter.id == id;
        self.remove(is_it)
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, index: usize) {
        self.rows.values_mut().for_each(|row| row.connections.retain(|other| *other != index));
        self.remove(|waiter| waiter.index == index);
    }

    fn remove(&mut self, is_it: impl Fn(&Waiter) -> bool) -> bool {
        let mut is_found = false;
        for row in self.rows.values_mut() {
            let before = row.requests.len();
            row.requests.retain(|waiter| !is_it(waiter));
            if row.requests.len() < before {
                // It may have kept others waiting.
                (row.is_stirred, is_found) = (true, true);
            }
        }
        is_found
    }

    /// Has those requests tried again that were passed over for this connection.
    pub(crate) fn stir(&mut self, index: usize) {
        for row in self.rows.values_mut() {
            row.is_stirred |= row.requests.iter().any(|waiter| waiter.index == index);
        }
    }

    /// Has all requests tried again.
    pub(crate) fn stir_all(&mut self) {
        self.rows.values_mut().for_each(|row| row.is_stirred = !row.requests.is_empty());
    }

    /// Has all requests tried again, and no connection wait, also where a pass was not finished.
    pub(crate) fn begin_anew(&mut self) {
        for row in self.rows.values_mut() {
            row.connections.clear();
            row.stall = None;
            row.tried.append(&mut row.requests);
            std::mem::swap(&mut row.requests, &mut row.tried);
            row.is_listening = false;
        }
        self.stir_all();
    }

    /// Takes note of what has happened: what connections waited for, and how many.
    pub(crate) fn hear(&mut self, shared: &ServerContext) -> Vec<(Key, usize)> {
        let mut heard = Vec::new();
        let mut may_have_failed = false;
        for (key, row) in self.rows.iter_mut().filter(|(_, row)| row.waker.take()) {
            (row.stall, row.is_listening) = (None, false);
            row.is_stirred = !row.requests.is_empty();
            may_have_failed |= matches!(key, Key::DurableRollouts(_));
            if !row.connections.is_empty() {
                // Of the ring, the others keep their places when one has taken the room.
                if *key != Key::Stream {
                    row.connections.rotate_left(1);
                }
                heard.push((*key, row.connections.len()));
            }
        }
        if may_have_failed {
            self.stir_if_failed(shared);
        }
        heard
    }

    /// Answers the requests that wait for a table that writes nothing more.
    fn stir_if_failed(&mut self, shared: &ServerContext) {
        if shared.rollouts.iter().any(|table| failure(table).is_some()) {
            self.stir_all();
        }
    }

    /// When to look again at the latest: now, if there is something to be done.
    pub(crate) fn next(&mut self, now: Instant, shared: &ServerContext) -> Option<Instant> {
        if self.rows.values().any(|row| row.is_stirred) {
            return Some(now);
        }
        let is_awaited = |key| self.rows.get(&key).is_some_and(|row| !row.requests.is_empty());
        let waits = |(number, table): &(usize, &Arc<RolloutTable>)| {
            (is_awaited(Key::Producers(*number)) || is_awaited(Key::Consumers(*number)))
                && !table.is_closed()
        };
        let tables = shared.rollouts.iter().enumerate().filter(waits);
        self.due = tables.filter_map(|(_, table)| table.next_due()).min();
        self.rows.values().filter_map(|row| row.deadline).chain(self.due).min()
    }

    /// Has `attempt` try those requests again that may have a better chance.
    pub(crate) fn serve(&mut self, shared: &ServerContext, attempt: &mut Attempt<'_>) {
        if let Some(now) = self.due.take().map(|_| Instant::now()) {
            for table in shared.rollouts.iter() {
                if table.next_due().is_some_and(|due| due <= now) {
                    // It rings if that has changed something, or never will again.
                    let _ = table.apply(&Change::Tick);
                }
            }
            self.stir_if_failed(shared);
        }
        let mut next = self.rows.keys().next().copied();
        while let Some(key) = next {
            let row = self.row(key);
            let is_late = row.deadline.is_some_and(|deadline| deadline <= Instant::now());
            if std::mem::take(&mut row.is_stirred) || is_late {
                self.pass(key, attempt);
                if self.begin_to_listen(key, shared) {
                    self.pass(key, attempt);
                }
            }
            next = self
                .rows
                .range((Bound::Excluded(key), Bound::Unbounded))
                .next()
                .map(|(key, _)| *key);
        }
    }

    /// Has the event loop woken for the requests that wait for this; whether it would not have been before, so that they
    /// are to be tried once more.
    fn begin_to_listen(&mut self, key: Key, shared: &ServerContext) -> bool {
        let row = self.row(key);
        let is_new = !row.requests.is_empty() && !std::mem::replace(&mut row.is_listening, true);
        if is_new {
            self.listen(key, shared);
        }
        is_new
    }

    /// Tries each request that waits for this once, in order.
    fn pass(&mut self, key: Key, attempt: &mut Attempt<'_>) {
        // What the first of each class waits for, and how many items it wants.
        let mut ahead: HashMap<Class, (usize, BlockedBy)> = HashMap::new();
        self.row(key).deadline = None;
        while let Some(mut waiter) = self.row(key).requests.pop_front() {
            let class = waiter.class();
            let before = class.and_then(|(class, count)| {
                ahead.get(&class).filter(|(least, _)| *least <= count).map(|(_, blocked)| *blocked)
            });
            let verdict = attempt(&mut waiter, before, self);
            let row = self.row(key);
            match verdict {
                Verdict::Done => continue,
                Verdict::Late => {
                    // Others may no longer have to wait for it.
                    row.is_stirred = true;
                    continue;
                }
                Verdict::PassedOver => {}
                Verdict::Waits(blocked) => {
                    if let Some((class, count)) = class.filter(|_| before.is_none()) {
                        ahead.insert(class, (count, blocked));
                    }
                }
            }
            row.deadline = [row.deadline, waiter.deadline].into_iter().flatten().min();
            row.tried.push_back(waiter);
        }
        let row = self.row(key);
        std::mem::swap(&mut row.requests, &mut row.tried);
        row.is_stirred &= !row.requests.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use proptest::prelude::*;

    use super::*;

    const KEY: Key = Key::Items(0);
    const BLOCKED: BlockedBy = BlockedBy::Items(WaitReason::MinSize);

    fn queue() -> WaitQueue {
        let poll = mio::Poll::new().unwrap();
        let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
        WaitQueue::new(Arc::new(waker))
    }

    fn ids(queue: &mut WaitQueue) -> Vec<u64> {
        queue.row(KEY).requests.iter().map(|waiter| waiter.id).collect()
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// A request of a connection for this many items.
        Come(usize, usize),
        /// As many items come; the client of a connection does not read; and this many requests are tried until one panics.
        Serve(usize, usize, usize),
        Cancel(u64),
        Leave(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..3_usize, 1..4_usize).prop_map(|(index, count)| Step::Come(index, count)),
            3 => (0..8_usize, 0..5_usize, 1..20_usize)
                .prop_map(|(items, deaf, left)| Step::Serve(items, deaf, left)),
            1 => (0..40_u64).prop_map(Step::Cancel),
            1 => (0..3_usize).prop_map(Step::Leave),
        ];
        prop::collection::vec(step, 1..60)
    }

    proptest! {
        #[test]
        fn requests_are_served_as_from_a_list(steps in steps()) {
            let (mut queue, mut list) = (queue(), Vec::<(u64, usize, usize)>::new());
            for (id, step) in (0..).zip(steps) {
                match step {
                    Step::Come(index, count) => {
                        let request = WaitingRequest::Items { count, area: None };
                        queue.push(Waiter::new(id, 0, index, request));
                        list.push((id, index, count));
                    }
                    Step::Serve(items, deaf, until_panic) => {
                        let (mut left, mut tries, mut served) = (items, until_panic, Vec::new());
                        let mut attempt = |waiter: &mut Waiter, ahead: Option<BlockedBy>, _: &mut WaitQueue| {
                            let WaitingRequest::Items { count, .. } = waiter.request else {
                                return Verdict::Done;
                            };
                            tries -= 1;
                            if tries == 0 {
                                // Without the message of a panic.
                                resume_unwind(Box::new(()));
                            }
                            if waiter.index == deaf {
                                return Verdict::PassedOver;
                            }
                            if let Some(blocked) = ahead {
                                return Verdict::Waits(blocked);
                            }
                            if count > left {
                                return Verdict::Waits(BLOCKED);
                            }
                            left -= count;
                            served.push(waiter.id);
                            Verdict::Done
                        };
                        let pass = AssertUnwindSafe(|| queue.pass(KEY, &mut attempt));
                        if catch_unwind(pass).is_err() {
                            queue.begin_anew();
                        }
                        let (mut left, mut tries, mut expected) = (items, until_panic, Vec::new());
                        let mut before: Vec<(usize, usize)> = Vec::new();
                        list.retain(|(id, index, count)| {
                            if tries == 0 {
                                return true;
                            }
                            tries -= 1;
                            if tries == 0 {
                                return false;
                            }
                            let waits = before.iter().any(|(of, least)| of == index && least <= count);
                            if *index == deaf || waits {
                                return true;
                            }
                            if *count > left {
                                before.push((*index, *count));
                                return true;
                            }
                            left -= count;
                            expected.push(*id);
                            false
                        });
                        prop_assert_eq!(served, expected);
                    }
                    Step::Cancel(id) => {
                        let found = list.iter().position(|(other, ..)| *other == id);
                        let removed = found.map(|found| list.remove(found));
                        let index = removed.map_or(0, |(_, index, _)| index);
                        prop_assert_eq!(queue.cancel(index, id), removed.is_some());
                    }
                    Step::Leave(index) => {
                        queue.forget(index);
                        list.retain(|(_, other, _)| *other != index);
                    }
                }
                let expected: Vec<_> = list.iter().map(|(id, ..)| *id).collect();
                prop_assert_eq!(ids(&mut queue), expected);
            }
        }
    }
}
