//! Answers that are sent when what they tell of is kept.
//!
//! A table with a directory has changed before that is written. Whoever is told that something was done relies on it,
//! so the answer waits here until it survives what the table's durability says. Meanwhile its bytes count as unsent:
//! of a client that asks for more than the disk can follow, no more is read.

use std::collections::VecDeque;
use std::sync::Arc;

use echoic_replay::rollouts::RolloutTable;
use echoic_replay::rollouts::kept::Receipt;

use super::refuse;
use crate::server::outbox::Outbox;
use crate::spare::Lent;

/// A frame, as it will be sent.
#[derive(Debug)]
pub(super) enum Frame {
    Small(Vec<u8>),
    Large(Lent),
}

impl Frame {
    /// What `write` appends.
    pub(super) fn of(write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = Vec::new();
        write(&mut bytes);
        Self::Small(bytes)
    }

    fn len(&self) -> usize {
        match self {
            Self::Small(bytes) => bytes.len(),
            Self::Large(bytes) => bytes.len(),
        }
    }

    pub(super) fn send(self, out: &mut Outbox) {
        match self {
            Self::Small(bytes) => out.say(|out| out.extend_from_slice(&bytes)),
            Self::Large(bytes) => out.push(bytes),
        }
    }
}

#[derive(Debug)]
struct Unkept {
    id: u64,
    table: usize,
    receipt: Receipt,
    answer: Frame,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// In the order in which they were made.
    unkept: VecDeque<Unkept>,
}

impl Holding {
    /// Answers when all is kept that has changed so far in a table: now, if it is already.
    pub(super) fn answer(
        &mut self,
        id: u64,
        number: usize,
        table: &RolloutTable,
        answer: Frame,
        out: &mut Outbox,
    ) {
        let Some(receipt) = table.receipt() else { return answer.send(out) };
        match table.is_kept(receipt) {
            Ok(true) => answer.send(out),
            Ok(false) => {
                out.hold(answer.len());
                self.unkept.push_back(Unkept { id, table: number, receipt, answer });
            }
            Err(error) => refuse(id, error, out),
        }
    }

    /// Sends what may be sent, and says of what never will be kept that it is not. Of the others, the table to
    /// wait for.
    pub(super) fn settle(
        &mut self,
        tables: &[Arc<RolloutTable>],
        out: &mut Outbox,
    ) -> Option<usize> {
        while let Some(Unkept { table: number, receipt, .. }) = self.unkept.front() {
            let kept = tables.get(*number).map_or(Ok(true), |table| table.is_kept(*receipt));
            if kept == Ok(false) {
                return Some(*number);
            }
            let Unkept { id, answer, .. } = self.unkept.pop_front()?;
            out.release(answer.len());
            match kept {
                Ok(_) => answer.send(out),
                Err(error) => refuse(id, error, out),
            }
        }
        None
    }
}
