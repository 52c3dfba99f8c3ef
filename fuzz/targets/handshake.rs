//! The parsers of the handshake: none panics, and what one reads is written alike. That matters twice
//! here, because a proof is over what was written.
#![no_main]

use echoic_net::wire::WireError;
use echoic_net::wire::frame::{HEADER_BYTES, Header};
use echoic_net::wire::handshake::{Challenge, Hello, Open, Refused, Welcome};
use libfuzzer_sys::fuzz_target;

fn check<T>(
    payload: &[u8],
    read: impl Fn(&[u8]) -> Result<T, WireError>,
    write: impl Fn(&T, &mut Vec<u8>),
) -> Option<T> {
    let value = read(payload).ok()?;
    let mut written = Vec::new();
    write(&value, &mut written);
    let header = Header::read(&written).unwrap().unwrap();
    assert_eq!(header.len as usize, payload.len());
    assert_eq!(written[HEADER_BYTES..], *payload, "one value has one form");
    Some(value)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, payload)) = bytes.split_first() else { return };
    match kind % 5 {
        0 => drop(check(payload, Hello::read, Hello::write)),
        1 => drop(check(payload, Challenge::read, Challenge::write)),
        2 => {
            if let Some(open) = check(payload, Open::read, Open::write) {
                assert_eq!(open.signed(), payload[32..]);
            }
        }
        3 => {
            if let Some(welcome) = check(payload, Welcome::read, Welcome::write) {
                assert_eq!(welcome.signed(), payload[32..]);
            }
        }
        _ => {
            if let Some(refused) = check(payload, Refused::read, Refused::write) {
                assert_ne!(refused.code.name(), "?");
            }
        }
    }
});
