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
//! - an append is taken once, since its segments are numbered. So are a fail, a suspend, a discard: of the second
//!   fewer groups are true. A publish, a renew, new priorities, a new depth are the same done twice;
//! - an admit without a key has admitted groups that nobody makes: their permits end with their time to live. With a
//!   key, the second gets the group of the first. A group whose resume was not heard of is left again in the same way;
//! - a sample with a lease is delivered again when the lease is over. Without one, its groups are used up;
//! - an ack or a nack that was heard the first time is refused the second time, as fenced: the lease is over;
//! - a restore goes back to the same version, and takes back what was delivered in between.

use std::time::Instant;

use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::batch::{Form, Head};
use echoic_replay::rollouts::ledger::{Change, Outcome, Refusal, Want};
use echoic_replay::rollouts::table::RolloutInfo;
use echoic_replay::stream::Wait;

use super::Options;
use super::tables::{TablesError, Ticket, Waiting};
use crate::address::Address;
use crate::transport::Dial;

/// A rollout table of a server, as it introduces it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// What it was told at its birth.
    pub config: RolloutConfig,
    /// What the layers above keep with it; empty, if nothing.
    pub metadata: Vec<u8>,
}

/// What came of each of some changes, in their order.
pub type Outcomes = Vec<Result<Outcome, Refusal>>;

/// Changes as bytes: see [`echoic_replay::rollouts::codec`].
#[derive(Debug, Clone, Copy)]
pub struct Encoded<'a> {
    /// How many.
    pub count: u32,
    /// Their heads, one after the other.
    pub head: &'a [u8],
    /// Their bulk, in pieces: just those bytes that the heads name, in that order.
    pub bulk: &'a [&'a [u8]],
    /// Whether it is one that may be kept waiting: an admit or a resume.
    pub may_wait: bool,
}

/// A share of a batch, in memory of this client or in memory that is shared with the server.
#[derive(Debug)]
pub struct Delivered {
    head: Head,
    bytes: Vec<u8>,
}

impl Delivered {
    /// What is told of it beside its arrays.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Its arrays, which lie where `head().shape.arrays(config)` says; the first begins at a multiple of 64.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`Delivered::bytes`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Whether the server has written it where it is, into memory that is shared with it.
    pub fn is_shared(&self) -> bool {
        false
    }
}

/// See the [module](self).
pub struct Rollouts {
    tables: Vec<Entry>,
    address: Address,
}

/// Changes that were asked for, and what came of them, once that is known.
pub struct Calls {
    tickets: Vec<Ticket<u64>>,
}

fn missing<T>() -> Result<T, TablesError> {
    Err(TablesError::System("it is not there yet".into()))
}

impl Calls {
    /// Whether all answers are there.
    pub fn is_ready(&self) -> bool {
        self.tickets.iter().all(Ticket::is_ready)
    }

    /// Waits for the answers. May be called again after the wait timed out or was interrupted.
    ///
    /// # Errors
    ///
    /// [`TablesError`]; [`TablesError::Rollout`] when the one change that may wait has waited for as long as it may,
    /// or the table is closed.
    pub fn wait(&mut self, _wait: Wait<'_, Waiting>) -> Result<Outcomes, TablesError> {
        missing()
    }
}

impl Rollouts {
    /// Connects, and learns which rollout tables there are.
    ///
    /// # Errors
    ///
    /// [`TablesError`].
    pub fn connect(
        dial: Box<dyn Dial>,
        _options: Options,
        _wait: Wait<'_, Waiting>,
    ) -> Result<Self, TablesError> {
        drop(dial);
        missing()
    }

    /// The rollout tables of the server; calls name them by their places here.
    pub fn tables(&self) -> &[Entry] {
        &self.tables
    }

    /// The place of the table with a name.
    ///
    /// # Errors
    ///
    /// [`echoic_replay::table::TableError::Unknown`], which names those that there are.
    pub fn table(&self, _name: &str) -> Result<u32, TablesError> {
        missing()
    }

