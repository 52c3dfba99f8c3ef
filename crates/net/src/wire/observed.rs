//! What a server sends to the processes that watch it: families of numbers, and its connections.

use std::borrow::Cow;

use echoic_replay::codec::Reader;
use echoic_replay::{fields, variants};

use super::WireError;
use super::handshake::check_name;

/// The largest payload of an OBSERVED.
pub const MAX_OBSERVED: u32 = 64 << 20;
/// The most connections that are listed, those that wait for something first.
pub const MAX_CONNECTIONS: usize = 4096;

/// How a number changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, while the server lives.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Quantiles of something, how many there were, and their sum.
    Summary,
    /// How many were at most so large, for some sizes; how many there were, and their sum.
    Histogram,
}

/// A number.
#[derive(Debug, Clone, PartialEq)]
pub struct Number {
    /// What is added to the family's name.
    pub suffix: Cow<'static, str>,
    /// Of what it is, by kind of thing.
    pub labels: Vec<(Cow<'static, str>, String)>,
    /// The number itself.
    pub value: f64,
}

/// Numbers of one meaning.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Its name, which begins with `echoic_`.
    pub name: Cow<'static, str>,
    /// What it means.
    pub help: Cow<'static, str>,
    /// How they change.
    pub kind: Kind,
    /// The numbers.
    pub numbers: Vec<Number>,
}

/// A connection as it was at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Connected {
    /// The address that it came to.
    pub listener: String,
    /// Its number there, from 1 on.
    pub id: u64,
    /// The address of the other end.
    pub peer: String,
    /// What the client calls itself; nothing before it has said so.
    pub name: String,
    /// What for: `"push"`, `"insert"`, `"ask"`, `"watch"`, `"weights"` or `"probe"`; nothing before it has said so.
    pub purpose: Cow<'static, str>,
    /// For how many seconds it has stood.
    pub age: f64,
    /// Samples stored.
    pub samples: u64,
    /// Bytes received.
    pub bytes: u64,
    /// System calls that received them.
    pub reads: u64,
    /// Samples that came twice and were dropped.
    pub duplicates: u64,
    /// Seconds for which its samples waited for room.
    pub blocked_time: f64,
    /// What it waits for now, as a stall's name, or nothing.
    pub blocked_by: Cow<'static, str>,
}

/// A server at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observation {
    /// Another number after the server was restarted.
    pub incarnation: u64,
    /// For how many seconds the server has been there.
    pub age: f64,
    /// All numbers.
    pub families: Vec<Family>,
    /// Connections, at most [`MAX_CONNECTIONS`].
    pub connections: Vec<Connected>,
}

variants! { Kind { 0 => Counter, 1 => Gauge, 2 => Summary, 3 => Histogram } }

fields! {
    Number { suffix: Cow<'static, str>, labels: Vec<(Cow<'static, str>, String)>, value: f64 }
    Family {
        name: Cow<'static, str>,
        help: Cow<'static, str>,
        kind: Kind,
        numbers: Vec<Number>,
    }
    Connected {
        listener: String,
        id: u64,
        peer: String,
        name: String,
        purpose: Cow<'static, str>,
        age: f64,
        samples: u64,
        bytes: u64,
        reads: u64,
        duplicates: u64,
        blocked_time: f64,
        blocked_by: Cow<'static, str>,
    }
    Observation {
        incarnation: u64,
        age: f64,
        families: Vec<Family>,
        connections: Vec<Connected>,
    }
}

impl Kind {
    /// As Prometheus calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Summary => "summary",
            Self::Histogram => "histogram",
        }
    }
}

impl Observation {
    /// Reads it; the names of clients are such as clients may have.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let this: Self = reader.get("observation")?;
        let names = this.connections.iter().map(|connection| &connection.name);
        names.filter(|name| !name.is_empty()).try_for_each(|name| check_name(name))?;
        Ok(this)
    }
}
