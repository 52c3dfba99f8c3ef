//! Tables with journals: what a crash leaves of them, and what is refused.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use echoic_replay::Error;
use echoic_replay::checkpoint::list;
use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::journal::{Journal, Options};
use echoic_replay::limiter::Counts;
use echoic_replay::rng::Rng;
use echoic_replay::selectors::SelectorKind;
use echoic_replay::stream::Wait;
use echoic_replay::table::saved::{load, save};
use echoic_replay::table::{
    Durability, Form, Infos, Obstacles, Origin, Producer, Recovered, Table, TableConfig,
    TableError, Tables, recover,
};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::{Dtype, Episode, Leaf, Spec};
use proptest::prelude::*;

#[path = "common/killed.rs"]
mod killed;

use killed::{kill_once, orders, say, tempdir};
use tempfile::TempDir;

fn config(form: Form) -> TableConfig {
    TableConfig { structure: "0".into(), ..TableConfig::new("a/b", form, 20) }
}

fn rows() -> Form {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(8), shape: vec![3] };
    Form::Rows(Spec::new(vec![leaf]).unwrap())
}

fn tables(config: &TableConfig, durability: Option<Durability>) -> Tables {
    let table = Table::new(config.clone()).unwrap().durable(durability);
    Tables::new(vec![Arc::new(table)]).unwrap()
}

fn begin(
    config: &TableConfig,
    root: &Path,
    checkpoint: Option<&Path>,
) -> Result<(Tables, Recovered), Error> {
    let tables = tables(config, Some(Durability::Async));
    let mut recovered = recover(&tables, root, checkpoint)?;
    Ok((tables, recovered.remove(0)))
}

fn keep(table: &Table) {
    let wait =
        Wait { deadline: None, tick: None, on_tick: &mut |_| panic!("no tick was asked for") };
    table.keep(wait).unwrap();
}

/// Who inserts from elsewhere.
const PRODUCERS: [Producer; 3] = [[7; 16], [8; 16], [9; 16]];
const PRODUCER: Producer = PRODUCERS[0];

fn operation(number: u64) -> Origin {
    operation_of(PRODUCER, number)
}

fn operation_of(producer: Producer, number: u64) -> Origin {
    Origin { producer, epoch: 3, number }
}

/// Rows that say a number three times each, as many as there is room for; how many, or none if the first was
/// there.
fn send_some(table: &Arc<Table>, numbers: &[u64], origin: Option<Origin>) -> Option<usize> {
    let mut insertion = table.try_reserve(numbers.len()).unwrap();
    let count = insertion.len();
    for (index, number) in numbers[..count].iter().enumerate() {
        insertion.row_mut(index).copy_from_slice(&[number.to_le_bytes(); 3].concat());
    }
    let priorities: Vec<f64> = (0..count).map(|index| index as f64 + 0.5).collect();
    insertion.commit_from(&priorities, None, origin.as_ref()).unwrap().map(|_| count)
}

fn put_some(table: &Arc<Table>, numbers: &[u64]) -> usize {
    send_some(table, numbers, None).unwrap()
}

fn put_rows(table: &Arc<Table>, mut numbers: &[u64]) {
    while !numbers.is_empty() {
        numbers = &numbers[put_some(table, numbers)..];
    }
}

/// Steps that tell their number, of which items are made.
struct Steps {
    signature: Arc<Signature>,
    chunk: Arc<Chunk>,
    last: Option<Arc<Chunk>>,
    next: u64,
}

const CHUNK: u32 = 4;

impl Steps {
    fn new() -> Self {
        let kind = ColumnKind { dtype: Dtype::UInt(8), shape: vec![] };
        let column = Column { path: "x".into(), kind, squeezed: false };
        let signature = Arc::new(Signature { structure: "0".into(), columns: vec![column] });
        let chunk = Self::cut(&signature, 0);
        Self { signature, chunk, last: None, next: CHUNK.into() }
    }

    fn cut(signature: &Signature, first: u64) -> Arc<Chunk> {
        let steps = first..first + u64::from(CHUNK);
        let bytes: Vec<u8> = steps.flat_map(u64::to_le_bytes).collect();
        let kind = Arc::new(signature.columns[0].kind.clone());
        // Two chunks are an episode, and so are the two after them.
        let episode = Episode::from_number(1 + first / u64::from(2 * CHUNK));
        Arc::new(Chunk::raw(kind, CHUNK, bytes.into()).unwrap().of_episode(episode))
    }

