//! Tables and clients whose connections break anywhere, and strangers that send anything.

use std::io::{Read, Write};
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use echoic_net::client::Options as ClientOptions;
use echoic_net::client::tables::{
    Batch, FailureCode, PendingUpdates, Requests, TableWriter, TablesError,
};
use echoic_net::server::{Options, Server};
use echoic_net::transport::{TlsFiles, dial_to};
use echoic_net::wire::frame::{Control, Header, kind};
use echoic_net::wire::handshake::{Hello, Open, Purpose, RefusalCode};
use echoic_net::wire::tables::{
    Area, ItemHead, Operation, Request, RowsHead, SignatureHead, SliceHead, write_chunk,
};
use echoic_net::wire::{VERSION, preface};
use echoic_replay::WaitReason;
use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::encoding::{Encoding, Policy};
use echoic_replay::limiter::Limiter;
use echoic_replay::selectors::SelectorKind;
use echoic_replay::spec::ANY_LENGTH;
use echoic_replay::stream::Wait;
use echoic_replay::table::{Durability, Form, Obstacle, Table, TableConfig, Tables, recover};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::{Dtype, Leaf, Spec};
use tempfile::TempDir;

#[path = "common/fragile.rs"]
mod fragile;
#[path = "common/serving.rs"]
mod serving;
#[path = "common/stranger.rs"]
mod stranger;
#[path = "../../replay/tests/common/waiting.rs"]
mod waiting;

use fragile::Fragile;
use serving::{TCP, addresses, dial, open_with};
use stranger::{Stranger, frame, told, told_as};
use waiting::{PATIENCE, soon, until, within};

fn leaf(path: &str, dtype: Dtype, shape: &[usize]) -> Leaf {
    Leaf { path: path.into(), dtype, shape: shape.into() }
}

fn rows() -> Form {
    let leaves = vec![leaf("number", Dtype::UInt(8), &[]), leaf("filling", Dtype::UInt(1), &[100])];
    Form::Rows(Spec::new(leaves).unwrap())
}

/// Items come out in the order in which they went in, each once.
fn queue(form: Form) -> Arc<Table> {
    named("queue", form)
}

fn named(name: &str, form: Form) -> Arc<Table> {
    Arc::new(empty_queue(name, form))
}

fn empty_queue(name: &str, form: Form) -> Table {
    let config = TableConfig {
        sampler: SelectorKind::Fifo,
        limiter: Limiter::queue(500).unwrap(),
        max_times_sampled: 1,
        ..TableConfig::new(name, form, 500)
    };
    Table::new(config).unwrap()
}

/// As [`queue`], with a journal; what goes in is acknowledged later than it can come out.
fn journalled_queue(form: Form) -> (Arc<Table>, TempDir) {
    let (table, dir) = (
        Arc::new(empty_queue("queue", form).durable(Some(Durability::Async))),
        TempDir::new().unwrap(),
    );
    recover(&Tables::new(vec![Arc::clone(&table)]).unwrap(), dir.path(), None).unwrap();
    (table, dir)
}

fn serve(table: &Arc<Table>) -> Server {
    let tables = Arc::new(Tables::new(vec![Arc::clone(table)]).unwrap());
    // Several event loops: a writer that comes back may first be met by another than its own.
    open_with(TCP, tables, Options { threads: 3, ..Options::default() })
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

#[test]
fn rows_of_a_writer_whose_connections_break_arrive_once_and_in_order() {
    deliver_rows(&queue(rows()));
}

#[test]
fn rows_for_a_table_with_a_journal_arrive_once_and_in_order() {
    let (table, _dir) = journalled_queue(rows());
    deliver_rows(&table);
    let info = table.journal().unwrap();
    assert_eq!(info.kept, info.next);
}

#[test]
fn more_changes_than_may_be_unkept_wait_until_some_are_kept() {
    let (table, _dir) = journalled_queue(rows());
    let mut insertion = table.try_reserve(1).unwrap();
    insertion.row_mut(0).fill(0);
    insertion.commit(&[1.0], None).unwrap();
    let server = serve(&table);
    let client = connect(&server);
    let listed = soon(|wait| client.list(0, 0, 1, wait)).unwrap();
    let key = listed.infos.keys;
    // As many callers would who do not wait for each other.
    let replies: Vec<_> = (0..5000)
        .map(|number| client.start_update(0, &key, &[f64::from(number)]).unwrap())
        .collect();
    for mut reply in replies {
        assert_eq!(soon(|wait| reply.wait(wait)).unwrap(), 1);
    }
    assert_eq!((client.reconnects(), server.info().malformed), (0, 0));
}

/// A disk that stalls: the thread that writes a table's journal tells what is kept, and is held there.
struct Stall {
    table: Arc<Table>,
    /// Whether it has begun, and whether it is over.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Stall {
    /// Begins, in a table that has no such version yet.
    fn begin(table: &Arc<Table>, version: u64) -> Arc<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let stall = Arc::new(Self { table: Arc::clone(table), state, changed });
        table.wake_on_durable(&Waker::from(Arc::clone(&stall)));
        // Something to write.
        table.advance(version);
        stall.wait(|(started, _)| *started);
        stall
    }

    fn end(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }

    fn wait(&self, is_so: impl Fn(&(bool, bool)) -> bool) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |state| !is_so(state));
        assert!(!waited.unwrap().1.timed_out());
    }
}

