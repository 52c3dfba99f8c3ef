//! A client that speaks the protocol, breaks off anywhere, comes back, and sends again what it may:
//! whatever it does, each sample is stored once, in order.
#![no_main]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use echoic_fuzz::{Cuts, Dialler, Far, listener, spec};
use echoic_net::server::{Options, STREAM, Server};
use echoic_net::wire::frame::{Control, DataHead, HEADER_BYTES, Header, kind};
use echoic_net::wire::handshake::{
    Hello, Open, ProducerId, Purpose, RefusalCode, Refused, Welcome,
};
use echoic_net::wire::{PREFACE_BYTES, VERSION, preface};
use echoic_replay::{Stream, StreamConfig};
use libfuzzer_sys::fuzz_target;

/// What a client does.
#[derive(Debug, Arbitrary)]
enum Step {
    /// Connects, while the last connection stands or not.
    Connect { cuts: u8, incarnation: Incarnation },
    /// Sends `count` samples from one that it has sent `back` samples ago, as far as `cut`, and the
    /// head `apart` from them.
    Send { back: u8, count: u8, cut: Option<u16>, apart: bool },
    /// Says that it is there.
    Ping(u64),
    /// Breaks off.
    Break,
    /// Says goodbye.
    Leave,
}

#[derive(Debug, Arbitrary)]
enum Incarnation {
    Same,
    Next,
    Former,
}

struct Target {
    dialler: Dialler,
    stream: Arc<Stream>,
    server: Server,
    filling: usize,
}

fn open(filling: usize) -> Target {
    let config = StreamConfig { batch_size: 1, num_buffers: 4 };
    let stream = Arc::new(Stream::new(spec(filling), config).expect("memory"));
    let (dialler, listener) = listener();
    let options = Options { threads: 1, ..Options::default() };
    let server = Server::open(&listener, Arc::clone(&stream), options).expect("a server");
    Target { dialler, stream, server, filling }
}

/// The client, and what it knows of the server.
struct Client<'a> {
    target: &'a Target,
    producer: ProducerId,
    epoch: u64,
    /// Samples that the server has stored of this epoch.
    next: u64,
    far: Option<Far>,
    /// What came out of the stream: epoch and number.
    taken: Vec<(u64, u64)>,
    /// What must have.
    expected: Vec<(u64, u64)>,
}

fn sample(target: &Target, epoch: u64, number: u64) -> Vec<u8> {
    let mut bytes = (epoch << 32 | number).to_le_bytes().to_vec();
    bytes.resize(8 + target.filling, number as u8);
    bytes
}

