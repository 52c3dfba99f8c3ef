//! Asking things of tables.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use echoic_memory::event::Event;
use echoic_memory::sync::Mutex;
use echoic_replay::WaitReason;
use echoic_replay::limiter::Parameters;
use echoic_replay::stream::Wait;
use echoic_replay::table::{Infos, TableError};

use super::pending_requests::{PendingRequests, Question, RequestFrames, Slot, When};
use super::{
    Batch, FailureCode, Numbers, TableEntry, TablesError, check_priorities, entry, number,
};
use crate::address::Address;
use crate::client::link::LinkError;
use crate::client::reconnector::Reconnector;
use crate::client::{Options, io_thread};
use crate::transport::Dial;
use crate::wire::WireError;
use crate::wire::tables::{ALL_TABLES, MAX_ITEMS, MAX_KEYS, MAX_LISTED, Operation, Request};

/// How long a server that must say why a sample timed out is waited for, beyond the timeout itself.
const GRACE: Duration = Duration::from_secs(1);

/// What is known about some items of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// About the items; nothing was drawn, so probabilities are NaN.
    pub infos: Infos,
    /// Where the next ones begin, if there are more.
    pub next: Option<u32>,
}

/// A connection for requests, which many threads may share.
///
/// When it breaks it comes back, within the options' `deadline`, and what has no answer is asked again.
/// A request may thus be done twice, of which the first is not answered: a sample counts twice in the
/// table, as if the first had been lost; of a `delete` the second finds nothing, and counts zero;
/// a `reset` also removes what came in between; there may be a checkpoint more. All others are the same
/// done twice.
pub struct Requests {
    pub(in crate::client) pending: Arc<PendingRequests>,
    reconnector: Arc<Reconnector>,
    io_thread: Mutex<Option<JoinHandle<RequestFrames>>>,
}

/// Something that was asked for and may not be there yet. Dropped, it is given up: a sample that waits on
/// the server is cancelled; what was drawn already is lost, but counts as sampled.
pub struct PendingReply<T> {
    pending: Arc<PendingRequests>,
    reconnector: Arc<Reconnector>,
    id: u64,
    slot: Arc<Slot>,
    /// A wait has had the answer; there is no other.
    is_answered: bool,
    answer: PhantomData<fn() -> T>,
}

/// Waits for `event` until `poll` finds something.
pub(super) fn wait_for<T>(
    event: &Event,
    reconnector: &Reconnector,
    mut wait: Wait<'_>,
    mut poll: impl FnMut() -> Option<Result<T, TablesError>>,
) -> Result<T, TablesError> {
    let waited = wait.until(|until| match event.wait(until, None, &mut poll) {
        Some(found) => ControlFlow::Break(found),
        None => ControlFlow::Continue(away_or_network(reconnector)),
    });
    waited?
}

fn away_or_network(reconnector: &Reconnector) -> WaitReason {
    if reconnector.stands() { WaitReason::Network } else { WaitReason::Away }
}

impl<T: Any> PendingReply<T> {
    /// As [`PendingReply::wait`], of a request that the server answers at the wait's deadline at the latest: that answer,
    /// which says why there is no other, is waited for a little longer.
    pub(in crate::client) fn wait_for_reason(
        &mut self,
        mut wait: Wait<'_>,
    ) -> Result<T, TablesError> {
        match self.wait(wait.reborrow()) {
            Err(TablesError::TimedOut(WaitReason::Network)) => {
                let longer = |deadline: Instant| deadline.max(Instant::now()) + GRACE;
                self.wait(Wait { deadline: wait.deadline.map(longer), ..wait })
            }
            ended => ended,
        }
    }

    /// Whether the answer is there, or was.
    pub fn is_ready(&self) -> bool {
        self.is_answered || self.slot.is_filled() || self.reconnector.is_over()
    }

    /// Whether a wait has had the answer, be it an error: there is no other.
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Waits for the answer. May be called again after the wait timed out or was interrupted.
    pub fn wait(&mut self, wait: Wait<'_>) -> Result<T, TablesError> {
        let pending = Arc::clone(&self.pending);
        self.wait_unless(wait, |reconnector| {
            pending.impatient.load(Ordering::Relaxed) && !reconnector.stands()
        })
    }

