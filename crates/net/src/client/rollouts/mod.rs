//! Rollout tables of a server, from elsewhere.
//!
//! [`Rollouts`] has one connection, which many threads may share: each asks, and waits for its own answer, or asks
//! for more before it has it. Tokens are copied once on their way out: into the frame that is sent, or, over
//! `shm://`, into memory that is shared with the server.
//!
//! # What is done twice
//!
//! A connection that breaks comes back, within the options' `deadline`, and what has no answer is asked again: it may
//! have been done, and only the answer be lost. Of what is then done twice:
//!
//! - an append is taken once, since its segments are numbered. So are a fail, a suspend, a remove: of the second
//!   fewer groups are true. An update gives the same values again, or comes too late and changes nothing. A publish,
//!   a renew, a pause, new priorities, a new depth are the same done twice;
//! - a reserve has reserved groups that no producer makes: their reservations end with their time to live. A group
//!   whose resume was not heard of is left again in the same way;
//! - a sample with a lease is delivered again when the lease is over. Without one, its groups are used up;
//! - an ack or a nack that was heard the first time is refused the second time, as fenced: the lease is over;
//! - a restore goes back to the same version, and takes back what was delivered in between.

mod delivered;
mod pending_appends;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use echoic_replay::codec::Encode;
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::batch::Form;
use echoic_replay::rollouts::ledger::{Append, Change, ChangeError, GroupStatus, Outcome, Want};
use echoic_replay::rollouts::table::{CallError, RolloutInfo};
use echoic_replay::stream::Wait;
use echoic_replay::table::TableError;

pub use self::delivered::Delivered;
pub use self::pending_appends::{AppendError, PendingAppend, PendingAppends};
use super::Options;
use super::tables::pending_requests::{PLACE_BYTES, Question, When};
use super::tables::requests::Requests;
use super::tables::{PendingReply, TablesError};
use crate::address::Address;
use crate::transport::Dial;
use crate::wire::WireError;
pub use crate::wire::rollouts::Outcomes;
use crate::wire::rollouts::{Bulk, Changes, INLINE_BYTES, MAX_CHANGES, write_changes};
use crate::wire::tables::{Operation, Request};

/// How many bytes of changes are sent in one request, if there are several.
const REQUEST_BYTES: usize = 8 << 20;

/// See the [module](self).
pub struct Rollouts {
    requests: Requests,
    appends: PendingAppends,
}

/// What is to come of some changes.
enum Part {
    Asked(PendingReply<Outcomes>),
    /// One that was not even sent.
    Refused(ChangeError),
}

/// Changes that were asked for, and what came of them, once that is known. Dropped, they are given up: what waits on
/// the server is cancelled; all else may have happened.
pub struct Calls {
    parts: VecDeque<Part>,
    /// Of the first requests.
    known: Outcomes,
    /// The server answers at the deadline at the latest.
    may_wait: bool,
}

impl Calls {
    /// Whether all answers are there.
    pub fn is_ready(&self) -> bool {
        self.parts.iter().all(|part| match part {
            Part::Asked(reply) => reply.is_ready(),
            Part::Refused(_) => true,
        })
    }

    /// Waits for the answers. May be called again after the wait timed out or was interrupted.
    ///
    /// # Errors
    ///
    /// [`TablesError`]; [`TablesError::Rollout`] when the one change that may wait has waited for as long as it may,
    /// or the table is closed.
    pub fn wait(&mut self, mut wait: Wait<'_>) -> Result<Outcomes, TablesError> {
        while let Some(part) = self.parts.front_mut() {
            match part {
                Part::Asked(reply) if self.may_wait => {
                    self.known.append(&mut reply.wait_for_reason(wait.reborrow())?);
                }
                Part::Asked(reply) => self.known.append(&mut reply.wait(wait.reborrow())?),
                Part::Refused(refusal) => self.known.push(Err(refusal.clone())),
            }
            self.parts.pop_front();
        }
        Ok(std::mem::take(&mut self.known))
    }

