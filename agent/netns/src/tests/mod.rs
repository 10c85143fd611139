//! The room on the real kernel: each test is "the host" in a network namespace of its own, with
//! pods in others, and compares with what `ip` and `ethtool` see. Namespaces end with their last
//! handle, and take their links with them.

mod addresses;
mod announcing;
mod attaching;
mod claims;
mod deleting;
mod flushing;
mod host_side;
mod names;
mod namespaces;
mod routes;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use macaddr::MacAddr6;
use nix::sched::{CloneFlags, setns, unshare};
use serde_json::Value;

use super::*;

/// Runs a test on a thread that is alone in a new network namespace, with the room started there.
fn on_own_host(test: impl AsyncFnOnce(Netlink) + Send + 'static) {
    on_own_thread(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let netlink = Netlink::start(None).unwrap();
        // A guard against waiting for ever; nothing here takes near that long.
        let guarded = async { tokio::time::timeout(Duration::from_secs(60), test(netlink)).await };
        runtime
            .block_on(guarded)
            .expect("the test still waits after 60 s");
    });
}

fn on_own_thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let body = move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        body()
    };
    thread::spawn(body)
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A pod's network namespace.
struct Pod {
    handle: File,
    netns: Arc<Netns>,
}

impl Pod {
    fn new() -> Pod {
        let handle = on_own_thread(|| File::open("/proc/thread-self/ns/net").unwrap());
        let netns = Netns::open(path_of(&handle)).unwrap();
        Pod {
            handle,
            netns: Arc::new(netns),
        }
    }

    fn netns(&self) -> Arc<Netns> {
        self.netns.clone()
    }

    fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let body = || {
                setns(&self.handle, CloneFlags::CLONE_NEWNET).unwrap();
                body()
            };
            scope
                .spawn(body)
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn run(&self, command: &str) -> String {
        self.inside(|| run(command))
    }

    fn json(&self, command: &str) -> Value {
        self.inside(|| json(command))
    }
}

fn path_of(handle: &File) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), handle.as_raw_fd()).into()
}

/// Runs a command in the calling thread's namespace; it must succeed.
fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// `ip -j` with these words.
fn json(command: &str) -> Value {
    let text = run(&format!("ip -j {command}"));
    if text.trim().is_empty() {
        Value::Array(Vec::new())
    } else {
        text.parse().unwrap()
    }
}

/// The names of the links of the calling thread's namespace, without lo and what modules put there.
fn veth_names() -> Vec<String> {
    let links = json("link show type veth");
    let mut names: Vec<String> = links
        .as_array()
        .unwrap()
        .iter()
        .map(|link| link["ifname"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

fn spec(host_name: &str) -> LinkSpec {
    LinkSpec {
        host_names: vec![host_name.to_owned()],
        pod_name: "eth0".to_owned(),
        host_mac: MacAddr6::new(0x0a, 0x58, 0, 0, 0, 1),
        pod_mac: MacAddr6::new(0x0a, 0x58, 0, 0, 0, 2),
        mtu: 1400,
        addresses: vec![
            "10.1.2.3/24".parse().unwrap(),
            "fd00:1::3/64".parse().unwrap(),
        ],
        routes: Vec::new(),
        pod_ipv6: PodIpv6::Usual,
        netdev_datapath: false,
        announce: Vec::new(),
    }
}

fn route(dst: &str, gateway: &str) -> Route {
    let gateway = (!gateway.is_empty()).then(|| gateway.parse().unwrap());
    Route::new(dst.parse().unwrap(), gateway)
}

impl Netlink {
    /// Both results of an attachment, the first error if any.
    async fn attached(&self, pod: &Pod, spec: LinkSpec) -> Result<(HostEnd, PodEnd), Error> {
        self.attach(pod.netns(), spec).done().await
    }
}
