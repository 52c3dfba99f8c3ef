//! The parsers of everything but the handshake: none panics, and what one reads is written alike.
#![no_main]

use echoic_net::wire::frame::{
    Control, DataHead, HEADER_BYTES, Header, MAX_CONTROL, samples_per_frame,
};
use echoic_net::wire::{preface, read_preface};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(version)) = read_preface(bytes) {
        assert_eq!(preface(version), bytes[..12]);
    }
    // However little of a preface or header has come, it is no other verdict than of all of it.
    for len in 0..bytes.len().min(12) {
        assert!(read_preface(&bytes[..len]).is_ok() || read_preface(bytes).is_err());
    }
    let Ok(Some(header)) = Header::read(bytes) else { return };
    assert_eq!(header.bytes(), bytes[..HEADER_BYTES]);
    let payload = &bytes[HEADER_BYTES..];
    if let Ok(control) = Control::read(header, payload) {
        let mut written = Vec::new();
        control.write(&mut written);
        let again = Header::read(&written).unwrap().unwrap();
        assert_eq!((again.kind, again.len as usize), (header.kind, payload.len()));
        assert!(again.len <= MAX_CONTROL);
        assert_eq!(written[HEADER_BYTES..], *payload, "one value has one form");
    }
    let of_count = |at| (header.len as usize).checked_sub(12)?.checked_div(at);
    let count = payload.get(8..12).and_then(|count| count.try_into().ok()).map(u32::from_le_bytes);
    let fitting = count.and_then(|count| of_count(count as usize));
    for sample_bytes in [0, 1, 20, fitting.unwrap_or(7), usize::MAX] {
        samples_per_frame(sample_bytes, 1 << 20);
        let Ok(head) = DataHead::read(header, payload, sample_bytes) else { continue };
        let written = head.bytes(sample_bytes).unwrap();
        let again = Header::read(&written).unwrap().unwrap();
        assert_eq!(again.len, header.len);
        assert_eq!(DataHead::read(again, &written[HEADER_BYTES..], sample_bytes), Ok(head));
        assert!(head.first.checked_add(head.count.into()).is_some());
    }
});
