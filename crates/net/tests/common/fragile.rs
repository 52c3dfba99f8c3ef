//! A transport whose links break.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use echoic_net::Address;
use echoic_net::transport::{Dial, Link, TlsFiles, dial_to};

/// A transport whose links break after some bytes: more or less of them, never so few that no handshake
/// succeeds.
pub struct Fragile {
    inner: Box<dyn Dial>,
    most: u64,
    dice: AtomicU64,
}

struct FragileLink {
    inner: Box<dyn Link>,
    left: usize,
}

impl Fragile {
    pub fn new(address: &Address, most: u64) -> Box<Self> {
        let inner = dial_to(address, &TlsFiles::default()).unwrap();
        Box::new(Self { inner, most, dice: AtomicU64::new(0) })
    }
}

impl Dial for Fragile {
    fn dial(&self, timeout: Duration) -> io::Result<Box<dyn Link>> {
        let throw = self.dice.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed) >> 20;
        let left = 1000 + (throw % self.most) as usize;
        Ok(Box::new(FragileLink { inner: self.inner.dial(timeout)?, left }))
    }

    fn address(&self) -> Address {
        self.inner.address()
    }
}

impl FragileLink {
    /// How much of this may go.
    fn part(&self, wanted: usize) -> io::Result<usize> {
        match self.left {
            0 => Err(io::ErrorKind::ConnectionReset.into()),
            left => Ok(left.min(wanted)),
        }
    }

    fn count(&mut self, bytes: usize) -> usize {
        self.left -= bytes;
        bytes
    }
}

impl Read for FragileLink {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let part = self.part(bytes.len())?;
        let read = self.inner.read(&mut bytes[..part])?;
        Ok(self.count(read))
    }

    fn read_vectored(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match pieces.iter_mut().find(|piece| !piece.is_empty()) {
            Some(piece) => self.read(piece),
            None => Ok(0),
        }
    }
}

impl Write for FragileLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = self.part(bytes.len())?;
        let sent = self.inner.write(&bytes[..part])?;
        Ok(self.count(sent))
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match pieces.iter().find(|piece| !piece.is_empty()) {
            Some(piece) => self.write(piece),
            None => Ok(0),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl AsFd for FragileLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Link for FragileLink {
    fn finish(&mut self) -> io::Result<()> {
        self.inner.finish()
    }

    fn peer(&self) -> String {
        self.inner.peer()
    }
}
