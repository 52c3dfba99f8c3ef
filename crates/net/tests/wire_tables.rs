//! Requests and answers of tables as bytes: what is written is read again, and what is cut or changed is
//! an error, or another value, and never a panic.

use std::sync::Arc;

use echoic_net::wire::WireError;
use echoic_net::wire::handshake::{Offer, Welcome};
use echoic_net::wire::observed::{Connected, Family, Kind, Number, Observation};
use echoic_net::wire::tables::{
    ALIGNMENT, Answer, Area, BatchHead, FailureCode, ItemHead, Layout, Numbers, Operation, Release,
    Request, RowsHead, SignatureHead, SliceHead, TableEntry, check_list,
};
use echoic_replay::WaitReason;
use echoic_replay::chunk::ColumnKind;
use echoic_replay::codec::{CodecError, Encode};
use echoic_replay::limiter::{Counts, Parameters};
use echoic_replay::spec::ANY_LENGTH;
use echoic_replay::table::{Form, Infos, MAX_METADATA, Waits};
use echoic_replay::trajectory::{Column, Signature};
use echoic_replay::{Dtype, Leaf, Spec};
use proptest::collection::vec;
use proptest::prelude::*;

#[path = "common/frames.rs"]
mod frames;

use frames::{is_robust, parts};

fn operation() -> impl Strategy<Value = Operation<'static>> {
    let finite = -1e9..1e9f64;
    prop_oneof![
        (
            0..1u32 << 20,
            proptest::option::of(0..u64::MAX),
            proptest::option::of(any::<(u64, u64)>())
        )
            .prop_map(|(count, timeout_ms, area)| {
                let area = area.map(|(start, len)| Area { start, len });
                Operation::Sample { count, timeout_ms, area }
            }),
        vec((any::<u64>(), finite.clone()), 0..20).prop_map(|pairs| {
            let (keys, priorities): (Vec<u64>, Vec<f64>) = pairs.into_iter().unzip();
            Operation::Update { keys: keys.into(), priorities: priorities.into() }
        }),
        vec(any::<u64>(), 0..20).prop_map(|keys| Operation::Delete { keys: keys.into() }),
        Just(Operation::Reset),
        Just(Operation::Pause),
        Just(Operation::Resume),
        (any::<u64>(), finite.clone(), finite.clone(), finite).prop_map(|(min_size, a, b, c)| {
            let (samples_per_insert, min_diff, max_diff) = (a, b, c);
            Operation::SetLimiter(Parameters { min_size, samples_per_insert, min_diff, max_diff })
        }),
        any::<u64>().prop_map(|version| Operation::Advance { version }),
        Just(Operation::Info),
        (0..1u32 << 20).prop_map(|count| Operation::CanSample { count }),
        (0..1u32 << 20).prop_map(|count| Operation::CanInsert { count }),
        Just(Operation::Cancel),
        Just(Operation::Checkpoint),
        (any::<u32>(), 0..1u32 << 19).prop_map(|(place, most)| Operation::List { place, most }),
        prop::collection::vec(any::<u64>(), 0..9)
            .prop_map(|keys| Operation::Get { keys: keys.into() }),
    ]
}

fn kind() -> impl Strategy<Value = ColumnKind> + Clone {
    let dtype = prop_oneof![
        Just(Dtype::Bool),
        Just(Dtype::Float(4)),
        Just(Dtype::Int(8)),
        Just(Dtype::BFloat16),
        (1..9u32).prop_map(Dtype::Bytes),
    ];
    (dtype, vec(0..5usize, 0..4)).prop_map(|(dtype, shape)| ColumnKind { dtype, shape })
}

fn signature() -> impl Strategy<Value = Signature> {
    let column = ("[a-z/]{0,8}", kind(), any::<bool>());
    let column = column.prop_map(|(path, kind, squeezed)| Column { path, kind, squeezed });
    ("\\PC{0,20}", vec(column, 0..5))
        .prop_map(|(structure, columns)| Signature { structure, columns })
}

