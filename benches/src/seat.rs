//! Where a measured pod sits: a sandbox that is used again and again, and the addresses of its
//! number.
//!
//! A namespace that dies is taken apart by the kernel under RTNL, beside whatever is measured then.
//! So the sandboxes are made once, and every subject's ADD and DEL leave them as they were.

use std::net::{Ipv4Addr, Ipv6Addr};

use podwire_tests::{Pod, TestNode};
use serde_json::{Value, json};

use crate::error::Error;

/// The pods' IPv4 network.
pub const SUBNET_V4: &str = "10.200.0.0/16";
/// The pods' IPv6 network.
pub const SUBNET_V6: &str = "fd00:200::/64";
/// Their IPv4 gateway.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
/// Their IPv6 gateway.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x200, 0, 0, 0, 0, 0, 1);
/// The MTU of both ends.
pub const MTU: u32 = 1500;

/// Which addresses a pod has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// IPv4 only.
    V4,
    /// IPv4 and IPv6.
    Dual,
}

/// One pod's place on the node.
#[derive(Debug)]
pub struct Seat<'node> {
    /// Its number, from 0.
    pub number: usize,
    /// The sandbox.
    pub pod: Pod<'node>,
    /// The address, in [`SUBNET_V4`].
    pub v4: Ipv4Addr,
    /// The address, in [`SUBNET_V6`].
    pub v6: Ipv6Addr,
    /// The pod end's MAC.
    pub mac: [u8; 6],
    /// Which of the addresses it gets.
    pub stack: Stack,
}

impl<'node> Seat<'node> {
    /// Makes the sandbox for pod number `number`, of at most 64,000.
    ///
    /// # Errors
    /// The namespace could not be made.
    pub fn new(node: &'node TestNode, number: usize, stack: Stack) -> Result<Self, Error> {
        let host = u16::try_from(number + 256).unwrap_or(u16::MAX);
        let [high, low] = host.to_be_bytes();
        let mac = [0x0a, 0x58, 10, 200, high, low];
        let mut seat = Self {
            number,
            pod: node.pod(&format!("bench{number}")),
            v4: Ipv4Addr::new(10, 200, high, low),
            v6: Ipv6Addr::new(0xfd00, 0x200, 0, 0, 0, 0, 1, host),
            mac,
            stack,
        };
        let entry = seat.pod_networks_entry();
        seat.pod.annotations.insert(
            "k8s.ovn.org/pod-networks".into(),
            json!({ "default": entry }).to_string(),
        );
        Ok(seat)
    }

    /// The sandbox of a pod that has its annotation from OVN's controller.
    pub fn scheduled(number: usize, pod: Pod<'node>) -> Self {
        Self {
            number,
            pod,
            v4: Ipv4Addr::UNSPECIFIED,
            v6: Ipv6Addr::UNSPECIFIED,
            mac: [0; 6],
            stack: Stack::Dual,
        }
    }

    /// The host end's name as ovn-kubernetes and podwire make it.
    pub fn host_name(&self) -> &str {
        &self.pod.container[..15]
    }

    /// The iface-id, by which OVN knows the port.
    pub fn iface_id(&self) -> String {
        format!("{}_{}", self.pod.namespace, self.pod.name)
    }

    /// The MAC as people write it.
    pub fn mac_text(&self) -> String {
        let parts: Vec<String> = self.mac.iter().map(|byte| format!("{byte:02x}")).collect();
        parts.join(":")
    }

    /// The addresses with their prefix lengths.
    pub fn addresses(&self) -> Vec<String> {
        let mut addresses = vec![format!("{}/16", self.v4)];
        if self.stack == Stack::Dual {
            addresses.push(format!("{}/64", self.v6));
        }
        addresses
    }

    /// The gateways, one for each family.
    pub fn gateways(&self) -> Vec<String> {
        let mut gateways = vec![GATEWAY_V4.to_string()];
        if self.stack == Stack::Dual {
            gateways.push(GATEWAY_V6.to_string());
        }
        gateways
    }

    fn pod_networks_entry(&self) -> Value {
        json!({
            "ip_addresses": self.addresses(),
            "mac_address": self.mac_text(),
            "gateway_ips": self.gateways(),
        })
    }
}
