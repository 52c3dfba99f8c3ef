//! Weights between a server and peers that say, byte by byte, what they should not.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use echoic_net::client::weights::{
    PublishError, RemoteWeights, SharedPublisher, SubscriptionError, WeightPublisher,
    WeightSubscriber,
};
use echoic_net::client::{ClientError, Options as ClientOptions};
use echoic_net::server::{Options, Server};
use echoic_net::transport::{Dial, Link, TlsFiles, dial_to, listen_at};
use echoic_net::wire::frame::{Control, HEADER_BYTES, Header, kind};
use echoic_net::wire::handshake::{Challenge, Hello, Offer, Open, Purpose, Refused, Welcome};
use echoic_net::wire::weights::{
    Announcement, ChunkOf, Form, Need, Publish, Receipt, Want, write_serial,
};
use echoic_net::wire::{PREFACE_BYTES, VERSION, preface};
use echoic_net::{Address, Token};
use echoic_replay::stream::Wait;
use echoic_replay::weights::{
    CHUNK_BYTES, ChunkForm, Plan, Publication, WeightStore, WeightsConfig, sum,
};
use echoic_replay::{Dtype, Leaf};

mod common;
#[path = "common/serving.rs"]
mod serving;
#[path = "../../replay/tests/common/waiting.rs"]
mod waiting;

use serving::{TCP, dial};
use waiting::{soon, until};

fn plan(bytes: usize) -> Arc<Plan> {
    let leaf = Leaf { path: "w".into(), dtype: Dtype::UInt(1), shape: vec![bytes] };
    Arc::new(Plan::new("0".into(), vec![leaf]).unwrap())
}

fn publish(store: &WeightStore, version: u64, plan: &Arc<Plan>) -> Arc<Publication> {
    let mut builder = soon(|wait| store.builder(version, plan, wait)).unwrap();
    builder.leaf_mut(0).fill(version as u8);
    builder.publish().unwrap()
}

/// A chunk as it is, with the sum of what it should be.
fn whole<'a>(index: u32, good: &[u8], bytes: &'a [u8]) -> ChunkOf<'a> {
    ChunkOf { index, sum: sum(good), form: ChunkForm::Whole, bytes }
}

fn open(store: &Arc<WeightStore>) -> Server {
    open_with(store, Options::default().heartbeat)
}

fn open_with(store: &Arc<WeightStore>, heartbeat: Duration) -> Server {
    let options = Options { threads: 1, heartbeat, ..Options::default() };
    serving::open_with(TCP, Arc::clone(store), options)
}

/// A peer that says whatever a test wants.
struct Peer {
    stream: TcpStream,
}

impl Peer {
    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn frame(&mut self) -> (u8, Vec<u8>) {
        let header = Header::read(&self.read(HEADER_BYTES)).unwrap().unwrap();
        (header.kind, self.read(header.len as usize))
    }

    /// The payload of the next frame, which must be of this kind.
    fn expect(&mut self, kind: u8) -> Vec<u8> {
        let (got, payload) = self.frame();
        if got == kind::REFUSED {
            panic!("refused: {:?}", Refused::read(&payload));
        }
        assert_eq!(got, kind);
        payload
    }

