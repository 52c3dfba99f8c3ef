//! What trajectories look like, in bytes.

use echoic_replay::chunk::ColumnKind;
use echoic_replay::codec::{Reader, write_text};
use echoic_replay::trajectory::{Column, Signature};

use super::MAX_STRUCTURE;
use crate::wire::WireError;
use crate::wire::spec::{self, MAX_LEAVES, MAX_PATH};

/// Structure, number of columns, then of each its leaf as in a spec and whether it is one step.
pub(super) fn write(out: &mut Vec<u8>, signature: &Signature) {
    write_text(out, &signature.structure, MAX_STRUCTURE);
    let columns = u32::try_from(signature.columns.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&columns.to_le_bytes());
    for Column { path, kind, squeezed } in &signature.columns {
        write_text(out, path, MAX_PATH);
        spec::write_kind(out, kind.dtype, &kind.shape);
        out.push((*squeezed).into());
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Signature, WireError> {
    let structure = reader.text("structure of a tree", MAX_STRUCTURE)?.to_owned();
    let count = reader.u32_at_most("number of columns", MAX_LEAVES)?;
    let mut columns = Vec::new();
    for _ in 0..count {
        let path = reader.text("path of a column", MAX_PATH)?.to_owned();
        let (dtype, shape) = spec::read_kind(reader)?;
        let kind = ColumnKind { dtype, shape };
        if kind.step_bytes().is_none() {
            return Err(WireError::Spec(format!("a step of `{path}` has more bytes than fit")));
        }
        columns.push(Column { path, kind, squeezed: reader.flag("whether it is one step")? });
    }
    Ok(Signature { structure, columns })
}

/// What keeps a signature from going over the wire.
pub(super) fn check(signature: &Signature) -> Result<(), WireError> {
    let at_most = |field, limit: u64, got: usize| match got as u64 {
        got if got > limit => Err(WireError::too_large(field, limit, got)),
        _ => Ok(()),
    };
    at_most("structure of a tree", MAX_STRUCTURE.into(), signature.structure.len())?;
    at_most("number of columns", MAX_LEAVES.into(), signature.columns.len())?;
    for column in &signature.columns {
        at_most("path of a column", MAX_PATH.into(), column.path.len())?;
        at_most("number of axes", spec::MAX_AXES.into(), column.kind.shape.len())?;
    }
    let mut written = Vec::new();
    write(&mut written, signature);
    at_most("length of a signature", (super::MAX_ITEM - 64).into(), written.len())
}
