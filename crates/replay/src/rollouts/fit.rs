//! Which settings of a table may differ when it is opened again.
//!
//! `max_running`, `capacity`, `pipeline_depth`, `auto_tune`, `target_lag`, `max_mean_lag`, `reservation_ttl`,
//! `on_expiry`, `group_deadline` and `delivery` may be others: they say what is done from now on. So may `seed`, which
//! has no effect: a table goes on with its random choices, and keeps its seed. The rest says what the groups that are
//! there are, or in which order and how old they may be delivered; a table with other such settings is another table.

use std::fmt::{Debug, Write as _};

use super::config::RolloutConfig;

impl RolloutConfig {
    /// Whether a table of these settings goes on where one of other settings has ended.
    ///
    /// # Errors
    ///
    /// Each setting that must be the same and is not, with both values.
    pub fn goes_on(&self, kept: &Self) -> Result<(), String> {
        // Every setting is named, so that one that is new has to be thought of.
        let Self {
            name,
            schema,
            group_size,
            redundancy,
            group_deadline_ms: _,
            min_group_size,
            batch_groups,
            batches_per_version,
            max_lag,
            pipeline_depth: _,
            auto_tune: _,
            max_running: _,
            capacity: _,
            max_tokens,
            max_blob_bytes,
            order,
            on_stale,
            target_lag: _,
            max_mean_lag: _,
            max_uses,
            delivery: _,
            reservation_ttl_ms: _,
            on_expiry: _,
            filter,
            limiter,
            seed: _,
        } = self;
        let mut found = String::new();
        let mut compare = |what: &str, ours: &dyn Debug, theirs: &dyn Debug| {
            let (ours, theirs) = (format!("{ours:?}"), format!("{theirs:?}"));
            if ours != theirs {
                let comma = if found.is_empty() { "" } else { "; " };
                let _ = write!(found, "{comma}{what} is {ours}, and was {theirs}");
            }
        };
        let text = |config: &Self| config.filter.as_ref().map(ToString::to_string);
        compare("name", name, &kept.name);
        compare("the schema", schema, &kept.schema);
        compare("group_size", group_size, &kept.group_size);
        compare("redundancy", redundancy, &kept.redundancy);
        compare("min_group_size", min_group_size, &kept.min_group_size);
        compare("batch_groups", batch_groups, &kept.batch_groups);
        compare("batches_per_version", batches_per_version, &kept.batches_per_version);
        compare("max_lag", max_lag, &kept.max_lag);
        compare("max_tokens", max_tokens, &kept.max_tokens);
        compare("max_blob_bytes", max_blob_bytes, &kept.max_blob_bytes);
        compare("order", order, &kept.order);
        compare("on_stale", on_stale, &kept.on_stale);
        compare("max_uses", max_uses, &kept.max_uses);
        compare("filter", &filter.as_ref().map(ToString::to_string), &text(kept));
        compare("limiter", limiter, &kept.limiter);
        if found.is_empty() { Ok(()) } else { Err(found) }
    }
}