fn entry() -> impl Strategy<Value = TableEntry> {
    let leaves = |kinds: Vec<(ColumnKind, bool)>, may_have_any_length: bool| {
        let leaf = |(number, (kind, any_length)): (usize, (ColumnKind, bool))| Leaf {
            path: format!("leaf{number}"),
            dtype: kind.dtype,
            shape: (any_length && may_have_any_length)
                .then_some(ANY_LENGTH)
                .into_iter()
                .chain(kind.shape)
                .collect(),
        };
        kinds.into_iter().enumerate().map(leaf).collect()
    };
    let kinds = vec((kind(), any::<bool>()), 1..4);
    let form = prop_oneof![
        kinds.clone().prop_map(move |kinds| Form::Rows(Spec::new(leaves(kinds, false)).unwrap())),
        Just(Form::Trajectories(None)),
        kinds.prop_map(move |kinds| {
            Form::Trajectories(Some(Spec::of_trajectories(leaves(kinds, true)).unwrap()))
        }),
    ];
    ("[a-z]{1,9}", form, "\\PC{0,30}", any::<u32>(), vec(any::<u8>(), 0..30)).prop_map(
        |(name, form, structure, capacity, metadata)| TableEntry {
            name,
            form,
            structure,
            capacity,
            metadata,
        },
    )
}

fn infos(count: usize) -> Infos {
    let doubles = |factor: f64| (0..count).map(|number| number as f64 * factor).collect();
    Infos {
        keys: (0..count as u64).map(|number| number << 33).collect(),
        probabilities: doubles(0.01),
        priorities: doubles(3.0),
        times_sampled: (0..count as u32).collect(),
        versions: (5..5 + count as u64).collect(),
        table_size: 77,
        total_weight: 12.5,
    }
}

