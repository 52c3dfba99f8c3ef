//! The samples of a stream in checkpoints, and the thread that writes these.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use echoic_replay::Error;
use echoic_replay::stream::Wait;
use echoic_replay::table::Tables;
use echoic_replay::table::saved::{Checkpointer, Contents, load, open, save};
use echoic_replay::{Dtype, Leaf, Spec, Stream, StreamConfig};

fn stream(num_buffers: usize, batch_size: usize, dtype: Dtype) -> Arc<Stream> {
    let leaf = Leaf { path: "x".into(), dtype, shape: vec![] };
    let config = StreamConfig { batch_size, num_buffers };
    Arc::new(Stream::new(Spec::new(vec![leaf]).unwrap(), config).unwrap())
}

fn push(stream: &Stream, value: u64) -> bool {
    let Ok(mut sample) = stream.try_reserve(1) else { return false };
    sample.column_mut(0).copy_from_slice(&value.to_ne_bytes());
    sample.commit();
    true
}

fn take(stream: &Stream) -> Vec<u64> {
    let wait = Wait { deadline: None, tick: None, on_tick: &mut |_| unreachable!("no tick") };
    let batch = stream.take(wait).unwrap();
    let values = batch.column(0).chunks(8);
    values.map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn a_stream_goes_on_where_the_checkpoint_was_taken() {
    let root = tempfile::tempdir().unwrap();
    let (first, tables) = (stream(4, 3, Dtype::UInt(8)), Tables::default());
    assert!((0..10).all(|value| push(&first, value)));
    assert_eq!(take(&first), [0, 1, 2]);
    save(Contents { tables: &tables, stream: Some(&first), rollouts: &[] }, root.path(), &[])
        .unwrap();
    assert_eq!(take(&first), [3, 4, 5]);
    let second = stream(2, 5, Dtype::UInt(8));
    load(Contents { tables: &tables, stream: Some(&second), rollouts: &[] }, root.path()).unwrap();
    assert!((10..13).all(|value| push(&second, value)));
    assert_eq!((take(&second), take(&second)), (vec![3, 4, 5, 6, 7], vec![8, 9, 10, 11, 12]));
    assert!(open(root.path()).unwrap().all().is_empty());
}

#[test]
fn a_stream_that_does_not_fit_is_refused_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let (first, tables) = (stream(4, 3, Dtype::UInt(8)), Tables::default());
    assert!((0..10).all(|value| push(&first, value)));
    save(Contents { tables: &tables, stream: Some(&first), rollouts: &[] }, root.path(), &[])
        .unwrap();
    let refused = |stream: Option<&Stream>| {
        load(Contents { tables: &tables, stream, rollouts: &[] }, root.path())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(refused(None), "the stream: the checkpoint has one, the server has not");
    assert_eq!(
        refused(Some(&stream(4, 3, Dtype::Int(8)))),
        "the stream: the server's has x: int64[]; the checkpoint's has x: uint64[]"
    );
    let small = stream(3, 3, Dtype::UInt(8));
    assert_eq!(
        refused(Some(&small)),
        "the stream: 10 unread samples do not fit: the stream has room for 9"
    );
    assert_eq!(small.info().inserted_total, 0);
}

#[test]
fn a_checkpoint_beside_producers_and_a_consumer_has_a_piece_of_the_sequence() {
    let root = tempfile::tempdir().unwrap();
    let (tables, first) = (Arc::new(Tables::default()), stream(4, 16, Dtype::UInt(8)));
    let checkpointer =
        Checkpointer::new(Arc::clone(&tables), Some(first.clone()), root.path().into(), 2, "test");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0;
            while !done.load(Ordering::Relaxed) {
                value += u64::from(push(&first, value));
            }
            first.close();
        });
        scope.spawn(|| {
            let mut expected = 0;
            while !done.load(Ordering::Relaxed) {
                let Some(batch) = first.try_take() else { continue };
                let values = batch.column(0).chunks(8);
                for bytes in values {
                    assert_eq!(u64::from_ne_bytes(bytes.try_into().unwrap()), expected);
                    expected += 1;
                }
            }
        });
        for _ in 0..20 {
            checkpointer.save().unwrap();
            // Each sample is a batch here.
            let many = stream(64, 1, Dtype::UInt(8));
            let loaded =
                load(Contents { tables: &tables, stream: Some(&many), rollouts: &[] }, root.path());
            loaded.unwrap();
            let values: Vec<u64> = std::iter::from_fn(|| {
                let batch = many.try_take()?;
                Some(u64::from_ne_bytes(batch.column(0).try_into().unwrap()))
            })
            .collect();
            assert!(values.windows(2).all(|pair| pair[1] == pair[0] + 1), "{values:?}");
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn all_who_ask_are_told_and_old_checkpoints_go() {
    let root = tempfile::tempdir().unwrap();
    let checkpointer = Checkpointer::new(Arc::default(), None, root.path().into(), 2, "test");
    let checkpointer = Arc::new(checkpointer);
    let (sender, told) = mpsc::channel::<PathBuf>();
    for _ in 0..9 {
        let sender = sender.clone();
        checkpointer.ask(move |saved| sender.send(saved.as_ref().unwrap().clone()).unwrap());
    }
    drop(sender);
    let paths: Vec<PathBuf> = told.iter().collect();
    assert_eq!(paths.len(), 9);
    checkpointer.save().unwrap();
    checkpointer.save().unwrap();
    let folders = std::fs::read_dir(root.path()).unwrap();
    let checkpoints = folders
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("checkpoint-"));
    assert_eq!(checkpoints.count(), 2);
}

#[test]
fn who_asks_learns_why_there_is_no_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("foreign"), b"?").unwrap();
    let checkpointer =
        Arc::new(Checkpointer::new(Arc::default(), None, root.path().into(), 2, "test"));
    let (sender, told) = mpsc::channel::<bool>();
    checkpointer.ask(move |saved| {
        let refused = matches!(saved, Err(Error::Foreign { .. }));
        sender.send(refused).unwrap();
    });
    assert!(told.recv().unwrap());
}
