//! OVN's southbound database: which machines are in it, and the removal of this one.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, select_ok};
use podwire_ovs::client::{Client, ClientConfig, Remote, RemoteError, TlsKeys};
use podwire_ovs::replica::TableSpec;
use podwire_ovs::transact::{Condition, SelectedRow, TransactError, Transaction};
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::{StringMap, set_keys};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

const DATABASE: &str = "OVN_Southbound";

/// Time limit of each answer.
pub(crate) const LIMIT: Duration = Duration::from_secs(1);

/// Why the southbound database can't be changed.
#[derive(Debug, thiserror::Error)]
#[error(
    "remove chassis {chassis} from the southbound database {remote}: {problem}; later, there: \
     ovn-sbctl chassis-del {chassis}"
)]
pub(crate) struct SouthboundError {
    chassis: String,
    remote: String,
    problem: String,
}

/// This machine in the southbound database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chassis {
    pub(crate) name: String,
    pub(crate) remote: String,
    pub(crate) tls: Option<TlsKeys>,
}

impl Chassis {
    /// Deletes its rows; returns the number of chassis.
    pub(crate) async fn delete(&self) -> Result<u64, SouthboundError> {
        let failed = |problem: String| SouthboundError {
            chassis: self.name.clone(),
            remote: self.remote.clone(),
            problem,
        };
        let delete = |client: Client| {
            let name = self.name.clone();
            async move {
                let mut transaction = Transaction::new();
                let is_it = || Condition::equal("name", name.as_str());
                let chassis = transaction.delete("Chassis", is_it()).index();
                transaction.delete("Chassis_Private", is_it());
                let deadline = Instant::now() + LIMIT;
                let done = client.transact(&transaction, deadline).await?;
                Ok(done.count(chassis).unwrap_or_default())
            }
            .boxed()
        };
        with(&self.remote, self.tls.as_ref(), delete)
            .await
            .map_err(failed)
    }
}

/// A row of the southbound `Encap`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedEnd {
    pub(crate) uuid: Uuid,
    pub(crate) chassis: String,
    pub(crate) ip: String,
    /// The UDP port; None for the default.
    pub(crate) port: Option<String>,
}

/// A client that follows the chassis' tunnel ends.
pub(crate) fn follow(remotes: &str, tls: Option<TlsKeys>) -> Result<Client, RemoteError> {
    let ends = TableSpec::of(ENCAP, &["chassis_name", "ip", "options"]);
    let mut remotes = Remote::parse_list(remotes)?.into_iter();
    let first = remotes
        .next()
        .unwrap_or_else(|| Remote::Unix(Default::default()));
    let mut config = ClientConfig::new(first, DATABASE, vec![ends]);
    config.remotes.extend(remotes);
    config.tls = tls;
    Ok(Client::start(config))
}

/// The chassis' tunnel ends, as a client of [`follow`] knows them.
pub(crate) fn ends(client: &Client) -> Vec<ObservedEnd> {
    client.read(|db| {
        let rows = db.rows(ENCAP).map(|row| ObservedEnd {
            uuid: row.uuid(),
            chassis: row.str("chassis_name").unwrap_or_default().to_owned(),
            ip: row.str("ip").unwrap_or_default().to_owned(),
            port: row.map("options").str(PORT).map(str::to_owned),
        });
        rows.collect()
    })
}

/// Sets the UDP port of this chassis' tunnels, which other chassis read.
pub(crate) async fn write_port(
    client: &Client,
    chassis: &str,
    port: u16,
    deadline: Instant,
) -> Result<(), TransactError> {
    let mut transaction = Transaction::new();
    let port = StringMap::from([(PORT.to_owned(), port.to_string())]);
    for end in ends(client).iter().filter(|end| end.chassis == chassis) {
        set_keys(&mut transaction, ENCAP, end.uuid, "options", &port);
    }
    client.transact(&transaction, deadline).await.map(drop)
}

/// The table of tunnel ends, and its option with the UDP port.
const ENCAP: &str = "Encap";
const PORT: &str = "dst_port";

/// A machine of the network in the southbound database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObservedChassis {
    pub(crate) chassis: String,
    pub(crate) host: String,
}

