//! The intent log: one small file per attachment under the run directory, written before an ADD's first side effect.
//!
//! OVSDB is the record of what is there. The journal covers the two times when it can't be: between an ADD's first side
//! effect and its row, so that an interrupted ADD is undone by the next agent; and after a DEL that OVSDB was not there to
//! hear, so that the row goes as soon as it is. The files live on tmpfs, that is exactly as long as links and namespaces do,
//! and so they need no fsync. A state is a file's suffix, so that changing it is one rename.

mod names;

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use podwire_cni::spool::boottime;
use serde::{Deserialize, Serialize};

use crate::netns::Route;
use crate::plan::{AttachmentKey, Bandwidth, stable_hash};
use names::RetiredNames;

/// Longest attachment name that is used as a file name as it is; NAME_MAX is 255.
const LONGEST_PLAIN_NAME: usize = 200;

/// The format of the files.
const FORMAT: u32 = 1;

/// Of a file that is being written: it gets its name when it is whole, so that an agent killed in between leaves none that
/// can't be read.
const UNFINISHED: &str = "tmp";

/// Where an attachment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// An ADD is under way, or was when the agent died.
    Adding,
    /// The ADD ended well.
    Live,
    /// DEL has done what it could without OVSDB; the rows are still to go.
    Deleting,
}

impl State {
    const ALL: [Self; 3] = [Self::Adding, Self::Live, Self::Deleting];

    fn suffix(self) -> &'static str {
        match self {
            Self::Adding => "adding",
            Self::Live => "json",
            Self::Deleting => "deleting",
        }
    }
}

/// What is needed to undo an attachment, or to make its port again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The format of the file.
    pub format: u32,
    /// Which attachment it is.
    pub key: AttachmentKey,
    /// `namespace/name` of the pod, when the runtime named one.
    pub pod: Option<String>,
    /// CNI_NETNS.
    pub netns: String,
    /// When the ADD began, in nanoseconds since boot: of two sandboxes of one pod the newer has the port, and a DEL that was
    /// spooled before it is none of this attachment's.
    #[serde(default)]
    pub since: u64,
    /// Device and inode of the namespace: a path may be reused by another pod.
    pub netns_id: Option<(u64, u64)>,
    /// The bridge that the ports belong on.
    pub bridge: String,
    /// The ports, one per interface.
    pub ports: Vec<EntryPort>,
    /// The DEL by which a delegated IPAM plugin gives its addresses back, as the plugin's spool has one: configuration and
    /// environment are the runtime's, which asks nobody to end an ADD that was never answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam_del: Option<String>,
}

/// One interface of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryPort {
    /// The names that the host end may bear, in the order in which they are tried.
    pub host_names: Vec<String>,
    /// MAC address of the host end: with the name, it tells our link from a foreign one.
    pub host_mac: String,
    /// The external_ids of its Interface row.
    pub external_ids: std::collections::BTreeMap<String, String>,
    /// What it may send and receive.
    #[serde(default)]
    pub bandwidth: Bandwidth,
    /// MTU of both ends, in bytes; none in an entry of an older agent.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// The routes over the pod end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
}

impl Entry {
    /// An entry in today's format.
    pub fn new(key: AttachmentKey, pod: Option<String>, netns: String, bridge: String) -> Self {
        Self {
            format: FORMAT,
            key,
            pod,
            netns,
            since: boottime(),
            netns_id: None,
            bridge,
            ports: Vec::new(),
            ipam_del: None,
        }
    }
}

/// Why the journal could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory of the journal could not be made, written, read or removed.
    #[error("{step} {path}: {source}")]
    Io {
        /// What was attempted.
        step: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file is not one of ours, or was cut short.
    #[error("read {path}: {source}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Where parsing ended.
        source: serde_json::Error,
    },
}

/// The directory of entries.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    retired_names: RetiredNames,
}

