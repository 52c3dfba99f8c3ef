//! What callers of experiences in two tiers may rely on.

use std::sync::Arc;

use echoic_buffers::RowLayout;
use echoic_buffers::surprise::replay::MOST_AT_ONCE;
use echoic_buffers::surprise::{Ask, Mode, ScoreRule, Sizes, SurpriseReplay, SurpriseSettings};
use echoic_memory::sync::Mutex;
use echoic_primitives::plans::AveragePlan;
use echoic_replay::{Dtype, Leaf};
use proptest::prelude::*;

const DIMS: usize = 2;

/// Rows with a plan, a reward, and the number of the experience.
fn layout() -> RowLayout {
    let leaf = |dtype, shape: &[usize]| Leaf { path: String::new(), dtype, shape: shape.to_vec() };
    let leaves =
        [leaf(Dtype::Float(4), &[DIMS]), leaf(Dtype::Float(4), &[]), leaf(Dtype::UInt(4), &[])];
    RowLayout::new(leaves.iter().map(Some)).unwrap()
}

fn settings(hot: usize, cold: usize) -> SurpriseSettings {
    SurpriseSettings {
        sizes: Sizes { hot, cold, total: hot + cold },
        age_threshold: 2,
        max_age: 9,
        mode: Mode::Standard { clip: 3.0 },
        // Scores are rewards: what is kept can be told without knowing the mean.
        rule: Some(ScoreRule { surprise_weight: 0.0, reward_weight: 1.0, mean_over_dims: true }),
        plan: 0,
        reward: 1,
        refresh: 16,
        moves_mean: true,
        seed: 1,
        archive: None,
        text: String::new(),
    }
}

fn make(settings: SurpriseSettings) -> SurpriseReplay {
    let mean = Arc::new(Mutex::new(AveragePlan::new(DIMS, 0.9)));
    SurpriseReplay::new(layout(), mean, settings).unwrap()
}

fn add(replay: &SurpriseReplay, numbers: std::ops::Range<u32>, reward: impl Fn(u32) -> f32) {
    let fields = layout().fields().to_vec();
    let mut next = numbers.start;
    while next < numbers.end {
        let mut reserved = replay.reserve((numbers.end - next) as usize).unwrap();
        let first = next;
        reserved.fill(|at, row| {
            let number = first + at as u32;
            let plan = [number as f32, 1.0].map(f32::to_ne_bytes).concat();
            row[fields[0].offset..][..8].copy_from_slice(&plan);
            row[fields[1].offset..][..4].copy_from_slice(&reward(number).to_ne_bytes());
            row[fields[2].offset..][..4].copy_from_slice(&number.to_ne_bytes());
        });
        next += reserved.len() as u32;
        replay.add(reserved, None, &mut Vec::new());
    }
}

fn ask(count: usize) -> Ask {
    Ask { count, temperature: 1.0, hot_share: 0.5, beta: 0.4, seed: None }
}

/// The numbers and rewards of a draw, read from the rows, and how many are hot.
fn drawn(replay: &SurpriseReplay, count: usize) -> (Vec<(u32, f32)>, usize) {
    let batch = replay.draw(ask(count)).unwrap();
    let mut columns = [vec![0; 8 * count], vec![0; 4 * count], vec![0; 4 * count]];
    let mut places: Vec<&mut [u8]> = columns.iter_mut().map(|column| &mut column[..]).collect();
    batch.gather(layout().fields(), &mut places).unwrap();
    let words = |column: &[u8]| -> Vec<[u8; 4]> {
        column.chunks_exact(4).map(|word| word.try_into().unwrap()).collect()
    };
    let both = words(&columns[2]).into_iter().zip(words(&columns[1]));
    let rows = both.map(|(n, r)| (u32::from_ne_bytes(n), f32::from_ne_bytes(r))).collect();
    (rows, batch.found.hot)
}

#[test]
fn rows_go_on_being_read_while_others_take_their_place() {
    let replay = make(settings(10, 10));
    add(&replay, 0..10, |_| 1.0);
    let batch = replay.draw(ask(8)).unwrap();
    let before = batch.found.moments.clone();
    add(&replay, 10..2 * MOST_AT_ONCE as u32, |number| number as f32);
    let mut columns = [vec![0; 64], vec![0; 32], vec![0; 32]];
    let mut places: Vec<&mut [u8]> = columns.iter_mut().map(|column| &mut column[..]).collect();
    batch.gather(layout().fields(), &mut places).unwrap();
    let numbers: Vec<u64> = columns[2]
        .chunks_exact(4)
        .map(|word| u64::from(u32::from_ne_bytes(word.try_into().unwrap())))
        .collect();
    assert_eq!(numbers, before);
}