/// The chassis with this name, and those with one of these tunnel addresses. Of a cluster's
/// members, the first that answers counts.
pub(crate) async fn same_chassis(
    remotes: &str,
    tls: Option<TlsKeys>,
    chassis: &str,
    ips: &[IpAddr],
) -> Result<(Option<ObservedChassis>, Vec<(IpAddr, ObservedChassis)>), String> {
    let ask = |client: Client| {
        let (chassis, ips) = (chassis.to_owned(), ips.to_vec());
        async move { ask(&client, &chassis, &ips, Instant::now() + LIMIT).await }.boxed()
    };
    with(remotes, tls.as_ref(), ask).await
}

/// Runs it with the first of a cluster's members that answers.
async fn with<T>(
    remotes: &str,
    tls: Option<&TlsKeys>,
    work: impl Fn(Client) -> BoxFuture<'static, Result<T, TransactError>>,
) -> Result<T, String> {
    let remotes = Remote::parse_list(remotes).map_err(|error| error.to_string())?;
    let work = &work;
    let tasks = remotes.into_iter().map(|remote| {
        Box::pin(async move {
            reach(&remote).await?;
            // A client that monitors no table.
            let mut config = ClientConfig::new(remote, DATABASE, Vec::new());
            config.tls = tls.cloned();
            config.connect_timeout = LIMIT;
            let done = work(Client::start(config)).await;
            done.map_err(|error| error.to_string())
        })
    });
    select_ok(tasks).await.map(|(done, _)| done)
}

/// Waits for a moment until the first of a cluster's members answers a client; no longer than it
/// takes to see that none can.
pub(crate) async fn await_first(client: &Client, remotes: &str) {
    let remotes = Remote::parse_list(remotes).unwrap_or_default();
    let reached = remotes.iter().map(|remote| Box::pin(reach(remote)));
    if !remotes.is_empty() && select_ok(reached).await.is_ok() {
        let _ = client.synced(Instant::now() + LIMIT).await;
    }
}

/// Fails at once if a server refuses or can't be reached: a client would retry until its deadline.
async fn reach(remote: &Remote) -> Result<(), String> {
    let (Remote::Tcp(server) | Remote::Ssl(server)) = remote else {
        return Ok(());
    };
    let connect = TcpStream::connect((server.host.as_str(), server.port));
    match timeout(LIMIT, connect).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} ms", LIMIT.as_millis())),
    }
}

async fn ask(
    client: &Client,
    chassis: &str,
    ips: &[IpAddr],
    deadline: Instant,
) -> Result<(Option<ObservedChassis>, Vec<(IpAddr, ObservedChassis)>), TransactError> {
    let columns = &["name", "hostname"];
    let mut first = Transaction::new();
    let same = first
        .select("Chassis", Condition::equal("name", chassis), columns)
        .index();
    let asked: Vec<(IpAddr, usize)> = ips
        .iter()
        .map(|ip| {
            let is_it = Condition::equal("ip", ip.to_string());
            (*ip, first.select("Encap", is_it, &["chassis_name"]).index())
        })
        .collect();
    let found = client.transact(&first, deadline).await?;
    let mut second = Transaction::new();
    let mut holders = Vec::new();
    for (ip, index) in &asked {
        for row in found.rows(*index) {
            let name = text(row, "chassis_name");
            let is_it = Condition::equal("name", name.as_str());
            holders.push((*ip, name, second.select("Chassis", is_it, columns).index()));
        }
    }
    let hosts = client.transact(&second, deadline).await?;
    let chassis_seen = |row: &SelectedRow| ObservedChassis {
        chassis: text(row, "name"),
        host: text(row, "hostname"),
    };
    let holders = holders.into_iter().map(|(ip, chassis, index)| {
        let host = hosts.rows(index).first().map(|row| text(row, "hostname"));
        let host = host.unwrap_or_default();
        (ip, ObservedChassis { chassis, host })
    });
    Ok((
        found.rows(same).first().map(chassis_seen),
        holders.collect(),
    ))
}

fn text(row: &SelectedRow, column: &str) -> String {
    let text = row.column(column).and_then(|value| value.as_str());
    text.unwrap_or_default().to_owned()
}
