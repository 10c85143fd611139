//! Namespaces as places where code can run.
//!
//! A [`Place`] holds its namespaces by descriptor, not by a name in a file system, so it needs no
//! clean-up. Threads enter it; what they spawn is born there. The [`Keeper`] is the long-lived
//! thread of a place: daemons are spawned from it, because PR_SET_PDEATHSIG fires when the *thread*
//! that forked the child ends (prctl(2)), and a daemon has to outlive the test's short-lived ones.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::failure::{Failure, OrFail, Step};
use crate::random;

const NO_PATH: Option<&str> = None;

/// A node's /etc/resolv.conf, wherever the machine has its own.
pub(crate) const RESOLV_CONF: &str = "/run/resolv.conf";

/// A network namespace and a mount namespace, held open.
#[derive(Clone, Debug)]
pub struct Place {
    mount: Arc<File>,
    network: Arc<File>,
}

impl Place {
    /// Where the calling thread is now.
    #[track_caller]
    pub fn here() -> Place {
        let open =
            |path: &str| Arc::new(File::open(path).step(|| format!("open {path}")).or_fail());
        Place {
            mount: open("/proc/thread-self/ns/mnt"),
            network: open("/proc/thread-self/ns/net"),
        }
    }

    /// Runs `work` in this place, on a thread of its own, and returns what it returns. A panic of
    /// `work` goes on in the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let visit = scope.spawn(|| {
                self.enter().or_fail();
                work()
            });
            visit
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread here, for good.
    pub fn enter(&self) -> Result<(), Failure> {
        // setns(2): a thread that shares its root and working directory with others can't change
        // its mount namespace.
        unshare(CloneFlags::CLONE_FS).step(|| "unshare CLONE_FS")?;
        setns(&*self.mount, CloneFlags::CLONE_NEWNS).step(|| "enter the node's mount namespace")?;
        setns(&*self.network, CloneFlags::CLONE_NEWNET).step(|| "enter the network namespace")
    }

    /// A fresh, empty network namespace beside this one, in the same mount namespace.
    pub fn with_new_network(&self) -> Place {
        self.run(|| {
            let made = unshare(CloneFlags::CLONE_NEWNET);
            made.step(|| "make a network namespace").or_fail();
            Place::here()
        })
    }

    /// The network namespace that is mounted on a path of this place, in the same mount namespace.
    #[track_caller]
    pub fn at_network(&self, path: &Path) -> Place {
        let network = self.run(|| File::open(path));
        let network = network.step(|| format!("open {}", path.display()));
        Place {
            mount: self.mount.clone(),
            network: Arc::new(network.or_fail()),
        }
    }

    /// The descriptor of the network namespace.
    pub fn network(&self) -> &File {
        &self.network
    }

    /// The path of the network namespace, for as long as this process has it.
    pub fn network_path(&self) -> String {
        let descriptor = self.network.as_raw_fd();
        format!("/proc/{}/fd/{descriptor}", std::process::id())
    }

    /// The network namespace's inode number, as `readlink /proc/PID/ns/net` shows it. The kernel
    /// gives the number to another namespace once this one is gone.
    #[track_caller]
    pub fn network_inode(&self) -> u64 {
        let metadata = self.network.metadata();
        metadata
            .step(|| "stat the network namespace")
            .or_fail()
            .ino()
    }
}

/// The thread that holds a node's mount namespace and spawns its daemons.
#[derive(Debug)]
pub(crate) struct Keeper {
    id: String,
    place: Place,
    root: PathBuf,
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

struct Order {
    command: Command,
    reply: mpsc::Sender<std::io::Result<Child>>,
}

impl Keeper {
    /// Makes a network namespace and a mount namespace whose `/run` and `/var/lib` are empty.
    pub(crate) fn start() -> Result<Keeper, Failure> {
        let (orders, inbox) = mpsc::channel::<Order>();
        let (ready, made) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("node-keeper".into())
            .spawn(move || {
                let node = make_node();
                let failed = node.is_err();
                if ready.send(node).is_err() || failed {
                    return;
                }
                for Order { mut command, reply } in inbox {
                    // A caller that is gone needs no answer; its child is killed with this thread.
                    let _ = reply.send(command.spawn());
                }
            })
            .step(|| "start the node's thread")?;
        let (place, root) = made
            .recv()
            .map_err(|_| std::io::Error::other("the thread ended without an answer"))
            .step(|| "make the node's namespaces")??;
        Ok(Keeper {
            id: random::hex(16),
            place,
            root,
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The environment variable by which the node's daemons, and what they start, are known.
    pub(crate) fn mark(&self) -> (&'static str, &str) {
        ("PODWIRE_TEST_NODE", &self.id)
    }

    /// A path of the node as every thread of this process can open it.
    pub(crate) fn outside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Spawns a child that is killed when this keeper, or the whole process, ends.
    pub(crate) fn spawn(&self, command: Command) -> std::io::Result<Child> {
        let gone = || std::io::Error::other("the node's thread has ended");
        let (reply, answer) = mpsc::channel();
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        orders.send(Order { command, reply }).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // The thread only spawns; it has nothing to report at its end.
            let _ = thread.join();
        }
    }
}

/// Whether a node has the machine's own network namespace, which alone can change some settings:
/// only in a virtual machine that is there for one test.
const OF_THE_MACHINE: &str = "PODWIRE_TEST_MACHINE_NETWORK";

/// Moves the calling thread into a new node and says where that is and how others see its root.
fn make_node() -> Result<(Place, PathBuf), Failure> {
    let has_network = std::env::var_os(OF_THE_MACHINE).is_none();
    let mut own = CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS;
    own.set(CloneFlags::CLONE_NEWNET, has_network);
    unshare(own).step(|| "make the node's namespaces (are you root?)")?;
    // Nothing that happens here may propagate to the machine.
    mount(
        NO_PATH,
        "/",
        NO_PATH,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        NO_PATH,
    )
    .step(|| "make the node's mounts private")?;
    mount(
        Some("podwire-node"),
        "/run",
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=0755"),
    )
    .step(|| "mount the node's own /run")?;
    // libcni keeps results in there, and podman a cache.
    mount(
        Some("podwire-node"),
        "/var/lib",
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=0755"),
    )
    .step(|| "mount the node's own /var/lib")?;
    // sysfs shows the network namespace that it was mounted in.
    if has_network {
        mount(
            Some("podwire-node"),
            "/sys",
            Some("sysfs"),
            MsFlags::empty(),
            NO_PATH,
        )
        .step(|| "mount the node's own /sys")?;
    }
    for directory in ["/run/openvswitch", "/run/netns", "/run/log", "/run/lock"] {
        std::fs::create_dir(directory).step(|| format!("make {directory}"))?;
    }
    // The machine's own name servers are none of the node's.
    std::fs::write(RESOLV_CONF, "").step(|| format!("write {RESOLV_CONF}"))?;
    if Path::new("/etc/resolv.conf").exists() {
        let (from, to) = (Some(RESOLV_CONF), "/etc/resolv.conf");
        mount(from, to, NO_PATH, MsFlags::MS_BIND, NO_PATH)
            .step(|| "mount the node's own /etc/resolv.conf")?;
    }
    let root = format!("/proc/self/task/{}/root", nix::unistd::gettid());
    Ok((Place::here(), root.into()))
}
