//! How fast tables are over loopback TCP, from one client: inserts, samples, updates. Server and client
//! are threads of one process. Run it with `cargo run --release -p echoic-net --example tables_speed`.
#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_net::Address;
use echoic_net::client::Options as ClientOptions;
use echoic_net::client::tables::{Requests, TableWriter};
use echoic_net::server::{Options, Server};
use echoic_net::transport::{TlsFiles, dial_to, listen_at};
use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::selectors::SelectorKind;
use echoic_replay::stream::Wait;
use echoic_replay::table::{Form, Table, TableConfig, Tables};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::{Dtype, Leaf, Spec};

type Failure = Box<dyn std::error::Error>;

fn patiently<T>(run: impl FnOnce(Wait<'_>) -> T) -> T {
    run(Wait { deadline: None, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) })
}

fn spec(shapes: &[usize]) -> Result<Spec, Failure> {
    let leaf = |(number, bytes): (usize, &usize)| Leaf {
        path: format!("leaf{number}"),
        dtype: Dtype::UInt(1),
        shape: vec![*bytes],
    };
    Ok(Spec::new(shapes.iter().enumerate().map(leaf).collect())?)
}

fn table(name: &str, form: Form, capacity: u32) -> Result<Arc<Table>, Failure> {
    let sampler = match name {
        "prioritized" => SelectorKind::Prioritized { exponent: 0.6 },
        _ => SelectorKind::Uniform,
    };
    Ok(Arc::new(Table::new(TableConfig { sampler, ..TableConfig::new(name, form, capacity) })?))
}

fn report(what: &str, count: f64, unit: &str, since: Instant) {
    let rate = count / since.elapsed().as_secs_f64();
    println!("{what:<44} {:>10.3} M {unit}/s", rate / 1e6);
}

fn insert(
    writer: &TableWriter,
    table: u32,
    row: usize,
    each: usize,
    calls: usize,
) -> Result<(), Failure> {
    let priorities = vec![1.0; each];
    let bytes = vec![7; row * each];
    let since = Instant::now();
    for _ in 0..calls {
        patiently(|wait| {
            writer.insert_rows(table, &priorities, None, wait, |rows| rows.copy_from_slice(&bytes))
        })?;
    }
    patiently(|wait| writer.flush(wait))?;
    let what = format!("insert {row} B, {each} a call");
    report(&what, (calls * each) as f64, "rows", since);
    Ok(())
}

fn sample(
    requests: &Requests,
    table: u32,
    count: usize,
    ahead: usize,
    batches: usize,
) -> Result<(), Failure> {
    let since = Instant::now();
    let mut replies = VecDeque::new();
    let (mut bytes, mut left) = (0, batches);
    for _ in 0..ahead {
        replies.push_back(requests.start_sample(table, count, None)?);
    }
    while let Some(mut reply) = replies.pop_front() {
        let batch = patiently(|wait| reply.wait(wait))?;
        bytes += (0..batch.columns()).map(|column| batch.column(column).len()).sum::<usize>();
        left -= 1;
        if left >= ahead {
            replies.push_back(requests.start_sample(table, count, None)?);
        }
    }
    let name = &requests.tables()[table as usize].name;
    report(
        &format!("sample {count} of {name}, {ahead} ahead"),
        (batches * count) as f64,
        "items",
        since,
    );
    println!("{:<44} {:>10.3} GB/s", "", bytes as f64 / since.elapsed().as_secs_f64() / 1e9);
    Ok(())
}

fn update(requests: &Requests, table: u32, ahead: usize, calls: usize) -> Result<(), Failure> {
    let batch = patiently(|wait| requests.sample(table, 256, wait))?;
    let keys = &batch.infos().keys;
    let priorities: Vec<f64> = (0..256).map(f64::from).collect();
    let since = Instant::now();
    let mut replies = VecDeque::new();
    for _ in 0..calls {
        replies.push_back(requests.start_update(table, keys, &priorities)?);
        if replies.len() >= ahead
            && let Some(mut reply) = replies.pop_front()
        {
            patiently(|wait| reply.wait(wait))?;
        }
    }
    for mut reply in replies {
        patiently(|wait| reply.wait(wait))?;
    }
    let name = &requests.tables()[table as usize].name;
    report(&format!("update 256 of {name}, {ahead} at once"), (calls * 256) as f64, "keys", since);
    Ok(())
}

