//! Where the workspace's own binaries are.

use std::path::{Path, PathBuf};

use crate::Failure;

/// The `podwire` binary: `$PODWIRE_BIN`, else the workspace's `target/debug/podwire`.
pub fn agent_binary() -> Result<PathBuf, Failure> {
    find("podwire", "PODWIRE_BIN", "target/debug/podwire")
}

/// The agent with fault points: `$PODWIRE_FAULTS_BIN`, else the workspace's
/// `target/debug/podwire-faults`.
pub fn faulty_agent_binary() -> Result<PathBuf, Failure> {
    find(
        "podwire-faults",
        "PODWIRE_FAULTS_BIN",
        "target/debug/podwire-faults",
    )
}

/// The `podwire-controller` binary: `$PODWIRE_CONTROLLER_BIN`, else the workspace's
/// `target/debug/podwire-controller`.
pub fn controller_binary() -> Result<PathBuf, Failure> {
    find(
        "podwire-controller",
        "PODWIRE_CONTROLLER_BIN",
        "target/debug/podwire-controller",
    )
}

/// The plugin as it is shipped: `$PODWIRE_PLUGIN`, else the workspace's
/// `target/plugin/podwire-cni`.
pub fn plugin_binary() -> Result<PathBuf, Failure> {
    find("podwire-cni", "PODWIRE_PLUGIN", "target/plugin/podwire-cni")
}

/// cnitool, as `make cnitool` builds it: `$PODWIRE_CNITOOL`, else `target/tools/cnitool`.
pub(crate) fn cnitool_binary() -> Result<PathBuf, Failure> {
    find("cnitool", "PODWIRE_CNITOOL", "target/tools/cnitool")
}

/// The workspace's root directory.
pub(crate) fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_path_buf()
}

/// The conformance suite's program, which stands in for an IPAM plugin as well.
pub fn conformance_binary() -> Result<PathBuf, Failure> {
    find(
        "the conformance suite",
        "PODWIRE_CONFORMANCE",
        "target/debug/cni-conformance",
    )
}

fn find(name: &'static str, variable: &'static str, default: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os(variable).map_or_else(|| workspace().join(default), PathBuf::from);
    if path.is_absolute() && path.is_file() {
        Ok(path)
    } else {
        Err(Failure::NotBuilt {
            name,
            path,
            variable,
        })
    }
}
