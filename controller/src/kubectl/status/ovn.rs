//! OVN's databases and ovn-northd in the cluster's status, where they are pods of podwire's.

use std::fmt;

use futures_util::future::join_all;
use serde::Serialize;

use crate::kubectl::exec::Cluster;
use crate::kubectl::objects::{OwnPod, Part};
use crate::kubectl::sysdump::databases::{DATABASES, Database};

/// The socket of ovn-northd in its container.
const NORTHD: &str = "--target=/run/ovn/ovn-northd.ctl";

/// OVN's central parts.
#[derive(Debug, Default, Serialize)]
pub(super) struct OvnView {
    /// Empty where no pod of podwire's serves them.
    databases: Vec<DatabaseView>,
    /// The pod of the ovn-northd that works; null if there is none.
    northd: Option<String>,
    pub(super) problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct DatabaseView {
    name: &'static str,
    /// The pod of its leader; a database without raft is its own. Null if there is none.
    leader: Option<String>,
    /// How many members take part.
    connected: usize,
    members: usize,
}

/// What a member says of itself.
struct Member {
    leads: bool,
    is_connected: bool,
}

impl OvnView {
    pub(super) async fn of(cluster: &Cluster, pods: &[OwnPod]) -> Self {
        let mut view = Self::default();
        for database in &DATABASES {
            let members: Vec<_> = pods.iter().filter(|it| it.part == database.part).collect();
            if members.is_empty() {
                continue;
            }
            let asked = members.iter().map(|pod| of_member(cluster, database, pod));
            let asked = join_all(asked).await;
            let mut seen = DatabaseView {
                name: database.name,
                leader: None,
                connected: 0,
                members: members.len(),
            };
            for (pod, said) in members.iter().zip(asked) {
                let Member {
                    leads,
                    is_connected,
                } = match said {
                    Ok(member) => member,
                    Err(why) => {
                        view.problems.push(why);
                        continue;
                    }
                };
                match is_connected {
                    true => seen.connected += 1,
                    false => view.problems.push(format!(
                        "pod {} takes no part in the cluster of {}",
                        pod.name, database.name
                    )),
                }
                if leads {
                    seen.leader = Some(pod.name.clone());
                }
            }
            if seen.leader.is_none() {
                let name = database.name;
                view.problems
                    .push(format!("{name} has no leader: nothing is written there"));
            }
            view.databases.push(seen);
        }
        view.ask_northd(cluster, pods).await;
        view
    }

    /// Of several, all but one are on standby.
    async fn ask_northd(&mut self, cluster: &Cluster, pods: &[OwnPod]) {
        let all = pods.iter().filter(|it| it.part == Part::Southbound);
        let all: Vec<_> = all.filter(|it| it.away.is_none()).collect();
        let command = ["ovn-appctl", "--timeout=10", NORTHD, "status"];
        let asked = all
            .iter()
            .map(|pod| cluster.exec(&pod.name, "northd", &command));
        for (pod, said) in all.iter().zip(join_all(asked).await) {
            match said {
                Err(why) => self.problems.push(why),
                Ok(said) if said.code != 0 => self.problems.push(format!(
                    "ovn-northd in pod {}: {}",
                    pod.name,
                    said.complaint()
                )),
                Ok(said) if String::from_utf8_lossy(&said.stdout).contains("active") => {
                    self.northd = Some(pod.name.clone());
                }
                Ok(_) => {}
            }
        }
        if self.northd.is_none() && !all.is_empty() {
            let none = "no ovn-northd works: no pod's row comes to the nodes";
            self.problems.push(none.to_owned());
        }
    }
}

/// ovsdb-server's row of this database (ovsdb-server(5), `_Server`).
async fn of_member(cluster: &Cluster, database: &Database, pod: &OwnPod) -> Result<Member, String> {
    if let Some(away) = &pod.away {
        return Err(away.clone());
    }
    let dump = [
        "ovsdb-client",
        "--timeout=10",
        "--format=csv",
        "--no-headings",
        "dump",
    ];
    let of = [
        database.socket,
        "_Server",
        "Database",
        "name",
        "leader",
        "connected",
    ];
    let said = cluster
        .exec(&pod.name, pod.part.container(), &[&dump[..], &of].concat())
        .await?;
    let text = String::from_utf8_lossy(&said.stdout);
    let row = text.lines().find_map(|line| {
        let columns: Vec<_> = line.split(',').map(str::trim).collect();
        let is_its = columns.contains(&database.name);
        is_its.then(|| columns.into_iter().map(str::to_owned).collect::<Vec<_>>())
    });
    // Whatever the order that is asked for, columns are sorted by their names.
    let Some([connected, leader, _name]) = row.as_deref() else {
        let (name, pod) = (database.name, &pod.name);
        return Err(format!("{name} in pod {pod}: {}", said.complaint()));
    };
    Ok(Member {
        leads: leader == "true",
        is_connected: connected == "true",
    })
}

/// For people: a line for each.
impl fmt::Display for OvnView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for database in &self.databases {
            let DatabaseView {
                name,
                leader,
                connected,
                members,
            } = database;
            let leader = leader.as_deref().unwrap_or("nobody");
            writeln!(
                f,
                "{name}: {connected} of {members} members, led by {leader}"
            )?;
        }
        if let Some(northd) = &self.northd {
            writeln!(f, "ovn-northd: works in {northd}")?;
        }
        for problem in &self.problems {
            writeln!(f, "OVN: {problem}")?;
        }
        Ok(())
    }
}
