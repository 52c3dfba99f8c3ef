//! What connected sockets of every kind do alike.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

/// The most pieces that one system call takes, on every system.
const MAX_PIECES: usize = 1024;

/// How bytes are sent: a peer that is gone is an error, and no signal. Rust programs ignore that
/// signal, but the process need not be one.
#[cfg(not(target_vendor = "apple"))]
pub(super) const FLAGS: SendFlags = SendFlags::NOSIGNAL;
/// Here, [`prepare`] does so.
#[cfg(target_vendor = "apple")]
pub(super) const FLAGS: SendFlags = SendFlags::empty();

/// Has a new socket never block, and never signal.
pub(super) fn prepare(socket: impl AsFd) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    #[cfg(target_vendor = "apple")]
    rustix::net::sockopt::set_socket_nosigpipe(&socket, true)?;
    Ok(())
}

/// Sends some of the bytes.
pub(super) fn write(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(send(socket, bytes, FLAGS)?)
}

/// Sends some of the pieces with one system call.
pub(super) fn write_vectored(socket: impl AsFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    let pieces = &pieces[..pieces.len().min(MAX_PIECES)];
    Ok(sendmsg(socket, pieces, &mut SendAncillaryBuffer::default(), FLAGS)?)
}

/// How many bytes wait to be read.
pub(super) fn available(socket: impl AsFd) -> Option<usize> {
    rustix::io::ioctl_fionread(socket).ok().and_then(|bytes| bytes.try_into().ok())
}

/// Waits until the socket is ready; `false` when the deadline passes before.
pub(super) fn wait(socket: impl AsFd, flags: PollFlags, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut [PollFd::new(&socket, flags)], Some(&timespec(left))) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
