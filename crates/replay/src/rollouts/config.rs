//! The settings of a rollout table.

use std::num::NonZeroU64;

use super::filter::{BoundFilter, Filter, FilterError};
use super::schema::Schema;
use crate::limiter::{Bounds, Counts, Limiter, LimiterError, Parameters};

/// The most items of a group, those that are made in case others fail among them.
pub const MAX_GROUP: u32 = 1 << 12;
/// The most groups that a table holds.
pub const MAX_GROUPS: u32 = 1 << 24;
/// The longest name of a table.
pub const MAX_NAME: usize = 255;

/// Which of the complete groups is taken first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Whichever was complete first.
    Ready,
    /// Whichever was reserved first, also if it is not complete: then it is waited for.
    Submission,
    /// As [`Order::Submission`] among this many that were reserved first, whichever of them is complete.
    Window(u32),
    /// The one whose oldest token is the youngest.
    Freshest,
    /// The one whose oldest token is the oldest.
    Oldest,
    /// Drawn at random, by priority / (lag + 1): for groups that are used more than once.
    Weighted,
}

/// What becomes of a group that is older than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnStale {
    /// It goes, and another one may be made for it.
    Drop,
    /// Batches wait for groups that would become too old, so that none does. One that comes too old is
    /// dropped.
    Wait,
    /// It is delivered, and counted.
    Keep,
    /// It is delivered; the mask of the tokens that are too old is zero.
    Mask,
}

/// How often a group is delivered whose consumer is gone before it said that it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Until it is acknowledged.
    AtLeastOnce,
    /// Never again.
    AtMostOnce,
}

/// What becomes of a running group whose producer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnExpiry {
    /// It goes, and another one may be made for it.
    Reject,
    /// What is there of it waits for a producer that goes on with it.
    Suspend,
}

/// See the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutConfig {
    /// What it is called.
    pub name: String,
    /// What items look like.
    pub schema: Schema,
    /// Finished items that make a group complete: n.
    pub group_size: u32,
    /// Items that may be made beyond these, of which the last to finish are thrown away: k.
    pub redundancy: u32,
    /// After this many milliseconds a group is complete with what it has.
    pub group_deadline_ms: Option<u64>,
    /// If that is at least this much; else it is rejected.
    pub min_group_size: u32,
    /// Groups of a batch. Together with `batches_per_version`, what the learner uses up to make a version: B.
    pub batch_groups: u32,
    /// Batches that make a version.
    pub batches_per_version: u32,
    /// How many versions old the oldest token of a batch may be: η. Without a bound, versions limit nothing.
    pub max_lag: Option<u32>,
    /// How many versions ahead groups are reserved; at most, and at first, `max_lag`.
    pub pipeline_depth: Option<u32>,
    /// Whether that many moves with how long the learner waits, between 0 and `max_lag`.
    pub auto_tune: bool,
    /// Groups that are made at the same time: C_max.
    pub max_running: u32,
    /// Groups that are there at the same time, in whatever state.
    pub capacity: u32,
    /// Tokens of an item.
    pub max_tokens: u32,
    /// Bytes of an item's blobs, together.
    pub max_blob_bytes: u32,
    /// Which group is next.
    pub order: Order,
    /// What becomes of old groups.
    pub on_stale: OnStale,
    /// Batch s leaves only when the learner's version is at least s − 1 − this.
    pub target_lag: Option<u32>,
    /// How old the groups of a batch may be on average.
    pub max_mean_lag: Option<f64>,
    /// How often a group is delivered; 0: as often as it is drawn, until it is too old.
    pub max_uses: u32,
    /// What becomes of a batch whose consumer is gone.
    pub delivery: Delivery,
    /// For how many milliseconds a reservation stands of which nothing is heard.
    pub reservation_ttl_ms: u64,
    /// What becomes of a group then.
    pub on_expiry: OnExpiry,
    /// Which groups are kept.
    pub filter: Option<Filter>,
    /// How often groups are to be delivered on average.
    pub limiter: Option<Parameters>,
    /// Of all random choices.
    pub seed: u64,
}

