//! Tables over a network: what clients may rely on, over each kind of socket.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use echoic_net::client::rollouts::Rollouts;
use echoic_net::client::tables::{
    Batch, FailureCode, ItemQueue, Layout, Requests, TableConnection, TableHandle, TableWriter,
    TablesError,
};
use echoic_net::client::{Client, ClientError, LinkError, Options as ClientOptions, Watcher};
use echoic_net::server::{Observer, Options, Served, Server};
use echoic_net::wire::handshake::Purpose;
use echoic_net::wire::tables::RowsHead;
use echoic_replay::WaitReason;
use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::encoding::{Encoding, Policy};
use echoic_replay::limiter::{ErrorBuffer, Limiter};
use echoic_replay::rollouts::batch::{FIELDS, Form as RolloutForm};
use echoic_replay::rollouts::item::{Finish, Run, Segment};
use echoic_replay::rollouts::ledger::{Append, Balance, Change, Outcome, Reserve, Size, Want};
use echoic_replay::rollouts::{RolloutConfig, RolloutTable};
use echoic_replay::selectors::SelectorKind;
use echoic_replay::stream::Wait;
use echoic_replay::table::saved::Checkpointer;
use echoic_replay::table::{Durability, Form, Table, TableConfig, TableError, Tables, recover};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::writer::{ChunkLength, ColumnConfig, ItemSteps, Span, TrajectoryWriter};
use echoic_replay::{Dtype, Leaf, Spec, Stream, StreamConfig};

#[path = "common/serving.rs"]
mod serving;
#[path = "../../replay/tests/common/settings.rs"]
mod settings;
#[path = "common/stranger.rs"]
mod stranger;
#[path = "../../replay/tests/common/waiting.rs"]
mod waiting;

use serving::{TCP, addresses, dial, open, open_with, shm};
use stranger::{frame, told};
use waiting::{PATIENCE, soon, until, within};

fn leaf(path: &str, dtype: Dtype, shape: &[usize]) -> Leaf {
    Leaf { path: path.into(), dtype, shape: shape.into() }
}

/// A number and some bytes.
fn spec(filling: usize) -> Spec {
    let leaves =
        vec![leaf("number", Dtype::UInt(8), &[]), leaf("filling", Dtype::UInt(1), &[filling])];
    Spec::new(leaves).unwrap()
}

fn config(name: &str, form: Form) -> TableConfig {
    let structure = format!("the tree of {name}");
    TableConfig { structure, ..TableConfig::new(name, form, 100_000) }
}

fn rows(name: &str, filling: usize) -> TableConfig {
    config(name, Form::Rows(spec(filling)))
}

/// A queue: each item is sampled once, in order, so that what comes out tells what went in.
fn queue(name: &str, filling: usize, size: u64) -> TableConfig {
    TableConfig {
        sampler: SelectorKind::Fifo,
        limiter: Limiter::queue(size).unwrap(),
        capacity: size as u32,
        max_times_sampled: 1,
        ..rows(name, filling)
    }
}

fn tables(configs: Vec<TableConfig>) -> Arc<Tables> {
    let tables = configs.into_iter().map(|config| Arc::new(Table::new(config).unwrap()));
    Arc::new(Tables::new(tables.collect()).unwrap())
}

/// Runs something with new tables at an address of each kind.
fn at_each_address(configs: &[TableConfig], run: impl Fn(&Server, &Arc<Tables>)) {
    for address in addresses() {
        let tables = tables(configs.to_vec());
        run(&open(&address, Arc::clone(&tables)), &tables);
    }
}

fn requests(server: &Server) -> Requests {
    let options = ClientOptions::default();
    soon(|wait| Requests::connect(dial(server), options, wait)).unwrap()
}

fn writer_with(server: &Server, options: ClientOptions) -> TableWriter {
    soon(|wait| TableWriter::connect(dial(server), options, wait)).unwrap()
}

fn writer(server: &Server) -> TableWriter {
    writer_with(server, ClientOptions::default())
}

/// Writes a row that tells whether it arrived whole.
fn fill(row: &mut [u8], number: u64) {
    row[..8].copy_from_slice(&number.to_le_bytes());
    row[8..].fill(number as u8);
}

fn insert(writer: &TableWriter, table: u32, numbers: std::ops::Range<u64>) {
    let Form::Rows(spec) = &writer.tables()[table as usize].form else { panic!("no rows") };
    let size = spec.nbytes();
    let mut next = numbers.start;
    while next < numbers.end {
        let count = (next % 7 + 1).min(numbers.end - next);
        let priorities: Vec<f64> = (next..next + count).map(|number| number as f64).collect();
        soon(|wait| {
            writer.insert_rows(table, &priorities, None, wait, |bytes| {
                for (row, number) in bytes.chunks_exact_mut(size).zip(next..) {
                    fill(row, number);
                }
            })
        })
        .unwrap();
        next += count;
    }
}

/// The numbers in a batch of rows, each found whole.
fn numbers(batch: &Batch) -> Vec<u64> {
    let (keys, fillings) = (batch.column(0), batch.column(1));
    let filling = fillings.len() / batch.len();
    let numbers = keys.chunks_exact(8).enumerate().map(|(index, key)| {
        let number = u64::from_le_bytes(key.try_into().unwrap());
        let whole = &fillings[index * filling..][..filling];
        assert!(whole.iter().all(|byte| *byte == number as u8), "item {number} is torn");
        number
    });
    numbers.collect()
}

