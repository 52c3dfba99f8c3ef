//! Numbers that nothing else ever had, though a table goes on from an old checkpoint, or from a journal whose end
//! is lost.
//!
//! Groups are reserved and batches made after a checkpoint, too. A table that goes on from it knows nothing of them,
//! but producers and consumers do. If it gave their numbers to others, a returning producer would bring its tokens to
//! another's group, or be done with another's batch. So a *generation* begins there: groups and batches go on at a number
//! far above all that may have been given, and what the checkpoint has gets an attempt that none had before when it
//! changes hands. Until then its producer and its consumer continue with it.
//!
//! The same holds for a journal: unless it is synced at every record, a failure of the machine takes its last ones.
//! So a generation begins whenever a directory is opened again, also where nothing was lost, since that can't be known.
//!
//! The numbers come from the time of the day, in milliseconds; a directory is opened at most once in each. A generation
//! that is counted would not do: of two tables that go on from one checkpoint, one after the other, each would be in the
//! next one.
//!
//! A table without a directory begins with nothing, as the one did that its server had before it was restarted. Its
//! groups and batches count from the beginning, as people like to see them. What distinguishes a reservation from an
//! earlier one is its attempt, which users do not see.
//!
//! # Invariants
//!
//! 1. Numbers from `groups`, or `batches`, up to `first` are not in use: they were given after the checkpoint, or never.
//! 2. Outside the first generation, no attempt is given that another generation has given, while fewer than a million
//!    groups or batches a second are made, none of them changes hands once a second, and the clock does not go back.
//! 3. Which numbers a generation of a journal has follows from what is saved of the ledger and from the time that is given,
//!    so a recording comes to the same.
//!
//! # Limitations
//!
//! Only the last gap in the numbers is known. A producer from before an older one learns that its group is over, not
//! that the table has forgotten it. A lease of a table without a directory is not distinguished from the same one of a
//! table before: a consumer that survives its server may be done with another's batch.

use super::{Ledger, State};
use crate::fields;

/// How many numbers there are for each millisecond.
const PER_MS: u64 = 1 << 10;
/// What is left out should the clock be of no use.
const LEAST: u64 = 1 << 20;
/// No generation begins above this, whatever the clock says, so that numbers remain.
const LAST: u64 = 1 << 59;
/// No generation's attempts begin above this.
const LAST_ATTEMPT: u64 = 3 << 30;
/// Multiplied with this, numbers that are near each other come to be far apart: 2^64 over the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// See the [module](self). All zero in the first generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Generation {
    /// The next group at the checkpoint.
    pub(super) groups: u64,
    /// The next batch at the checkpoint.
    pub(super) batches: u64,
    /// Where both went on.
    pub(super) first: u64,
    /// The lowest attempt of what was there at the checkpoint and changes hands.
    pub(super) attempts: u32,
    /// The highest that was given. It is not saved: a table that continues from a checkpoint has a later clock.
    highest: u32,
}

fields! {
    Generation { groups: u64, batches: u64, first: u64, attempts: u32; highest: 0 }
}

impl Generation {
    /// Whether none has begun after the table was made.
    pub(super) fn is_first(&self) -> bool {
        *self == Self { highest: self.highest, ..Self::default() }
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
        // What has a number of this generation never was in another one.
        let next = if number < self.first { next.max(self.attempts) } else { next };
        self.highest = self.highest.max(next);
        next
    }

    /// The number of the last batch that was made, if `next` is the next; 0 before the first.
    pub(super) fn last_batch(&self, next: u64) -> u64 {
        (if next > self.first { next } else { self.batches }).saturating_sub(1)
    }

    /// How many groups were reserved at the most, if `next` is the next.
    pub(super) fn most_groups(&self, next: u64) -> u64 {
        self.groups.saturating_add(next.saturating_sub(self.first))
    }
}

impl Ledger {
    /// Begins again, `unix_ms` milliseconds after 1970, where another that had this name and is no more may have given
    /// reservations that are still around.
    pub(in crate::rollouts) fn begin_alone(&mut self, unix_ms: u64) {
        // 30 bits: those of generations, seconds since 1970, are above them.
        self.first_attempt = (unix_ms.wrapping_mul(SPREAD) >> 34) as u32;
    }

    /// Goes on from a checkpoint or a journal after which others may have been given numbers, `unix_ms` milliseconds
    /// after 1970. `replaced` is a ledger of this process that is known to have given some.
    pub(in crate::rollouts) fn begin_generation(&mut self, unix_ms: u64, replaced: Option<&Self>) {
        // Without one, which attempt was given last is not known: a table from a checkpoint does not know it.
        let (next, highest) = replaced.map_or((0, 0), |Self { state, .. }| {
            let State { next_group, next_batch, generation, .. } = state;
            (*next_group.max(next_batch), generation.attempts.max(generation.highest))
        });
        let (groups, batches, generation) =
            (self.state.next_group, self.state.next_batch, self.state.generation);
        let next = next.max(groups).max(batches);
        let first = match unix_ms.saturating_mul(PER_MS).min(LAST) {
            // It is not raised: else two that begin here within a second would be in the same generation.
            told if told > next => told,
            _ => next.saturating_add(LEAST),
        };
        let clock = (unix_ms / 1000).min(LAST_ATTEMPT) as u32;
        let attempts = clock.max(generation.attempts.max(highest).saturating_add(1));
        // Of a generation that gave nothing the gap goes on.
        let begin = |next, before| if next == generation.first { before } else { next };
        let (started, made) =
            (begin(groups, generation.groups), begin(batches, generation.batches));
        self.state.generation =
            Generation { groups: started, batches: made, first, attempts, highest: 0 };
        (self.state.next_group, self.state.next_batch) = (first, first);
    }

