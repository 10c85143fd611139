//! The inverses of all changes, on disk before they are made.
//!
//! What has a mark is found by it. The journal is for what has none (the kernel records no origin
//! of a sysctl, and older kernels none of an address), and for people. It is on tmpfs: a reboot
//! undoes the kernel's part, and what survives one (the rows of Open vSwitch) has its inverse in
//! its mark. Each line is one step, in JSON. A line without its end was cut off when the process
//! ended, before its step began.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use podwire_daemon::file::{FileError, if_there};
use tracing::warn;

use crate::alive::SOCKET;
use crate::files;
use crate::firewall;
use crate::items::Undo;
use crate::moved::Moved;

/// The journal of this machine. While it is locked, no other podwire process changes the machine.
#[derive(Debug)]
pub(crate) struct Journal {
    directory: PathBuf,
    undos: Vec<Undo>,
    /// The digests of podwire's nftables tables by name, as nft listed them after podwire wrote
    /// them.
    tables: BTreeMap<&'static str, String>,
    /// None for a reader.
    lock: Option<Flock<File>>,
    /// Number of files written or removed.
    pub(crate) writes: usize,
}

/// Why the journal can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "another `podwire node` uses {}: stop it first (systemctl stop podwire-node), or let it do \
         the work",
        .0.display()
    )]
    Held(PathBuf),
    #[error("{} line {line}: {source}: move the file away and run cleanup", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        source: serde_json::Error,
    },
}

const FILE: &str = "journal";
/// The file of each table's digest.
const TABLES: [(&str, &str); 3] = [
    (firewall::NAME, "table"),
    (firewall::DOOR, "door"),
    (firewall::ROUTER, "router"),
];

impl Journal {
    /// Reads the entries, without a lock.
    pub(crate) fn read(directory: &Path) -> Result<Self, JournalError> {
        let path = directory.join(FILE);
        let text = if_there(fs::read_to_string(&path)).map_err(FileError::of("read", &path))?;
        let mut undos = Vec::new();
        for (at, line) in text.unwrap_or_default().split_inclusive('\n').enumerate() {
            let Some(line) = line.strip_suffix('\n') else {
                break;
            };
            let undo = serde_json::from_str(line).map_err(|source| JournalError::Line {
                path: path.clone(),
                line: at + 1,
                source,
            })?;
            undos.push(undo);
        }
        Ok(Self {
            directory: directory.to_owned(),
            undos,
            tables: TABLES
                .iter()
                .filter_map(|(name, file)| {
                    Some((*name, fs::read_to_string(directory.join(file)).ok()?))
                })
                .collect(),
            lock: None,
            writes: 0,
        })
    }

    /// Locks it and reads the entries. Creates the directory if it is missing.
    pub(crate) fn hold(directory: &Path) -> Result<Self, JournalError> {
        Self::hold_by(directory, FlockArg::LockExclusiveNonblock)
    }

    /// The same, after waiting for the lock.
    pub(crate) fn hold_when_free(directory: &Path) -> Result<Self, JournalError> {
        Self::hold_by(directory, FlockArg::LockExclusive)
    }

    fn hold_by(directory: &Path, how: FlockArg) -> Result<Self, JournalError> {
        let made = !directory.exists();
        let lock = Self::lock(directory, how)?;
        let mut journal = Self::read(directory)?;
        journal.lock = Some(lock);
        journal.writes = usize::from(made);
        Ok(journal)
    }

    /// Locks the directory, which is created if it is missing.
    fn lock(directory: &Path, how: FlockArg) -> Result<Flock<File>, JournalError> {
        if !directory.exists() {
            fs::create_dir_all(directory).map_err(FileError::of("make", directory))?;
        }
        // The directory is locked, so that a run with nothing to do writes no file.
        let opened = File::open(directory).map_err(FileError::of("open", directory))?;
        let lock = Flock::lock(opened, how).or_else(|(opened, errno)| match errno {
            // `role` holds a shared lock for a moment, to see whether it is locked.
            Errno::EWOULDBLOCK => {
                let shared = Flock::lock(opened, FlockArg::LockSharedNonblock);
                let shared = shared.map_err(|(_, errno)| errno)?;
                shared.relock(FlockArg::LockExclusive).map(|()| shared)
            }
            _ => Err(errno),
        });
        lock.map_err(|errno| match errno {
            Errno::EWOULDBLOCK => JournalError::Held(directory.to_owned()),
            _ => FileError::of("lock", directory)(errno.into()).into(),
        })
    }

    /// Writes all entries again if somebody has removed the file, or cut it off.
    pub(crate) fn restore(&mut self) -> Result<(), JournalError> {
        let path = self.file();
        // Somebody may have removed the directory that is locked, and made another one.
        let locked = self.lock.as_ref().and_then(|lock| lock.metadata().ok());
        let there = fs::metadata(&self.directory).ok();
        let id = |it: Metadata| (it.dev(), it.ino());
        if locked.map(id) != there.map(id) {
            self.lock = Some(Self::lock(
                &self.directory,
                FlockArg::LockExclusiveNonblock,
            )?);
        }
        let complete: String = self.undos.iter().map(Undo::line).collect();
        // The next line would continue a truncated one.
        let length = fs::metadata(&path).map_or(0, |file| file.len());
        if length != complete.len() as u64 {
            warn!("the role's record was removed or cut off, and is written again");
            files::replace(&path, complete.as_bytes()).map_err(FileError::of("write", &path))?;
            for (name, digest) in self.tables.clone() {
                self.record_table(name, Some(digest));
            }
        }
        Ok(())
    }

    pub(crate) fn table(&self, name: &str) -> Option<&String> {
        self.tables.get(name)
    }

