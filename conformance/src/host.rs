//! The machine that a plugin runs on, as far as a case can tell, and what is held there.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::exec::tool;
use crate::ip;
use crate::subject::Subject;
use crate::trouble::{Step, Trouble};

/// Directories that a private host has empty: the first for what is to be gone after a boot, the
/// second the one that the reference IPAM plugin keeps its reservations in.
const PRIVATE: [&str; 2] = ["/run", "/var/lib/cni"];

/// The host of one case. It is where its thread is.
#[derive(Debug)]
pub(crate) struct Host {
    directory: PathBuf,
    state: Vec<PathBuf>,
    held: Option<String>,
}

/// What is held on a host: an item for each link, route, file and line of the caller's command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footprint(BTreeSet<String>);

impl Host {
    /// Moves the calling thread, for good, to the host that the subject asks for.
    pub(crate) fn enter(subject: &Subject) -> Result<Host, Trouble> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let mut state = subject.state.clone();
        match &subject.host_netns {
            Some(path) => {
                let shown = path.display();
                let netns = File::open(path).step(|| format!("open {shown}"))?;
                setns(netns, CloneFlags::CLONE_NEWNET).step(|| format!("enter {shown}"))?;
            }
            None => {
                make_private()?;
                ip::ip(&["link", "set", "lo", "up"])?;
                if let Some(command) = &subject.prepare {
                    shell(command)?;
                }
                state.extend(PRIVATE.map(PathBuf::from));
            }
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cni-conformance-{}-{number}", std::process::id());
        let directory = Path::new("/run").join(name);
        fs::create_dir(&directory).step(|| format!("make {}", directory.display()))?;
        Ok(Host {
            directory,
            state,
            held: subject.held.clone(),
        })
    }

    /// A directory for what the case needs; it goes with the host.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// What is held now. Of files only those count that name one of these containers.
    pub(crate) fn footprint(&self, containers: &[String]) -> Result<Footprint, Trouble> {
        let mut items = BTreeSet::new();
        for link in ip::links()? {
            items.insert(format!("link {}", link.name));
        }
        for route in ip::routes()? {
            items.insert(format!("route {} dev {}", route.dst, route.dev));
        }
        for directory in &self.state {
            self.files(directory, containers, &mut items);
        }
        if let Some(command) = &self.held {
            let printed = shell(command)?;
            let lines = printed.lines().filter(|line| !line.trim().is_empty());
            items.extend(lines.map(|line| line.trim().to_owned()));
        }
        Ok(Footprint(items))
    }

    /// What is held beyond `before`, once the kernel has had time to finish: it takes links away
    /// with their namespace in a worker of its own (cleanup_net).
    pub(crate) fn settled(
        &self,
        before: &Footprint,
        containers: &[String],
    ) -> Result<Vec<String>, Trouble> {
        const LIMIT: Duration = Duration::from_secs(5);
        let mut monitor = Command::new("ip")
            .args(["-oneline", "monitor", "link"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .step(|| "start ip monitor")?;
        let (sender, events) = mpsc::channel();
        if let Some(output) = monitor.stdout.take() {
            thread::spawn(move || {
                BufReader::new(output)
                    .lines()
                    .map_while(Result::ok)
                    .try_for_each(|_| sender.send(()))
            });
        }
        let until = Instant::now() + LIMIT;
        let beyond = loop {
            // Taken after the monitor was started: what goes later is an event.
            let beyond = self.footprint(containers).map(|now| now.beyond(before));
            let left = until.saturating_duration_since(Instant::now());
            match &beyond {
                Ok(beyond) if !beyond.is_empty() => {
                    if events.recv_timeout(left).is_err() {
                        break self.footprint(containers).map(|now| now.beyond(before));
                    }
                }
                _ => break beyond,
            }
        };
        // Its end closes the pipe, and with it the reader's thread.
        let _ = monitor.kill();
        let _ = monitor.wait();
        beyond
    }

    fn files(&self, directory: &Path, containers: &[String], items: &mut BTreeSet<String>) {
        if directory == self.directory {
            return;
        }
        // A directory may go while it is read; what is gone holds nothing.
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.files(&path, containers, items),
                Ok(kind) if kind.is_file() && names_one(&path, containers) => {
                    items.insert(format!("file {}", path.display()));
                }
                _ => {}
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Nobody is left to tell; a rest of it harms nobody.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Footprint {
    /// What is here and was not there before.
    pub(crate) fn beyond(&self, before: &Footprint) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }

    pub(crate) fn links_beyond(&self, before: &Footprint) -> Vec<String> {
        let beyond = self.beyond(before).into_iter();
        beyond
            .filter_map(|item| item.strip_prefix("link ").map(str::to_owned))
            .collect()
    }
}

/// Runs a command of the caller's on the host.
pub(crate) fn shell(command: &str) -> Result<String, Trouble> {
    tool("sh", &["-c", command])
}

fn names_one(path: &Path, containers: &[String]) -> bool {
    const LONGEST: u64 = 1 << 20;
    let name = path.to_string_lossy();
    if containers.iter().any(|id| name.contains(id.as_str())) {
        return true;
    }
    let is_small = path.metadata().is_ok_and(|meta| meta.len() <= LONGEST);
    let content = if is_small {
        fs::read(path)
    } else {
        Ok(Vec::new())
    };
    let content = content.unwrap_or_default();
    containers
        .iter()
        .any(|id| content.windows(id.len()).any(|part| part == id.as_bytes()))
}

fn make_private() -> Result<(), Trouble> {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
        .step(|| "make namespaces (are you root?)")?;
    let none = None::<&str>;
    // Nothing that happens here may propagate to the machine.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .step(|| "make the mounts private")?;
    // sysfs shows the network namespace that it was mounted in.
    let empty = MsFlags::empty();
    mount(Some("cni-conformance"), "/sys", Some("sysfs"), empty, none)
        .step(|| "mount a sysfs of its own")?;
    for directory in PRIVATE {
        let mut place = Path::new(directory);
        while !place.is_dir() {
            // Where it is missing, a parent is made private and it is made there.
            place = place.parent().unwrap_or(Path::new("/"));
        }
        mount(
            Some("cni-conformance"),
            place,
            Some("tmpfs"),
            empty,
            Some("mode=0755"),
        )
        .step(|| format!("mount an empty {}", place.display()))?;
        fs::create_dir_all(directory).step(|| format!("make {directory}"))?;
    }
    for directory in ["/run/netns", "/run/lock"] {
        fs::create_dir(directory).step(|| format!("make {directory}"))?;
    }
    Ok(())
}
