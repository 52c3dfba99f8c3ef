//! How fast rollouts go from a producer to a consumer, through a listener: groups of 8 × 512 tokens that are reserved,
//! completed, delivered and acknowledged, under a bound on their lag. Server, producer and consumer are threads of one
//! process, with a connection each. Run it with `cargo run --release -p echoic-net --example rollouts_speed`.
#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use echoic_net::Address;
use echoic_net::client::Options as ClientOptions;
use echoic_net::client::rollouts::{Calls, Outcomes, Rollouts};
use echoic_net::server::{Options, Server};
use echoic_net::transport::{TlsFiles, dial_to, listen_at};
use echoic_replay::Dtype;
use echoic_replay::codec::Encode;
use echoic_replay::rollouts::batch::{FIELDS, Form};
use echoic_replay::rollouts::codec::AppendHead;
use echoic_replay::rollouts::item::Run;
use echoic_replay::rollouts::ledger::{
    Balance, Change, GroupStatus, Hold, Outcome, Reservation, Reserve, Size, Want,
};
use echoic_replay::rollouts::{Column, RolloutConfig, RolloutTable, Schema};
use echoic_replay::stream::Wait;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ITEMS: u32 = 8;
const TOKENS: u32 = 512;
const BATCH: u32 = 64;
/// Reservations that are asked for at once.
const RESERVE: u32 = 64;
/// Groups whose answers are not awaited.
const AHEAD: usize = 16;

fn patiently<T>(run: impl FnOnce(Wait<'_>) -> T) -> T {
    run(Wait { deadline: None, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) })
}

/// Token ids, log-probabilities and a mask; which version made a token is told once for all that it made.
fn config() -> RolloutConfig {
    let column = |name: &str, dtype| Column { name: name.into(), dtype, shape: vec![] };
    let columns = vec![
        column("ids", Dtype::Int(4)),
        column("logprobs", Dtype::Float(4)),
        column("mask", Dtype::UInt(1)),
    ];
    let fields = vec![column("reward", Dtype::Float(4))];
    let schema = Schema { columns, fields, mask: Some(2), ..Schema::default() };
    RolloutConfig {
        max_lag: Some(8),
        max_tokens: TOKENS,
        ..RolloutConfig::new("rollouts", schema, ITEMS, BATCH)
    }
}

/// The arrays of an item.
struct Arrays {
    ids: Vec<u8>,
    logprobs: Vec<u8>,
    mask: Vec<u8>,
}

/// Sends a group from where its arrays are.
fn send(client: &Rollouts, reservation: &Reservation, arrays: &Arrays) -> Result<Calls, Failure> {
    let runs = [Run { version: reservation.version, tokens: TOKENS }];
    let Arrays { ids, logprobs, mask } = arrays;
    let len = (ids.len() + logprobs.len() + mask.len()) as u32;
    let (mut head, mut bulk) = (Vec::with_capacity(1024), Vec::with_capacity(24));
    for item in 0..ITEMS {
        AppendHead {
            hold: reservation.hold,
            item,
            sequence: 0,
            priority: 1.0,
            tokens: TOKENS,
            bytes: len,
            absent: 0,
            runs: &runs,
            finish: Some(((&1f32.to_le_bytes(), 0), &[])),
        }
        .encode(&mut head);
        bulk.extend([&**ids, logprobs, mask]);
    }
    let calls = client.start_filled(0, ITEMS, &head, (ITEMS * len) as usize, false, |mut rest| {
        for piece in bulk {
            let (here, behind) = rest.split_at_mut(piece.len());
            here.copy_from_slice(piece);
            rest = behind;
        }
    });
    Ok(calls?)
}

fn reserve() -> Change {
    Change::Reserve(Reserve { count: RESERVE, source: "producer".into(), ..Reserve::default() })
}

fn reservations(outcomes: Outcomes) -> Result<Vec<Reservation>, Failure> {
    match outcomes.into_iter().next() {
        Some(Ok(Outcome::Reserved(reservations))) => Ok(reservations),
        other => Err(format!("not reserved: {other:?}").into()),
    }
}

/// Makes this many groups.
fn produce(client: &Rollouts, count: usize) -> Result<(), Failure> {
    let arrays = Arrays {
        ids: (0..TOKENS).flat_map(u32::to_le_bytes).collect(),
        logprobs: (0..TOKENS).flat_map(|token| (-(token as f32)).to_le_bytes()).collect(),
        mask: vec![1; TOKENS as usize],
    };
    let check = |mut calls: Calls| -> Result<(), Failure> {
        let outcomes = patiently(|wait| calls.wait(wait))?;
        match outcomes.last() {
            Some(Ok(Outcome::Appended(GroupStatus::Complete))) => Ok(()),
            other => Err(format!("not complete: {other:?}").into()),
        }
    };
    let mut ahead: VecDeque<Calls> = VecDeque::new();
    let mut next = client.start_call(0, &[reserve()], None)?;
    let (mut sent, mut left) = (0, Vec::new());
    while sent < count {
        let reserved = reservations(patiently(|wait| next.wait(wait))?)?;
        next = client.start_call(0, &[reserve()], None)?;
        for reservation in reserved {
            if sent == count {
                left.push(reservation.hold);
                continue;
            }
            ahead.push_back(send(client, &reservation, &arrays)?);
            sent += 1;
            if ahead.len() > AHEAD
                && let Some(oldest) = ahead.pop_front()
            {
                check(oldest)?;
            }
        }
    }
    ahead.into_iter().try_for_each(check)?;
    drop(next);
    fail(client, left)
}

