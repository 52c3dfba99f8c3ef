//! A server and its clients, over each transport of this crate.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use echoic_net::client::{
    Client, ClientError, LinkError, Options as ClientOptions, Watcher, probe,
};
use echoic_net::server::{Observer, Options, Served, Server};
use echoic_net::transport::tcp::Tcp;
use echoic_net::transport::unix::Unix;
use echoic_net::transport::{Dial, Listen};
use echoic_net::wire::observed::Observation;
use echoic_net::{Address, Token};
use echoic_replay::{Dtype, Leaf, Spec, Stream, StreamConfig};

#[path = "../../replay/tests/common/waiting.rs"]
mod waiting;

use waiting::{soon, until, within};

fn spec(payload: usize) -> Spec {
    let leaf =
        |path: &str, dtype, shape: &[usize]| Leaf { path: path.into(), dtype, shape: shape.into() };
    Spec::new(vec![
        leaf("number", Dtype::UInt(8), &[]),
        leaf("payload", Dtype::UInt(1), &[payload]),
    ])
    .unwrap()
}

fn stream(payload: usize, batch_size: usize) -> Arc<Stream> {
    let config = StreamConfig { batch_size, num_buffers: 4 };
    Arc::new(Stream::new(spec(payload), config).unwrap())
}

fn dial(address: &Address) -> Box<dyn Dial> {
    match address.clone() {
        Address::Tcp { host, port } => Box::new(Tcp { host, port }),
        Address::Unix { path } => Box::new(Unix::new(path)),
        other => panic!("no way to dial {other}"),
    }
}

fn tcp() -> Tcp {
    Tcp { host: "127.0.0.1".into(), port: 0 }
}

fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("echoic-test-{}-{name}.sock", std::process::id()))
}

/// Sends `numbers`, each with a payload that tells whether it arrived whole.
fn send(client: &Client, numbers: std::ops::Range<u64>) {
    let payload = client.spec().leaf_bytes()[1];
    let mut numbers = numbers.peekable();
    while let Some(first) = numbers.peek().copied() {
        let left = (numbers.size_hint().0).min(first as usize % 7 + 1);
        let Some(mut rows) = client.try_claim(left).unwrap() else {
            soon(|wait| client.wait_for_room(wait)).unwrap();
            continue;
        };
        for row in rows.bytes_mut().chunks_exact_mut(8 + payload) {
            let number = numbers.next().unwrap();
            row[..8].copy_from_slice(&number.to_le_bytes());
            row[8..].fill(number as u8);
        }
        client.commit(rows);
    }
}

/// Takes `count` samples and checks that they are whole; their numbers.
fn receive(stream: &Arc<Stream>, count: usize) -> Vec<u64> {
    let payload = stream.spec().leaf_bytes()[1];
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let batch = soon(|wait| stream.take(wait)).unwrap();
        let (keys, payloads) = (batch.column(0), batch.column(1));
        for (row, key) in keys.chunks_exact(8).enumerate() {
            let number = u64::from_le_bytes(key.try_into().unwrap());
            let whole = &payloads[row * payload..][..payload];
            assert!(whole.iter().all(|byte| *byte == number as u8), "sample {number} is torn");
            numbers.push(number);
        }
    }
    numbers
}

fn receive_any(stream: &Arc<Stream>, count: usize) {
    for _ in 0..count.div_ceil(stream.batch_size()) {
        soon(|wait| stream.take(wait)).unwrap();
    }
}

fn passes(listen: &dyn Listen, payload: usize, count: u64) {
    let stream = stream(payload, 8);
    let mut server = Server::open(listen, Arc::clone(&stream), Options::default()).unwrap();
    let client =
        Client::new(dial(server.address()), spec(payload), ClientOptions::default()).unwrap();
    let received = std::thread::scope(|scope| {
        let consumer = scope.spawn(|| receive(&stream, count as usize));
        send(&client, 0..count);
        soon(|wait| client.flush(wait)).unwrap();
        consumer.join().unwrap()
    });
    assert_eq!(received, (0..count).collect::<Vec<_>>());
    soon(|wait| client.close(wait)).unwrap();
    let info = server.info();
    assert_eq!((info.flow.samples, info.flow.duplicates, info.malformed), (count, 0, 0));
    server.close(Instant::now() + Duration::from_secs(5));
    assert_eq!(server.info().connections, 0);
}

