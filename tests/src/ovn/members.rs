//! OVN's databases that three servers keep together by raft (ovsdb(7), "Clustered Database Service
//! Model"), and relays of them: as docs/cluster.md says it for three machines, on one.

use std::process::Command;
use std::sync::Mutex;

use nix::sys::signal::Signal;
use serde_json::json;

use super::{CENTRAL_ADDRESS, Central, NORTHBOUND, RUN_DIR, SOUTHBOUND, lock, make_run_dir};
use crate::TestNode;
use crate::failure::OrFail;
use crate::node::DAEMON_LIMIT;
use crate::ovsdb::Ovsdb;
use crate::process::Daemon;

/// How many members there are.
pub const MEMBERS: usize = 3;
/// How many relays.
pub const RELAYS: usize = 2;

/// One of the two databases.
#[derive(Clone, Copy, Debug)]
pub enum Clustered {
    /// OVN_Northbound.
    Northbound,
    /// OVN_Southbound.
    Southbound,
}

/// The servers. They end before the central machine, which has to be kept longer.
#[derive(Debug)]
pub struct Members<'c> {
    central: &'c Central,
    members: [Mutex<Option<Daemon>>; MEMBERS],
    relays: [Mutex<Option<Daemon>>; RELAYS],
}

impl Clustered {
    const BOTH: [Self; 2] = [Self::Northbound, Self::Southbound];

    fn name(self) -> &'static str {
        match self {
            Self::Northbound => "OVN_Northbound",
            Self::Southbound => "OVN_Southbound",
        }
    }

    /// As in the names of files.
    fn short(self) -> &'static str {
        match self {
            Self::Northbound => "nb",
            Self::Southbound => "sb",
        }
    }

    fn socket(self, member: usize) -> String {
        format!("{RUN_DIR}/{}-{member}.sock", self.short())
    }

    /// Where the members talk to each other.
    fn raft(self, member: usize) -> String {
        let first = match self {
            Self::Northbound => 16640,
            Self::Southbound => 16740,
        };
        format!("tcp:127.0.0.1:{}", first + member)
    }

    /// All members, as programs on the central machine are told.
    pub fn remotes(self) -> String {
        let all = (0..MEMBERS).map(|member| format!("unix:{}", self.socket(member)));
        all.collect::<Vec<_>>().join(",")
    }
}

/// The port of a member's southbound database, for nodes.
fn port(member: usize) -> usize {
    16642 + 1000 * (1 + member)
}

fn relay_port(relay: usize) -> usize {
    26642 + relay
}

fn remote(port: usize) -> String {
    format!("tcp:{CENTRAL_ADDRESS}:{port}")
}

impl Central {
    /// A central machine on which no database runs yet.
    #[track_caller]
    pub fn without_databases() -> Central {
        let machine = TestNode::new();
        make_run_dir(&machine);
        let central = Central {
            northd: Mutex::new(None),
            databases: Mutex::new(Vec::new()),
            machine,
        };
        central.lay_underlay();
        central
    }
}

impl<'c> Members<'c> {
    /// Starts three members with both databases, an ovn-northd and two relays of the southbound
    /// one.
    #[track_caller]
    pub fn start(central: &'c Central) -> Self {
        let members = Self {
            central,
            members: Default::default(),
            relays: Default::default(),
        };
        for member in 0..MEMBERS {
            for database in Clustered::BOTH {
                members.create(database, member);
            }
            members.revive(member);
        }
        for (database, table) in Clustered::BOTH.into_iter().zip(["NB_Global", "SB_Global"]) {
            members
                .database(database, 0)
                .transact(&[json!({"op": "insert", "table": table, "row": {}})])
                .or_fail();
        }
        let [northbound, southbound] = Clustered::BOTH.map(Clustered::remotes);
        central.start_northd_by(&northbound, &southbound, &[]);
        for relay in 0..RELAYS {
            members.revive_relay(relay);
        }
        members
    }

    #[track_caller]
    fn create(&self, database: Clustered, member: usize) {
        let (short, own) = (database.short(), database.raft(member));
        let file = format!("{RUN_DIR}/{short}-{member}.db");
        let arguments = match member {
            0 => format!("create-cluster {file} /usr/share/ovn/ovn-{short}.ovsschema {own}"),
            _ => {
                let (name, first) = (database.name(), database.raft(0));
                format!("join-cluster {file} {name} {own} {first}")
            }
        };
        self.central.machine().run("ovsdb-tool", arguments);
    }

