//! A connection about weights: subscriptions and remote publishers.
//!
//! A client gets an answer when it asks, so one that is slow skips versions and has nothing queued. Chunks are sent
//! from where they are, as far as there is room for them. A client that shares our memory is given the file of
//! each region once, and says when it does not look any more.
//!
//! # Invariants
//!
//! 1. A publication that was lent is kept until the client gives it back. When the client goes without having
//!    done so, its memory is not written again.
//! 2. An upload of which no chunk comes keeps its place only while no other waits for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_replay::weights::{
    ChunkForm, Claim, Content, DeltaWriter, Plan, Publication, PublicationBuilder, Seat, Transfer,
    WeightStore, WeightsError, sum,
};

use super::ServerContext;
use super::session::{Accepts, Session, Silence, Stop, Turn};
use super::wait_queue::Key;
use crate::wire::WireError;
use crate::wire::frame::{Header, kind, short};
use crate::wire::handshake::RefusalCode;
use crate::wire::weights::{
    self, ChunkOf, LinkSpeed, MAX_REGIONS, Need, Publish, Receipt, Region, Want, announce,
    read_serial, write_serial,
};
use crate::write_buffer::{Piece, WriteBuffer};

/// How many bytes of chunks are looked at in one turn: a few milliseconds.
const MOST_BYTES: usize = 16 << 20;

/// How long chunks are looked at in one turn: what changed in one takes up to a millisecond to be found out.
const LONGEST: Duration = Duration::from_millis(3);

/// How many chunks of a publication are looked at in one turn.
fn most_chunks(plan: &Plan) -> usize {
    MOST_BYTES / plan.chunk_bytes()
}

/// A publication on its way.
struct Sending {
    transfer: Transfer,
    /// The sums of what the client has.
    have: Vec<u64>,
    deltas: DeltaWriter,
    next: usize,
    since: Instant,
    /// Bytes sent as they are; `None` once others were, too.
    whole: Option<usize>,
}

/// Whether a chunk is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// It is there.
    No,
    /// In any form.
    Any,
    /// As it is: what came of it before was of no use.
    Whole,
}

/// What a learner elsewhere publishes.
enum Upload {
    /// There is no place for it yet.
    Waiting {
        claim: Claim,
        plan: Arc<Plan>,
        sums: Vec<u64>,
        since: Instant,
        until: Option<Instant>,
    },
    /// It is found out what is there already.
    Comparing {
        builder: PublicationBuilder,
        sums: Vec<u64>,
        base: Option<Arc<Publication>>,
        next: usize,
        need: Need,
    },
    /// Its chunks come.
    Filling {
        builder: PublicationBuilder,
        sums: Vec<u64>,
        /// The publication that changes are relative to, until its memory is wanted.
        base: Option<Arc<Publication>>,
        missing: Vec<Missing>,
        left: usize,
        /// When the last one came.
        last: Instant,
    },
}

/// See the [module](self).
pub(crate) struct WeightsSession {
    store: Arc<WeightStore>,
    /// Whether memory may be handed over.
    lends: bool,
    /// Since the client asked for the first time.
    seat: Option<Seat>,
    want: Option<Want>,
    sending: Option<Sending>,
    speed: LinkSpeed,
    upload: Option<Upload>,
    /// What the client looks at, by serial number.
    lent: BTreeMap<u64, Arc<Publication>>,
    /// The regions that the client has mapped, the last one last.
    regions: VecDeque<u64>,
}

