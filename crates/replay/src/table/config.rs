//! The settings of a table.

use std::fmt;
use std::num::NonZeroU64;

use super::TableError;
use crate::codec::{CodecError, Decode, Encode, Reader};
use crate::fields;
use crate::limiter::{Bounds, Limiter};
use crate::selectors::SelectorKind;
use crate::spec::Spec;

/// The longest name of a table.
pub const MAX_NAME: usize = 256;
/// The most bytes that the layers above may keep with a table.
pub const MAX_METADATA: usize = 1 << 16;

/// How items are kept.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// Every item has these leaves, and its own copy of their bytes, side by side in one row.
    Rows(Spec),
    /// Items name slices of chunks, which they share. With a spec, the leaves that each must have; an
    /// axis of length [`ANY_LENGTH`](crate::spec::ANY_LENGTH) in front may have any length.
    Trajectories(Option<Spec>),
}

impl Encode for Form {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Rows(spec) => (0u8, spec).encode(out),
            Self::Trajectories(None) => 1u8.encode(out),
            Self::Trajectories(Some(spec)) => (2u8, spec).encode(out),
        }
    }
}

impl Decode for Form {
    const LEAST: usize = 1;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        Ok(match from.u8(field)? {
            0 => Self::Rows(from.get("leaves")?),
            1 => Self::Trajectories(None),
            2 => Self::Trajectories(Some(Spec::of_trajectories(from.get("leaves")?)?)),
            got => return Err(CodecError::Meaningless { field, got: got.into() }),
        })
    }
}

/// For people.
impl fmt::Display for Form {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows(spec) => write!(out, "rows of {spec}"),
            Self::Trajectories(None) => out.write_str("items of any form"),
            Self::Trajectories(Some(spec)) => write!(out, "trajectories of {spec}"),
        }
    }
}

impl Form {
    /// The leaves that every item must have, if the table says so.
    pub fn spec(&self) -> Option<&Spec> {
        match self {
            Self::Rows(spec) | Self::Trajectories(Some(spec)) => Some(spec),
            Self::Trajectories(None) => None,
        }
    }
}

/// Name, form, selectors, limiter and bounds of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableConfig {
    /// Unique in a server.
    pub name: String,
    /// How items are kept.
    pub form: Form,
    /// The tree that the leaves of its spec belong to, in a notation of the layer above; opaque here.
    pub structure: String,
    /// Chooses the items to sample.
    pub sampler: SelectorKind,
    /// Chooses the item to remove when the table is full.
    pub remover: SelectorKind,
    /// Decides which calls wait.
    pub limiter: Limiter,
    /// How many items there may be.
    pub capacity: u32,
    /// After how many samples an item goes; never, when 0.
    pub max_times_sampled: u32,
    /// Of all random choices.
    pub seed: u64,
}

fields! { TableConfig {
    name: String,
    form: Form,
    structure: String,
    sampler: SelectorKind,
    remover: SelectorKind,
    limiter: Limiter,
    capacity: u32,
    max_times_sampled: u32,
    seed: u64,
} }

impl TableConfig {
    /// A table whose other settings are the plain ones: samples are uniform and wait for the first item, inserts
    /// don't wait, the oldest item goes when there is no more room, and items may be sampled again and again.
    #[must_use]
    pub fn new(name: &str, form: Form, capacity: u32) -> Self {
        Self {
            name: name.into(),
            form,
            structure: String::new(),
            sampler: SelectorKind::Uniform,
            remover: SelectorKind::Fifo,
            limiter: Limiter::default(),
            capacity,
            max_times_sampled: 0,
            seed: 1,
        }
    }

    /// Refuses what can't work.
    pub(super) fn check(&self) -> Result<(), TableError> {
        if self.name.is_empty() || self.name.len() > MAX_NAME {
            return Err(TableError::Name(self.name.clone()));
        }
        if let Form::Rows(spec) = &self.form
            && let Some(leaf) = spec.leaves().iter().find(|leaf| leaf.has_any_length())
        {
            let text = format!("a row has no room for a leaf of any length, got `{leaf}`");
            return Err(TableError::Spec(text));
        }
        if self.capacity == 0 {
            return Err(TableError::Capacity);
        }
        self.limiter.check_table(self.bounds())?;
        Ok(())
    }

    /// What the limiter has to know of the table.
    pub(super) fn bounds(&self) -> Bounds {
        let max_times_sampled = NonZeroU64::new(self.max_times_sampled.into());
        Bounds { capacity: self.capacity.into(), max_times_sampled }
    }
}
