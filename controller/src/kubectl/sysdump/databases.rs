//! OVN's databases in a sysdump: the rows of each, once, and what each member says of its cluster.

use std::slice::from_ref;
use std::time::Duration;

use super::{Collected, Source};
use crate::kubectl::exec::Cluster;
use crate::kubectl::objects::{OwnPod, Part};

/// How long a program may take, if --timeout is not longer: longer than the 10 s, and 60 s for a
/// table, that it is told.
const ANSWER: Duration = Duration::from_secs(12);
const TABLE: Duration = Duration::from_secs(65);

/// A database, as the pods of deploy/ovn serve it.
pub(in crate::kubectl) struct Database {
    pub(in crate::kubectl) part: Part,
    directory: &'static str,
    pub(in crate::kubectl) name: &'static str,
    pub(in crate::kubectl) socket: &'static str,
    control: &'static str,
}

pub(in crate::kubectl) const DATABASES: [Database; 2] = [
    Database {
        part: Part::Northbound,
        directory: "ovn/northbound",
        name: "OVN_Northbound",
        socket: "unix:/run/ovn/ovnnb_db.sock",
        control: "/run/ovn/ovnnb_db.ctl",
    },
    Database {
        part: Part::Southbound,
        directory: "ovn/southbound",
        name: "OVN_Southbound",
        socket: "unix:/run/ovn/ovnsb_db.sock",
        control: "/run/ovn/ovnsb_db.ctl",
    },
];

/// What the members' pods tell.
pub(super) fn sources<'a>(
    cluster: &'a Cluster,
    pods: &'a [OwnPod],
    files: &'a Collected,
) -> Vec<Source<'a>> {
    // Without a controller there is no OVN, or somebody else's.
    let has_ovn = pods.iter().any(|it| it.part == Part::Controller);
    let mut sources = Vec::new();
    for database in &DATABASES {
        let members = pods.iter().filter(|it| it.part == database.part);
        let members: Vec<_> = members.collect();
        let directory = database.directory;
        let tables = format!("{directory}/tables.txt");
        for member in &members {
            let file = format!("{directory}/{}/server.txt", member.name);
            let asked = database.of_member(cluster, member, files);
            sources.push(Source::new(file, asked));
        }
        if !members.is_empty() {
            let rows = database.rows(cluster, members, files);
            sources.push(Source::new(tables, rows));
        } else if has_ovn {
            let why = format!("no pod serves {}: ask it where it runs", database.name);
            files.borrow_mut().put(&tables, Err(why));
        }
    }
    sources
}

impl Database {
    /// The cluster as this member sees it, and what it takes of memory.
    async fn of_member(&self, cluster: &Cluster, member: &OwnPod, files: &Collected) {
        let control = format!("--target={}", self.control);
        let appctl = ["ovs-appctl", "--timeout=10", &control];
        let dump = ["ovsdb-client", "--timeout=10", "--format=list", "dump"];
        let of_server = ["_Server", "Database", "name", "model", "connected"];
        let of_raft = ["leader", "cid", "sid", "index"];
        let mut server = dump.to_vec();
        server.push(self.socket);
        server.extend(of_server.into_iter().chain(of_raft));
        let said = asked(cluster, member, &server, ANSWER).await;
        let is_clustered = said.as_ref().is_ok_and(|it| it.contains("clustered"));
        let put = |file: &str, text| {
            let file = format!("{}/{}/{file}", self.directory, member.name);
            files.borrow_mut().put(&file, text);
        };
        put("server.txt", said);
        let mut more = vec![("memory.txt", vec!["memory/show"])];
        if is_clustered {
            more.push(("cluster.txt", vec!["cluster/status", self.name]));
        }
        for (file, request) in more {
            let command = [&appctl[..], &request].concat();
            put(file, asked(cluster, member, &command, ANSWER).await);
        }
    }

    /// The rows, a file for each table, by the first member that answers.
    async fn rows(&self, cluster: &Cluster, members: Vec<&OwnPod>, files: &Collected) {
        let of_tables = ["--format=csv", "--no-headings", "list-tables"];
        let list = [&["ovsdb-client", "--timeout=10"][..], &of_tables];
        let list = [&list.concat()[..], &[self.socket, self.name]].concat();
        let put = |table: &str, text| {
            let file = format!("{}/{table}.txt", self.directory);
            files.borrow_mut().put(&file, text);
        };
        let mut failures = Vec::new();
        for member in members {
            let tables = match asked(cluster, member, &list, ANSWER).await {
                Ok(tables) => tables,
                Err(why) => {
                    failures.push(why);
                    continue;
                }
            };
            for table in tables.split_whitespace() {
                let of_table = ["--format=list", "dump", self.socket, self.name];
                let dump = [&["ovsdb-client", "--timeout=60"][..], &of_table];
                let dump = [&dump.concat()[..], from_ref(&table)].concat();
                put(table, asked(cluster, member, &dump, TABLE).await);
            }
            return;
        }
        put("tables", Err(failures.join("; ")));
    }
}

/// What a command in a member's pod prints.
async fn asked(
    cluster: &Cluster,
    member: &OwnPod,
    command: &[&str],
    limit: Duration,
) -> Result<String, String> {
    if let Some(away) = &member.away {
        return Err(away.clone());
    }
    let container = member.part.container();
    let output = cluster.exec_within(limit, &member.name, container, command);
    let output = output.await?;
    match output.code {
        0 => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        _ => Err(format!("{}: {}", command.join(" "), output.complaint())),
    }
}