    /// Where the server is.
    pub fn address(&self) -> Address {
        self.address.clone()
    }

    /// Whether a connection stands.
    pub fn is_connected(&self) -> bool {
        false
    }

    /// How often it came back.
    pub fn reconnects(&self) -> u64 {
        0
    }

    /// Has changes happen, in their order: one that may wait, an admit or a resume, alone; of others as many as you
    /// like, which are sent in several requests if they have many bytes. A sample is no such change: see
    /// [`Rollouts::sample`].
    ///
    /// # Errors
    ///
    /// [`TablesError`]; of the one that may wait, [`TablesError::Rollout`] with what it waited for.
    pub fn call(
        &self,
        _table: u32,
        _changes: &[Change],
        _wait: Wait<'_, Waiting>,
    ) -> Result<Outcomes, TablesError> {
        missing()
    }

    /// Asks for changes: see [`Rollouts::call`]. The server answers at the latest at `deadline`.
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it can't be asked.
    pub fn start_call(
        &self,
        _table: u32,
        _changes: &[Change],
        _deadline: Option<Instant>,
    ) -> Result<Calls, TablesError> {
        missing()
    }

    /// As [`Rollouts::call`], of changes that are bytes already. They are one request.
    ///
    /// # Errors
    ///
    /// [`TablesError`].
    pub fn call_encoded(
        &self,
        _table: u32,
        _changes: Encoded<'_>,
        _wait: Wait<'_, Waiting>,
    ) -> Result<Outcomes, TablesError> {
        missing()
    }

    /// As [`Rollouts::start_call`], of changes that are bytes already. They are copied before this returns.
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it can't be asked.
    pub fn start_encoded(
        &self,
        _table: u32,
        _changes: Encoded<'_>,
        _deadline: Option<Instant>,
    ) -> Result<Calls, TablesError> {
        missing()
    }

    /// Takes a share of a batch, laid out as wanted.
    ///
    /// # Errors
    ///
    /// [`TablesError`]; [`TablesError::Rollout`] with what it waited for or why it was refused.
    pub fn sample(
        &self,
        _table: u32,
        _want: Want,
        _form: Form,
        _wait: Wait<'_, Waiting>,
    ) -> Result<Delivered, TablesError> {
        missing()
    }

    /// Asks for a share of a batch: see [`Rollouts::sample`]. Several may be under way.
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it can't be asked.
    pub fn start_sample(
        &self,
        _table: u32,
        _want: Want,
        _form: Form,
        _deadline: Option<Instant>,
    ) -> Result<Ticket<Delivered>, TablesError> {
        missing()
    }

    /// The numbers of a table.
    ///
    /// # Errors
    ///
    /// [`TablesError`].
    pub fn info(&self, _table: u32, _wait: Wait<'_, Waiting>) -> Result<RolloutInfo, TablesError> {
        missing()
    }

    /// Waits until the learner's version is above one; which it is.
    ///
    /// # Errors
    ///
    /// [`TablesError`]; [`TablesError::Rollout`] when it never was.
    pub fn wait_version(
        &self,
        _table: u32,
        _above: i64,
        _wait: Wait<'_, Waiting>,
    ) -> Result<i64, TablesError> {
        missing()
    }

    /// Asks for the learner's next version: see [`Rollouts::wait_version`].
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it can't be asked.
    pub fn start_version(
        &self,
        _table: u32,
        _above: i64,
        _deadline: Option<Instant>,
    ) -> Result<Ticket<i64>, TablesError> {
        missing()
    }

    /// Ends the connection. What has no answer gets none.
    ///
    /// # Errors
    ///
    /// [`TablesError`] when it has not ended in time; it will.
    pub fn close(&self, _wait: Wait<'_, Waiting>) -> Result<(), TablesError> {
        missing()
    }
}
