//! Sockets in the file system of one machine, private to the user.
//!
//! The same sockets carry `unix://` and `shm://`. For the latter they lie in a folder of the user's
//! own, and are used to hand over the ring's memory and to notice that a client has died.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
#[cfg(all(target_os = "linux", not(echoic_portable)))]
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
#[cfg(all(target_os = "linux", not(echoic_portable)))]
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, recvmsg, sendmsg,
};

use echoic_memory::SHARES_MEMORY;

use super::{BACKLOG, Dial, Link, Listen, Listener, at, socket};
use crate::address::Address;

/// How often to look whether the server has accepted some of the waiting clients.
const CROWD_PAUSE: Duration = Duration::from_millis(5);

/// How old a socket is before it is removed because it has no listener: for a moment, a new one has none either.
const SETTLED: Duration = Duration::from_secs(60);

/// For how long a socket must refuse to count as left over. On Linux only one without a listener refuses; elsewhere one
/// of a crowded server does, until some clients are accepted.
const REFUSES_FOR: Duration =
    Duration::from_secs(if cfg!(all(target_os = "linux", not(echoic_portable))) { 0 } else { 1 });

/// A socket at a path.
#[derive(Debug, Clone)]
pub struct Unix {
    address: Address,
    path: PathBuf,
    memory: bool,
}

/// A connected socket.
#[derive(Debug)]
pub struct UnixLink(UnixStream);

/// Removes its file when dropped.
struct UnixEndpoint {
    listener: UnixListener,
    address: Address,
    path: PathBuf,
    /// Device and number of the file, so that another server's is not removed.
    file: (u64, u64),
}

impl Unix {
    /// A socket at this path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { address: Address::Unix { path: path.clone() }, path, memory: false }
    }

    /// The socket of a name in the user's private folder, for the ring's memory.
    ///
    /// # Errors
    ///
    /// When there is no such folder, and none can be made that is safe; or where processes share no memory.
    pub fn shared_memory(name: &str) -> io::Result<Self> {
        if !SHARES_MEMORY {
            let text = "shm:// needs Linux; use unix:// or tcp://";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let path = private_folder()?.join(format!("{name}.sock"));
        Ok(Self { address: Address::Shm { name: name.to_owned() }, path, memory: true })
    }

    fn bind(&self) -> io::Result<UnixListener> {
        let socket = fresh_socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&self.path)?)?;
        // Nobody can connect before `listen`, so there is no moment at which others could.
        rustix::fs::chmod(&self.path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(UnixListener::from(socket))
    }

    /// Connects, waiting while more clients want to than may wait to be accepted.
    fn connect(&self, timeout: Duration) -> io::Result<UnixStream> {
        let address = SocketAddrUnix::new(&self.path)?;
        let socket = fresh_socket()?;
        let deadline = Instant::now() + timeout;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => return Ok(UnixStream::from(socket)),
                Err(Errno::INTR) => {}
                // No socket becomes ready when there is room, so there is nothing to wait for.
                Err(Errno::AGAIN) if Instant::now() >= deadline => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the server accepts no clients, and too many wait already",
                    ));
                }
                Err(Errno::AGAIN) => std::thread::sleep(CROWD_PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether what is in the way is a socket of this user, left over from a server that is gone.
    ///
    /// # Errors
    ///
    /// When it is no socket.
    fn is_stale(&self) -> io::Result<bool> {
        let found = fs::symlink_metadata(&self.path)?;
        if !found.file_type().is_socket() {
            let text = format!(
                "{} is there already and is not a socket; give another path, or remove it",
                self.path.display()
            );
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        let is_ours = found.uid() == rustix::process::geteuid().as_raw();
        let deadline = Instant::now() + REFUSES_FOR;
        loop {
            let is_left = is_ours && self.connect(Duration::ZERO).is_err_and(refused);
            if !is_left || Instant::now() >= deadline {
                return Ok(is_left);
            }
            std::thread::sleep(CROWD_PAUSE);
        }
    }

    /// Removes the sockets beside this one that servers which were killed have left behind.
    fn tidy_up(&self) {
        let Some(Ok(entries)) = self.path.parent().map(fs::read_dir) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_old = entry.metadata().and_then(|found| found.modified()).is_ok_and(|made| {
                SystemTime::now().duration_since(made).is_ok_and(|age| age >= SETTLED)
            });
            if is_old
                && path.extension().is_some_and(|ending| ending == "sock")
                && Self::new(&path).is_stale().is_ok_and(|stale| stale)
            {
                // What can't be removed is in the way of its own name only.
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// A socket that never blocks, and that no program started by this one inherits.
fn fresh_socket() -> io::Result<OwnedFd> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    socket::prepare(&socket)?;
    Ok(socket)
}

/// `$XDG_RUNTIME_DIR/echoic`, or a folder of the user's own among the temporary ones.
fn private_folder() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(runtime) if runtime.is_absolute() && runtime.is_dir() => runtime.join("echoic"),
        _ => std::env::temp_dir().join(format!("echoic-{user}")),
    };
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // Someone else may have made it first, to listen in.
    let found = fs::symlink_metadata(&folder)?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(folder);
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{} is not a folder that only this user can enter", folder.display()),
    ))
}

