//! How long a table takes to be there again: from a checkpoint, from a journal, and from both.
//!
//! `cargo run --release -p echoic-replay --example restart_speed [MEGABYTES] [DIRECTORY] [BYTES]`
//!
//! For items of several sizes, a table is filled with this many megabytes, saved, and brought back in the ways
//! of a server that starts again: from a checkpoint alone, from a journal alone, and from a checkpoint with a
//! tenth of the items only in the journal. Beside each time stands the least that any program would need:
//! to read the same files once, take a checksum, and copy as many bytes into memory of the system's. Files
//! are in the system's cache, as they are after a process died; from a disk they come as fast as it reads.
//!
//! The table that comes back is asked for its counts and for a sum over all its rows before a time is
//! printed.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a program that prints")]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::selectors::SelectorKind;
use echoic_replay::stream::Wait;
use echoic_replay::table::saved::save;
use echoic_replay::table::{Durability, Form, Table, TableConfig, Tables, recover};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::{Dtype, Leaf, Spec};

/// Bytes of an item.
const SIZES: [usize; 4] = [28, 100, 1000, 28_000];

/// Rounds of each measurement, of which the best counts.
const ROUNDS: usize = 2;

/// What the files of a table are.
#[derive(Clone, Copy)]
struct Files {
    name: &'static str,
    /// Which share of the items comes after the checkpoint, in percent; `None` when there is none.
    after: Option<usize>,
    journal: bool,
    /// How many items come in one call; `None` when each is a trajectory, of one step in a chunk of its own.
    batch: Option<usize>,
}

const FILES: [Files; 6] = [
    Files::new("checkpoint", Some(0), false, Some(64)),
    Files::new("checkpoint and a tenth in the journal", Some(10), true, Some(1)),
    Files::new("journal, one by one", None, true, Some(1)),
    Files::new("journal, by 64", None, true, Some(64)),
    Files::new("trajectories, checkpoint", Some(0), false, None),
    Files::new("trajectories, journal", None, true, None),
];

impl Files {
    const fn new(
        name: &'static str,
        after: Option<usize>,
        journal: bool,
        batch: Option<usize>,
    ) -> Self {
        Self { name, after, journal, batch }
    }
}

fn tables(bytes: usize, items: usize, files: Files) -> Tables {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(1), shape: vec![bytes] };
    let form = match files.batch {
        Some(_) => Form::Rows(Spec::new(vec![leaf]).expect("a spec")),
        None => Form::Trajectories(None),
    };
    let table = Table::new(TableConfig {
        sampler: SelectorKind::Prioritized { exponent: 0.6 },
        ..TableConfig::new("t", form, items as u32)
    });
    let durability = files.journal.then_some(Durability::Async);
    Tables::new(vec![Arc::new(table.expect("a table").durable(durability))]).expect("one table")
}

fn fill(table: &Arc<Table>, bytes: usize, mut items: usize, batch: Option<usize>) {
    let Some(batch) = batch else { return fill_trajectories(table, bytes, items) };
    while items > 0 {
        let mut insertion = match table.try_reserve(batch.min(items)) {
            Ok(insertion) => insertion,
            // The journal's queue is full: what is in it has to be written.
            Err(_) => {
                keep(table);
                continue;
            }
        };
        let count = insertion.len();
        for index in 0..count {
            insertion.row_mut(index).fill((items - index) as u8);
        }
        insertion.commit(&vec![(items % 100) as f64; count], None).expect("an insert");
        items -= count;
    }
}

fn fill_trajectories(table: &Arc<Table>, bytes: usize, items: usize) {
    let kind = Arc::new(ColumnKind { dtype: Dtype::UInt(1), shape: vec![bytes] });
    let column = Column { path: "x".into(), kind: ColumnKind::clone(&kind), squeezed: true };
    let signature = Arc::new(Signature { structure: String::new(), columns: vec![column] });
    for number in 0..items {
        let chunk = Chunk::raw(Arc::clone(&kind), 1, vec![number as u8; bytes].into());
        let slice = Slice { chunk: Arc::new(chunk.expect("a chunk")), offset: 0, len: 1 };
        let one = Trajectory::new(Arc::clone(&signature), vec![vec![slice]]);
        let one = one.expect("a trajectory");
        while table.try_insert(&one, (number % 100) as f64, None).is_err() {
            keep(table);
        }
    }
}

