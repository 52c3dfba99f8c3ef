//! What callers of a trajectory writer may rely on.

use std::sync::{Arc, Weak};

use echoic_replay::chunk::{Chunk, ColumnKind};
use echoic_replay::encoding::Policy;
use echoic_replay::trajectory::{Column, Signature, Trajectory, TrajectoryError};
use echoic_replay::writer::{
    ChunkId, ChunkLength, ColumnConfig, ItemSteps, OutgoingItem, Sink, Span, StepRef,
    TrajectoryWriter, WriterError,
};
use echoic_replay::{Dtype, Episode};

#[derive(Default)]
struct Kept {
    chunks: Vec<Weak<Chunk>>,
    lengths: Vec<u32>,
    episodes: Vec<Option<Episode>>,
    items: Vec<Trajectory>,
    released: Vec<u64>,
}

impl Sink for Kept {
    fn chunk(&mut self, _: ChunkId, chunk: &Arc<Chunk>) {
        self.chunks.push(Arc::downgrade(chunk));
        self.lengths.push(chunk.len());
        self.episodes.push(chunk.episode());
    }

    fn item(&mut self, item: OutgoingItem<'_>) {
        self.items.push(item.trajectory);
    }

    fn release(&mut self, chunks: &[ChunkId]) {
        self.released.extend(chunks.iter().map(|chunk| chunk.0));
    }
}

fn byte() -> ColumnKind {
    ColumnKind { dtype: Dtype::UInt(1), shape: vec![] }
}

fn auto(keep_alive: u32) -> ColumnConfig {
    ColumnConfig { keep_alive, chunk_length: ChunkLength::Auto, encoding: Policy::Never }
}

fn config(keep_alive: u32, length: u32) -> ColumnConfig {
    let chunk_length = ChunkLength::Fixed(length);
    ColumnConfig { keep_alive, chunk_length, encoding: Policy::Never }
}

fn signature(columns: usize, squeezed: bool) -> Arc<Signature> {
    let column = Column { path: "x".into(), kind: byte(), squeezed };
    Arc::new(Signature { structure: String::new(), columns: vec![column; columns] })
}

fn span(column: u32, first: u64, len: u32) -> Span {
    Span { column, first, len }
}

/// A writer with columns `a` and `b` of bytes.
fn writer(config: ColumnConfig) -> TrajectoryWriter {
    let mut writer = TrajectoryWriter::new(config).unwrap();
    assert_eq!((writer.column("a", &byte()), writer.column("b", &byte())), (Ok(0), Ok(1)));
    writer
}

fn append(writer: &mut TrajectoryWriter, steps: std::ops::Range<u8>) {
    for step in steps {
        writer.append(&[Some(&[step]), Some(&[step + 100])], false).unwrap();
    }
}

fn create(
    writer: &mut TrajectoryWriter,
    columns: &[&[Span]],
    squeezed: bool,
) -> Result<(), WriterError> {
    let mut steps = ItemSteps::default();
    columns.iter().for_each(|spans| steps.column(spans.iter().copied()));
    writer.create_item(0, 1.0, &signature(columns.len(), squeezed), &steps).map(drop)
}

fn bytes(trajectory: &Trajectory, column: usize) -> Vec<u8> {
    let mut bytes = vec![0; trajectory.column_bytes(column)];
    trajectory.copy_column(column, &mut bytes);
    bytes
}

#[test]
fn columns_are_found_by_name_and_keep_their_kind() {
    let mut writer = writer(config(8, 4));
    assert_eq!(writer.column("b", &byte()), Ok(1));
    let other = ColumnKind { dtype: Dtype::Float(4), shape: vec![2] };
    let error = writer.column("a", &other).unwrap_err();
    assert_eq!(error.to_string(), "column `a` has uint8[] steps, got float32[2]");
    let huge = ColumnKind { dtype: Dtype::UInt(1), shape: vec![usize::MAX, 2] };
    assert_eq!(writer.column("c", &huge), Err(WriterError::TooLarge { path: "c".into() }));
    assert_eq!(writer.columns().len(), 2);
}

