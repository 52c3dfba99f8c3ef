//! Batches of a data set, however its columns are kept, against a plain reading of the columns.

use std::sync::Arc;

use echoic_buffers::offline::column::{Axis, Column};
use echoic_buffers::offline::episodes::Episodes;
use echoic_buffers::offline::normal::Float;
use echoic_buffers::offline::part::NOWHERE;
use echoic_buffers::offline::{Dataset, Output, Settings, Value};
use echoic_replay::Dtype;
use echoic_replay::rng::Rng;
use proptest::prelude::*;

/// What the columns are made of: a step's observation is full of its number among all observations.
struct Given {
    terminated: Vec<u8>,
    truncated: Vec<u8>,
    rewards: Vec<f32>,
    width: usize,
}

impl Given {
    fn new(ends: &[u8], width: usize) -> Self {
        let rewards = (0..ends.len()).map(|step| step as f32 * 0.5).collect();
        let bits = |bit| ends.iter().map(|end| (end >> bit) & 1u8).collect();
        Self { terminated: bits(0), truncated: bits(1), rewards, width }
    }

    fn episodes(&self) -> Episodes {
        Episodes::new(&self.terminated, &self.truncated).unwrap()
    }

    fn observation(&self, row: usize) -> Vec<u8> {
        (0..self.width).flat_map(|at| ((row * 3 + at) as f32).to_ne_bytes()).collect()
    }

    /// The rows of the observations of each step, and of the next ones.
    fn rows(&self) -> Vec<(usize, usize)> {
        let episodes = self.episodes();
        let rows = (0..episodes.steps()).map(|step| step + episodes.of(step));
        rows.map(|row| (row, row + 1)).collect()
    }

    fn column(&self, name: &str, bytes: Vec<u8>, row_bytes: usize) -> Column {
        let (name, bytes, dtype) = (name.to_owned(), Box::new(bytes), Dtype::Float(4));
        Column { name, dtype, bytes, row_bytes, axis: Axis::Steps, on_disk: false, normal: None }
    }

    fn dataset(&self, kept: Kept) -> Dataset {
        let rows = self.rows();
        let observations = |rows: &mut dyn Iterator<Item = usize>| {
            let bytes = rows.flat_map(|row| self.observation(row)).collect();
            self.column("obs", bytes, self.width * 4)
        };
        let mut columns = Vec::new();
        let (first, next) = if kept.joined {
            let all = rows.len() + self.episodes().len();
            columns.push(Column { axis: Axis::Observations, ..observations(&mut (0..all)) });
            (Value { column: 0, next: false }, Value { column: 0, next: true })
        } else {
            columns.push(observations(&mut rows.iter().map(|rows| rows.0)));
            columns.push(observations(&mut rows.iter().map(|rows| rows.1)));
            (Value { column: 0, next: false }, Value { column: 1, next: false })
        };
        if kept.normal {
            let normal = Arc::new(columns[0].measure(Float::Single, &self.episodes()).unwrap());
            columns.iter_mut().for_each(|column| column.normal = Some(Arc::clone(&normal)));
        }
        let rewards = self.rewards.iter().flat_map(|reward| reward.to_ne_bytes()).collect();
        columns.push(self.column("rewards", rewards, 4));
        columns.iter_mut().for_each(|column| column.on_disk = kept.on_disk);
        let reward = Value { column: columns.len() - 1, next: false };
        let settings = Settings {
            copied: kept.copied,
            rewards: (2, Float::Single),
            gamma: 0.5,
            pairs: vec![(0, 1)],
        };
        Dataset::new(self.episodes(), columns, &[first, next, reward], settings).unwrap()
    }
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    copied: bool,
    joined: bool,
    normal: bool,
    on_disk: bool,
}

