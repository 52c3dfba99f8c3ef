//! Observations that are stored once, however many transitions show them.
//!
//! The observation after a step is the one before the next, and a stack of frames has all but one of its
//! frames in common with the stack before. A transition therefore has only the numbers of its *frames*, the
//! parts of its two observations, and a frame is kept for as long as a transition in the window, or the next
//! one of an environment, may need it.
//!
//! Which frames are the same is found by comparing bytes, never guessed from flags: what is read is what was
//! written, whatever a user pushes.
//!
//! # Invariants
//!
//! 1. `counts[f]` is how often frame `f` stands in `numbers` of transitions in the window, and in `latest`.
//!    A frame is published in the slab exactly while it is above zero.
//! 2. A frame that is published is not written; the slab sees to that.

use std::collections::HashMap;
use std::sync::Arc;

use echoic_memory::slab::{Pinned, Slab};

use crate::error::Error;

/// See the [module](self).
#[derive(Debug)]
pub struct Frames {
    slab: Arc<Slab>,
    /// Frames of one observation.
    stack: usize,
    slots: u64,
    counts: Vec<u32>,
    /// The frames of the observations before and after each transition, by its slot.
    numbers: Vec<u32>,
    /// The frames of the observation after the latest transition of each environment.
    latest: HashMap<u32, Vec<u32>>,
}

/// The frames of the two observations of transitions, to be read.
#[derive(Debug)]
pub struct Pins {
    /// Those of the observations before.
    pub obs: Pinned,
    /// Those of the observations after.
    pub next_obs: Pinned,
}

impl Frames {
    /// For `capacity` transitions in `slots` slots, with observations of `stack` frames of this many bytes.
    ///
    /// There is room for a quarter more frames than transitions. Where many episodes are short, that is
    /// fewer than they need, and then fewer transitions are kept.
    ///
    /// # Errors
    ///
    /// [`Error`] when the machine could never hold them, or there are more than are counted.
    pub fn new(capacity: u64, slots: u64, stack: usize, frame_bytes: usize) -> Result<Self, Error> {
        let most = u64::from(u32::MAX);
        let room = (slots + capacity / 4).saturating_add(4 * stack as u64 + 64);
        let rows = u32::try_from(room).map_err(|_| Error::too_large(most, capacity))?;
        let slab = Arc::new(Slab::new(rows, frame_bytes)?);
        Ok(Self {
            slab,
            stack,
            slots,
            counts: Vec::new(),
            numbers: Vec::new(),
            latest: HashMap::new(),
        })
    }

    /// Where the frames are.
    pub fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    /// Frames of one observation.
    pub fn stack(&self) -> usize {
        self.stack
    }

    /// Takes the frames of an environment's latest observation, which are then the caller's to give back
    /// with [`Frames::put`] or [`Frames::release`].
    pub fn take(&mut self, env: u32) -> Option<(Vec<u32>, Pinned)> {
        let numbers = self.latest.remove(&env)?;
        let pinned = self.slab.pin(numbers.clone());
        Some((numbers, pinned))
    }

    /// Gives the frames of a transition that was published: those of the observation before it and those of
    /// the one after. `taken` is what [`Frames::take`] gave.
    pub fn put(&mut self, position: u64, env: u32, numbers: &[u32], taken: Option<Vec<u32>>) {
        let slot = (position % self.slots) as usize * 2 * self.stack;
        if self.numbers.len() < slot + numbers.len() {
            self.numbers.resize(slot + numbers.len(), 0);
        }
        self.numbers[slot..slot + numbers.len()].copy_from_slice(numbers);
        let after = &numbers[self.stack..];
        for number in numbers.iter().chain(after) {
            let number = *number as usize;
            if self.counts.len() <= number {
                self.counts.resize(number + 1, 0);
            }
            self.counts[number] += 1;
        }
        let replaced = self.latest.insert(env, after.to_vec());
        [taken, replaced].into_iter().flatten().for_each(|numbers| self.release(&numbers));
    }

