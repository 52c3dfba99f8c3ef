//! What callers of a writer by patterns may rely on.

use std::sync::Arc;

use echoic_replay::chunk::{Chunk, ColumnKind};
use echoic_replay::encoding::Policy;
use echoic_replay::spec::ANY_LENGTH;
use echoic_replay::writer::structured::{
    Condition, Pattern, PatternLeaf, Priority, Reduce, Scalar, StructuredError, StructuredWriter,
    Take, Term, Test,
};
use echoic_replay::writer::{ChunkId, ChunkLength, OutgoingItem, Sink, WriterError};
use echoic_replay::{Dtype, Leaf, Spec};
use proptest::prelude::*;

/// Table, priority, and the values of each column.
type Item = (u32, f64, Vec<Vec<i16>>);

#[derive(Default)]
struct Items(Vec<Item>);

impl Sink for Items {
    fn chunk(&mut self, _: ChunkId, _: &Arc<Chunk>) {}

    fn item(&mut self, item: OutgoingItem<'_>) {
        let columns = item.trajectory.signature().columns.len();
        let columns = (0..columns).map(|column| {
            let mut bytes = vec![0; item.trajectory.column_bytes(column)];
            item.trajectory.copy_column(column, &mut bytes);
            bytes.chunks(2).map(|pair| i16::from_ne_bytes([pair[0], pair[1]])).collect()
        });
        self.0.push((item.table, item.priority, columns.collect()));
    }
}

fn short() -> ColumnKind {
    ColumnKind { dtype: Dtype::Int(2), shape: vec![] }
}

fn slice(source: &str, start: i64, stop: i64, step: u32) -> PatternLeaf {
    PatternLeaf {
        path: "out".into(),
        source: source.into(),
        take: Take::Slice { start, stop, step },
    }
}

fn one(source: &str, index: i64) -> PatternLeaf {
    PatternLeaf { path: "out".into(), source: source.into(), take: Take::One(index) }
}

fn pattern(leaves: Vec<PatternLeaf>, conditions: Vec<Condition>) -> Pattern {
    let (structure, priority) = (String::new(), Priority::Constant(1.0));
    Pattern { table: 0, structure, leaves, conditions, priority }
}

/// A spec of one leaf named "out".
fn spec(dtype: Dtype, shape: &[usize]) -> Spec {
    Spec::of_trajectories(vec![Leaf { path: "out".into(), dtype, shape: shape.into() }]).unwrap()
}

#[test]
fn a_pattern_is_compared_with_a_spec_before_there_are_steps_and_with_the_first() {
    let last = pattern(vec![slice("a", -5, 0, 2)], vec![]);
    assert_eq!(last.leaves[0].take.steps(), 3);
    assert_eq!(last.columns().collect::<Vec<_>>(), ["a"]);
    for shape in [&[3][..], &[ANY_LENGTH]] {
        last.check_leaves(&spec(Dtype::Int(2), shape)).unwrap();
    }
    let refused = last.check_leaves(&spec(Dtype::Int(2), &[4])).unwrap_err();
    assert!(refused.contains("got one of 3 steps"), "{refused}");
    let refused = last.check_leaves(&spec(Dtype::Int(2), &[])).unwrap_err();
    assert!(refused.contains("got one of 3 steps"), "{refused}");
    let two = pattern(vec![one("a", -1), one("b", -1)], vec![]);
    let refused = two.check_leaves(&spec(Dtype::Int(2), &[])).unwrap_err();
    assert!(refused.contains("1 leaves, got 2"), "{refused}");
    let mut elsewhere = pattern(vec![one("a", -1)], vec![]);
    elsewhere.leaves[0].path = String::new();
    let refused = elsewhere.check_leaves(&spec(Dtype::Int(2), &[])).unwrap_err();
    assert!(refused.contains("`(root)`"), "{refused}");
    // What its values are is known with the first step.
    let kind = short();
    last.check_items(&spec(Dtype::Float(4), &[3]), |_| None).unwrap();
    last.check_items(&spec(Dtype::Int(2), &[3]), |name| (name == "a").then_some(&kind)).unwrap();
    let refused = last.check_items(&spec(Dtype::Float(4), &[3]), |_| Some(&kind)).unwrap_err();
    assert!(refused.contains("expected the leaf"), "{refused}");
}

fn compare(term: Term, modulo: Option<u32>, test: Test, value: i128) -> Condition {
    Condition::Compare { term, modulo, test, value: Scalar::Int(value) }
}

