//! What a subscriber says and hears: a [`Pipeline`] of its I/O thread.
//!
//! It asks for the next publication, receives it into a publication builder of its own store, or maps the server's memory,
//! and asks again. Chunks are read to where they belong.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Instant;

use echoic_memory::shared_buffer::SharedBufferView;
use echoic_replay::weights::{
    ChunkForm, Claim, Content, MAX_BYTES, Plan, Publication, PublicationBuilder, WeightsError, sum,
};

use super::subscriber::{Loan, SubscriberState};
use crate::address::Address;
use crate::client::io_thread::Pipeline;
use crate::client::link::{ClientHandshake, LinkError};
use crate::wire::WireError;
use crate::wire::frame::{HEADER_BYTES, Header, kind};
use crate::wire::handshake::{Open, Purpose, Welcome};
use crate::wire::weights::{
    self, Announcement, CHUNK_HEAD, ChunkOf, Form, MAX_REGIONS, Region, Want, read_serial,
    write_serial,
};
use crate::write_buffer::WriteBuffer;

/// Where a question stands.
enum Question {
    /// None is asked.
    Idle,
    /// There is a place for what comes, and what is there to be sent no more.
    Asked { claim: Claim, base: Option<Arc<Publication>> },
    /// Chunks come.
    Receiving {
        builder: PublicationBuilder,
        came: Vec<bool>,
        /// Those that could not be made of what changed.
        failed: BTreeSet<usize>,
        base: Option<Arc<Publication>>,
        serial: u64,
    },
}

/// The payload of a CHUNK that is being read: first its head, then its bytes to their place.
struct Chunk {
    head: [u8; CHUNK_HEAD as usize],
    /// What of the head is to come.
    rest_of_head: Range<usize>,
    index: u32,
    sum: u64,
    form: ChunkForm,
    /// What of the publication's bytes is to come, or of what changed; of no meaning before the head is there.
    rest: Range<usize>,
    len: usize,
    /// What changed, if it is not whole.
    delta: Vec<u8>,
}

/// See the [module](self).
pub(super) struct WeightFollower {
    shared: Arc<SubscriberState>,
    waker: Waker,
    /// The server, and the last publication of it that came whole.
    instance: Option<[u8; 16]>,
    after: u64,
    /// How many publications have come.
    came: u64,
    question: Question,
    /// Chunks to ask for as they are, since they could not be made of what changed: no sum is sent for them.
    whole: BTreeSet<usize>,
    chunk: Option<Chunk>,
    /// The server's memory, by region; the last one last.
    regions: VecDeque<(u64, Arc<SharedBufferView>)>,
    files: VecDeque<OwnedFd>,
}

impl WeightFollower {
    pub(super) fn new(shared: Arc<SubscriberState>, waker: Waker) -> Self {
        Self {
            shared,
            waker,
            instance: None,
            after: 0,
            came: 0,
            question: Question::Idle,
            whole: BTreeSet::new(),
            chunk: None,
            regions: VecDeque::new(),
            files: VecDeque::new(),
        }
    }

    /// Whether the next publication is to be asked for: there is a place for it.
    fn asks(&self) -> bool {
        let store = &self.shared.store;
        matches!(self.question, Question::Idle) && store.has_room() && !store.is_closed()
    }

    /// Asks for the next publication.
    fn ask(&mut self, out: &mut WriteBuffer) {
        let store = &self.shared.store;
        // A store that is closed is found out in the next round.
        let Ok(claim) = store.claim(0) else { return };
        let base = store
            .latest()
            .filter(|base| base.content().is_some_and(|content| content.bytes().is_some()));
        let content = base.as_ref().and_then(|base| base.content());
        let sums = content.map(|content| {
            let sums = (0..content.plan().chunks()).map_while(|index| content.sum(index));
            let sums = sums.enumerate();
            sums.map(|(index, sum)| if self.whole.contains(&index) { 0 } else { sum }).collect()
        });
        let want = Want { after: self.after, sums: sums.unwrap_or_default() };
        out.write(|out| want.write(out));
        self.question = Question::Asked { claim, base };
    }

    fn take_region(&mut self, region: Region) -> Result<(), LinkError> {
        let missing = || LinkError::Memory("a region came without its memory".into());
        let file = self.files.pop_front().ok_or_else(missing)?;
        let len = usize::try_from(region.len).ok().filter(|len| *len / 8 <= MAX_BYTES);
        let limit = 8 * MAX_BYTES as u64;
        let field = "bytes of a region";
        let len = len.ok_or(WireError::too_large(field, limit, region.len))?;
        let view = SharedBufferView::attach(file, len);
        let view = view.map_err(|error| LinkError::Memory(error.to_string()))?;
        self.regions.push_back((region.id, Arc::new(view)));
        if self.regions.len() > MAX_REGIONS {
            self.regions.pop_front();
        }
        Ok(())
    }