#[test]
fn a_config_that_makes_no_column_is_refused() {
    for (keep_alive, length) in [(0, 1), (8, 0), (8, 9)] {
        let error = TrajectoryWriter::new(config(keep_alive, length)).unwrap_err();
        assert_eq!(error, WriterError::Config { keep_alive, length });
        assert_eq!(writer(config(8, 8)).configure("a", config(keep_alive, length)), Err(error));
    }
    let nothing = ColumnConfig { keep_alive: 0, ..auto(1) };
    assert!(TrajectoryWriter::new(nothing).is_err());
}

#[test]
fn an_append_that_does_not_fit_changes_nothing() {
    let mut writer = writer(config(8, 4));
    append(&mut writer, 0..1);
    let length = WriterError::Length { path: "b".into(), steps: 1, expected: 1, got: 2 };
    assert_eq!(writer.append(&[Some(&[1]), Some(&[1, 2])], false), Err(length));
    let column = WriterError::Column { column: 2, columns: 2 };
    assert_eq!(writer.append(&[Some(&[1]), None, Some(&[1])], false), Err(column.clone()));
    assert_eq!(writer.append_with(&[0, 2], false, |_, _| ()), Err(column));
    let twice = |path: &str| WriterError::Twice { path: path.into(), step: 1 };
    assert_eq!(writer.append_with(&[1, 0, 1], false, |_, _| ()), Err(twice("b")));
    let batch = WriterError::Length { path: "a".into(), steps: 3, expected: 3, got: 2 };
    assert_eq!(writer.append_batch(3, &[Some(&[1, 2])]), Err(batch));
    let room = WriterError::Length { path: "a".into(), steps: 1, expected: 1, got: 2 };
    assert_eq!(writer.read(StepRef { column: 0, step: 0 }, &mut [0, 0]), Err(room));
    assert_eq!((writer.steps(), writer.step_is_open()), (1, false));
    assert_eq!(writer.history(0).unwrap().flatten().collect::<Vec<_>>(), [0]);
    writer.append(&[Some(&[1])], true).unwrap();
    let open = WriterError::StepOpen { step: 1 };
    assert_eq!(writer.append_batch(1, &[None, Some(&[2])]), Err(open));
}

#[test]
fn a_fill_that_panics_leaves_an_open_step_without_the_value() {
    let mut writer = writer(config(8, 4));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        writer.append_with(&[0, 1], false, |position, to| {
            assert_eq!(position, 0, "the second panics");
            to[0] = 5;
        })
    }));
    assert!(panicked.is_err() && writer.step_is_open());
    writer.append(&[None, Some(&[6])], false).unwrap();
    append(&mut writer, 7..8);
    create(&mut writer, &[&[span(0, 0, 2)], &[span(1, 0, 2)]], false).unwrap();
    let mut sink = Kept::default();
    writer.flush(&mut sink);
    assert_eq!((bytes(&sink.items[0], 0), bytes(&sink.items[0], 1)), (vec![5, 7], vec![6, 107]));
}

