//! The socket that the service manager holds, if there is one (sd_listen_fds(3)).
//!
//! It outlives the agent: a client that connects between two agents waits in its queue and is
//! served by the next one.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use listenfd::ListenFd;

/// Why the service manager's socket can't be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritedError {
    /// It is not a socket of the right kind.
    #[error("{0}")]
    Unfit(#[from] io::Error),
    /// There is more than one.
    #[error("there are {0} sockets, but the agent serves only one")]
    Many(usize),
    /// Plugins would look for the agent elsewhere.
    #[error(
        "it is {}, but --socket is {}",
        shown(.found),
        .wanted.display()
    )]
    Elsewhere {
        /// Its path; None if it has no name.
        found: Option<PathBuf>,
        /// The setting.
        wanted: PathBuf,
    },
}

/// The socket that the service manager passed, if any. Call this while there is one thread, and
/// before anything is started: no child may inherit it.
///
/// # Errors
/// Something was passed that can't be served.
pub fn inherited_listener(
    wanted: &std::path::Path,
) -> Result<Option<UnixListener>, InheritedError> {
    let mut handed = ListenFd::from_env();
    if handed.len() > 1 {
        return Err(InheritedError::Many(handed.len()));
    }
    let Some(listener) = handed.take_unix_listener(0)? else {
        return Ok(None);
    };
    let found = listener.local_addr()?.as_pathname().map(PathBuf::from);
    if found.as_deref() != Some(wanted) {
        return Err(InheritedError::Elsewhere {
            found,
            wanted: wanted.to_owned(),
        });
    }
    Ok(Some(listener))
}

fn shown(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(
        || "without a name".to_owned(),
        |path| path.display().to_string(),
    )
}