impl Session for WeightsSession {
    fn accepts(&self, kind: u8) -> Result<Accepts, &'static str> {
        let most = weights::most(kind).map(Accepts::Whole);
        most.ok_or("a frame about weights, PING, PONG or GOODBYE")
    }

    fn frame(&mut self, header: Header, payload: &[u8], turn: &mut Turn<'_>) -> Result<(), Stop> {
        match header.kind {
            kind::WANT if self.want.is_none() && self.sending.is_none() => {
                self.want = Some(Want::read(payload)?);
                self.seat.get_or_insert_with(|| self.store.subscribe());
            }
            kind::RELEASE_WEIGHTS => {
                self.lent.remove(&read_serial(payload)?);
            }
            kind::PUBLISH if self.upload.is_none() => {
                self.begin_upload(Publish::read(payload)?, turn.out);
            }
            kind::CHUNK_OF_WEIGHTS => self.fill(ChunkOf::read(payload)?, turn.out)?,
            got => {
                let expected = "WANT after an answer, RELEASE, PUBLISH after a receipt, or CHUNK";
                return Err(WireError::Unexpected { expected, got }.into());
            }
        }
        Ok(())
    }

    fn resume(&mut self, turn: &mut Turn<'_>) -> Result<(), Stop> {
        // What happens from here on is heard, what happened before is seen.
        turn.park(Key::Weights);
        if self.store.is_wanted() {
            // A client that does not read keeps no publication.
            turn.out.detach(&turn.shared.buffer_pool);
            if let Some(Upload::Filling { base, .. }) = &mut self.upload {
                *base = None;
            }
        }
        let compares = self.attend_upload(turn.out);
        self.attend_sending(turn)?;
        self.attend_want(turn)?;
        if compares { Err(Stop::Again) } else { Ok(()) }
    }

    /// A client that publishes now and then need not be heard of in between. One that has begun keeps a place from others,
    /// and pings are no progress.
    fn silence(&self, now: Instant, patience: Duration) -> Silence {
        match &self.upload {
            Some(Upload::Filling { last, .. })
                if now.saturating_duration_since(*last) > patience && self.store.is_wanted() =>
            {
                Silence::IsInTheWay
            }
            None if self.seat.is_none() => Silence::IsFine,
            _ => Silence::Counts,
        }
    }

    fn is_late(&self, now: Instant) -> bool {
        matches!(&self.upload, Some(Upload::Waiting { until: Some(until), .. }) if *until <= now)
    }

    fn excuse(&mut self, now: Instant) {
        if let Some(Upload::Filling { last, .. }) = &mut self.upload {
            *last = now;
        }
    }

    fn leaves_because(&self, _shared: &ServerContext) -> Option<(RefusalCode, &'static str)> {
        Some((RefusalCode::Closing, "the server is closing"))
    }
}

impl WeightsSession {
    pub(crate) fn new(store: Arc<WeightStore>, lends: bool) -> Self {
        Self {
            store,
            lends,
            seat: None,
            want: None,
            sending: None,
            speed: LinkSpeed::default(),
            upload: None,
            lent: BTreeMap::new(),
            regions: VecDeque::new(),
        }
    }

    /// Answers a request, if there is something newer.
    fn attend_want(&mut self, turn: &mut Turn<'_>) -> Result<(), Stop> {
        let Some(want) = &self.want else { return Ok(()) };
        let Some(latest) = self.store.latest().filter(|latest| latest.serial() > want.after) else {
            return Ok(());
        };
        let (serial, version) = (latest.serial(), latest.version());
        let Some(content) = latest.content() else {
            turn.out.write(|out| announce(out, serial, version, None, None));
            self.note_announced(&latest);
            return Ok(());
        };
        weights::check(content.plan())?;
        let Some((region, len, file)) = content.file().filter(|_| self.lends) else {
            turn.out.write(|out| announce(out, serial, version, Some(content.plan()), None));
            let have = self.want.take().map(|want| want.sums).unwrap_or_default();
            let deltas = DeltaWriter::new(content.bases());
            let transfer = self.store.transfer(latest);
            let (since, whole) = (Instant::now(), Some(0));
            self.sending = Some(Sending { transfer, have, deltas, next: 0, since, whole });
            return Err(Stop::Again);
        };
        if !self.regions.contains(&region) {
            let mut frame = Vec::new();
            Region { id: region, len: len as u64 }.write(&mut frame);
            turn.hand_over(&frame, file)?;
            self.regions.push_back(region);
            if self.regions.len() > MAX_REGIONS {
                self.regions.pop_front();
            }
        }
        turn.out.write(|out| announce(out, serial, version, Some(content.plan()), Some(region)));
        self.note_announced(&latest);
        self.lent.insert(serial, latest);
        Ok(())
    }

    /// The client has been sent this.
    fn note_announced(&mut self, publication: &Publication) {
        self.want = None;
        if let Some(seat) = &self.seat {
            seat.see(publication);
        }
    }

