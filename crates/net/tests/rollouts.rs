//! Rollout tables over a network: what clients may rely on, over each kind of socket and over shared memory.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use echoic_net::client::Options as ClientOptions;
use echoic_net::client::rollouts::{AppendError, Delivered, PendingAppend, Rollouts};
use echoic_net::client::tables::{PendingReply, TableWriter, TablesError};
use echoic_net::server::{OpenError, Options, Served, Server};
use echoic_net::transport::{Dial, TlsFiles, listen_at};
use echoic_net::wire::frame::{Header, kind};
use echoic_net::wire::handshake::Purpose;
use echoic_net::wire::rollouts::{Bulk, Changes, Wish};
use echoic_net::wire::tables::{Area, Operation, Request};
use echoic_replay::Dtype;
use echoic_replay::WaitReason;
use echoic_replay::codec::Encode;
use echoic_replay::rollouts::batch::{FIELDS, Form, Layout};
use echoic_replay::rollouts::durable::{Durability, DurableOptions};
use echoic_replay::rollouts::item::{Finish, Run, Segment};
use echoic_replay::rollouts::ledger::{
    Append, Balance, Blocked, Change, ChangeError, GroupStatus, Hold, Lease, Outcome, Reservation,
    Reserve, Size, Want,
};
use echoic_replay::rollouts::table::{CallError, RolloutInfo};
use echoic_replay::rollouts::{RolloutConfig, RolloutTable};
use echoic_replay::stream::Wait;

#[path = "common/fragile.rs"]
mod fragile;
#[path = "common/serving.rs"]
mod serving;
#[path = "../../replay/tests/common/settings.rs"]
mod settings;
#[path = "common/stranger.rs"]
mod stranger;
#[path = "../../replay/tests/common/waiting.rs"]
mod waiting;

use fragile::Fragile;
use serving::{TCP, addresses, dial, open_with};
use settings::{plain, schema};
use stranger::{frame, told};
use waiting::{PATIENCE, soon, until, within};

/// Groups of two items, in batches of two.
fn config() -> RolloutConfig {
    RolloutConfig {
        schema: schema(Dtype::Int(4), Dtype::Float(4)),
        min_group_size: 2,
        max_tokens: 100_000,
        max_blob_bytes: 1000,
        seed: 1,
        ..plain()
    }
}

fn table(config: RolloutConfig) -> Arc<RolloutTable> {
    Arc::new(RolloutTable::new(config).unwrap())
}

fn open_at(address: &str, table: &Arc<RolloutTable>, threads: usize) -> Server {
    // A PING would have the event loop find what it was not woken for.
    let options = Options { threads, heartbeat: 2 * PATIENCE, ..Options::default() };
    open_with(address, Arc::clone(table), options)
}

fn connect(server: &Server) -> Rollouts {
    let options = ClientOptions::default();
    soon(|wait| Rollouts::connect(dial(server), options, wait)).unwrap()
}

/// Runs something with a new table behind each kind of listener.
fn over_all_transports(config: &RolloutConfig, run: impl Fn(&Server, &Arc<RolloutTable>)) {
    for address in addresses() {
        let table = table(config.clone());
        run(&open_at(&address, &table, 1), &table);
    }
}

fn reserve(count: u32) -> Change {
    Change::Reserve(Reserve { count, source: "tests".into(), ..Reserve::default() })
}

/// A finished item whose bytes tell what it is.
fn item(hold: Hold, index: u32, tokens: u32) -> Change {
    item_of(0, hold, index, tokens)
}

/// As [`item`], of a version.
fn item_of(version: i64, hold: Hold, index: u32, tokens: u32) -> Change {
    let mark = hold.group as u32 * 2 + index;
    let ids = (0..tokens).flat_map(|token| (mark * 1000 + token).to_le_bytes());
    let bytes = ids.chain((0..tokens).map(|_| 1)).collect();
    let runs = [Run { version, tokens }].into_iter().filter(|run| run.tokens > 0).collect();
    let segment = Arc::new(Segment { runs, tokens, bytes, absent: 0 });
    let blobs = vec![("text".to_owned(), Arc::new(format!("item {mark}").into_bytes()))];
    let fields = (mark as f32).to_le_bytes().to_vec();
    let finish = Some(Arc::new(Finish { fields, absent: 0, blobs }));
    Change::Append(Append { hold, item: index, sequence: 0, segment, finish, priority: 1.0 })
}

fn group(hold: Hold, tokens: u32) -> [Change; 2] {
    [item(hold, 0, tokens), item(hold, 1, tokens)]
}

/// A wait for the first version that is published.
const LATER: Change = Change::AwaitVersion { above: 0 };

fn want(groups: u32) -> Want {
    let (rank, ranks, balance) = (0, 1, Balance::Count);
    Want { size: Size::Groups(groups), rank, ranks, balance, lease_ms: Some(60_000), width: 0 }
}

fn reservations(outcomes: Vec<Result<Outcome, ChangeError>>) -> Vec<Reservation> {
    let [Ok(Outcome::Reserved(reservations))] = <[_; 1]>::try_from(outcomes).unwrap() else {
        panic!("not reserved");
    };
    reservations
}

/// Makes groups of items of this many tokens.
fn make(client: &Rollouts, count: u32, tokens: u32) -> Vec<u64> {
    let reservations = reservations(soon(|wait| client.call(0, &[reserve(count)], wait)).unwrap());
    assert_eq!(reservations.len(), count as usize);
    for reservation in &reservations {
        let outcomes = soon(|wait| client.call(0, &group(reservation.hold, tokens), wait)).unwrap();
        let statuses = [GroupStatus::Running, GroupStatus::Complete]
            .map(|status| Ok(Outcome::Appended(status)));
        assert_eq!(outcomes, statuses);
    }
    reservations.iter().map(|reservation| reservation.hold.group).collect()
}

fn numbers<const N: usize, T>(bytes: &[u8], of: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| of(*chunk)).collect()
}