    /// The number of the last batch that was made; 0 before the first.
    pub(in crate::rollouts) fn last_batch(&self) -> u64 {
        self.state.generation.last_batch(self.state.next_batch)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Append, Change, GroupStatus, Hold, Outcome, Reserve};
    use super::*;
    use crate::codec::Encode;
    use crate::rollouts::config::{OnExpiry, RolloutConfig};
    use crate::rollouts::durable::tests::config;
    use crate::rollouts::item::Segment;

    /// A ledger with a group that is open, as a checkpoint has it.
    fn saved() -> (Arc<RolloutConfig>, Vec<u8>) {
        let config = Arc::new(RolloutConfig { on_expiry: OnExpiry::Suspend, ..config() });
        let mut ledger = Ledger::new(Arc::clone(&config)).unwrap();
        reserve(&mut ledger);
        (config, bytes(&ledger))
    }

    fn bytes(ledger: &Ledger) -> Vec<u8> {
        let mut numbers = Vec::new();
        ledger.save().encode(&mut numbers);
        numbers
    }

    fn load((config, numbers): &(Arc<RolloutConfig>, Vec<u8>)) -> Ledger {
        Ledger::load(Arc::clone(config), numbers, &mut &[][..]).unwrap()
    }

    fn reserve(ledger: &mut Ledger) -> Hold {
        let reserve = Change::Reserve(Reserve { count: 1, ..Reserve::default() });
        match ledger.apply(0, &reserve).unwrap() {
            Outcome::Reserved(reservations) => reservations[0].hold,
            other => panic!("{other:?}"),
        }
    }

    /// Has the group that the checkpoint has go to another producer.
    fn hand_on(ledger: &mut Ledger, hold: Hold) -> Hold {
        ledger.apply(0, &Change::Suspend { holds: vec![hold] }).unwrap();
        match ledger.apply(0, &Change::Resume { source: String::new(), ttl_ms: None }).unwrap() {
            Outcome::Resumed(reservation, _) => reservation.hold,
            other => panic!("{other:?}"),
        }
    }

    fn status(ledger: &mut Ledger, hold: Hold) -> GroupStatus {
        let segment = Arc::new(Segment::default());
        let append = Append { hold, item: 0, sequence: 0, segment, finish: None, priority: 1.0 };
        match ledger.apply(0, &Change::Append(append)).unwrap() {
            Outcome::Appended(status) => status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reservations_of_a_table_that_is_no_more_are_worth_nothing_in_the_next_one() {
        let config = Arc::new(RolloutConfig { on_expiry: OnExpiry::Suspend, ..config() });
        let mut given = Vec::new();
        // However soon it was restarted.
        for unix_ms in [1_763_000_000_000, 1_763_000_000_001, 1_763_000_000_002, 1_763_000_060_000]
        {
            let mut ledger = Ledger::new(Arc::clone(&config)).unwrap();
            ledger.begin_alone(unix_ms);
            let first = reserve(&mut ledger);
            assert_eq!(first.group, 0);
            for hold in &given {
                assert_eq!(status(&mut ledger, *hold), GroupStatus::Expired, "{hold:?}");
            }
            let second = hand_on(&mut ledger, first);
            assert_eq!(status(&mut ledger, second), GroupStatus::Running);
            given.extend([first, second]);
            let again = load(&(Arc::clone(&config), bytes(&ledger)));
            assert_eq!(again.recount(), Ok(()));
        }
    }

    #[test]
    fn no_two_tables_that_go_on_from_one_checkpoint_give_the_same_reservations() {
        let saved = saved();
        let first = Hold { group: 0, attempt: 0 };
        let mut before = load(&saved);
        let mut given = vec![reserve(&mut before), hand_on(&mut before, first)];
        let mut last = before;
        let fresh = Ledger::new(Arc::clone(&saved.0)).unwrap();
        // Another process, and then the same one twice at the same time.
        for (unix_ms, is_same) in [(5_000, false), (7_000, false), (7_000, true), (7_000, true)] {
            let mut ledger = load(&saved);
            ledger.begin_generation(unix_ms, Some(if is_same { &last } else { &fresh }));
            for hold in &given {
                assert_eq!(status(&mut ledger, *hold), GroupStatus::Expired, "{hold:?}");
            }
            assert_eq!(status(&mut ledger, first), GroupStatus::Running, "its reservation stands");
            let here = [reserve(&mut ledger), hand_on(&mut ledger, first)];
            assert!(here.iter().all(|hold| !given.contains(hold)), "{here:?} of {given:?}");
            given.extend(here);
            assert_eq!(ledger.recount(), Ok(()));
            last = ledger;
        }
    }
}
