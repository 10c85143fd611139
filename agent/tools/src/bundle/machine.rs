//! The machine's part of a bundle: the agent's configuration and log, the runtime's directories,
//! and facts about the kernel.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::utsname::uname;
use podwire_netns::Netlink;
use tokio::process::Command;
use tokio::time::timeout;

use podwire::duration;
use podwire_daemon::bundle::Files;
use podwire_daemon::bundle::names_secret;

/// Time limit of a program.
const PATIENCE: Duration = Duration::from_secs(10);
/// The size of a log's end that is collected.
const LOG: u64 = 1 << 20;
/// The size limit of a network configuration.
const CONF: u64 = 64 << 10;

const OVS_LOG: &str = "/var/log/openvswitch/ovs-vswitchd.log";
const OVN_LOG: &str = "/var/log/ovn/ovn-controller.log";

/// Small files that describe the machine.
const FACTS: [(&str, &str); 6] = [
    ("machine/os-release.txt", "/etc/os-release"),
    ("machine/kernel.txt", "/proc/version"),
    ("machine/modules.txt", "/proc/modules"),
    ("machine/meminfo.txt", "/proc/meminfo"),
    ("machine/loadavg.txt", "/proc/loadavg"),
    ("machine/uptime.txt", "/proc/uptime"),
];

/// Sysctls that affect pods' traffic and a node's many files.
const SYSCTLS: [&str; 10] = [
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/all/disable_ipv6",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/neigh/default/gc_thresh3",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
    "fs/file-nr",
    "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
];

/// The node's name.
pub(super) fn host() -> String {
    let name = uname().map(|it| it.nodename().to_string_lossy().into_owned());
    name.unwrap_or_else(|_| "node".to_owned())
}

/// Collects facts about the kernel.
pub(super) async fn kernel(files: &mut Files, netlink: &Netlink) {
    for (file, path) in FACTS {
        files.put(file, read(Path::new(path)));
    }
    let mut settings = String::new();
    for name in SYSCTLS {
        let path = Path::new("/proc/sys").join(name);
        let value = read(&path).unwrap_or_else(|problem| problem);
        let _ = writeln!(settings, "{} = {}", name.replace('/', "."), value.trim());
    }
    files.put("machine/sysctls.txt", Ok::<_, String>(settings));
    let links = netlink.host_links().await.map(|links| {
        let mut links: Vec<_> = links.into_values().collect();
        links.sort_by_key(|link| link.ifindex);
        let line = |link: &podwire_netns::LinkState| {
            format!(
                "{}: {} {} mtu {} {} {}\n",
                link.ifindex,
                link.name,
                if link.up { "up" } else { "down" },
                link.mtu,
                link.kind.as_deref().unwrap_or("-"),
                link.mac
                    .map_or_else(|| "-".to_owned(), podwire::plan::mac_text),
            )
        };
        links.iter().map(line).collect::<String>()
    });
    files.put("machine/links.txt", links);
}

/// Collects the kernel's information about a process.
pub(super) fn process(files: &mut Files, name: &str, pid: u32) {
    for what in ["status", "limits"] {
        let path = PathBuf::from(format!("/proc/{pid}/{what}"));
        files.put(&format!("machine/{name}-{what}.txt"), read(&path));
    }
}

/// Collects the agent's settings, in the form of `--print-config`, and its log.
pub(super) async fn agent(files: &mut Files, pid: u32) {
    let settings = settings(files, pid).await;
    let log_file = settings.as_deref().ok().and_then(log_file);
    files.put("agent/config.txt", settings);
    let log = match log_file {
        Some(path) => tail(&path),
        None => journal("podwire").await,
    };
    files.put("agent/log.txt", log);
}

/// Collects the node role's state, its record of what cleanup undoes, its rules and its log.
pub(super) async fn node_role(files: &mut Files, directory: &Path) {
    match podwire_node::role(directory).transpose() {
        Some(Ok(role)) => files.put_json("node/role.json", &role),
        Some(Err(error)) => files.put("node/role.json", Err(error)),
        // It never ran here.
        None => return,
    }
    files.put("node/journal.txt", read(&directory.join("journal")));
    let rules = run(Command::new("nft").args(["list", "ruleset"])).await;
    files.put("node/nftables.txt", rules);
    files.put("node/log.txt", journal("podwire-node").await);
}

