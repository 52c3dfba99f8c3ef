//! Frames of tables: what can be read is written again byte for byte, the rest is an error.
#![no_main]

use echoic_net::wire::frame::{HEADER_BYTES, Header, kind};
use echoic_net::wire::rollouts::DeliveryHead;
use echoic_net::wire::tables::{
    Answer, BatchHead, ItemHead, Release, Request, RowsHead, SignatureHead, TableEntry,
};
use echoic_replay::codec::{Encode, Reader};
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
            let Ok(request) = Request::read(payload) else { return };
            same(payload, |out| request.write(out));
        }
        1 => {
            let kinds = [
                33,
                34,
                35,
                36,
                37,
                38,
                kind::OBSERVED,
                kind::ROLLOUT_TABLES,
                kind::ROLLOUT_OUTCOMES,
                kind::ROLLOUT_NUMBERS,
                kind::ROLLOUT_REFUSED,
            ];
            let kind = kinds[usize::from(which / 8) % kinds.len()];
            let header = Header { len: payload.len() as u32, kind };
            let Ok(answer) = Answer::read(header, payload) else { return };
            // Settings have more than one form: a filter is written as it was understood.
            if kind == kind::ROLLOUT_TABLES {
                let mut written = Vec::new();
                answer.write(&mut written);
                let again = Answer::read(header, &written[HEADER_BYTES..]).expect("it was read");
                return same(&written[HEADER_BYTES..], |out| again.write(out));
            }
            same(payload, |out| answer.write(out));
        }
        2 if which / 8 % 2 == 1 => {
            let Ok((told, used)) = DeliveryHead::read(payload, payload.len()) else { return };
            let mut written = Vec::new();
            DeliveryHead::write(&mut written, told.id, &told.head);
            let (again, _) = DeliveryHead::read(&written, payload.len()).expect("it was read");
            assert!(again == told && used <= payload.len());
        }
        2 => {
            let Ok((head, used)) = BatchHead::read(payload) else { return };
            let mut written = Vec::new();
            BatchHead::write(&mut written, head.id, &head.infos, &head.layout);
            assert_eq!(written, payload[..used]);
            let _ = head.layout.columns(head.infos.keys.len(), used, None);
        }
        3 => {
            let row = usize::from(which / 8);
            let Ok((head, priorities, rows)) = RowsHead::read(payload, |_| Ok(row)) else { return };
            let mut frame = Vec::new();
            head.write(&mut frame, &priorities, row).expect("it came in a frame");
            frame.extend_from_slice(rows);
            assert_eq!(&frame[HEADER_BYTES..], payload);
        }
        4 => {
            let Ok(item) = ItemHead::read(payload) else { return };
            same(payload, |out| item.write(out));
        }
        5 => {
            let Ok(head) = SignatureHead::read(payload) else { return };
            same(payload, |out| SignatureHead::write(out, head.id, &head.signature));
        }
        6 => {
            let Ok(release) = Release::read(payload) else { return };
            same(payload, |out| Release::write(out, &release.chunks));
        }
        _ => {
            let mut reader = Reader::new(payload);
            let Ok(tables) = reader.get::<Vec<TableEntry>>("tables") else { return };
            let mut written = Vec::new();
            tables.encode(&mut written);
            assert_eq!(written, payload[..payload.len() - reader.left()]);
        }
    }
});
