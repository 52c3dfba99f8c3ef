//! From sections to tables.

use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Weak};

use echoic_memory::slab::Slab;

use super::{Contents, FORMAT, Head, rollouts as rollout_tables, section, unread};
use crate::Error;
use crate::checkpoint::{Reader, SectionReader, Trail};
use crate::chunk::{Chunk, ChunkKey, Slice};
use crate::codec::read_formatted;
use crate::kinds::Kinds;
use crate::limiter::Counts;
use crate::rng::Rng;
use crate::table::core::{Core, Payload};
use crate::table::items::{GROUP, Items, WORDS};
use crate::table::sessions::{MAX_SESSIONS, SESSION_BYTES, Sessions};
use crate::table::{Table, Tables};
use crate::trajectory::{Signature, Trajectory};

/// The most slices of a column: more than any table of ours has.
const MAX_SLICES: u32 = 1 << 24;

/// What was loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The checkpoint's number.
    pub number: u64,
    /// Items by table.
    pub items: Vec<(String, u32)>,
    /// Groups that are not over, by rollout table.
    pub groups: Vec<(String, u64)>,
}

/// A table of a checkpoint, read and checked.
pub(in crate::table) struct SavedTable {
    pub(in crate::table) head: Head,
    pub(in crate::table) core: Core,
    /// The checkpoint's number.
    pub(in crate::table) number: u64,
    /// Checksum of the head.
    pub(in crate::table) digest: u32,
}

/// Reads the tables of a checkpoint, without changing those that are there; and the chunks of their items.
pub(in crate::table) fn read<'a>(
    tables: &Tables,
    reader: &'a Reader,
) -> Result<(Vec<SavedTable>, Chunks<'a>), Error> {
    let count = (0..).take_while(|number| has(reader, &section(*number, "head"))).count();
    let mut chunks = Chunks::of(reader);
    let mut all = Vec::new();
    for number in 0..count {
        let (head, digest) = read_head(reader, number)?;
        let table = tables.get(&head.config.name)?;
        let core = read_core(table, &head, number, &mut chunks)?;
        all.push(SavedTable { head, core, number: reader.number(), digest });
    }
    Ok((all, chunks))
}

/// Brings back the newest checkpoint of a root, or the one of this path. Every table that it has must be
/// there, with the same form and selectors, and room for all items; what tables held is gone then. If it
/// has samples of a stream, the stream must be there, unused, with the same spec, and room for them.
///
/// # Errors
///
/// Any [`Error`]; then everything is as it was. A table with a journal can't go back: what the journal
/// has would not follow. Such tables are loaded by [`recover`](crate::table::recover) alone.
pub fn load<'a>(
    contents: impl Into<Contents<'a>>,
    path: impl AsRef<Path>,
) -> Result<Loaded, Error> {
    let Contents { tables, stream, rollouts } = contents.into();
    if let Some(table) = tables.all().iter().find(|table| table.log().is_some()) {
        let what = "it has a journal, so a checkpoint is loaded only when the server is made";
        return Err(Error::of_table(&table.config().name, what));
    }
    let reader = Reader::open(path)?;
    let unread = unread::read(&reader, stream)?;
    let (saved, _) = read(tables, &reader)?;
    let rollouts = rollout_tables::read(&reader, rollouts)?;
    if let (Some(stream), Some(unread)) = (stream, unread) {
        stream.restore(&unread).map_err(Error::of_stream)?;
    }
    let mut loaded = Loaded { number: reader.number(), items: Vec::new(), groups: Vec::new() };
    for SavedTable { head, core, .. } in saved {
        tables.get(&head.config.name)?.replace(core);
        loaded.items.push((head.config.name, head.items));
    }
    for (table, one) in rollouts {
        loaded.groups.push((table.config().name.clone(), one.ledger.groups()));
        table.install(one);
    }
    Ok(loaded)
}

