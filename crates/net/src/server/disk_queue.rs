//! Answers of one connection that wait for the disk.
//!
//! A table that is kept on disk has changed before that is written. A client that gets an answer relies on
//! it, so the answer waits here until the change survives what the table's durability says. Answers leave in the order
//! in which they came, and of a client that asks for more than the disk can follow, no more is read.

use std::collections::VecDeque;

use echoic_replay::durable;
use echoic_replay::rollouts::RolloutTable;
use echoic_replay::table::Sampled;

use super::ServerContext;
use super::request_session::failed;
use super::wait_queue::Key;
use crate::wire::tables::{Answer, Area, MAX_WAITING};
use crate::write_buffer::Piece;

/// What was changed up to a moment in a table of items or of rollouts, which has this number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Receipt {
    Items(usize, durable::Receipt),
    Rollouts(usize, durable::Receipt),
}

impl Receipt {
    /// Of what was changed so far in a rollout table; `None`, if it is not kept on disk.
    pub(crate) fn of_rollouts(number: usize, table: &RolloutTable) -> Option<Self> {
        table.receipt().map(|receipt| Self::Rollouts(number, receipt))
    }

    /// Whether that is durable; what to answer, if it never will be.
    pub(crate) fn is_durable(self, id: u64, shared: &ServerContext) -> Result<bool, Box<Answer>> {
        match self {
            Self::Items(number, receipt) => {
                let durable = shared.table(number).map_or(Ok(true), |one| one.is_durable(receipt));
                durable.map_err(|error| failed(id, &error).into())
            }
            Self::Rollouts(number, receipt) => {
                let table = shared.rollout_table(number);
                let durable = table.map_or(Ok(true), |one| one.is_durable(receipt));
                durable.map_err(|error| Answer::RolloutRefused { id, error }.into())
            }
        }
    }

    /// What to wait for, if it is not.
    pub(crate) fn key(self) -> Key {
        match self {
            Self::Items(number, _) => Key::Durable(number),
            Self::Rollouts(number, _) => Key::DurableRollouts(number),
        }
    }
}

/// The answer to a client.
#[derive(Debug)]
pub(crate) enum Held {
    /// How many items were changed.
    Count(u64),
    /// A batch of a table's items that is drawn, and gathered when it may be sent.
    Batch {
        table: usize,
        sampled: Box<Sampled>,
        area: Option<Area>,
    },
    Frame(Piece),
}

impl Held {
    fn bytes(&self) -> usize {
        match self {
            Self::Frame(frame) => frame.bytes().len(),
            _ => 0,
        }
    }
}

/// An answer that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) id: u64,
    pub(crate) receipt: Receipt,
    pub(crate) held: Held,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct DiskQueue {
    answers: VecDeque<Waiting>,
    /// How many bytes the frames among them have.
    bytes: usize,
}

impl DiskQueue {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.bytes += waiting.held.bytes();
        self.answers.push_back(waiting);
    }

    /// The first to be sent.
    pub(crate) fn first(&self) -> Option<&Waiting> {
        self.answers.front()
    }

    /// Takes it out.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let first = self.answers.pop_front()?;
        self.bytes -= first.held.bytes();
        Some(first)
    }

    /// Whether as much waits as may; `most` is how many bytes that are.
    pub(crate) fn is_full(&self, most: usize) -> bool {
        self.answers.len() >= MAX_WAITING || self.bytes >= most
    }
}
