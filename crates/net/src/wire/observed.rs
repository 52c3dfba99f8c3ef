//! What a server tells those who watch it: families of numbers, and its connections.

use std::borrow::Cow;

use echoic_replay::codec::{Reader, write_text};

use super::WireError;
use super::handshake::{MAX_CLIENT_NAME, check_name};

/// The largest payload of an OBSERVED.
pub const MAX_OBSERVED: u32 = 64 << 20;
/// The most connections that are told of, those that wait for something first.
pub const MAX_CONNECTIONS: usize = 4096;

/// The table that an OBSERVE names to be told the names of clients too: those who watched before there were names asked
/// about table 0, and take no byte more.
pub const WITH_NAMES: u32 = 1;

/// The longest name of a number, what it means, and a label's value.
const MAX_NAME: u16 = 256;
const MAX_HELP: u16 = 1024;
const MAX_VALUE: u16 = 1024;

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
    /// Who is at the other end.
    pub peer: String,
    /// What the client calls itself; nothing if it has no name.
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
    /// Another number after the server was started anew.
    pub incarnation: u64,
    /// For how many seconds the server has been there.
    pub age: f64,
    /// All numbers.
    pub families: Vec<Family>,
    /// Connections, at most [`MAX_CONNECTIONS`].
    pub connections: Vec<Connected>,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Self::Counter => 0,
            Self::Gauge => 1,
            Self::Summary => 2,
            Self::Histogram => 3,
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        match reader.u8("kind of a number")? {
            0 => Ok(Self::Counter),
            1 => Ok(Self::Gauge),
            2 => Ok(Self::Summary),
            3 => Ok(Self::Histogram),
            got => Err(WireError::meaningless("kind of a number", got.into())),
        }
    }

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

fn text(reader: &mut Reader<'_>, field: &'static str, limit: u16) -> Result<String, WireError> {
    Ok(reader.text(field, limit)?.to_owned())
}

/// As many as there are, each read by `read`. Memory is taken for what has been read.
fn list<T>(
    reader: &mut Reader<'_>,
    field: &'static str,
    mut read: impl FnMut(&mut Reader<'_>) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let count = reader.u32_at_most(field, MAX_OBSERVED)?;
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(read(reader)?);
    }
    Ok(all)
}

fn write_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

impl Number {
    fn write(&self, out: &mut Vec<u8>) {
        write_text(out, &self.suffix, MAX_NAME);
        write_count(out, self.labels.len());
        for (name, value) in &self.labels {
            write_text(out, name, MAX_NAME);
            write_text(out, value, MAX_VALUE);
        }
        out.extend_from_slice(&self.value.to_le_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            suffix: text(reader, "suffix of a number", MAX_NAME)?.into(),
            labels: list(reader, "number of labels", |reader| {
                let name = text(reader, "name of a label", MAX_NAME)?;
                Ok((name.into(), text(reader, "value of a label", MAX_VALUE)?))
            })?,
            value: reader.f64("number")?,
        })
    }
}

impl Family {
    fn write(&self, out: &mut Vec<u8>) {
        write_text(out, &self.name, MAX_NAME);
        write_text(out, &self.help, MAX_HELP);
        out.push(self.kind.number());
        write_count(out, self.numbers.len());
        self.numbers.iter().for_each(|number| number.write(out));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            name: text(reader, "name of a number", MAX_NAME)?.into(),
            help: text(reader, "meaning of a number", MAX_HELP)?.into(),
            kind: Kind::read(reader)?,
            numbers: list(reader, "number of numbers", Number::read)?,
        })
    }
}

impl Connected {
    fn write(&self, out: &mut Vec<u8>) {
        write_text(out, &self.listener, MAX_VALUE);
        out.extend_from_slice(&self.id.to_le_bytes());
        write_text(out, &self.peer, MAX_VALUE);
        write_text(out, &self.purpose, MAX_NAME);
        out.extend_from_slice(&self.age.to_le_bytes());
        for number in [self.samples, self.bytes, self.reads, self.duplicates] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.blocked_time.to_le_bytes());
        write_text(out, &self.blocked_by, MAX_NAME);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            listener: text(reader, "address of a listener", MAX_VALUE)?,
            id: reader.u64("number of a connection")?,
            peer: text(reader, "peer of a connection", MAX_VALUE)?,
            name: String::new(),
            purpose: text(reader, "purpose of a connection", MAX_NAME)?.into(),
            age: reader.f64("age of a connection")?,
            samples: reader.u64("samples of a connection")?,
            bytes: reader.u64("bytes of a connection")?,
            reads: reader.u64("system calls of a connection")?,
            duplicates: reader.u64("duplicates of a connection")?,
            blocked_time: reader.f64("time that a connection waited")?,
            blocked_by: text(reader, "what a connection waits for", MAX_NAME)?.into(),
        })
    }
}

impl Observation {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.age.to_le_bytes());
        write_count(out, self.families.len());
        self.families.iter().for_each(|family| family.write(out));
        write_count(out, self.connections.len());
        self.connections.iter().for_each(|connection| connection.write(out));
        if self.connections.iter().any(|connection| !connection.name.is_empty()) {
            for connection in &self.connections {
                write_text(out, &connection.name, MAX_CLIENT_NAME);
            }
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut this = Self {
            incarnation: reader.u64("life of the server")?,
            age: reader.f64("age of the server")?,
            families: list(reader, "number of families", Family::read)?,
            connections: list(reader, "number of connections", Connected::read)?,
        };
        if reader.left() > 0 {
            for connection in &mut this.connections {
                let name = reader.text("bytes of a client's name", MAX_CLIENT_NAME)?;
                if !name.is_empty() {
                    check_name(name)?;
                    name.clone_into(&mut connection.name);
                }
            }
            if this.connections.iter().all(|connection| connection.name.is_empty()) {
                return Err(WireError::meaningless("names of connections", 0));
            }
        }
        Ok(this)
    }
}