    /// As [`Calls::wait`], of appends to one group: where that has come to by the last of them.
    ///
    /// # Errors
    ///
    /// [`TablesError`]; [`TablesError::Rollout`] when one of them was refused.
    pub fn wait_status(&mut self, wait: Wait<'_>) -> Result<GroupStatus, TablesError> {
        let mut status = GroupStatus::Running;
        for outcome in self.wait(wait)? {
            match outcome.map_err(|refusal| TablesError::Rollout(CallError::Refused(refusal)))? {
                Outcome::Appended(reached) => status = reached,
                other => {
                    let text = format!("an answer of another kind: {other:?}");
                    return Err(TablesError::Wire(WireError::Content(text)));
                }
            }
        }
        Ok(status)
    }

    /// Whether a wait has had an error for an answer: there is no other.
    fn has_failed(&self) -> bool {
        let first = self.parts.front();
        first.is_some_and(|part| matches!(part, Part::Asked(reply) if reply.is_answered()))
    }
}

impl Rollouts {
    /// Connects, and learns which rollout tables there are.
    pub fn connect(
        dial: Box<dyn Dial>,
        options: Options,
        wait: Wait<'_>,
    ) -> Result<Self, TablesError> {
        let requests = Requests::open(dial, options, true, wait)?;
        Ok(Self { requests, appends: PendingAppends::default() })
    }

    /// The settings of the server's rollout tables; calls name these by their places here.
    pub fn tables(&self) -> &[Arc<RolloutConfig>] {
        self.requests.pending.rollouts.get().map(Vec::as_slice).unwrap_or_default()
    }

    fn config(&self, table: u32) -> Result<&RolloutConfig, TablesError> {
        let unknown = || {
            let known = self.tables().iter().map(|config| config.name.clone()).collect();
            TableError::Unknown { name: format!("number {table}"), known }
        };
        Ok(self.tables().get(table as usize).map(|config| &**config).ok_or_else(unknown)?)
    }

    fn check(&self, table: u32) -> Result<(), TablesError> {
        self.config(table).map(drop)
    }

    /// Where the server is.
    pub fn address(&self) -> Address {
        self.requests.address()
    }

    /// Whether a connection stands.
    pub fn is_connected(&self) -> bool {
        self.requests.is_connected()
    }

    /// Whether it has ended for good: it was closed, or gave up.
    pub fn is_over(&self) -> bool {
        self.requests.is_over()
    }

    /// How often it came back.
    pub fn reconnects(&self) -> u64 {
        self.requests.reconnects()
    }

    /// Has changes happen, in their order: one that may wait, a reserve, a resume, or a wait for a version, alone; of
    /// others as many as you like, which are sent in several requests if they have many bytes. A sample is no such
    /// change: see [`Rollouts::sample`].
    ///
    /// # Errors
    ///
    /// [`TablesError`]; of the one that may wait, [`TablesError::Rollout`] with what it waited for.
    pub fn call(
        &self,
        table: u32,
        changes: &[Change],
        wait: Wait<'_>,
    ) -> Result<Outcomes, TablesError> {
        self.ask_call(When::Awaited, table, changes, wait.deadline)?.wait(wait)
    }

    /// Asks for changes: see [`Rollouts::call`]. The server answers one that may wait at the latest at `deadline`.
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it can't be asked.
    pub fn start_call(
        &self,
        table: u32,
        changes: &[Change],
        deadline: Option<Instant>,
    ) -> Result<Calls, TablesError> {
        self.ask_call(When::Now, table, changes, deadline)
    }

