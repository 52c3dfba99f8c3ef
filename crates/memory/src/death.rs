//! Threads that end at a chosen step, as a killed process does. For tests only.
#![allow(clippy::missing_const_for_thread_local, reason = "loom's macro takes no const block")]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[cfg(loom)]
use loom::thread_local;

/// What a dying thread unwinds with.
struct Dead;

thread_local! {
    /// Steps that are left to this thread, if it is to die.
    static LEFT: Cell<Option<u32>> = Cell::new(None);
    static DEAD: Cell<bool> = Cell::new(false);
}

/// Runs `life` up to its `steps`-th write of an atomic; `None` if it died there.
///
/// # Panics
///
/// When `life` does.
pub fn after<T>(steps: u32, life: impl FnOnce() -> T) -> Option<T> {
    LEFT.with(|left| left.set(Some(steps)));
    let outcome = catch_unwind(AssertUnwindSafe(life));
    LEFT.with(|left| left.set(None));
    DEAD.with(|dead| dead.set(false));
    match outcome {
        Ok(value) => Some(value),
        Err(cause) if cause.is::<Dead>() => None,
        Err(cause) => resume_unwind(cause),
    }
}

/// Whether this thread died and only unwinds: then no destructor may touch the ring.
pub(crate) fn is_dead() -> bool {
    DEAD.with(Cell::get)
}