impl Listen for Unix {
    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        if self.memory {
            // The folder is ours alone.
            self.tidy_up();
        }
        let bound = match self.bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match self.is_stale() {
                Ok(true) => fs::remove_file(&self.path).and_then(|()| self.bind()),
                Ok(false) => Err(error),
                Err(error) => Err(error),
            },
            bound => bound,
        };
        let listener = bound.map_err(|error| at(&self.address, "listen at", &error))?;
        let file = identity(&self.path)?;
        let (address, path) = (self.address.clone(), self.path.clone());
        Ok(Box::new(UnixEndpoint { listener, address, path, file }))
    }

    fn is_public(&self) -> bool {
        false
    }

    fn offers_memory(&self) -> bool {
        self.memory
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl Dial for Unix {
    fn dial(&self, timeout: Duration) -> io::Result<Box<dyn Link>> {
        Ok(Box::new(UnixLink(self.connect(timeout)?)))
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

impl Listener for UnixEndpoint {
    fn accept(&mut self) -> io::Result<Box<dyn Link>> {
        let (stream, _) = self.listener.accept()?;
        socket::prepare(&stream)?;
        Ok(Box::new(UnixLink(stream)))
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

impl AsFd for UnixEndpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for UnixEndpoint {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // What can't be removed is found stale by the next server.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Link for UnixLink {
    fn available(&self) -> Option<usize> {
        socket::available(&self.0)
    }

    fn drains_on_short_read(&self) -> bool {
        true
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }

    fn peer(&self) -> String {
        #[cfg(all(target_os = "linux", not(echoic_portable)))]
        if let Ok(peer) = rustix::net::sockopt::socket_peercred(&self.0) {
            return format!("process {}", peer.pid.as_raw_nonzero());
        }
        "a process of this machine".into()
    }

    #[cfg(all(target_os = "linux", not(echoic_portable)))]
    fn send_with_memory(&mut self, bytes: &[u8], memory: BorrowedFd<'_>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let memory = [memory];
        ancillary.push(SendAncillaryMessage::ScmRights(&memory));
        Ok(sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, socket::FLAGS)?)
    }

    #[cfg(all(target_os = "linux", not(echoic_portable)))]
    fn read_with_memory(&mut self, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(bytes)];
        let read = recvmsg(&self.0, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let memory = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok((read.bytes, memory))
    }
}

impl Read for UnixLink {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }

    fn read_vectored(&mut self, bytes: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.read_vectored(bytes)
    }
}

impl Write for UnixLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        socket::write(&self.0, bytes)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        socket::write_vectored(&self.0, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for UnixLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_accepts_nobody_does_not_hold_clients_for_ever() {
        let path = std::env::temp_dir().join(format!("echoic-crowd-{}", std::process::id()));
        let unix = Unix::new(&path);
        let listener = unix.bind().unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let waiting: Vec<_> = (0..4).map(|_| unix.connect(Duration::from_millis(20))).collect();
        fs::remove_file(&path).unwrap();
        let crowded = waiting.iter().filter_map(|one| one.as_ref().err()).next().unwrap();
        assert_eq!(crowded.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    #[cfg_attr(all(target_os = "linux", not(echoic_portable)), ignore = "there is shared memory")]
    fn an_address_of_shared_memory_is_refused_with_those_to_use() {
        let refused = Unix::shared_memory("name").unwrap_err().to_string();
        assert_eq!(refused, "shm:// needs Linux; use unix:// or tcp://");
    }

    #[test]
    fn what_is_no_socket_is_left_as_it_is() {
        let path = std::env::temp_dir().join(format!("echoic-file-{}", std::process::id()));
        fs::write(&path, "results of a week").unwrap();
        let refused = Unix::new(&path).listen().err();
        let left = fs::read_to_string(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(left.unwrap(), "results of a week");
        let refused = refused.unwrap().to_string();
        assert!(refused.contains("not a socket"), "{refused}");
    }

    #[test]
    #[cfg_attr(any(echoic_portable, not(target_os = "linux")), ignore = "shm:// needs Linux")]
    fn a_server_removes_the_sockets_that_killed_ones_have_left_in_its_folder() {
        let name = |what: &str| format!("{what}-{}", std::process::id());
        let make = |what: &str| Unix::shared_memory(&name(what)).unwrap();
        let [killed, young, alive] = ["killed", "young", "alive"].map(make);
        let listeners = [killed.bind().unwrap(), young.bind().unwrap(), alive.bind().unwrap()];
        let long_ago = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: long_ago, last_modification: long_ago };
        for unix in [&killed, &alive] {
            let flags = rustix::fs::AtFlags::empty();
            rustix::fs::utimensat(rustix::fs::CWD, &unix.path, &times, flags).unwrap();
        }
        let [of_killed, of_young, alive_listener] = listeners;
        drop((of_killed, of_young));
        let next = make("next").listen();
        let left = [&killed, &young, &alive].map(|unix| fs::remove_file(&unix.path).is_ok());
        drop((next.unwrap(), alive_listener));
        assert_eq!(left, [false, true, true]);
    }

    #[test]
    fn a_crowded_server_is_not_taken_for_a_dead_one() {
        let path = std::env::temp_dir().join(format!("echoic-alive-{}", std::process::id()));
        let unix = Unix::new(&path);
        let listener = unix.bind().unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _waiting: Vec<_> = (0..4).map(|_| unix.connect(Duration::ZERO)).collect();
        let alive = !unix.is_stale().unwrap();
        drop(listener);
        let dead = unix.is_stale().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(alive && dead);
    }
}
