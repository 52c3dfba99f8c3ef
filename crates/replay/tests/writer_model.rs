//! A writer against a model that keeps every step for ever.

use std::collections::HashSet;
use std::sync::Arc;

use echoic_replay::Dtype;
use echoic_replay::chunk::{Chunk, ColumnKind};
use echoic_replay::encoding::{Encoding, Policy};
use echoic_replay::trajectory::{Column, Signature};
use echoic_replay::writer::{
    ChunkId, ChunkLength, ColumnConfig, ItemNumber, ItemSteps, OutgoingItem, Sink, Span, StepRef,
    TrajectoryWriter, WriterError,
};
use proptest::prelude::*;

const COLUMNS: usize = 4;

/// The first and the last are of one kind, so that items can join them; the third has no bytes.
fn kind(column: usize) -> ColumnKind {
    let (dtype, shape) = match column {
        1 => (Dtype::UInt(1), vec![3]),
        2 => (Dtype::Float(4), vec![2, 0]),
        _ => (Dtype::Int(4), vec![]),
    };
    ColumnKind { dtype, shape }
}

/// Of an item: whether the column is squeezed, the column whose kind it has, and spans as column, steps
/// back of the first, and length.
type ItemColumn = (bool, usize, Vec<(usize, u64, u32)>);

#[derive(Debug, Clone)]
enum Op {
    Append { given: [bool; COLUMNS], partial: bool, in_place: bool },
    Batch { given: [bool; COLUMNS], steps: usize },
    Item(Vec<ItemColumn>),
    Emit { room: usize },
    Flush { room: usize },
    EndEpisode { clear: bool },
    Configure { column: usize, config: ColumnConfig },
}

fn encoding() -> impl Strategy<Value = Policy> {
    let forms = Encoding::ALL.into_iter().map(Policy::Always);
    prop::sample::select(forms.chain([Policy::Never, Policy::Auto]).collect::<Vec<_>>())
}

fn config() -> impl Strategy<Value = ColumnConfig> {
    let fixed = (1u32..9).prop_flat_map(|keep_alive| {
        let length = prop_oneof![
            Just(ChunkLength::Auto),
            Just(ChunkLength::Prompt),
            (1..=keep_alive).prop_map(ChunkLength::Fixed),
        ];
        (length, encoding()).prop_map(move |(chunk_length, encoding)| ColumnConfig {
            keep_alive,
            chunk_length,
            encoding,
        })
    });
    fixed.boxed()
}

fn op() -> impl Strategy<Value = Op> {
    let given = || proptest::array::uniform4(prop::bool::weighted(0.8));
    // Mostly steps that exist and kinds that fit, or hardly any item would be right.
    let column = (prop::bool::weighted(0.2), 0..COLUMNS, 0..3usize).prop_flat_map(
        |(squeezed, kind, spans)| {
            let source = prop_oneof![9 => Just(kind), 1 => Just(3 - kind), 1 => 0..COLUMNS + 1];
            let span = (source, 0..5u64, 1..4u32);
            (Just(squeezed), Just(kind), prop::collection::vec(span, spans..spans + 2))
        },
    );
    prop_oneof![
        8 => (given(), prop::bool::weighted(0.2), any::<bool>())
            .prop_map(|(given, partial, in_place)| Op::Append { given, partial, in_place }),
        2 => (given(), 0..12usize).prop_map(|(given, steps)| Op::Batch { given, steps }),
        8 => prop::collection::vec(column, 1..3).prop_map(Op::Item),
        2 => (0..3usize).prop_map(|room| Op::Emit { room }),
        1 => prop::sample::select(vec![0, 1, usize::MAX]).prop_map(|room| Op::Flush { room }),
        1 => any::<bool>().prop_map(|clear| Op::EndEpisode { clear }),
        1 => (0..COLUMNS, config()).prop_map(|(column, config)| Op::Configure { column, config }),
    ]
}

#[derive(Default)]
struct ModelColumn {
    /// All values ever given, with their steps.
    values: Vec<(u64, Vec<u8>)>,
    floor: usize,
    keep: usize,
}

impl ModelColumn {
    fn window(&self) -> &[(u64, Vec<u8>)] {
        &self.values[self.floor.max(self.values.len().saturating_sub(self.keep))..]
    }

    fn get(&self, step: u64) -> Option<&[u8]> {
        let found = self.window().iter().find(|(at, _)| *at == step);
        found.map(|(_, value)| value.as_slice())
    }
}

/// Checks the rules of a sink as it goes.
#[derive(Default)]
struct Checker {
    room: usize,
    chunks: Vec<Arc<Chunk>>,
    fresh: HashSet<ChunkId>,
    released: HashSet<ChunkId>,
    expected: std::collections::VecDeque<(ItemNumber, Vec<Vec<u8>>)>,
}

impl Sink for Checker {
    fn has_room(&mut self) -> bool {
        self.room > 0
    }

