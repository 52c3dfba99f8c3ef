//! What callers of a stream may rely on.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use echoic_replay::stream::{Unread, UnreadError, Wait};
use echoic_replay::{Dtype, Leaf, Spec, Stream, StreamConfig, StreamError, WaitReason};

fn stream(num_buffers: usize, batch_size: usize) -> Stream {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::Int(8), shape: vec![] };
    let spec = Spec::new(vec![leaf]).unwrap();
    Stream::new(spec, StreamConfig { batch_size, num_buffers }).unwrap()
}

fn push(stream: &Stream, value: i64) -> Result<(), StreamError> {
    let mut sample = stream.try_reserve(1)?;
    sample.column_mut(0).copy_from_slice(&value.to_ne_bytes());
    sample.commit();
    Ok(())
}

#[test]
fn sizes_that_make_no_stream_are_refused() {
    let leaf = || Leaf { path: String::new(), dtype: Dtype::Bool, shape: vec![] };
    let new = |batch_size, num_buffers| {
        let spec = Spec::new(vec![leaf()]).unwrap();
        Stream::new(spec, StreamConfig { batch_size, num_buffers }).unwrap_err().to_string()
    };
    assert_eq!(new(0, 2), "batch_size must be at least 1, got 0");
    assert_eq!(new(8, 1), "num_buffers must be at least 2, got 1");
    assert!(new(usize::MAX, 2).contains("more bytes than an address can hold"));
}

#[test]
fn numbers_add_up() {
    let stream = stream(3, 2);
    (0..5).for_each(|value| push(&stream, value).unwrap());
    let info = stream.info();
    assert_eq!((info.capacity, info.inserted_total, info.store_size, info.partial), (6, 5, 5, 1));
    assert_eq!((info.batches_total, info.batches_ready, info.batches_free), (2, 2, 0));
    let batch = stream.try_take().unwrap();
    let info = stream.info();
    assert_eq!((info.delivered_total, info.batches_ready, info.batches_held), (1, 1, 1));
    assert_eq!((info.store_size, info.batches_free), (3, 0));
    assert!(info.oldest_hold > 0.0);
    drop(batch);
    let info = stream.info();
    assert_eq!((info.batches_held, info.batches_free, info.oldest_hold), (0, 1, 0.0));
    assert_eq!((info.hold_time.count, info.copy_time.count), (1, 5));
    assert_eq!(info.submit_to_available.count, 2, "of the batch that was taken");
}

#[test]
fn a_wait_that_is_interrupted_was_told_why_it_waits() {
    let stream = stream(2, 1);
    (0..2).for_each(|value| push(&stream, value).unwrap());
    let mut reasons = Vec::new();
    let mut on_tick = |reason| {
        reasons.push(reason);
        if reasons.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let wait = Wait { deadline: None, tick: Some(Duration::from_millis(1)), on_tick: &mut on_tick };
    assert_eq!(stream.wait_for_room(wait).unwrap_err(), StreamError::Interrupted);
    assert_eq!(reasons, [WaitReason::Capacity; 3]);
    assert_eq!(stream.info().blocked_pushes, 1);
    assert!(stream.info().blocked_time >= 3e-3);
}

#[test]
fn a_deadline_beats_the_tick() {
    let stream = stream(2, 1);
    let start = Instant::now();
    let mut on_tick = |_| ControlFlow::Continue(());
    let wait = Wait {
        deadline: Some(start + Duration::from_millis(20)),
        tick: Some(Duration::from_secs(3600)),
        on_tick: &mut on_tick,
    };
    assert_eq!(stream.take(wait).unwrap_err(), StreamError::TimedOut(WaitReason::Empty));
    assert!((20..3000).contains(&start.elapsed().as_millis()));
}

#[test]
fn waiting_for_room_counts_into_the_time_from_submit_to_available() {
    let stream = stream(2, 1);
    (0..2).for_each(|value| push(&stream, value).unwrap());
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| {
            let mut on_tick = |_| ControlFlow::Continue(());
            let wait = Wait { deadline: None, tick: None, on_tick: &mut on_tick };
            let submitted = stream.now();
            stream.wait_for_room(wait).unwrap();
            stream.try_reserve_since(Some(submitted), 1).unwrap().commit();
        });
        std::thread::sleep(Duration::from_millis(30));
        (0..2).for_each(|_| drop(stream.try_take().unwrap()));
        blocked.join().unwrap();
    });
    drop(stream.try_take().unwrap());
    let info = stream.info();
    assert!(info.submit_to_available.max >= 0.02, "{:?}", info.submit_to_available);
    assert!(info.copy_time.max < 0.02, "{:?}", info.copy_time);
}

