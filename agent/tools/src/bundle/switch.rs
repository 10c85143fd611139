//! Open vSwitch's and OVN's part of a bundle: rows of the database, and the daemons' own reports.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use podwire_ovs::client::{Client, ClientConfig, Remote};
use podwire_ovs::replica::{Db, Row};
use podwire_ovs::unixctl::{Unixctl, UnixctlError};
use podwire_ovs::vswitch;
use tokio::time::Instant;

use podwire_daemon::bundle::{Lack, Text};

use super::{not_asked, within};

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
const CONTROLLER: [(&str, bool); 4] = [
    ("version", false),
    ("connection-status", false),
    ("coverage/show", false),
    ("memory/show", false),
];

/// What ovs-vswitchd reports.
pub(super) async fn switch(socket: &Path, bridge: &str, deadline: Instant) -> Vec<Text> {
    let rundir = socket.parent().unwrap_or(Path::new("/"));
    let asked = |command: &str| format!("openvswitch/{}.txt", command.replace('/', "-"));
    ask_all(rundir, "ovs-vswitchd", &SWITCH, bridge, asked, deadline).await
}

/// What ovn-controller reports.
pub(super) async fn controller(rundir: &Path, deadline: Instant) -> Vec<Text> {
    let asked = |command: &str| format!("ovn/{}.txt", command.replace('/', "-"));
    ask_all(rundir, "ovn-controller", &CONTROLLER, "", asked, deadline).await
}

/// The answers of a daemon, one after the other, until it does not answer: one that is stopped
/// would take as long for each.
async fn ask_all(
    rundir: &Path,
    daemon: &str,
    commands: &[(&str, bool)],
    bridge: &str,
    file: impl Fn(&str) -> String,
    deadline: Instant,
) -> Vec<Text> {
    let mut texts = Vec::new();
    let mut silent: Option<String> = None;
    for (command, of_bridge) in commands {
        let text = match &silent {
            Some(why) => Err(not_asked(why)),
            None => {
                let arguments: &[&str] = if *of_bridge { &[bridge] } else { &[] };
                let answer = ask(rundir, daemon, command, arguments, deadline).await;
                answer.map_err(|error| {
                    if !matches!(error, UnixctlError::Refused { .. }) {
                        silent = Some(error.to_string());
                    }
                    Lack::Missing(error.to_string())
                })
            }
        };
        texts.push((file(command), text));
    }
    texts
}

async fn ask(
    rundir: &Path,
    daemon: &str,
    command: &str,
    arguments: &[&str],
    deadline: Instant,
) -> Result<String, UnixctlError> {
    let daemon = Unixctl::for_daemon(rundir, daemon)?;
    let answer = daemon.call(command, arguments, within(PATIENCE, deadline));
    answer.await
}

/// The rows that podwire reads, by table and name.
pub(super) async fn rows(socket: &Path, deadline: Instant) -> Vec<Text> {
    let client = Client::start(ClientConfig::new(
        Remote::Unix(socket.to_owned()),
        vswitch::DATABASE,
        vswitch::tables(),
    ));
    let synced = client.synced(within(PATIENCE, deadline)).await;
    let rows = match synced {
        Ok(()) => Ok(client.read(text)),
        Err(error) => Err(Lack::Missing(error.to_string())),
    };
    vec![("openvswitch/rows.txt".to_owned(), rows)]
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
