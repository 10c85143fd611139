//! The gateway bridge of the profile *bridged*: the NIC in it, and everything of the NIC on it.

use std::path::Path;

use super::Plan;
use crate::actual::DATABASE_UNIT;
use crate::items::{
    Actual, Adopted, BOOT_FILE, Bridge, Claim, File, Item, Key, LinkUp, Sysctl, Uplink,
};
use crate::manager::Manager;
use crate::moved::{Moved, Phase};
use crate::settings::Settings;
use crate::{FILE_MARK, GATEWAY, MAPPING};

/// The NIC of the gateway bridge: the one that is in it or was chosen before, or the default
/// route's.
///
/// # Errors
/// There is none, or the settings name another one, as text.
pub(super) fn nic(settings: &Settings, actual: &Actual) -> Result<String, String> {
    let moved = actual.moved.as_ref().filter(|moved| moved.is_there());
    let seen = actual.switch.uplink.as_ref();
    let kept = moved.map(|moved| &moved.nic).or(seen.map(|seen| &seen.nic));
    let hints = &settings.hints;
    let flag = settings.interface.as_ref().map(|nic| ("--interface", nic));
    let file = hints.named.as_ref().map(|(path, nic)| (*path, nic));
    let named = flag.or(file);
    if let Some(nic) = kept {
        return match named {
            Some((by, other)) if other != nic => Err(format!(
                "{by} {other}: {nic} is the NIC of {GATEWAY}: name that, or run `podwire node \
                 rollback` first"
            )),
            _ => Ok(nic.clone()),
        };
    }
    let has_default = |nic: &String| actual.default_links.contains(nic);
    let hint = hints
        .hint
        .as_ref()
        .map(|(_, nic)| nic)
        .filter(|nic| has_default(nic));
    let default = actual.default_link.as_ref().filter(|link| *link != GATEWAY);
    let Some(nic) = named.map(|(_, nic)| nic).or(hint).or(default) else {
        return Err(
            "there is no default route to find the NIC by: name it with --interface".to_owned(),
        );
    };
    match &hints.extra {
        Some((path, extra)) if extra == nic => Err(format!(
            "{path} has {nic} for a second bridge, but the NIC of {GATEWAY} would be {nic}: name \
             another one with --interface"
        )),
        _ => Ok(nic.clone()),
    }
}

/// podwire's file beside the unit that starts Open vSwitch's database: at the next boot the NIC has
/// its addresses itself, so it must not be in the bridge when ovs-vswitchd starts.
pub(crate) fn boot_file() -> String {
    format!("/etc/systemd/system/{DATABASE_UNIT}.d/{BOOT_FILE}")
}

/// Takes the NIC out of the bridge after a boot, which has removed the record of its move; a
/// restart of the database in the boot in which it was moved leaves it there. The text is the same
/// in every boot: systemd goes by the one that it has read when the machine started.
fn at_boot(nic: &str, record: &Path) -> String {
    format!(
        "{FILE_MARK}\n[Service]\nExecStartPost=-/bin/sh -c '[ -e {} ] || exec ovs-vsctl --no-wait \
         --timeout=10 -- --if-exists del-port {GATEWAY} {nic}'\n",
        record.display()
    )
}

/// The physical network of the gateway bridge, as ovn-kubernetes names it.
const NETWORK: &str = "physnet";

/// The entry of the bridge mappings by which ovn-controller connects the bridge to OVN, with patch
/// ports for the network's logical ports.
fn mapping(settings: &Settings) -> Option<Item> {
    let is_set = settings.bridge_mappings.contains_key(NETWORK);
    let mapping = Key {
        key: format!("{MAPPING}{NETWORK}"),
        value: GATEWAY.to_owned(),
        claim: Claim::Refuse,
    };
    (!is_set).then_some(Item::Key(mapping))
}

impl Plan {
    /// Adds the operator's bridge, which is not changed.
    ///
    /// # Errors
    /// It is podwire's own, which would be removed, as text.
    pub(super) fn adopt(&mut self, settings: &Settings, actual: &Actual) -> Result<(), String> {
        if let Some(own) = &actual.switch.uplink {
            return Err(format!(
                "--profile adopt: {GATEWAY} is not the operator's: podwire made it for {}, with \
                 the profile bridged. Use that one, or run `podwire node rollback` and `podwire \
                 node cleanup` first",
                own.nic
            ));
        }
        let adopted = Adopted {
            bridge: GATEWAY.to_owned(),
            pods: settings.bridge.clone(),
        };
        self.items.insert(0, Item::Adopted(adopted));
        self.items.extend(mapping(settings));
        self.verdict[0] = format!("profile adopt: {GATEWAY} is the operator's, and not changed");
        Ok(())
    }

