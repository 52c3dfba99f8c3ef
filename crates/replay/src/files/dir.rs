//! An open directory.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};

use super::{FileError, Output};

const READ_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory that stays the same one, whatever happens to its name.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    /// For messages.
    path: PathBuf,
}

/// A lock on a file or directory, held until this is dropped, or the process has died.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    process: u32,
}

impl Lock {
    fn of(fd: OwnedFd) -> Self {
        Self { file: fd.into(), process: std::process::id() }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone would leave the lock to children that were forked meanwhile, which have the
        // file open, too. One of these must not give away the lock of its parent.
        if self.process == std::process::id() {
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// The length of an open file.
fn regular_length(file: &File, path: &Path) -> Result<u64, FileError> {
    let metadata =
        file.metadata().map_err(|source| FileError::new("look at the file", path, source))?;
    if metadata.is_file() {
        return Ok(metadata.len());
    }
    let source = io::Error::new(io::ErrorKind::InvalidData, "it is no regular file");
    Err(FileError::new("use", path, source))
}

impl Dir {
    /// Opens the directory at a path that the user gave.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let fd = rustix::fs::openat(CWD, path, READ_DIR, Mode::empty())
            .map_err(|source| FileError::new("open the directory", path, source))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens the directory at a path that the user gave, and makes it, durably, when it is not there.
    pub(crate) fn open_or_make(path: &Path) -> Result<Self, FileError> {
        match Self::open(path) {
            Err(error) if error.is_missing() => {}
            opened => return opened,
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Self::open(path);
        };
        let here = Path::new(".");
        let parent = Self::open_or_make(if parent.as_os_str().is_empty() { here } else { parent })?;
        parent.step("make the directory", path)?;
        match rustix::fs::mkdirat(&parent.fd, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => parent.sync()?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(source) => return Err(FileError::new("make the directory", path, source)),
        }
        Self::open(path)
    }

    /// Where it was when it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a name in it, for messages.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The directory that this one lies in.
    pub(crate) fn parent(&self) -> Result<Self, FileError> {
        let path = match (self.path.parent(), self.path.file_name()) {
            (Some(parent), Some(_)) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => self.path.join(".."),
        };
        let fd = rustix::fs::openat(&self.fd, "..", READ_DIR, Mode::empty())
            .map_err(|source| FileError::new("open the directory", &path, source))?;
        Ok(Self { fd, path })
    }

    /// A directory in this one.
    pub(crate) fn dir(&self, name: &str) -> Result<Self, FileError> {
        let path = self.at(name);
        let flags = READ_DIR.union(OFlags::NOFOLLOW);
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())
            .map_err(|source| FileError::new("open the directory", &path, source))?;
        Ok(Self { fd, path })
    }

    /// Makes a directory in this one, which is durable after [`Dir::sync`].
    pub(crate) fn make_dir(&self, name: &str) -> Result<Self, FileError> {
        let path = self.at(name);
        self.step("make the directory", &path)?;
        rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o777))
            .map_err(|source| FileError::new("make the directory", &path, source))?;
        #[cfg(test)]
        super::faults::made(&path);
        self.dir(name)
    }

    /// A file in it, to read, and its length.
    pub(crate) fn file(&self, name: &str) -> Result<(File, u64), FileError> {
        let path = self.at(name);
        // Not blocking: opening a pipe would wait for its other end.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())
            .map_err(|source| FileError::new("open", &path, source))?;
        let file = File::from(fd);
        let len = regular_length(&file, &path)?;
        Ok((file, len))
    }

