//! Numbers that nothing else ever had, though a table goes on from an old checkpoint.
//!
//! Groups are admitted and batches made after a checkpoint, too. A table that goes on from it knows nothing of them,
//! but producers and consumers do. If it gave their numbers to others, whoever comes back would bring its tokens to
//! another's group, or be done with another's batch. So an *era* begins there: groups and batches go on at a number
//! far above all that may have been given, and what the checkpoint has gets an attempt that none had before when it
//! changes hands. Until then it is its producer's and its consumer's, who go on.
//!
//! The numbers come from the time of the day. An era that is counted would not do: of two tables that go on from one
//! checkpoint, one after the other, each would be in the next one.
//!
//! # Invariants
//!
//! 1. Numbers from `groups`, or `batches`, up to `first` are nobody's: they were given after the checkpoint, or never.
//! 2. Outside the first era, no attempt is given that another era has given, while fewer than a million groups or
//!    batches a second are made, none of them changes hands once a second, and the clock does not go back.

use super::Ledger;

/// How many numbers there are for each millisecond.
const PER_MS: u64 = 1 << 10;
/// The least that is left out, should the clock be of no use.
const LEAST: u64 = 1 << 20;
/// No era begins above this, whatever the clock says, so that numbers remain.
const LAST: u64 = 1 << 59;
/// The same for attempts.
const LAST_ATTEMPT: u64 = 3 << 30;

/// See the [module](self). All zero in the first era.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Era {
    /// The next group at the checkpoint.
    pub(super) groups: u64,
    /// The next batch at the checkpoint.
    pub(super) batches: u64,
    /// Where both went on.
    pub(super) first: u64,
    /// The lowest attempt of what was there at the checkpoint and changes hands.
    pub(super) attempts: u32,
    /// The highest that was given. It is not saved: who goes on from a checkpoint has a later clock.
    highest: u32,
}

impl Era {
    pub(super) fn of(groups: u64, batches: u64, first: u64, attempts: u32) -> Self {
        Self { groups, batches, first, attempts, highest: 0 }
    }

    /// Whether a group is unknown since it came after the checkpoint.
    pub(super) fn has_lost_group(&self, id: u64) -> bool {
        (self.groups..self.first).contains(&id)
    }

    /// Whether a batch is unknown since it came after the checkpoint.
    pub(super) fn has_lost_batch(&self, number: u64) -> bool {
        (self.batches..self.first).contains(&number)
    }

    /// The attempt of a group or batch that changes hands, after this one.
    pub(super) fn attempt_after(&mut self, number: u64, attempt: u32) -> u32 {
        let next = attempt.saturating_add(1);
        // What has a number of this era never was in another one.
        let next = if number < self.first { next.max(self.attempts) } else { next };
        self.highest = self.highest.max(next);
        next
    }

    /// How many groups were admitted at the most, if `next` is the next.
    pub(super) fn most_groups(&self, next: u64) -> u64 {
        self.groups.saturating_add(next.saturating_sub(self.first))
    }
}

impl Ledger {
    /// Goes on from a checkpoint after which others may have been given numbers, `unix_ms` milliseconds after 1970.
    /// `replaced` is a ledger of this process that is known to have given some.
    pub(in crate::rollouts) fn begin_era(&mut self, unix_ms: u64, replaced: &Self) {
        let next = [self, replaced].map(|ledger| ledger.next_group.max(ledger.next_batch));
        let after = next.into_iter().fold(0, u64::max).saturating_add(LEAST);
        let first = unix_ms.saturating_mul(PER_MS).min(LAST).max(after);
        let clock = (unix_ms / 1000).min(LAST_ATTEMPT) as u32;
        let highest = self.era.attempts.max(replaced.era.attempts).max(replaced.era.highest);
        let attempts = clock.max(highest.saturating_add(1));
        self.era = Era::of(self.next_group, self.next_batch, first, attempts);
        (self.next_group, self.next_batch) = (first, first);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Admit, Append, Change, Fate, Hold, Outcome};
    use super::*;
    use crate::rollouts::config::{OnExpiry, RolloutConfig};
    use crate::rollouts::item::Segment;
    use crate::rollouts::kept::tests::config;

    /// A ledger with a group that is open, as a checkpoint has it.
    fn saved() -> (Arc<RolloutConfig>, Vec<u8>) {
        let config = Arc::new(RolloutConfig { on_expiry: OnExpiry::Suspend, ..config() });
        let mut ledger = Ledger::new(Arc::clone(&config)).unwrap();
        admit(&mut ledger);
        (config, bytes(&ledger))
    }

    fn bytes(ledger: &Ledger) -> Vec<u8> {
        let mut numbers = Vec::new();
        ledger.save().put(&mut numbers);
        numbers
    }

    fn load((config, numbers): &(Arc<RolloutConfig>, Vec<u8>)) -> Ledger {
        Ledger::load(Arc::clone(config), numbers, &mut &[][..]).unwrap()
    }

    fn admit(ledger: &mut Ledger) -> Hold {
        let admit = Change::Admit(Admit { count: 1, ..Admit::default() });
        match ledger.apply(0, &admit).unwrap() {
            Outcome::Admitted(permits) => permits[0].hold,
            other => panic!("{other:?}"),
        }
    }

    /// Has the group that the checkpoint has go to another producer.
    fn hand_on(ledger: &mut Ledger, hold: Hold) -> Hold {
        ledger.apply(0, &Change::Suspend { holds: vec![hold] }).unwrap();
        match ledger.apply(0, &Change::Resume { source: String::new(), ttl_ms: None }).unwrap() {
            Outcome::Resumed(permit, _) => permit.hold,
            other => panic!("{other:?}"),
        }
    }

    fn fate(ledger: &mut Ledger, hold: Hold) -> Fate {
        let segment = Arc::new(Segment::default());
        let append = Append { hold, item: 0, sequence: 0, segment, finish: None, priority: 1.0 };
        match ledger.apply(0, &Change::Append(append)).unwrap() {
            Outcome::Appended(fate) => fate,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_two_tables_that_go_on_from_one_checkpoint_give_the_same_permits() {
        let saved = saved();
        let first = Hold { group: 0, attempt: 0 };
        let mut before = load(&saved);
        let mut given = vec![admit(&mut before), hand_on(&mut before, first)];
        let mut last = before;
        let fresh = Ledger::new(Arc::clone(&saved.0)).unwrap();
        // Another process, and then the same one twice at the same time.
        for (unix_ms, is_same) in [(5_000, false), (7_000, false), (7_000, true), (7_000, true)] {
            let mut ledger = load(&saved);
            ledger.begin_era(unix_ms, if is_same { &last } else { &fresh });
            for hold in &given {
                assert_eq!(fate(&mut ledger, *hold), Fate::Expired, "{hold:?}");
            }
            assert_eq!(fate(&mut ledger, first), Fate::Running, "its permit stands");
            let here = [admit(&mut ledger), hand_on(&mut ledger, first)];
            assert!(here.iter().all(|hold| !given.contains(hold)), "{here:?} of {given:?}");
            given.extend(here);
            assert_eq!(ledger.recount(), Ok(()));
            last = ledger;
        }
    }
}
