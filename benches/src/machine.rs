//! The machine that a run was made on.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::error::{Error, Step};
use crate::report::Machine;

/// Looks at it.
///
/// # Errors
/// A file or tool that every machine has is missing.
pub fn look() -> Result<Machine, Error> {
    let read = |path: &str| std::fs::read_to_string(path).step(|| format!("read {path}"));
    let processors = read("/proc/cpuinfo")?;
    let processor = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or_default()
        .trim_start_matches([' ', '\t', ':'])
        .to_owned();
    let version = Command::new("ovs-vswitchd")
        .arg("--version")
        .output()
        .step(|| "run ovs-vswitchd --version")?;
    let version = String::from_utf8_lossy(&version.stdout);
    Ok(Machine {
        kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        processor,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        open_vswitch: version.lines().next().unwrap_or_default().to_owned(),
        load: vec![load()],
        began: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        seconds: 0.0,
    })
}

/// /proc/loadavg; empty where there is none.
pub fn load() -> String {
    std::fs::read_to_string("/proc/loadavg")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Raises the limit of open files to the hard one: ovs-vswitchd inherits it, and with 1024 it loses
/// ports near 1000.
///
/// # Errors
/// The kernel refused.
pub fn raise_descriptor_limit() -> Result<(), Error> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).step(|| "read the descriptor limit")?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).step(|| "raise the descriptor limit")
}
