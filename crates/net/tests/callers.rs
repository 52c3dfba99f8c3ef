//! Threads that share a connection for requests: whichever of them drives it, each gets its own answers.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use echoic_net::client::Options;
use echoic_net::client::tables::{Requests, TableWriter, TablesError};
use echoic_net::server::Server;
use echoic_net::transport::Dial;
use echoic_replay::stream::Wait;
use echoic_replay::table::{Form, Table, TableConfig, Tables};
use echoic_replay::{Dtype, Leaf, Spec};

#[path = "common/fragile.rs"]
mod fragile;
#[path = "common/serving.rs"]
mod serving;
#[path = "../../replay/tests/common/waiting.rs"]
mod waiting;

use fragile::Fragile;
use serving::{TCP, addresses, dial, open};
use waiting::{soon, until};

fn serve(address: &str) -> (Server, Arc<Table>) {
    let leaf = Leaf { path: "number".into(), dtype: Dtype::UInt(8), shape: vec![] };
    let form = Form::Rows(Spec::new(vec![leaf]).unwrap());
    let table = Arc::new(Table::new(TableConfig::new("replay", form, 1000)).unwrap());
    let tables = Arc::new(Tables::new(vec![Arc::clone(&table)]).unwrap());
    (open(address, tables), table)
}

fn insert(server: &Server, table: &Table, count: usize) -> Vec<u64> {
    let writer = soon(|wait| TableWriter::connect(dial(server), Options::default(), wait)).unwrap();
    let ones = vec![1.0; count];
    soon(|wait| writer.insert_rows(0, &ones, None, wait, |rows| rows.fill(1))).unwrap();
    soon(|wait| writer.flush(wait)).unwrap();
    table.items().keys
}

fn connect(dial: Box<dyn Dial>) -> Requests {
    soon(|wait| Requests::connect(dial, Options::default(), wait)).unwrap()
}

/// Threads ask for changes of different numbers of items: some wait at once, some later, some not at all.
fn share(requests: &Requests, keys: &[u64], calls: usize) {
    std::thread::scope(|scope| {
        for thread in 1..=6 {
            scope.spawn(move || {
                let (own, ones) = (&keys[..thread], vec![1.0; thread]);
                for call in 0..calls {
                    let mut reply = requests.start_update(0, own, &ones).unwrap();
                    if (call + thread) % 5 == 0 {
                        reply.cancel();
                        continue;
                    }
                    let updated = soon(|wait| requests.update_priorities(0, own, &ones, wait));
                    assert_eq!(updated.unwrap(), thread as u64);
                    assert_eq!(soon(|wait| reply.wait(wait)).unwrap(), thread as u64);
                }
            });
        }
    });
    assert_eq!(requests.waiting(), 0);
}

#[test]
fn threads_that_share_a_connection_get_their_own_answers() {
    for address in addresses() {
        let (server, table) = serve(&address);
        let keys = insert(&server, &table, 8);
        share(&connect(dial(&server)), &keys, 300);
    }
}

#[test]
fn threads_that_share_a_connection_which_breaks_get_their_own_answers() {
    let (server, table) = serve(TCP);
    let keys = insert(&server, &table, 8);
    let requests = connect(Fragile::new(server.address(), 20_000));
    share(&requests, &keys, 100);
    assert!(requests.reconnects() > 0);
}

#[test]
fn what_a_wait_calls_in_between_may_use_the_same_connection() {
    let (server, table) = serve(TCP);
    let requests = connect(dial(&server));
    let asked = AtomicU32::new(0);
    let on_tick = &mut |_| {
        // As a signal handler does, which runs in the thread that waits.
        assert!(soon(|wait| requests.can_insert(0, 1, wait)).unwrap());
        if asked.fetch_add(1, Ordering::Relaxed) == 3 {
            insert(&server, &table, 1);
        }
        ControlFlow::Continue(())
    };
    let wait = Wait { deadline: None, tick: Some(Duration::from_millis(2)), on_tick };
    assert_eq!(requests.sample(0, 1, wait).unwrap().len(), 1);
    assert!(asked.into_inner() > 3);
}

#[test]
fn closing_ends_the_wait_of_whoever_drives_and_of_others() {
    let (server, _table) = serve(TCP);
    let requests = connect(dial(&server));
    std::thread::scope(|scope| {
        let sample = || soon(|wait| requests.sample(0, 1, wait)).unwrap_err();
        let waiting = [scope.spawn(sample), scope.spawn(sample)];
        until("both wait", || requests.waiting() == 2);
        soon(|wait| requests.close(wait)).unwrap();
        for waited in waiting {
            assert!(matches!(waited.join().unwrap(), TablesError::Closed));
        }
    });
}

#[test]
fn an_answer_that_nobody_waits_for_comes_soon_after_one_that_was_waited_for() {
    let (server, _table) = serve(TCP);
    let requests = connect(dial(&server));
    let mut times: Vec<_> = (0..50)
        .map(|_| {
            soon(|wait| requests.can_insert(0, 1, wait)).unwrap();
            let (reply, since) = (requests.start_can_sample(0, 1).unwrap(), Instant::now());
            while !reply.is_ready() {
                std::thread::yield_now();
            }
            since.elapsed()
        })
        .collect();
    times.sort_unstable();
    // Well below the pause after which the I/O thread comes by itself.
    assert!(times[25] < Duration::from_millis(10), "{times:?}");
}