impl Wake for Stall {
    fn wake(self: Arc<Self>) {
        if std::thread::current().name() != Some("echoic-journal") {
            // Somebody gave room back.
            let table = Arc::clone(&self.table);
            return table.wake_on_durable(&Waker::from(self));
        }
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
        self.wait(|(_, over)| *over);
    }
}

/// From this size on a batch of one row is gathered by the pool.
const LARGE: usize = 5 << 20;

/// Queues of large rows, with journals; what is drawn is handed on when that is on disk.
fn large_queues(names: &[&str]) -> (Vec<Arc<Table>>, TempDir) {
    let leaves =
        vec![leaf("number", Dtype::UInt(8), &[]), leaf("filling", Dtype::UInt(1), &[LARGE])];
    let form = Form::Rows(Spec::new(leaves).unwrap());
    let open =
        |name: &&str| Arc::new(empty_queue(name, form.clone()).durable(Some(Durability::Sync)));
    let (tables, dir) = (names.iter().map(open).collect::<Vec<_>>(), TempDir::new().unwrap());
    recover(&Tables::new(tables.clone()).unwrap(), dir.path(), None).unwrap();
    (tables, dir)
}

fn insert_large(table: &Arc<Table>, numbers: Range<u64>) {
    for number in numbers {
        let mut insertion = soon(|wait| table.reserve(1, wait)).unwrap();
        let (key, filling) = insertion.row_mut(0).split_at_mut(8);
        key.copy_from_slice(&number.to_le_bytes());
        filling.fill(number as u8);
        insertion.commit(&[1.0], None).unwrap();
    }
    soon(|wait| table.keep(wait)).unwrap();
}

fn large_number(batch: &Batch) -> u64 {
    let (number, filling) = (number(batch.column(0)), batch.column(1));
    assert_eq!((batch.len(), filling.len()), (1, LARGE));
    assert!(filling.iter().all(|byte| *byte == number as u8), "{number}");
    number
}

fn connect(server: &Server) -> Requests {
    soon(|wait| Requests::connect(dial(server), ClientOptions::default(), wait)).unwrap()
}

#[test]
fn large_batches_that_wait_for_the_disk_arrive_once_though_a_client_goes_and_the_table_is_closed() {
    let (tables, _dir) = large_queues(&["queue"]);
    let table = &tables[0];
    insert_large(table, 0..4);
    let server = serve(table);
    let (stays, goes) = (connect(&server), connect(&server));
    let drawn = |count| {
        until("as many are drawn", || table.info().counts.samples == count);
    };
    let stall = Stall::begin(table, 1);
    let first: Vec<_> = (0..2).map(|_| stays.start_sample(0, 1, None).unwrap()).collect();
    drawn(2);
    let lost = goes.start_sample(0, 1, None).unwrap();
    drawn(3);
    drop((lost, goes));
    until("the client is gone", || server.connections().len() == 1);
    assert!(soon(|wait| stays.can_insert(0, 1, wait)).unwrap());
    assert!(first.iter().all(|reply| !reply.is_ready()), "draws are not kept yet");
    stall.end();
    for (expected, mut reply) in (0..).zip(first) {
        assert_eq!(large_number(&soon(|wait| reply.wait(wait)).unwrap()), expected);
    }
    // The third is used up.
    assert_eq!(large_number(&soon(|wait| stays.sample(0, 1, wait)).unwrap()), 3);
    assert_eq!(table.info().size, 0);

    insert_large(table, 4..6);
    let stall = Stall::begin(table, 2);
    let last: Vec<_> = (0..2).map(|_| stays.start_sample(0, 1, None).unwrap()).collect();
    let mut nothing = stays.start_sample(0, 1, None).unwrap();
    drawn(6);
    std::thread::scope(|scope| {
        scope.spawn(|| table.close());
        until("the table is closed", || table.is_closed());
        stall.end();
    });
    for (expected, mut reply) in (4..).zip(last) {
        assert_eq!(large_number(&soon(|wait| reply.wait(wait)).unwrap()), expected);
    }
    for ended in [soon(|wait| nothing.wait(wait)), soon(|wait| stays.sample(0, 1, wait))] {
        let code = match ended {
            Err(TablesError::Refused { code, .. }) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code, FailureCode::Closed);
    }
    assert_eq!((stays.reconnects(), server.info().panics), (0, 0));
}

