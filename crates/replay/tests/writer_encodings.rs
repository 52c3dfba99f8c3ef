//! What the chunks of a writer look like, and that their values are those that were appended.

use std::sync::Arc;

use echoic_replay::Dtype;
use echoic_replay::chunk::{Chunk, ColumnKind};
use echoic_replay::encoding::{Encoding, Policy};
use echoic_replay::table::{Form, Table, TableConfig};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::writer::{
    ChunkId, ChunkLength, ColumnConfig, ItemSteps, OutgoingItem, Sink, Span, StepRef,
    TrajectoryWriter,
};
use proptest::prelude::*;

const POLICIES: [Policy; 6] = [
    Policy::Never,
    Policy::Auto,
    Policy::Always(Encoding::Lz4),
    Policy::Always(Encoding::Zstd),
    Policy::Always(Encoding::DeltaLz4),
    Policy::Always(Encoding::DeltaZstd),
];

#[derive(Default)]
struct Kept {
    chunks: Vec<Arc<Chunk>>,
    items: Vec<Trajectory>,
}

impl Sink for Kept {
    fn chunk(&mut self, _: ChunkId, chunk: &Arc<Chunk>) {
        self.chunks.push(Arc::clone(chunk));
    }

    fn item(&mut self, item: OutgoingItem<'_>) {
        self.items.push(item.trajectory);
    }
}

fn config(keep_alive: u32, length: u32, encoding: Policy) -> ColumnConfig {
    ColumnConfig { keep_alive, chunk_length: ChunkLength::Fixed(length), encoding }
}

fn frame() -> ColumnKind {
    ColumnKind { dtype: Dtype::UInt(1), shape: vec![20, 20] }
}

fn signature(columns: Vec<Column>) -> Arc<Signature> {
    Arc::new(Signature { structure: String::new(), columns })
}

fn column(kind: &ColumnKind) -> Column {
    Column { path: "x".into(), kind: kind.clone(), squeezed: false }
}

/// Bytes that no encoding makes smaller.
fn noise(step: u64, at: usize) -> u8 {
    let mut state = (step << 32 | at as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state >> 56) as u8
}

#[test]
fn a_chunk_has_one_form_however_many_items_name_it() {
    let mut writer = TrajectoryWriter::new(config(10, 5, Policy::Auto)).unwrap();
    writer.column("x", &frame()).unwrap();
    for step in 0..10u8 {
        writer.append(&[Some(&[step; 400])], false).unwrap();
    }
    let signature = signature(vec![column(&frame())]);
    let mut kept = Kept::default();
    for first in 0..5 {
        let mut steps = ItemSteps::default();
        steps.column([Span { column: 0, first, len: 5 }]);
        writer.create_item(0, 1.0, &signature, &steps).unwrap();
        writer.flush(&mut kept);
    }
    assert_eq!(kept.chunks.len(), 2);
    for slice in kept.items.iter().flat_map(|item| item.slices()) {
        assert!(kept.chunks.iter().any(|chunk| Arc::ptr_eq(chunk, slice.chunk)));
    }
    // The writer still has the values themselves.
    let mut value = [0; 400];
    writer.read(StepRef { column: 0, step: 3 }, &mut value).unwrap();
    assert_eq!(value, [3; 400]);
    let packed: usize = kept.chunks.iter().map(|chunk| chunk.encoded_bytes().len()).sum();
    assert_eq!(writer.held_bytes(), 10 * 400 + packed);
}

#[test]
fn another_encoding_counts_from_the_next_chunk_that_is_handed_over() {
    let mut writer = TrajectoryWriter::new(config(8, 2, Policy::Never)).unwrap();
    writer.configure("late", config(8, 2, Policy::Always(Encoding::Zstd))).unwrap();
    for path in ["x", "late"] {
        writer.column(path, &frame()).unwrap();
    }
    let signature = signature(vec![column(&frame()), column(&frame())]);
    let mut kept = Kept::default();
    for encoding in [Policy::Never, Policy::Always(Encoding::Lz4)] {
        writer.configure("x", config(8, 2, encoding)).unwrap();
        let first = writer.steps();
        for _ in 0..2 {
            writer.append(&[Some(&[1; 400]), Some(&[1; 400])], false).unwrap();
        }
        let mut steps = ItemSteps::default();
        (0..2).for_each(|column| steps.column([Span { column, first, len: 2 }]));
        writer.create_item(0, 1.0, &signature, &steps).unwrap();
        writer.flush(&mut kept);
    }
    let forms: Vec<Encoding> = kept.chunks.iter().map(|chunk| chunk.encoding()).collect();
    assert_eq!(forms, [Encoding::Raw, Encoding::Zstd, Encoding::Lz4, Encoding::Zstd]);
}

