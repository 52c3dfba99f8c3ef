//! Statistics of a listener and its connections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use echoic_memory::sync::Mutex;
use echoic_replay::WaitReason;
use echoic_replay::chunk::ChunkMeter;

use crate::wire::frame::stall_number;
use crate::wire::handshake::{Purpose, RefusalCode};
use crate::wire::observed::Connected;

/// Counters of one connection. Its event loop writes them, anyone may read.
#[derive(Debug)]
pub(crate) struct ConnectionMeter {
    pub(crate) peer: String,
    purpose: OnceLock<&'static str>,
    name: OnceLock<String>,
    since: Instant,
    pub(crate) samples: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    blocked: Mutex<BlockedTime>,
    blocked_by: AtomicU8,
}

/// Counters of one listener.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) accepted: AtomicU64,
    pub(crate) reconnects: AtomicU64,
    pub(crate) silent: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) accept_errors: AtomicU64,
    pub(crate) panics: AtomicU64,
    /// Of connections that are gone.
    gone: Mutex<Flow>,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    connections: Mutex<BTreeMap<u64, Arc<ConnectionMeter>>>,
    pub(crate) chunks: Arc<ChunkMeter>,
}

/// What went through connections.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Flow {
    /// Samples stored.
    pub samples: u64,
    /// Bytes received.
    pub bytes: u64,
    /// System calls that received them.
    pub reads: u64,
    /// Samples that came twice and were dropped.
    pub duplicates: u64,
    /// Seconds for which samples waited for room, summed over connections.
    pub blocked_time: f64,
}

/// A snapshot of one listener.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ListenerStats {
    /// Connections that stand.
    pub connections: u64,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Clients that came back.
    pub reconnects: u64,
    /// Connections closed because nothing came for too long.
    pub silent: u64,
    /// Connections closed because of bytes that made no sense.
    pub malformed: u64,
    /// Times that the system did not let us accept.
    pub accept_errors: u64,
    /// Times that an event loop panicked and went on, without the connection that it served.
    pub panics: u64,
    /// Connections refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// What went through all connections.
    pub flow: Flow,
    /// Chunks that came through this listener and are still there.
    pub chunks: u64,
    /// Bytes that they take.
    pub chunk_bytes: u64,
}

/// How long samples waited. Changed only when a wait begins or ends, so a lock costs nothing.
#[derive(Debug, Default)]
struct BlockedTime {
    /// Of waits that have ended.
    past: Duration,
    /// When the one that goes on began.
    since: Option<Instant>,
}

impl BlockedTime {
    fn time(&self) -> Duration {
        self.past + self.since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

impl ConnectionMeter {
    pub(crate) fn new(peer: String) -> Self {
        Self {
            peer,
            purpose: OnceLock::new(),
            name: OnceLock::new(),
            since: Instant::now(),
            samples: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            blocked: Mutex::default(),
            blocked_by: AtomicU8::new(0),
        }
    }

    /// Says what it is for, and what the client calls itself, once that is known.
    pub(crate) fn set_client(&self, purpose: Purpose, name: String) {
        let _ = self.purpose.set(purpose.name());
        let _ = self.name.set(name);
    }

    /// What it is for; nothing before it has said so.
    pub(crate) fn purpose(&self) -> &'static str {
        self.purpose.get().copied().unwrap_or_default()
    }

    /// Counts one system call that received `bytes`.
    pub(crate) fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_stall(&self, stall: Option<WaitReason>) {
        self.blocked_by.store(stall_number(stall), Ordering::Relaxed);
    }

    /// Its samples wait from now on, or do so no more.
    pub(crate) fn set_blocked(&self, blocked: bool) {
        let mut time = self.blocked.lock();
        time.past = time.time();
        time.since = blocked.then(Instant::now);
    }

    /// Says how long its samples waited, as the client itself has counted.
    pub(crate) fn set_blocked_time(&self, time: Duration) {
        self.blocked.lock().past = time;
    }

    /// What it waits for now.
    pub(crate) fn stall(&self) -> Option<WaitReason> {
        WaitReason::of(self.blocked_by.load(Ordering::Relaxed))
    }

    fn flow(&self) -> Flow {
        Flow {
            samples: self.samples.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            duplicates: self.duplicates.load(Ordering::Relaxed),
            blocked_time: self.blocked.lock().time().as_secs_f64(),
        }
    }

    fn info(&self, id: u64, listener: &str) -> Connected {
        let Flow { samples, bytes, reads, duplicates, blocked_time } = self.flow();
        Connected {
            listener: listener.to_owned(),
            id,
            peer: self.peer.clone(),
            name: self.name.get().cloned().unwrap_or_default(),
            purpose: self.purpose().into(),
            age: self.since.elapsed().as_secs_f64(),
            samples,
            bytes,
            reads,
            duplicates,
            blocked_time,
            blocked_by: self.stall().map(WaitReason::name).unwrap_or_default().into(),
        }
    }
}

impl ListenerStats {
    /// Adds the numbers of another listener.
    pub fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.accepted += other.accepted;
        self.reconnects += other.reconnects;
        self.silent += other.silent;
        self.malformed += other.malformed;
        self.accept_errors += other.accept_errors;
        self.panics += other.panics;
        for (code, count) in &other.refused {
            *self.refused.entry(code).or_default() += count;
        }
        self.flow.add(other.flow);
        self.chunks += other.chunks;
        self.chunk_bytes += other.chunk_bytes;
    }
}

impl Flow {
    fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.bytes += other.bytes;
        self.reads += other.reads;
        self.duplicates += other.duplicates;
        self.blocked_time += other.blocked_time;
    }
}

impl Meter {
    pub(crate) fn enter(&self, id: u64, connection: &Arc<ConnectionMeter>) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.connections.lock().insert(id, Arc::clone(connection));
    }

    pub(crate) fn leave(&self, id: u64) {
        // Both locks, so that no snapshot counts a connection twice or not at all.
        let mut gone = self.gone.lock();
        if let Some(connection) = self.connections.lock().remove(&id) {
            gone.add(connection.flow());
        }
    }

    pub(crate) fn refuse(&self, code: RefusalCode) {
        *self.refused.lock().entry(code.name()).or_default() += 1;
    }

    pub(crate) fn info(&self) -> ListenerStats {
        let gone = self.gone.lock();
        let mut flow = *gone;
        let connections = self.connections.lock();
        connections.values().for_each(|connection| flow.add(connection.flow()));
        let read = |rollouts: &AtomicU64| rollouts.load(Ordering::Relaxed);
        ListenerStats {
            connections: connections.len() as u64,
            accepted: read(&self.accepted),
            reconnects: read(&self.reconnects),
            silent: read(&self.silent),
            malformed: read(&self.malformed),
            accept_errors: read(&self.accept_errors),
            panics: read(&self.panics),
            refused: self.refused.lock().clone(),
            flow,
            chunks: self.chunks.chunks(),
            chunk_bytes: self.chunks.bytes(),
        }
    }

    pub(crate) fn connections(&self, listener: &str) -> Vec<Connected> {
        self.connections.lock().iter().map(|(id, meter)| meter.info(*id, listener)).collect()
    }
}
