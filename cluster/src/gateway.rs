//! A node's gateway, as the node announces it and the control plane reads it: the entry of a
//! network in the annotation `k8s.ovn.org/l3-gateway-config`, in ovn-kubernetes' format.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::address::Mac;
use crate::networks::strings;

/// A gateway of OVN's own on a bridge of the node's, which shares the node's addresses with its
/// host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// The logical port of the bridge's physical network.
    pub interface: String,
    /// That of bridge and NIC.
    pub mac: Mac,
    /// The node's addresses on the bridge, with their networks; the first of a family is the
    /// source of pods' packets.
    pub addresses: Vec<IpNet>,
    /// The routers that lead outside, at most one of each family.
    pub next_hops: Vec<IpAddr>,
    /// The VLAN of the packets, tagged by OVN.
    pub vlan: Option<u16>,
    /// The largest packet that the node's pods take, in bytes with its IP header; None if the node
    /// does not say.
    pub mtu: Option<u32>,
}

/// An entry that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("k8s.ovn.org/l3-gateway-config: {field} {value}: {problem}")]
pub struct GatewayError {
    field: &'static str,
    value: String,
    problem: String,
}

/// From the least that every host of IPv4 takes (RFC 791) to the largest packet.
const MTU: std::ops::RangeInclusive<u32> = 576..=65_535;

/// The physical network of the bridge, as ovn-kubernetes names it.
pub const NETWORK: &str = "physnet";

/// The mark of a packet by which a pod answers, on a node with a gateway router. It goes as far as
/// the node's host, whose own marks are others.
pub const ANSWER: u32 = 0x0200_0000;

/// The logical port of a node's bridge.
pub fn interface(bridge: &str, node: &str) -> String {
    format!("{bridge}_{node}")
}

/// The source that a node gives to clients from outside that it leads to its own pods, if these
/// leave by a gateway router, and their answers, too: those to this address come back to the node's
/// host, and no policy lets it in.
pub fn led(v4: bool) -> IpAddr {
    match v4 {
        true => [169, 254, 169, 6].into(),
        false => [0xfd69, 0, 0, 0, 0, 0, 0, 6].into(),
    }
}

/// The entry of a node without a gateway: its host routes.
pub fn none() -> Value {
    json!({ "mode": "" })
}

impl Gateway {
    /// The entry of a node's annotation; none if it announces no gateway of OVN's own.
    ///
    /// # Errors
    /// Names the field that is missing or can't be used.
    pub fn read(node: &str, entry: &Value) -> Option<Result<Self, GatewayError>> {
        (entry["mode"] == "shared").then(|| Self::parse(node, entry))
    }

    fn parse(node: &str, entry: &Value) -> Result<Self, GatewayError> {
        let bad = |field: &'static str, value: &str, problem: &str| GatewayError {
            field,
            value: if value.is_empty() {
                "is missing"
            } else {
                value
            }
            .to_owned(),
            problem: problem.to_owned(),
        };
        let text = |field: &'static str| entry[field].as_str().unwrap_or_default();
        // Rows of others have other names.
        let interface = text("interface-id");
        let bridge = interface
            .strip_suffix(node)
            .and_then(|it| it.strip_suffix('_'));
        if bridge.is_none_or(str::is_empty) {
            let expected = "expected a bridge and the node's name, as in br-ex_node-a";
            return Err(bad("interface-id", interface, expected));
        }
        let mac = text("mac-address");
        let expected = "expected a unicast MAC address";
        let mac = mac.parse().map_err(|_| bad("mac-address", mac, expected))?;
        let all = |many: &'static str, one: &'static str| -> Vec<&str> {
            let texts: Vec<&str> = strings(&entry[many]).collect();
            match texts.is_empty() {
                true => strings(&entry[one]).collect(),
                false => texts,
            }
        };
        let mut addresses: Vec<IpNet> = Vec::new();
        for text in all("ip-addresses", "ip-address") {
            let expected = "expected an address of the node with its prefix length";
            let address: IpNet = text
                .parse()
                .map_err(|_| bad("ip-addresses", text, expected))?;
            if !is_host(address.addr()) {
                return Err(bad("ip-addresses", text, expected));
            }
            addresses.push(address);
        }
        let mut next_hops: Vec<IpAddr> = Vec::new();
        for text in all("next-hops", "next-hop") {
            let expected = "expected the address of a router, one of each family";
            let hop: IpAddr = text.parse().map_err(|_| bad("next-hops", text, expected))?;
            let is_second = next_hops.iter().any(|it| it.is_ipv4() == hop.is_ipv4());
            if is_second || !is_host(hop) || addresses.iter().any(|it| it.addr() == hop) {
                return Err(bad("next-hops", text, expected));
            }
            next_hops.push(hop);
        }
        let has = |v4| {
            addresses.iter().any(|it| it.addr().is_ipv4() == v4)
                && next_hops.iter().any(|it| it.is_ipv4() == v4)
        };
        if !has(true) && !has(false) {
            let problem = "expected an address and a next hop of the same family";
            return Err(bad("next-hops", "", problem));
        }
        let vlan = match &entry["vlan-id"] {
            Value::Null => 0,
            Value::String(text) if text.is_empty() => 0,
            given => {
                let text = given
                    .as_str()
                    .map_or_else(|| given.to_string(), str::to_owned);
                let vlan = text.parse().ok().filter(|vlan| *vlan < 4095);
                vlan.ok_or_else(|| bad("vlan-id", &text, "expected 0 (none) to 4094"))?
            }
        };
        // Not of ovn-kubernetes' format.
        let mtu = match &entry["mtu"] {
            Value::Null => None,
            given => {
                let mtu = given.as_u64().and_then(|it| u32::try_from(it).ok());
                let mtu = mtu.filter(|mtu| MTU.contains(mtu));
                let expected = "expected 576 to 65535 bytes";
                Some(mtu.ok_or_else(|| bad("mtu", &given.to_string(), expected))?)
            }
        };
        Ok(Self {
            interface: interface.to_owned(),
            mac,
            addresses,
            next_hops,
            vlan: (vlan > 0).then_some(vlan),
            mtu,
        })
    }

    /// The node's entry, for [`Self::read`] and for ovn-kubernetes: lists and, beside a list of
    /// one, its only element.
    pub fn entry(&self) -> Value {
        // No node's name has one.
        let bridge = self.interface.rsplit_once('_').map(|(bridge, _)| bridge);
        let mut entry = json!({
            "mode": "shared",
            "bridge-id": bridge,
            "interface-id": self.interface,
            "mac-address": self.mac.to_string(),
            "ip-addresses": self.addresses,
            "next-hops": self.next_hops,
            "node-port-enable": "true",
            "vlan-id": self.vlan.unwrap_or_default().to_string(),
        });
        if let Some(mtu) = self.mtu {
            entry["mtu"] = json!(mtu);
        }
        if let [address] = &self.addresses[..] {
            entry["ip-address"] = json!(address);
        }
        if let [hop] = &self.next_hops[..] {
            entry["next-hop"] = json!(hop);
        }
        entry
    }

    /// The source of pods' packets of a family, IPv4 or not, and where these go; none if such pods
    /// can't leave by this gateway.
    pub fn way(&self, v4: bool) -> Option<(IpAddr, IpAddr)> {
        let mut addresses = self.addresses.iter().map(IpNet::addr);
        let source = addresses.find(|it| it.is_ipv4() == v4)?;
        let hop = self.next_hops.iter().find(|it| it.is_ipv4() == v4)?;
        Some((source, *hop))
    }
}

