//! Notifications of files.

use std::io;
use std::path::PathBuf;

use podwire_daemon::files::FileEvents;

/// Notifications of the removal of files, and of their replacement by others.
pub(crate) struct FileNotices {
    files: Vec<PathBuf>,
    events: FileEvents,
}

impl FileNotices {
    pub(crate) fn listen(files: &[PathBuf]) -> io::Result<Self> {
        let events = FileEvents::of_names(files)?;
        let files = files.to_vec();
        Ok(Self { files, events })
    }

    pub(crate) async fn next(&mut self) -> io::Result<()> {
        self.events.next().await?;
        // A directory that was removed is created, and watched again.
        self.events = FileEvents::of_names(&self.files)?;
        Ok(())
    }
}