/// The groups of a share that lies flat, whose every byte is what was brought.
fn groups(delivered: &Delivered, tokens: u32) -> Vec<u64> {
    let config = config();
    let (head, bytes) = (delivered.head(), delivered.bytes());
    let arrays = head.shape.arrays(&config).unwrap();
    assert_eq!(arrays.bytes, bytes.len());
    assert!(bytes.as_ptr().addr().is_multiple_of(64));
    let array = |at: usize| &bytes[arrays.all[at].start..][..arrays.all[at].len];
    let ids = numbers(array(0), u64::from_ne_bytes);
    assert_eq!(ids.len(), head.shape.groups);
    let marks: Vec<u32> = ids.iter().flat_map(|id| [*id as u32 * 2, *id as u32 * 2 + 1]).collect();
    let rewards = numbers(array(FIELDS), f32::from_le_bytes);
    assert_eq!(rewards, marks.iter().map(|mark| *mark as f32).collect::<Vec<_>>());
    let expected = marks.iter().flat_map(|mark| (0..tokens).map(move |token| mark * 1000 + token));
    assert!(numbers(array(FIELDS + 1), u32::from_le_bytes).into_iter().eq(expected));
    assert_eq!(array(FIELDS + 2), vec![1; marks.len() * tokens as usize]);
    let texts: String = marks.iter().map(|mark| format!("item {mark}")).collect();
    assert_eq!(array(FIELDS + 3), texts.as_bytes());
    assert!(head.blobs.iter().all(|blobs| blobs.len() == 1 && blobs[0].name == "text"));
    assert!(head.names.iter().all(|(key, source)| key.is_empty() && source == "tests"));
    ids
}

fn sample(client: &Rollouts, want: Want) -> Delivered {
    soon(|wait| client.sample(0, want, Form::Flat, wait)).unwrap()
}

fn one(client: &Rollouts, change: Change) -> Result<Outcome, ChangeError> {
    soon(|wait| client.call(0, &[change], wait)).unwrap().pop().unwrap()
}

/// Why a call came to nothing.
fn failure<T>(result: Result<T, TablesError>) -> CallError {
    match result {
        Err(TablesError::Rollout(error)) => error,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("no error"),
    }
}

#[test]
fn groups_are_reserved_completed_and_delivered_whole() {
    over_all_transports(&config(), |server, table| {
        let client = connect(server);
        assert_eq!(*client.tables()[0], config());
        let is_shm = server.address().to_string().starts_with("shm");
        // Few tokens, and so many that they go through shared memory where there is some.
        for tokens in [0, 3, 20_000, 20_000] {
            let made = make(&client, 2, tokens);
            let delivered = sample(&client, want(2));
            assert_eq!(groups(&delivered, tokens), made);
            let lease = delivered.head().lease;
            assert_eq!(one(&client, Change::Ack(lease)), Ok(Outcome::Count(2)));
            // The first that is large shows how large the others are.
            let was_large = table.info().counts.tokens > 100_000;
            assert_eq!(delivered.is_shared(), is_shm && was_large, "{}", server.address());
        }
        let info = soon(|wait| client.info(0, wait)).unwrap();
        let here = table.info();
        assert!(info.time <= here.time, "time never goes back");
        assert_eq!(info, RolloutInfo { time: info.time, ..here });
        assert_eq!((info.counts.acked, info.counts.accepted, info.totals.out), (8, 8, 0));
        assert_eq!(info.sources[0].name, "tests");
    });
}

#[test]
fn what_is_delivered_is_what_a_caller_in_the_same_process_gets() {
    let forms = [
        Form::Flat,
        Form::Padded { width: 0, left: true },
        Form::Padded { width: 50, left: false },
        Form::Packed { width: 90 },
    ];
    over_all_transports(&config(), |server, table| {
        let client = connect(server);
        for form in forms {
            make(&client, 2, 41);
            let delivered = soon(|wait| client.sample(0, want(2), form, wait)).unwrap();
            assert_eq!(one(&client, Change::Nack(delivered.head().lease)), Ok(Outcome::Done));
            let Ok(Outcome::Delivered(share)) = table.apply(&Change::Sample(want(2))) else {
                panic!("it was given back");
            };
            let layout = Layout::new(&share, table.config(), form).unwrap();
            let mut bytes = vec![7; layout.bytes()];
            layout.write(&mut bytes);
            assert_eq!(delivered.bytes(), bytes);
            let (mut ours, theirs) = (layout.head(), delivered.head());
            ours.lease.attempt = 1;
            assert_eq!(&ours, theirs);
            table.apply(&Change::Ack(share.lease)).unwrap();
        }
    });
}