/// A stream with two leaves, one of which has no elements.
fn wide(num_buffers: usize, batch_size: usize) -> Stream {
    let leaf = |path: &str, dtype, shape| Leaf { path: path.into(), dtype, shape };
    let leaves = vec![
        leaf("a", Dtype::Int(8), vec![]),
        leaf("b", Dtype::UInt(2), vec![0]),
        leaf("c", Dtype::UInt(1), vec![3]),
    ];
    Stream::new(Spec::new(leaves).unwrap(), StreamConfig { batch_size, num_buffers }).unwrap()
}

fn push_wide(stream: &Stream, value: i64) {
    let mut sample = stream.try_reserve(1).unwrap();
    sample.column_mut(0).copy_from_slice(&value.to_ne_bytes());
    sample.column_mut(2).copy_from_slice(&[value as u8; 3]);
    sample.commit();
}

#[test]
fn unread_samples_come_back_in_a_stream_of_other_batches() {
    let first = wide(3, 2);
    (0..6).for_each(|value| push_wide(&first, value));
    drop(first.try_take());
    push_wide(&first, 6);
    let unread = first.unread().unwrap();
    assert_eq!((unread.samples, unread.bytes.len()), (5, 5 * 11));
    let second = wide(2, 4);
    second.restore(&unread).unwrap();
    (7..10).for_each(|value| push_wide(&second, value));
    let batch = second.try_take().unwrap();
    let expected: Vec<u8> = (2..6i64).flat_map(i64::to_ne_bytes).collect();
    assert_eq!(batch.column(0), expected);
    assert_eq!(batch.column(2), [[2; 3], [3; 3], [4; 3], [5; 3]].concat());
    let batch = second.try_take().unwrap();
    let expected: Vec<u8> = (6..10i64).flat_map(i64::to_ne_bytes).collect();
    assert_eq!(batch.column(0), expected);
    // What was copied is still there for whoever takes it.
    assert_eq!(first.try_take().unwrap().column(2), [[2; 3], [3; 3]].concat());
}

#[test]
fn samples_are_brought_back_all_or_none() {
    let full = wide(2, 4);
    (0..8).for_each(|value| push_wide(&full, value));
    let unread = full.unread().unwrap();
    let small = wide(2, 3);
    let refused = small.restore(&unread).unwrap_err().to_string();
    assert_eq!(refused, "8 unread samples do not fit: the stream has room for 6");
    assert_eq!(small.info().inserted_total, 0);
    let used = wide(3, 4);
    push_wide(&used, 1);
    assert_eq!(used.restore(&unread), Err(UnreadError::Used));
    let torn = Unread { samples: 7, ..unread };
    let refused = wide(2, 4).restore(&torn).unwrap_err().to_string();
    assert_eq!(refused, "7 samples of 11 bytes each do not have 88 bytes");
}

#[test]
fn a_producer_that_stopped_inside_a_sample_is_an_error_and_not_a_guess() {
    let stream = wide(2, 4);
    push_wide(&stream, 1);
    let stopped = stream.try_reserve(1).unwrap();
    assert_eq!(stream.unread(), Err(UnreadError::Busy));
    drop(stopped);
    assert_eq!(stream.unread().unwrap().samples, 1);
}
