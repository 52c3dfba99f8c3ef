//! What the items of a rollout table look like.
//!
//! An item is a sequence of tokens. For each token there is a value of every [column](Schema::columns), which is a
//! number or has a shape; for the item as a whole there is a number of every [field](Schema::fields), and it may carry
//! blobs of bytes under names.

use std::collections::HashSet;

use super::item::{Item, Segment};
use crate::scalar::Scalar;
use crate::spec::Dtype;

/// The most columns, and the most fields.
pub const MAX_COLUMNS: usize = 64;
/// The longest name of a column, a field or a blob.
pub const MAX_COLUMN_NAME: usize = 255;
/// The most axes of a column's shape.
pub const MAX_COLUMN_AXES: usize = 16;
/// The most bytes of a token in all columns. With the most tokens that an item may have, sizes are far below 2^64.
pub const MAX_TOKEN_BYTES: usize = 16 << 20;
/// The most blobs of an item.
pub const MAX_BLOBS: usize = 64;

/// What filters call the number of tokens of an item.
pub const LENGTH: &str = "length";

/// A name, a type and a shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Column {
    /// What it is called.
    pub name: String,
    /// What each number is.
    pub dtype: Dtype,
    /// Which numbers make a value; one, without axes. A field and a mask have none.
    pub shape: Vec<usize>,
}

impl Column {
    /// Bytes of a value.
    pub fn bytes(&self) -> usize {
        self.shape.iter().fold(self.dtype.itemsize(), |bytes, axis| bytes.saturating_mul(*axis))
    }
}

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schema {
    /// Of every token.
    pub columns: Vec<Column>,
    /// Of every item.
    pub fields: Vec<Column>,
    /// The column that says which tokens count, by its place.
    pub mask: Option<usize>,
    /// What may come later than the tokens or the end of its item.
    pub late: Late,
}

/// Some columns and fields: a bit for each place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Late {
    /// Columns.
    pub columns: u64,
    /// Fields.
    pub fields: u64,
}

/// A schema that can't work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// There is nothing to store.
    #[error("a rollout table needs at least one column of tokens")]
    Empty,
    /// Too many.
    #[error("at most {MAX_COLUMNS} columns and as many fields, got {0}")]
    TooMany(usize),
    /// Another name.
    #[error("a column's name must have from 1 to {MAX_COLUMN_NAME} bytes, got {0:?}")]
    Name(String),
    /// Columns and fields have names of their own.
    #[error("there are two columns or fields named {0:?}")]
    Twice(String),
    /// It is the number of tokens.
    #[error("no field may be named {LENGTH:?}: that is what filters call the number of tokens")]
    Length,
    /// A type that a column can't have.
    #[error("column {0:?} has a type without a size")]
    Dtype(String),
    /// A shape that a column can't have.
    #[error(
        "column {name:?}: expected a shape of at most {MAX_COLUMN_AXES} axes, each of at least 1, got {shape:?}"
    )]
    Shape {
        /// Of which column.
        name: String,
        /// What came.
        shape: Vec<usize>,
    },
    /// A field is a number.
    #[error(
        "field {name:?}: expected a number for each item, got the shape {shape:?}; keep arrays in blobs"
    )]
    FieldShape {
        /// Of which field.
        name: String,
        /// What came.
        shape: Vec<usize>,
    },
    /// Too much for one token.
    #[error("expected at most {MAX_TOKEN_BYTES} bytes for a token in all columns, got {0}")]
    TokenBytes(usize),
    /// Late is what is there.
    #[error("late names a column or field that is not there")]
    Late,
    /// A mask is a column.
    #[error("the mask must be one of the {0} columns, and a number or a bool for each token")]
    Mask(usize),
}