/// What the system's loopback carries, with large writes and reads.
fn loopback() -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut far = TcpStream::connect(listener.local_addr()?)?;
    let (mut near, _) = listener.accept()?;
    let total = 4usize << 30;
    let since = Instant::now();
    let sending = std::thread::spawn(move || -> std::io::Result<()> {
        let bytes = vec![1; 1 << 20];
        for _ in 0..total >> 20 {
            near.write_all(&bytes)?;
        }
        Ok(())
    });
    let mut bytes = vec![0; 1 << 20];
    while far.read(&mut bytes)? > 0 {}
    sending.join().map_err(|_| "a thread panicked")??;
    let rate = total as f64 / since.elapsed().as_secs_f64() / 1e9;
    println!("{:<44} {rate:>10.3} GB/s", "bare loopback");
    Ok(())
}

fn items(writer: &TableWriter, table: u32, count: u64) -> Result<(), Failure> {
    let kinds = [16usize, 4, 4, 8, 16];
    let column = |(number, bytes): (usize, &usize)| Column {
        path: format!("leaf{number}"),
        kind: ColumnKind { dtype: Dtype::UInt(1), shape: vec![*bytes] },
        squeezed: true,
    };
    let columns: Vec<Column> = kinds.iter().enumerate().map(column).collect();
    let signature = Arc::new(Signature { structure: String::new(), columns });
    let since = Instant::now();
    let mut chunks: Vec<Arc<Chunk>> = Vec::new();
    for number in 0..count {
        let (first, step) = (number / 100 * 5, (number % 100) as u32);
        let ids: Vec<u64> = (first..first + 5).collect();
        if step == 0 {
            chunks.clear();
            for column in &signature.columns {
                let kind = Arc::new(column.kind.clone());
                let bytes = vec![3; kind.step_bytes().unwrap_or(0) * 100];
                chunks.push(Arc::new(Chunk::raw(kind, 100, bytes.into())?));
            }
        }
        let slice =
            |chunk: &Arc<Chunk>| vec![Slice { chunk: Arc::clone(chunk), offset: step, len: 1 }];
        let trajectory =
            Trajectory::new(Arc::clone(&signature), chunks.iter().map(slice).collect())?;
        patiently(|wait| writer.item(table, 1.0, None, &trajectory, &ids, wait))?;
        if step == 99 {
            writer.release(&ids);
        }
    }
    patiently(|wait| writer.flush(wait))?;
    report("items of 5 slices", count as f64, "items", since);
    Ok(())
}

fn main() -> Result<(), Failure> {
    let small = Form::Rows(spec(&[16, 4, 4, 8, 16])?);
    let tables = Arc::new(Tables::new(vec![
        table("small", small.clone(), 1_000_000)?,
        table("prioritized", small, 1_000_000)?,
        table("frames", Form::Rows(spec(&[28_224])?), 20_000)?,
        table("trajectories", Form::Trajectories(None), 100_000)?,
    ])?);
    let listen = listen_at(&"tcp://127.0.0.1:0".parse()?, &TlsFiles::default())?;
    let mut server = Server::open(&*listen, tables, Options::default())?;
    let address: Address = server.address().clone();
    let dial = || dial_to(&address, &TlsFiles::default());
    let options = ClientOptions::default();
    let writer = patiently(|wait| {
        TableWriter::connect(dial()?, options.clone(), wait).map_err(Failure::from)
    })?;
    let requests =
        patiently(|wait| Requests::connect(dial()?, options, wait).map_err(Failure::from))?;
    loopback()?;
    insert(&writer, 0, 48, 1, 3_000_000)?;
    insert(&writer, 0, 48, 256, 20_000)?;
    insert(&writer, 1, 48, 256, 8_000)?;
    insert(&writer, 2, 28_224, 1, 20_000)?;
    insert(&writer, 2, 28_224, 16, 2_000)?;
    items(&writer, 3, 300_000)?;
    for ahead in [1, 2, 4, 8] {
        sample(&requests, 0, 256, ahead, 8_000)?;
    }
    sample(&requests, 1, 256, 4, 8_000)?;
    for ahead in [1, 2, 4] {
        sample(&requests, 2, 256, ahead, 300)?;
    }
    for ahead in [1, 4, 16] {
        update(&requests, 0, ahead, 20_000)?;
    }
    update(&requests, 1, 16, 10_000)?;
    server.close(Instant::now() + Duration::from_secs(1));
    Ok(())
}
