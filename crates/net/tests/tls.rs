//! Encrypted links: which certificates are accepted, which are refused, and how that is reported.

mod common;
#[path = "../../replay/tests/common/waiting.rs"]
mod waiting;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Authority, TlsIdentity, files};
use echoic_net::client::{Client, Options as ClientOptions};
use echoic_net::server::{Options, Server};
use echoic_net::transport::{TlsFiles, dial_to, listen_at};
use echoic_net::{Address, Token};
use echoic_replay::{Dtype, Leaf, Spec, Stream, StreamConfig};
use waiting::{soon, until};

fn stream() -> Arc<Stream> {
    let leaf = Leaf { path: "number".into(), dtype: Dtype::UInt(8), shape: vec![] };
    let config = StreamConfig { batch_size: 1, num_buffers: 8 };
    Arc::new(Stream::new(Spec::new(vec![leaf]).unwrap(), config).unwrap())
}

fn serve(
    stream: &Arc<Stream>,
    own: &TlsIdentity,
    clients: Option<&Authority>,
    options: Options,
) -> Server {
    let listen = listen_at(&"tls://localhost:0".parse().unwrap(), &files(Some(own), clients));
    Server::open(&*listen.unwrap(), Arc::clone(stream), options).unwrap()
}

/// Sends one number: why that failed, if it did.
fn send(
    address: &Address,
    files: &TlsFiles,
    token: Option<&[u8]>,
    number: u64,
) -> Result<(), String> {
    let options = ClientOptions {
        connect_timeout: Duration::from_millis(500),
        token: token.and_then(|token| Token::new(token).ok()),
        ..ClientOptions::default()
    };
    let dial = dial_to(address, files).map_err(|error| error.to_string())?;
    let client = Client::new(dial, stream().spec().clone(), options).unwrap();
    soon(|wait| client.wait_until_connected(wait)).map_err(|error| error.to_string())?;
    let mut rows = client.try_claim(1).unwrap().unwrap();
    rows.bytes_mut().copy_from_slice(&number.to_le_bytes());
    client.commit(rows);
    soon(|wait| client.close(wait)).map_err(|error| error.to_string())
}

fn receive(stream: &Arc<Stream>) -> u64 {
    let batch = soon(|wait| stream.take(wait)).unwrap();
    u64::from_le_bytes(batch.column(0).try_into().unwrap())
}

/// Refuses one client for this reason, and then serves another.
fn assert_refused(
    clients: Option<&Authority>,
    authority: &Authority,
    files_of: impl FnOnce(TlsFiles) -> TlsFiles,
    reason: &str,
) {
    let stream = stream();
    let server = serve(&stream, &authority.sign("localhost"), clients, Options::default());
    let good = files(Some(&authority.sign("worker")), Some(authority));
    let refused = send(server.address(), &files_of(good.clone()), None, 1).unwrap_err();
    assert!(refused.contains(reason), "{refused:?} does not tell {reason:?}");
    send(server.address(), &good, None, 2).unwrap();
    assert_eq!(receive(&stream), 2);
    until("the connection that was refused is gone", || server.info().connections == 0);
}

#[test]
fn a_server_of_another_authority_is_not_believed() {
    let (ours, other) = (Authority::new(), Authority::new());
    let wrong = |good| TlsFiles { authority: Some(other.identity.certificate.clone()), ..good };
    assert_refused(None, &ours, wrong, "does not come from the authority that was given");
}

#[test]
fn a_server_of_another_name_is_not_believed() {
    let wrong = |good| TlsFiles { server_name: Some("learner.example".into()), ..good };
    assert_refused(None, &Authority::new(), wrong, "learner.example");
}

#[test]
fn a_server_may_have_another_name_than_its_host() {
    let (authority, stream) = (Authority::new(), stream());
    let own = authority.sign("learner.example");
    let server = serve(&stream, &own, None, Options::default());
    let mut client = files(None, Some(&authority));
    assert!(send(server.address(), &client, None, 1).unwrap_err().contains("not valid for name"));
    client.server_name = Some("learner.example".into());
    send(server.address(), &client, None, 2).unwrap();
    assert_eq!(receive(&stream), 2);
}

#[test]
fn a_client_without_a_certificate_is_told_to_give_one() {
    let authority = Authority::new();
    let wrong = |good| TlsFiles { certificate: None, key: None, ..good };
    assert_refused(Some(&authority), &authority, wrong, "give certificate and key");
}

#[test]
fn a_client_with_a_certificate_of_another_authority_is_told() {
    let (ours, other) = (Authority::new(), Authority::new());
    let stranger = other.sign("stranger");
    let wrong = |good| TlsFiles {
        certificate: Some(stranger.certificate.clone()),
        key: Some(stranger.key.clone()),
        ..good
    };
    assert_refused(Some(&ours), &ours, wrong, "does not accept our certificate");
}

/// Carries connections to a server, and flips a bit of the next bytes of the client, or of the server, when it is told to.
struct Noise {
    port: u16,
    flips: Arc<[AtomicBool; 2]>,
}

