//! Bridges of physical networks, each with a spare NIC.

use super::Plan;
use super::conflicts::{Blocks, Conflict};
use crate::EXTRA_GATEWAY;
use crate::items::{Actual, Bridge, Item, LinkUp, NicPort};
use crate::settings::{DataBridge, Settings};

impl Plan {
    /// Adds them. Neither depends on what the NIC has: one that is unplugged leaves its bridge and
    /// the pods' ports there.
    pub(super) fn data_bridges(&mut self, settings: &Settings, actual: &Actual) {
        let pods = actual.switch.bridges.get(&settings.bridge);
        for wanted in &settings.data_bridges {
            self.items.push(Item::Bridge(Bridge {
                name: wanted.name.clone(),
                datapath: pods.map_or(String::new(), |pods| pods.datapath.clone()),
                ..Bridge::default()
            }));
            let kept = kept(wanted, actual);
            let nic = kept.unwrap_or(&wanted.nic);
            // Before it has another controller.
            self.items.push(LinkUp(nic.clone()).into());
            self.items.push(Item::NicPort(NicPort {
                nic: nic.clone(),
                bridge: wanted.name.clone(),
            }));
            let problem = match kept {
                Some(kept) => Some(format!(
                    "{kept} is the NIC of {EXTRA_GATEWAY}: name that, or have `podwire node init` \
                     remove the bridge first, without this setting"
                )),
                None => problem(wanted, settings, actual),
            };
            if let Some(problem) = problem {
                let (setting, value) = &wanted.by;
                let conflict = Conflict::of(settings, setting, value, problem);
                let conflict = conflict.blocking(Blocks::Nic(wanted.nic.clone()));
                self.conflicts.push(conflict);
            }
        }
    }
}

/// The NIC that the second gateway bridge has: it is chosen once, as the first one's.
fn kept<'a>(wanted: &DataBridge, actual: &'a Actual) -> Option<&'a String> {
    let mut nics = actual.switch.nics.iter();
    let kept = nics.find(|(_, seen)| seen.is_ours_in(&wanted.name));
    let kept = kept.map(|(nic, _)| nic);
    kept.filter(|nic| wanted.name == EXTRA_GATEWAY && **nic != wanted.nic)
}

/// Why a NIC can't be taken: the machine is reached by it, or it is a part of something else.
fn problem(wanted: &DataBridge, settings: &Settings, actual: &Actual) -> Option<String> {
    let nic = &wanted.nic;
    let elsewhere = "name a spare one; a NIC with addresses is moved, with all of them, by \
                     --profile bridged";
    if actual.default_links.contains(nic) || settings.interface.as_ref() == Some(nic) {
        return Some(format!("{nic} leads to the default gateway: {elsewhere}"));
    }
    let mut own = actual.addresses.iter();
    if let Some(seen) = own.find(|seen| seen.link == *nic && seen.global) {
        return Some(format!(
            "{nic} has the address {}: {elsewhere}",
            seen.address
        ));
    }
    let master = actual.links.get(nic)?.master?;
    let mut links = actual.links.iter();
    let (master, _) = links.find(|(_, link)| link.index == master)?;
    // Of the kernel's datapath, all ports are parts of this link.
    (master != "ovs-system")
        .then(|| format!("{nic} is a part of {master}: name that, or a spare one"))
}
