//! What a journal adds to an insert of a small row: alone, in batches, and from several threads; and what it adds to
//! know of each producer elsewhere how far it has come.
//!
//! Give it a directory on the disk that matters.

#![expect(clippy::print_stdout, reason = "a program that prints")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use echoic_replay::stream::Wait;
use echoic_replay::table::{Durability, Form, Origin, Table, TableConfig, Tables, recover};
use echoic_replay::{Dtype, Leaf, Spec};

const ROW: usize = 48;
const ROUNDS: usize = 5;

fn table(durability: Option<Durability>, dir: &Path) -> Arc<Table> {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(1), shape: vec![ROW] };
    let form = Form::Rows(Spec::new(vec![leaf]).expect("a spec"));
    let config = TableConfig::new("t", form, 100_000);
    let table = Arc::new(Table::new(config).expect("a table").durable(durability));
    let tables = Tables::new(vec![Arc::clone(&table)]).expect("one table");
    recover(&tables, dir, None).expect("a new journal");
    table
}

/// One who was not there before.
fn newcomer() -> Origin {
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let mut producer = [0; 16];
    producer[..8].copy_from_slice(&KNOWN.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    Origin { producer, epoch: 1, number: 0 }
}

fn insert(table: &Arc<Table>, count: usize, keep: bool, origin: Option<&mut Origin>) {
    let mut insertion = table.try_reserve(count).expect("room");
    for index in 0..count {
        insertion.row_mut(index).fill(index as u8);
    }
    let put = insertion.commit_from(&vec![1.0; count], None, origin.as_deref()).expect("an insert");
    assert!(put.is_some(), "it was not there before");
    if let Some(origin) = origin {
        origin.number += count as u64;
    }
    if keep {
        let wait = Wait { deadline: None, tick: None, on_tick: &mut |_| unreachable!("no tick") };
        table.keep(wait).expect("a disk");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Here,
    Elsewhere,
}

/// Microseconds of an item, in the best round.
fn measure(table: &Arc<Table>, from: From, [threads, calls, batch, every]: [usize; 4]) -> f64 {
    let round = |_| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut origin = (from == From::Elsewhere).then(newcomer);
                    for call in 1..=calls {
                        insert(table, batch, call % every == 0, origin.as_mut());
                    }
                });
            }
        });
        start.elapsed().as_secs_f64() * 1e6 / (threads * calls * batch) as f64
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

fn main() {
    let parent = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    println!("us per insert of {ROW} bytes, best of {ROUNDS}");
    println!(
        "durability   from        one by one   kept by 256   batches of 256   4 threads, one by one"
    );
    for durability in [None, Some(Durability::Async), Some(Durability::Sync)] {
        let dir = parent.join(format!("echoic-journal-speed-{}", std::process::id()));
        let table = self::table(durability, &dir);
        let calls = if durability == Some(Durability::Sync) { 100 } else { 5_000 };
        for from in [From::Here, From::Elsewhere] {
            let alone = measure(&table, from, [1, calls, 1, 1]);
            let together = measure(&table, from, [1, 10_240, 1, 256]);
            let batches = measure(&table, from, [1, 200, 256, 1]);
            let threads = measure(&table, from, [4, calls, 1, 1]);
            println!(
                "{:10}   {:9} {alone:12.2} {together:13.2} {batches:16.3} {threads:23.2}",
                durability.map_or("None".into(), |one| format!("{one:?}")),
                format!("{from:?}")
            );
        }
        table.close();
        if let Some(info) = table.journal() {
            let inserts = table.info().counts.inserts;
            drop(table);
            let start = Instant::now();
            drop(self::table(durability, &dir));
            let seconds = start.elapsed().as_secs_f64();
            println!("{inserts} inserts in {} records replayed in {seconds:.2} s", info.next);
        }
        let _ = std::fs::remove_dir_all(dir);
    }
}
