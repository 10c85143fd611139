//! What only OVN's southbound database knows about a logical port: whether it exists, for which
//! pod, and which chassis has claimed it.
//!
//! It is queried only after a wait has failed: all nodes of a cluster share this database, and it
//! should not bear a query per pod.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::select_ok;
use podwire_ovs::client::{Client, ClientConfig, Remote, RemoteError, TlsKeys};
use podwire_ovs::transact::{Condition, SelectedRow, TransactError, Transaction};
use podwire_ovs::value::{Map, Uuid};
use tokio::time::Instant;

const DATABASE: &str = "OVN_Southbound";

/// Where the southbound database is and which chassis this node is: the node's settings for
/// ovn-controller in `Open_vSwitch` external_ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Southbound {
    /// `ovn-remote`; commas separate a cluster's members.
    pub(super) remote: String,
    /// `system-id`.
    pub(super) chassis: String,
    /// Keys for `ssl:` remotes.
    pub(super) tls: Option<TlsKeys>,
}

/// A logical port's row in `Port_Binding`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Binding {
    /// Name of the chassis that claimed it.
    pub(super) chassis: Option<String>,
    /// `options:requested-chassis`: only this chassis, named by itself or by its host, may claim
    /// it.
    pub(super) requested_chassis: Option<String>,
    /// `options:iface-id-ver`: only an interface with the same value may claim it.
    pub(super) iface_id_ver: Option<String>,
}

/// What the southbound database shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct View {
    /// This node's hostname in it, if it has this node's chassis.
    pub(super) this_chassis: Option<String>,
    /// The requested logical ports; `None` for one that doesn't exist.
    pub(super) bindings: Vec<Option<Binding>>,
}

/// Why the southbound database could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SouthboundError {
    /// The node's settings don't name it.
    #[error("external_ids:{0} is not set in Open_vSwitch, so this node is in no OVN network")]
    NotSet(&'static str),
    /// The value is no remote.
    #[error("external_ids:ovn-remote: {0}")]
    Remote(#[from] RemoteError),
    /// It does not answer.
    #[error("the southbound database {remote} can't be read: {source}")]
    Unreadable {
        /// `ovn-remote`.
        remote: String,
        /// What was seen instead.
        source: TransactError,
    },
}

impl Southbound {
    /// Reads these logical ports. Of a cluster's members, the first that answers counts.
    pub(super) async fn view(
        &self,
        iface_ids: &[&str],
        deadline: Instant,
    ) -> Result<View, SouthboundError> {
        let remotes = Remote::parse_list(&self.remote)?;
        let readings = remotes.into_iter().map(|remote| {
            let client = self.client(remote, deadline);
            async move { self.read(&client, iface_ids, deadline).await }.boxed()
        });
        match select_ok(readings).await {
            Ok((view, _)) => Ok(view),
            Err(source) => Err(SouthboundError::Unreadable {
                remote: self.remote.clone(),
                source,
            }),
        }
    }

    /// A client that monitors no table; it only runs transactions.
    fn client(&self, remote: Remote, deadline: Instant) -> Client {
        let mut config = ClientConfig::new(remote, DATABASE, Vec::new());
        config.tls = self.tls.clone();
        config.connect_timeout = deadline.saturating_duration_since(Instant::now());
        config.backoff_max = Duration::from_millis(500);
        Client::start(config)
    }

    async fn read(
        &self,
        client: &Client,
        iface_ids: &[&str],
        deadline: Instant,
    ) -> Result<View, TransactError> {
        let mut first = Transaction::new();
        let this = first
            .select(
                "Chassis",
                Condition::equal("name", self.chassis.as_str()),
                &["hostname"],
            )
            .index();
        let asked: Vec<usize> = iface_ids
            .iter()
            .map(|iface_id| {
                let is_it = Condition::equal("logical_port", *iface_id);
                let columns = &["chassis", "options"];
                first.select("Port_Binding", is_it, columns).index()
            })
            .collect();
        let found = client.transact(&first, deadline).await?;
        let this_chassis = found.rows(this).first();

        let mut second = Transaction::new();
        let rows: Vec<Option<(&SelectedRow, Option<usize>)>> = asked
            .iter()
            .map(|index| {
                let row = found.rows(*index).first()?;
                let holder = chassis(row).map(|uuid| {
                    let is_it = Condition::uuid(uuid);
                    second.select("Chassis", is_it, &["name"]).index()
                });
                Some((row, holder))
            })
            .collect();
        let holders = client.transact(&second, deadline).await?;
        let bindings = rows.into_iter().map(|row| {
            let (row, holder) = row?;
            let holder = holder.map(|index| {
                let name = holders
                    .rows(index)
                    .first()
                    .and_then(|row| text(row, "name"));
                name.unwrap_or_else(|| "one that has left".to_owned())
            });
            Some(binding(row, holder))
        });
        Ok(View {
            this_chassis: this_chassis.map(|row| text(row, "hostname").unwrap_or_default()),
            bindings: bindings.collect(),
        })
    }
}

fn binding(row: &SelectedRow, chassis: Option<String>) -> Binding {
    let option = |name: &str| options(row)?.str(name).filter(|it| !it.is_empty());
    Binding {
        chassis,
        requested_chassis: option("requested-chassis").map(str::to_owned),
        iface_id_ver: option("iface-id-ver").map(str::to_owned),
    }
}

fn options(row: &SelectedRow) -> Option<&Map> {
    row.column("options")?.as_map()
}

fn chassis(row: &SelectedRow) -> Option<Uuid> {
    row.column("chassis")?.as_uuid()
}

fn text(row: &SelectedRow, column: &str) -> Option<String> {
    Some(row.column(column)?.as_str()?.to_owned())
}
