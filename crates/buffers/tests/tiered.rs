//! What callers of rows in two places may rely on.

use std::path::Path;

use echoic_buffers::cold::{ColdFile, Geometry};
use echoic_buffers::transitions::{DrawnRows, Notes, Request, Settings};
use echoic_buffers::{Error, RowLayout, Tiered, Transitions};
use echoic_replay::{Dtype, Leaf};
use proptest::prelude::*;

/// Rows with a byte, the position, and four bytes: not in this order, and with padding.
fn layout() -> RowLayout {
    let leaf = |dtype, shape: &[usize]| Leaf { path: String::new(), dtype, shape: shape.to_vec() };
    let leaves = [leaf(Dtype::Bool, &[]), leaf(Dtype::UInt(8), &[]), leaf(Dtype::UInt(1), &[4])];
    RowLayout::new(leaves.iter().map(Some)).unwrap()
}

fn geometry(total: u64) -> Geometry {
    Geometry { row_bytes: layout().row_bytes(), slots: total, text: String::new() }
}

fn create(path: &Path, hot: u64, total: u64) -> Tiered {
    try_create(path, hot, total).unwrap()
}

fn try_create(path: &Path, hot: u64, total: u64) -> Result<Tiered, Error> {
    Tiered::new(hot, total, layout(), 0, || ColdFile::create(path, &geometry(total)))
}

fn open(path: &Path, hot: u64) -> Tiered {
    let cold = ColdFile::open(path).unwrap();
    Tiered::new(hot, cold.slots(), layout(), 0, || Ok(cold)).unwrap()
}

fn fill(row: &mut [u8], value: u64) {
    let fields = layout().fields().to_vec();
    row[fields[0].offset] = value as u8;
    row[fields[1].offset..][..8].copy_from_slice(&value.to_le_bytes());
    row[fields[2].offset..][..4].copy_from_slice(&(value as u32 ^ 0xabcd).to_le_bytes());
}

fn put(rows: &Tiered, values: std::ops::Range<u64>) -> Result<(), Error> {
    let mut values = values;
    while !values.is_empty() {
        let count = (values.end - values.start).min(rows.most_at_once());
        let Some(mut place) = rows.try_place(count) else {
            rows.make_room(count)?;
            continue;
        };
        for index in 0..count {
            fill(place.reservation.row_mut(index), values.start + index);
        }
        if place.publish() {
            rows.spill_some();
        }
        values.start += count;
    }
    Ok(())
}

/// The values of rows that are drawn.
fn draw(rows: &Tiered, count: usize, seed: u64) -> Result<Vec<u64>, Error> {
    let mut positions = Vec::new();
    let held = rows.draw(count, Some(seed), &mut positions)?;
    let sizes = layout().fields().iter().map(|field| field.bytes * count).collect::<Vec<_>>();
    let mut columns: Vec<Vec<u8>> = sizes.into_iter().map(|bytes| vec![0xee; bytes]).collect();
    let mut targets: Vec<&mut [u8]> = columns.iter_mut().map(Vec::as_mut_slice).collect();
    held.gather(&positions, &mut targets)?;
    let values: Vec<u64> =
        columns[1].as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    for (at, value) in values.iter().enumerate() {
        assert_eq!(columns[0][at], *value as u8);
        assert_eq!(columns[2][at * 4..][..4], (*value as u32 ^ 0xabcd).to_le_bytes());
    }
    Ok(values)
}

#[test]
fn draws_are_those_of_a_buffer_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (hot, total) in [(1, 1), (1, 50), (7, 50), (50, 50), (64, 1000)] {
        let rows = create(&folder.path().join(format!("{hot}-{total}")), hot, total);
        let memory = Transitions::new(total, layout(), &Settings::default()).unwrap();
        for turn in 0..30u64 {
            let begin = turn * 13;
            put(&rows, begin..begin + 13).unwrap();
            for value in begin..begin + 13 {
                let mut reservation = memory.ring().reserve(1);
                fill(reservation.row_mut(0), value);
                memory.publish(reservation, Notes::default());
            }
            let mut draws = DrawnRows::default();
            let request = Request {
                count: 40,
                seed: Some(turn),
                beta: 0.0,
                draw: echoic_buffers::priorities::Draw::Stratified,
            };
            memory.draw(request, &mut draws, |_, _, _| ()).unwrap();
            assert_eq!(rows.len(), memory.len());
            assert_eq!(draw(&rows, 40, turn).unwrap(), draws.positions, "{hot} {total} {turn}");
        }
    }
}

