//! The network namespace of the run directory's records.
//!
//! An agent started in a namespace other than the host's (a DaemonSet without `hostNetwork`, a unit
//! with `PrivateNetwork`) sees none of its links, and would take every attachment for one that
//! outlived a reboot. So the namespace is recorded, and an agent in another one does not start
//! while there are attachments.

use std::path::{Path, PathBuf};
use std::{fs, io};

use podwire_cni::private_dir::{DirError, PrivateDir};
use podwire_netns::{NetnsError, NetnsId};
use serde::{Deserialize, Serialize};

use crate::journal::Journal;

/// The record's name in the run directory.
const FILE: &str = "netns.json";
/// Its size limit, in bytes.
const LONGEST: usize = 4096;
/// A number that the kernel generates at each boot (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why the agent must not run here.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Its attachments are in another namespace.
    #[error(
        "{file}: {attachments} attachments were created in network namespace {was}, but this agent \
         is in {now}, where it would treat all of them as gone: start it in the host's network \
         namespace (hostNetwork: true in Kubernetes)"
    )]
    Elsewhere {
        /// The record.
        file: PathBuf,
        /// Number of attachments.
        attachments: usize,
        /// Device and inode of the namespace in which they were created.
        was: String,
        /// Those of the present one.
        now: String,
    },
    /// The agent's own namespace can't be read.
    #[error("own network namespace: {0}")]
    Netns(#[from] NetnsError),
    /// The record can't be read or written.
    #[error("{0}")]
    Record(#[from] DirError),
    /// The boot id can't be read.
    #[error("read {BOOT_ID}: {0}")]
    Boot(#[source] io::Error),
}

/// A namespace, within one boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Place {
    boot_id: String,
    dev: u64,
    ino: u64,
}

/// Checks that the attachments of the run directory are in this network namespace, and records it.
///
/// # Errors
/// They are in another one; or the record can't be read or written.
pub fn confirm_place(run_dir: &Path, journal: &Journal) -> Result<(), PlaceError> {
    confirm(run_dir, journal, Place::here()?)
}

fn confirm(run_dir: &Path, journal: &Journal, here: Place) -> Result<(), PlaceError> {
    let directory = PrivateDir::open(run_dir)?;
    if let Some(was) = read(&directory)?
        && was.boot_id == here.boot_id
        && was != here
    {
        let (entries, unreadable) = journal.entries();
        let attachments = entries.len() + unreadable.len();
        if attachments > 0 {
            let (was, now) = (was.id(), here.id());
            return Err(PlaceError::Elsewhere {
                file: run_dir.join(FILE),
                attachments,
                was,
                now,
            });
        }
    }
    let text = serde_json::to_vec(&here).expect("strings and numbers always serialise");
    Ok(directory.write(FILE, &[&text])?)
}

/// The record; None if it is missing or unreadable: then there is nothing to compare with.
fn read(directory: &PrivateDir) -> Result<Option<Place>, PlaceError> {
    let Some(text) = directory.read(FILE, LONGEST)? else {
        return Ok(None);
    };
    let place = serde_json::from_slice(&text).inspect_err(
        |error| tracing::warn!(file = FILE, %error, "not used: no record of a network namespace"),
    );
    Ok(place.ok())
}

impl Place {
    fn here() -> Result<Self, PlaceError> {
        let boot_id = fs::read_to_string(BOOT_ID).map_err(PlaceError::Boot)?;
        let NetnsId { dev, ino } = NetnsId::own()?;
        Ok(Self {
            boot_id: boot_id.trim().to_owned(),
            dev,
            ino,
        })
    }

    /// In the form of `ls -l /proc/self/ns/net`.
    fn id(&self) -> String {
        format!("net:[{}]", self.ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Entry;
    use crate::plan::AttachmentKey;

    fn place(boot: &str, ino: u64) -> Place {
        Place {
            boot_id: boot.to_owned(),
            dev: 4,
            ino,
        }
    }

    #[test]
    fn another_namespace_is_refused_while_there_are_attachments_of_this_boot() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let confirm = |place| confirm(dir.path(), &journal, place);
        confirm(place("a", 1)).unwrap();
        confirm(place("a", 2)).unwrap();
        let key = AttachmentKey {
            network: "n".into(),
            container_id: "c".into(),
            ifname: "eth0".into(),
        };
        journal
            .begin(&Entry::new(key.clone(), None, String::new(), "br".into()))
            .unwrap();
        confirm(place("a", 2)).unwrap();
        let refusal = confirm(place("a", 1)).unwrap_err().to_string();
        for words in ["1 attachments", "namespace net:[2]", "agent is in net:[1]"] {
            assert!(refusal.contains(words), "{refusal}");
        }
        confirm(place("b", 1)).unwrap();
        journal.forget(&key).unwrap();
        confirm(place("b", 3)).unwrap();
    }
}
