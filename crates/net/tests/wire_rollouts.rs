//! Requests and answers of rollout tables as bytes: what is written is read again and has one form, and what is cut or
//! changed is an error, or another value, and never a panic.

use std::sync::Arc;

use echoic_net::wire::WireError;
use echoic_net::wire::rollouts::{
    Bulk, Changes, DeliveryHead, Outcomes, Wish, check_list, read_list, write_list,
};
use echoic_net::wire::tables::{ALIGNMENT, Answer, Area, Operation, Request};
use echoic_replay::Dtype;
use echoic_replay::WaitReason;
use echoic_replay::codec::{Encode, Reader};
use echoic_replay::limiter::Parameters;
use echoic_replay::rollouts::batch::{BlobPlace, Form, Head, Shape};
use echoic_replay::rollouts::codec::{AppendHead, BlobHead};
use echoic_replay::rollouts::filter::Filter;
use echoic_replay::rollouts::idle::Sides;
use echoic_replay::rollouts::item::{ColumnUpdate, Finish, Item, Run, Segment, Updates};
use echoic_replay::rollouts::ledger::{
    Append, Balance, Blocked, Change, ChangeError, Counts, GroupStatus, GroupTotals, Hold, Lease,
    Outcome, Progress, Reservation, Reserve, Size, Source, Update, Want,
};
use echoic_replay::rollouts::starvation::Hunger;
use echoic_replay::rollouts::table::{CallError, RolloutInfo};
use echoic_replay::rollouts::{
    Column, Delivery, Late, OnExpiry, OnStale, Order, RolloutConfig, Schema,
};
use echoic_replay::table::Waits;

#[path = "common/frames.rs"]
mod frames;

use frames::{is_robust, parts};

const LEASE: Lease = Lease { batch: 7, rank: 1, attempt: 2 };
const HOLD: Hold = Hold { group: 9, attempt: 3 };

/// That no prefix of a payload is a value; that whatever some changed bytes are, they are an error or another value, which has
/// just these bytes; and that no count takes memory for what is not there.
fn has_one_form<T, E>(
    payload: &[u8],
    read: impl Fn(&[u8]) -> Result<T, E>,
    write: impl Fn(&T) -> Vec<u8>,
) {
    is_robust(payload, (0, 1), &read);
    assert!(read(payload).is_ok_and(|value| write(&value) == payload));
    assert!(read(&[payload, &[0]].concat()).is_err());
    for at in 0..payload.len() {
        for (len, bits) in [(1, 1), (1, 0x80), (1, 0xff), (4, 0xff)] {
            let mut changed = payload.to_vec();
            changed[at..].iter_mut().take(len).for_each(|byte| *byte ^= bits);
            if let Ok(value) = read(&changed) {
                assert_eq!(write(&value), changed, "byte {at}");
            }
        }
    }
}

fn answers(answer: &Answer) {
    let mut frame = Vec::new();
    answer.write(&mut frame);
    let (header, payload) = parts(&frame);
    assert!(header.len <= Answer::limit(header.kind).unwrap());
    assert_eq!(Answer::read(header, payload).as_ref(), Ok(answer));
    let write = |answer: &Answer| {
        let mut frame = Vec::new();
        answer.write(&mut frame);
        parts(&frame).1.to_vec()
    };
    has_one_form(payload, |payload| Answer::read(header, payload), write);
}

fn all_blocked() -> Vec<Blocked> {
    let reasons = [
        WaitReason::MinSize,
        WaitReason::Ratio,
        WaitReason::Paused,
        WaitReason::Capacity,
        WaitReason::Leased,
        WaitReason::Staleness,
        WaitReason::Group,
    ];
    let (version, needed) = (6, 7);
    let mut all = vec![
        Blocked::Running(1),
        Blocked::Full(2),
        Blocked::Ahead { groups: 3, most: 4, version: -5 },
        Blocked::NoneSuspended,
        Blocked::TooFew { complete: 6, wanted: 7 },
        Blocked::Incomplete(8),
        Blocked::Shipping { version, needed },
        Blocked::MeanLag,
        Blocked::Leased(11),
        Blocked::Paused,
        Blocked::Early { version: 12, target: 13 },
        Blocked::Unpublished { there: 14, wanted: 15, per_version: 16, version, needed },
    ];
    all.extend(reasons.map(Blocked::Limiter));
    all
}

