//! What callers of a limiter may rely on, against a model in whole numbers that tries every way.

use std::collections::HashSet;
use std::num::NonZeroU64;

use echoic_replay::WaitReason;
use echoic_replay::limiter::{Bounds, Counts, ErrorBuffer, Limiter, LimiterError, Parameters};
use proptest::prelude::*;

/// Models count in quarters, so that nothing is rounded.
const QUARTER: i64 = 4;

#[derive(Debug, Clone)]
struct Model {
    min_size: i64,
    /// The ratio and the bounds in quarters.
    spi: i64,
    min_diff: i64,
    max_diff: i64,
    capacity: i64,
    /// 0 when items stay.
    times: i64,
}

/// Where a table of the model is: what decides about its future, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// `I·spi − S` in quarters.
    diff: i64,
    /// How often each item was sampled, in order; unused when items stay.
    sampled: Vec<i64>,
    size: i64,
}

impl Model {
    fn parameters(&self) -> Parameters {
        Parameters {
            min_size: self.min_size as u64,
            samples_per_insert: self.spi as f64 / QUARTER as f64,
            min_diff: self.min_diff as f64 / QUARTER as f64,
            max_diff: self.max_diff as f64 / QUARTER as f64,
        }
    }

    fn bounds(&self) -> Bounds {
        let max_times_sampled = NonZeroU64::new(self.times as u64);
        Bounds { capacity: self.capacity as u64, max_times_sampled }
    }

    fn refusal(&self) -> Option<LimiterError> {
        Limiter::raw(self.parameters()).and_then(|limiter| limiter.check_table(self.bounds())).err()
    }

    fn start(&self) -> State {
        State { diff: 0, sampled: Vec::new(), size: 0 }
    }

    fn can_sample(&self, state: &State, n: i64) -> bool {
        state.size >= self.min_size && state.diff - n * QUARTER >= self.min_diff
    }

    fn can_insert(&self, state: &State) -> bool {
        state.size < self.min_size || state.diff + self.spi <= self.max_diff
    }

    /// Everything that one call may lead to, whatever items the selectors pick.
    fn next(&self, state: &State) -> Vec<State> {
        let mut next = Vec::new();
        let keeps = self.times == 0;
        if self.can_insert(state) {
            let mut sampled = state.sampled.clone();
            if !keeps {
                sampled.insert(0, 0);
            }
            let (diff, size) = (state.diff + self.spi, state.size + 1);
            if size <= self.capacity {
                next.push(State { diff, sampled, size });
            } else if keeps {
                next.push(State { diff, sampled, size: self.capacity });
            } else {
                next.extend((0..sampled.len()).map(|gone| {
                    let mut sampled = sampled.clone();
                    sampled.remove(gone);
                    State { diff, sampled, size: self.capacity }
                }));
            }
        }
        if self.can_sample(state, 1) {
            let diff = state.diff - QUARTER;
            if keeps {
                next.push(State { diff, ..state.clone() });
            }
            next.extend((0..state.sampled.len()).map(|picked| {
                let mut sampled = state.sampled.clone();
                sampled[picked] += 1;
                sampled.retain(|times| *times < self.times);
                sampled.sort_unstable();
                State { diff, size: sampled.len() as i64, sampled }
            }));
        }
        next
    }

    /// Every state within reach of `start`, nearest first, up to `most`; whether that is all of
    /// them.
    fn reach(&self, start: State, most: usize) -> (Vec<State>, bool) {
        let mut seen = HashSet::from([start.clone()]);
        let mut states = vec![start];
        let mut at = 0;
        while at < states.len() {
            if states.len() >= most {
                return (states, false);
            }
            for state in self.next(&states[at]) {
                if seen.insert(state.clone()) {
                    states.push(state);
                }
            }
            at += 1;
        }
        (states, true)
    }

    /// Whether a table ends whatever is done: within some calls no state is left.
    fn surely_ends(&self) -> bool {
        let mut states = HashSet::from([self.start()]);
        for _ in 0..2000 {
            if states.is_empty() {
                return true;
            }
            assert!(states.len() < 10_000, "the model is too large to try");
            states = states.iter().flat_map(|state| self.next(state)).collect();
        }
        false
    }
}