fn kept() -> impl Strategy<Value = Kept> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>())
        .prop_map(|(copied, joined, normal, on_disk)| Kept { copied, joined, normal, on_disk })
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn steps_are_the_same_however_columns_are_kept(
        ends in prop::collection::vec(0u8..4, 1..40),
        width in prop::sample::select(vec![0, 1, 3, 17, 128, 129, 200]),
        kept in kept(),
        seed in any::<u64>(),
    ) {
        let given = Given::new(&ends, width);
        let dataset = given.dataset(kept);
        let mut steps = dataset.draw(&mut Rng::new(seed), 50);
        steps[7] = NOWHERE;
        let outputs = [0, 1, 2].map(Output::Value);
        let mut columns = outputs.map(|output| vec![7; dataset.bytes_of(output) * steps.len()]);
        let mut targets: Vec<&mut [u8]> = columns.iter_mut().map(Vec::as_mut_slice).collect();
        dataset.gather(&steps, &outputs, &mut targets);
        let rows = given.rows();
        let normal = |row: usize| {
            let mut bytes = given.observation(row);
            if kept.normal {
                let column = Column {
                    axis: Axis::Steps,
                    ..given.column("obs", rows.iter().flat_map(|rows| given.observation(rows.0)).collect(), width * 4)
                };
                column.measure(Float::Single, &given.episodes()).unwrap().apply(&mut bytes);
            }
            bytes
        };
        for (place, step) in steps.iter().enumerate() {
            let part = |column: usize, bytes: usize| &columns[column][place * bytes..][..bytes];
            if *step == NOWHERE {
                prop_assert!(part(0, width * 4).iter().chain(part(2, 4)).all(|byte| *byte == 0));
                continue;
            }
            prop_assert_eq!(floats(part(0, width * 4)), floats(&normal(rows[*step].0)));
            prop_assert_eq!(floats(part(1, width * 4)), floats(&normal(rows[*step].1)));
            prop_assert_eq!(floats(part(2, 4)), vec![given.rewards[*step]]);
        }
    }

    #[test]
    fn windows_end_with_their_episode_and_their_returns_do_not(
        ends in prop::collection::vec(0u8..4, 1..40),
        length in 1usize..9,
        before in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let given = Given::new(&ends, 1);
        let (dataset, episodes) = (given.dataset(Kept { copied: true, joined: false, normal: false, on_disk: false }), given.episodes());
        let steps = dataset.draw_windows(&mut Rng::new(seed), 20, length, before);
        prop_assert_eq!(&steps, &dataset.draw_windows(&mut Rng::new(seed), 20, length, before));
        let outputs = [Output::ReturnsToGo, Output::Timestep, Output::Mask];
        let mut columns = outputs.map(|output| vec![7; dataset.bytes_of(output) * steps.len()]);
        let mut targets: Vec<&mut [u8]> = columns.iter_mut().map(Vec::as_mut_slice).collect();
        dataset.gather(&steps, &outputs, &mut targets);
        let timesteps = columns[1].chunks_exact(8).map(|b| i64::from_ne_bytes(b.try_into().unwrap()));
        let timesteps: Vec<i64> = timesteps.collect();
        for (number, window) in steps.chunks_exact(length).enumerate() {
            let real: Vec<usize> = window.iter().copied().filter(|step| *step != NOWHERE).collect();
            let end = episodes.range(episodes.of(real[0])).end;
            prop_assert!(real.iter().copied().eq(real[0]..end.min(real[0] + length)));
            prop_assert_eq!(window[if before { length - 1 } else { 0 }] == NOWHERE, false);
            for (at, step) in window.iter().enumerate() {
                let place = number * length + at;
                prop_assert_eq!(columns[2][place], u8::from(*step != NOWHERE));
                let (mut sum, mut timestep) = (0.0, 0);
                if *step != NOWHERE {
                    let episode = episodes.range(episodes.of(*step));
                    timestep = (*step - episode.start) as i64;
                    sum = (*step..episode.end).rev().fold(0.0, |sum, step| f64::from(given.rewards[step]) + 0.5 * sum);
                }
                prop_assert_eq!(timesteps[place], timestep);
                prop_assert_eq!(floats(&columns[0])[place], sum as f32);
            }
        }
    }
}

#[test]
fn long_observations_that_are_also_the_next_ones_are_stored_once() {
    let given = Given::new(&[0; 1000], 1024);
    let kept = |copied| Kept { copied, joined: false, normal: false, on_disk: false };
    let bytes = given.dataset(kept(true)).own_bytes();
    assert!(bytes < 1100 * 4096, "{bytes} bytes for 1000 observations of 4096");
    assert_eq!(given.dataset(kept(false)).own_bytes(), 0);
}

#[test]
fn every_step_is_as_likely_as_any_other() {
    let dataset = Given::new(&[0; 8], 1).dataset(Kept {
        copied: true,
        joined: false,
        normal: false,
        on_disk: false,
    });
    let mut counts = [0u32; 8];
    dataset.draw(&mut Rng::new(3), 80_000).iter().for_each(|step| counts[*step] += 1);
    // Six standard deviations are 562.
    assert!(counts.iter().all(|count| count.abs_diff(10_000) < 562), "{counts:?}");
}

#[test]
fn what_can_not_be_a_data_set_is_named() {
    let given = Given::new(&[0, 0], 1);
    let settings =
        || Settings { copied: true, rewards: (0, Float::Single), gamma: 1.0, pairs: vec![] };
    let value = [Value { column: 0, next: false }];
    let column = |rewards: &[f32]| {
        given.column("rewards", rewards.iter().flat_map(|r| r.to_ne_bytes()).collect(), 4)
    };
    let make =
        |episodes, rewards| Dataset::new(episodes, vec![column(rewards)], &value, settings());
    let error = make(given.episodes(), &[1.0]).unwrap_err();
    assert_eq!(error.to_string(), "`rewards`: expected 2 rows, got 1");
    let error = make(given.episodes(), &[1.0, f32::INFINITY]).unwrap_err();
    let text = "`rewards`: expected finite numbers, got inf at step 1";
    assert_eq!(error.to_string(), text);
    let none = Episodes::new(&[], &[]).unwrap();
    let error = make(none, &[]).unwrap_err();
    assert_eq!(error.to_string(), "the data set has no steps");
}
