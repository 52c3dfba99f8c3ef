//! Producers in other processes, which are killed at any moment.
#![cfg(all(target_os = "linux", not(any(loom, miri, echoic_portable))))]

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use echoic_memory::{AttachError, BatchStore, Layout, Lease, RemoteStore, Unavailable, Writer};

/// A wide column for the value, and a narrow one that must agree with it.
const SLOT_BYTES: [usize; 2] = [8, 1];

/// Where a child finds its orders: descriptors, the layout, and who it is.
const ORDERS: &str = "ECHOIC_TEST_CHILD";

fn fill(writer: &mut Writer<'_>, first: u64) {
    let values = || first..first + writer_len(writer);
    let wide: Vec<u8> = values().flat_map(u64::to_ne_bytes).collect();
    let narrow: Vec<u8> = values().map(|value| value as u8).collect();
    let mut columns = writer.columns_mut();
    columns.next().unwrap().copy_from_slice(&wide);
    columns.next().unwrap().copy_from_slice(&narrow);
}

fn writer_len(writer: &Writer<'_>) -> u64 {
    writer.len() as u64
}

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Not a test by itself: what a child process does, until it is killed.
#[test]
fn child() {
    let Ok(orders) = std::env::var(ORDERS) else {
        return;
    };
    let orders: Vec<u64> = orders.split(' ').map(|number| number.parse().unwrap()).collect();
    let [ring, progress, owner, name, rest @ ..] = &orders[..] else { panic!("{orders:?}") };
    // SAFETY: the parent left both descriptors open for us, and we take each once.
    let [ring, progress] =
        [*ring, *progress].map(|fd| unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) });
    let progress = File::from(progress);
    let layout = Layout::from_words(rest.try_into().unwrap());
    let owner = u16::try_from(*owner).unwrap();
    let store = RemoteStore::attach(ring, &layout, &SLOT_BYTES, owner).unwrap();
    let (mut dice, mut next) = (Dice(*name), 0);
    loop {
        match store.try_reserve(1 + dice.roll(5) as usize) {
            Ok(writer) if dice.roll(16) == 0 => drop(writer),
            Ok(mut writer) => {
                fill(&mut writer, name << 32 | next);
                next += writer_len(&writer);
                writer.try_commit(|| 1).unwrap();
                // Every other child says how far it got; the others are killed inside the ring more
                // often.
                if name % 2 == 0 {
                    progress.write_at(&next.to_ne_bytes(), name * 8).unwrap();
                }
            }
            Err(Unavailable::Blocked(_)) => store.wait_for_room(None).unwrap_or_default(),
            Err(Unavailable::Closed) => return,
        }
    }
}

fn inherit(file: &impl AsRawFd) {
    // SAFETY: changes a flag of a descriptor that is ours.
    assert!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) } >= 0);
}

