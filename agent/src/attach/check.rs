//! CHECK: what is there, held against what ADD answered. The first difference is told in words.
//!
//! prevResult is the whole chain's: what a later plugin changed (a MAC by `tuning`, an MTU) it has written there, and so
//! only prevResult is compared with, never our own plan. Things beside it, such as further routes, are others' business.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use podwire_cni::spec::{CniResult, Interface, IpConfig, Route};

use super::intent::{delegate_call, delegate_of};
use super::{Agent, Call, Error, READY_DEADLINE};
use crate::journal::{Entry, EntryPort};
use crate::netns::{Netns, Observed, ObservedRoute};
use crate::observe::Trace;
use crate::plan::{ids, mac_text};
use crate::ports::PortRecord;

/// RT_TABLE_MAIN (rtnetlink(7)).
const MAIN_TABLE: u32 = 254;

impl Agent {
    /// Compares an attachment with prevResult.
    pub(super) async fn check(&self, call: &Call, trace: &mut Trace) -> Result<(), Error> {
        let prev = call
            .conf
            .prev_result()
            .map_err(|error| Error::Request(error.into()))?;
        let prev = prev.ok_or(Error::NoPrevResult)?;
        let netns = Arc::new(Netns::open(&call.invocation.netns)?);

        let looking = Instant::now();
        self.ports.synced(READY_DEADLINE).await?;
        let mut records = self.ports.find(&call.key);
        if let Some(definition) = &call.conf.net_attach_def_name {
            records.extend(self.ports.of_definition(&call.key.container_id, definition));
        }
        if records.is_empty() {
            return Err(Error::Differs(format!(
                "Open vSwitch has no port for {}",
                call.key
            )));
        }
        let made = self.journal.find(&call.key)?.map(|(_, entry)| entry);
        for record in &records {
            differences_of_row(record, &self.config.bridge, made.as_ref())
                .map_or(Ok(()), |text| Err(Error::Differs(text)))?;
            let link = self.netlink.host_link(&record.name).await?;
            if link.is_none_or(|link| !link.up) {
                return Err(Error::Differs(format!(
                    "the host has no link {} that is up",
                    record.name
                )));
            }
        }
        trace.phase("rows and host links", looking);

        let looking = Instant::now();
        for (index, interface) in sandbox_interfaces(&prev, call, &records) {
            let seen = self
                .netlink
                .observe(Arc::clone(&netns), &interface.name)
                .await?;
            if let Some(difference) = difference(&prev, index, interface, seen.as_ref()) {
                return Err(Error::Differs(difference));
            }
        }
        trace.phase("pod", looking);
        if let Some(plugin) = delegate_of(call)? {
            plugin.check(&self.spawner, delegate_call(call)).await?;
        }
        Ok(())
    }
}

/// The interfaces of prevResult that this attachment made, with their indexes: other plugins' in the same sandbox are theirs
/// to check.
fn sandbox_interfaces<'a>(
    prev: &'a CniResult,
    call: &'a Call,
    records: &'a [PortRecord],
) -> impl Iterator<Item = (usize, &'a Interface)> {
    prev.interfaces
        .iter()
        .enumerate()
        .filter(move |(_, interface)| {
            let is_inside = interface
                .sandbox
                .as_ref()
                .is_some_and(|sandbox| !sandbox.is_empty());
            let is_ours = interface.name == call.key.ifname
                || records
                    .iter()
                    .any(|record| record.pod_ifname.as_deref() == Some(interface.name.as_str()));
            is_inside && is_ours
        })
}

