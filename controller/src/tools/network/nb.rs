//! Networks without a cluster: their rows in a northbound database, made, shown, changed and
//! removed with the checks that a leader makes for definitions. Where one leads, it owns these
//! rows.

use std::time::Duration;

use itertools::Itertools as _;
use podwire_daemon::output::Format;
use podwire_ovs::client::Client as Ovsdb;
use podwire_ovs::nb::{EPOCH, KEY, Table};
use podwire_ovs::replica::{Db, Row as Found};
use podwire_ovs::transact::{Condition, TransactError, Transaction};
use podwire_ovs::value::{Atom, Value as Column};
use serde_json::json;
use tokio::time::Instant;

use super::{Answer, Change, Done, ShapeArgs, answered, listed};
use crate::cluster::network::{Mistake, Shape, Topology, network_name, shape};
use crate::config::Config;
use crate::diff::Plan;
use crate::key::Network;
use crate::names::prefix;
use crate::run::{in_rows, northbound, shared};
use crate::tools::{REACH, READ, ToolError, reach_database};
use crate::want::{Row, network as rows};

/// Time limit of the transaction.
const TRANSACT: Duration = Duration::from_secs(60);

/// All networks, or one with its ports, as text.
///
/// # Errors
/// See [`ToolError`].
pub async fn networks(
    config: &Config,
    name: Option<&str>,
    format: Format,
) -> Result<(String, bool), ToolError> {
    let ovsdb = open(config).await?;
    let answers = ovsdb.read(|db| {
        let known = in_rows(db).into_iter();
        let mut answers: Vec<Answer> = known
            .map(|(network, shape)| Answer {
                ports: ports(db, &network, &shape),
                network: network.name().to_string(),
                shape: Some(shape),
                definitions: Vec::new(),
                attachments: Vec::new(),
            })
            .collect();
        answers.sort_by(|one, other| one.network.cmp(&other.network));
        answers
    });
    answered(answers, name, format)
}

/// Makes the rows of a network. One that is known in the same shape is there already.
///
/// # Errors
/// It is known in another shape, or has a mistake; its rows have the names of others; a controller
/// leads this database; and [`ToolError`].
pub async fn create(
    config: &Config,
    name: &str,
    topology: Topology,
    args: &ShapeArgs,
) -> Result<Done, ToolError> {
    let ovsdb = open(config).await?;
    let network = network_name(Some(name)).map_err(mistaken)?;
    let mut wanted = json!({ "topology": topology.word() });
    args.put(&mut wanted);
    let asked = shape(&wanted).map_err(mistaken)?;
    if asked.topology == Topology::Layer3 {
        let what = "topology: the nodes of a layer3 network are those of a cluster: make a \
                    definition, without --nb";
        return Err(ToolError::Mistake(what.to_owned()));
    }
    let all = ovsdb.read(in_rows);
    if let Some((_, known)) = all.iter().find(|(it, _)| *it == network) {
        let fields = known.differing(&asked);
        return match &fields[..] {
            [] => Ok(Done::alone(Change::Unchanged, name)),
            fields => {
                let fields = fields.join(", ");
                let what = format!("network {name} exists with other {fields}");
                Err(ToolError::Refused(what))
            }
        };
    }
    if let Some((other, _)) = all.iter().find(|(it, _)| prefix(it.name()) == prefix(name)) {
        let other = other.name();
        let what = format!("name: {name} and {other} would have rows of the same names");
        return Err(ToolError::Refused(what));
    }
    write(&ovsdb, (&network, None), &rows::alone(&network, &asked)).await?;
    Ok(Done::alone(Change::Created, name))
}

/// Changes a network, if all of the change can be done in place.
///
/// # Errors
/// It has ports, and something can't change under them; and as [`create`].
pub async fn update(config: &Config, name: &str, args: &ShapeArgs) -> Result<Done, ToolError> {
    let ovsdb = open(config).await?;
    let (network, known, ports) = of_name(&ovsdb, name)?;
    let mut wanted = known.config();
    args.put(&mut wanted);
    let asked = shape(&wanted).map_err(mistaken)?;
    let fields = known.fixed(&asked);
    if !fields.is_empty() && !ports.is_empty() {
        return Err(ToolError::Refused(format!(
            "{} of network {name} can't change while ports are on it: {}",
            fields.join(", "),
            listed(&ports)
        )));
    }
    if known.differing(&asked).is_empty() {
        return Ok(Done::alone(Change::Unchanged, name));
    }
    let rows = rows::alone(&network, &asked);
    write(&ovsdb, (&network, Some(&known)), &rows).await?;
    Ok(Done::alone(Change::Updated, name))
}

/// Removes the rows of a network.
///
/// # Errors
/// It has ports; there is none; and as [`create`].
pub async fn delete(config: &Config, name: &str) -> Result<Done, ToolError> {
    let ovsdb = open(config).await?;
    let (network, known, ports) = of_name(&ovsdb, name)?;
    if !ports.is_empty() {
        let ports = listed(&ports);
        let what = format!("ports are on network {name}: {ports}");
        return Err(ToolError::Refused(what));
    }
    write(&ovsdb, (&network, Some(&known)), &[]).await?;
    Ok(Done::alone(Change::Deleted, name))
}

