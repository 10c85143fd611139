//! A server's information about its databases: `Database` in `_Server` (ovsdb-server(5)), which
//! every server has since Open vSwitch 2.9.

use crate::replica::{Db, Index, MonitorMethod, ReplicaError, Schema, TableSpec};

use super::error::ConnectionError;

/// The columns' types from the server's own schema; to request it would cost a round trip.
const SCHEMA: &str = r#"{"tables":{"Database":{"columns":{
    "name":{"type":"string"},"model":{"type":"string"},"connected":{"type":"boolean"},
    "leader":{"type":"boolean"}}}}}"#;

const BY_NAME: Index = Index::Column("name");

/// The name of the monitor.
pub(super) const MONITOR: &str = "\"podwire-server\"";

/// A replica of the table `Database` of `_Server`.
#[derive(Debug)]
pub(super) struct ServerView {
    db: Db,
}

impl ServerView {
    pub(super) fn new() -> Result<Self, ReplicaError> {
        let mut db = Db::new(&[TableSpec {
            name: "Database",
            columns: &["name", "model", "connected", "leader"],
            indexes: &[BY_NAME],
        }]);
        db.set_schema(&Schema::parse(SCHEMA)?)?;
        Ok(Self { db })
    }

    /// The parameters of the monitor request.
    pub(super) fn request(&self, out: &mut Vec<u8>) {
        crate::value::append(out, format_args!(r#"["_Server",{MONITOR},"#));
        self.db.encode_monitor_requests(&[], out);
        out.push(b']');
    }

    pub(super) fn load(&mut self, snapshot: &str) -> Result<(), ReplicaError> {
        self.db
            .load(MonitorMethod::Conditional, snapshot)
            .map(|_| ())
    }

    pub(super) fn apply(&mut self, updates: &str) -> Result<(), ReplicaError> {
        self.db
            .apply(MonitorMethod::Conditional, updates)
            .map(|_| ())
    }

    /// Whether this server is suitable for the database. A server is the leader of its databases
    /// that are not clustered; a relay is never one, and passes writes on.
    pub(super) fn check(&self, database: &'static str) -> Result<(), ConnectionError> {
        let row = self.db.find("Database", BY_NAME, database).next();
        let row = row.ok_or(ConnectionError::NotServed(database))?;
        if row.bool("connected") == Some(false) {
            return Err(ConnectionError::NotConnected(database));
        }
        match row.bool("leader") == Some(true) || row.str("model") == Some("relay") {
            true => Ok(()),
            false => Err(ConnectionError::NotLeader(database)),
        }
    }
}
