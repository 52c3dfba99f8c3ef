//! What is invalid in a change, whatever there is in a ledger. A client looks at it before it sends anything.

use std::fmt;

use super::change::{
    Append, Change, ChangeError, MAX_KEY, MAX_KEYS_BYTES, MAX_NAMED, MAX_RANKS, MAX_RESERVED,
    MAX_VERSION, Reserve, Size, Want,
};
use crate::rollouts::config::RolloutConfig;
use crate::rollouts::item::{ColumnUpdate, Updates};
use crate::rollouts::schema::{Column, MAX_BLOBS, MAX_COLUMN_NAME};

/// The longest lease.
const MAX_LEASE_MS: u64 = u64::MAX >> 16;

impl Change {
    /// Whether a table of these settings could ever do it.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Value`].
    pub fn check(&self, config: &RolloutConfig) -> Result<(), ChangeError> {
        match self {
            Self::Reserve(reserve) => reserve.check(),
            Self::Append(append) => append.check(config),
            Self::Update(update) => update.values.check(config),
            Self::Fail { holds } | Self::Suspend { holds } | Self::Renew { holds } => {
                check_named(holds.len())
            }
            Self::Resume { source, ttl_ms } => {
                check_name("name of a source", source)?;
                check_ttl(*ttl_ms)
            }
            Self::Publish { version } | Self::Restore { version } => {
                check_version("version", *version)
            }
            Self::Sample(want) => want.check(config),
            Self::Extend { lease_ms, .. } => check_lease(*lease_ms),
            Self::Remove { groups } => check_named(groups.len()),
            Self::Reprioritize { priorities } => {
                check_named(priorities.len())?;
                priorities.iter().try_for_each(|(_, priority)| check_priority(*priority))
            }
            Self::Deepen { depth } => match config.max_lag {
                Some(most) if *depth <= most => Ok(()),
                Some(most) => {
                    Err(value("pipeline_depth", format!("at most max_lag {most}"), depth))
                }
                None => Err(value("pipeline_depth", "none, as there is no max_lag", depth)),
            },
            Self::Status { .. }
            | Self::Pause { .. }
            | Self::AwaitVersion { .. }
            | Self::Ack(_)
            | Self::Nack(_)
            | Self::Tick => Ok(()),
        }
    }
}

impl Reserve {
    fn check(&self) -> Result<(), ChangeError> {
        let Self { count, source, keys, version, ttl_ms } = self;
        keys.iter().try_for_each(|key| check_name("key of a group", key))?;
        check_name("name of a source", source)?;
        if *count == 0 || *count > MAX_RESERVED {
            return Err(value("groups to reserve", format!("from 1 to {MAX_RESERVED}"), count));
        }
        if !keys.is_empty() && *count as usize != keys.len() {
            let expected = format!("{count}, one of each group, or none");
            return Err(value("number of keys", expected, keys.len()));
        }
        let bytes: usize = keys.iter().map(String::len).sum();
        if bytes > MAX_KEYS_BYTES {
            return Err(value("bytes of keys", format!("at most {MAX_KEYS_BYTES}"), bytes));
        }
        if let Some(version) = version {
            check_version("version", *version)?;
        }
        check_ttl(*ttl_ms)
    }
}

