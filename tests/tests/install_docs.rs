//! docs/install.md: the commands for a node by hand and for one with the Debian package, each from first to last on a machine of its
//! own. What installs Open vSwitch and what systemd does is stood in for; the socket is held by systemd's own
//! systemd-socket-activate.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use podwire_tests::{agent_binary, plugin_binary};

/// Makes the machine: all that is written goes to an overlay that ends with it.
const MACHINE: &str = r#"
set -euo pipefail
ip link set lo up
mkdir -p target/package
mount -t tmpfs none target/package
mount -t tmpfs none /run
mkdir -p /run/lock /run/netns /run/shipped
mount --make-shared /run
mkdir /run/above
for directory in /etc /opt /usr /var; do
    above=/run/above/${directory//\//-}
    mkdir "$above" "$above/upper" "$above/work"
    mount -t overlay none -o "lowerdir=$directory,upperdir=$above/upper,workdir=$above/work" "$directory"
done
# As on a machine that never had any of it.
for directory in /etc/cni /etc/openvswitch /opt/cni /usr/local /var/lib/openvswitch /var/log/openvswitch; do
    mkdir -p "$directory"
    mount -t tmpfs none "$directory"
done
mkdir /usr/local/bin
strip -o /run/shipped/podwire "$PODWIRE"
cp "$PLUGIN" /run/shipped/podwire-cni
export SHIPPED=/run/shipped DEB_COMPRESSION=none
apt-get() {
    case "$*" in
    *openvswitch*) ;;
    *) command apt-get --quiet=2 "$@" < /dev/null ;;
    esac
}
unit() {
    for directory in /usr/local/lib/systemd/system /usr/lib/systemd/system; do
        [[ ! -e $directory/$1 ]] || { sed -n "s/^$2=//p" "$directory/$1"; return; }
    done
    echo "no unit $1" >&2; return 1
}
start() {
    local program socket
    program=$(unit podwire.service ExecStart) socket=$(unit podwire.socket ListenStream)
    mkdir -p -m 0700 "$(dirname "$socket")"
    systemd-socket-activate --listen "$socket" $program > /run/agent.log 2>&1 &
    agent=$!
    # Its first line; tail ends with the namespace.
    grep -q --max-count 1 'Listening on' < <(tail -n +1 -F /run/agent.log 2>/dev/null)
}
stop() {
    kill "$agent"
    wait "$agent" || true
}
systemctl() {
    case "$*" in
    "enable --now openvswitch-switch") /usr/share/openvswitch/scripts/ovs-ctl start --system-id=random --no-monitor > /run/ovs.log 2>&1 ;;
    "enable --now podwire.socket podwire.service") start ;;
    "restart podwire.service") stop; start ;;
    "disable --now podwire.socket podwire.service") stop ;;
    *) echo "systemctl $*: not known here" >&2; return 1 ;;
    esac
}
"#;

/// What a runtime does at the places that the page leaves to it.
const POD: &str = r#"
call() {
    local conf
    conf=$(sed 's/"type": "podwire-cni"/&, "name": "podwire", "cniVersion": "1.1.0"/' /etc/cni/net.d/10-podwire.conflist |
        tr -d '\n' | sed 's/.*"plugins": \[\(.*\)\].*/\1/')
    CNI_COMMAND=$1 CNI_CONTAINERID=pod CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin \
        /opt/cni/bin/podwire-cni <<< "$conf"
}
"#;

/// The commands of a chapter's console blocks.
fn commands(chapter: &str) -> Vec<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/install.md");
    let page = fs::read_to_string(path).unwrap();
    let (_, rest) = page.split_once(&format!("\n## {chapter}\n")).unwrap();
    let chapter = rest.split("\n## ").next().unwrap();
    let blocks = chapter.split("```console\n").skip(1);
    let blocks = blocks.map(|rest| rest.split_once("```").unwrap().0);
    blocks
        .flat_map(|block| block.lines().filter_map(|line| line.strip_prefix("# ")))
        .map(str::to_owned)
        .collect()
}

/// Runs a chapter; a pod is added once the node is ready.
fn run(chapter: &str) -> String {
    let mut script = format!("{MACHINE}{POD}");
    for command in commands(chapter) {
        let quoted = command.replace('\'', r"'\''");
        script.push_str(&format!("printf '%s\\n' '# {quoted}'\n{command}\n"));
        if command == "podwire probe ready" {
            script.push_str("ip netns add pod\ncall ADD\n");
        }
    }
    script.push_str(
        "echo '# left'\nfind /etc/cni /opt/cni -name '*podwire*'\nip -brief link show type veth\n",
    );
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
        .current_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".."))
        .env("PODWIRE", agent_binary().unwrap())
        .env("PLUGIN", plugin_binary().unwrap())
        .env_remove("MAKEFLAGS")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(
        run.status.success(),
        "{stdout}\n{}",
        String::from_utf8_lossy(&run.stderr)
    );
    stdout
}

fn assert_wired_and_removed(stdout: &str) {
    let printed_by = |beginning: &str| {
        let (_, after) = stdout.rsplit_once(&format!("# {beginning}")).unwrap();
        after.split("\n# ").next().unwrap().to_owned()
    };
    assert!(
        printed_by("podwire install").contains("10-podwire.conflist installed"),
        "{stdout}"
    );
    assert!(
        printed_by("podwire probe ready").contains("10.186.0.2/22"),
        "{stdout}"
    );
    let gone = printed_by("podwire uninstall --pods");
    assert!(gone.contains("ports of 1 pod removed"), "{stdout}");
    assert_eq!(printed_by("left").trim(), "", "{stdout}");
}

#[test]
fn a_node_by_hand_as_it_is_written() {
    assert_wired_and_removed(&run("containerd by hand"));
}

#[test]
fn a_node_with_the_debian_package_as_it_is_written() {
    assert_wired_and_removed(&run("Debian package"));
}
