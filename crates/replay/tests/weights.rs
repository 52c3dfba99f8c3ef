//! What a store of weights promises to learners and workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use echoic_replay::stream::Wait;
use echoic_replay::weights::{
    CHUNK_BYTES, Plan, Publication, PublicationBuilder, WeightStore, WeightsConfig, WeightsError,
    sum,
};
use echoic_replay::{Dtype, Leaf, WaitReason};

#[path = "common/waiting.rs"]
mod waiting;

use waiting::{soon, within};

fn plan(lengths: &[usize]) -> Arc<Plan> {
    let leaf = |(number, bytes): (usize, &usize)| Leaf {
        path: format!("w{number}"),
        dtype: Dtype::UInt(1),
        shape: vec![*bytes],
    };
    let leaves = lengths.iter().enumerate().map(leaf).collect();
    Arc::new(Plan::new(String::new(), leaves).unwrap())
}

fn at_once<T>(attempt: impl FnOnce(Wait<'_>) -> T) -> T {
    within(Duration::ZERO, attempt)
}

fn publish(
    store: &WeightStore,
    version: u64,
    plan: &Arc<Plan>,
) -> Result<Arc<Publication>, WeightsError> {
    let mut builder = at_once(|wait| store.builder(version, plan, wait))?;
    for leaf in 0..plan.offsets().len() {
        builder.leaf_mut(leaf).fill(version as u8);
    }
    builder.publish()
}

fn bytes(publication: &Publication) -> &[u8] {
    publication.content().and_then(|content| content.bytes()).unwrap()
}

fn store(most: usize) -> WeightStore {
    WeightStore::new(WeightsConfig { most, ..WeightsConfig::default() }).unwrap()
}

#[test]
fn the_latest_publication_wins() {
    let (store, plan) = (store(3), plan(&[10, 100]));
    for version in [1, 2, 7] {
        publish(&store, version, &plan).unwrap();
    }
    let latest = store.latest().unwrap();
    assert_eq!((latest.version(), latest.serial()), (7, 3));
    assert_eq!(bytes(&latest)[..10], [7; 10]);
    assert_eq!(bytes(&latest)[10..64], [0; 54], "between leaves are zeros");
    assert_eq!(bytes(&latest)[64..], [7; 100]);
}

#[test]
fn a_version_that_does_not_rise_is_refused_and_both_are_named() {
    let (store, plan) = (store(3), plan(&[1]));
    publish(&store, 5, &plan).unwrap();
    for version in [5, 4] {
        let refused = publish(&store, version, &plan).unwrap_err();
        assert_eq!(refused, WeightsError::Stale { version, latest: 5 });
        assert_eq!(
            store.publish_version(version).unwrap_err(),
            WeightsError::Stale { version, latest: 5 }
        );
        let text = refused.to_string();
        assert!(text.contains(&version.to_string()) && text.contains('5'), "{text}");
    }
    assert_eq!(store.latest().unwrap().version(), 5);
}

#[test]
fn the_slower_of_two_learners_with_one_version_is_refused() {
    let (store, plan) = (store(4), plan(&[1]));
    let first = at_once(|wait| store.builder(1, &plan, wait)).unwrap();
    let second = at_once(|wait| store.builder(1, &plan, wait)).unwrap();
    second.publish().unwrap();
    assert!(matches!(first.publish(), Err(WeightsError::Stale { version: 1, latest: 1 })));
    assert_eq!(store.info().alive, 1, "what was refused gives its place back");
}

#[test]
fn what_somebody_has_never_changes() {
    let (store, plan) = (store(3), plan(&[1000]));
    let held = publish(&store, 1, &plan).unwrap();
    for version in 2..20 {
        publish(&store, version, &plan).unwrap();
        assert_eq!(bytes(&held), [1; 1000]);
    }
}

#[test]
fn memory_is_used_again_when_nobody_has_it() {
    let (store, plan) = (store(2), plan(&[1000]));
    let mut seen = std::collections::HashSet::new();
    for version in 1..20 {
        let publication = publish(&store, version, &plan).unwrap();
        seen.insert(publication.content().unwrap().pointer());
    }
    assert_eq!(seen.len(), 2);
}

#[test]
#[cfg_attr(any(echoic_portable, not(target_os = "linux")), ignore = "shm:// needs Linux")]
fn spoiled_memory_is_not_written_again() {
    let (store, plan) = (store(2), plan(&[1000]));
    let spoiled = publish(&store, 1, &plan).unwrap();
    let buffer = spoiled.content().unwrap().file().unwrap().0;
    spoiled.content().unwrap().spoil();
    drop(spoiled);
    for version in 2..9 {
        let publication = publish(&store, version, &plan).unwrap();
        assert_ne!(publication.content().unwrap().file().unwrap().0, buffer);
    }
}

#[test]
fn a_publisher_waits_while_all_places_are_held_and_it_is_counted() {
    let (store, plan) = (store(3), plan(&[1]));
    let first = publish(&store, 1, &plan).unwrap();
    let _second = publish(&store, 2, &plan).unwrap();
    publish(&store, 3, &plan).unwrap();
    let refused = publish(&store, 4, &plan).unwrap_err();
    assert_eq!(refused, WeightsError::TimedOut(WaitReason::Leased));
    assert_eq!((store.info().blocked, store.info().alive), (1, 3));
    let wait = Duration::from_secs(20);
    std::thread::scope(|scope| {
        let built = scope.spawn(|| within(wait, |wait| store.builder(4, &plan, wait)).is_ok());
        drop(first);
        assert!(built.join().unwrap());
    });
}

#[test]
fn who_waits_is_woken_by_what_is_published() {
    let (store, plan) = (store(3), plan(&[1]));
    let newer = |latest: &Arc<Publication>| (latest.version() > 1).then(|| latest.version());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| soon(|wait| store.wait(wait, newer)));
        publish(&store, 1, &plan).unwrap();
        store.publish_version(2).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(2));
    });
    assert!(store.latest().unwrap().content().is_none());
    let nothing = at_once(|wait| store.wait(wait, |latest| (latest.version() > 2).then_some(())));
    assert_eq!(nothing, Err(WeightsError::TimedOut(WaitReason::Empty)));
}

