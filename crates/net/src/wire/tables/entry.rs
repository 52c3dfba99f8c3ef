//! The tables of a server, as it introduces them.

use echoic_replay::fields;
use echoic_replay::table::{Form, MAX_METADATA, Table};

use crate::wire::WireError;

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

fields! { TableEntry {
    name: String,
    form: Form,
    structure: String,
    capacity: u32,
    metadata: Vec<u8>,
} }

/// That each is as it may be.
pub(crate) fn check_each(tables: &[TableEntry]) -> Result<(), WireError> {
    WireError::check_most("number of tables", MAX_TABLES, tables.len())?;
    let (field, limit) = ("length of a table's metadata", MAX_METADATA as u64);
    tables.iter().try_for_each(|table| WireError::check_most(field, limit, table.metadata.len()))
}

/// What keeps tables from being introduced, although they are good in one process.
///
/// # Errors
///
/// [`WireError::Codec`] names the limit.
pub fn check_list(tables: &[TableEntry]) -> Result<(), WireError> {
    check_each(tables)?;
    WireError::check_bytes("length of the list of tables", MAX_BYTES, tables)
}