fn is_host(address: IpAddr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> Gateway {
        Gateway {
            interface: interface("br-ex", "node-a"),
            mac: "52:54:00:aa:bb:01".parse().unwrap(),
            addresses: vec![
                "192.0.2.11/24".parse().unwrap(),
                "2001:db8::11/64".parse().unwrap(),
            ],
            next_hops: vec!["192.0.2.1".parse().unwrap(), "fe80::1".parse().unwrap()],
            vlan: Some(7),
            mtu: Some(1442),
        }
    }

    #[test]
    fn a_node_s_entry_is_read_as_it_was_written() {
        let one = Gateway {
            addresses: vec!["192.0.2.11/24".parse().unwrap()],
            next_hops: vec!["192.0.2.1".parse().unwrap()],
            vlan: None,
            mtu: None,
            ..both()
        };
        for gateway in [both(), one.clone()] {
            let read = Gateway::read("node-a", &gateway.entry());
            assert_eq!(read, Some(Ok(gateway)));
        }
        assert_eq!(Gateway::read("node-a", &none()), None);
        // As ovn-kubernetes wrote it first.
        let old = json!({
            "mode": "shared", "interface-id": "br-ex_node-a", "mac-address": "52:54:00:aa:bb:01",
            "ip-address": "192.0.2.11/24", "next-hop": "192.0.2.1", "node-port-enable": "true",
        });
        assert_eq!(Gateway::read("node-a", &old), Some(Ok(one)));
    }

    #[test]
    fn a_field_that_can_t_be_used_is_named_with_its_value() {
        for (field, value, says) in [
            (
                "interface-id",
                json!("br-ex_node-b"),
                "interface-id br-ex_node-b: expected a bridge",
            ),
            (
                "interface-id",
                Value::Null,
                "interface-id is missing: expected a bridge",
            ),
            (
                "mac-address",
                json!("01:00:5e:00:00:01"),
                "mac-address 01:00:5e:00:00:01",
            ),
            (
                "ip-addresses",
                json!(["192.0.2.11"]),
                "ip-addresses 192.0.2.11: expected",
            ),
            (
                "ip-addresses",
                json!(["127.0.0.1/8"]),
                "ip-addresses 127.0.0.1/8: expected",
            ),
            (
                "next-hops",
                json!(["192.0.2.1", "192.0.2.2"]),
                "next-hops 192.0.2.2: expected",
            ),
            (
                "next-hops",
                json!(["192.0.2.11"]),
                "next-hops 192.0.2.11: expected",
            ),
            (
                "next-hops",
                json!([]),
                "next-hops is missing: expected an address and a next hop",
            ),
            ("vlan-id", json!("4095"), "vlan-id 4095: expected 0"),
            ("vlan-id", json!(-1), "vlan-id -1: expected 0"),
            ("mtu", json!(20), "mtu 20: expected 576 to 65535"),
            ("mtu", json!("1400"), "mtu \"1400\": expected 576"),
        ] {
            let mut entry = both().entry();
            entry[field] = value;
            let error = Gateway::read("node-a", &entry).unwrap().unwrap_err();
            let error = error.to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
