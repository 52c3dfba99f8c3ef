//! Tables as they were before a crash: from a checkpoint and the journals written since.

use std::path::Path;
use std::sync::Arc;

use super::super::core::Core;
use super::super::{Durability, Table};
use super::entry;
use super::log::EffectLog;
use super::place::{Base, Label, dir_name};
use super::replay::Replayer;
use super::shared::ChunkDirectory;
use crate::Error;
use crate::checkpoint::Reader;
use crate::files::Dir;
use crate::journal::{Journal, Options, Torn};
use crate::rng::Rng;
use crate::table::saved::{self, Contents, SavedTable};

/// A table that was brought back.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Recovered {
    /// Its name.
    pub table: String,
    /// How many items it has.
    pub items: u32,
    /// How many records of its journal were replayed.
    pub records: u64,
    /// What was dropped at the end of its journal, as it was no whole record.
    pub torn: Option<Torn>,
    /// How many items that were kept can have been in there: none, if a crash in the middle of a write left it.
    pub lost_at_most: u64,
}

/// What is to become of one table when nothing has gone wrong with any.
struct Pending<'a> {
    table: &'a Arc<Table>,
    core: Core,
    log: Option<EffectLog>,
    recovered: Recovered,
}

/// Brings tables back as they were, and has those with a durability write journals below `root` from then
/// on. `checkpoint` is a root of checkpoints, of which the newest is loaded, or one of them; what the
/// journals have since is replayed.
///
/// ```
/// use std::sync::Arc;
///
/// use echoic_replay::stream::Wait;
/// use echoic_replay::table::{Durability, Form, Table, TableConfig, Tables, recover};
/// use echoic_replay::{Dtype, Leaf, Spec};
///
/// # let dir = std::env::temp_dir().join(format!("echoic-doc-recover-{}", std::process::id()));
/// let reward = Leaf { path: "reward".into(), dtype: Dtype::Float(4), shape: vec![] };
/// let config = TableConfig::new("replay", Form::Rows(Spec::new(vec![reward])?), 1000);
/// let begin = || -> Result<Arc<Table>, Box<dyn std::error::Error>> {
///     let table = Arc::new(Table::new(config.clone())?.durable(Some(Durability::Async)));
///     recover(&Tables::new(vec![Arc::clone(&table)])?, &dir, None)?;
///     Ok(table)
/// };
/// let table = begin()?;
/// let mut insertion = table.try_reserve(1).unwrap();
/// insertion.row_mut(0).copy_from_slice(&2.5f32.to_ne_bytes());
/// let keys = insertion.commit(&[1.0], None)?;
/// table.keep(Wait { deadline: None, tick: None, on_tick: &mut |_| unreachable!() })?;
/// // From here on the item survives the end of the process.
/// # table.close();
/// # drop(table);
/// assert_eq!(begin()?.items().keys, [keys[0].number()]);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Any [`Error`]; then every table is as it was, without a journal.
pub fn recover<'a>(
    contents: impl Into<Contents<'a>>,
    root: impl AsRef<Path>,
    checkpoint: Option<&Path>,
) -> Result<Vec<Recovered>, Error> {
    let Contents { tables, stream, rollouts } = contents.into();
    for table in tables.all().iter().filter(|table| table.durability().is_some()) {
        let items = table.info().size;
        let what = match table.log() {
            Some(_) => "writes a journal already".into(),
            None if items > 0 => {
                format!("has {items} items already, and a journal begins with none")
            }
            None => continue,
        };
        return Err(Error::Used { table: table.config().name.clone(), what });
    }
    let reader = checkpoint.map(Reader::open).transpose()?;
    let (mut read, living, unread, rollouts) = match &reader {
        Some(reader) => {
            let (read, chunks) = saved::read(tables, reader)?;
            let unread = saved::read_unread(reader, stream)?;
            let living = Some(chunks.let_go());
            (read, living, unread, saved::read_rollouts(reader, rollouts)?)
        }
        None => (Vec::new(), None, None, Vec::new()),
    };
    let mut shared = ChunkDirectory::new(living);
    let root = Dir::open_or_make(root.as_ref())?;
    let mut pending = Vec::new();
    for table in tables.all() {
        let name = &table.config().name;
        let base = read.iter().position(|one| one.head.config.name == *name);
        let base = base.map(|index| read.swap_remove(index));
        if let Some(durability) = table.durability() {
            pending.push(recover_one(table, durability, &root, base, &mut shared)?);
        } else if let Some(SavedTable { head, core, .. }) = base {
            let (table_name, items) = (name.clone(), head.items);
            let recovered =
                Recovered { table: table_name, items, records: 0, torn: None, lost_at_most: 0 };
            pending.push(Pending { table, core, log: None, recovered });
        }
    }
    if let (Some(stream), Some(unread)) = (stream, unread) {
        stream.restore(&unread).map_err(Error::of_stream)?;
    }
    for (table, loaded) in rollouts {
        table.install(loaded);
    }
    let install = |one: Pending<'_>| {
        one.table.install(one.core, one.log);
        one.recovered
    };
    Ok(pending.into_iter().map(install).collect())
}

