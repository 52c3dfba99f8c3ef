//! What a subscriber says and hears on one connection.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use echoic_memory::shared_buffer::SharedBufferView;
use echoic_replay::weights::{
    Claim, Content, MAX_BYTES, Plan, Publication, PublicationBuilder, sum,
};
use rustix::event::{PollFd, PollFlags, poll};

use super::subscriber::{Loan, Shared};
use crate::client::link::{self, ClientHandshake, LinkError, timespec};
use crate::client::reconnector::WakeReceiver;
use crate::transport::Link;
use crate::wire::WireError;
use crate::wire::frame::{Control, HEADER_BYTES, Header, MAX_CONTROL, kind};
use crate::wire::handshake::Refused;
use crate::wire::weights::{
    self, Announcement, ChunkOf, Form, MAX_CHUNK, MAX_REGIONS, Region, Want, read_serial,
    write_serial,
};
use crate::write_buffer::WriteBuffer;

/// How much is read at once: some chunks.
const BUFFER: usize = 4 * (HEADER_BYTES + MAX_CHUNK as usize);

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
        base: Option<Arc<Publication>>,
        serial: u64,
    },
}

/// See the [module](self).
pub(super) struct Feed {
    shared: Arc<Shared>,
    link: Box<dyn Link>,
    heartbeat: Duration,
    /// The last publication that came whole.
    after: u64,
    question: Question,
    /// The server's memory, by region; the last one last.
    regions: VecDeque<(u64, Arc<SharedBufferView>)>,
    files: VecDeque<OwnedFd>,
    input: Vec<u8>,
    /// How much of it is there.
    filled: usize,
    out: WriteBuffer,
    said: Instant,
    heard: Instant,
}

impl Feed {
    pub(super) fn new(
        shared: Arc<Shared>,
        handshake: ClientHandshake,
        heartbeat: Duration,
        after: u64,
    ) -> Self {
        let ClientHandshake { link, input: began, memory, .. } = handshake;
        let mut input = vec![0; BUFFER.max(began.len())];
        let filled = began.len();
        input[..filled].copy_from_slice(&began);
        let now = Instant::now();
        Self {
            shared,
            link,
            heartbeat,
            after,
            question: Question::Idle,
            regions: VecDeque::new(),
            files: memory.into_iter().collect(),
            input,
            filled,
            out: WriteBuffer::default(),
            said: now,
            heard: now,
        }
    }

    /// Talks until the client is closed or the connection is lost; why, and the last publication that came.
    pub(super) fn run(
        mut self,
        wakes: &WakeReceiver,
        waker: &Waker,
    ) -> (Result<(), LinkError>, u64) {
        let ended = self.follow(wakes, waker);
        (ended, self.after)
    }

    fn follow(&mut self, wakes: &WakeReceiver, waker: &Waker) -> Result<(), LinkError> {
        self.use_frames()?;
        loop {
            if self.shared.reconnector.is_closing() {
                // The server need not wonder.
                let text = String::new();
                self.out.write(|out| Control::Goodbye { text }.write(out));
                return self.send();
            }
            self.shared.store.wake_later(waker);
            self.ask();
            for serial in self.shared.releases() {
                self.out.write(|out| write_serial(out, kind::RELEASE_WEIGHTS, serial));
            }
            let now = Instant::now();
            if now.duration_since(self.said) >= self.heartbeat && self.out.is_empty() {
                self.out.write(|out| Control::Ping(0).write(out));
            }
            if now.duration_since(self.heard) >= self.heartbeat * 3 {
                return Err(LinkError::Lost("the server did not answer in time".into()));
            }
            self.send()?;
            self.wait(wakes)?;
            self.read()?;
        }
    }

    /// Asks for the next publication, if there is a place for it.
    fn ask(&mut self) {
        if !matches!(self.question, Question::Idle) {
            return;
        }
        let store = &self.shared.store;
        if !store.has_room() {
            return;
        }
        // A store that is closed is found out in the next round.
        let Ok(claim) = store.claim(0) else { return };
        let base = store
            .latest()
            .filter(|base| base.content().is_some_and(|content| content.bytes().is_some()));
        let content = base.as_ref().and_then(|base| base.content());
        let sums = content.map(|content| {
            (0..content.plan().chunks()).map_while(|index| content.sum(index)).collect()
        });
        let want = Want { after: self.after, sums: sums.unwrap_or_default() };
        self.out.write(|out| want.write(out));
        self.question = Question::Asked { claim, base };
    }

    fn send(&mut self) -> Result<(), LinkError> {
        if link::send(&mut *self.link, &mut self.out)? {
            self.said = Instant::now();
        }
        Ok(())
    }

