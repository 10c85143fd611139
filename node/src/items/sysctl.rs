//! Values below /proc/sys, which have no mark: the journal records them.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Actual, Change, Item, Kind, State, Undo, View};
use crate::GATEWAY;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sysctl {
    pub(crate) path: String,
    pub(crate) value: String,
}

/// Forwarding of IPv6 for all links.
pub(crate) const FORWARD_ALL: &str = "net/ipv6/conf/all/forwarding";

/// The size of the connection tracking table, which all network namespaces share.
pub(crate) const CONNTRACK_BUCKETS: &str = "net/netfilter/nf_conntrack_buckets";

impl Sysctl {
    /// Whether this network namespace only shows the setting.
    fn is_read_only(&self) -> bool {
        let file = Path::new("/proc/sys").join(&self.path);
        let is_shown = |it: &str| it == CONNTRACK_BUCKETS;
        is_shown(&self.path) && file.metadata().is_ok_and(|it| it.permissions().readonly())
    }

    /// The link whose setting it is, as in net/ipv6/conf/LINK; `all` of those of all.
    pub(crate) fn link(&self) -> Option<&str> {
        self.path.split('/').nth(3)
    }

    /// The missing link of a setting, if any.
    fn lacks_link(&self, view: &View<'_>) -> Option<&str> {
        let link = self.link()?;
        (link != "all" && !view.actual.links.contains_key(link)).then_some(link)
    }
}

impl Kind for Sysctl {
    fn identity(&self) -> String {
        format!("sysctl {}", self.path.replace('/', "."))
    }

    fn details(&self) -> String {
        format!(" = {}", self.value)
    }

    fn removed(&self) -> String {
        format!("wrote {} back to {}", self.value, self.identity())
    }

    fn state(&self, view: &View<'_>) -> State {
        let mut journal = view.journal.iter();
        let ours =
            journal.any(|undo| matches!(undo, Undo::Sysctl { path, .. } if *path == self.path));
        match (view.actual.sysctls.get(&self.path), self.lacks_link(view)) {
            (Some(seen), _) if *seen == self.value => State::Well { ours },
            (Some(seen), _) if self.is_read_only() => State::Foreign(format!(
                "it is {seen}, and only the machine's own network namespace can change it"
            )),
            (Some(seen), _) => State::Differs(seen.clone()),
            (None, Some(link)) => State::Waits(format!("link {link}")),
            // It was removed between two snapshots.
            (None, None) if self.link() == Some(GATEWAY) => State::Waits(format!("link {GATEWAY}")),
            (None, None) => State::Foreign("the kernel has no such setting".to_owned()),
        }
    }

    fn undos(&self, _: &Actual, _: &[Undo]) -> Vec<Undo> {
        let undos = written_with(&self.path).into_iter().filter_map(|path| {
            let was = read_sysctl(&path).ok()?;
            // A value that the kernel writes too is lost when the other one is restored.
            (was != self.value || path != self.path).then(|| Undo::Sysctl {
                all: forwards_all(&path),
                path,
                was,
                set: self.value.clone(),
            })
        });
        undos.collect()
    }

    fn make(&self, _: &Actual) -> Vec<Change> {
        vec![Change::Sysctl(self.path.clone(), self.value.clone())]
    }

    /// What the journal lists for removal has the former value.
    fn remove(&self, actual: &Actual) -> Vec<Change> {
        self.make(actual)
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let mut items = view.items.iter();
        let forwards = items.any(|it| matches!(it, Item::Sysctl(it) if it.path == FORWARD_ALL));
        let to_restore = view.journal.iter().filter_map(|undo| match undo {
            Undo::Sysctl {
                path,
                was,
                set,
                all,
            } => {
                let seen = view.actual.sysctls.get(path)?;
                // Somebody has since made this machine a router.
                let is_router = all.as_ref().is_some_and(|all| all != set)
                    && forwards_all(path).as_ref() == Some(set);
                let is_as_left = (seen == set || was == set) && seen != was;
                (is_as_left && !is_router && !(forwards && is_written_with_all(path))).then(|| {
                    Item::Sysctl(Self {
                        path: path.clone(),
                        value: was.clone(),
                    })
                })
            }
            Undo::Made(_) | Undo::Replaced(_) => None,
        });
        to_restore.collect()
    }
}

/// Reads a value below /proc/sys of this process's network namespace.
pub(crate) fn read_sysctl(path: &str) -> io::Result<String> {
    let text = std::fs::read_to_string(Path::new("/proc/sys").join(path))?;
    Ok(text.trim().to_owned())
}

/// The values that the kernel writes along with one: those of every link along with `all`
/// (ip-sysctl.rst, conf/all/forwarding). The written one comes first.
fn written_with(path: &str) -> Vec<String> {
    let mut paths = vec![path.to_owned()];
    if path == FORWARD_ALL {
        let links = std::fs::read_dir("/proc/sys/net/ipv6/conf").into_iter();
        let of_links = links.flatten().flatten().map(|entry| {
            let link = entry.file_name().to_string_lossy().into_owned();
            format!("net/ipv6/conf/{link}/forwarding")
        });
        paths.extend(of_links.filter(|other| other != path));
    }
    paths
}

/// For the IPv4 forwarding of a link: that of all links.
fn forwards_all(path: &str) -> Option<String> {
    let is_of_link = path.starts_with("net/ipv4/conf/") && path.ends_with("/forwarding");
    read_sysctl("net/ipv4/conf/all/forwarding")
        .ok()
        .filter(|_| is_of_link)
}

/// Whether the kernel writes it along with forwarding for all links: it returns when that is
/// restored.
fn is_written_with_all(path: &str) -> bool {
    path.starts_with("net/ipv6/conf/") && path.ends_with("/forwarding")
}
