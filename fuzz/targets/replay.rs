//! A table's journal whose records somebody has changed, checksums and all: it is refused, or makes a table
//! that works.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arbitrary::Arbitrary;
use echoic_fuzz::damage::place;
use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::journal::{Journal, Options};
use echoic_replay::limiter::Limiter;
use echoic_replay::selectors::SelectorKind;
use echoic_replay::table::{Durability, Form, Origin, Table, TableConfig, Tables, recover};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::{Dtype, Leaf, Spec};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Step {
    Insert(u8),
    /// From elsewhere: by whom, and what.
    Send(bool, u8),
    Update(u8, f32),
    Delete(u8),
    Sample(u8),
    Advance(u8),
    Reset,
}

#[derive(Debug, Arbitrary)]
enum Change {
    Flip { at: u16, bits: u8 },
    Cut { at: u16 },
    Append(Vec<u8>),
    Swap(u8),
    Remove,
    Replace(Vec<u8>),
}

#[derive(Debug, Arbitrary)]
struct Session {
    rows: bool,
    twice: bool,
    steps: Vec<Step>,
    changes: Vec<(u8, Change)>,
}

fn leaf() -> Leaf {
    Leaf { path: "x".into(), dtype: Dtype::UInt(2), shape: vec![2] }
}

fn tables(session: &Session) -> Tables {
    let form = match session.rows {
        true => Form::Rows(Spec::new(vec![leaf()]).expect("a spec")),
        false => Form::Trajectories(None),
    };
    let table = Table::new(TableConfig {
        name: "t".into(),
        form,
        structure: String::new(),
        sampler: SelectorKind::Prioritized { exponent: 0.5 },
        remover: SelectorKind::Fifo,
        limiter: Limiter::min_size(1).expect("a limiter"),
        capacity: 8,
        max_times_sampled: if session.twice { 2 } else { 0 },
        seed: 1,
    });
    let table = table.expect("a table").durable(Some(Durability::Async));
    Tables::new(vec![Arc::new(table)]).expect("one table")
}

fn trajectory(number: u8) -> Trajectory {
    let kind = ColumnKind { dtype: Dtype::UInt(2), shape: vec![2] };
    let column = Column { path: "x".into(), kind: kind.clone(), squeezed: false };
    let signature = Arc::new(Signature { structure: String::new(), columns: vec![column] });
    let chunk = Chunk::raw(Arc::new(kind), 3, vec![number; 12].into()).expect("a chunk");
    let slice = Slice { chunk: Arc::new(chunk), offset: 1, len: 2 };
    Trajectory::new(signature, vec![vec![slice]]).expect("a trajectory")
}

fn insert(table: &Arc<Table>, number: u8, origin: Option<&Origin>) {
    if let Form::Trajectories(_) = table.config().form {
        table.try_insert_from(&trajectory(number), 1.0, None, origin).expect("room");
        return;
    }
    let mut insertion = table.try_reserve(usize::from(number % 3) + 1).expect("room");
    let count = insertion.len();
    (0..count).for_each(|index| insertion.row_mut(index).fill(number));
    insertion.commit_from(&vec![1.0; count], None, origin).expect("an insert");
}

fn sent(who: bool, number: u8) -> Origin {
    Origin { producer: [who.into(); 16], epoch: 1, number: number.into() }
}

fn work(table: &Arc<Table>, step: &Step) {
    let keys = table.items().keys;
    let key = |which: u8| keys.get(usize::from(which) % keys.len().max(1)).copied().unwrap_or(7);
    match step {
        Step::Insert(number) => insert(table, *number, None),
        // Some of them are there already.
        Step::Send(who, number) => insert(table, *number, Some(&sent(*who, *number))),
        Step::Update(which, priority) => {
            let _ = table.update_priorities(&[key(*which)], &[(*priority).into()]);
        }
        Step::Delete(which) => drop(table.delete(&[key(*which)])),
        Step::Sample(count) => {
            drop(table.try_sample(usize::from(*count % 4) + 1));
        }
        Step::Advance(version) => table.advance((*version).into()),
        Step::Reset => table.reset(),
    }
}

fn log(dir: &Path) -> PathBuf {
    let mut entries =
        fs::read_dir(dir.join("t")).expect("a table").map(|one| one.expect("one").path());
    entries.find(|path| path.is_dir()).expect("a log")
}

fuzz_target!(|session: Session| {
    let dir = place("replay");
    let _ = fs::remove_dir_all(&dir);
    let first = tables(&session);
    recover(&first, &dir, None).expect("a new journal");
    session.steps.iter().take(50).for_each(|step| work(&first.all()[0], step));
    let before = first.all()[0].items().keys;
    first.close();

    let log = log(&dir);
    let (journal, mut replay) = Journal::open(&log, Options::default()).expect("it was whole");
    let mut records = Vec::new();
    while let Some((_, record)) = replay.next_record().expect("it was whole") {
        records.push(record.to_vec());
    }
    drop((journal, replay));
    let changes = session.changes.iter().take(4);
    let mut changed = false;
    for (which, change) in changes {
        let count = records.len();
        let Some(record) = records.get_mut(usize::from(*which) % count.max(1)) else { break };
        changed = true;
        match change {
            Change::Flip { at, bits } => {
                let at = usize::from(*at) % record.len().max(1);
                record.get_mut(at).into_iter().for_each(|byte| *byte ^= bits);
            }
            Change::Cut { at } => record.truncate(usize::from(*at) % (record.len() + 1)),
            Change::Append(bytes) => record.extend_from_slice(bytes),
            Change::Swap(other) => {
                records.swap(usize::from(*which) % count, usize::from(*other) % count);
            }
            Change::Remove => drop(records.remove(usize::from(*which) % count)),
            Change::Replace(bytes) => record.clone_from(bytes),
        }
    }
    fs::remove_dir_all(&log).expect("it is there");
    let (journal, _) = Journal::open(&log, Options::default()).expect("a new journal");
    for record in &records {
        journal.append(record).expect("room");
    }
    drop(journal);

    let second = tables(&session);
    let recovered = recover(&second, &dir, None);
    let table = &second.all()[0];
    if recovered.is_err() {
        assert!(changed, "what was written can be read");
        assert_eq!(table.info().size, 0, "nothing is loaded by halves");
        return;
    }
    assert!(changed || table.items().keys == before);
    for who in [false, true] {
        let reached = |table: &Arc<Table>| table.reached(&[who.into(); 16], 1);
        assert!(changed || reached(table) == reached(&first.all()[0]));
    }
    // What came of it works.
    for number in 0..12 {
        // Changed bytes may say that a later life of the producer has come.
        let origin = Origin { epoch: u64::MAX, ..sent(true, 200 + number) };
        insert(table, number, (number > 6).then_some(&origin));
        let keys = table.items().keys;
        let sampled = table.get(&keys);
        assert_eq!((sampled.len(), table.info().size as usize), (keys.len(), keys.len()));
        let _ = table.update_priorities(&keys, &vec![2.0; keys.len()]);
        drop(table.try_sample(3));
    }
    table.delete(&table.items().keys);
    assert_eq!(table.info().size, 0);
    second.close();
});