#[test]
fn encodings_have_names() {
    let names = ["none", "auto", "lz4", "zstd", "delta+lz4", "delta+zstd"];
    for (name, policy) in names.into_iter().zip(POLICIES) {
        assert_eq!(name.parse(), Ok(policy));
    }
    for name in ["", "raw", "LZ4", "delta", "gzip"] {
        let error = name.parse::<Policy>().unwrap_err().to_string();
        assert!(error.contains(&format!("{name:?}")) && error.contains("delta+zstd"), "{error}");
    }
}

fn table() -> Arc<Table> {
    Table::new(TableConfig::new("t", Form::Trajectories(None), 1000)).unwrap().into()
}

fn kind() -> impl Strategy<Value = ColumnKind> {
    let dtypes = [
        Dtype::Bool,
        Dtype::Int(2),
        Dtype::UInt(1),
        Dtype::Float(4),
        Dtype::Float(8),
        Dtype::BFloat16,
        Dtype::Complex(16),
        Dtype::Bytes(5),
    ];
    let shape = prop_oneof![
        Just(vec![]),
        (0usize..4).prop_map(|axis| vec![axis]),
        (1usize..40, 1usize..9).prop_map(|(rows, columns)| vec![rows, columns]),
    ];
    (prop::sample::select(dtypes.to_vec()), shape)
        .prop_map(|(dtype, shape)| ColumnKind { dtype, shape })
}

/// The steps of an item's columns, as first step and number.
type Spans = Vec<(u64, u32)>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 120 } else { 1000 }))]

    /// Items of two leaves, both of one column, as an observation and the next one are.
    #[test]
    fn a_batch_has_the_values_that_were_appended(
        policy in prop::sample::select(POLICIES.to_vec()),
        kind in kind(),
        length in 1u32..40,
        seed in any::<u64>(),
        roughness in 0u64..4,
        items in prop::collection::vec(
            prop::collection::vec((0u64..40, 1u32..40), 2..4), 1..12
        ),
    ) {
        let bytes = kind.step_bytes().unwrap();
        let value = |step: u64| -> Vec<u8> {
            (0..bytes)
                .map(|at| match roughness {
                    0 => 3,
                    1 => (step + at as u64 / 8) as u8,
                    2 => noise(seed, at).wrapping_add(step as u8),
                    _ => noise(seed ^ step, at),
                })
                .collect()
        };
        let mut writer = TrajectoryWriter::new(config(40, length, policy)).unwrap();
        writer.column("x", &kind).unwrap();
        let all: Vec<Vec<u8>> = (0..40).map(value).collect();
        for step in &all {
            writer.append(&[Some(step)], false).unwrap();
        }
        let signature = signature(vec![column(&kind); 2]);
        let mut kept = Kept::default();
        let mut expected = vec![];
        for spans in items {
            let fit = |(first, len): &(u64, u32)| (*first, (*len).min(40 - *first as u32));
            let spans: Spans = spans.iter().map(fit).collect();
            let (now, next) = spans.split_at(1);
            let mut steps = ItemSteps::default();
            for part in [now, next] {
                let span = |(first, len): &(u64, u32)| Span { column: 0, first: *first, len: *len };
                steps.column(part.iter().map(span));
            }
            writer.create_item(0, 1.0, &signature, &steps).unwrap();
            expected.push([now, next].map(|part| {
                let steps = part.iter().flat_map(|(first, len)| {
                    &all[*first as usize..*first as usize + *len as usize]
                });
                steps.cloned().collect::<Vec<_>>().concat()
            }));
        }
        prop_assert_eq!(writer.flush(&mut kept), expected.len());
        let table = table();
        for item in &kept.items {
            table.try_insert(item, 1.0, None).unwrap();
        }
        // The items in the order of a draw with repetitions, so that batches name chunks often.
        let keys = table.items().keys;
        let order: Vec<usize> =
            (0..3 * keys.len()).map(|at| (seed as usize).wrapping_add(at * at) % keys.len()).collect();
        let drawn: Vec<u64> = order.iter().map(|at| keys[*at]).collect();
        let batch = table.get(&drawn);
        let want = [0, 1].map(|column| {
            order.iter().flat_map(|at| expected[*at][column].clone()).collect::<Vec<u8>>()
        });
        let mut got = [vec![1; want[0].len()], vec![1; want[1].len()]];
        let [now, next] = &mut got;
        batch.gather(&mut [now, next]);
        prop_assert_eq!(&got, &want);
    }
}