    fn advance(&mut self) {
        let next = Self::cut(&self.signature, self.next);
        self.next += u64::from(CHUNK);
        self.last = Some(std::mem::replace(&mut self.chunk, next));
    }

    /// The last two steps of the chunk before, if there is one, and the first two of this one.
    fn put(&self, table: &Arc<Table>, priority: f64) {
        assert!(self.send(table, priority, None));
    }

    /// Whether it was not there.
    fn send(&self, table: &Arc<Table>, priority: f64, origin: Option<Origin>) -> bool {
        let slice = |chunk: &Arc<Chunk>, offset| Slice { chunk: Arc::clone(chunk), offset, len: 2 };
        let mut slices: Vec<Slice> = self.last.iter().map(|last| slice(last, 2)).collect();
        slices.push(slice(&self.chunk, 0));
        let trajectory = Trajectory::new(Arc::clone(&self.signature), vec![slices]).unwrap();
        table.try_insert_from(&trajectory, priority, None, origin.as_ref()).unwrap().is_some()
    }
}

/// Bytes of every item, by key.
fn contents(table: &Arc<Table>) -> BTreeMap<u64, Vec<u8>> {
    let keys = table.items().keys;
    let one = |key: &u64| {
        let sampled = table.get(&[*key]);
        let bytes = match sampled.trajectories() {
            [] => 24,
            all => all[0].column_bytes(0),
        };
        let mut column = vec![0; bytes];
        sampled.gather(&mut [&mut column]);
        (*key, column)
    };
    keys.iter().map(one).collect()
}

/// All that is to be the same after a crash.
#[derive(Debug, Clone, PartialEq)]
struct State {
    keys: Vec<u64>,
    priorities: Vec<f64>,
    versions: Vec<u64>,
    counts: Counts,
    /// Of tables whose journals tell which items were sampled: how many were, and how often each.
    sampled: Option<(u64, Vec<u32>)>,
    blocked: Obstacles,
    /// How many there are, and were.
    episodes: (u64, u64),
    version: u64,
    /// How far each producer has come.
    reached: [u64; 3],
    contents: BTreeMap<u64, Vec<u8>>,
}

fn state(table: &Arc<Table>) -> State {
    let Infos { keys, priorities, versions, times_sampled, .. } = table.items();
    let info = table.info();
    let (counts, version) = (info.counts, info.version);
    let is_limited = table.config().max_times_sampled > 0;
    let sampled = is_limited.then_some((info.unique_samples, times_sampled));
    let blocked = table.blocked();
    let contents = contents(table);
    let episodes = (info.episodes, info.deleted_episodes);
    let reached = PRODUCERS.map(|producer| table.reached(&producer, 3).unwrap());
    State {
        keys,
        priorities,
        versions,
        counts,
        sampled,
        blocked,
        episodes,
        version,
        reached,
        contents,
    }
}

fn next(table: &Table) -> u64 {
    table.journal().unwrap().next
}

/// What a killed process would leave, with the newest file cut off where `cut` says.
fn copy(from: &Path, to: &Path, cut: Option<f64>) {
    fs::create_dir_all(to).unwrap();
    let mut logs = Vec::new();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target, cut);
        } else {
            fs::write(&target, fs::read(entry.path()).unwrap()).unwrap();
            if target.extension().is_some_and(|extension| extension == "log") {
                logs.push(target);
            }
        }
    }
    logs.sort();
    if let (Some(last), Some(cut)) = (logs.last(), cut) {
        let len = fs::metadata(last).unwrap().len();
        // The header of a segment is durable before it has its name.
        let len = 24 + ((len - 24) as f64 * cut) as u64;
        OpenOptions::new().write(true).open(last).unwrap().set_len(len).unwrap();
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(usize),
    /// From one elsewhere.
    Send(usize, usize),
    /// What one had sent before, from so far back on.
    SendAgain(usize, usize),
    Advance(u64),
    Update(Vec<prop::sample::Index>, f64),
    Delete(Vec<prop::sample::Index>),
    Sample(usize),
    Reset,
    Checkpoint,
    Crash(Option<f64>),
    /// Close, and go on.
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let some = || prop::collection::vec(any::<prop::sample::Index>(), 1..6);
    let step = prop_oneof![
        6 => (1..9_usize).prop_map(Step::Insert),
        6 => (0..3_usize, 1..9_usize).prop_map(|(who, count)| Step::Send(who, count)),
        2 => (0..3_usize, 1..20_usize).prop_map(|(who, back)| Step::SendAgain(who, back)),
        1 => (0..50_u64).prop_map(Step::Advance),
        4 => (some(), 0.0..9.0).prop_map(|(which, priority)| Step::Update(which, priority)),
        2 => some().prop_map(Step::Delete),
        4 => (1..6_usize).prop_map(Step::Sample),
        1 => Just(Step::Reset),
        2 => Just(Step::Checkpoint),
        3 => prop::option::of(0.0..1.0).prop_map(Step::Crash),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..60)
}

