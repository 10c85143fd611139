//! Which network namespace the records of the run directory are about.
//!
//! An agent that is started in another one than the host's (a DaemonSet without `hostNetwork`, a
//! unit with `PrivateNetwork`) sees none of its links, and would take every attachment for one that
//! has outlived a reboot. So the namespace is written down, and an agent that finds itself
//! elsewhere while there are attachments does not start.

use std::path::{Path, PathBuf};
use std::{fs, io};

use podwire_cni::private_dir::{DirError, PrivateDir};
use serde::{Deserialize, Serialize};

use crate::journal::Journal;
use crate::netns::{NetnsError, NetnsId};

/// The record's name in the run directory.
const FILE: &str = "netns.json";
/// Its most bytes.
const LONGEST: usize = 4096;
/// A number that the kernel makes anew at each boot (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why the agent must not work here.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Its attachments are of another namespace.
    #[error(
        "{file}: {attachments} attachments were made in network namespace {was}, and this agent \
         is in {now}, where it would take them all for gone: start it in the host's network \
         namespace (hostNetwork: true in Kubernetes)"
    )]
    Elsewhere {
        /// The record.
        file: PathBuf,
        /// How many attachments there are.
        attachments: usize,
        /// Device and inode of the namespace in which they were made.
        was: String,
        /// Those of the one that we are in.
        now: String,
    },
    /// Our own namespace can't be told.
    #[error("own network namespace: {0}")]
    Netns(#[from] NetnsError),
    /// The record can't be read or written.
    #[error("{0}")]
    Record(#[from] DirError),
    /// The boot can't be told.
    #[error("read {BOOT_ID}: {0}")]
    Boot(#[source] io::Error),
}

/// A namespace, as long as one boot lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Place {
    boot_id: String,
    dev: u64,
    ino: u64,
}

/// Makes sure that the attachments of the run directory are of this network namespace, and writes
/// down which it is.
///
/// # Errors
/// They are of another one; or the record can't be read or written.
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

/// What is written; none when nothing is, or nothing that can be read: then there is nothing to go
/// by.
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

    /// As `ls -l /proc/self/ns/net` shows it.
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