    fn say(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    /// A client of a server.
    fn client(server: &Server) -> Self {
        let address = server.address().to_string();
        let stream = TcpStream::connect(address.strip_prefix("tcp://").unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut peer = Self { stream };
        peer.say(|out| {
            out.extend_from_slice(&preface(VERSION));
            Hello { nonce: [1; 32] }.write(out);
        });
        peer.read(PREFACE_BYTES);
        peer.expect(kind::CHALLENGE);
        peer.say(|out| {
            Open {
                proof: [0; 32],
                purpose: Purpose::Weights,
                producer: [2; 16],
                epoch: 0,
                first: 0,
                stream: String::new(),
                spec: None,
                name: "test".into(),
            }
            .write(out);
        });
        peer.expect(kind::WELCOME);
        peer
    }

    /// A server with one client, which has been let in.
    fn server(listener: &TcpListener) -> Self {
        let mut peer = Self { stream: listener.accept().unwrap().0 };
        peer.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        peer.read(PREFACE_BYTES);
        peer.expect(kind::HELLO);
        peer.say(|out| {
            out.extend_from_slice(&preface(VERSION));
            Challenge { nonce: [3; 32], wants_proof: false }.write(out);
        });
        peer.expect(kind::OPEN);
        let welcome = Welcome {
            proof: [0; 32],
            instance: [4; 16],
            next: 0,
            limit: 0,
            heartbeat_ms: 5000,
            release: "test".into(),
            offer: Offer::Known,
        };
        peer.say(|out| welcome.write(out));
        peer
    }
}

#[test]
fn a_chunk_that_was_changed_on_its_way_is_refused_and_nothing_is_published() {
    let store = Arc::new(WeightStore::default());
    let server = open(&store);
    let mut peer = Peer::client(&server);
    let good = vec![7; CHUNK_BYTES];
    let content = Some(((*plan(CHUNK_BYTES)).clone(), vec![sum(&good)]));
    peer.say(|out| Publish { version: 1, timeout_ms: None, content }.write(out));
    let need = Need { chunks: vec![0], bases: vec![0] };
    assert_eq!(Need::read(&peer.expect(kind::NEED)), Ok(need));
    let mut bad = good.clone();
    bad[1000] ^= 1;
    peer.say(|out| whole(0, &good, &bad).write(out));
    let (kind, payload) = peer.frame();
    assert_eq!(kind, kind::REFUSED);
    let text = Refused::read(&payload).unwrap().text;
    assert!(text.contains("chunk 0 of the weights: expected the sum"), "{text}");
    assert!(store.latest().is_none());
    // The place is free again as soon as the server has forgotten the connection.
    drop(peer);
    until("the place is free", || store.info().alive == 0);
}

#[test]
fn a_subscriber_refuses_a_chunk_that_was_changed_and_keeps_what_it_has() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let dial = dial_to(&address, &TlsFiles::default()).unwrap();
    let subscriber = WeightSubscriber::new(dial, ClientOptions::default(), 3).unwrap();
    let mut peer = Peer::server(&listener);
    let bytes = vec![5; 100];
    let plan = (*plan(100)).clone();
    for (serial, sent) in [(1, bytes.clone()), (2, vec![6; 100])] {
        let want = Want::read(&peer.expect(kind::WANT)).unwrap();
        assert_eq!(want.after, serial - 1);
        peer.say(|out| {
            let form = Form::Chunks(plan.clone());
            Announcement { serial, version: serial, form }.write(out);
            whole(0, &bytes, &sent).write(out);
            write_serial(out, kind::END, serial);
        });
    }
    let two = |latest: Option<&Arc<Publication>>| {
        latest.filter(|latest| latest.version() == 2).map(|_| ())
    };
    let failed = soon(|wait| subscriber.wait_for(wait, two)).unwrap_err();
    assert!(matches!(failed, ClientError::Failed(_)), "{failed}");
    assert!(failed.to_string().contains("chunk 0 of the weights"), "{failed}");
    let latest = subscriber.store().latest().unwrap();
    assert_eq!(latest.version(), 1);
    assert_eq!(latest.content().unwrap().bytes().unwrap(), bytes);
}

#[test]
fn what_came_in_part_takes_no_place_while_the_server_is_away() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let dial = dial_to(&address, &TlsFiles::default()).unwrap();
    let subscriber = WeightSubscriber::new(dial, ClientOptions::default(), 3).unwrap();
    let mut peer = Peer::server(&listener);
    peer.expect(kind::WANT);
    peer.say(|out| {
        let form = Form::Chunks((*plan(100)).clone());
        Announcement { serial: 1, version: 1, form }.write(out);
    });
    let alive = || subscriber.store().info().alive;
    until("the first part has come", || alive() == 1);
    drop((peer, listener));
    until("its place is free", || alive() == 0);
}

#[test]
fn only_chunks_that_the_client_lacks_are_sent() {
    let store = Arc::new(WeightStore::default());
    let (server, plan) = (open(&store), plan(2 * CHUNK_BYTES));
    let mut peer = Peer::client(&server);
    publish(&store, 1, &plan);
    let sums = vec![sum(&vec![1; CHUNK_BYTES]), 0];
    peer.say(|out| Want { after: 0, sums }.write(out));
    let announcement = Announcement::read(&peer.expect(kind::PUBLICATION)).unwrap();
    assert_eq!((announcement.serial, announcement.version), (1, 1));
    let payload = peer.expect(kind::CHUNK_OF_WEIGHTS);
    let chunk = ChunkOf::read(&payload).unwrap();
    assert_eq!((chunk.index, chunk.bytes), (1, &vec![1; CHUNK_BYTES][..]));
    peer.expect(kind::END);
    let info = store.info();
    assert_eq!((info.sent_bytes, info.saved_bytes), (CHUNK_BYTES as u64, CHUNK_BYTES as u64));
}