fn spawn(store: &BatchStore, progress: &File, owner: u16, name: u64) -> Child {
    let (ring, layout) = store.share().unwrap();
    let [a, b, c, d] = layout.to_words();
    let (ring, progress) = (ring.as_raw_fd(), progress.as_raw_fd());
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(ORDERS, format!("{ring} {progress} {owner} {name} {a} {b} {c} {d}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Which values of each producer came.
#[derive(Default)]
struct Received(HashMap<u64, Vec<bool>>);

impl Received {
    fn note(&mut self, batch: &Lease) {
        let values = batch.column(0).chunks(8).zip(batch.column(1));
        for (wide, narrow) in values {
            let value = u64::from_ne_bytes(wide.try_into().unwrap());
            assert_eq!(value as u8, *narrow, "the columns of {value:#x} disagree");
            let (name, index) = (value >> 32, (value & 0xffff_ffff) as usize);
            let seen = self.0.entry(name).or_default();
            if seen.len() <= index {
                seen.resize(index + 1, false);
            }
            assert!(!std::mem::replace(&mut seen[index], true), "{value:#x} came twice");
        }
    }

    /// How many values came of a producer, after checking that none is missing.
    fn count(&self, name: u64) -> u64 {
        let seen = self.0.get(&name).map(Vec::as_slice).unwrap_or_default();
        assert!(seen.iter().all(|seen| *seen), "a value of producer {name} is missing");
        seen.len() as u64
    }
}

fn memory_file() -> File {
    // SAFETY: the name is a C string; the result is checked and taken once.
    let fd = unsafe { libc::memfd_create(c"progress".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: as above.
    unsafe { File::from_raw_fd(fd) }
}

/// Children are killed at random moments and replaced, beside a thread of the server that produces
/// too. What they committed arrives once and whole, and the ring never sticks.
fn kill_children(buffers: usize, batch_size: usize, kills: u64) {
    const AT_ONCE: usize = 3;
    let store = Arc::new(BatchStore::new_shared(buffers, batch_size, &SLOT_BYTES).unwrap());
    let progress = memory_file();
    inherit(&store.share().unwrap().0);
    let done = AtomicBool::new(false);
    let mut dice = Dice(batch_size as u64);
    let (received, own) = std::thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            let mut received = Received::default();
            loop {
                match store.take(Some(Instant::now() + Duration::from_secs(20))) {
                    Ok(batch) => received.note(&batch),
                    Err(Unavailable::Closed) => return received,
                    Err(refusal) => panic!("stuck: {refusal:?} {:?}", store.counts()),
                }
            }
        });
        let producer = scope.spawn(|| {
            let mut next = 0;
            while !done.load(Ordering::Relaxed) {
                match store.try_reserve(2) {
                    Ok(mut writer) => {
                        fill(&mut writer, next);
                        next += writer_len(&writer);
                        writer.commit(|| 1);
                    }
                    Err(Unavailable::Blocked(_)) => {
                        let soon = Instant::now() + Duration::from_millis(50);
                        let _ = store.wait_for_room(Some(soon));
                    }
                    Err(Unavailable::Closed) => break,
                }
            }
            next
        });
        let mut living = Vec::new();
        for name in 1..=kills {
            let owner = store.add_peer().unwrap();
            living.push((owner, spawn(&store, &progress, owner, name)));
            if living.len() > AT_ONCE {
                std::thread::sleep(Duration::from_micros(dice.roll(12_000)));
                let (owner, mut child) = living.swap_remove(dice.roll(AT_ONCE as u64) as usize);
                child.kill().unwrap();
                child.wait().unwrap();
                store.reclaim(owner);
            }
        }
        for (owner, mut child) in living {
            child.kill().unwrap();
            child.wait().unwrap();
            store.reclaim(owner);
        }
        done.store(true, Ordering::Relaxed);
        let own = producer.join().unwrap();
        store.close();
        (consumer.join().unwrap(), own)
    });
    let mut received = received;
    if let Some(rest) = store.take_remainder(None).unwrap() {
        received.note(&rest);
    }
    assert_eq!(received.count(0), own);
    for name in 1..=kills {
        let mut reported = [0; 8];
        // A child that never got so far leaves nothing to read.
        let _ = progress.read_at(&mut reported, name * 8);
        assert!(received.count(name) >= u64::from_ne_bytes(reported), "producer {name}");
    }
    assert!((1..=kills).filter(|name| received.count(*name) > 0).count() as u64 > kills / 4);
}

#[test]
fn killed_children_lose_nothing_but_their_unfinished_run() {
    kill_children(3, 7, 300);
}

#[test]
fn killed_children_do_not_stop_a_ring_of_single_slots() {
    kill_children(4, 1, 200);
}

#[test]
fn another_process_must_agree_about_sizes() {
    let store = BatchStore::new_shared(2, 4, &SLOT_BYTES).unwrap();
    let (file, layout) = store.share().unwrap();
    let attach = |layout: Layout, slot_bytes: &[usize], owner| {
        RemoteStore::attach(file.try_clone_to_owned().unwrap(), &layout, slot_bytes, owner)
    };
    assert!(attach(layout, &SLOT_BYTES, 1).is_ok());
    assert!(matches!(attach(layout, &[800, 1], 1), Err(AttachError::Mismatch { .. })));
    assert!(matches!(attach(layout, &SLOT_BYTES, 0), Err(AttachError::Owner)));
    let other = |change: fn(&mut Layout)| {
        let mut layout = layout;
        change(&mut layout);
        attach(layout, &SLOT_BYTES, 1).unwrap_err()
    };
    assert!(matches!(other(|layout| layout.version += 1), AttachError::Version { .. }));
    for nonsense in [0, 1, 3, u64::MAX] {
        let mut changed = layout;
        changed.buffers = nonsense;
        assert!(attach(changed, &SLOT_BYTES, 1).is_err(), "{nonsense} buffers");
        let mut changed = layout;
        changed.batch_size = nonsense;
        assert!(attach(changed, &SLOT_BYTES, 1).is_err(), "{nonsense} samples");
        let mut changed = layout;
        changed.region_bytes = nonsense;
        assert!(attach(changed, &SLOT_BYTES, 1).is_err(), "{nonsense} bytes");
    }
    assert!(BatchStore::new(2, 4, &SLOT_BYTES).unwrap().share().is_none());
}

#[test]
fn a_shared_store_delivers_what_a_remote_one_writes() {
    let store = Arc::new(BatchStore::new_shared(2, 2, &SLOT_BYTES).unwrap());
    let (file, layout) = store.share().unwrap();
    let owner = store.add_peer().unwrap();
    let file = file.try_clone_to_owned().unwrap();
    let remote = RemoteStore::attach(file, &layout, &SLOT_BYTES, owner).unwrap();
    let mut writer = remote.try_reserve(2).unwrap();
    fill(&mut writer, 0x0102_0304);
    writer.try_commit(|| 5).unwrap();
    let batch = store.try_take().unwrap();
    assert_eq!((batch.stamp(), batch.column(1)), (5, &[4, 5][..]));
    assert_eq!(batch.column(0)[..8], 0x0102_0304u64.to_ne_bytes());
    drop(batch);
    let unfinished = remote.try_reserve(1).unwrap();
    store.close();
    assert!(remote.is_closed());
    assert_eq!(remote.try_reserve(1).unwrap_err(), Unavailable::Closed);
    assert_eq!(store.reclaim(owner), 1);
    assert!(unfinished.try_commit(|| 0).is_err(), "it was taken for dead");
    assert!(store.take_remainder(None).unwrap().is_none());
}