fn keep(table: &Arc<Table>) {
    let wait = Wait { deadline: None, tick: None, on_tick: &mut |_| unreachable!("no tick") };
    table.keep(wait).expect("a disk");
}

/// Seconds for which this thread was at work: others may use the machine, too.
fn cpu() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    nanos.map_or(f64::NAN, |nanos| nanos / 1e9)
}

/// What has to be there again: sums over all items.
fn digest(table: &Arc<Table>, bytes: usize) -> (u32, f64, u64) {
    let info = table.info();
    let keys = table.items().keys;
    let step = (keys.len() / 10_000).max(1);
    let some: Vec<u64> = keys.iter().step_by(step).copied().collect();
    let found = table.get(&some);
    let mut bytes = vec![0; found.len() * bytes];
    found.gather(&mut [&mut bytes]);
    let sum = bytes.iter().map(|byte| u64::from(*byte)).sum();
    (info.size, info.total_weight, sum)
}

/// The seconds of reading all files below a directory with a checksum, and of copying this many bytes into
/// fresh memory, asked for as a table's is; and the bytes of the files.
fn least(dir: &Path, payload: usize) -> (f64, u64) {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { dirs.push(path) } else { files.push(path) }
        }
    }
    let start = cpu();
    let mut total = 0;
    let mut piece = vec![0; 1 << 20];
    let mut memory = echoic_memory::roomy(payload);
    for path in files {
        let mut file = fs::File::open(path).expect("a file");
        loop {
            let len = file.read(&mut piece).expect("bytes");
            if len == 0 {
                break;
            }
            total += len as u64;
            std::hint::black_box(crc32c::crc32c(&piece[..len]));
            memory.extend_from_slice(&piece[..len.min(payload - memory.len())]);
        }
    }
    std::hint::black_box(&memory);
    (cpu() - start, total)
}

fn measure(bytes: usize, payload: usize, files: Files, parent: &Path) {
    let items = payload / bytes;
    let dir = tempfile::tempdir_in(parent).expect("a directory");
    let (root, journals) = (dir.path().join("checkpoints"), dir.path().join("journals"));
    let begin = |checkpoint: bool| {
        let tables = tables(bytes, items, files);
        let (start, worked) = (Instant::now(), cpu());
        recover(&tables, &journals, checkpoint.then_some(root.as_path())).expect("right files");
        (tables, start.elapsed().as_secs_f64(), cpu() - worked)
    };
    let expected = {
        let (tables, ..) = begin(false);
        let table = &tables.all()[0];
        let after = files.after.map_or(items, |percent| items * percent / 100);
        fill(table, bytes, items - after, files.batch);
        if files.after.is_some() {
            save(&tables, &root, &[]).expect("a checkpoint");
        }
        fill(table, bytes, after, files.batch);
        if files.journal {
            keep(table);
        }
        let expected = digest(table, bytes);
        table.close();
        expected
    };
    let (mut best, mut work) = (f64::INFINITY, f64::INFINITY);
    let mut bound = f64::INFINITY;
    let mut stored = 0;
    for _ in 0..ROUNDS {
        let (tables, seconds, worked) = begin(files.after.is_some());
        assert_eq!(digest(&tables.all()[0], bytes), expected, "what came back is something else");
        tables.all()[0].close();
        drop(tables);
        (best, work) = (best.min(seconds), work.min(worked));
        let (seconds, total) = least(dir.path(), items * bytes);
        bound = bound.min(seconds);
        stored = total;
    }
    println!(
        "{bytes:6} bytes, {:38} {items:9} items, files {:5.0} MB: {best:6.2} s, {work:6.2} s of work, \
         {:5.2} GB of items a second of it; the least {bound:5.2} s, {:4.1} times that",
        files.name,
        stored as f64 / 1e6,
        (items * bytes) as f64 / work / 1e9,
        work / bound,
    );
}

fn main() {
    let mut words = std::env::args().skip(1);
    let megabytes = words.next().map_or(1000, |word| word.parse().expect("a number of megabytes"));
    let parent = words.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let only = words.next().map(|word| word.parse::<usize>().expect("bytes of an item"));
    for bytes in SIZES {
        for files in FILES {
            if only.is_some_and(|only| only != bytes) {
                continue;
            }
            measure(bytes, megabytes * 1_000_000, files, &parent);
        }
    }
}