#[test]
fn an_item_that_can_not_be_is_refused_and_the_writer_lives_on() {
    let mut writer = writer(config(4, 2));
    let other = ColumnKind { dtype: Dtype::Int(1), shape: vec![] };
    assert_eq!(writer.column("other", &other), Ok(2));
    append(&mut writer, 0..10);
    let steps = |columns: &[Span]| {
        let mut steps = ItemSteps::default();
        columns.iter().for_each(|span| steps.column([*span]));
        steps
    };
    let fine = steps(&[span(0, 6, 4)]);
    for priority in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let result = writer.create_item(0, priority, &signature(1, false), &fine);
        assert!(matches!(result, Err(WriterError::Priority(_))), "{priority}: {result:?}");
    }
    let path = || "x".to_owned();
    let count = |expected, got| TrajectoryError::Steps { path: path(), expected, got }.into();
    let gone = WriterError::Gone { path: "a".into(), step: 5, keep_alive: 4 };
    let absent = |step| WriterError::Absent { path: "a".into(), step };
    let cases = [
        (signature(1, false), vec![span(0, 5, 2)], gone),
        (signature(1, false), vec![span(0, 9, 2)], absent(10)),
        (signature(1, false), vec![span(0, u64::MAX, u32::MAX)], absent(u64::MAX)),
        (signature(1, false), vec![span(3, 9, 1)], WriterError::Column { column: 3, columns: 3 }),
        (signature(1, false), vec![span(0, 9, 0)], count("at least 1", 0)),
        (signature(1, true), vec![span(0, 8, 2)], count("just 1", 2)),
        (signature(1, false), vec![span(2, 9, 1)], TrajectoryError::Kind { path: path() }.into()),
        // The first column is right, and must not stay behind in a queue.
        (signature(2, false), vec![span(0, 8, 2), span(0, 10, 1)], absent(10)),
        (
            signature(2, false),
            vec![span(0, 9, 1)],
            TrajectoryError::Columns { expected: 2, got: 1 }.into(),
        ),
    ];
    for (signature, spans, error) in cases {
        assert_eq!(writer.create_item(0, 1.0, &signature, &steps(&spans)), Err(error));
        assert_eq!(writer.pending(), 0);
    }
    writer.create_item(0, 0.0, &signature(1, false), &fine).unwrap();
    let mut sink = Kept::default();
    assert_eq!(writer.flush(&mut sink), 1);
    assert_eq!(bytes(&sink.items[0], 0), [6, 7, 8, 9]);
}

#[test]
fn an_item_is_ready_when_its_chunks_are_full() {
    let mut writer = writer(config(8, 4));
    let mut sink = Kept::default();
    append(&mut writer, 0..3);
    create(&mut writer, &[&[span(0, 2, 1)]], true).unwrap();
    assert_eq!((writer.emit(&mut sink), writer.pending()), (0, 1));
    append(&mut writer, 3..4);
    assert_eq!((writer.emit(&mut sink), writer.pending()), (1, 0));
    assert_eq!(sink.lengths, [4], "the other column was not named");
}

#[test]
fn an_item_does_not_wait_for_a_column_that_gets_no_more_values() {
    let mut writer = writer(config(8, 4));
    let mut sink = Kept::default();
    append(&mut writer, 0..1);
    create(&mut writer, &[&[span(0, 0, 1)], &[span(1, 0, 1)]], true).unwrap();
    for step in 1..5u8 {
        assert_eq!(writer.emit(&mut sink), 0);
        writer.append(&[Some(&[step])], false).unwrap();
    }
    assert_eq!(writer.emit(&mut sink), 1, "after as many steps as a chunk has");
    assert_eq!(sink.lengths, [4, 1]);
}

#[test]
fn a_flush_cuts_only_what_items_name() {
    let mut writer = writer(config(8, 4));
    let mut sink = Kept::default();
    append(&mut writer, 0..2);
    create(&mut writer, &[&[span(0, 1, 1)]], true).unwrap();
    assert_eq!(writer.flush(&mut sink), 1);
    append(&mut writer, 2..4);
    create(&mut writer, &[&[span(1, 0, 4)]], false).unwrap();
    assert_eq!(writer.flush(&mut sink), 1);
    assert_eq!(sink.lengths, [2, 4], "the second column was not cut by the first flush");
}

#[test]
fn a_batch_is_one_chunk_where_it_fits() {
    let mut writer = writer(config(100, 50));
    let steps: Vec<u8> = (0..120).collect();
    assert_eq!(writer.append_batch(120, &[Some(&steps)]), Ok(0..120));
    create(&mut writer, &[&[span(0, 20, 100)]], false).unwrap();
    let mut sink = Kept::default();
    writer.flush(&mut sink);
    assert_eq!(sink.lengths, [50, 50, 20]);
    assert_eq!(bytes(&sink.items[0], 0), steps[20..]);
}

