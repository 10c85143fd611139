//! A packet's path through OVN's logical network, from ovn-trace(8), which reads the southbound
//! database's flows as ovn-controller does.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use itertools::Itertools as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::ToolError;
use crate::config::Config;
use crate::ipam::Mac;

/// Time limit of ovn-trace, which first reads the whole database.
const LIMIT: Duration = Duration::from_secs(60);

/// The packet that a pod sends.
pub(super) struct Packet {
    /// The logical switch that it enters.
    pub(super) switch: String,
    /// The logical port by which it enters.
    pub(super) port: String,
    /// Source and destination.
    pub(super) macs: (Mac, Mac),
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    /// To this TCP port; None for ICMP echo.
    pub(super) tcp: Option<u16>,
}

impl Packet {
    fn microflow(&self) -> String {
        let (source, destination) = self.macs;
        let family = if self.to.is_ipv4() { "ip4" } else { "ip6" };
        let transport = match (self.tcp, self.to.is_ipv4()) {
            (Some(port), _) => format!("tcp.src == 40000 && tcp.dst == {port} && tcp.flags == 2"),
            (None, true) => "icmp4.type == 8".to_owned(),
            (None, false) => "icmp6.type == 128".to_owned(),
        };
        format!(
            r#"inport == "{}" && eth.src == {source} && eth.dst == {destination} && {family}.src == {} && {family}.dst == {} && ip.ttl == 64 && {transport}"#,
            self.port, self.from, self.to
        )
    }
}

/// What happens to a packet, as text, and whether it arrives.
pub(super) async fn trace(config: &Config, packet: &Packet) -> Result<(String, bool), ToolError> {
    let mut command = Command::new("ovn-trace");
    command
        .arg(format!("--db={}", config.sb_db))
        .args(["--no-leader-only", "--minimal"])
        // Each lookup of a connection on the path finds a new one.
        .args(["--ct=new"; 8])
        .args([&packet.switch, &packet.microflow()])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if let Some(keys) = config.tls() {
        let flags = [
            ("--private-key", keys.private_key),
            ("--certificate", keys.certificate),
            ("--ca-cert", keys.ca_certificate),
        ];
        for (flag, path) in flags {
            command.arg(flag).arg(path);
        }
    }
    let failed = |problem: String| ToolError::Trace(format!("ovn-trace: {problem}"));
    let output = match timeout(LIMIT, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => {
            let hint = "it comes with OVN (package ovn-common)";
            return Err(failed(format!("it can't be started: {error}; {hint}")));
        }
        Err(_) => return Err(failed(format!("it did not end in {} s", LIMIT.as_secs()))),
    };
    if !output.status.success() {
        let problem = String::from_utf8_lossy(&output.stderr);
        return Err(failed(problem.trim().to_owned()));
    }
    let verdict = verdict(&String::from_utf8_lossy(&output.stdout));
    let arrives = verdict.starts_with("yes");
    Ok((verdict, arrives))
}

/// The result of the actions in a minimal trace.
fn verdict(trace: &str) -> String {
    let has = |actions: &[&str]| actions.iter().any(|action| trace.contains(action));
    // The replies of a router or of a load balancer leave by the port where the packet arrived.
    if has(&[
        "tcp_reset",
        "icmp4 {",
        "icmp6 {",
        "icmp4_error",
        "icmp6_error",
        "reject",
    ]) {
        return "no, it is rejected".to_owned();
    }
    if has(&["icmp4.type = 0", "icmp6.type = 129", "icmp6_echo_reply"]) {
        return "yes, a router answers".to_owned();
    }
    // Then a request for the address's owner is sent to every port.
    if has(&["arp {", "nd_ns {"]) {
        return "not as far as OVN knows: it sends an ARP or ND request for the address".to_owned();
    }
    let outputs: BTreeSet<&str> = trace
        .split("output(\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    match outputs.is_empty() {
        true => "no, it is dropped".to_owned(),
        false => {
            let ports = outputs.iter().join(", ");
            format!("yes, it leaves the logical network at port {ports}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn a_trace_says_where_a_packet_leaves_or_that_it_does_not() {
        for (trace, expected) in [
            (
                "ct_next(ct_state=new|trk) {\n  output(\"ns_b\");\n};",
                "yes, it leaves the logical network at port ns_b",
            ),
            (
                "ct_lb_mark { reg0 = 0; tcp_reset { output(\"ns_a\"); }; };",
                "no, it is rejected",
            ),
            ("# icmp,reg14=0x1\nip.ttl--;", "no, it is dropped"),
        ] {
            assert_eq!(verdict(trace), expected);
        }
    }
}