    /// Sends chunks that the client lacks.
    fn attend_sending(&mut self, turn: &mut Turn<'_>) -> Result<(), Stop> {
        let Some(sending) = &mut self.sending else { return Ok(()) };
        let publication = Arc::clone(sending.transfer.publication());
        let serial = publication.serial();
        if sending.transfer.is_cut() {
            turn.out.write(|out| write_serial(out, kind::CUT, serial));
            self.sending = None;
            return Ok(());
        }
        let (mut sent, mut saved) = (0, 0);
        let mut stop = Stop::Again;
        let (started, is_slow) = (Instant::now(), self.speed.is_slow());
        for _ in 0..publication.content().map_or(1, |content| most_chunks(content.plan())) {
            if turn.is_full() {
                stop = Stop::Unsent(turn.shared.credit_bytes());
                break;
            }
            if started.elapsed() > LONGEST {
                break;
            }
            let index = sending.next;
            let content = publication.content();
            let chunk =
                content.and_then(|content| Some((content, ChunkOf::of(content, index as u32)?)));
            let Some((content, (chunk, range))) = chunk else {
                turn.out.write(|out| write_serial(out, kind::END, serial));
                sending.transfer.count(sent, saved);
                self.speed.note(sending.whole.unwrap_or(0), sending.since.elapsed());
                self.sending = None;
                self.note_announced(&publication);
                return Err(Stop::Again);
            };
            sending.next += 1;
            let base = sending.have.get(index).copied();
            if base == Some(chunk.sum) {
                saved += chunk.bytes.len();
                continue;
            }
            let mut delta = Vec::new();
            let form = base.map_or(ChunkForm::Whole, |base| {
                sending.deltas.write(content, index, base, is_slow, &mut delta)
            });
            if form != ChunkForm::Whole {
                saved += chunk.bytes.len() - delta.len();
                sent += delta.len();
                sending.whole = None;
                turn.out.write(|out| ChunkOf { form, bytes: &delta, ..chunk }.write(out));
                continue;
            }
            sent += chunk.bytes.len();
            sending.whole = sending.whole.map(|whole| whole + chunk.bytes.len());
            turn.out.write(|out| out.extend_from_slice(&chunk.head()));
            turn.out.push(Piece::Shared(Arc::clone(&publication) as _, range));
        }
        sending.transfer.count(sent, saved);
        Err(stop)
    }

    fn begin_upload(&mut self, publish: Publish, out: &mut WriteBuffer) {
        let Publish { version, timeout_ms, content } = publish;
        let Some((plan, sums)) = content else {
            let published = self.store.publish_version(version);
            let receipt = published.map_or_else(
                |error| failed(&self.store, error, version, None),
                |_| Receipt::Published,
            );
            return say(out, &receipt);
        };
        match self.store.claim(version) {
            Ok(claim) => {
                let since = Instant::now();
                let until = timeout_ms.and_then(|ms| since.checked_add(Duration::from_millis(ms)));
                let plan = Arc::new(plan);
                self.upload = Some(Upload::Waiting { claim, plan, sums, since, until });
            }
            Err(error) => {
                say(out, &failed(&self.store, error, version, Some((&plan, &sums))));
            }
        }
    }

    /// Goes on with an upload; whether there is more to do at once.
    fn attend_upload(&mut self, out: &mut WriteBuffer) -> bool {
        match self.upload.take() {
            Some(Upload::Waiting { claim, plan, sums, since, until }) => {
                match claim.try_build(&plan) {
                    Ok(Some(builder)) => {
                        drop(claim);
                        let need = Need { chunks: Vec::new(), bases: Vec::new() };
                        let base = self.store.latest();
                        self.upload =
                            Some(Upload::Comparing { builder, sums, base, next: 0, need });
                        true
                    }
                    Ok(None) if until.is_some_and(|until| until <= Instant::now()) => {
                        drop(claim);
                        self.store.count_blocked(since.elapsed());
                        say(out, &Receipt::Leased);
                        false
                    }
                    Ok(None) => {
                        self.upload = Some(Upload::Waiting { claim, plan, sums, since, until });
                        false
                    }
                    Err(error) => {
                        let version = claim.version();
                        say(out, &failed(&self.store, error, version, Some((&plan, &sums))));
                        false
                    }
                }
            }
            Some(Upload::Comparing { mut builder, sums, base, mut next, mut need }) => {
                let content = base.as_ref().and_then(|base| base.content());
                let most = most_chunks(builder.plan());
                for (index, wanted) in sums.iter().enumerate().skip(next).take(most) {
                    next = index + 1;
                    let found = content.and_then(|content| content.sum(index));
                    let there = content.filter(|_| found == Some(*wanted));
                    if let Some(bytes) = there.and_then(|content| content.chunk(index)) {
                        if let Err(error) = builder.reserve(index) {
                            say(out, &Receipt::Failed(short(&error.to_string())));
                            return false;
                        }
                        if builder.put(index, bytes, *wanted) {
                            continue;
                        }
                    }
                    need.chunks.push(index as u32);
                    need.bases.push(found.unwrap_or(0));
                }
                if next < sums.len() {
                    self.upload = Some(Upload::Comparing { builder, sums, base, next, need });
                    return true;
                }
                if need.chunks.is_empty() {
                    say(out, &finish(&self.store, builder, &sums));
                    return false;
                }
                let mut missing = vec![Missing::No; sums.len()];
                for index in &need.chunks {
                    if let Some(missing) = missing.get_mut(*index as usize) {
                        *missing = Missing::Any;
                    }
                }
                out.write(|out| need.write(out));
                let left = need.chunks.len();
                let last = Instant::now();
                self.upload = Some(Upload::Filling { builder, sums, base, missing, left, last });
                false
            }
            other => {
                self.upload = other;
                false
            }
        }
    }

