//! A client that says anything.

use std::time::{Duration, Instant};

use echoic_net::server::Server;
use echoic_net::transport::Link;
use echoic_net::wire::frame::{Control, HEADER_BYTES, Header, kind};
use echoic_net::wire::handshake::{Hello, Open, ProducerId, Purpose, Refused};
use echoic_net::wire::{PREFACE_BYTES, VERSION, preface};

use super::serving::dial;
use super::waiting::PATIENCE;

/// What a server says to bytes that follow a good handshake: how it refuses them, if it does.
pub fn told(server: &Server, purpose: Purpose, said: &[u8]) -> Option<Refused> {
    told_as((echoic_net::auth::random().unwrap(), 1), server, purpose, said)
}

/// As [`told`], by this life of a producer.
pub fn told_as(
    incarnation: (ProducerId, u64),
    server: &Server,
    purpose: Purpose,
    said: &[u8],
) -> Option<Refused> {
    Stranger::open(incarnation, 0, server, purpose).says(said)
}

/// A connection that says what it likes.
pub struct Stranger {
    link: Box<dyn Link>,
    /// What goes out first.
    opening: Vec<u8>,
    heard: Vec<u8>,
}

impl Stranger {
    /// One that goes on at `first`.
    pub fn open(
        (producer, epoch): (ProducerId, u64),
        first: u64,
        server: &Server,
        purpose: Purpose,
    ) -> Self {
        let link = dial(server).dial(PATIENCE).unwrap();
        let mut opening = preface(VERSION).to_vec();
        Hello { nonce: [1; 32] }.write(&mut opening);
        let open = Open {
            proof: [0; 32],
            purpose,
            producer,
            epoch,
            first,
            stream: String::new(),
            spec: None,
            name: "test".into(),
        };
        open.write(&mut opening);
        Self { link, opening, heard: Vec::new() }
    }

    /// Says bytes; how they are refused, if they are.
    pub fn says(&mut self, said: &[u8]) -> Option<Refused> {
        let mut out = std::mem::take(&mut self.opening);
        let begin = if out.is_empty() { 0 } else { PREFACE_BYTES };
        out.extend_from_slice(said);
        Control::Ping(7).write(&mut out);
        let mut out = &out[..];
        let due = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < due, "nothing is answered");
            if let Ok(sent) = self.link.write(out) {
                out = &out[sent..];
            }
            let mut bytes = [0; 4096];
            match self.link.read(&mut bytes) {
                Ok(0) => {}
                Ok(read) => self.heard.extend_from_slice(&bytes[..read]),
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
            let mut rest = self.heard.get(begin..).unwrap_or_default();
            while let Ok(Some(header)) = Header::read(rest) {
                let end = HEADER_BYTES + header.len as usize;
                let Some(payload) = rest.get(HEADER_BYTES..end) else { break };
                match header.kind {
                    kind::REFUSED => return Some(Refused::read(payload).unwrap()),
                    kind::PONG => {
                        self.heard = rest[end..].to_vec();
                        return None;
                    }
                    _ => {}
                }
                rest = &rest[end..];
            }
        }
    }
}

pub fn frame(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}