/// Called before every write of an atomic.
pub(crate) fn step() {
    match LEFT.with(Cell::get) {
        Some(0) if !is_dead() => {
            DEAD.with(|dead| dead.set(true));
            resume_unwind(Box::new(Dead));
        }
        Some(left) => LEFT.with(|cell| cell.set(Some(left.saturating_sub(1)))),
        None => {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use crate::ring::{Claim, Peer, Ring, Run, SlotIndex};

    const PEERS: usize = 3;

    #[derive(Debug, Clone)]
    enum Step {
        /// Of a peer, or of the server for the number `PEERS`; it may die on the way.
        Reserve(usize, usize, Option<u32>),
        Commit(usize, Option<u32>),
        Abort(usize, Option<u32>),
        Reclaim(usize),
        Take,
        Release,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let who = 0..PEERS + 1;
        let death = || prop_oneof![3 => Just(None), 1 => (0u32..14).prop_map(Some)];
        let step = prop_oneof![
            4 => (who, 1usize..6, death()).prop_map(|(who, len, death)| Step::Reserve(who, len, death)),
            4 => (0usize..8, death()).prop_map(|(at, death)| Step::Commit(at, death)),
            1 => (0usize..8, death()).prop_map(|(at, death)| Step::Abort(at, death)),
            1 => (0..PEERS).prop_map(Step::Reclaim),
            2 => Just(Step::Take),
            2 => Just(Step::Release),
        ];
        prop::collection::vec(step, 1..150)
    }

    /// A ring, what its slots hold, and what should come of it.
    struct World {
        cells: Vec<u64>,
        batch_size: usize,
        next: u64,
        stored: BTreeSet<u64>,
        /// Of runs whose owner died while it committed.
        perhaps: BTreeSet<u64>,
        received: Vec<u64>,
    }

    impl World {
        /// Writes new values into the slots of a run.
        fn write(&mut self, run: &Run<'_>) -> Vec<u64> {
            let first = run.buffer() * self.batch_size + run.first();
            let values: Vec<u64> = (self.next..self.next + run.len() as u64).collect();
            self.next += run.len() as u64;
            self.cells[first..first + run.len()].copy_from_slice(&values);
            values
        }

        fn read(&mut self, claim: &Claim) {
            let first = claim.buffer() * self.batch_size;
            self.received.extend(&self.cells[first..first + claim.rows()]);
        }
    }

    /// Runs `life`, which may be that of a peer that dies.
    fn live<T>(who: usize, death: Option<u32>, life: impl FnOnce() -> T) -> Option<T> {
        match death.filter(|_| who < PEERS) {
            Some(steps) => super::after(steps, life),
            None => Some(life()),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 4096 }))]

        /// Whatever the order of calls, and wherever peers die, every committed value comes out
        /// once, and what the dead had is filled by others.
        #[test]
        fn any_order_of_calls_and_deaths_keeps_every_committed_value(
            buffers in 1usize..5,
            batch_size in 1usize..7,
            steps in steps(),
        ) {
            let ring = Ring::new(buffers, batch_size);
            let mut world = World {
                cells: vec![0; buffers * batch_size],
                batch_size,
                next: 1,
                stored: BTreeSet::new(),
                perhaps: BTreeSet::new(),
                received: Vec::new(),
            };
            let owners: Vec<u16> = (0..PEERS).map(|_| ring.add_peer().unwrap()).collect();
            let peers: Vec<Peer> = owners.iter().map(|owner| ring.peer(*owner)).collect();
            let mut dead = [false; PEERS + 1];
            let (mut runs, mut held) = (Vec::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Reserve(who, len, death) if !dead[who] => {
                        let reserved = live(who, death, || match peers.get(who) {
                            Some(peer) => peer.try_reserve(len),
                            None => ring.try_reserve(len),
                        });
                        dead[who] = reserved.is_none();
                        runs.extend(reserved.and_then(Result::ok).map(|run| (who, run)));
                    }
                    Step::Commit(at, death) if !runs.is_empty() => {
                        let (who, run) = runs.swap_remove(at % runs.len());
                        let values = world.write(&run);
                        match live(who, death, || run.try_commit(|| 1)) {
                            Some(committed) => {
                                prop_assert!(committed.is_ok());
                                world.stored.extend(values);
                            }
                            None => {
                                dead[who] = true;
                                world.perhaps.extend(values);
                            }
                        }
                    }
                    Step::Abort(at, death) if !runs.is_empty() => {
                        let (who, run) = runs.swap_remove(at % runs.len());
                        dead[who] = live(who, death, || drop(run)).is_none();
                    }
                    Step::Reclaim(who) if dead[who] => {
                        ring.reclaim(owners[who]);
                        prop_assert_eq!(ring.add_peer(), Some(owners[who]));
                        dead[who] = false;
                    }
                    Step::Take => held.extend(ring.try_take()),
                    Step::Release => if let Some(claim) = held.pop() {
                        prop_assert_eq!(claim.rows(), batch_size);
                        world.read(&claim);
                        ring.release(claim);
                    },
                    _ => {}
                }
                // The runs of a dead peer have no owner any more.
                let mut at = 0;
                while at < runs.len() {
                    if dead[runs[at].0] {
                        std::mem::forget(runs.swap_remove(at));
                    } else {
                        at += 1;
                    }
                }
            }
            drop(runs);
            for who in (0..PEERS).filter(|who| dead[*who]) {
                ring.reclaim(owners[who]);
            }
            while let Ok(run) = ring.try_reserve(2) {
                let values = world.write(&run);
                world.stored.extend(values);
                run.commit(|| 1);
            }
            prop_assert_eq!(ring.counts().partial, 0, "a batch can't be filled");
            for claim in held.drain(..).chain(std::iter::from_fn(|| ring.try_take())) {
                world.read(&claim);
            }
            ring.close();
            prop_assert!(ring.settle(|_: SlotIndex, _: SlotIndex| panic!("nothing is left to move")));
            let mut received = world.received.clone();
            received.sort_unstable();
            let unique: BTreeSet<u64> = received.iter().copied().collect();
            prop_assert_eq!(unique.len(), received.len(), "a value came twice");
            prop_assert!(world.stored.is_subset(&unique), "a value is missing");
            let allowed: BTreeSet<u64> = &world.stored | &world.perhaps;
            prop_assert!(unique.is_subset(&allowed), "a value came that was never committed");
        }
    }
}