#[test]
fn every_size_of_sample_arrives_whole_and_in_order_over_tcp() {
    for (payload, count) in [(0, 40_000), (12, 40_000), (5_000, 4_000), (300_000, 200)] {
        passes(&tcp(), payload, count);
    }
}

#[test]
fn every_size_of_sample_arrives_whole_and_in_order_over_a_unix_socket() {
    let path = socket_path("sizes");
    for (payload, count) in [(12, 40_000), (28_224, 2_000)] {
        passes(&Unix::new(&path), payload, count);
    }
    assert!(!path.exists(), "the socket's file is removed");
}

#[test]
fn a_client_comes_back_to_a_server_that_was_restarted() {
    let (first, second) = (stream(100, 4), stream(100, 4));
    let mut server = Server::open(&tcp(), first.clone(), Options::default()).unwrap();
    let client = Client::new(dial(server.address()), spec(100), ClientOptions::default()).unwrap();
    send(&client, 0..8);
    soon(|wait| client.flush(wait)).unwrap();
    let Address::Tcp { host, port } = server.address().clone() else { unreachable!() };
    server.close(Instant::now() + Duration::from_secs(5));
    send(&client, 8..16);
    let _again = Server::open(&Tcp { host, port }, second.clone(), Options::default()).unwrap();
    soon(|wait| client.flush(wait)).unwrap();
    assert_eq!(receive(&first, 8), (0..8).collect::<Vec<_>>());
    assert_eq!(receive(&second, 8), (8..16).collect::<Vec<_>>());
    assert_eq!(client.info().reconnects, 1);
}

#[test]
fn a_full_ring_holds_clients_back_and_says_why() {
    let stream = stream(1000, 4);
    let server = Server::open(&tcp(), stream.clone(), Options::default()).unwrap();
    let options = ClientOptions { window_bytes: 10_000, ..ClientOptions::default() };
    let client = Client::new(dial(server.address()), spec(1000), options).unwrap();
    // 16 fit into the ring, 9 into the window; the rest has to wait.
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&client, 0..100));
        until("the connection says that it is blocked", || {
            server.connections().first().is_some_and(|one| one.blocked_by == "CAPACITY")
        });
        // Time that a wait takes counts while it lasts.
        let waited = || server.connections()[0].blocked_time;
        let first = waited();
        until("it has waited for longer", || waited() > first);
        let other =
            Client::new(dial(server.address()), spec(1000), ClientOptions::default()).unwrap();
        soon(|wait| other.wait_until_connected(wait)).expect("handshakes go on");
        drop(other);
        assert!(!sender.is_finished());
        assert_eq!(receive(&stream, 100), (0..100).collect::<Vec<_>>());
    });
}

#[test]
fn clients_share_a_ring_that_is_always_full() {
    let stream = stream(1000, 4);
    let server = Server::open(&tcp(), stream.clone(), Options::default()).unwrap();
    let clients: Vec<Client> = (0..3)
        .map(|_| Client::new(dial(server.address()), spec(1000), ClientOptions::default()).unwrap())
        .collect();
    // More than windows and credits hold, so that everyone always has something on the way.
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                while !client.is_closed() {
                    let _ = client.try_claim(16).map(|rows| rows.map(|rows| client.commit(rows)));
                }
            });
        }
        receive_any(&stream, 20_000);
        let samples: Vec<u64> = server.connections().iter().map(|one| one.samples).collect();
        let least = samples.iter().min().unwrap();
        assert!(samples.len() == 3 && least * 10 > 20_000 / 3, "not fair: {samples:?}");
        for client in &clients {
            let _ = within(Duration::ZERO, |wait| client.close(wait));
        }
        stream.close();
    });
}

