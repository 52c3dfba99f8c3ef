//! A server of tables that is told anything behind a good handshake: it neither panics nor hangs, keeps
//! no chunk that no item names, and what it counts is in its tables.
#![no_main]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use echoic_fuzz::{Cuts, Dialler, PATIENCE, listener, spec};
use echoic_net::server::{Options, Server};
use echoic_net::wire::handshake::{Hello, Open, Purpose};
use echoic_net::wire::{VERSION, preface};
use echoic_replay::limiter::Limiter;
use echoic_replay::selectors::SelectorKind;
use echoic_replay::table::{Form, Table, TableConfig, Tables};
use libfuzzer_sys::fuzz_target;

struct Target {
    dialler: Dialler,
    tables: Arc<Tables>,
    server: Server,
}

fn table(name: &str, form: Form, limiter: Limiter) -> Arc<Table> {
    let config = TableConfig {
        name: name.into(),
        form,
        structure: String::new(),
        sampler: SelectorKind::Prioritized { exponent: 1.0 },
        remover: SelectorKind::Fifo,
        limiter,
        capacity: 50,
        max_times_sampled: 0,
        seed: 1,
    };
    Arc::new(Table::new(config).expect("a good table"))
}

fn open() -> Target {
    let min_size = Limiter::min_size(1).expect("a good limiter");
    let tables = vec![
        table("rows", Form::Rows(spec(4)), min_size),
        table("any", Form::Trajectories(None), min_size),
        table("queue", Form::Rows(spec(0)), Limiter::queue(50).expect("a good limiter")),
    ];
    let tables = Arc::new(Tables::new(tables).expect("different names"));
    let (dialler, listener) = listener();
    let options = Options { threads: 1, ..Options::default() };
    let server = Server::open(&listener, Arc::clone(&tables), options).expect("a server");
    Target { dialler, tables, server }
}

/// What goes before: whoever is let in, and as whom nobody was before.
fn opening(purpose: Purpose) -> Vec<u8> {
    static PRODUCERS: AtomicU64 = AtomicU64::new(0);
    let mut producer = [0; 16];
    producer[..8].copy_from_slice(&PRODUCERS.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    let mut bytes = preface(VERSION).to_vec();
    Hello { nonce: [7; 32] }.write(&mut bytes);
    let (stream, spec, name) = (String::new(), None, String::new());
    let proof = [0; 32];
    Open { proof, purpose, producer, epoch: 1, first: 0, stream, spec, name }.write(&mut bytes);
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    static TARGET: OnceLock<Target> = OnceLock::new();
    let target = TARGET.get_or_init(open);
    let [which, cuts, said @ ..] = bytes else { return };
    let purpose = if which & 1 == 0 { Purpose::Insert } else { Purpose::Request };
    for table in target.tables.all() {
        table.resume();
        table.set_limiter(table.config().limiter).expect("it had this one");
        table.reset();
    }
    let before = target.server.info();
    let far = target.dialler.dial(Cuts::from(*cuts));
    far.say(&[&opening(purpose), said]);
    far.end();
    // Who waits for room in a full queue is not read from: an item has to go.
    let mut sampled = 0;
    far.settle(|| {
        let full = &target.tables.all()[2];
        full.resume();
        if full.info().size >= 50 {
            full.reset();
            sampled += 1;
        }
    });
    let after = target.server.info();
    assert_eq!((after.accepted, after.connections), (before.accepted + 1, 0));
    if purpose == Purpose::Insert {
        let inserts: u64 = target.tables.all().iter().map(|one| one.info().counts.inserts).sum();
        let counted = after.flow.samples - before.flow.samples;
        assert!(inserts <= counted, "{inserts} inserts, of which {counted} were counted");
        assert!(sampled > 0 || inserts == counted, "what is counted is in a table");
    }
    target.tables.all().iter().for_each(|table| table.reset());
    // The connection's own go a moment after its link.
    let due = Instant::now() + PATIENCE;
    while target.server.info().chunks > 0 {
        assert!(Instant::now() < due, "chunks that no item names are kept");
        std::thread::yield_now();
    }
});
