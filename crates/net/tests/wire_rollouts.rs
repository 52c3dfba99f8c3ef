//! What rollout tables are told and tell, as bytes: what is written is read again, and what is cut or changed is an
//! error, or another value, and never a panic.

use std::sync::Arc;

use echoic_net::wire::WireError;
use echoic_net::wire::rollouts::{
    Bulk, Changes, DeliveryHead, Outcomes, Wish, check_list, read_list, write_list,
};
use echoic_net::wire::tables::{ALIGNMENT, Answer, Area, Operation, Request};
use echoic_replay::Dtype;
use echoic_replay::codec::Reader;
use echoic_replay::limiter::{Parameters, Reason};
use echoic_replay::rollouts::batch::{Form, Head, Shape};
use echoic_replay::rollouts::filter::Filter;
use echoic_replay::rollouts::idle::Sides;
use echoic_replay::rollouts::item::{Finish, Item, Run, Segment};
use echoic_replay::rollouts::ledger::{
    Balance, Blocked, Change, Counts, Fate, GroupTotals, Hold, Lease, Outcome, Permit, Refusal,
    Size, Source, Want,
};
use echoic_replay::rollouts::starvation::Hunger;
use echoic_replay::rollouts::table::{CallError, RolloutInfo};
use echoic_replay::rollouts::{Column, Delivery, OnExpiry, OnStale, Order, RolloutConfig, Schema};
use echoic_replay::table::Waits;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

#[path = "common/frames.rs"]
mod frames;

use frames::{is_robust, parts};

fn blocked() -> impl Strategy<Value = Blocked> {
    let reasons = vec![
        Reason::MinSize,
        Reason::Ratio,
        Reason::Paused,
        Reason::Capacity,
        Reason::Leased,
        Reason::Staleness,
        Reason::Group,
    ];
    prop_oneof![
        any::<u32>().prop_map(Blocked::Running),
        any::<u32>().prop_map(Blocked::Full),
        any::<(u64, u64, i64)>().prop_map(|(groups, most, version)| Blocked::Ahead {
            groups,
            most,
            version
        }),
        Just(Blocked::NoneSuspended),
        any::<(u64, u64)>().prop_map(|(complete, wanted)| Blocked::TooFew { complete, wanted }),
        any::<u64>().prop_map(Blocked::Incomplete),
        any::<(i64, i64)>().prop_map(|(version, needed)| Blocked::Shipping { version, needed }),
        Just(Blocked::MeanLag),
        any::<u64>().prop_map(Blocked::Leased),
        prop::sample::select(reasons).prop_map(Blocked::Limiter),
        Just(Blocked::Paused),
        any::<(i64, i64)>().prop_map(|(version, target)| Blocked::Early { version, target }),
        any::<(u64, u64, u64, i64, i64)>().prop_map(
            |(there, wanted, per_version, version, needed)| Blocked::Unpublished {
                there,
                wanted,
                per_version,
                version,
                needed
            }
        ),
    ]
}

fn lease() -> impl Strategy<Value = Lease> {
    any::<(u64, u32, u32)>().prop_map(|(batch, rank, attempt)| Lease { batch, rank, attempt })
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        blocked().prop_map(Refusal::Blocked),
        ("\\PC{0,20}", "\\PC{0,20}", "\\PC{0,20}").prop_map(|(what, expected, got)| {
            Refusal::Value { what: what.into(), expected, got }
        }),
        (lease(), "\\PC{0,20}").prop_map(|(lease, why)| Refusal::Fenced { lease, why: why.into() }),
        any::<(u32, u32, u32)>().prop_map(|(item, length, width)| Refusal::TooLong {
            item,
            length,
            width
        }),
        any::<u64>().prop_map(Refusal::Unknown),
    ]
}

fn permit() -> impl Strategy<Value = Permit> {
    (any::<(u64, u32)>(), "\\PC{0,20}", any::<(i64, u64)>()).prop_map(
        |((group, attempt), key, (version, ttl_ms))| Permit {
            hold: Hold { group, attempt },
            key,
            version,
            ttl_ms,
        },
    )
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..20)
}

