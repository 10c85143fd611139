//! The conformance suite on podwire: a node with a switch and an agent, and the plugin on it.

use std::path::PathBuf;

use cni_conformance::{Finding, Outage, Report, Selection, Subject, Trouble, run};

use crate::binaries::conformance_binary;
use crate::failure::{Failure, Step};
use crate::{AgentOptions, TestNode, plugin_binary};

/// Where the calling thread is: the node's network namespace, for a run that begins there.
const HERE: &str = "/proc/thread-self/ns/net";

/// The rows that a pod has: gone when its DEL has returned.
const ROWS: &str =
    "ovs-vsctl --timeout=10 --bare --columns=name list Port -- --columns=_uuid list QoS";

/// STATUS has to notice a switch that is there and does nothing.
const STOP_SWITCH: &str = "kill -STOP $(cat /run/openvswitch/ovs-vswitchd.pid)";
const RESUME_SWITCH: &str = "kill -CONT $(cat /run/openvswitch/ovs-vswitchd.pid)";

/// Runs cases of the suite on podwire in plain-OVS mode, with the minimal configuration.
pub fn podwire(
    selection: &Selection,
    told: impl FnMut(&Finding) + Send,
) -> Result<Report, Failure> {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default().with("--cni-bin-dir /run"));
    let conf = br#"{"name": "pods", "type": "podwire-cni"}"#;
    let mut subject = suite(Subject::new(plugin_binary(), conf))?;
    // Not in its configuration here: its own addresses are judged, and delegation beside them.
    subject.delegates = true;
    subject.host_netns = Some(PathBuf::from(HERE));
    subject.state = vec!["/run/podwire".into()];
    subject.held = Some(ROWS.into());
    subject.outage = Some(Outage {
        begin: STOP_SWITCH.into(),
        end: RESUME_SWITCH.into(),
    });
    let report = node
        .place()
        .run(|| suite(judge(subject, selection, told)))?;
    agent.stop();
    node.leftovers().assert_none();
    Ok(report)
}

/// Runs cases of the suite on a plugin, with the suite's own program behind the recording IPAM
/// plugin.
pub fn judge(
    mut subject: Subject,
    selection: &Selection,
    mut told: impl FnMut(&Finding),
) -> Result<Report, Trouble> {
    subject.recorder = conformance_binary();
    run(&subject, selection, &mut |_, finding| {
        if let Some(finding) = finding {
            told(finding);
        }
    })
}

fn suite<T>(result: Result<T, Trouble>) -> Result<T, Failure> {
    result
        .map_err(std::io::Error::other)
        .step(|| "run the conformance suite")
}