    fn take_announcement(&mut self, announcement: Announcement) -> Result<(), LinkError> {
        let Announcement { serial, version, form } = announcement;
        let Question::Asked { claim, base } = std::mem::replace(&mut self.question, Question::Idle)
        else {
            let expected = "PUBLICATION after a WANT";
            return Err(WireError::Unexpected { expected, got: kind::PUBLICATION }.into());
        };
        let store = &self.shared.store;
        match form {
            Form::Alone => {
                // A store that is closed is found out in the next round; here and below.
                let _ = store.publish_version(version);
            }
            Form::Memory { plan, region } => {
                let found = self.regions.iter().find(|(id, _)| *id == region);
                let view = found.map(|(_, view)| Arc::clone(view));
                let loan = Loan {
                    shared: Arc::downgrade(&self.shared),
                    connection: self.shared.connection(),
                    serial,
                };
                let plan = self.known(plan);
                let content = view.and_then(|view| Content::lent(plan, view, Box::new(loan)));
                let content = content.ok_or_else(|| {
                    LinkError::Memory("a publication lies outside what was handed over".into())
                })?;
                let _ = store.publish_lent(version, content);
            }
            Form::Chunks(plan) => {
                let plan = self.known(plan);
                let builder = claim.retarget(version).try_build(&plan);
                let builder = builder.map_err(no_memory)?;
                let builder = builder.ok_or_else(|| {
                    LinkError::Lost("the place for the weights was taken meanwhile".into())
                })?;
                let came = vec![false; plan.chunks()];
                let failed = BTreeSet::new();
                self.question = Question::Receiving { builder, came, failed, base, serial };
                return Ok(());
            }
        }
        self.note_came(serial);
        Ok(())
    }

    /// The plan of the latest publication, if it is this one, so that users need not build their tree again.
    fn known(&self, plan: Plan) -> Arc<Plan> {
        let latest = self.shared.store.latest();
        let known = latest.as_ref().and_then(|latest| latest.content());
        match known.map(Content::plan) {
            Some(known) if **known == plan => Arc::clone(known),
            _ => Arc::new(plan),
        }
    }

    /// Finds the place of the chunk whose head has come.
    fn find_place(&mut self) -> Result<(), LinkError> {
        let Some(chunk) = &mut self.chunk else { return Ok(()) };
        let ChunkOf { index, sum, form, .. } = ChunkOf::read(&chunk.head)?;
        let Question::Receiving { builder, .. } = &self.question else { return Ok(()) };
        let range = builder.plan().chunk(index as usize);
        let fits = |range: &Range<usize>| match form {
            ChunkForm::Whole => range.len() == chunk.len,
            _ => range.len() > chunk.len && !self.whole.contains(&(index as usize)),
        };
        let missing = WireError::meaningless("number, form or length of a chunk", index.into());
        chunk.rest = range.filter(fits).ok_or(missing)?;
        builder.reserve(index as usize).map_err(no_memory)?;
        (chunk.index, chunk.sum, chunk.form) = (index, sum, form);
        if form != ChunkForm::Whole {
            chunk.delta = vec![0; chunk.len];
            chunk.rest = 0..chunk.len;
        }
        Ok(())
    }

    /// Checks a chunk that has come.
    fn end_chunk(&mut self) -> Result<(), WireError> {
        let Some(chunk) = self.chunk.take() else { return Ok(()) };
        let Chunk { index, sum: expected, form, delta, .. } = chunk;
        let Question::Receiving { builder, came, failed, base, .. } = &mut self.question else {
            return Ok(());
        };
        let place = index as usize;
        if form == ChunkForm::Whole {
            let bytes = builder.chunk_mut(place).unwrap_or_default();
            let found = sum(bytes);
            ChunkOf { index, sum: expected, form, bytes }.check(expected, found)?;
            builder.set_sum(place, found);
        } else {
            let there = base.as_ref().and_then(|base| base.content()?.chunk(place));
            if !there.is_some_and(|there| builder.patch(place, (form, &delta), there, expected)) {
                failed.insert(place);
            }
        }
        if let Some(came) = came.get_mut(place) {
            *came = true;
        }
        Ok(())
    }

    /// Publishes what has come, with what did not come since it was there.
    fn finish(&mut self, ended: u64) -> Result<(), LinkError> {
        let question = std::mem::replace(&mut self.question, Question::Idle);
        let Question::Receiving { mut builder, came, failed, base, serial } = question else {
            let expected = "END after a PUBLICATION";
            return Err(WireError::Unexpected { expected, got: kind::END }.into());
        };
        if ended != serial {
            let field = "number of a publication";
            return Err(WireError::Sequence { field, expected: serial, got: ended }.into());
        }
        if !failed.is_empty() {
            // It is asked for again, with those as they are.
            self.whole = failed;
            return Ok(());
        }
        let content = base.as_ref().and_then(|base| base.content());
        for (index, _) in came.iter().enumerate().filter(|(_, came)| !**came) {
            let there = content.and_then(|base| Some((base.chunk(index)?, base.sum(index)?)));
            builder.reserve(index).map_err(no_memory)?;
            if !there.is_some_and(|(bytes, sum)| builder.put(index, bytes, sum)) {
                let field = "number of a chunk that did not come";
                return Err(WireError::meaningless(field, index as u64).into());
            }
        }
        drop(base);
        let _ = builder.publish();
        self.note_came(serial);
        Ok(())
    }