impl Append {
    pub(super) fn check(&self, config: &RolloutConfig) -> Result<(), ChangeError> {
        check_priority(self.priority)?;
        let most = config.most_items();
        if self.item >= most {
            let expected = format!("below group_size + redundancy = {most}");
            return Err(value("item", expected, self.item));
        }
        let segment = &*self.segment;
        if segment.tokens > config.max_tokens {
            let expected = format!("at most max_tokens = {}", config.max_tokens);
            return Err(value("tokens of an item", expected, segment.tokens));
        }
        check_late("columns left out", segment.absent, config.schema.late.columns)?;
        let wanted = segment.tokens as usize * config.schema.token_bytes_without(segment.absent);
        if wanted > u32::MAX as usize {
            let expected = format!("at most {}, so bring an item in several parts", u32::MAX);
            return Err(value("bytes of the tokens of one call", expected, wanted));
        }
        if segment.bytes.len() != wanted {
            let expected = format!("{wanted}, for {} tokens", segment.tokens);
            return Err(value("bytes of a segment", expected, segment.bytes.len()));
        }
        let told: u64 = segment.runs.iter().map(|run| u64::from(run.tokens)).sum();
        if told != u64::from(segment.tokens) {
            let expected = format!("of {} tokens, as many as there are", segment.tokens);
            return Err(value("versions", expected, format!("those of {told}")));
        }
        if segment.runs.iter().any(|run| run.tokens == 0) {
            return Err(value("tokens of a version", "at least one", 0));
        }
        for run in &segment.runs {
            check_version("version of a token", run.version)?;
        }
        let Some(finish) = &self.finish else { return Ok(()) };
        check_late("fields left out", finish.absent, config.schema.late.fields)?;
        let wanted = config.schema.field_bytes();
        if finish.fields.len() != wanted {
            return Err(value("bytes of the fields of an item", wanted, finish.fields.len()));
        }
        if finish.blobs.len() > MAX_BLOBS {
            let expected = format!("at most {MAX_BLOBS}");
            return Err(value("blobs of an item", expected, finish.blobs.len()));
        }
        if let Some((name, _)) = finish.blobs.iter().find(|(name, _)| name.len() > MAX_COLUMN_NAME)
        {
            let expected = format!("of at most {MAX_COLUMN_NAME} bytes");
            return Err(value("name of a blob", expected, format!("one of {}", name.len())));
        }
        let bytes: usize = finish.blobs.iter().map(|(_, bytes)| bytes.len()).sum();
        if bytes > config.max_blob_bytes as usize {
            let expected = format!("at most max_blob_bytes = {}", config.max_blob_bytes);
            return Err(value("bytes of an item's blobs", expected, bytes));
        }
        Ok(())
    }
}

impl Updates {
    pub(super) fn check(&self, config: &RolloutConfig) -> Result<(), ChangeError> {
        let schema = &config.schema;
        check_places("columns", self.columns.iter().map(|update| update.column), &schema.columns)?;
        check_places("fields", self.fields.iter().map(|(field, _)| *field), &schema.fields)?;
        for ColumnUpdate { column, tokens, bytes } in &self.columns {
            if *tokens > config.max_tokens {
                let expected = format!("at most max_tokens = {}", config.max_tokens);
                return Err(value("tokens of an item", expected, tokens));
            }
            let size = schema.columns.get(*column as usize).map_or(0, Column::bytes);
            if *tokens as usize * size > u32::MAX as usize {
                let expected = format!("at most {}", u32::MAX);
                return Err(value("bytes of a column", expected, *tokens as usize * size));
            }
            if bytes.len() != *tokens as usize * size {
                let expected = format!("{}, for {tokens} tokens", *tokens as usize * size);
                return Err(value("bytes of a column", expected, bytes.len()));
            }
        }
        for (field, bytes) in &self.fields {
            let size = schema.fields.get(*field as usize).map_or(0, |one| one.dtype.itemsize());
            if bytes.len() != size {
                return Err(value("bytes of a field", size, bytes.len()));
            }
        }
        Ok(())
    }
}

/// That only what may come later is left out.
fn check_late(what: &'static str, absent: u64, late: u64) -> Result<(), ChangeError> {
    if absent & !late != 0 {
        let expected = format!("among those that may come late, {late:#b}");
        return Err(value(what, expected, format!("{absent:#b}")));
    }
    Ok(())
}

/// That places are those of columns or fields, each once, in their order.
fn check_places(
    what: &'static str,
    mut places: impl Iterator<Item = u32>,
    all: &[Column],
) -> Result<(), ChangeError> {
    let mut next = 0;
    match places.find(|place| {
        let is_right = (next..all.len()).contains(&(*place as usize));
        next = *place as usize + 1;
        !is_right
    }) {
        Some(place) => {
            let expected = format!("places below {}, in order", all.len());
            Err(value(what, expected, place))
        }
        None => Ok(()),
    }
}

