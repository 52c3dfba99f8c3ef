//! Clients of tables that get another address: they continue there, and nothing is lost or comes twice.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use echoic_net::Address;
use echoic_net::client::tables::{Batch, Requests, TableWriter, TablesError};
use echoic_net::client::{LinkError, Options as ClientOptions};
use echoic_net::server::{Served, Server};
use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::limiter::Limiter;
use echoic_replay::selectors::SelectorKind;
use echoic_replay::table::{Form, Table, TableConfig, Tables};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::{Dtype, Leaf, Spec};

#[path = "common/serving.rs"]
mod serving;
#[path = "../../replay/tests/common/waiting.rs"]
mod waiting;

use serving::{TCP, dial, open, shm};
use waiting::{PATIENCE, soon, until};

/// Bytes of a row.
const ROW: usize = 40;

/// A queue of rows and one of trajectories: what comes out tells what went in, in which order.
fn tables() -> Arc<Tables> {
    let number = Leaf { path: "number".into(), dtype: Dtype::UInt(8), shape: vec![] };
    let filling = Leaf { path: "filling".into(), dtype: Dtype::UInt(1), shape: vec![ROW - 8] };
    let rows = Form::Rows(Spec::new(vec![number, filling]).unwrap());
    let queue = |(name, form): (&str, Form)| {
        let config = TableConfig {
            sampler: SelectorKind::Fifo,
            limiter: Limiter::queue(100_000).unwrap(),
            max_times_sampled: 1,
            ..TableConfig::new(name, form, 100_000)
        };
        Arc::new(Table::new(config).unwrap())
    };
    let made = [("rows", rows), ("windows", Form::Trajectories(None))].map(queue);
    Arc::new(Tables::new(made.to_vec()).unwrap())
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

/// As a client of many shards has them.
fn options() -> ClientOptions {
    ClientOptions { deadline: None, steadfast: true, ..ClientOptions::default() }
}

fn writer(server: &Server) -> TableWriter {
    soon(|wait| TableWriter::connect(dial(server), options(), wait)).unwrap()
}

fn requests(server: &Server) -> Requests {
    soon(|wait| Requests::connect(dial(server), options(), wait)).unwrap()
}

fn insert(writer: &TableWriter, numbers: Range<u64>) {
    for number in numbers {
        soon(|wait| {
            writer.insert_rows(0, &[1.0], None, wait, |row| {
                row[..8].copy_from_slice(&number.to_le_bytes());
                row[8..].fill(number as u8);
            })
        })
        .unwrap();
    }
}

fn numbers(batch: &Batch) -> Vec<u64> {
    let (numbers, fillings) = (batch.column(0), batch.column(1));
    let rows = numbers.chunks_exact(8).zip(fillings.chunks_exact(ROW - 8));
    let whole = rows.map(|(number, filling)| {
        let number = u64::from_le_bytes(number.try_into().unwrap());
        assert!(filling.iter().all(|byte| *byte == number as u8), "item {number} is torn");
        number
    });
    whole.collect()
}

/// All that a table has, in the order in which it came.
fn content(tables: &Arc<Tables>, table: u32) -> Vec<u64> {
    let size = tables.all()[table as usize].info().size as usize;
    if size == 0 {
        return Vec::new();
    }
    let listener = open(TCP, Arc::clone(tables));
    let batch = soon(|wait| requests(&listener).sample(table, size, wait)).unwrap();
    match table {
        0 => numbers(&batch),
        _ => {
            let column = batch.column(0).chunks_exact(8);
            column.map(|number| u64::from_le_bytes(number.try_into().unwrap())).collect()
        }
    }
}

/// Three steps that are their numbers.
fn chunk(first: u64) -> Arc<Chunk> {
    let steps: Vec<u8> = (first..first + 3).flat_map(u64::to_le_bytes).collect();
    let kind = Arc::new(ColumnKind { dtype: Dtype::UInt(8), shape: vec![] });
    Arc::new(Chunk::raw(kind, 3, steps.into()).unwrap())
}

#[test]
fn listeners_of_one_server_can_be_changed_at_any_time_and_each_item_comes_once() {
    let tables = tables();
    let directory = std::env::temp_dir().join(format!("echoic-moves-{}", std::process::id()));
    let unix = format!("unix://{}", directory.display());
    let shm = shm(&format!("echoic-moves-{}", std::process::id()));
    let first = open(TCP, Arc::clone(&tables));
    let instance = Some(first.instance());
    let more = [unix.as_str(), shm.as_str(), TCP]
        .map(|at| open(at, Served { tables: Arc::clone(&tables), instance, ..Served::default() }));
    let listeners: Vec<&Server> = std::iter::once(&first).chain(&more).collect();
    let (writer, requests) = (writer(&first), requests(&first));
    let (mut next, mut taken) = (0, Vec::new());
    for turn in 0..60_usize {
        let listener = listeners[(turn * 7 + 3) % listeners.len()];
        // Both while something is on its way and not.
        let count = [1, 700, 0, 90][turn % 4];
        insert(&writer, next..next + count);
        next += count;
        writer.redirect(dial(listener));
        if turn % 3 == 0 {
            requests.redirect(dial(listener));
        }
        if turn % 5 == 0 {
            soon(|wait| writer.flush(wait)).unwrap();
            until("the writer arrives", || writer.has_arrived());
        }
        if turn % 10 == 9 {
            // Enough for an area in memory that is shared, where there is some.
            until("the requests arrive", || requests.has_arrived());
            taken.extend(numbers(&soon(|wait| requests.sample(0, 1900, wait)).unwrap()));
        }
    }
    soon(|wait| writer.flush(wait)).unwrap();
    taken.extend(content(&tables, 0));
    assert_eq!(taken, (0..next).collect::<Vec<_>>());
    assert_eq!(requests.incarnations(), 0, "it is one server, so its keys stay good");
    assert!(writer.info().reconnects > 10 && requests.reconnects() > 5);
}

#[test]
fn what_a_server_had_not_acknowledged_goes_to_the_one_in_its_place() {
    let tables = tables();
    let mut old = open(TCP, Arc::clone(&tables));
    let (writer, requests) = (writer(&old), requests(&old));
    insert(&writer, 0..500);
    soon(|wait| writer.flush(wait)).unwrap();
    let mut asked = requests.start_sample(0, 1500, None).unwrap();
    old.close(Instant::now() + PATIENCE);
    until("the loss is noticed", || !writer.is_connected() && !requests.is_connected());
    insert(&writer, 500..1500);
    let shm = shm(&format!("echoic-moved-{}", std::process::id()));
    let new = open(&shm, Arc::clone(&tables));
    writer.redirect(dial(&new));
    requests.redirect(dial(&new));
    soon(|wait| writer.flush(wait)).unwrap();
    let batch = soon(|wait| asked.wait(wait)).unwrap();
    assert_eq!(numbers(&batch), (0..1500).collect::<Vec<_>>());
    assert_eq!(requests.incarnations(), 1, "another server gives other keys");
    assert_eq!((writer.address(), requests.address()), (address(&shm), address(&shm)));
}

#[test]
fn chunks_that_later_items_name_are_sent_again_where_the_server_is() {
    let tables = tables();
    let listeners = [0; 2].map(|_| open(TCP, Arc::clone(&tables)));
    let writer = writer(&listeners[0]);
    let kind = ColumnKind { dtype: Dtype::UInt(8), shape: vec![] };
    let columns = vec![Column { path: "at".into(), kind, squeezed: false }];
    let signature = Arc::new(Signature { structure: String::new(), columns });
    let chunk = chunk(0);
    for number in 0..90_u64 {
        let slice = Slice { chunk: Arc::clone(&chunk), offset: (number % 3) as u32, len: 1 };
        let item = Trajectory::new(Arc::clone(&signature), vec![vec![slice]]).unwrap();
        soon(|wait| writer.item(1, 1.0, None, &item, &[5], wait)).unwrap();
        if number % 10 == 4 {
            writer.redirect(dial(&listeners[(number / 10 % 2) as usize]));
        }
    }
    soon(|wait| writer.flush(wait)).unwrap();
    assert_eq!(content(&tables, 1), (0..90).map(|number| number % 3).collect::<Vec<_>>());
}

#[test]
fn who_is_at_the_old_address_instead_gets_nothing_and_ends_nothing() {
    let tables = tables();
    let mut old = open(TCP, Arc::clone(&tables));
    let (writer, requests) = (writer(&old), requests(&old));
    let there = old.address().to_string();
    old.close(Instant::now() + PATIENCE);
    let stranger = Arc::new(Tables::new(vec![Arc::clone(&tables.all()[1])]).unwrap());
    let _stranger = open(&there, stranger);
    insert(&writer, 0..10);
    until("the stranger is found", || writer.trouble().is_some() && requests.trouble().is_some());
    let said = writer.trouble().unwrap().to_string();
    assert!(said.contains(r#"the server has the tables ["windows"], and had ["rows""#), "{said}");
    assert!(!writer.is_closed() && !requests.is_over());
    let new = open(TCP, Arc::clone(&tables));
    writer.redirect(dial(&new));
    soon(|wait| writer.flush(wait)).unwrap();
    assert!(writer.trouble().is_none());
    assert_eq!(content(&tables, 0), (0..10).collect::<Vec<_>>());
}

#[test]
fn who_never_reached_a_server_or_is_not_steadfast_ends_at_what_will_not_pass() {
    let tables = tables();
    let mut old = open(TCP, Arc::clone(&tables));
    let connected = soon(|wait| TableWriter::connect(dial(&old), ClientOptions::default(), wait));
    let writer = connected.unwrap();
    let there = old.address().to_string();
    old.close(Instant::now() + PATIENCE);
    let stranger = Arc::new(Tables::new(vec![Arc::clone(&tables.all()[1])]).unwrap());
    let stranger = open(&there, stranger);
    until("it ends", || writer.is_closed());
    let ended = soon(|wait| writer.wait_for_room(usize::MAX, wait));
    assert!(matches!(ended, Ok(()) | Err(TablesError::Failed(_))), "{ended:?}");
    assert!(writer.try_insert_rows(0, &[1.0], None, |_| {}).is_err());
    drop(stranger);
    let weights = Arc::new(echoic_replay::weights::WeightStore::default());
    let other = open(TCP, Served { weights: Some(weights), ..Served::default() });
    match soon(|wait| TableWriter::connect(dial(&other), options(), wait)) {
        Err(TablesError::Failed(failure)) => {
            assert!(matches!(failure.error, LinkError::Refused(_)), "{:?}", failure.error);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_will_not_acknowledge_is_left_all_the_same() {
    let tables = tables();
    let full = open(TCP, Arc::clone(&tables));
    tables.all()[0].pause();
    let writer = writer(&full);
    insert(&writer, 0..50);
    until("it is sent", || writer.info().bytes_sent > 50 * ROW as u64);
    let others = self::tables();
    let free = open(TCP, Arc::clone(&others));
    writer.redirect(dial(&free));
    soon(|wait| writer.flush(wait)).unwrap();
    assert_eq!(content(&others, 0), (0..50).collect::<Vec<_>>());
}
