//! The state of items in Open vSwitch's databases.

use podwire_ovs::client::TlsKeys;

use super::{Look, State};
use crate::actual::PortSeen;
use crate::plan::{Bridge, Claim, Port, Tunnel};
use crate::{LINK, TUNNEL};

impl Look<'_> {
    pub(super) fn key(&self, key: &str, value: &str, claim: Claim) -> State {
        if self.actual.switch.root.is_none() {
            let awaited = "the database has no row of Open_vSwitch: start Open vSwitch by its own \
                           script, or run ovs-vsctl init";
            return State::Waits(awaited.to_owned());
        }
        let ours = self.actual.switch.owned.contains_key(key);
        match self.actual.key(key) {
            None => State::Missing,
            Some(seen) if seen == value => State::Well { ours },
            Some(seen) if ours || self.take_over => State::Differs(seen.to_owned()),
            Some(seen) => match claim {
                Claim::Yield => State::Well { ours: false },
                Claim::Replace => State::Differs(seen.to_owned()),
                Claim::Refuse => State::Foreign(format!(
                    "somebody else set it to {seen}: --take-over replaces it until cleanup"
                )),
            },
        }
    }

    pub(super) fn tunnel_port(&self, chassis: &str, wanted: u16) -> State {
        let Some(ends) = &self.actual.switch.ends else {
            return State::Waits("the southbound database, which does not answer".to_owned());
        };
        let mut own = ends.iter().filter(|end| end.chassis == chassis).peekable();
        if own.peek().is_none() {
            let awaited = format!("chassis {chassis}, as which ovn-controller joins");
            return State::Waits(awaited);
        }
        let wanted = wanted.to_string();
        match own.find(|end| end.port.as_deref() != Some(&wanted)) {
            None => State::Well { ours: true },
            Some(end) => State::Differs(end.port.as_deref().unwrap_or("6081").to_owned()),
        }
    }

    pub(super) fn port(&self, wanted: &Port) -> State {
        let Some(seen) = &self.actual.switch.port else {
            return match self.actual.switch.bridges.contains_key(&wanted.bridge) {
                true => State::Missing,
                false => State::Waits(format!(
                    "bridge {}, which ovn-controller creates: is ovn-controller running?",
                    wanted.bridge
                )),
            };
        };
        let bridge = seen.bridge.as_ref().map(|(name, _)| name.as_str());
        if bridge != Some(&wanted.bridge) {
            let bridge = bridge.unwrap_or("no bridge");
            return State::Foreign(format!(
                "it is on {bridge}: remove it there (ovs-vsctl del-port {bridge} {LINK})"
            ));
        }
        if seen.mark.is_none() && !self.take_over {
            let whose = match seen.iface_id.as_deref() == Some(&wanted.iface_id) {
                true => "ovn-kubernetes created it: --take-over adopts it until cleanup".to_owned(),
                false => format!(
                    "it bears no mark of podwire: remove it (ovs-vsctl del-port {LINK}), or adopt \
                     it by --take-over"
                ),
            };
            return State::Foreign(whose);
        }
        state_of(differences(seen, wanted))
    }

    pub(super) fn bridge(&self, wanted: &Bridge) -> State {
        match self.actual.switch.bridges.get(&wanted.name) {
            None if wanted.datapath.is_empty() => {
                State::Waits("the pods' bridge, which the agent creates: is it running?".to_owned())
            }
            None => State::Missing,
            Some(seen) if !seen.ours => State::Foreign(format!(
                "it bears no mark of podwire: remove it (ovs-vsctl del-br {})",
                wanted.name
            )),
            Some(seen) => {
                let mut differences = Vec::new();
                if seen.mac.as_ref() != Some(&wanted.mac) {
                    differences.push(format!("MAC {}", seen.mac.as_deref().unwrap_or("none")));
                }
                if seen.mtu_request != Some(wanted.mtu) {
                    differences.push(format!("MTU {:?}", seen.mtu_request.unwrap_or_default()));
                }
                state_of(differences)
            }
        }
    }

    pub(super) fn tunnel(&self, wanted: &Tunnel) -> State {
        let switch = &self.actual.switch;
        match switch.tunnels.get(&wanted.name) {
            None if !switch.bridges.contains_key(TUNNEL) => {
                State::Waits(format!("bridge {TUNNEL}"))
            }
            None => State::Missing,
            Some(seen) => {
                let mut differences = Vec::new();
                if seen.remote.as_deref() != Some(&*wanted.remote.to_string()) {
                    differences.push(format!(
                        "to {}",
                        seen.remote.as_deref().unwrap_or("nowhere")
                    ));
                }
                if seen.node != wanted.node {
                    differences.push(format!("of node {}", seen.node));
                }
                if !seen.protected {
                    differences.push("not protected".to_owned());
                }
                state_of(differences)
            }
        }
    }

    pub(super) fn ssl(&self, wanted: &TlsKeys) -> State {
        let switch = &self.actual.switch;
        let Some(seen) = &switch.ssl else {
            return match switch.root {
                Some(_) => State::Missing,
                None => State::Waits("the database's row of Open_vSwitch".to_owned()),
            };
        };
        let key = seen.keys.private_key.display();
        match seen.keys == *wanted {
            true => State::Well { ours: seen.ours },
            false if seen.ours => State::Differs(key.to_string()),
            false => State::Foreign(format!(
                "somebody else set {key}: omit podwire's keys, or remove the others (ovs-vsctl \
                 del-ssl)"
            )),
        }
    }
}

fn state_of(differences: Vec<String>) -> State {
    match differences.is_empty() {
        true => State::Well { ours: true },
        false => State::Differs(differences.join(", ")),
    }
}

fn differences(seen: &PortSeen, wanted: &Port) -> Vec<String> {
    let mut differences = Vec::new();
    let mut compare = |what: &str, seen: Option<String>, wanted: String| {
        if seen.as_ref() != Some(&wanted) {
            differences.push(format!(
                "{what} {}",
                seen.unwrap_or_else(|| "none".to_owned())
            ));
        }
    };
    compare("type", Some(seen.kind.clone()), "internal".to_owned());
    compare("iface-id", seen.iface_id.clone(), wanted.iface_id.clone());
    compare("MAC", seen.mac.clone(), wanted.mac.clone());
    let mtu = seen.mtu_request.map(|mtu| mtu.to_string());
    compare("MTU", mtu, wanted.mtu.to_string());
    if seen.mark.is_none() {
        differences.push("without our mark".to_owned());
    }
    differences
}
