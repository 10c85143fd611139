//! How long a change takes now until ovn-northd and every chassis have it. OVN counts for that
//! (ovn-nb(5), `nb_cfg`): whoever adds one is answered in `sb_cfg` by ovn-northd and in `hv_cfg` by
//! the last chassis. What it costs is said in the command's help, and why nothing else of podwire
//! does it in [`crate::delays`].

use std::fmt;
use std::time::Duration;

use podwire_daemon::output::some;
use podwire_ovs::client::{Client as Ovsdb, WaitError};
use podwire_ovs::nb;
use podwire_ovs::replica::{Db, TableSpec};
use podwire_ovs::transact::{Mutation, Transaction};
use serde::Serialize;
use tokio::time::Instant;

use super::ToolError;
use crate::config::Config;

const TABLE: &str = "NB_Global";
const CHASSIS: &str = "Chassis_Private";
/// How many chassis are named to people.
const MOST: usize = 10;
/// Time limit for the names of the chassis that have not answered.
const NAMES: Duration = Duration::from_secs(5);

/// What OVN answered.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Round {
    /// Until ovn-northd had it, in milliseconds; None if that took longer than the limit.
    northd_ms: Option<u64>,
    /// Until the last chassis had it, too.
    chassis_ms: Option<u64>,
    limit_ms: u64,
    /// The chassis that had not answered then; None without a southbound database to ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<Vec<String>>,
}

impl Round {
    /// Adds one and waits for the answers, for so long at most.
    pub(super) async fn take(config: &Config, limit: Duration) -> Result<Self, ToolError> {
        let columns = TableSpec::of(TABLE, &["nb_cfg", "sb_cfg", "hv_cfg"]);
        let ovsdb = Ovsdb::start(config.database(nb::DATABASE, vec![columns])?);
        ovsdb.synced(Instant::now() + super::REACH).await?;
        let mut transaction = Transaction::new();
        transaction.mutate(TABLE, [], Mutation::add("nb_cfg", 1));
        let asked = transaction.select(TABLE, [], &["nb_cfg"]).index();
        let began = Instant::now();
        let deadline = began + limit;
        let outcome = ovsdb.transact(&transaction, deadline).await?;
        let row = outcome.rows(asked).first();
        let number = row.and_then(|row| row.column("nb_cfg")?.as_integer());
        let number = number.ok_or_else(|| ToolError::Refused(format!("{TABLE} has no row")))?;
        let mut took = [None; 2];
        for (took, column) in took.iter_mut().zip(["sb_cfg", "hv_cfg"]) {
            let awaited = format!("{column} {number}");
            let is_there = |db: &Db| {
                let answered = db.rows(TABLE).next()?.integer(column)?;
                (answered >= number).then_some(())
            };
            match ovsdb.wait(&awaited, deadline, is_there).await {
                Ok(()) => *took = u64::try_from(began.elapsed().as_millis()).ok(),
                Err(WaitError::Timeout { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let [northd_ms, chassis_ms] = took;
        let late = match (northd_ms, chassis_ms) {
            (Some(_), None) if !config.sb_db.is_empty() => Some(late(config, number).await?),
            _ => None,
        };
        Ok(Self {
            northd_ms,
            chassis_ms,
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            late,
        })
    }

    /// Whether ovn-northd answered.
    pub(super) fn has_northd(&self) -> bool {
        self.northd_ms.is_some()
    }
}

/// The chassis that have not got as far.
async fn late(config: &Config, number: i64) -> Result<Vec<String>, ToolError> {
    let columns = TableSpec::of(CHASSIS, &["name", "nb_cfg"]);
    let ovsdb = Ovsdb::start(config.database("OVN_Southbound", vec![columns])?);
    ovsdb.synced(Instant::now() + NAMES).await?;
    let mut names: Vec<_> = ovsdb.read(|db| {
        let rows = db.rows(CHASSIS);
        let late = rows.filter(|row| row.integer("nb_cfg").is_none_or(|it| it < number));
        late.filter_map(|row| row.str("name").map(str::to_owned))
            .collect()
    });
    names.sort_unstable();
    Ok(names)
}

/// For people.
impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.limit_ms;
        let Some(northd) = self.northd_ms else {
            return write!(f, "ovn-northd has not answered within {limit} ms");
        };
        write!(f, "{northd} ms until ovn-northd had it, ")?;
        match (self.chassis_ms, &self.late) {
            (Some(all), _) => write!(f, "{all} ms until every chassis had it"),
            (None, Some(late)) if !late.is_empty() => {
                let named = some(late, MOST, ", ", " and ");
                write!(f, "and not within {limit} ms by chassis {named}")
            }
            _ => write!(f, "and not by every chassis within {limit} ms"),
        }
    }
}
