//! The gateway bridge of the profile *bridged*: the NIC in it, and everything of the NIC on it.

use super::Plan;
use crate::actual::DATABASE_UNIT;
use crate::items::{Actual, BOOT_FILE, Bridge, File, Item, LinkUp, Sysctl, Uplink};
use crate::moved::{Moved, Phase};
use crate::settings::Settings;
use crate::{FILE_MARK, GATEWAY};

/// The NIC of the gateway bridge: the one that is in it or was chosen before, or the default
/// route's.
///
/// # Errors
/// There is none, or the settings name another one, as text.
pub(super) fn nic(settings: &Settings, actual: &Actual) -> Result<String, String> {
    let moved = actual.moved.as_ref().filter(|moved| moved.is_there());
    let seen = actual.switch.uplink.as_ref();
    let kept = moved.map(|moved| &moved.nic).or(seen.map(|seen| &seen.nic));
    match (kept, &settings.interface) {
        (Some(kept), Some(named)) if kept != named => Err(format!(
            "--interface {named}: {kept} is the NIC of {GATEWAY}: name that, or run `podwire node \
             rollback` first"
        )),
        (Some(kept), _) => Ok(kept.clone()),
        (None, Some(named)) => Ok(named.clone()),
        (None, None) => match &actual.default_link {
            Some(link) if link != GATEWAY => Ok(link.clone()),
            _ => Err(
                "there is no default route to find the NIC by: name it with --interface".to_owned(),
            ),
        },
    }
}

/// podwire's file beside the unit that starts Open vSwitch's database: at the next boot the NIC has
/// its addresses itself, so it must not be in the bridge when ovs-vswitchd starts.
pub(crate) fn boot_file() -> String {
    format!("/etc/systemd/system/{DATABASE_UNIT}.d/{BOOT_FILE}")
}

/// Takes the NIC out of the bridge after a boot; a restart of the database in the boot in which it
/// was moved leaves it there.
fn at_boot(nic: &str, boot: &str) -> String {
    format!(
        "{FILE_MARK}\n[Service]\nExecStartPost=-/bin/sh -c 'grep -q {boot} \
         /proc/sys/kernel/random/boot_id || exec ovs-vsctl --no-wait --timeout=10 -- --if-exists \
         del-port {GATEWAY} {nic}'\n"
    )
}

impl Plan {
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
        let link = actual.links.get(&nic).ok_or_else(|| {
            let links: Vec<&str> = actual.links.keys().map(String::as_str).collect();
            format!(
                "--interface {nic}: there is no such link; the links are {}",
                links.join(", ")
            )
        })?;
        let pods = actual.switch.bridges.get(&settings.bridge);
        let bridge = Bridge {
            name: GATEWAY.to_owned(),
            datapath: pods.map_or(String::new(), |pods| pods.datapath.clone()),
            mac: link.mac.clone(),
            mtu: link.mtu,
            nic: Some(nic.clone()),
        };
        let uplink = Uplink {
            nic: nic.clone(),
            bridge: GATEWAY.to_owned(),
            moves: settings.moves,
        };
        let mut first = Vec::new();
        // One that was moved back stays on its own, until a person has it moved again.
        let is_kept = actual.moved.as_ref().is_none_or(Moved::is_there);
        if is_kept {
            first.push(Item::Bridge(bridge));
        }
        if is_kept && actual.has_ipv6 {
            // It gets the NIC's addresses, and none of its own.
            first.push(Item::Sysctl(Sysctl {
                path: format!("net/ipv6/conf/{GATEWAY}/addr_gen_mode"),
                value: "1".to_owned(),
            }));
        }
        if is_kept && actual.has_ipv6 {
            // A NIC that router advertisements configure is refused.
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
                text: at_boot(&nic, &actual.boot),
            }));
        }
        first.push(Item::Uplink(uplink));
        self.items.splice(0..0, first);
        self.verdict[0] = match actual.moved.as_ref().map(|moved| &moved.phase) {
            Some(Phase::RolledBack { why }) => {
                format!("profile bridged: {nic} was moved back: {why}")
            }
            _ => format!(
                "profile bridged: {nic} is in {GATEWAY}, which has its addresses, routes and rules"
            ),
        };
        Ok(())
    }
}