    /// Lets go of frames, once for each time that they are named.
    pub fn release(&mut self, numbers: &[u32]) {
        for number in numbers {
            let count = &mut self.counts[*number as usize];
            *count -= 1;
            if *count == 0 {
                self.slab.free(*number);
            }
        }
    }

    /// Forgets a transition that fell out of the window.
    pub fn evict(&mut self, position: u64) {
        let numbers = self.of(position).to_vec();
        self.release(&numbers);
    }

    /// Forgets what environments saw last; whether there was anything.
    pub fn forget_latest(&mut self) -> bool {
        let some = !self.latest.is_empty();
        for (_, numbers) in std::mem::take(&mut self.latest) {
            self.release(&numbers);
        }
        some
    }

    /// The observations before and after the transitions of some positions in the window.
    pub fn pin(&self, before: &[u64], after: &[u64]) -> Pins {
        let part = |positions: &[u64], first: usize| {
            let all = positions.iter().flat_map(|at| &self.of(*at)[first..first + self.stack]);
            self.slab.pin(all.copied().collect())
        };
        Pins { obs: part(before, 0), next_obs: part(after, self.stack) }
    }

    fn of(&self, position: u64) -> &[u32] {
        let width = 2 * self.stack;
        let slot = (position % self.slots) as usize * width;
        &self.numbers[slot..slot + width]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Frames {
        Frames::new(8, 10, 2, 4).unwrap()
    }

    /// New frames of these values.
    fn fresh<const N: usize>(frames: &Frames, values: [u32; N]) -> [u32; N] {
        let mut writer = frames.slab().try_reserve(N);
        for (at, value) in values.iter().enumerate() {
            writer.row_mut(at).copy_from_slice(&value.to_le_bytes());
        }
        writer.publish()[..].try_into().unwrap()
    }

    fn values(pinned: &Pinned) -> Vec<u32> {
        let row = |at| u32::from_le_bytes(pinned.row(at).try_into().unwrap());
        (0..pinned.len()).map(row).collect()
    }

    #[test]
    fn a_frame_is_kept_for_as_long_as_a_transition_or_an_environment_has_it() {
        let mut frames = frames();
        let [a, b, c] = fresh(&frames, [1, 2, 3]);
        frames.put(0, 5, &[a, b, b, c], None);
        let (taken, latest) = frames.take(5).unwrap();
        assert_eq!((taken.clone(), values(&latest)), (vec![b, c], vec![2, 3]));
        let [d] = fresh(&frames, [4]);
        frames.put(1, 5, &[b, c, c, d], Some(taken));
        assert_eq!(frames.counts, [1, 3, 4, 2]);
        let pins = frames.pin(&[0, 1], &[1]);
        assert_eq!((values(&pins.obs), values(&pins.next_obs)), (vec![1, 2, 2, 3], vec![3, 4]));
        frames.evict(0);
        assert_eq!(frames.counts, [0, 1, 3, 2]);
        frames.evict(1);
        assert_eq!(frames.counts, [0, 0, 1, 1]);
        assert!(frames.forget_latest() && !frames.forget_latest());
        assert_eq!(frames.counts, [0; 4]);
        // All rows of the slab are free again once their readers are gone.
        let room = frames.slab().rows() as usize;
        assert!(frames.slab().try_reserve(room).len() < room);
        drop((pins, latest));
        assert_eq!(frames.slab().try_reserve(room).len(), room);
    }

    #[test]
    fn environments_do_not_share_what_they_saw_last() {
        let mut frames = frames();
        let [a, b] = fresh(&frames, [1, 2]);
        frames.put(0, 1, &[a, a, a, a], None);
        frames.put(1, 2, &[b, b, b, b], None);
        assert_eq!(frames.take(1).map(|(numbers, _)| numbers), Some(vec![a, a]));
        assert!(frames.take(1).is_none());
        assert_eq!(frames.take(2).map(|(numbers, _)| numbers), Some(vec![b, b]));
        // Taken, they are still kept: each stands in its transition, and with its reader.
        assert_eq!(frames.counts, [6, 6]);
    }
}
