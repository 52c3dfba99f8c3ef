//! Asking a server what it is, without sending it anything.

use std::time::{Duration, Instant};

use echoic_replay::Spec;

use super::link::{ClientHandshake, LinkError};
use super::own_name;
use crate::auth::{Token, random};
use crate::transport::Dial;
use crate::wire::frame::Control;
use crate::wire::handshake::{Offer, Open, Purpose};
use crate::wire::{VERSION, WireError};

/// What a server said about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Probed {
    /// Which release it is.
    pub release: String,
    /// Which version of the protocol it speaks.
    pub protocol: u16,
    /// What its samples look like; a server of tables alone has none.
    pub spec: Option<Spec>,
    /// Its tables, of a server of tables alone.
    pub tables: Vec<String>,
    /// How long each ping took to come back.
    pub round_trips: Vec<Duration>,
}

/// Connects, asks, and pings `pings` times.
pub fn probe(
    dial: &dyn Dial,
    token: Option<&Token>,
    pings: usize,
    deadline: Instant,
) -> Result<Probed, LinkError> {
    let open = Open {
        proof: [0; 32],
        purpose: Purpose::Probe,
        producer: random()?,
        epoch: 0,
        first: 0,
        stream: crate::server::STREAM.into(),
        spec: None,
        name: own_name(),
    };
    let (mut handshake, welcome) = ClientHandshake::new(dial, token, open, deadline)?;
    let (spec, tables) = match welcome.offer {
        Offer::Spec(spec) => (Some(spec), Vec::new()),
        Offer::Tables(tables) => (None, tables.into_iter().map(|table| table.name).collect()),
        Offer::Known => {
            return Err(WireError::Content("the server did not send its spec".into()).into());
        }
    };
    let mut round_trips = Vec::new();
    for number in 0..pings as u64 {
        let since = Instant::now();
        let mut output = Vec::new();
        Control::Ping(number).write(&mut output);
        handshake.send(&output)?;
        let (header, payload) = handshake.frame()?;
        if Control::read(header, &payload)? != Control::Pong(number) {
            let expected = "the PONG that belongs to our PING";
            return Err(WireError::Unexpected { expected, got: header.kind }.into());
        }
        round_trips.push(since.elapsed());
    }
    let mut output = Vec::new();
    Control::Goodbye { text: String::new() }.write(&mut output);
    handshake.send(&output)?;
    Ok(Probed { release: welcome.release, protocol: VERSION, spec, tables, round_trips })
}