#[test]
fn a_second_question_before_the_answer_ends_the_connection() {
    let store = Arc::new(WeightStore::default());
    let server = open(&store);
    let mut peer = Peer::client(&server);
    for _ in 0..2 {
        peer.say(|out| Want { after: 0, sums: Vec::new() }.write(out));
    }
    let (kind, _) = peer.frame();
    assert_eq!(kind, kind::REFUSED);
}

#[test]
fn a_chunk_that_nobody_asked_for_ends_the_connection() {
    let store = Arc::new(WeightStore::default());
    let server = open(&store);
    let mut peer = Peer::client(&server);
    peer.say(|out| whole(0, &[], &[]).write(out));
    let (kind, _) = peer.frame();
    assert_eq!(kind, kind::REFUSED);
}

#[test]
fn what_is_published_again_needs_no_chunk() {
    let store = Arc::new(WeightStore::default());
    let (server, plan) = (open(&store), plan(1000));
    let content = publish(&store, 1, &plan);
    let sums = vec![content.content().unwrap().sum(0).unwrap()];
    let mut peer = Peer::client(&server);
    let content = Some(((*plan).clone(), sums));
    peer.say(|out| Publish { version: 2, timeout_ms: None, content }.write(out));
    assert_eq!(Receipt::read(&peer.expect(kind::RECEIPT)), Ok(Receipt::Published));
    assert_eq!(store.latest().unwrap().version(), 2);
}

#[test]
fn weights_go_over_tls_in_both_directions() {
    let authority = common::Authority::new();
    let identity = authority.sign("localhost");
    let store = Arc::new(WeightStore::default());
    let address: Address = "tls://localhost:0".parse().unwrap();
    let listen = listen_at(&address, &common::files(Some(&identity), None)).unwrap();
    let token = Token::new(b"secret").ok();
    let options = Options { token: token.clone(), threads: 1, ..Options::default() };
    let server = Server::open(&*listen, Arc::clone(&store), options).unwrap();
    let dial = || dial_to(server.address(), &common::files(None, Some(&authority))).unwrap();
    let learner = WeightStore::default();
    let (plan, mut publisher) = (plan(1_000_000), WeightPublisher::new(dial(), token.clone()));
    let options = ClientOptions { token, ..ClientOptions::default() };
    let subscriber = WeightSubscriber::new(dial(), options, 3).unwrap();
    for version in 1..4 {
        let publication = publish(&learner, version, &plan);
        soon(|wait| publisher.publish(&publication, wait)).unwrap();
        let new = |latest: Option<&Arc<Publication>>| {
            latest.filter(|latest| latest.version() == version).cloned()
        };
        let got = soon(|wait| subscriber.wait_for(wait, new)).unwrap();
        assert_eq!(got.content().unwrap().bytes().unwrap(), vec![version as u8; 1_000_000]);
    }
    let old = publish(&WeightStore::default(), 2, &plan);
    let refused = soon(|wait| publisher.publish(&old, wait)).unwrap_err();
    assert!(matches!(refused, PublishError::Stale { version: 2, latest: 3 }), "{refused}");
}

#[test]
fn a_learner_elsewhere_that_waits_for_a_place_is_not_taken_for_dead() {
    let store =
        Arc::new(WeightStore::new(WeightsConfig { most: 2, ..Default::default() }).unwrap());
    let heartbeat = Duration::from_millis(200);
    let server = open_with(&store, heartbeat);
    let (learner, plan) = (WeightStore::default(), plan(1000));
    // Two places, and both are held.
    let held = publish(&store, 1, &plan);
    publish(&store, 2, &plan);
    let publication = publish(&learner, 3, &plan);
    let mut publisher = WeightPublisher::new(dial(&server), None);
    publisher.connect(Instant::now() + Duration::from_secs(20)).unwrap();
    std::thread::scope(|scope| {
        let published = scope.spawn(|| soon(|wait| publisher.publish(&publication, wait)));
        // Longer than a client may be silent.
        std::thread::sleep(heartbeat * 8);
        assert!(!published.is_finished());
        drop(held);
        published.join().unwrap().unwrap();
    });
    assert_eq!(store.latest().unwrap().version(), 3);
    let info = server.info();
    assert_eq!((info.accepted, info.silent), (1, 0));
}

