//! A share of a batch as memory that a consumer looks at: one piece of it, with an array for everything.
//!
//! A [`Layout`] says where each array is. Its numbers per token lie *flat*, item after item; or *padded*, a row for
//! each item; or *packed*, several items in a row. The bytes of tokens are copied once, from where a producer's
//! segment is to where the consumer looks.

use std::collections::HashMap;
use std::sync::Arc;

use echoic_primitives::packing::{Method, pack};

use super::config::{OnStale, RolloutConfig};
use super::item::{Blob, Group, Item};
use super::ledger::{Lease, Share};
use crate::codec::{CodecError, Encode, Reader, write_count};
use crate::spec::Dtype;

/// What every array begins at a multiple of.
const ALIGNMENT: usize = 64;

/// How tokens lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Form {
    /// Item after item.
    #[default]
    Flat,
    /// A row for each item, as wide as the longest, or as requested.
    Padded {
        /// How wide; 0: as the longest.
        width: u32,
        /// Whether tokens are at the end of the row.
        left: bool,
    },
    /// Several items in a row of this many tokens.
    Packed {
        /// How wide.
        width: u32,
    },
}

impl Form {
    /// The most tokens that an item may have; any number, if 0.
    pub fn width(self) -> u32 {
        match self {
            Self::Flat => 0,
            Self::Padded { width, .. } | Self::Packed { width } => width,
        }
    }
}

/// The arrays about groups, each of 8-byte integers.
pub const GROUP_ARRAYS: [&str; 7] =
    ["group_ids", "group_sizes", "reserved", "dispatched", "oldest", "newest", "completed"];
/// The arrays about items.
pub const ITEM_ARRAYS: [&str; 7] =
    ["group", "index", "lengths", "starts", "item_oldest", "item_newest", "run_counts"];
/// The arrays about tokens of one version, item after item.
pub const RUN_ARRAYS: [&str; 2] = ["run_versions", "run_lengths"];

/// Why a share can't be laid out as wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Make rows wider.
    #[error("item {item} of the batch has {length} tokens, more than a row's {width}")]
    TooLong {
        /// Which item.
        item: usize,
        /// Its tokens.
        length: usize,
        /// The width of a row.
        width: usize,
    },
    /// It is too large for this machine.
    #[error("the batch has more bytes than memory has addresses")]
    TooLarge,
}

/// How large everything in a share is; with a table's schema, where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Groups, items, and runs of tokens of one version.
    pub groups: usize,
    /// See `groups`.
    pub items: usize,
    /// See `groups`.
    pub runs: usize,
    /// Rows, and how wide they are; one row of all tokens if they lie flat.
    pub rows: usize,
    /// See `rows`.
    pub width: usize,
    /// Bytes of all blobs.
    pub blob_bytes: usize,
}

/// Where an array is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Array {
    /// Where it begins.
    pub start: usize,
    /// How many bytes.
    pub len: usize,
}

/// Where all arrays are; see [`Shape::arrays`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrays {
    /// In the order of [`GROUP_ARRAYS`], [`ITEM_ARRAYS`], [`RUN_ARRAYS`], the fields, the columns, and the blobs.
    pub all: Vec<Array>,
    /// Bytes of all.
    pub bytes: usize,
}

/// The first place of the fields in [`Arrays::all`].
pub const FIELDS: usize = GROUP_ARRAYS.len() + ITEM_ARRAYS.len() + RUN_ARRAYS.len();

impl Shape {
    /// Where everything is.
    pub fn arrays(&self, config: &RolloutConfig) -> Result<Arrays, LayoutError> {
        let schema = &config.schema;
        let cells = self.rows.checked_mul(self.width).ok_or(LayoutError::TooLarge)?;
        let counts = [(self.groups, GROUP_ARRAYS.len()), (self.items, ITEM_ARRAYS.len())];
        let runs = (self.runs, RUN_ARRAYS.len());
        let fixed = counts
            .into_iter()
            .chain([runs])
            .flat_map(|(count, of)| std::iter::repeat_n((count, 8), of));
        let fields = schema.fields.iter().map(|field| (self.items, field.dtype.itemsize()));
        let columns = schema.columns.iter().map(|column| (cells, column.dtype.itemsize()));
        let blobs = [(self.blob_bytes, 1)];
        let mut bytes = 0usize;
        let mut all = Vec::new();
        for (count, size) in fixed.chain(fields).chain(columns).chain(blobs) {
            let start = bytes.checked_next_multiple_of(ALIGNMENT).ok_or(LayoutError::TooLarge)?;
            let len = count.checked_mul(size).ok_or(LayoutError::TooLarge)?;
            bytes = start.checked_add(len).ok_or(LayoutError::TooLarge)?;
            all.push(Array { start, len });
        }
        Ok(Arrays { all, bytes })
    }
}

