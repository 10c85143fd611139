//! The packet to follow, in the syntax of ovs-ofctl (ovs-fields(7)) and of OVN (ovn-sb(5),
//! Logical_Flow).

use std::fmt;
use std::net::IpAddr;

use clap::ValueEnum;
use macaddr::MacAddr6;
use serde::Serialize;

use podwire::plan::mac_text;

/// The client's port: the first one that Linux gives to programs that request none
/// (ip_local_port_range).
const SOURCE_PORT: u16 = 32768;
/// Linux's default (ip_default_ttl).
const TTL: u8 = 64;

/// The protocol of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Proto {
    /// An echo request, as ping sends it
    Icmp,
    /// The first packet of a connection
    Tcp,
    /// A datagram
    Udp,
}

/// A packet as a pod sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) proto: Proto,
    pub(super) src_mac: MacAddr6,
    pub(super) dst_mac: MacAddr6,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    /// The destination's port; unused for ICMP.
    pub(super) port: u16,
}

impl Packet {
    /// A flow for `ofproto/trace` (ovs-vswitchd(8)).
    pub(super) fn openflow(&self, in_port: i64) -> String {
        let is_v4 = self.src.is_ipv4();
        let (src, dst) = match is_v4 {
            true => ("nw_src", "nw_dst"),
            false => ("ipv6_src", "ipv6_dst"),
        };
        let (protocol, rest) = match (self.proto, is_v4) {
            (Proto::Icmp, true) => ("icmp", "icmp_type=8,icmp_code=0".to_owned()),
            (Proto::Icmp, false) => ("icmp6", "icmpv6_type=128,icmpv6_code=0".to_owned()),
            (Proto::Tcp, true) => ("tcp", self.ports("tcp") + ",tcp_flags=syn"),
            (Proto::Tcp, false) => ("tcp6", self.ports("tcp") + ",tcp_flags=syn"),
            (Proto::Udp, true) => ("udp", self.ports("udp")),
            (Proto::Udp, false) => ("udp6", self.ports("udp")),
        };
        format!(
            "in_port={in_port},{protocol},dl_src={},dl_dst={},{src}={},{dst}={},\
             nw_ttl={TTL},{rest}",
            mac_text(self.src_mac),
            mac_text(self.dst_mac),
            self.src,
            self.dst,
        )
    }

    fn ports(&self, protocol: &str) -> String {
        let port = self.port;
        format!("{protocol}_src={SOURCE_PORT},{protocol}_dst={port}")
    }

    /// A microflow for ovn-trace(8), from this logical port.
    pub(super) fn ovn(&self, logical_port: &str) -> String {
        let family = if self.src.is_ipv4() { "ip4" } else { "ip6" };
        let rest = match (self.proto, self.src.is_ipv4()) {
            (Proto::Icmp, true) => "icmp4.type == 8 && icmp4.code == 0".to_owned(),
            (Proto::Icmp, false) => "icmp6.type == 128 && icmp6.code == 0".to_owned(),
            (Proto::Tcp, _) => format!(
                "tcp.src == {SOURCE_PORT} && tcp.dst == {} && tcp.flags == 2",
                self.port
            ),
            (Proto::Udp, _) => {
                format!("udp.src == {SOURCE_PORT} && udp.dst == {}", self.port)
            }
        };
        // OVN's expressions have JSON's strings.
        let logical_port = serde_json::Value::from(logical_port);
        format!(
            "inport == {logical_port} && eth.src == {} && eth.dst == {} && \
             {family}.src == {} && {family}.dst == {} && ip.ttl == {TTL} && {rest}",
            mac_text(self.src_mac),
            mac_text(self.dst_mac),
            self.src,
            self.dst,
        )
    }
}

/// `tcp 10.186.0.2 > 10.186.0.3 port 80`
impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proto = match self.proto {
            Proto::Icmp => "ICMP echo request",
            Proto::Tcp => "TCP SYN",
            Proto::Udp => "UDP",
        };
        write!(f, "{proto} {} > {}", self.src, self.dst)?;
        match self.proto {
            Proto::Icmp => Ok(()),
            Proto::Tcp | Proto::Udp => write!(f, " port {}", self.port),
        }
    }
}