#[test]
fn nothing_cannot_be_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let rows = create(&folder.path().join("cold"), 2, 4);
    assert!(matches!(draw(&rows, 0, 0), Err(Error::Argument(_))));
    assert!(matches!(draw(&rows, 1, 0), Err(Error::Empty)));
    let other = folder.path().join("other");
    let error = try_create(&other, 5, 4).unwrap_err();
    assert_eq!(error.to_string(), "hot_capacity must be at most the capacity, got 5");
    for (hot, total) in [(0, 4), (0, 0)] {
        let error = try_create(&other, hot, total).unwrap_err();
        assert_eq!(error.to_string(), "the capacity must be at least 1, got 0");
    }
    assert!(!other.exists(), "nothing is left of what could not be made");
}

#[test]
fn what_is_in_memory_stays_there_when_the_file_can_not_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let rows = create(&folder.path().join("cold"), 10, 1000);
    put(&rows, 0..25).unwrap();
    // Of a file that is closed nothing can be overwritten, but everything be read.
    rows.cold().close(false).unwrap();
    let written = rows.written();
    let mut next = 25;
    while put(&rows, next..next + 1).is_ok() {
        next += 1;
    }
    assert_eq!((next, rows.len()), (written + 10, next));
    let values = draw(&rows, 500, 3).unwrap();
    assert!((0..next).all(|value| values.contains(&value)));
    assert!(matches!(rows.flush(), Err(Error::Closed)));
}

#[test]
fn a_kept_file_has_all_rows_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cold");
    let rows = create(&path, 10, 100);
    put(&rows, 0..63).unwrap();
    rows.close(true).unwrap();
    drop(rows);
    let rows = open(&path, 4);
    assert_eq!((rows.len(), rows.written()), (63, 63));
    put(&rows, 63..130).unwrap();
    rows.flush().unwrap();
    // As after a crash: it is not closed.
    drop(rows);
    let rows = open(&path, 50);
    assert_eq!(rows.len(), 100);
    let mut values = draw(&rows, 5000, 1).unwrap();
    values.sort_unstable();
    values.dedup();
    assert_eq!(values, (30..130).collect::<Vec<_>>());
    rows.close(false).unwrap();
    assert!(!path.exists());
}

#[test]
fn threads_fill_draw_and_clear_together() {
    let folder = tempfile::tempdir().unwrap();
    let rows = create(&folder.path().join("cold"), 32, 200);
    put(&rows, 0..50).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let rows = &rows;
            scope.spawn(move || {
                for turn in 0..300 {
                    put(rows, writer << 32 | turn..writer << 32 | (turn + turn % 7)).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                rows.clear().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        for reader in 0..2 {
            let rows = &rows;
            scope.spawn(move || {
                for turn in 0..500 {
                    match draw(rows, 16, turn * 2 + reader) {
                        Ok(_) | Err(Error::Empty) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    rows.close(false).unwrap();
}

#[derive(Debug, Clone)]
enum Step {
    Put(u64),
    Clear,
    Flush,
    Reopen { hot: u64, cleanly: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..40u64).prop_map(Step::Put),
        1 => Just(Step::Clear),
        1 => Just(Step::Flush),
        1 => (1..10u64, any::<bool>()).prop_map(|(hot, cleanly)| Step::Reopen { hot, cleanly }),
    ];
    prop::collection::vec(step, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn rows_in_two_places_are_the_last_of_a_list(total in 10..60u64, hot in 1..10u64, steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cold");
        let mut rows = create(&path, hot, total);
        // All since the last clearing: when the newest rows are lost, older ones are there again.
        let (mut all, mut next) = (Vec::new(), 0u64);
        for step in steps {
            match step {
                Step::Put(count) => {
                    put(&rows, next..next + count).unwrap();
                    all.extend(next..next + count);
                    next += count;
                }
                Step::Clear => {
                    rows.clear().unwrap();
                    all.clear();
                }
                Step::Flush => rows.flush().unwrap(),
                Step::Reopen { hot, cleanly } => {
                    let lost = rows.len() - rows.written();
                    if cleanly {
                        rows.close(true).unwrap();
                    } else {
                        all.truncate(all.len() - lost as usize);
                    }
                    drop(rows);
                    rows = open(&path, hot);
                    all.drain(..all.len().saturating_sub(total as usize));
                }
            }
            let list = &all[all.len().saturating_sub(total as usize)..];
            prop_assert_eq!(rows.len(), list.len() as u64);
            if !list.is_empty() {
                // Enough that a row that is not there would be missed only once in a million times.
                let mut values = draw(&rows, list.len() * 20, next).unwrap();
                values.sort_unstable();
                values.dedup();
                prop_assert_eq!(&values, list);
            }
        }
    }
}