fn recover_one<'a>(
    table: &'a Arc<Table>,
    durability: Durability,
    root: &Dir,
    base: Option<SavedTable>,
    shared: &mut ChunkDirectory<'_>,
) -> Result<Pending<'a>, Error> {
    let config = table.config();
    let name = || config.name.clone();
    let dir = Dir::open_or_make(&root.at(&dir_name(&config.name)))?;
    let path = dir.path().to_owned();
    let failed = |source| Error::Journal { table: name(), source: Box::new(source) };
    let unfit = |what: String| failed(Error::unfit(&path, what));
    let stands_on = base.as_ref().map(|one| Base { checkpoint: one.number, head: one.digest });
    let label = match Label::read(&dir)? {
        Some(label) => {
            let label = label.map_err(unfit)?;
            check_label(&label, table).map_err(unfit)?;
            label
        }
        None => {
            let label = Label::new(config, stands_on.clone());
            label.write(&dir)?;
            label
        }
    };
    let position = base.as_ref().and_then(|one| one.head.journal.as_ref());
    let from = match position {
        Some((id, next)) if *id == label.id => *next,
        _ if label.base == stands_on => 0,
        _ => {
            let text = |base: &Option<Base>| match base {
                Some(base) => format!("checkpoint {}", base.checkpoint),
                None => "an empty table".into(),
            };
            let (expected, got) = (text(&label.base), text(&stands_on));
            return Err(unfit(format!(
                "it goes on from {expected}, or from a checkpoint that was made since; this is {got}. \
                 Load another checkpoint, or move the journal away to go on without it"
            )));
        }
    };
    let options = Options { durability, from, ..Options::default() };
    let (journal, mut replay) = Journal::open(dir.at(&label.log()), options).map_err(failed)?;
    check_room(table, &journal).map_err(failed)?;
    let core = match base {
        Some(one) => one.core,
        None => Core::new(config, &table.room)?,
    };
    let mut replayer = Replayer::new(config, core, shared);
    let mut records = 0;
    while let Some((sequence, record)) = replay.next_record().map_err(failed)? {
        replayer
            .apply(record)
            .map_err(|what| unfit(format!("record {sequence} is invalid: {what}")))?;
        records += 1;
    }
    let (core, next_form) = if records > 0 {
        let (mut core, next_form) = replayer.finish().map_err(unfit)?;
        // Draws were not recorded, so the generator is not where it was; it must not begin again either.
        core.rng = Rng::new(config.seed ^ replay.end().wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (core, next_form)
    } else {
        (replayer.into_core(), 0)
    };
    let log = EffectLog::new(table, journal, label.id, next_form);
    if records > 0 {
        // A later replay need not keep what was recorded so far.
        log.forget();
    }
    let torn = replay.torn().cloned();
    let lost_at_most = torn.as_ref().map_or(0, |torn| {
        // It may have been cut in the middle of an item.
        (torn.bytes / entry::least_item_bytes(&config.form) as u64).max(1)
    });
    let items = core.items.len();
    let recovered = Recovered { table: name(), items, records, torn, lost_at_most };
    Ok(Pending { table, core, log: Some(log), recovered })
}

fn check_label(label: &Label, table: &Table) -> Result<(), String> {
    let config = table.config();
    if label.table != config.name {
        return Err(format!("it is of table {:?}", label.table));
    }
    if label.form != config.form {
        let (expected, got) = (&config.form, &label.form);
        return Err(format!("the server's table has {expected}; the journal's has {got}"));
    }
    let is_hex = label.id.len() == 16 && label.id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex {
        return Err(format!("{:?} is no name of a log", label.id));
    }
    Ok(())
}

/// Refuses rows that would never fit into a record.
fn check_room(table: &Table, journal: &Journal) -> Result<(), Error> {
    let super::super::Form::Rows(spec) = &table.config().form else { return Ok(()) };
    journal.check_record(super::entry::rows_bytes(1, spec.nbytes()).saturating_add(64))
}