#[test]
fn what_has_waited_for_as_long_as_it_may_is_told_why() {
    let config = RolloutConfig { max_lag: Some(0), ..config() };
    over_all_transports(&config, |server, table| {
        let client = connect(server);
        make(&client, 1, 3);
        assert_eq!(
            reservations(soon(|wait| client.call(0, &[reserve(9)], wait)).unwrap()).len(),
            1
        );
        for patience in [Duration::ZERO, Duration::from_millis(30)] {
            let blocked = |result| failure::<()>(result);
            let sampled =
                within(patience, |wait| client.sample(0, want(2), Form::Flat, wait)).map(drop);
            let too_few = Blocked::TooFew { complete: 1, wanted: 2 };
            assert_eq!(blocked(sampled), CallError::TimedOut(too_few));
            let reserved = within(patience, |wait| client.call(0, &[reserve(1)], wait)).map(drop);
            let ahead = Blocked::Ahead { groups: 2, most: 2, version: 0 };
            assert_eq!(blocked(reserved), CallError::TimedOut(ahead));
            let resume = Change::Resume { source: "tests".into(), ttl_ms: None };
            let resumed = within(patience, |wait| client.call(0, &[resume], wait)).map(drop);
            assert_eq!(blocked(resumed), CallError::TimedOut(Blocked::NoneSuspended));
            let version = within(patience, |wait| client.call(0, &[LATER], wait)).map(drop);
            let shipping = Blocked::Shipping { version: 0, needed: 1 };
            assert_eq!(blocked(version), CallError::TimedOut(shipping));
        }
        let info = table.info();
        // Those that had no time did not wait.
        let limited = |side: &echoic_replay::rollouts::idle::Sides| {
            side.0
                .iter()
                .map(|waits| (waits.limited, waits.waiting))
                .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        assert_eq!((limited(&info.producers), limited(&info.consumers)), ((2, 0), (1, 0)));
        assert!(info.consumers.nanos(WaitReason::Group) >= 25_000_000);
    });
}

#[test]
fn refusals_are_those_that_a_caller_in_the_same_process_gets() {
    over_all_transports(&config(), |server, table| {
        let client = connect(server);
        let hold = reservations(soon(|wait| client.call(0, &[reserve(1)], wait)).unwrap())[0].hold;
        let cut = Change::Append(Append {
            hold,
            item: 0,
            sequence: 0,
            segment: Arc::new(Segment { tokens: 5, bytes: vec![0; 7], ..Segment::default() }),
            finish: None,
            priority: 1.0,
        });
        let unknown = item(Hold { group: 99, attempt: 0 }, 0, 1);
        let never = Change::Ack(Lease { batch: 7, rank: 0, attempt: 1 });
        let back = Change::Publish { version: -1 };
        let none = Change::Fail { holds: vec![Hold { group: 99, attempt: 0 }] };
        for change in [cut, unknown, never, back, none, Change::Deepen { depth: 1 }] {
            let here = table.apply(&change);
            let there = one(&client, change.clone());
            let there = there.map_err(CallError::Refused);
            assert_eq!(there, here, "{change:?}");
        }
        let nobody = Want { rank: 3, ..want(2) };
        let refused = soon(|wait| client.sample(0, nobody, Form::Flat, wait));
        assert_eq!(failure(refused), table.apply(&Change::Sample(nobody)).unwrap_err());
        // A reserve is alone, and refused in its place.
        assert_eq!(
            one(&client, reserve(0)),
            table.apply(&reserve(0)).map_err(|error| match error {
                CallError::Refused(refusal) => refusal,
                other => panic!("{other}"),
            })
        );
        // One that is refused keeps no other from happening.
        let [first, last] = group(hold, 2);
        let twice = [first.clone(), item(hold, 7, 1), last];
        let outcomes = soon(|wait| client.call(0, &twice, wait)).unwrap();
        assert_eq!(outcomes[0], Ok(Outcome::Appended(GroupStatus::Running)));
        assert!(matches!(&outcomes[1], Err(ChangeError::Value { what, .. }) if what == "item"));
        assert_eq!(outcomes[2], Ok(Outcome::Appended(GroupStatus::Complete)));
        let mixed = soon(|wait| client.call(0, &[first, reserve(1)], wait));
        assert!(matches!(mixed, Err(TablesError::Wire(_))), "one that waits is alone");
        let missing = soon(|wait| client.call(5, &[Change::Tick], wait));
        assert!(matches!(missing, Err(TablesError::Table(_))));
    });
}

#[test]
fn who_wants_less_goes_past_who_wants_more_and_keeps_its_order_among_its_like() {
    over_all_transports(&config(), |server, _| {
        let [producer, patient, first, second] = [(); 4].map(|()| connect(server));
        let start = |client: &Rollouts, want| client.start_sample(0, want, Form::Flat, None);
        let mut waiting = [(&patient, 3), (&first, 1), (&second, 1)].map(|(client, count)| {
            let reply = start(client, want(count)).unwrap();
            // It is in the wait queue when a later question is answered.
            soon(|wait| client.info(0, wait)).unwrap();
            reply
        });
        let made = make(&producer, 2, 1);
        let [large, smalls @ ..] = &mut waiting;
        for (small, id) in smalls.iter_mut().zip(&made) {
            assert_eq!(groups(&soon(|wait| small.wait(wait)).unwrap(), 1), [*id]);
        }
        assert!(!large.is_ready());
        let made = make(&producer, 3, 1);
        assert_eq!(groups(&soon(|wait| large.wait(wait)).unwrap(), 1), made);
    });
}

#[test]
fn ranks_of_one_batch_do_not_wait_for_each_other() {
    over_all_transports(&config(), |server, _| {
        let clients = [(); 2].map(|()| connect(server));
        let wants = [0, 1].map(|rank| Want { rank, ranks: 2, ..want(2) });
        // Rank 1 has its share of the first batch; rank 0 asks for its share of two.
        let mut replies: Vec<PendingReply<Delivered>> = [0, 1, 1]
            .map(|rank: usize| {
                clients[rank].start_sample(0, wants[rank], Form::Flat, None).unwrap()
            })
            .into();
        make(&clients[0], 4, 1);
        let mut got: Vec<u64> = Vec::new();
        for reply in &mut replies {
            got.extend(groups(&soon(|wait| reply.wait(wait)).unwrap(), 1));
        }
        got.sort_unstable();
        got.dedup();
        assert_eq!(got.len(), 3, "{got:?}");
    });
}

#[test]
fn a_request_that_is_given_up_waits_no_more() {
    over_all_transports(&config(), |server, table| {
        let client = connect(server);
        let waiting = || {
            let info = table.info();
            let sides = info.producers.0.iter().chain(&info.consumers.0);
            sides.map(|waits| waits.waiting).sum::<u64>()
        };
        let until = |wanted| until(&format!("{wanted} wait"), || waiting() == wanted);
        let resume = Change::Resume { source: String::new(), ttl_ms: None };
        let sample = client.start_sample(0, want(2), Form::Flat, None).unwrap();
        let other = client.start_sample(0, want(2), Form::Flat, None).unwrap();
        let call = client.start_call(0, &[resume], None).unwrap();
        until(3);
        drop(sample);
        until(2);
        drop(call);
        until(1);
        // Those of a connection that is gone are gone with it.
        soon(|wait| client.close(wait)).unwrap();
        until(0);
        drop(other);
    });
}

#[test]
fn a_share_that_does_not_fit_its_rows_is_refused_and_nothing_is_used_up() {
    over_all_transports(&config(), |server, table| {
        let client = connect(server);
        let made = make(&client, 2, 10);
        let narrow = Form::Padded { width: 9, left: false };
        let refused = soon(|wait| client.sample(0, want(2), narrow, wait)).unwrap_err();
        assert!(refused.to_string().contains("more than a row's 9"), "{refused}");
        assert_eq!(groups(&sample(&client, want(2)), 10), made);
        let once = Want { lease_ms: None, ..want(2) };
        make(&client, 2, 10);
        let refused = soon(|wait| client.sample(0, once, narrow, wait)).unwrap_err();
        assert!(refused.to_string().contains("more than a row's 9"), "{refused}");
        assert_eq!(table.info().totals.queued, 2, "nothing was used up");
    });
}

#[test]
fn changes_that_are_bytes_already_are_filled_in() {
    over_all_transports(&config(), |server, _| {
        let client = connect(server);
        for tokens in [2u32, 30_000] {
            let hold =
                reservations(soon(|wait| client.call(0, &[reserve(1)], wait)).unwrap())[0].hold;
            let (mut head, mut pieces) = (Vec::new(), Vec::new());
            let changes = group(hold, tokens);
            for change in &changes {
                change.encode(&mut head);
                pieces.extend(change.bulk());
            }
            let bulk = pieces.concat();
            let fill = |to: &mut [u8]| to.copy_from_slice(&bulk);
            let mut calls = client.start_filled(0, 2, &head, bulk.len(), false, fill).unwrap();
            let outcomes = soon(|wait| calls.wait(wait)).unwrap();
            assert_eq!(outcomes[1], Ok(Outcome::Appended(GroupStatus::Complete)));
            let once = Want { lease_ms: None, ..want(1) };
            assert_eq!(groups(&sample(&client, once), tokens), [hold.group]);
        }
    });
}

#[test]
fn more_than_a_request_may_have_is_sent_in_several() {
    let config = RolloutConfig { max_tokens: 1 << 22, ..config() };
    over_all_transports(&config, |server, table| {
        let client = connect(server);
        let holds = reservations(soon(|wait| client.call(0, &[reserve(3)], wait)).unwrap());
        // Six items of 5 MB, or of 10 MB together with their head.
        let changes: Vec<Change> =
            holds.iter().flat_map(|reservation| group(reservation.hold, 1_000_000)).collect();
        let outcomes = soon(|wait| client.call(0, &changes, wait)).unwrap();
        assert_eq!(outcomes.len(), 6);
        assert_eq!(table.info().counts.accepted, 3);
        assert_eq!(groups(&sample(&client, want(2)), 1_000_000), [0, 1]);
        let many = vec![Change::Tick; 5000];
        let outcomes = soon(|wait| client.call(0, &many, wait)).unwrap();
        assert_eq!(outcomes, vec![Ok(Outcome::Done); 5000]);
        assert_eq!(soon(|wait| client.call(0, &[], wait)).unwrap(), vec![]);
        // An item of 20 MB.
        let hold = reservations(soon(|wait| client.call(0, &[reserve(1)], wait)).unwrap())[0].hold;
        let appended = one(&client, item(hold, 0, 4_000_000));
        assert_eq!(appended, Ok(Outcome::Appended(GroupStatus::Running)));
    });
}

#[test]
fn blobs_come_in_parts_up_to_their_limit() {
    let limit = 18 << 20;
    let one_item = RolloutConfig { group_size: 1, min_group_size: 1, redundancy: 0, ..config() };
    over_all_transports(&RolloutConfig { max_blob_bytes: limit, ..one_item }, |server, table| {
        let client = connect(server);
        let hold = reservations(soon(|wait| client.call(0, &[reserve(1)], wait)).unwrap())[0].hold;
        let with_blob = |bytes: Vec<u8>| {
            let blobs = vec![("b".into(), Arc::new(bytes))];
            let finish = Finish { fields: vec![0; 4], absent: 0, blobs };
            let (segment, finish) = (Arc::default(), Some(Arc::new(finish)));
            let (item, sequence, priority) = (0, 0, 1.0);
            Change::Append(Append { hold, item, sequence, segment, finish, priority })
        };
        let got = limit as usize + 1;
        let refusal = ChangeError::Value {
            what: "bytes of an item's blobs".into(),
            expected: format!("at most max_blob_bytes = {limit}"),
            got: got.to_string(),
        };
        assert_eq!(one(&client, with_blob(vec![0; got])), Err(refusal));
        let bytes: Vec<u8> = (0..limit).map(|at| (at >> 7) as u8).collect();
        let appended = one(&client, with_blob(bytes.clone()));
        assert_eq!(appended, Ok(Outcome::Appended(GroupStatus::Complete)));
        let Ok(Outcome::Delivered(share)) = table.apply(&Change::Sample(want(1))) else {
            panic!("a batch")
        };
        let finish = share.groups[0].items[0].finish.as_ref().unwrap();
        assert!(*finish.blobs[0].1 == bytes);
        assert_eq!(client.reconnects(), 0);
    });
}

#[test]
fn a_group_that_was_left_comes_with_what_is_there_of_it() {
    over_all_transports(&config(), |server, table| {
        let (first, second) = (connect(server), connect(server));
        let hold = reservations(soon(|wait| first.call(0, &[reserve(1)], wait)).unwrap())[0].hold;
        one(&first, item(hold, 1, 30_000)).unwrap();
        let resume = Change::Resume { source: "other".into(), ttl_ms: Some(5000) };
        let mut waits = second.start_call(0, std::slice::from_ref(&resume), None).unwrap();
        assert_eq!(one(&first, Change::Suspend { holds: vec![hold] }), Ok(Outcome::Count(1)));
        let outcome = soon(|wait| waits.wait(wait)).unwrap().pop().unwrap();
        let Ok(Outcome::Resumed(reservation, items)) = outcome else { panic!("not resumed") };
        let next = Hold { attempt: hold.attempt + 1, ..hold };
        assert_eq!((reservation.hold, reservation.ttl_ms), (next, 5000));
        // As it is in the table.
        table.apply(&Change::Suspend { holds: vec![reservation.hold] }).unwrap();
        let Ok(Outcome::Resumed(_, ours)) = table.apply(&resume) else { panic!("not resumed") };
        assert_eq!((&items, items.len()), (&ours, 2));
        assert_eq!((items[0].tokens(), items[1].tokens()), (0, 30_000));
    });
}

/// Makes groups and uses them up over connections that break, until all were delivered.
fn survives(server: &Server, table: &RolloutTable, dial: impl Fn() -> Box<dyn Dial> + Sync) -> u64 {
    let count = 150u64;
    let options = ClientOptions::default;
    let open = || soon(|wait| Rollouts::connect(dial(), options(), wait)).unwrap();
    assert!(!server.address().to_string().is_empty());
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let client = open();
            for key in 0..count {
                let reserve =
                    Reserve { count: 1, keys: vec![format!("group {key}")], ..Reserve::default() };
                let reserve = Change::Reserve(Reserve { source: "tests".into(), ..reserve });
                let reservations =
                    reservations(soon(|wait| client.call(0, &[reserve], wait)).unwrap());
                let group = group(reservations[0].hold, 500);
                soon(|wait| client.call(0, &group, wait)).unwrap();
            }
            client.reconnects()
        });
        let client = open();
        let mut seen = BTreeSet::new();
        while seen.len() < count as usize {
            let want = Want { lease_ms: Some(300), ..want(2) };
            let delivered = soon(|wait| client.sample(0, want, Form::Flat, wait)).unwrap();
            let config = table.config();
            let arrays = delivered.head().shape.arrays(config).unwrap();
            let ids = numbers(&delivered.bytes()[..arrays.all[0].len], u64::from_ne_bytes);
            match one(&client, Change::Ack(delivered.head().lease)) {
                // Of an ack that was heard and not answered, the second is refused.
                Ok(Outcome::Count(2)) | Err(ChangeError::Fenced { .. }) => seen.extend(ids),
                other => panic!("{other:?}"),
            }
        }
        producer.join().unwrap() + client.reconnects()
    })
}

