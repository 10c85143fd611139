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
use tokio::time::{Instant, timeout_at};

use podwire::duration;
use podwire_daemon::bundle::{Lack, Text, names_secret};

use super::within;

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

/// Facts about the kernel.
pub(super) fn kernel() -> Vec<Text> {
    let facts = FACTS
        .iter()
        .map(|(file, path)| text(file, read(Path::new(path))));
    let mut settings = String::new();
    for name in SYSCTLS {
        let path = Path::new("/proc/sys").join(name);
        let value = fs::read_to_string(&path).unwrap_or_else(|error| error.to_string());
        let _ = writeln!(settings, "{} = {}", name.replace('/', "."), value.trim());
    }
    let settings = text("machine/sysctls.txt", Ok(settings));
    facts.chain([settings]).collect()
}

/// The links.
pub(super) async fn links(netlink: &Netlink, deadline: Instant) -> Vec<Text> {
    let links = timeout_at(within(PATIENCE, deadline), netlink.host_links()).await;
    let links = match links {
        Ok(links) => links.map_err(|error| Lack::Missing(error.to_string())),
        Err(_) => Err(Lack::Missing(
            "the kernel did not answer in time".to_owned(),
        )),
    };
    let links = links.map(|links| {
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
    vec![text("machine/links.txt", links)]
}

/// The kernel's information about a process. One in another namespace of processes is not seen.
pub(super) fn process(name: &str, pid: u32, program: Option<&str>) -> Vec<Text> {
    let is_other = program.is_some_and(|program| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
        comm.is_ok_and(|comm| comm.trim() != program)
    });
    let of = |what: &str| {
        let seen = match is_other {
            true => Err(Lack::Absent(format!("here, process {pid} is another"))),
            false => read(&PathBuf::from(format!("/proc/{pid}/{what}"))),
        };
        text(&format!("machine/{name}-{what}.txt"), seen)
    };
    vec![of("status"), of("limits")]
}

/// The agent's settings, in the form of `--print-config`, with the secrets that are known by their
/// value, and its log.
pub(super) async fn agent(pid: Option<u32>, deadline: Instant) -> (Vec<Text>, Vec<String>) {
    let Some(pid) = pid else {
        let log = journal("podwire", deadline).await;
        return (vec![text("agent/log.txt", log)], Vec::new());
    };
    let mut secrets = Vec::new();
    let settings = settings(&mut secrets, pid, deadline).await;
    let log = match settings.as_deref().ok().and_then(log_file) {
        // It is said to be there.
        Some(path) => tail(&path).map_err(|lack| match lack {
            Lack::Absent(why) | Lack::Missing(why) => Lack::Missing(why),
        }),
        None => journal("podwire", deadline).await,
    };
    let settings = text("agent/config.txt", settings.map_err(Lack::Missing));
    (vec![settings, text("agent/log.txt", log)], secrets)
}

/// The node role's state, its record of what cleanup undoes, its rules and its log.
pub(super) async fn node_role(directory: &Path, deadline: Instant) -> Vec<Text> {
    let role = match podwire_node::role(directory).await.transpose() {
        Some(Ok(role)) => serde_json::to_string_pretty(&role).map_err(|it| it.to_string()),
        Some(Err(error)) => Err(error.to_string()),
        // It never ran here.
        None => return Vec::new(),
    };
    let rules = run(Command::new("nft").args(["list", "ruleset"]), deadline).await;
    let rules = rules.map_err(|error| Lack::Missing(error.to_string()));
    vec![
        text("node/role.json", role.map_err(Lack::Missing)),
        text("node/journal.txt", read(&directory.join("journal"))),
        text("node/nftables.txt", rules),
        text("node/log.txt", journal("podwire-node", deadline).await),
    ]
}

/// The end of a unit's log. Where there is no such program there are no units: in a container.
async fn journal(unit: &str, deadline: Instant) -> Result<String, Lack> {
    let arguments = ["--lines=5000", "--no-pager", "--quiet", "--unit", unit];
    let said = run(Command::new("journalctl").args(arguments), deadline).await;
    said.map_err(|error| match error {
        RunError::Start { .. } => Lack::Absent(error.to_string()),
        error => Lack::Missing(error.to_string()),
    })
}

/// The logs of the switch and of OVN's node process, which may write elsewhere.
pub(super) fn logs(uses_ovn: bool) -> Vec<Text> {
    let switch = text("openvswitch/log.txt", tail(Path::new(OVS_LOG)));
    let ovn = uses_ovn.then(|| text("ovn/log.txt", tail(Path::new(OVN_LOG))));
    [switch].into_iter().chain(ovn).collect()
}

/// The runtime's network configurations, and the names of its plugins.
pub(super) fn runtime(confs: &Path, plugins: &Path) -> Vec<Text> {
    let listed = |file, directory| {
        let names = names(directory).map(|names| names.join("\n") + "\n");
        text(file, names.map_err(Lack::Missing))
    };
    let mut texts = vec![
        listed("cni/confs.txt", confs),
        listed("cni/plugins.txt", plugins),
    ];
    for name in names(confs).unwrap_or_default() {
        let path = confs.join(&name);
        let is_conf = path
            .metadata()
            .is_ok_and(|it| it.is_file() && it.len() <= CONF);
        if is_conf {
            texts.push(text(&format!("cni/{name}"), read(&path)));
        }
    }
    texts
}

fn text(file: &str, text: Result<String, Lack>) -> Text {
    (file.to_owned(), text)
}

/// The settings, printed by the agent's own program with its arguments and environment.
async fn settings(
    secrets: &mut Vec<String>,
    pid: u32,
    deadline: Instant,
) -> Result<String, String> {
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
            secrets.push(value.to_string_lossy().into_owned());
        }
    }
    let mut command = Command::new(format!("/proc/{pid}/exe"));
    command
        .arg0(arguments.first().map_or(OsStr::new("podwire"), |it| it))
        .args(arguments.iter().skip(1))
        .arg("--print-config")
        .env_clear()
        .envs(environment);
    let said = run(&mut command, deadline).await;
    said.map_err(|error| error.to_string())
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