impl Want {
    pub(super) fn check(&self, config: &RolloutConfig) -> Result<(), ChangeError> {
        let Self { size, rank, ranks, lease_ms, .. } = *self;
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(value("ranks", format!("from 1 to {MAX_RANKS}"), ranks));
        }
        if rank >= ranks {
            return Err(value("rank", format!("below ranks = {ranks}"), rank));
        }
        lease_ms.map_or(Ok(()), check_lease)?;
        match size {
            Size::Groups(groups) if groups == 0 || groups % ranks != 0 => {
                let expected = format!("a multiple of ranks = {ranks}, above 0");
                Err(value("groups of a batch", expected, groups))
            }
            Size::Groups(groups) if groups > config.capacity => {
                let expected = format!("at most capacity = {}", config.capacity);
                Err(value("groups of a batch", expected, groups))
            }
            Size::Groups(groups)
                if config.max_lag.is_some_and(|lag| {
                    u64::from(groups) > (u64::from(lag) + 1) * config.per_version()
                }) =>
            {
                let most =
                    config.max_lag.map_or(0, |lag| (u64::from(lag) + 1) * config.per_version());
                let expected = format!(
                    "at most (max_lag + 1) × batch_groups × batches_per_version = {most}, as no more are \
                     reserved"
                );
                Err(value("groups of a batch", expected, groups))
            }
            Size::Tokens(tokens) => {
                let least = u64::from(config.max_tokens) * u64::from(config.group_size);
                if tokens < least {
                    let expected = format!(
                        "at least max_tokens × group_size = {least}, as a group may have as many"
                    );
                    return Err(value("tokens of a batch", expected, tokens));
                }
                if ranks > config.batch_groups {
                    let expected = format!("at most batch_groups = {}", config.batch_groups);
                    return Err(value("ranks", expected, ranks));
                }
                Ok(())
            }
            Size::Groups(_) => Ok(()),
        }
    }
}

/// That no more groups are named than a journal and a connection carry.
fn check_named(named: usize) -> Result<(), ChangeError> {
    if named > MAX_NAMED as usize {
        return Err(value("groups of one call", format!("at most {MAX_NAMED}"), named));
    }
    Ok(())
}

pub(super) fn check_name(what: &'static str, name: &str) -> Result<(), ChangeError> {
    if name.len() > MAX_KEY {
        let expected = format!("of at most {MAX_KEY} bytes");
        return Err(value(what, expected, format!("one of {}", name.len())));
    }
    Ok(())
}

fn check_ttl(ttl_ms: Option<u64>) -> Result<(), ChangeError> {
    if ttl_ms == Some(0) {
        return Err(value("ttl", "at least a millisecond", 0));
    }
    Ok(())
}

fn check_lease(lease_ms: u64) -> Result<(), ChangeError> {
    if (1..=MAX_LEASE_MS).contains(&lease_ms) {
        return Ok(());
    }
    Err(value("lease", format!("from 1 to {MAX_LEASE_MS} ms"), lease_ms))
}

pub(super) fn check_priority(priority: f64) -> Result<(), ChangeError> {
    if (0.0..=1e100).contains(&priority) {
        return Ok(());
    }
    Err(value("priority", "a number from 0 to 1e100", priority))
}

fn check_version(what: &'static str, version: i64) -> Result<(), ChangeError> {
    if (0..=MAX_VERSION).contains(&version) {
        return Ok(());
    }
    Err(value(what, format!("from 0 to {MAX_VERSION}"), version))
}

pub(super) fn value(
    what: &'static str,
    expected: impl fmt::Display,
    got: impl fmt::Display,
) -> ChangeError {
    ChangeError::Value { what: what.into(), expected: expected.to_string(), got: got.to_string() }
}
