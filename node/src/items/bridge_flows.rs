//! The flows of the gateway bridge. Host and gateway router share the node's addresses and its MAC
//! address: the bridge tells by connection tracking whose a packet from outside is.
//!
//! Whose a connection is, is known by its first packet: what the gateway router begins has one mark
//! in a zone of its own, what the host begins has another one, and what nobody here has begun is
//! the host's; but that of the services that the gateway router itself leads to pods is its.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::address::Mac;
use podwire_ovs::openflow::{
    Action, CT_ESTABLISHED, CT_NEW, CT_RELATED, CT_TRACKED, Cookie, Field, Flow, PortNumber,
};
use podwire_ovs::replica::Db;
use serde::{Deserialize, Serialize};

use super::rows::strings;
use super::uplink::NIC;
use super::{Actual, Change, Item, Kind, State, View};
use crate::GATEWAY;

/// What the flows depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BridgeFlows {
    /// The bridge's and the NIC's, and the gateway router's.
    pub(crate) mac: String,
    /// The number of the NIC's port; none while it is not known.
    pub(crate) nic: Option<u32>,
    /// The number of the patch port to the gateway router; none while there is none.
    pub(crate) patch: Option<u32>,
    /// The bridge's other ports, but its own.
    pub(crate) others: Vec<u32>,
    /// UDP ports of tunnels.
    pub(crate) tunnels: Vec<u16>,
    /// Ports of nodes that pods must not reach: protocol, by its number, and port.
    pub(crate) guarded: Vec<(u8, u16)>,
    /// What the gateway router leads to pods; none while that is not known.
    #[serde(default)]
    pub(crate) led: Option<BTreeSet<Led>>,
}

/// An address of a service that the gateway router leads to pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Led {
    /// By its number.
    pub(crate) protocol: u8,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    /// Whether the address is the node's own.
    pub(crate) is_own: bool,
    /// The clients that may use it; empty for all.
    pub(crate) sources: Vec<IpNet>,
}

/// The ports of the gateway bridge, by the numbers that ovs-vswitchd has given them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BridgePorts {
    /// The NIC that the bridge's row names.
    named: Option<String>,
    /// Links of the machine's.
    nics: BTreeMap<String, u32>,
    /// Patch ports of OVN's, by their logical ports.
    patches: BTreeMap<String, u32>,
    /// The rest, but the bridge's own.
    others: Vec<u32>,
}

impl BridgePorts {
    pub(crate) fn of(db: &Db) -> Option<Self> {
        let mut bridges = db.rows("Bridge");
        let bridge = bridges.find(|row| row.str("name") == Some(GATEWAY))?;
        let mut ports = Self {
            named: strings(&bridge).remove(NIC),
            ..Self::default()
        };
        for port in bridge
            .references("ports")
            .filter_map(|it| db.row("Port", it))
        {
            let logical = strings(&port).remove("ovn-localnet-port");
            let interfaces: Vec<_> = port.references("interfaces").collect();
            for row in interfaces.iter().filter_map(|it| db.row("Interface", *it)) {
                let name = row.str("name").unwrap_or_default();
                let number = db.interface_by_name(name).and_then(|it| it.ofport());
                let number = number.and_then(|it| u32::try_from(it).ok());
                let Some(number) = number.filter(|it| *it > 0) else {
                    continue;
                };
                let is_link = matches!(row.str("type"), Some("" | "system"));
                match (&logical, name) {
                    (_, GATEWAY) => {}
                    (Some(logical), _) => drop(ports.patches.insert(logical.clone(), number)),
                    // Of a bond, only the switch knows by which link a packet leaves.
                    _ if is_link && interfaces.len() == 1 => {
                        ports.nics.insert(name.to_owned(), number);
                    }
                    _ => ports.others.push(number),
                }
            }
        }
        Some(ports)
    }

    /// The NIC's number: that of the one that the bridge names, or of the only one.
    fn nic(&self) -> Option<u32> {
        let named = self.named.as_ref().and_then(|name| self.nics.get(name));
        let mut all = self.nics.values();
        let only = all.next().filter(|_| all.next().is_none());
        named.or(only).copied()
    }