fn kinds() -> impl Strategy<Value = SelectorKind> {
    prop::sample::select(vec![
        SelectorKind::Uniform,
        SelectorKind::Prioritized { exponent: 0.7 },
        SelectorKind::Fifo,
        SelectorKind::Lifo,
        SelectorKind::MinHeap,
        SelectorKind::MaxHeap,
        SelectorKind::Epoch,
        SelectorKind::HotCold { age_threshold: 3, hot_fraction: 0.5, exponent: 0.5 },
    ])
}

/// A table under test, beside what it was after each record.
struct World {
    config: TableConfig,
    dir: TempDir,
    tables: Tables,
    steps: Steps,
    numbers: u64,
    /// The last that each producer sent.
    operations: [u64; 3],
    /// By the number of the next record.
    history: BTreeMap<u64, State>,
    checkpoint: Option<PathBuf>,
}

impl World {
    fn new(config: TableConfig) -> Self {
        let dir = tempdir();
        let (tables, recovered) = begin(&config, &dir.path().join("journals"), None).unwrap();
        assert_eq!((recovered.items, recovered.records), (0, 0));
        let history = BTreeMap::from([(0, state(&tables.all()[0]))]);
        let (steps, checkpoint) = (Steps::new(), None);
        let (numbers, operations) = (0, [0; 3]);
        Self { config, dir, tables, steps, numbers, operations, history, checkpoint }
    }

    fn table(&self) -> &Arc<Table> {
        &self.tables.all()[0]
    }

    fn journals(&self) -> PathBuf {
        self.dir.path().join("journals")
    }

    fn keys(&self, which: &[prop::sample::Index]) -> Vec<u64> {
        let mut known = self.table().items().keys;
        // One that never was.
        known.push(u64::MAX);
        which.iter().map(|index| *index.get(&known)).collect()
    }

    fn take(&mut self, step: &Step) {
        let table = Arc::clone(self.table());
        match step {
            Step::Insert(count) => match &self.config.form {
                Form::Rows(_) => {
                    let end = self.numbers + *count as u64;
                    while self.numbers < end {
                        let numbers: Vec<u64> = (self.numbers..end).collect();
                        self.numbers += put_some(&table, &numbers) as u64;
                        self.note();
                    }
                }
                Form::Trajectories(_) => {
                    for number in 0..*count {
                        if number % 3 == 0 {
                            self.steps.advance();
                        }
                        self.steps.put(&table, number as f64);
                        self.note();
                    }
                }
            },
            // Of all operations, some went to other tables.
            Step::Send(who, count) => (0..*count).for_each(|_| {
                self.operations[*who] += 1 + self.operations[*who] % 3;
                assert!(self.send(*who, self.operations[*who]));
            }),
            Step::SendAgain(who, back) => {
                let before = state(&table);
                let reached = before.reached[*who];
                for number in reached.saturating_sub(*back as u64)..reached {
                    assert!(!self.send(*who, number));
                }
                assert!(state(&table) == before);
            }
            Step::Advance(version) => table.advance(*version),
            Step::Update(which, priority) => {
                let keys = self.keys(which);
                table.update_priorities(&keys, &vec![*priority; keys.len()]).unwrap();
            }
            Step::Delete(which) => drop(table.delete(&self.keys(which))),
            Step::Sample(count) => drop(table.try_sample(*count)),
            Step::Reset => table.reset(),
            Step::Checkpoint => {
                let root = self.dir.path().join("checkpoints");
                let summary = save(&self.tables, &root, &[]).unwrap();
                self.checkpoint = Some(summary.path);
            }
            Step::Crash(cut) => self.crash(*cut),
            Step::Reopen => {
                let before = state(&table);
                self.tables.close();
                let (tables, _) = self.recover(&self.journals()).unwrap();
                self.tables = tables;
                assert_eq!(state(self.table()), before);
            }
        }
        self.note();
    }