#[test]
fn threads_add_draw_and_age_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Some((folder.path().join("cold"), false));
    // Nobody goes because of its age: who has looked may draw.
    let replay = make(SurpriseSettings { archive, max_age: 1000, ..settings(300, 200) });
    std::thread::scope(|scope| {
        for thread in 0..2u32 {
            let replay = &replay;
            scope.spawn(move || {
                for step in 0..60 {
                    let first = thread * 1_000_000 + step * 50;
                    add(replay, first..first + 50, |number| (number % 100) as f32);
                }
            });
            scope.spawn(move || {
                for _ in 0..200 {
                    if replay.lens() != [0, 0] {
                        let (rows, _) = drawn(replay, 32);
                        for (number, reward) in rows {
                            assert_eq!((number % 100) as f32, reward, "a torn row");
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..60 {
                replay.tick(1).unwrap();
                std::thread::yield_now();
            }
        });
    });
    let [hot, cold] = replay.lens();
    assert!(hot <= 300 && cold <= 200, "{hot} {cold}");
    assert_eq!(replay.counts().added, 2 * 60 * 50);
}

#[test]
fn what_is_added_while_another_state_is_taken_over_leaves_its_rows() {
    let other = make(settings(10, 10));
    add(&other, 0..10, |_| 1.0);
    let (saved, ()) = other.save(|_, _| ());
    let replay = make(settings(10, 10));
    // Each time more than all rows that there are, in the end.
    for _ in 0..2000 {
        let restored = replay.restore(&saved, |at, row| {
            row.fill(0);
            if at == 0 {
                add(&replay, 100..108, |_| 1.0);
            }
        });
        assert!(restored.unwrap());
        assert_eq!(replay.lens(), [10, 0]);
    }
}

#[test]
fn a_state_that_can_not_be_taken_over_leaves_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| Some((folder.path().join(name), false));
    let other = make(SurpriseSettings { archive: file("other"), ..settings(10, 10) });
    add(&other, 0..5, |_| 1.0);
    other.tick(3).unwrap();
    // After those that are cold: the file is asked for last.
    add(&other, 5..10, |_| 1.0);
    let (mut saved, ()) = other.save(|_, _| ());
    saved.kinds.reverse();
    saved.births.reverse();
    let replay = make(SurpriseSettings { archive: file("own"), ..settings(10, 10) });
    replay.close().unwrap();
    for _ in 0..2000 {
        replay.restore(&saved, |_, row| row.fill(0)).unwrap_err();
    }
    assert_eq!(replay.lens(), [0, 0]);
    add(&replay, 0..10, |_| 1.0);
    assert_eq!(replay.lens(), [10, 0]);
}

#[test]
fn an_exponent_of_weights_that_means_nothing_is_an_error() {
    let replay = make(settings(10, 10));
    add(&replay, 0..10, |_| 1.0);
    for beta in [-1.0, 1.5, f64::NAN] {
        assert!(replay.draw(Ask { beta, ..ask(4) }).is_err(), "{beta}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// In memory and with a file, against sorted lists.
    #[test]
    fn keeps_and_draws_what_lists_keep(
        steps in prop::collection::vec((0u32..400, 0u64..2), 1..40),
        in_file in any::<bool>(),
        hot_size in 1usize..200,
        cold_size in 1usize..300,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let archive = in_file.then(|| (folder.path().join("cold"), false));
        let replay = make(SurpriseSettings { archive, ..settings(hot_size, cold_size) });
        let reward = |number: u32| (number.wrapping_mul(2_654_435_761) % 50) as f32;
        let (mut hot, mut cold) = (Vec::<(u32, u64)>::new(), Vec::<(u32, u64)>::new());
        let lowest = |list: &[(u32, u64)]| {
            (0..list.len()).min_by(|a, b| {
                let key = |at: usize| (reward(list[at].0), list[at].0);
                key(*a).partial_cmp(&key(*b)).unwrap()
            })
        };
        let (mut number, mut now) = (0, 0);
        for (count, updates) in steps {
            add(&replay, number..number + count, reward);
            for number in number..number + count {
                hot.push((number, now));
                if hot.len() > hot_size && let Some(at) = lowest(&hot) {
                    hot.remove(at);
                }
            }
            number += count;
            now += updates;
            replay.tick(updates).unwrap();
            cold.retain(|(_, born)| now - born <= 9);
            while hot.first().is_some_and(|(_, born)| now - born > 2) {
                cold.push(hot.remove(0));
                if cold.len() > cold_size && let Some(at) = lowest(&cold) {
                    cold.remove(at);
                }
            }
            prop_assert_eq!(replay.lens(), [hot.len(), cold.len()]);
            if !hot.is_empty() || !cold.is_empty() {
                let (rows, from_hot) = drawn(&replay, 64);
                for (at, (drawn, read)) in rows.into_iter().enumerate() {
                    prop_assert_eq!(read, reward(drawn));
                    let side = if at < from_hot { &hot } else { &cold };
                    prop_assert!(side.iter().any(|(known, _)| *known == drawn), "{} is gone", drawn);
                }
            }
        }
    }
}
