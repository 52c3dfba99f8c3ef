//! What follows from what is saved of a ledger: what is due when, in which order groups go, and how old they are.
//!
//! It is kept up to date change by change, and made again here where a ledger is loaded, and where all times are others
//! than they were. Tests compare the two.

use std::collections::{BTreeMap, BTreeSet};

use super::Due;
use super::leases::PartState;
use super::queue::{Arrangement, Queue};
use super::state::State;
use crate::rollouts::config::Order;

/// See the [module](self).
#[derive(Debug, PartialEq)]
pub(super) struct Derived {
    /// Open groups that were given back and wait for a producer.
    pub(super) suspended: BTreeSet<u64>,
    /// Open groups that have tokens, by the version of the oldest.
    pub(super) by_oldest: BTreeSet<(i64, u64)>,
    /// How many open groups that a producer has are as old as this: as its policy was when it began, at least.
    pub(super) ages: BTreeMap<i64, u64>,
    /// Complete groups that are in no batch.
    pub(super) queue: Queue,
    pub(super) due: BTreeSet<(u64, Due)>,
}

impl Derived {
    /// Of a state in which nothing is.
    pub(super) fn new(order: Order) -> Self {
        let (suspended, by_oldest, ages, due) = Default::default();
        Self { suspended, by_oldest, ages, queue: Queue::new(order), due }
    }

    /// Of a state whose queued groups are arranged like this.
    pub(super) fn of(order: Order, state: &State, arrangement: Arrangement) -> Self {
        let mut derived = Self::new(order);
        let Self { suspended, by_oldest, ages, queue, due } = &mut derived;
        for (id, open) in &state.open {
            if open.expires.is_some() {
                due.insert((open.looked_at, Due::Reservation(*id)));
                *ages.entry(open.age()).or_default() += 1;
            } else {
                suspended.insert(*id);
            }
            due.extend(open.deadline.map(|deadline| (deadline, Due::Deadline(*id))));
            by_oldest.extend(open.oldest.map(|oldest| (oldest, *id)));
        }
        for (number, batch) in &state.batches {
            for (rank, part) in (0..).zip(&batch.shares) {
                if let PartState::Out(until) = part.state {
                    due.insert((until, Due::Lease(*number, rank)));
                }
            }
        }
        state.queued().for_each(|ready| queue.insert(&ready.place()));
        queue.arrange(arrangement);
        derived
    }
}
