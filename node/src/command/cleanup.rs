//! `podwire node cleanup`.

use std::collections::BTreeSet;
use std::pin::pin;
use std::process::ExitCode;

use clap::Args;
use podwire_apiserver::Access;
use podwire_cluster::annotations::DOOR_MAC;
use podwire_daemon::output::OutputArgs;
use podwire_daemon::settings::node_name;

use super::{Done, Failure, ended, hold};
use crate::DOOR;
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
    #[command(flatten)]
    output: OutputArgs,
}

impl CleanupArgs {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let goal = Goal::default();
        let name = node_name(self.node_name)?;
        let access = self.api.access()?;
        let client = match &access {
            Some(access) if self.cluster => Some(podwire_apiserver::client(access).await?),
            _ => None,
        };
        let places = self.places.check()?;
        let mut answer = Done::new(self.output);
        let tell = |text| answer.say(text);
        let journal = hold(&places, self.wait, tell, pin!(ended()?)).await?;
        let mut reconciler = Reconciler::with_journal(goal, &places, journal).await?;
        let switch = reconciler.snapshot().await?.actual.switch;
        let (chassis, has_door) = (switch.chassis(), switch.ports.contains_key(DOOR));
        let networks = switch.networks;
        let done = reconciler.cleanup(self.force).await?;
        answer.steps(&done, &reconciler)?;
        if let Some(client) = client {
            let withdrawn = announce::withdraw(&client, &name).await;
            let (count, resources) = withdrawn.map_err(Failure::Withdraw)?;
            answer.say(format!("removed {count} annotations of node {name}"))?;
            if resources > 0 {
                answer.say(format!(
                    "removed {resources} extended resources of node {name}"
                ))?;
            }
        } else if (has_door || access.is_some() && !networks.is_empty())
            && let Err(problem) = withdraw_offers(access, &name, &networks).await
        {
            for network in &networks {
                answer.say(format!(
                    "note: node {name} may still have an extended resource for physical network \
                     {network} ({problem}), by which pods are scheduled to it; cleanup --cluster \
                     removes it"
                ))?;
            }
            if has_door {
                answer.say(format!(
                    "note: the annotation {DOOR_MAC} of node {name} may still be there \
                     ({problem}): other nodes then lead clients to its door, which is gone; \
                     cleanup --cluster removes it"
                ))?;
            }
        }
        if let Some(chassis) = chassis.filter(|_| self.cluster) {
            // ovn-controller has left: the removed key told it to.
            let text = match chassis.delete().await? {
                0 => format!("no chassis {} in the southbound database", chassis.name),
                _ => format!(
                    "removed chassis {} from the southbound database",
                    chassis.name
                ),
            };
            answer.say(text)?;
        }
        answer.end()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Without `--cluster`, too: other nodes use the door as long as the annotation says so, and the
/// scheduler sends pods as long as there are resources.
async fn withdraw_offers(
    access: Option<Access>,
    name: &str,
    networks: &BTreeSet<String>,
) -> Result<(), String> {
    let access = access.ok_or("there is no access to the API")?;
    let client = podwire_apiserver::client(&access).await;
    let client = client.map_err(|error| error.to_string())?;
    announce::withdraw_offers(&client, name, networks).await
}
