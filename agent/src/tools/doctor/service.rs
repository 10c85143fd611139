//! The commands that start and restart daemons on this node.

use std::path::Path;

/// Where systemd as the node's init is known by (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

/// The command that starts the agent.
pub(in super::super) fn start_agent() -> String {
    if is_systemd() {
        "systemctl start podwire".to_owned()
    } else {
        "podwire agent &".to_owned()
    }
}

/// The command that restarts the agent, which then looks through what is there.
pub(super) fn restart_agent() -> String {
    "systemctl restart podwire".to_owned()
}

/// The command that starts Open vSwitch where it does not run, and replaces what hangs.
pub(super) fn restart_switch() -> String {
    "systemctl restart openvswitch-switch".to_owned()
}

/// The command that starts ovn-controller.
pub(super) fn restart_controller() -> String {
    "systemctl restart ovn-controller".to_owned()
}

fn is_systemd() -> bool {
    Path::new(SYSTEMD).exists()
}