/// A writer with columns `a` and `b`.
fn writer(patterns: Vec<Pattern>) -> StructuredWriter {
    let mut writer = StructuredWriter::new(ChunkLength::Auto, Policy::Never, patterns).unwrap();
    assert_eq!((writer.column("a", &short()), writer.column("b", &short())), (Ok(0), Ok(1)));
    writer
}

fn append(
    writer: &mut StructuredWriter,
    a: Option<i16>,
    b: Option<i16>,
    partial: bool,
) -> Result<u64, StructuredError> {
    let (a, b) = (a.map(i16::to_ne_bytes), b.map(i16::to_ne_bytes));
    writer.append(&[a.as_ref().map(|a| &a[..]), b.as_ref().map(|b| &b[..])], partial)
}

fn flush(writer: &mut StructuredWriter) -> Vec<Item> {
    let mut items = Items::default();
    writer.flush(&mut items);
    items.0
}

/// Steps at which a pattern of the newest step is applied in an episode of ten.
fn applied(conditions: Vec<Condition>) -> Vec<i16> {
    let mut writer = writer(vec![pattern(vec![one("a", -1)], conditions)]);
    for step in 0..10 {
        append(&mut writer, Some(step), Some(-step), false).unwrap();
    }
    writer.end_episode(true).unwrap();
    flush(&mut writer).into_iter().map(|(_, _, columns)| columns[0][0]).collect()
}

#[test]
fn conditions_say_when() {
    use Term::{Data, StepIndex, StepsSinceApplied};
    let one = |term, modulo, test, value| applied(vec![compare(term, modulo, test, value)]);
    assert_eq!(applied(vec![]), (0..10).collect::<Vec<_>>());
    assert_eq!(one(StepIndex, None, Test::AtMost, 2), [0, 1, 2]);
    assert_eq!(one(StepIndex, None, Test::Less, 2), [0, 1]);
    assert_eq!(one(StepIndex, None, Test::AtLeast, 7), [7, 8, 9]);
    assert_eq!(one(StepIndex, None, Test::More, 7), [8, 9]);
    assert_eq!(one(StepIndex, None, Test::Equal, 3), [3]);
    assert_eq!(one(StepIndex, None, Test::NotEqual, 3), [0, 1, 2, 4, 5, 6, 7, 8, 9]);
    assert_eq!(one(StepIndex, Some(3), Test::Equal, 0), [0, 3, 6, 9]);
    assert_eq!(one(StepIndex, Some(3), Test::NotEqual, 0), [1, 2, 4, 5, 7, 8]);
    assert_eq!(one(StepsSinceApplied, None, Test::AtLeast, 4), [3, 7]);
    assert_eq!(one(StepsSinceApplied, None, Test::AtLeast, 3), [2, 5, 8]);
    assert_eq!(one(Data("a".into()), None, Test::More, 7), [8, 9]);
    // The values of `b` are 0, -1, -2, …
    assert_eq!(one(Data("b".into()), Some(4), Test::Equal, 3), [1, 5, 9]);
    assert_eq!(applied(vec![Condition::EndOfEpisode]), [9]);
    let both = vec![compare(StepIndex, Some(2), Test::Equal, 0), Condition::EndOfEpisode];
    assert!(applied(both).is_empty(), "the last step is an odd one");
    let two = vec![
        compare(StepIndex, Some(2), Test::Equal, 0),
        compare(Data("b".into()), None, Test::Less, -5),
    ];
    assert_eq!(applied(two), [6, 8]);
}

#[test]
fn slices_are_relative_to_the_newest_step() {
    let leaves =
        vec![one("a", -3), slice("b", -2, 0, 1), slice("a", -5, 0, 2), slice("b", -4, -1, 1)];
    let mut writer = writer(vec![pattern(leaves, vec![])]);
    for step in 0..7 {
        append(&mut writer, Some(step), Some(-step), false).unwrap();
    }
    let items = flush(&mut writer);
    let columns = |n: i16| {
        vec![vec![n - 2], vec![1 - n, -n], vec![n - 4, n - 2, n], vec![3 - n, 2 - n, 1 - n]]
    };
    let expected: Vec<Item> = (4..7).map(|newest| (0, 1.0, columns(newest))).collect();
    assert_eq!(items, expected, "not before there are five steps");
}

#[test]
fn a_pattern_is_applied_once_at_the_first_part_that_suffices() {
    let mut writer = writer(vec![
        Pattern { table: 1, ..pattern(vec![one("a", -1)], vec![]) },
        Pattern { table: 2, ..pattern(vec![one("a", -1), one("b", -1)], vec![]) },
    ]);
    let mut tables = |a, b, partial| {
        append(&mut writer, a, b, partial).unwrap();
        flush(&mut writer).into_iter().map(|(table, ..)| table).collect::<Vec<_>>()
    };
    assert_eq!(tables(Some(1), None, true), [1]);
    assert_eq!(tables(None, Some(1), true), [2]);
    assert!(tables(None, None, false).is_empty());
    assert_eq!(tables(Some(1), Some(2), false), [1, 2]);
    assert!(tables(None, Some(3), false).is_empty(), "a step without the column");
}

