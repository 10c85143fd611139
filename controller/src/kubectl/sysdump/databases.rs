//! OVN's databases in a sysdump: the rows of each, once, and what each member says of its cluster.

use std::slice::from_ref;

use super::Texts;
use crate::kubectl::exec::Cluster;
use crate::kubectl::objects::{OwnPod, Part};

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
pub(super) async fn of(cluster: &Cluster, pods: &[OwnPod]) -> Texts {
    // Without a controller there is no OVN, or somebody else's.
    let has_ovn = pods.iter().any(|it| it.part == Part::Controller);
    let mut texts = Texts::new();
    for database in &DATABASES {
        let members = pods.iter().filter(|it| it.part == database.part);
        let members: Vec<_> = members.collect();
        let directory = database.directory;
        if members.is_empty() && has_ovn {
            let why = format!("no pod serves {}: ask it where it runs", database.name);
            texts.push((format!("{directory}/tables.txt"), Err(why)));
        }
        for member in &members {
            texts.extend(database.of_member(cluster, member).await);
        }
        if !members.is_empty() {
            texts.extend(database.rows(cluster, &members).await);
        }
    }
    texts
}

impl Database {
    /// The cluster as this member sees it, and what it takes of memory.
    async fn of_member(&self, cluster: &Cluster, member: &OwnPod) -> Texts {
        let control = format!("--target={}", self.control);
        let appctl = ["ovs-appctl", "--timeout=10", &control];
        let dump = ["ovsdb-client", "--timeout=10", "--format=list", "dump"];
        let of_server = ["_Server", "Database", "name", "model", "connected"];
        let of_raft = ["leader", "cid", "sid", "index"];
        let mut server = dump.to_vec();
        server.push(self.socket);
        server.extend(of_server.into_iter().chain(of_raft));
        let mut texts = Texts::new();
        let said = asked(cluster, member, &server).await;
        let is_clustered = said.as_ref().is_ok_and(|it| it.contains("clustered"));
        let place = |file: &str| format!("{}/{}/{file}", self.directory, member.name);
        texts.push((place("server.txt"), said));
        let mut more = vec![("memory.txt", vec!["memory/show"])];
        if is_clustered {
            more.push(("cluster.txt", vec!["cluster/status", self.name]));
        }
        for (file, request) in more {
            let command = [&appctl[..], &request].concat();
            texts.push((place(file), asked(cluster, member, &command).await));
        }
        texts
    }

    /// The rows, a file for each table, by the first member that answers.
    async fn rows(&self, cluster: &Cluster, members: &[&OwnPod]) -> Texts {
        let of_tables = ["--format=csv", "--no-headings", "list-tables"];
        let list = [&["ovsdb-client", "--timeout=10"][..], &of_tables];
        let list = [&list.concat()[..], &[self.socket, self.name]].concat();
        let mut texts = Texts::new();
        let mut failures = Vec::new();
        for member in members {
            let tables = match asked(cluster, member, &list).await {
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
                let rows = asked(cluster, member, &dump).await;
                texts.push((format!("{}/{table}.txt", self.directory), rows));
            }
            return texts;
        }
        let why = failures.join("; ");
        vec![(format!("{}/tables.txt", self.directory), Err(why))]
    }
}

/// What a command in a member's pod prints.
async fn asked(cluster: &Cluster, member: &OwnPod, command: &[&str]) -> Result<String, String> {
    if let Some(away) = &member.away {
        return Err(away.clone());
    }
    let output = cluster
        .exec(&member.name, member.part.container(), command)
        .await?;
    match output.code {
        0 => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        _ => Err(format!("{}: {}", command.join(" "), output.complaint())),
    }
}
