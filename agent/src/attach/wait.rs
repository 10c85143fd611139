//! The wait at the end of an ADD: until the switch, and OVN where it is to, have taken up the ports.

use super::deadline::Deadline;
use super::turns::Cancel;
use super::{Agent, Error};
use crate::config::Wait;
use crate::observe::{Trace, WaitFor};
use crate::ports::{AddedPort, PortError};

impl Agent {
    /// Waits for all ports of one ADD together, by one deadline, and no longer than somebody wants them.
    pub(super) async fn wait_taken_up(
        &self,
        ports: &[AddedPort],
        cancel: &Cancel,
        deadline: Deadline,
        trace: &mut Trace,
    ) -> Result<(), Error> {
        tokio::select! {
            taken_up = self.taken_up(ports, deadline, trace) => Ok(taken_up?),
            reason = cancel.cancelled() => Err(Error::Cancelled(reason)),
        }
    }

    async fn taken_up(
        &self,
        ports: &[AddedPort],
        deadline: Deadline,
        trace: &mut Trace,
    ) -> Result<(), PortError> {
        let started = trace.begin("ovs-vswitchd: ofport");
        let waiting = self.metrics.wait(WaitFor::Ofport);
        self.ports.wait_ofports(ports, deadline.left()).await?;
        drop(waiting);
        trace.phase("ovs-vswitchd: ofport", started);
        if self.config.ovn.wait == Wait::OvnInstalled {
            let installing = trace.begin("ovn-controller: installed");
            let _waiting = self.metrics.wait(WaitFor::OvnInstalled);
            self.ports.wait_installed(ports, deadline.left()).await?;
            trace.phase("ovn-controller: installed", installing);
        }
        Ok(())
    }
}