/// The first attempt to connect takes a while, and fails.
struct LateDial {
    dial: Box<dyn Dial>,
    attempts: Arc<AtomicUsize>,
}

impl Dial for LateDial {
    fn dial(&self, timeout: Duration) -> std::io::Result<Box<dyn Link>> {
        if self.attempts.load(Ordering::Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(100));
            self.attempts.fetch_add(1, Ordering::AcqRel);
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        self.attempts.fetch_add(1, Ordering::AcqRel);
        self.dial.dial(timeout)
    }

    fn address(&self) -> Address {
        self.dial.address()
    }
}

#[test]
fn an_attempt_to_connect_that_nobody_waited_for_is_no_answer_to_a_later_call() {
    let store = Arc::new(WeightStore::default());
    let server = open(&store);
    let publication = publish(&WeightStore::default(), 1, &plan(1000));
    let attempts = Arc::new(AtomicUsize::new(0));
    let dial = dial_to(server.address(), &TlsFiles::default()).unwrap();
    let dial = LateDial { dial, attempts: Arc::clone(&attempts) };
    let mut publisher = WeightPublisher::new(Box::new(dial), None);
    let interrupted = publisher.publish(
        &publication,
        Wait {
            deadline: None,
            tick: Some(Duration::from_millis(1)),
            on_tick: &mut |_| ControlFlow::Break(()),
        },
    );
    assert!(matches!(interrupted, Err(PublishError::Interrupted)), "{interrupted:?}");
    while attempts.load(Ordering::Acquire) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    soon(|wait| publisher.publish(&publication, wait)).unwrap();
    assert_eq!(store.latest().unwrap().version(), 1);
}

#[test]
fn learners_that_share_a_publisher_take_turns_until_it_is_closed() {
    let store =
        Arc::new(WeightStore::new(WeightsConfig { most: 2, ..Default::default() }).unwrap());
    let server = open(&store);
    let (learner, plan) = (WeightStore::default(), plan(1000));
    let held = publish(&store, 1, &plan);
    publish(&store, 2, &plan);
    let shared = SharedPublisher::new(WeightPublisher::new(dial(&server), None));
    let [third, fourth] = [3, 4].map(|version| publish(&learner, version, &plan));
    std::thread::scope(|scope| {
        // The one has its turn, and waits for a place.
        let first = scope.spawn(|| soon(|wait| shared.publish(&third, wait)));
        until("the one has its turn", || server.info().accepted > 0);
        assert!(!first.is_finished());
        // The other waits for its turn, until its own deadline.
        let deadline = Some(Instant::now() + Duration::from_millis(10));
        let on_tick = &mut |_| ControlFlow::Continue(());
        let late = shared.publish(&fourth, Wait { deadline, tick: None, on_tick });
        assert!(matches!(late, Err(PublishError::TimedOut)), "{late:?}");
        drop(held);
        first.join().unwrap().unwrap();
    });
    // A turn is over also when it ends in a panic.
    let held = store.latest().unwrap();
    soon(|wait| shared.publish(&fourth, wait)).unwrap();
    let fifth = publish(&learner, 5, &plan);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let on_tick = &mut |_| panic!("a callback panics");
        shared.publish(&fifth, Wait { deadline: None, tick: Some(Duration::ZERO), on_tick })
    }));
    assert!(panicked.is_err() && !shared.is_closed());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| soon(|wait| shared.publish(&fifth, wait)));
        std::thread::sleep(Duration::from_millis(10));
        shared.close();
        let ended = waiting.join().unwrap();
        assert!(
            matches!(ended, Err(PublishError::Interrupted | PublishError::Closed)),
            "{ended:?}"
        );
    });
    assert!(shared.is_closed());
    let ended = soon(|wait| shared.publish(&fifth, wait));
    assert!(matches!(ended, Err(PublishError::Closed)), "{ended:?}");
    drop(held);
}

