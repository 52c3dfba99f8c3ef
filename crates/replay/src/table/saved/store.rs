//! From tables to sections.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use echoic_memory::roomy;
use echoic_memory::slab::{Order, Snapshot};

use super::{Contents, FORMAT, Head, rollouts as rollout_tables, section, unread};
use crate::Error;
use crate::checkpoint::{Summary, Writer};
use crate::codec::write_formatted;
use crate::table::Table;
use crate::table::core::Payload;
use crate::table::durable::EffectLog;
use crate::table::items::{self, Item};
use crate::table::pinned::{self, PinnedTrajectories};
use crate::table::sessions::{Session, Sessions};
use crate::trajectory::{Signature, Trajectory};

/// How many rows or words are written at a time, and about how many bytes of rows, for which a slab is locked.
const ROWS: usize = 8192;
const ROW_BYTES: usize = 4 << 20;

/// How many trajectories are taken at a time.
const TRAJECTORIES: usize = 512;

/// A table at one moment.
struct Moment {
    head: Head,
    items: Vec<Item>,
    sampler: Vec<u64>,
    remover: Vec<u64>,
    sessions: Vec<Session>,
    payload: Saved,
}

enum Saved {
    Rows(Snapshot),
    Trajectories(Kept),
}

/// The trajectories of one moment, which their table keeps until they are taken or this is dropped.
struct Kept {
    table: Arc<Table>,
}

impl Kept {
    /// The next about `count` of them, in any order; empty when there are no more.
    fn take(&self, count: usize) -> Vec<pinned::Kept> {
        let mut taken = Vec::with_capacity(count + 64);
        let core = &mut *self.table.lock();
        if let (Some(pinned), Payload::Trajectories { slots, .. }) =
            (&mut core.pinned, &core.payload)
        {
            pinned.take(slots, count, &mut taken);
        }
        taken
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let rest = self.table.lock().pinned.take();
        drop(rest);
    }
}

/// Writes all tables as a checkpoint of `root`, rollout tables among them, and the samples of a stream that
/// were not read yet, with something to be known about it. Files of journals that it makes superfluous are removed
/// then: with older checkpoints the journals can't be replayed.
///
/// # Errors
///
/// Any [`Error`]; then there is no new checkpoint.
pub fn save<'a>(
    contents: impl Into<Contents<'a>>,
    root: impl AsRef<Path>,
    metadata: &[(&str, &str)],
) -> Result<Summary, Error> {
    let Contents { tables, stream, rollouts } = contents.into();
    let mut writer = Writer::begin(root)?;
    for (key, value) in metadata {
        writer.describe(*key, *value);
    }
    writer.describe("tables", tables.all().len().to_string());
    // All moments first, so that they are as close together as they can be.
    let moments = tables.all().iter().map(Moment::of).collect::<Result<Vec<_>, _>>()?;
    let rollout_moments = rollout_tables::moments(rollouts);
    if let Some(stream) = stream {
        let taken = stream.unread().map_err(Error::of_stream)?;
        unread::write(stream, &taken, &mut writer)?;
    }
    let cuts: Vec<Option<u64>> =
        moments.iter().map(|moment| moment.head.journal.as_ref().map(|(_, next)| *next)).collect();
    for (number, moment) in moments.into_iter().enumerate() {
        moment.write(number, &mut writer)?;
    }
    rollout_tables::write(&rollout_moments, &mut writer)?;
    let summary = writer.commit()?;
    for (table, cut) in tables.all().iter().zip(cuts) {
        if let (Some(log), Some(cut)) = (table.log(), cut) {
            // Files that can't be removed now are removed after the next checkpoint.
            let _ = log.journal().truncate_before(cut);
        }
    }
    rollout_tables::write_own(rollouts)?;
    Ok(summary)
}

