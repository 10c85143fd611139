//! A port's state, the number of ports in each state, and the database client's counters.

use podwire_daemon::words;
use podwire_ovs::client::{State, Stats};
use podwire_ovs::vswitch::Interface;
use serde::{Deserialize, Serialize};

use super::Ports;
use crate::config::Wait;
use crate::plan::{AttachmentKey, ids};

words! {
    /// A port's state, in the order in which it passes through them. A failed one may still come
    /// up.
    #[derive(PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
    #[serde(rename_all = "kebab-case")]
    pub enum PortState {
        /// ovs-vswitchd has not taken it up
        AwaitsOfport = "awaits-ofport",
        /// ovn-controller has not installed its flows, which an ADD waits for
        AwaitsOvn = "awaits-ovn",
        /// All that an ADD waits for has come
        Up = "up",
        /// The switch can't use its link
        Failed = "failed",
    }
}

impl PortState {
    pub(super) fn of(ofport: Option<i64>, is_refused: bool, installed: bool, wait: Wait) -> Self {
        match ofport {
            _ if is_refused => Self::Failed,
            Some(ofport) if ofport < 0 => Self::Failed,
            None | Some(0) => Self::AwaitsOfport,
            Some(_) if wait == Wait::OvnInstalled && !installed => Self::AwaitsOvn,
            Some(_) => Self::Up,
        }
    }
}

impl Ports {
    /// The number of podwire's ports in each state, judged by their rows alone and not by the
    /// kernel's links.
    pub fn states(&self) -> Vec<(&'static str, usize)> {
        let mut counts = PortState::ALL.map(|state| (state.word(), 0));
        self.client.read(|db| {
            let is_ours =
                |it: &Interface<'_>| AttachmentKey::of_row(|id| it.external_id(id)).is_some();
            for interface in db.interfaces().filter(is_ours) {
                let refused = refusal(&interface).is_some();
                // On another bridge, nothing of OVN is waited for.
                let is_elsewhere = interface.external_id(ids::BRIDGE).is_some();
                let installed = is_elsewhere || is_installed(&interface);
                let state = PortState::of(interface.ofport(), refused, installed, self.ovn.wait);
                counts[state as usize].1 += 1;
            }
        });
        counts.to_vec()
    }

    /// Whether any of podwire's ports is up.
    pub fn any_is_up(&self) -> bool {
        self.states()[PortState::Up as usize].1 > 0
    }

    /// The client's counters since its start, and whether the replica is current.
    pub fn client_stats(&self) -> (Stats, bool) {
        (self.client.stats(), self.client.state() == State::Synced)
    }
}

/// Why ovs-vswitchd can't use a port's link.
pub(super) fn refusal<'a>(interface: &Interface<'a>) -> Option<&'a str> {
    interface.error().filter(|text| !text.is_empty())
}

pub(super) fn is_installed(interface: &Interface<'_>) -> bool {
    says_installed(interface.external_id(ids::OVN_INSTALLED))
}

/// ovn-controller writes this key, as text, once the switch has confirmed the port's flows
/// (`if_status_mgr` in controller/if-status.c).
pub(super) fn says_installed(value: Option<&str>) -> bool {
    value == Some("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_up_when_what_an_add_waits_for_has_come() {
        use PortState::{AwaitsOfport, AwaitsOvn, Failed, Up};
        for (ofport, refused, installed, in_plain_mode, with_ovn) in [
            (None, false, false, AwaitsOfport, AwaitsOfport),
            (Some(3), false, false, Up, AwaitsOvn),
            (Some(3), false, true, Up, Up),
            (Some(-1), false, true, Failed, Failed),
            (None, true, false, Failed, Failed),
        ] {
            let state = |wait| PortState::of(ofport, refused, installed, wait);
            assert_eq!(state(Wait::Ofport), in_plain_mode, "{ofport:?}");
            assert_eq!(state(Wait::OvnInstalled), with_ovn, "{ofport:?}");
        }
    }

    #[test]
    fn a_state_has_one_name_everywhere() {
        use clap::ValueEnum as _;
        for (place, state) in PortState::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, place);
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
            assert_eq!(PortState::from_str(state.word(), false), Ok(state));
        }
    }
}