impl Schema {
    /// Whether it can work.
    pub fn check(&self) -> Result<(), SchemaError> {
        if self.columns.is_empty() {
            return Err(SchemaError::Empty);
        }
        let most = self.columns.len().max(self.fields.len());
        if most > MAX_COLUMNS {
            return Err(SchemaError::TooMany(most));
        }
        let mut names = HashSet::new();
        for column in self.columns.iter().chain(&self.fields) {
            if column.name.is_empty() || column.name.len() > MAX_COLUMN_NAME {
                return Err(SchemaError::Name(column.name.clone()));
            }
            if !names.insert(&column.name) {
                return Err(SchemaError::Twice(column.name.clone()));
            }
            if column.dtype.itemsize() == 0 {
                return Err(SchemaError::Dtype(column.name.clone()));
            }
            if column.shape.len() > MAX_COLUMN_AXES || column.shape.contains(&0) {
                let (name, shape) = (column.name.clone(), column.shape.clone());
                return Err(SchemaError::Shape { name, shape });
            }
        }
        if self.token_bytes() > MAX_TOKEN_BYTES {
            return Err(SchemaError::TokenBytes(self.token_bytes()));
        }
        if let Some(field) = self.fields.iter().find(|field| !field.shape.is_empty()) {
            let (name, shape) = (field.name.clone(), field.shape.clone());
            return Err(SchemaError::FieldShape { name, shape });
        }
        if self.fields.iter().any(|field| field.name == LENGTH) {
            return Err(SchemaError::Length);
        }
        let is_of = |late: u64, all: &[Column]| all.len() == 64 || late >> all.len() == 0;
        if !is_of(self.late.columns, &self.columns) || !is_of(self.late.fields, &self.fields) {
            return Err(SchemaError::Late);
        }
        if let Some(mask) = self.mask {
            let is_number = self.columns.get(mask).is_some_and(|column| {
                use Dtype::{Bool, Float, Int, UInt};
                column.shape.is_empty()
                    && matches!(column.dtype, Bool | Int(_) | UInt(_) | Float(_))
            });
            if !is_number {
                return Err(SchemaError::Mask(self.columns.len()));
            }
        }
        Ok(())
    }

    /// Bytes of a token in all columns.
    pub fn token_bytes(&self) -> usize {
        self.columns.iter().fold(0, |bytes, column| bytes.saturating_add(column.bytes()))
    }

    /// Bytes of a token in all columns but those that are left out.
    pub fn token_bytes_without(&self, absent: u64) -> usize {
        self.present(absent, self.columns.len())
    }

    /// Bytes of a token in the first columns, without those that are left out.
    fn present(&self, absent: u64, columns: usize) -> usize {
        let columns = self.columns.iter().take(columns).enumerate();
        columns.filter(|(at, _)| absent >> at & 1 == 0).map(|(_, column)| column.bytes()).sum()
    }

    /// The values of a column in a segment; `None` if that leaves it out.
    fn of_segment<'a>(&self, segment: &'a Segment, at: usize) -> Option<&'a [u8]> {
        let column = self.columns.get(at).filter(|_| segment.absent >> at & 1 == 0)?;
        let (tokens, before) = (segment.tokens as usize, self.present(segment.absent, at));
        segment.bytes.get(tokens * before..tokens * (before + column.bytes()))
    }

    /// The values of a column in an item, piece by piece, without those that have not come.
    pub fn of_item<'a>(&'a self, item: &'a Item, at: usize) -> impl Iterator<Item = &'a [u8]> {
        let update = item.column_update(at);
        let covered = update.map_or(0, |update| update.tokens);
        let mut before = 0;
        let segments = item.segments.iter().filter_map(move |segment| {
            let start = before;
            before += segment.tokens;
            if start < covered { None } else { self.of_segment(segment, at) }
        });
        update.map(|update| update.bytes.as_slice()).into_iter().chain(segments)
    }

    /// Bytes of an item's fields.
    pub fn field_bytes(&self) -> usize {
        self.fields.iter().map(|field| field.dtype.itemsize()).sum()
    }

    /// The names that a filter may use: the fields, then the length.
    pub(super) fn filter_names(&self) -> Vec<&str> {
        self.fields.iter().map(|field| field.name.as_str()).chain([LENGTH]).collect()
    }

    /// The value of a field as filters see it; NaN for what is no number.
    pub(super) fn number(&self, field: usize, item: &Item) -> f64 {
        let start: usize = self.fields.iter().take(field).map(|field| field.dtype.itemsize()).sum();
        let Some(dtype) = self.fields.get(field).map(|field| field.dtype) else { return f64::NAN };
        let Some(bytes) = item.field(field, start..start + dtype.itemsize()) else {
            return f64::NAN;
        };
        if Scalar::has(dtype) { Scalar::decode(dtype, bytes).to_f64() } else { f64::NAN }
    }
}
