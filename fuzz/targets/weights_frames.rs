//! Frames about weights: what can be read is written again byte for byte, the rest is an error.
#![no_main]

use echoic_net::wire::frame::HEADER_BYTES;
use echoic_net::wire::weights::{
    Announcement, ChunkOf, Need, Publish, Receipt, Region, Want, read_serial, write_serial,
};
use libfuzzer_sys::fuzz_target;

/// Whether a frame has just this payload.
fn same(payload: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
    let mut frame = Vec::new();
    write(&mut frame);
    assert_eq!(&frame[HEADER_BYTES..], payload);
}

fuzz_target!(|bytes: &[u8]| {
    let [which, payload @ ..] = bytes else { return };
    match which % 8 {
        0 => {
            let Ok(want) = Want::read(payload) else { return };
            same(payload, |out| want.write(out));
        }
        1 => {
            let Ok(announcement) = Announcement::read(payload) else { return };
            same(payload, |out| announcement.write(out));
        }
        2 => {
            let Ok(chunk) = ChunkOf::read(payload) else { return };
            same(payload, |out| chunk.write(out));
        }
        3 => {
            let Ok(serial) = read_serial(payload) else { return };
            same(payload, |out| write_serial(out, 63, serial));
        }
        4 => {
            let Ok(region) = Region::read(payload) else { return };
            same(payload, |out| region.write(out));
        }
        5 => {
            let Ok(publish) = Publish::read(payload) else { return };
            same(payload, |out| publish.write(out));
        }
        6 => {
            let Ok(need) = Need::read(payload) else { return };
            same(payload, |out| need.write(out));
        }
        _ => {
            // Only what failed has a text, and only what is stale a version.
            let _ = Receipt::read(payload);
        }
    }
});
