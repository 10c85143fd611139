//! `podwire trace`: follows one packet of a pod through the switch and, in OVN mode, through the
//! logical network, and explains where it ends.
//!
//! Nothing is sent: ovs-vswitchd and ovn-trace report what they would do with such a packet now.

mod ends;
pub(crate) mod openflow;
pub(crate) mod ovn;
mod packet;

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use macaddr::MacAddr6;
use podwire_ovs::unixctl::Unixctl;
use serde::Serialize;
use tokio::time::Instant;

use super::paint::{Paint, printable};
use super::{AnswerArgs, Exit, ToolError, show};
pub(crate) use ends::port_of;
use ends::{Place, address_is, address_of, mac_of, next_hop_mac, place};
use openflow::End;
use packet::{Packet, Proto};
use podwire::config::Mode;
use podwire::inspect::{PortList, PortView, StatusView};
use podwire::plan::ids;

/// Time limit of ovs-vswitchd, which traces in its main loop.
const PATIENCE: Duration = Duration::from_secs(10);
/// A web server's port.
const PORT: u16 = 80;

/// The flags of `podwire trace`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 0: the packet reaches POD-B, or leaves the node on its way there; 1: \
                  it does not; 3: OVN could not be asked.\nNothing is sent. podwire timings shows \
                  how long ADDs took."
)]
pub struct TraceArgs {
    /// The pod that sends: NAMESPACE/NAME, NAME or container ID
    #[arg(value_name = "POD-A")]
    from: String,
    /// The pod that receives, on this node, or any IP address
    #[arg(value_name = "POD-B")]
    to: String,
    /// icmp, tcp or udp [default: tcp with --port, else icmp]
    #[arg(long, hide_possible_values = true)]
    proto: Option<Proto>,
    /// The destination's port [default: 80]
    #[arg(long, value_name = "NUMBER")]
    port: Option<u16>,
    /// Use the pods' IPv6 addresses
    #[arg(short = '6', long)]
    ipv6: bool,
    /// POD-A's interface, if it has several
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Source address, instead of POD-A's
    #[arg(long, value_name = "ADDRESS")]
    src: Option<IpAddr>,
    /// Source MAC address, instead of POD-A's
    #[arg(long, value_name = "MAC")]
    src_mac: Option<MacAddr6>,
    /// MAC address of the next hop, if podwire can't find it
    #[arg(long, value_name = "MAC")]
    dst_mac: Option<MacAddr6>,
    /// List each flow that the packet matches
    #[arg(short, long)]
    verbose: bool,
    /// Print the output of ofproto/trace and ovn-trace
    #[arg(long, conflicts_with = "output")]
    raw: bool,
    #[command(flatten)]
    answer: AnswerArgs,
}

/// The result of a trace.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Traced {
    /// The packet as text.
    packet: String,
    from: Place,
    to: Place,
    /// None in plain mode.
    ovn: Option<Stretch<ovn::Way>>,
    open_vswitch: Stretch<openflow::Way>,
    /// Whether it reaches its destination, or leaves the node on its way there.
    arrives: bool,
}

/// What one component does with the packet.
#[derive(Debug, Serialize)]
struct Stretch<W> {
    /// As text: what it does with the packet, or why that is unknown.
    what: String,
    verdict: Verdict,
    way: Option<W>,
    #[serde(skip)]
    raw: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Arrives,
    Dropped,
    /// It goes to a place other than the destination.
    Astray,
    /// The component could not be queried.
    Unknown,
}

