//! What a pod should get: from its annotation, from a delegated IPAM plugin, or from the node's own subnets.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use podwire_cni::spec::{Dns, NetConf, RequestedIp};

use super::add::Undo;
use super::{Agent, Call, Error};
use crate::ipam::delegate::{self, Delegate, DelegateError};
use crate::ipam::{Family, Owner};
use crate::plan::{InterfaceSpec, RouteSpec};
use crate::pods::{NetworkKey, pod_networks};

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
        if let Some(plugin) = delegate_of(call)? {
            return self.delegated(call, &plugin, undo).await;
        }
        if let Some(text) = conf.runtime.pod_annotations.get(pod_networks::ANNOTATION) {
            return self.annotated(call, text, undo);
        }
        self.embedded(call, undo)
    }

    fn annotated(&self, call: &Call, text: &str, undo: &mut Undo) -> Result<Intent, Error> {
        let key = match &call.conf.net_attach_def_name {
            Some(name) => name.parse().unwrap_or(NetworkKey::Default),
            None => NetworkKey::Default,
        };
        let entry =
            pod_networks::parse_network(text, &key)?.ok_or_else(|| Error::NotAnnotated {
                annotation: pod_networks::ANNOTATION,
                network: key.to_string(),
            })?;
        let owner = owner(call);
        for address in &entry.addresses {
            self.claim_if_ours(address.addr(), &owner, undo)?;
        }
        let mut interface = annotated_interface(entry);
        interface.nad = matches!(key, NetworkKey::Nad { .. }).then(|| key.to_string());
        interface.mtu = interface.mtu.or(call.conf.mtu);
        Ok(Intent {
            interfaces: vec![interface],
            dns: call.conf.dns.clone(),
            from_annotation: true,
        })
    }

    async fn delegated(
        &self,
        call: &Call,
        plugin: &Delegate,
        undo: &mut Undo,
    ) -> Result<Intent, Error> {
        undo.delegated = true;
        let result = plugin.add(&self.spawner, delegate_call(call)).await?;
        let mut interface = requested(&call.conf);
        interface.addresses = result.ips.iter().map(|ip| ip.address).collect();
        interface.subnet_gateways = result.ips.iter().filter_map(|ip| ip.gateway).collect();
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
        let dns = if result.dns.is_empty() {
            call.conf.dns.clone()
        } else {
            result.dns
        };
        Ok(Intent {
            interfaces: vec![interface],
            dns,
            from_annotation: false,
        })
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
            if call.key.ifname == "eth0"
                && !interface
                    .gateways
                    .iter()
                    .any(|other| family_is_same(*other, gateway))
            {
                interface.gateways.push(gateway);
            }
        }
        Ok(Intent {
            interfaces: vec![interface],
            dns: call.conf.dns.clone(),
            from_annotation: false,
        })
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

/// How long a delegated plugin may take.
const DELEGATE_DEADLINE: Duration = Duration::from_secs(30);

/// The call as a delegated plugin is to get it.
pub(super) fn delegate_call(call: &Call) -> delegate::Call<'_> {
    delegate::Call {
        invocation: &call.invocation,
        config: call.conf.raw.get(),
        environment: &call.environment,
        timeout: DELEGATE_DEADLINE,
    }
}

/// The plugin that the configuration's `ipam` section names, if it has one.
pub(super) fn delegate_of(call: &Call) -> Result<Option<Delegate>, DelegateError> {
    let Some(ipam) = &call.conf.ipam else {
        return Ok(None);
    };
    Delegate::find(&ipam.plugin_type, &call.invocation.path).map(Some)
}

/// An interface with what the configuration says of it, without addresses.
fn requested(conf: &NetConf) -> InterfaceSpec {
    InterfaceSpec {
        mac: conf.requested_mac(),
        mtu: conf.mtu,
        ..InterfaceSpec::default()
    }
}

/// The interface that an annotation's entry describes.
fn annotated_interface(entry: pod_networks::Entry) -> InterfaceSpec {
    let mut gateways = entry.gateways;
    // A network whose router advertises itself has a link-local gateway in place of an address of the subnet.
    if !gateways.iter().any(IpAddr::is_ipv6) {
        gateways.extend(entry.lla_gateway.map(IpAddr::V6));
    }
    let routes = entry
        .routes
        .into_iter()
        .map(|route| RouteSpec {
            mtu: route.mtu,
            ..RouteSpec::new(route.dst, route.gateway)
        })
        .collect();
    InterfaceSpec {
        pod_ifname: None,
        mac: Some(entry.mac),
        addresses: entry.addresses,
        gateways,
        subnet_gateways: Vec::new(),
        routes,
        mtu: entry.mtu,
        ..InterfaceSpec::default()
    }
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
    result
        .ips
        .iter()
        .filter_map(|ip| ip.gateway)
        .find(|gateway| gateway.is_ipv4() == dst.addr().is_ipv4())
}

fn family_is_same(a: IpAddr, b: IpAddr) -> bool {
    Family::of(a) == Family::of(b)
}

fn with_prefix(address: IpAddr, length: u8) -> IpNet {
    // The configuration's parser has read the two together, so the length fits the family.
    IpNet::new(address, length).unwrap_or_else(|_| address.into())
}
