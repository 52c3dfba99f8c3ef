//! Who must wait: the rate limiter of a table.
#![allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason { MinSize, Ratio, Paused, Capacity, Leased }
impl std::fmt::Display for Reason { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "{self:?}") } }
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("limiter")]
pub struct LimiterError;
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts { pub inserts: u64, pub samples: u64, pub deletions: u64 }
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limiter { min_size: u64 }
impl Limiter {
    pub fn min_size_of(n: u64) -> Self { Self { min_size: n } }
    pub fn min_size(&self) -> u64 { self.min_size }
    pub fn can_sample(&self, c: &Counts, _n: u64) -> Result<(), Reason> { if c.inserts - c.deletions >= self.min_size { Ok(()) } else { Err(Reason::MinSize) } }
    pub fn can_insert(&self, _c: &Counts, _n: u64) -> Result<(), Reason> { Ok(()) }
    pub fn check_table(&self, _s: u64, _t: u64) -> Result<(), LimiterError> { Ok(()) }
    pub fn check_batch(&self, _n: u64, _s: u64, _t: u64) -> Result<(), LimiterError> { Ok(()) }
}