#[test]
fn a_change_that_waits_for_a_stalled_disk_is_made_once_and_keeps_nobody_else_waiting() {
    let (tables, _dir) = large_queues(&["changed", "sampled"]);
    let [changed, sampled] = &*tables else { unreachable!() };
    insert_large(changed, 0..1);
    insert_large(sampled, 0..4);
    let all = Arc::new(Tables::new(tables.clone()).unwrap());
    let heartbeat = Duration::from_millis(400);
    let options = Options { threads: 1, heartbeat, ..Options::default() };
    let server = open_with(TCP, all, options);
    let (client, other) = (connect(&server), connect(&server));

    let (key, last) = (changed.items().keys, sampled.items().keys[3..].to_vec());
    let stalls = [Stall::begin(changed, 1), Stall::begin(sampled, 1)];
    loop {
        match changed.try_reserve(1) {
            Ok(insertion) => insertion.commit(&[1.0], None).unwrap(),
            Err(Obstacle::Blocked(_)) => break,
            Err(error) => panic!("{error:?}"),
        };
    }
    // What is too little for a row is used up, too.
    while changed.check_room().is_ok() {
        changed.update_priorities(&[key[0]; 1 << 16], &[2.0; 1 << 16]).unwrap();
    }
    let batches: Vec<_> = (0..3).map(|_| client.start_sample(1, 1, None).unwrap()).collect();
    until("as many are drawn", || sampled.info().counts.samples == 3);
    let mut update = client.start_update(0, &key, &[9.0]).unwrap();
    until("the update waits", || {
        server.connections().iter().any(|connection| connection.blocked_by == "CAPACITY")
    });
    // What it has drawn from another table is not held up by that.
    stalls[1].end();
    for (expected, mut reply) in (0..).zip(batches) {
        assert_eq!(large_number(&soon(|wait| reply.wait(wait)).unwrap()), expected);
    }
    // Longer than a client has patience with a server that says nothing.
    let since = Instant::now();
    while since.elapsed() < 4 * heartbeat {
        assert_eq!(soon(|wait| other.update_priorities(1, &last, &[3.0], wait)).unwrap(), 1);
        assert!(!soon(|wait| other.can_sample(0, 50, wait)).unwrap());
    }
    assert!(!update.is_ready());
    stalls[0].end();
    assert_eq!(soon(|wait| update.wait(wait)).unwrap(), 1);
    assert_eq!(changed.items().priorities[0], 9.0);
    assert_eq!((client.reconnects(), other.reconnects()), (0, 0));
}

/// A server of a table with one item, whose disk stalls, and the key of the item.
fn stalled() -> (TempDir, Server, Arc<Stall>, Vec<u64>) {
    let (table, dir) = journalled_queue(rows());
    let mut insertion = table.try_reserve(1).unwrap();
    insertion.row_mut(0).fill(0);
    insertion.commit(&[1.0], None).unwrap();
    soon(|wait| table.keep(wait)).unwrap();
    let key = table.items().keys;
    (dir, serve(&table), Stall::begin(&table, 1), key)
}

/// Calls something whose wait ends after a moment.
fn briefly<T>(run: impl FnOnce(Wait<'_>) -> T) -> T {
    within(Duration::from_millis(20), run)
}

#[test]
fn updates_that_nobody_waits_for_are_bounded_and_made_in_their_order() {
    let (_dir, server, stall, key) = stalled();
    let client = connect(&server);
    let updates = PendingUpdates::default();
    let start = |priority: u32| updates.try_start(&client, 0, &key, &[f64::from(priority)]);
    let started = (0..100).take_while(|priority| start(*priority).unwrap()).count();
    assert_eq!(started, 64);
    let late = briefly(|wait| updates.start(&client, 0, &key, &[100.0], wait)).unwrap_err();
    assert!(matches!(late, TablesError::TimedOut(WaitReason::Network)), "{late}");
    assert!(briefly(|wait| updates.flush(wait)).is_err());
    assert!(!start(100).unwrap(), "those that were waited for in vain still have no answer");
    stall.end();
    soon(|wait| updates.start(&client, 0, &key, &[101.0], wait)).unwrap();
    soon(|wait| updates.flush(wait)).unwrap();
    assert_eq!(client.waiting(), 0);
    assert_eq!(stall.table.items().priorities, [101.0]);
}

#[test]
fn an_update_whose_waiter_panics_is_waited_for_by_the_next_one() {
    let (_dir, server, stall, key) = stalled();
    let client = connect(&server);
    let updates = PendingUpdates::default();
    assert!(updates.try_start(&client, 0, &key, &[2.0]).unwrap());
    let (waits, panics) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut on_tick = |_| {
        waits.store(true, Ordering::Relaxed);
        assert!(!panics.load(Ordering::Relaxed), "a callback panics");
        ControlFlow::Continue(())
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let tick = Some(Duration::from_millis(1));
            let wait = Wait { deadline: None, tick, on_tick: &mut on_tick };
            catch_unwind(AssertUnwindSafe(|| updates.flush(wait)))
        });
        until("somebody waits", || waits.load(Ordering::Relaxed));
        // The only one is in other hands.
        let late = briefly(|wait| updates.flush(wait)).unwrap_err();
        assert!(matches!(late, TablesError::TimedOut(WaitReason::Network)), "{late}");
        let second = scope.spawn(|| soon(|wait| updates.flush(wait)));
        panics.store(true, Ordering::Relaxed);
        assert!(first.join().unwrap().is_err());
        stall.end();
        second.join().unwrap().unwrap();
    });
    assert_eq!(stall.table.items().priorities, [2.0]);
    soon(|wait| updates.flush(wait)).unwrap();
}

