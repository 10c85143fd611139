//! The one thing that OVN's southbound database is asked for: that the chassis of a node that is
//! gone goes too. ovn-controller removes its own when it ends in peace; one whose machine died
//! stays, and every other node keeps a tunnel to it.

use podwire_ovs::client::{Client as Ovsdb, ClientConfig, State};
use podwire_ovs::replica::TableSpec;
use podwire_ovs::transact::{Condition, TransactError, Transaction};
use tokio::time::Instant;

use crate::config::{Config, SettingError};

/// The tables that have a row for each chassis, by its name.
const TABLES: [&str; 2] = ["Chassis", "Chassis_Private"];

/// A client of the southbound database.
pub(crate) struct Southbound(Ovsdb);

impl Southbound {
    pub(crate) fn new(config: &Config) -> Result<Self, SettingError> {
        let remotes = config.remotes("--sb-db", &config.sb_db)?;
        // Only to see that the table is there: none of its rows are of interest.
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

    /// Removes chassis by their names. Without a connection it fails at once.
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