/// Makes the tables of a checkpoint, without a server that has them: to look at what is in it.
pub fn open(path: impl AsRef<Path>) -> Result<Tables, Error> {
    let reader = Reader::open(path)?;
    let mut chunks = Chunks::of(&reader);
    let mut tables = Vec::new();
    for number in (0..).take_while(|number| has(&reader, &section(*number, "head"))) {
        let (head, _) = read_head(&reader, number)?;
        let table = Table::new(head.config.clone())?;
        let core = read_core(&table, &head, number, &mut chunks)?;
        table.replace(core);
        tables.push(Arc::new(table));
    }
    Ok(Tables::new(tables)?)
}

fn has(reader: &Reader, name: &str) -> bool {
    reader.sections().any(|section| section == name)
}

/// The head of a table in a checkpoint, and its checksum.
fn read_head(reader: &Reader, number: usize) -> Result<(Head, u32), Error> {
    let bytes = reader.head(&section(number, "head"))?;
    let head = read_formatted(&bytes, FORMAT);
    let head = head.map_err(|error| Error::of_table(&format!("number {number}"), error))?;
    Ok((head, crc32c::crc32c(&bytes)))
}

/// A section, and whose it is.
struct Source {
    section: SectionReader,
    table: String,
}

impl Source {
    fn open(reader: &Reader, number: usize, part: &str, table: String) -> Result<Self, Error> {
        Ok(Self { section: reader.section(&section(number, part))?, table })
    }

    fn wrong(&self, what: impl Into<String>) -> Error {
        Error::of_table(&self.table, what.into())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.section.read_exact(bytes).map_err(|error| self.wrong(error.to_string()))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    /// That the section ends here.
    fn end(mut self) -> Result<(), Error> {
        match self.section.next_bytes()?.len() {
            0 => Ok(()),
            _ => Err(self.wrong("a section has bytes behind its end")),
        }
    }
}

/// Chunks of a checkpoint by their keys; one that several items name is made once.
pub(in crate::table) struct Chunks<'a> {
    reader: &'a Reader,
    trail: Trail,
    /// By their places in the checkpoint.
    made: Vec<Option<Arc<Chunk>>>,
    kinds: Kinds,
    bytes: Vec<u8>,
}

impl<'a> Chunks<'a> {
    fn of(reader: &'a Reader) -> Self {
        let made = vec![None; reader.blob_count()];
        Self { reader, trail: Trail::default(), made, kinds: Kinds::default(), bytes: Vec::new() }
    }

    fn get(&mut self, key: u128, table: &str) -> Result<Arc<Chunk>, Error> {
        let place = self.reader.place_of(key, &mut self.trail);
        let place = place.ok_or_else(|| self.reader.unknown(key))?;
        if let Some(chunk) = &self.made[place] {
            return Ok(Arc::clone(chunk));
        }
        self.reader.blob_at(place, &mut self.bytes)?;
        let wrong = |what: String| Error::of_table(table, what);
        let share = |kind| self.kinds.share(kind);
        let (chunk, used) =
            Chunk::read_as(&self.bytes, share).map_err(|error| wrong(error.to_string()))?;
        if used != self.bytes.len() {
            return Err(wrong("a chunk has bytes behind its end".into()));
        }
        let chunk = Arc::new(chunk.known_as(ChunkKey(key)));
        self.made[place] = Some(Arc::clone(&chunk));
        Ok(chunk)
    }

    /// Those that were made, for as long as an item has them.
    pub(in crate::table) fn let_go(self) -> Living<'a> {
        let weak =
            |chunk: Option<Arc<Chunk>>| chunk.map_or_else(Weak::new, |one| Arc::downgrade(&one));
        let made = self.made.into_iter().map(weak).collect();
        Living { reader: self.reader, trail: self.trail, made }
    }
}

/// The chunks of a checkpoint that items have.
pub(in crate::table) struct Living<'a> {
    reader: &'a Reader,
    trail: Trail,
    made: Vec<Weak<Chunk>>,
}

impl Living<'_> {
    pub(in crate::table) fn get(&mut self, key: u128) -> Option<Arc<Chunk>> {
        let place = self.reader.place_of(key, &mut self.trail)?;
        self.made.get(place)?.upgrade()
    }
}