#[test]
fn a_client_that_gives_up_still_has_what_it_could_not_deliver() {
    let stream = stream(16, 4);
    let mut server = Server::open(&tcp(), stream.clone(), Options::default()).unwrap();
    let options =
        ClientOptions { deadline: Some(Duration::from_millis(200)), ..ClientOptions::default() };
    let client = Client::new(dial(server.address()), spec(16), options).unwrap();
    send(&client, 0..4);
    soon(|wait| client.flush(wait)).unwrap();
    server.close(Instant::now() + Duration::from_secs(5));
    send(&client, 4..7);
    let error = soon(|wait| client.close(wait)).unwrap_err();
    assert!(matches!(error, ClientError::Failed(_)), "{error}");
    let (count, bytes) = client.undelivered().unwrap();
    let numbers: Vec<u8> = bytes.chunks_exact(24).map(|row| row[0]).collect();
    assert_eq!((count, numbers), (3, vec![4, 5, 6]));
}

#[test]
fn a_client_that_is_told_to_give_up_ends_at_once_and_has_what_was_not_acknowledged() {
    let stream = stream(16, 4);
    let mut server = Server::open(&tcp(), stream.clone(), Options::default()).unwrap();
    let client = |address| Client::new(dial(address), spec(16), ClientOptions::default()).unwrap();
    // One with more than the ring has room for, one with nothing left, one whose server is away.
    let (full, done, away) = (server.address(), server.address(), server.address());
    let (full, done, away) = (client(full), client(done), client(away));
    for client in [&done, &away] {
        soon(|wait| client.wait_until_connected(wait)).unwrap();
    }
    send(&full, 0..200);
    done.give_up();
    assert_eq!(soon(|wait| done.close(wait)).map_err(|error| error.to_string()), Ok(()));
    full.give_up();
    assert!(matches!(soon(|wait| full.close(wait)), Err(ClientError::Failed(_))));
    let (count, bytes) = full.undelivered().unwrap();
    let numbers: Vec<u8> = bytes.chunks_exact(24).map(|row| row[0]).collect();
    assert_eq!(numbers, (200 - count as u8..200).collect::<Vec<_>>());
    let stored = stream.info().inserted_total;
    assert!(count as u64 + stored >= 200, "{count} are left and {stored} stored");
    server.close(Instant::now());
    send(&away, 5..6);
    away.give_up();
    assert!(matches!(soon(|wait| away.close(wait)), Err(ClientError::Failed(_))));
    assert_eq!(away.undelivered().unwrap().0, 1);
}

#[test]
fn a_token_is_needed_on_both_sides() {
    let stream = stream(16, 4);
    let token = |text: &str| Token::new(text.as_bytes()).ok();
    let options = Options { token: token("right"), ..Options::default() };
    let server = Server::open(&tcp(), stream.clone(), options).unwrap();
    let connect = |server: &Server, token| {
        let options = ClientOptions { token, ..ClientOptions::default() };
        let client = Client::new(dial(server.address()), spec(16), options).unwrap();
        soon(|wait| client.wait_until_connected(wait)).map_err(|error| error.to_string())
    };
    assert_eq!(connect(&server, token("right")), Ok(()));
    for wrong in [None, token("wrong")] {
        assert!(connect(&server, wrong).unwrap_err().contains("AUTH"));
    }
    assert_eq!(server.info().refused.get("AUTH"), Some(&2));
    let open = Server::open(&tcp(), stream, Options::default()).unwrap();
    assert!(connect(&open, token("right")).unwrap_err().contains("asks for none"));
}

#[test]
fn a_push_that_waits_over_a_connection_is_counted_by_the_stream() {
    let stream = stream(16, 4);
    let server = Server::open(&tcp(), Arc::clone(&stream), Options::default()).unwrap();
    let client = Client::new(dial(server.address()), spec(16), ClientOptions::default()).unwrap();
    // Four batches of four fit.
    send(&client, 0..17);
    until("a push is seen to wait", || stream.info().pushes_waiting > 0);
    let waits = stream.info();
    assert_eq!(waits.blocked_pushes, 1);
    receive(&stream, 4);
    soon(|wait| client.flush(wait)).unwrap();
    let info = stream.info();
    assert_eq!((info.blocked_pushes, info.pushes_waiting), (1, 0));
    assert!(info.blocked_time > 0.0 && info.blocked_time >= waits.blocked_time);
}