    /// Takes a chunk of an upload.
    fn fill(&mut self, chunk: ChunkOf<'_>, out: &mut WriteBuffer) -> Result<(), WireError> {
        let Some(Upload::Filling { builder, sums, base, missing, left, last }) = &mut self.upload
        else {
            let expected = "CHUNK after a NEED only";
            return Err(WireError::Unexpected { expected, got: kind::CHUNK_OF_WEIGHTS });
        };
        let index = chunk.index as usize;
        let (missing, wanted) = match (missing.get_mut(index), sums.get(index)) {
            (Some(missing @ (Missing::Any | Missing::Whole)), Some(sum)) => (missing, *sum),
            _ => {
                let field = "number of a chunk that is needed";
                return Err(WireError::meaningless(field, chunk.index.into()));
            }
        };
        if let Err(error) = builder.reserve(index) {
            return Err(WireError::Content(error.to_string()));
        }
        if chunk.form != ChunkForm::Whole {
            if *missing == Missing::Whole {
                let field = "form of a chunk that is needed whole";
                return Err(WireError::meaningless(field, chunk.index.into()));
            }
            *last = Instant::now();
            let there = base.as_ref().and_then(|base| base.content()?.chunk(index));
            let delta = (chunk.form, chunk.bytes);
            if !there.is_some_and(|there| builder.patch(index, delta, there, wanted)) {
                *missing = Missing::Whole;
                let need = Need { chunks: vec![chunk.index], bases: vec![0] };
                out.write(|out| need.write(out));
                return Ok(());
            }
        } else {
            chunk.check(wanted, sum(chunk.bytes))?;
            if !builder.put(index, chunk.bytes, wanted) {
                let field = "length of a chunk";
                return Err(WireError::meaningless(field, chunk.bytes.len() as u64));
            }
            *last = Instant::now();
        }
        *missing = Missing::No;
        *left -= 1;
        if *left == 0
            && let Some(Upload::Filling { builder, sums, .. }) = self.upload.take()
        {
            say(out, &finish(&self.store, builder, &sums));
        }
        Ok(())
    }
}

impl Drop for WeightsSession {
    fn drop(&mut self) {
        let lent = self.lent.values().filter_map(|publication| publication.content());
        lent.for_each(Content::spoil);
    }
}

fn say(out: &mut WriteBuffer, receipt: &Receipt) {
    out.write(|out| receipt.write(out));
}

/// Publishes what has come.
fn finish(store: &WeightStore, builder: PublicationBuilder, sums: &[u64]) -> Receipt {
    let (version, plan) = (builder.version(), Arc::clone(builder.plan()));
    match builder.publish() {
        Ok(_) => Receipt::Published,
        Err(error) => failed(store, error, version, Some((&plan, sums))),
    }
}

/// Whether the latest publication is this one. Sums are found of chunks up to the first that differs.
fn is_latest(store: &WeightStore, version: u64, content: Option<(&Plan, &[u64])>) -> bool {
    let Some(latest) = store.latest().filter(|latest| latest.version() == version) else {
        return false;
    };
    match (latest.content(), content) {
        (None, None) => true,
        (Some(there), Some((plan, sums))) => {
            **there.plan() == *plan
                && sums.iter().enumerate().all(|(index, sum)| there.sum(index) == Some(*sum))
        }
        _ => false,
    }
}

/// What to say of a version that could not be published.
fn failed(
    store: &WeightStore,
    error: WeightsError,
    version: u64,
    content: Option<(&Plan, &[u64])>,
) -> Receipt {
    match error {
        WeightsError::Stale { .. } if is_latest(store, version, content) => Receipt::Same,
        WeightsError::Stale { latest, .. } => Receipt::Stale { latest },
        WeightsError::Closed => Receipt::Closed,
        error => Receipt::Failed(short(&error.to_string())),
    }
}