    fn ask_call(
        &self,
        when: When,
        table: u32,
        changes: &[Change],
        deadline: Option<Instant>,
    ) -> Result<Calls, TablesError> {
        let may_wait = changes.iter().any(|change| change.side().is_some());
        let has_sample = changes.iter().any(|change| matches!(change, Change::Sample(_)));
        if has_sample || (may_wait && changes.len() != 1) {
            let (field, got) = ("change that waits among others", changes.len() as u64);
            return Err(WireError::meaningless(field, got).into());
        }
        let config = self.config(table)?;
        let mut parts = VecDeque::new();
        let (mut head, mut bulk) = (Vec::new(), Vec::new());
        let (mut count, mut bytes) = (0, 0);
        for change in changes {
            if let Err(refusal) = change.check(config) {
                if count > 0 {
                    parts.push_back(Part::Asked(self.send(when, table, count, &head, &bulk)?));
                    head.clear();
                    bulk.clear();
                    (count, bytes) = (0, 0);
                }
                parts.push_back(Part::Refused(refusal));
                continue;
            }
            let (before, pieces) = (head.len(), bulk.len());
            change.encode(&mut head);
            bulk.extend(change.bulk());
            let mut len: usize = change.bulk().map(<[u8]>::len).sum();
            if may_wait {
                let head = std::mem::take(&mut head);
                let ask = |_| Question::Change { table, head, deadline };
                parts.push_back(Part::Asked(self.requests.ask(when, ask)?));
                break;
            }
            len += head.len() - before;
            if count == MAX_CHANGES || (count > 0 && bytes + len > REQUEST_BYTES) {
                let (first, first_bulk) = (&head[..before], &bulk[..pieces]);
                parts.push_back(Part::Asked(self.send(when, table, count, first, first_bulk)?));
                head.drain(..before);
                bulk.drain(..pieces);
                (count, bytes) = (0, 0);
            }
            count += 1;
            bytes += len;
        }
        if count > 0 {
            parts.push_back(Part::Asked(self.send(when, table, count, &head, &bulk)?));
        }
        Ok(Calls { parts, known: Outcomes::new(), may_wait })
    }

