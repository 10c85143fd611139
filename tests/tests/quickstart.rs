//! docs/quickstart.md, run from its first command to its last on a machine of its own: what installs and what the service
//! manager does is stood in for, all else is as the page has it.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use podwire_tests::{agent_binary, hex, plugin_binary};

/// Makes the machine: namespaces' contents, and stand-ins for what a test can't do to the machine it runs on.
const MACHINE: &str = r#"
set -euo pipefail
ip link set lo up
mount -t tmpfs none /run
mkdir -p /run/lock /run/netns
mount --make-shared /run
mkdir /run/above
for directory in /etc /opt /srv /usr/local /var; do
    above=/run/above/${directory//\//-}
    mkdir "$above" "$above/upper" "$above/work"
    mount -t overlay none -o "lowerdir=$directory,upperdir=$above/upper,workdir=$above/work" "$directory"
done
# As on a machine that never had any of it.
for directory in /etc/cni /etc/openvswitch /opt/cni /usr/local/bin /var/lib/containerd /var/lib/openvswitch /var/log; do
    mkdir -p "$directory"
    mount -t tmpfs none "$directory"
done
apt-get() { :; }
make() {
    mkdir -p /opt/cni/bin
    cp "$PODWIRE" /usr/local/bin/podwire
    cp "$PLUGIN" /opt/cni/bin/podwire-cni
}
systemctl() {
    /usr/share/openvswitch/scripts/ovs-ctl start --system-id=random --no-monitor > /run/ovs.log 2>&1
    containerd > /run/containerd.log 2>&1 &
    # The first line that says that it serves; tail ends with the namespace.
    grep -q --max-count 1 'containerd successfully booted' < <(tail -n +1 -F /run/containerd.log 2>/dev/null)
}
"#;

/// The commands of the page's console blocks.
fn commands() -> Vec<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/quickstart.md");
    let page = fs::read_to_string(path).unwrap();
    let blocks = page.split("```console\n").skip(1);
    let blocks = blocks.map(|rest| rest.split_once("```").unwrap().0);
    blocks
        .flat_map(|block| block.lines().filter_map(|line| line.strip_prefix("# ")))
        .map(str::to_owned)
        .collect()
}

/// The cgroups that runc made for this run's containers. It leaves the parents; dropping this removes them.
struct Cgroups(String);

impl Drop for Cgroups {
    fn drop(&mut self) {
        let root = Path::new("/sys/fs/cgroup");
        let hierarchies = fs::read_dir(root).into_iter().flatten().flatten();
        let hierarchies = hierarchies.map(|hierarchy| hierarchy.path());
        for hierarchy in hierarchies.chain([root.to_owned()]) {
            remove(&hierarchy.join(&self.0));
        }
    }
}

fn remove(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    // A hierarchy without it is the usual case.
    let _ = fs::remove_dir(cgroup);
}

#[test]
fn the_quick_start_works_as_it_is_written() {
    let commands = commands();
    assert!(commands.len() > 15, "{commands:?}");
    let mut script = MACHINE.to_owned();
    for command in &commands {
        let quoted = command.replace('\'', r"'\''");
        script.push_str(&format!("printf '%s\\n' '# {quoted}'\n{command}\n"));
    }
    let cgroups = Cgroups(format!("quickstart-{}", hex(8)));
    let run = Command::new("unshare")
        .args([
            "--mount",
            "--net",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
            &script,
        ])
        .env("PODWIRE", agent_binary().unwrap())
        .env("PLUGIN", plugin_binary().unwrap())
        // The cgroups of its containers lie below one of this name, and the machine's cgroups are everybody's.
        .env("CONTAINERD_NAMESPACE", &cgroups.0)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(run.status.success(), "{stdout}\n{stderr}");
    let printed_by = |beginning: &str| {
        let (_, after) = stdout.split_once(&format!("# {beginning}")).unwrap();
        let (_, printed) = after.split_once('\n').unwrap();
        printed.split("\n# ").next().unwrap().to_owned()
    };
    assert!(
        printed_by("ctr task exec --exec-id look").contains("inet 10.186.0.2/22"),
        "{stdout}"
    );
    assert!(
        printed_by("ctr task exec --exec-id ping").contains("1 packets received"),
        "{stdout}"
    );
    assert!(
        printed_by("ctr run --cni --rm").contains("1 packets received"),
        "{stdout}"
    );
    let log = printed_by("cat /var/log/podwire.log");
    assert_eq!(log.matches("\"ADD ok\"").count(), 3, "{log}");
    assert_eq!(log.matches("\"DEL ok\"").count(), 1, "{log}");
    assert!(stdout.contains("\n# EOF\n"), "{stdout}");
    assert!(
        stdout.trim_end().ends_with("{\"ports\":[]}"),
        "{stdout}\n{stderr}"
    );
}