impl Moment {
    fn of(table: &Arc<Table>) -> Result<Self, Error> {
        let config = table.config();
        // Memory is had before the lock is: to get it from the system takes as long as to fill it.
        let slots = table.lock().items.slots() as usize;
        let mut sampler = touched::<u64>(slots / 2 + 1);
        let mut remover = touched::<u64>(slots / 2 + 1);
        let mut items = touched::<Item>(slots);
        let core = &mut *table.lock();
        let busy = || Error::of_table(&config.name, "it is being saved already");
        let (payload, order) = match &core.payload {
            Payload::Rows(slab) => {
                let snapshot = slab.snapshot().ok_or_else(busy)?;
                let order = snapshot.order().clone();
                (Saved::Rows(snapshot), order)
            }
            Payload::Trajectories { slots, free } => {
                let used = slots.len() as u32;
                let order = Order { used, free: free.clone(), freed: Vec::new() };
                if core.pinned.is_some() {
                    return Err(busy());
                }
                core.pinned = Some(PinnedTrajectories::of(slots));
                (Saved::Trajectories(Kept { table: Arc::clone(table) }), order)
            }
        };
        core.sampler.save(&mut sampler);
        core.remover.save(&mut remover);
        items.extend_from_slice(core.items.all());
        let sessions = core.sessions.all();
        core.sessions.report_anew();
        let head = Head {
            config: config.clone(),
            counts: core.gate.counts,
            unique_samples: core.unique_samples,
            deleted_episodes: core.episodes.deleted,
            rng: core.rng.state(),
            policy_version: core.version,
            slots: core.items.slots(),
            items: core.items.len(),
            order,
            signatures: Vec::new(),
            // In the same moment as the rest: what comes later is recorded after this.
            journal: table.effects().map(EffectLog::cut),
        };
        Ok(Self { head, items, sampler, remover, sessions, payload })
    }

    fn write(mut self, number: usize, writer: &mut Writer) -> Result<(), Error> {
        let mut bytes = Vec::new();
        writer.put_section(&section(number, "items"), |out| {
            self.items.chunks(items::GROUP).try_for_each(|group| {
                bytes.clear();
                items::write(group, &mut bytes);
                out.write_all(&bytes)
            })
        })?;
        for (name, words) in [("sampler", &self.sampler), ("remover", &self.remover)] {
            if !words.is_empty() {
                writer.put_section(&section(number, name), |out| {
                    words.chunks(ROWS).try_for_each(|words| {
                        let words = words.iter().map(|word| word.to_le_bytes());
                        out.write_all(words.collect::<Vec<_>>().as_flattened())
                    })
                })?;
            }
        }
        let sessions = Sessions::write(std::mem::take(&mut self.sessions));
        if !sessions.is_empty() {
            writer.put_section(&section(number, "sessions"), |out| out.write_all(&sessions))?;
        }
        match &mut self.payload {
            Saved::Rows(snapshot) => {
                let count = (ROW_BYTES / snapshot.row_bytes().max(1)).clamp(1, ROWS);
                let mut runs: Vec<[u32; 2]> = Vec::new();
                writer.put_section(&section(number, "rows"), |out| {
                    while snapshot.advance(count) {
                        for (rows, bytes) in snapshot.runs() {
                            out.write_all(bytes)?;
                            match runs.last_mut() {
                                Some([first, count]) if *first + *count == rows[0] => {
                                    *count += rows.len() as u32;
                                }
                                _ => runs.push([rows[0], rows.len() as u32]),
                            }
                        }
                    }
                    Ok(())
                })?;
                writer.put_section(&section(number, "runs"), |out| {
                    let words = runs.iter().flatten().map(|word| word.to_le_bytes());
                    out.write_all(words.collect::<Vec<_>>().as_flattened())
                })?;
            }
            Saved::Trajectories(kept) => {
                let (mut items, mut bytes) = (Vec::new(), Vec::new());
                loop {
                    let taken = kept.take(TRAJECTORIES);
                    if taken.is_empty() {
                        break;
                    }
                    for slice in taken.iter().flat_map(|(_, trajectory)| trajectory.slices()) {
                        let key = slice.chunk.key().0;
                        if !writer.refer(key)? {
                            bytes.clear();
                            slice.chunk.write(&mut bytes);
                            writer.blob(key, &bytes)?;
                        }
                    }
                    items.extend(taken);
                }
                let signatures = &mut Signatures::default();
                writer.put_section(&section(number, "trajectories"), |out| {
                    items.iter().try_for_each(|(slot, one)| {
                        out.write_all(&slot.to_le_bytes())?;
                        write_trajectory(out, one, signatures)
                    })
                })?;
                self.head.signatures = std::mem::take(&mut signatures.all);
            }
        }
        let head = write_formatted(FORMAT, &self.head);
        writer.put_section(&section(number, "head"), |out| out.write_all(&head))?;
        Ok(())
    }
}

