//! Servers of tests, at addresses of each kind, and the ways to them.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use echoic_net::server::{Options, Served, Server};
use echoic_net::transport::{Dial, TlsFiles, dial_to, listen_at};

use super::waiting::PATIENCE;

/// With a port that the system chooses.
pub const TCP: &str = "tcp://127.0.0.1:0";

/// Addresses of each kind that nobody has used.
pub fn addresses() -> [String; 3] {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("echoic-test-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(format!("{name}.sock"));
    [TCP.into(), format!("unix://{}", path.display()), shm(&name)]
}

/// An address of shared memory, or of a socket on systems without it.
pub fn shm(name: &str) -> String {
    match echoic_memory::SHARES_MEMORY {
        true => format!("shm://{name}"),
        false => format!("unix://{}", std::env::temp_dir().join(format!("{name}.shm")).display()),
    }
}

pub fn open(at: &str, served: impl Into<Served>) -> Server {
    open_with(at, served, Options::default())
}

/// Also where a server was a moment ago: somebody else may have the port for a while.
pub fn open_with(at: &str, served: impl Into<Served>, options: Options) -> Server {
    let (at, served, due) = (at.parse().unwrap(), served.into(), Instant::now() + PATIENCE);
    loop {
        let listen = listen_at(&at, &TlsFiles::default()).unwrap();
        match Server::open(&*listen, served.clone(), options.clone()) {
            Ok(server) => return server,
            Err(error) => assert!(Instant::now() < due, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn dial(server: &Server) -> Box<dyn Dial> {
    dial_to(server.address(), &TlsFiles::default()).unwrap()
}
