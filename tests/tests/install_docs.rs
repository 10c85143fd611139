//! docs/install.md: the commands for a node by hand and for one with the Debian package, each from
//! first to last on a machine of its own. What installs Open vSwitch and what systemd does is stood
//! in for; the socket is held by systemd's own systemd-socket-activate.

use podwire_tests::walkthrough::{self, Transcript, Walkthrough};

const PAGE: &str = include_str!("../../docs/install.md");

/// Makes the machine: all that is written goes to an overlay that ends with it.
const MACHINE: &str = r#"
empty target/package
mkdir /run/shipped
written_to_an_overlay /etc /opt /usr /var
empty /etc/cni /etc/openvswitch /opt/cni /usr/local /var/lib/openvswitch /var/log/openvswitch
mkdir /usr/local/bin
strip -o /run/shipped/podwire "$PODWIRE"
strip -o /run/shipped/podwire-controller "$CONTROLLER"
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

/// Runs a chapter; a pod is added once the node is ready.
fn run(chapter: &str) -> Transcript {
    let (_, rest) = PAGE.split_once(&format!("\n## {chapter}\n")).unwrap();
    let chapter = rest.split("\n## ").next().unwrap();
    let mut walkthrough = Walkthrough::on(&format!("{MACHINE}{POD}"));
    for command in walkthrough::commands(chapter) {
        walkthrough.follow(&command);
        if command == "podwire probe ready" {
            walkthrough.aside("ip netns add pod\ncall ADD");
        }
    }
    walkthrough.aside(
        "echo '# left'\nfind /etc/cni /opt/cni -name '*podwire*'\nip -brief link show type veth",
    );
    walkthrough.run().unwrap()
}

fn assert_wired_and_removed(transcript: &Transcript) {
    let stdout = &transcript.stdout;
    let printed_by = |beginning: &str| transcript.printed_by(beginning).unwrap();
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
