//! What trajectories look like, in bytes.

use echoic_replay::chunk::ColumnKind;
use echoic_replay::codec::{Reader, write_count, write_text};
use echoic_replay::trajectory::{Column, Signature};

use super::MAX_STRUCTURE;
use crate::wire::WireError;
use crate::wire::spec::{self, MAX_LEAVES, MAX_PATH};

/// Structure, number of columns, then of each its leaf as in a spec and whether it is one step.
pub(super) fn write(out: &mut Vec<u8>, signature: &Signature) {
    write_text(out, &signature.structure, MAX_STRUCTURE);
    write_count(out, signature.columns.len());
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
    WireError::check_most("structure of a tree", MAX_STRUCTURE, signature.structure.len())?;
    WireError::check_most("number of columns", MAX_LEAVES, signature.columns.len())?;
    for column in &signature.columns {
        WireError::check_most("path of a column", MAX_PATH, column.path.len())?;
        WireError::check_most("number of axes", spec::MAX_AXES, column.kind.shape.len())?;
    }
    let mut written = Vec::new();
    write(&mut written, signature);
    WireError::check_most("length of a signature", super::MAX_ITEM - 64, written.len())
}