    /// The flows' ports, with the patch port of this logical port.
    pub(crate) fn flows(&self, logical: &str) -> BridgeFlows {
        let (nic, patch) = (self.nic(), self.patches.get(logical).copied());
        let all = self.nics.values().chain(self.patches.values());
        let all = all.chain(&self.others).copied();
        let mut others: Vec<u32> = all
            .filter(|it| Some(*it) != nic && Some(*it) != patch)
            .collect();
        others.sort_unstable();
        BridgeFlows {
            nic,
            patch,
            others,
            ..BridgeFlows::default()
        }
    }
}

/// podwire's flows on the bridge, as the switch says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObservedFlows {
    /// All of them.
    pub(crate) all: u32,
    /// Those with the planned flows' cookie.
    pub(crate) planned: u32,
}

/// Marks podwire's flows: "pwgw", and the digest of all of them.
const TAG: u64 = 0x7077_6777_0000_0000;
const TAGGED: u64 = 0xffff_ffff_0000_0000;

/// That of all of podwire's flows on the bridge.
pub(crate) const ALL: Cookie = Cookie {
    value: TAG,
    mask: TAGGED,
};

/// The zone in which the bridge keeps whose a connection is, as ovn-kubernetes' node has it.
const ZONE: u16 = 64000;
const OVN: u32 = 1;
const HOST: u32 = 2;

const ARP: Field = Field::EthType(0x0806);
const IPV4: Field = Field::EthType(0x0800);
const IPV6: Field = Field::EthType(0x86dd);
const UDP: u8 = 17;
const SCTP: u8 = 132;
const ICMPV6: u8 = 58;
/// Neighbour solicitation and advertisement (RFC 4861).
const NEIGHBOURS: [u8; 2] = [135, 136];

impl BridgeFlows {
    /// The flows; none while the NIC's port is not known.
    pub(crate) fn flows(&self) -> Vec<Flow> {
        let mac: Option<Mac> = self.mac.parse().ok();
        let (Some(nic), Some(mac)) = (self.nic, mac) else {
            return Vec::new();
        };
        let mut made = Made {
            nic: PortNumber(nic),
            mac: mac.bytes(),
            flows: Vec::new(),
        };
        made.of_host(self);
        made.of_nic(self);
        if let Some(patch) = self.patch {
            made.of_gateway(PortNumber(patch), self);
        }
        // A patch port that is not known yet must not teach the bridge where the node is.
        made.add(0, 3, &[Field::EthSrc(made.mac)], Action::Drop);
        let cookie = TAG | u64::from(digest(&made.flows));
        for flow in &mut made.flows {
            flow.cookie = cookie;
        }
        made.flows
    }

    /// The cookie of the planned flows.
    pub(crate) fn cookie(&self) -> Cookie {
        let flows = self.flows();
        let value = flows.first().map_or(TAG, |flow| flow.cookie);
        Cookie {
            value,
            mask: u64::MAX,
        }
    }
}

/// Flows on their way.
struct Made {
    nic: PortNumber,
    mac: [u8; 6],
    flows: Vec<Flow>,
}

impl Made {
    fn add(&mut self, table: u8, priority: u16, fields: &[Field], action: Action) {
        self.flows.push(Flow {
            table,
            priority,
            fields: fields.to_vec(),
            action,
            cookie: 0,
            tells_removal: true,
        });
    }

    /// ARP and neighbour discovery, with these fields before.
    fn neighbours(&mut self, priority: u16, fields: &[Field], action: &Action) {
        let arp = [fields, &[ARP]].concat();
        self.add(0, priority, &arp, action.clone());
        for kind in NEIGHBOURS {
            let of_kind = [IPV6, Field::IpProto(ICMPV6), Field::Icmpv6Type(kind)];
            let fields = [fields, &of_kind].concat();
            self.add(0, priority, &fields, action.clone());
        }
    }

    /// IP packets of either family.
    fn packets(&mut self, priority: u16, fields: &[Field], action: &Action) {
        for family in [IPV4, IPV6] {
            let fields = [fields, &[family]].concat();
            self.add(0, priority, &fields, action.clone());
        }
    }

