//! The reader of a rollout table's state. The first byte says of which kind the table is, the rest are its
//! numbers; all tokens are zero.
#![no_main]

use std::io::{Read, repeat};

use echoic_fuzz::ledgers::{append, config, want};
use echoic_replay::codec::Encode;
use echoic_replay::rollouts::ledger::{Change, Hold, Ledger, Reserve};
use libfuzzer_sys::fuzz_target;

/// More tokens would only take time.
const MOST: u64 = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, numbers)) = bytes.split_first() else { return };
    let load = |numbers: &[u8]| Ledger::load(config(*choice), numbers, &mut repeat(0).take(MOST));
    let Ok(mut ledger) = load(numbers) else { return };
    let mut written = Vec::new();
    ledger.save().encode(&mut written);
    assert_eq!(written, numbers, "one state has one form");
    assert!(ledger.save().bulk().flatten().all(|byte| *byte == 0));

    // What was believed must hold for whatever comes.
    let time = 1 << 40;
    ledger.wake(time, time);
    let hold = Hold { group: 0, attempt: 0 };
    let reserve =
        Change::Reserve(Reserve { count: 3, source: "other".into(), ..Reserve::default() });
    let changes = [
        append(hold, 0, true),
        append(hold, 1, true),
        Change::Resume { source: "other".into(), ttl_ms: None },
        reserve,
        want(0, None),
        want(1, Some(5)),
        Change::Tick,
        Change::Publish { version: 2 },
        want(0, Some(5)),
        Change::Remove { groups: vec![0, 1, 2] },
        Change::Restore { version: 1 },
        Change::Tick,
    ];
    for (number, change) in (0..).zip(&changes) {
        let _ = ledger.apply(time + 40 * number, change);
        drop(ledger.take_dead());
    }
});