fn refusals() -> Vec<ChangeError> {
    let mut all = vec![
        ChangeError::Value {
            what: "wh\u{e4}t".into(),
            expected: "more".into(),
            got: String::new(),
        },
        ChangeError::Fenced { lease: LEASE, why: "it is over".into() },
        ChangeError::TooLong { item: 1, length: 2, width: 3 },
        ChangeError::Unknown(4),
    ];
    all.extend(all_blocked().into_iter().map(ChangeError::Blocked));
    all
}

fn segment() -> Arc<Segment> {
    let runs = [(3, 2), (4, 1)].map(|(version, tokens)| Run { version, tokens });
    let runs = runs.into_iter().collect();
    Arc::new(Segment { runs, tokens: 3, bytes: vec![1, 2, 3], absent: 1 })
}

fn finish() -> Arc<Finish> {
    let blobs = vec![("image".to_owned(), Arc::new(vec![7; 5])), (String::new(), Arc::default())];
    Arc::new(Finish { fields: vec![9, 8], absent: 2, blobs })
}

fn updates() -> Updates {
    let column = |column, bytes| ColumnUpdate { column, tokens: 3, bytes: Arc::new(bytes) };
    let columns = vec![column(0, vec![4; 12]), column(1, vec![5; 3])];
    Updates { columns, fields: vec![(0, vec![6; 4]), (1, Vec::new())] }
}

fn append() -> Append {
    let (segment, finish) = (segment(), Some(finish()));
    Append { hold: HOLD, item: 1, sequence: 2, segment, finish, priority: 0.5 }
}

fn outcomes() -> Outcomes {
    let reservation = Reservation { hold: HOLD, key: "key".into(), version: 5, ttl_ms: 6 };
    let started = Item {
        index: 1,
        segments: [segment(), segment()].into_iter().collect(),
        ..Item::default()
    };
    let updates = Some(Arc::new(updates()));
    let ended = Item { index: 2, finish: Some(finish()), updates, ..Item::default() };
    let items = vec![started, ended];
    let statuses = [
        GroupStatus::Running,
        GroupStatus::Complete,
        GroupStatus::Filtered,
        GroupStatus::Rejected,
        GroupStatus::Expired,
        GroupStatus::Stale,
        GroupStatus::Over,
        GroupStatus::Delivered,
    ];
    let outcomes = [
        Outcome::Done,
        Outcome::Reserved(vec![reservation.clone(), reservation.clone()]),
        Outcome::Resumed(reservation, items),
        Outcome::Count(7),
        Outcome::Progress(vec![Progress { segments: 8, is_finished: true }]),
    ];
    let outcomes = outcomes.into_iter().chain(statuses.map(Outcome::Appended)).map(Ok);
    outcomes.chain(refusals().into_iter().map(Err)).collect()
}

fn info() -> RolloutInfo {
    // Each number another, so that none is taken for its neighbour.
    let waits =
        |first| Waits { waiting: first, limited: first + 1, nanos: first + 2, reason: None };
    let sides = |first: u64| Sides(std::array::from_fn(|at| waits(first + 3 * at as u64)));
    let source =
        Source { name: "one".into(), submitted: 70, last_reserved: Some(71), ..Source::default() };
    let numbers = (1_u64..=Counts::LEN as u64).flat_map(u64::to_le_bytes).collect::<Vec<_>>();
    RolloutInfo {
        counts: Reader::new(&numbers).get("counts").unwrap(),
        totals: GroupTotals {
            version: -80,
            target: 81,
            depth: Some(82),
            room: 83,
            queued: 84,
            out: 85,
            suspended: 86,
            oldest: None,
            paused: true,
        },
        sources: vec![source, Source::default()],
        hunger: vec![Hunger {
            source: "two".into(),
            waiting: 90,
            oldest_ms: 91,
            passed: 92,
            longest_ms: 93,
            is_starving: true,
        }],
        time: 94,
        producers: sides(100),
        consumers: sides(200),
    }
}

