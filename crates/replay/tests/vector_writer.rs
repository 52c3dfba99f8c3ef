//! A writer of many environments is as many writers, fed one by one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use echoic_replay::Dtype;
use echoic_replay::chunk::{Chunk, ColumnKind};
use echoic_replay::encoding::Policy;
use echoic_replay::trajectory::{Column, Signature, TrajectoryError};
use echoic_replay::writer::structured::Take;
use echoic_replay::writer::vector::VectorWriter;
use echoic_replay::writer::{
    ChunkId, ChunkLength, ColumnConfig, ItemSteps, OutgoingItem, Sink, Span, TrajectoryWriter,
    WriterError,
};
use proptest::prelude::*;

const COLUMNS: usize = 2;

/// Table, priority, and the bytes of each column.
type Item = (u32, f64, Vec<Vec<u8>>);

/// Checks the rules of a sink, and keeps the items of each environment, which their priorities tell.
#[derive(Default)]
struct Items {
    chunks: HashMap<ChunkId, Arc<Chunk>>,
    released: HashSet<ChunkId>,
    items: HashMap<u32, Vec<Item>>,
}

impl Sink for Items {
    fn chunk(&mut self, id: ChunkId, chunk: &Arc<Chunk>) {
        assert!(self.chunks.insert(id, Arc::clone(chunk)).is_none(), "{id:?} came twice");
    }

    fn item(&mut self, item: OutgoingItem<'_>) {
        for (id, slice) in item.chunks.iter().zip(item.trajectory.slices()) {
            assert!(Arc::ptr_eq(&self.chunks[id], slice.chunk));
            assert!(!self.released.contains(id), "{id:?} was released");
        }
        let columns = (0..item.trajectory.signature().columns.len()).map(|column| {
            let mut bytes = vec![0; item.trajectory.column_bytes(column)];
            item.trajectory.copy_column(column, &mut bytes);
            bytes
        });
        let item = (item.table, item.priority, columns.collect());
        self.items.entry(item.1 as u32).or_default().push(item);
    }

    fn release(&mut self, chunks: &[ChunkId]) {
        for id in chunks {
            assert!(self.chunks.contains_key(id) && self.released.insert(*id), "{id:?}");
        }
    }
}

fn kind(column: usize) -> ColumnKind {
    ColumnKind { dtype: Dtype::UInt(1), shape: if column == 0 { vec![3] } else { vec![] } }
}

fn config(keep_alive: u32, length: u32) -> ColumnConfig {
    ColumnConfig { keep_alive, chunk_length: ChunkLength::Fixed(length), encoding: Policy::Never }
}

fn signature(columns: &[(u32, Take)]) -> Arc<Signature> {
    let column = |(column, take): &(u32, Take)| Column {
        path: format!("c{column}"),
        kind: kind(*column as usize),
        squeezed: matches!(take, Take::One(_)),
    };
    Arc::new(Signature { structure: String::new(), columns: columns.iter().map(column).collect() })
}

fn vector(environments: usize, config: ColumnConfig) -> VectorWriter {
    let mut writer = VectorWriter::new(environments, config).unwrap();
    for column in 0..COLUMNS {
        assert_eq!(writer.column(&format!("c{column}"), &kind(column)), Ok(column as u32));
    }
    writer
}

/// What an index or slice of a list that ends with the newest step has; `None` when it is too short.
fn taken(list: &[u64], take: Take) -> Option<Vec<u64>> {
    let (start, stop, step) = match take {
        Take::One(index) => (index, index + 1, 1),
        Take::Slice { start, stop, step } => (start, stop, step as usize),
    };
    let at = |back: i64| usize::try_from(list.len() as i64 + back).ok();
    Some(list[at(start)?..at(stop)?].iter().copied().step_by(step).collect())
}

#[derive(Debug, Clone)]
enum Op {
    Append { given: [bool; COLUMNS], marked: Option<Vec<bool>>, partial: bool },
    Items { takes: Vec<(u32, Take)>, marked: Option<Vec<bool>> },
    Emit,
    EndEpisode { marked: Option<Vec<bool>>, clear: bool },
}

fn op(environments: usize) -> impl Strategy<Value = Op> {
    let marked = || {
        let some = prop::collection::vec(prop::bool::weighted(0.6), environments);
        prop_oneof![Just(None), some.prop_map(Some)]
    };
    let given = prop::array::uniform2(prop::bool::weighted(0.8));
    let slice = (1i64..5, 1i64..5, 1u32..3).prop_map(|(back, len, step)| Take::Slice {
        start: -back,
        stop: (len - back).min(0),
        step,
    });
    let take = prop_oneof![(1i64..5).prop_map(|back| Take::One(-back)), slice];
    let takes = prop::collection::vec((0..COLUMNS as u32, take), 1..3);
    prop_oneof![
        6 => (given, marked(), prop::bool::weighted(0.3))
            .prop_map(|(given, marked, partial)| Op::Append { given, marked, partial }),
        4 => (takes, marked()).prop_map(|(takes, marked)| Op::Items { takes, marked }),
        1 => Just(Op::Emit),
        1 => (marked(), any::<bool>())
            .prop_map(|(marked, clear)| Op::EndEpisode { marked, clear }),
    ]
}

