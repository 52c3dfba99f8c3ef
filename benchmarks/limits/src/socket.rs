//! Messages through a socket, one system call for each, to a process that reads as much as there is.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::listener::{Link, Listener};
use crate::other::{Message, Other, SENDER};
use crate::{Arguments, Numbers, Outcome};

/// As much as the reader asks for at once.
const READ: usize = 256 << 10;

pub fn run(arguments: &mut Arguments) -> Outcome<Numbers> {
    let listener = Listener::open(&arguments.word("tcp or unix")?)?;
    let bytes: usize = arguments.number("bytes of a call")?;
    let seconds = arguments.word("seconds")?;
    let due = Message::new(bytes)?;
    let sender = Other::start(&[SENDER, &listener.address()?, &bytes.to_string(), &seconds])?;
    let mut link = listener.accept()?;
    let mut buffer = vec![0; READ + bytes];
    // Bytes of a message that has not come in whole.
    let (mut held, mut received, mut next, mut last) = (0, 0_usize, 0_u64, false);
    let start = Instant::now();
    while !last {
        // Of a large message the rest, so that nothing has to be moved to the front.
        let wanted = if bytes < READ { READ } else { bytes - held };
        let read = link.read(&mut buffer[held..][..wanted])?;
        if read == 0 {
            return Err("the sender has gone before its last message".into());
        }
        received += read;
        let there = held + read;
        let whole = there / bytes * bytes;
        for message in buffer[..whole].chunks_exact(bytes) {
            last = due.check(message, next)?;
            next += 1;
        }
        buffer.copy_within(whole..there, 0);
        held = there - whole;
    }
    let elapsed = start.elapsed();
    if held != 0 || received as u64 != next * bytes as u64 {
        return Err(format!("{received} bytes are not {next} messages").into());
    }
    sender.finish()?;
    Ok(vec![
        ("value", received as f64 / elapsed.as_nanos() as f64),
        ("messages_per_s", next as f64 / elapsed.as_secs_f64()),
    ])
}

/// Sends for so many seconds: the other process.
pub fn send(arguments: &mut Arguments) -> Outcome<()> {
    let mut link = Link::connect(&arguments.word("an address")?)?;
    let bytes: usize = arguments.number("bytes of a call")?;
    let time = Duration::from_secs_f64(arguments.number("seconds")?);
    let mut message = Message::new(bytes)?;
    let (start, mut number) = (Instant::now(), 0_u64);
    while start.elapsed() < time {
        link.write_all(message.numbered(Some(number)))?;
        number += 1;
    }
    Ok(link.write_all(message.numbered(None))?)
}