impl TraceArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        let agent = self.answer.agent();
        let status: StatusView = agent.get("/v1/status").await?;
        let list: PortList = agent.get("/v1/ports").await?;
        let to_address: Option<IpAddr> = self.to.parse().ok();
        let wants_v6 = to_address.map_or(self.ipv6, |ip| ip.is_ipv6());
        let from = port_of(&list.ports, &self.from, self.interface.as_deref())?;
        let src = match self.src {
            Some(src) => src,
            None => address_of(from, wants_v6)?,
        };
        let (receiver, dst) = match to_address {
            Some(ip) => (list.ports.iter().find(|port| address_is(port, ip)), ip),
            None => {
                let receiver = port_of(&list.ports, &self.to, None)?;
                (Some(receiver), address_of(receiver, wants_v6)?)
            }
        };
        if src.is_ipv4() != dst.is_ipv4() {
            let what = format!("--src {src} and destination {dst} are of different families");
            return Err(ToolError::Usage(what));
        }
        let dst_mac = match self.dst_mac {
            Some(mac) => mac,
            None => next_hop_mac(from, dst, receiver, &status).await?,
        };
        let packet = Packet {
            proto: match (self.proto, self.port) {
                (Some(proto), _) => proto,
                (None, Some(_)) => Proto::Tcp,
                (None, None) => Proto::Icmp,
            },
            src_mac: match self.src_mac {
                Some(mac) => mac,
                None => mac_of(from)?,
            },
            dst_mac,
            src,
            dst,
            port: self.port.unwrap_or(PORT),
        };
        let ovn = match status.mode == Mode::Ovn.name() {
            true => Some(through_ovn(&packet, from, receiver, &status).await),
            false => None,
        };
        let open_vswitch = through_switch(&packet, from, receiver, &status).await?;
        let goes_on = |verdict| matches!(verdict, Verdict::Arrives | Verdict::Unknown);
        let traced = Traced {
            packet: packet.to_string(),
            from: place(Some(from), src, packet.src_mac),
            to: place(receiver, dst, packet.dst_mac),
            arrives: open_vswitch.verdict == Verdict::Arrives
                && ovn.as_ref().is_none_or(|it| goes_on(it.verdict)),
            ovn,
            open_vswitch,
        };
        match self.raw {
            true => show(&raw(&traced))?,
            false => self.answer.show(&traced, |paint| {
                text(&traced, &status.bridge, self.verbose, paint)
            })?,
        }
        let ovn = traced.ovn.as_ref().map(|it| it.verdict);
        Ok(match (traced.arrives, ovn) {
            (true, Some(Verdict::Unknown)) => Exit::Blind,
            (arrives, _) => Exit::by_health(arrives),
        })
    }
}

async fn through_switch(
    packet: &Packet,
    from: &PortView,
    receiver: Option<&PortView>,
    status: &StatusView,
) -> Result<Stretch<openflow::Way>, ToolError> {
    let unable = |why: String| ToolError::Unable(format!("ofproto/trace: {why}"));
    let Some(in_port) = from.ofport.filter(|number| *number > 0) else {
        let why = format!("port {} has no OpenFlow port number", from.name);
        return Err(unable(why));
    };
    let bridge = from.bridge.as_deref().unwrap_or(&status.bridge);
    let rundir = status.database.socket.parent().unwrap_or(Path::new("/"));
    let vswitchd = Unixctl::for_daemon(rundir, "ovs-vswitchd");
    let vswitchd = vswitchd.map_err(|error| unable(error.to_string()))?;
    let flow = packet.openflow(in_port);
    let arguments = ["--names", bridge, &flow];
    let printed = vswitchd
        .call("ofproto/trace", &arguments, Instant::now() + PATIENCE)
        .await
        .map_err(|error| unable(error.to_string()))?;
    let way = openflow::Way::read(&printed);
    let (what, verdict) = switch_verdict(&way, receiver, bridge);
    let command = arguments.map(|it| format!("'{it}'")).join(" ");
    Ok(Stretch {
        what,
        verdict,
        way: Some(way),
        raw: format!("# ovs-appctl ofproto/trace {command}\n{printed}\n"),
    })
}

fn switch_verdict(
    way: &openflow::Way,
    receiver: Option<&PortView>,
    bridge: &str,
) -> (String, Verdict) {
    if way.ends.is_empty() {
        return (format!("drops it: {}", way.reason()), Verdict::Dropped);
    }
    let count = way.ends.len();
    if let Some(receiver) = receiver {
        let whose = receiver.pod.as_deref().unwrap_or("its pod");
        let name = &receiver.name;
        if way.ports().any(|port| port == name) {
            let what = match count {
                1 => format!("delivers it to {whose} by port {name}"),
                _ => format!("floods it to {count} ports, of which {name} is {whose}'s"),
            };
            return (what, Verdict::Arrives);
        }
    }
    let ends: Vec<String> = way.ends.iter().map(|end| end_text(end, bridge)).collect();
    let ends = ends.join(", ");
    match (receiver, &way.ends[0]) {
        (Some(receiver), End::Port(_)) => {
            let wanted = &receiver.name;
            (
                format!("sends it {ends}, and not to port {wanted}"),
                Verdict::Astray,
            )
        }
        _ => (format!("sends it {ends}"), Verdict::Arrives),
    }
}

