//! A client that is told anything by its server: it neither panics nor hangs, and keeps what was not
//! acknowledged.
#![no_main]

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use echoic_fuzz::{Cuts, Near, PATIENCE, link, spec};
use echoic_net::Address;
use echoic_net::client::{Client, ClientError, Options, probe};
use echoic_net::transport::{Dial, Link};
use echoic_replay::stream::Wait;
use libfuzzer_sys::fuzz_target;

/// Gives out one link, once there is one.
#[derive(Clone, Default)]
struct Once(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
enum State {
    #[default]
    Later,
    Now(Near),
    Over,
}

impl Once {
    fn offer(&self, near: Near) {
        *self.0.0.lock().expect("nobody panics with it") = State::Now(near);
        self.0.1.notify_all();
    }
}

impl Dial for Once {
    fn dial(&self, timeout: Duration) -> io::Result<Box<dyn Link>> {
        let state = self.0.0.lock().expect("nobody panics with it");
        let later = |state: &mut State| matches!(state, State::Later);
        let waited = self.0.1.wait_timeout_while(state, timeout, later);
        let (mut state, _) = waited.expect("nobody panics with it");
        match std::mem::replace(&mut *state, State::Over) {
            State::Now(near) => Ok(Box::new(near)),
            _ => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    fn address(&self) -> Address {
        Address::Shm { name: "fuzz".into() }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let [how, cuts, said @ ..] = bytes else { return };
    let (far, near) = link(Cuts::from(*cuts));
    far.say(&[said]);
    far.end();
    let once = Once::default();
    if how & 1 == 1 {
        once.offer(near);
        let deadline = Instant::now() + PATIENCE;
        // Whatever it says, it ends.
        let _ = probe(&once, None, 2, deadline);
        assert!(Instant::now() < deadline && far.is_dropped());
        return;
    }
    let filling = if how & 2 == 0 { 12 } else { 192 };
    let sample = 8 + filling;
    let options = Options {
        window_bytes: 8 * sample,
        linger: Duration::ZERO,
        deadline: Some(Duration::ZERO),
        max_retry: Some(0),
        ..Options::default()
    };
    let client = Client::new(Box::new(once.clone()), spec(filling), options).expect("a client");
    let count = usize::from(how >> 2 & 7);
    for number in 0..count {
        let mut rows = client.try_claim(1).expect("it waits").expect("room");
        rows.bytes_mut().fill(number as u8);
        client.commit(rows);
    }
    once.offer(near);
    let deadline = Some(Instant::now() + PATIENCE);
    let wait = Wait { deadline, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) };
    let closed = client.close(wait);
    assert!(!matches!(closed, Err(ClientError::TimedOut(_))), "a client does not end");
    let info = client.info();
    assert_eq!(info.samples_sent, count as u64);
    assert_eq!(info.samples_acked + info.pending, info.samples_sent);
    let (left, rows) = client.undelivered().expect("it has ended");
    assert_eq!(left as u64, info.pending);
    for (number, row) in (info.samples_acked..).zip(rows.chunks_exact(sample)) {
        assert!(row.iter().all(|byte| *byte == number as u8), "another sample than was kept");
    }
    assert_eq!(closed.is_ok(), left == 0);
});
