//! A flow entry and its bytes: match fields (§7.2.2.7), instructions (§7.2.4), actions (§7.2.5),
//! modifications (§7.3.4.2).

use std::net::{Ipv4Addr, Ipv6Addr};

/// A MAC address.
pub type MacBytes = [u8; 6];

/// A port of the switch (§7.2.1): a number that ovs-vswitchd has given, or one of the reserved
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortNumber(pub u32);

impl PortNumber {
    /// The bridge's own port, a network device of the host.
    pub const LOCAL: Self = Self(0xffff_fffe);
    /// As a learning switch does it (OFPP_NORMAL).
    pub const NORMAL: Self = Self(0xffff_fffa);
    const ANY: Self = Self(0xffff_ffff);
}

/// A number on each flow, by which its owner finds its flows again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie {
    /// The number.
    pub value: u64,
    /// The bits that count in a deletion.
    pub mask: u64,
}

/// A field that a packet must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// The port where it arrived.
    InPort(PortNumber),
    /// Its Ethernet destination.
    EthDst(MacBytes),
    /// Its Ethernet source.
    EthSrc(MacBytes),
    /// Its Ethernet type.
    EthType(u16),
    /// It has no VLAN tag (OFPVID_NONE).
    NoVlan,
    /// Its IP protocol; with [`Field::EthType`].
    IpProto(u8),
    /// Its IPv4 source.
    Ipv4Src(Ipv4Addr),
    /// The same of one of the addresses with this prefix, whose other bits are 0.
    Ipv4SrcIn(Ipv4Addr, u8),
    /// Its IPv4 destination.
    Ipv4Dst(Ipv4Addr),
    /// Its TCP destination port; with [`Field::IpProto`].
    TcpDst(u16),
    /// Its UDP source port; with [`Field::IpProto`].
    UdpSrc(u16),
    /// Its UDP destination port.
    UdpDst(u16),
    /// Its SCTP destination port.
    SctpDst(u16),
    /// The type of an ICMP message; with [`Field::IpProto`].
    Icmpv4Type(u8),
    /// The operation of an ARP packet.
    ArpOp(u16),
    /// The sender's IPv4 address of an ARP packet.
    ArpSpa(Ipv4Addr),
    /// The target's IPv4 address of an ARP packet.
    ArpTpa(Ipv4Addr),
    /// The sender's MAC address of an ARP packet.
    ArpSha(MacBytes),
    /// Its IPv6 source.
    Ipv6Src(Ipv6Addr),
    /// The same of one of the addresses with this prefix, whose other bits are 0.
    Ipv6SrcIn(Ipv6Addr, u8),
    /// Its IPv6 destination.
    Ipv6Dst(Ipv6Addr),
    /// The type of an ICMPv6 message; with [`Field::IpProto`].
    Icmpv6Type(u8),
    /// The code of an ICMPv6 message. Open vSwitch wants it to be 0 beside a neighbour's field
    /// (`is_nd` in lib/flow.h).
    Icmpv6Code(u8),
    /// The target of a neighbour solicitation or advertisement.
    NdTarget(Ipv6Addr),
    /// The source link-layer address of a solicitation; all zero when it has none.
    NdSll(MacBytes),
    /// The target link-layer address of an advertisement; all zero when it has none.
    NdTll(MacBytes),
    /// Connection tracking says all of this of it (`CT_*`, ovs-fields(7), ct_state).
    CtState(u32),
    /// The mark of its connection.
    CtMark(u32),
}

/// Connection tracking has seen the packet.
pub const CT_TRACKED: u32 = 0x20;
/// It begins a connection.
pub const CT_NEW: u32 = 0x01;
/// Its connection is established.
pub const CT_ESTABLISHED: u32 = 0x02;
/// It is about a connection, as an ICMP error is.
pub const CT_RELATED: u32 = 0x04;

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// It is dropped.
    Drop,
    /// The next table decides.
    Goto(u8),
    /// It is sent out of this port, unless it arrived there (§5.1).
    Output(PortNumber),
    /// It is sent out of each of these ports; one flow has room for 4,000.
    OutputToAll(Vec<PortNumber>),
    /// Connection tracking looks at it in this zone, and then the table decides.
    Track {
        /// The zone.
        zone: u16,
        /// The table.
        table: u8,
    },
    /// Its connection is kept, with a mark, and it is sent out of a port.
    Commit {
        /// The zone.
        zone: u16,
        /// The connection's mark.
        mark: u32,
        /// The port.
        then: PortNumber,
    },
}