    /// As [`Rollouts::start_call`], of changes that are [bytes](echoic_replay::rollouts::codec) already, in one request.
    /// None of them may wait. Their bulk, of this many bytes, is written by `fill` where the server reads it: where no
    /// memory is shared with the server, it has at most the bytes of an item, or 16 MiB with the heads, less 64 bytes,
    /// if that is more. They are not [looked at](Change::check): a key, or the name of a source or a blob, of over 1024
    /// bytes ends the connection. One that `may_linger` may be sent when there is an answer to what was asked before:
    /// so a caller that does not wait for each has fewer and larger pieces sent.
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it can't be asked.
    pub fn start_filled(
        &self,
        table: u32,
        count: u32,
        head: &[u8],
        len: usize,
        may_linger: bool,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Calls, TablesError> {
        self.check(table)?;
        if count > MAX_CHANGES {
            let (field, limit, got) = ("number of changes", MAX_CHANGES.into(), count.into());
            return Err(WireError::too_large(field, limit, got).into());
        }
        let when = if may_linger { When::Later } else { When::Now };
        let part = self.send_filled(when, table, (count, head), len, fill)?;
        let parts = VecDeque::from([Part::Asked(part)]);
        Ok(Calls { parts, known: Outcomes::new(), may_wait: false })
    }

    fn send(
        &self,
        when: When,
        table: u32,
        count: u32,
        head: &[u8],
        bulk: &[&[u8]],
    ) -> Result<PendingReply<Outcomes>, TablesError> {
        let len = bulk.iter().map(|piece| piece.len()).sum();
        self.send_filled(when, table, (count, head), len, |mut rest| {
            for piece in bulk {
                let (here, behind) = rest.split_at_mut(piece.len());
                here.copy_from_slice(piece);
                rest = behind;
            }
        })
    }

    fn send_filled(
        &self,
        when: When,
        table: u32,
        (count, head): (u32, &[u8]),
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<PendingReply<Outcomes>, TablesError> {
        let place = || if len < PLACE_BYTES { None } else { self.requests.pending.take_place(len) };
        if let Some(mut place) = place() {
            fill(&mut place[..len]);
            let head = head.to_vec();
            let make = |_| Question::Placed { table, count, head, place, len };
            return self.requests.ask(when, make);
        }
        if head.len() + len > INLINE_BYTES {
            let item = self.tables().get(table as usize).map(|config| config.most_item_bytes());
            let (limit, got) = (item.unwrap_or(0).max(INLINE_BYTES as u64), len as u64);
            if head.len() > INLINE_BYTES || got > limit {
                let field = "bytes of changes in one request";
                return Err(WireError::too_large(field, limit, got).into());
            }
            let mut bulk = vec![0; len];
            fill(&mut bulk);
            return self.requests.ask(when, |id| {
                let mut frames = Vec::with_capacity(64 + head.len() + len);
                write_changes(&mut frames, (id, table), (count, head), &bulk);
                Question::Other { frame: Arc::new(frames), batch_of: None }
            });
        }
        self.requests.ask(when, |id| {
            let mut frame = Vec::with_capacity(64 + head.len() + len);
            // The length of the frame says what follows the heads, so it is made as if it were there.
            let (timeout_ms, head) = (Some(0), head.into());
            let changes = Changes { timeout_ms, count, head, bulk: Bulk::Inline((&[]).into()) };
            let operation = Operation::RolloutChanges(changes);
            Request { id, table, operation }.write_with(&mut frame, |out| {
                let start = out.len();
                out.resize(start + len, 0);
                fill(&mut out[start..]);
            });
            Question::Other { frame: Arc::new(frame), batch_of: None }
        })
    }

    /// Takes a share of a batch, laid out as wanted.
    ///
    /// # Errors
    ///
    /// [`TablesError`]; [`TablesError::Rollout`] with what it waited for or why it was refused.
    pub fn sample(
        &self,
        table: u32,
        want: Want,
        form: Form,
        wait: Wait<'_>,
    ) -> Result<Delivered, TablesError> {
        self.ask_sample(When::Awaited, table, want, form, wait.deadline)?.wait_for_reason(wait)
    }

    /// Asks for a share of a batch: see [`Rollouts::sample`]. Several may be under way.
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it can't be asked.
    pub fn start_sample(
        &self,
        table: u32,
        want: Want,
        form: Form,
        deadline: Option<Instant>,
    ) -> Result<PendingReply<Delivered>, TablesError> {
        self.ask_sample(When::Now, table, want, form, deadline)
    }

    fn ask_sample(
        &self,
        when: When,
        table: u32,
        want: Want,
        form: Form,
        deadline: Option<Instant>,
    ) -> Result<PendingReply<Delivered>, TablesError> {
        self.check(table)?;
        self.requests.ask(when, |_| Question::Rollouts { table, want, form, deadline })
    }

    /// The numbers of a table.
    pub fn info(&self, table: u32, wait: Wait<'_>) -> Result<RolloutInfo, TablesError> {
        self.check(table)?;
        self.requests.put(When::Awaited, table, Operation::RolloutInfo)?.wait(wait)
    }

    /// Starts an append in the background; waits while too many are without an answer.
    ///
    /// # Errors
    ///
    /// [`AppendError`], of this one or of an earlier one; then this one is not asked for.
    pub fn start_append(
        &self,
        table: u32,
        append: Append,
        wait: Wait<'_>,
    ) -> Result<PendingAppend, AppendError> {
        let (group, bytes) = (append.hold.group, append.bytes());
        self.appends.make_room(bytes, wait)?;
        let calls = self.start_call(table, &[Change::Append(append)], None)?;
        Ok(self.appends.push(group, bytes, calls))
    }

    /// Those on their way.
    pub fn appends(&self) -> &PendingAppends {
        &self.appends
    }

    /// Waits for the answers of [`Rollouts::appends`], and ends the connection, whatever they are. What else has no
    /// answer gets none.
    ///
    /// # Errors
    ///
    /// [`AppendError`] of one whose producer does not know it, or when the connection has not ended in time; it will.
    pub fn close(&self, mut wait: Wait<'_>) -> Result<(), AppendError> {
        let arrived = match self.is_over() {
            true => Ok(()),
            false => self.appends.flush_all(wait.reborrow()),
        };
        let closed = self.requests.close(wait);
        arrived.and(closed.map_err(AppendError::from))
    }
}
