//! The forking way: `ip` for the link, and the `ovs-vsctl` calls that ovn-kubernetes 1.3 makes,
//! eight per ADD and four per DEL, one after the other. Their Go runtime's start, API requests and
//! polls are left out, to its advantage.

use std::process::Command;
use std::time::Duration;

use super::{Subject, Worker};
use crate::error::Error;
use crate::exec::exec;
use crate::sample::Sample;
use crate::seat::{GATEWAY_V4, GATEWAY_V6, MTU, Seat, Stack};

/// The tools, on the same bridge as podwire.
#[derive(Debug)]
pub struct Forking {
    bridge: String,
}

impl Forking {
    /// For that bridge.
    pub fn new(bridge: &str) -> Self {
        Self {
            bridge: bridge.to_owned(),
        }
    }
}

impl Subject for Forking {
    fn name(&self) -> &'static str {
        "forking"
    }

    fn worker(&self) -> Result<Box<dyn Worker + '_>, Error> {
        Ok(Box::new(ForkingWorker(&self.bridge)))
    }
}

struct ForkingWorker<'a>(&'a str);

impl Worker for ForkingWorker<'_> {
    fn add(&mut self, seat: &Seat<'_>) -> Result<Sample, Error> {
        let mut took = Duration::ZERO;
        for arguments in links(seat) {
            took += tool("ip", &arguments, seat)?;
        }
        for arguments in add_port(seat, self.0) {
            took += tool("ovs-vsctl", &arguments, seat)?;
        }
        Ok(Sample::whole(&seat.pod.container, took))
    }

    fn del(&mut self, seat: &Seat<'_>) -> Result<Sample, Error> {
        let mut took = Duration::ZERO;
        for arguments in del_port(seat, self.0) {
            took += tool("ovs-vsctl", &arguments, seat)?;
        }
        took += tool("ip", &words(&["link", "del", seat.host_name()]), seat)?;
        Ok(Sample::whole(&seat.pod.container, took))
    }
}

fn links(seat: &Seat<'_>) -> Vec<Vec<String>> {
    let netns = seat.pod.netns.trim_start_matches("/run/netns/");
    let (host, pod, mac, mtu) = (
        seat.host_name(),
        seat.pod.interface.as_str(),
        seat.mac_text(),
        MTU.to_string(),
    );
    let mut commands = vec![
        words(&[
            "link", "add", host, "mtu", &mtu, "type", "veth", "peer", "name", pod, "address", &mac,
            "mtu", &mtu, "netns", netns,
        ]),
        words(&["link", "set", host, "up"]),
        words(&["-n", netns, "link", "set", "lo", "up"]),
        words(&["-n", netns, "link", "set", pod, "up"]),
    ];
    for address in seat.addresses() {
        commands.push(words(&[
            "-n", netns, "addr", "add", &address, "dev", pod, "nodad",
        ]));
    }
    let (v4, v6) = (GATEWAY_V4.to_string(), GATEWAY_V6.to_string());
    commands.push(words(&["-n", netns, "route", "add", "default", "via", &v4]));
    if seat.stack == Stack::Dual {
        commands.push(words(&[
            "-n", netns, "-6", "route", "add", "default", "via", &v6,
        ]));
    }
    commands
}

fn add_port(seat: &Seat<'_>, bridge: &str) -> Vec<Vec<String>> {
    let (host, sandbox) = (seat.host_name(), sandbox(seat));
    let iface_id = seat.iface_id();
    let ids = [
        format!("external_ids:attached_mac={}", seat.mac_text()),
        format!("external_ids:iface-id={iface_id}"),
        format!("external_ids:iface-id-ver={}", seat.pod.uid),
        format!(
            "external_ids:ip_addresses={}",
            seat.addresses().join(",").replace(':', "\\:")
        ),
        format!("external_ids:sandbox={}", seat.pod.container),
    ];
    let mut add = words(&["add-port", bridge, host, "--", "set", "interface", host]);
    add.extend(ids);
    [
        find(
            "Interface",
            "name",
            &format!("external-ids:iface-id={iface_id}"),
        ),
        words(&["get", "Bridge", bridge, "datapath_type"]),
        add,
        find("interface", "name", &sandbox),
        words(&["clear", "port", host, "qos"]),
        find("qos", "_uuid", &sandbox),
        words(&[
            "--if-exists",
            "get",
            "interface",
            host,
            "external-ids:iface-id",
        ]),
        words(&["--if-exists", "get", "interface", host, "ofport"]),
    ]
    .into_iter()
    .map(with_timeout)
    .collect()
}

fn del_port(seat: &Seat<'_>, bridge: &str) -> Vec<Vec<String>> {
    let (host, sandbox) = (seat.host_name(), sandbox(seat));
    [
        find("interface", "name", &sandbox),
        words(&["clear", "port", host, "qos"]),
        find("qos", "_uuid", &sandbox),
        words(&["--if-exists", "--with-iface", "del-port", bridge, host]),
    ]
    .into_iter()
    .map(with_timeout)
    .collect()
}

fn sandbox(seat: &Seat<'_>) -> String {
    format!("external-ids:sandbox={}", seat.pod.container)
}

fn find(table: &str, column: &str, condition: &str) -> Vec<String> {
    let columns = format!("--columns={column}");
    words(&[
        "--no-heading",
        "--format=csv",
        "--data=bare",
        &columns,
        "find",
        table,
        condition,
    ])
}

fn with_timeout(mut arguments: Vec<String>) -> Vec<String> {
    arguments.insert(0, "--timeout=30".into());
    arguments
}

fn tool(program: &str, arguments: &[String], seat: &Seat<'_>) -> Result<Duration, Error> {
    let mut command = Command::new(program);
    command.args(arguments);
    let shown = format!("{program} {}", arguments.join(" "));
    Ok(exec(&mut command, b"", &shown, seat.number)?.took)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
