//! Python bindings of Echoic: one file per public class, no logic of its own about experience.
//!
//! - `stream`, `server`, `client`, `sample`, `accumulator`, `spec`: the classes.
//! - `table`: tables of this process or of a server, and the batches that they give. `remote`: what those of a server add.
//! - `shards`: one table on several servers.
//! - `writer`: trajectories, step by step. `checkpoints`: tables in files.
//! - `structure`: the form of a tree as text. `listeners`: a server's listeners to other processes. `connect`: where a server is.
//! - `tree`, `leaf` and `sources`: from a Python tree to checked byte sources and back.
//! - `rollouts`: groups of token sequences.
//! - `buffers`, `primitives`, `collect`: local buffers, functions on arrays, and native rollouts.
//! - `agents`: kernels of agents that plan.
//! - `weights`: what a learner publishes, for the workers.
//! - `array`: the thin edge to numpy's C API, and the only file that calls it.
//! - `numbers`: keys and priorities from arrays. `memory`: bytes for arrays of our own, and those of past batches; `columns` divides them. `fork`: servers stay in their process.
//! - `wait`: waiting without the GIL, with Ctrl-C and deadlines.
//! - `error`: Rust errors as the classes of `echoic.errors`.

mod accumulator;
mod agents;
mod allocations;
mod array;
mod batch;
mod buffers;
mod checkpoints;
mod client;
mod collect;
mod columns;
mod connect;
mod dtype;
mod error;
mod fork;
mod leaf;
mod listeners;
mod logs;
mod memory;
mod numbers;
mod primitives;
mod remote;
mod rollouts;
mod sample;
mod server;
mod server_metrics;
mod shards;
mod sources;
mod spec;
mod stream;
mod structure;
mod table;
mod tree;
mod wait;
mod watch;
mod weights;
mod writer;

/// The native core of `echoic`.
#[pyo3::pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use super::accumulator::TrajectoryAccumulator;
    #[pymodule_export]
    use super::agents::bandwidth::{
        attention_bandwidth_cost, attention_bandwidth_cost_batch, bandwidth_aware_priorities,
        bandwidth_efficiency, effective_bandwidth_cost, effective_bandwidth_cost_batch,
        schedule_priorities,
    };
    #[pymodule_export]
    use super::agents::draws::priority_sample;
    #[pymodule_export]
    use super::agents::plans::{
        EMAPlanTracker, plan_surprise, plan_surprise_batch, temporal_kl, temporal_kl_batch,
    };
    #[pymodule_export]
    use super::agents::prefixes::{prefix_match, prefix_match_batch, state_hash, state_hash_batch};
    #[pymodule_export]
    use super::allocations::allocation_count;
    #[pymodule_export]
    use super::batch::{Batch, BatchInfo};
    #[pymodule_export]
    use super::buffers::mmap::MmapReplayBuffer;
    #[pymodule_export]
    use super::buffers::offline::OfflineDataset;
    #[pymodule_export]
    use super::buffers::replay::{PrioritizedReplayBuffer, ReplayBuffer};
    #[pymodule_export]
    use super::buffers::surprise::SurpriseReplay;
    #[pymodule_export]
    use super::checkpoints::{list_checkpoints, open_checkpoint, verify_checkpoint};
    #[pymodule_export]
    use super::client::RemoteStream;
    #[pymodule_export]
    use super::collect::collector::Collector;
    #[pymodule_export]
    use super::collect::envs::Environments;
    #[pymodule_export]
    use super::connect::ping;
    #[pymodule_export]
    use super::logs::{set_log_level, take_logs};
    #[pymodule_export]
    #[pymodule_export]
    use super::primitives::corrections::{compute_retrace, compute_vtrace};
    #[pymodule_export]
    use super::primitives::gae::{compute_gae, compute_gae_batched, compute_gae_batched_f32};
    #[pymodule_export]
    use super::primitives::groups::{compute_batch_group_advantages, compute_group_advantages};
    #[pymodule_export]
    use super::primitives::kl::{
        compute_batch_token_kl, compute_batch_token_kl_schulman, compute_categorical_kl,
        compute_token_kl, compute_token_kl_schulman,
    };
    #[pymodule_export]
    use super::primitives::packing::{
        balance_sequences, pack_sequences, plan_micro_batches, plan_packing,
    };
    #[pymodule_export]
    use super::primitives::returns::{
        compute_discounted_sums, compute_lambda_returns, compute_n_step_returns, compute_upgo,
    };
    #[pymodule_export]
    use super::primitives::stats::{RunningStats, RunningStatsVec};
    #[pymodule_export]
    use super::primitives::weights::{compute_effective_sample_size, compute_importance_weights};
    #[pymodule_export]
    use super::remote::{PendingBatch, RemoteTable, Tables, connect_tables};
    #[pymodule_export]
    use super::rollouts::{
        RolloutBatch, RolloutCall, RolloutHistory, RolloutLink, RolloutTable, connect_rollouts,
    };
    #[pymodule_export]
    use super::sample::{Histogram, StreamStats};
    #[pymodule_export]
    use super::server::{Server, empty_call};
    #[pymodule_export]
    use super::shards::Shards;
    #[pymodule_export]
    use super::spec::{LeafSpec, Spec};
    #[pymodule_export]
    use super::stream::Stream;
    #[pymodule_export]
    use super::table::Table;
    #[pymodule_export]
    use super::watch::Watcher;
    #[pymodule_export]
    use super::weights::{Publication, RemoteWeightStore, Subscription, WeightStore};
    #[pymodule_export]
    use super::writer::{ColumnHistory, Steps, StructuredWriter, TrajectoryWriter, VectorWriter};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        pyo3::types::PyModuleMethods::add(module, "__version__", env!("CARGO_PKG_VERSION"))?;
        super::buffers::mmap::watch(module)?;
        super::fork::watch(module)
    }
}
