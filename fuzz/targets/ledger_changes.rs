//! The reader of what happens to a rollout table. The first byte says of which kind the table is, the next two how
//! long the head of the first change is; behind it are its bulk and other changes.
#![no_main]

use echoic_fuzz::ledgers::started;
use echoic_replay::codec::{Encode, Reader};
use echoic_replay::rollouts::ledger::Change;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, mut bytes)) = bytes.split_first() else { return };
    let mut ledger = None;
    let mut now = 10;
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes(*len));
        let Some((head, rest)) = rest.split_at_checked(len) else { return };
        let mut bulk = Reader::new(rest);
        let mut reader = Reader::with_bulk(head, &mut bulk);
        let Ok(change) = reader.get::<Change>("change") else { return };
        let read = head.len() - reader.left();
        let (mut written, mut pieces) = (Vec::new(), Vec::new());
        change.encode(&mut written);
        change.bulk().for_each(|piece| pieces.extend_from_slice(piece));
        assert_eq!(written, head[..read], "one change has one form");
        assert_eq!(pieces, rest[..rest.len() - bulk.left()]);
        bytes = &rest[rest.len() - bulk.left()..];

        let ledger = ledger.get_or_insert_with(|| started(*choice));
        let _ = ledger.apply(now, &change);
        drop(ledger.take_dead());
        assert_eq!(ledger.recount(), Ok(()), "{change:?}");
        now += 7;
    }
});
