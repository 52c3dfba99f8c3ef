//! Watching a server: all its statistics, whenever they are asked for.
//!
//! It has no thread. Between two looks nothing is read, so a server that hears nothing for three heartbeats
//! ends the connection; a watcher that looks less often connects again.

use std::time::Instant;

use super::link::{ClientHandshake, LinkError, use_control};
use super::own_name;
use crate::auth::{Token, random};
use crate::transport::Dial;
use crate::wire::WireError;
use crate::wire::frame::{Control, kind};
use crate::wire::handshake::{Open, Purpose};
use crate::wire::observed::Observation;
use crate::wire::tables::{Answer, Operation, Request};

/// A connection that looks.
pub struct Watcher {
    handshake: ClientHandshake,
    release: String,
    /// The number of the last request.
    last: u64,
}

impl Watcher {
    /// Connects; `name` is what people know it by, host and process when `None`.
    pub fn connect(
        dial: &dyn Dial,
        token: Option<&Token>,
        name: Option<String>,
        deadline: Instant,
    ) -> Result<Self, LinkError> {
        let open = Open {
            proof: [0; 32],
            purpose: Purpose::Watch,
            producer: random()?,
            epoch: 0,
            first: 0,
            stream: String::new(),
            spec: None,
            name: name.unwrap_or_else(own_name),
        };
        let (handshake, welcome) = ClientHandshake::new(dial, token, open, deadline)?;
        Ok(Self { handshake, release: welcome.release, last: 0 })
    }

    /// Which release the server is.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Looks. After an error this connection is of no use any more.
    pub fn look(&mut self, deadline: Instant) -> Result<Observation, LinkError> {
        self.handshake.set_deadline(deadline);
        self.last += 1;
        let mut output = Vec::new();
        Request { id: self.last, table: 0, operation: Operation::Observe }.write(&mut output);
        self.handshake.send(&output)?;
        loop {
            let (header, payload) = self.handshake.frame()?;
            match header.kind {
                kind::OBSERVED => match Answer::read(header, &payload)? {
                    Answer::Observed { id, observation } if id == self.last => {
                        return Ok(observation);
                    }
                    answer => {
                        let field = "number of a request";
                        return Err(WireError::meaningless(field, answer.id()).into());
                    }
                },
                _ => {
                    output.clear();
                    use_control(header, &payload, |number| {
                        Control::Pong(number).write(&mut output);
                    })?;
                    self.handshake.send(&output)?;
                }
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut output = Vec::new();
        Control::Goodbye { text: String::new() }.write(&mut output);
        self.handshake.set_deadline(Instant::now());
        // A server that is gone needs no goodbye.
        let _ = self.handshake.send(&output);
    }
}