    /// As [`PendingReply::wait`], but only for as long as there is a connection.
    ///
    /// # Errors
    ///
    /// [`TablesError`]; when there is no connection, as if the wait had timed out because of that.
    pub fn wait_while_connected(&mut self, wait: Wait<'_>) -> Result<T, TablesError> {
        self.wait_unless(wait, |reconnector| !reconnector.stands())
    }

    fn wait_unless(
        &mut self,
        mut wait: Wait<'_>,
        gone: impl Fn(&Reconnector) -> bool,
    ) -> Result<T, TablesError> {
        if self.is_answered {
            return Err(WireError::Content("the answer was taken".into()).into());
        }
        let Self { pending, reconnector, id, slot, .. } = &*self;
        let mut is_answered = false;
        let mut poll = || {
            // Once more after the end was seen: it may have brought the answer.
            let (over, gone) = (reconnector.is_over(), gone(reconnector));
            match slot.take() {
                None if over => reconnector.ending().map(|ending| Err(ending.into())),
                None if gone => Some(Err(TablesError::TimedOut(WaitReason::Away))),
                reply => {
                    is_answered = reply.is_some();
                    reply
                }
            }
        };
        pending.attend(reconnector, *id, true);
        let hurry = || pending.hurry(reconnector, *id);
        let waited = wait.until(|until| match pending.lead.wait(slot, until, hurry, &mut poll) {
            Some(found) => ControlFlow::Break(found),
            None => ControlFlow::Continue(away_or_network(reconnector)),
        });
        if !is_answered {
            pending.attend(reconnector, *id, false);
        }
        self.is_answered |= is_answered;
        let reply = waited??;
        let wrong = || TablesError::Wire(WireError::Content("an answer of another kind".into()));
        reply.downcast().map(|reply| *reply).map_err(|_| wrong())
    }
}

impl<T> PendingReply<T> {
    /// Gives it up.
    pub fn cancel(self) {}
}

impl<T> Drop for PendingReply<T> {
    fn drop(&mut self) {
        self.pending.give_up(&self.reconnector, self.id);
    }
}

impl Requests {
    /// Connects, and learns which tables there are.
    pub fn connect(
        dial: Box<dyn Dial>,
        options: Options,
        wait: Wait<'_>,
    ) -> Result<Self, TablesError> {
        Self::open(dial, options, false, wait)
    }

    /// As [`Requests::connect`], for callers that may want to know which rollout tables there are.
    pub(in crate::client) fn open(
        dial: Box<dyn Dial>,
        options: Options,
        wants_rollouts: bool,
        wait: Wait<'_>,
    ) -> Result<Self, TablesError> {
        let pending = Arc::<PendingRequests>::default();
        let noted = Arc::clone(&pending);
        let (reconnector, wakes) = Reconnector::new(dial, options, move || noted.note_change())?;
        let reconnector = Arc::new(reconnector);
        let frames =
            RequestFrames::new(Arc::clone(&pending), Arc::clone(&reconnector), wants_rollouts);
        let lent = Arc::clone(&pending);
        let lend = move |driver| lent.lend(driver);
        let io_thread = io_thread::spawn(&reconnector, wakes, frames, lend, |_| {})?;
        let this = Self { pending, reconnector, io_thread: Mutex::new(Some(io_thread)) };
        wait_for(&this.pending.changed, &this.reconnector, wait, || {
            let ending = || this.reconnector.ending().map(|ending| Err(ending.into()));
            if this.reconnector.stands() { Some(Ok(())) } else { ending() }
        })?;
        Ok(this)
    }