/// Where a blob of an item is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobPlace {
    /// Its name.
    pub name: String,
    /// Where it begins among the bytes of all blobs. Several may be in one place, if they are alike.
    pub start: u64,
    /// How many bytes.
    pub bytes: u32,
}

/// The blobs of an item.
pub type Blobs = Vec<BlobPlace>;

/// The description of a share beside its arrays.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// The right to it.
    pub lease: Lease,
    /// For how many milliseconds it is the consumer's.
    pub lease_ms: Option<u64>,
    /// The version that the batch will update: t.
    pub target: i64,
    /// How large it is.
    pub shape: Shape,
    /// The key and the source of each group.
    pub names: Vec<(String, String)>,
    /// Of each item; their bytes lie one after the other, and once where they are in one place.
    pub blobs: Vec<Blobs>,
}

impl Encode for Head {
    fn encode(&self, out: &mut Vec<u8>) {
        let Self { lease, lease_ms, target, shape, names, blobs } = self;
        lease.encode(out);
        lease_ms.encode(out);
        target.encode(out);
        shape.encode(out);
        names.encode(out);
        // Most items have none.
        let with_blobs = || (0_u32..).zip(blobs).filter(|(_, blobs)| !blobs.is_empty());
        write_count(out, with_blobs().count());
        with_blobs().for_each(|of_item| of_item.encode(out));
    }
}

impl Head {
    /// Reads it, of arrays that have at most this many bytes: so no more items are believed than there are.
    pub fn read(from: &mut Reader<'_>, most: usize) -> Result<Self, CodecError> {
        let (lease, lease_ms, target) =
            (from.get("lease")?, from.get("lease")?, from.get("target")?);
        let (shape, names) =
            (from.get::<Shape>("shape")?, from.get::<Vec<_>>("groups of a batch")?);
        if names.len() != shape.groups {
            let (field, got) = ("groups of a batch", shape.groups as u64);
            return Err(CodecError::Meaningless { field, got });
        }
        let items = shape.items;
        // Each item has a number in each of its arrays.
        if items.saturating_mul(8 * ITEM_ARRAYS.len()) > most {
            let (field, got) = ("items of a batch", items as u64);
            return Err(CodecError::Meaningless { field, got });
        }
        let mut blobs = Vec::new();
        for _ in 0..from.count::<(u32, Blobs)>("items with blobs")? {
            let at = from.u32("place of an item")? as usize;
            let of_item: Blobs = from.get("blobs")?;
            if at < blobs.len() || at >= items || of_item.is_empty() {
                return Err(CodecError::Meaningless { field: "place of an item", got: at as u64 });
            }
            // Those in between have none.
            blobs.resize(at, Blobs::new());
            blobs.push(of_item);
        }
        blobs.resize(items, Blobs::new());
        Ok(Self { lease, lease_ms, target, shape, names, blobs })
    }
}

/// A share, and where each of its bytes goes.
#[derive(Debug)]
pub struct Layout<'a> {
    share: &'a Share,
    config: &'a RolloutConfig,
    shape: Shape,
    arrays: Arrays,
    /// The first cell of each item.
    starts: Vec<usize>,
    /// Where the blobs of each item are, and the bytes in these places, one after the other.
    places: Vec<Blobs>,
    blobs: Vec<&'a Blob>,
}

