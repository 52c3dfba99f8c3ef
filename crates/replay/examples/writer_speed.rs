//! What an append and an item cost: steps of 48 bytes in 5 columns, and items of all 5.
//!
//! `cargo run --release -p echoic-replay --example writer_speed`. It prints the best and the median of
//! 401 short rounds in nanoseconds; the bytes that come out are checked first.
#![expect(clippy::print_stdout, reason = "it is a measurement for people")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use echoic_replay::Dtype;
use echoic_replay::chunk::{Chunk, ColumnKind};
use echoic_replay::encoding::Policy;
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::writer::structured::{Pattern, PatternLeaf, Priority, StructuredWriter, Take};
use echoic_replay::writer::vector::VectorWriter;
use echoic_replay::writer::{
    ChunkId, ChunkLength, ColumnConfig, ItemSteps, OutgoingItem, Sink, Span, TrajectoryWriter,
};

/// Few, so that many rounds have a processor for themselves.
const STEPS: u64 = 2000;
const ROUNDS: usize = 401;
/// A divisor of the steps.
const ENVIRONMENTS: usize = 50;

/// Keeps the latest items, as a table would.
#[derive(Default)]
struct Latest {
    items: Vec<Option<Trajectory>>,
    next: usize,
    chunks: usize,
}

impl Sink for Latest {
    fn chunk(&mut self, _: ChunkId, _: &Arc<Chunk>) {
        self.chunks += 1;
    }

    fn item(&mut self, item: OutgoingItem<'_>) {
        if self.items.len() < 1000 {
            self.items.push(Some(item.trajectory));
        } else {
            self.items[self.next] = Some(item.trajectory);
        }
        self.next = (self.next + 1) % 1000;
    }
}

fn columns() -> Vec<Column> {
    let shapes = [vec![4], vec![], vec![], vec![4], vec![2]];
    let paths = ["obs", "action", "reward", "next_obs", "extra"];
    let column = |(path, shape): (&str, Vec<usize>)| Column {
        path: path.into(),
        kind: ColumnKind { dtype: Dtype::Float(4), shape },
        squeezed: true,
    };
    paths.into_iter().zip(shapes).map(column).collect()
}

/// Times `round` alone; `after` follows each.
fn measure<T>(
    name: &str,
    on: &mut T,
    mut round: impl FnMut(&mut T),
    mut after: impl FnMut(&mut T),
) {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            round(on);
            let time = start.elapsed();
            after(on);
            time.as_nanos() as f64 / STEPS as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name:36} best {:6.1} ns, median {:6.1} ns", times[0], times[ROUNDS / 2]);
}