    /// Packets to a port, with these fields before.
    fn by_port(
        &mut self,
        priority: u16,
        fields: &[Field],
        (protocol, port): (u8, u16),
        action: &Action,
    ) {
        let port = to_port(protocol, port);
        for family in [IPV4, IPV6] {
            let of_port = [family, Field::IpProto(protocol), port];
            let fields = [fields, &of_port].concat();
            self.add(0, priority, &fields, action.clone());
        }
    }

    /// What the host sends.
    fn of_host(&mut self, ports: &BridgeFlows) {
        let from = [Field::InPort(PortNumber::LOCAL)];
        for port in &ports.tunnels {
            let normal = Action::Output(PortNumber::NORMAL);
            self.by_port(205, &from, (UDP, *port), &normal);
        }
        if ports.patch.is_some() {
            // The gateway router would answer to the host's own question whether its address is
            // another's.
            let mut all = vec![self.nic];
            all.extend(ports.others.iter().copied().map(PortNumber));
            self.neighbours(105, &from, &Action::OutputToAll(all));
        }
        let commit = Action::Commit {
            zone: ZONE,
            mark: HOST,
            then: PortNumber::NORMAL,
        };
        self.packets(100, &from, &commit);
    }

    /// What comes from outside.
    fn of_nic(&mut self, ports: &BridgeFlows) {
        let own = [Field::InPort(self.nic), Field::EthDst(self.mac)];
        let host = Action::Output(PortNumber::LOCAL);
        for port in &ports.tunnels {
            self.by_port(205, &own, (UDP, *port), &host);
        }
        let mut both = vec![PortNumber::LOCAL];
        both.extend(ports.patch.map(PortNumber));
        self.neighbours(105, &own, &Action::OutputToAll(both));
        let track = Action::Track {
            zone: ZONE,
            table: 1,
        };
        self.packets(100, &own, &track);
        let normal = Action::Output(PortNumber::NORMAL);
        self.add(0, 10, &[Field::InPort(self.nic)], normal);
        let patch = ports.patch.map(PortNumber);
        for state in [CT_ESTABLISHED, CT_RELATED] {
            let state = Field::CtState(CT_TRACKED | state);
            if let Some(patch) = patch {
                let fields = [state, Field::CtMark(OVN)];
                self.add(1, 100, &fields, Action::Output(patch));
            }
        }
        self.add(1, 10, &[], host);
    }

    /// What the gateway router sends.
    fn of_gateway(&mut self, patch: PortNumber, ports: &BridgeFlows) {
        let from = [Field::InPort(patch)];
        let own = [Field::InPort(patch), Field::EthSrc(self.mac)];
        // A node believes what comes from another one's address, and pods have their node's.
        for port in &ports.guarded {
            self.by_port(120, &from, *port, &Action::Drop);
        }
        self.neighbours(110, &own, &Action::Output(self.nic));
        let commit = Action::Commit {
            zone: ZONE,
            mark: OVN,
            then: self.nic,
        };
        self.packets(100, &own, &commit);
        self.add(0, 50, &from, Action::Drop);
        let led = || ports.led.iter().flatten();
        led().for_each(|led| self.led(patch, led));
        let others = led().filter(|led| !led.is_own);
        let others: BTreeSet<IpAddr> = others.map(|led| led.address).collect();
        let mut to = vec![PortNumber::LOCAL];
        to.extend(ports.others.iter().copied().map(PortNumber));
        for address in others {
            self.question(address, Action::OutputToAll(to.clone()));
        }
    }

