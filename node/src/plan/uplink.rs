//! The link to the other nodes: which one it is, and what follows from it.

use std::net::IpAddr;

use super::bridged;
use super::conflicts::{Blocks, Conflict};
use crate::items::{Actual, ObservedUplink};
use crate::moved::Moved;
use crate::settings::{Settings, least_mtu};
use crate::{LINK, TUNNEL};

/// The link to the other nodes.
pub(super) struct Uplink {
    pub(super) link: String,
    /// The NIC of the gateway bridge, while that is not in it and nobody moves it.
    pub(super) nic: Option<String>,
    /// The link that has its addresses, or is to have them: that one until it is in the bridge.
    bearer: String,
    /// Of one that is missing, what is left of it for tunnels' content.
    mtu: u32,
    /// Where tunnels end, if anybody knows.
    pub(super) primary: Option<IpAddr>,
    /// Why it is not there.
    pub(super) missing: Option<Conflict>,
}

impl Uplink {
    /// That it has no address for tunnels yet; None if it is missing.
    ///
    /// # Errors
    /// The same, as text, of a machine that nothing was set up on.
    pub(super) fn lacks_address(
        &self,
        settings: &Settings,
        actual: &Actual,
    ) -> Result<Option<Conflict>, String> {
        if self.missing.is_some() {
            return Ok(None);
        }
        let link = &self.bearer;
        let problem = "has no address for tunnels: give it one, or name one by --encap-ip";
        // init waits for a NIC that is to be moved.
        if !actual.switch.ports.contains_key(LINK) && settings.gateway().is_none() {
            return Err(format!("{link} {problem}"));
        }
        let conflict = Conflict::of(settings, "--interface", link, format!("{link} {problem}"));
        Ok(Some(conflict.blocking(Blocks::Uplink(link.clone()))))
    }

    pub(super) fn why_mtu(&self, settings: &Settings) -> String {
        match settings.mtu {
            _ if self.missing.is_some() => format!("{} is missing", self.link),
            Some(_) => format!("--mtu; {} has {}", self.link, self.mtu),
            None => format!("{}'s {} less the tunnel's headers", self.link, self.mtu),
        }
    }
}

pub(super) fn uplink(settings: &Settings, actual: &Actual) -> Result<Uplink, String> {
    let nic = match settings.gateway() {
        Some(_) => Some(bridged::nic(settings, actual)?),
        None => None,
    };
    let name = match (&nic, &settings.interface, &actual.default_link) {
        (Some(name), _, _) | (None, Some(name), _) | (None, None, Some(name)) => name,
        (None, None, None) => {
            return Err(
                "there is no default route to find the uplink by: name it with --interface"
                    .to_owned(),
            );
        }
    };
    let link = actual.links.get(name);
    let addresses = actual.addresses.iter();
    // A moved NIC's addresses are on its bridge.
    let bearers = [Some(name.as_str()), settings.gateway()];
    let own = addresses.filter(|seen| bearers.contains(&Some(&*seen.link)) && seen.global);
    let own: Vec<IpAddr> = own.map(|seen| seen.address.addr()).collect();
    // Tunnels stay at their address, then in its family, and don't move for a moment without one.
    let primary = actual.tunnels_address().map(|before| {
        let same = |ip: &&IpAddr| ip.is_ipv4() == before.is_ipv4();
        let mut others = own.iter();
        match own.contains(&before) {
            true => before,
            false => others.find(same).copied().unwrap_or(before),
        }
    });
    // A NIC that was moved back has its addresses itself.
    let is_kept = actual.moved.as_ref().is_none_or(Moved::is_there);
    let gateway = settings.gateway().filter(|_| is_kept);
    let seen = actual.switch.uplink.as_ref();
    let bearer = gateway.filter(|_| seen.is_some_and(ObservedUplink::has_port));
    let has_addresses = actual
        .addresses
        .iter()
        .any(|seen| seen.link == *name && seen.global);
    Ok(Uplink {
        nic: nic.clone().filter(|_| has_addresses && !settings.moves),
        bearer: bearer.map_or_else(|| name.clone(), str::to_owned),
        link: gateway.map_or_else(|| name.clone(), str::to_owned),
        mtu: link.map_or_else(|| kept_mtu(settings, actual), |link| link.mtu),
        missing: link.is_none().then(|| missing(name, settings, actual)),
        primary: primary.or(own.first().copied()),
    })
}

/// That a link is missing, which keeps what is set on it from being made, and nothing else.
fn missing(name: &str, settings: &Settings, actual: &Actual) -> Conflict {
    let links: Vec<&str> = actual.links.keys().map(String::as_str).collect();
    let problem = format!("there is no such link; the links are {}", links.join(", "));
    let conflict = Conflict::of(settings, "--interface", name, problem);
    conflict.blocking(Blocks::Uplink(name.to_owned()))
}

/// The MTU that pods keep while the uplink is missing.
fn kept_mtu(settings: &Settings, actual: &Actual) -> u32 {
    let switch = &actual.switch;
    let port = switch.ports.get(LINK).and_then(|port| port.mtu_request);
    let tunnels = switch.bridges.get(TUNNEL);
    let kept = port.or(tunnels.and_then(|bridge| bridge.mtu_request));
    let kept = settings.mtu.or(kept);
    let least = least_mtu(&settings.node_subnets);
    kept.unwrap_or(least).max(least)
}

/// Geneve's headers with OVN's option, by the family of the tunnels' ends: Ethernet 14, IP 20 or
/// 40, UDP 8, Geneve 8 and its option 8.
pub(super) fn overhead(encap_ips: &[IpAddr]) -> u32 {
    if encap_ips.iter().all(IpAddr::is_ipv4) {
        58
    } else {
        78
    }
}

/// The MTU of what goes through tunnels, and why the uplink can't carry it: IPv6 needs 1280 bytes
/// (RFC 8200 section 5), and the kernel takes it from a link with less.
pub(super) fn mtu(settings: &Settings, uplink: &Uplink, overhead: u32) -> (u32, Option<Conflict>) {
    let least = least_mtu(&settings.node_subnets);
    let most = match uplink.missing {
        None => uplink.mtu.saturating_sub(overhead),
        // Less the headers already.
        Some(_) => uplink.mtu,
    };
    let mtu = settings.mtu.unwrap_or(most).max(least);
    if mtu <= most {
        return (mtu, None);
    }
    let Uplink { link, mtu: has, .. } = uplink;
    let has = format!("{link} has an MTU of {has} bytes and tunnels take {overhead}");
    let conflict = match settings.mtu {
        Some(mtu) if most >= least => {
            let problem = format!("{has}: name {most} at most, or raise the link's");
            Conflict::of(settings, "--mtu", &mtu.to_string(), problem)
        }
        _ => {
            let problem = format!(
                "{has}, but pods need {least}: raise the link's to {} at least",
                least + overhead
            );
            Conflict::of(
                settings,
                settings.subnets_setting(),
                &settings.subnets_text(),
                problem,
            )
        }
    };
    (mtu, Some(conflict))
}