#[test]
fn of_updates_that_came_to_nothing_each_is_told_once() {
    let (_dir, mut server, stall, key) = stalled();
    let options = ClientOptions { deadline: Some(Duration::ZERO), ..ClientOptions::default() };
    let client = soon(|wait| Requests::connect(dial(&server), options, wait)).unwrap();
    let updates = PendingUpdates::default();
    for _ in 0..3 {
        assert!(updates.try_start(&client, 0, &key, &[2.0]).unwrap());
    }
    std::thread::scope(|scope| {
        scope.spawn(|| server.close(Instant::now()));
        until("the client has not given up", || client.is_over());
        stall.end();
    });
    let started = updates.try_start(&client, 0, &key, &[3.0]).unwrap_err();
    assert!(matches!(started, TablesError::Failed(_)), "{started}");
    for _ in 1..3 {
        let flushed = soon(|wait| updates.flush(wait)).unwrap_err();
        assert!(matches!(flushed, TablesError::Failed(_)), "{flushed}");
    }
    soon(|wait| updates.flush(wait)).unwrap();
}

fn deliver_rows(table: &Arc<Table>) {
    let server = serve(table);
    let dial = Fragile::new(server.address(), 60_000);
    let options = ClientOptions { window_bytes: 15_000, ..ClientOptions::default() };
    let writer = soon(|wait| TableWriter::connect(dial, options, wait)).unwrap();
    let count = 20_000u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for first in (0..count).step_by(5) {
                soon(|wait| {
                    writer.insert_rows(0, &[1.0; 5], None, wait, |bytes| {
                        for (row, number) in bytes.chunks_exact_mut(108).zip(first..) {
                            row[..8].copy_from_slice(&number.to_le_bytes());
                            row[8..].fill(number as u8);
                        }
                    })
                })
                .unwrap();
            }
            soon(|wait| writer.close(wait)).unwrap();
        });
        for expected in 0..count {
            let sampled = soon(|wait| table.sample(1, wait)).unwrap();
            let (mut key, mut filling) = ([0; 8], [0; 100]);
            sampled.gather(&mut [&mut key, &mut filling]);
            assert_eq!((number(&key), filling), (expected, [expected as u8; 100]));
        }
    });
    assert_eq!(table.info().counts.inserts, count);
    assert!(writer.info().reconnects > 20, "{:?}", writer.info());
}

fn column(path: &str, bytes: usize) -> Column {
    let kind = ColumnKind { dtype: Dtype::UInt(1), shape: vec![bytes] };
    Column { path: path.into(), kind, squeezed: false }
}

#[test]
fn items_of_a_writer_whose_connections_break_arrive_once_and_in_order() {
    deliver_items(&queue(Form::Trajectories(None)));
}

#[test]
fn items_for_a_table_with_a_journal_arrive_once_and_in_order() {
    deliver_items(&journalled_queue(Form::Trajectories(None)).0);
}

