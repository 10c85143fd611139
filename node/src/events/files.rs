//! Notifications of files.

use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::net::unix::pipe;

/// Notifications of the removal of files, and of their replacement by others, by inotify(7).
pub(crate) struct FileNotices {
    files: Vec<PathBuf>,
    inotify: Inotify,
    /// The same descriptor: tokio has no safe type for it, and this one only reads.
    events: pipe::Receiver,
}

/// In `struct inotify_event`: the offsets of the mask, of the name's length and of the name.
const INOTIFY_MASK: usize = 4;
const INOTIFY_LENGTH: usize = 12;
const INOTIFY_NAME: usize = 16;

impl FileNotices {
    pub(crate) fn listen(files: &[PathBuf]) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let descriptor = inotify.as_fd().try_clone_to_owned()?;
        let notices = Self {
            files: files.to_vec(),
            events: pipe::Receiver::from_owned_fd_unchecked(descriptor)?,
            inotify,
        };
        notices.watch()?;
        Ok(notices)
    }

    /// Watches the files' directories, which are created if they are missing.
    fn watch(&self) -> io::Result<()> {
        let events = AddWatchFlags::IN_MOVE | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_ONLYDIR;
        for directory in self.files.iter().filter_map(|file| file.parent()) {
            if !directory.exists() {
                std::fs::create_dir_all(directory)?;
            }
            self.inotify.add_watch(directory, events)?;
        }
        Ok(())
    }

    pub(crate) async fn next(&self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        loop {
            self.events.readable().await?;
            match self.events.try_read(&mut bytes) {
                Ok(length) if self.concern(&bytes[..length])? => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether events concern one of the files, or no file: then some were lost, or a directory was
    /// removed, and is watched again.
    fn concern(&self, mut events: &[u8]) -> io::Result<bool> {
        let number = |event: &[u8], at: usize| {
            let bytes = event.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_ne_bytes(bytes))
        };
        let mut concern = false;
        while let (Some(mask), Some(length)) =
            (number(events, INOTIFY_MASK), number(events, INOTIFY_LENGTH))
        {
            let end = INOTIFY_NAME + length as usize;
            let name = events.get(INOTIFY_NAME..end).unwrap_or_default();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let mut names = self.files.iter().filter_map(|file| file.file_name());
            concern |= name.is_empty() || names.any(|it| it.as_encoded_bytes() == name);
            if mask & AddWatchFlags::IN_IGNORED.bits() != 0 {
                self.watch()?;
            }
            events = events.get(end..).unwrap_or_default();
        }
        Ok(concern)
    }
}
