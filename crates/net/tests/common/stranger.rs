//! A client that says anything.

use std::time::{Duration, Instant};

use echoic_net::server::Server;
use echoic_net::transport::{TlsFiles, dial_to};
use echoic_net::wire::frame::{Control, HEADER_BYTES, Header, kind};
use echoic_net::wire::handshake::{Hello, Open, ProducerId, Purpose, Refused};
use echoic_net::wire::{PREFACE_BYTES, VERSION, preface};

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a server says to bytes that follow a good handshake: how it refuses them, if it does.
pub fn told(server: &Server, purpose: Purpose, said: &[u8]) -> Option<Refused> {
    told_as((echoic_net::auth::random().unwrap(), 1), server, purpose, said)
}

/// As [`told`], by this life of a producer.
pub fn told_as(
    (producer, epoch): (ProducerId, u64),
    server: &Server,
    purpose: Purpose,
    said: &[u8],
) -> Option<Refused> {
    let dial = dial_to(server.address(), &TlsFiles::default()).unwrap();
    let mut link = dial.dial(PATIENCE).unwrap();
    let mut out = preface(VERSION).to_vec();
    Hello { nonce: [1; 32] }.write(&mut out);
    let open = Open {
        proof: [0; 32],
        purpose,
        producer,
        epoch,
        first: 0,
        stream: String::new(),
        spec: None,
    };
    open.write(&mut out);
    out.extend_from_slice(said);
    Control::Ping(7).write(&mut out);
    let mut out = &out[..];
    let mut heard = Vec::new();
    let due = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < due, "nothing is answered");
        if let Ok(sent) = link.write(out) {
            out = &out[sent..];
        }
        let mut bytes = [0; 4096];
        match link.read(&mut bytes) {
            Ok(0) => {}
            Ok(read) => heard.extend_from_slice(&bytes[..read]),
            Err(_) => std::thread::sleep(Duration::from_micros(200)),
        }
        let mut rest = heard.get(PREFACE_BYTES..).unwrap_or_default();
        while let Ok(Some(header)) = Header::read(rest) {
            let end = HEADER_BYTES + header.len as usize;
            let Some(payload) = rest.get(HEADER_BYTES..end) else { break };
            match header.kind {
                kind::REFUSED => return Some(Refused::read(payload).unwrap()),
                kind::PONG => return None,
                _ => {}
            }
            rest = &rest[end..];
        }
    }
}

pub fn frame(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}
