//! docs/quickstart.md, run from its first command to its last on a machine of its own: what
//! installs and what the service manager does is stood in for, all else is as the page has it.

use std::fs;
use std::path::Path;

use podwire_tests::hex;
use podwire_tests::walkthrough::{self, Walkthrough};

const PAGE: &str = include_str!("../../docs/quickstart.md");
const BY_HAND: &str = include_str!("../../docs/by-hand.md");

/// Makes the machine: what it lacks, and stand-ins for what a test can't do to the machine it runs
/// on.
const MACHINE: &str = r#"
written_to_an_overlay /etc /opt /srv /usr/local /var
empty /etc/cni /etc/openvswitch /opt/cni /usr/local/bin /var/lib/containerd /var/lib/openvswitch /var/log
apt-get() { :; }
make() {
    mkdir -p /opt/cni/bin
    cp "$PODWIRE" /usr/local/bin/podwire
    cp "$PLUGIN" /opt/cni/bin/podwire-cni
}
systemctl() {
    /usr/share/openvswitch/scripts/ovs-ctl start --system-id=random --no-monitor > /run/ovs.log 2>&1
    [[ " $* " == *" containerd "* ]] || return 0
    containerd > /run/containerd.log 2>&1 &
    # The first line that says that it serves; tail ends with the namespace.
    grep -q --max-count 1 'containerd successfully booted' < <(tail -n +1 -F /run/containerd.log 2>/dev/null)
}
"#;

/// The cgroups that runc made for this run's containers. It leaves the parents; dropping this
/// removes them.
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
    is_followed_after(&[]);
}

/// What `make cnitool` builds is there where it could be built.
#[test]
fn the_quick_start_works_after_the_session_by_hand_which_cleans_up() {
    let cnitool = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/cnitool");
    if Path::new(cnitool).exists() {
        is_followed_after(&walkthrough::commands(BY_HAND));
    }
}

/// Follows these commands and then the quick start's on one machine.
fn is_followed_after(before: &[String]) {
    let commands = walkthrough::commands(PAGE);
    assert!(commands.len() > 15, "{commands:?}");
    let cgroups = Cgroups(format!("quickstart-{}", hex(8)));
    // The cgroups of its containers lie below one of this name, and the machine's cgroups are
    // everybody's.
    let mut walkthrough = Walkthrough::on(MACHINE).variable("CONTAINERD_NAMESPACE", &cgroups.0);
    for command in before.iter().chain(&commands) {
        walkthrough.follow(command);
    }
    let transcript = walkthrough.run().unwrap();
    let (stdout, stderr) = (&transcript.stdout, &transcript.stderr);
    let printed_by = |beginning: &str| transcript.printed_by(beginning).unwrap();
    // Under load ctr may end before it has copied what `task exec` printed; the session ends where
    // one of them fails.
    assert!(
        stdout.contains("\"addresses\":[\"10.186.0.2/22\""),
        "{stdout}"
    );
    assert!(
        printed_by("ctr run --cni --rm").contains("1 packets received"),
        "{stdout}"
    );
    let log = printed_by("cat /var/log/podwire.log");
    assert_eq!(log.matches("\"ADD ok\"").count(), 3, "{log}");
    assert_eq!(log.matches("\"DEL ok\"").count(), 1, "{log}");
    assert!(stdout.contains("\npodwire_ready 1"), "{stdout}");
    assert!(
        stdout.trim_end().ends_with("{\"ports\":[]}"),
        "{stdout}\n{stderr}"
    );
}
