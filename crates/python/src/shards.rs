//! A table on several servers.

use std::sync::Arc;
use std::time::Instant;

use echoic_net::address::Address;
use echoic_net::client::tables::shards::{Changed, Gathered, MAX_SHARDS, Shard, ShardsError};
use echoic_net::client::tables::{TableConnection, TableEntry, shards as core};
use echoic_replay::stream::Wait;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::batch::{Batch, Device};
use crate::error::{Raise, spec_error};
use crate::fork::Process;
use crate::memory::Arena;
use crate::numbers::{float_numbers, key_numbers};
use crate::remote::RemoteTable;
use crate::table::check_draw;
use crate::wait;

/// Draws batches from one table on several servers, and knows whose items they were.
///
/// Each call is given the servers: for each that is there its table, and the number of
/// the first incarnation that its connection sees. New ones join at the end.
#[pyclass(frozen, module = "echoic._native")]
pub struct Shards {
    shards: core::Shards,
    arena: Arena,
    process: Process,
}

/// In the place of each shard that is there, its table and the number of the first incarnation that its
/// connection sees.
type Places = Vec<Option<(Py<RemoteTable>, u64)>>;

/// What a call without the GIL looks at.
struct Connections(Vec<Option<(Arc<TableConnection>, u32, u64)>>);

impl Connections {
    fn shards(&self) -> Vec<Option<Shard<'_>>> {
        let shards = self.0.iter().map(|place| {
            let (connection, table, first_incarnation) = place.as_ref()?;
            let (requests, table, first_incarnation) =
                (connection.requests(), *table, *first_incarnation);
            Some(Shard { requests, table, first_incarnation })
        });
        shards.collect()
    }
}

#[pymethods]
impl Shards {
    #[new]
    fn new(count: usize, seed: u64) -> PyResult<Self> {
        if !(1..=MAX_SHARDS).contains(&count) {
            let text = format!("there are 1 to {MAX_SHARDS} shards, got {count}");
            return Err(PyValueError::new_err(text));
        }
        let (shards, arena) = (core::Shards::new(count, seed), Arena::default());
        Ok(Self { shards, arena, process: Process::current() })
    }

    /// Refuse tables whose items differ.
    fn check(&self, py: Python<'_>, tables: Places) -> PyResult<()> {
        let entry = |(table, _): &(Py<RemoteTable>, u64)| {
            let entry = table.bind(py).as_super().get().handle().entry().clone();
            (entry, table.get().place().0.requests().address())
        };
        let mut there = tables.iter().flatten().map(entry);
        let Some((first, at)) = there.next() else { return Ok(()) };
        let differs = |(other, _): &(TableEntry, Address)| {
            first.form != other.form || first.structure != other.structure
        };
        there.find(differs).map_or(Ok(()), |(_, other)| {
            let name = &first.name;
            let text = format!("table {name:?} has items of another kind at {other} than at {at}");
            Err(spec_error(py, text))
        })
    }

    /// Draw a batch; ends at once, with the reason ``"AWAY"``, when no server is there.
    fn sample<'py>(
        &self,
        py: Python<'py>,
        tables: Places,
        count: usize,
        timeout: Option<f64>,
        beta: f64,
        device: Option<Device<'py>>,
    ) -> PyResult<Bound<'py, Batch>> {
        let deadline = wait::deadline(timeout)?;
        check_draw(count, beta)?;
        let sample =
            |shards: &[Option<Shard<'_>>], wait: Wait<'_>| self.shards.sample(shards, count, wait);
        let gathered = self.ask(py, &tables, deadline, sample)?;
        self.batch(py, &tables, gathered, beta)?.on(py, device)
    }

    /// What is known about items of all servers.
    fn items(&self, py: Python<'_>, tables: Places, limit: Option<usize>) -> PyResult<Batch> {
        let most = limit.unwrap_or(usize::MAX);
        let infos =
            self.ask(py, &tables, None, |shards, wait| self.shards.list(shards, most, wait))?;
        Batch::of_infos(py, infos)
    }

    /// Read items, in the order of the servers.
    fn get(&self, py: Python<'_>, tables: Places, keys: &Bound<'_, PyAny>) -> PyResult<Batch> {
        let keys = key_numbers(keys)?;
        let gathered =
            self.ask(py, &tables, None, |shards, wait| self.shards.get(shards, &keys, wait))?;
        self.batch(py, &tables, gathered, 1.0)
    }

    /// Change priorities; how many items were there, and how many keys are of absent shards.
    fn update_priorities(
        &self,
        py: Python<'_>,
        tables: Places,
        keys: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
    ) -> PyResult<(u64, u64)> {
        let (keys, priorities) = (key_numbers(keys)?, float_numbers(priorities)?);
        let Changed { done, lost } = self.ask(py, &tables, None, |shards, wait| {
            self.shards.update_priorities(shards, &keys, &priorities, wait)
        })?;
        Ok((done, lost))
    }

    /// Remove items; how many were there, and how many keys are of absent shards.
    fn remove(
        &self,
        py: Python<'_>,
        tables: Places,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<(u64, u64)> {
        let keys = key_numbers(keys)?;
        let Changed { done, lost } =
            self.ask(py, &tables, None, |shards, wait| self.shards.delete(shards, &keys, wait))?;
        Ok((done, lost))
    }
}

impl Shards {
    fn batch(
        &self,
        py: Python<'_>,
        tables: &Places,
        gathered: Gathered,
        beta: f64,
    ) -> PyResult<Batch> {
        let table = tables.iter().flatten().next().map(|(table, _)| table.bind(py).as_super());
        let Some(table) = table else { return Err(spec_error(py, "there are no shards")) };
        Batch::of_shards(py, &table.get().shape, &self.arena, gathered, beta)
    }

    /// Calls without the GIL; an error says which shard it is of.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        tables: &Places,
        deadline: Option<Instant>,
        ask: impl FnOnce(&[Option<Shard<'_>>], Wait<'_>) -> Result<T, ShardsError> + Send,
    ) -> PyResult<T> {
        self.process.check(py)?;
        if tables.len() > MAX_SHARDS {
            let text = format!("there are at most {MAX_SHARDS} shards, got {}", tables.len());
            return Err(PyValueError::new_err(text));
        }
        // New ones join at the end.
        self.shards.grow(tables.len());
        let place = |(table, first_incarnation): &(Py<RemoteTable>, u64)| {
            let (connection, number) = table.get().place();
            (Arc::clone(connection), number, *first_incarnation)
        };
        let places = tables.iter().map(|table| table.as_ref().map(place));
        let connections = Connections(places.collect());
        let connections = &connections;
        let asked =
            wait::detached(py, deadline, None, |wait: Wait<'_>| ask(&connections.shards(), wait));
        asked.map_err(|stopped| stopped.raise_with(|error| self.raise(py, tables, error)))
    }

    fn raise(&self, py: Python<'_>, tables: &Places, error: ShardsError) -> PyErr {
        let raised = error.error.raise(py);
        let table = error.shard.and_then(|shard| tables.get(shard)?.as_ref());
        let Some((table, _)) = table else { return raised };
        let address = table.get().place().0.requests().address();
        let value = raised.value(py);
        let named = value
            .str()
            .and_then(|text| value.setattr("args", (format!("shard {address}: {text}"),)));
        // Whatever went wrong with the name, the error matters more.
        let (Ok(()) | Err(_)) = named;
        raised
    }
}
