//! Checks for problems that no item shows: another machine with the same identity in the southbound
//! database, an unusable remote, a firewall that drops packets, a wrong clock.
//!
//! The checks run once, before anything is changed. A conflict of identity is refused; the rest is
//! reported.

mod connections;
mod uplink;

use std::net::IpAddr;

pub(crate) use uplink::of_nic;

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::rfc2822;
use kube::Client as Api;
use tokio::time::timeout;

use crate::LINK;
use crate::items::{ENCAP_IP, Item, Key, ObservedUplink, Own, Uplink};
use crate::nft::{self, objects};
use crate::plan::TUNNEL_PORT;
use crate::settings::{Firewalld, Mode, Settings};
use crate::snapshot::Snapshot;
use crate::southbound::{LIMIT, ObservedChassis, same_chassis};

/// The tolerated difference between the clocks of two machines, in milliseconds: certificates and
/// leases are valid to the second.
const CLOCK: i64 = 30_000;

/// The results.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Preflight {
    /// Why this machine may not join.
    pub(crate) refusals: Vec<String>,
    /// What may become a problem.
    pub(crate) warnings: Vec<String>,
}

impl Preflight {
    /// Checks the surroundings of this machine.
    pub(crate) async fn check(settings: &Settings, snapshot: &Snapshot, api: Option<&Api>) -> Self {
        let mut found = Self::default();
        if settings.mode == Mode::Ovn {
            found.read_southbound(settings, snapshot).await;
        }
        if snapshot.actual.default_link.is_none() {
            found
                .warnings
                .push("there is no default route: pods can't reach the outside".to_owned());
        }
        // `run` checks it when it moves one.
        if let Some(Uplink { nic, bridge, .. }) = to_move(snapshot).filter(|_| settings.moves) {
            let refusals = of_nic(nic, bridge, &snapshot.actual, api).await;
            found.refusals.extend(refusals);
        }
        found
            .warnings
            .extend(connections::ended(settings, snapshot).await);
        found.warnings.extend(firewall(settings).await);
        found.warnings.extend(firewalld(settings, snapshot).await);
        if let Some(api) = api {
            found.warnings.extend(clock(api).await);
        }
        found
    }

    async fn read_southbound(&mut self, settings: &Settings, snapshot: &Snapshot) {
        let value = |wanted: &str| {
            let actual = snapshot.actual.key(wanted);
            let planned = snapshot.plan.items.iter().find_map(|item| match item {
                Item::Key(Key { key, value, .. }) if key == wanted => Some(value.as_str()),
                _ => None,
            });
            // If somebody else has set it, that one will join.
            match wanted {
                "ovn-remote" => planned,
                _ => actual.or(planned),
            }
        };
        let (Some(remote), Some(chassis), Some(encap)) =
            (value("ovn-remote"), value("system-id"), value(ENCAP_IP))
        else {
            return;
        };
        let ips: Vec<IpAddr> = encap
            .split(',')
            .filter_map(|ip| ip.trim().parse().ok())
            .collect();
        let tls = settings
            .tls
            .clone()
            .or_else(|| snapshot.actual.switch.tls());
        match same_chassis(remote, tls, chassis, &ips).await {
            Ok((by_name, by_ip)) => {
                // The name under which ovn-controller may have joined before.
                let owned = snapshot.actual.switch.owned.get("hostname");
                let names = [
                    Some(settings.node_name.as_str()),
                    snapshot.actual.key("hostname"),
                    owned.and_then(Own::was),
                ];
                self.judge(&names, chassis, by_name, by_ip);
            }
            Err(problem) => self.warnings.push(format!(
                "the southbound database {remote} does not answer: {problem}; ovn-controller joins \
                 when it does"
            )),
        }
    }

    fn judge(
        &mut self,
        names: &[Option<&str>],
        chassis: &str,
        by_name: Option<ObservedChassis>,
        by_ip: Vec<(IpAddr, ObservedChassis)>,
    ) {
        if let Some(other) = by_name.filter(|other| !names.contains(&Some(&other.host))) {
            self.refusals.push(format!(
                "system-id {chassis} is the chassis of {} in the southbound database; a cloned \
                 machine has the system-id of its original. Remove \
                 /etc/openvswitch/system-id.conf, run `ovs-vsctl remove open_vswitch . \
                 external_ids system-id`, and start again; or, if {0} is gone, run `ovn-sbctl \
                 chassis-del {chassis}`",
                other.host
            ));
        }
        for (ip, other) in by_ip
            .into_iter()
            .filter(|(_, other)| other.chassis != chassis)
        {
            self.refusals.push(format!(
                "chassis {} ({}) already has the tunnel address {ip}: name another address with \
                 --encap-ip; or, if that chassis is gone, run `ovn-sbctl chassis-del {0}`",
                other.chassis, other.host
            ));
        }
    }
}