#[test]
fn patterns_span_episodes_only_when_the_history_is_not_cleared() {
    for (clear, expected) in [(true, vec![]), (false, vec![vec![0, 1]])] {
        let first = compare(Term::StepIndex, None, Test::Equal, 0);
        let mut writer = writer(vec![pattern(vec![slice("a", -2, 0, 1)], vec![first])]);
        append(&mut writer, Some(0), None, false).unwrap();
        writer.end_episode(clear).unwrap();
        append(&mut writer, Some(1), None, false).unwrap();
        let got: Vec<_> = flush(&mut writer).into_iter().map(|(_, _, mut c)| c.remove(0)).collect();
        assert_eq!(got, expected);
    }
}

#[test]
fn the_end_of_an_episode_without_steps_applies_nothing() {
    let mut writer = writer(vec![pattern(vec![one("a", -1)], vec![Condition::EndOfEpisode])]);
    writer.end_episode(false).unwrap();
    append(&mut writer, Some(0), None, true).unwrap();
    writer.end_episode(false).unwrap();
    writer.end_episode(false).unwrap();
    assert_eq!(flush(&mut writer), [(0, 1.0, vec![vec![0]])]);
}

#[test]
fn priorities_are_computed_from_a_column_of_the_item() {
    let leaves = || vec![one("a", -1), slice("b", -3, 0, 1)];
    let with = |reduce, absolute| Pattern {
        priority: Priority::Column { leaf: 1, reduce, absolute },
        ..pattern(leaves(), vec![])
    };
    let mut writer = writer(vec![
        with(Reduce::Max, true),
        with(Reduce::Mean, true),
        with(Reduce::Last, true),
        with(Reduce::Max, false),
    ]);
    for (step, b) in [4, -9, 2].into_iter().enumerate() {
        append(&mut writer, Some(step as i16), Some(b), false).unwrap();
    }
    let priorities: Vec<_> = flush(&mut writer).into_iter().map(|item| item.1).collect();
    assert_eq!(priorities, [9.0, 5.0, 2.0, 4.0]);
}

#[test]
fn a_refused_priority_costs_only_its_item() {
    let signed = Priority::Column { leaf: 0, reduce: Reduce::Last, absolute: false };
    let mut writer = writer(vec![
        Pattern { priority: signed, ..pattern(vec![one("b", -1)], vec![]) },
        Pattern { table: 1, ..pattern(vec![one("a", -1)], vec![]) },
    ]);
    let refused = StructuredError::Writer(WriterError::Priority(-5.0));
    assert_eq!(append(&mut writer, Some(1), Some(-5), false), Err(refused.clone()));
    assert_eq!(append(&mut writer, Some(2), Some(6), false), Ok(1), "the step was taken");
    let batch: Vec<u8> = [3i16, 4].iter().flat_map(|value| value.to_ne_bytes()).collect();
    let negative: Vec<u8> = [-5i16, 7].iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert_eq!(writer.append_batch(2, &[Some(&batch), Some(&negative)]), Err(refused));
    let items: Vec<_> = flush(&mut writer).into_iter().map(|item| (item.0, item.1)).collect();
    assert_eq!(items, [(1, 1.0), (0, 6.0), (1, 1.0), (1, 1.0), (0, 7.0), (1, 1.0)]);
}

#[test]
fn a_batch_is_the_same_as_its_steps() {
    let patterns = || vec![pattern(vec![slice("a", -3, 0, 2)], vec![])];
    let values: Vec<u8> = (0..20i16).flat_map(i16::to_ne_bytes).collect();
    let (mut single, mut batch) = (writer(patterns()), writer(patterns()));
    for step in 0..20 {
        append(&mut single, Some(step), None, false).unwrap();
    }
    assert_eq!(batch.append_batch(20, &[Some(&values)]), Ok(0..20));
    assert!(batch.append_batch(2, &[Some(&values)]).is_err(), "twenty are not two");
    let items = flush(&mut single);
    assert_eq!((items.len(), &items), (18, &flush(&mut batch)));
}

