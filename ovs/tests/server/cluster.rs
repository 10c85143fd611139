//! A database that three servers keep together by raft (ovsdb(7), "Clustered Database Service
//! Model").

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use podwire_ovs::client::{Client, ClientConfig, Remote, State};
use podwire_ovs::transact::{Columns, TransactError, Transaction};
use podwire_ovs::vswitch;
use tempfile::TempDir;

use crate::fixture::{SCHEMA, daemon, dscps, free_port, insert_queue, run, soon};

struct Cluster {
    directory: TempDir,
    members: Vec<Member>,
}

struct Member {
    process: Child,
    socket: PathBuf,
    control: PathBuf,
}

impl Cluster {
    /// Three members; the first is the leader.
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let addresses: Vec<_> = (0..3)
            .map(|_| format!("tcp:127.0.0.1:{}", free_port()))
            .collect();
        let mut cluster = Self {
            directory,
            members: Vec::new(),
        };
        for (number, address) in addresses.iter().enumerate() {
            let file = cluster.directory.path().join(format!("{number}.db"));
            let mut tool = Command::new("ovsdb-tool");
            match number {
                0 => tool
                    .arg("create-cluster")
                    .arg(&file)
                    .args([SCHEMA, address]),
                _ => tool.arg("join-cluster").arg(&file).args([
                    vswitch::DATABASE,
                    address,
                    &addresses[0],
                ]),
            };
            run(&mut tool);
            let member = Member::start(cluster.directory.path(), number, &file);
            // It has joined once it shows the database.
            let client = Client::start(config(&[&member], false));
            client.synced(soon()).await.unwrap();
            cluster.members.push(member);
        }
        cluster
    }

    fn config(&self) -> ClientConfig {
        config(&self.members.iter().collect::<Vec<_>>(), true)
    }
}

impl Member {
    fn start(directory: &Path, number: usize, file: &Path) -> Self {
        let socket = directory.join(format!("{number}.sock"));
        let control = directory.join(format!("{number}.ctl"));
        let process = daemon("ovsdb-server")
            .arg(file)
            .arg(format!("--remote=punix:{}", socket.display()))
            .arg(format!("--unixctl={}", control.display()))
            .args(["--no-chdir", "-vconsole:off", "-vsyslog:off"])
            .env("OVS_RUNDIR", directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            process,
            socket,
            control,
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn config(members: &[&Member], leader_only: bool) -> ClientConfig {
    let remotes: Vec<_> = members
        .iter()
        .map(|member| Remote::Unix(member.socket.clone()))
        .collect();
    ClientConfig {
        leader_only,
        backoff_first: Duration::from_millis(10),
        backoff_max: Duration::from_millis(100),
        ..ClientConfig::new(remotes, vswitch::DATABASE, vswitch::tables())
    }
}

/// Commits once there is a leader. What was cut off without an outcome is looked for, and tried
/// again, as any caller has to.
async fn insert(client: &Client, dscp: i64) {
    loop {
        let mut transaction = Transaction::new();
        insert_queue(&mut transaction, dscp);
        match client.transact(&transaction, soon()).await {
            Ok(_) => return,
            Err(TransactError::Disconnected { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        client.synced(soon()).await.unwrap();
        if dscps(client).contains(&dscp) {
            return;
        }
    }
}

#[tokio::test]
async fn a_follower_is_left_for_the_leader() {
    let cluster = Cluster::start().await;
    let [leader, follower, _] = &cluster.members[..] else {
        unreachable!()
    };
    let client = Client::start(config(&[follower, leader], true));
    client.synced(soon()).await.unwrap();
    assert_eq!(client.stats().connects, 2);
    // A client that takes any server stays where it is.
    let modest = Client::start(config(&[follower, leader], false));
    modest.synced(soon()).await.unwrap();
    assert_eq!(modest.stats().connects, 1);
}

#[tokio::test]
async fn when_the_leader_moves_the_client_moves_with_it() {
    let cluster = Cluster::start().await;
    let client = Client::start(cluster.config());
    client.synced(soon()).await.unwrap();
    insert(&client, 1).await;
    let resyncs = client.subscribe().borrow().resyncs;
    run(Command::new("ovs-appctl")
        .arg("-t")
        .arg(&cluster.members[0].control)
        .args(["cluster/leave", vswitch::DATABASE]));
    let mut versions = client.subscribe();
    let moved =
        versions.wait_for(|version| version.resyncs > resyncs && version.state == State::Synced);
    tokio::time::timeout_at(soon(), moved)
        .await
        .unwrap()
        .unwrap();
    insert(&client, 2).await;
    assert_eq!(dscps(&client), [1, 2]);
}

#[tokio::test]
async fn when_the_leader_dies_another_is_found() {
    let mut cluster = Cluster::start().await;
    let client = Client::start(cluster.config());
    client.synced(soon()).await.unwrap();
    insert(&client, 1).await;
    cluster.members[0].process.kill().unwrap();
    insert(&client, 2).await;
    assert_eq!(dscps(&client), [1, 2]);
}

/// A relay is never a leader (`update_database_status` in ovsdb/ovsdb-server.c).
#[tokio::test]
async fn a_relay_is_as_good_as_the_leader_and_passes_writes_on() {
    let server = crate::fixture::Server::start();
    let source = server.client().await;
    let file = format!(
        "relay:{}:unix:{}",
        vswitch::DATABASE,
        server.socket().display()
    );
    let relay = Member::start(server.path(), 7, Path::new(&file));
    let client = Client::start(config(&[&relay], true));
    client.synced(soon()).await.unwrap();
    insert(&client, 1).await;
    let arrived = |db: &podwire_ovs::replica::Db| (db.len("Queue") == 1).then_some(());
    source.wait("the row", soon(), arrived).await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_not_clustered_has_its_leader_in_its_server() {
    let server = crate::fixture::Server::start();
    let client = Client::start(ClientConfig {
        leader_only: true,
        ..server.config()
    });
    client.synced(soon()).await.unwrap();
    let mut transaction = Transaction::new();
    transaction.insert("Queue", Columns::new().set("dscp", 1));
    client.transact(&transaction, soon()).await.unwrap();
}