#[test]
fn nothing_is_lost_or_made_twice_when_connections_break() {
    let table = table(config());
    let server = open_at(TCP, &table, 2);
    let reconnects = survives(&server, &table, || Fragile::new(server.address(), 40_000));
    assert!(reconnects > 20, "{reconnects}");
    let counts = table.info().counts;
    assert_eq!((counts.accepted, counts.acked), (150, 150));
    // Nobody makes the group of a reservation whose answer was lost.
    assert_eq!(counts.submitted, 150 + counts.running + counts.rejected);
}

#[test]
fn what_was_not_answered_is_asked_of_a_server_that_was_started_anew() {
    for address in addresses() {
        let table = table(config());
        let mut server = open_at(&address, &table, 1);
        let address = server.address().to_string();
        let client = connect(&server);
        let hold = reservations(soon(|wait| client.call(0, &[reserve(2)], wait)).unwrap())[0].hold;
        let mut waits = client.start_sample(0, want(1), Form::Flat, None).unwrap();
        soon(|wait| client.info(0, wait)).unwrap();
        server.close(Instant::now() + PATIENCE);
        // Large ones lie in memory that the new server does not have.
        let mut calls = client.start_call(0, &group(hold, 30_000), None).unwrap();
        let server = open_at(&address, &table, 1);
        let outcomes = soon(|wait| calls.wait(wait)).unwrap();
        assert_eq!(outcomes[1], Ok(Outcome::Appended(GroupStatus::Complete)));
        assert_eq!(groups(&soon(|wait| waits.wait(wait)).unwrap(), 30_000), [hold.group]);
        assert_eq!(client.reconnects(), 1);
        drop(server);
    }
}

