//! A table against a list of items that does everything the slow way; and what else callers may rely on.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use echoic_replay::WaitReason;
use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::limiter::{Counts, Limiter, LimiterError, Parameters};
use echoic_replay::selectors::{DrawnItem, Entry, SelectorKind, Slot};
use echoic_replay::spec::ANY_LENGTH;
use echoic_replay::table::{
    Form, Infos, MAX_METADATA, Obstacle, Sampled, Stack, Table, TableConfig, TableError, Tables,
};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::{Dtype, Leaf, Spec};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[allow(dead_code, reason = "the tests of selectors use the rest")]
#[path = "../src/selectors/tests/model.rs"]
mod model;
#[path = "common/waiting.rs"]
mod waiting;

use model::Model;
use waiting::within;

const KINDS: [SelectorKind; 8] = [
    SelectorKind::Uniform,
    SelectorKind::Prioritized { exponent: 0.6 },
    SelectorKind::Fifo,
    SelectorKind::Lifo,
    SelectorKind::MinHeap,
    SelectorKind::MaxHeap,
    SelectorKind::Epoch,
    SelectorKind::HotCold { age_threshold: 1, hot_fraction: 0.7, exponent: 1.0 },
];

/// An item is its number, and bytes that follow from it.
const PAD: usize = 13;

fn pad(id: u64) -> [u8; PAD] {
    std::array::from_fn(|at| id.wrapping_mul(0x9e37_79b9).to_le_bytes()[at % 8] ^ at as u8)
}

fn leaves() -> Vec<Leaf> {
    vec![
        Leaf { path: "id".into(), dtype: Dtype::UInt(8), shape: vec![] },
        Leaf { path: "pad".into(), dtype: Dtype::UInt(1), shape: vec![PAD] },
    ]
}

fn rows() -> Form {
    Form::Rows(Spec::new(leaves()).unwrap())
}

fn config(form: Form, sampler: SelectorKind, remover: SelectorKind, capacity: u32) -> TableConfig {
    TableConfig { sampler, remover, ..TableConfig::new("table", form, capacity) }
}

fn table(config: TableConfig) -> Arc<Table> {
    Arc::new(Table::new(config).unwrap())
}

/// A table of rows with the usual settings.
fn uniform(capacity: u32) -> Arc<Table> {
    table(config(rows(), SelectorKind::Uniform, SelectorKind::Fifo, capacity))
}

fn write(row: &mut [u8], id: u64) {
    row[..8].copy_from_slice(&id.to_le_bytes());
    row[8..].copy_from_slice(&pad(id));
}

/// An item made of one chunk for each leaf.
fn trajectory(id: u64) -> Trajectory {
    let columns = leaves().into_iter().map(|leaf| Column {
        kind: ColumnKind::from(&leaf),
        path: leaf.path,
        squeezed: true,
    });
    let signature = Signature { structure: String::new(), columns: columns.collect() };
    let values = [id.to_le_bytes().to_vec(), pad(id).to_vec()];
    let slices = signature.columns.iter().zip(values).map(|(column, bytes)| {
        let chunk = Chunk::raw(Arc::new(column.kind.clone()), 1, bytes.into()).unwrap();
        vec![Slice { chunk: Arc::new(chunk), offset: 0, len: 1 }]
    });
    let slices = slices.collect();
    Trajectory::new(Arc::new(signature), slices).unwrap()
}

/// Inserts a row at once; its key.
fn put(table: &Arc<Table>, id: u64, priority: f64) -> u64 {
    let mut insertion = table.try_reserve(1).unwrap();
    write(insertion.row_mut(0), id);
    insertion.commit(&[priority], None).unwrap()[0].number()
}

/// The numbers of drawn items, whose other bytes must be theirs.
fn ids(sampled: &Sampled) -> Vec<u64> {
    let len = sampled.len();
    let (mut ids, mut pads) = (vec![0; 8 * len], vec![0; PAD * len]);
    sampled.gather(&mut [&mut ids, &mut pads]);
    let ids: Vec<u64> =
        ids.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
    for (id, bytes) in ids.iter().zip(pads.chunks(PAD)) {
        assert_eq!(bytes, pad(*id), "the item {id} has other bytes");
    }
    ids
}

fn blocked<T>(result: Result<T, Obstacle>) -> Option<WaitReason> {
    match result {
        Err(Obstacle::Blocked(reason)) => Some(reason),
        _ => None,
    }
}

// The model.

#[derive(Debug, Clone)]
struct Item {
    key: u64,
    id: u64,
    priority: f64,
    version: u64,
    times_sampled: u32,
}

impl Item {
    /// Its name in the models of selectors.
    fn slot(&self) -> Slot {
        self.id as Slot
    }
}

#[derive(Debug, Clone)]
enum Op {
    Insert { priorities: Vec<f64>, version: Option<u64> },
    GiveUp(usize),
    InsertBad(usize),
    Sample { count: usize, keep: bool },
    LetGo,
    Update(Vec<(usize, f64)>),
    UpdateBad(Vec<(usize, f64)>),
    Delete(Vec<usize>),
    Reset,
    Pause,
    Resume,
    Advance(u64),
    SetLimiter(Parameters),
}

