//! The numbers of rollout tables.

use std::borrow::Cow;

use echoic_replay::rollouts::idle::{REASONS, Sides};
use echoic_replay::rollouts::ledger::{Counts, GroupTotals, Source};
use echoic_replay::rollouts::starvation::Hunger;
use echoic_replay::rollouts::table::{Lags, RolloutInfo};
use echoic_replay::rollouts::{RolloutConfig, RolloutTable};

use super::Numbers;
use crate::wire::observed::Kind;

/// The most producers whose numbers are listed by name: those that reserved most often.
const MAX_SOURCES: usize = 64;

type Labels = Vec<(Cow<'static, str>, String)>;

impl Numbers {
    /// Adds the numbers of a rollout table.
    pub fn add_rollouts(&mut self, table: &RolloutTable) {
        let RolloutInfo { counts, totals, mut sources, mut hunger, producers, consumers, .. } =
            table.info();
        let of: Labels = vec![("table".into(), table.config().name.clone())];
        self.add_limits(&of, table.config());
        self.add_totals(&of, &counts, &totals);
        self.add_lags(&of, table.last_lags());
        self.add_rollout_counts(&of, &counts);
        self.add_waits(&of, "producer", &producers);
        self.add_waits(&of, "consumer", &consumers);
        sources.sort_by_key(|source| std::cmp::Reverse(source.submitted));
        sources.iter().take(MAX_SOURCES).for_each(|source| self.add_source(&of, source));
        // Those that wait first.
        hunger.sort_by_key(|hunger| std::cmp::Reverse(hunger.oldest_ms));
        hunger.iter().take(MAX_SOURCES).for_each(|hunger| self.add_hunger(&of, hunger));
    }

    /// The settings that numbers are compared with.
    fn add_limits(&mut self, of: &Labels, config: &RolloutConfig) {
        self.add_all(
            Kind::Gauge,
            of,
            [
                ("echoic_rollouts_batch_groups", "Groups of a batch.", config.batch_groups.into()),
                (
                    "echoic_rollouts_max_running_groups",
                    "Groups that may be made at the same time.",
                    config.max_running.into(),
                ),
                (
                    "echoic_rollouts_capacity_groups",
                    "Groups that may be there, made ones and others.",
                    config.capacity.into(),
                ),
            ],
        );
        if let Some(most) = config.max_lag {
            let (name, help) = ("echoic_rollouts_max_lag", "How many versions old a group may be.");
            self.add_all(Kind::Gauge, of, [(name, help, most.into())]);
        }
    }

    /// How old the last batch was.
    fn add_lags(&mut self, of: &Labels, lags: Option<Lags>) {
        let Some(Lags { oldest, mean, newest }) = lags else { return };
        for (which, lag) in [("oldest", oldest as f64), ("mean", mean), ("newest", newest as f64)] {
            let labels = [of.clone(), vec![("of".into(), which.to_owned())]].concat();
            let help = "How old what was delivered last was, in versions: its oldest token, its groups' oldest \
                        tokens on average, its youngest token.";
            self.add("echoic_rollouts_delivered_lag", help, Kind::Gauge, labels, lag);
        }
    }

    fn add_totals(&mut self, of: &Labels, counts: &Counts, totals: &GroupTotals) {
        self.add_all(
            Kind::Gauge,
            of,
            [
                (
                    "echoic_rollouts_version",
                    "The version that the learner published last.",
                    totals.version as f64,
                ),
                (
                    "echoic_rollouts_target",
                    "The version that the next batch will update.",
                    totals.target as f64,
                ),
                (
                    "echoic_rollouts_running_groups",
                    "Groups that are made, or were left and wait for a producer.",
                    counts.running as f64,
                ),
                (
                    "echoic_rollouts_queued_groups",
                    "Complete groups that are not leased.",
                    totals.queued as f64,
                ),
                (
                    "echoic_rollouts_leased_groups",
                    "Groups that are with consumers.",
                    totals.out as f64,
                ),
                (
                    "echoic_rollouts_suspended_groups",
                    "Groups that were left by their producers.",
                    totals.suspended as f64,
                ),
                (
                    "echoic_rollouts_room_groups",
                    "Groups that could be reserved now.",
                    totals.room as f64,
                ),
                (
                    "echoic_rollouts_paused",
                    "1 while the table is paused: nothing is reserved and nothing is delivered.",
                    f64::from(u8::from(totals.paused)),
                ),
            ],
        );
        if let Some(depth) = totals.depth {
            let (name, help) =
                ("echoic_rollouts_pipeline_depth", "How many versions ahead groups are reserved.");
            self.add_all(Kind::Gauge, of, [(name, help, depth.into())]);
        }
        if let Some(oldest) = totals.oldest {
            let lag = (totals.target - oldest) as f64;
            let (name, help) = (
                "echoic_rollouts_oldest_lag",
                "How old the oldest group in the queue is, in versions.",
            );
            self.add_all(Kind::Gauge, of, [(name, help, lag)]);
        }
    }

    fn add_rollout_counts(&mut self, of: &Labels, counts: &Counts) {
        for (outcome, count) in [
            ("submitted", counts.submitted),
            ("accepted", counts.accepted),
            ("rejected", counts.rejected),
            ("filtered", counts.filtered),
            ("delivered", counts.delivered),
            ("acked", counts.acked),
            ("redelivered", counts.redelivered),
            ("lost", counts.lost),
            ("retired", counts.retired),
        ] {
            let labels = [of.clone(), vec![("outcome".into(), outcome.to_owned())]].concat();
            let help = "Groups since the table was new, by what became of them. Those accepted and then \
                        filtered count as filtered, so accepted may fall.";
            self.add("echoic_rollouts_groups", help, Kind::Gauge, labels, count as f64);
        }
        for (why, count) in [
            ("expired", counts.expired),
            ("late", counts.late),
            ("stale", counts.stale),
            ("removed", counts.removed),
            ("short", counts.short),
            ("overdue", counts.overdue),
        ] {
            let labels = [of.clone(), vec![("why".into(), why.to_owned())]].concat();
            let help = "Groups that were given up, let go of, or delivered short or overdue.";
            self.add("echoic_rollouts_losses_total", help, Kind::Counter, labels, count as f64);
        }
        self.add_all(
            Kind::Counter,
            of,
            [
                ("echoic_rollouts_batches_total", "Batches that were made.", counts.batches as f64),
                ("echoic_rollouts_tokens_total", "Tokens that came.", counts.tokens as f64),
                (
                    "echoic_rollouts_delivered_tokens_total",
                    "Tokens of groups that were delivered.",
                    counts.delivered_tokens as f64,
                ),
                (
                    "echoic_rollouts_masked_tokens_total",
                    "Tokens that were masked, because they were too old.",
                    counts.masked_tokens as f64,
                ),
                (
                    "echoic_rollouts_surplus_items_total",
                    "Items that were started and not needed for their group.",
                    counts.surplus as f64,
                ),
                (
                    "echoic_rollouts_duplicates_total",
                    "Segments that came twice and were taken once.",
                    counts.duplicates as f64,
                ),
                (
                    "echoic_rollouts_fenced_total",
                    "Calls of producers and consumers whose reservation or lease was over.",
                    counts.fenced as f64,
                ),
                (
                    "echoic_rollouts_expired_leases_total",
                    "Leases that were over before their consumer was done.",
                    counts.expired_leases as f64,
                ),
                (
                    "echoic_rollouts_resumed_total",
                    "Groups that another producer went on with.",
                    counts.resumed as f64,
                ),
            ],
        );
    }

    /// Waiting calls by reason; without reasons that never occurred.
    fn add_waits(&mut self, of: &Labels, side: &str, sides: &Sides) {
        for (reason, waits) in REASONS.iter().zip(&sides.0) {
            if waits.waiting == 0 && waits.limited == 0 {
                continue;
            }
            let by = vec![("side".into(), side.to_owned()), ("reason".into(), reason.to_string())];
            let labels = [of.clone(), by].concat();
            let help = "Calls that wait now, by side and reason.";
            let (gauge, counter) = (Kind::Gauge, Kind::Counter);
            let value = waits.waiting as f64;
            self.add("echoic_rollouts_waiting", help, gauge, labels.clone(), value);
            let help = "Calls that had to wait.";
            let value = waits.limited as f64;
            self.add("echoic_rollouts_waits_total", help, counter, labels.clone(), value);
            let help = "How long calls waited, those that wait now included, together.";
            let value = waits.time().as_secs_f64();
            self.add("echoic_rollouts_wait_seconds_total", help, counter, labels, value);
        }
    }

    /// How one waits for a reservation that ever did.
    fn add_hunger(&mut self, of: &Labels, hunger: &Hunger) {
        let Hunger { source, waiting, oldest_ms, passed, is_starving, .. } = hunger;
        let labels = [of.clone(), vec![("source".into(), source.clone())]].concat();
        self.add_all(
            Kind::Gauge,
            &labels,
            [
                (
                    "echoic_rollouts_source_waiting",
                    "Calls of each producer that wait now for a reservation.",
                    *waiting as f64,
                ),
                (
                    "echoic_rollouts_source_oldest_wait_seconds",
                    "For how long the first of these has waited.",
                    *oldest_ms as f64 / 1e3,
                ),
                (
                    "echoic_rollouts_source_passed_groups",
                    "How many groups others reserved meanwhile.",
                    *passed as f64,
                ),
                (
                    "echoic_rollouts_source_starving",
                    "1 if it has waited for over a minute while others got reservations.",
                    f64::from(u8::from(*is_starving)),
                ),
            ],
        );
    }

    fn add_source(&mut self, of: &Labels, source: &Source) {
        for (outcome, count) in [
            ("submitted", source.submitted),
            ("running", source.running),
            ("accepted", source.accepted),
            ("rejected", source.rejected),
            ("filtered", source.filtered),
            ("delivered", source.delivered),
        ] {
            let by =
                vec![("source".into(), source.name.clone()), ("outcome".into(), outcome.into())];
            let labels = [of.clone(), by].concat();
            let help = "Groups of each producer, by what became of them.";
            self.add("echoic_rollouts_source_groups", help, Kind::Gauge, labels, count as f64);
        }
        let labels = [of.clone(), vec![("source".into(), source.name.clone())]].concat();
        let help = "Tokens of each producer's groups that were accepted.";
        let tokens = source.tokens as f64;
        self.add("echoic_rollouts_source_tokens_total", help, Kind::Counter, labels, tokens);
    }
}
