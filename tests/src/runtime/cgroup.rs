//! Cgroups of a node's containers: the machine's hierarchies, mounted where runc looks for them,
//! for a node has a `/sys` of its own; and in each a directory that goes with the containers.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use crate::failure::{Failure, Step};
use crate::{TestNode, random};

const ROOT: &str = "/sys/fs/cgroup";
const PREFIX: &str = "podwire-test-";

/// One cgroup in each hierarchy. Dropping it removes them; no process may be left in them.
#[derive(Debug)]
pub(super) struct Cgroup {
    name: String,
    hierarchies: Vec<PathBuf>,
}

impl Cgroup {
    /// Mounts the machine's hierarchies on the node, and clears what test processes that were
    /// killed have left in them.
    pub(super) fn of(node: &TestNode) -> Result<Cgroup, Failure> {
        let roots = node.place().run(mount_hierarchies)?;
        let hierarchies: Vec<_> = roots.iter().map(|root| node.path(root)).collect();
        for hierarchy in &hierarchies {
            for entry in fs::read_dir(hierarchy).step(|| "list cgroups")?.flatten() {
                let name = entry.file_name();
                let owner = name
                    .to_str()
                    .and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
                if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                    remove(&entry.path());
                }
            }
        }
        let name = format!("{PREFIX}{}-{}", std::process::id(), random::hex(8));
        Ok(Cgroup { name, hierarchies })
    }

    /// Its path in each hierarchy, as container runtimes take it for a parent.
    pub(super) fn path(&self) -> String {
        format!("/{}", self.name)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for hierarchy in &self.hierarchies {
            remove(&hierarchy.join(&self.name));
        }
    }
}

/// Removes a cgroup and those in it; one that still has a process stays, which the next run sees
/// to.
fn remove(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(cgroup);
}

/// Mounts them in the calling thread's mount namespace and says where: version 2's only one, or
/// those of version 1.
fn mount_hierarchies() -> Result<Vec<String>, Failure> {
    let list = fs::read_to_string("/proc/self/cgroup").step(|| "read /proc/self/cgroup")?;
    let hierarchies = hierarchies_of_version_1(&list);
    if hierarchies.is_empty() {
        attach("cgroup2", ROOT, "")?;
        return Ok(vec![ROOT.to_owned()]);
    }
    attach("tmpfs", ROOT, "mode=0755")?;
    let mounted = hierarchies.into_iter().map(|hierarchy| {
        let root = format!("{ROOT}/{}", hierarchy.trim_start_matches("name="));
        fs::create_dir(&root).step(|| format!("make {root}"))?;
        attach("cgroup", &root, hierarchy)?;
        Ok(root)
    });
    mounted.collect()
}

/// The controllers, or the name, of each hierarchy of version 1, as /proc/PID/cgroup lists them
/// (cgroups(7)).
fn hierarchies_of_version_1(list: &str) -> Vec<&str> {
    let fields = list.lines().filter_map(|line| line.split(':').nth(1));
    fields.filter(|field| !field.is_empty()).collect()
}

fn attach(kind: &str, target: &str, data: &str) -> Result<(), Failure> {
    mount(
        Some("podwire-node"),
        target,
        Some(kind),
        MsFlags::empty(),
        Some(data),
    )
    .step(|| format!("mount {kind} on {target}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_version_1_have_controllers_or_a_name() {
        assert_eq!(
            hierarchies_of_version_1("9:name=systemd:/\n4:memory:/a\n1:cpu,cpuacct:/\n0::/\n"),
            ["name=systemd", "memory", "cpu,cpuacct"]
        );
        assert!(hierarchies_of_version_1("0::/user.slice\n").is_empty());
    }
}
