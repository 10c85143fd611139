//! The path through OVN's logical network, from ovn-trace(8): it knows the purpose of OpenFlow
//! flows, such as an ACL, and it continues on other nodes.

use std::io;
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use macaddr::MacAddr6;
use serde::Serialize;
use tokio::process::Command;
use tokio::time::timeout;

use podwire::duration;
use podwire::ports::OvnView;

/// Time limit of OVN's programs, which first copy the southbound database.
const PATIENCE: Duration = Duration::from_secs(15);
/// More passes through connection tracking than any packet needs.
const TRACKED: usize = 8;

/// A packet's path through the logical network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Way {
    pub(super) steps: Vec<Step>,
    /// The logical ports by which it leaves.
    pub(super) ports: Vec<String>,
}

/// A stage of a logical switch's or router's pipeline.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    /// The switch or router.
    datapath: String,
    /// Such as `ls_in_acl`.
    stage: String,
    /// The logical flow's match and priority.
    flow: String,
    actions: Vec<String>,
}

/// Runs ovn-trace for a microflow.
///
/// # Errors
/// It is not installed, or failed.
pub(super) async fn trace(ovn: &OvnView, microflow: &str) -> Result<String, String> {
    let mut arguments = Vec::new();
    // As in ofproto/trace: the first packet of a connection.
    arguments.extend(["--ct=trk,new"; TRACKED]);
    arguments.push(microflow);
    let printed = run("ovn-trace", ovn, &arguments).await?;
    match printed.contains("unknown port ") {
        true => {
            Err("its southbound database has no logical port for the pod's interface".to_owned())
        }
        false => Ok(printed),
    }
}

/// The MAC address of the router port with this address.
///
/// # Errors
/// ovn-sbctl is not installed, or failed, or there is no such port.
pub(super) async fn router_mac(ovn: &OvnView, gateway: IpAddr) -> Result<MacAddr6, String> {
    let find = [
        "--bare",
        "--columns=mac",
        "find",
        "port_binding",
        "type=patch",
    ];
    let printed = run("ovn-sbctl", ovn, &[&["--timeout=10"][..], &find].concat()).await?;
    let bears = |line: &&str| {
        let addresses = line.split_whitespace().skip(1);
        let mut addresses = addresses.filter_map(|it| it.split('/').next());
        addresses.any(|it| it.parse() == Ok(gateway))
    };
    let line = printed.lines().find(bears);
    let mac = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    mac.ok_or_else(|| format!("its southbound database has no router port with address {gateway}"))
}

async fn run(program: &str, ovn: &OvnView, arguments: &[&str]) -> Result<String, String> {
    let southbound = ovn.remote.as_deref();
    let southbound = southbound.ok_or("external_ids:ovn-remote is not set")?;
    let flags = ["--private-key", "--certificate", "--ca-cert"].iter();
    let keys = flags
        .zip(&ovn.keys)
        .map(|(flag, file)| format!("{flag}={}", file.display()));
    let mut command = Command::new(program);
    command
        .arg(format!("--db={southbound}"))
        .args(keys)
        .args(arguments)
        .kill_on_drop(true)
        .stdin(Stdio::null());
    let output = match timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!("{program} is not installed on this node"));
        }
        Ok(Err(error)) => return Err(format!("{program}: {error}")),
        Err(_) => {
            let waited = duration::text(PATIENCE);
            return Err(format!("{program} has not ended within {waited}"));
        }
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} failed: {}", said.trim()))
}

impl Way {
    pub(super) fn read(printed: &str) -> Self {
        let mut way = Self::default();
        let mut datapath = String::new();
        for line in printed.lines() {
            let text = line.trim();
            if let Some((_, rest)) = text.split_once("(dp=\"") {
                datapath = rest.split('"').next().unwrap_or_default().to_owned();
            } else if let Some(rest) = text.strip_prefix("/* output to \"") {
                let port = rest.split('"').next().unwrap_or_default().to_owned();
                // A patch port leads into the next switch or router.
                if !rest.contains("type \"patch\"") && !way.ports.contains(&port) {
                    way.ports.push(port);
                }
            } else if let Some((stage, flow)) = step(text) {
                way.steps.push(Step {
                    datapath: datapath.clone(),
                    stage: stage.to_owned(),
                    flow: flow.to_owned(),
                    actions: Vec::new(),
                });
            } else if line.starts_with(' ')
                && let Some(step) = way.steps.last_mut()
            {
                step.actions.push(text.trim_end_matches(';').to_owned());
            }
        }
        way
    }

    /// Why the packet goes no further than its last stage.
    pub(super) fn reason(&self) -> String {
        let Some(last) = self.steps.last() else {
            return "it meets no logical flow".to_owned();
        };
        let meaning = meaning(&last.stage);
        format!(
            "{meaning}{} of {}, {}",
            last.stage, last.datapath, last.flow
        )
    }
}

impl Step {
    pub(super) fn text(&self) -> String {
        let place = format!("{} {}", self.datapath, self.stage);
        format!("{place:<34} {}: {}", self.flow, self.actions.join("; "))
    }
}

/// What it means that a packet ends in this stage; empty if its name says it all.
fn meaning(stage: &str) -> &'static str {
    match stage {
        stage if stage.contains("_acl") => "an ACL: ",
        stage if stage.contains("port_sec") => "port security: ",
        "ls_in_l2_unknown" | "ls_in_l2_lkup" => {
            "no logical port has the destination's MAC address: "
        }
        stage if stage.starts_with("lr_in_ip_routing") => "the router has no route: ",
        stage if stage.starts_with("lr_in_arp") => {
            "the router does not know the next hop's MAC address: "
        }
        "lr_in_admission" | "lr_in_ip_input" => "the router does not take it: ",
        _ => "",
    }
}

/// The logical flow from which ovn-controller made a flow with this cookie: the first 32 bits of
/// its UUID (ovn-architecture(7)).
///
/// # Errors
/// ovn-sbctl is not installed, or failed, or the logical flow is gone.
pub(crate) async fn logical_flow(ovn: &OvnView, cookie: u64) -> Result<String, String> {
    let record = format!("{cookie:08x}");
    let columns = "--columns=match,external_ids";
    let list = ["--format=json", columns, "list", "logical_flow", &record];
    let printed = run("ovn-sbctl", ovn, &[&["--timeout=10"][..], &list].concat()).await?;
    let table: serde_json::Value = serde_json::from_str(&printed).unwrap_or_default();
    let row = &table["data"][0];
    let ids = row[1][1].as_array().into_iter().flatten();
    let stage = ids.filter(|pair| pair[0] == "stage-name");
    let stage = stage.filter_map(|pair| pair[1].as_str()).next();
    let stage = stage.ok_or_else(|| format!("there is no logical flow {record}"))?;
    let matched = row[0].as_str().unwrap_or_default();
    Ok(format!("{}{stage}, {matched}", meaning(stage)))
}

/// Parses ` 4. ls_out_acl (northd.c:6588): ip4, priority 2000, uuid 4b724bfc` into stage and flow.
fn step(line: &str) -> Option<(&str, &str)> {
    let (number, rest) = line.split_once(". ")?;
    number.parse::<u8>().ok()?;
    let (stage, flow) = rest.split_once(": ")?;
    let stage = stage.split_whitespace().next()?;
    let flow = flow.rsplit_once(", uuid ").map_or(flow, |(flow, _)| flow);
    Some((stage, flow))
}
