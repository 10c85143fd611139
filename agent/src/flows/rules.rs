//! Pure: what the switch should do, from what is known of its ports.
//!
//! | table | decides |
//! |---|---|
//! | 0 | whether the frame has its port's MAC address; frames of others' ports are not checked |
//! | 240 | whether ARP, IPv4 and IPv6 bear an address of the port |
//! | 241 | what no pod may be: DHCP server, router, multicast querier; what is for routers alone |
//! | 242 | whether a neighbour message speaks of the port's own addresses |
//! | 243 | the one port that a frame or a question is for |
//!
//! With OVN, the rest is OVN's: table 0 leads to table 241 only what no pod may be, which ends
//! there. OVN itself can't drop it (decision 0060).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use macaddr::MacAddr6;
use podwire_ovs::openflow::{Action, Cookie, Field, Flow, PortNumber};

use crate::ports::SecuredPort;

const ADMISSION: u8 = 0;
const SOURCE: u8 = 240;
const KIND: u8 = 241;
const NEIGHBOUR: u8 = 242;
const DELIVERY: u8 = 243;

/// Others may have flows in table 0 too. ovs-ofctl gives a flow priority 32768 by default, so what
/// an operator adds wins over podwire's; the switch's own fallback, at 0, does not.
const FIRST: u16 = 2000;
const EXCEPTION: u16 = 210;
const EXACT: u16 = 200;
const USUAL: u16 = 100;
const REST: u16 = 1;

/// `podw`, the upper half of the cookie of every podwire flow; the lower half is the port's number.
const OWNER: u64 = 0x706f_6477 << 32;

/// Matches every podwire flow.
pub const OURS: Cookie = Cookie {
    value: OWNER,
    mask: 0xffff_ffff << 32,
};

const ARP: Field = Field::EthType(0x0806);
const IPV4: Field = Field::EthType(0x0800);
const IPV6: Field = Field::EthType(0x86dd);
const ARP_REQUEST: Field = Field::ArpOp(1);
const ICMP: Field = Field::IpProto(1);
const IGMP: Field = Field::IpProto(2);
const UDP: Field = Field::IpProto(17);
const ICMPV6: Field = Field::IpProto(58);
const CODE_0: Field = Field::Icmpv6Code(0);
const NO_MAC: [u8; 6] = [0; 6];
/// Where an unsolicited advertisement goes (RFC 2464 §7, RFC 4861 §7.2.6).
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// Where queries for all groups go (RFC 3376 §4.1.12). Those for one group go to that, as reports
/// do, and the type of an IGMP message can't be matched.
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

const ICMP_REDIRECT: u8 = 5;
const MLD_QUERY: u8 = 130;
/// Reports of both versions, and messages for leaving a group (RFC 2710 §3, RFC 3810 §5.2).
const MLD_REPORTS: [u8; 3] = [131, 132, 143];
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// What else is on the bridge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The MAC address of the bridge's local port: the pods' gateway, and the node itself.
    pub local_mac: Option<MacAddr6>,
    /// The addresses that podwire has set on it.
    pub gateways: Vec<IpAddr>,
    /// Whether there are ports with unknown addresses: an uplink, pods without port security.
    pub others: bool,
}

/// Whether a flow is podwire's, by its cookie.
pub fn is_ours(cookie: u64) -> bool {
    cookie & OURS.mask == OURS.value
}

/// What it means when a packet's processing ends in a podwire table.
pub fn refusal(table: u8) -> Option<&'static str> {
    Some(match table {
        ADMISSION => "port security: the frame does not bear its port's MAC address",
        SOURCE => "port security: the source address is not one of the port's",
        KIND => "port security: no pod may be a DHCP server, a router or a multicast querier",
        NEIGHBOUR => {
            "port security: the neighbour message speaks of an address that is not the port's"
        }
        _ => return None,
    })
}

