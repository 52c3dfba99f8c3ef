//! How many versions ahead groups should be reserved: as few as keep the learner busy.
//!
//! Looked at whenever the learner publishes a version. If it waited for groups for more than a twentieth of the
//! time since the last one, while producers were held back for their sake, it is one more; if for several
//! versions it hardly waited, it is tried with one less. What was tried in vain is not tried again soon: the
//! pause doubles each time.

/// The share of its time that a learner may wait before more is under way.
const STARVED: f64 = 0.05;
/// The share below which it counts as not waiting.
const BUSY: f64 = 0.01;
/// Versions without a wait before one less is tried, at first and at most.
const FIRST_PATIENCE: u32 = 8;
const MOST_PATIENCE: u32 = 1 << 10;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Tuner {
    last: Option<Seen>,
    /// Versions without a wait, and how many it takes.
    calm: u32,
    patience: u32,
    /// The last change was to one less.
    tried_less: bool,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    when: u64,
    starved: u64,
    held: u64,
}

impl Default for Tuner {
    fn default() -> Self {
        Self { last: None, calm: 0, patience: FIRST_PATIENCE, tried_less: false }
    }
}

impl Tuner {
    /// The learner has published a version. `starved` and `held` are for how many nanoseconds consumers have
    /// waited for groups, and producers for the learner, so far. The depth to change to, if any.
    pub(super) fn published(
        &mut self,
        now: u64,
        starved: u64,
        held: u64,
        depth: u32,
        most: u32,
    ) -> Option<u32> {
        let seen = Seen { when: now, starved, held };
        let before = self.last.replace(seen)?;
        let millis = now.saturating_sub(before.when);
        if millis == 0 {
            return None;
        }
        let share = |nanos: u64| nanos as f64 / 1e6 / millis as f64;
        let starved = share(starved.saturating_sub(before.starved));
        let was_held = held > before.held;
        if starved > STARVED && was_held && depth < most {
            self.calm = 0;
            if std::mem::take(&mut self.tried_less) {
                self.patience = (self.patience * 2).min(MOST_PATIENCE);
            }
            return Some(depth + 1);
        }
        self.calm = if starved < BUSY { self.calm + 1 } else { 0 };
        if self.calm >= self.patience && depth > 0 {
            self.calm = 0;
            self.tried_less = true;
            return Some(depth - 1);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_learner_that_waits_gets_more_until_the_bound() {
        let mut tuner = Tuner::default();
        let (mut depth, mut starved) = (0, 0);
        for version in 0..10 {
            starved += SECOND / 2;
            let held = starved;
            depth = tuner.published(version * 1000, starved, held, depth, 3).unwrap_or(depth);
        }
        assert_eq!(depth, 3);
    }

    #[test]
    fn more_is_not_reserved_when_producers_are_the_slow_ones() {
        let mut tuner = Tuner::default();
        for version in 0..10 {
            assert_eq!(tuner.published(version * 1000, version * SECOND, 0, 1, 3), None);
        }
    }

    #[test]
    fn less_is_tried_when_nobody_waits_and_less_and_less_often_in_vain() {
        let mut tuner = Tuner::default();
        let (mut depth, mut starved, mut changes) = (2u32, 0, Vec::new());
        for version in 0..200 {
            // At a depth below 2 the learner waits.
            starved += if depth < 2 { SECOND / 4 } else { 0 };
            if let Some(other) = tuner.published(version * 1000, starved, starved, depth, 4) {
                changes.push((version, other));
                depth = other;
            }
        }
        let tries: Vec<u64> =
            changes.iter().filter(|(_, depth)| *depth == 1).map(|(when, _)| *when).collect();
        assert!(tries.len() >= 3, "{changes:?}");
        assert!(tries.windows(3).all(|three| three[2] - three[1] > three[1] - three[0]));
        assert!(changes.iter().all(|(_, depth)| *depth == 1 || *depth == 2));
    }
}
