//! The log's destination, standard error or a file, and its filter, which can be changed.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing_subscriber::fmt::writer::BoxMakeWriter;
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
    file: Arc<Mutex<Arc<File>>>,
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
        let writer = match file.clone() {
            Some(log) => BoxMakeWriter::new(move || log.current()),
            None => BoxMakeWriter::new(io::stderr),
        };
        let layer = layer.with_writer(writer);
        match file.is_none() && io::stderr().is_terminal() {
            true => registry.with(layer).init(),
            false => registry
                .with(layer.json().flatten_event(true).with_ansi(false))
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

    fn current(&self) -> Arc<File> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(path: &Path) -> Result<Arc<File>, LogError> {
    // Pods' names and addresses are not for everybody.
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path);
    opened.map(Arc::new).map_err(|source| LogError::File {
        path: path.to_owned(),
        source,
    })
}