#[test]
fn another_spec_is_refused_with_what_differs() {
    let server = Server::open(&tcp(), stream(16, 4), Options::default()).unwrap();
    let leaf = |path: &str, dtype| Leaf { path: path.into(), dtype, shape: vec![16] };
    let other = Spec::new(vec![leaf("numbers", Dtype::UInt(8)), leaf("payload", Dtype::Int(1))]);
    let client = Client::new(dial(server.address()), other.unwrap(), ClientOptions::default());
    let error = soon(|wait| client.unwrap().wait_until_connected(wait)).unwrap_err();
    let text = error.to_string();
    for part in ["SPEC", "`number: uint64[]`", "server expects uint8[16], the client has int8[16]"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_public_address_needs_a_token_or_a_word() {
    let public = Tcp { host: "0.0.0.0".into(), port: 0 };
    let refused = Server::open(&public, stream(16, 4), Options::default()).err().unwrap();
    assert!(refused.to_string().contains("insecure=True"), "{refused}");
    let options = Options { insecure: true, ..Options::default() };
    assert!(Server::open(&public, stream(16, 4), options).is_ok());
    let options = Options { token: Token::new(b"secret").ok(), ..Options::default() };
    assert!(Server::open(&public, stream(16, 4), options).is_ok());
}

#[test]
fn a_probe_learns_the_spec_and_the_round_trip() {
    let server = Server::open(&tcp(), stream(16, 4), Options::default()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let probed = probe(&*dial(server.address()), None, 3, deadline).unwrap();
    assert_eq!(probed.spec, Some(spec(16)));
    assert!(probed.tables.is_empty());
    assert_eq!(probed.round_trips.len(), 3);
}

#[test]
fn a_watcher_sees_what_the_observer_saw_each_time_it_looks() {
    let looks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&looks);
    let observer = Observer::new(move || Observation {
        age: (counted.fetch_add(1, Ordering::Relaxed) + 1) as f64,
        ..Observation::default()
    });
    let served =
        Served { stream: Some(stream(16, 4)), observer: Some(observer), ..Served::default() };
    let server = Server::open(&tcp(), served, Options::default()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut watcher = Watcher::connect(&*dial(server.address()), None, None, deadline).unwrap();
    for look in 1..=3 {
        assert_eq!(watcher.look(deadline).unwrap().age, f64::from(look));
    }
    assert_eq!(looks.load(Ordering::Relaxed), 3);
    drop(watcher);
    // Its goodbye is heard, not only missed.
    until("the watcher has gone", || server.info().connections == 0);
}

#[test]
fn a_watcher_gives_up_at_its_deadline_and_is_told_of_a_server_that_closes() {
    let server = Server::open(&tcp(), stream(16, 4), Options::default()).unwrap();
    let far = Instant::now() + Duration::from_secs(10);
    let mut watcher = Watcher::connect(&*dial(server.address()), None, None, far).unwrap();
    assert_eq!(watcher.look(far).unwrap(), Observation::default(), "it has no observer");
    let past = Instant::now();
    assert!(matches!(watcher.look(past), Err(LinkError::Lost(_))));
    let mut watcher = Watcher::connect(&*dial(server.address()), None, None, far).unwrap();
    drop(server);
    assert!(matches!(watcher.look(far), Err(LinkError::Lost(_))));
}

#[test]
fn an_event_loop_of_many_serves_a_producer_that_comes_back() {
    let stream = stream(12, 4);
    let options = Options { threads: 3, ..Options::default() };
    let server = Server::open(&tcp(), stream.clone(), options).unwrap();
    for round in 0..8u64 {
        let options = ClientOptions { producer: Some([7; 16]), ..ClientOptions::default() };
        let client = Client::new(dial(server.address()), spec(12), options).unwrap();
        send(&client, round * 4..round * 4 + 4);
        soon(|wait| client.close(wait)).unwrap();
        assert_eq!(receive(&stream, 4), (round * 4..round * 4 + 4).collect::<Vec<_>>());
    }
}