    /// Whether the operation of this producer and number was not there.
    fn send(&mut self, who: usize, number: u64) -> bool {
        let table = Arc::clone(self.table());
        let origin = Some(operation_of(PRODUCERS[who], number));
        let fresh = match &self.config.form {
            Form::Rows(_) => send_some(&table, &[number], origin).is_some(),
            Form::Trajectories(_) => {
                if number.is_multiple_of(5) {
                    self.steps.advance();
                }
                self.steps.send(&table, 1.0, origin)
            }
        };
        self.note();
        fresh
    }

    fn note(&mut self) {
        // Of records that come together with one change, the last one makes it.
        self.history.insert(next(self.table()), state(self.table()));
    }

    fn recover(&self, journals: &Path) -> Result<(Tables, Recovered), Error> {
        begin(&self.config, journals, self.checkpoint.as_deref())
    }

    fn crash(&self, cut: Option<f64>) {
        let before = next(self.table());
        if cut.is_none() {
            keep(self.table());
        }
        let copied = tempdir();
        copy(&self.journals(), copied.path(), cut);
        let (tables, recovered) = self.recover(copied.path()).unwrap();
        let table = &tables.all()[0];
        // A replay reports chunks that are recorded again.
        let end = next(table) - u64::from(recovered.records > 0);
        assert!(end <= before && (cut.is_some() || end == before), "{end} of {before} records");
        let (_, expected) = self.history.range(..=end).next_back().unwrap();
        assert!(state(table) == *expected, "after {end} of {before} records, {recovered:?}");
        if cut.is_none() {
            self.compare_draws(table);
        }
    }