fn config(name: &str) -> RolloutConfig {
    let column = |name: &str, dtype| Column { name: name.into(), dtype, shape: vec![] };
    RolloutConfig {
        name: name.into(),
        schema: Schema {
            columns: vec![
                column("ids", Dtype::Int(4)),
                column("mask", Dtype::Bool),
                Column { shape: vec![4, 2], ..column("experts", Dtype::UInt(1)) },
            ],
            fields: vec![column("reward", Dtype::Float(4)), column("task", Dtype::Bytes(7))],
            mask: Some(1),
            late: Late { columns: 2, fields: 1 },
        },
        group_size: 4,
        redundancy: 2,
        group_deadline_ms: Some(500),
        min_group_size: 3,
        batch_groups: 8,
        batches_per_version: 2,
        max_lag: Some(3),
        pipeline_depth: Some(1),
        auto_tune: true,
        max_running: 90,
        capacity: 100,
        max_tokens: 512,
        max_blob_bytes: 10,
        order: Order::Window(7),
        on_stale: OnStale::Mask,
        target_lag: Some(2),
        max_mean_lag: Some(0.5),
        max_uses: 1,
        delivery: Delivery::AtMostOnce,
        reservation_ttl_ms: 1234,
        on_expiry: OnExpiry::Suspend,
        filter: Some(Filter::parse("std(reward) > 0").unwrap()),
        limiter: Some(Parameters {
            min_size: 1,
            samples_per_insert: 2.0,
            min_diff: -3.0,
            max_diff: f64::INFINITY,
        }),
        seed: 9,
    }
}

fn want(size: Size) -> Want {
    let (balance, lease_ms) = (Balance::Squares, Some(5));
    Want { size, rank: 1, ranks: 2, balance, lease_ms, width: 0 }
}

fn changes() -> Vec<Change> {
    let keys = vec!["k".into(), String::new()];
    let reserve = Reserve { count: 2, source: "s".into(), keys, version: Some(2), ttl_ms: None };
    let started = Append { finish: None, ..append() };
    vec![
        Change::Reserve(reserve),
        Change::Append(append()),
        Change::Append(started),
        Change::Update(Update { hold: HOLD, item: 3, values: updates() }),
        Change::Fail { holds: vec![HOLD, HOLD] },
        Change::Suspend { holds: vec![HOLD] },
        Change::Resume { source: "s".into(), ttl_ms: Some(6) },
        Change::Renew { holds: vec![] },
        Change::Status { hold: HOLD },
        Change::Publish { version: 7 },
        Change::Sample(want(Size::Groups(8))),
        Change::Ack(LEASE),
        Change::Nack(LEASE),
        Change::Extend { lease: LEASE, lease_ms: 9 },
        Change::Remove { groups: vec![10, 11] },
        Change::Reprioritize { priorities: vec![(12, 0.5)] },
        Change::Tick,
        Change::Sample(want(Size::Tokens(13))),
        Change::Deepen { depth: 14 },
        Change::Restore { version: 15 },
        Change::Pause { paused: true },
        Change::AwaitVersion { above: -1 },
    ]
}

#[test]
fn a_change_has_one_form_and_each_prefix_of_it_is_an_error() {
    for change in changes() {
        let mut head = Vec::new();
        change.encode(&mut head);
        let bulk = change.bulk().collect::<Vec<_>>().concat();
        let read = |head: &[u8], bulk: &[u8]| {
            let mut bulk = Reader::new(bulk);
            let mut reader = Reader::with_bulk(head, &mut bulk);
            let change: Change = reader.get("change")?;
            reader.end("change")?;
            bulk.end("bulk").map(|()| change)
        };
        assert_eq!(read(&head, &bulk).as_ref(), Ok(&change));
        let write = |change: &Change| {
            let mut head = Vec::new();
            change.encode(&mut head);
            head
        };
        has_one_form(&head, |head| read(head, &bulk), write);
        assert!((0..bulk.len()).all(|end| read(&head, &bulk[..end]).is_err()), "{change:?}");
    }
}

#[test]
fn the_head_of_tokens_elsewhere_is_that_of_an_append() {
    let Append { hold, item, sequence, segment, finish, priority } = append();
    let finish = finish.unwrap();
    let blob = |bytes: &[u8]| BlobHead::Bytes(bytes.len() as u32);
    let blobs: Vec<(&str, BlobHead)> =
        finish.blobs.iter().map(|(name, bytes)| (name.as_str(), blob(bytes))).collect();
    let (tokens, bytes) = (segment.tokens, segment.bytes.len() as u32);
    let (runs, absent) = (&*segment.runs, segment.absent);
    let finish = Some(((&*finish.fields, finish.absent), &*blobs));
    let (mut head, mut expected) = (Vec::new(), Vec::new());
    AppendHead { hold, item, sequence, priority, tokens, bytes, absent, runs, finish }
        .encode(&mut head);
    Change::Append(append()).encode(&mut expected);
    assert_eq!(head, expected);
}