#[test]
fn chunks_live_as_long_as_the_window_or_an_item() {
    let mut writer = writer(config(4, 2));
    let mut sink = Kept::default();
    append(&mut writer, 0..2);
    create(&mut writer, &[&[span(0, 0, 1)]], true).unwrap();
    create(&mut writer, &[&[span(0, 1, 1)]], true).unwrap();
    writer.emit(&mut sink);
    assert_eq!(sink.chunks.len(), 1, "two items, one chunk");
    append(&mut writer, 2..5);
    writer.emit(&mut sink);
    assert!(sink.released.is_empty(), "step 1 is in the window");
    append(&mut writer, 5..6);
    writer.emit(&mut sink);
    assert_eq!(sink.released, [0]);
    sink.items.pop();
    assert_eq!(sink.chunks[0].strong_count(), 1, "the other item has it");
    sink.items.pop();
    assert_eq!(sink.chunks[0].strong_count(), 0);
}

/// The most items that ever waited among the first 32, the most later, and the last lengths of chunks of
/// a prompt writer whose items have the last 20 steps at most, one item at every this many steps.
fn prompt(every: u64) -> (usize, usize, Vec<u32>) {
    let prompt = ColumnConfig { chunk_length: ChunkLength::Prompt, ..auto(64) };
    let (mut writer, mut sink) = (writer(prompt), Kept::default());
    let (mut first, mut later) = (0, 0);
    for step in 0..2_000 {
        append(&mut writer, 0..1);
        if step % every == 0 {
            let last =
                |column| span(column, u64::saturating_sub(step, 19), step.min(19) as u32 + 1);
            create(&mut writer, &[&[last(0)], &[last(1)]], false).unwrap();
        }
        writer.emit(&mut sink);
        let most = if step < 32 { &mut first } else { &mut later };
        *most = writer.pending().max(*most);
    }
    (first, later, sink.lengths.split_off(sink.lengths.len() - 4))
}

#[test]
fn prompt_items_wait_for_few_steps_and_the_first_for_none() {
    assert_eq!(prompt(1), (0, 7, vec![8; 4]), "chunks get longer, up to 8 steps");
    assert_eq!(prompt(40), (0, 0, vec![40; 4]), "chunks end where items do");
}

#[test]
fn memory_is_bounded_by_the_window() {
    let kind = ColumnKind { dtype: Dtype::UInt(1), shape: vec![1000] };
    for chunk_length in [ChunkLength::Auto, ChunkLength::Prompt, ChunkLength::Fixed(16)] {
        let mut writer = TrajectoryWriter::new(ColumnConfig { chunk_length, ..auto(64) }).unwrap();
        writer.column("a", &kind).unwrap();
        let mut most = 0;
        for step in 0..10_000u64 {
            writer.append(&[Some(&[0; 1000])], false).unwrap();
            most = most.max(writer.held_bytes());
            if step % 7 == 0 {
                let column = Column { path: String::new(), kind: kind.clone(), squeezed: false };
                let signature = Signature { structure: String::new(), columns: vec![column] };
                let mut steps = ItemSteps::default();
                steps.column([span(0, step.saturating_sub(20), step.min(20) as u32 + 1)]);
                writer.create_item(0, 1.0, &Arc::new(signature), &steps).unwrap();
                writer.emit(&mut Kept::default());
            }
        }
        // The window, and one chunk at each end.
        assert!(most <= (64 + 2 * 64) * 1000, "{most}");
    }
}