fn goes_both_ways(address: &str, filling: usize, count: u64) {
    let replay = TableConfig { capacity: count as u32, ..rows("replay", filling) };
    let tables = tables(vec![rows("other", 3), replay]);
    let server = open(address, Arc::clone(&tables));
    let (requests, writer) = (requests(&server), writer(&server));
    let table = requests.table("replay").unwrap();
    assert_eq!(requests.tables()[1].structure, "the tree of replay");
    insert(&writer, table, 0..count);
    soon(|wait| writer.flush(wait)).unwrap();
    assert_eq!(writer.unacknowledged(), 0);
    let info = soon(|wait| requests.info(Some(table), wait)).unwrap()[0];
    assert_eq!((info.counts.inserts, u64::from(info.size)), (count, count));

    let batch = soon(|wait| requests.sample(table, 64, wait)).unwrap();
    let found = numbers(&batch);
    let infos = batch.infos();
    assert_eq!((batch.len(), infos.table_size, batch.columns()), (64, count, 2));
    for (index, number) in found.iter().enumerate() {
        assert_eq!(infos.priorities[index], *number as f64);
        assert_eq!(infos.probabilities[index], 1.0 / count as f64);
    }
    for column in 0..2 {
        assert_eq!(batch.column(column).as_ptr().align_offset(64), 0);
    }

    let changed: Vec<f64> = infos.keys.iter().map(|_| 0.5).collect();
    let updated = soon(|wait| requests.update_priorities(table, &infos.keys, &changed, wait));
    assert_eq!(updated.unwrap(), 64);
    let table = tables.get("replay").unwrap();
    assert_eq!(table.try_sample(1).unwrap().len(), 1);
    let keys = &infos.keys[..1];
    assert_eq!(soon(|wait| requests.delete(1, keys, wait)).unwrap(), 1);
    assert_eq!(soon(|wait| requests.delete(1, keys, wait)).unwrap(), 0);
    assert_eq!(u64::from(table.info().size), count - 1);
    soon(|wait| writer.close(wait)).unwrap();
    soon(|wait| requests.close(wait)).unwrap();
}

#[test]
fn rows_of_every_size_go_both_ways_over_tcp() {
    for (filling, count) in [(0, 5000), (40, 5000), (5000, 500), (300_000, 40), (3 << 20, 3)] {
        goes_both_ways(TCP, filling, count);
    }
}

#[test]
fn rows_go_both_ways_over_a_unix_socket() {
    let name = format!("unix:///tmp/echoic-tables-{}.sock", std::process::id());
    goes_both_ways(&name, 40, 5000);
    goes_both_ways(&name, 28_224, 200);
}

#[test]
fn rows_go_both_ways_at_an_address_of_shared_memory() {
    goes_both_ways(&shm(&format!("tables-{}", std::process::id())), 40, 1000);
}

#[test]
fn a_panic_ends_the_connection_that_it_was_about_and_no_other() {
    let tables = tables(vec![rows("replay", 0)]);
    let panicked = Arc::<Mutex<BTreeSet<String>>>::default();
    let seen = Arc::clone(&panicked);
    // What an event loop calls for whoever watches.
    let observer = Observer::new(move || {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        seen.lock().unwrap().insert(name);
        panic!("as a test wants")
    });
    let served =
        Served { tables: Arc::clone(&tables), observer: Some(observer), ..Served::default() };
    let server = open_with(TCP, served, Options { threads: 2, ..Options::default() });
    // Connections go to the loops in turn: each has one with a sample that waits.
    let clients: Vec<_> = (0..2).map(|_| requests(&server)).collect();
    let mut replies: Vec<_> =
        clients.iter().map(|client| client.start_sample(0, 3, None).unwrap()).collect();
    for client in &clients {
        assert!(!soon(|wait| client.can_sample(0, 1, wait)).unwrap());
    }
    let far = Instant::now() + PATIENCE;
    for _ in 0..4 {
        let mut watcher = Watcher::connect(&*dial(&server), None, None, far).unwrap();
        let looked = watcher.look(far);
        assert!(matches!(looked, Err(LinkError::Lost(_))), "{looked:?}");
    }
    let names = ["echoic-listen-0", "echoic-listen-1"].map(str::to_owned);
    assert_eq!(*panicked.lock().unwrap(), BTreeSet::from(names));
    assert_eq!(server.info().panics, 4);
    // The listener is there still, and so is whatever loop a producer belongs to.
    let writers: Vec<_> = (0..8).map(|_| writer(&server)).collect();
    for writer in &writers {
        insert(writer, 0, 9..10);
        soon(|wait| writer.flush(wait)).unwrap();
    }
    for (client, reply) in clients.iter().zip(&mut replies) {
        assert_eq!(numbers(&soon(|wait| reply.wait(wait)).unwrap()), [9, 9, 9]);
        assert_eq!(client.reconnects(), 0);
    }
    assert_eq!(server.info().connections, 10);
}

#[test]
fn a_sample_that_waits_in_vain_is_told_what_for() {
    let tables = tables(vec![rows("replay", 0)]);
    let server = open(TCP, Arc::clone(&tables));
    let requests = requests(&server);
    for patience in [Duration::ZERO, Duration::from_millis(50)] {
        let since = Instant::now();
        let error = within(patience, |wait| requests.sample(0, 1, wait)).unwrap_err();
        let min_size = WaitReason::MinSize;
        assert!(matches!(error, TablesError::TimedOut(reason) if reason == min_size), "{error}");
        assert!(since.elapsed() >= patience);
    }
    tables.all()[0].pause();
    let error = within(Duration::from_millis(1), |wait| requests.sample(0, 1, wait)).unwrap_err();
    assert!(error.to_string().contains("PAUSED"), "{error}");
}

#[test]
fn a_sample_that_is_given_up_takes_nothing() {
    at_each_address(&[queue("queue", 0, 10)], |server, _| {
        let (requests, writer) = (requests(server), writer(server));
        let mut broken = 0;
        let mut on_tick = |_| {
            broken += 1;
            ControlFlow::Break(())
        };
        let tick = Some(Duration::from_millis(5));
        let wait = Wait { deadline: None, tick, on_tick: &mut on_tick };
        let error = requests.sample(0, 1, wait).unwrap_err();
        assert!(matches!(error, TablesError::Interrupted), "{error}");
        // The next answer comes after the cancellation.
        assert!(!soon(|wait| requests.can_sample(0, 1, wait)).unwrap());
        insert(&writer, 0, 4..5);
        assert_eq!(numbers(&soon(|wait| requests.sample(0, 1, wait)).unwrap()), [4]);
        assert_eq!((broken, requests.waiting()), (1, 0));
    });
}

