//! From the entries of a journal to their table.

use std::collections::HashMap;
use std::sync::Arc;

use echoic_memory::slab::Slab;

use super::super::core::{Core, DeferredDrops, Payload, rows};
use super::super::key::Key;
use super::super::{Form, TableConfig};
use super::entry::{Effect, Entry, Sent, SliceOf};
use super::shared::ChunkDirectory;
use crate::chunk::{Chunk, ChunkKey, Slice};
use crate::kinds::Kinds;
use crate::names::ByName;
use crate::selectors::{Entry as Member, Slot};
use crate::table::sessions::{MAX_SESSIONS, Origin, Producer};
use crate::trajectory::{Sharing, Signature, Trajectory};

/// A table on its way back; see the [module](self).
pub(super) struct Replayer<'a, 'b> {
    config: &'a TableConfig,
    core: Core,
    shared: &'a mut ChunkDirectory<'b>,
    kinds: Kinds,
    /// What entries may name.
    chunks: ByName<Arc<Chunk>>,
    forms: HashMap<u32, Arc<Signature>>,
    sharing: Sharing,
    sessions: HashMap<u32, (Producer, u64)>,
    /// A form number that was not used.
    next_form: u32,
    /// Slots that there may be.
    most_slots: u32,
    /// Slots that there were.
    used: u32,
    deferred: DeferredDrops,
}

impl<'a, 'b> Replayer<'a, 'b> {
    /// Goes on from a table as it was in a checkpoint, or as it is when it is new.
    pub(super) fn new(
        config: &'a TableConfig,
        mut core: Core,
        shared: &'a mut ChunkDirectory<'b>,
    ) -> Self {
        let used = core.items.slots();
        // Draws are not repeated, only what came of them: selectors are not asked before the end.
        core.sampler.unsettle();
        core.remover.unsettle();
        Self {
            config,
            core,
            shared,
            kinds: Kinds::default(),
            chunks: ByName::default(),
            forms: HashMap::new(),
            sharing: Sharing::default(),
            sessions: HashMap::new(),
            next_form: 0,
            most_slots: rows(config.capacity),
            used,
            deferred: DeferredDrops::new(),
        }
    }

    /// Applies a record.
    ///
    /// # Errors
    ///
    /// Why it can't be: then nothing that this has made may be used.
    pub(super) fn apply(&mut self, record: &[u8]) -> Result<(), String> {
        match Entry::read(record).map_err(|error| error.to_string())? {
            Entry::Rows { row_bytes, priorities, rows, effects, sent } => {
                let expected = match &self.config.form {
                    Form::Rows(spec) => spec.nbytes(),
                    Form::Trajectories(_) => return Err("it has rows, the table has none".into()),
                };
                if row_bytes != expected {
                    return Err(format!("its rows have {row_bytes} bytes, expected {expected}"));
                }
                for (index, (effect, priority)) in effects.iter().zip(&priorities).enumerate() {
                    let start = index * row_bytes;
                    let row = rows.get(start..start + row_bytes).unwrap_or_default();
                    self.place_row(effect.key, row)?;
                    self.enter(effect, *priority)?;
                }
                self.credit(sent, effects.len())?;
            }
            Entry::Item { form, priority, slices, ends, effect, sent } => {
                let trajectory = self.trajectory(form, &slices, &ends)?;
                self.place_trajectory(effect.key, trajectory)?;
                self.enter(&effect, priority)?;
                self.credit(sent, 1)?;
            }
            Entry::Session { number, producer, epoch } => {
                if number as usize >= MAX_SESSIONS {
                    return Err(format!("session {number} is one of at most {MAX_SESSIONS}"));
                }
                self.sessions.insert(number, (producer, epoch));
            }
            Entry::Chunk { key, bytes } => self.learn(key, bytes)?,
            Entry::Form { number, signature } => {
                self.forms.insert(number, Arc::new(signature));
                self.next_form = self.next_form.max(number.saturating_add(1));
            }
            Entry::Removed { keys } => {
                for key in keys {
                    // As then, those that had gone are passed over.
                    if let Some(slot) = self.core.items.find(Key::from_number(key)) {
                        self.core.forget(slot);
                        self.clear(slot);
                    }
                }
            }
            Entry::Updated { keys, priorities } => {
                self.core.update(&keys, &priorities);
            }
            Entry::Sampled { count, keys } => {
                self.core.gate.counts.samples = self.core.gate.counts.samples.saturating_add(count);
                for (key, gone) in keys {
                    let slot = self.find(Key::from_number(key))?;
                    self.core.unique_samples += u64::from(self.core.items.note_sample(slot) == 1);
                    if gone {
                        self.core.forget(slot);
                        self.clear(slot);
                    }
                }
            }
            Entry::Reset => {
                let live: Vec<Slot> = self.core.items.live().collect();
                self.core.sampler.clear();
                self.core.remover.clear();
                for slot in live {
                    self.core.items.remove(slot);
                    self.clear(slot);
                }
                self.core.gate.counts = Default::default();
                self.core.unique_samples = 0;
                self.core.episodes.deleted = 0;
            }
            Entry::Version(version) => {
                self.core.advance(version);
            }
            Entry::Forget => {
                self.chunks.clear();
                self.forms.clear();
                self.shared.sweep();
            }
        }
        // Nobody holds a lock here.
        self.deferred.clear();
        Ok(())
    }

