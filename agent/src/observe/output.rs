//! The log's destination, standard error or a file, and its filter, which can be changed.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// Why there is no log as it was wanted.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is invalid.
    #[error("--log {filter}: {problem}")]
    Filter {
        /// As given.
        filter: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The file can't be opened.
    #[error("--log-file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The running log.
#[derive(Debug, Clone)]
pub struct LogOutput {
    filter: reload::Handle<EnvFilter, Registry>,
    file: Option<LogFile>,
}

/// A file that is appended to.
#[derive(Debug, Clone)]
struct LogFile {
    path: PathBuf,
    file: Arc<Mutex<File>>,
}

impl LogOutput {
    /// Starts the log of the process: to the file if one is given, else to standard error; text on
    /// a terminal, JSON otherwise.
    ///
    /// # Errors
    /// The filter is invalid, or the file can't be opened.
    pub fn start(filter: &str, file: Option<&Path>) -> Result<Self, LogError> {
        let (filter, handle) = reload::Layer::new(parse(filter)?);
        let file = file.map(LogFile::open).transpose()?;
        let registry = tracing_subscriber::registry().with(filter);
        let layer = tracing_subscriber::fmt::layer().with_target(false);
        let json = || {
            tracing_subscriber::fmt::layer()
                .with_target(false)
                .json()
                .flatten_event(true)
        };
        match &file {
            Some(file) => registry
                .with(json().with_ansi(false).with_writer(file.clone()))
                .init(),
            None if io::stderr().is_terminal() => {
                registry.with(layer.with_writer(io::stderr)).init()
            }
            None => registry
                .with(json().with_ansi(false).with_writer(io::stderr))
                .init(),
        }
        Ok(Self {
            filter: handle,
            file,
        })
    }

    /// Changes the filter.
    ///
    /// # Errors
    /// The filter is invalid.
    pub fn change_filter(&self, filter: &str) -> Result<(), LogError> {
        let parsed = parse(filter)?;
        self.filter
            .reload(parsed)
            .map_err(|error| LogError::Filter {
                filter: filter.to_owned(),
                problem: error.to_string(),
            })
    }

    /// Opens the log's file again, after logrotate has renamed it.
    ///
    /// # Errors
    /// It can't be opened; then the old file stays in use.
    pub fn reopen(&self) -> Result<(), LogError> {
        if let Some(log) = &self.file {
            let fresh = open(&log.path)?;
            *log.lock() = fresh;
        }
        Ok(())
    }
}

/// kube logs an answer that it can't parse, whole. The same error reaches the agent, which logs it
/// in bounded length.
const UNBOUNDED: &str = "kube_client::client=off";

fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    let problem = |problem: String| LogError::Filter {
        filter: filter.to_owned(),
        problem,
    };
    let parsed = EnvFilter::try_new(filter).map_err(|error| problem(error.to_string()))?;
    let unbounded = UNBOUNDED
        .parse()
        .map_err(|error| problem(format!("{error}")))?;
    Ok(parsed.add_directive(unbounded))
}

impl LogFile {
    fn open(path: &Path) -> Result<Self, LogError> {
        Ok(Self {
            file: Arc::new(Mutex::new(open(path)?)),
            path: path.to_owned(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(path: &Path) -> Result<File, LogError> {
    // Pods' names and addresses are not for everybody.
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path);
    opened.map_err(|source| LogError::File {
        path: path.to_owned(),
        source,
    })
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Locked<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        Locked(self.lock())
    }
}

/// The file for as long as a line is written.
#[derive(Debug)]
pub(super) struct Locked<'a>(MutexGuard<'a, File>);

impl Write for Locked<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