#[test]
fn chunks_get_shorter_where_items_name_few_steps() {
    let lengths = |every: u64, len: u32| {
        let kind = ColumnKind { dtype: Dtype::UInt(1), shape: vec![100] };
        let config = auto(300);
        let mut writer = TrajectoryWriter::new(config).unwrap();
        writer.column("a", &kind).unwrap();
        let column = Column { path: String::new(), kind, squeezed: false };
        let signature = Arc::new(Signature { structure: String::new(), columns: vec![column] });
        let (mut sink, mut steps) = (Kept::default(), ItemSteps::default());
        for step in 0..100_000u64 {
            writer.append(&[Some(&[0; 100])], false).unwrap();
            if step % every == every - 1 && step >= u64::from(len) {
                steps.clear();
                steps.column([span(0, step + 1 - u64::from(len), len)]);
                writer.create_item(0, 1.0, &signature, &steps).unwrap();
                writer.emit(&mut sink);
            }
        }
        let last = &sink.lengths[sink.lengths.len() - 20..];
        f64::from(last.iter().sum::<u32>()) / 20.0
    };
    assert_eq!(lengths(10, 20), 256.0, "items cover all steps");
    // Five steps of every hundred: in long chunks nearly all would be dragged along in vain.
    let seldom = lengths(100, 5);
    assert!(seldom <= 16.0, "{seldom}");
}

#[test]
fn chunks_know_their_episode_and_none_has_steps_of_two() {
    let mut writer = writer(config(20, 10));
    let mut sink = Kept::default();
    append(&mut writer, 0..4);
    // Values that no item names yet may be named later, by an item of both episodes.
    writer.end_episode(false);
    append(&mut writer, 4..8);
    create(&mut writer, &[&[span(0, 2, 4)], &[span(1, 5, 2)]], false).unwrap();
    // The step that is open belongs to the episode that ends.
    writer.append(&[Some(&[8])], true).unwrap();
    create(&mut writer, &[&[span(0, 8, 1)]], true).unwrap();
    writer.end_episode(true);
    assert_eq!((writer.episode(), writer.episode_start()), (2, 9));
    append(&mut writer, 9..10);
    create(&mut writer, &[&[span(0, 9, 1)], &[span(1, 9, 1)]], true).unwrap();
    writer.flush(&mut sink);
    let [both, second, third] = &sink.items[..] else { panic!("{}", sink.items.len()) };
    assert_eq!((bytes(both, 0), bytes(both, 1)), (vec![2, 3, 4, 5], vec![105, 106]));
    assert_eq!(sink.lengths, [4, 5, 4, 1, 1]);
    let [first, of_second, same, of_third, too] = sink.episodes[..] else { panic!() };
    assert!(first.is_some() && of_second.is_some() && of_third.is_some());
    assert_eq!((same, too), (of_second, of_third));
    let mut expected = [first, of_second].map(Option::unwrap);
    expected.sort_unstable();
    assert_eq!(both.episodes(), expected);
    assert_eq!(second.episodes(), [of_second.unwrap()]);
    assert_eq!(third.episodes(), [of_third.unwrap()]);
    assert!(first != of_second && of_second != of_third && first != of_third);
}

#[test]
fn a_value_that_was_not_written_is_of_no_episode() {
    let mut writer = writer(config(20, 10));
    let panics = std::panic::AssertUnwindSafe(|| {
        writer.append_with(&[0], false, |_, _| panic!("a value that can't be read"))
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    writer.end_episode(false);
    append(&mut writer, 0..1);
    create(&mut writer, &[&[span(0, 1, 1)], &[span(1, 1, 1)]], true).unwrap();
    let mut sink = Kept::default();
    writer.flush(&mut sink);
    assert_eq!((sink.lengths, sink.items[0].episodes().len()), (vec![1, 1], 1));
}

#[test]
fn writers_never_name_two_episodes_alike() {
    let mut episodes = Vec::new();
    for _ in 0..20 {
        let mut writer = writer(config(2, 1));
        for step in 0..20 {
            append(&mut writer, step..step + 1);
            create(&mut writer, &[&[span(0, step.into(), 1)]], true).unwrap();
            writer.end_episode(true);
        }
        let mut sink = Kept::default();
        writer.flush(&mut sink);
        episodes.extend(sink.episodes);
    }
    assert!(episodes.iter().all(Option::is_some));
    episodes.sort_unstable();
    episodes.dedup();
    assert_eq!(episodes.len(), 400);
}