    /// Starts a member, and waits until it is one.
    #[track_caller]
    pub fn revive(&self, member: usize) {
        let mut command = Command::new("ovsdb-server");
        command.args(["--no-chdir", &format!("--remote=ptcp:{}", port(member))]);
        for database in Clustered::BOTH {
            let socket = database.socket(member);
            command.arg(format!("--remote=punix:{socket}"));
            command.arg(format!("{RUN_DIR}/{}-{member}.db", database.short()));
        }
        // What a test asks the databases itself goes to the first.
        if member == 0 {
            command.args([NORTHBOUND, SOUTHBOUND].map(|it| format!("--remote=punix:{it}")));
        }
        command.env("OVS_RUNDIR", RUN_DIR);
        let machine = self.central.machine();
        let daemon = machine.start_daemon(&command, "ovsdb-server", RUN_DIR);
        *lock(&self.members[member]) = Some(daemon.or_fail());
        for database in Clustered::BOTH {
            await_connected(&self.server(database, member), database);
        }
    }

    /// A living member's control socket, as its machine names it.
    ///
    /// # Panics
    /// It does not run.
    #[track_caller]
    pub fn control(&self, member: usize) -> String {
        let pid = lock(&self.members[member]).as_ref().map(Daemon::pid);
        let Some(pid) = pid else {
            panic!("member {member} does not run")
        };
        format!("{RUN_DIR}/ovsdb-server.{pid}.ctl")
    }

    /// Starts a relay, and waits until it has the database.
    #[track_caller]
    pub fn revive_relay(&self, relay: usize) {
        let socket = format!("{RUN_DIR}/relay-{relay}.sock");
        let mut command = Command::new("ovsdb-server");
        command
            .args([
                "--no-chdir",
                &format!("--remote=ptcp:{}", relay_port(relay)),
            ])
            .arg(format!("--remote=punix:{socket}"))
            .arg(format!(
                "relay:OVN_Southbound:{}",
                Clustered::Southbound.remotes()
            ))
            .env("OVS_RUNDIR", RUN_DIR);
        let machine = self.central.machine();
        let daemon = machine.start_daemon(&command, "ovsdb-server", RUN_DIR);
        *lock(&self.relays[relay]) = Some(daemon.or_fail());
        let server = Ovsdb::of(machine.path(&socket), "_Server");
        await_connected(&server, Clustered::Southbound);
    }

    /// Kills a member (SIGKILL).
    #[track_caller]
    pub fn kill(&self, member: usize) {
        end(&self.members[member]);
    }

    /// Kills a relay.
    #[track_caller]
    pub fn kill_relay(&self, relay: usize) {
        end(&self.relays[relay]);
    }

    /// The member that leads; every living one may be asked.
    #[track_caller]
    pub fn leader(&self, database: Clustered) -> usize {
        let leads = |member: &usize| {
            let rows = self.server(database, *member).rows("Database").or_fail();
            let mut own = rows.iter().filter(|row| row["name"] == database.name());
            own.any(|row| row["leader"] == true)
        };
        let Some(leader) = (0..MEMBERS).find(leads) else {
            panic!("{} has no leader", database.name());
        };
        leader
    }

    /// A database, by one of its members.
    pub fn database(&self, database: Clustered, member: usize) -> Ovsdb {
        let socket = self.central.machine().path(&database.socket(member));
        Ovsdb::of(socket, database.name())
    }

    /// Where nodes find the southbound database by its members.
    pub fn remotes_of_nodes(&self) -> String {
        let all: Vec<_> = (0..MEMBERS).map(|member| remote(port(member))).collect();
        all.join(",")
    }

    /// The same by the relays.
    pub fn remotes_by_relays(&self) -> String {
        let all: Vec<_> = (0..RELAYS).map(|relay| remote(relay_port(relay))).collect();
        all.join(",")
    }

    /// What the member's server says of itself.
    fn server(&self, database: Clustered, member: usize) -> Ovsdb {
        let socket = self.central.machine().path(&database.socket(member));
        Ovsdb::of(socket, "_Server")
    }
}

/// Waits until a server has a database. It may drop its clients at that moment.
#[track_caller]
fn await_connected(server: &Ovsdb, database: Clustered) {
    let wait = |_| {
        let is_it = json!([["name", "==", database.name()]]);
        let connected = json!([{ "connected": true }]);
        server
            .wait("Database", is_it, "==", &["connected"], connected)
            .is_ok()
    };
    assert!(
        (0..3).any(wait),
        "a server does not get {}",
        database.name()
    );
}

#[track_caller]
fn end(daemon: &Mutex<Option<Daemon>>) {
    if let Some(daemon) = lock(daemon).take() {
        daemon.end_by(Signal::SIGKILL, DAEMON_LIMIT).or_fail();
    }
}