/// What a table was, checked against what it is now.
fn read_core(
    table: &Table,
    head: &Head,
    number: usize,
    chunks: &mut Chunks<'_>,
) -> Result<Core, Error> {
    let config = table.config();
    let saved = &head.config;
    let wrong = |what: String| Error::of_table(&saved.name, what);
    if config.form != saved.form {
        let (expected, got) = (&config.form, &saved.form);
        return Err(wrong(format!("the server's has {expected}; the checkpoint's has {got}")));
    }
    for (what, kind, was) in
        [("sampler", &config.sampler, &saved.sampler), ("remover", &config.remover, &saved.remover)]
    {
        if kind != was {
            return Err(wrong(format!("its {what} is {kind}, the checkpoint's was {was}")));
        }
    }
    if head.items > config.capacity {
        let (items, most) = (head.items, config.capacity);
        return Err(wrong(format!("the checkpoint has {items} items, capacity is {most}")));
    }
    let mut core = Core::new(config, &table.room)?;
    let reader = chunks.reader;
    let open = |part: &str| Source::open(reader, number, part, saved.name.clone());
    let no_room = || wrong("its items are where the table has no room".into());
    let room = match &core.payload {
        Payload::Rows(slab) => slab.rows() as usize,
        // Each that has no item is in the head.
        Payload::Trajectories { .. } => head.items as usize + head.order.free.len(),
    };
    if head.slots as usize > room {
        return Err(no_room());
    }
    let mut items = std::mem::take(&mut core.items);
    read_items(&mut items, head, open("items")?)?;
    for (part, selector) in [("sampler", &mut core.sampler), ("remover", &mut core.remover)] {
        let saved = has(reader, &section(number, part)).then(|| open(part)).transpose()?;
        let words = saved.map_or(Ok(Vec::new()), |source| read_words(source, head))?;
        selector.advance(head.policy_version);
        selector.restore(&words, &items).map_err(|error| wrong(error.to_string()))?;
    }
    match &mut core.payload {
        Payload::Rows(slab) => {
            // Nobody else has it yet.
            let slab = Arc::get_mut(slab).ok_or_else(no_room)?;
            if !slab.adopt(items.live(), &head.order) {
                return Err(no_room());
            }
            let runs = read_rows(slab, open("runs")?, open("rows")?)?;
            if !runs.into_iter().flatten().eq(items.live()) {
                return Err(wrong("its rows are not those of its items".into()));
            }
        }
        Payload::Trajectories { slots, free } => {
            let mut source = open("trajectories")?;
            slots.resize(head.slots as usize, None);
            let mut parts = Parts::default();
            for _ in 0..head.items {
                let slot = source.u32()?;
                let trajectory =
                    read_trajectory(&mut source, &head.signatures, chunks, &mut parts)?;
                let place = slots.get_mut(slot as usize).filter(|place| place.is_none());
                match place.filter(|_| items.is_taken(slot)) {
                    Some(place) => {
                        core.episodes.enter(&trajectory);
                        *place = Some(trajectory);
                    }
                    None => return Err(source.wrong(format!("no item is in slot {slot}"))),
                }
            }
            source.end()?;
            let empty = (0..head.slots).filter(|slot| slots[*slot as usize].is_none());
            let mut left = head.order.free.clone();
            left.sort_unstable();
            if !left.iter().copied().eq(empty) {
                return Err(wrong("its free slots are not those without an item".into()));
            }
            free.clone_from(&head.order.free);
        }
    }
    let [never, ..] = *items.times().counts();
    let sampled = u64::from(items.len()) - never;
    core.unique_samples = head.unique_samples;
    core.items = items;
    let Counts { inserts, deletions, .. } = head.counts;
    if inserts.checked_sub(deletions) != Some(head.items.into()) {
        return Err(wrong(format!("{inserts} inserts and {deletions} deletions")));
    }
    if !(sampled..=inserts).contains(&core.unique_samples) {
        let told = core.unique_samples;
        return Err(wrong(format!(
            "{told} of {inserts} items were sampled, {sampled} of them are there"
        )));
    }
    core.gate.counts = head.counts;
    if has(chunks.reader, &section(number, "sessions")) {
        let mut source = open("sessions")?;
        let (most, got) = (MAX_SESSIONS * SESSION_BYTES, source.section.data_bytes());
        if got > most as u64 {
            return Err(wrong(format!("its sessions have {got} bytes, at most {most} are read")));
        }
        let mut bytes = vec![0; got as usize];
        source.fill(&mut bytes)?;
        core.sessions = Sessions::read(&bytes).map_err(wrong)?;
    }
    core.episodes.deleted = head.deleted_episodes;
    core.rng = Rng::from_state(head.rng);
    core.version = head.policy_version;
    Ok(core)
}

