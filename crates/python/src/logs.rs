//! What the Rust side has to say, on its way to Python's logging.
//!
//! Whoever has something to say may be an event loop, which must not wait for Python: records go into a queue
//! that is bounded, and a thread of Python's takes them out. Nobody listens until a level is set.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::Once;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use echoic_memory::sync::{Condvar, Mutex, MutexGuard};
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record as SpanRecord};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::wait;

/// So many records wait at most; later ones are counted and dropped.
const MOST: usize = 1024;
/// So often is tried to get at the queue, which others have for a few instructions.
const PATIENCE: usize = 1000;

/// Levels of Python's logging up to which is listened: 0 for none.
static LEVEL: AtomicU8 = AtomicU8::new(0);
static QUEUE: Mutex<VecDeque<Record>> = Mutex::new(VecDeque::new());
static DROPPED: AtomicU64 = AtomicU64::new(0);
static MORE: Condvar = Condvar::new();
static LISTENING: Once = Once::new();

/// Level as Python numbers it, who says it, and what.
type Record = (u8, String, String);

/// The queue, if it can be had soon. A process that was forked while somebody had it never gets it: then it
/// has no logs, and nobody waits for ever.
fn queue() -> Option<MutexGuard<'static, VecDeque<Record>>> {
    for _ in 0..PATIENCE {
        match QUEUE.try_lock() {
            Some(queue) => return Some(queue),
            None => std::thread::yield_now(),
        }
    }
    None
}

/// Puts events into the queue.
struct Listener;

/// The number that Python gives a level.
fn number(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        _ => 10,
    }
}

impl Subscriber for Listener {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // The level may change at any time.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let least = LEVEL.load(Ordering::Relaxed);
        least > 0 && number(metadata.level()) >= least && metadata.target().starts_with("echoic")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &SpanRecord<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        let Text { message, fields } = text;
        let record = (number(metadata.level()), metadata.target().to_owned(), message + &fields);
        let Some(mut queue) = queue().filter(|queue| queue.len() < MOST) else {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        };
        queue.push_back(record);
        drop(queue);
        MORE.notify_one();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event in words.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        // Writing to a string can't fail. Debug text shows where a value from outside ends.
        let _ = match field.name() {
            "message" => write!(self.message, "{value}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Errors are written as they are, and may say what a server said.
        let mut shown = String::new();
        for letter in format!("{value:?}").chars() {
            match letter {
                letter if letter.is_control() => shown.extend(letter.escape_default()),
                letter => shown.push(letter),
            }
        }
        let _ = match field.name() {
            "message" => write!(self.message, "{shown}"),
            name => write!(self.fields, " {name}={shown}"),
        };
    }
}

/// Listen to the core from this level of :mod:`logging` on; 0 for not at all.
#[pyfunction]
pub fn set_log_level(level: u8) {
    LEVEL.store(level, Ordering::Relaxed);
    if level > 0 {
        LISTENING.call_once(|| {
            // Nobody else sets one in this library.
            let _ = tracing::subscriber::set_global_default(Listener);
        });
    }
    MORE.notify_all();
}

/// Wait for records of level, target and text; also how many were dropped.
#[pyfunction]
pub fn take_logs(py: Python<'_>, timeout: f64) -> PyResult<(Vec<Record>, u64)> {
    let timeout = wait::seconds("timeout", timeout)?;
    Ok(py.detach(|| {
        let mut records = Vec::new();
        if let Some(mut queue) = queue() {
            if queue.is_empty() && LEVEL.load(Ordering::Relaxed) > 0 {
                queue = MORE.wait_timeout(queue, timeout);
            }
            records.extend(queue.drain(..));
        } else {
            // Nobody comes back at once to what it can't have.
            std::thread::sleep(timeout);
        }
        (records, DROPPED.swap(0, Ordering::Relaxed))
    }))
}
