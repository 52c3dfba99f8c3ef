//! Producers that wait for a reservation, by name: for how long, and whether others get reservations meanwhile.
//!
//! That is no decision, so the ledger knows nothing of it. Only waiting calls come here, so a lock costs nothing.
//!
//! # Invariants
//!
//! 1. A waiting call is listed from the beginning of its wait until that ends, however it does.
//! 2. As many names are distinguished as [by the ledger](super::ledger::MAX_SOURCES); all others are one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_memory::sync::Mutex;

use super::ledger::{MAX_SOURCES, OTHERS};

/// A producer starves that has waited for longer than this while others got reservations.
pub const STARVES_AFTER: Duration = Duration::from_secs(60);

/// How the producers of a name wait for a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hunger {
    /// What they call themselves.
    pub source: String,
    /// How many calls wait now.
    pub waiting: u64,
    /// For how many milliseconds the one of those has waited that began first.
    pub oldest_ms: u64,
    /// How many groups others reserved meanwhile.
    pub passed: u64,
    /// For how many milliseconds one has ever waited, those that wait now included.
    pub longest_ms: u64,
    /// Whether the oldest has waited for longer than [`STARVES_AFTER`] while others got reservations.
    pub is_starving: bool,
}

/// A wait that goes on.
#[derive(Debug, Clone, Copy)]
struct WaitStart {
    at: Instant,
    /// Groups that others reserved by then.
    others: u64,
}

#[derive(Debug, Default)]
struct Source {
    /// In the order in which they began.
    waits: BTreeMap<u64, WaitStart>,
    /// Of those that are over.
    longest: Duration,
}

#[derive(Debug, Default)]
struct Sources {
    by_name: HashMap<String, Source>,
    /// The number of the next wait.
    next: u64,
}

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(super) struct Starvation(Arc<Mutex<Sources>>);

impl Starvation {
    /// A producer waits from now on; others than it, and than those that are not distinguished, reserved so
    /// many groups before.
    pub(super) fn begin(&self, source: &str, [others, of_rest]: [u64; 2]) -> Hungry {
        let mut sources = self.0.lock();
        let is_known = sources.by_name.contains_key(source);
        let is_told_apart = is_known || sources.by_name.len() < MAX_SOURCES;
        let (name, others) = if is_told_apart { (source, others) } else { (OTHERS, of_rest) };
        let number = sources.next;
        sources.next += 1;
        let start = WaitStart { at: Instant::now(), others };
        sources.by_name.entry(name.into()).or_default().waits.insert(number, start);
        Hungry { starvation: self.clone(), name: name.into(), number }
    }

    /// All names of which one has ever waited, in their order; `reserved_others` says how many groups others than
    /// one reserved by now.
    pub(super) fn read(&self, reserved_others: impl Fn(&str) -> u64) -> Vec<Hunger> {
        let (sources, now) = (self.0.lock(), Instant::now());
        let look = |(name, Source { waits, longest }): (&String, &Source)| {
            let oldest = waits.first_key_value().map(|(_, start)| *start);
            let age = oldest.map(|start| now.saturating_duration_since(start.at));
            let others = reserved_others(name);
            let passed = oldest.map_or(0, |start| others.saturating_sub(start.others));
            Hunger {
                source: name.clone(),
                waiting: waits.len() as u64,
                oldest_ms: age.map_or(0, millis),
                passed,
                longest_ms: millis(age.unwrap_or_default().max(*longest)),
                is_starving: passed > 0 && age.is_some_and(|age| age > STARVES_AFTER),
            }
        };
        let mut all: Vec<Hunger> = sources.by_name.iter().map(look).collect();
        drop(sources);
        all.sort_unstable_by(|a, b| a.source.cmp(&b.source));
        all
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A producer that waits; dropped when it does no more.
#[derive(Debug)]
pub(super) struct Hungry {
    starvation: Starvation,
    name: String,
    number: u64,
}

impl Drop for Hungry {
    fn drop(&mut self) {
        let mut sources = self.starvation.0.lock();
        let Some(source) = sources.by_name.get_mut(&self.name) else { return };
        if let Some(start) = source.waits.remove(&self.number) {
            source.longest = source.longest.max(start.at.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_ago(starvation: &Starvation, name: &str) {
        let mut sources = starvation.0.lock();
        for start in sources.by_name.get_mut(name).unwrap().waits.values_mut() {
            start.at = start.at.checked_sub(STARVES_AFTER * 2).expect("a machine that has run");
        }
    }

    /// How many groups others than one reserved, if these reserved this many.
    fn others(sources: &[(&str, u64)], name: &str) -> u64 {
        sources.iter().filter(|(other, _)| *other != name).map(|(_, count)| count).sum()
    }

    fn begin(starvation: &Starvation, name: &str, sources: &[(&str, u64)]) -> Hungry {
        starvation.begin(name, [name, OTHERS].map(|name| others(sources, name)))
    }

    fn read(starvation: &Starvation, sources: &[(&str, u64)]) -> Vec<Hunger> {
        starvation.read(|name| others(sources, name))
    }

    #[test]
    fn who_waits_long_starves_only_while_others_reserve() {
        let starvation = Starvation::default();
        let wait = begin(&starvation, "slow", &[("quick", 5)]);
        let read = |quick| read(&starvation, &[("quick", quick)]).remove(0);
        assert_eq!((read(9).passed, read(9).is_starving), (4, false), "it just began");
        long_ago(&starvation, "slow");
        assert!(!read(5).is_starving, "nothing is reserved");
        assert!(read(6).is_starving);
        drop(wait);
        let after = read(9);
        assert_eq!((after.waiting, after.oldest_ms, after.is_starving), (0, 0, false));
        assert!(after.longest_ms > 60_000);
    }

    #[test]
    fn nobody_is_passed_by_its_own_name() {
        let starvation = Starvation::default();
        let waits = ["one", "one"].map(|name| begin(&starvation, name, &[("one", 3), ("two", 2)]));
        long_ago(&starvation, "one");
        let own = read(&starvation, &[("one", 9), ("two", 2)]).remove(0);
        assert_eq!((own.waiting, own.passed, own.is_starving), (2, 0, false));
        let both = read(&starvation, &[("one", 9), ("two", 4)]).remove(0);
        assert_eq!((both.passed, both.is_starving), (2, true));
        drop(waits);
    }

    #[test]
    fn names_beyond_the_most_are_one() {
        let starvation = Starvation::default();
        let waits: Vec<Hungry> = (0..MAX_SOURCES + 3)
            .map(|number| begin(&starvation, &format!("s{number:05}"), &[]))
            .collect();
        let read = read(&starvation, &[]);
        assert_eq!(read.len(), MAX_SOURCES + 1);
        assert_eq!((read[0].source.as_str(), read[0].waiting), (OTHERS, 3));
        drop(waits);
    }
}
