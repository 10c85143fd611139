use std::collections::HashSet;

use super::parse::{MonitorMethod, RowChange, RowChanges};
use super::{Changes, Db, Only, ReplicaError, Schema, Table};

impl Db {
    /// Sets the server's schema, whose column types determine how updates are parsed. Rows known
    /// under another schema are dropped and count as changed.
    ///
    /// # Errors
    /// [`ReplicaError::NoTable`]: a watched table is missing; the replica is unusable until it gets
    /// another schema.
    pub fn set_schema(&mut self, schema: &Schema) -> Result<Changes, ReplicaError> {
        let mut changes = Changes::default();
        for (number, table) in self.tables.iter_mut().enumerate() {
            changes.rows.extend(
                table
                    .set_schema(schema)?
                    .into_iter()
                    .map(|uuid| (number, uuid)),
            );
        }
        Ok(changes)
    }

    /// Makes the replica equal to the reply of a monitor request, and returns the rows that
    /// differed.
    ///
    /// # Errors
    /// [`ReplicaError::Update`] if it is invalid, [`ReplicaError::UnknownRow`] if it modifies a row
    /// instead of giving it; the replica is unchanged then. [`ReplicaError::TooLarge`]; the replica
    /// is neither old nor new then.
    pub fn load(&mut self, method: MonitorMethod, snapshot: &str) -> Result<Changes, ReplicaError> {
        self.load_parsed(self.parse(method, snapshot)?)
    }

    pub(crate) fn load_parsed(&mut self, rows: RowChanges) -> Result<Changes, ReplicaError> {
        if let Some((number, uuid, _)) = rows
            .iter()
            .find(|(.., change)| !matches!(change, RowChange::Put(_)))
        {
            let table = self.tables[*number].spec().name;
            return Err(ReplicaError::UnknownRow { table, uuid: *uuid });
        }
        let mut changes = Changes::default();
        let present: HashSet<_> = rows.iter().map(|&(table, uuid, _)| (table, uuid)).collect();
        for (number, table) in self.tables.iter_mut().enumerate() {
            let gone: Vec<_> = table
                .uuids()
                .filter(|&uuid| !present.contains(&(number, uuid)))
                .collect();
            for uuid in gone {
                table.remove(uuid);
                changes.rows.push((number, uuid));
            }
        }
        for (number, uuid, change) in rows {
            if let RowChange::Put(cells) = change
                && self.tables[number].put(uuid, cells)
            {
                changes.rows.push((number, uuid));
                self.check_weight()?;
            }
        }
        Ok(changes)
    }

    /// Applies the `<table-updates>` of one `update` or `update2` notification, and returns the
    /// changed rows.
    ///
    /// # Errors
    /// [`ReplicaError::Update`] if it is invalid; the replica is unchanged then.
    /// [`ReplicaError::UnknownRow`] if it modifies an unknown row, [`ReplicaError::TooLarge`];
    /// earlier changes are applied then, and a new snapshot is needed.
    pub fn apply(&mut self, method: MonitorMethod, updates: &str) -> Result<Changes, ReplicaError> {
        self.apply_parsed(self.parse(method, updates)?)
    }

    pub(crate) fn apply_parsed(&mut self, rows: RowChanges) -> Result<Changes, ReplicaError> {
        let mut changes = Changes::default();
        for (number, uuid, change) in rows {
            let table = &mut self.tables[number];
            let known = match change {
                RowChange::Put(cells) => {
                    if !table.put(uuid, cells) {
                        continue;
                    }
                    true
                }
                RowChange::Set(cells) => table.set(uuid, cells),
                RowChange::Removed => table.remove(uuid),
            };
            if !known {
                return Err(ReplicaError::UnknownRow {
                    table: table.spec().name,
                    uuid,
                });
            }
            changes.rows.push((number, uuid));
            self.check_weight()?;
        }
        Ok(changes)
    }

    fn check_weight(&self) -> Result<(), ReplicaError> {
        let weight: usize = self.tables.iter().map(Table::weight).sum();
        if weight > self.limit {
            Err(ReplicaError::TooLarge(self.limit))
        } else {
            Ok(())
        }
    }

    /// The monitored columns of each table, and which rows: the third parameter of a monitor
    /// request.
    pub(crate) fn encode_monitor_requests(&self, only: &[Only], out: &mut Vec<u8>) {
        let requests: serde_json::Map<_, _> = self
            .tables
            .iter()
            .map(|table| {
                let name = table.spec().name;
                let columns: Vec<_> = table.served_columns().collect();
                let mut request = serde_json::json!({ "columns": columns });
                if let Some(Only { column, is, .. }) = only.iter().find(|it| it.table == name) {
                    request["where"] = serde_json::json!([[column, "==", is]]);
                }
                (name.to_owned(), serde_json::json!([request]))
            })
            .collect();
        serde_json::to_writer(out, &requests)
            .expect("writing a map of strings to a Vec has no way to fail");
    }
}