    fn chunk(&mut self, id: ChunkId, chunk: &Arc<Chunk>) {
        assert_eq!(id.0, self.chunks.len() as u64, "chunks are numbered as they come");
        assert!(!chunk.is_empty());
        assert!(self.room > 0, "{id:?} came to a sink without room");
        self.chunks.push(Arc::clone(chunk));
        self.fresh.insert(id);
    }

    fn item(&mut self, item: OutgoingItem<'_>) {
        self.room -= 1;
        let (item_number, expected) = self.expected.pop_front().expect("an item was created");
        assert_eq!(
            (item.item_number, item.table, item.priority),
            (item_number, 7, item_number.0 as f64)
        );
        assert_eq!(item.chunks.len(), item.trajectory.slices().len());
        for (id, slice) in item.chunks.iter().zip(item.trajectory.slices()) {
            assert!(Arc::ptr_eq(&self.chunks[id.0 as usize], slice.chunk));
            assert!(!self.released.contains(id), "{id:?} was released");
            self.fresh.remove(id);
        }
        assert!(self.fresh.is_empty(), "chunks that no item names: {:?}", self.fresh);
        for (column, expected) in expected.iter().enumerate() {
            let slices: Vec<_> = item.trajectory.column(column).collect();
            let joined = slices.windows(2).all(|pair| {
                let [left, right] = pair else { return true };
                !Arc::ptr_eq(left.chunk, right.chunk) || left.offset + left.len != right.offset
            });
            assert!(joined, "neighbours in a chunk are one slice: {slices:?}");
            let mut got = vec![0; item.trajectory.column_bytes(column)];
            item.trajectory.copy_column(column, &mut got);
            assert_eq!(&got, expected, "column {column} of {item_number:?}");
        }
    }

    fn release(&mut self, chunks: &[ChunkId]) {
        for id in chunks {
            assert!((id.0 as usize) < self.chunks.len() && self.released.insert(*id), "{id:?}");
        }
    }
}

struct Pair {
    writer: TrajectoryWriter,
    model: [ModelColumn; COLUMNS],
    steps: u64,
    open: HashSet<usize>,
    step_is_open: bool,
    counter: u32,
    item_numbers: u64,
    sink: Checker,
}

impl Pair {
    fn new(config: ColumnConfig) -> Self {
        let mut writer = TrajectoryWriter::new(config).unwrap();
        let mut model: [ModelColumn; COLUMNS] = Default::default();
        for (column, model) in model.iter_mut().enumerate() {
            assert_eq!(writer.column(&format!("c{column}"), &kind(column)), Ok(column as u32));
            model.keep = config.keep_alive as usize;
        }
        let (sink, open) = (Checker::default(), HashSet::new());
        Self {
            writer,
            model,
            steps: 0,
            open,
            step_is_open: false,
            counter: 0,
            item_numbers: 0,
            sink,
        }
    }

    fn value(&mut self, column: usize) -> Vec<u8> {
        self.counter += 1;
        self.counter
            .to_ne_bytes()
            .into_iter()
            .cycle()
            .take(kind(column).step_bytes().unwrap())
            .collect()
    }

    fn append(&mut self, given: [bool; COLUMNS], partial: bool, in_place: bool) {
        let values: Vec<_> =
            (0..COLUMNS).map(|column| given[column].then(|| self.value(column))).collect();
        let refs: Vec<_> = values.iter().map(Option::as_deref).collect();
        let result = if in_place {
            let columns: Vec<_> = (0..COLUMNS as u32).filter(|at| given[*at as usize]).collect();
            self.writer.append_with(&columns, partial, |position, to| {
                to.copy_from_slice(refs[columns[position] as usize].unwrap());
            })
        } else {
            self.writer.append(&refs, partial)
        };
        if (0..COLUMNS).any(|column| given[column] && self.open.contains(&column)) {
            assert!(result.is_err(), "a column was given twice");
            return;
        }
        assert_eq!(result, Ok(self.steps));
        for (column, value) in values.into_iter().enumerate() {
            let Some(value) = value else { continue };
            self.model[column].values.push((self.steps, value));
            self.open.insert(column);
        }
        self.step_is_open = partial;
        if !partial {
            self.steps += 1;
            self.open.clear();
        }
    }

    fn batch(&mut self, given: [bool; COLUMNS], steps: usize) {
        let values: Vec<Option<Vec<_>>> = (0..COLUMNS)
            .map(|column| given[column].then(|| (0..steps).map(|_| self.value(column)).collect()))
            .collect();
        let joined: Vec<_> = values.iter().map(|v| v.as_ref().map(|v| v.concat())).collect();
        let refs: Vec<_> = joined.iter().map(Option::as_deref).collect();
        let result = self.writer.append_batch(steps, &refs);
        if self.step_is_open {
            assert!(result.is_err());
            return;
        }
        assert_eq!(result, Ok(self.steps..self.steps + steps as u64));
        for (column, values) in values.into_iter().enumerate() {
            let numbered = values.into_iter().flatten().zip(self.steps..);
            self.model[column].values.extend(numbered.map(|(value, step)| (step, value)));
        }
        self.steps += steps as u64;
    }