#[test]
fn samples_in_advance_come_as_they_were_asked_for() {
    at_each_address(&[queue("queue", 5000, 1000)], |server, _| {
        let (requests, writer) = (requests(server), writer(server));
        let mut replies: Vec<_> =
            (0..50).map(|_| requests.start_sample(0, 16, None).unwrap()).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| insert(&writer, 0, 0..800));
            let mut taken = Vec::new();
            for reply in &mut replies {
                taken.extend(numbers(&soon(|wait| reply.wait(wait)).unwrap()));
            }
            assert_eq!(taken, (0..800).collect::<Vec<_>>());
        });
    });
}

#[test]
fn samples_in_advance_keep_their_order_while_items_come_between_two_tries() {
    at_each_address(&[queue("queue", 8, 1000)], |server, tables| {
        let (requests, table) = (requests(server), &tables.all()[0]);
        for first in (0..20 * 200).step_by(200) {
            let mut replies: Vec<_> =
                (0..200).map(|_| requests.start_sample(0, 1, None).unwrap()).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in first..first + 200 {
                        let mut insertion = soon(|wait| table.reserve(1, wait)).unwrap();
                        fill(insertion.row_mut(0), number);
                        insertion.commit(&[1.0], None).unwrap();
                    }
                });
                for (number, reply) in (first..).zip(&mut replies) {
                    let batch = soon(|wait| reply.wait(wait)).unwrap();
                    assert_eq!(numbers(&batch), [number]);
                }
            });
        }
    });
}

#[test]
fn batches_of_a_durable_queue_are_sent_when_their_draws_are_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::new(queue("durable", 700, 1000)).unwrap().durable(Some(Durability::Sync));
    let tables = Arc::new(Tables::new(vec![Arc::new(table)]).unwrap());
    recover(&*tables, dir.path(), None).unwrap();
    let table = &tables.all()[0];
    let shm = shm(&format!("durable-{}", std::process::id()));
    for address in [TCP, &shm] {
        let server = open(address, Arc::clone(&tables));
        let (writer, requests) = (writer(&server), requests(&server));
        insert(&writer, 0, 0..30);
        soon(|wait| writer.flush(wait)).unwrap();
        for first in (0..30).step_by(3) {
            let batch = soon(|wait| requests.sample(0, 3, wait)).unwrap();
            assert_eq!(numbers(&batch), [first, first + 1, first + 2]);
            let journal = table.journal().unwrap();
            assert_eq!(journal.durable, journal.next);
        }
        // Also those that wait for items, and are too large to be sent all at once.
        let mut samples: Vec<_> =
            (0..9).map(|_| requests.start_sample(0, 100, None).unwrap()).collect();
        insert(&writer, 0, 0..900);
        for (first, sample) in (0..).step_by(100).zip(&mut samples) {
            let batch = soon(|wait| sample.wait(wait)).unwrap();
            assert!(numbers(&batch).into_iter().eq(first..first + 100));
        }
    }
}

#[test]
fn a_writer_that_waits_keeps_nobody_else_waiting() {
    let ratio = Limiter::sample_to_insert_ratio(1.0, 10, ErrorBuffer::Symmetric(5.0)).unwrap();
    let limited = TableConfig { limiter: ratio, ..rows("limited", 100) };
    let tables = tables(vec![limited, rows("free", 100)]);
    let server = open(TCP, Arc::clone(&tables));
    let options = ClientOptions { window_bytes: 4000, ..ClientOptions::default() };
    let (blocked, free) = (writer_with(&server, options), writer(&server));
    let requests = requests(&server);
    std::thread::scope(|scope| {
        let inserting = scope.spawn(|| insert(&blocked, 0, 0..200));
        until("a connection says that it is blocked", || {
            server.connections().iter().any(|one| one.blocked_by == "RATIO")
        });
        assert!(!inserting.is_finished());
        insert(&free, 1, 0..100);
        soon(|wait| free.flush(wait)).unwrap();
        assert!(!soon(|wait| requests.can_insert(0, 1, wait)).unwrap());
        let error = within(Duration::from_millis(20), |wait| blocked.flush(wait)).unwrap_err();
        let ratio = WaitReason::Ratio;
        assert!(matches!(error, TablesError::TimedOut(reason) if reason == ratio), "{error}");
        // Each sample lets one more in.
        while !inserting.is_finished() {
            let _ = within(Duration::from_millis(20), |wait| requests.sample(0, 5, wait));
        }
    });
    soon(|wait| requests.set_limiter(0, *Limiter::min_size(1).unwrap().parameters(), wait))
        .unwrap();
    soon(|wait| blocked.flush(wait)).unwrap();
    assert_eq!(tables.all()[0].info().counts.inserts, 200);
    assert!(blocked.info().blocked > 0);
}

#[test]
fn all_that_a_table_can_do_can_be_asked_for() {
    at_each_address(&[rows("a", 0), rows("b", 0)], |server, _| {
        let (requests, writer) = (requests(server), writer(server));
        insert(&writer, 1, 0..10);
        soon(|wait| writer.flush(wait)).unwrap();
        soon(|wait| requests.advance(1, 42, wait)).unwrap();
        soon(|wait| requests.pause(1, wait)).unwrap();
        let infos = soon(|wait| requests.info(None, wait)).unwrap();
        assert_eq!(infos.iter().map(|one| one.size).collect::<Vec<_>>(), [0, 10]);
        assert_eq!((infos[1].version, infos[1].paused, infos[0].paused), (42, true, false));
        soon(|wait| requests.resume(1, wait)).unwrap();
        assert!(soon(|wait| requests.can_sample(1, 5, wait)).unwrap());
        assert!(soon(|wait| requests.can_insert(1, 5, wait)).unwrap());
        soon(|wait| requests.reset(1, wait)).unwrap();
        assert!(!soon(|wait| requests.can_sample(1, 5, wait)).unwrap());
    });
}