/// A server that has been seen.
fn observed(text: &str, count: u64) -> Observation {
    let number = |suffix: &'static str| Number {
        suffix: suffix.into(),
        labels: vec![("table".into(), text.to_owned()), ("side".into(), String::new())],
        value: count as f64,
    };
    let family = |kind| Family {
        name: "echoic_table_items".into(),
        help: text.to_owned().into(),
        kind,
        numbers: vec![number(""), number("_sum")],
    };
    let connection = Connected {
        listener: text.to_owned(),
        id: count,
        peer: text.to_owned(),
        name: "a client".into(),
        age: 1.5,
        samples: 1,
        bytes: 2,
        reads: 3,
        duplicates: 4,
        blocked_time: 5.0,
        purpose: "push".into(),
        blocked_by: "RATIO".into(),
    };
    Observation {
        incarnation: count,
        age: 2.5,
        families: [Kind::Counter, Kind::Gauge, Kind::Summary, Kind::Histogram].map(family).into(),
        connections: vec![connection.clone(), connection],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn requests_are_read_as_they_were_written(
        (id, table, operation) in (any::<u64>(), any::<u32>(), operation()),
        change in (any::<usize>(), any::<u8>()),
    ) {
        let request = Request { id, table, operation };
        let mut frame = Vec::new();
        request.write(&mut frame);
        let (_, payload) = parts(&frame);
        prop_assert_eq!(Request::read(payload), Ok(request));
        is_robust(payload, change, |bytes| Request::read(bytes).map(|_| ()));
    }

    #[test]
    fn answers_are_read_as_they_were_written(
        (id, count, version) in any::<(u64, u64, u64)>(),
        text in "\\PC{0,40}",
        change in (any::<usize>(), any::<u8>()),
    ) {
        let limiter =
            Parameters { min_size: 3, samples_per_insert: 0.5, min_diff: -1.0, max_diff: 9.0 };
        let counts = Counts { inserts: count, samples: 4, deletions: 1 };
        let (table, size, paused, row_bytes) = (2, 8, true, 1 << 40);
        let (total_weight, max_times_sampled) = (0.25, 7);
        let numbers = Numbers {
            table,
            size,
            total_weight,
            max_times_sampled,
            counts,
            unique_samples: 6,
            episodes: 7,
            deleted_episodes: 8,
            insert_waits: Waits { waiting: 1, limited: 2, nanos: u64::MAX, reason: None },
            sample_waits: Waits { waiting: 3, limited: count, nanos: 5, reason: None },
            limiter,
            paused,
            version,
            row_bytes,
        };
        // Nothing was drawn, and NaN is not equal to itself.
        let listed = Infos { probabilities: vec![], ..infos(0) };
        let (code, stall) = (FailureCode::Limiter, Some(WaitReason::Ratio));
        let observation = observed(&text, count);
        for answer in [
            Answer::Done { id, count },
            Answer::Failed { id, code, stall, text: text.clone() },
            Answer::Saved { id, path: text },
            Answer::Listed { id, next: None, infos: listed.clone() },
            Answer::Listed { id, next: Some(7), infos: listed },
            Answer::Numbers { id, numbers: vec![numbers, numbers] },
            Answer::Observed { id, observation },
        ] {
            let mut frame = Vec::new();
            answer.write(&mut frame);
            let (header, payload) = parts(&frame);
            let read = Answer::read(header, payload);
            prop_assert_eq!(read.as_ref().map(Answer::id), Ok(id));
            prop_assert_eq!(read, Ok(answer));
            is_robust(payload, change, |bytes| Answer::read(header, bytes));
        }
    }

    #[test]
    fn batches_are_read_as_they_were_written_and_columns_are_aligned(
        signature in signature(),
        (id, count) in (any::<u64>(), 0..9usize),
        of_trajectories in any::<bool>(),
        change in (any::<usize>(), any::<u8>()),
    ) {
        let steps = |_| (1..=count as u64).collect();
        let layout = if of_trajectories {
            let steps = signature.columns.iter().map(steps).collect();
            Layout::Trajectories { signature: Arc::new(signature), steps }
        } else {
            Layout::Rows
        };
        let mut payload = Vec::new();
        BatchHead::write(&mut payload, id, &infos(count), &layout);
        let (head, used) = BatchHead::read(&payload).unwrap();
        prop_assert_eq!(used, payload.len());
        let expected = BatchHead { id, infos: infos(count), layout };
        prop_assert_eq!(&head, &expected);
        is_robust(&payload, change, BatchHead::read);
        let mut end = used;
        for column in head.layout.columns(count, used, None).unwrap() {
            prop_assert!(column.start % ALIGNMENT == 0 && column.start >= end);
            prop_assert!(column.start < end + ALIGNMENT);
            end = column.end;
        }
    }

    #[test]
    fn inserts_are_read_as_they_were_written(
        signature in signature(),
        (first, table, count, row) in (0..1u64 << 60, any::<u32>(), 1..9u32, 0..20usize),
        version in proptest::option::of(any::<u64>()),
        slices in vec(vec(any::<(u64, u32, u32)>(), 0..4), 0..4),
        change in (any::<usize>(), any::<u8>()),
    ) {
        let head = RowsHead { first, table, count, version };
        let priorities: Vec<f64> = (0..count).map(f64::from).collect();
        let rows: Vec<u8> = (0..count as usize * row).map(|byte| byte as u8).collect();
        let mut frame = Vec::new();
        head.write(&mut frame, &priorities, row).unwrap();
        frame.extend_from_slice(&rows);
        let (_, payload) = parts(&frame);
        let read = |bytes: &[u8]| {
            let (head, priorities, rows) = RowsHead::read(bytes, |_| Ok(row))?;
            Ok::<_, WireError>((head, priorities, rows.to_vec()))
        };
        prop_assert_eq!(read(payload), Ok((head, priorities, rows)));
        is_robust(payload, change, read);

        let slice = |(chunk, offset, len)| SliceHead { chunk, offset, len };
        let columns: Vec<Vec<SliceHead>> =
            slices.into_iter().map(|one| one.into_iter().map(slice).collect()).collect();
        let (sequence, priority, id) = (first, 2.5, 9);
        let item = ItemHead { sequence, table, priority, version, signature: id, columns };
        let mut frame = Vec::new();
        item.write(&mut frame);
        prop_assert_eq!(ItemHead::read(parts(&frame).1), Ok(item));
        is_robust(parts(&frame).1, change, ItemHead::read);

        let mut frame = Vec::new();
        SignatureHead::write(&mut frame, id, &signature);
        prop_assert_eq!(SignatureHead::check(&signature), Ok(()));
        let read = SignatureHead::read(parts(&frame).1);
        prop_assert_eq!(read, Ok(SignatureHead { id, signature }));
        is_robust(parts(&frame).1, change, SignatureHead::read);

        let chunks = vec![first, 3];
        let mut frame = Vec::new();
        Release::write(&mut frame, &chunks);
        prop_assert_eq!(Release::read(parts(&frame).1), Ok(Release { chunks }));
        is_robust(parts(&frame).1, change, Release::read);
    }

    #[test]
    fn tables_are_introduced_as_they_are(
        tables in vec(entry(), 0..5),
        change in (any::<usize>(), any::<u8>()),
    ) {
        prop_assert_eq!(check_list(&tables), Ok(()));
        let welcome = Welcome {
            proof: [1; 32],
            instance: [2; 16],
            next: 3,
            limit: 4,
            heartbeat_ms: 5,
            release: "0.1.0".into(),
            offer: Offer::Tables(tables),
        };
        let mut frame = Vec::new();
        welcome.write(&mut frame);
        prop_assert_eq!(Welcome::read(parts(&frame).1), Ok(welcome));
        is_robust(parts(&frame).1, change, Welcome::read);
    }
}

