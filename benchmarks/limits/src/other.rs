//! The other process of a probe, which is this program again, and the messages between both.

use std::env;
use std::process::{Child, Command, Stdio};

use crate::Outcome;

/// What the program is called with to be the other one.
pub const SENDER: &str = "socket-sender";
pub const WRITER: &str = "ring-writer";
pub const ECHO: &str = "wake-echo";

/// The process; it is killed if it is still there when it is no longer wanted.
pub struct Other(Child);

impl Other {
    pub fn start(arguments: &[&str]) -> Outcome<Self> {
        let mut command = Command::new(env::current_exe()?);
        Ok(Self(command.args(arguments).stdout(Stdio::null()).spawn()?))
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Outcome<()> {
        let status = self.0.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the other process: {status}").into()) }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It has ended already where all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const HEAD: usize = 8;
const LAST: u64 = u64::MAX;
/// How often a message is compared whole, and not by its ends alone.
const WHOLE: u64 = 61;

/// A message that tells whether it is the right one: a number in 8 bytes, and a pattern.
///
/// The receiver follows the numbers, so a byte too many or too few shifts all that it sees later; the last
/// message says that it is the last.
pub struct Message(Vec<u8>);

impl Message {
    /// Makes one of so many bytes.
    pub fn new(bytes: usize) -> Outcome<Self> {
        if bytes <= HEAD {
            return Err("a message has its number in it, of 8 bytes, and a pattern".into());
        }
        Ok(Self((0..bytes).map(|place| (place % 251) as u8).collect()))
    }

    /// Gives it a number, or makes it the last.
    pub fn numbered(&mut self, number: Option<u64>) -> &[u8] {
        self.0[..HEAD].copy_from_slice(&number.unwrap_or(LAST).to_le_bytes());
        &self.0
    }

    /// Checks what came in place of the one with this number; whether it is the last.
    pub fn check(&self, came: &[u8], number: u64) -> Outcome<bool> {
        let last = came[..HEAD] == LAST.to_le_bytes();
        let from = if number.is_multiple_of(WHOLE) { HEAD } else { came.len() - 1 };
        if (!last && came[..HEAD] != number.to_le_bytes()) || came[from..] != self.0[from..] {
            return Err(format!("message {number} is not what was sent").into());
        }
        Ok(last)
    }
}
