//! Decides which interfaces a pod gets: from its annotations, from a delegated IPAM plugin, or from
//! the node's own subnets.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cni::spec::{Dns, ErrorCode, NetConf, RequestedIp, SpecError};
use podwire_netns::Route;

use super::call::{Add, DELEGATE_DEADLINE};
use super::metadata::PodMetadata;
use super::undo::{Done, Undo};
use super::{Call, Error};
use crate::fault::fault_point;
use crate::ipam::delegate::Delegate;
use crate::ipam::{Family, Owner};
use crate::observe::WaitFor;
use crate::plan::InterfaceSpec;
use crate::pods::ovn_network::RequestedInterface;
use crate::pods::{self, NetworkKey, Settings, pod_networks};

/// What one ADD has to create.
#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) interfaces: Vec<InterfaceSpec>,
    pub(super) dns: Dns,
    /// Whether it comes from the pod's annotation; an error then blames that and not the
    /// configuration.
    pub(super) from_annotation: bool,
}

impl Add<'_> {
    /// Decides which interfaces the pod gets; records every allocation in `undo`.
    pub(super) async fn assign(
        &self,
        pod: &PodMetadata,
        undo: &mut Undo,
    ) -> Result<Assignment, Error> {
        if let Some(on_bridge) = self.on_bridge {
            let mut assigned = self.source_on_bridge(undo).await?;
            let interfaces = assigned.interfaces.iter_mut();
            interfaces.for_each(|interface| on_bridge.apply(interface));
            return Ok(assigned);
        }
        let settings = Settings::parse(&pod.annotations)?;
        let mut assigned = self.source_of(pod, undo).await?;
        for interface in &mut assigned.interfaces {
            let of_pod = settings.mtu_with(&interface.addresses)?;
            interface.mtu = interface.mtu.or(of_pod).or(self.call.conf.mtu);
            // What is on a physical network takes no tunnel.
            if !self.call.conf.is_localnet {
                self.bring_down_mtu(interface);
            }
            // They are about the pod's own network, or its own two; a further one is limited by its
            // configuration's capability.
            if interface.nad.is_none() || pod.network == NetworkKey::Default {
                interface.bandwidth = settings.bandwidth;
            }
        }
        Ok(assigned)
    }

    /// On a bridge that the configuration names, annotations and the node's subnets give nothing:
    /// they are for the cluster's networks.
    async fn source_on_bridge(&self, undo: &mut Undo) -> Result<Assignment, Error> {
        match self.call.delegate(self.node)? {
            Some(plugin) => self.delegated(plugin, undo).await,
            None => Ok(Assignment {
                interfaces: vec![requested(&self.call.conf)],
                dns: self.call.conf.dns.clone(),
                from_annotation: false,
            }),
        }
    }

    async fn source_of(&self, pod: &PodMetadata, undo: &mut Undo) -> Result<Assignment, Error> {
        if let Some(plugin) = self.call.delegate(self.node)? {
            return self.delegated(plugin, undo).await;
        }
        if let Some(interfaces) = pod.interfaces() {
            return self.annotated(interfaces, undo);
        }
        // Without a controller to answer it, a user's request counts as written.
        if pod.network == NetworkKey::Default
            && let Some(request) = pods::request(&pod.annotations)?
        {
            return self.requested_interfaces(&request.interfaces, undo);
        }
        if pod.annotations.contains_key(pod_networks::ANNOTATION) {
            return Err(Error::NotAnnotated {
                annotation: pod_networks::ANNOTATION,
                network: pod.network.to_string(),
            });
        }
        self.embedded(undo)
    }

    fn annotated(
        &self,
        interfaces: &[InterfaceSpec],
        undo: &mut Undo,
    ) -> Result<Assignment, Error> {
        let owner = self.call.owner();
        for address in interfaces.iter().flat_map(|it| &it.addresses) {
            self.claim_if_ours(address.addr(), &owner, undo)?;
        }
        Ok(Assignment {
            interfaces: interfaces.to_vec(),
            dns: self.call.conf.dns.clone(),
            from_annotation: true,
        })
    }

    /// The interfaces that `ovnNetwork` requests, on a node where the agent supplies what the
    /// request leaves open.
    fn requested_interfaces(
        &self,
        requests: &[RequestedInterface],
        undo: &mut Undo,
    ) -> Result<Assignment, Error> {
        let owner = self.call.owner();
        let mut interfaces = Vec::with_capacity(requests.len());
        for request in requests {
            let mut interface = request.interface.clone();
            let given = match (interface.addresses.first(), request.bare_address) {
                (Some(net), _) => {
                    self.claim_if_ours(net.addr(), &owner, undo)?;
                    Vec::new()
                }
                (None, Some(address)) => {
                    let (allocated, older) = self.node.addresses.claim(address, &owner)?;
                    undo.push(Done::Address(address, older));
                    vec![allocated]
                }
                (None, None) => {
                    let allocated = self.node.addresses.allocate(&owner)?;
                    for it in &allocated {
                        undo.push(Done::Address(it.address.addr(), None));
                    }
                    allocated
                }
            };
            interface
                .addresses
                .extend(given.iter().map(|it| it.address));
            if request.default_gateway && interface.gateways.is_empty() {
                interface.gateways = given.iter().map(|it| it.gateway).collect();
            }
            interfaces.push(interface);
        }
        Ok(Assignment {
            interfaces,
            dns: self.call.conf.dns.clone(),
            from_annotation: true,
        })
    }

    async fn delegated(
        &self,
        mut plugin: Delegate<'_>,
        undo: &mut Undo,
    ) -> Result<Assignment, Error> {
        undo.push(Done::Delegated);
        plugin.call.timeout = self.deadline.left().min(DELEGATE_DEADLINE);
        let waiting = self.node.metrics.wait(WaitFor::IpamPlugin);
        // A plugin whose call is dropped is killed.
        let result = tokio::select! {
            result = plugin.add() => result?,
            reason = self.cancel.cancelled() => return Err(reason.into()),
        };
        drop(waiting);
        fault_point!("add-delegated");
        let mut interface = requested(&self.call.conf);
        interface.addresses = result.ips.iter().map(|ip| ip.address).collect();
        interface.subnet_gateways = result.ips.iter().filter_map(|ip| ip.gateway).collect();
        interface.routes = result
            .routes
            .iter()
            .map(|route| Route {
                dst: route.dst,
                gateway: route.gw.or_else(|| gateway_for(&result, route.dst)),
                mtu: route.mtu,
                advmss: route.advmss,
                priority: route.priority,
                table: route.table,
                scope: route.scope.and_then(|scope| u8::try_from(scope).ok()),
                onlink: false,
            })
            .collect();
        let dns = if result.dns.is_empty() {
            self.call.conf.dns.clone()
        } else {
            result.dns
        };
        Ok(Assignment {
            interfaces: vec![interface],
            dns,
            from_annotation: false,
        })
    }

    fn embedded(&self, undo: &mut Undo) -> Result<Assignment, Error> {
        let owner = self.call.owner();
        let mut interface = requested(&self.call.conf);
        let requests = requested_ips(self.call)?;
        let mut given = Vec::with_capacity(2);
        for request in &requests {
            let (allocated, older) = self.node.addresses.claim(request.address, &owner)?;
            undo.push(Done::Address(request.address, older));
            given.push(match request.prefix_len {
                // The requested prefix length decides what is on the link; without one, the
                // subnet's does.
                Some(length) => (with_prefix(request.address, length), allocated.gateway),
                None => (allocated.address, allocated.gateway),
            });
        }
        let families = self.node.addresses.families();
        if families.is_empty() {
            return Err(Error::NoAddressSource);
        }
        if requests.is_empty() {
            for allocated in self.node.addresses.allocate(&owner)? {
                undo.push(Done::Address(allocated.address.addr(), None));
                given.push((allocated.address, allocated.gateway));
            }
        }
        for (address, gateway) in given {
            interface.addresses.push(address);
            // A later interface must not take the default route from the first one.
            if self.call.key.ifname == "eth0"
                && !interface
                    .gateways
                    .iter()
                    .any(|other| family_is_same(*other, gateway))
            {
                interface.gateways.push(gateway);
            }
        }
        Ok(Assignment {
            interfaces: vec![interface],
            dns: self.call.conf.dns.clone(),
            from_annotation: false,
        })
    }

    /// Lowers an interface's MTU to what the node can carry: larger packets would be lost on the
    /// way.
    fn bring_down_mtu(&self, interface: &mut InterfaceSpec) {
        let (Some(most), Some(asked)) = (self.node.live.borrow().max_mtu, interface.mtu) else {
            return;
        };
        if asked > most {
            tracing::debug!(
                attachment = %self.call.key,
                asked,
                most,
                "MTU lowered to what the node can carry"
            );
            interface.mtu = Some(most);
        }
    }

    /// Reserves an address that somebody else chose if it is in one of the node's subnets, so that
    /// nobody else gets it.
    fn claim_if_ours(&self, address: IpAddr, owner: &Owner, undo: &mut Undo) -> Result<(), Error> {
        match self.node.addresses.claim(address, owner) {
            Ok((_, older)) => {
                undo.push(Done::Address(address, older));
                Ok(())
            }
            Err(crate::ipam::pool::PoolError::OutsideSubnets { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// An interface with the configuration's settings, without addresses.
fn requested(conf: &NetConf) -> InterfaceSpec {
    InterfaceSpec {
        mac: conf.requested_mac(),
        mtu: conf.mtu,
        ..InterfaceSpec::default()
    }
}

/// Addresses that runtime or operator request: in the capability, `args.cni`, or `IP` in CNI_ARGS.
fn requested_ips(call: &Call) -> Result<Vec<RequestedIp>, Error> {
    let requests = call.conf.requested_ips();
    if !requests.is_empty() {
        return Ok(requests.to_vec());
    }
    match call.args.get("IP") {
        None => Ok(Vec::new()),
        Some(text) => match RequestedIp::parse(text) {
            Some(request) => Ok(vec![request]),
            None => Err(Error::Request(SpecError::new(
                ErrorCode::INVALID_ENVIRONMENT,
                format!("CNI_ARGS: IP={text} is not an IP address"),
            ))),
        },
    }
}

/// The gateway that the plugin returned with an address of the destination's family (CNI spec §5: a
/// route without `gw` uses it).
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
    // The configuration's parser has checked the length against the family.
    IpNet::new(address, length).unwrap_or_else(|_| address.into())
}
