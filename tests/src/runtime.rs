//! Container runtimes on a node, with podwire as their network: what a user has in podwire's place
//! of this crate's own exec of the plugin.

mod cgroup;
mod cnitool;
mod containerd;
mod enclosure;
mod image;
mod podman;

use std::path::Path;

use serde_json::{Value, json};

pub use cnitool::cnitool;
pub use containerd::Containerd;
pub use image::IMAGE;
pub use podman::Podman;

use crate::failure::{Failure, Step};
use crate::{TestNode, plugin_binary};

/// Where the node has its CNI plugins.
pub const PLUGINS: &str = "/run/cni/bin";
/// Where the node has its network configurations.
pub const CONFIGURATIONS: &str = "/run/cni/net.d";
/// Debian's plugins.
const DEBIAN_PLUGINS: &str = "/usr/lib/cni";

/// The plugin under test under its own name, and Debian's beside it: `loopback`, which containerd
/// itself wants, and those that may follow in a chain.
pub fn install_plugins(node: &TestNode) -> Result<(), Failure> {
    let directory = node.path(PLUGINS);
    std::fs::create_dir_all(&directory).step(|| "make the plugins' directory")?;
    let link = |target: &Path, name: &str| {
        std::os::unix::fs::symlink(target, directory.join(name))
            .step(|| format!("link the plugin {name}"))
    };
    link(&plugin_binary(), "podwire-cni")?;
    for entry in std::fs::read_dir(DEBIAN_PLUGINS)
        .step(|| format!("list {DEBIAN_PLUGINS}"))?
        .flatten()
    {
        link(&entry.path(), &entry.file_name().to_string_lossy())?;
    }
    Ok(())
}

/// Puts a plugin of the test's own beside them: a shell script.
pub fn install_script(node: &TestNode, name: &str, script: &str) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    let path = node.path(PLUGINS).join(name);
    std::fs::write(&path, script).step(|| format!("write the plugin {name}"))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
        .step(|| format!("make {name} executable"))
}

/// Writes the network `pods`, of these plugins, in CNI 1.0.0: the newest that Debian's plugins and
/// runtimes speak.
pub fn configure(node: &TestNode, plugins: &[Value]) -> Result<(), Failure> {
    let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins});
    configure_as(node, &list)
}

/// Writes this network configuration.
pub fn configure_as(node: &TestNode, list: &Value) -> Result<(), Failure> {
    let directory = node.path(CONFIGURATIONS);
    std::fs::create_dir_all(&directory).step(|| "make the configurations' directory")?;
    // In one step: a runtime that watches the directory reads it on the first event.
    let draft = directory.join("10-podwire.draft");
    std::fs::write(&draft, list.to_string()).step(|| "write the network configuration")?;
    std::fs::rename(&draft, directory.join("10-podwire.conflist"))
        .step(|| "write the network configuration")
}

/// The network configuration that docs/runtimes.md shows below a heading.
pub fn documented(heading: &str) -> Result<Value, Failure> {
    const PAGE: &str = include_str!("../../docs/runtimes.md");
    let section = PAGE
        .split("\n## ")
        .find(|section| section.starts_with(heading));
    let block = section.and_then(|section| section.split("```json\n").nth(1)?.split("```").next());
    let shown = block.and_then(|block| serde_json::from_str(block).ok());
    shown.ok_or_else(|| Failure::Unlike {
        object: format!("docs/runtimes.md, {heading:?}"),
        expected: "a network configuration".into(),
        seen: section.unwrap_or("no such heading").into(),
    })
}