impl<'a> Layout<'a> {
    /// Lays out a share.
    pub fn new(
        share: &'a Share,
        config: &'a RolloutConfig,
        form: Form,
    ) -> Result<Self, LayoutError> {
        let items = || share.groups.iter().flat_map(|group| &group.items);
        let lengths: Vec<usize> = items().map(|item| item.tokens() as usize).collect();
        let longest = lengths.iter().enumerate().max_by_key(|(_, length)| **length);
        let fit = |width: usize| match longest {
            Some((item, length)) if *length > width => {
                Err(LayoutError::TooLong { item, length: *length, width })
            }
            _ => Ok(()),
        };
        let (rows, width, starts) = match form {
            Form::Flat => {
                let mut sum = 0;
                let starts = lengths.iter().map(|length| {
                    sum += length;
                    sum - length
                });
                let starts = starts.collect();
                (1, sum, starts)
            }
            Form::Padded { width, left } => {
                let width = match width {
                    0 => longest.map_or(0, |(_, length)| *length),
                    width => width as usize,
                };
                fit(width)?;
                let start = |(row, length): (usize, &usize)| {
                    row * width + if left { width - length } else { 0 }
                };
                (lengths.len(), width, lengths.iter().enumerate().map(start).collect())
            }
            Form::Packed { width } => {
                let width = width as usize;
                fit(width)?;
                let packing =
                    pack(&lengths, width, Method::FirstFitDecreasing).map_err(|error| {
                        LayoutError::TooLong { item: error.index, length: error.length, width }
                    })?;
                let places = packing.rows.iter().zip(&packing.starts);
                let starts = places.map(|(row, start)| row * width + start).collect();
                (packing.row_count, width, starts)
            }
        };
        let (places, blobs) = place_blobs(items());
        let shape = Shape {
            groups: share.groups.len(),
            items: lengths.len(),
            runs: items().map(|item| item.runs().count()).sum(),
            rows,
            width,
            blob_bytes: blobs.iter().map(|bytes| bytes.len()).sum(),
        };
        let arrays = shape.arrays(config)?;
        Ok(Self { share, config, shape, arrays, starts, places, blobs })
    }

    /// How many bytes it takes.
    pub fn bytes(&self) -> usize {
        self.arrays.bytes
    }

    /// The description beside the bytes.
    pub fn head(&self) -> Head {
        let Share { lease, lease_ms, target, groups } = self.share;
        Head {
            lease: *lease,
            lease_ms: *lease_ms,
            target: *target,
            shape: self.shape.clone(),
            names: groups.iter().map(|group| (group.key.clone(), group.source.clone())).collect(),
            blobs: self.places.clone(),
        }
    }