    /// Selectors that leave nothing to chance draw the same in both, which tells their inner order.
    fn compare_draws(&self, recovered: &Arc<Table>) {
        use SelectorKind::{Fifo, Lifo, MaxHeap, MinHeap};
        if !matches!(self.config.sampler, Fifo | Lifo | MaxHeap | MinHeap) {
            return;
        }
        // A copy of the original, so that it is not disturbed.
        let root = tempdir();
        save(&self.tables, root.path(), &[]).unwrap();
        let twin = tables(&self.config, None);
        load(&twin, root.path()).unwrap();
        for _ in 0..recovered.info().size {
            let draw = |table: &Arc<Table>| table.try_sample(1).unwrap().infos().keys[0];
            let key = draw(recovered);
            assert_eq!(key, draw(&twin.all()[0]));
            recovered.delete(&[key]);
            twin.all()[0].delete(&[key]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn what_a_crash_leaves_is_the_table_as_it_was_after_some_change(
        form in prop::sample::select(vec![rows(), Form::Trajectories(None)]),
        sampler in kinds(),
        remover in kinds(),
        max_times_sampled in prop::sample::select(vec![0_u32, 0, 2]),
        steps in steps(),
    ) {
        let mut world = World::new(TableConfig {
            sampler, remover, max_times_sampled, ..config(form)
        });
        steps.iter().for_each(|step| world.take(step));
        world.crash(None);
    }
}

/// The numbers of each thread's rows, which must have no gap.
fn numbers_of_threads(table: &Arc<Table>) -> [u64; 3] {
    let rows = contents(table).into_values();
    let mut numbers: Vec<u64> =
        rows.map(|row| u64::from_le_bytes(row[..8].try_into().unwrap())).collect();
    numbers.sort_unstable();
    let mut threads = [0_u64; 3];
    for number in numbers {
        let thread = (number >> 32) as usize;
        assert_eq!(number & 0xffff_ffff, threads[thread], "a gap in thread {thread}");
        threads[thread] += 1;
    }
    threads
}

/// Goes on from the last checkpoint, if there is one.
fn begin_again(root: &Path) -> Tables {
    let config = TableConfig { capacity: 100_000, ..config(rows()) };
    let checkpoints = list(root.join("checkpoints")).unwrap_or_default();
    let last = checkpoints.last().map(|found| &*found.path);
    begin(&config, &root.join("journals"), last).unwrap().0
}

#[test]
fn the_process_that_is_killed() {
    // Run by itself, it does nothing.
    let Some(root) = orders() else { return };
    let tables = begin_again(Path::new(&root));
    let table = &tables.all()[0];
    std::thread::scope(|scope| {
        for (thread, first) in (0..).zip(numbers_of_threads(table)) {
            scope.spawn(move || {
                for number in (first..).step_by(2) {
                    put_rows(table, &[thread << 32 | number, thread << 32 | (number + 1)]);
                    keep(table);
                    say(&format!("{thread} {}", number + 2));
                }
            });
        }
        loop {
            std::thread::sleep(std::time::Duration::from_millis(15));
            save(&tables, Path::new(&root).join("checkpoints"), &[]).unwrap();
        }
    });
}

#[test]
fn what_was_kept_is_there_wherever_the_process_is_killed() {
    let (dir, mut rng, mut kept) = (tempdir(), Rng::new(1), [0_u64; 3]);
    for round in 0..6 {
        let mut left = 1 + rng.below(900);
        let is_enough = |_: &str| {
            left -= 1;
            left == 0
        };
        let root = dir.path().to_str().unwrap();
        for line in kill_once("the_process_that_is_killed", root, is_enough) {
            let (thread, count) = line.split_once(' ').unwrap();
            kept[thread.parse::<usize>().unwrap()] = count.parse().unwrap();
        }
        let found = numbers_of_threads(&begin_again(dir.path()).all()[0]);
        assert!(found.iter().zip(&kept).all(|(one, least)| one >= least), "{found:?} of {kept:?}");
        // Each thread keeps what it has inserted before it goes on.
        kept = found;
        assert!(round < 5 || kept.iter().sum::<u64>() > 600, "{kept:?}");
    }
}

#[test]
fn a_checkpoint_gives_the_space_of_what_it_covers_back() {
    let dir = tempdir();
    let (journals, root) = (dir.path().join("journals"), dir.path().join("checkpoints"));
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(1), shape: vec![1 << 20] };
    let config = config(Form::Rows(Spec::new(vec![leaf]).unwrap()));
    let (all, _) = begin(&config, &journals, None).unwrap();
    let table = &all.all()[0];
    for number in 0..140 {
        let mut insertion = table.try_reserve(1).unwrap();
        insertion.row_mut(0).fill(number);
        insertion.commit(&[1.0], None).unwrap();
        keep(table);
    }
    assert_eq!(table.journal().unwrap().segments, 3);
    save(&all, &root, &[]).unwrap();
    let info = table.journal().unwrap();
    assert!(info.segments == 1 && info.first > 100, "{info:?}");
    let before = table.items().keys;
    table.close();
    let (again, recovered) = begin(&config, &journals, Some(&root)).unwrap();
    assert_eq!((recovered.records, recovered.items), (0, 20));
    assert_eq!(again.all()[0].items().keys, before);
    again.close();
    // Without the checkpoint, the journal alone is not enough, and says so.
    let error = begin(&config, &journals, None).unwrap_err();
    assert!(error.to_string().contains("the records before it are missing"), "{error}");
}

#[test]
fn chunks_are_told_again_after_a_checkpoint() {
    let dir = tempdir();
    let (journals, root) = (dir.path().join("journals"), dir.path().join("checkpoints"));
    let config = config(Form::Trajectories(None));
    let (all, _) = begin(&config, &journals, None).unwrap();
    let (table, steps) = (&all.all()[0], Steps::new());
    steps.put(table, 1.0);
    let first = next(table);
    steps.put(table, 2.0);
    assert_eq!(next(table), first + 1, "what is known is not told again");
    save(&all, &root, &[]).unwrap();
    steps.put(table, 3.0);
    assert_eq!(next(table), first + 4, "form, chunk and item");
    let before = state(table);
    table.close();
    let (again, recovered) = begin(&config, &journals, Some(&root)).unwrap();
    assert_eq!(recovered.records, 3);
    assert_eq!(state(&again.all()[0]), before);
}

#[test]
fn a_batch_is_handed_on_when_a_crash_can_not_have_its_items_drawn_again() {
    let config = TableConfig { max_times_sampled: 1, ..config(rows()) };
    let dir = tempdir();
    let all = tables(&config, Some(Durability::Sync));
    recover(&all, dir.path(), None).unwrap();
    let table = &all.all()[0];
    put_rows(table, &(0..20).collect::<Vec<_>>());
    keep(table);
    for left in (0..20).rev() {
        let on_tick = &mut |_| panic!("no tick was asked for");
        let wait = Wait { deadline: None, tick: None, on_tick };
        let key = table.sample(1, wait).unwrap().infos().keys[0];
        // What a kill would leave.
        let copied = tempdir();
        copy(dir.path(), copied.path(), None);
        let (again, _) = begin(&config, copied.path(), None).unwrap();
        let keys = again.all()[0].items().keys;
        assert!(keys.len() == left && !keys.contains(&key), "{left} left");
    }
}

#[test]
fn a_torn_end_is_told_and_dropped() {
    let dir = tempdir();
    let config = config(rows());
    let (all, _) = begin(&config, dir.path(), None).unwrap();
    put_rows(&all.all()[0], &[1]);
    put_rows(&all.all()[0], &[2]);
    keep(&all.all()[0]);
    let copied = tempdir();
    copy(dir.path(), copied.path(), Some(0.9));
    let (again, recovered) = begin(&config, copied.path(), None).unwrap();
    assert_eq!((recovered.items, recovered.records), (1, 1));
    assert_eq!((recovered.torn.unwrap().sequence, recovered.lost_at_most), (1, 1));
    // It is gone, so the next time there is nothing to tell.
    again.close();
    assert_eq!(begin(&config, copied.path(), None).unwrap().1.torn, None);
}

#[test]
fn checkpoints_under_load_and_their_journals_make_the_table_whole() {
    let dir = tempdir();
    let (journals, root) = (dir.path().join("journals"), dir.path().join("checkpoints"));
    let config = config(Form::Trajectories(None));
    let (all, _) = begin(&config, &journals, None).unwrap();
    let table = &all.all()[0];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut steps = Steps::new();
                for number in 0..2000 {
                    if number % 7 == 0 {
                        steps.advance();
                    }
                    // A chunk that was told before a checkpoint is told again after it.
                    steps.put(table, 1.0);
                }
            });
        }
        for _ in 0..10 {
            save(&all, &root, &[]).unwrap();
            std::thread::yield_now();
        }
    });
    let before = state(table);
    all.close();
    let (again, _) = begin(&config, &journals, Some(&root)).unwrap();
    assert!(state(&again.all()[0]) == before);
}