/// Gives reservations back.
fn fail(client: &Rollouts, holds: Vec<Hold>) -> Result<(), Failure> {
    patiently(|wait| client.call(0, &[Change::Fail { holds }], wait))?;
    Ok(())
}

/// Takes this many groups, and looks whether they are whole; bytes of their batches.
fn consume(client: &Rollouts, count: usize) -> Result<usize, Failure> {
    let (size, balance) = (Size::Groups(BATCH), Balance::Count);
    let want = Want { size, rank: 0, ranks: 1, balance, lease_ms: Some(60_000), width: 0 };
    let config = &client.tables()[0];
    let batches = count / BATCH as usize;
    let mut ahead: VecDeque<_> = VecDeque::new();
    for _ in 0..batches.min(2) {
        ahead.push_back(client.start_sample(0, want, Form::Flat, None)?);
    }
    let (mut bytes, mut version) = (0, 0);
    let mut told: VecDeque<Calls> = VecDeque::new();
    while let Some(mut reply) = ahead.pop_front() {
        let delivered = patiently(|wait| reply.wait(wait))?;
        version += 1;
        if version + ahead.len() < batches {
            ahead.push_back(client.start_sample(0, want, Form::Flat, None)?);
        }
        let head = delivered.head();
        let arrays = head.shape.arrays(config)?;
        bytes += arrays.bytes;
        let last = arrays.all[FIELDS + 1];
        let ids = &delivered.bytes()[last.start..][..last.len];
        let expected = (TOKENS - 1).to_le_bytes();
        let rows = ids.chunks_exact(4 * TOKENS as usize);
        if rows.len() != (BATCH * ITEMS) as usize
            || rows.into_iter().any(|row| !row.ends_with(&expected))
        {
            return Err("a batch is not whole".into());
        }
        let publish = Change::Publish { version: version as i64 };
        told.push_back(client.start_call(0, &[Change::Ack(head.lease), publish], None)?);
        if told.len() > 2
            && let Some(mut oldest) = told.pop_front()
        {
            patiently(|wait| oldest.wait(wait))?;
        }
    }
    for mut calls in told {
        patiently(|wait| calls.wait(wait))?;
    }
    Ok(bytes)
}

/// Seconds for which this process has used a processor.
fn used() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let numbers = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = numbers.skip(11).take(2).filter_map(|one| one.parse::<f64>().ok()).sum();
    ticks / 100.0
}

fn run(address: &str, count: usize) -> Result<(), Failure> {
    let table = Arc::new(RolloutTable::new(config())?);
    let listen = listen_at(&address.parse()?, &TlsFiles::default())?;
    let mut server = Server::open(&*listen, table, Options::default())?;
    let address: Address = server.address().clone();
    let connect = || -> Result<Rollouts, Failure> {
        let dial = dial_to(&address, &TlsFiles::default())?;
        Ok(patiently(|wait| Rollouts::connect(dial, ClientOptions::default(), wait))?)
    };
    let (producer, consumer) = (connect()?, connect()?);
    let measure = |count| -> Result<(f64, f64, usize), Failure> {
        let (since, before) = (Instant::now(), used());
        let bytes = std::thread::scope(|scope| {
            let producing = scope.spawn(|| produce(&producer, count));
            let bytes = consume(&consumer, count)?;
            producing.join().map_err(|_| "the producer panicked")??;
            Ok::<_, Failure>(bytes)
        })?;
        Ok((since.elapsed().as_secs_f64(), used() - before, bytes))
    };
    let (seconds, used, bytes) = measure(count)?;
    println!(
        "{:<8} {:>8.0} groups/s {:>8.2} GB/s of batches {:>8.1} µs of processor a group",
        address.to_string().split(':').next().unwrap_or_default(),
        count as f64 / seconds,
        bytes as f64 / seconds / 1e9,
        used / count as f64 * 1e6,
    );
    server.close(Instant::now());
    Ok(())
}

fn main() -> Result<(), Failure> {
    for _ in 0..3 {
        run(&format!("shm://rollouts-speed-{}", std::process::id()), 64_000)?;
        run("tcp://127.0.0.1:0", 32_000)?;
    }
    Ok(())
}
