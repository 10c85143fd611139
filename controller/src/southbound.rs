//! OVN's southbound database. The chassis of deleted nodes are removed from it: ovn-controller
//! removes its own when it stops normally; that of a dead machine stays, and every other node keeps
//! a tunnel to it. And it shows how far ovn-northd and the nodes are with new pods: the replica has
//! the ports that are not up, which are few, and none of the others.

use podwire_ovs::client::{Client as Ovsdb, ClientConfig, Follower, State};
use podwire_ovs::nb::Table;
use podwire_ovs::replica::{Db, Index, Only, Row, TableSpec};
use podwire_ovs::transact::{Condition, TransactError, Transaction};
use tokio::time::Instant;

use crate::config::{Config, SettingError};
use crate::delays::{Delays, UnboundPort};

/// The tables with a row for each chassis, by its name.
const TABLES: [&str; 2] = ["Chassis", "Chassis_Private"];

const PORTS: &str = "Port_Binding";
const BY_PORT: Index = Index::Column("logical_port");

/// A client of the southbound database; clones share the connection.
#[derive(Clone)]
pub(crate) struct Southbound(Ovsdb);

impl Southbound {
    pub(crate) fn new(config: &Config) -> Result<Self, SettingError> {
        let ports = TableSpec {
            name: PORTS,
            columns: &["logical_port", "chassis", "up"],
            indexes: &[BY_PORT],
        };
        Ok(Self(Ovsdb::start(ClientConfig {
            // ovn-northd sets it when it creates a port.
            only: vec![Only {
                table: PORTS,
                column: "up",
                is: false,
            }],
            ..config.database("OVN_Southbound", vec![ports])?
        })))
    }

    /// Notes how far new pods are, until the client ends.
    pub(crate) async fn follow(&self, northbound: &Ovsdb, delays: &Delays) {
        let exists = |port: &str| has_port(northbound, port);
        let mut follower: Follower = self.0.follow();
        while let Some(changed) = follower.next().await {
            let at = Instant::now();
            self.0.read(|db| {
                for (_, row) in &changed.rows {
                    let seen = db.row(PORTS, *row).and_then(seen);
                    delays.observe(*row, seen, at, exists);
                }
            });
            // What happened while there was no connection has no time.
            if changed.resynced {
                delays.forget();
            }
        }
    }

    /// Notes ports whose rows are committed; the southbound database may have them already.
    pub(crate) fn committed(&self, ports: &[String], at: Instant, delays: &Delays) {
        self.0.read(|db| {
            for port in ports {
                delays.committed(port, at);
                for row in db.find(PORTS, BY_PORT, port.as_str()) {
                    delays.observe(row.uuid(), seen(row), Instant::now(), |_| true);
                }
            }
        });
    }

    /// Removes chassis by name. Fails at once without a connection.
    pub(crate) async fn remove(
        &self,
        chassis: impl Iterator<Item = &str>,
        deadline: Instant,
    ) -> Result<(), TransactError> {
        if let state @ State::Disconnected { .. } = self.0.state() {
            return Err(TransactError::Disconnected {
                sent: false,
                reason: state.to_string(),
            });
        }
        let mut transaction = Transaction::new();
        for name in chassis {
            for table in TABLES {
                transaction.delete(table, Condition::equal("name", name));
            }
        }
        self.0.transact(&transaction, deadline).await.map(drop)
    }
}

fn seen(row: Row<'_>) -> Option<UnboundPort<'_>> {
    // A server that can't select rows sends those of all ports.
    let is_up = row.bool("up") != Some(false);
    (!is_up).then_some(UnboundPort {
        port: row.str("logical_port")?,
        claimed: row.column("chassis").is_some_and(|it| !it.is_empty()),
    })
}

/// Whether a port has its row in the northbound database.
pub(crate) fn has_port(northbound: &Ovsdb, port: &str) -> bool {
    let is_there = |db: &Db| db.nb_named(Table::LogicalSwitchPort, port).next().is_some();
    northbound.read(is_there)
}
