//! Proof that a demo left the machine as it was.

use std::collections::BTreeSet;
use std::fs;

use podwire_tests::{Failure, Place, Step, links, process};

/// What the machine looked like before.
pub(crate) struct Proof {
    machine: Place,
    links: BTreeSet<String>,
    named_namespaces: BTreeSet<String>,
}

impl Proof {
    /// Looks around.
    pub(crate) fn start() -> Result<Proof, Failure> {
        let machine = Place::here();
        Ok(Proof {
            links: link_names(&machine)?,
            named_namespaces: named_namespaces(),
            machine,
        })
    }

    /// Looks again, once the nodes are dropped: one of `marks` was in the environment of each of
    /// their processes, `namespaces` are the inode numbers of their network namespaces.
    pub(crate) fn nothing_left(
        &self,
        marks: &[String],
        namespaces: &[u64],
    ) -> Result<((), String), Failure> {
        let mut processes = Vec::new();
        for mark in marks {
            processes.extend(process::with_environment(mark)?);
        }
        expect(
            "processes of the demo",
            "none",
            processes.is_empty(),
            || format!("{processes:?}"),
        )?;
        // A namespace lives as long as a process, a descriptor or a mount holds it. The processes
        // are gone; only this one could still hold anything. Other processes can't be asked by
        // inode number, for the kernel has perhaps given it to one of theirs by now.
        let held = own_descriptors()?;
        let open: Vec<_> = namespaces
            .iter()
            .map(|inode| format!("net:[{inode}]"))
            .filter(|name| held.contains(name))
            .collect();
        expect(
            "network namespaces of the demo",
            "none held open",
            open.is_empty(),
            || open.join(", "),
        )?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").step(|| "read the mount table")?;
        let left: Vec<_> = mounts
            .lines()
            .filter(|line| line.contains("podwire-node") || line.contains("/run/netns/cni-"))
            .collect();
        expect("mounts of the demo", "none", left.is_empty(), || {
            left.join("\n")
        })?;
        let names: Vec<_> = named_namespaces()
            .difference(&self.named_namespaces)
            .cloned()
            .collect();
        expect(
            "named network namespaces",
            "none added",
            names.is_empty(),
            || names.join(", "),
        )?;
        let links: Vec<_> = link_names(&self.machine)?
            .difference(&self.links)
            .cloned()
            .collect();
        expect(
            "links of the machine",
            "none added",
            links.is_empty(),
            || links.join(", "),
        )?;
        Ok((
            (),
            format!(
                "{} namespaces, their links and processes are gone",
                namespaces.len()
            ),
        ))
    }
}

/// Fails unless something holds.
pub(crate) fn expect(
    object: &str,
    expected: &str,
    holds: bool,
    seen: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if holds {
        return Ok(());
    }
    Err(Failure::Unlike {
        object: object.into(),
        expected: expected.into(),
        seen: seen(),
    })
}

fn link_names(place: &Place) -> Result<BTreeSet<String>, Failure> {
    Ok(links::list(place)
        .into_iter()
        .map(|link| link.name)
        .collect())
}

fn named_namespaces() -> BTreeSet<String> {
    // Where iproute2 and runtimes keep them; absent on a machine that never had one.
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn own_descriptors() -> Result<BTreeSet<String>, Failure> {
    let entries = fs::read_dir("/proc/self/fd")
        .step(|| "list own descriptors")?
        .flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    Ok(targets
        .map(|target| target.to_string_lossy().into_owned())
        .collect())
}