/// The flows of one port. What announces an address of its own is treated as `announced` says.
pub fn port_flows(ofport: u16, port: &SecuredPort, announced: &Action) -> Vec<Flow> {
    let mac = port.mac.into_array();
    let number = PortNumber(ofport.into());
    let from = Field::InPort(number);
    let mut flows = Flows::of(OWNER | u64::from(ofport));
    let own = [from, Field::EthSrc(mac), Field::NoVlan];
    flows.add(ADMISSION, FIRST + 1, own, Action::Goto(SOURCE));
    flows.add(ADMISSION, FIRST, [from], Action::Drop);
    if port.addresses.is_empty() {
        flows.add(SOURCE, USUAL, [from], Action::Goto(KIND));
        flows.add(NEIGHBOUR, USUAL, [from], Action::Goto(DELIVERY));
    } else {
        // A probe before an address is used (RFC 5227 §1.1).
        for ip in ipv4(port).chain([Ipv4Addr::UNSPECIFIED]) {
            let fields = [from, ARP, Field::ArpSpa(ip), Field::ArpSha(mac)];
            flows.add(SOURCE, USUAL, fields, Action::Goto(KIND));
        }
        for ip in ipv4(port) {
            let fields = [from, IPV4, Field::Ipv4Src(ip)];
            flows.add(SOURCE, USUAL, fields, Action::Goto(KIND));
        }
        let solicited = [from, IPV6, ICMPV6, Field::Icmpv6Type(SOLICITATION), CODE_0];
        let fields = with(solicited, Field::NdSll(mac));
        flows.add(NEIGHBOUR, USUAL, fields, Action::Goto(DELIVERY));
        for ip in ipv6(port) {
            let fields = [from, IPV6, Field::Ipv6Src(ip)];
            flows.add(SOURCE, USUAL, fields, Action::Goto(KIND));
            let advertised = [from, IPV6, ICMPV6, Field::Icmpv6Type(ADVERTISEMENT), CODE_0];
            let advertised = with(advertised, Field::NdTarget(ip));
            // Linux omits the option in replies to a unicast probe (`ndisc_recv_ns`).
            for tll in [mac, NO_MAC] {
                let fields = with(advertised.clone(), Field::NdTll(tll));
                flows.add(NEIGHBOUR, USUAL, fields, Action::Goto(DELIVERY));
            }
        }
    }
    for ip in ipv4(port) {
        let asked = [ARP, ARP_REQUEST, Field::ArpTpa(ip)];
        flows.add(DELIVERY, EXACT, asked, Action::Output(number));
        // A request for its own address announces it.
        let announcing = [from, ARP, ARP_REQUEST, Field::ArpTpa(ip)];
        flows.add(DELIVERY, EXCEPTION, announcing, announced.clone());
    }
    for ip in ipv6(port) {
        flows.add(DELIVERY, EXACT, asked_for(ip), Action::Output(number));
    }
    for ip in given_ipv6(port) {
        let advertised = [IPV6, ICMPV6, Field::Icmpv6Type(ADVERTISEMENT), CODE_0];
        let mut announcing = vec![from, Field::EthDst(ALL_NODES_MAC)];
        announcing.extend(with(advertised, Field::NdTarget(ip)));
        flows.add(DELIVERY, EXCEPTION, announcing, announced.clone());
    }
    let to_mac = [Field::EthDst(mac)];
    flows.add(DELIVERY, EXACT, to_mac, Action::Output(number));
    flows.0
}

/// The flows of one port with OVN.
pub fn ovn_port_flows(ofport: u16) -> Vec<Flow> {
    let from = Field::InPort(PortNumber(ofport.into()));
    let mut flows = Flows::of(OWNER | u64::from(ofport));
    for fields in forbidden() {
        // Before OVN's own, none of which has more than 1050 there (controller/physical.c).
        flows.add(
            ADMISSION,
            FIRST,
            [&[from][..], &fields].concat(),
            Action::Goto(KIND),
        );
    }
    flows.0
}

/// The flow that, if it is deleted, tells that somebody has deleted all flows: ovn-controller does
/// when it starts. What table 241 leads nowhere else ends here.
pub fn sentinel(cookie: u64) -> Flow {
    Flow {
        table: KIND,
        priority: 0,
        fields: Vec::new(),
        action: Action::Drop,
        cookie,
        tells_removal: true,
    }
}

/// The cookie of the sentinel, which differs each time that all flows are sent.
pub fn sentinel_cookie(time: u16) -> u64 {
    OWNER | u64::from(time) << 16 | u64::from(u16::MAX)
}

/// What no pod may be: DHCP server, router, multicast querier.
fn forbidden() -> Vec<Vec<Field>> {
    let mut all = vec![
        vec![IPV4, UDP, Field::UdpSrc(67), Field::UdpDst(68)],
        vec![IPV6, UDP, Field::UdpSrc(547), Field::UdpDst(546)],
        vec![IPV4, ICMP, Field::Icmpv4Type(ICMP_REDIRECT)],
        vec![IPV4, Field::Ipv4Dst(ALL_HOSTS), IGMP],
    ];
    all.extend([MLD_QUERY, ROUTER_ADVERTISEMENT, REDIRECT].map(|kind| icmpv6(kind).to_vec()));
    all
}

