//! The tables of a server, by name.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Table, TableError};

/// Tables with different names, in the order in which they were given.
#[derive(Debug, Default)]
pub struct Tables {
    tables: Vec<Arc<Table>>,
    numbers: HashMap<String, usize>,
}

impl Tables {
    /// Takes tables together.
    ///
    /// # Errors
    ///
    /// [`TableError::Twice`] when two have one name.
    pub fn new(tables: Vec<Arc<Table>>) -> Result<Self, TableError> {
        let mut numbers = HashMap::new();
        for (number, table) in tables.iter().enumerate() {
            let name = &table.config().name;
            if numbers.insert(name.clone(), number).is_some() {
                return Err(TableError::Twice(name.clone()));
            }
        }
        Ok(Self { tables, numbers })
    }

    /// All of them.
    pub fn all(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// Where a table is in [`Tables::all`].
    ///
    /// # Errors
    ///
    /// [`TableError::Unknown`], which names those that there are.
    pub fn number(&self, name: &str) -> Result<usize, TableError> {
        self.numbers.get(name).copied().ok_or_else(|| {
            let known = self.tables.iter().map(|table| table.config().name.clone()).collect();
            TableError::Unknown { name: name.to_owned(), known }
        })
    }

    /// A table by its name.
    pub fn get(&self, name: &str) -> Result<&Arc<Table>, TableError> {
        Ok(&self.tables[self.number(name)?])
    }

    /// Closes all.
    pub fn close(&self) {
        self.tables.iter().for_each(|table| table.close());
    }
}
