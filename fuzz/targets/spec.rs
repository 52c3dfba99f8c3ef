//! The parser of specs, two in a row, and what they differ in.
#![no_main]

use echoic_net::wire::spec;
use echoic_replay::Spec;
use echoic_replay::codec::{Encode, Reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut reader = Reader::new(bytes);
    let Ok(one) = reader.get::<Spec>("spec") else { return };
    let mut written = Vec::new();
    one.encode(&mut written);
    assert!(bytes.starts_with(&written), "one value has one form");
    if written.len() <= spec::MAX_BYTES as usize {
        spec::check(&one).unwrap();
    }
    assert_eq!(spec::difference(&one, &one), None);
    let Ok(other) = reader.get::<Spec>("spec") else { return };
    let different = spec::difference(&one, &other);
    assert_eq!(different.is_none(), one.leaves() == other.leaves());
    assert_eq!(different.is_none(), spec::difference(&other, &one).is_none());
});