    fn items(&self) -> impl Iterator<Item = &'a Item> {
        self.share.groups.iter().flat_map(|group| &group.items)
    }

    /// Writes all arrays; cells without a token are zero.
    ///
    /// # Panics
    ///
    /// When there are fewer than [`Layout::bytes`].
    pub fn write(&self, out: &mut [u8]) {
        let (mut rest, mut written) = (&mut out[..self.arrays.bytes], 0);
        let mut arrays = self.arrays.all.iter().map(|array| {
            let (gap, behind) = std::mem::take(&mut rest).split_at_mut(array.start - written);
            // Bytes between arrays are not used; they must not show what was there before.
            gap.fill(0);
            let (here, behind) = behind.split_at_mut(array.len);
            (rest, written) = (behind, array.start + array.len);
            here
        });
        let groups = &self.share.groups;
        let numbers: [fn(&Group) -> i64; GROUP_ARRAYS.len()] = [
            |group| group.id as i64,
            |group| group.items.len() as i64,
            |group| group.reserved,
            |group| group.dispatched,
            |group| group.oldest,
            |group| group.newest,
            |group| group.completed,
        ];
        for number in numbers {
            put_numbers(arrays.next(), groups.iter().map(|group| number(group)));
        }
        let of =
            groups.iter().enumerate().flat_map(|(at, group)| group.items.iter().map(move |_| at));
        put_numbers(arrays.next(), of.map(|at| at as i64));
        put_numbers(arrays.next(), self.items().map(|item| i64::from(item.index)));
        put_numbers(arrays.next(), self.items().map(|item| i64::from(item.tokens())));
        put_numbers(arrays.next(), self.starts.iter().map(|start| *start as i64));
        let dispatched =
            groups.iter().flat_map(|group| group.items.iter().map(|_| group.dispatched));
        let oldest = self.items().zip(dispatched.clone());
        put_numbers(arrays.next(), oldest.map(|(item, none)| item.oldest().unwrap_or(none)));
        let newest = self.items().zip(dispatched);
        put_numbers(arrays.next(), newest.map(|(item, none)| item.newest().unwrap_or(none)));
        put_numbers(arrays.next(), self.items().map(|item| item.runs().count() as i64));
        let runs = || self.items().flat_map(Item::runs);
        put_numbers(arrays.next(), runs().map(|run| run.version));
        put_numbers(arrays.next(), runs().map(|run| i64::from(run.tokens)));
        let schema = &self.config.schema;
        let mut offset = 0;
        for (at, field) in schema.fields.iter().enumerate() {
            let size = field.dtype.itemsize();
            let Some(out) = arrays.next() else { return };
            for (place, item) in out.chunks_exact_mut(size).zip(self.items()) {
                match item.field(at, offset..offset + size) {
                    Some(bytes) => place.copy_from_slice(bytes),
                    None => place.fill(0),
                }
            }
            offset += size;
        }
        for (at, column) in schema.columns.iter().enumerate() {
            let size = column.dtype.itemsize();
            let Some(out) = arrays.next() else { return };
            self.write_column(out, at, size);
            if schema.mask == Some(at) {
                self.mask(out, column.dtype);
            }
        }
        let Some(mut out) = arrays.next() else { return };
        for bytes in &self.blobs {
            let (here, behind) = out.split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            out = behind;
        }
    }

    fn write_column(&self, out: &mut [u8], column: usize, size: usize) {
        // Memory may have been another batch's; where tokens fill all cells, nothing of that is left.
        let tokens: usize = self.items().map(|item| item.tokens() as usize).sum();
        if out.len() != tokens * size {
            out.fill(0);
        }
        for (item, start) in self.items().zip(&self.starts) {
            let mut at = start * size;
            for bytes in self.config.schema.of_item(item, column) {
                if let Some(place) = out.get_mut(at..at + bytes.len()) {
                    place.copy_from_slice(bytes);
                }
                at += bytes.len();
            }
        }
    }

    /// Zeroes the mask of tokens that are too old.
    fn mask(&self, out: &mut [u8], dtype: Dtype) {
        let (OnStale::Mask, Some(lag)) = (self.config.on_stale, self.config.max_lag) else {
            return;
        };
        let bound = self.share.target - i64::from(lag);
        let size = dtype.itemsize();
        for (item, start) in self.items().zip(&self.starts) {
            let mut at = start * size;
            for run in item.runs() {
                let len = run.tokens as usize * size;
                if run.version < bound
                    && let Some(tokens) = out.get_mut(at..at + len)
                {
                    tokens.fill(0);
                }
                at += len;
            }
        }
    }
}

/// Where the blobs of each item go, and which go there: those that several items share once.
fn place_blobs<'a>(items: impl Iterator<Item = &'a Item>) -> (Vec<Blobs>, Vec<&'a Blob>) {
    let (mut starts, mut blobs, mut end) = (HashMap::new(), Vec::new(), 0);
    let mut place = |(name, blob): &'a (String, Blob)| {
        let start = *starts.entry(Arc::as_ptr(blob)).or_insert_with(|| {
            blobs.push(blob);
            end += blob.len() as u64;
            end - blob.len() as u64
        });
        BlobPlace { name: name.clone(), start, bytes: blob.len() as u32 }
    };
    let of_item = |item: &'a Item| {
        item.finish.iter().flat_map(|finish| &finish.blobs).map(&mut place).collect()
    };
    let places = items.map(of_item).collect();
    (places, blobs)
}

fn put_numbers(out: Option<&mut [u8]>, numbers: impl Iterator<Item = i64>) {
    let (places, _) = out.unwrap_or_default().as_chunks_mut::<8>();
    for (place, number) in places.iter_mut().zip(numbers) {
        *place = number.to_ne_bytes();
    }
}