/// A flow entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Its table.
    pub table: u8,
    /// The higher one wins.
    pub priority: u16,
    /// The fields that a packet must match. A field's prerequisites come before it.
    pub fields: Vec<Field>,
    /// What happens to a matching packet.
    pub action: Action,
    /// Its owner's number.
    pub cookie: u64,
    /// Whether the switch tells when it is deleted ([`Connection::removed`]).
    ///
    /// [`Connection::removed`]: super::Connection::removed
    pub tells_removal: bool,
}

/// A change of the flow tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowMod {
    /// Adds a flow, in the place of one with the same table, priority and match.
    Add(Flow),
    /// Deletes every flow with this cookie, in all tables.
    Delete(Cookie),
}

/// The body of OFPMP_AGGREGATE (§7.3.5.3) about the flows with this cookie.
pub(super) fn encode_aggregate(cookie: Cookie, out: &mut Vec<u8>) {
    out.extend([0, 2, 0, 0, 0, 0, 0, 0]);
    out.extend([0xff, 0, 0, 0]);
    // Whatever port and group they send to.
    out.extend([0xff; 8]);
    out.extend([0; 4]);
    out.extend(cookie.value.to_be_bytes());
    out.extend(cookie.mask.to_be_bytes());
    encode_match(&[], out);
}

/// OFPT_FLOW_MOD.
pub(super) const FLOW_MOD: u8 = 14;

impl FlowMod {
    /// The message's body, without its header.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        const ADD: u8 = 0;
        const DELETE: u8 = 3;
        const ALL_TABLES: u8 = 0xff;
        const NO_BUFFER: u32 = 0xffff_ffff;
        const ANY_GROUP: u32 = 0xffff_ffff;
        let (cookie, mask, table, command, priority) = match self {
            Self::Add(flow) => (flow.cookie, 0, flow.table, ADD, flow.priority),
            Self::Delete(cookie) => (cookie.value, cookie.mask, ALL_TABLES, DELETE, 0),
        };
        out.extend(cookie.to_be_bytes());
        out.extend(mask.to_be_bytes());
        out.extend([table, command]);
        // Neither timeout: a flow stays until it is deleted.
        out.extend([0; 4]);
        out.extend(priority.to_be_bytes());
        out.extend(NO_BUFFER.to_be_bytes());
        out.extend(PortNumber::ANY.0.to_be_bytes());
        out.extend(ANY_GROUP.to_be_bytes());
        /// OFPFF_SEND_FLOW_REM.
        const TELLS_REMOVAL: u16 = 1;
        let flags = match self {
            Self::Add(flow) if flow.tells_removal => TELLS_REMOVAL,
            _ => 0,
        };
        out.extend(flags.to_be_bytes());
        // Importance.
        out.extend([0; 2]);
        match self {
            Self::Add(flow) => {
                encode_match(&flow.fields, out);
                flow.action.encode(out);
            }
            Self::Delete(_) => encode_match(&[], out),
        }
    }
}

