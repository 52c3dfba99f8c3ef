//! A server that is told anything: it neither panics nor hangs, and in the end lets the link go.
#![no_main]

use std::sync::{Arc, OnceLock};

use echoic_fuzz::{Cuts, Dialler, listener, spec};
use echoic_net::Token;
use echoic_net::server::{Options, Server};
use echoic_replay::{Stream, StreamConfig};
use libfuzzer_sys::fuzz_target;

struct Target {
    dialler: Dialler,
    stream: Arc<Stream>,
    server: Server,
}

fn open(filling: usize, token: Option<Token>) -> Target {
    let config = StreamConfig { batch_size: 1, num_buffers: 4 };
    let stream = Arc::new(Stream::new(spec(filling), config).expect("memory"));
    let (dialler, listener) = listener();
    let options = Options { token, threads: 1, ..Options::default() };
    let server = Server::open(&listener, Arc::clone(&stream), options).expect("a server");
    Target { dialler, stream, server }
}

fuzz_target!(|bytes: &[u8]| {
    static TARGETS: OnceLock<[Target; 3]> = OnceLock::new();
    let targets = TARGETS.get_or_init(|| {
        // Samples that are copied, samples that are read in place, and nobody without a token.
        [open(12, None), open(4088, None), open(12, Token::new(b"secret").ok())]
    });
    let [which, cuts, said @ ..] = bytes else { return };
    let target = &targets[usize::from(*which) % targets.len()];
    let before = target.server.info();
    let far = target.dialler.dial(Cuts::from(*cuts));
    far.say(&[said]);
    far.end();
    let mut taken = 0;
    far.settle(|| taken += u64::from(target.stream.try_take().is_some()));
    while target.stream.try_take().is_some() {
        taken += 1;
    }
    let after = target.server.info();
    assert_eq!(after.flow.samples - before.flow.samples, taken, "what is counted is stored");
    assert!(taken <= (said.len() / target.stream.spec().nbytes()) as u64, "nobody sent them");
    assert_eq!((after.accepted, after.connections), (before.accepted + 1, 0));
});