fn deliver_items(table: &Arc<Table>) {
    let server = serve(table);
    let dial = Fragile::new(server.address(), 20_000);
    let options = ClientOptions { window_bytes: 15_000, ..ClientOptions::default() };
    let writer = soon(|wait| TableWriter::connect(dial, options, wait)).unwrap();
    let form = Arc::new(Signature { structure: "x".into(), columns: vec![column("number", 8)] });
    let kind = Arc::new(form.columns[0].kind.clone());
    let count = 5000u64;
    // Each chunk has ten steps; an item has the last three steps, of one chunk or two.
    let chunk = |id: u64| {
        let bytes: Vec<u8> = (id * 10..id * 10 + 10).flat_map(u64::to_le_bytes).collect();
        // Encoded ones arrive like others.
        let policy =
            if id.is_multiple_of(2) { Policy::Never } else { Policy::Always(Encoding::DeltaLz4) };
        Arc::new(Chunk::encode(Arc::clone(&kind), 10, bytes.into(), policy).unwrap())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut before, mut now) = (chunk(0), chunk(0));
            for step in 2..count + 2 {
                let (id, offset) = (step / 10, (step % 10) as u32);
                if offset == 0 {
                    (before, now) = (now, chunk(id));
                }
                let slice = |chunk: &Arc<Chunk>, offset, len| Slice {
                    chunk: Arc::clone(chunk),
                    offset,
                    len,
                };
                let (slices, ids) = if offset >= 2 {
                    (vec![slice(&now, offset - 2, 3)], vec![id])
                } else {
                    let older = slice(&before, 8 + offset, 2 - offset);
                    (vec![older, slice(&now, 0, offset + 1)], vec![id - 1, id])
                };
                let item = Trajectory::new(Arc::clone(&form), vec![slices]).unwrap();
                soon(|wait| writer.item(0, 1.0, None, &item, &ids, wait)).unwrap();
                if offset == 1 && id > 0 {
                    writer.release(&[id - 1]);
                }
            }
            soon(|wait| writer.close(wait)).unwrap();
        });
        for expected in 2..count + 2 {
            let sampled = soon(|wait| table.sample(1, wait)).unwrap();
            let mut steps = [0; 24];
            sampled.gather(&mut [&mut steps]);
            let steps: Vec<u64> = steps.chunks_exact(8).map(number).collect();
            assert_eq!(steps, [expected - 2, expected - 1, expected]);
        }
    });
    assert!(writer.info().reconnects > 20, "{:?}", writer.info());
    drop(writer);
    until("chunks that no item names are gone", || server.info().chunks == 0);
}

#[test]
fn a_writer_to_a_closed_table_is_told_at_once_and_writers_to_others_go_on() {
    let (closed, open) = (queue(rows()), named("open", rows()));
    let tables = Arc::new(Tables::new(vec![Arc::clone(&closed), Arc::clone(&open)]).unwrap());
    let mut server = serving::open(TCP, Arc::clone(&tables));
    let address = server.address().to_string();
    let connect = || {
        let dial = dial_to(&address.parse().unwrap(), &TlsFiles::default()).unwrap();
        soon(|wait| TableWriter::connect(dial, ClientOptions::default(), wait)).unwrap()
    };
    let insert = |writer: &TableWriter, table| {
        soon(|wait| writer.insert_rows(table, &[1.0], None, wait, |row| row.fill(1))).unwrap();
        soon(|wait| writer.flush(wait))
    };
    let (before, other) = (connect(), connect());
    insert(&before, 0).unwrap();
    insert(&other, 1).unwrap();
    closed.close();
    let told = "the table \"queue\" is closed (CLOSED)";
    let error = insert(&before, 0).unwrap_err();
    assert!(error.to_string().contains(told), "{error}");
    assert_eq!((before.info().reconnects, before.unacknowledged()), (0, 1));
    insert(&other, 1).unwrap();
    // A server that serves it again changes nothing.
    server.close(Instant::now() + PATIENCE);
    let server = serving::open(&address, Arc::clone(&tables));
    let error = insert(&connect(), 0).unwrap_err();
    assert!(error.to_string().contains(told), "{error}");
    insert(&other, 1).unwrap();
    assert_eq!((other.info().reconnects, open.info().size), (1, 3));
    drop(server);
}

#[test]
fn a_writer_whose_connections_end_before_anything_is_acknowledged_gives_up_at_its_deadline() {
    let table = queue(rows());
    let server = serve(&table);
    // Each takes the handshake, and not all of the frame of rows.
    let dial = Fragile::new(server.address(), 1000);
    let deadline = Some(Duration::from_millis(300));
    let options = ClientOptions { deadline, ..ClientOptions::default() };
    let writer = soon(|wait| TableWriter::connect(dial, options, wait)).unwrap();
    soon(|wait| writer.insert_rows(0, &[1.0; 100], None, wait, |rows| rows.fill(1))).unwrap();
    let error = soon(|wait| writer.flush(wait)).unwrap_err();
    assert!(matches!(error, TablesError::Failed(_)), "{error}");
    // Not as often as connections can be made.
    assert!((2..20).contains(&writer.info().reconnects), "{:?}", writer.info());
}

#[test]
fn requests_whose_connections_break_are_asked_again() {
    let table = Arc::new(Table::new(TableConfig::new("uniform", rows(), 500)).unwrap());
    let server = serve(&table);
    table.try_reserve(100).unwrap().commit(&[1.0; 100], None).unwrap();
    let dial = Fragile::new(server.address(), 60_000);
    let options = ClientOptions::default();
    let requests = soon(|wait| Requests::connect(dial, options, wait)).unwrap();
    for round in 0..300 {
        let batch = soon(|wait| requests.sample(0, 50, wait)).unwrap();
        let keys = &batch.infos().keys;
        let priorities = vec![f64::from(round); 50];
        let updated = soon(|wait| requests.update_priorities(0, keys, &priorities, wait));
        assert_eq!((batch.len(), updated.unwrap()), (50, 50));
    }
    assert!(requests.reconnects() > 20, "{}", requests.reconnects());
    assert!(table.info().counts.samples >= 300 * 50);
}

