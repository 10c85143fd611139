//! `podwire node cleanup`.

use std::pin::pin;
use std::process::ExitCode;

use clap::Args;
use podwire_daemon::settings::node_name;

use super::{Failure, ended, hold, report, say};
use crate::announce;
use crate::reconcile::Reconciler;
use crate::settings::{ApiArgs, PlaceArgs};
use crate::snapshot::Goal;

#[derive(Debug, Args)]
pub(super) struct CleanupArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// Clean up even if pods have ports on this node; they lose their connection to the outside
    #[arg(long)]
    force: bool,
    /// If `podwire node run` is active, wait until it ends instead of failing; for a DaemonSet
    #[arg(long)]
    wait: bool,
    /// Also remove what the cluster stores about this node: its annotations in the API, its chassis
    /// in the southbound database
    #[arg(long)]
    cluster: bool,
    /// With --cluster: this node's name in Kubernetes [default: the host name, in lower case]
    #[arg(long, value_name = "NAME", env = "PODWIRE_NODE_NAME")]
    node_name: Option<String>,
    #[command(flatten)]
    api: ApiArgs,
}

impl CleanupArgs {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let goal = Goal {
            settings: None,
            take_over: false,
            api_server: None,
            uplink: None,
        };
        let name = node_name(self.node_name)?;
        let access = self.api.access()?.filter(|_| self.cluster);
        let client = match access {
            Some(access) => Some(podwire_apiserver::client(&access).await?),
            None => None,
        };
        let places = self.places.check()?;
        let journal = hold(&places, self.wait, pin!(ended()?)).await?;
        let mut reconciler = Reconciler::with_journal(goal, &places, journal).await?;
        let chassis = reconciler.snapshot().await?.actual.switch.chassis();
        let done = reconciler.cleanup(self.force).await?;
        report(&done, &reconciler)?;
        if let Some(client) = client {
            let withdrawn = announce::withdraw(&client, &name).await;
            let count = withdrawn.map_err(Failure::Withdraw)?;
            say(&format!("removed {count} annotations of node {name}\n"))?;
        }
        if let Some(chassis) = chassis.filter(|_| self.cluster) {
            // ovn-controller has left: the removed key told it to.
            let text = match chassis.delete().await? {
                0 => format!("no chassis {} in the southbound database\n", chassis.name),
                _ => format!(
                    "removed chassis {} from the southbound database\n",
                    chassis.name
                ),
            };
            say(&text)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
