//! The intent log: one small file per attachment in the run directory, written before an ADD's
//! first side effect.
//!
//! OVSDB records what exists. The journal covers the two cases in which it can't: an ADD
//! interrupted between its first side effect and its row, which the next agent undoes; and a DEL
//! while OVSDB was unreachable, whose rows are removed as soon as it is back. The files are on
//! tmpfs and so live exactly as long as links and namespaces; they need no fsync. The file's suffix
//! is the state, so a change of state is one rename.

mod names;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::Ipv6Net;
use podwire_cni::private_dir::{DirError, PrivateDir, UNFINISHED};
use podwire_cni::spool::boottime;
use podwire_cni::wire::MAX_REQUEST;
use podwire_daemon::words;
use podwire_netns::Route;
use serde::{Deserialize, Serialize};

use crate::ipam::dhcp::Lease;
use crate::ipam::dhcp6::Lease6;
use crate::plan::{AttachmentKey, Bandwidth, stable_hash};
use names::RetiredNames;

/// Longest attachment name used as a file name unchanged; NAME_MAX is 255.
const LONGEST_PLAIN_NAME: usize = 200;

/// The format of the files.
const FORMAT: u32 = 1;

/// The directory of the entries, in the run directory.
const DIRECTORY: &str = "attachments";

/// The largest entry, in bytes: what it holds of the runtime's request, and as much of podwire's
/// own.
const LONGEST_ENTRY: usize = 2 * MAX_REQUEST;

/// The least space that a new entry takes, in bytes: a page of tmpfs.
const PAGE: usize = 4096;

words! {
    /// The state of an attachment.
    pub enum State {
        /// An ADD is in progress, or was when the agent died.
        Adding = "adding",
        /// The ADD succeeded.
        Live = "live",
        /// DEL has done what it could without OVSDB; its rows still have to be removed.
        Deleting = "deleting",
    }
}

impl State {
    fn suffix(self) -> &'static str {
        match self {
            Self::Live => "json",
            other => other.word(),
        }
    }
}

/// What it takes to undo an attachment, or to re-create its port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The format of the file.
    pub format: u32,
    /// The attachment.
    pub key: AttachmentKey,
    /// `namespace/name` of the pod, if the runtime passed one.
    pub pod: Option<String>,
    /// CNI_NETNS.
    pub netns: String,
    /// When the ADD began, in nanoseconds since boot. Of two sandboxes of one pod, the newer has
    /// the port; a DEL spooled earlier than this does not concern this attachment.
    #[serde(default)]
    pub since: u64,
    /// Device and inode of the namespace; another pod may reuse the path.
    pub netns_id: Option<(u64, u64)>,
    /// The pod's uid, if the API server had the pod at its ADD; None for a static pod, which lives
    /// without the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_uid: Option<String>,
    /// The bridge of the ports.
    pub bridge: String,
    /// The ports, one per interface.
    pub ports: Vec<EntryPort>,
    /// The DEL by which a delegated IPAM plugin releases its addresses, in the form of the plugin's
    /// spool. It needs the runtime's configuration and environment, and no runtime ends an ADD that
    /// was never answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam_del: Option<String>,
    /// The lease of its IPv4 address from the physical network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// The lease of its IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease6: Option<Lease6>,
    /// The addresses that the pod's kernel has made of its router's prefixes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub autonomous: Vec<Ipv6Net>,
}

/// One interface of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryPort {
    /// The names to try for the host end, in order.
    pub host_names: Vec<String>,
    /// MAC address of the host end. With the name, it distinguishes podwire's link from others.
    pub host_mac: String,
    /// The external_ids of its Interface row.
    pub external_ids: std::collections::BTreeMap<String, String>,
    /// Its bandwidth limits.
    #[serde(default)]
    pub bandwidth: Bandwidth,
    /// MTU of both ends, in bytes; None in an entry of an older agent.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// The routes through the pod end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
}

