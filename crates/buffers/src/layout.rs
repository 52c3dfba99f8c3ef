//! Where the leaves of a transition lie in a row.

use echoic_memory::AllocError;
use echoic_memory::slab::Field;
use echoic_replay::{Dtype, Leaf};

/// Offsets of leaves in a row. Leaves with larger elements come first, so that none needs a gap before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowLayout {
    fields: Vec<Field>,
    row_bytes: usize,
}

impl RowLayout {
    /// The layout of rows with these leaves. One that is missing has no bytes.
    ///
    /// # Errors
    ///
    /// [`AllocError::Overflow`] when a row has more bytes than an address can hold.
    pub fn new<'a>(leaves: impl IntoIterator<Item = Option<&'a Leaf>>) -> Result<Self, AllocError> {
        let leaves: Vec<Option<&Leaf>> = leaves.into_iter().collect();
        let overflow = || AllocError::Overflow { what: "one transition".into() };
        // What one element needs; text may lie anywhere.
        let alignment = |leaf: Option<&Leaf>| match leaf.map(|leaf| leaf.dtype) {
            None | Some(Dtype::Bytes(_)) => 1,
            Some(dtype) => dtype.itemsize(),
        };
        let mut order: Vec<usize> = (0..leaves.len()).collect();
        order.sort_by_key(|leaf| std::cmp::Reverse(alignment(leaves[*leaf])));
        let mut fields = vec![Field { offset: 0, bytes: 0 }; leaves.len()];
        let mut end = 0usize;
        for leaf in order {
            let bytes = leaves[leaf].map_or(Some(0), Leaf::nbytes).ok_or_else(overflow)?;
            fields[leaf] = Field { offset: end, bytes };
            end = end.checked_add(bytes).ok_or_else(overflow)?;
        }
        let widest = leaves.iter().map(|leaf| alignment(*leaf).min(8)).max().unwrap_or(1);
        let row_bytes = end.max(1).checked_next_multiple_of(widest).ok_or_else(overflow)?;
        Ok(Self { fields, row_bytes })
    }

    /// Where each leaf lies, in the order in which they were given.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// How many bytes a row has.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(dtype: Dtype, shape: &[usize]) -> Leaf {
        Leaf { path: String::new(), dtype, shape: shape.to_vec() }
    }

    #[test]
    fn leaves_lie_side_by_side_with_the_widest_first() {
        let leaves =
            [leaf(Dtype::Bool, &[]), leaf(Dtype::Float(4), &[3]), leaf(Dtype::Int(8), &[2])];
        let layout = RowLayout::new(leaves.iter().map(Some)).unwrap();
        let offsets: Vec<usize> = layout.fields().iter().map(|field| field.offset).collect();
        assert_eq!((offsets, layout.row_bytes()), (vec![28, 16, 0], 32));
    }

    #[test]
    fn a_row_that_no_address_can_hold_is_an_error() {
        let leaves = [leaf(Dtype::Bool, &[usize::MAX]), leaf(Dtype::Bool, &[2])];
        assert!(RowLayout::new(leaves.iter().map(Some)).is_err());
    }
}