impl RolloutConfig {
    /// A table whose other settings are the plain ones: versions limit nothing, groups come as they are complete,
    /// each is delivered until it is acknowledged, and reservations stand for a minute.
    #[must_use]
    pub fn new(name: &str, schema: Schema, group_size: u32, batch_groups: u32) -> Self {
        Self {
            name: name.into(),
            schema,
            group_size,
            redundancy: 0,
            group_deadline_ms: None,
            min_group_size: group_size,
            batch_groups,
            batches_per_version: 1,
            max_lag: None,
            pipeline_depth: None,
            auto_tune: false,
            max_running: 1024,
            capacity: 4096,
            max_tokens: 1 << 20,
            max_blob_bytes: 0,
            order: Order::Ready,
            on_stale: OnStale::Drop,
            target_lag: None,
            max_mean_lag: None,
            max_uses: 1,
            delivery: Delivery::AtLeastOnce,
            reservation_ttl_ms: 60_000,
            on_expiry: OnExpiry::Reject,
            filter: None,
            limiter: None,
            seed: 1,
        }
    }
}

/// A setting that can't work.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Give a number in the range.
    #[error("{what} must be from {least} to {most}, got {got}")]
    Range {
        /// Which setting.
        what: &'static str,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
        /// What came.
        got: u64,
    },
    /// Give another name.
    #[error("a table's name must have from 1 to {MAX_NAME} bytes, got {0}")]
    Name(usize),
    /// Make the table larger, the batches smaller, or the bound tighter.
    #[error(
        "capacity {capacity} is less than batch_groups × batches_per_version × (max_lag + 1) = \
         {batch_groups} × {batches} × ({max_lag} + 1) = {needed}: the groups that may be under way \
         would not fit, and everyone would wait for ever"
    )]
    TooSmall {
        /// Groups that fit.
        capacity: u32,
        /// Groups of a batch.
        batch_groups: u32,
        /// Batches of a version.
        batches: u32,
        /// The bound.
        max_lag: u32,
        /// Groups that must fit.
        needed: u64,
    },
    /// Two settings that exclude each other.
    #[error("{0}")]
    Together(&'static str),
    /// A mean lag that is no number from zero on.
    #[error("max_mean_lag must be a number of at least 0, got {0}")]
    MeanLag(f64),
    /// What items look like.
    #[error(transparent)]
    Schema(#[from] super::schema::SchemaError),
    /// The filter.
    #[error("filter: {0}")]
    Filter(#[from] FilterError),
    /// The ratio.
    #[error(transparent)]
    Limiter(#[from] LimiterError),
}

impl RolloutConfig {
    /// Groups that the learner uses up to make a version.
    pub fn per_version(&self) -> u64 {
        u64::from(self.batch_groups) * u64::from(self.batches_per_version)
    }

    /// Items that a group may have while it runs.
    pub fn most_items(&self) -> u32 {
        self.group_size.saturating_add(self.redundancy)
    }

    /// The most bytes of tokens and blobs that an item may have.
    pub fn most_item_bytes(&self) -> u64 {
        let tokens = u64::from(self.max_tokens).saturating_mul(self.schema.token_bytes() as u64);
        tokens.saturating_add(self.max_blob_bytes.into())
    }

    /// How many versions ahead groups are reserved at first.
    pub fn first_depth(&self) -> Option<u32> {
        self.max_lag.map(|most| self.pipeline_depth.unwrap_or(most).min(most))
    }

    /// The filter with its names resolved.
    pub(super) fn bound_filter(&self) -> Result<Option<BoundFilter>, FilterError> {
        let names = self.schema.filter_names();
        self.filter.as_ref().map(|filter| filter.bind(&names)).transpose()
    }

    pub(super) fn bound_limiter(&self) -> Result<Option<Limiter>, LimiterError> {
        self.limiter.map(Limiter::raw).transpose()
    }

    /// Whether batches can be made under the limiter.
    fn check_limiter(&self) -> Result<(), ConfigError> {
        let Some(limiter) = self.bound_limiter()? else { return Ok(()) };
        // Those that are reserved before the learner has its first batch are all that there are for it.
        let depth = self.first_depth().map(|depth| if self.auto_tune { 0 } else { depth });
        let ahead = depth.map_or(u64::MAX, |depth| (u64::from(depth) + 1) * self.per_version());
        if limiter.parameters().min_size > ahead.min(self.capacity.into()) {
            return Err(ConfigError::Together(
                "the limiter's min_size is more than capacity or than batch_groups × batches_per_version \
                 × (pipeline_depth + 1), so it would never be reached",
            ));
        }
        let bounds = Bounds {
            capacity: self.capacity.into(),
            max_times_sampled: NonZeroU64::new(self.max_uses.into()),
        };
        limiter.check_batch(&Counts::default(), self.batch_groups.into(), bounds)?;
        Ok(())
    }

    /// Whether it can work.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.name.is_empty() || self.name.len() > MAX_NAME {
            return Err(ConfigError::Name(self.name.len()));
        }
        self.schema.check()?;
        let group = u64::from(self.group_size);
        let ranges = [
            ("group_size", 1, MAX_GROUP.into(), group),
            ("group_size + redundancy", 1, MAX_GROUP.into(), self.most_items().into()),
            ("min_group_size", 1, group, self.min_group_size.into()),
            ("batch_groups", 1, MAX_GROUPS.into(), self.batch_groups.into()),
            ("batches_per_version", 1, MAX_GROUPS.into(), self.batches_per_version.into()),
            ("max_running", 1, MAX_GROUPS.into(), self.max_running.into()),
            ("capacity", 1, MAX_GROUPS.into(), self.capacity.into()),
            ("max_tokens", 1, 1 << 28, self.max_tokens.into()),
            ("max_blob_bytes", 0, 1 << 30, self.max_blob_bytes.into()),
            ("reservation_ttl", 1, u64::MAX >> 16, self.reservation_ttl_ms),
            ("max_lag", 0, 1 << 20, self.max_lag.unwrap_or(0).into()),
        ];
        for (what, least, most, got) in ranges {
            if !(least..=most).contains(&got) {
                return Err(ConfigError::Range { what, least, most, got });
            }
        }
        if let Order::Window(0) = self.order {
            let (what, least, most) = ("window", 1, MAX_GROUPS.into());
            return Err(ConfigError::Range { what, least, most, got: 0 });
        }
        let max_lag = self.max_lag.unwrap_or(0);
        let needed = self.per_version().saturating_mul(u64::from(max_lag) + 1);
        if u64::from(self.capacity) < needed {
            let (batch_groups, batches) = (self.batch_groups, self.batches_per_version);
            let capacity = self.capacity;
            return Err(ConfigError::TooSmall { capacity, batch_groups, batches, max_lag, needed });
        }
        match self.pipeline_depth {
            Some(_) if self.max_lag.is_none() => {
                return Err(ConfigError::Together("pipeline_depth needs max_lag, which bounds it"));
            }
            Some(depth) if depth > max_lag => {
                let (what, most) = ("pipeline_depth", max_lag.into());
                return Err(ConfigError::Range { what, least: 0, most, got: depth.into() });
            }
            _ => {}
        }
        if self.auto_tune && self.max_lag.is_none() {
            return Err(ConfigError::Together("auto_tune needs max_lag, which bounds it"));
        }
        if self.max_lag.is_none() && self.on_stale != OnStale::Drop {
            return Err(ConfigError::Together(
                "on_stale needs max_lag: without it nothing is stale",
            ));
        }
        if self.on_stale == OnStale::Mask && self.schema.mask.is_none() {
            return Err(ConfigError::Together("on_stale mask needs a mask column in the schema"));
        }
        if self.max_uses != 1 && self.order != Order::Weighted {
            return Err(ConfigError::Together(
                "max_uses other than 1 needs the weighted order: in all others each group is used once",
            ));
        }
        if self.order == Order::Weighted && self.on_stale == OnStale::Wait {
            return Err(ConfigError::Together(
                "on_stale wait and the weighted order exclude each other",
            ));
        }
        if let Some(mean) = self.max_mean_lag
            && (!(mean.is_finite() && mean >= 0.0))
        {
            return Err(ConfigError::MeanLag(mean));
        }
        self.bound_filter()?;
        self.check_limiter()
    }
}