#[test]
fn one_client_publishes_and_follows_until_it_is_closed() {
    let store = Arc::new(WeightStore::default());
    let server = open(&store);
    let dial = || dial_to(server.address(), &TlsFiles::default()).unwrap();
    let client = RemoteWeights::new(dial(), ClientOptions::default(), 4).unwrap();
    let subscribe = || soon(|wait| client.subscribe(dial(), wait));
    let (one, other) = (subscribe().unwrap(), subscribe().unwrap());
    assert!(one.is_connected() && one.latest().is_none());
    let publication = publish(client.outgoing(), 3, &plan(1000));
    soon(|wait| client.publish(&publication, wait)).unwrap();
    assert_eq!(store.latest().unwrap().version(), 3);
    for subscription in [&one, &other] {
        assert_eq!(soon(|wait| subscription.wait(None, wait)).unwrap().version(), 3);
    }
    assert_eq!(server.info().accepted, 2, "one to publish, and one for all who follow");
    // It was seen: the next one is waited for.
    std::thread::scope(|scope| {
        let next = scope.spawn(|| soon(|wait| one.wait(None, wait)));
        let above = scope.spawn(|| soon(|wait| other.wait(Some(4), wait)));
        for version in [4, 5] {
            store.publish_version(version).unwrap();
        }
        assert!(next.join().unwrap().unwrap().version() > 3);
        assert_eq!(above.join().unwrap().unwrap().version(), 5);
        let waits = scope.spawn(|| soon(|wait| other.wait(Some(5), wait)));
        other.close();
        let closed = waits.join().unwrap();
        assert!(matches!(closed, Err(SubscriptionError::Closed)), "{closed:?}");
    });
    client.close();
    assert!(client.is_closed());
    assert!(matches!(subscribe(), Err(ClientError::Closed)));
    let closed = soon(|wait| client.publish(&publication, wait));
    assert!(matches!(closed, Err(PublishError::Closed)), "{closed:?}");
    assert_eq!(one.latest().unwrap().version(), 5, "what has come is there");
}

#[test]
fn an_upload_that_stands_still_gives_its_place_to_who_waits_for_it() {
    let store =
        Arc::new(WeightStore::new(WeightsConfig { most: 2, ..Default::default() }).unwrap());
    let heartbeat = Duration::from_millis(100);
    let server = open_with(&store, heartbeat);
    let plan = plan(1000);
    publish(&store, 1, &plan);
    let mut peer = Peer::client(&server);
    let content = Some(((*plan).clone(), vec![7]));
    peer.say(|out| Publish { version: 2, timeout_ms: None, content }.write(out));
    peer.expect(kind::NEED);
    let mut pings = peer.stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut ping = Vec::new();
            Control::Ping(0).write(&mut ping);
            // Until the server has cut it off.
            while pings.write_all(&ping).is_ok() {
                std::thread::sleep(heartbeat / 10);
            }
        });
        std::thread::sleep(heartbeat * 8);
        let before = server.info();
        let builder = soon(|wait| store.builder(2, &plan, wait));
        // Its threads end before anything may fail.
        let _ = peer.stream.shutdown(std::net::Shutdown::Both);
        assert_eq!((before.connections, before.silent), (1, 0), "nobody waited for its place yet");
        builder.unwrap().publish().unwrap();
    });
    assert_eq!(server.info().silent, 1);
    assert_eq!(store.latest().unwrap().version(), 2);
}

#[test]
fn only_the_very_same_publication_counts_as_published_before() {
    let store = Arc::new(WeightStore::default());
    let (server, plan) = (open(&store), plan(2 * CHUNK_BYTES));
    publish(&store, 4, &plan);
    let mut peer = Peer::client(&server);
    let mut told = |version, content| {
        peer.say(|out| Publish { version, timeout_ms: None, content }.write(out));
        Receipt::read(&peer.expect(kind::RECEIPT)).unwrap()
    };
    let sums = |last: u8| {
        Some(((*plan).clone(), vec![sum(&vec![4; CHUNK_BYTES]), sum(&vec![last; CHUNK_BYTES])]))
    };
    assert_eq!(told(4, sums(4)), Receipt::Same);
    assert_eq!(told(4, sums(5)), Receipt::Stale { latest: 4 });
    assert_eq!(told(3, sums(4)), Receipt::Stale { latest: 4 });
    assert_eq!(told(4, None), Receipt::Stale { latest: 4 });
    store.publish_version(5).unwrap();
    assert_eq!(told(5, None), Receipt::Same);
    assert_eq!(told(5, sums(4)), Receipt::Stale { latest: 5 });
}