/// The end of a unit's log.
async fn journal(unit: &str) -> Result<String, String> {
    let arguments = ["--lines=5000", "--no-pager", "--quiet", "--unit", unit];
    run(Command::new("journalctl").args(arguments)).await
}

/// Collects the logs of the switch and of OVN's node process.
pub(super) fn logs(files: &mut Files, uses_ovn: bool) {
    files.put("openvswitch/log.txt", tail(Path::new(OVS_LOG)));
    if uses_ovn {
        files.put("ovn/log.txt", tail(Path::new(OVN_LOG)));
    }
}

/// Collects the runtime's network configurations, and the names of its plugins.
pub(super) fn runtime(files: &mut Files, confs: &Path, plugins: &Path) {
    for (file, directory) in [("cni/confs.txt", confs), ("cni/plugins.txt", plugins)] {
        files.put(file, names(directory).map(|names| names.join("\n") + "\n"));
    }
    for name in names(confs).unwrap_or_default() {
        let path = confs.join(&name);
        let is_conf = path
            .metadata()
            .is_ok_and(|it| it.is_file() && it.len() <= CONF);
        if is_conf {
            files.put(&format!("cni/{name}"), read(&path));
        }
    }
}

/// The settings, printed by the agent's own program with its arguments and environment.
async fn settings(files: &mut Files, pid: u32) -> Result<String, String> {
    let parts = |file: &str| -> Result<Vec<OsString>, String> {
        let path = format!("/proc/{pid}/{file}");
        let bytes = fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
        let parts = bytes.split(|byte| *byte == 0).filter(|it| !it.is_empty());
        Ok(parts.map(|it| OsString::from_vec(it.to_vec())).collect())
    };
    let arguments = parts("cmdline")?;
    let environment: Vec<(OsString, OsString)> = parts("environ")?
        .iter()
        .filter_map(|variable| pair(variable))
        .collect();
    for (name, value) in &environment {
        if names_secret(&name.to_string_lossy()) {
            files.redactor.knows(&value.to_string_lossy());
        }
    }
    let mut command = Command::new(format!("/proc/{pid}/exe"));
    command
        .arg0(arguments.first().map_or(OsStr::new("podwire"), |it| it))
        .args(arguments.iter().skip(1))
        .arg("--print-config")
        .env_clear()
        .envs(environment);
    run(&mut command).await
}

fn pair(variable: &OsStr) -> Option<(OsString, OsString)> {
    let bytes = variable.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let os = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    Some((os(&bytes[..at]), os(&bytes[at + 1..])))
}

/// `log-file` in the output of `--print-config`.
fn log_file(settings: &str) -> Option<PathBuf> {
    let line = settings
        .lines()
        .find(|line| line.starts_with("log-file = "))?;
    line.split('"').nth(1).map(PathBuf::from)
}

async fn run(command: &mut Command) -> Result<String, String> {
    let program = command
        .as_std()
        .get_program()
        .to_string_lossy()
        .into_owned();
    let output = command.kill_on_drop(true).stdin(Stdio::null()).output();
    let output = match timeout(PATIENCE, output).await {
        Ok(output) => output.map_err(|error| format!("{program}: {error}"))?,
        Err(_) => {
            return Err(format!(
                "{program} has not ended within {}",
                duration::text(PATIENCE)
            ));
        }
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{program}: {}", text(&output.stderr).trim())),
    }
}

fn read(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The end of a file.
fn tail(path: &Path) -> Result<String, String> {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG)))?;
        let mut bytes = Vec::new();
        file.take(LOG).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().map_err(|error| format!("{}: {error}", path.display()))
}

fn names(directory: &Path) -> Result<Vec<String>, String> {
    let read = fs::read_dir(directory);
    let read = read.map_err(|error| format!("{}: {error}", directory.display()))?;
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = read.flatten().map(name).collect();
    names.sort();
    Ok(names)
}