#[test]
fn bad_values_are_refused_before_they_are_sent() {
    at_each_address(&[rows("rows", 8), config("any", Form::Trajectories(None))], |server, _| {
        let (requests, writer) = (requests(server), writer(server));
        let put = |table, priorities: &[f64]| {
            soon(|wait| writer.insert_rows(table, priorities, None, wait, |_| {}))
                .map_err(|error| error.to_string())
        };
        for bad in [f64::NAN, -1.0, f64::INFINITY] {
            assert!(put(0, &[1.0, bad]).unwrap_err().contains("priority 1"), "{bad}");
            let update = soon(|wait| requests.update_priorities(0, &[1], &[bad], wait));
            assert!(update.unwrap_err().to_string().contains("priority 0"), "{bad}");
        }
        assert!(put(1, &[1.0]).unwrap_err().contains("trajectories"));
        assert!(put(2, &[1.0]).unwrap_err().contains("no table"));
        let update = soon(|wait| requests.update_priorities(0, &[1, 2], &[1.0], wait));
        assert!(update.unwrap_err().to_string().contains("2 keys and 1 values"));
        assert!(requests.table("none").unwrap_err().to_string().contains("\"rows\""));
        // Nothing was harmed.
        put(0, &[1.0]).unwrap();
        soon(|wait| writer.flush(wait)).unwrap();
        assert_eq!(soon(|wait| requests.info(Some(0), wait)).unwrap()[0].size, 1);
    });
}

#[test]
fn what_can_never_be_sampled_is_refused_with_the_arithmetic() {
    let ratio = Limiter::sample_to_insert_ratio(1.0, 10, ErrorBuffer::Symmetric(5.0)).unwrap();
    let server = open(TCP, tables(vec![TableConfig { limiter: ratio, ..rows("limited", 0) }]));
    let requests = requests(&server);
    let error = soon(|wait| requests.sample(0, 100, wait)).unwrap_err();
    let limiter = FailureCode::Limiter;
    assert!(matches!(&error, TablesError::Refused { code, .. } if *code == limiter), "{error}");
    let narrow = echoic_replay::limiter::Parameters {
        min_size: 1,
        samples_per_insert: 1.0,
        min_diff: 5.0,
        max_diff: 1.0,
    };
    let error = soon(|wait| requests.set_limiter(0, narrow, wait)).unwrap_err();
    assert!(matches!(error, TablesError::Refused { .. }), "{error}");
}

/// A trajectory's form: a number for each step, and one reward.
fn signature() -> Arc<Signature> {
    let kind = |dtype, shape: &[usize]| ColumnKind { dtype, shape: shape.into() };
    Arc::new(Signature {
        structure: "a tree".into(),
        columns: vec![
            Column { path: "number".into(), kind: kind(Dtype::UInt(8), &[]), squeezed: false },
            Column { path: "reward".into(), kind: kind(Dtype::Float(4), &[]), squeezed: true },
        ],
    })
}

fn chunk(dtype: Dtype, values: &[u8]) -> Arc<Chunk> {
    let kind = Arc::new(ColumnKind { dtype, shape: vec![] });
    let len = (values.len() / dtype.itemsize()) as u32;
    Arc::new(Chunk::raw(kind, len, values.into()).unwrap())
}

/// Ten steps: their numbers, and rewards that are half of them.
fn episode(first: u64) -> [Arc<Chunk>; 2] {
    let numbers: Vec<u8> = (first..first + 10).flat_map(u64::to_le_bytes).collect();
    let rewards = (first..first + 10).flat_map(|number| (number as f32 / 2.0).to_le_bytes());
    [chunk(Dtype::UInt(8), &numbers), chunk(Dtype::Float(4), &rewards.collect::<Vec<u8>>())]
}

/// Steps `from .. from + len` of an episode, with the reward of the last.
fn steps(form: &Arc<Signature>, chunks: &[Arc<Chunk>; 2], from: u32, len: u32) -> Trajectory {
    let slice =
        |column: usize, offset, len| Slice { chunk: Arc::clone(&chunks[column]), offset, len };
    let columns = vec![vec![slice(0, from, len)], vec![slice(1, from + len - 1, 1)]];
    Trajectory::new(Arc::clone(form), columns).unwrap()
}

#[test]
fn trajectories_share_chunks_that_are_sent_once_and_freed_with_the_last_item() {
    let any = || TableConfig {
        sampler: SelectorKind::Fifo,
        capacity: 4,
        ..config("any", Form::Trajectories(None))
    };
    at_each_address(&[any(), TableConfig { name: "same".into(), ..any() }], |server, tables| {
        let (requests, writer) = (requests(server), writer(server));
        let (form, chunks) = (signature(), episode(100));
        for (number, len) in [(0, 3), (1, 2), (2, 5)] {
            for table in [0, 1] {
                let item = steps(&form, &chunks, number, len);
                soon(|wait| writer.item(table, 1.0, Some(6), &item, &[0, 1], wait)).unwrap();
            }
        }
        soon(|wait| writer.flush(wait)).unwrap();
        assert_eq!(server.info().chunks, 2, "each is sent once");

        let batch = soon(|wait| requests.sample(1, 2, wait)).unwrap();
        let Layout::Trajectories { signature: got, steps: lens } = batch.layout() else {
            panic!("trajectories, got {:?}", batch.layout())
        };
        assert_eq!((&**got, lens), (&*form, &vec![vec![3, 3], vec![1, 1]]));
        let numbers: Vec<u64> = batch
            .column(0)
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(numbers, [100, 101, 102, 100, 101, 102]);
        assert_eq!(batch.column(1), [51.0f32.to_le_bytes(), 51.0f32.to_le_bytes()].concat());
        assert_eq!(batch.infos().versions, [6, 6]);

        // Four others push the first items out; until then, and until the release, the chunks stay.
        let others = episode(500);
        for table in [0, 1] {
            for number in 0..4 {
                let item = steps(&form, &others, number, 1);
                soon(|wait| writer.item(table, 1.0, None, &item, &[2, 3], wait)).unwrap();
            }
        }
        soon(|wait| writer.flush(wait)).unwrap();
        assert_eq!(server.info().chunks, 4, "items may still name the first");
        writer.release(&[0, 1]);
        let item = steps(&form, &others, 0, 2);
        soon(|wait| writer.item(0, 1.0, None, &item, &[2, 3], wait)).unwrap();
        soon(|wait| writer.flush(wait)).unwrap();
        assert_eq!(server.info().chunks, 2, "nobody names the first any more");
        soon(|wait| writer.close(wait)).unwrap();
        tables.all().iter().for_each(|table| table.reset());
        until("chunks of a writer that has gone are gone", || server.info().chunks == 0);
    });
}