#[test]
fn reservations_of_a_table_without_a_directory_end_with_its_server() {
    let mut server = open_at(TCP, &table(config()), 1);
    let address = server.address().to_string();
    let old = connect(&server);
    let hold = reservations(soon(|wait| old.call(0, &[reserve(1)], wait)).unwrap())[0].hold;
    server.close(Instant::now() + PATIENCE);
    drop(server);
    // The next one has come as far.
    let after = table(config());
    let server = open_at(&address, &after, 1);
    let new = connect(&server);
    let reservation =
        reservations(soon(|wait| new.call(0, &[reserve(1)], wait)).unwrap()).remove(0);
    assert_eq!(reservation.hold.group, hold.group);
    assert_eq!(one(&old, item(hold, 0, 3)), Ok(Outcome::Appended(GroupStatus::Expired)));
    assert_eq!(
        one(&new, item(reservation.hold, 0, 3)),
        Ok(Outcome::Appended(GroupStatus::Running))
    );
}

#[test]
fn a_client_gives_up_on_a_server_with_other_tables() {
    let mut server = open_at(TCP, &table(config()), 1);
    let address = server.address().to_string();
    let client = connect(&server);
    server.close(Instant::now() + PATIENCE);
    let other = table(RolloutConfig { group_size: 1, min_group_size: 1, ..config() });
    let _again = open_at(&address, &other, 1);
    let error = soon(|wait| client.call(0, &[Change::Tick], wait)).unwrap_err();
    assert!(error.to_string().contains("not those that it had before"), "{error}");
}

#[test]
fn a_server_without_a_server_says_that_it_is_away() {
    let mut server = open_at(TCP, &table(config()), 1);
    let client = connect(&server);
    server.close(Instant::now() + PATIENCE);
    let patience = Duration::from_millis(50);
    let error = within(patience, |wait| client.sample(0, want(1), Form::Flat, wait)).unwrap_err();
    assert!(matches!(error, TablesError::TimedOut(WaitReason::Away)), "{error}");
}

#[test]
fn producers_and_consumers_on_many_connections_see_each_group_once() {
    let config = RolloutConfig { max_lag: Some(2), batch_groups: 8, ..config() };
    for address in addresses() {
        let table = table(config.clone());
        // Several event loops, so that who waits is woken by others.
        let server = open_at(&address, &table, 2);
        let batches = 20;
        let seen = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let client = connect(&server);
                    loop {
                        let reserved = soon(|wait| client.call(0, &[reserve(3)], wait));
                        let Ok(outcomes) = reserved else { return };
                        for reservation in reservations(outcomes) {
                            let item =
                                |index| item_of(reservation.version, reservation.hold, index, 40);
                            let group = [0, 1].map(item);
                            // Those that come too late are too old, or the table is closed.
                            let _ = soon(|wait| client.call(0, &group, wait));
                        }
                    }
                });
            }
            let learner = connect(&server);
            let ranks = [0, 1].map(|rank| {
                let server = &server;
                scope.spawn(move || {
                    let client = connect(server);
                    let want = Want { rank, ranks: 2, ..want(8) };
                    let mut seen = Vec::new();
                    for _ in 0..batches {
                        let delivered = sample(&client, want);
                        assert_eq!(delivered.head().shape.groups, 4);
                        seen.extend(numbers(&delivered.bytes()[..32], u64::from_ne_bytes));
                        one(&client, Change::Ack(delivered.head().lease)).unwrap();
                    }
                    seen
                })
            });
            let mut published = 0;
            while ranks.iter().any(|rank| !rank.is_finished()) {
                let acked = soon(|wait| learner.info(0, wait)).unwrap().counts.acked;
                if acked / 8 > published {
                    published = acked / 8;
                    let version = published as i64;
                    one(&learner, Change::Publish { version }).unwrap();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            table.close();
            ranks.map(|rank| rank.join().unwrap()).concat()
        });
        let distinct: BTreeSet<u64> = seen.iter().copied().collect();
        assert_eq!((seen.len(), distinct.len()), (8 * batches, 8 * batches));
    }
}