    /// What the gateway router leads to pods. Whom it must not let in the host drops, as all that
    /// is not for the gateway router.
    fn led(&mut self, patch: PortNumber, led: &Led) {
        let (family, address) = match led.address {
            IpAddr::V4(ip) => (IPV4, Field::Ipv4Dst(ip)),
            IpAddr::V6(ip) => (IPV6, Field::Ipv6Dst(ip)),
        };
        let to = [
            family,
            address,
            Field::IpProto(led.protocol),
            to_port(led.protocol, led.port),
        ];
        let own = [Field::InPort(self.nic), Field::EthDst(self.mac)];
        let begins = [Field::CtState(CT_TRACKED | CT_NEW)];
        let commit = Action::Commit {
            zone: ZONE,
            mark: OVN,
            then: patch,
        };
        let sources = led.sources.iter().map(|net| match *net {
            IpNet::V4(net) => Some(Field::Ipv4SrcIn(net.network(), net.prefix_len())),
            IpNet::V6(net) => Some(Field::Ipv6SrcIn(net.network(), net.prefix_len())),
        });
        let all = led.sources.is_empty().then_some(None);
        for source in sources.chain(all) {
            // The userspace datapath lets a packet go through few tables of connections
            // (MAX_RECIRC_DEPTH in lib/dpif-netdev.c), and OVN wants them all.
            let fields = [&own[..], &to, source.as_slice()].concat();
            self.add(0, 101, &fields, commit.clone());
            // What came in fragments has its ports once it was put together.
            let fields = [&begins[..], &to, source.as_slice()].concat();
            self.add(1, 50, &fields, commit.clone());
        }
    }

    /// The outside's question for an address of a service. Who announces it answers; each gateway
    /// router would.
    fn question(&mut self, address: IpAddr, action: Action) {
        let nic = Field::InPort(self.nic);
        let fields = match address {
            IpAddr::V4(ip) => vec![nic, ARP, Field::ArpOp(1), Field::ArpTpa(ip)],
            IpAddr::V6(ip) => vec![
                nic,
                IPV6,
                Field::IpProto(ICMPV6),
                Field::Icmpv6Type(NEIGHBOURS[0]),
                Field::Icmpv6Code(0),
                Field::NdTarget(ip),
            ],
        };
        self.add(0, 108, &fields, action);
    }
}

/// The destination port of a protocol, by its number.
fn to_port(protocol: u8, port: u16) -> Field {
    match protocol {
        UDP => Field::UdpDst(port),
        SCTP => Field::SctpDst(port),
        _ => Field::TcpDst(port),
    }
}

/// FNV-1a (32 bits) of the flows' text.
fn digest(flows: &[Flow]) -> u32 {
    let text = format!("{flows:?}");
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

impl Kind for BridgeFlows {
    fn identity(&self) -> String {
        format!("flows of {GATEWAY}")
    }

    fn details(&self) -> String {
        let led = self.led.as_ref().map_or(0, BTreeSet::len);
        match (self.nic, self.patch) {
            (Some(_), Some(_)) if led > 0 => {
                format!(", for host and gateway router, which leads {led} addresses of services")
            }
            (Some(_), Some(_)) => ", for host and gateway router".to_owned(),
            (Some(_), None) => ", for the host; there is no gateway router yet".to_owned(),
            (None, _) => String::new(),
        }
    }

    fn state(&self, view: &View<'_>) -> State {
        if self.nic.is_none() {
            return State::Waits(format!("one NIC's port on {GATEWAY}"));
        }
        let planned = self.flows().len();
        match view.actual.flows {
            None => State::Waits(format!("the flows of {GATEWAY}, which ovs-vswitchd has")),
            Some(seen) if seen.all == 0 => State::Missing,
            // Those of before stay until it is known what the gateway router leads.
            Some(_) if self.led.is_none() => State::Well { ours: true },
            Some(seen) if seen.all != seen.planned => State::Differs("others".to_owned()),
            Some(seen) if usize::try_from(seen.planned) != Ok(planned) => {
                State::Differs(format!("{} of {planned}", seen.planned))
            }
            Some(_) => State::Well { ours: true },
        }
    }

    fn make(&self, _: &Actual) -> Vec<Change> {
        vec![Change::Flows(self.flows())]
    }

    fn remove(&self, _: &Actual) -> Vec<Change> {
        vec![Change::Flows(Vec::new())]
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let seen = view.actual.flows.filter(|seen| seen.all > 0);
        seen.map(|_| Self::default().into()).into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