fn read_trajectory(
    source: &mut Source,
    signatures: &[Arc<Signature>],
    chunks: &mut Chunks<'_>,
    Parts { slices, ends }: &mut Parts,
) -> Result<Trajectory, Error> {
    let number = source.u32()?;
    let signature = signatures.get(number as usize);
    let signature = signature.ok_or_else(|| source.wrong(format!("there is no form {number}")))?;
    slices.clear();
    ends.clear();
    for _ in &signature.columns {
        let count = source.u32()?;
        let end = ends.last().unwrap_or(&0_u32).checked_add(count);
        let Some(end) = end.filter(|_| count <= MAX_SLICES) else {
            return Err(source.wrong(format!("a column has {count} slices")));
        };
        ends.push(end);
        for _ in 0..count {
            let key = source.array().map(u128::from_le_bytes)?;
            let chunk = chunks.get(key, &source.table)?;
            slices.push(Slice { chunk, offset: source.u32()?, len: source.u32()? });
        }
    }
    Trajectory::joined(Arc::clone(signature), slices.drain(..).collect(), ends)
        .map_err(|error| source.wrong(error.to_string()))
}

/// What one trajectory after the other is put together in.
#[derive(Default)]
struct Parts {
    slices: Vec<Slice>,
    ends: Vec<u32>,
}

/// What is known of all slots.
fn read_items(items: &mut Items, head: &Head, mut source: Source) -> Result<(), Error> {
    let mut words = [[[0; 8]; GROUP]; WORDS];
    let mut left = head.slots as usize;
    while left > 0 {
        let count = left.min(GROUP);
        for values in &mut words {
            match source.array()? {
                [0] => source.fill(values[..count].as_flattened_mut())?,
                [1] => values.fill(source.array()?),
                [got] => return Err(source.wrong(format!("what is known of items has form {got}"))),
            }
        }
        let mut all =
            (0..count).map(|slot| words.each_ref().map(|values| u64::from_le_bytes(values[slot])));
        if !all.all(|words| items.load(words)) {
            return Err(source.wrong("the description of an item is invalid"));
        }
        left -= count;
    }
    if items.len() != head.items {
        return Err(source.wrong(format!("{} items, expected {}", items.len(), head.items)));
    }
    source.end()
}

/// The state of a selector.
fn read_words(mut source: Source, head: &Head) -> Result<Vec<u64>, Error> {
    let bytes = source.section.data_bytes();
    // Each kind saves a few words for an item at most.
    if !bytes.is_multiple_of(8) || bytes / 8 > 64 + 8 * u64::from(head.slots) {
        return Err(source.wrong(format!("the state of a selector has {bytes} bytes")));
    }
    let mut words = vec![[0; 8]; (bytes / 8) as usize];
    source.fill(words.as_flattened_mut())?;
    source.end()?;
    Ok(words.into_iter().map(u64::from_le_bytes).collect())
}

/// Puts rows where they were. Returns their runs, by their first rows; that they are items' is not known yet.
fn read_rows(
    slab: &mut Slab,
    mut runs: Source,
    mut rows: Source,
) -> Result<Vec<Range<u32>>, Error> {
    let mut all = Vec::new();
    for _ in 0..runs.section.data_bytes() / 8 {
        let (first, count) = (runs.u32()?, runs.u32()?);
        match slab.place(first, count) {
            Some(place) => rows.fill(place)?,
            None => return Err(runs.wrong(format!("there are no {count} rows from {first} on"))),
        }
        all.push(first..first + count);
    }
    runs.end()?;
    rows.end()?;
    all.sort_unstable_by_key(|run| run.start);
    Ok(all)
}
