//! A container: a network namespace at a path, and an id.

use std::fs::File;
use std::path::PathBuf;
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use serde_json::Value;

use crate::ip::{self, Link, Route};
use crate::trouble::{Step, Trouble};

/// A container without processes. Its namespace is held by nothing but the mount at its path.
#[derive(Debug)]
pub(crate) struct Container {
    /// CNI_CONTAINERID.
    pub(crate) id: String,
    /// CNI_NETNS.
    pub(crate) netns: PathBuf,
    /// What the plugins before it in the chain have answered, for a plugin that is not the first.
    pub(crate) before: Option<Value>,
}

impl Container {
    /// Makes the namespace, with `lo` up as runtimes have it.
    pub(crate) fn new(id: String, netns: PathBuf) -> Result<Container, Trouble> {
        File::create(&netns).step(|| format!("make {}", netns.display()))?;
        on_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).step(|| "make a network namespace")?;
            mount(
                Some("/proc/thread-self/ns/net"),
                &netns,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )
            .step(|| format!("mount the network namespace on {}", netns.display()))?;
            ip::ip(&["link", "set", "lo", "up"])
        })?;
        let before = None;
        Ok(Container { id, netns, before })
    }

    /// Does something inside.
    pub(crate) fn inside<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, Trouble> + Send,
    ) -> Result<T, Trouble> {
        on_own_thread(|| {
            let path = self.netns.display();
            let netns = File::open(&self.netns).step(|| format!("open {path}"))?;
            setns(netns, CloneFlags::CLONE_NEWNET).step(|| format!("enter {path}"))?;
            work()
        })
    }

    pub(crate) fn ip(&self, arguments: &[&str]) -> Result<(), Trouble> {
        self.inside(|| ip::ip(arguments))
    }

    pub(crate) fn links(&self) -> Result<Vec<Link>, Trouble> {
        self.inside(ip::links)
    }

    pub(crate) fn link(&self, name: &str) -> Result<Option<Link>, Trouble> {
        let mut links = self.links()?.into_iter();
        Ok(links.find(|link| link.name == name))
    }

    pub(crate) fn routes(&self) -> Result<Vec<Route>, Trouble> {
        self.inside(ip::routes)
    }

    /// Takes the namespace away; the kernel takes what was in it, in its own time.
    pub(crate) fn remove_netns(&self) -> Result<(), Trouble> {
        let path = self.netns.display();
        umount2(&self.netns, MntFlags::MNT_DETACH).step(|| format!("unmount {path}"))?;
        std::fs::remove_file(&self.netns).step(|| format!("remove {path}"))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Fails where a case has taken it away already.
        let _ = self.remove_netns();
    }
}

/// Runs work that moves its thread; a panic of it goes on in the caller.
fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        scope
            .spawn(work)
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