fn main() {
    let data = [7u8; 16];
    let row = [
        Some(&data[..16]),
        Some(&data[..4]),
        Some(&data[..4]),
        Some(&data[..16]),
        Some(&data[..8]),
    ];
    let chunk_length = ChunkLength::Auto;
    let config = ColumnConfig { keep_alive: 1000, chunk_length, encoding: Policy::Never };
    let signature = Arc::new(Signature { structure: String::new(), columns: columns() });
    let mut writer = TrajectoryWriter::new(config).expect("it is right");
    for column in columns() {
        writer.column(&column.path, &column.kind).expect("it is new");
    }
    let (mut sink, mut steps) = (Latest::default(), ItemSteps::default());
    let create = |writer: &mut TrajectoryWriter, steps: &mut ItemSteps| {
        let first = writer.steps() - 1;
        steps.clear();
        for column in 0..5 {
            steps.column([Span { column, first, len: 1 }]);
        }
        writer.create_item(0, 1.0, &signature, steps).expect("the step exists");
    };
    writer.append(&row, false).expect("it fits");
    create(&mut writer, &mut steps);
    writer.flush(&mut sink);
    let mut bytes = [0; 16];
    let first = sink.items[0].as_ref().expect("it came");
    let slice = first.column(3).next().expect("a column has steps");
    slice.chunk.copy_to(0, &mut bytes);
    assert_eq!(bytes, data);

    let append = |writer: &mut TrajectoryWriter| {
        writer.append(black_box(&row), false).expect("it fits");
    };
    let rounds = |writer: &mut TrajectoryWriter| (0..STEPS).for_each(|_| append(writer));
    measure("append", &mut writer, rounds, |_| ());
    let many: Vec<Vec<u8>> = row.iter().flatten().map(|value| value.repeat(1000)).collect();
    let many: Vec<_> = many.iter().map(|values| Some(values.as_slice())).collect();
    let rounds = |writer: &mut TrajectoryWriter| {
        for _ in 0..STEPS / 1000 {
            writer.append_batch(1000, black_box(&many)).expect("it fits");
        }
    };
    measure("append_batch of 1000, per step", &mut writer, rounds, |_| ());
    let mut state = (writer, steps, sink);
    let rounds = |(writer, steps, _): &mut (TrajectoryWriter, ItemSteps, Latest)| {
        (0..STEPS).for_each(|_| create(writer, steps));
    };
    let flush = |(writer, _, sink): &mut (TrajectoryWriter, ItemSteps, Latest)| {
        append(writer);
        writer.flush(sink);
    };
    measure("create_item", &mut state, rounds, flush);
    let rounds = |(writer, steps, sink): &mut (TrajectoryWriter, ItemSteps, Latest)| {
        for _ in 0..STEPS {
            append(writer);
            create(writer, steps);
            writer.emit(sink);
        }
    };
    measure("append, create_item, emit", &mut state, rounds, |_| ());

    let leaf = |column: Column| PatternLeaf {
        path: column.path.clone(),
        source: column.path,
        take: Take::One(-1),
    };
    let pattern = Pattern {
        table: 0,
        structure: String::new(),
        leaves: columns().into_iter().map(leaf).collect(),
        conditions: vec![],
        priority: Priority::Constant(1.0),
    };
    let mut writer = StructuredWriter::new(ChunkLength::Auto, Policy::Never, vec![pattern])
        .expect("it is right");
    for column in columns() {
        writer.column(&column.path, &column.kind).expect("it is new");
    }
    let mut state = (writer, state.2);
    let rounds = |(writer, sink): &mut (StructuredWriter, Latest)| {
        for _ in 0..STEPS {
            writer.append(black_box(&row), false).expect("it fits");
            writer.emit(sink);
        }
    };
    measure("structured append, emit", &mut state, rounds, |_| ());

    let mut writer = VectorWriter::new(ENVIRONMENTS, config).expect("it is right");
    let takes: Vec<(u32, Take)> = columns()
        .iter()
        .map(|column| {
            (writer.column(&column.path, &column.kind).expect("it is new"), Take::One(-1))
        })
        .collect();
    let many: Vec<Vec<u8>> = row.iter().flatten().map(|value| value.repeat(ENVIRONMENTS)).collect();
    let many: Vec<_> = many.iter().map(|values| Some(values.as_slice())).collect();
    let mut state = (writer, state.1);
    let rounds = |(writer, _): &mut (VectorWriter, Latest)| {
        for _ in 0..STEPS / ENVIRONMENTS as u64 {
            writer.append(black_box(&many), None, false).expect("it fits");
        }
    };
    measure("append of 50 environments, per row", &mut state, rounds, |_| ());
    let rounds = |(writer, sink): &mut (VectorWriter, Latest)| {
        for _ in 0..STEPS / ENVIRONMENTS as u64 {
            writer.append(black_box(&many), None, false).expect("it fits");
            let priorities = &[1.0; ENVIRONMENTS];
            let made = writer.create_items(0, priorities, &signature, &takes, None);
            assert!(made.is_ok());
            writer.emit(sink);
        }
    };
    measure("the same, create_items, emit", &mut state, rounds, |_| ());
    black_box(state.1.chunks);
}
