//! Removes the chassis of deleted nodes from OVN's southbound database. ovn-controller removes its
//! own when it stops normally; that of a dead machine stays, and every other node keeps a tunnel to
//! it.

use podwire_ovs::client::{Client as Ovsdb, ClientConfig, State};
use podwire_ovs::replica::TableSpec;
use podwire_ovs::transact::{Condition, TransactError, Transaction};
use tokio::time::Instant;

use crate::config::{Config, SettingError};

/// The tables with a row for each chassis, by its name.
const TABLES: [&str; 2] = ["Chassis", "Chassis_Private"];

/// A client of the southbound database.
pub(crate) struct Southbound(Ovsdb);

impl Southbound {
    pub(crate) fn new(config: &Config) -> Result<Self, SettingError> {
        let remotes = config.remotes("--sb-db", &config.sb_db)?;
        // Only checks that the table exists: its rows don't matter.
        let global = TableSpec {
            name: "SB_Global",
            columns: &["ipsec"],
            indexes: &[],
        };
        Ok(Self(Ovsdb::start(ClientConfig {
            leader_only: true,
            tls: config.tls(),
            ..ClientConfig::new(remotes, "OVN_Southbound", vec![global])
        })))
    }

    /// Removes chassis by name. Fails at once without a connection.
    pub(crate) async fn remove(
        &self,
        chassis: &[&str],
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
                transaction.delete(table, Condition::equal("name", *name));
            }
        }
        self.0.transact(&transaction, deadline).await.map(drop)
    }
}