impl Entry {
    /// An entry in the present format.
    pub fn new(key: AttachmentKey, pod: Option<String>, netns: String, bridge: String) -> Self {
        Self {
            format: FORMAT,
            key,
            pod,
            netns,
            since: boottime(),
            netns_id: None,
            api_uid: None,
            bridge,
            ports: Vec::new(),
            ipam_del: None,
            lease: None,
            lease6: None,
            autonomous: Vec::new(),
        }
    }
}

/// Why the journal could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory of the journal could not be created, written, read or removed.
    #[error("{0}")]
    Dir(#[from] DirError),
    /// The file is not podwire's, or was truncated.
    #[error("read {path}: {source}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where parsing failed.
        source: serde_json::Error,
    },
}

/// The directory of entries.
#[derive(Debug)]
pub struct Journal {
    run_dir: PathBuf,
    directory: Mutex<Arc<PrivateDir>>,
    retired_names: RetiredNames,
}

impl Journal {
    /// Opens the journal in `run_dir/attachments`, and creates the directory (0700) if needed.
    /// Removes what a killed agent had half written.
    ///
    /// # Errors
    /// The directory can't be created or used.
    pub fn open(run_dir: &Path) -> Result<Self, Error> {
        let directory = open(run_dir)?;
        for file in directory.names()? {
            if file.ends_with(UNFINISHED) {
                directory.remove(&file)?;
            }
        }
        Ok(Self {
            run_dir: run_dir.to_owned(),
            directory: Mutex::new(Arc::new(directory)),
            retired_names: RetiredNames::open(run_dir),
        })
    }

    /// Checks that an entry could be written now; re-creates the directory if it was removed.
    ///
    /// # Errors
    /// It could not, for example because the file system is full.
    pub fn confirm_writable(&self) -> Result<(), Error> {
        const PROBE: &str = "probe";
        self.write_file(PROBE, &[0; PAGE])?;
        Ok(self.directory().remove(PROBE)?)
    }

    /// Writes an entry in state [`State::Adding`], and replaces an earlier one of this attachment
    /// unless that is live.
    ///
    /// # Errors
    /// The file can't be written; nothing is left then.
    pub fn begin(&self, entry: &Entry) -> Result<(), Error> {
        self.write(entry, State::Adding)
    }

    /// Writes an entry in a state, and replaces an earlier one of this attachment.
    ///
    /// # Errors
    /// The file can't be written; the earlier one stays then.
    pub fn write(&self, entry: &Entry, state: State) -> Result<(), Error> {
        let name = name(&entry.key, state);
        let text = serde_json::to_vec(entry).map_err(|source| self.malformed(&name, source))?;
        self.write_file(&name, &text)?;
        // An ADD that is refused later must not destroy a live attachment's entry.
        let stays = |other| other == state || (state == State::Adding && other == State::Live);
        self.remove(&entry.key, |other| !stays(other))
    }

    /// Changes the state of an attachment's entry; does nothing if there is none.
    ///
    /// # Errors
    /// The file can't be renamed.
    pub fn advance(&self, key: &AttachmentKey, from: State, to: State) -> Result<(), Error> {
        let (from, to) = (name(key, from), name(key, to));
        Ok(self.directory().rename(&from, &to)?)
    }

    /// The entry of an attachment and its state, if there is one.
    ///
    /// # Errors
    /// The file exists and can't be read.
    pub fn find(&self, key: &AttachmentKey) -> Result<Option<(State, Entry)>, Error> {
        for state in State::ALL {
            if let Some(entry) = self.read(&name(key, state))?
                && entry.key == *key
            {
                return Ok(Some((state, entry)));
            }
        }
        Ok(None)
    }

    /// The entry of an attachment that lives.
    pub fn live(&self, key: &AttachmentKey) -> Option<Entry> {
        match self.find(key) {
            Ok(Some((State::Live, entry))) => Some(entry),
            _ => None,
        }
    }

    /// The state of an attachment; None without an entry. Cheap: no entry is read.
    pub fn state(&self, key: &AttachmentKey) -> Option<State> {
        let mut states = State::ALL.into_iter();
        states.find(|state| self.directory().size(&name(key, *state)).is_some())
    }

