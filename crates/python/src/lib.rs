//! Python bindings of Echoic: one file per public class, no logic of its own about experience.
//!
//! - `server`, `client`, `sample`, `accumulator`, `spec`: the classes.
//! - `table`: tables in this process, and the batches that they give. `remote`: those of a server.
//! - `shards`: one table on several servers.
//! - `writer`: trajectories, step by step. `checkpoints`: tables in files.
//! - `structure`: the form of a tree as text. `listeners`: a server's listeners to other processes. `connect`: where a server is.
//! - `tree`, `leaf` and `sources`: from a Python tree to checked byte sources and back.
//! - `rollouts`: groups of token sequences.
//! - `buffers`, `primitives`, `collect`: local buffers, functions on arrays, and native rollouts.
//! - `agents`: kernels of agents that plan.
//! - `weights`: what a learner publishes, for the workers.
//! - `array`: the thin edge to numpy's C API, and the only file that calls it.
//! - `pending`: a batch on its way. `numbers`: keys and priorities from arrays. `memory`: bytes for arrays of our own; `arena` keeps them for later batches, `columns` divides them. `fork`: servers stay in their process.
//! - `wait`: waiting without the GIL, with Ctrl-C and deadlines.
//! - `error`: Rust errors as the classes of `echoic.errors`.

mod accumulator;
mod agents;
mod allocations;
mod arena;
mod array;
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
mod pending;
mod primitives;
mod remote;
mod rollouts;
mod sample;
mod server;
mod server_metrics;
mod shards;
mod sources;
mod spec;
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
    use super::allocations::allocation_count;
    #[pymodule_export]
    use super::checkpoints::{list_checkpoints, open_checkpoint, verify_checkpoint};
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::connect::ping;
    #[pymodule_export]
    use super::logs::{set_log_level, take_logs};
    #[pymodule_export]
    use super::pending::PendingBatch;
    #[pymodule_export]
    use super::remote::{RemoteTable, Tables, connect_tables};
    #[pymodule_export]
    use super::rollouts::{
        RolloutBatch, RolloutCall, RolloutHistory, RolloutLink, RolloutTable, connect_rollouts,
    };
    #[pymodule_export]
    use super::sample::{Histogram, Sample, SampleInfo};
    #[pymodule_export]
    use super::server::{Server, empty_call};
    #[pymodule_export]
    use super::shards::Shards;
    #[pymodule_export]
    use super::spec::{LeafSpec, Spec};
    #[pymodule_export]
    use super::table::{Batch, BatchInfo, Table};
    #[pymodule_export]
    use super::watch::Watcher;
    #[pymodule_export]
    use super::weights::{Publication, Subscription, WeightClient, WeightStore};
    #[pymodule_export]
    use super::writer::{ColumnHistory, Steps, StructuredWriter, TrajectoryWriter, VectorWriter};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        pyo3::types::PyModuleMethods::add(module, "__version__", env!("CARGO_PKG_VERSION"))?;
        super::agents::add(module)?;
        super::buffers::add(module)?;
        super::collect::add(module)?;
        super::primitives::add(module)?;
        super::fork::watch(module)
    }
}