fn connection(server: &Server) -> Arc<TableConnection> {
    let dials = [dial(server), dial(server)];
    let options = ClientOptions::default();
    Arc::new(soon(|wait| TableConnection::connect(dials, options, wait)).unwrap())
}

#[test]
fn items_of_a_writer_go_to_tables_here_and_elsewhere_in_their_order() {
    let form = || Form::Trajectories(None);
    let here = Arc::new(Table::new(TableConfig { form: form(), ..queue("here", 0, 2) }).unwrap());
    let there = tables(vec![TableConfig { form: form(), ..queue("there", 0, 50) }]);
    let server = open(TCP, Arc::clone(&there));
    let client = connection(&server);
    let all = vec![Arc::clone(&here).into(), TableHandle::remote(&client, 0).unwrap()];
    assert!(TableHandle::remote(&client, 1).is_err());
    let mut items = ItemQueue::new(all);
    assert_eq!(
        (&*items.tables()[0].entry().name, &*items.tables()[1].entry().name),
        ("here", "there")
    );

    let chunk_length = ChunkLength::Fixed(1);
    let settings = ColumnConfig { keep_alive: 10, chunk_length, encoding: Policy::Never };
    let mut writer = TrajectoryWriter::new(settings).unwrap();
    let kind = ColumnKind { dtype: Dtype::UInt(8), shape: vec![] };
    let column = writer.column("number", &kind).unwrap();
    let columns = vec![Column { path: "number".into(), kind, squeezed: false }];
    let signature = Arc::new(Signature { structure: "a tree".into(), columns });
    for number in 0..6u64 {
        writer.append(&[Some(&number.to_le_bytes())], false).unwrap();
        let mut steps = ItemSteps::default();
        steps.column([Span { column, first: number, len: 1 }]);
        writer.create_item(number as u32 % 2, 1.0, &signature, &steps).unwrap();
    }
    writer.flush(&mut items);
    items.pump().unwrap();
    // The third for the queue here has no room, and what came later may not overtake it.
    assert_eq!(items.len(), 2);
    let mut reasons = Vec::new();
    let on_tick = &mut |reason| {
        reasons.push(reason);
        ControlFlow::Break(())
    };
    let tick = Some(Duration::from_millis(1));
    let given_up = items.flush(Wait { deadline: None, tick, on_tick }).unwrap_err();
    assert!(matches!(given_up, TablesError::Table(TableError::Interrupted)), "{given_up}");
    assert_eq!((items.len(), reasons), (2, vec![WaitReason::Ratio]));
    let late = within(Duration::from_millis(10), |wait| items.flush(wait)).unwrap_err();
    assert!(matches!(late, TablesError::Table(TableError::TimedOut(WaitReason::Ratio))), "{late}");
    assert_eq!(items.len(), 2, "the oldest is the oldest again");
    let taken = items.take(0).unwrap();
    items.pump().unwrap();
    assert_eq!(items.len(), 2, "somebody waits with the oldest");
    items.settle(Some(taken));
    soon(|wait| here.sample(1, wait)).unwrap();
    soon(|wait| items.flush(wait)).unwrap();
    assert!(items.is_empty());
    let batch = soon(|wait| client.requests().sample(0, 3, wait)).unwrap();
    let numbers = batch.column(0).as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 3, 5]);
    soon(|wait| client.close(wait)).unwrap();
    writer
        .create_item(1, 1.0, &signature, &{
            let mut steps = ItemSteps::default();
            steps.column([Span { column, first: 5, len: 1 }]);
            steps
        })
        .unwrap();
    writer.flush(&mut items);
    assert!(matches!(items.pump(), Err(TablesError::Closed)));
    assert_eq!(items.len(), 1, "it can go nowhere, and is not dropped");
}

#[test]
fn one_connection_inserts_updates_lists_and_delivers_all_when_it_closes() {
    let replay = config("replay", Form::Trajectories(None));
    let tables = tables(vec![replay, rows("rows", 0)]);
    let server = open(TCP, Arc::clone(&tables));
    let client = connection(&server);
    assert!(client.is_connected() && !client.is_over());
    let (form, chunks) = (signature(), episode(0));
    for number in 0..5 {
        let item = steps(&form, &chunks, number, 2);
        soon(|wait| client.insert(0, 1.0, None, &item, wait)).unwrap();
    }
    soon(|wait| client.flush(wait)).unwrap();
    let requests = client.requests();
    let keys = soon(|wait| requests.list_all(0, usize::MAX, wait)).unwrap().keys;
    assert_eq!(keys.len(), 5);
    assert_eq!(soon(|wait| requests.list_all(0, 3, wait)).unwrap().keys, keys[..3]);
    assert_eq!(soon(|wait| requests.table_info(1, wait)).unwrap().table, 1);
    assert_ne!(client.first_chunk(), client.first_chunk());
    let table = TableHandle::remote(&client, 0).unwrap();
    assert_eq!(table.try_update(&keys, &[3.0; 5], false).unwrap(), Some(0));
    let item = steps(&form, &chunks, 0, 1);
    soon(|wait| client.insert(0, 1.0, None, &item, wait)).unwrap();
    soon(|wait| client.close(wait)).unwrap();
    assert!(client.is_over());
    let items = tables.all()[0].items();
    assert_eq!(items.priorities, [3.0, 3.0, 3.0, 3.0, 3.0, 1.0]);
    tables.all()[0].reset();
    until("chunks of items without a writer are gone", || server.info().chunks == 0);
}

