//! What arrives in the southbound database, and when: a monitor of its own.

use std::collections::{HashMap, HashSet};
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use podwire_tests::ovn::Central;
use podwire_tests::{Failure, Step as _};
use serde_json::{Deserializer, Value, json};

/// Longer than a full run of ovn-northd beside 50,000 pods.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) struct Southbound(Arc<Seen>);

/// What was seen, and when for the last time.
#[derive(Default)]
struct Seen {
    at: Mutex<HashMap<String, Instant>>,
    changed: Condvar,
}

/// What can be awaited: a port, its end, and an endpoint of a load balancer.
pub(crate) fn bound(port: &str) -> String {
    format!("port {port}")
}

pub(crate) fn gone(port: &str) -> String {
    format!("end of port {port}")
}

pub(crate) fn member(address: &str) -> String {
    format!("member {address}")
}

pub(crate) fn endpoint(address: &str) -> String {
    format!("endpoint {address}")
}

impl Southbound {
    /// Follows the database until that ends.
    pub(crate) fn follow(central: &Central) -> Result<Self, Failure> {
        let tables = json!({
            "Port_Binding": { "columns": ["logical_port"] },
            "Load_Balancer": { "columns": ["vips"] },
            "Address_Set": { "columns": ["addresses"] },
        });
        Self::of(central, ("ovnsb_db.sock", "OVN_Southbound"), &tables)
    }

    /// Follows the sets of the northbound database instead.
    pub(crate) fn northbound(central: &Central) -> Result<Self, Failure> {
        let tables = json!({ "Address_Set": { "columns": ["addresses"] } });
        Self::of(central, ("ovnnb_db.sock", "OVN_Northbound"), &tables)
    }

    fn of(
        central: &Central,
        (socket, database): (&str, &str),
        tables: &Value,
    ) -> Result<Self, Failure> {
        let socket = central.machine().path(&format!("/run/ovn/{socket}"));
        let mut stream = UnixStream::connect(socket).step(|| format!("reach {database}"))?;
        let params = json!([database, null, tables]);
        let request = json!({ "method": "monitor", "params": params, "id": 0 }).to_string();
        let sent = stream.write_all(request.as_bytes());
        sent.step(|| format!("monitor {database}"))?;
        let seen = Arc::new(Seen::default());
        let own = Arc::clone(&seen);
        thread::spawn(move || {
            let messages = Deserializer::from_reader(BufReader::new(stream)).into_iter::<Value>();
            for message in messages.map_while(Result::ok) {
                let now = Instant::now();
                let tables = match message["method"].as_str() {
                    Some(_) => &message["params"][1],
                    None => &message["result"],
                };
                let names = names(tables);
                let mut at = own.at.lock().unwrap_or_else(PoisonError::into_inner);
                at.extend(names.into_iter().map(|name| (name, now)));
                own.changed.notify_all();
            }
        });
        Ok(Self(seen))
    }

    /// Forgets that something was seen.
    pub(crate) fn forget(&self, what: &str) {
        let mut at = self.0.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.remove(what);
    }

    /// Waits until something was seen; when that was.
    pub(crate) fn await_seen(&self, what: &str) -> Result<Instant, Failure> {
        let at = self.0.at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_missing = |at: &mut HashMap<_, _>| !at.contains_key(what);
        let awaited = self.0.changed.wait_timeout_while(at, LIMIT, is_missing);
        let (at, _) = awaited.unwrap_or_else(PoisonError::into_inner);
        at.get(what).copied().ok_or_else(|| Failure::Deadline {
            awaited: format!("{what} in the southbound database"),
            waited: LIMIT,
            seen: format!("{} others", at.len()),
        })
    }
}

/// What an update is about.
fn names(tables: &Value) -> Vec<String> {
    let rows = |table: &str| tables[table].as_object().into_iter().flatten();
    let mut names = Vec::new();
    for (_, row) in rows("Port_Binding") {
        match (row.get("old"), row.get("new")) {
            (None, Some(new)) => names.extend(new["logical_port"].as_str().map(bound)),
            (Some(old), None) => names.extend(old["logical_port"].as_str().map(gone)),
            _ => {}
        }
    }
    for (_, row) in rows("Address_Set") {
        let addresses = |of: &str| addresses(&row[of]["addresses"]);
        if row["old"]["addresses"].is_null() {
            continue;
        }
        let before = addresses("old");
        let added = addresses("new")
            .into_iter()
            .filter(|it| !before.contains(it));
        names.extend(added.map(|it| member(&it)));
    }
    for (_, row) in rows("Load_Balancer") {
        let vips = row["new"]["vips"][1].as_array().into_iter().flatten();
        let ends = vips.filter_map(|pair| pair[1].as_str());
        names.extend(ends.flat_map(|ends| ends.split(',')).map(endpoint));
    }
    names
}

/// The elements of a set, which is one of them if it has no other.
fn addresses(set: &Value) -> HashSet<String> {
    let text = |it: &Value| it.as_str().map(str::to_owned);
    match text(set) {
        Some(one) => [one].into(),
        None => {
            let all = set[1].as_array().into_iter().flatten();
            all.filter_map(text).collect()
        }
    }
}