#[test]
#[cfg_attr(any(echoic_portable, not(target_os = "linux")), ignore = "shm:// needs Linux")]
fn hostile_requests_are_refused_with_the_reason_and_harm_nothing() {
    let table = table(config());
    let server = open_at(&addresses()[2], &table, 1);
    let request =
        |operation: Operation<'_>| frame(|out| Request { id: 1, table: 0, operation }.write(out));
    let changes = |count, head: &[u8], bulk: Bulk<'static>| {
        let (timeout_ms, head) = (Some(0), head.to_vec().into());
        request(Operation::RolloutChanges(Changes { timeout_ms, count, head, bulk }))
    };
    let inline =
        |count, head: &[u8], bulk: &[u8]| changes(count, head, Bulk::Inline(bulk.to_vec().into()));
    let encode = |change: &Change| {
        let mut head = Vec::new();
        change.encode(&mut head);
        (head, change.bulk().collect::<Vec<_>>().concat())
    };
    let (tick, _) = encode(&Change::Tick);
    let (append, tokens) = encode(&item(Hold { group: 0, attempt: 0 }, 0, 10));
    let (waits, _) = encode(&reserve(1));
    let (sampled, _) = encode(&Change::Sample(want(2)));
    let area = |start, len| Bulk::Area(Area { start, len });
    let wish = |area| {
        let (want, form, timeout_ms) = (want(2), Form::Flat, Some(0));
        request(Operation::RolloutSample(Wish { want, form, timeout_ms, area }))
    };
    let mut holds = vec![6];
    u32::MAX.encode(&mut holds);
    // These are answered, and the connection goes on.
    let numbers = |table, operation: Operation<'_>| {
        frame(|out| Request { id: 1, table, operation }.write(out))
    };
    let later = |above| {
        let mut head = Vec::new();
        Change::AwaitVersion { above }.encode(&mut head);
        let (head, bulk) = (head.into(), Bulk::Inline((&[]).into()));
        request(Operation::RolloutChanges(Changes { timeout_ms: None, count: 1, head, bulk }))
    };
    for said in [
        inline(1, &tick, &[]),
        inline(1, &append, &tokens),
        inline(0, &[], &[]),
        changes(0, &[], area(0, 0)),
        numbers(9, Operation::RolloutInfo),
        wish(Some(Area { start: 0, len: 4096 })),
        later(i64::MAX),
    ] {
        assert_eq!(told(&server, Purpose::Gather, &said), None);
    }
    let too_many: Vec<u8> = (0..1025).flat_map(|_| later(5)).collect();
    let unknown = frame(|out| {
        out.extend(Header { len: 13, kind: kind::REQUEST }.bytes());
        out.extend([0; 8]);
        out.push(99);
        out.extend([0; 4]);
    });
    for (said, reason) in [
        (inline(1, &tick, &[0]), "1 bytes too many"),
        (inline(1, &[&tick[..], &tick].concat(), &[]), "1 bytes too many"),
        (inline(2, &tick, &[]), "change: expected 1 more bytes, got 0"),
        (inline(1, &append, &tokens[1..]), "blob: expected 6 more bytes, got 5"),
        (inline(1, &append[..20], &tokens), "expected 4 more bytes, got 3"),
        (inline(1, &holds, &[]), "holds: expected"),
        (inline(1, &[99], &[]), "change: 99 has no meaning"),
        (inline(2, &[&waits[..], &tick].concat(), &[]), "waits among others"),
        (inline(1, &sampled, &[]), "waits among others"),
        (inline(4097, &vec![14; 4097], &[]), "number of changes"),
        (changes(1, &tick, area(0, 1)), "1 bytes too many"),
        (changes(1, &append, area(0, 40_000)), "end of an area"),
        (changes(1, &append, area(u64::MAX, 1)), "end of an area"),
        (wish(Some(Area { start: 4000, len: 97 })), "end of an area"),
        (too_many, "requests that wait"),
        (unknown, "operation"),
    ] {
        let refused = told(&server, Purpose::Gather, &said).expect(reason);
        assert!(refused.text.contains(reason), "{reason}: {}", refused.text);
    }
    let client = connect(&server);
    assert_eq!(make(&client, 1, 5), [0]);
}

#[test]
fn a_server_of_rollout_tables_alone_takes_no_inserts() {
    let table = table(config());
    let server = open_at(TCP, &table, 1);
    let options = ClientOptions::default();
    let error = soon(|wait| TableWriter::connect(dial(&server), options, wait)).err().unwrap();
    assert!(error.to_string().contains("no tables; it has rollout tables"), "{error}");
    let listen = listen_at(&TCP.parse().unwrap(), &TlsFiles::default()).unwrap();
    let rollouts = Arc::new(vec![Arc::clone(&table), table]);
    let twice =
        Server::open(&*listen, Served { rollouts, ..Served::default() }, Options::default());
    let Err(OpenError::Spec(error)) = twice else { panic!("it opened") };
    assert!(error.to_string().contains("two rollout tables named \"rollouts\""), "{error}");
}

/// A table in a new directory, behind a listener.
fn open_kept(durability: Durability) -> (tempfile::TempDir, Arc<RolloutTable>, Server) {
    let dir = tempfile::TempDir::new().unwrap();
    let durable = DurableOptions { durability, history: false };
    let config = RolloutConfig { max_tokens: 1 << 24, ..config() };
    let path = dir.path().join("table");
    let table = Arc::new(RolloutTable::open(config, path, durable).unwrap());
    let server = open_at(TCP, &table, 1);
    (dir, table, server)
}

#[test]
fn whoever_is_told_of_a_change_finds_it_kept() {
    for durability in [Durability::None, Durability::Async, Durability::Sync] {
        let (_dir, table, server) = open_kept(durability);
        let client = connect(&server);
        let is_durable = || table.is_durable(table.receipt().unwrap()).unwrap();
        // Every other share is laid out elsewhere: it has many bytes.
        let wide = Form::Padded { width: 1 << 18, left: false };
        for form in [Form::Flat, wide].into_iter().cycle().take(20) {
            let holds = reservations(soon(|wait| client.call(0, &[reserve(2)], wait)).unwrap());
            assert!(is_durable(), "a reservation, {durability:?}");
            let items: Vec<_> =
                holds.iter().flat_map(|reservation| group(reservation.hold, 20_000)).collect();
            soon(|wait| client.call(0, &items, wait)).unwrap();
            assert!(is_durable(), "appends, {durability:?}");
            let delivered = soon(|wait| client.sample(0, want(2), form, wait)).unwrap();
            assert!(is_durable(), "a sample, {durability:?}");
            assert_eq!(one(&client, Change::Ack(delivered.head().lease)), Ok(Outcome::Count(2)));
            assert!(is_durable(), "an ack, {durability:?}");
        }
        table.close();
    }
}

