//! The contract of a sample in bytes, and what two contracts differ in.

use std::fmt::Write as _;

use echoic_replay::codec::{Encode, Reader, write_text};
use echoic_replay::{Dtype, Leaf, Spec};

use super::WireError;
use super::handshake::MAX_PAYLOAD;

/// The most leaves that a spec on the wire has.
pub const MAX_LEAVES: u32 = 1 << 14;
/// The longest path in bytes.
pub const MAX_PATH: u16 = 4096;
/// The most axes: what numpy allows.
pub const MAX_AXES: u8 = 64;

/// The most bytes: what leaves room for the rest of a frame of the handshake.
pub const MAX_BYTES: u32 = MAX_PAYLOAD - 4096;

/// How many differences a refusal lists.
const LISTED: usize = 8;

/// Writes a spec: number of leaves, then of each its path, dtype kind, item size, axes, shape.
pub fn write(out: &mut Vec<u8>, spec: &Spec) {
    out.extend_from_slice(&u32::try_from(spec.leaves().len()).unwrap_or(u32::MAX).to_le_bytes());
    for leaf in spec.leaves() {
        write_text(out, &leaf.path, MAX_PATH);
        write_kind(out, leaf.dtype, &leaf.shape);
    }
}

/// Writes what values are: dtype kind, item size, axes, shape.
pub(super) fn write_kind(out: &mut Vec<u8>, dtype: Dtype, shape: &[usize]) {
    dtype.encode(out);
    out.push(u8::try_from(shape.len()).unwrap_or(u8::MAX));
    for axis in shape {
        out.extend_from_slice(&(*axis as u64).to_le_bytes());
    }
}

/// What keeps a spec from going over the wire, although it is good in one process.
///
/// # Errors
///
/// [`WireError::Codec`] names the limit.
pub fn check(spec: &Spec) -> Result<(), WireError> {
    let too_large = |field, limit: u64, got: usize| {
        if got as u64 > limit {
            Err(WireError::too_large(field, limit, got as u64))
        } else {
            Ok(())
        }
    };
    too_large("number of leaves", MAX_LEAVES.into(), spec.leaves().len())?;
    for leaf in spec.leaves() {
        too_large("length of a path", MAX_PATH.into(), leaf.path.len())?;
        too_large("number of axes", MAX_AXES.into(), leaf.shape.len())?;
    }
    let mut written = Vec::new();
    write(&mut written, spec);
    too_large("length of a spec", MAX_BYTES.into(), written.len())
}

/// Reads a spec.
pub fn read(reader: &mut Reader<'_>) -> Result<Spec, WireError> {
    Spec::new(read_leaves(reader)?).map_err(|error| WireError::Spec(error.to_string()))
}

/// Reads a spec of trajectories, whose leaves may have any length.
pub fn read_of_trajectories(reader: &mut Reader<'_>) -> Result<Spec, WireError> {
    let leaves = read_leaves(reader)?;
    Spec::of_trajectories(leaves).map_err(|error| WireError::Spec(error.to_string()))
}

fn read_leaves(reader: &mut Reader<'_>) -> Result<Vec<Leaf>, WireError> {
    let count = reader.u32_at_most("number of leaves", MAX_LEAVES)?;
    let mut leaves = Vec::new();
    for _ in 0..count {
        let path = reader.text("path of a leaf", MAX_PATH)?.to_owned();
        let (dtype, shape) = read_kind(reader)?;
        leaves.push(Leaf { path, dtype, shape });
    }
    Ok(leaves)
}

/// Reads what [`write_kind`] writes.
pub(super) fn read_kind(reader: &mut Reader<'_>) -> Result<(Dtype, Vec<usize>), WireError> {
    let dtype: Dtype = reader.get("dtype of a leaf")?;
    if dtype.itemsize() == 0 {
        return Err(WireError::meaningless("size of an element", 0));
    }
    let axes = reader.u8("number of axes")?;
    if axes > MAX_AXES {
        let (limit, got) = (MAX_AXES.into(), axes.into());
        return Err(WireError::too_large("number of axes", limit, got));
    }
    let axis = |reader: &mut Reader<'_>| {
        let axis = reader.u64("length of an axis")?;
        usize::try_from(axis)
            .map_err(|_| WireError::too_large("length of an axis", usize::MAX as u64, axis))
    };
    let shape = (0..axes).map(|_| axis(reader)).collect::<Result<_, _>>()?;
    Ok((dtype, shape))
}

/// What a client's spec differs in from the server's, as a sentence; `None` when they are equal.
pub fn difference(server: &Spec, client: &Spec) -> Option<String> {
    if server.leaves() == client.leaves() {
        return None;
    }
    let find = |spec: &'_ Spec, path: &str| -> Option<Leaf> {
        spec.leaves().iter().find(|leaf| leaf.path == path).cloned()
    };
    let mut found: Vec<String> = Vec::new();
    for leaf in server.leaves() {
        match find(client, &leaf.path) {
            None => found.push(format!("the client lacks `{leaf}`")),
            Some(other) if other != *leaf => found.push(format!(
                "leaf `{}`: the server expects {}{:?}, the client has {}{:?}",
                if leaf.path.is_empty() { "(root)" } else { &leaf.path },
                leaf.dtype,
                leaf.shape,
                other.dtype,
                other.shape
            )),
            Some(_) => {}
        }
    }
    let extra = client.leaves().iter().filter(|leaf| find(server, &leaf.path).is_none());
    found.extend(extra.map(|leaf| format!("the server does not know `{leaf}`")));
    if found.is_empty() {
        found.push("the leaves are in another order".into());
    }
    let more = found.len().saturating_sub(LISTED);
    found.truncate(LISTED);
    let mut text = found.join("; ");
    if more > 0 {
        // Writing to a string does not fail.
        let _ = write!(text, "; and {more} more");
    }
    Some(text)
}
