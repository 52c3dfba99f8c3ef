//! Numbers over HTTP.
//!
//! A few threads, each with one connection at a time and little patience, so that no client can take more of
//! the machine than these. A connection gets one answer. Strangers that connect and send nothing can keep others
//! waiting, but not the server.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::numbers::Numbers;
use super::request::{HttpError, MAX_HEAD, Request, end_of_head, parse};
use super::text;
use crate::auth::Token;

/// How many are answered at once.
const THREADS: usize = 2;

/// How long a client may take to say what it wants, and to begin with it; and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
const FIRST: Duration = Duration::from_millis(300);

/// How long the rest of a request is read after the answer, so that it gets there.
const LINGER: Duration = Duration::from_millis(200);

/// Why an endpoint can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Give a token, or say that none is wanted.
    #[error(
        "{0} can be reached from other machines, so it needs a token; give token=…, which clients send \
         as `Authorization: Bearer …`, or insecure=True if everyone who can reach it may read"
    )]
    NeedsToken(SocketAddr),
    /// No address.
    #[error("{address:?} is no address to listen at, expected host:port: {source}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The system's refusal.
    #[error("can't listen at {address}: {source}")]
    System {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// The function that answers.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    /// The process that has the threads: a forked child has none, and would wait for them for ever.
    process: u32,
    /// Its end stops the threads.
    stop: Option<UnixStream>,
    threads: Vec<JoinHandle<()>>,
}

/// What all threads share.
struct Answering<F> {
    listener: TcpListener,
    stopped: UnixStream,
    token: Option<Token>,
    numbers: F,
}