#[test]
fn a_closed_store_wakes_who_waits_and_keeps_what_is_held() {
    let (store, plan) = (store(3), plan(&[4]));
    let held = publish(&store, 1, &plan).unwrap();
    let never = |_: &Arc<Publication>| None::<()>;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| soon(|wait| store.wait(wait, never)));
        store.close();
        assert_eq!(waiter.join().unwrap(), Err(WeightsError::Closed));
    });
    assert_eq!(publish(&store, 2, &plan).unwrap_err(), WeightsError::Closed);
    drop(store);
    assert_eq!(bytes(&held), [1; 4]);
}

#[test]
fn sums_are_those_of_the_chunks_wherever_they_came_from() {
    let (store, plan) = (store(3), plan(&[CHUNK_BYTES + 10]));
    let published = publish(&store, 1, &plan).unwrap();
    let content = published.content().unwrap();
    assert_eq!(content.sum(0), Some(sum(&vec![1; CHUNK_BYTES])));
    assert_eq!(content.sum(1), Some(sum(&[1; 10])));
    assert_eq!(content.sum(2), None);
    let mut builder = at_once(|wait| store.builder(2, &plan, wait)).unwrap();
    assert!(builder.put(1, &[3; 10], 99));
    assert!(!builder.put(1, &[3; 11], 99) && !builder.put(2, &[], 99));
    let published = builder.publish().unwrap();
    assert_eq!(published.content().unwrap().sum(1), Some(99), "what is known is not found again");
}

#[test]
fn transfers_of_old_publications_are_cut_for_the_sake_of_a_learner_but_for_the_oldest() {
    let (store, plan) = (store(3), plan(&[1]));
    let oldest = store.transfer(publish(&store, 1, &plan).unwrap());
    let middle = store.transfer(publish(&store, 2, &plan).unwrap());
    let latest = store.transfer(publish(&store, 3, &plan).unwrap());
    assert!(![&oldest, &middle, &latest].iter().any(|one| one.is_cut()), "nobody is kept waiting");
    let claim = store.claim(4).unwrap();
    assert_eq!([oldest.is_cut(), middle.is_cut(), latest.is_cut()], [false, true, false]);
    drop(middle);
    assert!(claim.try_build(&plan).unwrap().is_some());
}

