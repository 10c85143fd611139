//! Where the workspace's own binaries are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::failure::OrFail;
use crate::process::finish;

/// The `podwire` binary: `$PODWIRE_BIN`, else the workspace's `target/debug/podwire`.
#[track_caller]
pub fn agent_binary() -> PathBuf {
    find("PODWIRE_BIN", "target/debug/podwire")
}

/// The agent with fault points: `$PODWIRE_FAULTS_BIN`, else the workspace's
/// `target/debug/podwire-faults`.
#[track_caller]
pub fn faulty_agent_binary() -> PathBuf {
    find("PODWIRE_FAULTS_BIN", "target/debug/podwire-faults")
}

/// The `podwire-controller` binary: `$PODWIRE_CONTROLLER_BIN`, else the workspace's
/// `target/debug/podwire-controller`.
#[track_caller]
pub fn controller_binary() -> PathBuf {
    find("PODWIRE_CONTROLLER_BIN", "target/debug/podwire-controller")
}

/// The plugin as it is shipped: `$PODWIRE_PLUGIN`, else the workspace's
/// `target/plugin/podwire-cni`.
#[track_caller]
pub fn plugin_binary() -> PathBuf {
    find("PODWIRE_PLUGIN", "target/plugin/podwire-cni")
}

/// cnitool, as `make cnitool` builds it: `$PODWIRE_CNITOOL`, else `target/tools/cnitool`.
#[track_caller]
pub(crate) fn cnitool_binary() -> PathBuf {
    find("PODWIRE_CNITOOL", "target/tools/cnitool")
}

/// The workspace's root directory.
pub(crate) fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_path_buf()
}

/// The conformance suite's program, which stands in for an IPAM plugin as well.
#[track_caller]
pub fn conformance_binary() -> PathBuf {
    find("PODWIRE_CONFORMANCE", "target/debug/cni-conformance")
}

#[track_caller]
fn find(variable: &str, default: &str) -> PathBuf {
    let path = std::env::var_os(variable).map_or_else(|| workspace().join(default), PathBuf::from);
    let shown = path.display();
    assert!(
        path.is_absolute() && path.is_file(),
        "no binary at {shown}: build it with `make build`, or set {variable} to its path"
    );
    path
}

/// A copy of a program in a directory, without what debuggers need: as it is shipped, and a tenth
/// of what is to be packed.
#[track_caller]
pub fn stripped(program: &Path, directory: &Path) -> PathBuf {
    let copy = directory.join(program.file_name().unwrap_or_default());
    let mut command = Command::new("strip");
    command
        .arg("--strip-debug")
        .arg("-o")
        .args([&copy, program]);
    let done = finish(command, b"", Duration::from_secs(60)).or_fail();
    done.success("strip");
    copy
}

/// Takes the tests' own variables, such as PODWIRE_BIN, from a command's environment: podwire would
/// read them as settings.
pub fn without_own_variables(command: &mut Command) {
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("PODWIRE_") {
            command.env_remove(variable);
        }
    }
}
