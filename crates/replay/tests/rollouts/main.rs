//! Rollout tables: reservations, batches, deliveries, and what is kept on disk.

mod columns;
mod crowd;
mod durable;
mod groups;
mod killed;
mod leases;
mod long_tail;
#[path = "../common/killed.rs"]
mod processes;
mod properties;
mod reservations;
mod saved;
mod selection;
#[path = "../common/settings.rs"]
mod settings;
mod state;
mod table;
#[path = "../common/waiting.rs"]
mod waiting;