    /// Adds the bridge and the NIC in it, before everything else.
    ///
    /// # Errors
    /// What is missing, as text.
    pub(super) fn bridge_nic(
        &mut self,
        settings: &Settings,
        actual: &Actual,
    ) -> Result<(), String> {
        let nic = nic(settings, actual)?;
        let link = actual.links.get(&nic);
        let pods = actual.switch.bridges.get(&settings.bridge);
        let there = actual.switch.bridges.get(GATEWAY);
        // Without the NIC, the bridge stays as it is.
        let mac = link.map(|link| &link.mac);
        let mac = mac.or(there.and_then(|bridge| bridge.mac.as_ref()));
        let mtu = link.map(|link| link.mtu);
        let mtu = mtu.or(there.and_then(|bridge| bridge.mtu_request));
        let bridge = Bridge {
            name: GATEWAY.to_owned(),
            datapath: pods.map_or(String::new(), |pods| pods.datapath.clone()),
            mac: mac.cloned().unwrap_or_default(),
            mtu: mtu.unwrap_or_default(),
            nic: Some(nic.clone()),
        };
        // What was confirmed in an earlier boot is made again in this one; once, since then there
        // is a record.
        let seen = actual.switch.uplink.as_ref();
        let again = seen.is_some_and(|seen| seen.confirmed) && actual.moved.is_none();
        // Not while somebody still configures it.
        let held = actual.held.get(&nic).filter(|_| again && !settings.moves);
        let held = held.filter(|_| !actual.nic_is_settled);
        let uplink = Uplink {
            nic: nic.clone(),
            bridge: GATEWAY.to_owned(),
            moves: settings.moves || again,
            lacks: seen
                .zip(held)
                .map_or_else(Vec::new, |(seen, held)| seen.lacks(held)),
        };
        let mut first = Vec::new();
        // One that was moved back stays on its own, until a person has it moved again.
        let is_kept = actual.moved.as_ref().is_none_or(Moved::is_there);
        let is_kept = is_kept && (link.is_some() || there.is_some());
        if is_kept {
            first.push(Item::Bridge(bridge));
        }
        // A network manager configures the bridge as it did the NIC.
        let manager = actual.managed.get(&nic).map(Manager::name);
        let manager = manager.or(actual.tells.name());
        if is_kept && actual.has_ipv6 && manager.is_none() {
            // It gets the NIC's addresses, and none of its own.
            first.push(Item::Sysctl(Sysctl {
                path: format!("net/ipv6/conf/{GATEWAY}/addr_gen_mode"),
                value: "1".to_owned(),
            }));
        }
        if is_kept && actual.has_ipv6 {
            // The kernel does not follow them: a NIC of which it does is refused, and a network
            // manager does so itself.
            let path = format!("net/ipv6/conf/{GATEWAY}/accept_ra");
            let is_other = |item: &Item| !matches!(item, Item::Sysctl(it) if it.path == path);
            self.items.retain(is_other);
            let value = "0".to_owned();
            first.push(Item::Sysctl(Sysctl { path, value }));
        }
        if is_kept {
            first.push(Item::LinkUp(LinkUp(GATEWAY.to_owned())));
        }
        if actual.units.contains_key(DATABASE_UNIT) {
            first.push(Item::File(File {
                path: boot_file(),
                text: at_boot(&nic, &actual.record),
            }));
        }
        first.push(Item::Uplink(uplink));
        self.items.splice(0..0, first);
        self.items.extend(mapping(settings).filter(|_| is_kept));
        let recorded = actual.moved.as_ref();
        self.verdict[0] = match recorded.map(|moved| &moved.phase) {
            Some(Phase::RolledBack { why }) => {
                format!("profile bridged: {nic} was moved back: {why}")
            }
            _ if link.is_none() => format!("profile bridged: {nic} is missing"),
            _ => format!(
                "profile bridged: {nic} is in {GATEWAY}, which has its addresses, routes and \
                 rules{}",
                manager.map_or_else(String::new, |name| format!("; {name} configures it"))
            ),
        };
        self.verdict.extend(recorded.and_then(Moved::unconfirmed));
        Ok(())
    }
}
