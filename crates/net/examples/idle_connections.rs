//! What a thousand connections cost a server while nothing goes over them.
//!
//! `cargo run --release -p echoic-net --example idle_connections [COUNT]`
//!
//! The other ends are bare sockets of the same process that have no buffers, so that the memory that the process
//! gains is the server's; with TLS it is that of both ends. What the system's kernel keeps for a socket is not in it.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a program that prints")]

use std::sync::Arc;
use std::time::Duration;

use echoic_net::server::{Options, Served, Server};
use echoic_net::transport::{Link, TlsFiles, listen_at};
use echoic_net::wire::handshake::Purpose;
use echoic_net::wire::tables::{Operation, Request};
use echoic_replay::limiter::Limiter;
use echoic_replay::rollouts::RolloutTable;
use echoic_replay::selectors::SelectorKind;
use echoic_replay::table::{Form, Table, TableConfig, Tables};
use echoic_replay::weights::{WeightStore, WeightsConfig};
use echoic_replay::{Dtype, Leaf, Spec, Stream, StreamConfig};

#[path = "../tests/common/mod.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod common;
#[path = "../tests/common/crowd.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod crowd;
#[path = "../../replay/tests/settings/mod.rs"]
mod settings;

use crowd::{allow_files, hear, join, resident, say};

fn spec(bytes: usize) -> Spec {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(1), shape: vec![bytes] };
    Spec::new(vec![leaf]).expect("a spec")
}

fn open(address: &str, files: &TlsFiles) -> Server {
    let stream = StreamConfig { batch_size: 8, num_buffers: 2 };
    let table = TableConfig {
        name: "t".into(),
        form: Form::Rows(spec(28_000)),
        structure: String::new(),
        sampler: SelectorKind::Uniform,
        remover: SelectorKind::Fifo,
        limiter: Limiter::min_size(1).expect("a limiter"),
        max_size: 1000,
        max_times_sampled: 0,
        seed: 1,
    };
    let table = Arc::new(Table::new(table).expect("a table"));
    table.try_reserve(1).expect("room").commit(&[1.0], None).expect("an insert");
    let rollouts = RolloutTable::new(settings::plain()).expect("a table");
    let weights = WeightStore::new(WeightsConfig::default()).expect("a store");
    let served = Served {
        stream: Some(Arc::new(Stream::new(spec(28_000), stream).expect("a stream"))),
        tables: Arc::new(Tables::new(vec![table]).expect("one table")),
        rollouts: Arc::new(vec![Arc::new(rollouts)]),
        weights: Some(Arc::new(weights)),
        ..Served::default()
    };
    let listen = listen_at(&address.parse().expect("an address"), files).expect("a listener");
    // These clients say nothing, and are not to be taken for dead.
    let heartbeat = Duration::from_secs(600);
    let options =
        Options { heartbeat, threads: 1, max_connections: usize::MAX / 2, ..Options::default() };
    Server::open(&*listen, served, options).expect("an open listener")
}

fn request(link: &mut dyn Link, operation: Operation<'_>) {
    let mut out = Vec::new();
    Request { id: 1, table: 0, operation }.write(&mut out);
    say(link, &out);
}

fn main() {
    let count = std::env::args().nth(1).map_or(1000, |word| word.parse().expect("a number"));
    allow_files();
    let authority = common::Authority::new();
    let identity = authority.sign("localhost");
    let tls = (common::files(Some(&identity), None), common::files(None, Some(&authority)));
    println!("bytes of the server for each of {count} connections");
    // None is dropped before the end: the next ones would use its memory.
    let (mut links, mut servers) = (Vec::new(), Vec::new());
    for (address, (own, others)) in
        [("tcp://127.0.0.1:0", Default::default()), ("tls://localhost:0", tls)]
    {
        let server = open(address, &own);
        let batch = Operation::Sample { count: 32, timeout_ms: None, area: None };
        let version = Operation::RolloutVersion { above: 5, timeout_ms: None };
        for (what, purpose, asked, answered) in [
            ("sends samples", Purpose::Produce, None, false),
            ("inserts items", Purpose::Insert, None, false),
            ("samples, silent since", Purpose::Request, Some(batch), true),
            ("waits for a version of rollouts", Purpose::Request, Some(version), false),
            ("is told of weights", Purpose::Weights, None, false),
        ] {
            if address.starts_with("tls") && purpose != Purpose::Produce {
                // What differs is in the first: the session of TLS.
                continue;
            }
            links.reserve(count + 20);
            let mut before = 0;
            for number in 0..count + 20 {
                if number == 20 {
                    // What the first ones cost is the server's.
                    before = resident();
                }
                let mut link = join(&server, &others, purpose, &spec(28_000));
                asked.iter().for_each(|asked| request(&mut *link, asked.clone()));
                if answered {
                    hear(&mut *link);
                }
                links.push(link);
            }
            let each = resident().saturating_sub(before) / count;
            println!("{address:20} {what:35} {each:7}");
        }
        servers.push(server);
    }
}