    /// The table, and a number of which no form was recorded.
    ///
    /// # Errors
    ///
    /// When it has more than it may have.
    pub(super) fn finish(mut self) -> Result<(Core, u32), String> {
        let (items, most) = (self.core.items.len(), self.config.capacity);
        if items > most {
            return Err(format!("there were {items} items, capacity is {most}"));
        }
        self.settle();
        let items = &self.core.items;
        match &mut self.core.payload {
            Payload::Rows(slab) => {
                let used = self.used.max(slab.used());
                let settle = |slab: &mut Slab| slab.settle(items.live(), used);
                let settled = Arc::get_mut(slab).is_some_and(settle);
                debug_assert!(settled, "slots were checked when they were filled");
            }
            Payload::Trajectories { slots, free } => {
                // The last comes first.
                let empty = slots.iter().enumerate().rev().filter(|(_, one)| one.is_none());
                *free = empty.map(|(slot, _)| slot as Slot).collect();
            }
        }
        Ok((self.core, self.next_form))
    }

    /// The table, when nothing was replayed.
    pub(super) fn into_core(mut self) -> Core {
        self.settle();
        self.core
    }

    fn settle(&mut self) {
        // What the journal has so far is of its last opening.
        self.core.sessions.report_anew();
        self.core.sampler.settle();
        self.core.remover.settle();
    }

    fn find(&self, key: Key) -> Result<Slot, String> {
        let found = self.core.items.find(key);
        found.ok_or_else(|| format!("there is no item {:#x}", key.number()))
    }

    fn check_slot(&self, key: Key) -> Result<(), String> {
        if key.slot() >= self.most_slots {
            let (slot, most) = (key.slot(), self.most_slots);
            return Err(format!("an item was in slot {slot}, and the table has {most}"));
        }
        if self.core.items.is_taken(key.slot()) {
            return Err(format!("there is an item where {:#x} was put", key.number()));
        }
        Ok(())
    }

    fn place_row(&mut self, key: Key, row: &[u8]) -> Result<(), String> {
        self.check_slot(key)?;
        let Payload::Rows(slab) = &mut self.core.payload else {
            return Err("it has a row, the table has trajectories".into());
        };
        let place = Arc::get_mut(slab).and_then(|slab| slab.place(key.slot(), 1));
        match place {
            Some(place) if place.len() == row.len() => place.copy_from_slice(row),
            _ => return Err(format!("there is no row {}", key.slot())),
        }
        Ok(())
    }

