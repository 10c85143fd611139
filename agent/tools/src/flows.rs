//! `podwire flows`: what Open vSwitch drops of a pod's packets, and why.
//!
//! ovs-vswitchd remembers for some seconds what it decided for packets of one kind, and counts
//! them (a flow of the datapath, ovs-vswitchd(8)). Of those that are dropped, its own trace tells
//! the OpenFlow flow that decided, and OVN's database the logical flow behind it.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use itertools::Itertools as _;
use podwire::config::Mode;
use podwire::inspect::{PortList, PortView, StatusView};
use podwire::ports::OvnView;
use podwire_daemon::output::{Format, show};
use podwire_ovs::unixctl::Unixctl;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::output::AnswerArgs;
use super::paint::printable;
use super::trace::openflow::{self, split};
use super::trace::{ovn, port_of};
use super::{Exit, ToolError};

/// Time limit of ovs-vswitchd, which answers in its main loop.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at the datapath's flows.
const INTERVAL: Duration = Duration::from_secs(1);
/// How many kinds of dropped packets are traced in one look.
const MOST_TRACED: usize = 100;

/// The flags of `podwire flows`.
#[derive(Debug, Args)]
#[command(
    after_help = "Packets of one kind are one line. Of those that OVN's ACLs drop, \
                  podwire-controller\nexplain tells the policy. What never reaches this node's \
                  Open vSwitch is not here.\nExit code 0: nothing was dropped; 1: something was."
)]
pub struct FlowsArgs {
    /// NAMESPACE/NAME, NAME or container ID
    #[arg(value_name = "POD")]
    pod: String,
    /// Its interface, if it has several
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// How long to look
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    #[command(flatten)]
    answer: AnswerArgs,
}

/// Packets of one kind that were dropped since the last look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Dropped {
    packets: u64,
    /// `from` or `to` the pod.
    direction: &'static str,
    #[serde(flatten)]
    kind: Kind,
    reason: String,
}

/// The packets that one flow of the datapath is for; null is any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    /// `tcp`, `arp`; else the EtherType.
    protocol: String,
    /// An address or a network.
    source: Option<String>,
    destination: Option<String>,
    destination_port: Option<u16>,
}

/// A flow of the datapath that drops.
#[derive(Debug, PartialEq, Eq)]
struct Drop<'a> {
    key: &'a str,
    packets: u64,
}

/// Where the pod's port is in OVN's registers: datapath and port.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Logical {
    datapath: Option<String>,
    port: Option<String>,
}

/// Who is asked, about what.
struct Look<'a> {
    vswitchd: Unixctl,
    port: &'a PortView,
    /// In OVN mode.
    ovn: Option<&'a OvnView>,
    logical: Logical,
    /// How many kinds of packets were not looked at, because there were too many at once.
    left_out: usize,
}

impl FlowsArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        let agent = self.answer.agent();
        let status: StatusView = agent.get("/v1/status").await?;
        let list: PortList = agent.get("/v1/ports").await?;
        let port = port_of(&list.ports, &self.pod, self.interface.as_deref())?;
        let rundir = status.database.socket.parent().unwrap_or(Path::new("/"));
        let vswitchd = Unixctl::for_daemon(rundir, "ovs-vswitchd");
        let mut look = Look {
            vswitchd: vswitchd.map_err(|error| ToolError::Unable(error.to_string()))?,
            port,
            ovn: None,
            logical: Logical::default(),
            left_out: 0,
        };
        if status.mode == Mode::Ovn.name() {
            look.ovn = Some(&status.switch.ovn);
            let bridge = port.bridge.as_deref().unwrap_or(&status.bridge);
            let packet = format!("in_port={}", port.ofport.unwrap_or(-1));
            look.logical =
                Logical::of_sender(&look.call("ofproto/trace", &[bridge, &packet]).await?);
        }
        let (mut counts, mut reasons) = (HashMap::new(), HashMap::new());
        look.dropped(&mut counts, &mut reasons, true).await?;
        let start = Instant::now();
        let mut dropped = 0;
        for second in 1..=self.seconds {
            sleep_until(start + INTERVAL * second).await;
            for kind in look.dropped(&mut counts, &mut reasons, false).await? {
                dropped += kind.packets;
                self.answer
                    .show_line(&kind, || printable(&kind.to_string()) + "\n")?;
            }
        }
        if look.left_out > 0 {
            let kinds = look.left_out;
            eprintln!("podwire: {kinds} kinds of dropped packets were too many to be looked at");
        }
        // Without them the ports, and so whose packets these are, may be others by now.
        agent.sees_the_switch().await?;
        let seconds = self.seconds;
        if self.answer.format() == Format::Text {
            show(&match dropped {
                0 => format!("nothing was dropped in {seconds} s\n"),
                1 => format!("1 packet was dropped in {seconds} s\n"),
                many => format!("{many} packets were dropped in {seconds} s\n"),
            })?;
        }
        Ok(Exit::by_health(dropped == 0))
    }
}