#[test]
fn hostile_inserts_are_refused_with_the_reason_and_harm_nothing() {
    let table = queue(rows());
    let server = serve(&table);
    let rows = |first, number, priorities: &[f64], bytes: usize| {
        let count = priorities.len() as u32;
        let head = RowsHead { first, table: number, count, version: None };
        frame(|out| {
            head.write(out, priorities, bytes).unwrap();
            out.extend(vec![0; count as usize * bytes]);
        })
    };
    let item = |signature, chunk| {
        let columns = vec![vec![SliceHead { chunk, offset: 0, len: 1 }]];
        let (sequence, table, priority, version) = (0, 0, 1.0, None);
        let head = ItemHead { sequence, table, priority, version, signature, columns };
        frame(|out| head.write(out))
    };
    let signature = frame(|out| {
        let columns = vec![column("number", 8)];
        SignatureHead::write(out, 5, &Signature { structure: String::new(), columns });
    });
    let huge = Header { len: u32::MAX, kind: kind::CHUNK }.bytes().to_vec();
    let damaged = {
        let mut bytes = frame(|out| out.extend_from_slice(&9u64.to_le_bytes()));
        bytes.extend([1; 60]);
        let mut all = Header { len: bytes.len() as u32, kind: kind::CHUNK }.bytes().to_vec();
        all.extend(bytes);
        all
    };
    let protocol = RefusalCode::Protocol;
    for (said, code, reason) in [
        (rows(0, 0, &[1.0, f64::NAN], 108), RefusalCode::Table, "priority 1"),
        (rows(0, 0, &[-1.0], 108), RefusalCode::Table, "priority 0"),
        (rows(0, 9, &[1.0], 108), protocol, "number of a table"),
        (rows(0, 0, &[1.0], 107), protocol, "rows: expected 108"),
        (rows(0, 0, &[1.0], 109), protocol, "1 bytes too many"),
        (rows(7, 0, &[1.0], 108), protocol, "first operation: expected 0, got 7"),
        (item(5, 1), protocol, "number of a signature"),
        ([signature.clone(), item(5, 1)].concat(), protocol, "number of a chunk"),
        ([signature.clone(), signature.clone()].concat(), protocol, "number of a new signature"),
        (huge, protocol, "length of a frame"),
        (damaged, protocol, "a chunk:"),
        (
            frame(|out| Control::Ack { next: 0, limit: 0, stall: Default::default() }.write(out)),
            protocol,
            "a frame of type 17",
        ),
    ] {
        let refused = told(&server, Purpose::Insert, &said).expect(reason);
        assert_eq!(refused.code, code, "{}", refused.text);
        assert!(refused.text.contains(reason), "{reason}: {}", refused.text);
    }
    assert_eq!(table.info().counts.inserts, 0);
    assert_eq!(told(&server, Purpose::Insert, &rows(0, 0, &[1.0, 2.0], 108)), None);
    assert_eq!(table.info().counts.inserts, 2);
}

/// A frame of rows that say their numbers, from `first` on.
fn numbered(first: u64, count: u32) -> Vec<u8> {
    let head = RowsHead { first, table: 0, count, version: None };
    frame(|out| {
        head.write(out, &vec![1.0; count as usize], 108).unwrap();
        for number in first..first + u64::from(count) {
            out.extend_from_slice(&number.to_le_bytes());
            out.extend([number as u8; 100]);
        }
    })
}