fn end_text(end: &End, bridge: &str) -> String {
    match end {
        End::Port(name) if name == bridge => format!("to the node itself ({bridge})"),
        End::Port(name) => format!("out by port {name}"),
        End::Tunnel(peer) => format!("through the tunnel to {peer}"),
        End::Controller => "to ovn-controller, which answers or resolves it".to_owned(),
    }
}

async fn through_ovn(
    packet: &Packet,
    from: &PortView,
    receiver: Option<&PortView>,
    status: &StatusView,
) -> Stretch<ovn::Way> {
    let unknown = |why: String| Stretch {
        what: format!("was not asked: {why}"),
        verdict: Verdict::Unknown,
        way: None,
        raw: String::new(),
    };
    let Some(southbound) = status.switch.ovn.remote.as_deref() else {
        return unknown("external_ids:ovn-remote is not set".to_owned());
    };
    let Some(iface_id) = from.external_ids.get(ids::IFACE_ID) else {
        return unknown(format!("port {} has no iface-id", from.name));
    };
    let microflow = packet.ovn(iface_id);
    let printed = match ovn::trace(&status.switch.ovn, &microflow).await {
        Ok(printed) => printed,
        Err(why) => return unknown(why),
    };
    let way = ovn::Way::read(&printed);
    let wanted = receiver.and_then(|port| port.external_ids.get(ids::IFACE_ID));
    let ports = way.ports.join(", ");
    let (what, verdict) = match wanted {
        _ if way.ports.is_empty() => (format!("drops it: {}", way.reason()), Verdict::Dropped),
        Some(wanted) if !way.ports.contains(wanted) => {
            let what = format!("sends it to logical port {ports}, and not to {wanted}");
            (what, Verdict::Astray)
        }
        _ => (
            format!("delivers it to logical port {ports}"),
            Verdict::Arrives,
        ),
    };
    Stretch {
        what,
        verdict,
        way: Some(way),
        raw: format!("# ovn-trace --db={southbound} '{microflow}'\n{printed}\n"),
    }
}

fn raw(traced: &Traced) -> String {
    let ovn = traced.ovn.as_ref().map_or("", |stretch| &stretch.raw);
    format!("{ovn}{}", traced.open_vswitch.raw)
}

fn text(traced: &Traced, bridge: &str, verbose: bool, paint: Paint) -> String {
    let from = traced.from.pod.as_deref().unwrap_or("the pod");
    let port = traced.from.port.as_deref().unwrap_or_default();
    let head = format!("{}, from {from} by port {port} of {bridge}", traced.packet);
    let mut text = format!("{}\n", printable(&head));
    let mut put = |who: &str, what: &str, verdict: Verdict, steps: Vec<String>| {
        for step in steps.iter().filter(|_| verbose) {
            text.push_str(&format!("  {}\n", printable(step)));
        }
        let what = printable(what);
        let what = match verdict {
            Verdict::Arrives => paint.good(&what),
            Verdict::Unknown => paint.doubtful(&what),
            Verdict::Dropped | Verdict::Astray => paint.bad(&what),
        };
        text.push_str(&format!("{who} {what}\n"));
    };
    if let Some(ovn) = &traced.ovn {
        let steps = ovn.way.iter().flat_map(|way| &way.steps);
        put(
            "OVN",
            &ovn.what,
            ovn.verdict,
            steps.map(ovn::Step::text).collect(),
        );
    }
    let switch = &traced.open_vswitch;
    let steps = switch.way.iter().flat_map(|way| &way.steps);
    let steps = steps.map(openflow::Step::text).collect();
    put("Open vSwitch", &switch.what, switch.verdict, steps);
    text
}

#[cfg(test)]
mod tests;