#[test]
fn trajectories_of_different_forms_make_no_batch() {
    at_each_address(&[config("any", Form::Trajectories(None))], |server, _| {
        let (requests, writer) = (requests(server), writer(server));
        let mut other = (*signature()).clone();
        other.structure = "another tree".into();
        for form in [signature(), Arc::new(other)] {
            let item = steps(&form, &episode(0), 0, 2);
            let ids = [form.structure.len() as u64 * 2, form.structure.len() as u64 * 2 + 1];
            soon(|wait| writer.item(0, 1.0, None, &item, &ids, wait)).unwrap();
        }
        soon(|wait| writer.flush(wait)).unwrap();
        // That all of 64 are of one form happens once in 2^63 times.
        let error = soon(|wait| requests.sample(0, 64, wait)).unwrap_err();
        assert!(matches!(error, TablesError::Refused { code: FailureCode::Mixed, .. }), "{error}");
        assert_eq!(soon(|wait| requests.sample(0, 1, wait)).unwrap().len(), 1);
    });
}

#[test]
fn an_item_that_is_not_as_the_table_says_is_refused_before_it_is_sent() {
    let expected = Spec::new(vec![leaf("number", Dtype::Int(8), &[2])]).unwrap();
    let tables = tables(vec![config("strict", Form::Trajectories(Some(expected)))]);
    let server = open(TCP, Arc::clone(&tables));
    let writer = writer(&server);
    let item = steps(&signature(), &episode(0), 0, 2);
    let error = soon(|wait| writer.item(0, 1.0, None, &item, &[0, 1], wait)).unwrap_err();
    assert!(error.to_string().contains("1 leaves, got 2"), "{error}");
    let error = soon(|wait| writer.item(0, -1.0, None, &item, &[0, 1], wait)).unwrap_err();
    assert!(error.to_string().contains("priority 0"), "{error}");
    assert_eq!((writer.unacknowledged(), server.info().malformed), (0, 0));
}

#[test]
fn who_asks_for_what_a_server_does_not_have_is_told_what_it_has() {
    let config = StreamConfig { batch_size: 2, num_buffers: 2 };
    let stream = Arc::new(Stream::new(spec(0), config).unwrap());
    let only_stream = open(TCP, Arc::clone(&stream));
    let only_tables = open(TCP, tables(vec![rows("replay", 0)]));
    let options = ClientOptions::default;
    let refusal = |error: LinkError| match error {
        LinkError::Refused(refused) => format!("{} {}", refused.code.name(), refused.text),
        other => other.to_string(),
    };
    let client = Client::new(dial(&only_tables), spec(0), options()).unwrap();
    match soon(|wait| client.wait_until_connected(wait)) {
        Err(ClientError::Failed(failure)) => {
            assert_eq!(refusal(failure.error), "SERVICE the server has no stream; it has tables");
        }
        other => panic!("{other:?}"),
    }
    match soon(|wait| TableWriter::connect(dial(&only_stream), options(), wait)) {
        Err(TablesError::Failed(failure)) => {
            assert_eq!(refusal(failure.error), "SERVICE the server has no tables; it has a stream");
        }
        other => panic!("{other:?}"),
    }
    let both = Served {
        stream: Some(stream),
        tables: tables(vec![rows("replay", 0)]),
        ..Served::default()
    };
    let both = open(TCP, both);
    let client = Client::new(dial(&both), spec(0), options()).unwrap();
    soon(|wait| client.wait_until_connected(wait)).unwrap();
    assert_eq!(requests(&both).tables().len(), 1);
}

#[test]
fn a_server_with_other_tables_is_not_taken_for_the_old_one() {
    let mut server = open(TCP, tables(vec![rows("replay", 20)]));
    let writer = writer(&server);
    let address = server.address().to_string();
    server.close(Instant::now() + Duration::from_secs(5));
    let _other = open(&address, tables(vec![rows("replay", 21)]));
    insert(&writer, 0, 0..1);
    let error = soon(|wait| writer.flush(wait)).unwrap_err();
    assert!(error.to_string().contains("with items of another kind, and had"), "{error}");
}

#[test]
fn a_table_that_is_closed_answers_who_waits() {
    let tables = tables(vec![rows("replay", 0)]);
    let server = open(TCP, Arc::clone(&tables));
    let requests = requests(&server);
    let mut reply = requests.start_sample(0, 1, None).unwrap();
    assert!(!soon(|wait| requests.can_sample(0, 1, wait)).unwrap());
    tables.close();
    let error = soon(|wait| reply.wait(wait)).unwrap_err();
    assert!(matches!(error, TablesError::Refused { code: FailureCode::Closed, .. }), "{error}");
    assert!(!soon(|wait| requests.can_sample(0, 1, wait)).unwrap());
    assert!(reply.is_ready() && reply.is_answered());
    soon(|wait| reply.wait(wait)).expect_err("there is no other answer");
}

#[test]
fn a_client_has_a_checkpoint_written_beside_samples_that_wait() {
    let root = tempfile::tempdir().unwrap();
    let tables = tables(vec![rows("replay", 8)]);
    let checkpointer = Checkpointer::new(Arc::clone(&tables), None, root.path().into(), 3, "test");
    let checkpointer = Some(Arc::new(checkpointer));
    let served = Served { tables: Arc::clone(&tables), checkpointer, ..Served::default() };
    let server = open(TCP, served);
    let client = requests(&server);
    let mut waits = client.start_sample(0, 1, None).unwrap();
    let path = soon(|wait| client.checkpoint(wait)).unwrap();
    assert!(path.starts_with(root.path().to_str().unwrap()) && path.ends_with("0000000001"));
    let writer = writer(&server);
    soon(|wait| writer.insert_rows(0, &[1.0], None, wait, |row| fill(row, 7))).unwrap();
    assert_eq!(soon(|wait| waits.wait(wait)).unwrap().infos().keys.len(), 1);
    let newer = soon(|wait| client.checkpoint(wait)).unwrap();
    assert!(newer.ends_with("0000000002"));
    let loaded = echoic_replay::table::saved::open(&newer).unwrap();
    assert_eq!(loaded.get("replay").unwrap().info().size, 1);
}