/// Why a program printed nothing.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("{program}: {source}")]
    Start { program: String, source: io::Error },
    #[error("{program} has not ended within {}", duration::text(*.waited))]
    Late { program: String, waited: Duration },
    #[error("{program}: {said}")]
    Failed { program: String, said: String },
}

async fn run(command: &mut Command, deadline: Instant) -> Result<String, RunError> {
    let program = command.as_std().get_program();
    let program = program.to_string_lossy().into_owned();
    let (began, deadline) = (Instant::now(), within(PATIENCE, deadline));
    let output = command.kill_on_drop(true).stdin(Stdio::null()).output();
    let output = match timeout_at(deadline, output).await {
        Ok(Ok(output)) => output,
        Ok(Err(source)) => return Err(RunError::Start { program, source }),
        Err(_) => {
            let waited = began.elapsed();
            return Err(RunError::Late { program, waited });
        }
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => {
            let said = text(&output.stderr).trim().to_owned();
            Err(RunError::Failed { program, said })
        }
    }
}

fn read(path: &Path) -> Result<String, Lack> {
    let bytes = fs::read(path).map_err(|error| lack(path, &error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The end of a file.
fn tail(path: &Path) -> Result<String, Lack> {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG)))?;
        let mut bytes = Vec::new();
        file.take(LOG).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().map_err(|error| lack(path, &error))
}

/// Not every kernel, container or installation has each file.
fn lack(path: &Path, error: &io::Error) -> Lack {
    let why = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::NotFound => Lack::Absent(why),
        _ => Lack::Missing(why),
    }
}

fn names(directory: &Path) -> Result<Vec<String>, String> {
    let read = fs::read_dir(directory);
    let read = read.map_err(|error| format!("{}: {error}", directory.display()))?;
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = read.flatten().map(name).collect();
    names.sort();
    Ok(names)
}