async fn open(config: &Config) -> Result<Ovsdb, ToolError> {
    let ovsdb = northbound(config)?;
    let server = format!("the northbound database {} (--nb)", config.nb_db);
    reach_database(&ovsdb, server, Instant::now() + REACH).await?;
    ovsdb.synced(Instant::now() + READ).await?;
    Ok(ovsdb)
}

fn mistaken(Mistake { field, problem }: Mistake) -> ToolError {
    ToolError::Mistake(format!("{field}: {problem}"))
}

/// A network with its ports.
fn of_name(ovsdb: &Ovsdb, name: &str) -> Result<(Network, Shape, Vec<String>), ToolError> {
    let found = ovsdb.read(|db| {
        let mut all = in_rows(db).into_iter();
        let (network, shape) = all.find(|(it, _)| it.name() == name)?;
        let ports = ports(db, &network, &shape);
        Some((network, shape, ports))
    });
    found.ok_or_else(|| ToolError::Missing(format!("there is no network {name}")))
}

/// The ports of others on a network, with their addresses.
fn ports(db: &Db, network: &Network, shape: &Shape) -> Vec<String> {
    let own = shared(network).to_string();
    let own: Vec<_> = db
        .nb_of_object(Table::LogicalSwitchPort, own)
        .map(|row| row.uuid())
        .collect();
    let name = rows::switch(network, shape, "");
    let is_its = |row: &Found<'_>| {
        let of = row.map("external_ids").str(rows::NETWORK);
        shape.topology == Topology::Layer3 && of == Some(network.name())
    };
    let divided = db.rows(Table::LogicalSwitch.name()).filter(is_its);
    let switches = db.nb_named(Table::LogicalSwitch, &name).chain(divided);
    let ports = switches.flat_map(|switch| switch.references("ports").collect::<Vec<_>>());
    let ports = ports.filter(|uuid| !own.contains(uuid));
    let rows = ports.filter_map(|uuid| db.row(Table::LogicalSwitchPort.name(), uuid));
    // Those of nodes' parts are no port of somebody.
    let rows = rows.filter(|row| row.str("type") != Some("router"));
    let mut shown: Vec<String> = rows
        .map(|row| {
            let name = row.str("name").unwrap_or_default();
            // Of a localnet port, a controller's row has the IP addresses in the latter
            // alone, beside what is no address (decision 0234).
            let both = ["addresses", "port_security"].map(|column| row.column(column));
            let texts = both.into_iter().flatten().flat_map(Column::atoms);
            let words = texts
                .filter_map(Atom::as_str)
                .flat_map(str::split_whitespace);
            let words = words.filter(|it| *it != "0.0.0.0" && !it.ends_with("/0"));
            match &*words.unique().join(" ") {
                "" => name.to_owned(),
                addresses => format!("{name} ({addresses})"),
            }
        })
        .collect();
    shown.sort();
    shown
}

/// Brings a network's rows in line, in one transaction, unless ports come or go in the meantime.
async fn write(
    ovsdb: &Ovsdb,
    (network, known): (&Network, Option<&Shape>),
    wanted: &[Row],
) -> Result<(), ToolError> {
    let (fence, transaction) = ovsdb.read(|db| {
        let global = db.rows("NB_Global").next();
        let epoch = global.and_then(|row| row.map("external_ids").str(EPOCH).map(str::to_owned));
        if let Some(epoch) = epoch {
            let what = format!(
                "a podwire-controller leads this database (NB_Global has {EPOCH}={epoch}): change \
                 definitions of the cluster, without --nb"
            );
            return Err(ToolError::Refused(what));
        }
        let mut plan = Plan::new(db, false);
        let members = (std::iter::empty(), &[][..]);
        let compared = plan.compare(&shared(network), wanted, members, false);
        compared.map_err(|error| ToolError::Refused(error.to_string()))?;
        let mut fence = Transaction::new();
        let table = Table::LogicalSwitch.name();
        match known {
            Some(known) => {
                for switch in db.nb_named(Table::LogicalSwitch, &rows::switch(network, known, "")) {
                    let ports = switch.column("ports").cloned();
                    let same = ports.map(|ports| Condition::equal("ports", ports));
                    let all = [Condition::uuid(switch.uuid())].into_iter().chain(same);
                    fence.guard(table, all.collect::<Vec<_>>());
                }
            }
            // OVN does not require names to be unique.
            None => {
                let own = Column::map([(KEY, shared(network).to_string())]);
                fence.guard_none(table, Condition::includes("external_ids", own));
                for row in wanted
                    .iter()
                    .filter(|row| row.table == Table::LogicalSwitch)
                {
                    fence.guard_none(table, Condition::equal("name", &*row.name));
                }
            }
        }
        Ok((fence, plan.into_transaction()))
    })?;
    ovsdb.set_fence(&fence)?;
    let done = ovsdb.transact(&transaction, Instant::now() + TRANSACT);
    match done.await {
        Ok(_) => Ok(()),
        Err(TransactError::Fenced { .. }) => {
            let name = network.name();
            let what = match known {
                Some(_) => format!("ports of network {name} came or went meanwhile: try again"),
                None => format!("network {name} was made by another meanwhile: try again"),
            };
            Err(ToolError::Refused(what))
        }
        Err(error) => Err(error.into()),
    }
}