/// `struct ofp_match`: the length leaves its padding out.
fn encode_match(fields: &[Field], out: &mut Vec<u8>) {
    const OXM: u16 = 1;
    let start = out.len();
    out.extend(OXM.to_be_bytes());
    out.extend([0; 2]);
    for field in fields {
        field.encode(out);
    }
    let length = (out.len() - start) as u16;
    out[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
    out.resize(start + usize::from(length).next_multiple_of(8), 0);
}

/// Its number in OXM class 1, which is Nicira's (NXM_NX_CT_MARK in Open vSwitch's meta-flow.h).
const CT_MARK: u8 = 107;

/// OFPXMC_OPENFLOW_BASIC.
const BASIC: u16 = 0x8000;

impl Field {
    fn encode(self, out: &mut Vec<u8>) {
        let mut put = |field: u8, value: &[u8]| {
            out.extend(BASIC.to_be_bytes());
            out.extend([field << 1, value.len() as u8]);
            out.extend(value);
        };
        match self {
            Self::InPort(port) => put(0, &port.0.to_be_bytes()),
            Self::EthDst(mac) => put(3, &mac),
            Self::EthSrc(mac) => put(4, &mac),
            Self::EthType(kind) => put(5, &kind.to_be_bytes()),
            Self::NoVlan => put(6, &[0, 0]),
            Self::IpProto(protocol) => put(10, &[protocol]),
            Self::Ipv4Src(ip) => put(11, &ip.octets()),
            Self::Ipv4SrcIn(ip, length) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                masked(11, &ip.octets(), &mask.to_be_bytes(), out);
            }
            Self::Ipv4Dst(ip) => put(12, &ip.octets()),
            Self::TcpDst(port) => put(14, &port.to_be_bytes()),
            Self::UdpSrc(port) => put(15, &port.to_be_bytes()),
            Self::UdpDst(port) => put(16, &port.to_be_bytes()),
            Self::SctpDst(port) => put(18, &port.to_be_bytes()),
            Self::Icmpv4Type(kind) => put(19, &[kind]),
            Self::ArpOp(operation) => put(21, &operation.to_be_bytes()),
            Self::ArpSpa(ip) => put(22, &ip.octets()),
            Self::ArpTpa(ip) => put(23, &ip.octets()),
            Self::ArpSha(mac) => put(24, &mac),
            Self::Ipv6Src(ip) => put(26, &ip.octets()),
            Self::Ipv6SrcIn(ip, length) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                masked(26, &ip.octets(), &mask.to_be_bytes(), out);
            }
            Self::Ipv6Dst(ip) => put(27, &ip.octets()),
            Self::Icmpv6Type(kind) => put(29, &[kind]),
            Self::Icmpv6Code(code) => put(30, &[code]),
            Self::NdTarget(ip) => put(31, &ip.octets()),
            Self::NdSll(mac) => put(32, &mac),
            Self::NdTll(mac) => put(33, &mac),
            Self::CtState(all) => {
                // The mask: of the other bits nothing is said.
                out.extend([0, 1, 105 << 1 | 1, 8]);
                out.extend(all.to_be_bytes());
                out.extend(all.to_be_bytes());
            }
            Self::CtMark(mark) => {
                out.extend([0, 1, CT_MARK << 1, 4]);
                out.extend(mark.to_be_bytes());
            }
        }
    }
}

/// A field of which the mask's bits count.
fn masked(field: u8, value: &[u8], mask: &[u8], out: &mut Vec<u8>) {
    out.extend(BASIC.to_be_bytes());
    out.extend([field << 1 | 1, (value.len() + mask.len()) as u8]);
    out.extend(value);
    out.extend(mask);
}

impl Action {
    fn encode(&self, out: &mut Vec<u8>) {
        let ports = match self {
            // A flow without instructions drops (§5.5).
            Self::Drop => return,
            // OFPIT_GOTO_TABLE.
            Self::Goto(table) => return out.extend([0, 1, 0, 8, *table, 0, 0, 0]),
            Self::Output(port) => std::slice::from_ref(port),
            Self::OutputToAll(ports) => ports,
            Self::Track { zone, table } => {
                apply(24, out);
                return track(24, false, *zone, *table, out);
            }
            Self::Commit { zone, mark, then } => {
                // OFPAT_SET_FIELD of 16 bytes, padded.
                apply(24 + 16 + 16, out);
                track(24 + 16, true, *zone, NO_TABLE, out);
                out.extend([0, 25, 0, 16, 0, 1, CT_MARK << 1, 4]);
                out.extend(mark.to_be_bytes());
                out.extend([0; 4]);
                return output(*then, out);
            }
        };
        apply(16 * ports.len(), out);
        for port in ports {
            output(*port, out);
        }
    }
}

/// OFPIT_APPLY_ACTIONS with actions of so many bytes.
fn apply(length: usize, out: &mut Vec<u8>) {
    out.extend([0, 4]);
    out.extend(((8 + length) as u16).to_be_bytes());
    out.extend([0; 4]);
}

/// OFPAT_OUTPUT, of 16 bytes.
fn output(port: PortNumber, out: &mut Vec<u8>) {
    out.extend([0, 0, 0, 16]);
    out.extend(port.0.to_be_bytes());
    out.extend([0; 8]);
}

/// NX_CT_RECIRC_NONE.
const NO_TABLE: u8 = 0xff;

/// The head of an NXAST_CT (`struct nx_action_conntrack` in Open vSwitch's ofp-actions.c), 24 bytes
/// of so many.
fn track(length: u16, commits: bool, zone: u16, table: u8, out: &mut Vec<u8>) {
    out.extend([0xff, 0xff]);
    out.extend(length.to_be_bytes());
    // NX_VENDOR_ID, and the subtype.
    out.extend([0, 0, 0x23, 0x20, 0, 35]);
    out.extend(u16::from(commits).to_be_bytes());
    // The zone is a number, and no field.
    out.extend([0; 4]);
    out.extend(zone.to_be_bytes());
    out.extend([table, 0, 0, 0, 0, 0]);
}
