//! Every number, its name, and what it means.

use std::borrow::Cow;

use echoic_replay::journal::{self, Effort};
use echoic_replay::limiter::Parameters;
use echoic_replay::table::saved::Past;
use echoic_replay::table::spread::{Spread, Spreads, count_bounds, priority_bounds};
use echoic_replay::table::{Table, TableInfo, Waits};
use echoic_replay::weights::WeightsInfo;
use echoic_replay::{StreamInfo, Summary};

use super::gauges::ProgramGauges;
use crate::server::ListenerStats;
use crate::wire::observed::{Connected, Family, Kind, Number};

/// Numbers, by family.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Numbers(Vec<Family>);

type Labels = Vec<(Cow<'static, str>, String)>;

impl Numbers {
    /// The families, in the order in which they came.
    pub fn families(&self) -> &[Family] {
        &self.0
    }

    /// The families themselves.
    pub fn into_families(self) -> Vec<Family> {
        self.0
    }

    /// Every number but the buckets of histograms by one name: that of its family and suffix, without
    /// `echoic_`, and its labels' values, with points between them.
    pub fn flat(&self) -> impl Iterator<Item = (String, f64)> {
        self.0.iter().flat_map(|family| {
            let is_bucket = |number: &&Number| number.labels.iter().any(|(name, _)| name == "le");
            family.numbers.iter().filter(move |number| !is_bucket(number)).map(|number| {
                let name = family.name.strip_prefix("echoic_").unwrap_or(&family.name);
                let mut name = format!("{name}{}", number.suffix);
                for (_, value) in &number.labels {
                    name.push('.');
                    name.push_str(value);
                }
                (name, number.value)
            })
        })
    }

    /// Adds the numbers of a stream.
    pub fn add_stream(&mut self, info: &StreamInfo) {
        self.add_memory("ring", info.memory_bytes as f64);
        self.add_all(
            Kind::Gauge,
            &[],
            [
                (
                    "echoic_stream_capacity_samples",
                    "Samples that the ring has room for.",
                    info.capacity as f64,
                ),
                (
                    "echoic_stream_stored_samples",
                    "Samples stored and not yet taken.",
                    info.store_size as f64,
                ),
                (
                    "echoic_stream_partial_samples",
                    "Samples in batches that are not complete.",
                    info.partial as f64,
                ),
                (
                    "echoic_stream_ready_batches",
                    "Complete batches that wait for a consumer.",
                    info.batches_ready as f64,
                ),
                (
                    "echoic_stream_held_batches",
                    "Batches whose memory someone still holds.",
                    info.batches_held as f64,
                ),
                ("echoic_stream_free_batches", "Buffers that are free.", info.batches_free as f64),
                (
                    "echoic_stream_oldest_hold_seconds",
                    "For how long the batch that was taken first has been held.",
                    info.oldest_hold,
                ),
                (
                    "echoic_stream_waiting_pushes",
                    "Pushes that wait now for room, in the server's process or over connections.",
                    info.pushes_waiting as f64,
                ),
                (
                    "echoic_stream_waiting_samples",
                    "Calls for a batch that wait now.",
                    info.samples_waiting as f64,
                ),
                ("echoic_stream_batch_samples", "Samples of a batch.", info.batch_size as f64),
                ("echoic_stream_sample_bytes", "Bytes of a sample.", info.bytes_per_sample as f64),
                ("echoic_stream_memory_bytes", "Bytes of the ring.", info.memory_bytes as f64),
            ],
        );
        self.add_all(
            Kind::Counter,
            &[],
            [
                (
                    "echoic_stream_inserted_samples_total",
                    "Samples stored since the start.",
                    info.inserted_total as f64,
                ),
                (
                    "echoic_stream_completed_batches_total",
                    "Batches completed since the start.",
                    info.batches_total as f64,
                ),
                (
                    "echoic_stream_delivered_batches_total",
                    "Complete batches taken since the start.",
                    info.delivered_total as f64,
                ),
                (
                    "echoic_stream_blocked_pushes_total",
                    "Times that a push had to wait for room.",
                    info.blocked_pushes as f64,
                ),
                (
                    "echoic_stream_blocked_seconds_total",
                    "How long pushes waited for room, those that wait now included, together.",
                    info.blocked_time,
                ),
                (
                    "echoic_stream_sample_waits_total",
                    "Calls for a batch that had to wait.",
                    info.sample_waits as f64,
                ),
                (
                    "echoic_stream_sample_wait_seconds_total",
                    "How long calls for a batch waited, those that wait now included, together.",
                    info.sample_wait_time,
                ),
                (
                    "echoic_stream_contention_total",
                    "Times that a producer looked again because another opened a batch.",
                    info.contention as f64,
                ),
                (
                    "echoic_stream_aborted_slots_total",
                    "Slots whose writer gave up; others filled them.",
                    info.aborted as f64,
                ),
                (
                    "echoic_stream_refused_samples_total",
                    "Samples that did not fit the spec.",
                    info.refused as f64,
                ),
            ],
        );
        self.add_summary(
            "echoic_stream_submit_to_available_seconds",
            "From the submit of a sample to the completion of its batch.",
            &info.submit_to_available,
        );
        self.add_summary(
            "echoic_stream_copy_seconds",
            "Copying a run of samples into the ring.",
            &info.copy_time,
        );
        self.add_summary(
            "echoic_stream_hold_seconds",
            "From taking a batch to the end of its last view.",
            &info.hold_time,
        );
    }

    /// Adds the numbers of a store of weights.
    pub fn add_weights(&mut self, info: &WeightsInfo) {
        self.add_all(
            Kind::Gauge,
            &[],
            [
                (
                    "echoic_weights_version",
                    "The latest version of the weights; 0 before there is one.",
                    info.version.unwrap_or(0) as f64,
                ),
                ("echoic_weights_bytes", "Bytes of the latest.", info.latest_bytes as f64),
                (
                    "echoic_weights_held_publications",
                    "Publications that have memory, those that are being written included.",
                    info.alive as f64,
                ),
                ("echoic_weights_capacity", "How many may have.", info.most as f64),
                (
                    "echoic_weights_subscribers",
                    "Subscribers of weights now.",
                    info.subscribers as f64,
                ),
                (
                    "echoic_weights_lag_publications",
                    "How many publications the last of these is behind.",
                    info.lag as f64,
                ),
            ],
        );
        self.add_all(
            Kind::Counter,
            &[],
            [
                (
                    "echoic_weights_publications_total",
                    "Publications of weights, versions alone included.",
                    info.published as f64,
                ),
                (
                    "echoic_weights_versions_only_total",
                    "Publications of a version alone.",
                    info.versions_only as f64,
                ),
                (
                    "echoic_weights_published_bytes_total",
                    "Bytes of weights published.",
                    info.published_bytes as f64,
                ),
                (
                    "echoic_weights_sent_bytes_total",
                    "Bytes of weights sent to subscribers that do not share the server's memory.",
                    info.sent_bytes as f64,
                ),
                (
                    "echoic_weights_saved_bytes_total",
                    "Bytes of weights that need not be sent, because the receiver had them.",
                    info.saved_bytes as f64,
                ),
                (
                    "echoic_weights_blocked_publications_total",
                    "Times that a publisher had to wait because all publications were held.",
                    info.blocked as f64,
                ),
                (
                    "echoic_weights_blocked_seconds_total",
                    "For how long publishers did, together.",
                    info.blocked_time.as_secs_f64(),
                ),
            ],
        );
    }

    /// Adds the numbers of a table.
    pub fn add_table(&mut self, table: &Table) {
        let of = vec![("table".into(), table.config().name.clone())];
        let info = table.info();
        self.add_memory("rows", info.row_bytes as f64);
        let TableInfo { counts, limiter, .. } = info;
        let Parameters { min_size, samples_per_insert, min_diff, max_diff } = *limiter.parameters();
        let ratio = counts.samples as f64 / counts.inserts.max(1) as f64;
        self.add_all(
            Kind::Gauge,
            &of,
            [
                ("echoic_table_items", "Items in the table.", info.size.into()),
                (
                    "echoic_table_capacity",
                    "Items that there can be.",
                    table.config().capacity.into(),
                ),
                ("echoic_table_samples_per_insert", "Samples for each insert, so far.", ratio),
                (
                    "echoic_table_total_weight",
                    "What the sampler's weights add up to.",
                    info.total_weight,
                ),
                (
                    "echoic_table_episodes",
                    "Episodes that items have steps of.",
                    info.episodes as f64,
                ),
                (
                    "echoic_table_paused",
                    "1 while inserts and samples are held up on purpose.",
                    info.paused.into(),
                ),
                (
                    "echoic_table_policy_version",
                    "The learner's policy version.",
                    info.version as f64,
                ),
                ("echoic_table_row_bytes", "Bytes of rows ever used.", info.row_bytes as f64),
            ],
        );
        let help = "Items that the limiter wants before the first sample.";
        self.add("echoic_table_min_items", help, Kind::Gauge, of.clone(), min_size as f64);
        // A limiter without a ratio has one too, which means nothing.
        if min_diff.is_finite() || max_diff.is_finite() {
            let help = "Samples for each insert that the limiter holds the table to.";
            let name = "echoic_table_target_samples_per_insert";
            self.add(name, help, Kind::Gauge, of.clone(), samples_per_insert);
        }
        self.add_all(
            Kind::Counter,
            &of,
            [
                ("echoic_table_inserts_total", "Items inserted.", counts.inserts as f64),
                (
                    "echoic_table_samples_total",
                    "Items sampled, each as often as it was.",
                    counts.samples as f64,
                ),
                ("echoic_table_deletions_total", "Items that went.", counts.deletions as f64),
                (
                    "echoic_table_unique_samples_total",
                    "Items sampled at least once.",
                    info.unique_samples as f64,
                ),
            ],
        );
        self.add_spreads(&of, &table.spreads());
        if let Some(journal) = table.journal() {
            self.add_journal(&of, &journal);
        }
        let blocked = table.blocked();
        let sides = [
            ("insert", info.insert_waits, blocked.insert),
            ("sample", info.sample_waits, blocked.sample),
        ];
        for (side, waits, reason) in sides {
            let Waits { waiting, limited, .. } = waits;
            let labels = || [of.clone(), vec![("side".into(), side.to_owned())]].concat();
            let help = "Calls that wait now, by what they would do.";
            self.add("echoic_table_waiting", help, Kind::Gauge, labels(), waiting as f64);
            let help = "Calls that had to wait, by what they would do.";
            self.add("echoic_table_waits_total", help, Kind::Counter, labels(), limited as f64);
            let help =
                "How long calls waited, those that wait now included, by what they would do.";
            let seconds = waits.time().as_secs_f64();
            self.add("echoic_table_wait_seconds_total", help, Kind::Counter, labels(), seconds);
            // A label that comes and goes would leave gaps in graphs, so there is always one.
            // A call that waits may want more than one item.
            let reason = reason.or(waits.reason);
            let blocked = f64::from(reason.is_some());
            let reason = reason.map_or("NONE".to_owned(), |reason| reason.to_string());
            let labels = [labels(), vec![("reason".into(), reason)]].concat();
            let help = "1 if a call waits now, or one for one item would have to, and why.";
            self.add("echoic_table_blocked", help, Kind::Gauge, labels, blocked);
        }
    }

    fn add_journal(&mut self, of: &Labels, info: &journal::Info) {
        self.add_memory("unwritten_journals", info.held_bytes as f64);
        self.add_all(
            Kind::Gauge,
            of,
            [
                (
                    "echoic_journal_unwritten_bytes",
                    "Bytes of a journal that wait to be written.",
                    info.held_bytes as f64,
                ),
                ("echoic_journal_segments", "Files of a journal.", info.segments as f64),
                (
                    "echoic_journal_failed",
                    "1 if a journal could not be written; its table takes no changes any more.",
                    info.failed.into(),
                ),
            ],
        );
        let Effort { bytes, writes, syncs, time } = info.effort;
        self.add_all(
            Kind::Counter,
            of,
            [
                ("echoic_journal_written_bytes_total", "Bytes written to a journal.", bytes as f64),
                (
                    "echoic_journal_writes_total",
                    "Times that a journal was written to.",
                    writes as f64,
                ),
                (
                    "echoic_journal_syncs_total",
                    "Times that a journal was made durable.",
                    syncs as f64,
                ),
                (
                    "echoic_journal_write_seconds_total",
                    "How long writing a journal took, together.",
                    time.as_secs_f64(),
                ),
            ],
        );
    }

    /// Adds the numbers of the checkpointer.
    pub fn add_checkpointer(&mut self, past: &Past) {
        let Past { written, failed, bytes, time, last_time, last } = *past;
        self.add_all(
            Kind::Counter,
            &[],
            [
                ("echoic_checkpoints_total", "Checkpoints written.", written as f64),
                ("echoic_checkpoints_failed_total", "Checkpoints that failed.", failed as f64),
                ("echoic_checkpoint_bytes_total", "Bytes written for checkpoints.", bytes as f64),
                (
                    "echoic_checkpoint_seconds_total",
                    "How long writing checkpoints took, together.",
                    time.as_secs_f64(),
                ),
            ],
        );
        if let Some(last) = last {
            self.add_all(
                Kind::Gauge,
                &[],
                [
                    (
                        "echoic_checkpoint_last_seconds",
                        "How long writing the last checkpoint took.",
                        last_time.as_secs_f64(),
                    ),
                    (
                        "echoic_checkpoint_age_seconds",
                        "How long ago the last checkpoint was complete.",
                        last.elapsed().as_secs_f64(),
                    ),
                ],
            );
        }
    }

    /// Adds bytes of memory to those of what has them.
    fn add_memory(&mut self, tier: &'static str, bytes: f64) {
        let labels = vec![("tier".into(), tier.to_owned())];
        let help = "Bytes of memory, by what has them.";
        self.add_up("echoic_memory_bytes", help, Kind::Gauge, labels, bytes);
    }

    fn add_spreads(&mut self, of: &Labels, spreads: &Spreads) {
        let Spreads { times_sampled, priorities, lags } = spreads;
        let help = "Items that were sampled at most this often.";
        let name = "echoic_table_times_sampled";
        self.add_buckets(name, "", help, Kind::Gauge, of, times_sampled, &count_bounds());
        let help = "Items whose priority is at most so high.";
        let name = "echoic_table_priorities";
        self.add_buckets(name, "", help, Kind::Gauge, of, priorities, &priority_bounds());
        let help = "Samples of items made at most this many policy versions before the learner's.";
        let name = "echoic_table_sampled_lag";
        let kind = Kind::Histogram;
        self.add_buckets(name, "_bucket", help, kind, of, &lags.spread, &count_bounds());
        let family = self.family(name, help, kind);
        for (suffix, value) in [("_sum", lags.sum), ("_count", lags.spread.total())] {
            let (suffix, labels, value) = (suffix.into(), of.clone(), value as f64);
            family.numbers.push(Number { suffix, labels, value });
        }
    }

    /// How many are at most so large, for each bound and for none.
    #[expect(clippy::too_many_arguments, reason = "all of a family, and what is in it")]
    fn add_buckets(
        &mut self,
        name: &'static str,
        suffix: &'static str,
        help: &'static str,
        kind: Kind,
        of: &Labels,
        spread: &Spread,
        bounds: &[f64],
    ) {
        let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let mut sum = 0;
        let numbers = bounds.zip(spread.counts()).map(|(bound, count)| {
            sum += count;
            let labels = [of.clone(), vec![("le".into(), bound)]].concat();
            Number { suffix: suffix.into(), labels, value: sum as f64 }
        });
        self.family(name, help, kind).numbers.extend(numbers);
    }

    /// Adds the numbers of all listeners, and of those connections that wait for something.
    pub fn add_listeners<'a>(
        &mut self,
        info: &ListenerStats,
        connections: impl IntoIterator<Item = &'a Connected>,
    ) {
        self.add_memory("received_chunks", info.chunk_bytes as f64);
        self.add_all(
            Kind::Gauge,
            &[],
            [
                ("echoic_connections", "Connections that stand.", info.connections as f64),
                (
                    "echoic_received_chunks",
                    "Chunks of trajectories that came over connections and are still there.",
                    info.chunks as f64,
                ),
                ("echoic_received_chunk_bytes", "Bytes that these take.", info.chunk_bytes as f64),
            ],
        );
        self.add_all(
            Kind::Counter,
            &[],
            [
                (
                    "echoic_connections_accepted_total",
                    "Connections accepted.",
                    info.accepted as f64,
                ),
                ("echoic_reconnects_total", "Clients that came back.", info.reconnects as f64),
                (
                    "echoic_connections_silent_total",
                    "Connections closed because nothing came for too long.",
                    info.silent as f64,
                ),
                (
                    "echoic_connections_malformed_total",
                    "Connections closed because of bytes that made no sense.",
                    info.malformed as f64,
                ),
                (
                    "echoic_accept_errors_total",
                    "Times that the system did not let us accept.",
                    info.accept_errors as f64,
                ),
                (
                    "echoic_panics_total",
                    "Connections closed because serving them panicked, which is a bug.",
                    info.panics as f64,
                ),
                (
                    "echoic_received_samples_total",
                    "Samples stored that came over connections.",
                    info.flow.samples as f64,
                ),
                ("echoic_received_bytes_total", "Bytes received.", info.flow.bytes as f64),
                (
                    "echoic_receive_calls_total",
                    "System calls that received them.",
                    info.flow.reads as f64,
                ),
                (
                    "echoic_received_duplicates_total",
                    "Samples that came twice and were dropped.",
                    info.flow.duplicates as f64,
                ),
                (
                    "echoic_connections_blocked_seconds_total",
                    "How long samples of connections waited for room, those that wait now included, together.",
                    info.flow.blocked_time,
                ),
            ],
        );
        for (code, count) in &info.refused {
            let labels = vec![("code".into(), (*code).to_owned())];
            let help = "Connections refused, by reason.";
            self.add(
                "echoic_connections_refused_total",
                help,
                Kind::Counter,
                labels,
                *count as f64,
            );
        }
        for connection in connections {
            if !connection.blocked_by.is_empty() {
                let labels = vec![("reason".into(), connection.blocked_by.clone().into_owned())];
                let help = "Connections that wait now, by what they wait for.";
                self.add_up("echoic_connections_blocked", help, Kind::Gauge, labels, 1.0);
            }
        }
    }

    /// Adds what the server's own program has set.
    pub fn add_gauges(&mut self, gauges: &ProgramGauges) {
        for (name, value) in gauges.all() {
            let help = "A number that the program sets with `set_gauge`.";
            self.add("echoic_gauge", help, Kind::Gauge, vec![("name".into(), name)], value);
        }
    }

    /// Adds numbers of one kind, about one thing.
    pub(super) fn add_all<const N: usize>(
        &mut self,
        kind: Kind,
        labels: &[(Cow<'static, str>, String)],
        numbers: [(&'static str, &'static str, f64); N],
    ) {
        for (name, help, value) in numbers {
            self.add(name, help, kind, labels.to_vec(), value);
        }
    }

    fn add_summary(&mut self, name: &'static str, help: &'static str, summary: &Summary) {
        let Summary { count, mean, p50, p90, p99, .. } = *summary;
        for (quantile, value) in [("0.5", p50), ("0.9", p90), ("0.99", p99)] {
            let labels = vec![("quantile".into(), quantile.to_owned())];
            self.add(name, help, Kind::Summary, labels, value);
        }
        let family = self.family(name, help, Kind::Summary);
        for (suffix, value) in [("_sum", mean * count as f64), ("_count", count as f64)] {
            family.numbers.push(Number { suffix: suffix.into(), labels: vec![], value });
        }
    }

    pub(super) fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        labels: Labels,
        value: f64,
    ) {
        self.family(name, help, kind).numbers.push(Number { suffix: "".into(), labels, value });
    }

    /// Adds to the number with these labels, if there is one.
    fn add_up(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        labels: Labels,
        value: f64,
    ) {
        let numbers = &mut self.family(name, help, kind).numbers;
        match numbers.iter_mut().find(|number| number.labels == labels) {
            Some(number) => number.value += value,
            None => numbers.push(Number { suffix: "".into(), labels, value }),
        }
    }

    fn family(&mut self, name: &'static str, help: &'static str, kind: Kind) -> &mut Family {
        let at = self.0.iter().position(|family| family.name == name).unwrap_or_else(|| {
            self.0.push(Family { name: name.into(), help: help.into(), kind, numbers: Vec::new() });
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}