impl Endpoint {
    /// Answers at `host:port`; port 0 is any free one.
    pub fn open(
        address: &str,
        token: Option<Token>,
        insecure: bool,
        numbers: impl Fn() -> Numbers + Send + Sync + 'static,
    ) -> Result<Self, EndpointError> {
        let unusable = |source| EndpointError::Address { address: address.to_owned(), source };
        let mut found = address.to_socket_addrs().map_err(unusable)?;
        let at = found.next().ok_or_else(|| unusable(io::ErrorKind::NotFound.into()))?;
        if !at.ip().is_loopback() && token.is_none() && !insecure {
            return Err(EndpointError::NeedsToken(at));
        }
        let refused = |source| EndpointError::System { address: at, source };
        let listener = TcpListener::bind(at).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let (stop, stopped) = UnixStream::pair().map_err(refused)?;
        let answering = Arc::new(Answering { listener, stopped, token, numbers });
        let process = std::process::id();
        let mut endpoint = Self { address, process, stop: Some(stop), threads: Vec::new() };
        for _ in 0..THREADS {
            let answering = Arc::clone(&answering);
            let thread = std::thread::Builder::new().name("echoic-metrics".into());
            endpoint.threads.push(thread.spawn(move || answering.run()).map_err(refused)?);
        }
        Ok(endpoint)
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Not even detached: their names may be those of other threads here.
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        // Not only dropped: children that were forked meanwhile have copies.
        if let Some(stop) = self.stop.take() {
            let _ = stop.shutdown(Shutdown::Both);
        }
        let current = std::thread::current().id();
        // One of them may be the last to have known of what it answers for.
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != current) {
            // A thread that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl<F> Drop for Answering<F> {
    fn drop(&mut self) {
        // A shutdown, as of `stop`: copies in other processes would keep the port.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

impl<F: Fn() -> Numbers> Answering<F> {
    fn run(&self) {
        loop {
            let mut ends = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.stopped, PollFlags::IN),
            ];
            match poll(&mut ends, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            if !ends[1].revents().is_empty() {
                return;
            }
            match self.listener.accept() {
                Ok((connection, _)) => self.answer(connection),
                // Another thread has taken it, or it has gone; there may be too many open files for now.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Whatever goes wrong with a connection is its client's to notice.
    fn answer(&self, mut connection: TcpStream) {
        let deadline = Instant::now() + PATIENCE;
        let _ = connection.set_nonblocking(false);
        let answer = match self.read_head(&mut connection, deadline) {
            Ok(Some(head)) => parse(&head).and_then(|request| self.respond(&request)),
            // The endpoint ends.
            Ok(None) => return,
            Err(refusal) => Err(refusal),
        };
        let answer = answer.unwrap_or_else(|refusal| {
            let HttpError { code, text } = refusal;
            let more = match code {
                401 => "WWW-Authenticate: Bearer\r\n",
                405 => "Allow: GET, HEAD\r\n",
                _ => "",
            };
            let body = format!("{code} {text}\n");
            response(&format!("{code} {text}"), "text/plain; charset=utf-8", more, &body, true)
        });
        if write(&mut connection, answer.as_bytes()).is_ok() {
            finish(&mut connection);
        }
    }

    /// What a client says up to the empty line; nothing when the endpoint ends meanwhile.
    fn read_head(
        &self,
        connection: &mut TcpStream,
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>, HttpError> {
        let begin = Instant::now() + FIRST;
        let mut head = Vec::new();
        let mut bytes = [0; 1024];
        loop {
            let end = if head.is_empty() { begin } else { deadline };
            let left = end.saturating_duration_since(Instant::now());
            let mut ends = [
                PollFd::new(&*connection, PollFlags::IN),
                PollFd::new(&self.stopped, PollFlags::IN),
            ];
            // Longer than two seconds it never is.
            let timeout = left.try_into().unwrap_or_default();
            match poll(&mut ends, Some(&timeout)) {
                Ok(0) => return Err(HttpError::TIMEOUT),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return Err(HttpError::TIMEOUT),
            }
            if !ends[1].revents().is_empty() {
                return Ok(None);
            }
            match connection.read(&mut bytes) {
                Ok(0) => return Err(HttpError::MALFORMED),
                Ok(count) => head.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Err(HttpError::TIMEOUT),
            }
            if let Some(end) = end_of_head(&head) {
                head.truncate(end);
                return Ok(Some(head));
            }
            if head.len() > MAX_HEAD {
                return Err(HttpError::TOO_LONG);
            }
        }
    }

    fn respond(&self, request: &Request) -> Result<String, HttpError> {
        if let Some(token) = &self.token
            && !request.bearer.as_ref().is_some_and(|bearer| token.is(bearer))
        {
            return Err(HttpError::UNAUTHORIZED);
        }
        match request.path.as_str() {
            "/metrics" => {
                let body = text::write(&(self.numbers)());
                Ok(response("200 OK", text::CONTENT_TYPE, "", &body, request.body))
            }
            _ => Err(HttpError::NOT_FOUND),
        }
    }
}

fn response(status: &str, content_type: &str, more: &str, body: &str, with_body: bool) -> String {
    let len = body.len();
    let body = if with_body { body } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\n{more}\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Writes all of it, in [`PATIENCE`] altogether.
fn write(connection: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        connection.set_write_timeout(Some(left))?;
        match connection.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Ends a connection after its peer has: a system that closes one with unread bytes takes the answer back.
fn finish(connection: &mut TcpStream) {
    let deadline = Instant::now() + LINGER;
    let _ = connection.shutdown(Shutdown::Write);
    let mut bytes = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || connection.set_read_timeout(Some(left)).is_err() {
            return;
        }
        match connection.read(&mut bytes) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::ListenerStats;

    fn numbers() -> Numbers {
        let mut numbers = Numbers::default();
        numbers.add_listeners(&ListenerStats { connections: 7, ..ListenerStats::default() }, &[]);
        numbers
    }

    fn ask(endpoint: &Endpoint, head: &str) -> String {
        ask_at(endpoint.address(), head)
    }

    fn ask_at(address: SocketAddr, head: &str) -> String {
        let mut connection = TcpStream::connect(address).unwrap();
        // It may have answered before all was said.
        let _ = connection.write_all(head.as_bytes());
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_scrape_gets_the_numbers_and_nothing_else_gets_anything() {
        let endpoint = Endpoint::open("127.0.0.1:0", None, false, numbers).unwrap();
        let answer = ask(&endpoint, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        assert!(body.contains("\nechoic_connections 7\n"));
        let head = ask(&endpoint, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"));
        for (head, code) in [
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 404),
            ("DELETE /metrics HTTP/1.1\r\n\r\n".to_owned(), 405),
            ("\0\0\0\r\n\r\n".to_owned(), 400),
            (format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(9 << 10)), 431),
        ] {
            let answer = ask(&endpoint, &head);
            assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{head:.60}: {answer}");
        }
    }

    #[test]
    fn those_who_say_nothing_are_told_and_keep_nobody_from_asking() {
        let endpoint = Endpoint::open("127.0.0.1:0", None, false, numbers).unwrap();
        // More than there are threads.
        let connect = |_| TcpStream::connect(endpoint.address()).unwrap();
        let silent: Vec<TcpStream> = (0..2 * THREADS).map(connect).collect();
        let answer = ask(&endpoint, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"));
        for mut connection in silent {
            let mut answer = String::new();
            connection.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        }
    }

    #[test]
    fn its_end_waits_for_nobody_who_has_begun() {
        let endpoint = Endpoint::open("127.0.0.1:0", None, false, numbers).unwrap();
        let mut slow = TcpStream::connect(endpoint.address()).unwrap();
        slow.write_all(b"GET /met").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        drop(endpoint);
        assert!(start.elapsed() < PATIENCE / 2);
    }

    #[test]
    fn strangers_need_a_token() {
        let open = |token: Option<&[u8]>, insecure| {
            Endpoint::open(
                "0.0.0.0:0",
                token.and_then(|token| Token::new(token).ok()),
                insecure,
                numbers,
            )
        };
        assert!(matches!(open(None, false), Err(EndpointError::NeedsToken(_))));
        assert!(open(None, true).is_ok());
        let endpoint = open(Some(b"secret"), false).unwrap();
        let local = SocketAddr::from(([127, 0, 0, 1], endpoint.address().port()));
        let with = |line: &str| ask_at(local, &format!("GET /metrics HTTP/1.1\r\n{line}\r\n"));
        assert!(with("").starts_with("HTTP/1.1 401 "));
        assert!(with("Authorization: Bearer secre\r\n").starts_with("HTTP/1.1 401 "));
        assert!(with("Authorization: Bearer secret\r\n").starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn addresses_that_are_none_are_named() {
        for address in ["nonsense", "127.0.0.1", "127.0.0.1:99999", ""] {
            let error = Endpoint::open(address, None, false, numbers).unwrap_err();
            assert!(matches!(error, EndpointError::Address { .. }), "{error}");
        }
        let first = Endpoint::open("127.0.0.1:0", None, false, numbers).unwrap();
        let again = Endpoint::open(&first.address().to_string(), None, false, numbers);
        assert!(matches!(again, Err(EndpointError::System { .. })));
    }
}
