//! Settings of rollout tables from which those of tests begin: each test file changes what it needs.

use echoic_replay::Dtype;
use echoic_replay::rollouts::{Column, RolloutConfig, Schema};

/// Ids and a mask for each token, and a reward for each item.
pub fn schema(ids: Dtype, reward: Dtype) -> Schema {
    let column = |name: &str, dtype| Column { name: name.into(), dtype, shape: vec![] };
    Schema {
        columns: vec![column("ids", ids), column("mask", Dtype::UInt(1))],
        fields: vec![column("reward", reward)],
        mask: Some(1),
        ..Schema::default()
    }
}

/// Groups of two items, two of them a batch, which is one version. Versions pace nobody, and there is room.
pub fn plain() -> RolloutConfig {
    RolloutConfig {
        min_group_size: 1,
        max_running: 1000,
        capacity: 1000,
        max_tokens: 100,
        seed: 7,
        ..RolloutConfig::new("rollouts", schema(Dtype::Int(4), Dtype::Float(8)), 2, 2)
    }
}