/// Writers of one environment each, and what went into them.
struct Singles {
    writers: Vec<TrajectoryWriter>,
    /// The columns that the open step of each has.
    open: Vec<HashSet<usize>>,
    sinks: Vec<Items>,
}

impl Singles {
    fn new(environments: usize, config: ColumnConfig) -> Self {
        let writer = |_| {
            let mut writer = TrajectoryWriter::new(config).unwrap();
            for column in 0..COLUMNS {
                writer.column(&format!("c{column}"), &kind(column)).unwrap();
            }
            writer
        };
        let writers = (0..environments).map(writer).collect();
        let open = vec![HashSet::new(); environments];
        Self { writers, open, sinks: (0..environments).map(|_| Items::default()).collect() }
    }

    fn create(&mut self, environment: usize, takes: &[(u32, Take)]) -> bool {
        let writer = &mut self.writers[environment];
        let mut steps = ItemSteps::default();
        for (column, take) in takes {
            let history: Vec<u64> = writer.history(*column).unwrap().flatten().collect();
            let Some(taken) = taken(&history, *take) else { return false };
            steps.column(taken.iter().map(|first| Span { column: *column, first: *first, len: 1 }));
        }
        writer.create_item(3, environment as f64, &signature(takes), &steps).unwrap();
        true
    }
}

fn is_marked(marked: &Option<Vec<bool>>, environment: usize) -> bool {
    marked.as_ref().is_none_or(|marked| marked[environment])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 2000 }))]

    #[test]
    fn it_makes_the_items_of_writers_that_are_fed_one_by_one(
        keep in 1u32..6,
        length in 1u32..6,
        ops in prop::collection::vec(op(3), 1..60),
    ) {
        let environments = 3;
        let config = config(keep, length.min(keep));
        let mut writer = vector(environments, config);
        let (mut sink, mut singles) = (Items::default(), Singles::new(environments, config));
        let mut counter = 0u8;
        for op in ops {
            match op {
                Op::Append { given, marked, partial } => {
                    let values: Vec<Option<Vec<u8>>> = (0..COLUMNS).map(|column| {
                        let bytes = kind(column).step_bytes().unwrap() * environments;
                        given[column].then(|| (0..bytes).map(|_| {
                            counter = counter.wrapping_add(1);
                            counter
                        }).collect())
                    }).collect();
                    let refs: Vec<_> = values.iter().map(Option::as_deref).collect();
                    let rows: Vec<Vec<Option<&[u8]>>> = (0..environments).map(|environment| {
                        refs.iter().map(|all| all.map(|all| {
                            let bytes = all.len() / environments;
                            &all[environment * bytes..][..bytes]
                        })).collect()
                    }).collect();
                    let result = writer.append(&refs, marked.as_deref(), partial);
                    let twice = (0..environments).any(|at| {
                        let open = &singles.open[at];
                        is_marked(&marked, at) && (0..COLUMNS).any(|c| given[c] && open.contains(&c))
                    });
                    prop_assert_eq!(result.is_err(), twice, "{:?}", result);
                    if twice {
                        // It has changed nothing: else what comes later would differ.
                        continue;
                    }
                    for (environment, row) in rows.iter().enumerate() {
                        if is_marked(&marked, environment) {
                            singles.writers[environment].append(row, partial).unwrap();
                            let open = &mut singles.open[environment];
                            open.extend((0..COLUMNS).filter(|column| partial && given[*column]));
                            if !partial {
                                open.clear();
                            }
                        }
                    }
                }
                Op::Items { takes, marked } => {
                    let priorities: Vec<f64> = (0..environments).map(|at| at as f64).collect();
                    let made = writer
                        .create_items(3, &priorities, &signature(&takes), &takes, marked.as_deref())
                        .unwrap();
                    let expected: Vec<bool> = (0..environments)
                        .map(|at| is_marked(&marked, at) && singles.create(at, &takes))
                        .collect();
                    prop_assert_eq!(made, expected);
                }
                Op::Emit => {
                    writer.emit(&mut sink);
                    for (writer, sink) in singles.writers.iter_mut().zip(&mut singles.sinks) {
                        writer.emit(sink);
                    }
                }
                Op::EndEpisode { marked, clear } => {
                    writer.end_episode(marked.as_deref(), clear).unwrap();
                    for at in (0..environments).filter(|at| is_marked(&marked, *at)) {
                        singles.writers[at].end_episode(clear);
                        singles.open[at].clear();
                    }
                }
            }
            let pending: usize = singles.writers.iter().map(TrajectoryWriter::pending).sum();
            prop_assert_eq!(writer.pending(), pending);
        }
        writer.end_episode(None, true).unwrap();
        writer.flush(&mut sink);
        for at in 0..environments {
            singles.writers[at].end_episode(true);
            singles.writers[at].flush(&mut singles.sinks[at]);
            let expected = singles.sinks[at].items.remove(&(at as u32));
            prop_assert_eq!(sink.items.remove(&(at as u32)), expected);
        }
        let chunks: usize = singles.sinks.iter().map(|sink| sink.chunks.len()).sum();
        prop_assert_eq!(sink.chunks.len(), chunks);
        prop_assert_eq!(sink.released.len(), chunks, "all is released in the end");
    }
}