/// The flows that belong to no single port.
pub fn common_flows(around: &Surroundings) -> Vec<Flow> {
    let mut flows = Flows::of(OWNER);
    let local = Field::InPort(PortNumber::LOCAL);
    flows.add(
        ADMISSION,
        FIRST,
        [local, Field::NoVlan],
        Action::Goto(DELIVERY),
    );

    // Duplicate address detection is the only message without a source address that is allowed.
    let probe = [
        IPV6,
        ICMPV6,
        Field::Ipv6Src(Ipv6Addr::UNSPECIFIED),
        Field::Icmpv6Type(SOLICITATION),
    ];
    flows.add(SOURCE, USUAL, probe, Action::Goto(KIND));

    // What pods can't answer is for routers, of which the bridge's local port is one.
    let beyond = Action::Output(match around.others {
        true => PortNumber::NORMAL,
        false => PortNumber::LOCAL,
    });
    for fields in forbidden() {
        flows.add(KIND, EXACT, fields, Action::Drop);
    }
    flows.add(KIND, USUAL, [IPV4, IGMP], beyond.clone());
    for kind in [SOLICITATION, ADVERTISEMENT] {
        flows.add(KIND, USUAL, icmpv6(kind), Action::Goto(NEIGHBOUR));
    }
    flows.add(KIND, REST, [], Action::Goto(DELIVERY));

    let solicited = [IPV6, ICMPV6, Field::Icmpv6Type(SOLICITATION), CODE_0];
    let without_mac = with(solicited, Field::NdSll(NO_MAC));
    flows.add(NEIGHBOUR, USUAL, without_mac, Action::Goto(DELIVERY));

    let to_local = Action::Output(PortNumber::LOCAL);
    if let Some(mac) = around.local_mac {
        let to_mac = [Field::EthDst(mac.into_array())];
        flows.add(DELIVERY, EXACT, to_mac, to_local.clone());
        flows.add(
            DELIVERY,
            EXACT,
            asked_for(link_local(mac)),
            to_local.clone(),
        );
    }
    for gateway in &around.gateways {
        match *gateway {
            IpAddr::V4(ip) => {
                let asked = [ARP, ARP_REQUEST, Field::ArpTpa(ip)];
                flows.add(DELIVERY, EXACT, asked, to_local.clone());
                let announced = [local, ARP, ARP_REQUEST, Field::ArpTpa(ip)];
                flows.add(
                    DELIVERY,
                    EXCEPTION,
                    announced,
                    Action::Output(PortNumber::NORMAL),
                );
            }
            IpAddr::V6(ip) => flows.add(DELIVERY, EXACT, asked_for(ip), to_local.clone()),
        }
    }
    // No known port has it.
    flows.add(DELIVERY, USUAL, [ARP, ARP_REQUEST], beyond.clone());
    flows.add(DELIVERY, USUAL, icmpv6(SOLICITATION), beyond.clone());
    for kind in MLD_REPORTS.into_iter().chain([ROUTER_SOLICITATION]) {
        flows.add(DELIVERY, USUAL, icmpv6(kind), beyond.clone());
    }
    flows.add(DELIVERY, REST, [], Action::Output(PortNumber::NORMAL));
    flows.0
}

/// The cookie of one port's flows, by which to find them.
pub fn cookie_of(ofport: u16) -> Cookie {
    Cookie {
        value: OWNER | u64::from(ofport),
        mask: u64::MAX,
    }
}

/// The address that the kernel derives from a MAC address (RFC 4291 appendix A).
pub fn link_local(mac: MacAddr6) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.into_array();
    let host = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfe, 0x80]);
    octets[8..].copy_from_slice(&host);
    octets.into()
}

/// Flows that share a cookie.
struct Flows(Vec<Flow>, u64);

impl Flows {
    fn of(cookie: u64) -> Self {
        Self(Vec::with_capacity(24), cookie)
    }

    fn add(&mut self, table: u8, priority: u16, fields: impl Into<Vec<Field>>, action: Action) {
        let (fields, cookie) = (fields.into(), self.1);
        self.0.push(Flow {
            table,
            priority,
            fields,
            action,
            cookie,
            tells_removal: false,
        });
    }
}

fn ipv4(port: &SecuredPort) -> impl Iterator<Item = Ipv4Addr> {
    port.addresses.iter().filter_map(|ip| match ip {
        IpAddr::V4(ip) => Some(*ip),
        IpAddr::V6(_) => None,
    })
}

/// Includes the link-local address that it configures itself.
fn ipv6(port: &SecuredPort) -> impl Iterator<Item = Ipv6Addr> {
    let made = link_local(port.mac);
    given_ipv6(port).filter(move |ip| *ip != made).chain([made])
}

fn given_ipv6(port: &SecuredPort) -> impl Iterator<Item = Ipv6Addr> {
    port.addresses.iter().filter_map(|ip| match ip {
        IpAddr::V6(ip) => Some(*ip),
        IpAddr::V4(_) => None,
    })
}

fn icmpv6(kind: u8) -> [Field; 3] {
    [IPV6, ICMPV6, Field::Icmpv6Type(kind)]
}

fn asked_for(ip: Ipv6Addr) -> Vec<Field> {
    let solicited = [IPV6, ICMPV6, Field::Icmpv6Type(SOLICITATION), CODE_0];
    with(solicited, Field::NdTarget(ip))
}

fn with(fields: impl Into<Vec<Field>>, field: Field) -> Vec<Field> {
    let mut fields = fields.into();
    fields.push(field);
    fields
}
