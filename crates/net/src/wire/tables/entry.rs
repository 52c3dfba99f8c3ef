//! The tables of a server, as it introduces them.

use echoic_replay::codec::{Encode, Reader, write_count, write_text};
use echoic_replay::table::{Form, MAX_METADATA, MAX_NAME, Table};

use super::MAX_STRUCTURE;
use crate::wire::WireError;
use crate::wire::spec;

/// The most tables of a server.
pub const MAX_TABLES: u32 = 1 << 12;
/// The most bytes of a list: what leaves room for the rest of a WELCOME.
const MAX_BYTES: u32 = crate::wire::handshake::MAX_WELCOME - 4096;

/// What a client has to know of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableEntry {
    /// Unique in the server.
    pub name: String,
    /// How items are kept, and the spec if there is one.
    pub form: Form,
    /// The tree that the leaves belong to, in a notation of the layer above.
    pub structure: String,
    /// How many items there may be.
    pub capacity: u32,
    /// Bytes that the layer above keeps with the table; opaque here.
    pub metadata: Vec<u8>,
}

impl From<&Table> for TableEntry {
    fn from(table: &Table) -> Self {
        let config = table.config();
        Self {
            name: config.name.clone(),
            form: config.form.clone(),
            structure: config.structure.clone(),
            capacity: config.capacity,
            metadata: table.metadata().to_vec(),
        }
    }
}

/// Appends a list: how many, then of each name, form, size, structure, metadata, and its spec if there
/// is one.
pub fn write_list(out: &mut Vec<u8>, tables: &[TableEntry]) {
    write_count(out, tables.len());
    for table in tables {
        write_text(out, &table.name, MAX_NAME as u16);
        let (form, spec) = match &table.form {
            Form::Rows(spec) => (0, Some(spec)),
            Form::Trajectories(None) => (1, None),
            Form::Trajectories(Some(spec)) => (2, Some(spec)),
        };
        out.push(form);
        table.capacity.encode(out);
        write_text(out, &table.structure, MAX_STRUCTURE);
        write_count(out, table.metadata.len());
        out.extend_from_slice(&table.metadata);
        if let Some(spec) = spec {
            spec::write(out, spec);
        }
    }
}

/// Reads a list.
pub fn read_list(reader: &mut Reader<'_>) -> Result<Vec<TableEntry>, WireError> {
    let count = reader.u32_at_most("number of tables", MAX_TABLES)?;
    let mut tables = Vec::new();
    for _ in 0..count {
        let name = reader.text("name of a table", MAX_NAME as u16)?.to_owned();
        let form = reader.u8("form of a table")?;
        let capacity = reader.u32("size of a table")?;
        let structure = reader.text("structure of a tree", MAX_STRUCTURE)?.to_owned();
        let len = reader.u32_at_most("length of a table's metadata", MAX_METADATA as u32)?;
        let metadata = reader.bytes("metadata of a table", len as usize)?.to_vec();
        let form = match form {
            0 => Form::Rows(spec::read(reader)?),
            1 => Form::Trajectories(None),
            2 => Form::Trajectories(Some(spec::read_of_trajectories(reader)?)),
            got => {
                return Err(WireError::meaningless("form of a table", got.into()));
            }
        };
        tables.push(TableEntry { name, form, structure, capacity, metadata });
    }
    Ok(tables)
}

/// What keeps tables from being introduced, although they are good in one process.
///
/// # Errors
///
/// [`WireError::Codec`] names the limit.
pub fn check_list(tables: &[TableEntry]) -> Result<(), WireError> {
    WireError::check_most("number of tables", MAX_TABLES, tables.len())?;
    for table in tables {
        WireError::check_most("structure of a tree", MAX_STRUCTURE, table.structure.len())?;
        WireError::check_most(
            "length of a table's metadata",
            MAX_METADATA as u64,
            table.metadata.len(),
        )?;
        match &table.form {
            Form::Rows(spec) | Form::Trajectories(Some(spec)) => spec::check(spec)?,
            Form::Trajectories(None) => {}
        }
    }
    let mut written = Vec::new();
    write_list(&mut written, tables);
    WireError::check_most("length of the list of tables", MAX_BYTES, written.len())
}