    /// Waits for the link or to be woken.
    fn wait(&self, wakes: &WakeReceiver) -> Result<(), LinkError> {
        let unsent = !self.out.is_empty() || self.link.has_unflushed();
        let flags = if unsent { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut fds =
            [PollFd::from_borrowed_fd(self.link.as_fd(), flags), PollFd::new(wakes, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(self.heartbeat / 2))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if !fds[1].revents().is_empty() {
            wakes.drain();
        }
        Ok(())
    }

    /// Reads and uses what there is.
    fn read(&mut self) -> Result<(), LinkError> {
        loop {
            match self.link.read_with_memory(&mut self.input[self.filled..]) {
                Ok((0, _)) => {
                    return Err(LinkError::Lost("the server closed the connection".into()));
                }
                Ok((read, memory)) => {
                    self.filled += read;
                    self.heard = Instant::now();
                    self.shared.received.fetch_add(read as u64, Ordering::Relaxed);
                    self.files.extend(memory);
                    if self.files.len() > MAX_REGIONS {
                        return Err(LinkError::Memory("more came than belongs to frames".into()));
                    }
                    self.use_frames()?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            if self.shared.reconnector.is_closing() {
                return Ok(());
            }
        }
    }

    /// Uses whole frames.
    fn use_frames(&mut self) -> Result<(), LinkError> {
        let input = std::mem::take(&mut self.input);
        let mut used = 0;
        let result = loop {
            let rest = &input[used..self.filled];
            let header = match Header::read(rest) {
                Ok(Some(header)) => header,
                Ok(None) => break Ok(0),
                Err(error) => break Err(error.into()),
            };
            let limit = weights::most(header.kind).unwrap_or(MAX_CONTROL);
            if header.len > limit {
                let (limit, got) = (limit.into(), header.len.into());
                break Err(WireError::too_large("length of a frame", limit, got).into());
            }
            let end = HEADER_BYTES + header.len as usize;
            let Some(payload) = rest.get(HEADER_BYTES..end) else { break Ok(end) };
            if let Err(error) = self.take(header, payload) {
                break Err(error);
            }
            used += end;
        };
        self.input = input;
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
        let wanted = result?;
        if self.input.len() < wanted {
            self.input.resize(wanted, 0);
        }
        Ok(())
    }

    fn take(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        match header.kind {
            kind::PUBLICATION => self.take_announcement(Announcement::read(payload)?),
            kind::CHUNK_OF_WEIGHTS => self.take_chunk(ChunkOf::read(payload)?),
            kind::END => self.finish(read_serial(payload)?),
            kind::CUT => {
                read_serial(payload)?;
                // What was asked for next is the latest.
                self.question = Question::Idle;
                self.ask();
                Ok(())
            }
            kind::REGION => self.take_region(Region::read(payload)?),
            kind::REFUSED => Err(LinkError::Refused(Refused::read(payload)?)),
            _ => match Control::read(header, payload)? {
                Control::Ping(number) => {
                    self.out.pong(number);
                    Ok(())
                }
                Control::Goodbye { text } => Err(LinkError::Lost(text)),
                _ => Ok(()),
            },
        }
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
                self.after = serial;
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
                self.after = serial;
            }
            Form::Chunks(plan) => {
                let plan = self.known(plan);
                let builder = claim.retarget(version).try_build(&plan);
                let builder = builder.map_err(|error| LinkError::Memory(error.to_string()))?;
                let builder = builder.ok_or_else(|| {
                    LinkError::Lost("the place for the weights was taken meanwhile".into())
                })?;
                let came = vec![false; plan.chunks()];
                self.question = Question::Receiving { builder, came, base, serial };
                return Ok(());
            }
        }
        self.ask();
        Ok(())
    }

    /// The plan of the latest publication, if it is this one: whoever has built its tree need not again.
    fn known(&self, plan: Plan) -> Arc<Plan> {
        let latest = self.shared.store.latest();
        let known = latest.as_ref().and_then(|latest| latest.content());
        match known.map(Content::plan) {
            Some(known) if **known == plan => Arc::clone(known),
            _ => Arc::new(plan),
        }
    }

    fn take_chunk(&mut self, chunk: ChunkOf<'_>) -> Result<(), LinkError> {
        let Question::Receiving { builder, came, .. } = &mut self.question else {
            let expected = "CHUNK after a PUBLICATION";
            return Err(WireError::Unexpected { expected, got: kind::CHUNK_OF_WEIGHTS }.into());
        };
        chunk.check(chunk.sum, sum(chunk.bytes))?;
        let index = chunk.index as usize;
        if !builder.put(index, chunk.bytes, chunk.sum) {
            let field = "number or length of a chunk";
            return Err(WireError::meaningless(field, chunk.index.into()).into());
        }
        if let Some(came) = came.get_mut(index) {
            *came = true;
        }
        Ok(())
    }

    /// Publishes what has come, with what did not come since it was there.
    fn finish(&mut self, ended: u64) -> Result<(), LinkError> {
        let question = std::mem::replace(&mut self.question, Question::Idle);
        let Question::Receiving { mut builder, came, base, serial } = question else {
            let expected = "END after a PUBLICATION";
            return Err(WireError::Unexpected { expected, got: kind::END }.into());
        };
        if ended != serial {
            let field = "number of a publication";
            return Err(WireError::Sequence { field, expected: serial, got: ended }.into());
        }
        let content = base.as_ref().and_then(|base| base.content());
        for (index, _) in came.iter().enumerate().filter(|(_, came)| !**came) {
            let there = content.and_then(|base| Some((base.chunk(index)?, base.sum(index)?)));
            if !there.is_some_and(|(bytes, sum)| builder.put(index, bytes, sum)) {
                let field = "number of a chunk that did not come";
                return Err(WireError::meaningless(field, index as u64).into());
            }
        }
        drop(base);
        let _ = builder.publish();
        self.after = serial;
        self.ask();
        Ok(())
    }
}