/// A table and the list that it is compared with.
struct Pair {
    table: Arc<Table>,
    /// In the order of their insertion.
    items: Vec<Item>,
    sampler: Model,
    remover: Model,
    counts: Counts,
    unique_samples: u64,
    limiter: Parameters,
    paused: bool,
    version: u64,
    next_id: u64,
    gone: Vec<u64>,
    seen: HashSet<u64>,
    /// A batch that somebody keeps, and what it must go on to be.
    held: Option<(Sampled, Vec<u64>)>,
}

impl Pair {
    fn new(config: TableConfig) -> Self {
        Self {
            items: Vec::new(),
            sampler: Model::new(config.sampler),
            remover: Model::new(config.remover),
            counts: Counts::default(),
            unique_samples: 0,
            limiter: *config.limiter.parameters(),
            paused: false,
            version: 0,
            next_id: 0,
            gone: Vec::new(),
            seen: HashSet::new(),
            held: None,
            table: table(config),
        }
    }

    fn capacity(&self) -> usize {
        self.table.config().capacity as usize
    }

    fn is_rows(&self) -> bool {
        matches!(self.table.config().form, Form::Rows(_))
    }

    // The inequalities, as the documentation has them.

    fn may_sample(&self, count: u64) -> Result<(), WaitReason> {
        let Counts { inserts, samples, deletions } = self.counts;
        let Parameters { min_size, samples_per_insert, min_diff, .. } = self.limiter;
        if self.paused {
            Err(WaitReason::Paused)
        } else if inserts - deletions < min_size {
            Err(WaitReason::MinSize)
        } else if inserts as f64 * samples_per_insert - samples as f64 - (count as f64) < min_diff {
            Err(WaitReason::Ratio)
        } else {
            Ok(())
        }
    }

    fn may_insert(&self, count: u64) -> Result<(), WaitReason> {
        let Counts { inserts, samples, deletions } = self.counts;
        let Parameters { min_size, samples_per_insert, max_diff, .. } = self.limiter;
        if self.paused {
            Err(WaitReason::Paused)
        } else if inserts + count - deletions <= min_size
            || (inserts + count) as f64 * samples_per_insert - samples as f64 <= max_diff
        {
            Ok(())
        } else {
            Err(WaitReason::Ratio)
        }
    }

    /// Whether a batch may use up this many items that it has to wait for more.
    fn may_use_up(&self, count: usize) -> bool {
        let floor = self.limiter.min_size.max(1) as usize;
        self.table.config().max_times_sampled > 0 && self.items.len() < floor + count - 1
    }

    /// Has both models follow what happened.
    fn models(&mut self, follow: impl Fn(&mut Model)) {
        follow(&mut self.sampler);
        follow(&mut self.remover);
    }