/// A NIC that is there, and is to be moved.
fn to_move(snapshot: &Snapshot) -> Option<&Uplink> {
    let mut items = snapshot.plan.items.iter();
    let uplink = items.find_map(|item| match item {
        Item::Uplink(uplink) => Some(uplink),
        _ => None,
    });
    let seen = snapshot.actual.switch.uplink.as_ref();
    let links = &snapshot.actual.links;
    uplink
        .filter(|it| links.contains_key(&it.nic))
        .filter(|_| !seen.is_some_and(ObservedUplink::has_port))
}

/// Whether a NIC that is to be moved lacks what somebody may just be giving it.
pub(crate) async fn awaits(snapshot: &Snapshot, api: Option<&Api>) -> bool {
    match to_move(snapshot) {
        Some(it) => !uplink::lacks(&it.nic, &it.bridge, &snapshot.actual, api)
            .await
            .is_empty(),
        None => false,
    }
}

/// A chain of somebody else's that drops what it does not know: podwire's accept does not change
/// that, because every table decides.
async fn firewall(settings: &Settings) -> Option<String> {
    let listed = nft::chains().await.ok()?;
    let drops = objects(&listed).filter_map(|object| {
        let chain = object.get("chain")?;
        let text = |key: &str| chain[key].as_str().unwrap_or_default();
        let hooked = ["input", "forward"].contains(&text("hook"));
        let drops = hooked && chain["policy"] == "drop";
        drops.then(|| format!("{} {} {}", text("family"), text("table"), text("name")))
    });
    let drops: Vec<String> = drops.collect();
    (!drops.is_empty()).then(|| {
        format!(
            "a firewall drops packets by default (nft list chain {}): accept packets of the pod \
             network, and UDP {} from the other nodes",
            drops.join(", "),
            settings.encap_port.unwrap_or(TUNNEL_PORT)
        )
    })
}

/// The settings that firewalld needs, if it runs but can't be reached, as from a container, or must
/// not be changed.
async fn firewalld(settings: &Settings, snapshot: &Snapshot) -> Option<String> {
    if snapshot.actual.firewalld.is_some() && settings.firewalld != Firewalld::Off {
        return None;
    }
    let listed = nft::list("inet firewalld").await.ok()??;
    let link = match settings.mode {
        Mode::Ovn => LINK,
        Mode::Plain => settings.bridge.as_str(),
    };
    if listed.to_string().contains(&format!("\"{link}\"")) {
        return None;
    }
    Some(format!(
        "firewalld rejects pods' traffic: run `firewall-cmd --permanent --zone=trusted \
         --add-interface={link}` and `firewall-cmd --reload`"
    ))
}

/// How far this clock differs from the API server's, if that is too much.
async fn clock(api: &Api) -> Option<String> {
    // A request that the role is allowed; the answer's headers are enough.
    let request = http::Request::get("/api/v1/nodes?limit=1")
        .body(kube::client::Body::empty())
        .ok()?;
    let response = timeout(LIMIT, api.send(request)).await.ok()?.ok()?;
    let date = response.headers().get(http::header::DATE)?.to_str().ok()?;
    let theirs = rfc2822::parse(date).ok()?.timestamp();
    let apart = Timestamp::now().as_millisecond() - theirs.as_millisecond();
    (apart.abs() > CLOCK).then(|| {
        format!(
            "this clock is {} s {} the API server's: certificates and leases go by it; is a time \
             service running?",
            apart.abs() / 1000,
            if apart > 0 { "ahead of" } else { "behind" }
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chassis_of_this_host_is_this_machine_and_any_other_is_a_twin() {
        let other = |chassis: &str, host: &str| ObservedChassis {
            chassis: chassis.to_owned(),
            host: host.to_owned(),
        };
        let judged = |by_name, by_ip: Vec<ObservedChassis>| {
            let mut found = Preflight::default();
            let ip = "192.0.2.11".parse().unwrap();
            let by_ip = by_ip.into_iter().map(|other| (ip, other)).collect();
            found.judge(&[Some("node-a")], "a-chassis", by_name, by_ip);
            found.refusals.len()
        };
        let own = other("a-chassis", "node-a");
        assert_eq!(judged(None, Vec::new()), 0);
        assert_eq!(judged(Some(own.clone()), vec![own]), 0);
        assert_eq!(judged(Some(other("a-chassis", "node-b")), Vec::new()), 1);
        // The chassis that this machine had before its system-id was re-created would keep
        // ovn-controller out.
        assert_eq!(judged(None, vec![other("old-chassis", "node-a")]), 1);
    }
}
