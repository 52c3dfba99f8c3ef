//! What there is to see of a server: the same for Prometheus and for those who watch.

use std::sync::{Arc, Weak};
use std::time::Instant;

use echoic_net::observe::{Numbers, ProgramGauges};
use echoic_net::wire::observed::{Connected, MAX_CONNECTIONS, Observation};
use echoic_replay::Stream;
use echoic_replay::rollouts::RolloutTable;
use echoic_replay::table::Tables;
use echoic_replay::table::saved::Checkpointer;
use echoic_replay::weights::WeightStore;

use crate::listeners::Listeners;

/// A server's parts that have numbers.
pub struct ServerMetrics {
    /// Which server it is.
    pub incarnation: u64,
    pub since: Instant,
    pub stream: Option<Arc<Stream>>,
    pub tables: Arc<Tables>,
    pub rollouts: Arc<Vec<Arc<RolloutTable>>>,
    pub weights: Option<Arc<WeightStore>>,
    pub checkpointer: Option<Arc<Checkpointer>>,
    pub gauges: Arc<ProgramGauges>,
    /// Who looks is kept by the listeners; not the other way round too.
    pub listeners: Weak<Listeners>,
}

impl ServerMetrics {
    /// All numbers.
    pub fn numbers(&self) -> Numbers {
        self.numbers_and_connections().0
    }

    /// All numbers, and the connections, those that wait for something first.
    pub fn look(&self) -> Observation {
        let (numbers, mut connections) = self.numbers_and_connections();
        connections.sort_by_key(|connection| connection.blocked_by.is_empty());
        connections.truncate(MAX_CONNECTIONS);
        let age = self.since.elapsed().as_secs_f64();
        Observation {
            incarnation: self.incarnation,
            age,
            families: numbers.into_families(),
            connections,
        }
    }

    fn numbers_and_connections(&self) -> (Numbers, Vec<Connected>) {
        let mut numbers = Numbers::default();
        if let Some(stream) = &self.stream {
            numbers.add_stream(&stream.info());
        }
        self.tables.all().iter().for_each(|table| numbers.add_table(table));
        self.rollouts.iter().for_each(|table| numbers.add_rollouts(table));
        if let Some(weights) = &self.weights {
            numbers.add_weights(&weights.info());
        }
        if let Some(checkpointer) = &self.checkpointer {
            numbers.add_checkpointer(&checkpointer.past());
        }
        numbers.add_gauges(&self.gauges);
        let Some(listeners) = self.listeners.upgrade() else { return (numbers, Vec::new()) };
        let connections = listeners.all_connections();
        numbers.add_listeners(&listeners.info(), &connections);
        (numbers, connections)
    }
}
