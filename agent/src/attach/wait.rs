//! The wait at the end of an ADD, until the switch and, if required, OVN have taken up the ports.

use super::Error;
use super::call::Add;
use crate::config::Wait;
use crate::fault::fault_point;
use crate::flows::Reservation;
use crate::observe::{NORTHD_STEP, Trace, WaitFor};
use crate::ports::AddedPort;

const INSTALLED_STEP: &str = "ovn-controller: installed";

impl Add<'_> {
    /// Waits for all ports of one ADD together, until one deadline.
    pub(super) async fn taken_up(
        &self,
        ports: &[AddedPort],
        reserved: &mut [Option<Reservation>],
        trace: &mut Trace,
    ) -> Result<(), Error> {
        let on_bridge = async {
            let _waiting = self.node.metrics.wait(WaitFor::Ofport);
            self.node
                .ports
                .wait_ofports(ports, self.deadline.left())
                .await
        };
        trace.step("ovs-vswitchd: ofport", on_bridge).await?;
        if let Some(on_bridge) = self.on_bridge {
            on_bridge.confirm_ofport(self.node, &self.call.key.ifname, ports)?;
        }
        if self.node.config.ovn.wait == Wait::OvnInstalled && self.other_bridge().is_none() {
            let waiting = self.node.metrics.wait(WaitFor::OvnInstalled);
            let begun = trace.begin(INSTALLED_STEP);
            let left = self.deadline.left();
            let northd = self.node.ports.wait_installed(ports, left).await?;
            drop(waiting);
            let step = if northd { NORTHD_STEP } else { INSTALLED_STEP };
            trace.phase(step, begun);
        }
        if reserved.iter().any(Option::is_some) {
            let installed = self.flows_installed(ports, reserved);
            trace.step("ovs-vswitchd: flows", installed).await?;
        }
        fault_point!("add-ofport");
        Ok(())
    }
}
