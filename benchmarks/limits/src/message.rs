//! Messages that tell whether they are the right ones: a number in 8 bytes, and a pattern.
//!
//! The receiver follows the numbers, so a byte too many or too few shifts all that it sees later; the last
//! message says that it is the last.

use crate::Outcome;

const HEAD: usize = 8;
const LAST: u64 = u64::MAX;
/// How often a message is compared whole, and not by its ends alone.
const WHOLE: u64 = 61;

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