#[test]
fn requests_are_read_as_they_were_written() {
    let (start, len) = (3, 4);
    let area = Area { start, len };
    let changes = |bulk| {
        let head = vec![1, 2].into();
        Operation::RolloutChanges(Changes { timeout_ms: None, count: 5, head, bulk })
    };
    let wish = |form, area| {
        let (want, timeout_ms) = (want(Size::Tokens(6)), Some(7));
        Operation::RolloutSample(Wish { want, form, timeout_ms, area })
    };
    for operation in [
        Operation::RolloutList,
        Operation::RolloutInfo,
        changes(Bulk::Area(area)),
        changes(Bulk::Inline(vec![8].into())),
        Operation::RolloutPart(vec![9].into()),
        wish(Form::Flat, None),
        wish(Form::Padded { width: 10, left: true }, Some(area)),
        wish(Form::Packed { width: 11 }, None),
    ] {
        let request = Request { id: 1, table: 2, operation };
        let write = |request: &Request<'_>| {
            let mut frame = Vec::new();
            request.write(&mut frame);
            parts(&frame).1.to_vec()
        };
        let payload = write(&request);
        assert_eq!(Request::read(&payload).as_ref(), Ok(&request));
        let is_inline = matches!(
            &request.operation,
            Operation::RolloutChanges(Changes { bulk: Bulk::Inline(_), .. })
                | Operation::RolloutPart(_)
        );
        // Of these, what is behind the heads has no length of its own.
        if !is_inline {
            has_one_form(
                &payload,
                |bytes| Request::read(bytes).map(|read| write(&read)),
                Clone::clone,
            );
        }
    }
}

#[test]
fn answers_are_read_as_they_were_written() {
    let id = 3;
    answers(&Answer::RolloutOutcomes { id, outcomes: outcomes() });
    let mut errors =
        vec![CallError::Interrupted, CallError::Closed, CallError::Journal("no room".into())];
    errors.extend(all_blocked().into_iter().map(CallError::TimedOut));
    errors.extend(refusals().into_iter().map(CallError::Refused));
    errors.into_iter().for_each(|error| answers(&Answer::RolloutRefused { id, error }));
    answers(&Answer::RolloutNumbers { id, info: Box::new(info()) });
    let configs = vec![Arc::new(config("one")), Arc::new(config("two"))];
    assert_eq!(check_list(&configs), Ok(()));
    answers(&Answer::RolloutTables { id, configs });
}

fn place(name: &str, start: u64, bytes: u32) -> BlobPlace {
    BlobPlace { name: name.into(), start, bytes }
}