#[test]
fn more_answers_than_may_wait_for_the_disk_come_when_it_has_followed() {
    let (_dir, _table, server) = open_kept(Durability::Sync);
    let client = connect(&server);
    let holds = reservations(soon(|wait| client.call(0, &[reserve(1500)], wait)).unwrap());
    // As many callers would who do not wait for each other.
    let call = |reservation: &Reservation| {
        client.start_call(0, &group(reservation.hold, 3), None).unwrap()
    };
    let calls: Vec<_> = holds.iter().map(call).collect();
    for mut call in calls {
        assert!(soon(|wait| call.wait(wait)).unwrap().iter().all(Result::is_ok));
    }
    // Any two of them have more bytes than may wait.
    let wide = Form::Padded { width: 1 << 18, left: false };
    let samples: Vec<_> =
        (0..12).map(|_| client.start_sample(0, want(2), wide, None).unwrap()).collect();
    for mut sample in samples {
        assert_eq!(soon(|wait| sample.wait(wait)).unwrap().head().shape.groups, 2);
    }
    assert_eq!((client.reconnects(), server.info().malformed), (0, 0));
}

#[test]
fn what_a_journal_could_not_take_is_not_acknowledged_and_all_who_wait_hear_of_it() {
    let (dir, table, server) = open_kept(Durability::Async);
    let (producer, consumer) = (connect(&server), connect(&server));
    let holds = reservations(soon(|wait| producer.call(0, &[reserve(50)], wait)).unwrap());
    let mut sample = consumer.start_sample(0, want(9), Form::Flat, None).unwrap();
    let mut alike = consumer.start_sample(0, want(9), Form::Flat, None).unwrap();
    let mut version = consumer.start_call(0, &[LATER], None).unwrap();
    soon(|wait| consumer.info(0, wait)).unwrap();
    // The file that is open stays writable; the next one can't be made.
    std::fs::remove_dir_all(dir.path().join("table/journal")).unwrap();
    let mut told = table.receipt().unwrap();
    let error = holds
        .iter()
        .find_map(|reservation| {
            let called =
                soon(|wait| producer.call(0, &[item(reservation.hold, 0, 2_000_000)], wait));
            if called.is_ok() {
                told = table.receipt().unwrap();
            }
            called.err()
        })
        .expect("the journal begins another file after 64 MiB");
    assert!(matches!(failure::<()>(Err(error)), CallError::Journal(_)));
    assert_eq!(table.is_durable(told), Ok(true));
    // The next one who asks is told, and so are those who wait.
    let reserved = soon(|wait| producer.call(0, &[reserve(1)], wait));
    assert!(matches!(failure(reserved), CallError::Journal(_)));
    let sampled = [&mut sample, &mut alike].map(|reply| soon(|wait| reply.wait(wait)));
    for sampled in sampled {
        assert!(matches!(failure(sampled), CallError::Journal(_)));
    }
    let shipped = soon(|wait| version.wait(wait));
    assert!(matches!(failure(shipped), CallError::Journal(_)));
}

/// Adds an item that nobody waits for.
fn append(client: &Rollouts, change: Change) -> PendingAppend {
    let Change::Append(append) = change else { panic!("no append") };
    soon(|wait| client.start_append(0, append, wait)).unwrap()
}

#[test]
fn tokens_that_nobody_waits_for_arrive_and_their_errors_are_told_once() {
    over_all_transports(&config(), |server, table| {
        let client = connect(server);
        let holds = reservations(soon(|wait| client.call(0, &[reserve(3)], wait)).unwrap());
        let holds: Vec<Hold> = holds.iter().map(|reservation| reservation.hold).collect();
        let first = append(&client, item(holds[0], 0, 5));
        let last = append(&client, item(holds[0], 1, 5));
        soon(|wait| client.appends().flush(wait)).unwrap();
        assert!(first.is_ready() && last.is_ready());
        assert_eq!(soon(|wait| first.wait(wait)).unwrap(), GroupStatus::Running);
        // It may be asked again.
        assert_eq!(soon(|wait| last.wait(wait)).unwrap(), GroupStatus::Complete);
        assert_eq!(soon(|wait| last.wait(wait)).unwrap(), GroupStatus::Complete);

        // Only the ledger knows that segments are missing before it.
        let strange = |hold: Hold| {
            let mut change = item(hold, 1, 5);
            if let Change::Append(append) = &mut change {
                append.sequence = 3;
            }
            append(&client, change)
        };
        let is_refused = |error: &AppendError, hold: Hold| {
            error.group == Some(hold.group)
                && matches!(error.error, TablesError::Rollout(CallError::Refused(_)))
        };
        // The one who made it is told always, and the queue is not told again.
        let told = strange(holds[1]);
        for _ in 0..2 {
            let error = soon(|wait| told.wait(wait)).unwrap_err();
            assert!(is_refused(&error, holds[1]), "{error:?}");
        }
        strange(holds[1]).forget();
        soon(|wait| client.appends().flush(wait)).unwrap();
        let arrives = append(&client, item(holds[2], 0, 5));
        drop(strange(holds[2]));
        let error = soon(|wait| client.close(wait)).unwrap_err();
        assert!(is_refused(&error, holds[2]), "{error:?}");
        assert_eq!(
            soon(|wait| arrives.wait(wait)).unwrap(),
            GroupStatus::Running,
            "it came before the end"
        );
        assert!(!client.is_connected());
        assert_eq!(table.info().totals.queued, 1);
    });
}

