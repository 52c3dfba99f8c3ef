//! Round trips between two that sleep until they hear from each other: threads, or processes at a socket.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

use crate::listener::{Link, Listener};
use crate::other::{ECHO, Other};
use crate::{Arguments, Numbers, Outcome};

/// What says that there is no more to come.
const END: u64 = u64::MAX;

pub fn run(arguments: &mut Arguments) -> Outcome<Numbers> {
    let kind = arguments.word("thread, unix or tcp")?;
    let time = Duration::from_secs_f64(arguments.number("seconds")?);
    let mut trips = if kind == "thread" { threads(time)? } else { processes(&kind, time)? };
    trips.sort_unstable();
    let at =
        |share: f64| trips[(share * (trips.len() - 1) as f64) as usize].as_nanos() as f64 / 1e3;
    Ok(vec![("value", at(0.5)), ("p99_us", at(0.99))])
}

fn processes(kind: &str, time: Duration) -> Outcome<Vec<Duration>> {
    let listener = Listener::open(kind)?;
    let echo = Other::start(&[ECHO, &listener.address()?])?;
    let mut link = listener.accept()?;
    let mut reply = [0; 8];
    let trips = timed(time, |number| {
        link.write_all(&number.to_le_bytes())?;
        link.read_exact(&mut reply)?;
        Ok(u64::from_le_bytes(reply))
    })?;
    link.write_all(&END.to_le_bytes())?;
    echo.finish()?;
    Ok(trips)
}

/// Replies with the number after each one: the other process.
pub fn echo(arguments: &mut Arguments) -> Outcome<()> {
    let mut link = Link::connect(&arguments.word("an address")?)?;
    let mut request = [0; 8];
    loop {
        link.read_exact(&mut request)?;
        match u64::from_le_bytes(request) {
            END => return Ok(()),
            number => link.write_all(&(number + 1).to_le_bytes())?,
        }
    }
}

fn threads(time: Duration) -> Outcome<Vec<Duration>> {
    let (asked, replied) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (question, answer) = (Arc::clone(&asked), Arc::clone(&replied));
    let asker = thread::current();
    let other = thread::spawn(move || {
        let mut last = 0;
        loop {
            match question.load(Acquire) {
                END => return,
                number if number == last => thread::park(),
                number => {
                    last = number;
                    answer.store(number + 1, Release);
                    asker.unpark();
                }
            }
        }
    });
    let trips = timed(time, |number| {
        asked.store(number, Release);
        other.thread().unpark();
        while replied.load(Acquire) != number + 1 {
            thread::park();
        }
        Ok(replied.load(Acquire))
    });
    asked.store(END, Release);
    other.thread().unpark();
    other.join().map_err(|_| "the other thread panicked")?;
    trips
}

fn timed(time: Duration, mut trip: impl FnMut(u64) -> Outcome<u64>) -> Outcome<Vec<Duration>> {
    let mut trips = Vec::new();
    let start = Instant::now();
    for number in 1.. {
        let before = Instant::now();
        if trip(number)? != number + 1 {
            return Err(format!("the reply to {number} is not the number after it").into());
        }
        trips.push(before.elapsed());
        if start.elapsed() >= time {
            break;
        }
    }
    Ok(trips)
}