fn numbers(table: &Arc<Table>) -> Vec<u64> {
    let sampled = table.get(&table.items().keys);
    let (mut keys, mut fillings) = (vec![0; 8 * sampled.len()], vec![0; 100 * sampled.len()]);
    sampled.gather(&mut [&mut keys, &mut fillings]);
    let mut numbers: Vec<u64> = keys.chunks_exact(8).map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn what_comes_again_through_another_listener_of_a_server_is_in_once() {
    let table = queue(rows());
    let listeners = [serve(&table), serve(&table)];
    let (purpose, incarnation) = (Purpose::Insert, ([9; 16], 5));
    assert_eq!(told_as(incarnation, &listeners[0], purpose, &numbered(0, 4)), None);
    // Some of a frame is new, and what is behind it is.
    let more = [numbered(0, 6), numbered(6, 1)].concat();
    assert_eq!(told_as(incarnation, &listeners[1], purpose, &more), None);
    assert_eq!(told_as(incarnation, &listeners[0], purpose, &numbered(0, 7)), None);
    assert_eq!(numbers(&table), (0..7).collect::<Vec<_>>());
    let dropped: u64 = listeners.iter().map(|listener| listener.info().flow.duplicates).sum();
    assert_eq!(dropped, 4 + 7);
    // A later life begins with its own numbers, whatever listener it takes, and ends the one before.
    assert_eq!(told_as(([9; 16], 6), &listeners[1], purpose, &numbered(0, 1)), None);
    assert_eq!(table.info().size, 8);
    let refused = told_as(incarnation, &listeners[0], purpose, &numbered(0, 8)).unwrap();
    assert_eq!(refused.code, RefusalCode::Stale, "{}", refused.text);
}

#[test]
fn what_comes_through_two_listeners_at_once_is_in_once() {
    let table = queue(rows());
    let listeners = [serve(&table), serve(&table)];
    let mut open =
        listeners.iter().map(|listener| Stranger::open(([9; 16], 5), 0, listener, Purpose::Insert));
    let (mut one, mut other) = (open.next().unwrap(), open.next().unwrap());
    assert_eq!(one.says(&numbered(0, 4)), None);
    assert_eq!(other.says(&numbered(0, 8)), None);
    // The first one had asked the table already, which has come further since.
    assert_eq!(one.says(&numbered(4, 6)), None);
    assert_eq!(other.says(&[numbered(8, 1), numbered(9, 3)].concat()), None);
    assert_eq!(numbers(&table), (0..12).collect::<Vec<_>>());
    let flows = listeners.each_ref().map(|listener| listener.info().flow);
    assert_eq!(flows.each_ref().map(|flow| flow.duplicates), [4, 4 + 2]);
    assert_eq!(flows.each_ref().map(|flow| flow.samples), [4 + 2, 4 + 2]);
}

#[test]
fn numbers_that_would_begin_again_at_nothing_are_refused() {
    let table = queue(rows());
    let server = serve(&table);
    let first = u64::MAX / 2 - 1;
    let mut stranger = Stranger::open(([9; 16], 5), first, &server, Purpose::Insert);
    let refused = stranger.says(&numbered(first, 5)).unwrap();
    assert!(refused.text.contains("operations within the credit"), "{}", refused.text);
    assert_eq!(table.info().size, 0);
}

#[test]
fn what_comes_again_to_a_server_that_was_started_anew_is_in_once() {
    let dir = TempDir::new().unwrap();
    let (purpose, incarnation) = (Purpose::Insert, ([9; 16], 5));
    for start in 0..3_u64 {
        let table = Arc::new(empty_queue("queue", rows()).durable(Some(Durability::Async)));
        recover(&Tables::new(vec![Arc::clone(&table)]).unwrap(), dir.path(), None).unwrap();
        let server = serve(&table);
        // From the beginning, as if nothing had been acknowledged, and in other pieces than before.
        let count = 10 * (start + 1);
        let piece = start + 2;
        let frames = (0..count).step_by(piece as usize);
        let said: Vec<u8> =
            frames.flat_map(|first| numbered(first, piece.min(count - first) as u32)).collect();
        assert_eq!(told_as(incarnation, &server, purpose, &said), None);
        assert_eq!(numbers(&table), (0..count).collect::<Vec<_>>());
        let flow = server.info().flow;
        assert_eq!((flow.samples, flow.duplicates), (10, count - 10));
        drop(server);
        table.close();
    }
}

#[test]
fn an_item_that_is_not_as_the_table_says_is_refused_by_the_server_too() {
    let leaf = leaf("number", Dtype::UInt(1), &[ANY_LENGTH, 8]);
    let spec = Spec::of_trajectories(vec![leaf]).unwrap();
    let table = queue(Form::Trajectories(Some(spec)));
    let server = serve(&table);
    let said = |path: &str, bytes: usize, steps: u32| {
        let column = column(path, bytes);
        let kind = Arc::new(column.kind.clone());
        let chunk = Chunk::raw(kind, 3, vec![1; 3 * bytes].into()).unwrap();
        let columns = vec![vec![SliceHead { chunk: 7, offset: 0, len: steps }]];
        let (sequence, table, priority, version, signature) = (0, 0, 1.0, None, 5);
        let head = ItemHead { sequence, table, priority, version, signature, columns };
        frame(|out| {
            let columns = vec![column];
            SignatureHead::write(out, 5, &Signature { structure: String::new(), columns });
            assert!(write_chunk(out, 7, |out| chunk.write(out)));
            head.write(out);
        })
    };
    for (said, reason) in [
        (
            said("number", 9, 2),
            "expected the leaf `number: uint8[?, 8]`, got `number: uint8[2, 9]`",
        ),
        (said("other", 8, 2), "got `other: uint8[2, 8]`"),
    ] {
        let refused = told(&server, Purpose::Insert, &said).expect(reason);
        assert_eq!(refused.code, RefusalCode::Spec, "{}", refused.text);
        assert!(refused.text.contains(reason), "{reason}: {}", refused.text);
    }
    assert_eq!(table.info().counts.inserts, 0);
    for steps in 1..4 {
        assert_eq!(told(&server, Purpose::Insert, &said("number", 8, steps)), None);
    }
    assert_eq!(table.info().counts.inserts, 3);
}

#[test]
fn hostile_requests_are_refused_or_fail_alone() {
    let table = queue(rows());
    let server = serve(&table);
    let request = |id, table, operation: Operation<'static>| {
        frame(|out| Request { id, table, operation }.write(out))
    };
    let sample = |id| request(id, 0, Operation::Sample { count: 1, timeout_ms: None, area: None });
    // These are answered, and the connection goes on.
    let nan = Operation::Update { keys: vec![1].into(), priorities: vec![f64::NAN].into() };
    for said in [
        request(1, 77, Operation::Reset),
        request(1, 0, nan),
        request(1, 0, Operation::Cancel),
        request(1, 0, Operation::Sample { count: 0, timeout_ms: Some(0), area: None }),
        request(1, 0, Operation::Sample { count: 1 << 20, timeout_ms: Some(0), area: None }),
        request(1, 5, Operation::Sample { count: 1, timeout_ms: None, area: None }),
        (0..1024).flat_map(sample).collect(),
    ] {
        assert_eq!(told(&server, Purpose::Request, &said), None);
    }
    let area = Some(Area { start: 0, len: 1 });
    let nowhere = request(1, 0, Operation::Sample { count: 1, timeout_ms: Some(0), area });
    let too_many: Vec<u8> = (0..1025).flat_map(sample).collect();
    let cut = frame(|out| {
        out.extend(Header { len: 13, kind: kind::REQUEST }.bytes());
        out.extend([3; 13]);
    });
    for (said, reason) in [
        (too_many, "requests that wait"),
        (nowhere, "end of an area"),
        (cut, "number of keys"),
        (Header { len: 17 << 20, kind: kind::REQUEST }.bytes().to_vec(), "length of a frame"),
        (frame(|out| out.extend(Header { len: 0, kind: kind::ROWS }.bytes())), "type 40"),
    ] {
        let refused = told(&server, Purpose::Request, &said).expect(reason);
        assert!(refused.text.contains(reason), "{reason}: {}", refused.text);
    }
}

