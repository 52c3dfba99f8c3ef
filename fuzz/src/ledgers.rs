//! Rollout tables of some kinds, and a life that leaves something in every part of them.

use std::sync::Arc;

use echoic_replay::Dtype;
use echoic_replay::rollouts::item::{Finish, Run, Segment};
use echoic_replay::rollouts::ledger::{
    Append, Balance, Change, Hold, Ledger, Outcome, Reserve, Size, Want,
};
use echoic_replay::rollouts::{
    Column, Delivery, Late, OnExpiry, OnStale, Order, RolloutConfig, Schema,
};

/// Groups of two items of a byte per token; the bits of `choice` say of which kind.
pub fn config(choice: u8) -> Arc<RolloutConfig> {
    let column = |name: &str, dtype| Column { name: name.into(), dtype, shape: vec![] };
    let order = match choice & 3 {
        0 => Order::Ready,
        1 => Order::Submission,
        2 => Order::Oldest,
        _ => Order::Weighted,
    };
    let is_paced = choice & 4 > 0;
    let config = RolloutConfig {
        name: "t".into(),
        schema: Schema {
            columns: vec![column("ids", Dtype::UInt(1))],
            fields: vec![column("reward", Dtype::Float(4))],
            mask: None,
            // In some tables.
            late: Late { columns: u64::from(choice & 64 > 0), fields: u64::from(choice & 64 > 0) },
        },
        group_size: 2,
        redundancy: 1,
        group_deadline_ms: (choice & 8 > 0).then_some(500),
        min_group_size: 1,
        batch_groups: 2,
        batches_per_version: 2,
        max_lag: is_paced.then_some(1),
        pipeline_depth: None,
        auto_tune: false,
        max_running: 16,
        capacity: 32,
        max_tokens: 64,
        max_blob_bytes: 64,
        order,
        on_stale: OnStale::Drop,
        target_lag: is_paced.then_some(1),
        max_mean_lag: None,
        max_uses: if order == Order::Weighted { 2 } else { 1 },
        delivery: if choice & 16 > 0 { Delivery::AtMostOnce } else { Delivery::AtLeastOnce },
        reservation_ttl_ms: 100,
        on_expiry: if choice & 32 > 0 { OnExpiry::Suspend } else { OnExpiry::Reject },
        filter: None,
        limiter: None,
        seed: 1,
    };
    config.check().expect("settings that can work");
    Arc::new(config)
}

/// Tokens of an item, which end it or not.
pub fn append(hold: Hold, item: u32, is_end: bool) -> Change {
    let runs = [Run { version: 0, tokens: 3 }].into_iter().collect();
    let segment = Arc::new(Segment { runs, tokens: 3, bytes: vec![0; 3], absent: 0 });
    let blobs = vec![("text".to_owned(), Arc::new(vec![0; 2]))];
    let finish = is_end.then(|| Arc::new(Finish { fields: vec![0; 4], absent: 0, blobs }));
    Change::Append(Append { hold, item, sequence: 0, segment, finish, priority: 1.5 })
}

/// A share for one of two ranks.
pub fn want(rank: u32, lease_ms: Option<u64>) -> Change {
    let (size, balance) = (Size::Groups(2), Balance::Count);
    Change::Sample(Want { size, rank, ranks: 2, balance, lease_ms, width: 0 })
}

/// A table in which groups run, are left, complete, with consumers and over.
pub fn started(choice: u8) -> Ledger {
    let mut ledger = Ledger::new(config(choice)).expect("settings that can work");
    let reserve = |key: &str| {
        let source = "worker".to_owned();
        let (count, keys) = if key.is_empty() { (7, Vec::new()) } else { (1, vec![key.into()]) };
        Change::Reserve(Reserve { count, source, keys, version: Some(0), ttl_ms: None })
    };
    let Ok(Outcome::Reserved(reservations)) = ledger.apply(0, &reserve("")) else { return ledger };
    let _ = ledger.apply(0, &reserve("named"));
    for (number, reservation) in reservations.iter().enumerate() {
        let changes = match number {
            0..4 => vec![append(reservation.hold, 0, true), append(reservation.hold, 1, true)],
            4 => vec![
                append(reservation.hold, 0, false),
                Change::Suspend { holds: vec![reservation.hold] },
            ],
            5 => vec![Change::Fail { holds: vec![reservation.hold] }],
            _ => vec![append(reservation.hold, 0, false)],
        };
        for change in &changes {
            let _ = ledger.apply(number as u64, change);
        }
    }
    let _ = ledger.apply(8, &want(0, Some(100)));
    let _ = ledger.apply(9, &want(1, None));
    ledger
}