fn item() -> impl Strategy<Value = Item> {
    let run = any::<(i64, u32)>().prop_map(|(version, tokens)| Run { version, tokens });
    let segment = (vec(run, 0..3), any::<u32>(), bytes()).prop_map(|(runs, tokens, bytes)| {
        Arc::new(Segment { runs: runs.into_iter().collect(), tokens, bytes })
    });
    let finish = (bytes(), vec(("[a-z]{0,5}", bytes()), 0..3));
    let finish = of(finish.prop_map(|(fields, blobs)| Arc::new(Finish { fields, blobs })));
    (any::<u32>(), vec(segment, 0..3), finish).prop_map(|(index, segments, finish)| Item {
        index,
        segments: segments.into_iter().collect(),
        finish,
    })
}

fn outcomes() -> impl Strategy<Value = Outcomes> {
    let fates = (0..7u8).prop_map(|number| Fate::of(number).unwrap());
    let outcome = prop_oneof![
        Just(Outcome::Done),
        vec(permit(), 0..4).prop_map(Outcome::Admitted),
        (permit(), vec(item(), 0..3)).prop_map(|(permit, items)| Outcome::Resumed(permit, items)),
        fates.prop_map(Outcome::Appended),
        any::<u64>().prop_map(Outcome::Count),
    ];
    vec(prop_oneof![outcome.prop_map(Ok), refusal().prop_map(Err)], 0..5)
}

fn error() -> impl Strategy<Value = CallError> {
    prop_oneof![
        blocked().prop_map(CallError::TimedOut),
        Just(CallError::Interrupted),
        Just(CallError::Closed),
        refusal().prop_map(CallError::Refused),
    ]
}

fn sides() -> impl Strategy<Value = Sides> {
    any::<[(u64, u64, u64); 7]>().prop_map(|all| {
        Sides(all.map(|(waiting, limited, nanos)| Waits { waiting, limited, nanos, reason: None }))
    })
}

fn info() -> impl Strategy<Value = RolloutInfo> {
    let source = ("\\PC{0,9}", any::<[u64; 7]>(), of(0..u64::MAX));
    let source = source.prop_map(|(name, numbers, last_admitted)| {
        let mut source = Source { name, last_admitted, ..Source::default() };
        source.words_mut().into_iter().zip(numbers).for_each(|(word, number)| *word = number);
        source
    });
    let hunger = ("\\PC{0,9}", any::<[u64; 4]>(), any::<bool>());
    let hunger = hunger.prop_map(|(source, numbers, is_starving)| {
        let [waiting, oldest_ms, passed, longest_ms] = numbers;
        Hunger { source, waiting, oldest_ms, passed, longest_ms, is_starving }
    });
    let producers = (vec(source, 0..3), vec(hunger, 0..3), any::<u64>());
    let totals = (any::<[u64; 4]>(), any::<(i64, i64, bool)>(), of(any::<u32>()), of(any::<i64>()));
    let totals = totals.prop_map(|(numbers, (version, target, paused), depth, oldest)| {
        let [capacity, queued, out, suspended] = numbers;
        GroupTotals { version, target, depth, capacity, queued, out, suspended, oldest, paused }
    });
    // Each number another, so that none is taken for its neighbour.
    let counts = (1..1u64 << 50).prop_map(|first| Counts {
        submitted: first,
        running: first + 1,
        accepted: first + 2,
        rejected: first + 3,
        filtered: first + 4,
        expired: first + 5,
        late: first + 6,
        stale: first + 7,
        discarded: first + 8,
        short: first + 9,
        surplus: first + 10,
        batches: first + 11,
        delivered: first + 12,
        delivered_tokens: first + 13,
        overdue: first + 14,
        masked_tokens: first + 15,
        redelivered: first + 16,
        acked: first + 17,
        retired: first + 18,
        lost: first + 19,
        expired_leases: first + 20,
        fenced: first + 21,
        tokens: first + 22,
        duplicates: first + 23,
        resumed: first + 24,
        returned: first + 25,
    });
    (counts, totals, producers, sides(), sides()).prop_map(
        |(counts, totals, (sources, hunger, time), producers, consumers)| RolloutInfo {
            counts,
            totals,
            sources,
            hunger,
            time,
            producers,
            consumers,
        },
    )
}