/// An empty vector whose memory for this many values is there.
fn touched<T: Copy + Default>(len: usize) -> Vec<T> {
    let mut vector = roomy(len);
    vector.resize(len, T::default());
    vector.clear();
    vector
}

/// Signatures by number, each once.
#[derive(Default)]
struct Signatures {
    all: Vec<Arc<Signature>>,
    /// Those that many trajectories share are found by their address.
    numbers: HashMap<*const Signature, u32>,
}

impl Signatures {
    fn number(&mut self, signature: &Arc<Signature>) -> u32 {
        if let Some(number) = self.numbers.get(&Arc::as_ptr(signature)) {
            return *number;
        }
        let known = self.all.iter().position(|other| other == signature);
        let number = known.unwrap_or_else(|| {
            self.all.push(Arc::clone(signature));
            self.all.len() - 1
        });
        // Only the address of one that is kept in `all` stays its own.
        if known.is_none() {
            self.numbers.insert(Arc::as_ptr(signature), number as u32);
        }
        number as u32
    }
}

fn write_trajectory(
    out: &mut impl Write,
    trajectory: &Trajectory,
    signatures: &mut Signatures,
) -> std::io::Result<()> {
    out.write_all(&signatures.number(trajectory.signature()).to_le_bytes())?;
    for column in 0..trajectory.signature().columns.len() {
        let slices = trajectory.column(column);
        out.write_all(&(slices.len() as u32).to_le_bytes())?;
        for slice in slices {
            out.write_all(&slice.chunk.key().0.to_le_bytes())?;
            out.write_all(&slice.offset.to_le_bytes())?;
            out.write_all(&slice.len.to_le_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::files::faults;
    use crate::rollouts::schema::{Column, Schema};
    use crate::rollouts::{RolloutConfig, RolloutTable};
    use crate::table::{Form, TableConfig, Tables};
    use crate::{Dtype, Leaf, Spec};

    #[test]
    fn a_disk_that_is_full_at_any_moment_is_what_the_error_says() {
        let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(1), shape: vec![100_000] };
        let form = Form::Rows(Spec::new(vec![leaf]).unwrap());
        let table = Arc::new(Table::new(TableConfig::new("t", form, 20)).unwrap());
        // More than a block of a file, so that writes fail while rows are read, too.
        let insertion = table.try_reserve(20).unwrap();
        insertion.commit(&[1.0; 20], None).unwrap();
        let tables = Tables::new(vec![table]).unwrap();
        let columns = vec![Column { name: "ids".into(), dtype: Dtype::UInt(1), shape: vec![] }];
        let schema = Schema { columns, ..Schema::default() };
        let config = RolloutConfig::new("r", schema, 1, 2);
        let rollouts = RolloutTable::new(config).unwrap();
        let rollouts = [Arc::new(rollouts)];
        for steps in 0.. {
            let parent = tempfile::tempdir().unwrap();
            let _armed = faults::arm(parent.path(), steps, ErrorKind::StorageFull);
            let contents = Contents { tables: &tables, stream: None, rollouts: &rollouts };
            match save(contents, parent.path().join("root"), &[]) {
                Ok(_) => {
                    assert!(steps > 20, "the disk was full too seldom: {steps}");
                    break;
                }
                Err(Error::File(error)) => {
                    assert_eq!(error.source.kind(), ErrorKind::StorageFull, "step {steps}");
                }
                Err(error) => panic!("step {steps}: {error}"),
            }
        }
    }
}