    fn item(&mut self, columns: &[ItemColumn]) {
        let mut steps = ItemSteps::default();
        let mut expected = Some(vec![]);
        for (squeezed, of, spans) in columns {
            let named = |(column, back, len): (usize, u64, u32)| {
                let first = self.steps.saturating_sub(back);
                (column, first, len)
            };
            let span = |at| {
                let (column, first, len) = named(at);
                Span { column: column as u32, first, len }
            };
            steps.column(spans.iter().copied().map(span));
            let values = spans.iter().copied().map(named).flat_map(|(column, first, len)| {
                (first..first + u64::from(len)).map(move |step| (column, step))
            });
            let total = values.clone().count();
            let values = values.map(|(column, step)| {
                let model = self.model.get(column).filter(|_| kind(column) == kind(*of))?;
                model.get(step).map(<[u8]>::to_vec)
            });
            let values: Option<Vec<_>> = values.collect();
            let values = values.filter(|_| total > 0 && (!squeezed || total == 1));
            expected = expected.zip(values).map(|(mut all, values): (Vec<_>, _)| {
                all.push(values.concat());
                all
            });
        }
        let column = |(squeezed, of, _): &ItemColumn| Column {
            path: String::new(),
            kind: kind(*of),
            squeezed: *squeezed,
        };
        let columns = columns.iter().map(column).collect();
        let signature = Arc::new(Signature { structure: String::new(), columns });
        let result = self.writer.create_item(7, self.item_numbers as f64, &signature, &steps);
        assert_eq!(result.is_ok(), expected.is_some(), "{result:?}");
        if let Some(expected) = expected {
            assert_eq!(result, Ok(ItemNumber(self.item_numbers)));
            self.sink.expected.push_back((ItemNumber(self.item_numbers), expected));
            self.item_numbers += 1;
        }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Append { given, partial, in_place } => self.append(*given, *partial, *in_place),
            Op::Batch { given, steps } => self.batch(*given, *steps),
            Op::Item(columns) => self.item(columns),
            Op::Emit { room } => {
                self.sink.room = *room;
                let emitted = self.writer.emit(&mut self.sink);
                assert_eq!(self.sink.room, room - emitted);
            }
            Op::Flush { room } => {
                self.sink.room = *room;
                let emitted = self.writer.flush(&mut self.sink);
                assert_eq!(self.sink.room, room - emitted);
                assert!(*room < usize::MAX || self.writer.pending() == 0);
            }
            Op::EndEpisode { clear } => {
                self.writer.end_episode(*clear);
                self.steps += u64::from(self.step_is_open);
                self.step_is_open = false;
                self.open.clear();
                assert_eq!(self.writer.episode_start(), self.steps);
                for column in self.model.iter_mut().filter(|_| *clear) {
                    column.floor = column.values.len();
                }
            }
            Op::Configure { column, config } => {
                self.writer.configure(&format!("c{column}"), *config).unwrap();
                let model = &mut self.model[*column];
                // A longer window does not bring back what has left.
                model.floor = model.values.len() - model.window().len();
                model.keep = config.keep_alive as usize;
            }
        }
        assert_eq!(self.writer.pending(), self.sink.expected.len());
        assert_eq!(
            (self.writer.steps(), self.writer.step_is_open()),
            (self.steps, self.step_is_open)
        );
        for (column, model) in self.model.iter().enumerate() {
            let history: Vec<u64> = self.writer.history(column as u32).unwrap().flatten().collect();
            let window: Vec<u64> = model.window().iter().map(|(step, _)| *step).collect();
            assert_eq!(history, window, "history of column {column}");
            let mut got = vec![0; kind(column).step_bytes().unwrap()];
            let mut read = |step| {
                let step = StepRef { column: column as u32, step };
                self.writer.read(step, &mut got).map(|()| got.clone())
            };
            let below = model.values.len() - window.len();
            if let Some((step, _)) = below.checked_sub(1).map(|last| &model.values[last]) {
                let gone = read(*step);
                let is_refused =
                    matches!(gone, Err(WriterError::Gone { .. } | WriterError::Absent { .. }));
                assert!(is_refused, "step {step} of column {column}: {gone:?}");
            }
            if let Some((step, value)) = model.window().last() {
                assert_eq!(read(*step).as_ref(), Ok(value), "step {step} of column {column}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 500 } else { 5000 }))]

    #[test]
    fn items_have_the_bytes_that_were_appended(
        config in config(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut pair = Pair::new(config);
        ops.iter().for_each(|op| pair.run(op));
        pair.run(&Op::EndEpisode { clear: true });
        pair.run(&Op::Flush { room: usize::MAX });
        let Checker { chunks, released, .. } = &pair.sink;
        prop_assert_eq!(chunks.len(), released.len(), "all is released in the end");
        // The writer holds none of them any more.
        prop_assert!(chunks.iter().all(|chunk| Arc::strong_count(chunk) == 1));
        prop_assert_eq!(pair.writer.held_bytes() / (64 << 10), 0, "but the memory of chunks to come");
    }
}