/// What is wrong with an attachment's row.
pub(super) fn differences_of_row(
    record: &PortRecord,
    bridge: &str,
    made: Option<&Entry>,
) -> Option<String> {
    let name = &record.name;
    let bears = |ids: &BTreeMap<String, String>| ids.get(ids::IFACE_ID).cloned();
    let same_interface = |port: &&EntryPort| {
        port.external_ids.get(ids::POD_IF_NAME) == record.external_ids.get(ids::POD_IF_NAME)
    };
    let given = made.and_then(|entry| entry.ports.iter().find(same_interface));
    if let Some(given) = given.and_then(|port| bears(&port.external_ids)) {
        let found = bears(&record.external_ids).unwrap_or_default();
        if found != given {
            return Some(format!(
                "port {name} has iface-id {found:?}, and was made with {given:?}"
            ));
        }
    }
    if record.bridge.as_deref() != Some(bridge) {
        let on = record.bridge.as_deref().unwrap_or("no bridge");
        return Some(format!("port {name} is on {on}, not on {bridge}"));
    }
    if let Some(error) = &record.error {
        return Some(format!("Open vSwitch reports of port {name}: {error}"));
    }
    match record.ofport {
        Some(ofport) if ofport > 0 => None,
        _ => Some(format!("Open vSwitch has given port {name} no ofport")),
    }
}

/// The first difference between prevResult and the pod's interface.
pub(super) fn difference(
    prev: &CniResult,
    index: usize,
    wanted: &Interface,
    seen: Option<&Observed>,
) -> Option<String> {
    let name = &wanted.name;
    let Some(seen) = seen else {
        return Some(format!("the pod has no interface {name}"));
    };
    let link = &seen.link;
    if !link.up {
        return Some(format!("interface {name} is down"));
    }
    if let (Some(wanted), Some(found)) = (&wanted.mac, link.mac.map(mac_text))
        && !wanted.is_empty()
        && !wanted.eq_ignore_ascii_case(&found)
    {
        return Some(format!(
            "interface {name} has MAC {found}, and prevResult has {wanted}"
        ));
    }
    if let Some(wanted) = wanted.mtu.filter(|mtu| *mtu != 0 && *mtu != link.mtu) {
        return Some(format!(
            "interface {name} has MTU {}, and prevResult has {wanted}",
            link.mtu
        ));
    }
    let on_it = |ip: &&IpConfig| {
        ip.interface == Some(index) || (ip.interface.is_none() && prev.interfaces.len() <= 2)
    };
    if let Some(ip) = prev
        .ips
        .iter()
        .filter(on_it)
        .find(|ip| !seen.addresses.contains(&ip.address))
    {
        return Some(format!("interface {name} has lost address {}", ip.address));
    }
    let is_missing = |route: &&Route| {
        is_ours(route, prev, index) && !seen.routes.iter().any(|it| is_same(route, it))
    };
    let route = prev.routes.iter().find(is_missing)?;
    let by = route
        .gw
        .map_or_else(String::new, |gateway| format!(" by {gateway}"));
    Some(format!(
        "interface {name} has lost the route to {}{by}",
        route.dst
    ))
}

/// Whether a route of prevResult, which names no interface, must be over this one: its next hop is in one of its subnets, or
/// it is the pod's only interface.
fn is_ours(route: &Route, prev: &CniResult, index: usize) -> bool {
    let inside = prev
        .interfaces
        .iter()
        .filter(|interface| interface.sandbox.is_some())
        .count();
    if inside <= 1 {
        return true;
    }
    route.gw.is_some_and(|gateway| {
        prev.ips
            .iter()
            .any(|ip| ip.interface == Some(index) && ip.address.contains(&gateway))
    })
}

fn is_same(wanted: &Route, seen: &ObservedRoute) -> bool {
    // Two families write an unset table and an unset next hop in their own ways; only what prevResult says is compared.
    wanted.dst.trunc() == seen.dst.trunc()
        && wanted
            .gw
            .is_none_or(|gateway| seen.gateway == Some(gateway))
        && wanted.table.unwrap_or(MAIN_TABLE) == seen.table
        && wanted.mtu.is_none_or(|mtu| seen.mtu == Some(mtu))
        && wanted
            .priority
            .is_none_or(|priority| priority == seen.priority)
}

#[cfg(test)]
mod tests;
