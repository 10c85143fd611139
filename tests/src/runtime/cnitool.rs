//! cnitool, the CNI project's own client.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{CONFIGURATIONS, PLUGINS};
use crate::binaries::cnitool_binary;
use crate::process::{Finished, finish};
use crate::{Failure, Pod};

/// Has cnitool do a verb of the network `pods` for a pod's namespace, with these capabilities'
/// arguments.
pub fn cnitool(pod: &Pod<'_>, verb: &str, capabilities: &Value) -> Result<Finished, Failure> {
    let mut command = Command::new(cnitool_binary());
    command
        .args([verb, "pods", &pod.netns])
        .env("NETCONFPATH", CONFIGURATIONS)
        .env("CNI_PATH", PLUGINS);
    if !capabilities.is_null() {
        command.env("CAP_ARGS", capabilities.to_string());
    }
    pod.node()
        .place()
        .run(|| finish(command, b"", Duration::from_secs(60)))
}