#[test]
fn items_that_become_complete_together_come_in_the_order_of_their_calls() {
    let mut writer = vector(2, config(4, 4));
    let takes = [(1, Take::One(-1))];
    for step in 0..4 {
        writer.append(&[None, Some(&[step, 100 + step])], None, false).unwrap();
        let marked = [true, step != 1];
        let made = writer.create_items(0, &[0.0; 2], &signature(&takes), &takes, Some(&marked));
        assert_eq!(made, Ok(marked.to_vec()));
    }
    let mut sink = Items::default();
    assert_eq!(writer.emit(&mut sink), 7);
    let values: Vec<u8> = sink.items[&0].iter().map(|(_, _, columns)| columns[0][0]).collect();
    assert_eq!(values, [0, 100, 1, 2, 102, 3, 103]);
}

#[test]
fn an_append_that_one_environment_refuses_changes_none() {
    let mut writer = vector(2, config(4, 2));
    let both = [Some(&[1u8; 6][..]), Some(&[1; 2])];
    writer.append(&[None, both[1]], Some(&[false, true]), true).unwrap();
    let twice = WriterError::Twice { path: "c1".into(), step: 0 };
    assert_eq!(writer.append(&both, None, false), Err(twice));
    let steps = |writer: &VectorWriter| {
        let steps =
            writer.writers().iter().map(|writer| writer.history(1).unwrap().flatten().count());
        steps.collect::<Vec<_>>()
    };
    assert_eq!(steps(&writer), [0, 1]);
    writer.append(&[both[0]], Some(&[false, true]), false).unwrap();
    writer.append(&both, None, false).unwrap();
    assert_eq!(steps(&writer), [1, 2]);
}

#[test]
fn values_that_are_not_one_for_each_environment_are_refused() {
    assert_eq!(VectorWriter::new(0, config(4, 2)).err(), Some(WriterError::NoEnvironment));
    let mut writer = vector(3, config(4, 2));
    let length = WriterError::Length { path: "c0".into(), steps: 3, expected: 9, got: 6 };
    assert_eq!(writer.append(&[Some(&[0; 6])], None, false), Err(length));
    let column = WriterError::Column { column: 2, columns: 2 };
    assert_eq!(writer.append(&[None, None, Some(&[0; 3])], None, false), Err(column));
    let marks = WriterError::Environments { what: "marks", expected: 3, got: 2 };
    assert_eq!(writer.append(&[Some(&[0; 9])], Some(&[true; 2]), false), Err(marks.clone()));
    assert_eq!(writer.end_episode(Some(&[true; 2]), true), Err(marks));
    writer.append(&[Some(&[0; 9])], None, false).unwrap();
    let takes = [(0, Take::One(-1))];
    let signature = signature(&takes);
    let mut create = |priorities: &[f64], takes: &[_], marked: Option<&[bool]>| {
        writer.create_items(0, priorities, &signature, takes, marked)
    };
    let priorities = WriterError::Environments { what: "priorities", expected: 3, got: 1 };
    assert_eq!(create(&[1.0], &takes, None), Err(priorities));
    assert_eq!(create(&[1.0, -1.0, 1.0], &takes, None), Err(WriterError::Priority(-1.0)));
    let unmarked = create(&[1.0, -1.0, 1.0], &takes, Some(&[true, false, false]));
    assert_eq!(unmarked, Ok(vec![true, false, false]));
    let columns = TrajectoryError::Columns { expected: 1, got: 0 };
    assert_eq!(create(&[1.0; 3], &[], None), Err(columns.into()));
    for impossible in [
        Take::One(0),
        Take::Slice { start: -2, stop: 0, step: 0 },
        Take::Slice { start: -2, stop: -2, step: 1 },
    ] {
        assert!(create(&[1.0; 3], &[(0, impossible)], None).is_err(), "{impossible:?}");
    }
    assert!(create(&[1.0; 3], &[(7, Take::One(-1))], None).is_err());
}