/// What a learner hears of version 4 when the connection is lost, and the server then says this.
fn heard_after_a_loss(receipt: Receipt) -> Result<(), PublishError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let mut publisher =
        WeightPublisher::new(dial_to(&address, &TlsFiles::default()).unwrap(), None);
    let publication = publish(&WeightStore::default(), 4, &plan(100));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut first = Peer::server(&listener);
            first.expect(kind::PUBLISH);
            drop(first);
            let mut second = Peer::server(&listener);
            second.expect(kind::PUBLISH);
            second.say(|out| receipt.write(out));
        });
        publisher.connect(Instant::now() + Duration::from_secs(20)).unwrap();
        soon(|wait| publisher.publish(&publication, wait))
    })
}

#[test]
fn a_server_that_needs_more_chunks_than_there_are_is_not_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let publication = publish(&WeightStore::default(), 1, &plan(100));
    for need in
        [Need { chunks: vec![0, 0], bases: vec![0, 0] }, Need { chunks: vec![0], bases: vec![] }]
    {
        let mut publisher =
            WeightPublisher::new(dial_to(&address, &TlsFiles::default()).unwrap(), None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut peer = Peer::server(&listener);
                peer.expect(kind::PUBLISH);
                peer.say(|out| need.write(out));
                // Whatever comes until the connection ends.
                let _ = std::io::copy(&mut peer.stream, &mut std::io::sink());
            });
            let refused = soon(|wait| publisher.publish(&publication, wait)).unwrap_err();
            assert!(refused.to_string().contains("chunks that are needed"), "{refused}");
            drop(publisher);
        });
    }
}

#[test]
fn a_publication_that_is_tried_again_is_told_from_that_of_another_learner() {
    heard_after_a_loss(Receipt::Same).unwrap();
    let other = heard_after_a_loss(Receipt::Stale { latest: 4 }).unwrap_err();
    assert!(matches!(other, PublishError::Stale { version: 4, latest: 4 }), "{other}");
}

/// A chunk of ones, but for the byte at a place.
fn ones_but(place: usize, value: u8) -> Vec<u8> {
    let mut bytes = vec![1; CHUNK_BYTES];
    bytes[place] = value;
    bytes
}

/// What changed: the byte at a place below 128.
fn sparse(place: u8, value: u8) -> Vec<u8> {
    vec![1, place, value]
}

#[test]
fn what_changed_is_sent_to_a_client_that_has_the_version_before() {
    let store = Arc::new(WeightStore::default());
    let (server, plan) = (open(&store), plan(CHUNK_BYTES));
    let mut peer = Peer::client(&server);
    let version = |number, place, value| {
        let mut builder = soon(|wait| store.builder(number, &plan, wait)).unwrap();
        builder.leaf_mut(0).copy_from_slice(&ones_but(place, value));
        builder.publish().unwrap();
    };
    version(1, 0, 1);
    let mut said = |after, sums| {
        peer.say(|out| Want { after, sums }.write(out));
        peer.expect(kind::PUBLICATION);
        let payload = peer.expect(kind::CHUNK_OF_WEIGHTS);
        peer.expect(kind::END);
        let chunk = ChunkOf::read(&payload).unwrap();
        (chunk.form, chunk.sum, chunk.bytes.to_vec())
    };
    assert_eq!(said(0, vec![]).0, ChunkForm::Whole);
    version(2, 5, 9);
    let ones = sum(&ones_but(0, 1));
    let expected = (ChunkForm::Sparse, sum(&ones_but(5, 9)), sparse(5, 9));
    assert_eq!(said(1, vec![ones]), expected);
    // Also to one that is two versions behind, but not to one with other bytes.
    version(3, 7, 8);
    assert_eq!(said(2, vec![ones]).2, sparse(7, 8));
    version(4, 7, 9);
    assert_eq!(said(3, vec![77]).0, ChunkForm::Whole);
    // What is kept for that gives way to what is published.
    version(5, 1, 1);
    let held = store.latest();
    version(6, 2, 2);
    let also = store.latest();
    version(7, 3, 3);
    assert_eq!((store.info().alive, store.info().version), (3, Some(7)));
    drop((held, also));
    assert_eq!(store.info().alive, 1);
}