    /// All bytes of a small file; `None` when it has more than `limit`.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
        let (file, len) = self.file(name)?;
        if len > limit {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|source| FileError::new("read", &self.at(name), source))?;
        Ok((bytes.len() as u64 <= limit).then_some(bytes))
    }

    /// A file that was not there before, to write.
    pub(crate) fn create(&self, name: &str) -> Result<Output, FileError> {
        let path = self.at(name);
        self.step("create", &path)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(0o666))
            .map_err(|source| FileError::new("create", &path, source))?;
        #[cfg(test)]
        super::faults::made(&path);
        Ok(Output::new(File::from(fd), path, 0))
    }

    /// A file in it, to write behind its first `len` bytes; the others are cut off.
    pub(crate) fn extend(&self, name: &str, len: u64) -> Result<Output, FileError> {
        let path = self.at(name);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())
            .map_err(|source| FileError::new("open", &path, source))?;
        let file = File::from(fd);
        let found = regular_length(&file, &path)?;
        let mut output = Output::new(file, path, found);
        output.cut(len)?;
        Ok(output)
    }

    /// Moves a name of this directory to another one in it, at once for all readers.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        let path = self.at(from);
        self.step("rename", &path)?;
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
            .map_err(|source| FileError::new("rename", &path, source))?;
        #[cfg(test)]
        super::faults::renamed(&path, &self.at(to));
        Ok(())
    }

    /// Removes a file. One that is not there is fine: a removal may be done again after a crash.
    pub(crate) fn remove_file(&self, name: &str) -> Result<(), FileError> {
        self.remove(name, AtFlags::empty())
    }

    /// Removes an empty directory. One that is not there is fine.
    pub(crate) fn remove_dir(&self, name: &str) -> Result<(), FileError> {
        self.remove(name, AtFlags::REMOVEDIR)
    }

    fn remove(&self, name: &str, flags: AtFlags) -> Result<(), FileError> {
        let path = self.at(name);
        self.step("remove", &path)?;
        match rustix::fs::unlinkat(&self.fd, name, flags) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(source) => Err(FileError::new("remove", &path, source)),
        }
    }

    /// Makes the names in it durable.
    pub(crate) fn sync(&self) -> Result<(), FileError> {
        self.step("sync the directory", &self.path)?;
        #[cfg(test)]
        if super::faults::synced(&self.path) {
            return Ok(());
        }
        // The standard library asks the disk itself, on macOS too.
        let file = self.fd.try_clone().map(File::from);
        file.and_then(|file| file.sync_all())
            .map_err(|source| FileError::new("sync the directory", &self.path, source))
    }

    /// All names in it that are text, sorted. Names of ours are.
    pub(crate) fn names(&self) -> Result<Vec<String>, FileError> {
        let failed = |source| FileError::new("list", &self.path, source);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            match entry.file_name().to_str() {
                Ok("." | "..") => {}
                Ok(name) => names.push(name.to_owned()),
                // It is in use: the directory is not empty.
                Err(_) => names.push(entry.file_name().to_string_lossy().into_owned()),
            }
        }
        names.sort();
        Ok(names)
    }

    /// Takes the lock file `name`, which is made with `text` in it if it is not there. `None` when
    /// another holds it.
    pub(crate) fn lock(&self, name: &str, text: &str) -> Result<Option<Lock>, FileError> {
        let path = self.at(name);
        self.step("create", &path)?;
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(0o666))
            .map_err(|source| FileError::new("open", &path, source))?;
        let file = File::from(fd);
        let len = regular_length(&file, &path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(source) => return Err(FileError::new("lock", &path, source)),
        }
        let mut lock = Lock::of(file.into());
        if len == 0 {
            let written = lock.file.write_all(text.as_bytes());
            written.map_err(|source| FileError::new("write", &path, source))?;
        }
        Ok(Some(lock))
    }

    /// Locks the file `name` against other processes, and changes nothing. `None` when another has it.
    pub(crate) fn share(&self, name: &str) -> Result<Option<Lock>, FileError> {
        let (file, _) = self.file(name)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Some(Lock::of(file.into()))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(source) => Err(FileError::new("lock", &self.at(name), source)),
        }
    }

    /// Says to [`Dir::reserve`] that the directory is in use. `None` when it is reserved. Where a file
    /// system has no locks on directories, this is not reported.
    pub(crate) fn hold(&self) -> Result<Option<Lock>, FileError> {
        self.lock_itself(FlockOperation::NonBlockingLockShared)
    }

    /// Keeps other processes from [holding](Dir::hold) the directory. `None` when one does.
    pub(crate) fn reserve(&self) -> Result<Option<Lock>, FileError> {
        self.lock_itself(FlockOperation::NonBlockingLockExclusive)
    }

    fn lock_itself(&self, operation: FlockOperation) -> Result<Option<Lock>, FileError> {
        let fd = self.fd.try_clone();
        let fd = fd.map_err(|source| FileError::new("lock", &self.path, source))?;
        let locked = rustix::fs::flock(&fd, operation);
        Ok((locked != Err(rustix::io::Errno::WOULDBLOCK)).then(|| Lock::of(fd)))
    }

    /// Comes before every change, so that tests can stop there.
    fn step(&self, what: &'static str, path: &Path) -> Result<(), FileError> {
        #[cfg(test)]
        super::faults::step(path).map_err(|source| FileError::new(what, path, source))?;
        let _ = (what, path);
        Ok(())
    }
}