    /// A publication has come whole.
    fn note_came(&mut self, serial: u64) {
        self.after = serial;
        self.came += 1;
        self.whole.clear();
    }

    fn count(&self, header: Header) {
        let bytes = HEADER_BYTES as u64 + u64::from(header.len);
        self.shared.received.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn no_memory(error: WeightsError) -> LinkError {
    LinkError::Memory(error.to_string())
}

impl Pipeline for WeightFollower {
    const TAKES_FILES: bool = true;

    fn open(&mut self, _address: &Address) -> Open {
        // What had begun to come does not go on, and takes no place in the store while the server is away.
        (self.question, self.chunk) = (Question::Idle, None);
        self.whole.clear();
        self.regions.clear();
        self.files.clear();
        self.shared.reconnector.open(Purpose::Weights, 0, None)
    }

    fn resume(&mut self, welcome: Welcome) -> Result<(), LinkError> {
        if self.instance.replace(welcome.instance) != Some(welcome.instance) {
            self.after = 0;
        }
        self.shared.connection.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn receive(&mut self, handshake: &mut ClientHandshake) -> Result<(), LinkError> {
        self.files.extend(handshake.memory.take());
        Ok(())
    }

    fn is_delivered(&self) -> bool {
        true
    }

    fn acknowledged(&self) -> u64 {
        self.came
    }

    fn is_due(&mut self, _now: Instant) -> bool {
        self.asks() || self.shared.has_releases()
    }

    fn await_ring(&mut self, _now: Instant) -> Option<Instant> {
        if let Question::Idle = self.question {
            self.shared.store.wake_later(&self.waker);
        }
        None
    }

    fn fill(&mut self, out: &mut WriteBuffer) {
        if self.asks() {
            self.ask(out);
        }
        for serial in self.shared.releases() {
            out.write(|out| write_serial(out, kind::RELEASE_WEIGHTS, serial));
        }
    }

    fn limit(&self, kind: u8) -> Option<u32> {
        weights::most(kind)
    }

    fn take(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        self.count(header);
        match header.kind {
            kind::PUBLICATION => self.take_announcement(Announcement::read(payload)?),
            kind::END => self.finish(read_serial(payload)?),
            kind::CUT => {
                read_serial(payload)?;
                // What is asked for next is the latest.
                self.question = Question::Idle;
                Ok(())
            }
            kind::REGION => self.take_region(Region::read(payload)?),
            got => {
                let expected = "a frame about weights, and CHUNK after a PUBLICATION only";
                Err(WireError::Unexpected { expected, got }.into())
            }
        }
    }

    fn take_file(&mut self, file: OwnedFd) -> Result<(), LinkError> {
        self.files.push_back(file);
        if self.files.len() > MAX_REGIONS {
            return Err(LinkError::Memory("more came than belongs to frames".into()));
        }
        Ok(())
    }

    fn begin_large(&mut self, header: Header) -> bool {
        let is_chunk = header.kind == kind::CHUNK_OF_WEIGHTS && header.len > CHUNK_HEAD;
        if !is_chunk || !matches!(self.question, Question::Receiving { .. }) {
            return false;
        }
        self.count(header);
        let (head, len) = ([0; CHUNK_HEAD as usize], (header.len - CHUNK_HEAD) as usize);
        let (rest_of_head, rest) = (0..head.len(), 0..0);
        let (form, delta) = (ChunkForm::Whole, Vec::new());
        self.chunk = Some(Chunk { head, rest_of_head, index: 0, sum: 0, form, rest, len, delta });
        true
    }

    fn place(&mut self) -> &mut [u8] {
        let Some(chunk) = &mut self.chunk else { return &mut [] };
        if !chunk.rest_of_head.is_empty() {
            return &mut chunk.head[chunk.rest_of_head.clone()];
        }
        if chunk.form != ChunkForm::Whole {
            return chunk.delta.get_mut(chunk.rest.clone()).unwrap_or_default();
        }
        let Question::Receiving { builder, .. } = &mut self.question else { return &mut [] };
        builder.bytes_mut().get_mut(chunk.rest.clone()).unwrap_or_default()
    }

    fn placed(&mut self, bytes: usize) -> Result<(), LinkError> {
        let Some(chunk) = &mut self.chunk else { return Ok(()) };
        if !chunk.rest_of_head.is_empty() {
            chunk.rest_of_head.start += bytes;
            return if chunk.rest_of_head.is_empty() { self.find_place() } else { Ok(()) };
        }
        chunk.rest.start += bytes;
        if chunk.rest.is_empty() { Ok(self.end_chunk()?) } else { Ok(()) }
    }
}

impl Drop for WeightFollower {
    /// Nothing more comes.
    fn drop(&mut self) {
        self.shared.store.close();
    }
}