impl Client<'_> {
    fn take(&mut self) {
        while let Some(batch) = self.target.stream.try_take() {
            let key = u64::from_le_bytes(batch.column(0).try_into().expect("8 bytes"));
            assert!(batch.column(1).iter().all(|byte| *byte == key as u8), "wrong bytes");
            self.taken.push((key >> 32, key & 0xffff_ffff));
        }
    }

    fn settle(&mut self) {
        if let Some(far) = self.far.take() {
            far.settle(|| self.take());
            self.far = (!far.is_dropped()).then_some(far);
        }
    }

    fn say(&mut self, pieces: &[&[u8]]) {
        if let Some(far) = &self.far {
            far.say(pieces);
        }
        self.settle();
    }

    fn connect(&mut self, cuts: u8, incarnation: &Incarnation) {
        let epoch = match incarnation {
            Incarnation::Same => self.epoch,
            Incarnation::Next => self.epoch + 1,
            Incarnation::Former => self.epoch.saturating_sub(1),
        };
        // The one before may stand still: the server ends it.
        let before = self.far.replace(self.target.dialler.dial(Cuts::from(cuts)));
        let mut opening = preface(VERSION).to_vec();
        Hello { nonce: [7; 32] }.write(&mut opening);
        let open = Open {
            proof: [0; 32],
            purpose: Purpose::Produce,
            producer: self.producer,
            epoch,
            first: 0,
            stream: STREAM.into(),
            spec: Some(self.target.stream.spec().clone()),
            name: "test".into(),
        };
        open.write(&mut opening);
        self.say(&[&opening]);
        let far = self.far.as_ref().expect("a good client is not shut out");
        // A challenge, and the answer to it.
        let heard = far.hear(|heard| frames(heard).len() > 1);
        let (header, payload) = *frames(&heard).get(1).expect("a good client is answered");
        if epoch < self.epoch {
            assert_eq!(header.kind, kind::REFUSED);
            assert_eq!(Refused::read(payload).map(|said| said.code), Ok(RefusalCode::Stale));
            far.end();
            self.settle();
            self.far = before;
            return;
        }
        assert_eq!(header.kind, kind::WELCOME, "a good client was not let in");
        if epoch > self.epoch {
            (self.epoch, self.next) = (epoch, 0);
        }
        let welcome = Welcome::read(payload).expect("a good frame");
        assert_eq!(welcome.next, self.next, "the server knows what it has");
        if let Some(before) = before {
            before.end();
            before.settle(|| self.take());
            assert!(before.is_dropped());
        }
    }

    fn send(&mut self, back: u8, count: u8, cut: Option<u16>, apart: bool) {
        let count = count % 32;
        if self.far.is_none() || count == 0 {
            return;
        }
        let first = self.next.saturating_sub(back.into());
        let end = first + u64::from(count);
        let size = 8 + self.target.filling;
        let head = DataHead { first, count: count.into() }.bytes(size).expect("a small frame");
        let mut frame = head.to_vec();
        for number in first..end {
            frame.extend(sample(self.target, self.epoch, number));
        }
        let out = cut.map_or(frame.len(), |cut| frame.len().min(cut.into()));
        let whole = first + (out.saturating_sub(head.len()) / size) as u64;
        self.expected.extend((self.next..whole).map(|number| (self.epoch, number)));
        self.next = self.next.max(whole);
        let (first, second) = frame[..out].split_at(if apart { out.min(head.len()) } else { 0 });
        self.say(&[first, second]);
        if out < frame.len() {
            self.break_off();
        }
    }

    fn break_off(&mut self) {
        if let Some(far) = &self.far {
            far.end();
        }
        self.settle();
        assert!(self.far.is_none(), "a link that ended is kept");
    }

    fn do_it(&mut self, step: &Step) {
        match step {
            Step::Connect { cuts, incarnation } => self.connect(*cuts, incarnation),
            Step::Send { back, count, cut, apart } => self.send(*back, *count, *cut, *apart),
            Step::Break => self.break_off(),
            Step::Ping(number) => {
                let mut frame = Vec::new();
                Control::Ping(*number).write(&mut frame);
                self.say(&[&frame]);
            }
            Step::Leave => {
                let mut frame = Vec::new();
                Control::Goodbye { text: String::new() }.write(&mut frame);
                self.say(&[&frame]);
                self.break_off();
            }
        }
    }
}

/// The frames behind a preface that are all there.
fn frames(bytes: &[u8]) -> Vec<(Header, &[u8])> {
    let mut bytes = bytes.get(PREFACE_BYTES..).unwrap_or_default();
    let mut frames = Vec::new();
    while let Ok(Some(header)) = Header::read(bytes) {
        let Some((frame, rest)) = bytes.split_at_checked(HEADER_BYTES + header.len as usize) else {
            break;
        };
        frames.push((header, &frame[HEADER_BYTES..]));
        bytes = rest;
    }
    frames
}

fuzz_target!(|session: (bool, Vec<Step>)| {
    static TARGETS: OnceLock<[Target; 2]> = OnceLock::new();
    static PRODUCERS: AtomicU64 = AtomicU64::new(0);
    let (large, steps) = session;
    // Samples that are copied, and samples that are read in place.
    let target = &TARGETS.get_or_init(|| [open(12), open(4088)])[usize::from(large)];
    let mut producer = [0; 16];
    producer[..8].copy_from_slice(&PRODUCERS.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    let mut client = Client {
        target,
        producer,
        epoch: 0,
        next: 0,
        far: None,
        taken: Vec::new(),
        expected: Vec::new(),
    };
    let before = target.server.info().flow.samples;
    for step in steps.iter().take(64) {
        client.do_it(step);
    }
    client.break_off();
    client.take();
    assert_eq!(client.taken, client.expected);
    let counted = target.server.info().flow.samples - before;
    assert_eq!(counted, client.taken.len() as u64, "what is stored is counted");
});