#[test]
fn subscribers_and_their_lag_are_counted() {
    let (store, plan) = (store(3), plan(&[1]));
    publish(&store, 1, &plan).unwrap();
    let seat = store.subscribe();
    publish(&store, 2, &plan).unwrap();
    publish(&store, 30, &plan).unwrap();
    assert_eq!((store.info().subscribers, store.info().lag), (1, 2));
    seat.see(&store.latest().unwrap());
    assert_eq!(store.info().lag, 0);
    drop(seat);
    let info = store.info();
    assert_eq!((info.subscribers, info.version, info.published), (0, Some(30), 3));
    assert_eq!((info.published_bytes, info.latest_bytes, info.versions_only), (3, 1, 0));
}

#[test]
fn a_store_that_follows_another_takes_any_version() {
    let config = WeightsConfig { follows: true, ..WeightsConfig::default() };
    let (store, plan) = (WeightStore::new(config).unwrap(), plan(&[1]));
    publish(&store, 9, &plan).unwrap();
    publish(&store, 2, &plan).unwrap();
    assert_eq!(store.latest().unwrap().version(), 2);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_reader_of_a_publication_that_is_kept_wakes_whoever_waits_for_room() {
    let (store, plan) = (store(2), plan(&[10]));
    let first = publish(&store, 1, &plan).unwrap();
    first.content().unwrap().bases();
    let second = publish(&store, 2, &plan).unwrap();
    let woken = Arc::new(Woken::default());
    store.wake_later(&Waker::from(Arc::clone(&woken)));
    assert!(!store.has_room());
    drop(first);
    assert!(woken.0.load(Ordering::Acquire) && store.has_room());
    drop(second);
}

#[test]
fn one_place_is_too_few() {
    let config = WeightsConfig { most: 1, ..WeightsConfig::default() };
    let refused = WeightStore::new(config).unwrap_err();
    assert_eq!(refused, WeightsError::TooFew { least: 2, got: 1 });
}

/// Waits until memory for this many publications is there: so many are held, or could be at once.
fn until_ready(store: &WeightStore, plan: &Arc<Plan>, count: usize) -> Vec<PublicationBuilder> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.info().ready < count {
        assert!(Instant::now() < deadline, "memory is taken ahead");
        std::thread::sleep(Duration::from_millis(1));
    }
    (0..count)
        .map(|at| at_once(|wait| store.builder(100 + at as u64, plan, wait)).unwrap())
        .collect()
}

#[test]
fn memory_for_later_publications_is_taken_after_the_first() {
    let (store, small, large) = (store(3), plan(&[100]), plan(&[5 << 20]));
    publish(&store, 1, &small).unwrap();
    assert_eq!(store.info().ready, 0, "a few bytes are not worth it");
    publish(&store, 2, &large).unwrap();
    drop(until_ready(&store, &large, 2));
    // What was taken for one size makes room for another.
    let larger = plan(&[30 << 20]);
    publish(&store, 3, &larger).unwrap();
    let builders = until_ready(&store, &larger, 2);
    assert!(at_once(|wait| store.builder(9, &larger, wait)).is_err(), "there are three places");
    drop(builders);
    store.close();
    assert_eq!(store.info().ready, 0);
    assert!(matches!(publish(&store, 4, &larger), Err(WeightsError::Closed)));
}

#[test]
fn a_store_that_ends_while_memory_is_taken_waits_for_no_more_than_a_piece() {
    let (store, plan) = (store(3), plan(&[200 << 20]));
    let publication = at_once(|wait| store.builder(1, &plan, wait)).unwrap().publish().unwrap();
    drop(store);
    assert_eq!(bytes(&publication).len(), 200 << 20);
}

#[test]
fn a_publication_that_the_machine_has_no_memory_for_is_refused_before_any_is_taken() {
    let (store, plan) = (store(3), plan(&[4 << 40]));
    let refused = at_once(|wait| store.builder(1, &plan, wait));
    assert!(matches!(refused, Err(WeightsError::Memory(_))));
    assert_eq!(store.info().alive, 0);
}
