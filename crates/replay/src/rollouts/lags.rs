//! How old what was delivered last was.

use echoic_memory::sync::Mutex;

use super::ledger::Share;

/// The lags of a share of a batch, in versions.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lags {
    /// Of the oldest token.
    pub oldest: i64,
    /// Of the groups' oldest tokens, on average.
    pub mean: f64,
    /// Of the youngest token.
    pub newest: i64,
}

impl Lags {
    /// Those of a share; `None` of one without groups.
    pub fn of(share: &Share) -> Option<Self> {
        let lag = |version: i64| share.target.saturating_sub(version);
        let oldest = share.groups.iter().map(|group| lag(group.oldest));
        let newest = share.groups.iter().map(|group| lag(group.newest)).min()?;
        let sum: f64 = oldest.clone().map(|lag| lag as f64).sum();
        let mean = sum / share.groups.len() as f64;
        Some(Self { oldest: oldest.max()?, mean, newest })
    }
}

/// The last that there were.
#[derive(Debug, Default)]
pub(super) struct LastLags(Mutex<Option<Lags>>);

impl LastLags {
    pub(super) fn note(&self, share: &Share) {
        let lags = Lags::of(share);
        *self.0.lock() = lags;
    }

    pub(super) fn read(&self) -> Option<Lags> {
        *self.0.lock()
    }
}
