//! Many connections that stand and say nothing, and what they cost a server of this process.
//!
//! Their other end is a bare socket without a buffer, so that memory of this process is the server's.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use echoic_net::server::{STREAM, Server};
use echoic_net::transport::{Link, TlsFiles, dial_to};
use echoic_net::wire::frame::{HEADER_BYTES, Header, kind};
use echoic_net::wire::handshake::{Hello, Open, Purpose, Refused};
use echoic_net::wire::{PREFACE_BYTES, VERSION, preface};
use echoic_replay::Spec;

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lets this process have as many files as it may: a connection has two here.
pub fn allow_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ =
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// Connects and shakes hands.
pub fn join(server: &Server, files: &TlsFiles, purpose: Purpose, spec: &Spec) -> Box<dyn Link> {
    let dial = dial_to(server.address(), files).unwrap();
    let mut link = dial.dial(PATIENCE).unwrap();
    let mut out = preface(VERSION).to_vec();
    Hello { nonce: [1; 32] }.write(&mut out);
    let producer = echoic_net::auth::random().unwrap();
    let open = Open {
        proof: [0; 32],
        purpose,
        producer,
        epoch: 1,
        first: 0,
        stream: STREAM.to_owned(),
        // Only who sends samples says what they are.
        spec: (purpose == Purpose::Produce).then(|| spec.clone()),
        name: "test".into(),
    };
    open.write(&mut out);
    say(&mut *link, &out);
    read(&mut *link, &mut [0; PREFACE_BYTES]);
    while hear(&mut *link) != kind::WELCOME {}
    link
}

/// Sends all of it.
pub fn say(link: &mut dyn Link, mut bytes: &[u8]) {
    again(|| {
        while !bytes.is_empty() {
            let sent = link.write(bytes)?;
            bytes = &bytes[sent..];
        }
        Ok(())
    });
    again(|| link.flush());
}

/// Reads a frame that is no refusal; which kind it is.
pub fn hear(link: &mut dyn Link) -> u8 {
    let mut head = [0; HEADER_BYTES];
    read(link, &mut head);
    let header = Header::read(&head).unwrap().unwrap();
    let mut left = header.len as usize;
    if header.kind == kind::REFUSED {
        let mut payload = vec![0; left];
        read(link, &mut payload);
        panic!("{:?}", Refused::read(&payload));
    }
    while left > 0 {
        let piece = &mut [0; 1024][..left.min(1024)];
        read(link, piece);
        left -= piece.len();
    }
    header.kind
}

fn read(link: &mut dyn Link, bytes: &mut [u8]) {
    let mut done = 0;
    again(|| {
        while done < bytes.len() {
            match Read::read(link, &mut bytes[done..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    });
}

/// Tries again until it need not wait any more.
fn again(mut attempt: impl FnMut() -> io::Result<()>) {
    let due = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                assert!(Instant::now() < due, "nothing goes on");
                std::thread::sleep(Duration::from_micros(100));
            }
            done => return done.unwrap(),
        }
    }
}

/// Waits until something is so.
pub fn until(mut so: impl FnMut() -> bool) -> bool {
    let due = Instant::now() + PATIENCE;
    while !so() {
        if Instant::now() > due {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Bytes of this process's own that are in memory.
pub fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}
