//! The process itself.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Whether it runs in a pod: kubelet sets the variable in each container.
pub fn is_in_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// Whether systemd is the machine's init, as far as this process sees (sd_booted(3)).
pub fn sees_systemd() -> bool {
    Path::new("/run/systemd/system").exists()
}

/// Raises the soft limit of open descriptors to the hard one.
///
/// # Errors
/// The limit can't be read or set.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// Logs to standard error, in colour on a terminal; `filter` is a level, or filters such as
/// `info,podwire_ovs=debug`.
pub fn log_to_stderr(filter: &str) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}

/// An asynchronous runtime of this one thread.
///
/// # Errors
/// The kernel's.
pub fn runtime() -> io::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build()
}

/// Completes when a signal asks the process to end. Otherwise a container's first process ignores
/// such signals. To be called in a runtime.
///
/// # Errors
/// The kernel's.
pub fn asked_to_end() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
