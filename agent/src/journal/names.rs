//! The names of earlier attachments' host ends. No new device gets one of them.
//!
//! ovs-vswitchd knows a port by its name. While it is busy or stopped, it may read the removal of a
//! row and a new row with the same name together; it then keeps the old device open, and the new
//! one passes no packet. It also restores the flags of a released device by name, and so sets a new
//! device with that name down. With podman and cnitool container ids repeat, and with them the
//! names derived from them.

use std::collections::{HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use podwire_cni::private_dir::PrivateDir;
use podwire_cni::spool::boottime;

use crate::plan::{derived_link_name, stable_hash};

/// Number of names kept, about four per attachment. ovs-vswitchd has released a name long before as
/// many follow.
const KEPT: usize = 8192;
/// The file in the run directory: one name per line, newest last.
const FILE: &str = "retired-names";
/// Its size limit: twice the names kept, of at most 15 characters each.
const LONGEST: usize = 1 << 20;

/// The names, in memory and in a file that the next agent reads.
#[derive(Debug)]
pub(super) struct RetiredNames {
    path: PathBuf,
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    in_order: VecDeque<String>,
    known: HashSet<String>,
    /// Open for appending once it holds the names in memory.
    file: Option<File>,
    /// Number of lines in the file.
    lines: usize,
}

impl RetiredNames {
    /// Reads the file. A missing or unreadable file counts as empty.
    pub(super) fn open(run_dir: &Path) -> Self {
        let path = run_dir.join(FILE);
        let mut names = Names::default();
        let read = PrivateDir::open(run_dir).and_then(|dir| dir.read(FILE, LONGEST));
        let text = read.unwrap_or_else(|error| {
            tracing::warn!(%error, "retired link names can't be read");
            None
        });
        for name in String::from_utf8_lossy(&text.unwrap_or_default()).lines() {
            names.push(name);
        }
        Self {
            path,
            names: Mutex::new(names),
        }
    }

    pub(super) fn retire(&self, retired: &[&str]) {
        let mut names = self.lock();
        let mut lines = String::new();
        for name in retired {
            if names.push(name) {
                lines.push_str(name);
                lines.push('\n');
            }
        }
        if lines.is_empty() {
            return;
        }
        if let Err(error) = names.append(&self.path, &lines) {
            tracing::warn!(
                path = %self.path.display(), %error,
                "retired link names can't be written; an agent started later may use one again"
            );
        }
    }

    pub(super) fn unused(&self, candidates: &[String]) -> Vec<String> {
        let names = self.lock();
        let mut unused = candidates.to_vec();
        unused.retain(|name| !names.known.contains(name));
        let salt = boottime().to_string();
        let seed: Vec<&str> = candidates
            .iter()
            .map(String::as_str)
            .chain([&*salt])
            .collect();
        unused.push(derived_link_name(stable_hash(&seed)));
        unused
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        // No code panics while it holds the lock.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    /// Adds a name, and returns whether it is new.
    fn push(&mut self, name: &str) -> bool {
        let is_new = self.known.insert(name.to_owned());
        if is_new {
            self.in_order.push_back(name.to_owned());
            self.lines += 1;
        }
        if self.in_order.len() > KEPT
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
        is_new
    }

    /// Appends to the file. Rewrites it if it is not, or no longer, the one at `path`, or if half
    /// of it is names that are no longer kept.
    fn append(&mut self, path: &Path, lines: &str) -> io::Result<()> {
        if let Some(mut file) = self.file.take()
            && self.lines <= 2 * KEPT
            && file.metadata()?.nlink() > 0
        {
            file.write_all(lines.as_bytes())?;
            self.file = Some(file);
            return Ok(());
        }
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC)
            .open(path)?;
        let kept: Vec<&str> = self.in_order.iter().map(String::as_str).collect();
        file.write_all((kept.join("\n") + "\n").as_bytes())?;
        self.lines = kept.len();
        self.file = Some(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_retired_name_is_not_chosen_again_also_by_the_next_agent() {
        let directory = tempfile::tempdir().unwrap();
        let names = RetiredNames::open(directory.path());
        let wanted = ["abc".to_owned(), "pwabc".to_owned()];
        assert_eq!(names.unused(&wanted)[..2], wanted);
        names.retire(&["abc"]);
        for names in [names, RetiredNames::open(directory.path())] {
            let chosen = names.unused(&wanted);
            assert_eq!((chosen.len(), &chosen[0]), (2, &wanted[1]));
        }
    }

    #[test]
    fn names_outlive_the_removal_of_their_file_and_of_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        fs::create_dir(&run_dir).unwrap();
        let names = RetiredNames::open(&run_dir);
        names.retire(&["before"]);
        fs::remove_dir_all(&run_dir).unwrap();
        names.retire(&["meanwhile"]);
        fs::create_dir(&run_dir).unwrap();
        names.retire(&["after"]);
        fs::remove_file(run_dir.join(FILE)).unwrap();
        names.retire(&["last"]);
        let read = RetiredNames::open(&run_dir);
        for name in ["before", "meanwhile", "after", "last"] {
            let chosen = read.unused(&[name.to_owned()]);
            assert!(chosen.len() == 1 && chosen[0] != name, "{name}: {chosen:?}");
        }
    }

    #[test]
    fn there_is_always_a_name_that_never_was() {
        let directory = tempfile::tempdir().unwrap();
        let names = RetiredNames::open(directory.path());
        names.retire(&["abc"]);
        let (first, second) = (names.unused(&["abc".into()]), names.unused(&["abc".into()]));
        assert!(first.len() == 1 && second.len() == 1 && first != second);
        assert_eq!(first[0].len(), 15);
    }

    #[test]
    fn the_file_and_the_memory_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let names = RetiredNames::open(directory.path());
        for number in 0..4 * KEPT {
            names.retire(&[&format!("n{number}")]);
        }
        let read = RetiredNames::open(directory.path());
        for names in [&names, &read] {
            assert_eq!(names.lock().in_order.len(), KEPT);
            assert_eq!(names.unused(&[format!("n{}", 4 * KEPT - 1)]).len(), 1);
        }
        let lines = fs::read_to_string(directory.path().join(FILE)).unwrap();
        assert!(lines.lines().count() <= 2 * KEPT);
    }
}