    pub(crate) fn tables(&self) -> &BTreeMap<&'static str, String> {
        &self.tables
    }

    /// Records the digest of one of podwire's nftables tables, or that it is not known.
    pub(crate) fn record_table(&mut self, name: &'static str, digest: Option<String>) {
        let file = TABLES.iter().find(|(of, _)| *of == name);
        let file = file.map(|(_, file)| self.directory.join(file));
        // Without a record, the rules' comments are compared.
        let _ = match (file, digest) {
            (Some(file), Some(digest)) => {
                let written = fs::write(file, &digest);
                self.tables.insert(name, digest);
                written
            }
            (Some(file), None) => {
                self.tables.remove(name);
                fs::remove_file(file)
            }
            (None, _) => Ok(()),
        };
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    pub(crate) fn undos(&self) -> &[Undo] {
        &self.undos
    }

    /// Records an inverse on disk, unless there is one for the same item: the first leads back to
    /// the original state.
    pub(crate) fn note(&mut self, undo: Undo) -> Result<(), JournalError> {
        if self.undos.iter().any(|noted| noted.is_for_the_same(&undo)) {
            return Ok(());
        }
        self.restore()?;
        let path = self.file();
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(FileError::of("open", &path))?;
        file.write_all(undo.line().as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(FileError::of("write", &path))?;
        self.writes += 1;
        self.undos.push(undo);
        Ok(())
    }

    /// Removes all entries but those of replaced routes.
    pub(crate) fn keep_replaced(&mut self) -> Result<(), JournalError> {
        self.undos.retain(|undo| matches!(undo, Undo::Replaced(_)));
        let path = self.file();
        let complete: String = self.undos.iter().map(Undo::line).collect();
        files::replace(&path, complete.as_bytes()).map_err(FileError::of("write", &path))?;
        Ok(())
    }

    /// Removes all entries, once they are undone.
    pub(crate) fn forget(&mut self) -> Result<(), JournalError> {
        let path = self.file();
        if_there(fs::remove_file(&path)).map_err(FileError::of("remove", &path))?;
        self.undos.clear();
        for (name, _) in TABLES {
            self.record_table(name, None);
        }
        crate::record::forget(&self.directory);
        self.writes += 1;
        Ok(())
    }
}

/// If nothing was done, or all is undone, the directory is removed.
impl Drop for Journal {
    fn drop(&mut self) {
        if self.lock.is_none() || !self.undos.is_empty() {
            return;
        }
        Moved::tidy(&self.directory);
        let _ = fs::remove_file(self.directory.join(SOCKET));
        // It may contain the agent's files.
        let parent = self.directory.parent();
        for directory in std::iter::once(&*self.directory).chain(parent) {
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
    }
}

impl Undo {
    fn is_for_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sysctl { path, .. }, Self::Sysctl { path: other, .. }) => path == other,
            _ => self == other,
        }
    }

    fn line(&self) -> String {
        // Strings and addresses can always be encoded as JSON.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::items::LinkUp;

    fn sysctl(was: &str) -> Undo {
        Undo::Sysctl {
            path: "net/ipv4/conf/eth0/forwarding".to_owned(),
            was: was.to_owned(),
            set: "1".to_owned(),
            all: None,
        }
    }

    #[test]
    fn the_first_inverse_of_a_thing_is_the_one_that_counts() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::hold(&directory.path().join("node")).unwrap();
        journal.note(sysctl("0")).unwrap();
        journal.note(sysctl("2")).unwrap();
        journal
            .note(Undo::Made(LinkUp("ovn-k8s-mp0".to_owned()).into()))
            .unwrap();
        let read = Journal::read(&directory.path().join("node")).unwrap();
        assert_eq!(
            read.undos(),
            [
                sysctl("0"),
                Undo::Made(LinkUp("ovn-k8s-mp0".to_owned()).into())
            ]
        );
    }

    #[test]
    fn one_who_only_looks_whether_it_is_held_does_not_keep_it_from_being_held() {
        let directory = tempfile::tempdir().unwrap();
        let looking = File::open(directory.path()).unwrap();
        let looking = Flock::lock(looking, FlockArg::LockSharedNonblock).unwrap();
        let waits = format!(":{} ", fs::metadata(directory.path()).unwrap().ino());
        let is_waiting = || {
            let locks = fs::read_to_string("/proc/locks").unwrap();
            let mut lines = locks.lines();
            lines.any(|line| line.contains("->") && line.contains(&waits))
        };
        std::thread::scope(|scope| {
            let held = scope.spawn(|| Journal::hold(directory.path()).map(drop));
            while !held.is_finished() && !is_waiting() {}
            drop(looking);
            held.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_line_that_was_cut_off_is_a_step_that_did_not_begin() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::hold(directory.path()).unwrap();
        journal.note(sysctl("0")).unwrap();
        let path = directory.path().join(FILE);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"made\":{\"add").unwrap();
        drop(journal);
        let mut journal = Journal::hold(directory.path()).unwrap();
        assert_eq!(journal.undos(), [sysctl("0")]);
        journal
            .note(Undo::Made(LinkUp("ovn-k8s-mp0".to_owned()).into()))
            .unwrap();
        let read = Journal::read(directory.path()).unwrap();
        assert_eq!(
            read.undos(),
            [
                sysctl("0"),
                Undo::Made(LinkUp("ovn-k8s-mp0".to_owned()).into())
            ]
        );
    }

    #[test]
    fn one_at_a_time_changes_the_machine() {
        let directory = tempfile::tempdir().unwrap();
        let _held = Journal::hold(directory.path()).unwrap();
        let refused = Journal::hold(directory.path()).unwrap_err();
        assert!(matches!(refused, JournalError::Held(_)), "{refused}");
    }
}
