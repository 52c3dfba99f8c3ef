//! Settings of rollout tables from which those of tests begin: each test file tells what is different for it.

use echoic_replay::Dtype;
use echoic_replay::rollouts::{Column, Delivery, OnExpiry, OnStale, Order, RolloutConfig, Schema};

/// Ids and a mask for each token, and a reward for each item.
pub fn schema(ids: Dtype, reward: Dtype) -> Schema {
    let column = |name: &str, dtype| Column { name: name.into(), dtype };
    Schema {
        columns: vec![column("ids", ids), column("mask", Dtype::UInt(1))],
        fields: vec![column("reward", reward)],
        mask: Some(1),
    }
}

/// Groups of two items, two of them a batch, which is one version. Versions pace nobody, and there is room.
pub fn plain() -> RolloutConfig {
    RolloutConfig {
        name: "rollouts".into(),
        schema: schema(Dtype::Int(4), Dtype::Float(8)),
        group_size: 2,
        redundancy: 0,
        group_deadline_ms: None,
        min_group_size: 1,
        batch_groups: 2,
        batches_per_version: 1,
        max_lag: None,
        pipeline_depth: None,
        auto_tune: false,
        max_running: 1000,
        max_groups: 1000,
        max_tokens: 100,
        max_blob_bytes: 0,
        order: Order::Ready,
        on_stale: OnStale::Drop,
        target_lag: None,
        max_mean_lag: None,
        max_uses: 1,
        delivery: Delivery::AtLeastOnce,
        permit_ttl_ms: 60_000,
        on_expiry: OnExpiry::Reject,
        filter: None,
        limiter: None,
        seed: 7,
    }
}