impl Noise {
    fn before(server: u16) -> Self {
        let listener = TcpListener::bind("localhost:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let flips = Arc::<[AtomicBool; 2]>::default();
        let told = Arc::clone(&flips);
        // It ends with the test's process.
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(("localhost", server)) else { return };
                let ways =
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
                for (way, (from, to)) in ways.into_iter().enumerate() {
                    let told = Arc::clone(&told);
                    std::thread::spawn(move || carry(from, to, &told[way]));
                }
            }
        });
        Self { port, flips }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, flip: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(read) = from.read(&mut bytes)
        && read > 0
    {
        if flip.swap(false, Ordering::Relaxed) {
            bytes[read - 1] ^= 1;
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    // Either may have ended it already.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
fn a_connection_that_was_damaged_is_made_anew_and_loses_nothing() {
    let (authority, stream) = (Authority::new(), stream());
    let server = serve(&stream, &authority.sign("localhost"), None, Options::default());
    let Address::Tls { port, .. } = *server.address() else { unreachable!() };
    let noise = Noise::before(port);
    let address = Address::Tls { host: "localhost".into(), port: noise.port };
    let dial = dial_to(&address, &files(None, Some(&authority))).unwrap();
    let client = Client::new(dial, stream.spec().clone(), ClientOptions::default()).unwrap();
    soon(|wait| client.wait_until_connected(wait)).unwrap();
    // What the client says, what the server answers, and undamaged again.
    for (number, way) in [(1u64, Some(0)), (2, Some(1)), (3, None)] {
        if let Some(way) = way {
            noise.flips[way].store(true, Ordering::Relaxed);
        }
        let mut rows = client.try_claim(1).unwrap().unwrap();
        rows.bytes_mut().copy_from_slice(&number.to_le_bytes());
        client.commit(rows);
        soon(|wait| client.flush(wait)).unwrap();
        assert_eq!(receive(&stream), number);
    }
    assert_eq!(client.info().reconnects, 2);
    soon(|wait| client.close(wait)).unwrap();
}

#[test]
fn one_connection_too_many_is_told_so_although_it_has_not_shaken_hands() {
    let (authority, stream) = (Authority::new(), stream());
    let options = Options { max_connections: 1, ..Options::default() };
    let server = serve(&stream, &authority.sign("localhost"), None, options);
    let files = files(None, Some(&authority));
    let dial = dial_to(server.address(), &files).unwrap();
    let first = Client::new(dial, stream.spec().clone(), ClientOptions::default()).unwrap();
    soon(|wait| first.wait_until_connected(wait)).unwrap();
    let refused = send(server.address(), &files, None, 1).unwrap_err();
    assert!(refused.contains("LIMIT"), "{refused}");
}

#[test]
fn a_client_without_encryption_is_turned_away_and_sees_what_speaks_there() {
    let (authority, stream) = (Authority::new(), stream());
    let server = serve(&stream, &authority.sign("localhost"), None, Options::default());
    let Address::Tls { host, port } = server.address().clone() else { unreachable!() };
    let plain = Address::Tcp { host, port };
    let refused = send(&plain, &TlsFiles::default(), None, 1).unwrap_err();
    assert!(refused.contains("TLS"), "{refused}");
    let mut stranger = TcpStream::connect(("localhost", port)).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stranger.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.first(), Some(&0x15), "an alert, and the end");
    send(server.address(), &files(None, Some(&authority)), None, 2).unwrap();
    assert_eq!(receive(&stream), 2);
}

#[test]
fn a_server_without_encryption_is_recognised() {
    let stream = stream();
    let listen = listen_at(&"tcp://localhost:0".parse().unwrap(), &TlsFiles::default()).unwrap();
    let server = Server::open(&*listen, Arc::clone(&stream), Options::default()).unwrap();
    let Address::Tcp { host, port } = server.address().clone() else { unreachable!() };
    let authority = Authority::new();
    let tls = Address::Tls { host, port };
    let refused = send(&tls, &files(None, Some(&authority)), None, 1).unwrap_err();
    assert!(refused.contains("does the server speak TLS?"), "{refused}");
    send(server.address(), &TlsFiles::default(), None, 2).unwrap();
    assert_eq!(receive(&stream), 2);
}

#[test]
fn a_server_that_does_not_answer_is_not_waited_for_for_ever() {
    let listener = TcpListener::bind("localhost:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let authority = Authority::new();
    let address = Address::Tls { host: "localhost".into(), port };
    let dial = dial_to(&address, &files(None, Some(&authority))).unwrap();
    let since = Instant::now();
    let error = dial.dial(Duration::from_millis(100)).err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert!(since.elapsed() < Duration::from_secs(5));
}

#[test]
fn files_that_do_not_serve_are_named() {
    let (ours, other) = (Authority::new(), Authority::new());
    let (one, two) = (ours.sign("one"), other.sign("two"));
    let address: Address = "tls://localhost:0".parse().unwrap();
    let listen = |certificate: &_, key: &_| {
        let (certificate, key): (&std::path::PathBuf, &std::path::PathBuf) = (certificate, key);
        let files = TlsFiles {
            certificate: Some(certificate.clone()),
            key: Some(key.clone()),
            ..TlsFiles::default()
        };
        listen_at(&address, &files).err().map_or_else(String::new, |error| error.to_string())
    };
    assert_eq!(listen(&one.certificate, &one.key), "");
    assert!(listen(&one.certificate, &two.key).contains("KeyMismatch"));
    assert!(listen(&one.key, &one.key).contains("no certificate in it"));
    assert!(listen(&one.certificate, &one.certificate).contains("the private key"));
    assert!(listen(&one.certificate, &"/nowhere".into()).contains("/nowhere"));
}