#[test]
fn a_blob_may_be_there_again_in_a_request_and_not_in_a_change_alone() {
    let mut heads = Vec::new();
    let blobs = [
        [("a", BlobHead::Bytes(2)), ("b", BlobHead::Again(0))],
        [("a", BlobHead::Bytes(1)), ("c", BlobHead::Again(1))],
    ];
    for (item, blobs) in (0..).zip(&blobs) {
        let finish = Some(((&[][..], 0), &blobs[..]));
        let (hold, sequence, priority, runs) = (HOLD, 0, 1.0, &[][..]);
        let (tokens, bytes, absent) = (0, 0, 0);
        AppendHead { hold, item, sequence, priority, tokens, bytes, absent, runs, finish }
            .encode(&mut heads);
    }
    let changes = |head: &[u8], count| {
        let (head, bulk) = (head.to_vec().into(), Bulk::Inline((&[]).into()));
        Changes { timeout_ms: None, count, head, bulk }.decode(&[7, 8, 9])
    };
    let read = changes(&heads, 2).unwrap();
    let blobs: Vec<_> = read
        .iter()
        .map(|change| match change {
            Change::Append(Append { finish: Some(finish), .. }) => finish.blobs.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(*blobs[0][0].1, [7, 8]);
    assert!(Arc::ptr_eq(&blobs[0][0].1, &blobs[0][1].1));
    assert_eq!((&*blobs[1][0].1, &*blobs[1][1].1), (&vec![9], &vec![9]));
    let end = heads.len();
    heads[end - 4..].copy_from_slice(&2_u32.to_le_bytes());
    changes(&heads, 2).unwrap_err();
    let mut bulk = Reader::new(&[7, 8, 9]);
    Reader::with_bulk(&heads, &mut bulk).get::<Change>("change").unwrap_err();
}

#[test]
fn heads_of_batches_are_read_as_they_were_written() {
    let names = vec![("a key".to_owned(), "one".to_owned()), Default::default()];
    let blobs = vec![vec![], vec![place("b", 0, 4), place("c", 4, 5)], vec![place("b", 0, 4)]];
    let shape = Shape { groups: 2, items: 3, runs: 4, rows: 5, width: 6, blob_bytes: 9 };
    let (lease, lease_ms, target) = (LEASE, Some(7), 8);
    let head = Head { lease, lease_ms, target, shape, names, blobs };
    let mut payload = Vec::new();
    DeliveryHead::write(&mut payload, 1, &head);
    let told = DeliveryHead { id: 1, head };
    let bytes = told.bytes(&config("x")).unwrap();
    assert_eq!(DeliveryHead::read(&payload, bytes), Ok((told, payload.len())));
    let (start, end) = DeliveryHead::place(payload.len(), bytes).unwrap();
    assert!(start.is_multiple_of(ALIGNMENT) && start - payload.len() < ALIGNMENT);
    assert_eq!(end - start, bytes);
    let read = |payload: &[u8]| match DeliveryHead::read(payload, bytes) {
        Ok((told, used)) if used == payload.len() => Ok(told),
        _ => Err(()),
    };
    let write = |told: &DeliveryHead| {
        let mut payload = Vec::new();
        DeliveryHead::write(&mut payload, told.id, &told.head);
        payload
    };
    has_one_form(&payload, read, write);
}

#[test]
fn items_that_no_memory_has_are_refused_before_any_is_taken() {
    let shape = Shape { groups: 0, items: 1 << 40, runs: 0, rows: 0, width: 0, blob_bytes: 0 };
    let lease = Lease { batch: 1, rank: 0, attempt: 1 };
    let head = Head { lease, lease_ms: None, target: 0, shape, names: vec![], blobs: vec![] };
    let mut payload = Vec::new();
    DeliveryHead::write(&mut payload, 1, &head);
    let error = DeliveryHead::read(&payload, 1 << 20).unwrap_err();
    assert!(error.to_string().contains("items of a batch"), "{error}");
}

#[test]
fn blobs_that_have_other_bytes_than_told_are_refused() {
    let shape = Shape { groups: 1, items: 1, runs: 1, rows: 1, width: 1, blob_bytes: 5 };
    let lease = Lease { batch: 1, rank: 0, attempt: 1 };
    let refused = |blobs| {
        let (names, shape, blobs) = (vec![Default::default()], shape.clone(), vec![blobs]);
        let head = Head { lease, lease_ms: None, target: 0, shape, names, blobs };
        DeliveryHead { id: 1, head }.bytes(&config("x")).unwrap_err().to_string()
    };
    let error = refused(vec![place("x", 0, 6)]);
    assert!(error.contains("bytes of blobs: expected 5, got 6"), "{error}");
    // Part of another one.
    let error = refused(vec![place("x", 0, 5), place("y", 0, 4)]);
    assert!(error.contains("place of a blob: expected 5, got 0"), "{error}");
}

#[test]
fn a_long_text_comes_whole() {
    let got = "é".repeat(10_000);
    let refusal = ChangeError::Value { what: "x".into(), expected: "y".into(), got };
    let outcomes = vec![Err(refusal.clone())];
    let refused = Answer::RolloutRefused { id: 1, error: CallError::Refused(refusal) };
    for answer in [Answer::RolloutOutcomes { id: 1, outcomes }, refused] {
        let mut frame = Vec::new();
        answer.write(&mut frame);
        let (header, payload) = parts(&frame);
        header.check_most(Answer::limit(header.kind).unwrap()).unwrap();
        assert_eq!(Answer::read(header, payload), Ok(answer));
    }
}

#[test]
fn names_that_are_there_twice_are_refused() {
    let table = || Arc::new(config("twice"));
    assert!(matches!(check_list(&[table(), table()]), Err(WireError::Content(_))));
    let mut written = Vec::new();
    write_list(&mut written, &[table()]);
    assert_eq!(read_list(&mut Reader::new(&written)), Ok(vec![table()]));
}

#[test]
fn a_change_that_waits_is_alone_and_a_sample_is_none() {
    let resume = Change::Resume { source: String::new(), ttl_ms: None };
    let read = |changes: &[&Change]| {
        let mut head = Vec::new();
        changes.iter().for_each(|change| change.encode(&mut head));
        let (timeout_ms, bulk) = (None, Bulk::Inline((&[]).into()));
        let count = changes.len() as u32;
        Changes { timeout_ms, count, head: head.into(), bulk }.decode(&[])
    };
    assert_eq!(read(&[&resume]), Ok(vec![resume.clone()]));
    assert!(read(&[&resume, &Change::Tick]).is_err());
    assert!(read(&[&Change::Sample(want(Size::Groups(1)))]).is_err());
    assert_eq!(read(&[&Change::Tick, &Change::Tick]), Ok(vec![Change::Tick; 2]));
}
