//! The other process of a probe, which is this program again.

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