fn only_log(root: &Path) -> PathBuf {
    let table = root.join("a%2Fb");
    let mut entries = fs::read_dir(table).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.is_dir()).unwrap()
}

#[test]
fn damage_in_the_middle_is_refused_and_nothing_is_loaded() {
    let dir = tempdir();
    let config = config(rows());
    for number in 0..2 {
        let (all, _) = begin(&config, dir.path(), None).unwrap();
        put_rows(&all.all()[0], &[number, number]);
        // Closing says in the log what is durable.
        all.close();
    }
    let (all, _) = begin(&config, dir.path(), None).unwrap();
    put_rows(&all.all()[0], &[7]);
    all.close();
    let log = only_log(dir.path());
    let segment = log.join("journal-00000000000000000000.log");
    let file = OpenOptions::new().read(true).write(true).open(&segment).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 60).unwrap();
    file.write_all_at(&[!byte[0]], 60).unwrap();
    let tables = tables(&config, Some(Durability::Async));
    let error = recover(&tables, dir.path(), None).unwrap_err();
    assert!(error.to_string().contains("is damaged at byte 24"), "{error}");
    assert_eq!(tables.all()[0].info().size, 0);
    assert!(tables.all()[0].journal().is_none());
}

#[test]
fn records_that_make_no_sense_are_refused() {
    for (record, what) in [
        (&[2, 77][..], "kind: 77 has no meaning"),
        (&[9, 8][..], "format: 9 has no meaning"),
        (&[2, 4, 1, 0, 0, 0][..], "structure: expected 4 more bytes"),
        (&[2, 8, 0][..], "entry: 1 bytes too many"),
        (&[2, 1, 1, 0, 0, 0][..], "bytes of a row: expected 4 more bytes"),
        (&[2, 2, 0, 0, 0, 0][..], "priority: expected 8 more bytes"),
        (&[2, 11, 0, 0, 1, 0][..], "producer: expected 16 more bytes"),
        (&[&[2, 11, 0, 0, 1, 0][..], &[0; 24]].concat(), "session 65536 is one of at most 65536"),
        (
            &[&[2, 12][..], &[0; 8], &[4, 0, 0, 0], &[0; 7]].concat(),
            "operation: expected 8 more bytes",
        ),
        (
            &[&[2, 12][..], &[0; 4], &[24, 0, 0, 0], &[5], &[0; 11]].concat(),
            "session 5 was not recorded",
        ),
        (&[2, 7, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0][..], "there is no item 0x5"),
    ] {
        let dir = tempdir();
        let config = config(rows());
        begin(&config, dir.path(), None).unwrap().0.close();
        let (journal, _) = Journal::open(only_log(dir.path()), Options::default()).unwrap();
        journal.append(record).unwrap();
        journal.close().unwrap();
        let error = begin(&config, dir.path(), None).unwrap_err();
        let what = format!("record 0 is invalid: {what}");
        assert!(error.to_string().contains(&what), "{error}");
    }
}