    fn run(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Insert { priorities, version } => self.insert(priorities, *version)?,
            Op::GiveUp(count) => {
                if let Ok(mut insertion) = self.table.try_reserve(*count) {
                    insertion.row_mut(0).fill(0xee);
                }
            }
            Op::InsertBad(count) => self.insert_bad(*count)?,
            Op::Sample { count, keep } => self.sample(*count, *keep)?,
            Op::LetGo => self.let_go(),
            Op::Update(updates) => self.update(updates)?,
            Op::UpdateBad(updates) => self.update_bad(updates)?,
            Op::Delete(which) => self.delete(which)?,
            Op::Reset => {
                self.table.reset();
                self.gone.extend(self.items.drain(..).map(|item| item.key));
                self.counts = Counts::default();
                self.unique_samples = 0;
                self.models(Model::clear);
            }
            Op::Pause => {
                self.table.pause();
                self.paused = true;
            }
            Op::Resume => {
                self.table.resume();
                self.paused = false;
            }
            Op::Advance(version) => {
                self.table.advance(*version);
                self.version = self.version.max(*version);
                self.models(|model| model.advance(*version));
            }
            Op::SetLimiter(parameters) => {
                let set = Limiter::raw(*parameters)
                    .map_err(TableError::from)
                    .and_then(|limiter| self.table.set_limiter(limiter));
                if set.is_ok() {
                    self.limiter = *parameters;
                }
            }
        }
        self.compare()
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let info = self.table.info();
        prop_assert_eq!(info.size as usize, self.items.len());
        prop_assert_eq!(info.counts, self.counts);
        prop_assert_eq!(info.unique_samples, self.unique_samples);
        prop_assert_eq!(info.counts.size(), u64::from(info.size));
        prop_assert_eq!((info.paused, info.version), (self.paused, self.version));
        prop_assert_eq!(info.limiter.parameters(), &self.limiter);
        for count in 1..6 {
            prop_assert_eq!(
                self.table.can_insert(count),
                self.may_insert(count as u64).is_ok(),
                "can_insert({})",
                count
            );
            if !self.may_use_up(count) {
                prop_assert_eq!(
                    self.table.can_sample(count),
                    self.may_sample(count as u64).is_ok(),
                    "can_sample({})",
                    count
                );
            }
        }
        Ok(())
    }

    fn removes_at_random(&self) -> bool {
        !self.table.config().remover.is_deterministic()
    }

    /// What [`Table::try_reserve`] does, once nobody reads rows that could be used again.
    fn insert(&mut self, priorities: &[f64], version: Option<u64>) -> Result<(), TestCaseError> {
        let mut count = priorities.len();
        if self.removes_at_random() {
            // Of several that go in one call nobody could tell which went first.
            count = count.min(self.capacity() + 1 - self.items.len());
        }
        if !self.is_rows() {
            for priority in &priorities[..count] {
                let inserted = self.table.try_insert(&trajectory(self.next_id), *priority, version);
                if let Err(reason) = self.may_insert(1) {
                    prop_assert_eq!(blocked(inserted), Some(reason));
                    break;
                }
                self.enter(inserted.unwrap().number(), *priority, version)?;
            }
            return Ok(());
        }
        let most = (1..=count as u64).take_while(|n| self.may_insert(*n).is_ok()).count();
        let mut reserved = self.table.try_reserve(count);
        if most == 0 {
            prop_assert_eq!(blocked(reserved), self.may_insert(1).err());
            return Ok(());
        }
        if matches!(reserved, Err(Obstacle::Blocked(WaitReason::Leased))) {
            prop_assert!(self.held.is_some(), "nobody reads anything");
            self.let_go();
            reserved = self.table.try_reserve(count);
        }
        let mut insertion = reserved.unwrap();
        let len = insertion.len();
        prop_assert!(len <= most, "{} rows, though the limiter allows {}", len, most);
        if self.held.is_none() {
            let room = self.capacity() + 1 - self.items.len();
            prop_assert!(len == most || len >= room, "{} of {} rows", len, most);
        }
        for row in 0..len {
            write(insertion.row_mut(row), self.next_id + row as u64);
        }
        let keys = insertion.commit(&priorities[..len], version).unwrap();
        prop_assert_eq!(keys.len(), len);
        for (key, priority) in keys.iter().zip(priorities) {
            self.enter(key.number(), *priority, version)?;
        }
        Ok(())
    }

    /// The newest is there before somebody has to go.
    fn enter(
        &mut self,
        key: u64,
        priority: f64,
        version: Option<u64>,
    ) -> Result<(), TestCaseError> {
        prop_assert!(self.seen.insert(key), "the key {} was another item's", key);
        let version = version.unwrap_or(self.version);
        let item = Item { key, id: self.next_id, priority, version, times_sampled: 0 };
        self.next_id += 1;
        self.models(|model| model.insert(item.slot(), Entry { priority, version }));
        self.items.push(item);
        self.counts.inserts += 1;
        if self.items.len() <= self.capacity() {
            return Ok(());
        }
        let chances = self.remover.chances();
        let at = match self.removes_at_random() {
            true => self.find_gone()?,
            false => self.items.iter().position(|item| item.slot() == chances[0].0).unwrap(),
        };
        let slot = self.items[at].slot();
        let is_likely = chances.iter().any(|(other, chance)| *other == slot && *chance > 0.0);
        prop_assert!(is_likely, "{:?} was removed, of {:?}", self.items[at], chances);
        self.remove(at);
        Ok(())
    }

    fn remove(&mut self, at: usize) {
        let item = self.items.remove(at);
        self.models(|model| model.remove(item.slot()));
        self.gone.push(item.key);
        self.counts.deletions += 1;
    }

    /// Finds the one item that is no longer there, by giving all the priority that they have.
    fn find_gone(&mut self) -> Result<usize, TestCaseError> {
        let mut gone = Vec::new();
        for at in 0..self.items.len() {
            let Item { key, priority, .. } = self.items[at];
            let slot = self.items[at].slot();
            self.models(|model| model.update(slot, priority));
            if self.table.update_priorities(&[key], &[priority]).unwrap() == 0 {
                gone.push(at);
            }
        }
        prop_assert_eq!(gone.len(), 1, "items gone: {:?}", gone);
        Ok(gone[0])
    }

    fn insert_bad(&mut self, count: usize) -> Result<(), TestCaseError> {
        if !self.is_rows() {
            let inserted = self.table.try_insert(&trajectory(self.next_id), f64::NAN, None);
            let refused = matches!(
                inserted,
                Err(Obstacle::Failed(TableError::Priority { index: 0, got })) if got.is_nan()
            );
            prop_assert!(refused, "{:?}", inserted);
            return Ok(());
        }
        let Ok(mut insertion) = self.table.try_reserve(count) else { return Ok(()) };
        let len = insertion.len();
        (0..len).for_each(|row| insertion.row_mut(row).fill(0xee));
        let mut priorities = vec![1.0; len];
        priorities[len - 1] = -1.0;
        let refused = TableError::Priority { index: len - 1, got: -1.0 };
        prop_assert_eq!(insertion.commit(&priorities, None), Err(refused));
        Ok(())
    }

    fn sample(&mut self, count: usize, keep: bool) -> Result<(), TestCaseError> {
        let sampled = self.table.try_sample(count);
        if let Err(reason) = self.may_sample(count as u64) {
            prop_assert_eq!(blocked(sampled), Some(reason));
            return Ok(());
        }
        if self.may_use_up(count) && sampled.is_err() {
            prop_assert_eq!(blocked(sampled), Some(WaitReason::MinSize));
            return Ok(());
        }
        let sampled = sampled.unwrap();
        let infos = sampled.infos().clone();
        prop_assert_eq!(sampled.len(), count);
        prop_assert_eq!(infos.table_size as usize, self.items.len());
        let max_times = self.table.config().max_times_sampled;
        let mut expected = Vec::new();
        let mut draws = Vec::new();
        for (key, probability) in infos.keys.iter().zip(&infos.probabilities) {
            let Some(item) = self.items.iter().find(|item| item.key == *key) else {
                return Err(TestCaseError::fail(format!("{key} is not in the table")));
            };
            draws.push(DrawnItem { slot: item.slot(), probability: *probability });
        }
        if max_times == 0 {
            self.sampler.check(count, &draws);
        }
        for draw in 0..count {
            if max_times > 0 {
                self.sampler.check(1, &draws[draw..=draw]);
            }
            let at = self.items.iter().position(|item| item.slot() == draws[draw].slot);
            let at = at.expect("an item is drawn no more once it was used up");
            let item = &mut self.items[at];
            item.times_sampled += 1;
            self.unique_samples += u64::from(item.times_sampled == 1);
            prop_assert_eq!(infos.times_sampled[draw], item.times_sampled);
            prop_assert_eq!(infos.priorities[draw], item.priority);
            prop_assert_eq!(infos.versions[draw], item.version);
            expected.push(item.id);
            if item.times_sampled == max_times {
                self.remove(at);
            }
        }
        self.counts.samples += count as u64;
        prop_assert_eq!(&ids(&sampled), &expected);
        if keep {
            self.let_go();
            self.held = Some((sampled, expected));
        }
        Ok(())
    }

    /// Ends a batch that was kept: it must be as it was.
    fn let_go(&mut self) {
        if let Some((sampled, expected)) = self.held.take() {
            assert_eq!(ids(&sampled), expected, "a batch that was kept has changed");
        }
    }

    /// The key of an item that is there, or was, or of none.
    fn key(&self, which: usize) -> u64 {
        let (live, gone) = (self.items.len(), self.gone.len());
        match which % 8 {
            0 if gone > 0 => self.gone[which / 8 % gone],
            1 => which as u64 | 1 << 60,
            _ if live > 0 => self.items[which / 8 % live].key,
            _ => u64::MAX,
        }
    }

    fn update(&mut self, updates: &[(usize, f64)]) -> Result<(), TestCaseError> {
        let (keys, priorities): (Vec<u64>, Vec<f64>) =
            updates.iter().map(|(which, priority)| (self.key(*which), *priority)).unzip();
        let mut updated = 0;
        for (key, priority) in keys.iter().zip(&priorities) {
            if let Some(item) = self.items.iter_mut().find(|item| item.key == *key) {
                item.priority = *priority;
                let slot = item.slot();
                self.models(|model| model.update(slot, *priority));
                updated += 1;
            }
        }
        prop_assert_eq!(self.table.update_priorities(&keys, &priorities), Ok(updated));
        Ok(())
    }

    fn update_bad(&mut self, updates: &[(usize, f64)]) -> Result<(), TestCaseError> {
        let mut keys: Vec<u64> = updates.iter().map(|(which, _)| self.key(*which)).collect();
        let mut priorities: Vec<f64> = updates.iter().map(|(_, priority)| *priority).collect();
        keys.push(self.items.first().map_or(7, |item| item.key));
        priorities.push(f64::INFINITY);
        let refused = TableError::Priority { index: updates.len(), got: f64::INFINITY };
        prop_assert_eq!(self.table.update_priorities(&keys, &priorities), Err(refused));
        priorities.pop();
        let lengths = TableError::Lengths { keys: keys.len(), values: priorities.len() };
        prop_assert_eq!(self.table.update_priorities(&keys, &priorities), Err(lengths));
        Ok(())
    }

    fn delete(&mut self, which: &[usize]) -> Result<(), TestCaseError> {
        let keys: Vec<u64> = which.iter().map(|which| self.key(*which)).collect();
        let before = self.items.len();
        for key in &keys {
            if let Some(at) = self.items.iter().position(|item| item.key == *key) {
                self.remove(at);
            }
        }
        prop_assert_eq!(self.table.delete(&keys), before - self.items.len());
        Ok(())
    }
}