fn models(times: std::ops::Range<i64>) -> impl Strategy<Value = Model> {
    (1..4i64, 1..13i64, -8..24i64, 0..22i64, 0..4i64, times).prop_map(
        |(min_size, spi, min_diff, window, room, times)| Model {
            min_size,
            spi,
            min_diff,
            max_diff: min_diff + window,
            capacity: min_size + room,
            times,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Items stay, or go at their first sample: the proof is complete.
    #[test]
    fn a_table_is_refused_exactly_when_it_can_come_to_an_end(model in models(0..2)) {
        let (states, _) = model.reach(model.start(), 600);
        let ends = states.iter().any(|state| model.next(state).is_empty());
        prop_assert_eq!(model.refusal().is_some(), ends, "{:?}", model.refusal());
    }

    /// Which items go is the selectors' choice: what is refused ends whatever they choose.
    #[test]
    fn a_table_is_refused_only_when_it_surely_ends(model in models(0..5)) {
        if model.refusal().is_some() {
            prop_assert!(model.surely_ends());
        }
    }

    #[test]
    fn a_batch_is_refused_exactly_when_no_calls_lead_to_it(
        model in models(0..1), n in 1..12i64, calls in 0..60usize,
    ) {
        let Ok(limiter) = Limiter::raw(model.parameters()) else { return Ok(()) };
        if model.refusal().is_some() {
            return Ok(());
        }
        let (counts, state) = walk(&model, calls);
        let (states, all) = model.reach(state, 2000);
        prop_assert!(all, "states of a table that keeps its items are few");
        let possible = states.iter().any(|state| model.can_sample(state, n));
        let checked = limiter.check_batch(&counts, n as u64, model.bounds());
        prop_assert_eq!(checked.is_ok(), possible, "{:?}", checked);
    }

    #[test]
    fn a_batch_from_items_that_go_is_refused_only_when_no_calls_lead_to_it(
        model in models(1..4), n in 1..12i64, calls in 0..60usize,
    ) {
        let Ok(limiter) = Limiter::raw(model.parameters()) else { return Ok(()) };
        if model.refusal().is_some() {
            return Ok(());
        }
        let (counts, state) = walk(&model, calls);
        if limiter.check_batch(&counts, n as u64, model.bounds()).is_err() {
            // A batch takes the samples that its items have left.
            let left = |state: &State| model.times * state.size - state.sampled.iter().sum::<i64>();
            let may = |state: &State| model.can_sample(state, n) && left(state) >= n;
            let (states, _) = model.reach(state, 500);
            prop_assert!(!states.iter().any(may));
        }
    }

    #[test]
    fn decisions_are_the_inequalities(
        model in models(0..1), inserts in 0..40i64, samples in 0..80i64, gone in 0..40i64, n in 1..9i64,
    ) {
        let Ok(limiter) = Limiter::raw(model.parameters()) else { return Ok(()) };
        let gone = gone.min(inserts);
        let counts =
            Counts { inserts: inserts as u64, samples: samples as u64, deletions: gone as u64 };
        let sample = if inserts - gone < model.min_size {
            Err(WaitReason::MinSize)
        } else if inserts * model.spi - (samples + n) * QUARTER >= model.min_diff {
            Ok(())
        } else {
            Err(WaitReason::Ratio)
        };
        let is_free = inserts + n - gone <= model.min_size;
        let insert = is_free || (inserts + n) * model.spi - samples * QUARTER <= model.max_diff;
        prop_assert_eq!(limiter.can_sample(&counts, n as u64), sample);
        let insert = if insert { Ok(()) } else { Err(WaitReason::Ratio) };
        prop_assert_eq!(limiter.can_insert(&counts, n as u64), insert);
    }

    /// The bound that is always enough is enough in rounded arithmetic too, with a millionth to
    /// spare.
    #[test]
    fn a_wide_buffer_never_stops_everyone(
        spi in 0.01f64..20.0, min_size in 1..1000u64, low in -50.0f64..50.0, choices in any::<u64>(),
    ) {
        let buffer = (low, low + (1.0 + spi) * (1.0 + 1e-6));
        let limiter = Limiter::sample_to_insert_ratio(spi, min_size, buffer).unwrap();
        let mut counts = Counts { inserts: min_size, ..Counts::default() };
        for call in 0..3000 {
            let insert = limiter.can_insert(&counts, 1).is_ok();
            let sample = limiter.can_sample(&counts, 1).is_ok();
            prop_assert!(insert || sample, "{:?}", counts);
            if insert && (!sample || choices >> (call % 64) & 1 == 1) {
                counts.inserts += 1;
            } else {
                counts.samples += 1;
            }
        }
    }
}

/// Some calls, in a fixed order that visits both kinds.
fn walk(model: &Model, calls: usize) -> (Counts, State) {
    let mut counts = Counts::default();
    let mut state = model.start();
    for call in 0..calls {
        let next = model.next(&state);
        let Some(chosen) = next.get((call * 7 + call / 5) % next.len().max(1)) else { break };
        if chosen.diff > state.diff {
            counts.inserts += 1;
        } else {
            counts.samples += 1;
        }
        counts.deletions = counts.inserts - chosen.size as u64;
        state = chosen.clone();
    }
    (counts, state)
}

fn message(result: Result<Limiter, LimiterError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn numbers_that_make_no_limiter_are_refused() {
    let ratio = |spi: f64, min_size, buffer: ErrorBuffer| {
        message(Limiter::sample_to_insert_ratio(spi, min_size, buffer))
    };
    let raw = |min_diff, max_diff| {
        let (min_size, samples_per_insert) = (1, 1.0);
        message(Limiter::raw(Parameters { min_size, samples_per_insert, min_diff, max_diff }))
    };
    assert_eq!(message(Limiter::min_size(0)), "min_size must be at least 1, got 0");
    assert_eq!(
        message(Limiter::queue(0)),
        "the size of a queue or a stack must be at least 1, got 0"
    );
    for spi in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let expected = format!("samples_per_insert must be a finite number above 0, got {spi}");
        assert_eq!(ratio(spi, 1, (0.0, 9.0).into()), expected);
    }
    assert_eq!(ratio(1.0, 1, (-2.0).into()), "error_buffer must be a number of at least 0, got -2");
    assert!(ratio(1.0, 1, f64::NAN.into()).ends_with("got NaN"));
    assert_eq!(raw(f64::NAN, 1.0), "min_diff must be a number below infinity, got NaN");
    assert_eq!(raw(f64::INFINITY, 1.0), "min_diff must be a number below infinity, got inf");
    assert_eq!(raw(0.0, f64::NAN), "max_diff must be a number above minus infinity, got NaN");
    assert_eq!(
        raw(0.0, f64::NEG_INFINITY),
        "max_diff must be a number above minus infinity, got -inf"
    );
}

#[test]
fn a_deadlock_is_refused_with_its_arithmetic() {
    let narrow = message(Limiter::sample_to_insert_ratio(1.5, 10, (13.1, 15.0)));
    assert_eq!(
        narrow,
        "after 10 inserts and 1 samples everyone would wait for ever: one more insert makes \
         10 × 1.5 − 1 + 1.5 = 15.5, above max_diff 15; one more sample makes 10 × 1.5 − 1 − 1 = 13, \
         below min_diff 13.1; a max_diff − min_diff of 1 + samples_per_insert = 2.5 is always enough, \
         this is 1.9000000000000004"
    );
    // Far from the bounds at the start: nobody can wait for that long to see it.
    let far = Limiter::sample_to_insert_ratio(1.0, 1_000_000_000_000, (0.25, 0.75)).unwrap_err();
    assert!(
        matches!(far, LimiterError::Deadlock { counts, .. } if counts.samples > 999_999_999_990)
    );
    let limiter = Limiter::min_size(5).unwrap();
    let small = limiter.check_table(Bounds { capacity: 4, max_times_sampled: None }).unwrap_err();
    assert_eq!(small.to_string(), "min_size 5 is never reached by a table of capacity 4");
}

#[test]
fn a_batch_that_can_never_come_is_refused_with_its_arithmetic() {
    let keeps = Bounds { capacity: 1000, max_times_sampled: None };
    let limiter = Limiter::sample_to_insert_ratio(1.0, 100, 50.0).unwrap();
    let counts = Counts::default();
    assert_eq!(limiter.check_batch(&counts, 100, keeps), Ok(()));
    assert_eq!(
        limiter.check_batch(&counts, 101, keeps).unwrap_err().to_string(),
        "a batch of 101 can never be sampled: inserts stop at I·spi − S = 150 at the latest, and \
         150 − 101 = 49 is below min_diff 50; at most 100 can be sampled at once"
    );
    let once = Bounds { capacity: 8, max_times_sampled: NonZeroU64::new(2) };
    assert_eq!(
        Limiter::min_size(1).unwrap().check_batch(&counts, 17, once).unwrap_err().to_string(),
        "a batch of 17 can never be sampled: 8 items, each sampled at most 2 times, give 16"
    );
    let any = Limiter::min_size(1).unwrap();
    assert_eq!(any.check_batch(&counts, u64::MAX, keeps), Ok(()));
}

#[test]
fn reasons_have_the_names_that_users_see_and_numbers_that_stay() {
    let names = [
        (WaitReason::Capacity, "CAPACITY"),
        (WaitReason::Leased, "LEASED"),
        (WaitReason::MinSize, "MIN_SIZE"),
        (WaitReason::Ratio, "RATIO"),
        (WaitReason::Paused, "PAUSED"),
        (WaitReason::Staleness, "STALENESS"),
        (WaitReason::Group, "GROUP"),
        (WaitReason::Empty, "EMPTY"),
        (WaitReason::Away, "AWAY"),
        (WaitReason::Network, "NETWORK"),
    ];
    for (number, (reason, name)) in (1..).zip(names) {
        assert_eq!(reason.to_string(), name);
        assert_eq!((reason as u8, WaitReason::of(number)), (number, Some(reason)));
    }
    assert_eq!([0, 11, 255].map(WaitReason::of), [None; 3]);
}