#[test]
fn an_upload_of_what_changed_that_does_not_fit_is_asked_for_whole_and_only_once() {
    let store = Arc::new(WeightStore::default());
    let server = open(&store);
    publish(&store, 1, &plan(CHUNK_BYTES));
    let mut peer = Peer::client(&server);
    let wanted = ones_but(3, 4);
    let content = Some(((*plan(CHUNK_BYTES)).clone(), vec![sum(&wanted)]));
    peer.say(|out| Publish { version: 2, timeout_ms: None, content: content.clone() }.write(out));
    let base = sum(&ones_but(0, 1));
    let need = Need { chunks: vec![0], bases: vec![base] };
    assert_eq!(Need::read(&peer.expect(kind::NEED)), Ok(need));
    let delta = |bytes: &[u8]| {
        let mut frame = Vec::new();
        ChunkOf { form: ChunkForm::Sparse, bytes, ..whole(0, &wanted, &[]) }.write(&mut frame);
        frame
    };
    peer.say(|out| out.extend(delta(&sparse(3, 5))));
    let need = Need { chunks: vec![0], bases: vec![0] };
    assert_eq!(Need::read(&peer.expect(kind::NEED)), Ok(need));
    peer.say(|out| whole(0, &wanted, &wanted).write(out));
    assert_eq!(Receipt::read(&peer.expect(kind::RECEIPT)), Ok(Receipt::Published));
    assert_eq!(store.latest().unwrap().content().unwrap().bytes().unwrap(), wanted);
    // One that fits is taken; a second one that does not is the end.
    let mut next = |bytes: Vec<u8>, sums: Vec<u8>| {
        let content = Some(((*plan(CHUNK_BYTES)).clone(), vec![sum(&sums)]));
        let version = store.info().version.unwrap() + 1;
        peer.say(|out| Publish { version, timeout_ms: None, content }.write(out));
        peer.expect(kind::NEED);
        peer.say(|out| {
            ChunkOf { form: ChunkForm::Sparse, bytes: &bytes, ..whole(0, &sums, &[]) }.write(out)
        });
        peer.frame().0
    };
    assert_eq!(next(sparse(3, 1), ones_but(0, 1)), kind::RECEIPT);
    assert_eq!(next(sparse(3, 1), ones_but(3, 9)), kind::NEED);
    peer.say(|out| out.extend(delta(&sparse(3, 9))));
    assert_eq!(peer.frame().0, kind::REFUSED);
}

#[test]
fn a_subscriber_asks_again_for_what_it_could_not_use_and_takes_it_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let dial = dial_to(&address, &TlsFiles::default()).unwrap();
    let subscriber = WeightSubscriber::new(dial, ClientOptions::default(), 3).unwrap();
    let mut peer = Peer::server(&listener);
    let wanted = ones_but(3, 4);
    let mut answer = |serial, sums: Vec<u64>, chunk: ChunkOf<'_>| {
        assert_eq!(Want::read(&peer.expect(kind::WANT)), Ok(Want { after: serial - 1, sums }));
        peer.say(|out| {
            let form = Form::Chunks((*plan(CHUNK_BYTES)).clone());
            Announcement { serial, version: serial, form }.write(out);
            chunk.write(out);
            write_serial(out, kind::END, serial);
        });
    };
    let (ones, base) = (vec![1; CHUNK_BYTES], sum(&ones_but(0, 1)));
    answer(1, vec![], whole(0, &ones, &ones));
    let delta = |bytes| ChunkOf { form: ChunkForm::Sparse, bytes, ..whole(0, &wanted, &[]) };
    answer(2, vec![base], delta(&sparse(3, 5)));
    answer(2, vec![0], whole(0, &wanted, &wanted));
    let third = ones_but(3, 5);
    let delta = sparse(3, 5);
    let chunk = ChunkOf { form: ChunkForm::Sparse, bytes: &delta, ..whole(0, &third, &[]) };
    answer(3, vec![sum(&wanted)], chunk);
    let is_third = |latest: Option<&Arc<Publication>>| {
        latest.filter(|latest| latest.version() == 3).map(Arc::clone)
    };
    let latest = soon(|wait| subscriber.wait_for(wait, is_third)).unwrap();
    assert_eq!(latest.content().unwrap().bytes().unwrap(), third);
}