fn priority() -> impl Strategy<Value = f64> {
    prop::sample::select(vec![0.0, -0.0, 0.5, 1.0, 1.0, 2.0, 3.5, 1e-3, 1e6])
}

fn parameters() -> impl Strategy<Value = Parameters> {
    let bound = prop::sample::select(vec![0.0, 1.0, 2.5, 4.0, 8.0, 20.0, f64::INFINITY]);
    let ratio = prop::sample::select(vec![0.3, 0.5, 1.0, 2.0, 4.0]);
    (1u64..4, ratio, bound.clone(), bound).prop_map(|(min_size, samples_per_insert, low, high)| {
        let min_diff = if low.is_infinite() { -low } else { low - 4.0 };
        Parameters { min_size, samples_per_insert, min_diff, max_diff: high }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let updates = || prop::collection::vec((any::<usize>(), priority()), 0..6);
    let priorities = prop::collection::vec(priority(), 1..5);
    prop_oneof![
        8 => (priorities, prop::option::of(0u64..6))
            .prop_map(|(priorities, version)| Op::Insert { priorities, version }),
        1 => (1usize..5).prop_map(Op::GiveUp),
        1 => (1usize..5).prop_map(Op::InsertBad),
        8 => (1usize..6, prop::bool::weighted(0.2))
            .prop_map(|(count, keep)| Op::Sample { count, keep }),
        1 => Just(Op::LetGo),
        4 => updates().prop_map(Op::Update),
        1 => updates().prop_map(Op::UpdateBad),
        2 => prop::collection::vec(any::<usize>(), 0..3).prop_map(Op::Delete),
        1 => Just(Op::Pause),
        3 => Just(Op::Resume),
        2 => (0u64..8).prop_map(Op::Advance),
        1 => parameters().prop_map(Op::SetLimiter),
        1 => Just(Op::SetLimiter(*Limiter::min_size(1).unwrap().parameters())),
        1 => prop::bool::weighted(0.3).prop_map(|reset| if reset { Op::Reset } else { Op::Resume }),
    ]
}

/// Runs random operations for every pair of selectors.
fn behaves_like_a_list(form: &Form, cases: u32) {
    for (sampler, remover) in KINDS.into_iter().flat_map(|kind| KINDS.map(|other| (kind, other))) {
        let config = Config {
            cases,
            failure_persistence: None,
            max_shrink_iters: 4096,
            ..Config::default()
        };
        let mut runner = TestRunner::new(config);
        let max_times = prop_oneof![3 => Just(0u32), 1 => 1u32..4];
        let ops = prop::collection::vec(op(), 1..60);
        let strategy = (1u32..9, max_times, any::<u64>(), ops);
        let result = runner.run(&strategy, |(capacity, max_times_sampled, seed, ops)| {
            let config = self::config(form.clone(), sampler, remover, capacity);
            let mut pair = Pair::new(TableConfig { max_times_sampled, seed, ..config });
            ops.iter().try_for_each(|op| pair.run(op))?;
            pair.let_go();
            Ok(())
        });
        if let Err(error) = result {
            panic!("sampled by {sampler}, removed by {remover}: {error}");
        }
    }
}

#[test]
fn a_table_of_rows_behaves_like_a_list() {
    behaves_like_a_list(&rows(), if cfg!(debug_assertions) { 16 } else { 160 });
}

#[test]
fn a_table_of_chunks_behaves_like_a_list() {
    behaves_like_a_list(&Form::Trajectories(None), if cfg!(debug_assertions) { 8 } else { 80 });
}

// Small things, by example.

#[test]
fn a_seed_gives_the_same_draws_again_and_another_seed_others() {
    let draws = |kind: SelectorKind, seed: u64| -> Vec<Infos> {
        let table = table(TableConfig { seed, ..config(rows(), kind, kind, 20) });
        (0..25).for_each(|id| _ = put(&table, id, 1.0 + (id % 3) as f64));
        (0..5).map(|_| table.try_sample(16).unwrap().into_infos()).collect()
    };
    for kind in KINDS {
        assert_eq!(draws(kind, 5), draws(kind, 5), "{kind}");
        assert_eq!(draws(kind, 5) == draws(kind, 6), kind.is_deterministic(), "{kind}");
    }
}

/// The inequality asks for `min_size` items and nothing more, and each draw uses up one at most.
#[test]
fn a_batch_that_uses_up_items_waits_for_no_more_than_the_limiter_and_its_draws_need() {
    let config = config(rows(), SelectorKind::Fifo, SelectorKind::Fifo, 4);
    let limiter = Limiter::min_size(4).unwrap();
    let table = table(TableConfig { max_times_sampled: 1, limiter, ..config });
    (0..4).for_each(|id| _ = put(&table, id, 1.0));
    assert_eq!(ids(&table.try_sample(4).unwrap()), [0, 1, 2, 3]);
}

#[test]
fn a_batch_that_no_memory_could_hold_is_refused_and_the_table_lives_on() {
    let table = uniform(3);
    put(&table, 7, 1.0);
    assert!(table.try_sample(1 << 61).is_err());
    assert_eq!(ids(&table.try_sample(2).unwrap()), [7, 7]);
    assert_eq!(table.info().counts.samples, 2);
}

#[test]
fn rows_that_are_being_written_count_as_inserts() {
    let limiter = Limiter::queue(3).unwrap();
    let config = config(rows(), SelectorKind::Fifo, SelectorKind::Fifo, 3);
    let table = table(TableConfig { limiter, max_times_sampled: 1, ..config });
    let first = table.try_reserve(2).unwrap();
    let second = table.try_reserve(2).unwrap();
    assert_eq!((first.len(), second.len()), (2, 1));
    assert_eq!(blocked(table.try_reserve(1)), Some(WaitReason::Ratio));
    assert!(!table.can_insert(1));
    drop(first);
    assert_eq!(table.try_reserve(3).unwrap().len(), 2);
    assert_eq!(blocked(table.try_sample(1)), Some(WaitReason::MinSize));
    second.commit(&[1.0], None).unwrap();
    assert_eq!(table.try_sample(1).unwrap().len(), 1);
}

#[test]
fn rows_that_are_still_read_are_not_written() {
    let table = uniform(1);
    put(&table, 0, 1.0);
    let mut held = vec![table.try_sample(1).unwrap()];
    let reason = loop {
        match table.try_reserve(1) {
            Ok(mut insertion) => {
                write(insertion.row_mut(0), held.len() as u64);
                insertion.commit(&[1.0], None).unwrap();
                held.push(table.try_sample(1).unwrap());
            }
            other => break blocked(other),
        }
        assert!(held.len() < 100, "a small table keeps a hundred rows");
    };
    assert_eq!(reason, Some(WaitReason::Leased));
    assert_eq!(table.blocked().insert, Some(WaitReason::Leased));
    for (id, sampled) in held.iter().enumerate() {
        assert_eq!(ids(sampled), [id as u64]);
    }
    drop(held);
    assert_eq!(table.blocked().insert, None);
    put(&table, 99, 1.0);
    assert_eq!(ids(&table.try_sample(1).unwrap()), [99]);
}

#[test]
fn weights_are_those_of_the_paper() {
    let probabilities = vec![0.1, 0.4, 0.5];
    let infos = Infos { probabilities, table_size: 10, ..Infos::default() };
    // (10 * p) ^ -0.5 is 1, 0.5 and 0.447; the largest is 1 already.
    let weights = infos.weights(0.5);
    let expected = [1.0, 0.5, 0.2f64.sqrt()];
    assert!(weights.iter().zip(expected).all(|(got, want)| (got - want).abs() < 1e-15));
    let halved = Infos { table_size: 40, ..infos };
    assert!(halved.weights(0.5).iter().zip(expected).all(|(got, want)| (got - want).abs() < 1e-15));
    assert_eq!(halved.weights(0.0), [1.0; 3]);
}

#[test]
fn a_closed_table_refuses_what_waits_and_answers_the_rest() {
    let table = uniform(2);
    put(&table, 0, 1.0);
    let sampled = table.try_sample(1).unwrap();
    table.close();
    assert_eq!(table.try_reserve(1).unwrap_err(), Obstacle::Failed(TableError::Closed));
    assert_eq!(table.try_sample(1).unwrap_err(), Obstacle::Failed(TableError::Closed));
    assert!(!table.can_sample(1) && !table.can_insert(1));
    assert_eq!((ids(&sampled), table.info().size), (vec![0], 1));
}

#[test]
fn what_can_never_be_sampled_is_refused_at_once_with_the_arithmetic() {
    let hour = Duration::from_secs(3600);
    let refusal = |limiter, max_times_sampled, count| {
        let config = config(rows(), SelectorKind::Fifo, SelectorKind::Fifo, 4);
        let table = table(TableConfig { limiter, max_times_sampled, ..config });
        within(hour, |wait| table.sample(count, wait)).unwrap_err()
    };
    let limiter = Limiter::sample_to_insert_ratio(1.0, 1, (0.0, 6.0)).unwrap();
    assert_eq!(
        refusal(limiter, 0, 7).to_string(),
        "a batch of 7 can never be sampled: inserts stop at I·spi − S = 6 at the latest, and \
         6 − 7 = -1 is below min_diff 0; at most 6 can be sampled at once"
    );
    assert!(matches!(
        refusal(Limiter::queue(4).unwrap(), 1, 5),
        TableError::Limiter(LimiterError::Items { n: 5, capacity: 4, times: 1 })
    ));
}

#[test]
fn settings_that_make_no_table_are_refused() {
    let good = || config(rows(), SelectorKind::Uniform, SelectorKind::Fifo, 10);
    let refusal = |config| Table::new(config).unwrap_err().to_string();
    let names = "a table's name has 1 to 256 bytes, got \"\"";
    assert_eq!(refusal(TableConfig { name: String::new(), ..good() }), names);
    assert!(refusal(TableConfig { name: "ä".repeat(129), ..good() }).starts_with(&names[..36]));
    assert_eq!(refusal(TableConfig { capacity: 0, ..good() }), "capacity must be at least 1");
    let sampler = SelectorKind::Prioritized { exponent: f64::NAN };
    assert_eq!(
        refusal(TableConfig { sampler, ..good() }),
        "exponent of a prioritized selector must be finite and at least 0, got NaN"
    );
    let limiter = Limiter::min_size(11).unwrap();
    assert_eq!(
        refusal(TableConfig { limiter, ..good() }),
        "min_size 11 is never reached by a table of capacity 10"
    );
    assert!(Table::new(TableConfig { name: "n".repeat(256), ..good() }).is_ok());
}

#[test]
fn metadata_stays_with_the_table_and_has_a_limit() {
    let made = || Table::new(config(rows(), SelectorKind::Uniform, SelectorKind::Fifo, 10));
    assert_eq!(made().unwrap().metadata(), b"");
    let table = made().unwrap().with_metadata(vec![7; MAX_METADATA]).unwrap();
    table.reset();
    assert_eq!(table.metadata(), [7; MAX_METADATA]);
    let error = made().unwrap().with_metadata(vec![7; MAX_METADATA + 1]).unwrap_err();
    assert_eq!(error.to_string(), "a table's metadata has at most 65536 bytes, got 65537");
}

#[test]
fn tables_are_found_by_name() {
    let named = |name: &str| {
        let config = config(rows(), SelectorKind::Uniform, SelectorKind::Fifo, 10);
        table(TableConfig { name: name.into(), ..config })
    };
    let tables = Tables::new(vec![named("a"), named("b")]).unwrap();
    assert_eq!(tables.get("b").unwrap().config().name, "b");
    assert_eq!(
        tables.get("c").unwrap_err().to_string(),
        "there is no table \"c\"; the server has [\"a\", \"b\"]"
    );
    assert_eq!(
        Tables::new(vec![named("a"), named("a")]).unwrap_err().to_string(),
        "two tables have the name \"a\""
    );
    tables.close();
    assert!(tables.all().iter().all(|table| !table.can_insert(1)));
}

// Trajectories.

/// A column of one byte for each step.
fn signature(path: &str, squeezed: bool) -> Arc<Signature> {
    let leaf = Leaf { path: path.into(), dtype: Dtype::UInt(1), shape: vec![] };
    let column = Column { path: leaf.path.clone(), kind: (&leaf).into(), squeezed };
    Arc::new(Signature { structure: String::new(), columns: vec![column] })
}

fn chunk(signature: &Signature, steps: &[u8]) -> Arc<Chunk> {
    let kind = Arc::new(signature.columns[0].kind.clone());
    Arc::new(Chunk::raw(kind, steps.len() as u32, steps.into()).unwrap())
}

fn slices(signature: &Arc<Signature>, parts: &[(&Arc<Chunk>, u32, u32)]) -> Trajectory {
    let slice = |&(chunk, offset, len): &(&Arc<Chunk>, u32, u32)| Slice {
        chunk: Arc::clone(chunk),
        offset,
        len,
    };
    let column = parts.iter().map(slice).collect();
    Trajectory::new(Arc::clone(signature), vec![column]).unwrap()
}

fn chunks(capacity: u32) -> Arc<Table> {
    table(config(Form::Trajectories(None), SelectorKind::Fifo, SelectorKind::Fifo, capacity))
}

#[test]
fn batches_say_whether_their_trajectories_fit_together() {
    let (long, other) = (signature("x", false), signature("y", false));
    let steps = chunk(&long, &[0, 1, 2, 3]);
    let config = config(Form::Trajectories(None), SelectorKind::Epoch, SelectorKind::Fifo, 10);
    let table = table(config);
    table.try_insert(&slices(&long, &[(&steps, 0, 1)]), 1.0, None).unwrap();
    // Equal signatures need not be the same one.
    let equal = signature("x", false);
    table.try_insert(&slices(&equal, &[(&steps, 1, 3)]), 1.0, None).unwrap();
    match table.try_sample(2).unwrap().stack() {
        Stack::Trajectories { signature, mut steps } => {
            steps[0].sort_unstable();
            assert_eq!((signature, steps), (long, vec![vec![1, 3]]));
        }
        stack => panic!("{stack:?}"),
    }
    let alien = chunk(&other, &[9]);
    table.try_insert(&slices(&other, &[(&alien, 0, 1)]), 1.0, None).unwrap();
    assert_eq!(table.try_sample(3).unwrap().stack(), Stack::Mixed);
}

#[test]
fn items_that_are_not_as_the_table_says_are_refused() {
    let long = signature("x", false);
    let steps = chunk(&long, &[0, 1, 2, 3]);
    let item = slices(&long, &[(&steps, 0, 2)]);
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(1), shape: vec![3] };
    for form in [Form::Rows, |spec| Form::Trajectories(Some(spec))] {
        let form = form(Spec::new(vec![leaf.clone()]).unwrap());
        let table = table(config(form, SelectorKind::Fifo, SelectorKind::Fifo, 4));
        match table.try_insert(&item, 1.0, None).unwrap_err() {
            Obstacle::Failed(TableError::Spec(text)) => {
                assert_eq!(text, "expected the leaf `x: uint8[3]`, got `x: uint8[2]`");
            }
            other => panic!("{other:?}"),
        }
        let good = slices(&long, &[(&steps, 0, 1), (&steps, 2, 2)]);
        table.try_insert(&good, 1.0, None).unwrap();
        let mut values = [0; 3];
        table.try_sample(1).unwrap().gather(&mut [&mut values]);
        assert_eq!((values, table.info().counts.inserts), ([0, 2, 3], 1));
    }
}

#[test]
fn a_leaf_of_any_length_takes_any_number_of_steps() {
    let long = signature("x", false);
    let steps = chunk(&long, &[0, 1, 2, 3]);
    let spec = |shape: &[usize]| {
        let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(1), shape: shape.into() };
        Spec::of_trajectories(vec![leaf]).unwrap()
    };
    let table = |form| table(config(form, SelectorKind::Fifo, SelectorKind::Fifo, 9));
    let any = table(Form::Trajectories(Some(spec(&[ANY_LENGTH]))));
    for len in 1..5 {
        any.try_insert(&slices(&long, &[(&steps, 0, len)]), 1.0, None).unwrap();
    }
    let refused = |item: &Trajectory| match any.try_insert(item, 1.0, None).unwrap_err() {
        Obstacle::Failed(TableError::Spec(text)) => text,
        other => panic!("{other:?}"),
    };
    let squeezed = signature("x", true);
    assert_eq!(
        refused(&slices(&squeezed, &[(&steps, 0, 1)])),
        "expected the leaf `x: uint8[?]`, got `x: uint8[]`, which is one step without an axis of time"
    );
    let other = signature("y", false);
    assert_eq!(
        refused(&slices(&other, &[(&steps, 0, 2)])),
        "expected the leaf `x: uint8[?]`, got `y: uint8[2]`"
    );
    assert_eq!(any.info().counts.inserts, 4);
    // There is no row that would have room for it.
    let rows = config(Form::Rows(spec(&[ANY_LENGTH])), SelectorKind::Fifo, SelectorKind::Fifo, 9);
    assert!(matches!(Table::new(rows), Err(TableError::Spec(_))));
}