#[test]
fn columns_that_no_pattern_needs_are_not_kept() {
    let condition = compare(Term::Data("b".into()), None, Test::Equal, 5);
    let mut writer = writer(vec![pattern(vec![one("a", -1)], vec![condition])]);
    let wide = ColumnKind { dtype: Dtype::UInt(1), shape: vec![1 << 20] };
    assert_eq!(writer.column("c", &wide), Ok(2));
    let (value, wide) = (5i16.to_ne_bytes(), vec![0; 1 << 20]);
    for _ in 0..10 {
        writer.append(&[Some(&value), Some(&value), Some(&wide)], false).unwrap();
    }
    assert!(writer.append(&[None, None, Some(&[1])], false).is_err(), "but they are checked");
    assert!(writer.writer().held_bytes() < 1 << 20);
    assert_eq!(flush(&mut writer).len(), 10);
}

#[test]
fn what_can_never_be_applied_is_refused() {
    let new = |pattern| {
        StructuredWriter::new(ChunkLength::Auto, Policy::Never, vec![pattern]).unwrap_err()
    };
    assert_eq!(new(pattern(vec![], vec![])), StructuredError::Empty);
    for (start, stop, step) in [(0, 0, 1), (-2, 1, 1), (-2, -2, 1), (-2, -3, 1), (-2, 0, 0)] {
        let error = StructuredError::Slice { path: "out".into(), start, stop, step };
        assert_eq!(new(pattern(vec![slice("a", start, stop, step)], vec![])), error);
    }
    assert!(matches!(new(pattern(vec![one("a", 0)], vec![])), StructuredError::Slice { .. }));
    assert!(matches!(
        new(pattern(vec![one("a", i64::MIN)], vec![])),
        StructuredError::Slice { .. }
    ));
    let by_zero = compare(Term::StepIndex, Some(0), Test::Equal, 0);
    assert_eq!(new(pattern(vec![one("a", -1)], vec![by_zero])), StructuredError::Modulo);
    let with = |priority| Pattern { priority, ..pattern(vec![one("a", -1)], vec![]) };
    assert_eq!(new(with(Priority::Constant(-1.0))), StructuredError::Priority(-1.0));
    let reduced = |leaf, reduce| Priority::Column { leaf, reduce, absolute: true };
    let error = StructuredError::PriorityLeaf { leaf: 1, leaves: 1 };
    assert_eq!(new(with(reduced(1, Reduce::Last))), error);
    let mixed = Reduce::Mixed { eta: 1.5 };
    assert_eq!(new(with(reduced(0, mixed))), StructuredError::Mixed(1.5));
    assert!(StructuredWriter::new(ChunkLength::Fixed(0), Policy::Never, vec![]).is_err());
}

#[test]
fn a_condition_needs_a_column_of_numbers() {
    let condition = compare(Term::Data("c".into()), None, Test::Equal, 5);
    let mut writer = writer(vec![pattern(vec![one("a", -1)], vec![condition])]);
    let pair = ColumnKind { dtype: Dtype::Float(4), shape: vec![2] };
    let error = writer.column("c", &pair).unwrap_err();
    assert_eq!(
        error.to_string(),
        "column `c` has float32[2] steps; a condition or priority needs one real number"
    );
    assert_eq!(writer.column("c", &ColumnKind { shape: vec![1], ..pair }), Ok(2));
}

proptest! {
    #[test]
    fn slices_are_those_of_the_list_of_steps(
        start in -6i64..0,
        len in 1i64..6,
        step in 1u32..4,
        length in 1u32..5,
        given in prop::collection::vec(prop::bool::weighted(0.9), 0..40),
    ) {
        let stop = (start + len).min(0);
        let patterns = vec![pattern(vec![slice("a", start, stop, step)], vec![])];
        let length = ChunkLength::Fixed(length);
        let mut writer = StructuredWriter::new(length, Policy::Never, patterns).unwrap();
        writer.column("a", &short()).unwrap();
        let mut model: Vec<Option<i16>> = vec![];
        let mut expected: Vec<Item> = vec![];
        for (index, given) in given.into_iter().enumerate() {
            model.push(given.then_some(index as i16));
            let value = model[index].map(i16::to_ne_bytes);
            writer.append(&[value.as_ref().map(|value| &value[..])], false).unwrap();
            let n = model.len() as i64;
            if n + start < 0 {
                continue;
            }
            let slice = model[(n + start) as usize..(n + stop) as usize].iter().step_by(step as usize);
            if let Some(values) = slice.copied().collect::<Option<Vec<_>>>() {
                expected.push((0, 1.0, vec![values]));
            }
        }
        let mut items = Items::default();
        writer.flush(&mut items);
        prop_assert_eq!(items.0, expected);
    }
}
