//! A ring in memory that two processes share: one copies messages into it, the other looks at them there.
//!
//! Both tell how many messages they are done with, in a number each. The writer may write where the reader
//! has been, the reader may look where the writer has been; a full or an empty ring is waited for by looking
//! again, so nobody is ever woken.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

use crate::memory::{Memory, inherited_file, nameless_file};
use crate::other::{Message, Other, WRITER};
use crate::{Arguments, Numbers, Outcome};

/// Where the two numbers are, apart by more than the cache lines that a processor fetches together.
const WRITTEN: usize = 0;
const READ: usize = 256;
/// Where the messages begin.
const HEAD: usize = 4096;
/// After so many looks in vain the processor is left to whoever else wants it.
const LOOKS: u32 = 1000;
/// Nobody waits for longer than this: then the other process is gone.
const PATIENCE: Duration = Duration::from_secs(10);

struct Ring {
    memory: Memory,
    stride: usize,
    slots: u64,
}

impl Ring {
    fn new(memory: Memory, bytes: usize, message: usize) -> Self {
        let stride = message.next_multiple_of(8);
        Self { memory, stride, slots: (bytes / stride).max(2) as u64 }
    }

    /// Memory that a ring of this size needs.
    fn bytes(bytes: usize, message: usize) -> usize {
        HEAD + bytes.max(2 * message.next_multiple_of(8))
    }

    fn place(&self, number: u64) -> usize {
        HEAD + (number % self.slots) as usize * self.stride
    }

    /// Waits until a count is above a number; what it is then.
    fn wait(&self, count: usize, above: u64) -> u64 {
        let mut looks = 0;
        let mut since = None;
        loop {
            let now = self.memory.number(count).load(Acquire);
            if now > above {
                return now;
            }
            looks += 1;
            if looks % LOOKS > 0 {
                std::hint::spin_loop();
                continue;
            }
            let since = since.get_or_insert_with(Instant::now);
            assert!(since.elapsed() < PATIENCE, "the other process is gone");
            thread::yield_now();
        }
    }
}

pub fn run(arguments: &mut Arguments) -> Outcome<Numbers> {
    let bytes: usize = arguments.number("bytes of the ring")?;
    let message: usize = arguments.number("bytes of a message")?;
    let seconds = arguments.word("seconds")?;
    let due = Message::new(message)?;
    let mapped = Ring::bytes(bytes, message);
    let file = nameless_file(mapped)?;
    let ring = Ring::new(Memory::shared(&file, mapped)?, bytes, message);
    let words = [file.as_raw_fd().to_string(), bytes.to_string(), message.to_string(), seconds];
    let arguments: Vec<&str> =
        std::iter::once(WRITER).chain(words.iter().map(String::as_str)).collect();
    let writer = Other::start(&arguments)?;
    // The time that the writer needs to begin is not the ring's.
    let (mut read, mut there) = (0, ring.wait(WRITTEN, 0));
    let (start, mut last) = (Instant::now(), false);
    while !last {
        if read == there {
            there = ring.wait(WRITTEN, read);
        }
        // SAFETY: the writer is done with this message, and writes there only when READ says so.
        let bytes = unsafe { ring.memory.look(ring.place(read), message) };
        last = due.check(bytes, read)?;
        read += 1;
        ring.memory.number(READ).store(read, Release);
    }
    let elapsed = start.elapsed();
    writer.finish()?;
    Ok(vec![
        ("value", read as f64 * message as f64 / elapsed.as_nanos() as f64),
        ("messages_per_s", read as f64 / elapsed.as_secs_f64()),
    ])
}

/// Writes for so many seconds: the other process.
pub fn write(arguments: &mut Arguments) -> Outcome<()> {
    let descriptor = arguments.number("a descriptor")?;
    let bytes: usize = arguments.number("bytes of the ring")?;
    let message: usize = arguments.number("bytes of a message")?;
    let time = Duration::from_secs_f64(arguments.number("seconds")?);
    // SAFETY: the parent opened it for this process, which has not looked at it before.
    let file = unsafe { inherited_file(descriptor) };
    let ring = Ring::new(Memory::shared(&file, Ring::bytes(bytes, message))?, bytes, message);
    let mut source = Message::new(message)?;
    let (mut number, mut free) = (0, ring.slots);
    let mut put = |number: u64, name: Option<u64>| {
        if number == free {
            free = ring.wait(READ, number - ring.slots) + ring.slots;
        }
        let bytes = source.numbered(name);
        // SAFETY: the reader has left this place, or was never there, and comes when WRITTEN says so.
        unsafe { ring.memory.put(ring.place(number), bytes) };
        ring.memory.number(WRITTEN).store(number + 1, Release);
    };
    // A clock that is read as often as a megabyte is copied costs nothing.
    let often = ((1 << 20) / message + 1) as u64;
    let start = Instant::now();
    while start.elapsed() < time {
        (number..number + often).for_each(|each| put(each, Some(each)));
        number += often;
    }
    put(number, None);
    Ok(())
}