#[derive(Debug, Clone)]
enum Share {
    /// Into which table, and slices of which chunks.
    Insert(bool, Vec<usize>),
    Sample(bool),
    LetGo,
    Delete(bool, usize),
    Reset(bool),
}

proptest! {
    #![proptest_config(Config::with_cases(256))]

    /// Two tables share chunks; nobody else has them.
    #[test]
    fn a_chunk_is_freed_exactly_when_the_last_item_that_names_it_goes(
        ops in prop::collection::vec(
            prop_oneof![
                6 => (any::<bool>(), prop::collection::vec(0usize..6, 1..4))
                    .prop_map(|(table, parts)| Share::Insert(table, parts)),
                2 => any::<bool>().prop_map(Share::Sample),
                1 => Just(Share::LetGo),
                2 => (any::<bool>(), any::<usize>())
                    .prop_map(|(table, which)| Share::Delete(table, which)),
                1 => any::<bool>().prop_map(Share::Reset),
            ],
            1..60,
        ),
    ) {
        let signature = signature("x", false);
        let tables = [chunks(4), chunks(3)];
        // Weak references, how many steps are in use, and which items, oldest first, use what.
        let mut known: [Weak<Chunk>; 6] = Default::default();
        let mut items: [Vec<(u64, Vec<usize>)>; 2] = [vec![], vec![]];
        let mut held: Option<(Sampled, Vec<usize>)> = None;
        for op in ops {
            match op {
                Share::Insert(table, parts) => {
                    let alive: Vec<Arc<Chunk>> = parts
                        .iter()
                        .map(|part| known[*part].upgrade().unwrap_or_else(|| {
                            let fresh = chunk(&signature, &[*part as u8; 4]);
                            known[*part] = Arc::downgrade(&fresh);
                            fresh
                        }))
                        .collect();
                    let parts_of: Vec<_> = alive.iter().map(|chunk| (chunk, 1, 2)).collect();
                    let item = slices(&signature, &parts_of);
                    let table = usize::from(table);
                    let key = tables[table].try_insert(&item, 1.0, None).unwrap();
                    items[table].push((key.number(), parts));
                    if items[table].len() > [4, 3][table] {
                        items[table].remove(0);
                    }
                }
                Share::Sample(table) => {
                    let table = usize::from(table);
                    if let Ok(sampled) = tables[table].try_sample(2) {
                        held = Some((sampled, items[table][0].1.clone()));
                    }
                }
                Share::LetGo => held = None,
                Share::Delete(table, which) => {
                    let table = usize::from(table);
                    if !items[table].is_empty() {
                        let which = which % items[table].len();
                        let (key, _) = items[table].remove(which);
                        prop_assert_eq!(tables[table].delete(&[key]), 1);
                    }
                }
                Share::Reset(table) => {
                    let table = usize::from(table);
                    tables[table].reset();
                    items[table].clear();
                }
            }
            let all = items.iter().flatten().map(|(_, parts)| parts);
            let all: Vec<&Vec<usize>> = all.chain(held.as_ref().map(|(_, parts)| parts)).collect();
            for (part, chunk) in known.iter().enumerate() {
                let used = all.iter().any(|parts| parts.contains(&part));
                prop_assert_eq!(chunk.strong_count() > 0, used, "chunk {}", part);
            }
            if let Some((sampled, parts)) = &held {
                let mut values = vec![0; 4 * parts.len()];
                sampled.gather(&mut [&mut values]);
                let one: Vec<u8> = parts.iter().flat_map(|part| [*part as u8; 2]).collect();
                prop_assert_eq!(values, [&one[..], &one[..]].concat());
            }
        }
        drop(tables);
        held = None;
        prop_assert!(held.is_none() && known.iter().all(|chunk| chunk.strong_count() == 0));
    }
}