impl Look<'_> {
    async fn call(&self, method: &str, arguments: &[&str]) -> Result<String, ToolError> {
        let answer = self
            .vswitchd
            .call(method, arguments, Instant::now() + PATIENCE);
        answer
            .await
            .map_err(|error| ToolError::Unable(error.to_string()))
    }

    /// What was dropped since the last look; at the first one, only what is there is noted.
    async fn dropped(
        &mut self,
        counts: &mut HashMap<String, u64>,
        reasons: &mut HashMap<String, Option<(&'static str, String)>>,
        first: bool,
    ) -> Result<Vec<Dropped>, ToolError> {
        let mut all: Vec<Dropped> = Vec::new();
        let mut current = HashMap::new();
        let mut traced = 0;
        for datapath in self.call("dpctl/dump-dps", &[]).await?.lines() {
            let ports = self.call("dpctl/show", &[datapath]).await?;
            let printed = self.call("dpctl/dump-flows", &["-m", datapath]).await?;
            for Drop { key, packets } in printed.lines().filter_map(Drop::read) {
                // The packet for which a flow is made is not among those that it counts.
                let before = counts.get(key).copied();
                let packets = packets + 1;
                current.insert(key.to_owned(), packets);
                let new = packets.saturating_sub(before.unwrap_or(0));
                if first || new == 0 {
                    continue;
                }
                if !reasons.contains_key(key) {
                    if traced == MOST_TRACED {
                        self.left_out += 1;
                        continue;
                    }
                    traced += 1;
                    let reason = self.reason(datapath, &ports, key).await?;
                    reasons.insert(key.to_owned(), reason);
                }
                let Some(Some((direction, reason))) = reasons.get(key) else {
                    continue;
                };
                let dropped = Dropped {
                    packets: new,
                    direction,
                    kind: Kind::of(key),
                    reason: reason.clone(),
                };
                let same =
                    |it: &&mut Dropped| (&it.kind, &it.reason) == (&dropped.kind, &dropped.reason);
                match all.iter_mut().find(same) {
                    Some(known) => known.packets += dropped.packets,
                    None => all.push(dropped),
                }
            }
        }
        reasons.retain(|key, _| current.contains_key(key));
        *counts = current;
        Ok(all)
    }

    /// Why the packets of a flow are dropped; None if they are not the pod's.
    async fn reason(
        &self,
        datapath: &str,
        ports: &str,
        key: &str,
    ) -> Result<Option<(&'static str, String)>, ToolError> {
        let name = datapath.split_once('@').map_or(datapath, |(_, name)| name);
        let traced = by_number(key, ports);
        let printed = self
            .call("ofproto/trace", &["--names", name, &traced])
            .await;
        // It is gone, or was made by what a packet had gone through (recirculation), and that is.
        let Ok(printed) = printed else {
            return Ok(None);
        };
        let arrives = Logical::of_receiver(&printed);
        let own = format!("in_port({})", self.port.name);
        let is_from = split(key).any(|it| it == own);
        let is_to = arrives == self.logical && arrives.port.is_some();
        let addresses: Vec<String> = self
            .port
            .addresses
            .iter()
            .map(|it| it.addr().to_string())
            .collect();
        let destination = Kind::of(key).destination;
        let is_addressed = destination.is_some_and(|it| addresses.contains(&it));
        let direction = match (is_from, is_to || is_addressed) {
            (true, _) => "from",
            (false, true) => "to",
            (false, false) => return Ok(None),
        };
        let way = openflow::Way::read(&printed);
        let logical = match (self.ovn, way.last_cookie()) {
            (Some(ovn), Some(cookie)) => ovn::logical_flow(ovn, cookie).await.ok(),
            _ => None,
        };
        Ok(Some((direction, logical.unwrap_or_else(|| way.reason()))))
    }
}

/// A flow's key with the number of its port, which `dpctl/show` lists as `  port 3: name` or
/// `  port 3: name (type)`: of a name that begins with a digit, ofproto/trace reads a number.
fn by_number(key: &str, ports: &str) -> String {
    let number = |name: &str| {
        ports.lines().find_map(|line| {
            let (number, rest) = line.trim().strip_prefix("port ")?.split_once(": ")?;
            (rest.split(' ').next() == Some(name)).then_some(number)
        })
    };
    let mut fields = split(key).map(|field| {
        let name = field
            .strip_prefix("in_port(")
            .and_then(|it| it.strip_suffix(')'));
        match name.and_then(number) {
            Some(number) => format!("in_port({number})"),
            None => field.to_owned(),
        }
    });
    fields.join(",")
}

impl Logical {
    /// Of a packet that a pod sends: what the flow of its port writes (ovn-architecture(7),
    /// "Architectural Physical Life Cycle of a Packet").
    fn of_sender(trace: &str) -> Self {
        let set = |field: &str| {
            let written = trace
                .lines()
                .filter_map(|line| line.trim().strip_prefix("set_field:"));
            let mut written = written.filter_map(|it| it.split_once("->"));
            let (value, _) = written.find(|(_, name)| *name == field)?;
            Some(value.to_owned())
        };
        Self {
            datapath: set("metadata"),
            port: set("reg14"),
        }
    }