#[test]
fn a_journal_and_a_checkpoint_that_do_not_belong_together_are_refused() {
    let dir = tempdir();
    let (journals, root) = (dir.path().join("journals"), dir.path().join("checkpoints"));
    let config = config(rows());
    let (all, _) = begin(&config, &journals, None).unwrap();
    put_rows(&all.all()[0], &[1]);
    let own = save(&all, &root, &[]).unwrap().path;
    put_rows(&all.all()[0], &[2]);
    // What a running journal goes on from can't be changed by hand.
    let error = load(&all, &root).unwrap_err();
    assert!(error.to_string().contains("it has a journal"), "{error}");
    all.close();
    // A checkpoint of a table without a journal, or with another one.
    let other = tables(&config, None);
    put_rows(&other.all()[0], &[3]);
    let foreign = save(&other, &root, &[]).unwrap().path;
    let error = begin(&config, &journals, Some(&foreign)).unwrap_err();
    assert!(matches!(error, Error::Journal { .. }), "{error}");
    assert!(error.to_string().contains("this is checkpoint 2"), "{error}");
    // Its own is not forgotten, and a journal may begin with any.
    assert_eq!(begin(&config, &journals, Some(&own)).unwrap().1.items, 2);
    let fresh = dir.path().join("fresh");
    for _ in 0..2 {
        let (all, recovered) = begin(&config, &fresh, Some(&foreign)).unwrap();
        put_rows(&all.all()[0], &[4]);
        assert_eq!(all.all()[0].info().size, recovered.items + 1);
        all.close();
    }
    let error = begin(&config, &fresh, None).unwrap_err();
    assert!(error.to_string().contains("from checkpoint 2, or"), "{error}");
}

#[test]
fn a_journal_of_another_form_or_a_table_with_items_is_refused() {
    let dir = tempdir();
    begin(&config(rows()), dir.path(), None).unwrap().0.close();
    let error = begin(&config(Form::Trajectories(None)), dir.path(), None).unwrap_err();
    let expected = "has items of any form; the journal's has rows of x: uint64[3]";
    assert!(error.to_string().contains(expected), "{error}");

    let tables = tables(&config(rows()), Some(Durability::Sync));
    put_rows(&tables.all()[0], &[1]);
    let error = recover(&tables, dir.path(), None).unwrap_err();
    assert!(error.to_string().contains("has 1 items already"), "{error}");
}

#[test]
fn one_table_can_not_have_two_journals() {
    let (first, second) = (tempdir(), tempdir());
    let (all, _) = begin(&config(rows()), first.path(), None).unwrap();
    let error = recover(&all, second.path(), None).unwrap_err();
    assert!(matches!(error, Error::Used { .. }), "{error}");
    assert_eq!(fs::read_dir(second.path()).unwrap().count(), 0);
}

#[test]
fn chunks_that_tables_shared_are_shared_again() {
    let dir = tempdir();
    let make = || {
        let tables = ["one", "two"].map(|name| {
            let config = TableConfig { name: name.into(), ..config(Form::Trajectories(None)) };
            Arc::new(Table::new(config).unwrap().durable(Some(Durability::Async)))
        });
        let tables = Tables::new(tables.into()).unwrap();
        recover(&tables, dir.path(), None).unwrap();
        tables
    };
    let first = make();
    let steps = Steps::new();
    first.all().iter().for_each(|table| steps.put(table, 1.0));
    first.close();
    let second = make();
    let chunks = second.all().iter().map(|table| {
        let sampled = table.try_sample(1).unwrap();
        Arc::as_ptr(sampled.trajectories()[0].slices().next().unwrap().chunk)
    });
    let chunks: Vec<_> = chunks.collect();
    assert_eq!(chunks[0], chunks[1]);
}

#[test]
fn a_closed_table_with_a_journal_takes_nothing_more() {
    let dir = tempdir();
    let (all, _) = begin(&config(rows()), dir.path(), None).unwrap();
    let table = &all.all()[0];
    put_rows(table, &[1]);
    let late = table.try_reserve(1).unwrap();
    table.close();
    assert!(late.commit(&[1.0], None).is_err());
    assert!(table.update_priorities(&[0], &[1.0]).is_err());
    let (again, _) = begin(&config(rows()), dir.path(), None).unwrap();
    assert_eq!(again.all()[0].info().size, 1);
}

