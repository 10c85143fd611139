//! The switch's TLS keys, which ovn-controller uses too.

use std::path::Path;

use podwire_ovs::client::TlsKeys;
use podwire_ovs::replica::Row;
use podwire_ovs::transact::{Columns, Condition, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::StringMap;
use serde::{Deserialize, Serialize};

use super::rows::strings;
use super::{Actual, Change, Item, Kind, State, View, transaction};
use crate::{MADE, MARK};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Ssl(pub(crate) TlsKeys);

/// The row of `SSL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedSsl {
    uuid: Uuid,
    pub(super) keys: TlsKeys,
    ours: bool,
}

impl ObservedSsl {
    pub(crate) fn of(row: &Row<'_>) -> Self {
        let path = |column| row.str(column).unwrap_or_default().into();
        Self {
            uuid: row.uuid(),
            keys: TlsKeys {
                private_key: path("private_key"),
                certificate: path("certificate"),
                ca_certificate: path("ca_cert"),
            },
            ours: strings(row).contains_key(MARK),
        }
    }
}

impl Kind for Ssl {
    fn identity(&self) -> String {
        "TLS keys of Open vSwitch".to_owned()
    }

    fn details(&self) -> String {
        let keys = &self.0;
        let files = [&keys.private_key, &keys.certificate, &keys.ca_certificate];
        format!(": {}", files.map(|it| it.display().to_string()).join(", "))
    }

    fn state(&self, view: &View<'_>) -> State {
        let switch = &view.actual.switch;
        let Some(seen) = &switch.ssl else {
            return match switch.root {
                Some(_) => view.of_switch(State::Missing),
                None => State::Waits("the database's row of Open_vSwitch".to_owned()),
            };
        };
        let key = seen.keys.private_key.display();
        view.of_switch(match seen.keys == self.0 {
            true => State::Well { ours: seen.ours },
            false if seen.ours => State::Differs(key.to_string()),
            false => State::Foreign(format!(
                "somebody else set {key}: omit podwire's keys, or remove the others (ovs-vsctl \
                 del-ssl)"
            )),
        })
    }

    fn make(&self, actual: &Actual) -> Vec<Change> {
        let Some(root) = actual.switch.root else {
            return Vec::new();
        };
        let ids = StringMap::from([(MARK.to_owned(), MADE.to_owned())]);
        let path = |path: &Path| path.display().to_string();
        let columns = Columns::new()
            .set("private_key", path(&self.0.private_key))
            .set("certificate", path(&self.0.certificate))
            .set("ca_cert", path(&self.0.ca_certificate))
            .set("external_ids", Value::map(&ids));
        let mut change = Transaction::new();
        let changed = match &actual.switch.ssl {
            Some(seen) => change.update("SSL", Condition::uuid(seen.uuid), columns),
            None => {
                let row = change.insert("SSL", columns);
                let columns = Columns::new().set("ssl", row);
                change.update("Open_vSwitch", Condition::uuid(root), columns)
            }
        };
        changed.expect_count(1);
        transaction(Some(change))
    }

    fn remove(&self, actual: &Actual) -> Vec<Change> {
        transaction(actual.switch.root.map(|root| {
            let mut change = Transaction::new();
            let columns = Columns::new().set("ssl", Value::empty());
            change.update("Open_vSwitch", Condition::uuid(root), columns);
            change
        }))
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let switch = &view.actual.switch;
        let ours = switch.ssl.iter().filter(|ssl| switch.answers && ssl.ours);
        ours.map(|ssl| Self(ssl.keys.clone()).into()).collect()
    }
}