    fn place_trajectory(&mut self, key: Key, trajectory: Trajectory) -> Result<(), String> {
        self.check_slot(key)?;
        if let Form::Trajectories(Some(spec)) = &self.config.form {
            trajectory.check(spec)?;
        }
        let Payload::Trajectories { slots, .. } = &mut self.core.payload else {
            return Err("it has a trajectory, the table has rows".into());
        };
        let index = key.slot() as usize;
        if index >= slots.len() {
            slots.resize(index + 1, None);
        }
        if let Some(place) = slots.get_mut(index) {
            self.core.episodes.enter(&trajectory);
            *place = Some(trajectory);
        }
        Ok(())
    }

    /// Counts an item in whose payload is there, and out the one that was removed for it.
    fn enter(&mut self, effect: &Effect, priority: f64) -> Result<(), String> {
        let Effect { key, version, gone } = *effect;
        if !self.core.items.place(key, priority, version) {
            return Err(format!("{:#x} is no key", key.number()));
        }
        self.used = self.used.max(key.slot() + 1);
        let member = Member { priority, version };
        self.core.sampler.insert(key.slot(), member);
        self.core.remover.insert(key.slot(), member);
        self.core.gate.counts.inserts += 1;
        if let Some(gone) = gone {
            let slot = self.find(gone)?;
            self.core.forget(slot);
            self.clear(slot);
        }
        Ok(())
    }

    /// Takes note of whose operations this many items were.
    fn credit(&mut self, sent: Option<Sent>, count: usize) -> Result<(), String> {
        let Some(Sent { session, number }) = sent else { return Ok(()) };
        let known = self.sessions.get(&session);
        let (producer, epoch) =
            *known.ok_or_else(|| format!("session {session} was not recorded"))?;
        // One that had been forgotten may have sent again what is here.
        self.core.sessions.advance(&Origin { producer, epoch, number }, count as u64);
        Ok(())
    }

    /// Lets go of what an item had. Rows are sorted out at the end.
    fn clear(&mut self, slot: Slot) {
        if let Payload::Trajectories { slots, .. } = &mut self.core.payload
            && let Some(place) = slots.get_mut(slot as usize)
        {
            let left = place.take();
            if let Some(left) = &left {
                self.core.episodes.leave(left);
            }
            self.deferred.extend(left);
        }
    }

    fn learn(&mut self, key: u128, bytes: &[u8]) -> Result<(), String> {
        if self.chunks.contains_key(&key) {
            return Ok(());
        }
        if let Some(known) = self.shared.get(key) {
            self.chunks.insert(key, known);
            return Ok(());
        }
        let share = |kind| self.kinds.share(kind);
        let (chunk, used) = Chunk::read_as(bytes, share).map_err(|error| error.to_string())?;
        if used != bytes.len() {
            return Err(format!("{} bytes are behind a chunk", bytes.len() - used));
        }
        let chunk = Arc::new(chunk.known_as(ChunkKey(key)));
        self.shared.insert(key, &chunk);
        self.chunks.insert(key, chunk);
        Ok(())
    }

    fn trajectory(
        &mut self,
        form: u32,
        slices: &[SliceOf],
        ends: &[u32],
    ) -> Result<Trajectory, String> {
        let signature = self.forms.get(&form);
        let signature = signature.ok_or_else(|| format!("form {form} was not recorded"))?;
        let mut found = Vec::with_capacity(slices.len());
        for slice in slices {
            let chunk = self.chunks.get(&slice.chunk);
            let chunk = chunk.ok_or_else(|| format!("chunk {:x} was not recorded", slice.chunk))?;
            found.push(Slice { chunk: Arc::clone(chunk), offset: slice.offset, len: slice.len });
        }
        let trajectory = Trajectory::joined(Arc::clone(signature), found.into(), ends);
        trajectory.map(|one| self.sharing.share(one)).map_err(|error| error.to_string())
    }
}