#[test]
fn a_length_that_no_memory_has_is_refused_before_any_is_taken() {
    // Half a billion keys, of which none is there.
    let mut payload = 7u64.to_le_bytes().to_vec();
    payload.push(3);
    payload.extend(0u32.to_le_bytes());
    let with = |count: u32| [&payload[..], &count.to_le_bytes()].concat();
    let large = Request::read(&with(u32::MAX)).unwrap_err();
    assert!(
        matches!(large, WireError::Codec(CodecError::TooLarge { field: "number of keys", .. })),
        "{large}"
    );
    let short = Request::read(&with(1 << 19)).unwrap_err();
    assert!(
        matches!(short, WireError::Codec(CodecError::Truncated { field: "keys", .. })),
        "{short}"
    );
    // Steps whose sum is past every number.
    let kind = ColumnKind { dtype: Dtype::Int(8), shape: vec![] };
    let columns = vec![Column { path: "x".into(), kind, squeezed: false }];
    let signature = Arc::new(Signature { structure: String::new(), columns });
    for steps in [vec![u64::MAX, 1], vec![u64::MAX / 8, 0], vec![1 << 28, 0]] {
        let layout = Layout::Trajectories { signature: Arc::clone(&signature), steps: vec![steps] };
        let error = layout.columns(2, 100, None).unwrap_err();
        assert!(matches!(error, WireError::Codec(CodecError::TooLarge { .. })), "{error}");
    }
}

#[test]
fn metadata_that_is_too_long_is_refused_on_both_sides() {
    let with = |len: usize| TableEntry {
        name: "replay".into(),
        form: Form::Trajectories(None),
        structure: String::new(),
        capacity: 1,
        metadata: vec![7; len],
    };
    let field = "length of a table's metadata";
    let limit = MAX_METADATA as u64;
    let too_large = WireError::Codec(CodecError::TooLarge { field, limit, got: limit + 1 });
    assert_eq!(check_list(&[with(MAX_METADATA)]), Ok(()));
    assert_eq!(check_list(&[with(MAX_METADATA + 1)]), Err(too_large.clone()));
    let read = |list: &[u8]| {
        // A WELCOME without anything that has a length of its own before its list.
        let payload = [&[0; 32 + 16 + 8 + 8 + 4 + 4], &[2][..], list].concat();
        Welcome::read(&payload).map(|welcome| welcome.offer)
    };
    let mut list = Vec::new();
    vec![with(MAX_METADATA + 1)].encode(&mut list);
    assert_eq!(read(&list), Err(too_large));
    list.clear();
    vec![with(MAX_METADATA)].encode(&mut list);
    assert_eq!(read(&list), Ok(Offer::Tables(vec![with(MAX_METADATA)])));
    // Lengths that say more than there is.
    let at = list.len() - MAX_METADATA - 4;
    for claimed in [u32::MAX, MAX_METADATA as u32 + 1] {
        list[at..at + 4].copy_from_slice(&claimed.to_le_bytes());
        let error = read(&list).unwrap_err();
        assert!(
            matches!(error, WireError::Codec(CodecError::Truncated { field: "metadata", .. })),
            "{error}"
        );
    }
    // Many tables that are good one by one, of which a WELCOME has no room.
    let error = check_list(&vec![with(MAX_METADATA); 256]).unwrap_err();
    let field = "length of the list of tables";
    assert!(
        matches!(error, WireError::Codec(CodecError::TooLarge { field: told, .. }) if told == field),
        "{error}"
    );
}

#[test]
fn a_list_of_items_is_read_as_it_was_written() {
    let infos = infos(5);
    let mut frame = Vec::new();
    Answer::Listed { id: 3, next: Some(9), infos: infos.clone() }.write(&mut frame);
    let (header, payload) = parts(&frame);
    let Ok(Answer::Listed { id: 3, next: Some(9), infos: read }) = Answer::read(header, payload)
    else {
        panic!("another answer");
    };
    assert!(read.probabilities.iter().all(|probability| probability.is_nan()));
    assert_eq!(Infos { probabilities: infos.probabilities.clone(), ..read }, infos);
    is_robust(payload, (20, 0xff), |bytes| Answer::read(header, bytes));
}