#[test]
fn a_checkpoint_that_is_not_written_is_refused_with_the_reason() {
    let tables = tables(vec![rows("replay", 8)]);
    let server = open(TCP, Arc::clone(&tables));
    match soon(|wait| requests(&server).checkpoint(wait)) {
        Err(TablesError::Refused { code: FailureCode::Checkpoint, text }) => {
            assert_eq!(text, "the server has no checkpointer");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
#[cfg_attr(any(echoic_portable, not(target_os = "linux")), ignore = "shm:// needs Linux")]
fn batches_that_are_written_into_memory_outlive_the_next_ones_and_the_server() {
    // Columns of 4 kB, so that a batch of 64 is worth a place.
    let tables = tables(vec![rows("replay", 4088)]);
    let server = open(&shm(&format!("arena-{}", std::process::id())), Arc::clone(&tables));
    let (client, writer) = (requests(&server), writer(&server));
    for number in 0..100 {
        soon(|wait| writer.insert_rows(0, &[1.0], None, wait, |row| fill(row, number))).unwrap();
    }
    soon(|wait| writer.flush(wait)).unwrap();
    let check = |batch: &Batch| {
        assert!(batch.is_shared());
        let (numbers, filling) = (batch.column(0), batch.column(1));
        assert_eq!((numbers.len(), filling.len()), (64 * 8, 64 * 4088));
        assert!(filling.as_ptr().addr().is_multiple_of(64));
        for (number, filling) in numbers.chunks(8).zip(filling.chunks(4088)) {
            assert!(filling.iter().all(|byte| *byte == number[0]));
        }
        numbers.to_vec()
    };
    let mut kept: Vec<(Batch, Vec<u8>)> = Vec::new();
    for round in 0..60 {
        let mut replies: Vec<_> =
            (0..4).map(|_| client.start_sample(0, 64, None).unwrap()).collect();
        // One that is given up may still be written, but not into another's place.
        drop(replies.swap_remove(round % 4));
        for mut reply in replies {
            let batch = soon(|wait| reply.wait(wait)).unwrap();
            let numbers = check(&batch);
            kept.push((batch, numbers));
        }
        if kept.len() > 20 {
            kept.drain(..7);
        }
    }
    drop(server);
    for (batch, numbers) in &kept {
        assert_eq!(&check(batch), numbers);
    }
}

#[test]
#[cfg_attr(any(echoic_portable, not(target_os = "linux")), ignore = "shm:// needs Linux")]
fn a_share_of_a_batch_has_a_place_from_16_kib_on() {
    let tables = tables(vec![rows("replay", 396)]);
    let server = open(&shm(&format!("shares-{}", std::process::id())), Arc::clone(&tables));
    let (client, writer) = (requests(&server), writer(&server));
    for number in 0..100 {
        soon(|wait| writer.insert_rows(0, &[1.0], None, wait, |row| fill(row, number))).unwrap();
    }
    soon(|wait| writer.flush(wait)).unwrap();
    // Columns begin at multiples of 64 bytes.
    for (count, is_shared) in [(1, false), (40, false), (41, true), (128, true)] {
        let batch = soon(|wait| client.sample(0, count, wait)).unwrap();
        assert_eq!((batch.len(), batch.is_shared()), (count, is_shared));
        for (number, filling) in batch.column(0).chunks(8).zip(batch.column(1).chunks(396)) {
            assert!(filling.iter().all(|byte| *byte == number[0]));
        }
    }
}

/// Asks for something small again and again while `work` goes on, and asserts that it is not kept waiting by that.
fn assert_answered_during(
    control: Duration,
    ask: &dyn Fn() -> Duration,
    work: impl FnOnce() + Send,
) {
    let since = Instant::now();
    let mut times = std::thread::scope(|scope| {
        let worker = scope.spawn(work);
        let times: Vec<_> = std::iter::from_fn(|| (!worker.is_finished()).then(ask)).collect();
        worker.join().unwrap();
        times
    });
    let window = since.elapsed();
    times.sort_unstable();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    assert!(longest < window / 2, "one of {} waited {longest:?} of {window:?}", times.len());
    // On a busy machine everything takes longer.
    let limit = Duration::from_millis(10).max(control * 10);
    assert!(median < limit, "half of {} took {median:?} and more; alone {control:?}", times.len());
}

#[test]
#[cfg_attr(any(echoic_portable, not(target_os = "linux")), ignore = "shm:// needs Linux")]
fn what_takes_long_for_one_client_keeps_no_other_waiting() {
    let any = config("any", Form::Trajectories(None));
    let tables = tables(vec![any, TableConfig { capacity: 1 << 16, ..rows("rows", 64) }]);
    let rollouts = rollouts();
    // There the answer is no longer than what is told of the items: what takes time is to decode them.
    let address = shm(&format!("heavy-{}", std::process::id()));
    let options = Options { threads: 1, ..Options::default() };
    let served = Served {
        tables: Arc::clone(&tables),
        rollouts: Arc::new(vec![Arc::clone(&rollouts)]),
        ..Served::default()
    };
    let server = open_with(&address, served, options);
    let (client, writer, other) = (requests(&server), writer(&server), requests(&server));
    let ask = || {
        let since = Instant::now();
        assert!(soon(|wait| other.can_insert(0, 1, wait)).unwrap());
        since.elapsed()
    };
    let mut alone: Vec<_> = (0..50).map(|_| ask()).collect();
    alone.sort_unstable();

    // A few kilobytes on the wire.
    let bytes = 128 << 20;
    let kind = ColumnKind { dtype: Dtype::UInt(1), shape: vec![bytes] };
    let column = Column { path: "x".into(), kind: kind.clone(), squeezed: false };
    let signature = Arc::new(Signature { structure: "0".into(), columns: vec![column] });
    let policy = Policy::Always(Encoding::Zstd);
    let chunk = Chunk::encode(Arc::new(kind), 1, vec![7; bytes].into(), policy).unwrap();
    assert!(chunk.memory_bytes() < 1 << 20);
    let slice = Slice { chunk: Arc::new(chunk), offset: 0, len: 1 };
    let item = Trajectory::new(signature, vec![vec![slice]]).unwrap();
    assert_answered_during(alone[25], &ask, || {
        soon(|wait| writer.item(0, 1.0, None, &item, &[1], wait)).unwrap();
        soon(|wait| writer.flush(wait)).unwrap();
    });
    // From the first the client learns how much room the next one needs.
    for is_shared in [false, true] {
        assert_answered_during(alone[25], &ask, || {
            let batch = soon(|wait| client.sample(0, 1, wait)).unwrap();
            assert_eq!(batch.is_shared(), is_shared);
            assert_eq!((batch.column(0).len(), batch.column(0)[bytes - 1]), (bytes, 7));
        });
    }

    // As many rows as a frame may have.
    let (count, row) = (1 << 16, 72);
    let said = frame(|out| {
        let head = RowsHead { first: 0, table: 1, count, version: None };
        head.write(out, &vec![1.0; count as usize], row).unwrap();
        out.extend((0..count as usize * row).map(|at| (at / row) as u8));
    });
    assert_answered_during(alone[25], &ask, || {
        assert_eq!(told(&server, Purpose::Insert, &said), None);
    });
    let filled = tables.all()[1].get(&tables.all()[1].items().keys);
    let (mut numbers, mut filling) = (vec![0; 8 << 16], vec![0; 64 << 16]);
    filled.gather(&mut [&mut numbers, &mut filling]);
    let mut rows = numbers.chunks_exact(8).zip(filling.chunks_exact(64)).enumerate();
    assert!(rows.all(|(at, (number, filling))| {
        number.iter().chain(filling).all(|byte| *byte == at as u8)
    }));

    // Two items of three tokens, in rows that are nearly all padding.
    let consumer = soon(|wait| Rollouts::connect(dial(&server), ClientOptions::default(), wait));
    let consumer = consumer.unwrap();
    let width = 8 << 20;
    for is_shared in [false, true] {
        let (rank, ranks, lease_ms) = (0, 1, None);
        let want = Want {
            size: Size::Groups(1),
            rank,
            ranks,
            balance: Balance::Count,
            lease_ms,
            width: 0,
        };
        assert_answered_during(alone[25], &ask, || {
            let form = RolloutForm::Padded { width, left: false };
            let share = soon(|wait| consumer.sample(0, want, form, wait)).unwrap();
            assert_eq!((share.is_shared(), share.head().shape.rows), (is_shared, 2));
            let arrays = share.head().shape.arrays(rollouts.config()).unwrap();
            let ids = &share.bytes()[arrays.all[FIELDS + 1].start..];
            assert_eq!(&ids[..16], [[5; 12].as_slice(), &[0; 4]].concat());
        });
    }
}

/// Two groups of two items, of three tokens each.
fn rollouts() -> Arc<RolloutTable> {
    let table = RolloutTable::new(RolloutConfig { min_group_size: 2, ..settings::plain() });
    let table = Arc::new(table.unwrap());
    let reserve = Change::Reserve(Reserve { count: 2, ..Reserve::default() });
    let Ok(Outcome::Reserved(reservations)) = table.apply(&reserve) else { panic!("not reserved") };
    for (reservation, item) in
        reservations.iter().flat_map(|reservation| [(reservation, 0), (reservation, 1)])
    {
        let runs = [Run { version: 0, tokens: 3 }].into_iter().collect();
        let bytes = [[5; 12].as_slice(), &[1; 3]].concat();
        let segment = Arc::new(Segment { runs, tokens: 3, bytes, absent: 0 });
        let finish = Some(Arc::new(Finish { fields: vec![0; 8], ..Finish::default() }));
        let hold = reservation.hold;
        let append = Append { hold, item, sequence: 0, segment, finish, priority: 1.0 };
        table.apply(&Change::Append(append)).unwrap();
    }
    table
}

#[test]
#[cfg_attr(any(echoic_portable, not(target_os = "linux")), ignore = "shm:// needs Linux")]
fn trajectories_find_a_place_when_their_size_is_known() {
    let tables = tables(vec![config("replay", Form::Trajectories(None))]);
    let server = open(&shm(&format!("places-{}", std::process::id())), Arc::clone(&tables));
    let (client, writer) = (requests(&server), writer(&server));
    let kind = ColumnKind { dtype: Dtype::UInt(1), shape: vec![4096] };
    let column = Column { path: "x".into(), kind: kind.clone(), squeezed: false };
    let signature = Arc::new(Signature { structure: "0".into(), columns: vec![column] });
    for number in 0..20u64 {
        let steps = 1 + number as usize % 5;
        let bytes = vec![number as u8; steps * 4096];
        let chunk = Chunk::raw(Arc::new(kind.clone()), steps as u32, bytes.into()).unwrap();
        let slice = Slice { chunk: Arc::new(chunk), offset: 0, len: steps as u32 };
        let trajectory = Trajectory::new(Arc::clone(&signature), vec![vec![slice]]).unwrap();
        soon(|wait| writer.item(0, 1.0, None, &trajectory, &[number], wait)).unwrap();
    }
    soon(|wait| writer.flush(wait)).unwrap();
    for round in 0..30 {
        let batch = soon(|wait| client.sample(0, 50, wait)).unwrap();
        // The first tells how large the others may be; later the largest so far is known.
        assert!(batch.is_shared() == (round > 0) || (1..20).contains(&round));
        let Layout::Trajectories { steps, .. } = batch.layout() else { panic!("rows") };
        let mut rest = batch.column(0);
        for steps in &steps[0] {
            let (item, after) = rest.split_at(*steps as usize * 4096);
            assert!(
                item.iter().all(|byte| *byte == item[0]) && *steps == 1 + u64::from(item[0]) % 5
            );
            rest = after;
        }
        assert!(rest.is_empty());
    }
}