#[test]
fn an_append_that_is_refused_while_somebody_waits_for_it_has_its_answer() {
    over_all_transports(&config(), |server, table| {
        let client = connect(server);
        let hold = reservations(soon(|wait| client.call(0, &[reserve(1)], wait)).unwrap())[0].hold;
        table.close();
        let added = append(&client, item(hold, 0, 5));
        for _ in 0..2 {
            let error = soon(|wait| added.wait(wait)).unwrap_err();
            assert_eq!(error.group, Some(hold.group));
            assert!(matches!(error.error, TablesError::Rollout(CallError::Closed)), "{error:?}");
        }
        // Nothing waits for another answer.
        soon(|wait| client.appends().flush(wait)).unwrap();
        soon(|wait| client.close(wait)).unwrap();
    });
}

/// Holds up the thread that tells what is kept, for as long as its lock is held.
struct Gate {
    table: Arc<RolloutTable>,
    is_reached: AtomicBool,
    lock: Mutex<()>,
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        if std::thread::current().name() != Some("echoic-journal") {
            // Somebody gave room back.
            let table = Arc::clone(&self.table);
            return table.wake_on_durable(&Waker::from(self));
        }
        self.is_reached.store(true, Ordering::Relaxed);
        drop(self.lock.lock());
    }
}

#[test]
fn an_append_whose_waiter_panics_is_waited_for_by_others() {
    let (_dir, table, server) = open_kept(Durability::Sync);
    let client = connect(&server);
    let hold = reservations(soon(|wait| client.call(0, &[reserve(1)], wait)).unwrap())[0].hold;
    let (is_reached, lock) = (AtomicBool::new(false), Mutex::new(()));
    let gate = Arc::new(Gate { table: Arc::clone(&table), is_reached, lock });
    let held = gate.lock.lock();
    table.wake_on_durable(&Waker::from(Arc::clone(&gate)));
    table.apply(&reserve(1)).unwrap();
    until("something is kept", || gate.is_reached.load(Ordering::Relaxed));
    let added = append(&client, item(hold, 0, 5));
    let others: Vec<_> = (1..32).map(|place| append(&client, item(hold, place, 5))).collect();
    let Change::Append(one_more) = item(hold, 32, 5) else { unreachable!() };
    let late = within(Duration::from_millis(10), |wait| client.start_append(0, one_more, wait));
    let Err(AppendError { group: None, error: TablesError::TimedOut(_) }) = late else {
        panic!("there was room for one more")
    };
    assert!(!client.appends().has_room(5).unwrap());
    others.iter().for_each(PendingAppend::forget);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let on_tick = &mut |_| panic!("a callback panics");
        added.wait(Wait { deadline: None, tick: Some(Duration::from_millis(1)), on_tick })
    }));
    assert!(panicked.is_err() && !added.is_ready());
    let late = within(Duration::from_millis(10), |wait| client.appends().flush(wait)).unwrap_err();
    assert!(late.group.is_none() && matches!(late.error, TablesError::TimedOut(_)), "{late:?}");
    std::thread::scope(|scope| {
        let others = [(); 2].map(|()| scope.spawn(|| soon(|wait| added.wait(wait))));
        drop(held);
        for other in others {
            assert_eq!(other.join().unwrap().unwrap(), GroupStatus::Running);
        }
    });
    soon(|wait| client.appends().flush(wait)).unwrap();
}

#[test]
fn a_batch_that_was_given_back_goes_past_who_wants_another_size() {
    over_all_transports(&config(), |server, _| {
        let (first, large, small) = (connect(server), connect(server), connect(server));
        make(&first, 2, 3);
        let taken = sample(&first, want(2));
        let mut many = large.start_sample(0, want(4), Form::Flat, None).unwrap();
        soon(|wait| large.info(0, wait)).unwrap();
        let mut few = small.start_sample(0, want(2), Form::Flat, None).unwrap();
        soon(|wait| small.info(0, wait)).unwrap();
        one(&first, Change::Nack(taken.head().lease)).unwrap();
        let found = soon(|wait| few.wait(wait)).unwrap();
        assert_eq!(groups(&found, 3), groups(&taken, 3));
        assert!(!many.is_ready());
        // Each hears what it waits for itself.
        let patience = Duration::from_millis(30);
        let waits = |count| large.start_sample(0, want(count), Form::Flat, deadline(patience));
        let mut replies = [waits(5).unwrap(), waits(6).unwrap()];
        for (reply, wanted) in replies.iter_mut().zip([5, 6]) {
            let why = failure(soon(|wait| reply.wait(wait)));
            assert_eq!(why, CallError::TimedOut(Blocked::TooFew { complete: 0, wanted }));
        }
        make(&first, 4, 3);
        soon(|wait| many.wait(wait)).unwrap();
    });
}

fn deadline(patience: Duration) -> Option<Instant> {
    Some(Instant::now() + patience)
}

#[test]
fn a_name_that_is_too_long_is_refused_and_the_connection_goes_on() {
    over_all_transports(&config(), |server, _| {
        let client = connect(server);
        let hold = reservations(soon(|wait| client.call(0, &[reserve(1)], wait)).unwrap())[0].hold;
        for len in [256, 1025, 100_000] {
            let name = "k".repeat(len);
            let refused = |what: &str| {
                let (expected, got) = ("of at most 255 bytes".into(), format!("one of {len}"));
                Err(ChangeError::Value { what: what.to_owned().into(), expected, got })
            };
            let keyed = Change::Reserve(Reserve {
                count: 1,
                keys: vec![name.clone()],
                ..Reserve::default()
            });
            assert_eq!(one(&client, keyed), refused("key of a group"));
            let sourced =
                Change::Reserve(Reserve { count: 1, source: name.clone(), ..Reserve::default() });
            assert_eq!(one(&client, sourced), refused("name of a source"));
            let resume = Change::Resume { source: name.clone(), ttl_ms: None };
            assert_eq!(one(&client, resume), refused("name of a source"));
            let (fields, blobs) = (vec![0; 4], vec![(name, Arc::default())]);
            let finish = Some(Arc::new(Finish { fields, absent: 0, blobs }));
            let segment = Arc::default();
            let (item, sequence, priority) = (0, 0, 1.0);
            let append = Change::Append(Append { hold, item, sequence, segment, finish, priority });
            let changes = [Change::Tick, append, Change::Tick];
            let outcomes = soon(|wait| client.call(0, &changes, wait)).unwrap();
            let done = || Ok(Outcome::Done);
            assert_eq!(outcomes, [done(), refused("name of a blob"), done()]);
        }
        assert_eq!(client.reconnects(), 0);
    });
}