    /// Removes the entry of an ADD that was undone. A live attachment's entry with the same key
    /// stays.
    ///
    /// # Errors
    /// The file exists and can't be removed.
    pub fn abandon(&self, key: &AttachmentKey) -> Result<(), Error> {
        self.remove(key, |state| state == State::Adding)
    }

    /// Removes every entry of an attachment.
    ///
    /// # Errors
    /// A file exists and can't be removed.
    pub fn forget(&self, key: &AttachmentKey) -> Result<(), Error> {
        self.remove(key, |_| true)
    }

    fn remove(&self, key: &AttachmentKey, which: impl Fn(State) -> bool) -> Result<(), Error> {
        for state in State::ALL.into_iter().filter(|state| which(*state)) {
            self.directory().remove(&name(key, state))?;
        }
        Ok(())
    }

    /// Records names of host ends that are gone or about to go; no device gets one of them again.
    pub fn retire_names(&self, names: &[&str]) {
        self.retired_names.retire(names);
    }

    /// Those of the names that no earlier attachment had, in order, and one more that is certainly
    /// new.
    pub fn unused_names(&self, names: &[String]) -> Vec<String> {
        self.retired_names.unused(names)
    }

    /// All entries, and the errors of those that could not be read.
    pub fn entries(&self) -> (Vec<(State, Entry)>, Vec<Error>) {
        let (mut entries, mut errors) = (Vec::new(), Vec::new());
        let files = self.directory().names().unwrap_or_else(|error| {
            errors.push(error.into());
            Vec::new()
        });
        for name in files {
            let suffix = name.rsplit_once('.').map_or("", |(_, suffix)| suffix);
            let Some(state) = State::ALL
                .into_iter()
                .find(|state| state.suffix() == suffix)
            else {
                continue;
            };
            match self.read(&name) {
                Ok(Some(entry)) => entries.push((state, entry)),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        (entries, errors)
    }

    fn read(&self, name: &str) -> Result<Option<Entry>, Error> {
        let text = self.directory().read(name, LONGEST_ENTRY)?;
        let entry = text.map(|text| serde_json::from_slice(&text)).transpose();
        entry.map_err(|source| self.malformed(name, source))
    }

    /// Writes a file; re-creates the directory if somebody removed it.
    fn write_file(&self, name: &str, text: &[u8]) -> Result<(), Error> {
        match self.directory().write(name, &[text]) {
            Err(error) if error.is_not_found() => {
                let directory = Arc::new(open(&self.run_dir)?);
                tracing::error!(
                    directory = %directory.path().display(),
                    "the intent log was removed, and with it the records of existing attachments; \
                     creating it again"
                );
                *self.lock() = Arc::clone(&directory);
                Ok(directory.write(name, &[text])?)
            }
            written => Ok(written?),
        }
    }

    fn malformed(&self, name: &str, source: serde_json::Error) -> Error {
        let path = self.directory().path().join(name);
        Error::Malformed { path, source }
    }

    fn directory(&self) -> Arc<PrivateDir> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<PrivateDir>> {
        self.directory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(run_dir: &Path) -> Result<PrivateDir, DirError> {
    PrivateDir::open(run_dir)?.below(DIRECTORY)
}

fn name(key: &AttachmentKey, state: State) -> String {
    // Neither part can contain a ':' (CNI spec: containerID and network name are [a-zA-Z0-9_.-]; an
    // interface name has none either).
    let (container_id, suffix) = (key.container_id.as_str(), state.suffix());
    let plain = [container_id, ":", &key.ifname, ":", &key.network].concat();
    let stem = match plain.len() > LONGEST_PLAIN_NAME {
        true => format!(
            "{:016x}{:016x}",
            stable_hash(&[&plain]),
            stable_hash(&["2", &plain])
        ),
        false => plain,
    };
    [&stem, ".", suffix].concat()
}

#[cfg(test)]
mod tests;
