//! Open vSwitch's and OVN's part of a bundle: rows of the database, and the daemons' own reports.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use podwire_ovs::client::{Client, ClientConfig, Remote};
use podwire_ovs::replica::{Db, Row};
use podwire_ovs::unixctl::Unixctl;
use podwire_ovs::vswitch;
use tokio::time::Instant;

use podwire_daemon::bundle::Files;

/// Time limit of each answer of a daemon.
const PATIENCE: Duration = Duration::from_secs(5);

/// Commands for ovs-vswitchd (ovs-vswitchd(8)); true for those with the pods' bridge as argument.
const SWITCH: [(&str, bool); 8] = [
    ("version", false),
    ("dpif/show", false),
    ("coverage/show", false),
    ("memory/show", false),
    ("upcall/show", false),
    ("ovs/route/show", false),
    ("fdb/show", true),
    ("bridge/dump-flows", true),
];
/// Commands for ovn-controller (ovn-controller(8)).
const CONTROLLER: [&str; 4] = [
    "version",
    "connection-status",
    "coverage/show",
    "memory/show",
];

/// Collects everything.
pub(super) async fn collect(files: &mut Files, socket: &Path, bridge: &str, ovn_rundir: &Path) {
    files.put("openvswitch/rows.txt", rows(socket).await);
    let rundir = socket.parent().unwrap_or(Path::new("/"));
    for (command, of_bridge) in SWITCH {
        let arguments: &[&str] = if of_bridge { &[bridge] } else { &[] };
        let file = format!("openvswitch/{}.txt", command.replace('/', "-"));
        files.put(&file, ask(rundir, "ovs-vswitchd", command, arguments).await);
    }
    if !ovn_rundir.join("ovn-controller.pid").exists() {
        return;
    }
    for command in CONTROLLER {
        let file = format!("ovn/{}.txt", command.replace('/', "-"));
        files.put(&file, ask(ovn_rundir, "ovn-controller", command, &[]).await);
    }
}

async fn ask(
    rundir: &Path,
    daemon: &str,
    command: &str,
    arguments: &[&str],
) -> Result<String, String> {
    let daemon = Unixctl::for_daemon(rundir, daemon).map_err(|error| error.to_string())?;
    let answer = daemon.call(command, arguments, Instant::now() + PATIENCE);
    answer.await.map_err(|error| error.to_string())
}

/// The rows that podwire reads, by table and name.
async fn rows(socket: &Path) -> Result<String, String> {
    let client = Client::start(ClientConfig::new(
        Remote::Unix(socket.to_owned()),
        vswitch::DATABASE,
        vswitch::tables(),
    ));
    let synced = client.synced(Instant::now() + PATIENCE).await;
    synced.map_err(|error| error.to_string())?;
    Ok(client.read(text))
}

fn text(db: &Db) -> String {
    let mut text = String::new();
    for table in vswitch::tables() {
        let name = |row: &Row<'_>| row.str("name").unwrap_or_default().to_owned();
        let mut rows: Vec<Row<'_>> = db.rows(table.name).collect();
        rows.sort_by_key(|row| (name(row), row.uuid()));
        for row in rows {
            let _ = writeln!(text, "{} {} {}", table.name, row.uuid(), name(&row));
            for column in table.columns {
                match row.column(column) {
                    Some(value) if !value.is_empty() => {
                        let _ = writeln!(text, "    {column}: {value}");
                    }
                    _ => {}
                }
            }
        }
    }
    text
}