impl Journal {
    /// Opens the journal in `run_dir/attachments`, making the directory (0700) when it is missing.
    ///
    /// # Errors
    /// When the directory can't be made.
    pub fn open(run_dir: &Path) -> Result<Self, Error> {
        let directory = run_dir.join("attachments");
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                return Err(Error::Io {
                    step: "make directory",
                    path: directory,
                    source,
                });
            }
        }
        let retired_names = RetiredNames::open(run_dir);
        let journal = Self {
            directory,
            retired_names,
        };
        for file in journal.files()? {
            if file.extension().is_some_and(|suffix| suffix == UNFINISHED) {
                let _ = fs::remove_file(file);
            }
        }
        Ok(journal)
    }

    /// Writes an entry in state [`State::Adding`], replacing what was there for this attachment but for a living one's.
    ///
    /// # Errors
    /// When the file can't be written; nothing is left then.
    pub fn begin(&self, entry: &Entry) -> Result<(), Error> {
        self.write(entry, State::Adding)
    }

    /// Writes an entry in a state, replacing what was there for this attachment.
    ///
    /// # Errors
    /// When the file can't be written; what was there stays then.
    pub fn write(&self, entry: &Entry, state: State) -> Result<(), Error> {
        let path = self.path(&entry.key, state);
        let unfinished = path.with_added_extension(UNFINISHED);
        let text = serde_json::to_vec(entry).map_err(|source| Error::Malformed {
            path: path.clone(),
            source,
        })?;
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC)
            .open(&unfinished)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| fs::rename(&unfinished, &path));
        if let Err(source) = written {
            let _ = fs::remove_file(&unfinished);
            return Err(Error::Io {
                step: "write",
                path,
                source,
            });
        }
        // An ADD that is refused after all must not take a living attachment's entry along.
        let stays = |other| other == state || (state == State::Adding && other == State::Live);
        self.remove(&entry.key, |other| !stays(other))
    }

    /// Moves an attachment's entry to another state; that there is none is no error.
    ///
    /// # Errors
    /// When the file can't be renamed.
    pub fn advance(&self, key: &AttachmentKey, from: State, to: State) -> Result<(), Error> {
        let path = self.path(key, from);
        match fs::rename(&path, self.path(key, to)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::Io {
                step: "rename",
                path,
                source: error,
            }),
            _ => Ok(()),
        }
    }

    /// The entry of an attachment and its state, if there is one.
    ///
    /// # Errors
    /// When a file is there and can't be read.
    pub fn find(&self, key: &AttachmentKey) -> Result<Option<(State, Entry)>, Error> {
        for state in State::ALL {
            if let Some(entry) = read(&self.path(key, state))?
                && entry.key == *key
            {
                return Ok(Some((state, entry)));
            }
        }
        Ok(None)
    }

    /// Where an attachment stands; nothing when there is no entry of it. Cheap: no entry is read.
    pub fn state(&self, key: &AttachmentKey) -> Option<State> {
        let mut states = State::ALL.into_iter();
        states.find(|state| self.path(key, *state).exists())
    }

    /// Removes the entry of an ADD that was undone; that of a living attachment of the same key stays.
    ///
    /// # Errors
    /// When the file is there and can't be removed.
    pub fn abandon(&self, key: &AttachmentKey) -> Result<(), Error> {
        self.remove(key, |state| state == State::Adding)
    }

    /// Removes every entry of an attachment.
    ///
    /// # Errors
    /// When a file is there and can't be removed.
    pub fn forget(&self, key: &AttachmentKey) -> Result<(), Error> {
        self.remove(key, |_| true)
    }

    fn remove(&self, key: &AttachmentKey, which: impl Fn(State) -> bool) -> Result<(), Error> {
        for state in State::ALL.into_iter().filter(|state| which(*state)) {
            let path = self.path(key, state);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::Io {
                        step: "remove",
                        path,
                        source: error,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Remembers names of host ends that are gone, or about to be: no device gets one of them again.
    pub fn retire_names(&self, names: &[&str]) {
        self.retired_names.retire(names);
    }

    /// Those of the names that no earlier attachment had, in their order, and one more that is new for certain.
    pub fn unused_names(&self, names: &[String]) -> Vec<String> {
        self.retired_names.unused(names)
    }

    /// All entries, and what could not be read.
    pub fn entries(&self) -> (Vec<(State, Entry)>, Vec<Error>) {
        let (mut entries, mut errors) = (Vec::new(), Vec::new());
        let files = self.files().unwrap_or_else(|error| {
            errors.push(error);
            Vec::new()
        });
        for path in files {
            let suffix = path
                .extension()
                .and_then(|suffix| suffix.to_str())
                .unwrap_or("");
            let Some(state) = State::ALL
                .into_iter()
                .find(|state| state.suffix() == suffix)
            else {
                continue;
            };
            match read(&path) {
                Ok(Some(entry)) => entries.push((state, entry)),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        (entries, errors)
    }

    fn files(&self) -> Result<Vec<PathBuf>, Error> {
        match fs::read_dir(&self.directory) {
            Ok(files) => Ok(files.flatten().map(|file| file.path()).collect()),
            Err(source) => Err(Error::Io {
                step: "list",
                path: self.directory.clone(),
                source,
            }),
        }
    }

    fn path(&self, key: &AttachmentKey, state: State) -> PathBuf {
        // Neither part can hold a ':' (CNI spec: containerID and network name are [a-zA-Z0-9_.-]; an interface name has none).
        let mut name = format!("{}:{}:{}", key.container_id, key.ifname, key.network);
        if name.len() > LONGEST_PLAIN_NAME {
            name = format!(
                "{:016x}{:016x}",
                stable_hash(&[&name]),
                stable_hash(&["2", &name])
            );
        }
        self.directory.join(format!("{name}.{}", state.suffix()))
    }
}

fn read(path: &Path) -> Result<Option<Entry>, Error> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| Error::Malformed {
                path: path.to_owned(),
                source,
            }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io {
            step: "read",
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests;
