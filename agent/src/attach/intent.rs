//! What a pod should get: from its annotation, from a delegated IPAM plugin, or from the node's own subnets.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cni::spec::{Dns, NetConf, RequestedIp};

use super::add::Undo;
use super::{Agent, Call, Error};
use crate::ipam::{Family, Owner, delegate};
use crate::plan::{InterfaceSpec, RouteSpec};
use crate::pods::{self, NetworkKey};

/// The annotation that ovn-kubernetes' control plane writes.
const POD_NETWORKS: &str = "k8s.ovn.org/pod-networks";

/// What one ADD is to make.
#[derive(Debug)]
pub(super) struct Intent {
    pub(super) interfaces: Vec<InterfaceSpec>,
    pub(super) dns: Dns,
    /// Whether the pod's annotation said so: a refusal then blames it and not the configuration.
    pub(super) from_annotation: bool,
}

impl Agent {
    /// Finds out what the pod should get; whatever is allocated on the way is noted in `undo`.
    pub(super) async fn intent(&self, call: &Call, undo: &mut Undo) -> Result<Intent, Error> {
        let conf = &call.conf;
        if let Some(ipam) = &conf.ipam {
            return self.delegated(call, &ipam.plugin_type, undo).await;
        }
        if let Some(text) = conf.runtime.pod_annotations.get(POD_NETWORKS) {
            return self.annotated(call, text, undo);
        }
        self.embedded(call, undo)
    }

    fn annotated(&self, call: &Call, text: &str, undo: &mut Undo) -> Result<Intent, Error> {
        let networks = pods::pod_networks::parse(text)?;
        let key = match &call.conf.net_attach_def_name {
            Some(name) => name.parse().unwrap_or(NetworkKey::Default),
            None => NetworkKey::Default,
        };
        let entry = pods::pod_networks::entry(&networks, &key)?;
        let owner = owner(call);
        for address in &entry.addresses {
            self.claim_if_ours(address.addr(), &owner, undo)?;
        }
        let mut interface = InterfaceSpec::from(entry);
        interface.mtu = interface.mtu.or(call.conf.mtu);
        Ok(Intent { interfaces: vec![interface], dns: call.conf.dns.clone(), from_annotation: true })
    }

    async fn delegated(&self, call: &Call, plugin: &str, undo: &mut Undo) -> Result<Intent, Error> {
        undo.delegated = true;
        let result = delegate::add(&self.spawner, &delegate_call(call, plugin)).await?;
        let mut interface = requested(&call.conf);
        interface.addresses = result.ips.iter().map(|ip| ip.address).collect();
        interface.routes = result
            .routes
            .iter()
            .map(|route| RouteSpec {
                dst: route.dst,
                gateway: route.gw.or_else(|| gateway_for(&result, route.dst)),
                mtu: route.mtu,
                advmss: route.advmss,
                priority: route.priority,
                table: route.table,
                scope: route.scope.and_then(|scope| u8::try_from(scope).ok()),
            })
            .collect();
        let dns = if result.dns.is_empty() { call.conf.dns.clone() } else { result.dns };
        Ok(Intent { interfaces: vec![interface], dns, from_annotation: false })
    }

    fn embedded(&self, call: &Call, undo: &mut Undo) -> Result<Intent, Error> {
        let owner = owner(call);
        let mut interface = requested(&call.conf);
        let wishes = static_wishes(call)?;
        let mut given = Vec::with_capacity(2);
        for wish in &wishes {
            let allocated = self.addresses.claim(wish.address, &owner)?;
            undo.addresses.push(wish.address);
            given.push(match wish.prefix_len {
                // The prefix length asked for tells what is on the link; without one it is the subnet's.
                Some(length) => (with_prefix(wish.address, length), allocated.gateway),
                None => (allocated.address, allocated.gateway),
            });
        }
        let families = self.addresses.families();
        if families.is_empty() {
            return Err(Error::NoAddressSource);
        }
        if wishes.is_empty() {
            for allocated in self.addresses.allocate(&owner)? {
                undo.addresses.push(allocated.address.addr());
                given.push((allocated.address, allocated.gateway));
            }
        }
        for (address, gateway) in given {
            interface.addresses.push(address);
            // A later interface must not take the default route from the first one.
            if call.key.ifname == "eth0" && !interface.gateways.iter().any(|other| family_is_same(*other, gateway)) {
                interface.gateways.push(gateway);
            }
        }
        Ok(Intent { interfaces: vec![interface], dns: call.conf.dns.clone(), from_annotation: false })
    }

    /// Holds an address that somebody else chose, when it is in one of our subnets: nobody else must get it.
    fn claim_if_ours(&self, address: IpAddr, owner: &Owner, undo: &mut Undo) -> Result<(), Error> {
        match self.addresses.claim(address, owner) {
            Ok(_) => {
                undo.addresses.push(address);
                Ok(())
            }
            Err(crate::ipam::pool::PoolError::OutsideSubnets { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The attachment as the pools know it.
pub(super) fn owner(call: &Call) -> Owner {
    Owner {
        network: call.key.network.clone(),
        container_id: call.key.container_id.clone(),
        ifname: call.key.ifname.clone(),
        pod: call.pod.as_ref().map(ToString::to_string),
    }
}

/// The call as a delegated plugin is to get it.
pub(super) fn delegate_call<'a>(call: &'a Call, plugin: &'a str) -> delegate::Call<'a> {
    delegate::Call {
        plugin,
        container_id: &call.key.container_id,
        netns: &call.netns,
        ifname: &call.key.ifname,
        args: &call.raw_args,
        path: &call.path,
        conf: call.conf.raw.get(),
        version: call.conf.cni_version,
    }
}

/// An interface with what the configuration says of it, without addresses.
fn requested(conf: &NetConf) -> InterfaceSpec {
    InterfaceSpec { mac: conf.requested_mac(), mtu: conf.mtu, ..InterfaceSpec::default() }
}

/// Addresses that runtime or operator ask for: the capability, `args.cni`, or `IP` in CNI_ARGS.
fn static_wishes(call: &Call) -> Result<Vec<RequestedIp>, Error> {
    let wishes = call.conf.requested_ips();
    if !wishes.is_empty() {
        return Ok(wishes.to_vec());
    }
    match call.args.get("IP") {
        None => Ok(Vec::new()),
        Some(text) => match RequestedIp::parse(text) {
            Some(wish) => Ok(vec![wish]),
            None => Err(Error::Request(podwire_cni::spec::SpecError::new(
                podwire_cni::spec::ErrorCode::INVALID_ENVIRONMENT,
                format!("CNI_ARGS: IP={text} is not an IP address"),
            ))),
        },
    }
}

/// The gateway that the plugin gave with an address of the destination's family (CNI spec §5: a route without `gw` goes by it).
fn gateway_for(result: &podwire_cni::spec::CniResult, dst: IpNet) -> Option<IpAddr> {
    result.ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == dst.addr().is_ipv4())
}

fn family_is_same(a: IpAddr, b: IpAddr) -> bool {
    Family::of(a) == Family::of(b)
}

fn with_prefix(address: IpAddr, length: u8) -> IpNet {
    // The configuration's parser has read the two together, so the length fits the family.
    IpNet::new(address, length).unwrap_or_else(|_| address.into())
}