    /// The tables of the server; requests name them by their places here.
    pub fn tables(&self) -> &[TableEntry] {
        self.pending.tables.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// The place of the table with a name.
    ///
    /// # Errors
    ///
    /// [`TableError::Unknown`], which names those that there are.
    pub fn table(&self, name: &str) -> Result<u32, TablesError> {
        number(self.tables(), name)
    }

    /// Where the server is.
    pub fn address(&self) -> Address {
        self.reconnector.address()
    }

    /// From now on the server is to be found there: at another address, or where it was restarted. A connection that
    /// stands is left. What has no answer then is asked again there, but for one that
    /// [waits only while connected](Self::wait_only_while_connected).
    pub fn redirect(&self, dial: Box<dyn Dial>) {
        self.reconnector.redirect(dial);
    }

    /// Why there is no connection, if that will not pass by itself: another server is at the address. Only of one
    /// that is `steadfast`; others end with such an error.
    pub fn trouble(&self) -> Option<LinkError> {
        self.reconnector.trouble()
    }

    /// From now on, waits for answers end while there is no connection, as if they had timed out because
    /// of that, and what has no answer then is not asked again: for clients that have other servers to ask.
    pub fn wait_only_while_connected(&self) {
        self.pending.impatient.store(true, Ordering::Relaxed);
    }

    /// Whether a connection stands to where it was [redirected](Self::redirect) last.
    pub fn has_arrived(&self) -> bool {
        self.reconnector.has_arrived()
    }

    /// Whether a connection stands.
    pub fn is_connected(&self) -> bool {
        self.reconnector.stands()
    }

    /// Whether it has ended for good: it was closed, or gave up.
    pub fn is_over(&self) -> bool {
        self.reconnector.is_over()
    }

    /// How often the server that it came back to was another than before: restarted.
    pub fn incarnations(&self) -> u64 {
        self.pending.incarnations.load(Ordering::Acquire)
    }

    /// How often it came back.
    pub fn reconnects(&self) -> u64 {
        self.reconnector.returns()
    }

    /// Requests that have no answer.
    pub fn waiting(&self) -> usize {
        self.pending.waiting()
    }

    pub(in crate::client) fn ask<T>(
        &self,
        when: When,
        make: impl FnOnce(u64) -> Question,
    ) -> Result<PendingReply<T>, TablesError> {
        if let Some(refusal) = self.reconnector.refusal() {
            return Err(refusal.into());
        }
        let (id, slot) = self.pending.ask(&self.reconnector, when, make);
        let (pending, reconnector) = (Arc::clone(&self.pending), Arc::clone(&self.reconnector));
        let (is_answered, answer) = (false, PhantomData);
        Ok(PendingReply { pending, reconnector, id, slot, is_answered, answer })
    }

    /// A request whose answer is waited for at once.
    fn ask_for<T>(
        &self,
        table: u32,
        operation: Operation<'_>,
    ) -> Result<PendingReply<T>, TablesError> {
        entry(self.tables(), table)?;
        self.put(When::Awaited, table, operation)
    }

    pub(in crate::client) fn put<T>(
        &self,
        when: When,
        table: u32,
        operation: Operation<'_>,
    ) -> Result<PendingReply<T>, TablesError> {
        let batch_of = matches!(operation, Operation::Get { .. }).then_some(table);
        self.ask(when, |id| {
            let mut frame = Vec::new();
            Request { id, table, operation }.write(&mut frame);
            Question::Other { frame: Arc::new(frame), batch_of }
        })
    }

    /// Asks for a sample of `count` items. The server answers, at the latest, at `deadline` that there is
    /// none, and why. Several may be under way: so a batch is there when it is wanted.
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it can't be asked.
    pub fn start_sample(
        &self,
        table: u32,
        count: usize,
        deadline: Option<Instant>,
    ) -> Result<PendingReply<Batch>, TablesError> {
        self.ask_sample(When::Now, table, count, deadline)
    }

    fn ask_sample(
        &self,
        when: When,
        table: u32,
        count: usize,
        deadline: Option<Instant>,
    ) -> Result<PendingReply<Batch>, TablesError> {
        entry(self.tables(), table)?;
        let count = check_count("number of items", MAX_ITEMS, count)?;
        self.ask(when, |_| Question::Sample { table, count, deadline })
    }

    /// Samples `count` items.
    ///
    /// # Errors
    ///
    /// [`TablesError`]; when the wait's deadline passes, with what the table waited for.
    pub fn sample(&self, table: u32, count: usize, wait: Wait<'_>) -> Result<Batch, TablesError> {
        self.ask_sample(When::Awaited, table, count, wait.deadline)?.wait_for_reason(wait)
    }

    /// Asks for a change of priorities: see [`Requests::update_priorities`].
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it can't be asked: then nothing is sent.
    pub fn start_update(
        &self,
        table: u32,
        keys: &[u64],
        priorities: &[f64],
    ) -> Result<PendingReply<u64>, TablesError> {
        self.ask_update(When::Now, table, keys, priorities)
    }

    fn ask_update(
        &self,
        when: When,
        table: u32,
        keys: &[u64],
        priorities: &[f64],
    ) -> Result<PendingReply<u64>, TablesError> {
        let (keys_len, values) = (keys.len(), priorities.len());
        if keys_len != values {
            return Err(TableError::Lengths { keys: keys_len, values }.into());
        }
        check_count("number of keys", MAX_KEYS, keys_len)?;
        check_priorities(priorities)?;
        entry(self.tables(), table)?;
        let operation = Operation::Update { keys: keys.into(), priorities: priorities.into() };
        self.put(when, table, operation)
    }

    /// Changes priorities, all or none; how many of the items were there.
    pub fn update_priorities(
        &self,
        table: u32,
        keys: &[u64],
        priorities: &[f64],
        wait: Wait<'_>,
    ) -> Result<u64, TablesError> {
        self.ask_update(When::Awaited, table, keys, priorities)?.wait(wait)
    }

    /// Removes items; how many of them were there.
    pub fn delete(&self, table: u32, keys: &[u64], wait: Wait<'_>) -> Result<u64, TablesError> {
        self.ask_delete(When::Awaited, table, keys)?.wait(wait)
    }

    /// Removes all items, and counts from zero.
    pub fn reset(&self, table: u32, wait: Wait<'_>) -> Result<(), TablesError> {
        self.ask_for::<u64>(table, Operation::Reset)?.wait(wait).map(drop)
    }

    /// Lets nothing be inserted or sampled until [`Requests::resume`].
    pub fn pause(&self, table: u32, wait: Wait<'_>) -> Result<(), TablesError> {
        self.ask_for::<u64>(table, Operation::Pause)?.wait(wait).map(drop)
    }

    /// Ends a pause.
    pub fn resume(&self, table: u32, wait: Wait<'_>) -> Result<(), TablesError> {
        self.ask_for::<u64>(table, Operation::Resume)?.wait(wait).map(drop)
    }

    /// Replaces the limiter; the counts stay.
    ///
    /// # Errors
    ///
    /// [`TablesError::Refused`] when the table could not work with it.
    pub fn set_limiter(
        &self,
        table: u32,
        limiter: Parameters,
        wait: Wait<'_>,
    ) -> Result<(), TablesError> {
        self.ask_for::<u64>(table, Operation::SetLimiter(limiter))?.wait(wait).map(drop)
    }

    /// Tells the policy version of the learner. It never falls.
    pub fn advance(&self, table: u32, version: u64, wait: Wait<'_>) -> Result<(), TablesError> {
        self.ask_for::<u64>(table, Operation::Advance { version })?.wait(wait).map(drop)
    }

    /// Whether `count` items may be sampled now. Of a table that is closed they may not, as of one of this process.
    pub fn can_sample(
        &self,
        table: u32,
        count: usize,
        wait: Wait<'_>,
    ) -> Result<bool, TablesError> {
        match self.start_can_sample(table, count)?.wait(wait) {
            Err(TablesError::Refused { code: FailureCode::Closed, .. }) => Ok(false),
            may => may.map(|may| may != 0),
        }
    }

    /// Asks whether `count` items may be sampled now: 1 if so, else 0. Of a table that is closed the answer is
    /// [`FailureCode::Closed`](super::FailureCode::Closed).
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it can't be asked.
    pub fn start_can_sample(
        &self,
        table: u32,
        count: usize,
    ) -> Result<PendingReply<u64>, TablesError> {
        let count = check_count("number of items", MAX_ITEMS, count)?;
        entry(self.tables(), table)?;
        self.put(When::Now, table, Operation::CanSample { count })
    }

    /// Whether `count` items may be inserted now.
    pub fn can_insert(
        &self,
        table: u32,
        count: usize,
        wait: Wait<'_>,
    ) -> Result<bool, TablesError> {
        let count = check_count("number of items", MAX_ITEMS, count)?;
        self.ask_for::<u64>(table, Operation::CanInsert { count })?.wait(wait).map(|may| may != 0)
    }

    /// The numbers of a table, or of all.
    pub fn info(&self, table: Option<u32>, wait: Wait<'_>) -> Result<Vec<Numbers>, TablesError> {
        self.ask_info(When::Awaited, table)?.wait(wait)
    }

    /// The numbers of one table.
    pub fn table_info(&self, table: u32, wait: Wait<'_>) -> Result<Numbers, TablesError> {
        let all = self.info(Some(table), wait)?;
        all.into_iter().find(|numbers| numbers.table == table).ok_or_else(|| {
            TablesError::Wire(WireError::Content("the server said nothing of the table".into()))
        })
    }

    /// Asks for the numbers of a table, or of all.
    pub(super) fn ask_info(
        &self,
        when: When,
        table: Option<u32>,
    ) -> Result<PendingReply<Vec<Numbers>>, TablesError> {
        if let Some(table) = table {
            entry(self.tables(), table)?;
        }
        let table = table.unwrap_or(ALL_TABLES);
        self.put(when, table, Operation::Info)
    }

    /// What is known about items, from a place on: 0 for the first ones, or what [`Listed`] says.
    pub fn list(
        &self,
        table: u32,
        place: u32,
        most: usize,
        wait: Wait<'_>,
    ) -> Result<Listed, TablesError> {
        let most = u32::try_from(most).unwrap_or(MAX_LISTED).min(MAX_LISTED);
        self.ask_for(table, Operation::List { place, most })?.wait(wait)
    }

    /// What is known about all items, or about the `most` first ones.
    pub fn list_all(
        &self,
        table: u32,
        most: usize,
        mut wait: Wait<'_>,
    ) -> Result<Infos, TablesError> {
        let (mut infos, mut place) = (Infos::default(), Some(0));
        while let Some(first) = place
            && infos.keys.len() < most
        {
            let listed = self.list(table, first, most - infos.keys.len(), wait.reborrow())?;
            infos.append(listed.infos);
            // A place that does not move would have no end.
            place = listed.next.filter(|next| *next > first);
        }
        Ok(infos)
    }

    /// Reads the items of these names that are there; they do not count as sampled.
    ///
    /// # Errors
    ///
    /// [`TablesError`]; the items must be of one form, and fit into a batch.
    pub fn get(&self, table: u32, keys: &[u64], wait: Wait<'_>) -> Result<Batch, TablesError> {
        check_count("number of keys", MAX_KEYS, keys.len())?;
        self.ask_for(table, Operation::Get { keys: keys.into() })?.wait(wait)
    }

    /// Has the server write a checkpoint of everything that it has; where it is, on the server's machine.
    ///
    /// # Errors
    ///
    /// [`TablesError`]. When the wait ends before, the checkpoint may be written all the same.
    pub fn checkpoint(&self, wait: Wait<'_>) -> Result<String, TablesError> {
        self.put(When::Awaited, 0, Operation::Checkpoint)?.wait(wait)
    }

    /// Asks for items to be removed.
    pub(super) fn ask_delete(
        &self,
        when: When,
        table: u32,
        keys: &[u64],
    ) -> Result<PendingReply<u64>, TablesError> {
        check_count("number of keys", MAX_KEYS, keys.len())?;
        entry(self.tables(), table)?;
        self.put(when, table, Operation::Delete { keys: keys.into() })
    }

    /// Ends the connection. What has no answer gets none.
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it has not ended in time; it will.
    pub fn close(&self, wait: Wait<'_>) -> Result<(), TablesError> {
        self.reconnector.close();
        wait_for(&self.pending.changed, &self.reconnector, wait, || {
            self.reconnector.is_over().then_some(Ok(()))
        })?;
        if let Some(io_thread) = self.io_thread.lock().take() {
            // An I/O thread that panicked has printed why, and carries nothing any more.
            let _ = io_thread.join();
        }
        Ok(())
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.reconnector.close();
    }
}

fn check_count(field: &'static str, limit: u32, got: usize) -> Result<u32, TablesError> {
    match u32::try_from(got) {
        Ok(count) if count <= limit => Ok(count),
        _ => Err(WireError::too_large(field, limit.into(), got as u64).into()),
    }
}
