//! Frames as bytes: their parts, and that nothing that was cut or changed makes a reader panic.

use echoic_net::wire::frame::{HEADER_BYTES, Header};

/// Splits a frame.
pub fn parts(frame: &[u8]) -> (Header, &[u8]) {
    let header = Header::read(frame).unwrap().unwrap();
    let payload = &frame[HEADER_BYTES..];
    assert_eq!(header.len as usize, payload.len());
    (header, payload)
}

/// Reads a payload, each prefix of it, which must be an error, and what some changes make of it, which may be one.
pub fn is_robust<T, E>(
    payload: &[u8],
    (at, bits): (usize, u8),
    read: impl Fn(&[u8]) -> Result<T, E>,
) {
    assert!(read(payload).is_ok());
    for end in 0..payload.len() {
        assert!(read(&payload[..end]).is_err(), "cut at {end} of {}", payload.len());
    }
    let mut changed = payload.to_vec();
    if let Some(at) = at.checked_rem(changed.len()) {
        changed[at] ^= bits;
        let _ = read(&changed);
    }
    changed.push(0);
    let _ = read(&changed);
}
