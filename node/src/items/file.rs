//! Files: the agent's, and drop-ins of Open vSwitch's units.

use serde::{Deserialize, Serialize};

use super::{Actual, Change, Item, Kind, State, Undo, View};
use crate::FILE_MARK;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Whether a file survives a reboot, which the journal does not.
fn outlives(path: &str) -> bool {
    path.starts_with("/etc/")
}

impl Kind for File {
    fn identity(&self) -> String {
        format!("file {}", self.path)
    }

    fn state(&self, view: &View<'_>) -> State {
        match view.actual.files.get(&self.path) {
            None => State::Missing,
            Some(seen) if *seen == self.text => State::Well { ours: true },
            Some(seen) if outlives(&self.path) && !seen.starts_with(FILE_MARK) => State::Foreign(
                "somebody else wrote it: remove it, or omit the settings for it".to_owned(),
            ),
            Some(seen) => State::Differs(format!("{} other bytes", seen.len())),
        }
    }

    fn make(&self, _: &Actual) -> Vec<Change> {
        vec![Change::File(self.path.clone(), Some(self.text.clone()))]
    }

    fn remove(&self, _: &Actual) -> Vec<Change> {
        vec![Change::File(self.path.clone(), None)]
    }

    /// Those that survive a reboot are marked by their first line, the others are in the journal.
    fn marked(view: &View<'_>) -> Vec<Item> {
        let files = &view.actual.files;
        let lasting = files
            .iter()
            .filter(|(path, text)| outlives(path) && text.starts_with(FILE_MARK))
            .map(|(path, text)| {
                let (path, text) = (path.clone(), text.clone());
                Item::File(Self { path, text })
            });
        let noted = view.journal.iter().filter_map(|undo| match undo {
            Undo::Made(item @ Item::File(Self { path, .. }))
                if files.contains_key(path) && !outlives(path) =>
            {
                Some(item.clone())
            }
            _ => None,
        });
        lasting.chain(noted).collect()
    }
}