/// Sends operations to two tables in turn, as one who was told nothing of what became of them.
fn send_in_turn(tables: &Tables, numbers: std::ops::Range<u64>) -> u64 {
    let fresh = numbers.map(|number| {
        let table = &tables.all()[number as usize % 2];
        u64::from(send_some(table, &[number], Some(operation(number))).is_some())
    });
    fresh.sum()
}

fn said(table: &Arc<Table>) -> Vec<u64> {
    let mut numbers: Vec<u64> = contents(table)
        .values()
        .map(|row| u64::from_le_bytes(row[..8].try_into().unwrap()))
        .collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn what_is_sent_again_after_a_crash_goes_where_it_is_missing_and_nowhere_twice() {
    let dir = tempdir();
    let (journals, root) = (dir.path().join("journals"), dir.path().join("checkpoints"));
    let pair = || {
        let make = |name: &str, durability| {
            let config = TableConfig { name: name.into(), capacity: 200, ..config(rows()) };
            Arc::new(Table::new(config).unwrap().durable(durability))
        };
        let tables = vec![make("kept", Some(Durability::Async)), make("saved", None)];
        Tables::new(tables).unwrap()
    };
    let first = pair();
    recover(&first, &journals, None).unwrap();
    assert_eq!(send_in_turn(&first, 0..40), 40);
    let checkpoint = save(&first, &root, &[]).unwrap().path;
    assert_eq!(send_in_turn(&first, 30..60), 20);
    keep(&first.all()[0]);

    // One table has all, the other what was saved.
    let copied = tempdir();
    copy(&journals, copied.path(), None);
    let second = pair();
    recover(&second, copied.path(), Some(&checkpoint)).unwrap();
    let (even, odd): (Vec<u64>, Vec<u64>) = (0..70).partition(|number| number % 2 == 0);
    assert_eq!(said(&second.all()[0]), even[..30]);
    assert_eq!(said(&second.all()[1]), odd[..20]);
    assert_eq!(send_in_turn(&second, 0..70), 5 + 15);
    assert_eq!((said(&second.all()[0]), said(&second.all()[1])), (even, odd));
}

#[test]
fn numbers_of_producers_that_were_forgotten_are_given_to_others_also_in_a_journal() {
    const REMEMBERED: u32 = 1 << 16;
    let dir = tempdir();
    let config = TableConfig { capacity: 1000, ..config(rows()) };
    let (tables, _) = begin(&config, dir.path(), None).unwrap();
    let table = &tables.all()[0];
    let of = |who: u32| {
        let mut producer = [0; 16];
        producer[..4].copy_from_slice(&who.to_le_bytes());
        operation_of(producer, 0)
    };
    let many = REMEMBERED + 100;
    for who in 0..many {
        assert!(send_some(table, &[who.into()], Some(of(who))).is_some());
    }
    let reached = |table: &Arc<Table>| -> Vec<u64> {
        (0..many).map(|who| table.reached(&of(who).producer, 3).unwrap()).collect()
    };
    let before = reached(table);
    let forgotten = before.iter().filter(|reached| **reached == 0).count();
    assert!((100..many as usize / 2).contains(&forgotten), "{forgotten} were forgotten");
    tables.close();
    let (again, _) = begin(&config, dir.path(), None).unwrap();
    let table = &again.all()[0];
    assert!(reached(table) == before);
    assert_eq!(send_some(table, &[0], Some(of(many - 1))), None, "it is there");
    assert_eq!(send_some(table, &[0], Some(of(0))), Some(1), "nobody knows of it");
}

#[test]
fn a_later_life_of_a_producer_is_not_confused_with_the_one_before_over_a_crash() {
    let dir = tempdir();
    let config = config(rows());
    let (first, _) = begin(&config, dir.path(), None).unwrap();
    let later = Origin { epoch: 4, ..operation(0) };
    assert!(send_some(&first.all()[0], &[1], Some(operation(0))).is_some());
    assert!(send_some(&first.all()[0], &[2], Some(later)).is_some());
    first.close();
    let (second, _) = begin(&config, dir.path(), None).unwrap();
    let table = &second.all()[0];
    assert_eq!(table.reached(&PRODUCER, 4), Ok(1));
    assert!(table.reached(&PRODUCER, 3).is_err());
    let insertion = table.try_reserve(1).unwrap();
    let stale = insertion.commit_from(&[1.0], None, Some(&operation(1))).unwrap_err();
    assert_eq!(stale, TableError::Stale);
    assert_eq!(table.info().size, 2);
    // What was reserved for it is free again.
    put_rows(table, &(3..21).collect::<Vec<_>>());
}