    /// Of the packet at the end of a trace: the port for which it was meant.
    fn of_receiver(trace: &str) -> Self {
        let mut lines = trace.lines();
        let end = lines.find_map(|line| line.trim().strip_prefix("Final flow: "));
        let field = |name: &str| {
            let mut fields = end.unwrap_or_default().split(',');
            fields
                .find_map(|it| it.strip_prefix(name)?.strip_prefix('='))
                .map(str::to_owned)
        };
        Self {
            datapath: field("metadata"),
            port: field("reg15"),
        }
    }
}

impl<'a> Drop<'a> {
    /// Reads a line of `dpctl/dump-flows -m`; None if it is no flow, or one that drops nothing.
    fn read(line: &'a str) -> Option<Self> {
        let (key, rest) = line.split_once(", packets:")?;
        // Its identity is first.
        let key = match key.strip_prefix("ufid:") {
            Some(rest) => rest.split_once(", ")?.1,
            None => key,
        };
        let (packets, rest) = rest.split_once(',')?;
        let (_, actions) = rest.split_once("actions:")?;
        let actions = actions.split(", dp-extra-info:").next()?;
        let goes_on = ["recirc(", "tnl_pop(", "lb_output("];
        let mut ends = Vec::new();
        openflow::ends(actions, &mut None, &mut ends);
        let drops = ends.is_empty() && !goes_on.iter().any(|it| actions.contains(it));
        drops.then_some(Self {
            key,
            packets: packets.parse().ok()?,
        })
    }
}

impl Kind {
    /// What a flow's key says of its packets.
    fn of(key: &str) -> Self {
        let fields: Vec<(&str, &str)> = split(key)
            .filter_map(|field| field.strip_suffix(')')?.split_once('('))
            .collect();
        let inside = |name: &str| fields.iter().find(|it| it.0 == name).map(|it| it.1);
        let part = |inside: Option<&str>, name: &str| {
            let mut parts = inside?.split(',');
            parts
                .find_map(|it| it.strip_prefix(name)?.strip_prefix('='))
                .map(str::to_owned)
        };
        let transports = ["tcp", "udp", "sctp", "icmp", "icmpv6", "arp"];
        let transport = transports.into_iter().find(|name| inside(name).is_some());
        let ip = inside("ipv4").or(inside("ipv6"));
        let addresses = match inside("arp") {
            Some(arp) => [part(Some(arp), "sip"), part(Some(arp), "tip")],
            None => [part(ip, "src"), part(ip, "dst")],
        };
        let [source, destination] = addresses.map(|it| network(&it?));
        let has_ports = transport.filter(|it| ["tcp", "udp", "sctp"].contains(it));
        let port = has_ports.and_then(|it| part(inside(it), "dst"));
        Self {
            protocol: match (transport, ip) {
                (Some(transport), _) => transport.to_owned(),
                (None, Some(_)) => "ip".to_owned(),
                (None, None) => inside("eth_type").unwrap_or("any").to_owned(),
            },
            source,
            destination,
            destination_port: port.and_then(|it| number(&it)),
        }
    }
}

/// `10.0.0.0/255.0.0.0` as a network. With bits that are not compared it is the address of the
/// packet for which the flow was made. None is any.
fn network(text: &str) -> Option<String> {
    let Some((address, mask)) = text.split_once('/') else {
        return Some(text.to_owned());
    };
    let (address, mask): (IpAddr, IpAddr) = (address.parse().ok()?, mask.parse().ok()?);
    let length = ipnet::ip_mask_to_prefix(mask);
    match length.map(|length| ipnet::IpNet::new(address, length)) {
        Ok(Ok(net)) if net.prefix_len() < net.max_prefix_len() && net.network() == address => {
            (net.prefix_len() > 0).then(|| net.to_string())
        }
        _ => Some(address.to_string()),
    }
}

/// `80/0xffff`; None is any.
fn number(text: &str) -> Option<u16> {
    let value = text.split('/').next()?.parse().ok()?;
    (value != 0).then_some(value)
}

/// `3 packets  tcp 10.244.0.5 > 10.244.0.7 port 80: an ACL: ls_out_acl, ip4`
impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = &self.kind;
        let any = |it: &Option<String>| it.clone().unwrap_or_else(|| "any".to_owned());
        let count = match self.packets {
            1 => "1 packet".to_owned(),
            many => format!("{many} packets"),
        };
        write!(
            f,
            "{count:>10} {} the pod  {}",
            self.direction, kind.protocol
        )?;
        if kind.source.is_some() || kind.destination.is_some() {
            write!(f, " {} > {}", any(&kind.source), any(&kind.destination))?;
        }
        if let Some(port) = kind.destination_port {
            write!(f, " port {port}")?;
        }
        write!(f, ": {}", self.reason)
    }
}