fn config(name: &str) -> RolloutConfig {
    let column = |name: &str, dtype| Column { name: name.into(), dtype };
    RolloutConfig {
        name: name.into(),
        schema: Schema {
            columns: vec![column("ids", Dtype::Int(4)), column("mask", Dtype::Bool)],
            fields: vec![column("reward", Dtype::Float(4)), column("task", Dtype::Bytes(7))],
            mask: Some(1),
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
        max_groups: 100,
        max_tokens: 512,
        max_blob_bytes: 10,
        order: Order::Window(7),
        on_stale: OnStale::Mask,
        target_lag: Some(2),
        max_mean_lag: Some(0.5),
        max_uses: 1,
        delivery: Delivery::AtMostOnce,
        permit_ttl_ms: 1234,
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

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![
        Just(Form::Flat),
        any::<(u32, bool)>().prop_map(|(width, left)| Form::Padded { width, left }),
        any::<u32>().prop_map(|width| Form::Packed { width }),
    ]
}

fn want() -> impl Strategy<Value = Want> {
    let size =
        prop_oneof![any::<u32>().prop_map(Size::Groups), any::<u64>().prop_map(Size::Tokens)];
    let balance = prop::sample::select(vec![Balance::Count, Balance::Tokens, Balance::Squares]);
    (size, any::<(u32, u32)>(), balance, of(0..u64::MAX)).prop_map(
        |(size, (rank, ranks), balance, lease_ms)| Want {
            size,
            rank,
            ranks,
            balance,
            lease_ms,
            width: 0,
        },
    )
}

fn operation() -> impl Strategy<Value = Operation<'static>> {
    let area = || any::<(u64, u64)>().prop_map(|(start, len)| Area { start, len });
    let bulk = prop_oneof![
        bytes().prop_map(|bytes| Bulk::Inline(bytes.into())),
        area().prop_map(Bulk::Area),
    ];
    let changes = (of(0..u64::MAX), 0..=4096u32, bytes(), bulk);
    let changes = changes.prop_map(|(timeout_ms, count, head, bulk)| Changes {
        timeout_ms,
        count,
        head: head.into(),
        bulk,
    });
    let wish = (want(), form(), of(0..u64::MAX), of(area()));
    let wish =
        wish.prop_map(|(want, form, timeout_ms, area)| Wish { want, form, timeout_ms, area });
    prop_oneof![
        Just(Operation::RolloutList),
        Just(Operation::RolloutInfo),
        any::<bool>().prop_map(|paused| Operation::RolloutPause { paused }),
        changes.prop_map(Operation::RolloutChanges),
        prop::collection::vec(any::<u8>(), 0..9)
            .prop_map(|part| Operation::RolloutPart(part.into())),
        wish.prop_map(Operation::RolloutSample),
        (any::<i64>(), of(0..u64::MAX))
            .prop_map(|(above, timeout_ms)| Operation::RolloutVersion { above, timeout_ms }),
    ]
}

fn answers(answer: &Answer, change: (usize, u8)) {
    let mut frame = Vec::new();
    answer.write(&mut frame);
    let (header, payload) = parts(&frame);
    assert!(header.len <= Answer::limit(header.kind).unwrap());
    assert_eq!(Answer::read(header, payload).as_ref(), Ok(answer));
    is_robust(payload, change, |bytes| Answer::read(header, bytes).map(drop));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn requests_are_read_as_they_were_written(
        (id, table, operation) in (any::<u64>(), any::<u32>(), operation()),
        change in any::<(usize, u8)>(),
    ) {
        let request = Request { id, table, operation };
        let mut frame = Vec::new();
        request.write(&mut frame);
        let (_, payload) = parts(&frame);
        let read = Request::read(payload);
        prop_assert_eq!(read.as_ref(), Ok(&request));
        let is_inline = matches!(
            &request.operation,
            Operation::RolloutChanges(Changes { bulk: Bulk::Inline(_), .. })
                | Operation::RolloutPart(_)
        );
        // Of these, what is behind the heads has no length of its own.
        if !is_inline {
            is_robust(payload, change, |bytes| Request::read(bytes).map(drop));
        }
    }

    #[test]
    fn outcomes_and_refusals_are_read_as_they_were_written(
        (id, outcomes) in (any::<u64>(), outcomes()),
        change in any::<(usize, u8)>(),
    ) {
        answers(&Answer::RolloutOutcomes { id, outcomes }, change);
    }

    #[test]
    fn errors_are_read_as_they_were_written(
        (id, error) in (any::<u64>(), error()),
        change in any::<(usize, u8)>(),
    ) {
        answers(&Answer::RolloutRefused { id, error }, change);
    }

    #[test]
    fn numbers_are_read_as_they_were_written(
        (id, info) in (any::<u64>(), info().prop_map(Box::new)),
        change in any::<(usize, u8)>(),
    ) {
        answers(&Answer::RolloutNumbers { id, info }, change);
    }

    #[test]
    fn tables_are_introduced_as_they_are(
        (id, count) in (any::<u64>(), 0..4usize),
        change in any::<(usize, u8)>(),
    ) {
        let config = |number| Arc::new(config(&format!("table {number}")));
        let configs: Vec<_> = (0..count).map(config).collect();
        prop_assert_eq!(check_list(&configs), Ok(()));
        answers(&Answer::RolloutTables { id, configs }, change);
    }

    #[test]
    fn heads_of_batches_are_read_as_they_were_written(
        (id, lease, lease_ms, target) in (any::<u64>(), lease(), of(0..u64::MAX), any::<i64>()),
        names in vec(("\\PC{0,9}", "[a-z]{0,9}"), 0..4),
        blobs in vec(vec(("[a-z]{1,5}", 0..1000u32), 0..3), 0..6),
        (runs, rows, width) in (0..9usize, 0..9usize, 0..9usize),
        change in any::<(usize, u8)>(),
    ) {
        let blob_bytes = blobs.iter().flatten().map(|(_, len)| *len as usize).sum();
        let shape = Shape { groups: names.len(), items: blobs.len(), runs, rows, width, blob_bytes };
        let head = Head { lease, lease_ms, target, shape, names, blobs };
        let mut payload = Vec::new();
        DeliveryHead::write(&mut payload, id, &head);
        let told = DeliveryHead { id, head };
        let bytes = told.bytes(&config("x")).unwrap();
        prop_assert_eq!(DeliveryHead::read(&payload, bytes), Ok((told.clone(), payload.len())));
        let (start, end) = DeliveryHead::place(payload.len(), bytes).unwrap();
        prop_assert!(start.is_multiple_of(ALIGNMENT) && start - payload.len() < ALIGNMENT);
        prop_assert_eq!(end - start, bytes);
        is_robust(&payload, change, |payload| DeliveryHead::read(payload, bytes).map(drop));
    }
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
    let (names, blobs) = (vec![Default::default()], vec![vec![("x".to_owned(), 6)]]);
    let head = Head { lease, lease_ms: None, target: 0, shape, names, blobs };
    let error = DeliveryHead { id: 1, head }.bytes(&config("x")).unwrap_err();
    assert!(error.to_string().contains("bytes of blobs: expected 5, got 6"), "{error}");
}

#[test]
fn a_text_that_is_too_long_is_cut_at_a_character() {
    let got = "é".repeat(1000);
    let refusal = Refusal::Value { what: "x".into(), expected: "y".into(), got };
    let mut frame = Vec::new();
    Answer::RolloutOutcomes { id: 1, outcomes: vec![Err(refusal)] }.write(&mut frame);
    let (header, payload) = parts(&frame);
    let Ok(Answer::RolloutOutcomes { outcomes, .. }) = Answer::read(header, payload) else {
        panic!("it can't be read");
    };
    let [Err(Refusal::Value { got, .. })] = &outcomes[..] else { panic!("another outcome") };
    assert_eq!(*got, "é".repeat(512));
}

#[test]
fn names_that_are_there_twice_are_refused() {
    let table = || Arc::new(config("twice"));
    assert!(matches!(check_list(&[table(), table()]), Err(WireError::Spec(_))));
    let mut written = Vec::new();
    write_list(&mut written, &[table()]);
    assert_eq!(read_list(&mut Reader::new(&written)), Ok(vec![table()]));
}

#[test]
fn a_change_that_waits_is_alone_and_a_sample_is_none() {
    let want = Want {
        size: Size::Groups(1),
        rank: 0,
        ranks: 1,
        balance: Balance::Count,
        lease_ms: None,
        width: 0,
    };
    let resume = Change::Resume { source: String::new(), ttl_ms: None };
    let read = |changes: &[&Change]| {
        let mut head = Vec::new();
        changes.iter().for_each(|change| change.put(&mut head, |_| {}));
        let (timeout_ms, bulk) = (None, Bulk::Inline((&[]).into()));
        let count = changes.len() as u32;
        Changes { timeout_ms, count, head: head.into(), bulk }.decode(&[])
    };
    assert_eq!(read(&[&resume]), Ok(vec![resume.clone()]));
    assert!(read(&[&resume, &Change::Tick]).is_err());
    assert!(read(&[&Change::Sample(want)]).is_err());
    assert_eq!(read(&[&Change::Tick, &Change::Tick]), Ok(vec![Change::Tick; 2]));
}