#[test]
fn a_client_that_reads_nothing_is_given_no_more_batches() {
    let table = Arc::new(Table::new(TableConfig::new("uniform", rows(), 500)).unwrap());
    let server = serve(&table);
    table.try_reserve(1).unwrap().commit(&[1.0], None).unwrap();
    let mut link = dial(&server).dial(PATIENCE).unwrap();
    let mut out = preface(VERSION).to_vec();
    Hello { nonce: [1; 32] }.write(&mut out);
    let (producer, stream) = ([9; 16], String::new());
    let purpose = Purpose::Request;
    let (proof, name) = ([0; 32], "test".into());
    let open = Open { proof, purpose, producer, epoch: 1, first: 0, stream, spec: None, name };
    open.write(&mut out);
    let operation = Operation::Sample { count: 10_000, timeout_ms: None, area: None };
    // A hundred batches of more than a megabyte.
    for id in 0..100 {
        Request { id, table: 0, operation: operation.clone() }.write(&mut out);
    }
    assert_eq!(link.write(&out).unwrap(), out.len());
    let sampled = || table.info().counts.samples / 10_000;
    until("some are answered", || sampled() >= 3);
    std::thread::sleep(Duration::from_millis(100));
    assert!(sampled() < 50, "{} batches wait for a client that reads nothing", sampled());
    let mut bytes = vec![0; 1 << 20];
    until("all are answered", || {
        let _ = link.read(&mut bytes);
        sampled() >= 100
    });
}

#[test]
#[cfg_attr(any(echoic_portable, not(target_os = "linux")), ignore = "shm:// needs Linux")]
fn an_area_outside_of_the_arena_ends_the_connection_and_nothing_else() {
    let table = queue(rows());
    let tables = Arc::new(Tables::new(vec![Arc::clone(&table)]).unwrap());
    let server = serving::open(&addresses()[2], tables);
    // The clients here ask for an arena of no bytes, which has a page.
    for (start, len, fits) in [
        (0, 4096, true),
        (1, 4096, false),
        (4097, 0, false),
        (u64::MAX, 1, false),
        (0, 1 << 40, false),
    ] {
        let operation =
            Operation::Sample { count: 1, timeout_ms: Some(0), area: Some(Area { start, len }) };
        let said = frame(|out| Request { id: 1, table: 0, operation }.write(out));
        let refused = told(&server, Purpose::Gather, &said);
        match refused {
            None => assert!(fits, "{start} {len}"),
            Some(refused) => {
                assert!(!fits, "{start} {len}");
                assert!(refused.text.contains("end of an area"), "{}", refused.text);
            }
        }
    }
    // Over another address there is none.
    let refused = told(&serve(&table), Purpose::Gather, &[]).unwrap();
    assert_eq!(refused.code, RefusalCode::Memory);
}
