//! What a connection costs a server while nothing goes over it.
#![cfg(target_os = "linux")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use echoic_net::server::{Options, Served, Server};
use echoic_net::transport::{Link, TlsFiles, listen_at};
use echoic_net::wire::frame::{DataHead, kind};
use echoic_net::wire::handshake::Purpose;
use echoic_net::wire::rollouts::{Bulk, Changes};
use echoic_net::wire::tables::{Operation, Request};
use echoic_replay::codec::Encode;
use echoic_replay::rollouts::RolloutTable;
use echoic_replay::rollouts::ledger::Change;
use echoic_replay::table::{Form, Table, TableConfig, Tables};
use echoic_replay::{Dtype, Leaf, Spec, Stream, StreamConfig};

#[path = "common/crowd.rs"]
mod crowd;
#[path = "../../replay/tests/common/settings.rs"]
mod settings;

use crowd::{allow_files, hear, join, resident, say, until};

/// Memory is that of the process, so one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Large enough that memory that is given up goes back to the system at once.
const SAMPLE: usize = 200 << 10;

fn spec(bytes: usize) -> Spec {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(1), shape: vec![bytes] };
    Spec::new(vec![leaf]).unwrap()
}

/// A server of everything that clients can be idle at.
fn open(slots: usize) -> Server {
    let stream = StreamConfig { batch_size: slots, num_buffers: 2 };
    let table = TableConfig::new("t", Form::Rows(spec(1000)), 1000);
    let table = Arc::new(Table::new(table).unwrap());
    table.try_reserve(1).unwrap().commit(&[1.0], None).unwrap();
    let served = Served {
        stream: Some(Arc::new(Stream::new(spec(SAMPLE), stream).unwrap())),
        tables: Arc::new(Tables::new(vec![table]).unwrap()),
        rollouts: Arc::new(vec![Arc::new(RolloutTable::new(settings::plain()).unwrap())]),
        ..Served::default()
    };
    let listen = listen_at(&"tcp://127.0.0.1:0".parse().unwrap(), &TlsFiles::default()).unwrap();
    // These clients say nothing, and are not to be taken for dead.
    let heartbeat = Duration::from_secs(600);
    Server::open(&*listen, served, Options { heartbeat, threads: 1, ..Options::default() }).unwrap()
}

fn request(link: &mut dyn Link, operation: Operation<'_>) {
    let mut out = Vec::new();
    Request { id: 1, table: 0, operation }.write(&mut out);
    say(link, &out);
}

#[test]
fn an_idle_connection_costs_less_than_32_kib() {
    const COUNT: usize = 250;
    let _alone = ALONE.lock();
    allow_files();
    let server = open(8);
    let batch = Operation::Sample { count: 100, timeout_ms: None, area: None };
    let mut head = Vec::new();
    Change::AwaitVersion { above: 5 }.encode(&mut head);
    let (head, bulk) = (head.into(), Bulk::Inline((&[]).into()));
    let version = Operation::RolloutChanges(Changes { timeout_ms: None, count: 1, head, bulk });
    let mut all = Vec::new();
    for (what, purpose, asked, answer) in [
        ("sends samples", Purpose::Produce, None, None),
        ("inserts items", Purpose::Insert, None, None),
        ("has sampled a batch", Purpose::Request, Some(batch), Some(kind::BATCH)),
        ("waits for a version", Purpose::Request, Some(version), None),
    ] {
        let mut join = || {
            let mut link = join(&server, &TlsFiles::default(), purpose, &spec(SAMPLE));
            asked.iter().for_each(|asked| request(&mut *link, asked.clone()));
            if let Some(answer) = answer {
                assert_eq!(hear(&mut *link), answer);
            }
            all.push(link);
        };
        // What the first ones cost is the server's.
        (0..20).for_each(|_| join());
        let before = resident();
        (0..COUNT).for_each(|_| join());
        let each = resident().saturating_sub(before) / COUNT;
        assert!(each < 32 << 10, "a client that {what} costs {each} bytes");
    }
    assert_eq!(server.info().connections, all.len() as u64);
}

#[test]
#[cfg_attr(
    any(echoic_portable, not(target_os = "linux")),
    ignore = "pages of the ring come when they are written"
)]
fn a_connection_keeps_no_room_for_the_samples_that_came_over_it() {
    const COUNT: usize = 100;
    let _alone = ALONE.lock();
    allow_files();
    let server = open(COUNT);
    let mut links: Vec<_> = (0..COUNT)
        .map(|_| join(&server, &TlsFiles::default(), Purpose::Produce, &spec(SAMPLE)))
        .collect();
    let before = resident();
    let head = DataHead { first: 0, count: 1 }.bytes(SAMPLE).unwrap();
    let half = vec![1; SAMPLE / 2];
    for link in &mut links {
        say(&mut **link, &head);
        say(&mut **link, &half);
    }
    // The first half is in no ring, so the server has it.
    let arrived = || server.info().flow.bytes >= (COUNT * SAMPLE / 2) as u64;
    assert!(until(arrived), "{:?}", server.info());
    links.iter_mut().for_each(|link| say(&mut **link, &half));
    assert!(until(|| server.info().flow.samples == COUNT as u64), "{:?}", server.info());
    // The ring's memory was there before.
    let each = || resident().saturating_sub(before) / COUNT;
    assert!(until(|| each() < 32 << 10), "{} bytes each", each());
    assert_eq!(links.len(), server.info().connections as usize);
}
